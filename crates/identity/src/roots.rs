//! The trust bundle: the roots of the mesh, several during a rotation.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;

use crate::pem::{CERTIFICATE, write};

/// At least one trusted root certificate. Cheap to clone.
///
/// If it contains intermediate authorities, only those are trusted to sign for members: the roots above are a
/// company's, and its other intermediates have no authority in this mesh. External clients may have
/// certificates of those if a policy names them.
#[derive(Clone)]
pub struct Roots {
    certificates: Arc<[CertificateDer<'static>]>,
    store: Arc<RootCertStore>,
    /// All certificates, if `store` has only some.
    company: Option<Arc<RootCertStore>>,
}

impl Roots {
    /// Checks and stores root certificates; duplicates are removed.
    ///
    /// # Errors
    /// [`RootsError`] if there are none or too many, or one may not sign certificates.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, RootsError> {
        let mut unique: Vec<CertificateDer<'static>> = Vec::new();
        let mut store = RootCertStore::empty();
        for (index, certificate) in certificates.into_iter().enumerate() {
            if unique.contains(&certificate) {
                continue;
            }
            if unique.len() == ROOTS_MAX {
                return Err(RootsError::TooMany);
            }
            let number = index + 1;
            if !may_sign_certificates(&certificate) {
                return Err(RootsError::NotRoot { number });
            }
            store.add(certificate.clone()).map_err(|_| RootsError::NotRoot { number })?;
            unique.push(certificate);
        }
        if unique.is_empty() {
            return Err(RootsError::Empty);
        }
        let certificates: Arc<[CertificateDer<'static>]> = unique.into();
        let all = Arc::new(store);
        let pins = intermediate_store(&certificates);
        Ok(match pins {
            None => Self { certificates, store: all, company: None },
            Some(pins) => Self { certificates, store: Arc::new(pins), company: Some(all) },
        })
    }

    /// Parses all certificates of a PEM text.
    ///
    /// # Errors
    /// [`RootsError`] if the text is not PEM, or as [`Roots::new`].
    pub fn from_pem(text: &str) -> Result<Self, RootsError> {
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
            .take(CERTIFICATES_READ_MAX)
            .collect::<Result<_, _>>()?;
        Self::new(certificates)
    }

    /// Encodes the certificates as PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let mut text = String::new();
        for certificate in self.certificates.iter() {
            write(&mut text, CERTIFICATE, certificate);
        }
        text
    }

    /// Returns the certificates in their original order.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Merges these roots with `others`, for a rotation.
    ///
    /// # Errors
    /// [`RootsError::TooMany`].
    pub fn merge_with(&self, others: &Self) -> Result<Self, RootsError> {
        let both = self.certificates.iter().chain(others.certificates.iter());
        Self::new(both.cloned().collect())
    }

    /// Returns the roots trusted to sign for members.
    pub(crate) fn member_store(&self) -> &Arc<RootCertStore> {
        &self.store
    }

    /// Returns all roots, if not all of them may sign for members.
    pub(crate) fn company_store(&self) -> Option<&Arc<RootCertStore>> {
        self.company.as_ref()
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
    /// No certificate.
    #[error("the trust bundle has no certificate: it needs at least one `BEGIN CERTIFICATE`")]
    Empty,
    /// More certificates than a rotation needs.
    #[error("the trust bundle has more than {ROOTS_MAX} certificates: remove retired roots")]
    TooMany,
    /// A certificate that may not sign others.
    #[error("certificate {number} of the trust bundle is not a root that may sign certificates")]
    NotRoot {
        /// The number of the certificate, counted from 1.
        number: usize,
    },
    /// Not PEM.
    #[error("the trust bundle is not valid PEM")]
    Pem(#[from] pem::Error),
}

/// Returns the intermediates among the certificates, if any.
fn intermediate_store(certificates: &[CertificateDer<'static>]) -> Option<RootCertStore> {
    let mut store = RootCertStore::empty();
    for certificate in certificates.iter().filter(|der| !is_self_issued(der)) {
        // It was added to another store before.
        store.add(certificate.clone()).ok()?;
    }
    (!store.is_empty()).then_some(store)
}

/// True for a root: it names itself as its issuer, and by key id if it has one.
pub(crate) fn is_self_issued(der: &CertificateDer<'_>) -> bool {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(der) else { return true };
    if certificate.subject().as_raw() != certificate.issuer().as_raw() {
        return false;
    }
    let (mut own, mut above) = (None, None);
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => own = Some(id.0),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                above = id.key_identifier.as_ref().map(|id| id.0);
            }
            _ => {}
        }
    }
    own.zip(above).is_none_or(|(own, above)| own == above)
}

/// True for a CA certificate that may sign certificates (RFC 5280 §4.2.1.9 and §4.2.1.3).
pub(crate) fn may_sign_certificates(der: &CertificateDer<'_>) -> bool {
    let Ok((rest, certificate)) = x509_parser::parse_x509_certificate(der) else {
        return false;
    };
    rest.is_empty() && is_authority(&certificate)
}

fn is_authority(certificate: &X509Certificate<'_>) -> bool {
    let constraints = certificate.basic_constraints().ok().flatten();
    let usage = certificate.key_usage().ok().flatten();
    constraints.is_some_and(|constraints| constraints.value.ca)
        && usage.is_some_and(|usage| usage.value.key_cert_sign())
}

/// A rotation needs two; federation with a few meshes needs some more.
const ROOTS_MAX: usize = 16;

/// The limit of certificates read; more are [`RootsError::TooMany`] unless they are duplicates.
const CERTIFICATES_READ_MAX: usize = 4 * ROOTS_MAX;

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, IsCa};

    use super::*;
    use crate::testing::{TestAuthority, workload_id};

    #[test]
    fn reads_back_what_it_prints_and_keeps_repeated_roots_once() {
        let one = TestAuthority::new("cluster.local");
        let two = TestAuthority::new("cluster.local");
        let both = one.authority.roots().merge_with(&two.authority.roots()).unwrap();
        assert_eq!(both.certificates().len(), 2);
        assert_eq!(Roots::from_pem(&both.to_pem()).unwrap(), both);
        assert_eq!(both.merge_with(&one.authority.roots()).unwrap(), both);
    }

    #[test]
    fn refuses_what_cannot_vouch() {
        let fixture = TestAuthority::new("cluster.local");
        let leaf = fixture.issue_credential(&workload_id("ratings"));
        let leaf = leaf.chain()[0].clone();
        assert!(matches!(Roots::new(vec![leaf]), Err(RootsError::NotRoot { number: 1 })));
        assert!(matches!(Roots::new(Vec::new()), Err(RootsError::Empty)));
        assert!(matches!(Roots::from_pem("hello"), Err(RootsError::Empty)));
        assert!(matches!(
            Roots::from_pem("-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n"),
            Err(RootsError::Pem(_))
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
