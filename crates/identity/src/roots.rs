//! Parses and checks the trust bundle: the root certificates that members of the mesh trust. It has several roots during
//! a rotation.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;

use crate::pem::{CERTIFICATE_LABEL, write_pem};

/// At least one trusted root certificate. Cheap to clone.
///
/// If the bundle contains intermediates, only these intermediates are trusted to sign for members: the roots belong to
/// an external CA, and other intermediates of that CA must not issue identities of this mesh. An external client may have a
/// certificate of another intermediate if a policy names the client.
#[derive(Clone)]
pub struct Roots {
    /// All certificates, without duplicates.
    certificates: Arc<[CertificateDer<'static>]>,
    /// The certificates that are trusted to sign for members: the intermediates, or all certificates if none is one.
    member_store: Arc<RootCertStore>,
    /// All certificates; `None` if `member_store` has all of them.
    full_store: Option<Arc<RootCertStore>>,
}

impl Roots {
    /// Checks and stores root certificates; duplicates are removed.
    ///
    /// # Errors
    /// [`RootsError`] if there is no certificate, there are too many, or one of them may not sign certificates.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, RootsError> {
        let mut unique_certificates: Vec<CertificateDer<'static>> = Vec::new();
        let mut full_store = RootCertStore::empty();
        for (index, certificate) in certificates.into_iter().enumerate() {
            if unique_certificates.contains(&certificate) {
                continue;
            }
            if unique_certificates.len() == MAX_ROOTS {
                return Err(RootsError::TooManyRoots);
            }
            let number = index + 1;
            if !may_sign_certificates(&certificate) {
                return Err(RootsError::NotRoot { number });
            }
            full_store.add(certificate.clone()).map_err(|_| RootsError::NotRoot { number })?;
            unique_certificates.push(certificate);
        }
        if unique_certificates.is_empty() {
            return Err(RootsError::Empty);
        }
        let certificates: Arc<[CertificateDer<'static>]> = unique_certificates.into();
        Ok(match intermediate_store(&certificates) {
            None => Self { certificates, member_store: Arc::new(full_store), full_store: None },
            Some(intermediates) => Self {
                certificates,
                member_store: Arc::new(intermediates),
                full_store: Some(Arc::new(full_store)),
            },
        })
    }

    /// Parses all certificates of a PEM text.
    ///
    /// # Errors
    /// [`RootsError`] if the text is not PEM, or for the reasons of [`Roots::new`].
    pub fn from_pem(pem: &str) -> Result<Self, RootsError> {
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
            .take(MAX_CERTIFICATES_READ)
            .collect::<Result<_, _>>()?;
        Self::new(certificates)
    }

    /// Encodes the certificates as PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let mut pem = String::new();
        for certificate in self.certificates.iter() {
            write_pem(&mut pem, CERTIFICATE_LABEL, certificate);
        }
        pem
    }

    /// Returns the certificates in their original order.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Merges these roots with `other`, for a rotation.
    ///
    /// # Errors
    /// [`RootsError::TooManyRoots`] if there are more than 16 different roots.
    pub fn merge_with(&self, other: &Self) -> Result<Self, RootsError> {
        let certificates = self.certificates.iter().chain(other.certificates.iter());
        Self::new(certificates.cloned().collect())
    }

    /// Returns the roots trusted to sign for members.
    pub(crate) fn member_store(&self) -> &Arc<RootCertStore> {
        &self.member_store
    }

    /// Returns a store of all certificates; `None` if all of them may sign for members, as in [`Self::member_store`].
    pub(crate) fn full_store(&self) -> Option<&Arc<RootCertStore>> {
        self.full_store.as_ref()
    }
}

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl Eq for Roots {}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roots({} certificates)", self.certificates.len())
    }
}

/// The reason that certificates are not a trust bundle.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// The bundle has no certificate.
    #[error("the trust bundle has no certificate: it needs at least one `BEGIN CERTIFICATE`")]
    Empty,
    /// The bundle has more certificates than a rotation needs.
    #[error("the trust bundle has more than {MAX_ROOTS} certificates: remove retired roots")]
    TooManyRoots,
    /// A certificate may not sign others.
    #[error("certificate {number} of the trust bundle is not a root that may sign certificates")]
    NotRoot {
        /// The number of the certificate, counted from 1.
        number: usize,
    },
    /// The text is not PEM.
    #[error("the trust bundle is not valid PEM")]
    InvalidPem(#[from] pem::Error),
}

/// Returns a store of the intermediates among the certificates; `None` if there are none.
fn intermediate_store(certificates: &[CertificateDer<'static>]) -> Option<RootCertStore> {
    let mut store = RootCertStore::empty();
    for certificate in certificates.iter().filter(|der| !is_self_issued(der)) {
        // This does not fail: `Roots::new` has added the certificate to another store.
        store.add(certificate.clone()).ok()?;
    }
    (!store.is_empty()).then_some(store)
}

/// True for a root: its issuer name is its subject name and, if it has both key identifiers, its issuer's key is its own
/// key. True as well for a certificate that cannot be parsed, which therefore never counts as an intermediate.
pub(crate) fn is_self_issued(der: &CertificateDer<'_>) -> bool {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(der) else { return true };
    if certificate.subject().as_raw() != certificate.issuer().as_raw() {
        return false;
    }
    let (mut own_key_id, mut issuer_key_id) = (None, None);
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => own_key_id = Some(id.0),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                issuer_key_id = id.key_identifier.as_ref().map(|id| id.0);
            }
            _ => {}
        }
    }
    own_key_id
        .zip(issuer_key_id)
        .is_none_or(|(own_key_id, issuer_key_id)| own_key_id == issuer_key_id)
}

/// True for a CA certificate that may sign certificates (RFC 5280 §4.2.1.9 and §4.2.1.3).
pub(crate) fn may_sign_certificates(der: &CertificateDer<'_>) -> bool {
    let Ok((trailing_bytes, certificate)) = x509_parser::parse_x509_certificate(der) else {
        return false;
    };
    trailing_bytes.is_empty() && is_ca_certificate(&certificate)
}

/// True if the certificate is that of a CA, with the usage to sign certificates.
fn is_ca_certificate(certificate: &X509Certificate<'_>) -> bool {
    let constraints = certificate.basic_constraints().ok().flatten();
    let usage = certificate.key_usage().ok().flatten();
    constraints.is_some_and(|constraints| constraints.value.ca)
        && usage.is_some_and(|usage| usage.value.key_cert_sign())
}

/// Maximum number of roots in a bundle. A rotation needs two; federation with a few meshes needs some more.
pub(crate) const MAX_ROOTS: usize = 16;

/// Maximum number of certificates read from a PEM text; further ones are ignored. It is larger than [`MAX_ROOTS`] because
/// duplicates do not count as roots.
const MAX_CERTIFICATES_READ: usize = 4 * MAX_ROOTS;

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, IsCa};

    use super::*;
    use crate::testing::{TestAuthority, workload_id};

    #[test]
    fn roots_survive_pem_encoding_without_duplicates() {
        let first = TestAuthority::new("cluster.local");
        let second = TestAuthority::new("cluster.local");
        let merged = first.authority.roots().merge_with(&second.authority.roots()).unwrap();
        assert_eq!(merged.certificates().len(), 2);
        assert_eq!(Roots::from_pem(&merged.to_pem()).unwrap(), merged);
        assert_eq!(merged.merge_with(&first.authority.roots()).unwrap(), merged);
    }

    #[test]
    fn certificates_that_may_not_sign_are_rejected() {
        let fixture = TestAuthority::new("cluster.local");
        let leaf = fixture.issue_credential(&workload_id("ratings"));
        let leaf = leaf.chain()[0].clone();
        assert!(matches!(Roots::new(vec![leaf]), Err(RootsError::NotRoot { number: 1 })));
        assert!(matches!(Roots::new(Vec::new()), Err(RootsError::Empty)));
        assert!(matches!(Roots::from_pem("hello"), Err(RootsError::Empty)));
        assert!(matches!(
            Roots::from_pem("-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n"),
            Err(RootsError::InvalidPem(_))
        ));
        let (signs_no_certificates, _) = fixture.forge_certificate(|parameters| {
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        });
        assert!(matches!(
            Roots::new(signs_no_certificates),
            Err(RootsError::NotRoot { number: 1 })
        ));
        let noise = CertificateDer::from(vec![1, 2, 3]);
        assert!(Roots::new(vec![noise]).is_err());
    }
}
