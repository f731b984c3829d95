//! Opens an authority from its source: the directory of a built-in root, or the directory of an intermediate that an
//! external CA such as cert-manager issues. The members of the mesh, which are its workloads and its control plane, have
//! certificates of the authority.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_model::TrustDomain;
use rcgen::Issuer;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::{
    Authority, AuthorityError, CertificateSubject, EXTERNAL_ROOTS_FILE, INTERMEDIATE_CHAIN_FILE,
    INTERMEDIATE_KEY_FILE, MIN_LEAF_LIFETIME,
};
use crate::credential::{Credential, CredentialError, verify_with_full_store};
use crate::csr::CertificateRequest;
use crate::directory::check_private_if_exists;
use crate::disk::{self, FileAccess};
use crate::key::PrivateKey;
use crate::roots::{Roots, is_self_issued, may_sign_certificates};
use crate::tls::control_id;
use crate::verify::to_system_time;

/// The directory that contains an authority. It can be opened repeatedly to detect changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthoritySource {
    /// The directory of a built-in root, with `ca.key` and `ca.pem`, which [`Self::open_or_create`] creates.
    BuiltIn(PathBuf),
    /// The directory of an intermediate that an external CA issues and renews: `tls.key`, `tls.crt` (the intermediate's
    /// certificate, then its issuers) and `ca.crt` (the external roots).
    Intermediate(PathBuf),
}

impl AuthoritySource {
    /// Opens the current authority. A missing built-in root is an error and is not recreated: members with certificates
    /// of a new root and existing members would not trust each other.
    ///
    /// # Errors
    /// [`AuthorityError`] if the authority cannot be used; an authority opened before is not affected.
    pub fn open(
        &self,
        trust_domain: &TrustDomain,
        now: SystemTime,
    ) -> Result<Authority, AuthorityError> {
        match self {
            Self::BuiltIn(directory) => {
                check_private_if_exists(directory)?;
                Authority::open(directory, trust_domain, now)
            }
            Self::Intermediate(directory) => open_intermediate(directory, trust_domain, now),
        }
    }

    /// Opens the authority at the start of a control plane. Unlike [`Self::open`], it creates a missing built-in root.
    ///
    /// # Errors
    /// [`AuthorityError`] if the authority cannot be used or created.
    pub fn open_or_create(
        &self,
        trust_domain: &TrustDomain,
        now: SystemTime,
    ) -> Result<Authority, AuthorityError> {
        match self {
            Self::BuiltIn(directory) => Authority::open_or_create(directory, trust_domain, now),
            Self::Intermediate(_) => self.open(trust_domain, now),
        }
    }
}

/// Opens the intermediate authority in the directory, and checks that peers accept the certificates that it signs.
fn open_intermediate(
    directory: &Path,
    trust_domain: &TrustDomain,
    now: SystemTime,
) -> Result<Authority, AuthorityError> {
    let read_file = |file, access| {
        disk::read_user_file(&directory.join(file), access)?
            .ok_or(AuthorityError::IntermediateFileMissing { file })
    };
    let key_result = PrivateKey::from_pem(&read_file(INTERMEDIATE_KEY_FILE, FileAccess::Owner)?);
    let key = key_result.map_err(AuthorityError::InvalidIntermediateKey)?;
    let external_roots = Roots::from_pem(&read_file(EXTERNAL_ROOTS_FILE, FileAccess::AllUsers)?)?;
    let chain_pem = read_file(INTERMEDIATE_CHAIN_FILE, FileAccess::AllUsers)?;
    let chain_result: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(chain_pem.as_bytes()).take(MAX_CERTIFICATES_READ).collect();
    let mut chain = chain_result.map_err(|_| AuthorityError::InvalidIntermediate)?;
    // Some CAs append the root, which members have already.
    chain.retain(|der| !external_roots.certificates().contains(der));
    // A chain of as many certificates as are read is too long, and therefore has no valid first certificate.
    let first_certificate = chain.first().filter(|_| chain.len() < MAX_CERTIFICATES_READ);
    let intermediate = first_certificate
        .filter(|der| may_sign_certificates(der))
        .cloned()
        .ok_or(AuthorityError::InvalidIntermediate)?;
    // Signed certificates are valid only while all certificates of the chain are valid.
    let mut not_before = UNIX_EPOCH;
    let mut not_after: Option<SystemTime> = None;
    for (index, der) in chain.iter().enumerate() {
        let (_, certificate) = x509_parser::parse_x509_certificate(der)
            .map_err(|_| AuthorityError::InvalidIntermediate)?;
        if index == 0 && *certificate.public_key().subject_public_key.data != *key.public_key() {
            return Err(AuthorityError::InvalidIntermediate);
        }
        // A start before 1970 does not restrict the authority. An expiry that the system cannot represent counts as expired.
        let validity_start =
            to_system_time(certificate.validity().not_before).unwrap_or(UNIX_EPOCH);
        not_before = not_before.max(validity_start);
        let expiry = to_system_time(certificate.validity().not_after).unwrap_or(UNIX_EPOCH);
        not_after = Some(not_after.map_or(expiry, |earliest| earliest.min(expiry)));
    }
    let issuer = Issuer::from_ca_cert_der(&intermediate, key.into_pair());
    // Members trust this intermediate, and no other intermediate of the external root.
    let trusted_certificates = external_roots
        .certificates()
        .iter()
        .filter(|der| is_self_issued(der))
        .chain([&intermediate]);
    let roots = Roots::new(trusted_certificates.cloned().collect())?;
    let authority = Authority {
        trust_domain: trust_domain.clone(),
        issuer: issuer.map_err(AuthorityError::Encoding)?,
        signing_certificate: intermediate,
        chain,
        roots,
        former_intermediates: Vec::new(),
        cross_certificates: Vec::new(),
        not_before,
        not_after: not_after.ok_or(AuthorityError::InvalidIntermediate)?,
    };
    check_signing(&authority, &external_roots, now)?;
    Ok(authority)
}

/// Signs a certificate and verifies it as a peer would, so that constraints in the chain are reported now and not
/// by members.
fn check_signing(
    authority: &Authority,
    external_roots: &Roots,
    now: SystemTime,
) -> Result<(), AuthorityError> {
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.certificate_request());
    let request = request.map_err(|_| AuthorityError::InvalidIntermediate)?;
    let id = control_id(&authority.trust_domain);
    let subject = CertificateSubject { id: &id, workload: None, instance: None };
    let lifetime = MIN_LEAF_LIFETIME.max(CHECK_LIFETIME);
    let bundle = authority.sign(&request, subject, lifetime, now)?;
    // Members of older releases trust the external root only, and must accept the certificate as well.
    let unusable = |error| AuthorityError::UnusableIntermediate(Box::new(error));
    verify_with_full_store(&bundle, external_roots)
        .map_err(|error| unusable(CredentialError::UntrustedChain(error)))?;
    Credential::new(key, bundle)
        .map_err(|error| AuthorityError::UnusableIntermediate(Box::new(error)))?;
    Ok(())
}

/// Maximum number of certificates read: the intermediate, two of its issuers, and one more certificate, which reveals a
/// chain that is too long.
const MAX_CERTIFICATES_READ: usize = 4;
/// The lifetime of the certificate that checks an authority: far shorter than the lifetime of any authority.
const CHECK_LIFETIME: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyUsagePurpose};

    use super::*;
    use crate::credential::CertificateBundle;
    use crate::pem::{CERTIFICATE_LABEL, write_pem};
    use crate::testing::{TestAuthority, now, run_handshake, workload_id};
    use crate::tls::{client_config, server_config};

    /// Returns a directory with the files of an intermediate that `root_authority` has signed, as cert-manager writes them.
    /// `edit` changes the parameters of the intermediate's certificate.
    fn intermediate_files(
        root_authority: &TestAuthority,
        edit: impl FnOnce(&mut CertificateParams),
    ) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let (chain, key) = root_authority.forge_certificate(|parameters| {
            parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            parameters.extended_key_usages.clear();
            parameters.subject_alt_names.clear();
            edit(parameters);
        });
        let mut certificate_pem = String::new();
        write_pem(&mut certificate_pem, CERTIFICATE_LABEL, &chain[0]);
        fs::write(directory.path().join(INTERMEDIATE_CHAIN_FILE), certificate_pem).unwrap();
        let roots_pem = root_authority.authority.roots().to_pem();
        fs::write(directory.path().join(EXTERNAL_ROOTS_FILE), roots_pem).unwrap();
        let key_path = directory.path().join(INTERMEDIATE_KEY_FILE);
        fs::write(&key_path, key.to_pem()).unwrap();
        fs::set_permissions(&key_path, fs::Permissions::from_mode(0o600)).unwrap();
        directory
    }

    fn open(directory: &Path) -> Result<Authority, AuthorityError> {
        let domain = TrustDomain::new("cluster.local").unwrap();
        AuthoritySource::Intermediate(directory.to_owned()).open(&domain, now())
    }

    /// Returns the key of the new member `ratings`, and the certificate that the authority issues for the key.
    fn issue_member(authority: &Authority) -> (PrivateKey, CertificateBundle) {
        let id = workload_id("ratings");
        let key = PrivateKey::generate();
        let request = CertificateRequest::from_der(&key.certificate_request()).unwrap();
        let subject = CertificateSubject { id: &id, workload: None, instance: None };
        let issued = authority.sign(&request, subject, Duration::from_secs(600), now());
        (key, issued.unwrap())
    }

    #[test]
    fn members_trust_the_intermediate_that_signs_them() {
        let root_authority = TestAuthority::new("cluster.local");
        let directory = intermediate_files(&root_authority, |_| {});
        let authority = open(directory.path()).unwrap();
        let (key, issued) = issue_member(&authority);
        assert_eq!(issued.chain.len(), 2, "the chain contains the intermediate");
        let trusted_roots = issued.roots.certificates();
        assert_eq!(trusted_roots.first(), root_authority.authority.roots().certificates().first());
        assert_eq!(trusted_roots.get(1), issued.chain.get(1), "members trust the intermediate");
        let credential = Credential::new(key, issued).unwrap();
        assert_eq!(credential.ca_generation(), authority.ca_generation());
        assert!(authority == open(directory.path()).unwrap());
    }

    /// Returns the credential of the member `ratings`, signed by the authority. If `roots` is `Some`, the member trusts these
    /// roots instead of the authority's.
    fn member_credential(authority: &Authority, roots: Option<&Roots>) -> Credential {
        let (key, mut issued) = issue_member(authority);
        if let Some(roots) = roots {
            issued.roots = roots.clone();
        }
        Credential::new(key, issued).unwrap()
    }

    /// Returns the error of the client and the error of the server in a handshake, `None` for success. The client expects
    /// the server `ratings`.
    fn handshake_errors(
        client: &Credential,
        server: &Credential,
    ) -> (Option<String>, Option<String>) {
        let config = client_config(client, &workload_id("ratings"), &[b"x"]).unwrap();
        let outcome = run_handshake(&config, &server_config(server, &[b"x"]).unwrap());
        let to_text = |error: rustls::Error| error.to_string();
        (outcome.client.err().map(to_text), outcome.server.err().map(to_text))
    }

    #[test]
    fn certificates_of_another_intermediate_are_rejected() {
        let root_authority = TestAuthority::new("cluster.local");
        let [own_directory, other_directory] =
            [(); 2].map(|()| intermediate_files(&root_authority, |_| {}));
        let own = open(own_directory.path()).unwrap();
        let other = open(other_directory.path()).unwrap();
        let member = member_credential(&own, None);
        // The forged credential trusts both intermediates, so that only the member can reject its peer.
        let merged_roots = own.roots().merge_with(&other.roots()).unwrap();
        let forged = member_credential(&other, Some(&merged_roots));
        let (client, server) = handshake_errors(&member, &forged);
        assert!(client.is_some_and(|error| error.contains("OtherIssuer")), "the server is forged");
        assert_eq!(server.filter(|error| error.contains("OtherIssuer")), None);
        let (_, server) = handshake_errors(&forged, &member);
        assert!(server.is_some_and(|error| error.contains("OtherIssuer")), "the client is forged");
        assert_eq!(handshake_errors(&member, &member_credential(&own, None)), (None, None));
        // The root itself is not accepted either.
        let root_member = member_credential(&root_authority.authority, None);
        assert!(
            handshake_errors(&root_member, &member).1.is_some()
                && handshake_errors(&member, &root_member).0.is_some()
        );
    }

    #[test]
    fn members_of_consecutive_intermediates_trust_each_other() {
        let root_authority = TestAuthority::new("cluster.local");
        let dirs = [(); 3].map(|()| intermediate_files(&root_authority, |_| {}));
        let [first, second, third] =
            dirs.each_ref().map(|directory| open(directory.path()).unwrap());
        let first_member = member_credential(&first, None);
        let second = second.as_successor_of(&first, now());
        let second_member = member_credential(&second, None);
        assert_ne!(first_member.ca_generation(), second_member.ca_generation());
        for (client, server) in [
            (&first_member, &second_member),
            (&second_member, &first_member),
            (&second_member, &second_member),
        ] {
            assert_eq!(handshake_errors(client, server), (None, None));
        }
        // Reopening changes nothing.
        let reopened = open(dirs[1].path()).unwrap().as_successor_of(&second, now());
        assert!(reopened == second);
        let latest = member_credential(&third.as_successor_of(&second, now()), None);
        for (client, server) in
            [(&first_member, &latest), (&latest, &second_member), (&latest, &latest)]
        {
            assert_eq!(handshake_errors(client, server), (None, None));
        }
    }

    /// Adds a root to the external CA.
    fn add_root(directory: &Path) {
        let other = TestAuthority::new("cluster.local");
        let path = directory.join(EXTERNAL_ROOTS_FILE);
        let mut pem = fs::read_to_string(&path).unwrap();
        pem.push_str(&other.authority.roots().to_pem());
        fs::write(&path, pem).unwrap();
    }

    #[test]
    fn the_latest_intermediate_stays_trusted_next_to_many_roots() {
        let root_authority = TestAuthority::new("cluster.local");
        let dirs = [(); 3].map(|()| intermediate_files(&root_authority, |_| {}));
        // The last CA has 14 roots, which leaves room for its intermediate and for one of the two former ones.
        for _ in 0..13 {
            add_root(dirs[2].path());
        }
        let [first, second, third] =
            dirs.each_ref().map(|directory| open(directory.path()).unwrap());
        let second = second.as_successor_of(&first, now());
        let second_member = member_credential(&second, None);
        let third = third.as_successor_of(&second, now());
        assert_eq!(third.roots().certificates().len(), 16);
        let third_member = member_credential(&third, None);
        assert_eq!(handshake_errors(&second_member, &third_member), (None, None));
        assert_eq!(handshake_errors(&third_member, &second_member), (None, None));
        assert!(handshake_errors(&member_credential(&first, None), &third_member).1.is_some());
    }

    #[test]
    fn a_restart_restores_the_trusted_intermediates() {
        let root_authority = TestAuthority::new("cluster.local");
        let (former, new) = (
            intermediate_files(&root_authority, |_| {}),
            intermediate_files(&root_authority, |_| {}),
        );
        let file = former.path().join("kept/issuers.pem");
        let first =
            open(former.path()).unwrap().restore_trusted_intermediates(&file, now()).unwrap();
        let first_member = member_credential(&first, None);
        let next = open(new.path()).unwrap().as_successor_of(&first, now());
        next.save_trusted_intermediates(&file).unwrap();
        let restarted =
            open(new.path()).unwrap().restore_trusted_intermediates(&file, now()).unwrap();
        assert!(restarted == next);
        let restarted_member = member_credential(&restarted, None);
        assert_eq!(handshake_errors(&first_member, &restarted_member), (None, None));
        assert_eq!(handshake_errors(&restarted_member, &first_member), (None, None));
        // A damaged file adds no trust and is not fatal.
        fs::write(&file, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let restored =
            open(new.path()).unwrap().restore_trusted_intermediates(&file, now()).unwrap();
        assert_eq!(restored.roots().certificates().len(), 2);
    }

    #[test]
    fn an_intermediate_signs_as_soon_as_it_is_valid() {
        let root_authority = TestAuthority::new("cluster.local");
        let directory =
            intermediate_files(&root_authority, |parameters| parameters.not_before = now().into());
        let (key, issued) = issue_member(&open(directory.path()).unwrap());
        assert!(issued.not_before + Duration::from_secs(1) > now() - Duration::from_secs(1));
        Credential::new(key, issued).unwrap();
    }

    #[test]
    fn an_intermediate_with_name_constraints_signs_no_dns_names() {
        let names = |authority: &Authority| {
            let (_, issued) = issue_member(authority);
            let (_, leaf) = x509_parser::parse_x509_certificate(&issued.chain[0]).unwrap();
            let names = leaf.subject_alternative_name().unwrap().unwrap();
            names.value.general_names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let root_authority = TestAuthority::new("cluster.local");
        let unconstrained = intermediate_files(&root_authority, |_| {});
        let unconstrained_names = names(&open(unconstrained.path()).unwrap());
        assert_eq!(unconstrained_names.len(), 2, "{unconstrained_names:?}");
        assert!(
            unconstrained_names[1].contains("ratings.bookinfo.cluster.local"),
            "{unconstrained_names:?}"
        );
        let constrained = intermediate_files(&root_authority, |parameters| {
            let permitted = rcgen::GeneralSubtree::DnsName("company.example".to_owned());
            parameters.name_constraints = Some(rcgen::NameConstraints {
                permitted_subtrees: vec![permitted],
                excluded_subtrees: Vec::new(),
            });
        });
        let authority = open(constrained.path()).unwrap();
        assert_eq!(names(&authority).len(), 1);
        let (key, issued) = issue_member(&authority);
        Credential::new(key, issued).unwrap();
    }

    #[test]
    fn a_missing_root_is_created_only_at_startup() {
        let directory = tempfile::tempdir().unwrap();
        let source = AuthoritySource::BuiltIn(directory.path().join("authority"));
        let domain = TrustDomain::new("cluster.local").unwrap();
        assert!(matches!(source.open(&domain, now()), Err(AuthorityError::RootsFileMissing)));
        assert!(!directory.path().join("authority").exists());
        let created = source.open_or_create(&domain, now()).unwrap();
        assert!(created == source.open(&domain, now()).unwrap());
    }

    #[test]
    fn unusable_intermediates_are_rejected_when_opened() {
        let root_authority = TestAuthority::new("cluster.local");
        let mismatched = intermediate_files(&root_authority, |_| {});
        let roots = TestAuthority::new("cluster.local").authority.roots();
        fs::write(mismatched.path().join("ca.crt"), roots.to_pem()).unwrap();
        let error = open(mismatched.path()).unwrap_err();
        assert!(matches!(error, AuthorityError::UnusableIntermediate(_)), "{error}");
        let leaf =
            intermediate_files(&root_authority, |parameters| parameters.is_ca = IsCa::ExplicitNoCa);
        assert!(matches!(open(leaf.path()), Err(AuthorityError::InvalidIntermediate)));
        let (first, second) = (
            intermediate_files(&root_authority, |_| {}),
            intermediate_files(&root_authority, |_| {}),
        );
        fs::copy(first.path().join("tls.key"), second.path().join("tls.key")).unwrap();
        assert!(matches!(open(second.path()), Err(AuthorityError::InvalidIntermediate)));
        fs::write(second.path().join("tls.key"), "").unwrap();
        let error = open(second.path()).unwrap_err().to_string();
        assert!(error.contains("`tls.key` contains no P-256 private key"), "{error}");
        fs::remove_file(first.path().join("ca.crt")).unwrap();
        let error = open(first.path()).unwrap_err().to_string();
        assert!(error.contains("`ca.crt` does not exist"), "{error}");
    }
}
