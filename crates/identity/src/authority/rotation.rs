//! Rotates the mesh's root certificate in stages: adds the new root, activates it, and retires the former root. Each stage
//! but the last can be rolled back. `leno root` and the control plane use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use leno_model::TrustDomain;

use super::{Authority, AuthorityError, KEY_FILE, ROOTS_FILE, self_signed_root};
use crate::disk::{self, FileAccess};
use crate::key::PrivateKey;
use crate::roots::Roots;

/// The stage of a root rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationStage {
    /// One root signs; no rotation is in progress.
    Stable,
    /// A new root is trusted in addition to the signing root.
    Added,
    /// The new root signs; the former root is still trusted.
    Activated,
}

/// The root rotation of the authority in a directory. Control planes that use the directory detect each stage.
#[derive(Debug)]
pub struct Rotation {
    directory: PathBuf,
    trust_domain: TrustDomain,
}

impl Rotation {
    /// Returns the root rotation of the authority in this directory.
    #[must_use]
    pub fn for_authority(directory: &Path, trust_domain: TrustDomain) -> Self {
        Self { directory: directory.to_owned(), trust_domain }
    }

    /// Returns the current stage.
    #[must_use]
    pub fn stage(&self) -> RotationStage {
        match (self.has_distinct_key(NEXT_KEY_FILE), self.has_distinct_key(PREVIOUS_KEY_FILE)) {
            (false, false) => RotationStage::Stable,
            (true, _) => RotationStage::Added,
            (false, true) => RotationStage::Activated,
        }
    }

    /// Creates a new root, which is trusted in addition to the signing root.
    ///
    /// # Errors
    /// [`AuthorityError`] if a rotation is in progress, or the directory cannot be written.
    pub fn add_root(&self, now: SystemTime) -> Result<(), AuthorityError> {
        self.check_stage(RotationStage::Stable, "a rotation is already in progress")?;
        let current_roots = self.open(now)?.roots();
        let key = PrivateKey::generate();
        let new_root = Roots::new(vec![self_signed_root(&self.trust_domain, &key, now)?])?;
        let merged_roots = current_roots.merge_with(&new_root)?;
        disk::create(&self.file_path(NEXT_KEY_FILE), key.to_pem().as_bytes(), FileAccess::Owner)?;
        self.write_roots(&merged_roots)
    }

    /// Activates the new root for signing. Every member must trust the new root already.
    ///
    /// # Errors
    /// [`AuthorityError`] if there is no new root, it is not trusted, or the directory cannot be written.
    pub fn activate_root(&self, now: SystemTime) -> Result<(), AuthorityError> {
        self.check_stage(RotationStage::Added, "there is no new root to activate: add one first")?;
        // An authority that cannot be opened is left unchanged.
        self.open(now)?;
        self.check_trusted(
            NEXT_KEY_FILE,
            "the new root is not trusted yet: roll back and add it again",
        )?;
        // The signing key is copied first. After a crash, it still signs, and the step can be repeated.
        self.copy_key(KEY_FILE, PREVIOUS_KEY_FILE)?;
        self.rename_key(NEXT_KEY_FILE, KEY_FILE)
    }

    /// Removes the former root from the trust bundle. No member may still have a certificate signed by the former root.
    ///
    /// # Errors
    /// [`AuthorityError`] if the new root does not sign yet, or the directory cannot be written.
    pub fn retire_root(&self, now: SystemTime) -> Result<(), AuthorityError> {
        self.check_stage(
            RotationStage::Activated,
            "no former root is trusted: activate the new root first",
        )?;
        self.remove_root(PREVIOUS_KEY_FILE, now)
    }

    /// Returns to the previous stage.
    ///
    /// # Errors
    /// [`AuthorityError`] if no rotation is in progress, the root that would sign is no longer trusted, or the
    /// directory cannot be written.
    pub fn roll_back(&self, now: SystemTime) -> Result<(), AuthorityError> {
        match self.stage() {
            RotationStage::Stable => Err(AuthorityError::WrongStage("no root is being replaced")),
            RotationStage::Added => self.remove_root(NEXT_KEY_FILE, now),
            RotationStage::Activated => {
                let problem = "the former root is no longer trusted: retire it again";
                self.check_trusted(PREVIOUS_KEY_FILE, problem)?;
                self.copy_key(KEY_FILE, NEXT_KEY_FILE)?;
                self.rename_key(PREVIOUS_KEY_FILE, KEY_FILE)
            }
        }
    }

    /// Opens the authority that signs in the current stage.
    fn open(&self, now: SystemTime) -> Result<Authority, AuthorityError> {
        Authority::open(&self.directory, &self.trust_domain, now)
    }

    /// True if this key file exists and contains another key than the signing key. An interrupted step may have left a
    /// copy of the signing key.
    fn has_distinct_key(&self, file: &str) -> bool {
        // `AllUsers` omits the check of the mode: a key that others may read does not change the stage.
        let read_file =
            |file| disk::read(&self.file_path(file), FileAccess::AllUsers).ok().flatten();
        let [key_pem, signing_key_pem] = [file, KEY_FILE].map(read_file);
        key_pem.is_some() && key_pem != signing_key_pem
    }

    /// Returns an error with this problem unless the root of the key in `file` is in the trust bundle, as required before the
    /// key signs.
    fn check_trusted(&self, file: &str, problem: &'static str) -> Result<(), AuthorityError> {
        let key = self.read_key(file)?;
        let pem = disk::read(&self.file_path(ROOTS_FILE), FileAccess::AllUsers)?;
        let roots = Roots::from_pem(&pem.ok_or(AuthorityError::RootsFileMissing)?)?;
        match roots.certificates().iter().any(|der| is_for_key(der, &key)) {
            true => Ok(()),
            false => Err(AuthorityError::WrongStage(problem)),
        }
    }

    /// Reads a key file; an error if it does not exist.
    fn read_key(&self, file: &str) -> Result<PrivateKey, AuthorityError> {
        let pem = disk::read(&self.file_path(file), FileAccess::Owner)?;
        PrivateKey::from_pem(&pem.ok_or(AuthorityError::KeyMissing)?)
            .map_err(AuthorityError::InvalidKey)
    }

    /// Returns an error with this problem unless the rotation is at the required stage.
    fn check_stage(
        &self,
        required_stage: RotationStage,
        problem: &'static str,
    ) -> Result<(), AuthorityError> {
        match self.stage() == required_stage {
            true => Ok(()),
            false => Err(AuthorityError::WrongStage(problem)),
        }
    }

    /// Removes the root of the key in `file` from the trust bundle, then removes the file.
    fn remove_root(&self, file: &str, now: SystemTime) -> Result<(), AuthorityError> {
        let key = self.read_key(file)?;
        let roots = self.open(now)?.roots();
        let remaining_roots = roots.certificates().iter().filter(|der| !is_for_key(der, &key));
        self.write_roots(&Roots::new(remaining_roots.cloned().collect())?)?;
        disk::remove(&self.file_path(file))?;
        Ok(())
    }

    /// Replaces the trust bundle of the members.
    fn write_roots(&self, roots: &Roots) -> Result<(), AuthorityError> {
        let pem = roots.to_pem();
        Ok(disk::replace(&self.file_path(ROOTS_FILE), pem.as_bytes(), FileAccess::AllUsers)?)
    }

    /// Copies a key file atomically.
    fn copy_key(&self, from: &str, to: &str) -> Result<(), AuthorityError> {
        let pem = disk::read(&self.file_path(from), FileAccess::Owner)?
            .ok_or(AuthorityError::KeyMissing)?;
        Ok(disk::replace(&self.file_path(to), pem.as_bytes(), FileAccess::Owner)?)
    }

    /// Renames a key file atomically: after a crash, the stage is the old or the new one.
    fn rename_key(&self, from: &str, to: &str) -> Result<(), AuthorityError> {
        let (from_path, to_path) = (self.file_path(from), self.file_path(to));
        fs::rename(&from_path, &to_path)
            .map_err(|cause| disk::file_error("rename", &from_path, cause))?;
        Ok(())
    }

    /// Returns the path of a file of the authority.
    fn file_path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// True if the certificate is for this key.
fn is_for_key(der: &[u8], key: &PrivateKey) -> bool {
    let parsed = x509_parser::parse_x509_certificate(der);
    parsed.is_ok_and(|(_, certificate)| {
        *certificate.public_key().subject_public_key.data == *key.public_key()
    })
}

/// The file of the key that signs after [`Rotation::activate_root`].
pub(super) const NEXT_KEY_FILE: &str = "next.key";
/// The file of the key that signed before [`Rotation::activate_root`].
pub(super) const PREVIOUS_KEY_FILE: &str = "previous.key";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::LEAF_LIFETIME;
    use crate::credential::Credential;
    use crate::testing::{TestAuthority, issue_member_credential, now, run_handshake, workload_id};
    use crate::tls::{client_config, server_config};

    fn test_rotation(fixture: &TestAuthority) -> Rotation {
        Rotation::for_authority(
            fixture.directory.path(),
            TrustDomain::new("cluster.local").unwrap(),
        )
    }

    /// Returns the credential of a member that joins now.
    fn join_member(fixture: &TestAuthority) -> Credential {
        let domain = TrustDomain::new("cluster.local").unwrap();
        let authority =
            Authority::open_or_create(fixture.directory.path(), &domain, now()).unwrap();
        issue_member_credential(&authority, &workload_id("ratings"), LEAF_LIFETIME, now())
    }

    /// True if each of the two members accepts the other as client and as server.
    fn can_connect(first: &Credential, second: &Credential) -> bool {
        let accepts = |client: &Credential, server: &Credential| {
            let client = client_config(client, &workload_id("ratings"), &[b"x"]).unwrap();
            let outcome = run_handshake(&client, &server_config(server, &[b"x"]).unwrap());
            outcome.client.is_ok() && outcome.server.is_ok()
        };
        accepts(first, second) && accepts(second, first)
    }

    #[test]
    fn members_of_consecutive_stages_trust_each_other() {
        let fixture = TestAuthority::new("cluster.local");
        let rotation = test_rotation(&fixture);
        let stable = join_member(&fixture);
        rotation.add_root(now()).unwrap();
        let added = join_member(&fixture);
        rotation.activate_root(now()).unwrap();
        let activated = join_member(&fixture);
        rotation.retire_root(now()).unwrap();
        let retired = join_member(&fixture);
        assert_eq!(rotation.stage(), RotationStage::Stable);
        for (first, second) in [(&stable, &added), (&added, &activated), (&activated, &retired)] {
            assert!(can_connect(first, second));
        }
        // A member must therefore not be two stages out of date.
        assert!(!can_connect(&stable, &activated) && !can_connect(&added, &retired));
        let ca_generations =
            [&stable, &added, &activated, &retired].map(|member| member.ca_generation());
        let distinct: std::collections::BTreeSet<u64> = ca_generations.into();
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn each_stage_can_be_rolled_back() {
        let fixture = TestAuthority::new("cluster.local");
        let rotation = test_rotation(&fixture);
        let stable = join_member(&fixture).ca_generation();
        rotation.add_root(now()).unwrap();
        let added = join_member(&fixture).ca_generation();
        rotation.activate_root(now()).unwrap();
        rotation.roll_back(now()).unwrap();
        assert_eq!(
            (join_member(&fixture).ca_generation(), rotation.stage()),
            (added, RotationStage::Added)
        );
        rotation.roll_back(now()).unwrap();
        assert_eq!(
            (join_member(&fixture).ca_generation(), rotation.stage()),
            (stable, RotationStage::Stable)
        );
    }

    #[test]
    fn an_interrupted_step_can_be_repeated_or_rolled_back() {
        let fixture = TestAuthority::new("cluster.local");
        let rotation = test_rotation(&fixture);
        let copy = |from: &str, to: &str| {
            fs::copy(rotation.file_path(from), rotation.file_path(to)).unwrap();
        };
        let stable = join_member(&fixture).ca_generation();
        rotation.add_root(now()).unwrap();
        let added = join_member(&fixture).ca_generation();
        // Activation, interrupted before the new key takes its place.
        copy(KEY_FILE, PREVIOUS_KEY_FILE);
        assert_eq!(rotation.stage(), RotationStage::Added);
        rotation.activate_root(now()).unwrap();
        let activated = join_member(&fixture).ca_generation();
        // Rollback, interrupted before the former key takes its place.
        copy(KEY_FILE, NEXT_KEY_FILE);
        assert_eq!(rotation.stage(), RotationStage::Activated);
        assert_eq!(join_member(&fixture).ca_generation(), activated);
        rotation.roll_back(now()).unwrap();
        assert_eq!(
            (join_member(&fixture).ca_generation(), rotation.stage()),
            (added, RotationStage::Added)
        );
        // Retirement, interrupted before the former key is removed: a rollback is rejected, because no member
        // trusts the key.
        rotation.activate_root(now()).unwrap();
        let former = fs::read(rotation.file_path(PREVIOUS_KEY_FILE)).unwrap();
        rotation.retire_root(now()).unwrap();
        fs::write(rotation.file_path(PREVIOUS_KEY_FILE), former).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(rotation.file_path(PREVIOUS_KEY_FILE), mode).unwrap();
        assert!(matches!(rotation.roll_back(now()), Err(AuthorityError::WrongStage(_))));
        rotation.retire_root(now()).unwrap();
        assert_eq!(rotation.stage(), RotationStage::Stable);
        // Addition, interrupted before the new root is trusted.
        rotation.add_root(now()).unwrap();
        let next = rotation.read_key(NEXT_KEY_FILE).unwrap();
        let roots = rotation.open(now()).unwrap().roots();
        let other_roots =
            roots.certificates().iter().filter(|der| !is_for_key(der, &next)).cloned();
        rotation.write_roots(&Roots::new(other_roots.collect()).unwrap()).unwrap();
        assert!(matches!(rotation.activate_root(now()), Err(AuthorityError::WrongStage(_))));
        rotation.roll_back(now()).unwrap();
        assert_eq!(rotation.stage(), RotationStage::Stable);
        assert_ne!(join_member(&fixture).ca_generation(), stable);
    }

    #[test]
    fn steps_out_of_order_are_rejected() {
        let fixture = TestAuthority::new("cluster.local");
        let rotation = test_rotation(&fixture);
        let assert_rejected = |result: Result<(), AuthorityError>| {
            assert!(matches!(result, Err(AuthorityError::WrongStage(_))), "{result:?}");
        };
        assert_rejected(rotation.activate_root(now()));
        assert_rejected(rotation.retire_root(now()));
        assert_rejected(rotation.roll_back(now()));
        rotation.add_root(now()).unwrap();
        assert_rejected(rotation.add_root(now()));
        assert_rejected(rotation.retire_root(now()));
    }
}
