//! Replaces an intermediate authority by its successor: members trust the current intermediate, and former ones until
//! they expire.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, DistinguishedName, DnType, DnValue, IsCa, KeyUsagePurpose,
    SubjectPublicKeyInfo,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::Tag;

use super::{Authority, AuthorityError, common_parameters};
use crate::directory::create_private_directory;
use crate::disk::{self, FileAccess};
use crate::pem::{CERTIFICATE_LABEL, write_pem};
use crate::roots::{MAX_ROOTS, Roots, is_self_issued};
use crate::verify::to_system_time;

impl Authority {
    /// Returns this authority as the successor of `former`: members trust both, and its certificates include a
    /// cross-certificate by which members that trust only `former` verify the new one.
    ///
    /// An authority with a built-in root is returned unchanged, because its trust bundle is in a file.
    #[must_use]
    pub fn as_successor_of(self, former: &Self, now: SystemTime) -> Self {
        if !self.is_intermediate() || !former.is_intermediate() {
            return self;
        }
        // The latest former intermediate comes first, because the limit drops the last ones.
        let mut former_intermediates: Vec<CertificateDer<'static>> =
            vec![former.signing_certificate.clone()];
        former_intermediates.extend(former.former_intermediates.iter().cloned());
        let mut cross_certificates = former.cross_certificates.clone();
        if public_key(&former.signing_certificate) != public_key(&self.signing_certificate) {
            match former.cross_sign(&self, now) {
                Ok(cross_certificate) => cross_certificates.insert(0, cross_certificate),
                // Without the cross-certificate, members that are offline during the succession have to join again.
                Err(error) => drop(error),
            }
        }
        self.with_former_intermediates(former_intermediates, cross_certificates, now)
    }

    /// Adds the intermediates and cross-certificates that the previous run of the control plane saved in `file`, and
    /// saves the result for the next run.
    ///
    /// # Errors
    /// An I/O error if the file cannot be read or written.
    pub fn restore_trusted_intermediates(self, file: &Path, now: SystemTime) -> io::Result<Self> {
        if !self.is_intermediate() {
            return Ok(self);
        }
        let pem = disk::read(file, FileAccess::AllUsers)?.unwrap_or_default();
        // Damaged certificates are omitted, and therefore not trusted.
        let certificates: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(pem.as_bytes())
                .take(MAX_SAVED_CERTIFICATES)
                .filter_map(Result::ok)
                .collect();
        let is_cross_certificate = |der: &CertificateDer<'static>| {
            certificates.iter().any(|other| other != der && is_issued_by(der, other))
        };
        let (cross_certificates, former_intermediates) =
            certificates.iter().cloned().partition(is_cross_certificate);
        let authority =
            self.with_former_intermediates(former_intermediates, cross_certificates, now);
        authority.save_trusted_intermediates(file)?;
        Ok(authority)
    }

    /// Saves the trusted intermediates and the cross-certificates in `file` for the next run. Does nothing with a
    /// built-in root.
    ///
    /// # Errors
    /// An I/O error if the file cannot be written.
    pub fn save_trusted_intermediates(&self, file: &Path) -> io::Result<()> {
        if !self.is_intermediate() {
            return Ok(());
        }
        let mut pem = String::new();
        for der in [&self.signing_certificate]
            .into_iter()
            .chain(&self.former_intermediates)
            .chain(&self.cross_certificates)
        {
            write_pem(&mut pem, CERTIFICATE_LABEL, der);
        }
        if disk::read(file, FileAccess::AllUsers)?.as_ref() == Some(&pem) {
            return Ok(());
        }
        if let Some(directory) = file.parent() {
            create_private_directory(directory)?;
        }
        disk::replace(file, pem.as_bytes(), FileAccess::AllUsers)
    }

    /// True if the signing certificate is an intermediate of an external root.
    pub(super) fn is_intermediate(&self) -> bool {
        !self.chain.is_empty()
    }

    /// Returns this authority with the former intermediates and cross-certificates that are still valid, up to
    /// their limits.
    fn with_former_intermediates(
        mut self,
        former_intermediates: Vec<CertificateDer<'static>>,
        cross_certificates: Vec<CertificateDer<'static>>,
        now: SystemTime,
    ) -> Self {
        let own_key = public_key(&self.signing_certificate);
        let roots = self.roots.certificates().iter().filter(|der| is_self_issued(der));
        let mut member_roots: Vec<CertificateDer<'static>> =
            roots.chain([&self.signing_certificate]).cloned().collect();
        // An external CA with many roots leaves less room. The latest intermediates have precedence.
        let max_intermediates =
            MAX_FORMER_INTERMEDIATES.min(MAX_ROOTS.saturating_sub(member_roots.len()));
        let mut retained_intermediates: Vec<CertificateDer<'static>> = Vec::new();
        for former in former_intermediates {
            let is_duplicate =
                retained_intermediates.contains(&former) || public_key(&former) == own_key;
            if !is_duplicate
                && !is_self_issued(&former)
                && certificate_expiry(&former) > now
                && retained_intermediates.len() < max_intermediates
            {
                retained_intermediates.push(former);
            }
        }
        let mut retained_cross_certificates: Vec<CertificateDer<'static>> = Vec::new();
        for cross_certificate in cross_certificates {
            let is_usable = retained_intermediates
                .iter()
                .any(|former| is_issued_by(&cross_certificate, former));
            if is_usable
                && !retained_cross_certificates.contains(&cross_certificate)
                && certificate_expiry(&cross_certificate) > now
                && retained_cross_certificates.len() < MAX_CROSS_CERTIFICATES
            {
                retained_cross_certificates.push(cross_certificate);
            }
        }
        member_roots.extend(retained_intermediates.iter().cloned());
        // A former intermediate that may not sign certificates is not trusted.
        if let Ok(roots) = Roots::new(member_roots) {
            self.roots = roots;
            self.chain.retain(|der| !self.cross_certificates.contains(der));
            self.chain.extend(retained_cross_certificates.iter().cloned());
            self.former_intermediates = retained_intermediates;
            self.cross_certificates = retained_cross_certificates;
        }
        self
    }

    /// Signs a cross-certificate: the successor's key and subject name, certified by this authority's key. Members that
    /// trust only this authority verify the successor's certificates with it.
    fn cross_sign(
        &self,
        successor: &Self,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let (_, certificate) = x509_parser::parse_x509_certificate(&successor.signing_certificate)
            .map_err(|_| AuthorityError::InvalidIntermediate)?;
        let not_after = self.not_after.min(successor.not_after);
        if now >= not_after {
            return Err(AuthorityError::RootExpired);
        }
        let mut parameters =
            common_parameters(self.not_before.max(successor.not_before), not_after)?;
        parameters.distinguished_name =
            subject_name(&certificate).ok_or(AuthorityError::InvalidIntermediate)?;
        // Members that trust only the intermediate before this one verify a chain of two cross-certificates.
        let path_length = u8::try_from(MAX_CROSS_CERTIFICATES).unwrap_or(u8::MAX);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_length));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = SubjectPublicKeyInfo::from_der(certificate.public_key().raw);
        self.issue_certificate(&parameters, &key.map_err(AuthorityError::Encoding)?)
    }
}

/// Copies the subject name of a certificate; `None` if an attribute is not UTF-8, printable or IA5 text.
fn subject_name(certificate: &X509Certificate<'_>) -> Option<DistinguishedName> {
    let mut name = DistinguishedName::new();
    for attribute in certificate.subject().iter_attributes() {
        let oid: Vec<u64> = attribute.attr_type().iter()?.collect();
        let text = attribute.as_str().ok()?;
        let value = match attribute.attr_value().header.tag() {
            Tag::Utf8String => DnValue::Utf8String(text.to_owned()),
            Tag::PrintableString => DnValue::PrintableString(text.try_into().ok()?),
            Tag::Ia5String => DnValue::Ia5String(text.try_into().ok()?),
            _ => return None,
        };
        name.push(DnType::from_oid(&oid), value);
    }
    Some(name)
}

/// Returns the public key of a certificate; `None` if it cannot be parsed.
fn public_key(der: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    Some(certificate.public_key().subject_public_key.data.to_vec())
}

/// Returns the end of a certificate's validity; the Unix epoch if it cannot be parsed.
fn certificate_expiry(der: &CertificateDer<'_>) -> SystemTime {
    let certificate = x509_parser::parse_x509_certificate(der);
    let expiry = certificate
        .ok()
        .and_then(|(_, certificate)| to_system_time(certificate.validity().not_after).ok());
    expiry.unwrap_or(UNIX_EPOCH)
}

/// True if the certificate's issuer name is the subject name of `issuer_der`. Signatures are not verified.
fn is_issued_by(der: &CertificateDer<'_>, issuer_der: &CertificateDer<'_>) -> bool {
    let certificate = x509_parser::parse_x509_certificate(der);
    let issuer = x509_parser::parse_x509_certificate(issuer_der);
    let (Ok((_, certificate)), Ok((_, issuer))) = (certificate, issuer) else { return false };
    certificate.issuer().as_raw() == issuer.subject().as_raw()
}

/// Maximum number of former intermediates that stay trusted.
const MAX_FORMER_INTERMEDIATES: usize = 2;

/// Maximum number of cross-certificates. Members of older releases accept chains of at most a leaf, the intermediate and
/// two further certificates.
const MAX_CROSS_CERTIFICATES: usize = 2;

/// Maximum number of certificates read from the file. [`Authority::save_trusted_intermediates`] writes at most five.
const MAX_SAVED_CERTIFICATES: usize = 16;
