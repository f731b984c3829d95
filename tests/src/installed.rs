//! Programs that `./test` has installed: built from Go modules, or packages of the system.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of `tests/programs`, built into the target folder.
///
/// # Panics
/// When it was not built.
#[must_use]
pub fn go_program(name: &str) -> PathBuf {
    fetched(name, "scenarios")
}

/// A program of `tests/programs/deciders`, built into the target folder.
///
/// # Panics
/// When it was not built.
#[must_use]
pub fn decider(name: &str) -> PathBuf {
    fetched(name, "deciders")
}

/// cert-manager's controllers, `tests/programs/cert-manager`, built into the target folder.
///
/// # Panics
/// When they were not built.
#[must_use]
pub fn cert_manager() -> PathBuf {
    fetched("cert-manager", "cert-manager")
}

/// Envoy, where `leno bench install envoy` puts it.
///
/// # Panics
/// When it was not fetched.
#[must_use]
pub(crate) fn envoy() -> PathBuf {
    fetched("leno/contenders/envoy/envoy/_bin/envoy", "scenarios")
}

/// The folder of the Java programs of `tests/programs/java`, and all that they need.
///
/// # Panics
/// When they were not fetched.
#[must_use]
pub fn java_programs() -> PathBuf {
    fetched("java", "grpc-java")
}

/// A scene of `tests/programs/page` in a real browser, on a page of a control plane.
///
/// # Panics
/// When what it needs was not fetched.
#[must_use]
pub fn page_script(scene: &str, url: &str) -> Command {
    let modules = fetched("page/node_modules/playwright-core", "scenarios");
    let folder = modules.ancestors().nth(2).expect("it lies in two folders");
    let mut command = Command::new("node");
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/programs/page/page.mjs"))
        .args([scene, url])
        .env("LENO_PAGE_MODULES", folder)
        .env("LENO_CHROMIUM", "/usr/bin/chromium");
    command
}

/// The server of Zipkin, which is one file.
///
/// # Panics
/// When it was not fetched.
#[must_use]
pub fn zipkin() -> PathBuf {
    fetched("zipkin/zipkin-server.jar", "collectors")
}

/// What the target of this name of `./test` puts into the target folder.
fn fetched(name: &str, by: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("a test has a path");
    let target = tests.ancestors().nth(3).expect("tests lie in target/PROFILE/deps");
    let program = target.join("programs").join(name);
    assert!(program.exists(), "{} is missing: run ./test {by}", program.display());
    program
}

/// The Python that has the packages of the system.
#[must_use]
pub fn python() -> &'static str {
    let debian = Path::new("/usr/bin/python3");
    if debian.exists() { "/usr/bin/python3" } else { "python3" }
}

/// A program of this crate's own in another language.
#[must_use]
pub fn script(file: &str) -> String {
    format!("{}/clients/{file}", env!("CARGO_MANIFEST_DIR"))
}
