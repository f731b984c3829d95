//! Tests of saved credentials, renewal, and mismatching parts.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::authority::LEAF_LIFETIME;
use crate::testing::{TestAuthority, now, workload_id, workload_name};

fn issued_of(credential: &Credential) -> CertificateBundle {
    CertificateBundle::new(credential.chain().to_vec(), credential.roots().clone()).unwrap()
}

#[test]
fn reads_back_what_it_saved_for_its_owner_only() {
    let fixture = TestAuthority::new("cluster.local");
    let credential = fixture.issue_credential(&workload_id("ratings"));
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("identity");
    assert!(Credential::load(&dir).unwrap().is_none());
    credential.save(&dir).unwrap();
    let read = Credential::load(&dir).unwrap().unwrap();
    assert_eq!(read.id(), &workload_id("ratings"));
    assert_eq!(read.workload(), Some(&workload_name("ratings-1")));
    assert_eq!(read.chain(), credential.chain());
    assert_eq!(read.roots(), credential.roots());
    assert_eq!(read.not_before(), credential.not_before());
    assert_eq!(read.not_after(), credential.not_after());
    assert_eq!(read.key.public_key(), credential.key.public_key());
    let mode = fs::metadata(dir.join(CREDENTIAL_FILE)).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
}

#[test]
fn saving_replaces_what_was_there() {
    let fixture = TestAuthority::new("cluster.local");
    let dir = tempfile::tempdir().unwrap();
    fixture.issue_credential(&workload_id("ratings")).save(dir.path()).unwrap();
    let renewed = fixture.issue_credential(&workload_id("ratings"));
    renewed.save(dir.path()).unwrap();
    let read = Credential::load(dir.path()).unwrap().unwrap();
    assert_eq!(read.chain(), renewed.chain());
}

#[test]
fn refuses_damaged_or_exposed_files() {
    let fixture = TestAuthority::new("cluster.local");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(CREDENTIAL_FILE);
    let credential = fixture.issue_credential(&workload_id("ratings"));
    credential.save(dir.path()).unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let load = || Credential::load(dir.path());

    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(load(), Err(CredentialError::Io(_))));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();

    let at = good.find("-----BEGIN CERT").unwrap();
    for (text, expected) in [
        ("", "no P-256 private key"),
        (&good[at..], "no P-256 private key"),
        (&good[..at], "chain is empty"),
        (&good[..good.len() - 40], "not valid PEM"),
    ] {
        fs::write(&path, text).unwrap();
        let error = load().unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }

    let other = fixture.issue_credential(&workload_id("ratings")).key.to_pem();
    fs::write(&path, other + &good[at..]).unwrap();
    assert!(matches!(load(), Err(CredentialError::Key(_))));

    fs::write(&path, &good).unwrap();
    fs::remove_file(dir.path().join(ROOTS_FILE)).unwrap();
    assert!(matches!(load(), Err(CredentialError::RootsMissing)));
    let foreign = TestAuthority::new("cluster.local").authority.roots().to_pem();
    fs::write(dir.path().join(ROOTS_FILE), foreign).unwrap();
    assert!(matches!(load(), Err(CredentialError::Chain(_))));
}

#[test]
fn refuses_what_was_issued_for_another_key_or_by_another_root() {
    let fixture = TestAuthority::new("cluster.local");
    let credential = fixture.issue_credential(&workload_id("ratings"));
    let key = || PrivateKey::generate();
    let new = |issued| Credential::new(key(), issued).unwrap_err();
    assert!(matches!(new(issued_of(&credential)), CredentialError::Key(_)));
    let mut foreign = issued_of(&credential);
    foreign.roots = TestAuthority::new("cluster.local").authority.roots();
    assert!(matches!(new(foreign), CredentialError::Chain(_)));
    let mut empty = issued_of(&credential);
    empty.chain.clear();
    assert!(matches!(new(empty), CredentialError::EmptyChain));
    let mut long = issued_of(&credential);
    long.chain = vec![long.chain[0].clone(); CHAIN_MAX + 1];
    assert!(matches!(new(long), CredentialError::LongChain));
    let mut nobody = issued_of(&credential);
    nobody.chain = vec![CertificateDer::from(vec![0])];
    assert!(matches!(new(nobody), CredentialError::Certificate(_)));
}

#[test]
fn an_expired_credential_is_read_and_says_so() {
    let fixture = TestAuthority::new("cluster.local");
    let dir = tempfile::tempdir().unwrap();
    let past = now() - 2 * LEAF_LIFETIME;
    let credential = fixture.credential_at(&workload_id("ratings"), LEAF_LIFETIME, past);
    credential.save(dir.path()).unwrap();
    let read = Credential::load(dir.path()).unwrap().unwrap();
    assert!(read.is_expired(now()));
    assert!(!read.is_expired(past));
    assert!(read.is_expired(read.not_after()));
    assert!(!read.is_expired(read.not_after() - Duration::from_secs(1)));
}

#[test]
fn renews_before_half_of_its_life_has_passed() {
    let fixture = TestAuthority::new("cluster.local");
    for life in [10, 3600, 24 * 3600] {
        let life = Duration::from_secs(life);
        let credential = fixture.credential_at(&workload_id("ratings"), life, now());
        let issued = credential.not_before() + CLOCK_SKEW;
        let after = |draw| credential.renew_at(draw).duration_since(issued).unwrap();
        let (early, late) = (after(0), after(u64::MAX));
        let half = life / 2;
        let near = |time: Duration, of: f64| (time.as_secs_f64() - of).abs() < 0.001;
        assert!(near(early, half.as_secs_f64() * 0.8), "{early:?}");
        assert!(near(late, half.as_secs_f64()), "{late:?}");
        assert!(near(after(u64::MAX / 2), half.as_secs_f64() * 0.9));
        assert!(credential.renew_at(u64::MAX) < credential.not_after());
    }
}

#[test]
fn prints_no_key() {
    let fixture = TestAuthority::new("cluster.local");
    let text = format!("{:?}", fixture.issue_credential(&workload_id("ratings")));
    assert!(text.contains("ratings") && !text.contains("key"), "{text}");
}
