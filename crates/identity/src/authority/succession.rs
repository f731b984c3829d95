//! Succession of intermediate authorities: members trust the current one, and the previous one for a while.

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
use crate::disk::{self, FileReaders};
use crate::pem::{CERTIFICATE, write};
use crate::roots::{Roots, is_self_issued};
use crate::verify::to_system_time;

impl Authority {
    /// Returns this authority as the successor of `former`: members trust both, and its certificates include a
    /// cross-certificate by which members that trust only `former` verify the new one.
    ///
    /// Does not affect an authority with a built-in root: its roots are in a file.
    #[must_use]
    pub fn succeed_to(self, former: &Self, now: SystemTime) -> Self {
        if !self.is_intermediate() || !former.is_intermediate() {
            return self;
        }
        let mut carried: Vec<CertificateDer<'static>> = vec![former.signer.clone()];
        carried.extend(former.pins.iter().cloned());
        let mut cross_certificates = former.cross_certificates.clone();
        if key_of(&former.signer) != key_of(&self.signer) {
            match former.vouch_for(&self, now) {
                Ok(cross) => cross_certificates.insert(0, cross),
                // Members that are offline meanwhile have to join again.
                Err(error) => drop(error),
            }
        }
        self.with_former(carried, cross_certificates, now)
    }

    /// Adds the trusted intermediates and cross-certificates from the last run of a control plane, and then
    /// saves those of this run.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn restore_trusted(self, file: &Path, now: SystemTime) -> io::Result<Self> {
        if !self.is_intermediate() {
            return Ok(self);
        }
        let text = disk::read(file, FileReaders::Everyone)?.unwrap_or_default();
        let read = CertificateDer::pem_slice_iter(text.as_bytes()).take(READ_MAX);
        // Damaged certificates are not trusted.
        let all: Vec<CertificateDer<'static>> = read.filter_map(Result::ok).collect();
        let is_cross = |der: &CertificateDer<'static>| {
            all.iter().any(|other| other != der && is_issued_by(der, other))
        };
        let (cross_certificates, pins) = all.iter().cloned().partition(is_cross);
        let authority = self.with_former(pins, cross_certificates, now);
        authority.save_trusted(file)?;
        Ok(authority)
    }

    /// Saves the trusted intermediates for the next run.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save_trusted(&self, file: &Path) -> io::Result<()> {
        if !self.is_intermediate() {
            return Ok(());
        }
        let mut text = String::new();
        for der in [&self.signer].into_iter().chain(&self.pins).chain(&self.cross_certificates) {
            write(&mut text, CERTIFICATE, der);
        }
        if disk::read(file, FileReaders::Everyone)?.as_ref() == Some(&text) {
            return Ok(());
        }
        if let Some(dir) = file.parent() {
            create_private_directory(dir)?;
        }
        disk::replace(file, text.as_bytes(), FileReaders::Everyone)
    }

    /// True if the signer is an intermediate of a company's root.
    pub(super) fn is_intermediate(&self) -> bool {
        !self.chain.is_empty()
    }

    fn with_former(
        mut self,
        pins: Vec<CertificateDer<'static>>,
        cross_certificates: Vec<CertificateDer<'static>>,
        now: SystemTime,
    ) -> Self {
        let own = key_of(&self.signer);
        let mut kept: Vec<CertificateDer<'static>> = Vec::new();
        for pin in pins {
            let is_known = kept.contains(&pin) || key_of(&pin) == own;
            if !is_known
                && !is_self_issued(&pin)
                && certificate_expiry(&pin) > now
                && kept.len() < FORMER_MAX
            {
                kept.push(pin);
            }
        }
        let mut ways: Vec<CertificateDer<'static>> = Vec::new();
        for cross in cross_certificates {
            let leads_on = kept.iter().any(|pin| is_issued_by(&cross, pin));
            if leads_on
                && !ways.contains(&cross)
                && certificate_expiry(&cross) > now
                && ways.len() < CROSSES_MAX
            {
                ways.push(cross);
            }
        }
        self.chain.retain(|der| !self.cross_certificates.contains(der));
        self.chain.extend(ways.iter().cloned());
        let company = self.roots.certificates().iter().filter(|der| is_self_issued(der));
        let all = company.chain([&self.signer]).chain(&kept).cloned().collect();
        // The list is not empty, and not much longer than before.
        if let Ok(roots) = Roots::new(all) {
            self.roots = roots;
            self.pins = kept;
            self.cross_certificates = ways;
        }
        self
    }

    /// Signs a cross-certificate for the successor's key, with the successor's issuer name.
    fn vouch_for(
        &self,
        successor: &Self,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let bad = |_| AuthorityError::Issuer;
        let (_, read) = x509_parser::parse_x509_certificate(&successor.signer).map_err(bad)?;
        let end = self.not_after.min(successor.not_after);
        if now >= end {
            return Err(AuthorityError::RootExpired);
        }
        let mut parameters = common_parameters(self.not_before.max(successor.not_before), end)?;
        parameters.distinguished_name = name_of(&read).ok_or(AuthorityError::Issuer)?;
        // Members that trust only an older one verify a chain of two cross-certificates.
        let below = u8::try_from(CROSSES_MAX).unwrap_or(u8::MAX);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = SubjectPublicKeyInfo::from_der(read.public_key().raw);
        self.issue_certificate(&parameters, &key.map_err(AuthorityError::Encoding)?)
    }
}

/// Copies the subject of a certificate.
fn name_of(certificate: &X509Certificate<'_>) -> Option<DistinguishedName> {
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
fn key_of(der: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, read) = x509_parser::parse_x509_certificate(der).ok()?;
    Some(read.public_key().subject_public_key.data.to_vec())
}

fn certificate_expiry(der: &CertificateDer<'_>) -> SystemTime {
    let read = x509_parser::parse_x509_certificate(der);
    let end = read.ok().and_then(|(_, read)| to_system_time(read.validity().not_after).ok());
    end.unwrap_or(UNIX_EPOCH)
}

/// True if the certificate's issuer has the name of the other certificate.
fn is_issued_by(der: &CertificateDer<'_>, issuer: &CertificateDer<'_>) -> bool {
    let der = x509_parser::parse_x509_certificate(der);
    let issuer = x509_parser::parse_x509_certificate(issuer);
    let (Ok((_, der)), Ok((_, issuer))) = (der, issuer) else { return false };
    der.issuer().as_raw() == issuer.subject().as_raw()
}

/// Limit of previous intermediates that stay trusted.
const FORMER_MAX: usize = 2;

/// Limit of cross-certificates: together with the leaf and the signer as many as members of older releases
/// accept.
const CROSSES_MAX: usize = 2;

/// More than is ever saved.
const READ_MAX: usize = 16;
