//! Signs certificates for external principals: clients outside the mesh that authenticate with a certificate of the mesh's
//! authority.

use std::time::{Duration, SystemTime};

use leno_model::check_subject;
use rcgen::{DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType};
use rustls::pki_types::CertificateDer;

use super::{
    Authority, AuthorityError, MAX_LEAF_LIFETIME, MIN_LEAF_LIFETIME, common_parameters, uri_name,
};
use crate::credential::CertificateBundle;
use crate::csr::CertificateRequest;
use crate::external_principal::ExternalSubject;
use crate::roots::Roots;

impl Authority {
    /// Signs the requested key for an external principal, valid for `lifetime` from `now`. The certificate is
    /// valid for clients only, and is not that of a member.
    ///
    /// # Errors
    /// [`AuthorityError`] if the external principal is of another trust domain or its name is invalid, the
    /// lifetime is out of bounds, or the root has expired.
    pub fn sign_external_principal(
        &self,
        request: &CertificateRequest,
        subject: ExternalSubject<'_>,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<CertificateBundle, AuthorityError> {
        let ExternalSubject { id, names, issuing_scope } = subject;
        if id.trust_domain != self.trust_domain {
            return Err(AuthorityError::ForeignTrustDomain {
                found: id.to_string(),
                expected: self.trust_domain.clone(),
            });
        }
        let Some(first_name) = names.first() else {
            return Err(AuthorityError::ExternalPrincipalWithoutName(id.clone()));
        };
        for name in names {
            check_subject(name, issuing_scope, &self.trust_domain)
                .map_err(|cause| AuthorityError::InvalidSubject { name: name.clone(), cause })?;
        }
        if lifetime < MIN_LEAF_LIFETIME || lifetime > MAX_LEAF_LIFETIME {
            return Err(AuthorityError::LifetimeOutOfRange(lifetime));
        }
        let (not_before, not_after) = self.validity_period(lifetime, now)?;
        let mut parameters = common_parameters(not_before, not_after)?;
        parameters.subject_alt_names = vec![uri_name(id.to_string())?];
        for name in names {
            let name = name.as_str().try_into().map_err(AuthorityError::Encoding)?;
            parameters.subject_alt_names.push(SanType::DnsName(name));
        }
        // The common name is informational: verifiers evaluate only the DNS names.
        if first_name.as_str().len() <= MAX_COMMON_NAME_BYTES {
            parameters.distinguished_name.push(DnType::CommonName, first_name.as_str());
        }
        parameters.is_ca = IsCa::ExplicitNoCa;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok(CertificateBundle {
            chain: [self.issue_certificate(&parameters, request)?]
                .into_iter()
                .chain(self.chain())
                .collect(),
            roots: self.roots.clone(),
            not_before,
            not_after,
        })
    }

    /// Returns the roots to verify a chain with. `None` if this authority cannot have issued the chain, because the
    /// certificates after its leaf differ from the chain of this authority.
    pub(crate) fn roots_for_chain(&self, chain: &[CertificateDer<'static>]) -> Option<Roots> {
        let issuers = chain.get(1..)?;
        match self.chain.is_empty() {
            true => {
                // Only the signing root: a chain that ends at a former root must be issued again.
                let root = self.signing_certificate.clone();
                Roots::new(vec![root]).ok().filter(|_| issuers.is_empty())
            }
            false => (issuers == self.chain).then(|| self.roots.clone()),
        }
    }
}

/// Maximum length of a common name (X.520, ub-common-name).
const MAX_COMMON_NAME_BYTES: usize = 64;
