//! Tests of the authority across restarts, crashes and mistakes, and of its certificates.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::thread;

use super::*;
use crate::testing::{TestAuthority, now, workload_id, workload_name};

fn parse_domain(name: &str) -> TrustDomain {
    TrustDomain::new(name).unwrap()
}

fn open(directory: &Path) -> Result<Authority, AuthorityError> {
    Authority::open_or_create(directory, &parse_domain("cluster.local"), now())
}

/// Returns a subject with this identity, without a workload and an instance.
fn account_subject(id: &SpiffeId) -> CertificateSubject<'_> {
    CertificateSubject { id, workload: None, instance: None }
}

fn certificate_request() -> CertificateRequest {
    CertificateRequest::from_der(&PrivateKey::generate().certificate_request()).unwrap()
}

#[test]
fn an_authority_survives_a_restart_and_its_key_is_private() {
    let directory = tempfile::tempdir().unwrap();
    let data_directory = directory.path().join("data");
    let authority = open(&data_directory).unwrap();
    let key = fs::read_to_string(data_directory.join(KEY_FILE)).unwrap();
    let reopened = open(&data_directory).unwrap();
    assert_eq!(authority.roots(), reopened.roots());
    assert_eq!(fs::read_to_string(data_directory.join(KEY_FILE)).unwrap(), key);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data_directory.join(KEY_FILE)), 0o600);
    assert_eq!(mode(&data_directory), 0o700);
    assert_eq!(fs::read_dir(&data_directory).unwrap().count(), 2, "no temporary file is left");
}

#[test]
fn a_key_that_others_may_read_is_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    let key = fixture.directory.path().join(KEY_FILE);
    fs::set_permissions(&key, Permissions::from_mode(0o640)).unwrap();
    let error = open(fixture.directory.path()).unwrap_err().to_string();
    assert!(error.contains("chmod 600") && error.contains("ca.key"), "{error}");
}

#[test]
fn an_authority_of_another_trust_domain_is_rejected() {
    let fixture = TestAuthority::new("cluster.local");
    for name in ["other.local", "cluster.loca", "cluster.local.a"] {
        let opened =
            Authority::open_or_create(fixture.directory.path(), &parse_domain(name), now());
        assert!(matches!(opened, Err(AuthorityError::ForeignTrustDomain { .. })), "{name}");
    }
}

#[test]
fn a_lost_key_is_not_replaced() {
    let fixture = TestAuthority::new("cluster.local");
    fs::remove_file(fixture.directory.path().join(KEY_FILE)).unwrap();
    assert!(matches!(open(fixture.directory.path()), Err(AuthorityError::KeyMissing)));
}

#[test]
fn an_interrupted_first_start_is_completed() {
    let fixture = TestAuthority::new("cluster.local");
    let credential = fixture.issue_credential(&workload_id("ratings"));
    fs::remove_file(fixture.directory.path().join(ROOTS_FILE)).unwrap();
    let reopened = open(fixture.directory.path()).unwrap();
    // The key is unchanged, so certificates signed before are still trusted.
    let bundle = CertificateBundle {
        chain: credential.chain().to_vec(),
        roots: reopened.roots(),
        not_before: credential.not_before(),
        not_after: credential.not_after(),
    };
    let other_key = PrivateKey::generate();
    let error = crate::Credential::new(other_key, bundle).unwrap_err();
    assert!(matches!(error, CredentialError::KeyMismatch(_)), "{error}");
}

#[test]
fn a_key_that_does_not_match_the_roots_is_rejected() {
    let (first, second) =
        (TestAuthority::new("cluster.local"), TestAuthority::new("cluster.local"));
    let (from, to) =
        (second.directory.path().join(KEY_FILE), first.directory.path().join(KEY_FILE));
    fs::copy(from, to).unwrap();
    assert!(matches!(open(first.directory.path()), Err(AuthorityError::KeyMismatch)));
    fs::write(first.directory.path().join(KEY_FILE), "nonsense").unwrap();
    assert!(matches!(open(first.directory.path()), Err(AuthorityError::InvalidKey(_))));
    fs::write(second.directory.path().join(ROOTS_FILE), "nonsense").unwrap();
    assert!(matches!(open(second.directory.path()), Err(AuthorityError::Roots(_))));
}

#[test]
fn concurrent_starts_create_one_authority() {
    let directory = tempfile::tempdir().unwrap();
    let roots: Vec<Roots> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| open(directory.path()).unwrap())).collect();
        let authorities = threads.into_iter().map(|thread| thread.join().unwrap());
        authorities.map(|authority| authority.roots()).collect()
    });
    let final_roots = open(directory.path()).unwrap().roots();
    for root in roots {
        assert_eq!(root, final_roots);
    }
}

#[test]
fn the_root_with_the_key_signs_and_further_roots_are_trusted() {
    let (old, new) = (TestAuthority::new("cluster.local"), TestAuthority::new("cluster.local"));
    let merged = old.authority.roots().merge_with(&new.authority.roots()).unwrap();
    for fixture in [&old, &new] {
        fs::write(fixture.directory.path().join(ROOTS_FILE), merged.to_pem()).unwrap();
        let authority = open(fixture.directory.path()).unwrap();
        let id = workload_id("ratings");
        let bundle =
            authority.sign(&certificate_request(), account_subject(&id), LEAF_LIFETIME, now());
        let bundle = bundle.unwrap();
        assert_eq!(bundle.roots, merged);
        let (_, leaf) = x509_parser::parse_x509_certificate(&bundle.chain[0]).unwrap();
        let own_roots = &fixture.authority.roots();
        let (_, root) = x509_parser::parse_x509_certificate(&own_roots.certificates()[0]).unwrap();
        assert_eq!(leaf.issuer(), root.subject());
    }
}

#[test]
fn a_member_certificate_has_exactly_the_required_extensions() {
    let fixture = TestAuthority::new("cluster.local");
    let (id, workload) = (workload_id("ratings"), workload_name("ratings-1"));
    let subject = CertificateSubject { id: &id, workload: Some(&workload), instance: None };
    let issue_time = now();
    let bundle =
        fixture.authority.sign(&certificate_request(), subject, LEAF_LIFETIME, issue_time).unwrap();
    assert_eq!(bundle.chain.len(), 1, "the root is not sent");
    let (_, leaf) = x509_parser::parse_x509_certificate(&bundle.chain[0]).unwrap();
    assert_eq!(sole_uri(&leaf).unwrap(), id.to_string());
    assert_eq!(leaf.subject().to_string(), "CN=bookinfo/ratings-1");
    assert!(!leaf.is_ca());
    let usage = leaf.key_usage().unwrap().unwrap();
    assert_eq!(usage.value.flags, 1, "digital signature alone");
    let purposes = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(purposes.server_auth && purposes.client_auth && !purposes.any);
    assert_eq!(to_system_time(leaf.validity().not_before), Ok(bundle.not_before));
    assert_eq!(to_system_time(leaf.validity().not_after), Ok(bundle.not_after));
    let second = Duration::from_secs(1);
    assert!(
        bundle.not_before <= issue_time - CLOCK_SKEW
            && bundle.not_before + second > issue_time - CLOCK_SKEW
    );
    assert!(bundle.not_after <= issue_time + LEAF_LIFETIME);
    assert!(bundle.not_after + second > issue_time + LEAF_LIFETIME);
}

#[test]
fn serial_numbers_differ_for_the_same_key() {
    let fixture = TestAuthority::new("cluster.local");
    let (request, id) = (certificate_request(), workload_id("ratings"));
    let serial_number = || {
        let bundle =
            fixture.authority.sign(&request, account_subject(&id), LEAF_LIFETIME, now()).unwrap();
        let (_, leaf) = x509_parser::parse_x509_certificate(&bundle.chain[0]).unwrap();
        leaf.raw_serial().to_vec()
    };
    let (first, second) = (serial_number(), serial_number());
    assert_ne!(first, second);
    assert_eq!(first.len(), 16);
}

#[test]
fn invalid_subjects_and_lifetimes_are_not_signed() {
    let fixture = TestAuthority::new("cluster.local");
    let sign = |id: &SpiffeId, workload: Option<&WorkloadName>, lifetime| {
        fixture.authority.sign(
            &certificate_request(),
            CertificateSubject { id, workload, instance: None },
            lifetime,
            now(),
        )
    };
    let other_domain_id = "spiffe://other.local/ns/bookinfo/sa/ratings".parse().unwrap();
    assert!(matches!(
        sign(&other_domain_id, None, LEAF_LIFETIME),
        Err(AuthorityError::ForeignTrustDomain { .. })
    ));
    let ratings = workload_id("ratings");
    let other_workload = WorkloadName::new("shop", "ratings-1").unwrap();
    assert!(matches!(
        sign(&ratings, Some(&other_workload), LEAF_LIFETIME),
        Err(AuthorityError::ForeignNamespace { .. })
    ));
    let control_plane_id = control_id(fixture.authority.trust_domain());
    let member = WorkloadName::new("leno-system", "sidecar-1").unwrap();
    let error = sign(&control_plane_id, Some(&member), LEAF_LIFETIME).unwrap_err();
    assert!(matches!(error, AuthorityError::ReservedIdentity(_)), "{error}");
    assert!(error.to_string().contains("another `spec.serviceAccount`"), "{error}");
    assert!(sign(&control_plane_id, None, LEAF_LIFETIME).is_ok());
    let too_long = MAX_LEAF_LIFETIME + Duration::from_secs(1);
    for lifetime in [Duration::ZERO, Duration::from_millis(999), too_long, Duration::MAX] {
        assert!(matches!(
            sign(&ratings, None, lifetime),
            Err(AuthorityError::LifetimeOutOfRange(_))
        ));
    }
    assert!(sign(&ratings, None, MAX_LEAF_LIFETIME).is_ok());
}

#[test]
fn no_certificate_outlives_its_root() {
    let fixture = TestAuthority::new("cluster.local");
    let (request, id) = (certificate_request(), workload_id("ratings"));
    let sign_at = |now| fixture.authority.sign(&request, account_subject(&id), LEAF_LIFETIME, now);
    let hour = Duration::from_secs(3600);
    let last_certificate = sign_at(now() + ROOT_LIFETIME - hour).unwrap();
    assert!(last_certificate.not_after <= now() + ROOT_LIFETIME);
    let after_expiry = now() + ROOT_LIFETIME + hour;
    assert!(matches!(sign_at(after_expiry), Err(AuthorityError::RootExpired)));
    let trust_domain = parse_domain("cluster.local");
    assert!(matches!(
        Authority::open_or_create(fixture.directory.path(), &trust_domain, after_expiry),
        Err(AuthorityError::RootExpired)
    ));
    assert!(matches!(sign_at(UNIX_EPOCH), Err(AuthorityError::InvalidClock)));
}
