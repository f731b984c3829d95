//! Tests of saved credentials, renewal, and mismatching parts.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::authority::LEAF_LIFETIME;
use crate::testing::{TestAuthority, now, workload_id, workload_name};

/// Returns the response from which the credential was created.
fn bundle_of(credential: &Credential) -> CertificateBundle {
    CertificateBundle::new(credential.chain().to_vec(), credential.roots().clone()).unwrap()
}

#[test]
fn a_saved_credential_is_private_and_loads_unchanged() {
    let fixture = TestAuthority::new("cluster.local");
    let credential = fixture.issue_credential(&workload_id("ratings"));
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("identity");
    assert!(Credential::load(&directory).unwrap().is_none());
    credential.save(&directory).unwrap();
    let loaded = Credential::load(&directory).unwrap().unwrap();
    assert_eq!(loaded.id(), &workload_id("ratings"));
    assert_eq!(loaded.workload(), Some(&workload_name("ratings-1")));
    assert_eq!(loaded.chain(), credential.chain());
    assert_eq!(loaded.roots(), credential.roots());
    assert_eq!(loaded.not_before(), credential.not_before());
    assert_eq!(loaded.not_after(), credential.not_after());
    assert_eq!(loaded.key.public_key(), credential.key.public_key());
    let permissions = fs::metadata(directory.join(CREDENTIAL_FILE)).unwrap().permissions();
    assert_eq!(permissions.mode() & 0o777, 0o600);
}

#[test]
fn saving_replaces_the_previous_credential() {
    let fixture = TestAuthority::new("cluster.local");
    let directory = tempfile::tempdir().unwrap();
    fixture.issue_credential(&workload_id("ratings")).save(directory.path()).unwrap();
    let renewed = fixture.issue_credential(&workload_id("ratings"));
    renewed.save(directory.path()).unwrap();
    let loaded = Credential::load(directory.path()).unwrap().unwrap();
    assert_eq!(loaded.chain(), renewed.chain());
}

#[test]
fn damaged_or_exposed_files_are_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(CREDENTIAL_FILE);
    let credential = fixture.issue_credential(&workload_id("ratings"));
    credential.save(directory.path()).unwrap();
    let valid = fs::read_to_string(&path).unwrap();
    let load = || Credential::load(directory.path());

    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(load(), Err(CredentialError::Io(_))));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();

    let chain_start = valid.find("-----BEGIN CERT").unwrap();
    for (text, expected) in [
        ("", "no P-256 private key"),
        (&valid[chain_start..], "no P-256 private key"),
        (&valid[..chain_start], "chain is empty"),
        (&valid[..valid.len() - 40], "not valid PEM"),
    ] {
        fs::write(&path, text).unwrap();
        let error = load().unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }

    let other_key = fixture.issue_credential(&workload_id("ratings")).key.to_pem();
    fs::write(&path, other_key + &valid[chain_start..]).unwrap();
    assert!(matches!(load(), Err(CredentialError::KeyMismatch(_))));

    fs::write(&path, &valid).unwrap();
    fs::remove_file(directory.path().join(ROOTS_FILE)).unwrap();
    assert!(matches!(load(), Err(CredentialError::RootsMissing)));
    let other_roots = TestAuthority::new("cluster.local").authority.roots().to_pem();
    fs::write(directory.path().join(ROOTS_FILE), other_roots).unwrap();
    assert!(matches!(load(), Err(CredentialError::UntrustedChain(_))));
}

#[test]
fn mismatching_keys_and_chains_are_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    let credential = fixture.issue_credential(&workload_id("ratings"));
    let key = || PrivateKey::generate();
    let new_error = |bundle| Credential::new(key(), bundle).unwrap_err();
    assert!(matches!(new_error(bundle_of(&credential)), CredentialError::KeyMismatch(_)));
    let mut with_other_roots = bundle_of(&credential);
    with_other_roots.roots = TestAuthority::new("cluster.local").authority.roots();
    assert!(matches!(new_error(with_other_roots), CredentialError::UntrustedChain(_)));
    let mut with_empty_chain = bundle_of(&credential);
    with_empty_chain.chain.clear();
    assert!(matches!(new_error(with_empty_chain), CredentialError::EmptyChain));
    let mut with_long_chain = bundle_of(&credential);
    with_long_chain.chain = vec![with_long_chain.chain[0].clone(); MAX_CHAIN_CERTIFICATES + 1];
    assert!(matches!(new_error(with_long_chain), CredentialError::ChainTooLong));
    let mut with_malformed_leaf = bundle_of(&credential);
    with_malformed_leaf.chain = vec![CertificateDer::from(vec![0])];
    assert!(matches!(new_error(with_malformed_leaf), CredentialError::InvalidCertificate(_)));
}

#[test]
fn an_expired_credential_loads_as_expired() {
    let fixture = TestAuthority::new("cluster.local");
    let directory = tempfile::tempdir().unwrap();
    let past = now() - 2 * LEAF_LIFETIME;
    let credential = fixture.issue_credential_at(&workload_id("ratings"), LEAF_LIFETIME, past);
    credential.save(directory.path()).unwrap();
    let loaded = Credential::load(directory.path()).unwrap().unwrap();
    assert!(loaded.is_expired(now()));
    assert!(!loaded.is_expired(past));
    assert!(loaded.is_expired(loaded.not_after()));
    assert!(!loaded.is_expired(loaded.not_after() - Duration::from_secs(1)));
}

#[test]
fn the_renewal_time_is_before_half_of_the_lifetime() {
    let fixture = TestAuthority::new("cluster.local");
    for lifetime in [10, 3600, 24 * 3600] {
        let lifetime = Duration::from_secs(lifetime);
        let credential = fixture.issue_credential_at(&workload_id("ratings"), lifetime, now());
        let issue_time = credential.not_before() + CLOCK_SKEW;
        let delay = |random| credential.renewal_time(random).duration_since(issue_time).unwrap();
        let (earliest, latest) = (delay(0), delay(u64::MAX));
        let half_lifetime = lifetime / 2;
        let is_near = |time: Duration, expected: f64| (time.as_secs_f64() - expected).abs() < 0.001;
        assert!(is_near(earliest, half_lifetime.as_secs_f64() * 0.8), "{earliest:?}");
        assert!(is_near(latest, half_lifetime.as_secs_f64()), "{latest:?}");
        assert!(is_near(delay(u64::MAX / 2), half_lifetime.as_secs_f64() * 0.9));
        assert!(credential.renewal_time(u64::MAX) < credential.not_after());
    }
}

#[test]
fn debug_output_omits_the_key() {
    let fixture = TestAuthority::new("cluster.local");
    let text = format!("{:?}", fixture.issue_credential(&workload_id("ratings")));
    assert!(text.contains("ratings") && !text.contains("key"), "{text}");
}
