//! Guests: clients outside the mesh, with a certificate that the mesh made for them and the key beside it.
//!
//! A guest's certificate is for clients alone, and it has no SPIFFE id: no configuration of TLS takes it for a
//! member's, and no server can be run with it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_model::{GuestId, Name, Sponsor};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use x509_parser::extensions::GeneralName;

use crate::authority::{Authority, AuthorityError};
use crate::credential::CLOCK_SKEW;
use crate::key::PrivateKey;
use crate::pem::{CERTIFICATE, write};
use crate::provider::provider;
use crate::request::CertificateRequest;
use crate::roots::Roots;
use crate::verify::{VerifyError, instant, sole_uri};

/// Whom a guest's certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestSubject<'a> {
    /// Where it will be kept.
    pub id: &'a GuestId,
    /// What the guest is called; not empty.
    pub names: &'a [Name],
    /// Who says so.
    pub sponsor: Sponsor<'a>,
}

/// The verified other end of a session that is no member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// For what its certificate was made.
    pub id: GuestId,
    /// What it is called; not empty.
    pub names: Vec<Name>,
    /// When its certificate begins to be valid.
    pub not_before: SystemTime,
    /// When it stops to be.
    pub not_after: SystemTime,
}

/// The guest at the other end of a session that is already established, from the certificates that the session
/// reports, where [`crate::peer`] finds no member in them.
///
/// # Errors
/// [`VerifyError`] when the certificate has expired since, or is not that of a guest.
pub fn guest(certificate: &CertificateDer<'_>, now: SystemTime) -> Result<Guest, VerifyError> {
    let guest = Guest::read(certificate)?;
    if now >= guest.not_after {
        return Err(VerifyError::Expired);
    }
    Ok(guest)
}

impl Guest {
    /// What an end-entity certificate says of its holder. It proves nothing by itself.
    pub(crate) fn read(der: &CertificateDer<'_>) -> Result<Self, VerifyError> {
        let (rest, certificate) =
            x509_parser::parse_x509_certificate(der).map_err(|_| VerifyError::Malformed)?;
        if !rest.is_empty() {
            return Err(VerifyError::Malformed);
        }
        let id = sole_uri(&certificate)?.parse().map_err(VerifyError::Uri)?;
        let names = certificate.subject_alternative_name().map_err(|_| VerifyError::Malformed)?;
        let names = names.iter().flat_map(|extension| &extension.value.general_names);
        let names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(Name::new(name)),
            _ => None,
        });
        let names: Vec<Name> =
            names.collect::<Result<_, _>>().map_err(|_| VerifyError::GuestNames)?;
        if names.is_empty() {
            return Err(VerifyError::GuestNames);
        }
        let validity = certificate.validity();
        Ok(Self {
            id,
            names,
            not_before: instant(validity.not_before)?,
            not_after: instant(validity.not_after)?,
        })
    }
}

/// A guest's key and certificate, and the roots to verify the mesh by, as PEM: for the one who keeps them.
pub struct GuestCertificate {
    key: PrivateKey,
    chain: String,
    roots: String,
    not_after: SystemTime,
}

impl GuestCertificate {
    /// Makes a key and has it signed, to live for `lifetime` from `now`.
    ///
    /// # Errors
    /// [`AuthorityError`] when the guest may not be called so, the authority may not use these names, or as
    /// [`Authority::sign`].
    pub fn issue(
        authority: &Authority,
        subject: GuestSubject<'_>,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let key = PrivateKey::generate();
        // Our own key's request is whole: it cannot be refused.
        let request = CertificateRequest::from_der(&key.request());
        let request = request.map_err(|_| AuthorityError::Randomness)?;
        let issued = authority.sign_guest(&request, subject, lifetime, now)?;
        // Constraints on names above the signer are found out here, and not by the client.
        verify(&issued.chain, &issued.roots, issued.not_before)
            .map_err(AuthorityError::GuestUseless)?;
        let mut chain = String::new();
        for certificate in &issued.chain {
            write(&mut chain, CERTIFICATE, certificate);
        }
        Ok(Self { key, chain, roots: issued.roots.to_pem(), not_after: issued.not_after })
    }

    /// Its private key, PKCS #8. Only for where it is kept.
    #[must_use]
    pub fn key(&self) -> String {
        self.key.to_pem()
    }

    /// The certificate and what leads from it to a root.
    #[must_use]
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// Whom the guest is to trust.
    #[must_use]
    pub fn roots(&self) -> &str {
        &self.roots
    }

    /// When it stops to be valid.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }
}

/// The key is not shown.
impl fmt::Debug for GuestCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestCertificate")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// What is kept of a guest's certificate somewhere, as PEM, whoever wrote it.
#[derive(Clone, Copy)]
pub struct Held<'a> {
    /// The private key.
    pub key: &'a str,
    /// The certificate and what leads from it to a root.
    pub chain: &'a str,
    /// Whom the guest is to trust.
    pub roots: &'a str,
}

impl Held<'_> {
    /// Until when it need not be made anew: two thirds of its life, or of `lifetime` where that is shorter, so that
    /// an outage of a third of it is survived. `None` when it is not as `authority` would make it for `subject`.
    #[must_use]
    pub fn good_until(
        &self,
        authority: &Authority,
        subject: GuestSubject<'_>,
        lifetime: Duration,
    ) -> Option<SystemTime> {
        let roots = authority.roots();
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes());
        let chain: Vec<CertificateDer<'static>> =
            chain.take(CHAIN_READ_MAX).collect::<Result<_, _>>().ok()?;
        let leaf = chain.first()?;
        let guest = Guest::read(leaf).ok()?;
        let key = PrivateKey::from_pem(self.key).ok()?;
        let (_, read) = x509_parser::parse_x509_certificate(leaf).ok()?;
        let is_its_key = *read.public_key().subject_public_key.data == *key.public();
        let is_signed = authority
            .signs_with(&chain)
            .is_some_and(|roots| verify(&chain, &roots, guest.not_before).is_ok());
        let is_so = self.roots == roots.to_pem()
            && guest.id == *subject.id
            && guest.names == subject.names
            && is_its_key
            && is_signed;
        let issued = (guest.not_before + CLOCK_SKEW).min(guest.not_after);
        let life = guest.not_after.duration_since(issued).unwrap_or_default().min(lifetime);
        is_so.then(|| issued + life.mul_f64(2.0 / 3.0))
    }
}

/// As a server that takes guests will, at the first moment at which it can.
fn verify(
    chain: &[CertificateDer<'static>],
    roots: &Roots,
    at: SystemTime,
) -> Result<(), rustls::Error> {
    let Some((leaf, intermediates)) = chain.split_first() else {
        return Err(rustls::Error::NoCertificatesPresented);
    };
    let store = Arc::clone(roots.store());
    let verifier = WebPkiClientVerifier::builder_with_provider(store, provider()).build();
    let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = UnixTime::since_unix_epoch(since);
    verifier.verify_client_cert(leaf, intermediates, at).map(drop)
}

/// More than any authority makes: what follows is not looked at, and then it is not as it would be made.
const CHAIN_READ_MAX: usize = 8;

#[cfg(test)]
mod tests;
