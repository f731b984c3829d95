//! The files of an authority, for transfer between directories and stores.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::rotation::{NEXT_KEY_FILE, PREVIOUS_KEY_FILE};
use super::{AuthoritySource, KEY_FILE, ROOTS_FILE};
use crate::directory::create_private_directory;
use crate::disk::{self, FileReaders};
use crate::pem::{CERTIFICATE_LABEL, write_pem};
use crate::roots::is_self_issued;

/// The files of an authority's directory, by name.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct AuthorityFiles(BTreeMap<&'static str, String>);

impl AuthorityFiles {
    /// Selects the files of an authority by name; others are ignored.
    pub fn from_files<'a>(files: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        let select_file = |(name, text): (&str, String)| {
            let (file, _) = FILES.iter().find(|(file, _)| *file == name)?;
            Some((*file, text))
        };
        Self(files.into_iter().filter_map(select_file).collect())
    }

    /// Reads the files of a directory, which may not exist.
    ///
    /// # Errors
    /// An I/O error if a file cannot be read.
    pub fn read(dir: &Path) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        for (file, readers) in FILES {
            if let Some(text) = read(dir, file, readers)? {
                files.insert(file, text);
            }
        }
        Ok(Self(files))
    }

    /// Replaces the authority files of a directory. A missing directory is created with all files at once.
    ///
    /// # Errors
    /// An I/O error if the directory cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        match fs::metadata(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(dir),
            Ok(_) | Err(_) => self.replace(dir),
        }
    }

    /// Creates the directory under another name and renames it, so that it has all files or does not exist.
    /// Removes the draft of a killed process.
    fn create(&self, dir: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
            return self.replace(dir);
        };
        create_private_directory(parent)?;
        // Control planes share directories, and all of them write the same draft.
        let lock_path = dir.with_extension("lock");
        let lock_result = disk::open_lock(&lock_path).and_then(|lock| lock.lock().map(|()| lock));
        let _lock = lock_result.map_err(|cause| disk::file_error("lock", &lock_path, cause))?;
        if dir.exists() {
            return self.replace(dir);
        }
        let draft = parent.join(format!(".draft-{}", name.display()));
        match fs::remove_dir_all(&draft) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                return Err(disk::file_error("remove", &draft, cause));
            }
            Ok(()) | Err(_) => {}
        }
        create_private_directory(&draft)?;
        // Keys are written before their roots, as in a new authority.
        for (file, readers) in FILES.into_iter().rev() {
            if let Some(text) = self.0.get(file) {
                disk::replace(&draft.join(file), text.as_bytes(), readers)?;
            }
        }
        disk::move_directory(&draft, dir)
    }

    fn replace(&self, dir: &Path) -> io::Result<()> {
        create_private_directory(dir)?;
        // Trusted roots are written first: no certificate may be signed by an untrusted root.
        for (file, readers) in FILES {
            let path = dir.join(file);
            match self.0.get(file) {
                Some(text) if read(dir, file, readers)?.as_ref() == Some(text) => {}
                Some(text) => disk::replace(&path, text.as_bytes(), readers)?,
                None => drop(disk::remove(&path)?),
            }
        }
        Ok(())
    }

    /// Returns the names and contents of the files.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(file, text)| (*file, text.as_str()))
    }

    /// Returns the names of all possible files.
    pub fn file_names() -> impl Iterator<Item = &'static str> {
        FILES.iter().map(|(file, _)| *file)
    }

    /// Returns the authority source in this directory: a built-in root takes precedence over an external
    /// intermediate; `None` if there is neither.
    #[must_use]
    pub fn source(&self, dir: &Path) -> Option<AuthoritySource> {
        let has_file = |file| self.0.contains_key(file);
        if has_file(KEY_FILE) && has_file(ROOTS_FILE) {
            return Some(AuthoritySource::BuiltIn(dir.to_owned()));
        }
        let has_issuer_files = ISSUER_FILES.into_iter().all(has_file);
        has_issuer_files.then(|| AuthoritySource::Issuer(dir.to_owned()))
    }

    /// Returns the roots that members trust as PEM: for an intermediate, its root and its own certificate.
    #[must_use]
    pub fn root_pem(&self) -> Option<String> {
        if let Some(roots) = self.0.get(ROOTS_FILE) {
            return Some(roots.clone());
        }
        let mut pem = self.0.get(ISSUER_ROOTS_FILE)?.clone();
        let signer = self.0.get("tls.crt").and_then(|chain| {
            CertificateDer::pem_slice_iter(chain.as_bytes()).next().and_then(Result::ok)
        });
        if let Some(signer) = signer.filter(|signer| !is_self_issued(signer)) {
            if !pem.ends_with('\n') {
                pem.push('\n');
            }
            write_pem(&mut pem, CERTIFICATE_LABEL, &signer);
        }
        Some(pem)
    }
}

/// Reads a file of the directory. The files of an intermediate may be links, as in mounted Secrets.
fn read(dir: &Path, file: &str, readers: FileReaders) -> io::Result<Option<String>> {
    let path = dir.join(file);
    match ISSUER_FILES.contains(&file) {
        true => disk::read_user_file(&path, readers),
        false => disk::read(&path, readers),
    }
}

/// Omits the contents, which include keys.
impl fmt::Debug for AuthorityFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// All files and their readers, in the order in which they are written.
const FILES: [(&str, FileReaders); 7] = [
    (ROOTS_FILE, FileReaders::AllUsers),
    (NEXT_KEY_FILE, FileReaders::Owner),
    (KEY_FILE, FileReaders::Owner),
    (PREVIOUS_KEY_FILE, FileReaders::Owner),
    (ISSUER_ROOTS_FILE, FileReaders::AllUsers),
    ("tls.crt", FileReaders::AllUsers),
    ("tls.key", FileReaders::Owner),
];

/// The file of the roots above an intermediate.
const ISSUER_ROOTS_FILE: &str = "ca.crt";

/// The files of an intermediate, as written by cert-manager.
const ISSUER_FILES: [&str; 3] = ["tls.key", "tls.crt", ISSUER_ROOTS_FILE];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use leno_model::TrustDomain;

    use super::*;
    use crate::authority::Rotation;
    use crate::testing::{TestAuthority, now};

    #[test]
    fn a_copied_authority_equals_the_original() {
        let fixture = TestAuthority::new("cluster.local");
        let domain = TrustDomain::new("cluster.local").unwrap();
        let rotation = Rotation::for_authority(fixture.dir.path(), domain.clone());
        let scratch = tempfile::tempdir().unwrap();
        let target = scratch.path().join("authority");
        for step in 0..4 {
            match step {
                1 => rotation.add_root(now()).unwrap(),
                2 => rotation.activate_root(now()).unwrap(),
                3 => rotation.retire_root(now()).unwrap(),
                _ => {}
            }
            let files = AuthorityFiles::read(fixture.dir.path()).unwrap();
            files.write(&target).unwrap();
            assert!(AuthorityFiles::read(&target).unwrap() == files, "{step}");
            let copied =
                AuthorityFiles::from_files(files.iter().map(|(name, text)| (name, text.into())));
            assert!(copied == files);
            let source = files.source(&target).unwrap();
            assert_eq!(source, AuthoritySource::BuiltIn(target.clone()));
            let original = AuthoritySource::BuiltIn(fixture.dir.path().to_owned());
            assert!(source.open(&domain, now()).unwrap() == original.open(&domain, now()).unwrap());
            let roots = source.open(&domain, now()).unwrap().roots().to_pem();
            assert_eq!(files.root_pem(), Some(roots));
            assert_eq!(Rotation::for_authority(&target, domain.clone()).stage(), rotation.stage());
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&target), mode(&target.join(KEY_FILE))), (0o700, 0o600));
        assert!(!format!("{:?}", AuthorityFiles::read(&target).unwrap()).contains("PRIVATE"));
    }

    #[test]
    fn a_missing_directory_is_created_with_all_files_or_not_at_all() {
        let fixture = TestAuthority::new("cluster.local");
        let files = AuthorityFiles::read(fixture.dir.path()).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let [target, draft] =
            ["authority", ".draft-authority"].map(|name| scratch.path().join(name));
        // A file blocks the draft directory.
        fs::write(&draft, "").unwrap();
        files.write(&target).unwrap_err();
        assert!(!target.exists());
        // A process was killed before it had written the root.
        fs::remove_file(&draft).unwrap();
        fs::create_dir(&draft).unwrap();
        fs::write(draft.join(KEY_FILE), "another").unwrap();
        fs::write(draft.join("other"), "").unwrap();
        files.write(&target).unwrap();
        assert!(AuthorityFiles::read(&target).unwrap() == files);
        assert!(!draft.exists() && !target.join("other").exists());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&target), mode(&target.join(KEY_FILE))), (0o700, 0o600));
    }

    #[test]
    fn incomplete_files_are_no_authority() {
        let dir = Path::new("/x");
        let source_of = |names: &[&str]| {
            AuthorityFiles::from_files(names.iter().map(|name| (*name, String::new()))).source(dir)
        };
        assert_eq!(source_of(&[]), None);
        assert_eq!(source_of(&["ca.key"]), None);
        assert_eq!(source_of(&["tls.crt", "tls.key", "other"]), None);
        let issuer_source = Some(AuthoritySource::Issuer(dir.to_owned()));
        assert_eq!(source_of(&["tls.crt", "tls.key", "ca.crt"]), issuer_source);
        let own_source = Some(AuthoritySource::BuiltIn(dir.to_owned()));
        assert_eq!(source_of(&["tls.crt", "tls.key", "ca.crt", "ca.key", "ca.pem"]), own_source);
    }
}
