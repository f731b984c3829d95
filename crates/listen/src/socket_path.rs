//! Shortens the paths of Unix sockets. The kernel's address structure holds 107 bytes, so a longer path is replaced by
//! an alias through `/proc/self/fd`.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// A path that fits into the address of a Unix socket, as long as this value lives.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// The directory of a socket with a long path; the path uses its descriptor.
    _directory: Option<File>,
}

impl SocketPath {
    /// Returns the path itself if it is short enough, otherwise one through the descriptor of its directory.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be opened.
    pub fn for_path(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= MAX_ADDRESS_BYTES {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        let directory = File::open(path.parent().unwrap_or(Path::new("/")))?;
        let descriptor_path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
        let path = descriptor_path.join(path.file_name().unwrap_or(OsStr::new("")));
        Ok(Self { path, _directory: Some(directory) })
    }

    /// Returns the path for `bind` or `connect`. It borrows this value because the descriptor must stay open
    /// until that call has returned; tokio drops an owned path before the call.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The size of `sun_path` (unix(7)), without the terminating zero.
const MAX_ADDRESS_BYTES: usize = 107;

#[cfg(test)]
mod tests {
    use tokio::net::{UnixListener, UnixStream};

    use super::*;

    #[tokio::test]
    async fn a_socket_may_have_a_path_of_any_length() {
        let root = std::env::temp_dir().join(format!("leno-socket-path-{}", std::process::id()));
        for length in [1, 60, 107, 200] {
            let directory = root.join("d".repeat(length)).join("e".repeat(length));
            std::fs::create_dir_all(&directory).unwrap();
            let path = directory.join("control.sock");
            let _listener =
                UnixListener::bind(SocketPath::for_path(&path).unwrap().path()).unwrap();
            UnixStream::connect(SocketPath::for_path(&path).unwrap().path()).await.unwrap();
            assert!(path.exists(), "{length}");
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}
