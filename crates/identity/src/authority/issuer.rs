//! The source of an authority: its own directory, or the files of an external CA.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_model::TrustDomain;
use rcgen::Issuer;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::{Authority, AuthorityError, CertificateSubject, LEAF_LIFETIME_MIN};
use crate::credential::{Credential, CredentialError, verify_unpinned};
use crate::directory::check_if_exists;
use crate::disk::{self, FileReaders};
use crate::key::PrivateKey;
use crate::request::CertificateRequest;
use crate::roots::{Roots, is_self_issued, may_sign_certificates};
use crate::tls::control_id;
use crate::verify::to_system_time;

/// The source of an authority. It can be opened repeatedly to detect changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthoritySource {
    /// A built-in root, created if missing: `ca.key` and `ca.pem`.
    Own(PathBuf),
    /// An intermediate authority that is issued and renewed externally: `tls.key`, `tls.crt` (its certificate
    /// first) and `ca.crt` (the trusted roots).
    Issuer(PathBuf),
}

impl AuthoritySource {
    /// Opens the current authority. A missing built-in root is not recreated: a new root would separate its
    /// members from all others.
    ///
    /// # Errors
    /// [`AuthorityError`] if it cannot be used; an authority opened before is not affected.
    pub fn open(
        &self,
        trust_domain: &TrustDomain,
        now: SystemTime,
    ) -> Result<Authority, AuthorityError> {
        match self {
            Self::Own(dir) => {
                check_if_exists(dir)?;
                Authority::open(dir, trust_domain, now)
            }
            Self::Issuer(dir) => open_issuer(dir, trust_domain, now),
        }
    }

    /// As [`Self::open`], at the start of a control plane: creates a missing built-in root.
    ///
    /// # Errors
    /// [`AuthorityError`] if it cannot be used or created.
    pub fn open_or_create(
        &self,
        trust_domain: &TrustDomain,
        now: SystemTime,
    ) -> Result<Authority, AuthorityError> {
        match self {
            Self::Own(dir) => Authority::open_or_create(dir, trust_domain, now),
            Self::Issuer(_) => self.open(trust_domain, now),
        }
    }
}

fn open_issuer(
    dir: &Path,
    trust_domain: &TrustDomain,
    now: SystemTime,
) -> Result<Authority, AuthorityError> {
    let read = |file, readers| {
        disk::read_of_user(&dir.join(file), readers)?.ok_or(AuthorityError::IssuerMissing { file })
    };
    let key = PrivateKey::from_pem(&read("tls.key", FileReaders::Owner)?);
    let key = key.map_err(AuthorityError::IssuerKey)?;
    let roots = Roots::from_pem(&read("ca.crt", FileReaders::Everyone)?)?;
    let text = read("tls.crt", FileReaders::Everyone)?;
    let certificates: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(text.as_bytes()).take(CERTIFICATES_MAX).collect();
    let mut chain = certificates.map_err(|_| AuthorityError::Issuer)?;
    // Some CAs append the root; members have it already.
    chain.retain(|certificate| !roots.certificates().contains(certificate));
    let signer = chain.first().filter(|_| chain.len() < CERTIFICATES_MAX);
    let signer = signer.filter(|signer| may_sign_certificates(signer)).cloned();
    let signer = signer.ok_or(AuthorityError::Issuer)?;
    let mut not_before = UNIX_EPOCH;
    let mut not_after: Option<SystemTime> = None;
    for (index, der) in chain.iter().enumerate() {
        let parsed = x509_parser::parse_x509_certificate(der).map_err(|_| AuthorityError::Issuer);
        let (_, certificate) = parsed?;
        if index == 0 && *certificate.public_key().subject_public_key.data != *key.public_key() {
            return Err(AuthorityError::Issuer);
        }
        let begin = to_system_time(certificate.validity().not_before).unwrap_or(UNIX_EPOCH);
        not_before = not_before.max(begin);
        let end = to_system_time(certificate.validity().not_after).unwrap_or(UNIX_EPOCH);
        not_after = Some(not_after.map_or(end, |before| before.min(end)));
    }
    let issuer = Issuer::from_ca_cert_der(&signer, key.into_pair());
    let company = roots;
    // Members trust this intermediate, and no other one of the company.
    let all = company.certificates().iter().filter(|der| is_self_issued(der)).chain([&signer]);
    let roots = Roots::new(all.cloned().collect())?;
    let authority = Authority {
        trust_domain: trust_domain.clone(),
        issuer: issuer.map_err(AuthorityError::Encoding)?,
        signer,
        chain,
        roots,
        pins: Vec::new(),
        cross_certificates: Vec::new(),
        not_before,
        not_after: not_after.ok_or(AuthorityError::Issuer)?,
    };
    check_signing(&authority, &company, now)?;
    Ok(authority)
}

/// Signs a certificate and verifies it as a peer would, so that constraints in the chain are found now rather
/// than by members.
fn check_signing(
    authority: &Authority,
    company: &Roots,
    now: SystemTime,
) -> Result<(), AuthorityError> {
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.certificate_request());
    let request = request.map_err(|_| AuthorityError::Issuer)?;
    let id = control_id(&authority.trust_domain);
    let subject = CertificateSubject { id: &id, workload: None, instance: None };
    let issued = authority.sign(&request, subject, LEAF_LIFETIME_MIN.max(PROOF), now)?;
    // Members of older releases trust only the company's root, and must accept the certificate too.
    let useless = |error| AuthorityError::IssuerUseless(Box::new(error));
    verify_unpinned(&issued, company).map_err(|error| useless(CredentialError::Chain(error)))?;
    Credential::new(key, issued).map_err(|error| AuthorityError::IssuerUseless(Box::new(error)))?;
    Ok(())
}

/// One more than allowed: the signer and two certificates above it.
const CERTIFICATES_MAX: usize = 4;
/// Far shorter than the lifetime of any authority.
const PROOF: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyUsagePurpose};

    use super::*;
    use crate::credential::CertificateBundle;
    use crate::pem::{CERTIFICATE, write};
    use crate::testing::{TestAuthority, now, run_handshake, workload_id};
    use crate::tls::{client_config, server_config};

    /// Returns an intermediate signed by `fixture`, in the files that cert-manager writes.
    fn intermediate_files(
        fixture: &TestAuthority,
        edit: impl FnOnce(&mut CertificateParams),
    ) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let (chain, key) = fixture.forge_certificate(|parameters| {
            parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            parameters.extended_key_usages.clear();
            parameters.subject_alt_names.clear();
            edit(parameters);
        });
        let mut text = String::new();
        write(&mut text, CERTIFICATE, &chain[0]);
        fs::write(dir.path().join("tls.crt"), text).unwrap();
        fs::write(dir.path().join("ca.crt"), fixture.authority.roots().to_pem()).unwrap();
        let file = dir.path().join("tls.key");
        fs::write(&file, key.to_pem()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        dir
    }

    fn open(dir: &Path) -> Result<Authority, AuthorityError> {
        let domain = TrustDomain::new("cluster.local").unwrap();
        AuthoritySource::Issuer(dir.to_owned()).open(&domain, now())
    }

    /// Returns a member's key and the certificate issued by an authority.
    fn issue_member(authority: &Authority) -> (PrivateKey, CertificateBundle) {
        let id = workload_id("ratings");
        let key = PrivateKey::generate();
        let request = CertificateRequest::from_der(&key.certificate_request()).unwrap();
        let subject = CertificateSubject { id: &id, workload: None, instance: None };
        let issued = authority.sign(&request, subject, Duration::from_secs(600), now());
        (key, issued.unwrap())
    }

    #[test]
    fn members_of_an_intermediate_and_of_its_root_know_each_other() {
        let company = TestAuthority::new("cluster.local");
        let dir = intermediate_files(&company, |_| {});
        let authority = open(dir.path()).unwrap();
        let (key, issued) = issue_member(&authority);
        assert_eq!(issued.chain.len(), 2, "its own certificate goes along");
        let members = issued.roots.certificates();
        assert_eq!(members.first(), company.authority.roots().certificates().first());
        assert_eq!(members.get(1), issued.chain.get(1), "and members trust it alone");
        let credential = Credential::new(key, issued).unwrap();
        assert_eq!(credential.ca_generation(), authority.ca_generation());
        assert!(authority == open(dir.path()).unwrap());
    }

    /// Returns a credential signed by an authority; its peers also expect `ratings`.
    fn member_credential(authority: &Authority, roots: Option<&Roots>) -> Credential {
        let (key, mut issued) = issue_member(authority);
        if let Some(roots) = roots {
            issued.roots = roots.clone();
        }
        Credential::new(key, issued).unwrap()
    }

    /// Returns the errors of the client and of the server in a handshake, if any.
    fn handshake_errors(
        client: &Credential,
        server: &Credential,
    ) -> (Option<String>, Option<String>) {
        let config = client_config(client, &workload_id("ratings"), &[b"x"]).unwrap();
        let outcome = run_handshake(&config, &server_config(server, &[b"x"]).unwrap());
        let said = |error: rustls::Error| error.to_string();
        (outcome.client.err().map(said), outcome.server.err().map(said))
    }

    #[test]
    fn another_intermediate_of_the_same_root_makes_no_members() {
        let company = TestAuthority::new("cluster.local");
        let (ours, others) =
            (intermediate_files(&company, |_| {}), intermediate_files(&company, |_| {}));
        let (ours, others) = (open(ours.path()).unwrap(), open(others.path()).unwrap());
        let member = member_credential(&ours, None);
        // The forged credential has any name, and trusts us as well.
        let both = ours.roots().merge_with(&others.roots()).unwrap();
        let forged = member_credential(&others, Some(&both));
        let (client, server) = handshake_errors(&member, &forged);
        assert!(client.is_some_and(|it| it.contains("OtherIssuer")), "the server is forged");
        assert_eq!(server.filter(|it| it.contains("OtherIssuer")), None);
        let (_, server) = handshake_errors(&forged, &member);
        assert!(server.is_some_and(|it| it.contains("OtherIssuer")), "the client is forged");
        assert_eq!(handshake_errors(&member, &member_credential(&ours, None)), (None, None));
        // The root itself is not accepted either.
        let by_root = member_credential(&company.authority, None);
        assert!(
            handshake_errors(&by_root, &member).1.is_some()
                && handshake_errors(&member, &by_root).0.is_some()
        );
    }

    #[test]
    fn a_new_intermediate_is_known_to_members_of_the_one_before_and_the_other_way_round() {
        let company = TestAuthority::new("cluster.local");
        let dirs = [(); 3].map(|()| intermediate_files(&company, |_| {}));
        let [one, two, three] = dirs.each_ref().map(|dir| open(dir.path()).unwrap());
        let before = member_credential(&one, None);
        let two = two.succeed_to(&one, now());
        let after = member_credential(&two, None);
        assert_ne!(before.ca_generation(), after.ca_generation());
        for (client, server) in [(&before, &after), (&after, &before), (&after, &after)] {
            assert_eq!(handshake_errors(client, server), (None, None));
        }
        // Reopening changes nothing.
        let again = open(dirs[1].path()).unwrap().succeed_to(&two, now());
        assert!(again == two);
        let last = member_credential(&three.succeed_to(&two, now()), None);
        for (client, server) in [(&before, &last), (&last, &after), (&last, &last)] {
            assert_eq!(handshake_errors(client, server), (None, None));
        }
    }

    #[test]
    fn a_restart_remembers_the_intermediates_that_members_trust() {
        let company = TestAuthority::new("cluster.local");
        let (former, new) =
            (intermediate_files(&company, |_| {}), intermediate_files(&company, |_| {}));
        let kept = former.path().join("kept/issuers.pem");
        let first = open(former.path()).unwrap().restore_trusted(&kept, now()).unwrap();
        let before = member_credential(&first, None);
        let next = open(new.path()).unwrap().succeed_to(&first, now());
        next.save_trusted(&kept).unwrap();
        let restarted = open(new.path()).unwrap().restore_trusted(&kept, now()).unwrap();
        assert!(restarted == next);
        let after = member_credential(&restarted, None);
        assert_eq!(handshake_errors(&before, &after), (None, None));
        assert_eq!(handshake_errors(&after, &before), (None, None));
        // A damaged file adds no trust and is not fatal.
        fs::write(&kept, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let alone = open(new.path()).unwrap().restore_trusted(&kept, now()).unwrap();
        assert_eq!(alone.roots().certificates().len(), 2);
    }

    #[test]
    fn an_intermediate_signs_from_its_first_moment() {
        let company = TestAuthority::new("cluster.local");
        let dir = intermediate_files(&company, |parameters| parameters.not_before = now().into());
        let (key, issued) = issue_member(&open(dir.path()).unwrap());
        assert!(issued.not_before + Duration::from_secs(1) > now() - Duration::from_secs(1));
        Credential::new(key, issued).unwrap();
    }

    #[test]
    fn an_intermediate_that_may_not_use_every_name_signs_none_of_the_dns() {
        let names = |authority: &Authority| {
            let (_, issued) = issue_member(authority);
            let (_, leaf) = x509_parser::parse_x509_certificate(&issued.chain[0]).unwrap();
            let names = leaf.subject_alternative_name().unwrap().unwrap();
            names.value.general_names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let company = TestAuthority::new("cluster.local");
        let free = intermediate_files(&company, |_| {});
        let both = names(&open(free.path()).unwrap());
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both[1].contains("ratings.bookinfo.cluster.local"), "{both:?}");
        let bound = intermediate_files(&company, |parameters| {
            let permitted = rcgen::GeneralSubtree::DnsName("company.example".to_owned());
            parameters.name_constraints = Some(rcgen::NameConstraints {
                permitted_subtrees: vec![permitted],
                excluded_subtrees: Vec::new(),
            });
        });
        let authority = open(bound.path()).unwrap();
        assert_eq!(names(&authority).len(), 1);
        let (key, issued) = issue_member(&authority);
        Credential::new(key, issued).unwrap();
    }

    #[test]
    fn a_root_that_is_gone_is_made_at_a_start_only() {
        let dir = tempfile::tempdir().unwrap();
        let source = AuthoritySource::Own(dir.path().join("authority"));
        let domain = TrustDomain::new("cluster.local").unwrap();
        assert!(matches!(source.open(&domain, now()), Err(AuthorityError::Missing)));
        assert!(!dir.path().join("authority").exists());
        let made = source.open_or_create(&domain, now()).unwrap();
        assert!(made == source.open(&domain, now()).unwrap());
    }

    #[test]
    fn what_would_be_refused_later_is_refused_now() {
        let company = TestAuthority::new("cluster.local");
        let external_client = intermediate_files(&company, |_| {});
        let roots = TestAuthority::new("cluster.local").authority.roots();
        fs::write(external_client.path().join("ca.crt"), roots.to_pem()).unwrap();
        let error = open(external_client.path()).unwrap_err();
        assert!(matches!(error, AuthorityError::IssuerUseless(_)), "{error}");
        let leaf = intermediate_files(&company, |parameters| parameters.is_ca = IsCa::ExplicitNoCa);
        assert!(matches!(open(leaf.path()), Err(AuthorityError::Issuer)));
        let (one, two) =
            (intermediate_files(&company, |_| {}), intermediate_files(&company, |_| {}));
        fs::copy(one.path().join("tls.key"), two.path().join("tls.key")).unwrap();
        assert!(matches!(open(two.path()), Err(AuthorityError::Issuer)));
        fs::write(two.path().join("tls.key"), "").unwrap();
        let error = open(two.path()).unwrap_err().to_string();
        assert!(error.contains("`tls.key` contains no P-256 private key"), "{error}");
        fs::remove_file(one.path().join("ca.crt")).unwrap();
        let error = open(one.path()).unwrap_err().to_string();
        assert!(error.contains("`ca.crt` does not exist"), "{error}");
    }
}
