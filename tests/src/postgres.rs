//! An unmodified PostgreSQL with its own data directory and TLS certificate.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{SelfSigned, free_port, is_root};

/// A prepared PostgreSQL.
pub struct Postgres {
    directory: TempDir,
    tls: SelfSigned,
    /// The port of the server.
    pub port: u16,
}

impl Postgres {
    /// Creates the data directory and the certificate of a new server.
    ///
    /// # Panics
    /// If PostgreSQL or openssl are not installed, or its files cannot be written.
    #[must_use]
    pub fn prepare() -> Self {
        let directory = tempfile::tempdir().expect("a folder");
        let directory_path = directory.path();
        let tls = SelfSigned::generate_files(directory_path, "localhost");
        // PostgreSQL rejects a key that other users can read.
        std::fs::set_permissions(&tls.key, Permissions::from_mode(0o600)).expect("the key is ours");
        if is_root() {
            for path in [directory_path, &tls.key, &tls.certificate] {
                chown(path, Some(NOBODY), Some(NOBODY)).expect("root may give files away");
            }
        }
        let postgres = Self { directory, tls, port: free_port() };
        let (program, arguments) = postgres.as_nobody("initdb");
        let mut initdb = Command::new(program);
        initdb.args(arguments).args(["--auth=trust", "--username=tester", "--no-sync", "--pgdata"]);
        assert_success(initdb.arg(postgres.data_directory()));
        postgres
    }

    /// Returns the command line of the server.
    ///
    /// # Panics
    /// If the path of the folder is not UTF-8.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        let (program, mut command) = self.as_nobody("postgres");
        command.insert(0, program);
        let data_directory = self.data_directory();
        command.extend(
            ["-D", data_directory.to_str().expect("a path in UTF-8"), "-p"].map(str::to_owned),
        );
        command.push(self.port.to_string());
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "ssl=on",
            &format!("ssl_key_file={}", self.tls.key.display()),
            &format!("ssl_cert_file={}", self.tls.certificate.display()),
        ] {
            command.extend(["-c", setting].map(str::to_owned));
        }
        command
    }

    fn data_directory(&self) -> PathBuf {
        self.directory.path().join("cluster")
    }

    /// Returns a program and its first arguments, which run a server program. PostgreSQL refuses to run as root: for root,
    /// the program is `setpriv`, which changes to the unprivileged user.
    fn as_nobody(&self, name: &str) -> (String, Vec<String>) {
        let program = program_path(name).to_str().expect("a path in UTF-8").to_owned();
        if !is_root() {
            return (program, Vec::new());
        }
        let id = NOBODY.to_string();
        let privilege_arguments = ["--reuid", &id, "--regid", &id, "--clear-groups", &program];
        ("setpriv".to_owned(), privilege_arguments.map(str::to_owned).to_vec())
    }
}

/// Returns the path of a server program: Debian installs server programs in a directory per version.
fn program_path(name: &str) -> PathBuf {
    let versions = Path::new("/usr/lib/postgresql").read_dir().into_iter().flatten().flatten();
    let programs = versions.map(|version| version.path().join("bin").join(name));
    programs.filter(|program| program.exists()).max().unwrap_or_else(|| name.into())
}

fn assert_success(command: &mut Command) {
    // Other users may not be permitted to enter the test's current directory.
    let output =
        command.current_dir("/").output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
}

/// The uid and gid of the unprivileged system user.
const NOBODY: u32 = 65_534;
