//! Reads and writes the files of an authority as a unit, to copy the authority between a directory and another store such
//! as a Kubernetes Secret.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::rotation::{NEXT_KEY_FILE, PREVIOUS_KEY_FILE};
use super::{
    AuthoritySource, EXTERNAL_ROOTS_FILE, INTERMEDIATE_CHAIN_FILE, INTERMEDIATE_KEY_FILE, KEY_FILE,
    ROOTS_FILE,
};
use crate::directory::create_private_directory;
use crate::disk::{self, FileAccess};
use crate::pem::{CERTIFICATE_LABEL, write_pem};
use crate::roots::is_self_issued;

/// The contents of the files in an authority's directory, by file name. `FILES` lists the possible files.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct AuthorityFiles(BTreeMap<&'static str, String>);

impl AuthorityFiles {
    /// Takes the files that belong to an authority; files with other names are ignored.
    pub fn from_files<'a>(files: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        let select_file = |(name, content): (&str, String)| {
            let (file, _) = FILES.iter().find(|(file, _)| *file == name)?;
            Some((*file, content))
        };
        Self(files.into_iter().filter_map(select_file).collect())
    }

    /// Reads the files that exist in a directory; no files if the directory does not exist.
    ///
    /// # Errors
    /// An I/O error if an existing file cannot be read.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        for (file, access) in FILES {
            if let Some(content) = read_file(directory, file, access)? {
                files.insert(file, content);
            }
        }
        Ok(Self(files))
    }

    /// Writes these files into a directory and removes other authority files from it. A missing directory is created
    /// with all files at once.
    ///
    /// # Errors
    /// An I/O error if the directory cannot be written.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        match fs::metadata(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(directory),
            Ok(_) | Err(_) => self.replace_files(directory),
        }
    }

    /// Writes the files into a staging directory and renames it to `directory`, which therefore has all files or does not
    /// exist. A staging directory that a killed process has left is removed first.
    fn create(&self, directory: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
            return self.replace_files(directory);
        };
        create_private_directory(parent)?;
        // Control planes that share the parent directory use the same staging directory, so only one of them may write.
        let lock_path = directory.with_extension("lock");
        let lock_result = disk::open_lock(&lock_path).and_then(|lock| lock.lock().map(|()| lock));
        let _lock = lock_result.map_err(|cause| disk::file_error("lock", &lock_path, cause))?;
        if directory.exists() {
            return self.replace_files(directory);
        }
        let staging_directory = parent.join(format!(".draft-{}", name.display()));
        match fs::remove_dir_all(&staging_directory) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                return Err(disk::file_error("remove", &staging_directory, cause));
            }
            Ok(()) | Err(_) => {}
        }
        create_private_directory(&staging_directory)?;
        // Keys are written before roots, in the order of a new authority, where roots without a key mean a lost key. No
        // process opens the staging directory, so no untrusted key can sign meanwhile.
        for (file, access) in FILES.into_iter().rev() {
            if let Some(content) = self.0.get(file) {
                disk::replace(&staging_directory.join(file), content.as_bytes(), access)?;
            }
        }
        disk::move_directory(&staging_directory, directory)
    }

    /// Writes the files whose contents differ into an existing directory, and removes those that `self` does not have.
    fn replace_files(&self, directory: &Path) -> io::Result<()> {
        create_private_directory(directory)?;
        // Roots are written before keys: a control plane that reopens the directory meanwhile must not sign with a key
        // whose root is not yet in the trust bundle.
        for (file, access) in FILES {
            let path = directory.join(file);
            match self.0.get(file) {
                Some(content) if read_file(directory, file, access)?.as_ref() == Some(content) => {}
                Some(content) => disk::replace(&path, content.as_bytes(), access)?,
                None => drop(disk::remove(&path)?),
            }
        }
        Ok(())
    }

    /// Returns the names and contents of the files.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(file, content)| (*file, content.as_str()))
    }

    /// Returns the names of all files that an authority can have, whether or not `self` has them.
    pub fn file_names() -> impl Iterator<Item = &'static str> {
        FILES.iter().map(|(file, _)| *file)
    }

    /// Returns the source of the authority that these files form in `directory`: a built-in root takes precedence over an
    /// intermediate. `None` if the files of both are incomplete.
    #[must_use]
    pub fn source(&self, directory: &Path) -> Option<AuthoritySource> {
        let has_file = |file| self.0.contains_key(file);
        if has_file(KEY_FILE) && has_file(ROOTS_FILE) {
            return Some(AuthoritySource::BuiltIn(directory.to_owned()));
        }
        let has_intermediate = INTERMEDIATE_FILES.into_iter().all(has_file);
        has_intermediate.then(|| AuthoritySource::Intermediate(directory.to_owned()))
    }

    /// Returns the certificates that members trust, as PEM: the roots of a built-in authority; for an intermediate, the
    /// external roots and the certificate of the intermediate. `None` if there is no file of roots.
    #[must_use]
    pub fn root_pem(&self) -> Option<String> {
        if let Some(roots) = self.0.get(ROOTS_FILE) {
            return Some(roots.clone());
        }
        let mut pem = self.0.get(EXTERNAL_ROOTS_FILE)?.clone();
        let intermediate = self.0.get(INTERMEDIATE_CHAIN_FILE).and_then(|chain_pem| {
            CertificateDer::pem_slice_iter(chain_pem.as_bytes()).next().and_then(Result::ok)
        });
        // A self-signed CA certificate is one of the external roots already.
        if let Some(intermediate) = intermediate.filter(|der| !is_self_issued(der)) {
            if !pem.ends_with('\n') {
                pem.push('\n');
            }
            write_pem(&mut pem, CERTIFICATE_LABEL, &intermediate);
        }
        Some(pem)
    }
}

/// Reads a file of the directory; `None` if it does not exist. The files of an intermediate may be symbolic links, as in
/// a Secret that Kubernetes mounts.
fn read_file(directory: &Path, file: &str, access: FileAccess) -> io::Result<Option<String>> {
    let path = directory.join(file);
    match INTERMEDIATE_FILES.contains(&file) {
        true => disk::read_user_file(&path, access),
        false => disk::read(&path, access),
    }
}

/// Omits the contents, which include keys.
impl fmt::Debug for AuthorityFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// All files of an authority and the users that may read them, roots before the keys that sign.
/// [`AuthorityFiles::replace_files`] writes in this order, and [`AuthorityFiles::create`] in the reverse order.
const FILES: [(&str, FileAccess); 7] = [
    (ROOTS_FILE, FileAccess::AllUsers),
    (NEXT_KEY_FILE, FileAccess::Owner),
    (KEY_FILE, FileAccess::Owner),
    (PREVIOUS_KEY_FILE, FileAccess::Owner),
    (EXTERNAL_ROOTS_FILE, FileAccess::AllUsers),
    (INTERMEDIATE_CHAIN_FILE, FileAccess::AllUsers),
    (INTERMEDIATE_KEY_FILE, FileAccess::Owner),
];

/// The files of an intermediate, with the names that cert-manager uses in a Secret. All three must exist.
const INTERMEDIATE_FILES: [&str; 3] =
    [INTERMEDIATE_KEY_FILE, INTERMEDIATE_CHAIN_FILE, EXTERNAL_ROOTS_FILE];

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
        let rotation = Rotation::for_authority(fixture.directory.path(), domain.clone());
        let scratch = tempfile::tempdir().unwrap();
        let target = scratch.path().join("authority");
        for step in 0..4 {
            match step {
                1 => rotation.add_root(now()).unwrap(),
                2 => rotation.activate_root(now()).unwrap(),
                3 => rotation.retire_root(now()).unwrap(),
                _ => {}
            }
            let files = AuthorityFiles::read(fixture.directory.path()).unwrap();
            files.write(&target).unwrap();
            assert!(AuthorityFiles::read(&target).unwrap() == files, "{step}");
            let copied = AuthorityFiles::from_files(
                files.iter().map(|(name, content)| (name, content.into())),
            );
            assert!(copied == files);
            let source = files.source(&target).unwrap();
            assert_eq!(source, AuthoritySource::BuiltIn(target.clone()));
            let original = AuthoritySource::BuiltIn(fixture.directory.path().to_owned());
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
        let files = AuthorityFiles::read(fixture.directory.path()).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let [target, staging_directory] =
            ["authority", ".draft-authority"].map(|name| scratch.path().join(name));
        // A file blocks the path of the staging directory.
        fs::write(&staging_directory, "").unwrap();
        files.write(&target).unwrap_err();
        assert!(!target.exists());
        // A killed process left a staging directory with a key but without roots.
        fs::remove_file(&staging_directory).unwrap();
        fs::create_dir(&staging_directory).unwrap();
        fs::write(staging_directory.join(KEY_FILE), "another").unwrap();
        fs::write(staging_directory.join("other"), "").unwrap();
        files.write(&target).unwrap();
        assert!(AuthorityFiles::read(&target).unwrap() == files);
        assert!(!staging_directory.exists() && !target.join("other").exists());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&target), mode(&target.join(KEY_FILE))), (0o700, 0o600));
    }

    #[test]
    fn incomplete_files_are_no_authority() {
        let directory = Path::new("/x");
        let source_of = |names: &[&str]| {
            AuthorityFiles::from_files(names.iter().map(|name| (*name, String::new())))
                .source(directory)
        };
        assert_eq!(source_of(&[]), None);
        assert_eq!(source_of(&["ca.key"]), None);
        assert_eq!(source_of(&["tls.crt", "tls.key", "other"]), None);
        let intermediate_source = Some(AuthoritySource::Intermediate(directory.to_owned()));
        assert_eq!(source_of(&["tls.crt", "tls.key", "ca.crt"]), intermediate_source);
        let built_in_source = Some(AuthoritySource::BuiltIn(directory.to_owned()));
        assert_eq!(
            source_of(&["tls.crt", "tls.key", "ca.crt", "ca.key", "ca.pem"]),
            built_in_source
        );
    }
}
