//! Rotation of a root in stages, each reversible except the last.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use leno_model::TrustDomain;

use super::{Authority, AuthorityError, KEY_FILE, ROOTS_FILE, self_signed};
use crate::disk::{self, FileReaders};
use crate::key::PrivateKey;
use crate::roots::Roots;

/// The stage of a root rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationStage {
    /// One root signs; no rotation is in progress.
    Stable,
    /// A new root is trusted in addition to the signing one.
    Added,
    /// The new root signs; the former one is still trusted.
    Activated,
}

/// The directory of an authority during root rotation. Control planes that use it notice each stage themselves.
#[derive(Debug)]
pub struct Rotation {
    dir: PathBuf,
    trust_domain: TrustDomain,
}

impl Rotation {
    /// Returns the rotation state of the authority in this directory.
    #[must_use]
    pub fn for_authority(dir: &Path, trust_domain: TrustDomain) -> Self {
        Self { dir: dir.to_owned(), trust_domain }
    }

    /// Returns the current stage.
    #[must_use]
    pub fn stage(&self) -> RotationStage {
        match (self.has_other_key(NEXT_FILE), self.has_other_key(FORMER_FILE)) {
            (false, false) => RotationStage::Stable,
            (true, _) => RotationStage::Added,
            (false, true) => RotationStage::Activated,
        }
    }

    /// Creates a new root and trusts it in addition to the signing one.
    ///
    /// # Errors
    /// [`AuthorityError`] if a rotation is in progress, or the directory cannot be written.
    pub fn add_root(&self, now: SystemTime) -> Result<(), AuthorityError> {
        self.expect_stage(RotationStage::Stable, "a rotation is already in progress")?;
        let roots = self.open(now)?.roots();
        let key = PrivateKey::generate();
        let root = Roots::new(vec![self_signed(&self.trust_domain, &key, now)?])?;
        let both = roots.merge_with(&root)?;
        disk::create(&self.file_path(NEXT_FILE), key.to_pem().as_bytes(), FileReaders::Owner)?;
        self.write_roots(&both)
    }

    /// Activates the new root for signing. Every member must trust it by then.
    ///
    /// # Errors
    /// [`AuthorityError`] if there is no new root, or the directory cannot be written.
    pub fn activate_root(&self, now: SystemTime) -> Result<(), AuthorityError> {
        self.expect_stage(RotationStage::Added, "there is no new root to activate: add one first")?;
        self.open(now)?;
        self.expect_trust(
            NEXT_FILE,
            "the new root is not trusted yet: roll back and add it again",
        )?;
        self.copy_file(KEY_FILE, FORMER_FILE)?;
        self.rename_file(NEXT_FILE, KEY_FILE)
    }

    /// Stops trusting the former root. No member may have a certificate signed by it.
    ///
    /// # Errors
    /// [`AuthorityError`] if the new root does not sign yet, or the directory cannot be written.
    pub fn retire_root(&self, now: SystemTime) -> Result<(), AuthorityError> {
        self.expect_stage(
            RotationStage::Activated,
            "no former root is trusted: activate the new root first",
        )?;
        self.drop_root_of(FORMER_FILE, now)
    }

    /// Rolls back the last stage.
    ///
    /// # Errors
    /// [`AuthorityError`] if no rotation is in progress, or the directory cannot be written.
    pub fn roll_back(&self, now: SystemTime) -> Result<(), AuthorityError> {
        match self.stage() {
            RotationStage::Stable => Err(AuthorityError::Stage("no root is being replaced")),
            RotationStage::Added => self.drop_root_of(NEXT_FILE, now),
            RotationStage::Activated => {
                let otherwise = "the former root is no longer trusted: retire it again";
                self.expect_trust(FORMER_FILE, otherwise)?;
                self.copy_file(KEY_FILE, NEXT_FILE)?;
                self.rename_file(FORMER_FILE, KEY_FILE)
            }
        }
    }

    fn open(&self, now: SystemTime) -> Result<Authority, AuthorityError> {
        Authority::open(&self.dir, &self.trust_domain, now)
    }

    /// True if this key exists and differs from the signing one. A copy of the signing key is left over from an
    /// interrupted step.
    fn has_other_key(&self, file: &str) -> bool {
        let read = |file| disk::read(&self.file_path(file), FileReaders::Everyone).ok().flatten();
        let [key, signing] = [file, KEY_FILE].map(read);
        key.is_some() && key != signing
    }

    /// Checks that the root of a key is in the trust bundle, as required before the key signs.
    fn expect_trust(&self, file: &str, otherwise: &'static str) -> Result<(), AuthorityError> {
        let key = self.read_key(file)?;
        let text = disk::read(&self.file_path(ROOTS_FILE), FileReaders::Everyone)?;
        let roots = Roots::from_pem(&text.ok_or(AuthorityError::Missing)?)?;
        match roots.certificates().iter().any(|der| is_of(der, &key)) {
            true => Ok(()),
            false => Err(AuthorityError::Stage(otherwise)),
        }
    }

    fn read_key(&self, file: &str) -> Result<PrivateKey, AuthorityError> {
        let text = disk::read(&self.file_path(file), FileReaders::Owner)?;
        PrivateKey::from_pem(&text.ok_or(AuthorityError::KeyMissing)?).map_err(AuthorityError::Key)
    }

    fn expect_stage(
        &self,
        stage: RotationStage,
        otherwise: &'static str,
    ) -> Result<(), AuthorityError> {
        match self.stage() == stage {
            true => Ok(()),
            false => Err(AuthorityError::Stage(otherwise)),
        }
    }

    /// Removes the root of a key from the bundle, then the key.
    fn drop_root_of(&self, file: &str, now: SystemTime) -> Result<(), AuthorityError> {
        let key = self.read_key(file)?;
        let roots = self.open(now)?.roots();
        let of_others = roots.certificates().iter().filter(|der| !is_of(der, &key));
        self.write_roots(&Roots::new(of_others.cloned().collect())?)?;
        disk::remove(&self.file_path(file))?;
        Ok(())
    }

    fn write_roots(&self, roots: &Roots) -> Result<(), AuthorityError> {
        let text = roots.to_pem();
        Ok(disk::replace(&self.file_path(ROOTS_FILE), text.as_bytes(), FileReaders::Everyone)?)
    }

    fn copy_file(&self, from: &str, to: &str) -> Result<(), AuthorityError> {
        let text = disk::read(&self.file_path(from), FileReaders::Owner)?
            .ok_or(AuthorityError::KeyMissing)?;
        Ok(disk::replace(&self.file_path(to), text.as_bytes(), FileReaders::Owner)?)
    }

    /// Renames atomically: a crash leaves either stage.
    fn rename_file(&self, from: &str, to: &str) -> Result<(), AuthorityError> {
        let (from, to) = (self.file_path(from), self.file_path(to));
        fs::rename(&from, &to).map_err(|cause| disk::file_error("rename", &from, cause))?;
        Ok(())
    }

    fn file_path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// True if the certificate is for this key.
fn is_of(der: &[u8], key: &PrivateKey) -> bool {
    let parsed = x509_parser::parse_x509_certificate(der);
    parsed.is_ok_and(|(_, root)| *root.public_key().subject_public_key.data == *key.public_key())
}

/// The next signing key.
pub(super) const NEXT_FILE: &str = "next.key";
/// The previous signing key.
pub(super) const FORMER_FILE: &str = "former.key";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::LEAF_LIFETIME;
    use crate::credential::Credential;
    use crate::testing::{TestAuthority, member_of, now, run_handshake, workload_id};
    use crate::tls::{client_config, server_config};

    fn test_rotation(fixture: &TestAuthority) -> Rotation {
        Rotation::for_authority(fixture.dir.path(), TrustDomain::new("cluster.local").unwrap())
    }

    /// Returns the credential of a member that joins now.
    fn join_member(fixture: &TestAuthority) -> Credential {
        let domain = TrustDomain::new("cluster.local").unwrap();
        let authority = Authority::open_or_create(fixture.dir.path(), &domain, now()).unwrap();
        member_of(&authority, &workload_id("ratings"), LEAF_LIFETIME, now())
    }

    /// True if each of the two verifies the other.
    fn can_connect(one: &Credential, other: &Credential) -> bool {
        let knows = |client: &Credential, server: &Credential| {
            let client = client_config(client, &workload_id("ratings"), &[b"x"]).unwrap();
            let outcome = run_handshake(&client, &server_config(server, &[b"x"]).unwrap());
            outcome.client.is_ok() && outcome.server.is_ok()
        };
        knows(one, other) && knows(other, one)
    }

    #[test]
    fn members_of_neighbouring_stages_always_know_each_other() {
        let fixture = TestAuthority::new("cluster.local");
        let rotation = test_rotation(&fixture);
        let settled = join_member(&fixture);
        rotation.add_root(now()).unwrap();
        let added = join_member(&fixture);
        rotation.activate_root(now()).unwrap();
        let switched = join_member(&fixture);
        rotation.retire_root(now()).unwrap();
        let retired = join_member(&fixture);
        assert_eq!(rotation.stage(), RotationStage::Stable);
        for (one, other) in [(&settled, &added), (&added, &switched), (&switched, &retired)] {
            assert!(can_connect(one, other));
        }
        // A member must therefore not be two stages out of date.
        assert!(!can_connect(&settled, &switched) && !can_connect(&added, &retired));
        let ca_generations =
            [&settled, &added, &switched, &retired].map(|member| member.ca_generation());
        let different: std::collections::BTreeSet<u64> = ca_generations.into();
        assert_eq!(different.len(), 4);
    }

    #[test]
    fn each_stage_can_be_taken_back() {
        let fixture = TestAuthority::new("cluster.local");
        let rotation = test_rotation(&fixture);
        let settled = join_member(&fixture).ca_generation();
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
            (settled, RotationStage::Stable)
        );
    }

    #[test]
    fn a_step_that_was_cut_short_can_be_taken_again_or_back() {
        let fixture = TestAuthority::new("cluster.local");
        let rotation = test_rotation(&fixture);
        let copy = |from: &str, to: &str| {
            fs::copy(rotation.file_path(from), rotation.file_path(to)).unwrap();
        };
        let settled = join_member(&fixture).ca_generation();
        rotation.add_root(now()).unwrap();
        let added = join_member(&fixture).ca_generation();
        // `switch`, interrupted before the new key takes its place.
        copy(KEY_FILE, FORMER_FILE);
        assert_eq!(rotation.stage(), RotationStage::Added);
        rotation.activate_root(now()).unwrap();
        let switched = join_member(&fixture).ca_generation();
        // `back`, interrupted before the former key takes its place.
        copy(KEY_FILE, NEXT_FILE);
        assert_eq!(rotation.stage(), RotationStage::Activated);
        assert_eq!(join_member(&fixture).ca_generation(), switched);
        rotation.roll_back(now()).unwrap();
        assert_eq!(
            (join_member(&fixture).ca_generation(), rotation.stage()),
            (added, RotationStage::Added)
        );
        // `retire`, interrupted before the former key is removed: it cannot return, because no member trusts
        // it.
        rotation.activate_root(now()).unwrap();
        let former = fs::read(rotation.file_path(FORMER_FILE)).unwrap();
        rotation.retire_root(now()).unwrap();
        fs::write(rotation.file_path(FORMER_FILE), former).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(rotation.file_path(FORMER_FILE), mode).unwrap();
        assert!(matches!(rotation.roll_back(now()), Err(AuthorityError::Stage(_))));
        rotation.retire_root(now()).unwrap();
        assert_eq!(rotation.stage(), RotationStage::Stable);
        // `add`, interrupted before the new root is trusted.
        rotation.add_root(now()).unwrap();
        let next = rotation.read_key(NEXT_FILE).unwrap();
        let roots = rotation.open(now()).unwrap().roots();
        let others = roots.certificates().iter().filter(|der| !is_of(der, &next)).cloned();
        rotation.write_roots(&Roots::new(others.collect()).unwrap()).unwrap();
        assert!(matches!(rotation.activate_root(now()), Err(AuthorityError::Stage(_))));
        rotation.roll_back(now()).unwrap();
        assert_eq!(rotation.stage(), RotationStage::Stable);
        assert_ne!(join_member(&fixture).ca_generation(), settled);
    }

    #[test]
    fn stages_come_in_their_order() {
        let fixture = TestAuthority::new("cluster.local");
        let rotation = test_rotation(&fixture);
        let rejected = |result: Result<(), AuthorityError>| {
            assert!(matches!(result, Err(AuthorityError::Stage(_))), "{result:?}");
        };
        rejected(rotation.activate_root(now()));
        rejected(rotation.retire_root(now()));
        rejected(rotation.roll_back(now()));
        rotation.add_root(now()).unwrap();
        rejected(rotation.add_root(now()));
        rejected(rotation.retire_root(now()));
    }
}
