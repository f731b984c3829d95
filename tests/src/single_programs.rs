//! A mesh of separately started programs, as on several machines: `leno control`, `leno proxy`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::admin_page::AdminPage;
use crate::http::get_page;
use crate::program::{Release, TestProgram};
use crate::{eventually, free_port};

/// `leno control` with files written by the test.
pub struct ControlProgram {
    directory: Arc<TempDir>,
    /// The name of its data directory, or an absolute path.
    data: String,
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
    /// If it does not start.
    #[must_use]
    pub fn start(manifests: &str, arguments: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", manifests, arguments)
    }

    /// As [`Self::start`], with a given release.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_release(release: Release, manifests: &str, arguments: &[&str]) -> Self {
        Self::start_control(release, "127.0.0.1:0", DATA_DIRECTORY, manifests, arguments)
    }

    /// As [`Self::start`], with a listen address.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_at(listen: &str, manifests: &str, arguments: &[&str]) -> Self {
        Self::start_control(Release::This, listen, DATA_DIRECTORY, manifests, arguments)
    }

    /// As [`Self::start`], with its data in a given directory, such as the mount of a small disk.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_on_disk(disk: &Path, manifests: &str, arguments: &[&str]) -> Self {
        let data = disk.join("data").display().to_string();
        Self::start_control(Release::This, "127.0.0.1:0", &data, manifests, arguments)
    }

    fn start_control(
        release: Release,
        listen: &str,
        data: &str,
        manifests: &str,
        arguments: &[&str],
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the mesh");
        std::fs::create_dir(directory.path().join("mesh")).expect("a folder for manifests");
        std::fs::write(directory.path().join("mesh/mesh.yaml"), manifests).expect("manifests");
        let arguments: Vec<String> =
            arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let (program, address) =
            start_control_program(release, directory.path(), data, &arguments, listen);
        let (directory, data) = (Arc::new(directory), data.to_owned());
        Self { directory, data, arguments, address, release, program }
    }

    /// Starts several control planes with the same manifests and authority, which peer with each other.
    ///
    /// # Panics
    /// If one does not start.
    #[must_use]
    pub fn start_replicas(count: usize, manifests: &str, arguments: &[&str]) -> Vec<Self> {
        let directory = tempfile::tempdir().expect("a directory for the mesh");
        std::fs::create_dir(directory.path().join("mesh")).expect("a folder for manifests");
        std::fs::write(directory.path().join("mesh/mesh.yaml"), manifests).expect("manifests");
        let directory = Arc::new(directory);
        let addresses: Vec<String> =
            (0..count).map(|_| format!("127.0.0.1:{}", free_port())).collect();
        let shared = directory.path().join("shared").display().to_string();
        let replica_arguments =
            ["--shared".to_owned(), shared, "--peer".to_owned(), addresses.join(",")];
        let arguments: Vec<String> = replica_arguments
            .into_iter()
            .chain(arguments.iter().map(|argument| (*argument).to_owned()))
            .collect();
        let start_replica = |(number, listen): (usize, &String)| {
            let data = format!("data-{number}");
            let release = Release::This;
            let (program, address) =
                start_control_program(release, directory.path(), &data, &arguments, listen);
            let (directory, arguments) = (Arc::clone(&directory), arguments.clone());
            Self { directory, data, arguments, address, release, program }
        };
        addresses.iter().enumerate().map(start_replica).collect()
    }

    /// Kills it (SIGKILL).
    ///
    /// # Panics
    /// If it has already exited.
    pub fn kill(&mut self) {
        self.program.send_signal(Signal::KILL);
        self.program.wait_for_exit(MAX_WAIT);
    }

    /// Restarts it at the same address with the same files and data.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        let address = self.address.to_string();
        let (program, address) = start_control_program(
            self.release,
            self.directory.path(),
            self.data.as_str(),
            self.arguments.as_slice(),
            &address,
        );
        assert_eq!(address, self.address);
        self.program = program;
    }

    /// Stops it (SIGTERM), and starts another release in its place.
    ///
    /// # Panics
    /// If that does not start.
    pub fn switch_release(&mut self, release: Release) {
        self.program.stop(MAX_WAIT);
        self.release = release;
        self.restart();
    }

    /// Returns a file with a one-time token for a workload.
    ///
    /// # Panics
    /// If the control plane does not issue one.
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
    /// If it fails or prints no JSON.
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
    /// If it cannot be run.
    #[must_use]
    pub fn run_leno(&self, arguments: &[&str]) -> Output {
        let mut command = self.release.leno_command();
        command.args(arguments).arg("--data").arg(self.directory.path().join(&self.data));
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
    /// If it does not exist.
    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.directory.path().join("mesh").join(file)).expect("it is there");
    }

    /// Returns its listen address.
    #[must_use]
    pub fn listen_address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its data directory.
    #[must_use]
    pub fn data_directory(&self) -> PathBuf {
        self.directory.path().join(&self.data)
    }

    /// Returns the state directory of a workload's proxy.
    #[must_use]
    pub fn state_directory(&self, workload: &str) -> PathBuf {
        self.directory.path().join("state").join(workload)
    }
}

fn start_control_program(
    release: Release,
    directory: &Path,
    data: &str,
    arguments: &[String],
    listen: &str,
) -> (TestProgram, SocketAddr) {
    let mut command = release.leno_command();
    command.arg("control").arg("-f").arg(directory.join("mesh"));
    command.arg("--data").arg(directory.join(data)).args(["--listen", listen]).args(arguments);
    let program = TestProgram::start("leno control", &mut command);
    let line = program.wait_for_line("control plane ready", MAX_WAIT);
    let address = log_field(&line, "address=").parse().expect("an address");
    (program, address)
}

/// `leno proxy` for one workload.
pub struct SidecarProgram {
    workload: String,
    state: PathBuf,
    arguments: Vec<String>,
    release: Release,
    /// The running program.
    pub program: TestProgram,
    /// Its admin endpoint.
    pub page: AdminPage,
}

impl SidecarProgram {
    /// Starts the proxy of a workload with a new token, and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn join(control: &ControlProgram, workload: &str, arguments: &[&str]) -> Self {
        Self::join_release(Release::This, control, workload, arguments)
    }

    /// As [`Self::join`], with a given release.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn join_release(
        release: Release,
        control: &ControlProgram,
        workload: &str,
        arguments: &[&str],
    ) -> Self {
        let token = control.issue_token(workload);
        let proxy = Self::start_proxy(
            release,
            workload,
            &control.state_directory(workload),
            &token,
            arguments,
        );
        proxy.wait_until_ready();
        proxy
    }

    /// Starts the proxy of a workload with a token file; it may never become ready.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start_unready(workload: &str, token: &Path, state: &Path, arguments: &[&str]) -> Self {
        Self::start_proxy(Release::This, workload, state, token, arguments)
    }

    fn start_proxy(
        release: Release,
        workload: &str,
        state: &Path,
        token: &Path,
        arguments: &[&str],
    ) -> Self {
        let arguments: Vec<String> =
            arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let (program, page) =
            start_sidecar_program(release, workload, state, Some(token), &arguments);
        let (workload, state) = (workload.to_owned(), state.to_owned());
        Self { workload, state, arguments, release, program, page }
    }

    /// Restarts it from its state directory, without a token, and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn restart(&mut self) {
        (self.program, self.page) = start_sidecar_program(
            self.release,
            self.workload.as_str(),
            self.state.as_path(),
            None,
            &self.arguments,
        );
        self.wait_until_ready();
    }

    /// Stops it (SIGTERM), and starts another release with its state.
    ///
    /// # Panics
    /// If that does not become ready.
    pub fn switch_release(&mut self, release: Release) {
        self.program.stop(MAX_WAIT);
        self.release = release;
        self.restart();
    }

    /// Kills it (SIGKILL).
    ///
    /// # Panics
    /// If it has already exited.
    pub fn kill(&mut self) {
        self.program.send_signal(Signal::KILL);
        self.program.wait_for_exit(MAX_WAIT);
    }

    /// Waits until it reports that it is ready.
    ///
    /// # Panics
    /// On timeout.
    pub fn wait_until_ready(&self) {
        eventually(&format!("the proxy of {} is ready", self.workload), MAX_WAIT, || {
            get_page(self.page.address, "/ready").ok().filter(|response| response.status == 200)
        });
    }
}

fn start_sidecar_program(
    release: Release,
    workload: &str,
    state: &Path,
    token: Option<&Path>,
    arguments: &[String],
) -> (TestProgram, AdminPage) {
    let mut command = release.leno_command();
    command.args(["proxy", "--workload", workload]).arg("--state").arg(state).args(arguments);
    if let Some(token) = token {
        command.arg("--token-file").arg(token);
    }
    let program = TestProgram::start(&format!("leno proxy of {workload}"), &mut command);
    let line = program.wait_for_line("the sidecar starts", MAX_WAIT);
    let address = log_field(&line, "admin=").parse().expect("an address");
    let page = AdminPage { pid: program.pid(), address };
    (program, page)
}

/// Returns the value of a field in a log line.
fn log_field<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, rest) = line.split_once(name).unwrap_or_else(|| panic!("no {name} in {line}"));
    rest.split_whitespace().next().unwrap_or_default()
}

/// The name of the data directory.
const DATA_DIRECTORY: &str = "data";
const MAX_WAIT: Duration = Duration::from_secs(20);
