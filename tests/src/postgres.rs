//! An unmodified PostgreSQL with a cluster of its own, and TLS of its own.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{SelfSigned, free_port, is_root};

/// A PostgreSQL to be run by somebody.
pub struct Postgres {
    directory: TempDir,
    tls: SelfSigned,
    /// Where it listens.
    pub port: u16,
}

impl Postgres {
    /// Makes its cluster.
    ///
    /// # Panics
    /// When PostgreSQL or openssl are not installed, or there is no place for its files.
    #[must_use]
    pub fn prepare() -> Self {
        let directory = tempfile::tempdir().expect("a folder");
        let folder = directory.path();
        let tls = SelfSigned::make(folder, "localhost");
        std::fs::set_permissions(&tls.key, Permissions::from_mode(0o600)).expect("the key is ours");
        if is_root() {
            for path in [folder, &tls.key, &tls.certificate] {
                chown(path, Some(NOBODY), Some(NOBODY)).expect("root may give files away");
            }
        }
        let postgres = Self { directory, tls, port: free_port() };
        let (program, arguments) = postgres.as_nobody("initdb");
        let mut initdb = Command::new(program);
        initdb.args(arguments).args(["--auth=trust", "--username=tester", "--no-sync", "--pgdata"]);
        succeeds(initdb.arg(postgres.cluster()));
        postgres
    }

    /// How it is started.
    ///
    /// # Panics
    /// When its folder's path is not UTF-8.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        let (program, mut command) = self.as_nobody("postgres");
        command.insert(0, program);
        let cluster = self.cluster();
        command.extend(["-D", cluster.to_str().expect("a path in UTF-8"), "-p"].map(str::to_owned));
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

    fn cluster(&self) -> PathBuf {
        self.directory.path().join("cluster")
    }

    /// A program of the server's, and how it is begun: PostgreSQL refuses to run as root.
    fn as_nobody(&self, name: &str) -> (String, Vec<String>) {
        let program = program(name).to_str().expect("a path in UTF-8").to_owned();
        if !is_root() {
            return (program, Vec::new());
        }
        let id = NOBODY.to_string();
        let before = ["--reuid", &id, "--regid", &id, "--clear-groups", &program];
        ("setpriv".to_owned(), before.map(str::to_owned).to_vec())
    }
}

/// Debian keeps the server's programs out of the way, by version.
fn program(name: &str) -> PathBuf {
    let versions = Path::new("/usr/lib/postgresql").read_dir().into_iter().flatten().flatten();
    let programs = versions.map(|version| version.path().join("bin").join(name));
    programs.filter(|program| program.exists()).max().unwrap_or_else(|| name.into())
}

fn succeeds(command: &mut Command) {
    // Its own folder may be one that nobody else may enter.
    let output = command.current_dir("/").output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {complaint}");
}

/// The user and the group `nobody`, everywhere.
const NOBODY: u32 = 65_534;
