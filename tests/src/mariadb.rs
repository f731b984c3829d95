//! An unmodified MariaDB: a server-first database protocol.

use std::process::Command;

use tempfile::TempDir;

use crate::{free_port, is_root};

/// A prepared MariaDB.
pub struct MariaDb {
    directory: TempDir,
    /// The port of the server.
    pub port: u16,
}

impl MariaDb {
    /// Creates the system tables of a new server.
    ///
    /// # Panics
    /// If MariaDB is not installed, or its files cannot be written.
    #[must_use]
    pub fn prepare() -> Self {
        let mariadb = Self { directory: tempfile::tempdir().expect("a folder"), port: free_port() };
        let mut command = Command::new("mariadb-install-db");
        command.args(mariadb.server_options()).args(["--auth-root-authentication-method=normal"]);
        let output = command.arg("--skip-test-db").output().expect("MariaDB is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        mariadb
    }

    /// Returns the command line of the server.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        let mut command = vec!["/usr/sbin/mariadbd".to_owned()];
        command.extend(self.server_options());
        command.extend([
            format!("--port={}", self.port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--socket={}", self.file_path("socket")),
            format!("--pid-file={}", self.file_path("pid")),
        ]);
        command
    }

    fn server_options(&self) -> Vec<String> {
        let mut options =
            vec!["--no-defaults".to_owned(), format!("--datadir={}", self.file_path("tables"))];
        // MariaDB runs as root only if the option requests it.
        if is_root() {
            options.push("--user=root".to_owned());
        }
        options
    }

    fn file_path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}
