//! Implements the certificate authority of the webhook, which issues only the webhook's own certificates. No
//! I/O.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ServerConfig, version};
use time::OffsetDateTime;

/// The certificate authority of the webhook, as stored in the Secret: its key, its certificate, and the
/// certificate of the previous authority.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct WebhookAuthority {
    pub(super) key: String,
    /// The certificate of this authority as PEM, followed by the certificate of the previous authority, which
    /// may still be in use.
    pub(super) certificates: String,
}

impl fmt::Debug for WebhookAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// The reason that the webhook has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum WebhookAuthorityError {
    /// The content of the Secret is not an authority.
    #[error(
        "the Secret leno-webhook does not contain a valid CA: {0}; delete it to have a control \
         plane create a new one"
    )]
    Unreadable(&'static str),
    /// A certificate cannot be created.
    #[error("cannot create a certificate for the webhook")]
    Encoding(#[from] rcgen::Error),
    /// TLS rejects the certificate.
    #[error("cannot use a certificate for the webhook")]
    Tls(#[from] rustls::Error),
}

impl WebhookAuthority {
    /// Generates a new authority, which keeps the certificate of `previous`.
    pub(super) fn generate(
        previous: Option<&Self>,
        now: SystemTime,
    ) -> Result<Self, WebhookAuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut parameters =
            certificate_parameters("leno webhook authority", now, AUTHORITY_LIFETIME)?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let mut certificates = parameters.self_signed(&key)?.pem();
        if let Some(previous_certificate) =
            previous.and_then(|previous| first_certificate(&previous.certificates))
        {
            certificates.push_str(previous_certificate);
        }
        Ok(Self { key: key.serialize_pem(), certificates })
    }

    /// Returns true if the authority is valid long enough not to be replaced yet.
    pub(super) fn is_fresh(&self, now: SystemTime) -> bool {
        self.not_after().is_ok_and(|not_after| not_after > now + MIN_AUTHORITY_REMAINING)
    }

    fn not_after(&self) -> Result<SystemTime, WebhookAuthorityError> {
        let der_result = CertificateDer::from_pem_slice(self.certificates.as_bytes());
        let der =
            der_result.map_err(|_| WebhookAuthorityError::Unreadable("there is no certificate"))?;
        let parse_result = x509_parser::parse_x509_certificate(&der);
        let (_, certificate) = parse_result
            .map_err(|_| WebhookAuthorityError::Unreadable("the certificate is malformed"))?;
        // A time before 1970 counts as expired.
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
        Ok(UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// Creates a TLS configuration with a new certificate for these DNS names. With a `client_verifier`,
    /// clients that it does not accept are rejected.
    pub(super) fn server_config(
        &self,
        dns_names: Vec<String>,
        client_verifier: Option<Arc<dyn ClientCertVerifier>>,
        now: SystemTime,
    ) -> Result<ServerConfig, WebhookAuthorityError> {
        let authority_key =
            KeyPair::from_pkcs8_pem_and_sign_algo(&self.key, &PKCS_ECDSA_P256_SHA256)
                .map_err(|_| WebhookAuthorityError::Unreadable("there is no key"))?;
        let issuer = Issuer::from_ca_cert_pem(&self.certificates, authority_key)
            .map_err(|_| WebhookAuthorityError::Unreadable("there is no certificate"))?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut parameters = certificate_parameters("leno webhook", now, SERVING_LIFETIME)?;
        parameters.subject_alt_names = CertificateParams::new(dns_names)?.subject_alt_names;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        parameters.use_authority_key_identifier_extension = true;
        let certificate = parameters.signed_by(&key, &issuer)?;
        let client_verifier = client_verifier.unwrap_or_else(WebPkiClientVerifier::no_client_auth);
        let private_key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])?
            .with_client_cert_verifier(client_verifier)
            .with_single_cert(vec![certificate.der().clone()], private_key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificate_parameters(
    name: &str,
    now: SystemTime,
    lifetime: Duration,
) -> Result<CertificateParams, WebhookAuthorityError> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.not_before = OffsetDateTime::from(now - CLOCK_SKEW);
    parameters.not_after = OffsetDateTime::from(now + lifetime);
    Ok(parameters)
}

/// Returns the first certificate of a PEM text; `None` without a certificate.
fn first_certificate(pem: &str) -> Option<&str> {
    let block_end = pem.find(END_CERTIFICATE)? + END_CERTIFICATE.len();
    Some(pem.get(..block_end)?).filter(|block| block.contains("-----BEGIN CERTIFICATE-----"))
}

const END_CERTIFICATE: &str = "-----END CERTIFICATE-----";
/// The lifetime of the authority: as long as a cluster may run unattended.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The remaining lifetime below which the authority is replaced, so that none of its certificates is in use
/// when it expires.
const MIN_AUTHORITY_REMAINING: Duration = Duration::from_secs(365 * 86_400);
/// The lifetime of a listener's certificate.
pub(super) const SERVING_LIFETIME: Duration = Duration::from_secs(90 * 86_400);
/// The tolerated delay of the API server's clock.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    /// Returns true if a client that trusts `bundle` accepts a certificate of `authority` for `name`.
    fn is_trusted(bundle: &str, authority: &WebhookAuthority, name: &str, now: SystemTime) -> bool {
        let mut roots = RootCertStore::empty();
        for der in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(der.unwrap()).unwrap();
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
        let verifier = verifier.build().unwrap();
        let authority_key = KeyPair::from_pem(&authority.key).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&authority.certificates, authority_key).unwrap();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut leaf = certificate_parameters("leaf", now, SERVING_LIFETIME).unwrap();
        leaf.subject_alt_names =
            CertificateParams::new(vec!["a.b.svc".to_owned()]).unwrap().subject_alt_names;
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap());
        verifier.verify_server_cert(leaf.der(), &[], &name, &[], now).is_ok()
    }

    fn test_time() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    #[test]
    fn certificates_have_the_requested_names() {
        let authority = WebhookAuthority::generate(None, test_time()).unwrap();
        assert!(is_trusted(&authority.certificates, &authority, "a.b.svc", test_time()));
        assert!(!is_trusted(&authority.certificates, &authority, "c.b.svc", test_time()));
        assert!(authority.server_config(vec!["a.b.svc".to_owned()], None, test_time()).is_ok());
    }

    #[test]
    fn certificates_of_the_previous_authority_stay_trusted() {
        let first = WebhookAuthority::generate(None, test_time()).unwrap();
        let second = WebhookAuthority::generate(Some(&first), test_time()).unwrap();
        for authority in [&first, &second] {
            assert!(is_trusted(&second.certificates, authority, "a.b.svc", test_time()));
        }
        let third = WebhookAuthority::generate(Some(&second), test_time()).unwrap();
        assert!(!is_trusted(&third.certificates, &first, "a.b.svc", test_time()));
    }

    #[test]
    fn an_authority_is_replaced_a_year_before_it_expires() {
        let authority = WebhookAuthority::generate(None, test_time()).unwrap();
        let years = |years: u64| test_time() + Duration::from_secs(years * 365 * 86_400 + 1);
        assert!(authority.is_fresh(years(8)));
        assert!(!authority.is_fresh(years(9)));
        let broken = WebhookAuthority { certificates: String::new(), ..authority };
        assert!(!broken.is_fresh(test_time()));
    }
}
