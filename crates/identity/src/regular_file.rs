//! Opens and reads regular files without blocking and within a bound on their size. Symbolic links are followed only for
//! files of the user or the platform.

use std::fs::{self, File, FileType};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

use crate::disk::file_error;

/// The writer of a file, which determines whether symbolic links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOrigin {
    /// Leno writes the file in a directory of its own. Leno creates no symbolic links, so a symbolic link is an error.
    Leno,
    /// The user or the platform provides the file. Symbolic links are followed, because Kubernetes mounts the files of
    /// Secrets and ConfigMaps as symbolic links.
    User,
}

/// Opens a regular file for reading. Other file types are an error: opening a pipe would wait for a writer, and
/// a device may have no end.
///
/// # Errors
/// An I/O error if the file does not exist or has another type, which the error names.
pub fn open_regular(path: &Path, origin: FileOrigin) -> io::Result<File> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(open_flags(origin)).open(path);
    let file = file.map_err(|cause| explain_error(path, origin, cause))?;
    match file.metadata()?.file_type() {
        file_type if file_type.is_file() => Ok(file),
        file_type => Err(wrong_type_error(file_type, origin)),
    }
}

/// Returns the content of a regular file; `None` if it does not exist.
///
/// # Errors
/// The errors of [`open_regular`], except the one for a missing file; and an error if the file has more than `max_bytes`
/// bytes. Each error contains the path.
pub fn read_regular(
    path: &Path,
    origin: FileOrigin,
    max_bytes: u64,
) -> io::Result<Option<Vec<u8>>> {
    let add_path = |cause| file_error("read", path, cause);
    match open_regular(path, origin) {
        Ok(file) => read_bounded(file, max_bytes).map(Some).map_err(add_path),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(add_path(cause)),
    }
}

/// Returns the text of a regular file; `None` if it does not exist.
///
/// # Errors
/// The errors of [`read_regular`], and an error if the content is not UTF-8.
pub fn read_regular_text(
    path: &Path,
    origin: FileOrigin,
    max_bytes: u64,
) -> io::Result<Option<String>> {
    let Some(bytes) = read_regular(path, origin, max_bytes)? else { return Ok(None) };
    bytes_to_text(bytes).map(Some).map_err(|cause| file_error("read", path, cause))
}

/// Reads a file to its end; an error if the file has more than `max_bytes` bytes.
pub(crate) fn read_bounded(file: File, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max_bytes {
        true => Err(invalid_data_error(format!("larger than {max_bytes} bytes"))),
        false => Ok(bytes),
    }
}

/// Converts the bytes of a file to text; an error if they are not UTF-8.
pub(crate) fn bytes_to_text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| invalid_data_error("is not UTF-8".to_owned()))
}

/// Returns the flags of an open that does not block and, for Leno's own files, follows no symbolic link.
pub(crate) fn open_flags(origin: FileOrigin) -> i32 {
    // A terminal in place of the file must not become the controlling terminal.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let flags = match origin {
        FileOrigin::Leno => flags | OFlags::NOFOLLOW,
        FileOrigin::User => flags,
    };
    flags.bits().cast_signed()
}

/// Returns an error with the file type if the open failed because the file is not regular, such as a symbolic link or a
/// socket. Otherwise returns `cause`.
pub(crate) fn explain_error(path: &Path, origin: FileOrigin, cause: io::Error) -> io::Error {
    if cause.kind() == io::ErrorKind::NotFound {
        return cause;
    }
    let metadata = match origin {
        FileOrigin::Leno => fs::symlink_metadata(path),
        FileOrigin::User => fs::metadata(path),
    };
    match metadata {
        Ok(metadata) if !metadata.is_file() => wrong_type_error(metadata.file_type(), origin),
        Ok(_) | Err(_) => cause,
    }
}

/// Returns the error for a file that is not regular: its type, and a hint.
pub(crate) fn wrong_type_error(file_type: FileType, origin: FileOrigin) -> io::Error {
    let type_name = match file_type {
        file_type if file_type.is_symlink() => "a link",
        file_type if file_type.is_dir() => "a directory",
        file_type if file_type.is_fifo() => "a named pipe",
        file_type if file_type.is_socket() => "a socket",
        _ => "a device",
    };
    let hint = match origin {
        FileOrigin::Leno => "remove it",
        FileOrigin::User => "name a regular file",
    };
    invalid_data_error(format!("is {type_name}, not a regular file: {hint}"))
}

fn invalid_data_error(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    /// Reads in a separate thread: an incorrect read blocks forever.
    fn read(path: &Path, origin: FileOrigin) -> String {
        let (sender, result) = mpsc::channel();
        let path = path.to_owned();
        std::thread::spawn(move || sender.send(read_regular_text(&path, origin, 4)));
        match result.recv_timeout(Duration::from_secs(20)).expect("the read waits for nothing") {
            Ok(text) => format!("{text:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn only_regular_files_within_the_bound_are_read() {
        let scratch = tempfile::tempdir().unwrap();
        let path_of = |name: &str| scratch.path().join(name);
        fs::write(path_of("file"), "four").unwrap();
        fs::write(path_of("large"), "large").unwrap();
        fs::write(path_of("bytes"), [0xff]).unwrap();
        symlink(path_of("file"), path_of("link")).unwrap();
        symlink(path_of("missing"), path_of("dangling")).unwrap();
        mkfifoat(CWD, path_of("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        symlink(path_of("pipe"), path_of("link-to-pipe")).unwrap();
        fs::create_dir(path_of("directory")).unwrap();
        let _socket = UnixListener::bind(path_of("socket")).unwrap();
        for (name, expected_for_leno, expected_for_user) in [
            ("file", r#"Some("four")"#, r#"Some("four")"#),
            ("absent", "None", "None"),
            ("large", "larger than 4 bytes", "larger than 4 bytes"),
            ("bytes", "is not UTF-8", "is not UTF-8"),
            ("link", "is a link, not a regular file: remove it", r#"Some("four")"#),
            ("dangling", "is a link", "None"),
            ("pipe", "is a named pipe, not a regular file: remove it", "name a regular file"),
            ("link-to-pipe", "is a link", "is a named pipe"),
            ("directory", "is a directory", "is a directory"),
            ("socket", "is a socket", "is a socket"),
        ] {
            for (origin, expected) in
                [(FileOrigin::Leno, expected_for_leno), (FileOrigin::User, expected_for_user)]
            {
                let result = read(&path_of(name), origin);
                assert!(result.contains(expected), "{name} {origin:?}: {result}");
                let is_named = result.contains(&path_of(name).display().to_string());
                assert_eq!(is_named, result.starts_with("cannot read"), "{name}: {result}");
            }
        }
    }
}
