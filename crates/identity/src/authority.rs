//! Signs certificates for mesh members and external clients, with a built-in root or an intermediate of an external CA.
//! The submodules open, copy, rotate and replace an authority.

mod external_principals;
mod files;
mod rotation;
mod source;
mod succession;

use std::fmt;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::{digest, rand};
use leno_model::{
    ExternalPrincipalId, Instance, InvalidSubject, Name, SpiffeId, TrustDomain, WorkloadName,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
    SerialNumber,
};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;

use crate::credential::{CLOCK_SKEW, CertificateBundle, CredentialError, ca_generation};
use crate::csr::CertificateRequest;
use crate::directory::create_private_directory;
use crate::disk::{self, FileAccess};
use crate::key::PrivateKey;
use crate::pem::{CERTIFICATE_LABEL, write_pem};
use crate::roots::{Roots, RootsError};
use crate::tls::control_id;
use crate::verify::{sole_uri, to_system_time};

pub use files::AuthorityFiles;
pub use rotation::{Rotation, RotationStage};
pub use source::AuthoritySource;

/// Signs certificates for the members of one trust domain.
///
/// The directory of a built-in root contains `ca.key` (mode 0600) and `ca.pem`, the trust bundle of the members. The
/// root of `ca.key` signs; `ca.pem` may contain further trusted roots. To replace a root, add the new root to `ca.pem`,
/// wait one certificate lifetime, then replace `ca.key`; [`Rotation`] does this in stages. The directory of an
/// intermediate contains the files of [`AuthoritySource::Intermediate`].
pub struct Authority {
    trust_domain: TrustDomain,
    /// The signing key, and the subject name of `signing_certificate`.
    issuer: Issuer<'static, KeyPair>,
    /// The CA certificate of the signing key: the built-in root, or the intermediate.
    signing_certificate: CertificateDer<'static>,
    /// The certificates that follow a signed certificate: the intermediate and its issuers up to, but without, the root,
    /// then `cross_certificates`. Empty with a built-in root.
    chain: Vec<CertificateDer<'static>>,
    /// The trust bundle of the members.
    roots: Roots,
    /// Previous intermediates that members still trust.
    former_intermediates: Vec<CertificateDer<'static>>,
    /// Cross-certificates at the end of the chain, in which former intermediates certify the signing key.
    cross_certificates: Vec<CertificateDer<'static>>,
    /// The earliest start of signed certificates: the start of the intermediate's chain. The Unix epoch for a built-in
    /// root, which is backdated.
    not_before: SystemTime,
    /// The latest end of signed certificates: the expiry of the built-in root, or the first expiry in the chain.
    not_after: SystemTime,
}

impl Authority {
    /// Opens the existing built-in root in `directory`.
    ///
    /// # Errors
    /// [`AuthorityError`] if the directory contains no authority, or for the reasons of [`Self::open_or_create`].
    pub fn open(
        directory: &Path,
        trust_domain: &TrustDomain,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let roots_pem = disk::read(&directory.join(ROOTS_FILE), FileAccess::AllUsers)?;
        let roots_pem = roots_pem.ok_or(AuthorityError::RootsFileMissing)?;
        let key_pem = disk::read(&directory.join(KEY_FILE), FileAccess::Owner)?;
        let key_pem = key_pem.ok_or(AuthorityError::KeyMissing)?;
        let key = PrivateKey::from_pem(&key_pem).map_err(AuthorityError::InvalidKey)?;
        Self::from_built_in_root(trust_domain, key, Roots::from_pem(&roots_pem)?, now)
    }

    /// Opens the built-in root in `directory`, or creates one (P-256, ten years).
    ///
    /// # Errors
    /// [`AuthorityError`] if the directory cannot be used, others may read the key, key and roots do not match,
    /// or a root is of another trust domain or expired.
    pub fn open_or_create(
        directory: &Path,
        trust_domain: &TrustDomain,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        create_private_directory(directory)?;
        // A key is written before its root. Therefore a root without a key means that the key was lost; a key without a
        // root means that the first start was interrupted.
        let roots_pem = disk::read(&directory.join(ROOTS_FILE), FileAccess::AllUsers)?;
        let key = match disk::read(&directory.join(KEY_FILE), FileAccess::Owner)? {
            Some(key_pem) => PrivateKey::from_pem(&key_pem).map_err(AuthorityError::InvalidKey)?,
            None if roots_pem.is_some() => return Err(AuthorityError::KeyMissing),
            None => create_key(directory)?,
        };
        let roots_pem = match roots_pem {
            Some(roots_pem) => roots_pem,
            None => create_root(directory, trust_domain, &key, now)?,
        };
        Self::from_built_in_root(trust_domain, key, Roots::from_pem(&roots_pem)?, now)
    }

    /// Signs the requested key for `subject`, valid for `lifetime` from `now`.
    ///
    /// # Errors
    /// [`AuthorityError`] if the identity is of another trust domain, the workload is of another namespace than
    /// the identity, a workload requests the control plane's identity, the lifetime is out of bounds, or the
    /// root has expired.
    pub fn sign(
        &self,
        request: &CertificateRequest,
        subject: CertificateSubject<'_>,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<CertificateBundle, AuthorityError> {
        self.check_subject_and_lifetime(subject, lifetime)?;
        let CertificateSubject { id, workload, instance } = subject;
        let (not_before, not_after) = self.validity_period(lifetime, now)?;
        let mut parameters = common_parameters(not_before, not_after)?;
        parameters.subject_alt_names = vec![uri_name(id.to_string())?];
        parameters.subject_alt_names.extend(self.dns_name(id));
        if let Some(workload) = workload {
            let name = &mut parameters.distinguished_name;
            name.push(DnType::CommonName, workload.to_string());
        }
        if let Some(instance) = instance {
            // The instance is not a URI name: a SPIFFE certificate has exactly one URI name.
            let text = instance.to_string().try_into().map_err(AuthorityError::Encoding)?;
            let name = &mut parameters.distinguished_name;
            let attribute = DnType::CustomDnType(SERIAL_NUMBER_OID.to_vec());
            name.push(attribute, DnValue::PrintableString(text));
        }
        parameters.is_ca = IsCa::ExplicitNoCa;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
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

    /// Returns the trust bundle that members verify each other with.
    #[must_use]
    pub fn roots(&self) -> Roots {
        self.roots.clone()
    }

    /// Returns the CA generation: a hash of the signing key and the trusted roots. Two authorities with the same
    /// generation issue interchangeable certificates.
    #[must_use]
    pub fn ca_generation(&self) -> u64 {
        ca_generation(self.issuer.key().public_key_raw(), &self.roots)
    }

    /// Returns the trust domain of the authority's members.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// Signs a certificate for the public key `key` with these parameters, and encodes it as DER.
    pub(crate) fn issue_certificate(
        &self,
        parameters: &CertificateParams,
        key: &impl PublicKeyData,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let certificate =
            parameters.signed_by(key, &self.issuer).map_err(AuthorityError::Encoding)?;
        Ok(certificate.der().clone())
    }

    /// Returns the start and the end of the validity of a certificate that is signed at `now`.
    fn validity_period(
        &self,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<(SystemTime, SystemTime), AuthorityError> {
        if now >= self.not_after {
            return Err(AuthorityError::RootExpired);
        }
        // A certificate that is valid before or after its issuing certificates would be invalid for part of its
        // lifetime.
        let not_before = whole_seconds(now.checked_sub(CLOCK_SKEW))?.max(self.not_before);
        let not_after = whole_seconds(now.checked_add(lifetime))?.min(self.not_after);
        Ok((not_before, not_after))
    }

    /// Returns the certificates that follow each signed certificate.
    fn chain(&self) -> impl Iterator<Item = CertificateDer<'static>> {
        self.chain.iter().cloned()
    }

    /// Returns the DNS name by which clients outside the mesh verify the certificate; certificates of OSM have the same
    /// name. Mesh members ignore it: they verify only the SPIFFE id.
    ///
    /// Returns `None` if the name could belong to another account, or if an issuing certificate has name constraints,
    /// with which the name could make the certificate invalid.
    fn dns_name(&self, id: &SpiffeId) -> Option<SanType> {
        let has_name_constraints = |der: &CertificateDer<'_>| {
            let certificate_result = x509_parser::parse_x509_certificate(der);
            certificate_result.map_or(true, |(_, certificate)| {
                !matches!(certificate.name_constraints(), Ok(None))
            })
        };
        let issuing_certificates = self.chain.iter().chain(self.roots.certificates());
        let account = id.account.name.as_str();
        let name = format!("{account}.{}.{}", id.account.namespace, id.trust_domain);
        let is_dns_name = |text: &str| {
            text.len() <= MAX_DNS_NAME_BYTES
                && text.split('.').all(|label| label.len() <= MAX_DNS_LABEL_BYTES)
        };
        if account.contains('.')
            || !is_dns_name(&name)
            || issuing_certificates.into_iter().any(has_name_constraints)
        {
            return None;
        }
        name.try_into().ok().map(SanType::DnsName)
    }

    /// Builds the authority of a built-in root: `key` signs, and one of the `roots` must be its certificate. All roots must
    /// be of the trust domain.
    fn from_built_in_root(
        trust_domain: &TrustDomain,
        key: PrivateKey,
        roots: Roots,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let mut certificate_and_expiry = None;
        for der in roots.certificates() {
            // This does not fail: `Roots` contains only certificates that can be parsed.
            let (_, root) = x509_parser::parse_x509_certificate(der)
                .map_err(|_| AuthorityError::KeyMismatch)?;
            check_trust_domain(&root, trust_domain)?;
            if *root.public_key().subject_public_key.data == *key.public_key() {
                // An expiry that the system cannot represent counts as expired.
                let not_after = to_system_time(root.validity().not_after);
                certificate_and_expiry = Some((der.clone(), not_after.unwrap_or(UNIX_EPOCH)));
            }
        }
        let (signing_certificate, not_after) =
            certificate_and_expiry.ok_or(AuthorityError::KeyMismatch)?;
        if now >= not_after {
            return Err(AuthorityError::RootExpired);
        }
        let issuer = Issuer::from_ca_cert_der(&signing_certificate, key.into_pair());
        Ok(Self {
            trust_domain: trust_domain.clone(),
            issuer: issuer.map_err(AuthorityError::Encoding)?,
            signing_certificate,
            chain: Vec::new(),
            roots,
            former_intermediates: Vec::new(),
            cross_certificates: Vec::new(),
            not_before: UNIX_EPOCH,
            not_after,
        })
    }

    /// Checks that the authority may sign a certificate with this subject and lifetime; see [`Self::sign`].
    fn check_subject_and_lifetime(
        &self,
        subject: CertificateSubject<'_>,
        lifetime: Duration,
    ) -> Result<(), AuthorityError> {
        let CertificateSubject { id, workload, .. } = subject;
        if id.trust_domain != self.trust_domain {
            return Err(AuthorityError::ForeignTrustDomain {
                found: id.trust_domain.to_string(),
                expected: self.trust_domain.clone(),
            });
        }
        if workload.is_some() && *id == control_id(&self.trust_domain) {
            return Err(AuthorityError::ReservedIdentity(id.clone()));
        }
        if let Some(workload) = workload
            && workload.namespace != id.account.namespace
        {
            return Err(AuthorityError::ForeignNamespace {
                workload: workload.clone(),
                id: id.clone(),
            });
        }
        if lifetime < MIN_LEAF_LIFETIME || lifetime > MAX_LEAF_LIFETIME {
            return Err(AuthorityError::LifetimeOutOfRange(lifetime));
        }
        Ok(())
    }
}

/// Compares the signing certificate, the chain and the roots. The private key is not compared: a signing certificate
/// belongs to one key.
impl PartialEq for Authority {
    fn eq(&self, other: &Self) -> bool {
        self.signing_certificate == other.signing_certificate
            && self.chain == other.chain
            && self.roots == other.roots
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.trust_domain)
    }
}

/// The holder that a member's certificate names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateSubject<'a> {
    /// The identity that peers verify and policies name.
    pub id: &'a SpiffeId,
    /// The workload, in the namespace of the account; `None` for the control plane.
    pub workload: Option<&'a WorkloadName>,
    /// The Pod or registration of that workload; `None` for the control plane.
    pub instance: Option<&'a Instance>,
}

/// The default lifetime of a member's certificate, which is the leaf of its chain.
pub const LEAF_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The maximum lifetime of a member's certificate. It bounds the time for which a stolen key can be used.
pub const MAX_LEAF_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// The reason that an authority cannot be opened or used, or does not sign a certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The directory or a file in it cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The key file contains no P-256 private key.
    #[error("`{KEY_FILE}` contains no P-256 private key: restore it from a backup")]
    InvalidKey(#[source] rcgen::Error),
    /// The roots file exists, but the key file does not.
    #[error(
        "`{ROOTS_FILE}` exists but `{KEY_FILE}` does not: restore the key from a backup, or remove \
         `{ROOTS_FILE}` to create a new authority, which every member must join again"
    )]
    KeyMissing,
    /// The roots file does not exist, and this process must not create it.
    #[error("there is no `{ROOTS_FILE}` in its directory: mount or restore it")]
    RootsFileMissing,
    /// The roots file contains no usable roots.
    #[error("`{ROOTS_FILE}` cannot be used")]
    Roots(#[from] RootsError),
    /// The key matches none of the roots.
    #[error("`{KEY_FILE}` matches no root in `{ROOTS_FILE}`: restore the matching key")]
    KeyMismatch,
    /// The root has expired.
    #[error("the root of this authority has expired: create a new authority")]
    RootExpired,
    /// A root or a requested identity is of another trust domain.
    #[error(
        "`{found}` is not in the trust domain `{expected}` of this mesh: use a separate data directory for each trust domain"
    )]
    ForeignTrustDomain {
        /// The identity, or the URI name of the root.
        found: String,
        /// The trust domain of the mesh.
        expected: TrustDomain,
    },
    /// The identity is of another namespace than its workload.
    #[error("workload `{workload}` cannot have the identity `{id}`: their namespaces differ")]
    ForeignNamespace {
        /// The workload in the requested subject.
        workload: WorkloadName,
        /// The requested identity.
        id: SpiffeId,
    },
    /// The identity is the control plane's.
    #[error(
        "`{0}` is reserved for the control plane: use another `spec.serviceAccount` for the workload"
    )]
    ReservedIdentity(SpiffeId),
    /// A name of an external principal is invalid.
    #[error("`{name}` {cause}")]
    InvalidSubject {
        /// The requested name.
        name: Name,
        /// The reason that the name is invalid.
        #[source]
        cause: InvalidSubject,
    },
    /// The external principal has no name.
    #[error("the external client `{0}` has no DNS name")]
    ExternalPrincipalWithoutName(ExternalPrincipalId),
    /// Servers would reject the certificate of an external principal.
    #[error(
        "the name constraints of the signing CA exclude external clients: reissue the CA without name constraints"
    )]
    ExternalPrincipalConstraints(#[source] rustls::Error),
    /// The lifetime is too short or too long.
    #[error("the certificate lifetime {0:?} is out of range: use 1 s to 90 days")]
    LifetimeOutOfRange(Duration),
    /// A file of the intermediate authority is missing.
    #[error(
        "`{file}` does not exist: a directory for --issuer contains `tls.key`, `tls.crt` and `ca.crt`, \
         as cert-manager writes them"
    )]
    IntermediateFileMissing {
        /// The name of the missing file.
        file: &'static str,
    },
    /// The intermediate's key is not supported.
    #[error(
        "`tls.key` contains no P-256 private key: issue the authority with one (`privateKey: {{algorithm: ECDSA, size: \
         256}}` in a Certificate of cert-manager)"
    )]
    InvalidIntermediateKey(#[source] rcgen::Error),
    /// The intermediate's certificate is for another key, or is not a CA certificate.
    #[error(
        "`tls.crt` must begin with a CA certificate for `tls.key`, followed by at most two that chain to `ca.crt`"
    )]
    InvalidIntermediate,
    /// Peers would reject every certificate that the intermediate signs.
    #[error(
        "certificates signed by `tls.key` do not chain to the roots in `ca.crt`, or its name \
         constraints exclude mesh members: issue it as a CA without name constraints"
    )]
    UnusableIntermediate(#[source] Box<CredentialError>),
    /// The rotation of the root is at another stage.
    #[error("{0}")]
    WrongStage(&'static str),
    /// The system clock is off by decades.
    #[error("the clock of this machine is invalid: set it")]
    InvalidClock,
    /// The operating system has no randomness.
    #[error("the operating system provides no random bytes")]
    NoRandomness,
    /// The certificate cannot be encoded.
    #[error("the certificate cannot be encoded")]
    Encoding(#[source] rcgen::Error),
}

/// Creates the key file, or reads the key file that another process has created.
fn create_key(directory: &Path) -> Result<PrivateKey, AuthorityError> {
    let path = directory.join(KEY_FILE);
    let key = PrivateKey::generate();
    match disk::create(&path, key.to_pem().as_bytes(), FileAccess::Owner) {
        Ok(()) => Ok(key),
        // Another process created the key first; it is used.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let key_pem = disk::read(&path, FileAccess::Owner)?.ok_or(error)?;
            PrivateKey::from_pem(&key_pem).map_err(AuthorityError::InvalidKey)
        }
        Err(error) => Err(error.into()),
    }
}

/// Creates the file with a self-signed root and returns its content. If another process has created the file, its
/// content is returned.
fn create_root(
    directory: &Path,
    trust_domain: &TrustDomain,
    key: &PrivateKey,
    now: SystemTime,
) -> Result<String, AuthorityError> {
    let path = directory.join(ROOTS_FILE);
    let mut roots_pem = String::new();
    let root = self_signed_root(trust_domain, key, now)?;
    write_pem(&mut roots_pem, CERTIFICATE_LABEL, &root);
    match disk::create(&path, roots_pem.as_bytes(), FileAccess::AllUsers) {
        Ok(()) => Ok(roots_pem),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok(disk::read(&path, FileAccess::AllUsers)?.ok_or(error)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Creates a root certificate for the key, valid for ten years.
fn self_signed_root(
    trust_domain: &TrustDomain,
    key: &PrivateKey,
    now: SystemTime,
) -> Result<CertificateDer<'static>, AuthorityError> {
    let not_before = whole_seconds(now.checked_sub(CLOCK_SKEW))?;
    let not_after = whole_seconds(now.checked_add(ROOT_LIFETIME))?;
    let mut parameters = common_parameters(not_before, not_after)?;
    parameters.subject_alt_names = vec![uri_name(format!("spiffe://{trust_domain}"))?];
    // Two roots of one trust domain must not share a name: some verifiers find issuers by name alone.
    let key_digest = digest::digest(&digest::SHA256, key.public_key());
    let fingerprint: String =
        key_digest.as_ref().iter().take(4).map(|b| format!("{b:02x}")).collect();
    let name = &mut parameters.distinguished_name;
    name.push(DnType::CommonName, format!("Leno root {fingerprint}"));
    // A path length of 0: the built-in root signs members directly, without intermediates.
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = parameters.self_signed(key.key_pair()).map_err(AuthorityError::Encoding)?;
    Ok(certificate.der().clone())
}

/// Returns the certificate parameters common to roots and members.
fn common_parameters(
    not_before: SystemTime,
    not_after: SystemTime,
) -> Result<CertificateParams, AuthorityError> {
    // RFC 5280 §4.1.2.2: a serial number is positive and has at most 20 bytes. The first byte therefore has a clear sign
    // bit, and is not 0, so that all serial numbers have the same length.
    let mut serial_bytes = [0u8; 16];
    rand::fill(&mut serial_bytes).map_err(|_| AuthorityError::NoRandomness)?;
    serial_bytes[0] = serial_bytes[0] & 0x7f | 0x40;
    let mut parameters = CertificateParams::default();
    parameters.not_before = to_offset_date(not_before)?;
    parameters.not_after = to_offset_date(not_after)?;
    parameters.serial_number = Some(SerialNumber::from_slice(&serial_bytes));
    parameters.distinguished_name = DistinguishedName::new();
    parameters.use_authority_key_identifier_extension = true;
    Ok(parameters)
}

/// Returns the alternative name of a certificate for this URI.
fn uri_name(text: String) -> Result<SanType, AuthorityError> {
    let text = text.try_into().map_err(AuthorityError::Encoding)?;
    Ok(SanType::URI(text))
}

/// Checks that a root has the sole URI name `spiffe://TRUST_DOMAIN` of the expected trust domain.
fn check_trust_domain(
    root: &X509Certificate<'_>,
    expected: &TrustDomain,
) -> Result<(), AuthorityError> {
    let found = sole_uri(root).unwrap_or("a root without `spiffe://` name");
    if found.strip_prefix("spiffe://") == Some(expected.0.as_str()) {
        return Ok(());
    }
    Err(AuthorityError::ForeignTrustDomain { found: found.to_owned(), expected: expected.clone() })
}

/// Truncates a time to whole seconds, because X.509 times have no fractions.
///
/// # Errors
/// [`AuthorityError::InvalidClock`] if the time is `None` (an overflow) or before 1970.
fn whole_seconds(time: Option<SystemTime>) -> Result<SystemTime, AuthorityError> {
    let since_epoch = time
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .ok_or(AuthorityError::InvalidClock)?;
    Ok(UNIX_EPOCH + Duration::from_secs(since_epoch.as_secs()))
}

/// Converts a time to the form that rcgen requires; an error if it is before 1970 or too late.
fn to_offset_date(time: SystemTime) -> Result<OffsetDateTime, AuthorityError> {
    let since_epoch = time.duration_since(UNIX_EPOCH).map_err(|_| AuthorityError::InvalidClock)?;
    let seconds = i64::try_from(since_epoch.as_secs()).map_err(|_| AuthorityError::InvalidClock)?;
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| AuthorityError::InvalidClock)
}

/// Maximum length of a DNS name (RFC 1035 §2.3.4).
const MAX_DNS_NAME_BYTES: usize = 253;
/// Maximum length of a label of a DNS name (RFC 1035 §2.3.4).
const MAX_DNS_LABEL_BYTES: usize = 63;
/// The lifetime of a built-in root: ten years.
const ROOT_LIFETIME: Duration = Duration::from_secs(3652 * 24 * 3600);
/// Minimum lifetime of a certificate that the authority signs.
const MIN_LEAF_LIFETIME: Duration = Duration::from_secs(1);

/// The object identifier of the subject attribute `serialNumber` (X.520 §6.2.9), which distinguishes holders with
/// the same common name.
const SERIAL_NUMBER_OID: [u64; 4] = [2, 5, 4, 5];

/// The file of a built-in root's signing key.
const KEY_FILE: &str = "ca.key";
/// The file of a built-in root's trust bundle.
const ROOTS_FILE: &str = "ca.pem";
/// The file of an intermediate's signing key, named as in the Secrets that cert-manager writes.
const INTERMEDIATE_KEY_FILE: &str = "tls.key";
/// The file of an intermediate's certificate, followed by its issuers.
const INTERMEDIATE_CHAIN_FILE: &str = "tls.crt";
/// The file of the external roots above an intermediate.
const EXTERNAL_ROOTS_FILE: &str = "ca.crt";

#[cfg(test)]
mod tests;
