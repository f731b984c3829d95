//! Builds the TLS configuration with which a gateway terminates TLS of external clients: the server name selects the
//! certificate.

use std::fmt;
use std::sync::Arc;

use leno_model::{GatewayCertificate, GatewayListener, HostPattern, Name};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::tls::{TlsError, owned_protocols};

/// Builds the configuration of a gateway port that terminates TLS: TLS 1.2 and 1.3, without client
/// certificates. The listener with the most specific match for the requested server name provides the certificate;
/// without a match, the handshake fails.
///
/// Unusable certificates are skipped, and returned with the configuration; the other certificates are served.
///
/// # Errors
/// [`TlsError`] if the system has no randomness.
pub fn gateway_server_config(
    listeners: &[GatewayListener],
    alpn_protocols: &[&[u8]],
) -> Result<(Arc<ServerConfig>, Vec<UnusableCertificate>), TlsError> {
    let provider = Arc::new(default_provider());
    let (mut listener_certificates, mut unusable_certificates) = (Vec::new(), Vec::new());
    for listener in listeners {
        let certified_keys = listener.certificates.iter().filter_map(|certificate| {
            let cause = match parse_certificate(certificate, &provider) {
                Ok(key) => return Some(key),
                Err(cause) => cause,
            };
            unusable_certificates
                .push(UnusableCertificate { listener: listener.name.clone(), cause });
            None
        });
        listener_certificates.push(ListenerCertificates {
            hostname: listener.hostname.clone(),
            keys: certified_keys.collect(),
        });
    }
    // Sorted by descending specificity, so that the first match is the most specific one.
    listener_certificates
        .sort_by_key(|listener| listener.hostname.as_ref().map(HostPattern::specificity));
    listener_certificates.reverse();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(CertificatesByHost(listener_certificates)));
    config.ticketer = Ticketer::new()?;
    // Early data can be replayed (RFC 8446 §8).
    config.max_early_data_size = 0;
    config.alpn_protocols = owned_protocols(alpn_protocols);
    Ok((Arc::new(config), unusable_certificates))
}

/// An unusable certificate of a listener.
#[derive(Debug, thiserror::Error)]
#[error(
    "a certificate of the listener `{listener}` cannot be used ({cause}): its Secret needs a \
     certificate chain in `tls.crt` and the matching key in `tls.key`, both PEM"
)]
pub struct UnusableCertificate {
    /// The name of the listener.
    pub listener: Name,
    /// The reason that the certificate cannot be used.
    #[source]
    cause: CertificateProblem,
}

/// The reason that a listener's certificate cannot be used.
#[derive(Debug, thiserror::Error)]
enum CertificateProblem {
    #[error("it is not PEM: {0}")]
    InvalidPem(#[from] pem::Error),
    #[error("it has no certificate")]
    NoCertificate,
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
}

/// Parses the chain and the key of a listener's certificate, and checks that they match.
fn parse_certificate(
    certificate: &GatewayCertificate,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, CertificateProblem> {
    let certificates = CertificateDer::pem_slice_iter(certificate.chain.as_bytes());
    let chain = certificates.collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() {
        return Err(CertificateProblem::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes())?;
    // `from_der` rejects a key that does not match the certificate.
    Ok(Arc::new(CertifiedKey::from_der(chain, key, provider)?))
}

/// The certificates of one listener.
struct ListenerCertificates {
    /// The host names that the listener serves; all if `None`.
    hostname: Option<HostPattern>,
    /// The usable certificates with their keys, in the order of the listener.
    keys: Vec<Arc<CertifiedKey>>,
}

/// Selects the certificate of a handshake by its server name; the most specific listener is first.
struct CertificatesByHost(Vec<ListenerCertificates>);

/// Omits the keys.
impl fmt::Debug for CertificatesByHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CertificatesByHost").field(&self.0.len()).finish()
    }
}

impl ResolvesServerCert for CertificatesByHost {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let server_name = hello.server_name().unwrap_or_default().to_ascii_lowercase();
        let matches_name = |listener: &&ListenerCertificates| {
            listener.hostname.as_ref().is_none_or(|hostname| hostname.matches_host(&server_name))
        };
        let keys = &self.0.iter().find(matches_name)?.keys;
        let signature_schemes = hello.signature_schemes();
        let compatible_key =
            keys.iter().find(|key| key.key.choose_scheme(signature_schemes).is_some());
        compatible_key.or(keys.first()).cloned()
    }
}
