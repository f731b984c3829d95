//! An unmodified nginx with its own configuration, files and folder.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{free_port, is_root};

/// A prepared nginx.
pub struct Nginx {
    directory: TempDir,
    /// The port of the server.
    pub port: u16,
}

impl Nginx {
    /// Writes the configuration of nginx; `locations` are added to its only server.
    ///
    /// # Panics
    /// If the files of nginx cannot be written.
    #[must_use]
    pub fn prepare(locations: &str) -> Self {
        let nginx = Self { directory: tempfile::tempdir().expect("a folder"), port: free_port() };
        std::fs::create_dir(nginx.directory.path().join("www")).expect("a folder for its files");
        std::fs::create_dir(nginx.directory.path().join("logs")).expect("a folder for its logs");
        let configuration = nginx.server_config(locations);
        std::fs::write(nginx.directory.path().join("nginx.conf"), configuration).expect("a file");
        nginx
    }

    /// Writes a file that nginx serves.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.served_file(file), content).expect("a file to serve");
    }

    /// Returns the path of a file that nginx serves.
    #[must_use]
    pub fn served_file(&self, file: &str) -> PathBuf {
        self.directory.path().join("www").join(file)
    }

    /// Returns the command line of nginx.
    ///
    /// # Panics
    /// If the path of the folder is not UTF-8.
    #[must_use]
    pub fn command(&self) -> [String; 7] {
        let directory = self.directory.path().to_str().expect("a path in UTF-8");
        let debian_path = Path::new("/usr/sbin/nginx");
        let binary = if debian_path.exists() { "/usr/sbin/nginx" } else { "nginx" };
        [binary, "-p", directory, "-c", "nginx.conf", "-e", "stderr"].map(str::to_owned)
    }

    fn server_config(&self, locations: &str) -> String {
        // The workers of nginx must be able to read the private folder of the test.
        let user = if is_root() { "user root root;" } else { "" };
        let port = self.port;
        format!(
            "{user}
daemon off;
worker_processes 1;
pid nginx.pid;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  default_type text/plain;
  keepalive_requests 1000000;
  server {{
    listen 127.0.0.1:{port};
    root www;
    {locations}
  }}
}}
"
        )
    }
}
