//! Programs installed by `./test`: built from Go modules, or system packages.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a program of `tests/programs`, built into the target folder.
///
/// # Panics
/// If the program was not built.
#[must_use]
pub fn go_program(name: &str) -> PathBuf {
    fetched_file(name, "scenarios")
}

/// Returns a program of `tests/programs/check_services`, built into the target folder.
///
/// # Panics
/// If the program was not built.
#[must_use]
pub fn check_service(name: &str) -> PathBuf {
    fetched_file(name, "check-services")
}

/// Returns cert-manager's controllers, `tests/programs/cert-manager`, built into the target folder.
///
/// # Panics
/// If the controllers were not built.
#[must_use]
pub fn cert_manager() -> PathBuf {
    fetched_file("cert-manager", "cert-manager")
}

/// Returns Envoy as installed by `leno bench install envoy`.
///
/// # Panics
/// If Envoy was not fetched.
#[must_use]
pub(crate) fn envoy_path() -> PathBuf {
    fetched_file("leno/contenders/envoy/envoy/_bin/envoy", "scenarios")
}

/// Returns the folder of the Java programs in `tests/programs/java`, with their dependencies.
///
/// # Panics
/// If the programs were not fetched.
#[must_use]
pub fn java_programs() -> PathBuf {
    fetched_file("java", "grpc-java")
}

/// Returns the command that runs a scenario of `tests/programs/page/page.mjs` in a real browser, on the page of a control
/// plane at `url`.
///
/// # Panics
/// If the dependencies of the script were not fetched.
#[must_use]
pub fn page_script(scenario: &str, url: &str) -> Command {
    let playwright_directory = fetched_file("page/node_modules/playwright-core", "scenarios");
    let modules_directory =
        playwright_directory.ancestors().nth(2).expect("it lies in two folders");
    let mut command = Command::new("node");
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/programs/page/page.mjs"))
        .args([scenario, url])
        .env("LENO_PAGE_MODULES", modules_directory)
        .env("LENO_CHROMIUM", "/usr/bin/chromium");
    command
}

/// Returns the Zipkin server, a single file.
///
/// # Panics
/// If the server was not fetched.
#[must_use]
pub fn zipkin_path() -> PathBuf {
    fetched_file("zipkin/zipkin-server.jar", "collectors")
}

/// Returns a file that the `./test` target `test_target` puts into the target folder.
fn fetched_file(name: &str, test_target: &str) -> PathBuf {
    let test_binary = std::env::current_exe().expect("a test has a path");
    let target_directory =
        test_binary.ancestors().nth(3).expect("tests lie in target/PROFILE/deps");
    let file_path = target_directory.join("programs").join(name);
    assert!(file_path.exists(), "{} is missing: run ./test {test_target}", file_path.display());
    file_path
}

/// Returns the Python with the system packages.
#[must_use]
pub fn python_program() -> &'static str {
    let debian_path = Path::new("/usr/bin/python3");
    if debian_path.exists() { "/usr/bin/python3" } else { "python3" }
}

/// Returns a script of this crate in another language.
#[must_use]
pub fn script_path(file: &str) -> String {
    format!("{}/clients/{file}", env!("CARGO_MANIFEST_DIR"))
}
