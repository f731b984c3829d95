//! A mesh of separately started programs, as on several machines: `leno control`, `leno proxy`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::admin_endpoint::AdminEndpoint;
use crate::http::get_page;
use crate::program::{Release, TestProgram};
use crate::{eventually, free_port};

/// A control plane: the program `leno control`, with files written by the test.
pub struct ControlProgram {
    directory: Arc<TempDir>,
    /// The path of the data directory, absolute or relative to `directory`.
    data_path: String,
    arguments: Vec<String>,
    address: SocketAddr,
    release: Release,
    /// The running program.
    pub program: TestProgram,
}

impl ControlProgram {
    /// Starts a control plane with manifests.
    ///
    /// # Panics
    /// If the control plane does not start.
    #[must_use]
    pub fn start(manifests: &str, arguments: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", manifests, arguments)
    }

    /// As [`Self::start`], with a given release.
    ///
    /// # Panics
    /// If the control plane does not start.
    #[must_use]
    pub fn start_release(release: Release, manifests: &str, arguments: &[&str]) -> Self {
        Self::start_control(release, "127.0.0.1:0", DATA_DIRECTORY, manifests, arguments)
    }

    /// As [`Self::start`], with a listen address.
    ///
    /// # Panics
    /// If the control plane does not start.
    #[must_use]
    pub fn start_at(listen_address: &str, manifests: &str, arguments: &[&str]) -> Self {
        Self::start_control(Release::Current, listen_address, DATA_DIRECTORY, manifests, arguments)
    }

    /// As [`Self::start`], with its data in a given directory, such as the mount of a small disk.
    ///
    /// # Panics
    /// If the control plane does not start.
    #[must_use]
    pub fn start_on_disk(disk: &Path, manifests: &str, arguments: &[&str]) -> Self {
        let data_path = disk.join("data").display().to_string();
        Self::start_control(Release::Current, "127.0.0.1:0", &data_path, manifests, arguments)
    }

    fn start_control(
        release: Release,
        listen_address: &str,
        data_path: &str,
        manifests: &str,
        arguments: &[&str],
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the mesh");
        std::fs::create_dir(directory.path().join("mesh")).expect("a folder for manifests");
        std::fs::write(directory.path().join("mesh/mesh.yaml"), manifests).expect("manifests");
        let arguments: Vec<String> =
            arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let (program, address) =
            start_control_program(release, directory.path(), data_path, &arguments, listen_address);
        let (directory, data_path) = (Arc::new(directory), data_path.to_owned());
        Self { directory, data_path, arguments, address, release, program }
    }

    /// Starts several control planes with the same manifests and authority, which peer with each other.
    ///
    /// # Panics
    /// If a control plane does not start.
    #[must_use]
    pub fn start_replicas(count: usize, manifests: &str, arguments: &[&str]) -> Vec<Self> {
        let directory = tempfile::tempdir().expect("a directory for the mesh");
        std::fs::create_dir(directory.path().join("mesh")).expect("a folder for manifests");
        std::fs::write(directory.path().join("mesh/mesh.yaml"), manifests).expect("manifests");
        let directory = Arc::new(directory);
        let addresses: Vec<String> =
            (0..count).map(|_| format!("127.0.0.1:{}", free_port())).collect();
        let shared_directory = directory.path().join("shared").display().to_string();
        let replica_arguments =
            ["--shared".to_owned(), shared_directory, "--peer".to_owned(), addresses.join(",")];
        let arguments: Vec<String> = replica_arguments
            .into_iter()
            .chain(arguments.iter().map(|argument| (*argument).to_owned()))
            .collect();
        let start_replica = |(number, listen_address): (usize, &String)| {
            let data_path = format!("data-{number}");
            let release = Release::Current;
            let (program, address) = start_control_program(
                release,
                directory.path(),
                &data_path,
                &arguments,
                listen_address,
            );
            let (directory, arguments) = (Arc::clone(&directory), arguments.clone());
            Self { directory, data_path, arguments, address, release, program }
        };
        addresses.iter().enumerate().map(start_replica).collect()
    }

    /// Kills the control plane (SIGKILL).
    ///
    /// # Panics
    /// If the control plane has already exited.
    pub fn kill(&mut self) {
        self.program.send_signal(Signal::KILL);
        self.program.wait_for_exit(MAX_WAIT);
    }

    /// Restarts the control plane at the same address with the same files and data.
    ///
    /// # Panics
    /// If the control plane does not start.
    pub fn restart(&mut self) {
        let address = self.address.to_string();
        let (program, address) = start_control_program(
            self.release,
            self.directory.path(),
            self.data_path.as_str(),
            self.arguments.as_slice(),
            &address,
        );
        assert_eq!(address, self.address);
        self.program = program;
    }

    /// Stops the control plane (SIGTERM), and starts another release in its place.
    ///
    /// # Panics
    /// If the other release does not start.
    pub fn switch_release(&mut self, release: Release) {
        self.program.stop(MAX_WAIT);
        self.release = release;
        self.restart();
    }

    /// Returns a file with a one-time token for a workload.
    ///
    /// # Panics
    /// If the control plane does not issue a token.
    #[must_use]
    pub fn issue_token(&self, workload: &str) -> PathBuf {
        let file = self.directory.path().join(format!("{}.token", workload.replace('/', "-")));
        let output = self.run_leno(&["token", workload, "--out", file.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        file
    }

    /// Returns the output of `leno get KIND -o json`.
    ///
    /// # Panics
    /// If the command fails or prints no JSON.
    #[must_use]
    pub fn get_json(&self, kind: &str) -> Value {
        let output = self.run_leno(&["get", kind, "-o", "json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("leno get {kind}: {error}: {}", String::from_utf8_lossy(&output.stderr))
        })
    }

    /// Runs `leno` against this mesh.
    ///
    /// # Panics
    /// If `leno` cannot be run.
    #[must_use]
    pub fn run_leno(&self, arguments: &[&str]) -> Output {
        let mut command = self.release.leno_command();
        command.args(arguments).arg("--data").arg(self.directory.path().join(&self.data_path));
        command.output().expect("leno runs")
    }

    /// Writes another file of manifests.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, file: &str, manifests: &str) {
        std::fs::write(self.directory.path().join("mesh").join(file), manifests)
            .expect("manifests");
    }

    /// Removes a file of manifests.
    ///
    /// # Panics
    /// If the file does not exist.
    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.directory.path().join("mesh").join(file)).expect("it is there");
    }

    /// Returns the listen address of the control plane.
    #[must_use]
    pub fn listen_address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the data directory of the control plane.
    #[must_use]
    pub fn data_directory(&self) -> PathBuf {
        self.directory.path().join(&self.data_path)
    }

    /// Returns the state directory of a workload's proxy.
    #[must_use]
    pub fn state_directory(&self, workload: &str) -> PathBuf {
        self.directory.path().join("state").join(workload)
    }
}

/// Starts a control plane and waits until it is ready. Returns the program and its listen address.
fn start_control_program(
    release: Release,
    directory: &Path,
    data_path: &str,
    arguments: &[String],
    listen_address: &str,
) -> (TestProgram, SocketAddr) {
    let mut command = release.leno_command();
    command.arg("control").arg("-f").arg(directory.join("mesh"));
    command
        .arg("--data")
        .arg(directory.join(data_path))
        .args(["--listen", listen_address])
        .args(arguments);
    let program = TestProgram::start("leno control", &mut command);
    let line = program.wait_for_line("control plane ready", MAX_WAIT);
    let address = log_field(&line, "address=").parse().expect("an address");
    (program, address)
}

/// The sidecar of one workload: the program `leno proxy`.
pub struct SidecarProgram {
    workload: String,
    state_directory: PathBuf,
    arguments: Vec<String>,
    release: Release,
    /// The running program.
    pub program: TestProgram,
    /// The admin endpoint of the proxy.
    pub admin_endpoint: AdminEndpoint,
}

impl SidecarProgram {
    /// Starts the proxy of a workload with a new token, and waits until it is ready.
    ///
    /// # Panics
    /// If the proxy does not become ready.
    #[must_use]
    pub fn join(control: &ControlProgram, workload: &str, arguments: &[&str]) -> Self {
        Self::join_release(Release::Current, control, workload, arguments)
    }

    /// As [`Self::join`], with a given release.
    ///
    /// # Panics
    /// If the proxy does not become ready.
    #[must_use]
    pub fn join_release(
        release: Release,
        control: &ControlProgram,
        workload: &str,
        arguments: &[&str],
    ) -> Self {
        let token_file = control.issue_token(workload);
        let proxy = Self::start_proxy(
            release,
            workload,
            &control.state_directory(workload),
            &token_file,
            arguments,
        );
        proxy.wait_until_ready();
        proxy
    }

    /// Starts the proxy of a workload with a token file; it may never become ready.
    ///
    /// # Panics
    /// If the proxy cannot be started.
    #[must_use]
    pub fn start_unready(
        workload: &str,
        token_file: &Path,
        state_directory: &Path,
        arguments: &[&str],
    ) -> Self {
        Self::start_proxy(Release::Current, workload, state_directory, token_file, arguments)
    }

    fn start_proxy(
        release: Release,
        workload: &str,
        state_directory: &Path,
        token_file: &Path,
        arguments: &[&str],
    ) -> Self {
        let arguments: Vec<String> =
            arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let (program, admin_endpoint) =
            start_sidecar_program(release, workload, state_directory, Some(token_file), &arguments);
        let (workload, state_directory) = (workload.to_owned(), state_directory.to_owned());
        Self { workload, state_directory, arguments, release, program, admin_endpoint }
    }

    /// Restarts the proxy from its state directory, without a token, and waits until it is ready.
    ///
    /// # Panics
    /// If the proxy does not become ready.
    pub fn restart(&mut self) {
        (self.program, self.admin_endpoint) = start_sidecar_program(
            self.release,
            self.workload.as_str(),
            self.state_directory.as_path(),
            None,
            &self.arguments,
        );
        self.wait_until_ready();
    }

    /// Stops the proxy (SIGTERM), and starts another release with its state.
    ///
    /// # Panics
    /// If the other release does not become ready.
    pub fn switch_release(&mut self, release: Release) {
        self.program.stop(MAX_WAIT);
        self.release = release;
        self.restart();
    }

    /// Kills the proxy (SIGKILL).
    ///
    /// # Panics
    /// If the proxy has already exited.
    pub fn kill(&mut self) {
        self.program.send_signal(Signal::KILL);
        self.program.wait_for_exit(MAX_WAIT);
    }

    /// Waits until the proxy reports that it is ready.
    ///
    /// # Panics
    /// On timeout.
    pub fn wait_until_ready(&self) {
        eventually(&format!("the proxy of {} is ready", self.workload), MAX_WAIT, || {
            get_page(self.admin_endpoint.address, "/ready")
                .ok()
                .filter(|response| response.status == 200)
        });
    }
}

/// Starts a proxy and waits until it has logged its admin address. The proxy may not be ready yet.
fn start_sidecar_program(
    release: Release,
    workload: &str,
    state_directory: &Path,
    token_file: Option<&Path>,
    arguments: &[String],
) -> (TestProgram, AdminEndpoint) {
    let mut command = release.leno_command();
    command
        .args(["proxy", "--workload", workload])
        .arg("--state")
        .arg(state_directory)
        .args(arguments);
    if let Some(token_file) = token_file {
        command.arg("--token-file").arg(token_file);
    }
    let program = TestProgram::start(&format!("leno proxy of {workload}"), &mut command);
    let line = program.wait_for_line("the sidecar starts", MAX_WAIT);
    let address = log_field(&line, "admin=").parse().expect("an address");
    let admin_endpoint = AdminEndpoint { pid: program.pid(), address };
    (program, admin_endpoint)
}

/// Returns the value of a field in a log line. `field_start` is the name with the equals sign, such as `address=`.
fn log_field<'a>(line: &'a str, field_start: &str) -> &'a str {
    let (_, value_and_rest) =
        line.split_once(field_start).unwrap_or_else(|| panic!("no {field_start} in {line}"));
    value_and_rest.split_whitespace().next().unwrap_or_default()
}

/// The default name of the data directory.
const DATA_DIRECTORY: &str = "data";
/// The timeout of starts and exits.
const MAX_WAIT: Duration = Duration::from_secs(20);
