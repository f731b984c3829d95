//! Certificates for external principals.

use std::time::{Duration, SystemTime};

use leno_model::check_subject;
use rcgen::{DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType};
use rustls::pki_types::CertificateDer;

use super::{
    Authority, AuthorityError, LEAF_LIFETIME_MAX, LEAF_LIFETIME_MIN, common_parameters, uri_name,
};
use crate::credential::CertificateBundle;
use crate::external_principal::ExternalSubject;
use crate::request::CertificateRequest;
use crate::roots::Roots;

impl Authority {
    /// Signs the requested key for an external principal, valid for `lifetime` from `now`. The certificate is
    /// for clients only and not a member's.
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
        let ExternalSubject { id, names, sponsor } = subject;
        if id.trust_domain != self.trust_domain {
            return Err(AuthorityError::ForeignTrustDomain {
                found: id.to_string(),
                expected: self.trust_domain.clone(),
            });
        }
        let Some(first) = names.first() else {
            return Err(AuthorityError::Nameless(id.clone()));
        };
        for name in names {
            check_subject(name, sponsor, &self.trust_domain)
                .map_err(|cause| AuthorityError::Subject { name: name.clone(), cause })?;
        }
        if lifetime < LEAF_LIFETIME_MIN || lifetime > LEAF_LIFETIME_MAX {
            return Err(AuthorityError::Lifetime(lifetime));
        }
        let (not_before, not_after) = self.validity_period(lifetime, now)?;
        let mut parameters = common_parameters(not_before, not_after)?;
        parameters.subject_alt_names = vec![uri_name(id.to_string())?];
        for name in names {
            let name = name.as_str().try_into().map_err(AuthorityError::Encoding)?;
            parameters.subject_alt_names.push(SanType::DnsName(name));
        }
        // Informational; not evaluated.
        if first.as_str().len() <= COMMON_NAME_BYTES_MAX {
            parameters.distinguished_name.push(DnType::CommonName, first.as_str());
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

    /// Returns the roots that verify a chain if this signer may have issued it: the certificates above its leaf
    /// must equal those of this authority.
    pub(crate) fn signs_with(&self, chain: &[CertificateDer<'static>]) -> Option<Roots> {
        let above = chain.get(1..)?;
        match self.chain.is_empty() {
            true => Roots::new(vec![self.signer.clone()]).ok().filter(|_| above.is_empty()),
            false => (above == self.chain).then(|| self.roots.clone()),
        }
    }
}

/// X.520: ub-common-name.
const COMMON_NAME_BYTES_MAX: usize = 64;
