//! Finds the YAML and JSON files at the configured paths, and reads them within bounds. The file source uses it to read
//! objects, and the watcher to find the directories to watch.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::OFlags;

use crate::rejections::{DocumentLocation, RejectedDocument, Warning};

/// Finds the files at these paths, and reads them if `content_mode` is [`ContentMode::Read`].
pub(crate) fn scan_paths(paths: &[PathBuf], content_mode: ContentMode) -> Scan {
    let mut scan = Scan::default();
    for path in paths {
        scan.add_source_path(path);
    }
    if content_mode == ContentMode::Read {
        let mut remaining_bytes = MAX_TOTAL_BYTES;
        for (path, content) in &mut scan.files {
            *content = read_file(path, &mut remaining_bytes);
        }
    }
    scan
}

/// Selects between a scan that reads file contents and a scan that only lists the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentMode {
    Read,
    Skip,
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The files, each once even if several paths resolve to it.
    pub(crate) files: BTreeMap<PathBuf, FileContent>,
    /// The listed directories.
    pub(crate) directories: BTreeMap<PathBuf, ListedDirectory>,
    /// The symbolic links in the listed directories, including dangling ones.
    pub(crate) symlinks: BTreeSet<PathBuf>,
    /// Dangling symbolic links without a supported extension. Their former targets may have been directories.
    pub(crate) dangling_symlinks: Vec<PathBuf>,
    /// True if an unknown path may reappear without an event, as a mount does.
    pub(crate) needs_retry: bool,
    /// The paths whose content cannot be determined now; the objects read from them before are retained.
    pub(crate) unknown_paths: Vec<PathBuf>,
    /// The rejections of paths that do not exist, cannot be listed, are no regular files, or exceed a limit.
    pub(crate) rejected: Vec<RejectedDocument>,
    /// Warnings about files skipped because of their names.
    pub(crate) warnings: Vec<Warning>,
    /// The canonical paths of the files and directories found so far.
    visited_paths: BTreeSet<PathBuf>,
}

/// A listed directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListedDirectory {
    pub(crate) identity: DirectoryIdentity,
    /// True if the directory has no entries but hidden ones: an unmounted mount point, or a checkout in progress.
    pub(crate) is_empty: bool,
}

/// Distinguishes a directory from another directory that appears later at the same path. File systems reuse inode
/// numbers, so the creation time is included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirectoryIdentity {
    device: u64,
    inode: u64,
    created_at: Option<SystemTime>,
}

impl DirectoryIdentity {
    pub(crate) fn from_path(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            created_at: metadata.created().ok(),
        })
    }
}

/// The content of a file.
#[derive(Debug)]
pub(crate) enum FileContent {
    Text(String),
    /// The file cannot be read, exceeds a bound, or is not UTF-8.
    Unreadable(RejectedDocument),
    /// The file was deleted since it was listed, or its content was not requested.
    Absent,
}

impl Scan {
    /// Adds a configured path: a file, or a directory with all files below it.
    fn add_source_path(&mut self, path: &Path) {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => self.add_directory(path, 0),
            Ok(metadata) if metadata.is_file() => self.add_file(path),
            Ok(_) => {
                self.unknown_paths.push(path.to_owned());
                self.reject_path(path, "is not a regular file", "name a file or a directory");
            }
            // A missing path is not a deletion: a share may be unmounted, or a checkout replaced.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.reject_missing(path, "does not exist", MISSING_HINT);
            }
            Err(error) => self.reject_unreadable(path, &error),
        }
    }

    /// Adds a file, unless another path to it was added before.
    fn add_file(&mut self, path: &Path) {
        let Ok(canonical_path) = fs::canonicalize(path) else {
            return self.add_vanished_path(path);
        };
        if !self.visited_paths.insert(canonical_path) {
            return;
        }
        if self.files.len() >= MAX_FILES {
            self.unknown_paths.push(path.to_owned());
            let problem = format!("is one file too many: only {MAX_FILES} are read");
            self.reject_path(path, &problem, "join files, or name fewer");
            return;
        }
        self.files.insert(path.to_owned(), FileContent::Absent);
    }

    /// Adds the YAML files and subdirectories of a directory. Hidden entries are skipped: editors and
    /// Kubernetes keep other versions of the same files there.
    fn add_directory(&mut self, directory: &Path, depth: usize) {
        let canonical_path = match fs::canonicalize(directory) {
            Ok(canonical_path) => canonical_path,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return self.add_vanished_path(directory);
            }
            Err(error) => return self.reject_unreadable(directory, &error),
        };
        if !self.visited_paths.insert(canonical_path) {
            return;
        }
        if depth > MAX_DEPTH || self.directories.len() >= MAX_DIRECTORIES {
            self.unknown_paths.push(directory.to_owned());
            let problem = format!(
                "is too deep, or one directory too many: {MAX_DEPTH} levels and \
                 {MAX_DIRECTORIES} directories are read"
            );
            return self.reject_path(directory, &problem, "name fewer directories");
        }
        let listing = DirectoryIdentity::from_path(directory)
            .and_then(|identity| list_directory(directory).map(|entries| (identity, entries)));
        let (identity, entries) = match listing {
            Ok(listing) => listing,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return self.add_vanished_path(directory);
            }
            Err(error) => return self.reject_unreadable(directory, &error),
        };
        let is_empty = entries.is_empty();
        self.directories.insert(directory.to_owned(), ListedDirectory { identity, is_empty });
        for path in entries {
            let is_symlink = is_symlink_path(&path);
            if is_symlink {
                self.symlinks.insert(path.clone());
            }
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => self.add_directory(&path, depth + 1),
                Ok(metadata) if metadata.is_file() && has_supported_extension(&path) => {
                    self.add_file(&path)
                }
                Ok(metadata) if metadata.is_file() => self.warn_about_name(&path),
                // The replacement of the pipe, socket or device by a file causes an event, which triggers another reading.
                Ok(_) if has_supported_extension(&path) => {
                    self.unknown_paths.push(path.clone());
                    self.reject_path(&path, "is not a regular file", SPECIAL_FILE_HINT);
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => match is_symlink {
                    true => self.add_dangling_symlink(&path),
                    false => self.add_vanished_path(&path),
                },
                // The entry may be a directory.
                Err(error) => self.reject_unreadable(&path, &error),
            }
        }
    }

    /// Warns about a file that is skipped only because its extension is not in lower case.
    fn warn_about_name(&mut self, path: &Path) {
        let lower_case_path =
            path.with_extension(path.extension().unwrap_or_default().to_ascii_lowercase());
        if has_supported_extension(&lower_case_path) {
            let RejectedDocument { location, problem, hint } = path_rejection(
                path,
                "is not read: files end in `.yaml`, `.yml` or `.json`, in lower case",
                &format!(
                    "rename it to {}",
                    lower_case_path.file_name().unwrap_or_default().display()
                ),
            );
            self.warnings.push(Warning { location, problem, hint });
        }
    }

    /// Adds a symbolic link to a missing target. Its file does not count as deleted, because the link still exists.
    fn add_dangling_symlink(&mut self, path: &Path) {
        match has_supported_extension(path) {
            true => self.reject_dangling_symlink(path),
            // The caller rejects the symbolic link if its target was a directory with known files before.
            false => self.dangling_symlinks.push(path.to_owned()),
        }
    }

    /// Rejects a symbolic link to a missing target, and retains the objects read through the link before.
    pub(crate) fn reject_dangling_symlink(&mut self, path: &Path) {
        self.reject_missing(path, "is a link to a missing target", DANGLING_SYMLINK_HINT);
    }

    /// Adds an entry that disappeared after it was listed. Its deletion event triggers another reading.
    fn add_vanished_path(&mut self, path: &Path) {
        self.unknown_paths.push(path.to_owned());
        self.needs_retry = true;
    }

    /// Rejects a path that does not exist, and retains the objects read from it before.
    fn reject_missing(&mut self, path: &Path, problem: &str, hint: &str) {
        self.add_vanished_path(path);
        self.reject_path(path, problem, hint);
    }

    /// Adds the rejection of a path, which alone does not retain any objects.
    fn reject_path(&mut self, path: &Path, problem: &str, hint: &str) {
        self.rejected.push(path_rejection(path, problem, hint));
    }

    /// Rejects a path that cannot be read, and retains the objects read from it before.
    fn reject_unreadable(&mut self, path: &Path, error: &io::Error) {
        self.add_vanished_path(path);
        let problem = format!("cannot be read ({error})");
        self.reject_path(path, &problem, UNREADABLE_HINT);
    }
}

/// True for the extensions `yaml`, `yml` and `json`: a directory's files with other extensions are not read.
pub(crate) fn has_supported_extension(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yaml" | "yml" | "json"))
}

/// Returns the entries that are not hidden, sorted by name.
fn list_directory(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// Reads a regular file of at most [`MAX_FILE_BYTES`] and at most `remaining_bytes`, from which its length is subtracted.
pub(crate) fn read_file(path: &Path, remaining_bytes: &mut u64) -> FileContent {
    let to_unreadable =
        |problem: &str, hint: &str| FileContent::Unreadable(path_rejection(path, problem, hint));
    let mut bytes = Vec::new();
    let result = open_regular(path).and_then(|file| {
        let limit = MAX_FILE_BYTES + 1;
        file.take(limit).read_to_end(&mut bytes)
    });
    match result {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return FileContent::Absent,
        Err(error) => return to_unreadable(&format!("cannot be read ({error})"), UNREADABLE_HINT),
    }
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if length > MAX_FILE_BYTES {
        let problem = format!("is larger than {MAX_FILE_BYTES} bytes");
        return to_unreadable(&problem, "split it");
    }
    let Some(bytes_after_file) = remaining_bytes.checked_sub(length) else {
        let problem = format!("is beyond the {MAX_TOTAL_BYTES} bytes that all files may have");
        return to_unreadable(&problem, "name fewer files");
    };
    *remaining_bytes = bytes_after_file;
    match String::from_utf8(bytes) {
        Ok(text) => FileContent::Text(text),
        Err(error) => {
            let valid_bytes = error.utf8_error().valid_up_to();
            let problem = format!("is not UTF-8 from byte {valid_bytes} on");
            to_unreadable(&problem, "save it as UTF-8")
        }
    }
}

/// Opens a regular file for reading. Other file types are an error: opening a pipe would wait for a writer, and
/// a device may have no end.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// True if the path is that of a symbolic link itself.
fn is_symlink_path(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
}

/// Returns the rejection of a file or directory as a whole.
pub(crate) fn path_rejection(path: &Path, problem: &str, hint: &str) -> RejectedDocument {
    RejectedDocument {
        location: DocumentLocation {
            file: Some(path.display().to_string()),
            ..DocumentLocation::default()
        },
        problem: problem.to_owned(),
        hint: hint.to_owned(),
    }
}

/// The hint for a file or directory that cannot be read.
const UNREADABLE_HINT: &str = "make it readable; until then its last content stays in force";
/// The hint for a path that does not exist.
const MISSING_HINT: &str =
    "create or mount it, or name another path; its last content stays in force";
/// The hint for a symbolic link to a missing target.
const DANGLING_SYMLINK_HINT: &str =
    "create the target or delete the link; until then its last content stays in force";
/// The hint for a pipe, socket or device.
const SPECIAL_FILE_HINT: &str =
    "replace it by a file, or delete it; until then its last content stays in force";
/// Maximum size of a file in bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 4 << 20;
/// Maximum number of bytes of all files together.
const MAX_TOTAL_BYTES: u64 = 64 << 20;
/// Maximum number of files of all paths together.
const MAX_FILES: usize = 4096;
/// Maximum number of directories; each is watched.
const MAX_DIRECTORIES: usize = 1024;
/// Maximum directory depth below a path of the source.
const MAX_DEPTH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn file_names(scan: &Scan) -> Vec<String> {
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        scan.files.keys().map(name).collect()
    }

    #[test]
    fn yaml_files_are_found_once_and_hidden_files_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path_of = |name: &str| dir.path().join(name);
        fs::create_dir_all(path_of("below/..2024")).unwrap();
        for name in [
            "a.yaml",
            "b.yml",
            "c.json",
            "README.md",
            ".a.yaml.swp",
            ".hidden.yaml",
            "below/d.yaml",
            "below/..2024/e.yaml",
        ] {
            fs::write(path_of(name), "").unwrap();
        }
        std::os::unix::fs::symlink(dir.path(), path_of("below/circle")).unwrap();
        std::os::unix::fs::symlink(path_of("a.yaml"), path_of("z.yaml")).unwrap();
        std::os::unix::fs::symlink(path_of("nowhere"), path_of("dangling.yaml")).unwrap();
        let scan = scan_paths(
            &[dir.path().to_owned(), path_of("a.yaml"), path_of("below")],
            ContentMode::Read,
        );
        assert_eq!(file_names(&scan), ["a.yaml", "b.yml", "d.yaml", "c.json"]);
        let problems: Vec<&str> =
            scan.rejected.iter().map(|rejected| rejected.problem.as_str()).collect();
        assert_eq!(problems, ["is a link to a missing target"]);
        assert_eq!(scan.directories.len(), 2);
    }

    #[test]
    fn upper_case_extensions_cause_warnings_and_special_files_rejections() {
        let dir = tempfile::tempdir().unwrap();
        let path_of = |name: &str| dir.path().join(name);
        for name in ["a.YAML", "b.Yml", "c.JSON", "README.MD", ".d.YAML"] {
            fs::write(path_of(name), "").unwrap();
        }
        let socket = |name| std::os::unix::net::UnixListener::bind(path_of(name)).unwrap();
        let _sockets = ["special.yaml", "special.txt"].map(socket);
        std::os::unix::fs::symlink("/dev/zero", path_of("zero.json")).unwrap();
        let scan = scan_paths(&[dir.path().to_owned()], ContentMode::Read);
        assert_eq!(file_names(&scan), [""; 0]);
        let file_name = |location: &DocumentLocation| {
            location.file.as_deref().unwrap().rsplit('/').next().unwrap().to_owned()
        };
        let warnings: Vec<_> = scan
            .warnings
            .iter()
            .map(|warning| (file_name(&warning.location), warning.hint.as_str()))
            .collect();
        let expected = [
            ("a.YAML".to_owned(), "rename it to a.yaml"),
            ("b.Yml".to_owned(), "rename it to b.yml"),
            ("c.JSON".to_owned(), "rename it to c.json"),
        ];
        assert_eq!(warnings, expected);
        let rejected: Vec<_> =
            scan.rejected.iter().map(|rejected| file_name(&rejected.location)).collect();
        assert_eq!(rejected, ["special.yaml", "zero.json"]);
        assert_eq!(scan.unknown_paths, [path_of("special.yaml"), path_of("zero.json")]);
    }

    #[test]
    fn a_special_file_that_replaced_a_listed_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe.yaml");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        for path in [Path::new("/dev/zero"), &pipe] {
            let content = read_file(path, &mut MAX_FILE_BYTES.clone());
            let FileContent::Unreadable(rejected) = content else { panic!("{content:?}") };
            assert_eq!(rejected.problem, "cannot be read (not a regular file)");
            assert_eq!(crate::FieldLines::default().find_line(path, 1, "spec"), None);
        }
    }

    #[test]
    fn missing_large_and_non_utf8_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path_of = |name: &str| dir.path().join(name);
        let large = usize::try_from(MAX_FILE_BYTES).unwrap() + 1;
        fs::write(path_of("large.yaml"), "#".repeat(large)).unwrap();
        fs::write(path_of("latin.yaml"), b"name: caf\xe9").unwrap();
        let scan = scan_paths(&[dir.path().to_owned(), path_of("none")], ContentMode::Read);
        assert!(scan.rejected[0].problem.contains("does not exist"));
        let problems: Vec<_> = scan
            .files
            .values()
            .map(|content| match content {
                FileContent::Unreadable(rejected) => rejected.problem.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(problems, ["is larger than 4194304 bytes", "is not UTF-8 from byte 9 on"]);
    }
}
