//! Issues and checks the certificates of external principals: clients outside the mesh, with a certificate and key issued by
//! the mesh.
//!
//! The certificates of external principals are valid for clients only and have no SPIFFE id. Therefore no TLS
//! configuration accepts them as certificates of members, and no server can use them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_model::{ExternalPrincipalId, Name, SubjectScope};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use x509_parser::extensions::GeneralName;

use crate::authority::{Authority, AuthorityError};
use crate::credential::CLOCK_SKEW;
use crate::csr::CertificateRequest;
use crate::key::PrivateKey;
use crate::pem::{CERTIFICATE_LABEL, write_pem};
use crate::provider::crypto_provider;
use crate::roots::Roots;
use crate::verify::{VerifyError, sole_uri, to_system_time};

/// The subject of an external principal's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalSubject<'a> {
    /// The id of the external principal: the location in which its certificate is stored.
    pub id: &'a ExternalPrincipalId,
    /// The names of the external principal; not empty.
    pub names: &'a [Name],
    /// The namespace that requests the certificate, or the whole mesh. It restricts the names.
    pub issuing_scope: SubjectScope<'a>,
}

/// A verified peer that is an external principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalPrincipal {
    /// The id in its certificate.
    pub id: ExternalPrincipalId,
    /// The names in its certificate; not empty.
    pub names: Vec<Name>,
    /// The start of its certificate's validity.
    pub not_before: SystemTime,
    /// The end of its certificate's validity.
    pub not_after: SystemTime,
}

/// Returns the external principal of an established session from its certificate, for a session in which
/// [`crate::session_peer`] finds no member.
///
/// # Errors
/// [`VerifyError`] if the certificate has expired, or is not an external principal's.
pub fn external_principal(
    certificate: &CertificateDer<'_>,
    now: SystemTime,
) -> Result<ExternalPrincipal, VerifyError> {
    let principal = ExternalPrincipal::read(certificate)?;
    if now >= principal.not_after {
        return Err(VerifyError::Expired);
    }
    Ok(principal)
}

impl ExternalPrincipal {
    /// Reads the holder from an end-entity certificate, without verifying it.
    pub(crate) fn read(der: &CertificateDer<'_>) -> Result<Self, VerifyError> {
        let (trailing_bytes, certificate) =
            x509_parser::parse_x509_certificate(der).map_err(|_| VerifyError::Malformed)?;
        if !trailing_bytes.is_empty() {
            return Err(VerifyError::Malformed);
        }
        let id = sole_uri(&certificate)?.parse().map_err(VerifyError::InvalidUri)?;
        let extension =
            certificate.subject_alternative_name().map_err(|_| VerifyError::Malformed)?;
        let general_names = extension.iter().flat_map(|extension| &extension.value.general_names);
        let dns_names = general_names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(Name::new(name)),
            _ => None,
        });
        let names: Vec<Name> =
            dns_names.collect::<Result<_, _>>().map_err(|_| VerifyError::ExternalPrincipalNames)?;
        if names.is_empty() {
            return Err(VerifyError::ExternalPrincipalNames);
        }
        let validity = certificate.validity();
        Ok(Self {
            id,
            names,
            not_before: to_system_time(validity.not_before)?,
            not_after: to_system_time(validity.not_after)?,
        })
    }
}

/// The key and certificate of an external principal, and the mesh's roots, as PEM.
pub struct ExternalCertificate {
    key: PrivateKey,
    chain_pem: String,
    roots_pem: String,
    not_after: SystemTime,
}

impl ExternalCertificate {
    /// Generates a key and signs it, valid for `lifetime` from `now`.
    ///
    /// # Errors
    /// [`AuthorityError`] if a name is invalid or its issuing namespace may not use it, the lifetime is out of bounds,
    /// the signing CA has name constraints that exclude the name, or the root has expired.
    pub fn issue(
        authority: &Authority,
        subject: ExternalSubject<'_>,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let key = PrivateKey::generate();
        // This does not fail: the request was just made with the key.
        let request = CertificateRequest::from_der(&key.certificate_request())
            .map_err(|_| AuthorityError::NoRandomness)?;
        let bundle = authority.sign_external_principal(&request, subject, lifetime, now)?;
        // Name constraints of the issuing certificates are detected here, not by the client.
        verify_as_server(&bundle.chain, &bundle.roots, bundle.not_before)
            .map_err(AuthorityError::ExternalPrincipalConstraints)?;
        let mut chain_pem = String::new();
        for certificate in &bundle.chain {
            write_pem(&mut chain_pem, CERTIFICATE_LABEL, certificate);
        }
        Ok(Self { key, chain_pem, roots_pem: bundle.roots.to_pem(), not_after: bundle.not_after })
    }

    /// Returns the private key as PKCS #8, for its storage location only.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    /// Returns the certificate and the chain to a root.
    #[must_use]
    pub fn chain_pem(&self) -> &str {
        &self.chain_pem
    }

    /// Returns the roots that the external principal trusts.
    #[must_use]
    pub fn roots_pem(&self) -> &str {
        &self.roots_pem
    }

    /// Returns the end of the certificate's validity.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }
}

/// Omits the key.
impl fmt::Debug for ExternalCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalCertificate")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// The key, certificate and roots of an external principal as found in storage, such as a Secret, which another program may
/// have changed.
#[derive(Clone, Copy)]
pub struct StoredCertificate<'a> {
    /// The private key.
    pub key_pem: &'a str,
    /// The certificate and the chain to a root.
    pub chain_pem: &'a str,
    /// The roots that the external principal trusts.
    pub roots_pem: &'a str,
}

impl StoredCertificate<'_> {
    /// Returns the time at which the certificate must be renewed: after two thirds of its lifetime, or of `lifetime` if
    /// that is shorter, so that an outage of a third of the lifetime is tolerated. `None` if it must be renewed now, because
    /// `authority` would issue another certificate for `subject`.
    #[must_use]
    pub fn renewal_time(
        &self,
        authority: &Authority,
        subject: ExternalSubject<'_>,
        lifetime: Duration,
    ) -> Option<SystemTime> {
        let roots = authority.roots();
        let certificates = CertificateDer::pem_slice_iter(self.chain_pem.as_bytes());
        let chain: Vec<CertificateDer<'static>> =
            certificates.take(MAX_CERTIFICATES_READ).collect::<Result<_, _>>().ok()?;
        let leaf = chain.first()?;
        let external_principal = ExternalPrincipal::read(leaf).ok()?;
        let key = PrivateKey::from_pem(self.key_pem).ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(leaf).ok()?;
        let has_matching_key =
            *certificate.public_key().subject_public_key.data == *key.public_key();
        let is_issued_by_authority = authority.roots_for_chain(&chain).is_some_and(|roots| {
            verify_as_server(&chain, &roots, external_principal.not_before).is_ok()
        });
        let is_current = self.roots_pem == roots.to_pem()
            && external_principal.id == *subject.id
            && external_principal.names == subject.names
            && has_matching_key
            && is_issued_by_authority;
        let issue_time =
            (external_principal.not_before + CLOCK_SKEW).min(external_principal.not_after);
        let effective_lifetime = external_principal
            .not_after
            .duration_since(issue_time)
            .unwrap_or_default()
            .min(lifetime);
        is_current.then(|| issue_time + effective_lifetime.mul_f64(2.0 / 3.0))
    }
}

/// Verifies the chain at this time, as a server that accepts external principals does.
fn verify_as_server(
    chain: &[CertificateDer<'static>],
    roots: &Roots,
    verification_time: SystemTime,
) -> Result<(), rustls::Error> {
    let Some((leaf, intermediates)) = chain.split_first() else {
        return Err(rustls::Error::NoCertificatesPresented);
    };
    let store = Arc::clone(roots.member_store());
    let verifier = WebPkiClientVerifier::builder_with_provider(store, crypto_provider()).build();
    let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
    let since_epoch = verification_time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_time = UnixTime::since_unix_epoch(since_epoch);
    verifier.verify_client_cert(leaf, intermediates, unix_time).map(drop)
}

/// Maximum number of certificates read from a chain; authorities issue shorter chains. A longer chain is truncated and
/// therefore counts as outdated.
const MAX_CERTIFICATES_READ: usize = 8;

#[cfg(test)]
mod tests;
