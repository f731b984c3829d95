//! Credentials of mesh members: a private key, its certificate chain, and the roots to verify peers. A proxy builds its
//! TLS configurations from its credential and saves the credential for the next start.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use leno_model::{SpiffeId, WorkloadName};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::directory::create_private_directory;
use crate::disk::{self, FileAccess};
use crate::key::PrivateKey;
use crate::pem::{CERTIFICATE_LABEL, write_pem};
use crate::provider::crypto_provider;
use crate::roots::{Roots, RootsError};
use crate::verify::{LeafCertificate, VerifyError};

/// The authority's response to a certificate request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateBundle {
    /// The holder's certificate first, then any intermediates; no root.
    pub chain: Vec<CertificateDer<'static>>,
    /// The roots that the holder trusts.
    pub roots: Roots,
    /// The start of the certificate's validity.
    pub not_before: SystemTime,
    /// The end of the certificate's validity.
    pub not_after: SystemTime,
}

impl CertificateBundle {
    /// Creates the response from received bytes; the validity is read from the certificate.
    ///
    /// # Errors
    /// [`CredentialError`] if the chain is empty or its first certificate is not a member's.
    pub fn new(chain: Vec<CertificateDer<'static>>, roots: Roots) -> Result<Self, CredentialError> {
        let leaf = LeafCertificate::read(chain.first().ok_or(CredentialError::EmptyChain)?)?;
        Ok(Self { chain, roots, not_before: leaf.peer.not_before, not_after: leaf.peer.not_after })
    }
}

/// The key, certificates and roots of one identity.
pub struct Credential {
    key: PrivateKey,
    /// The key and the certificate chain, in the form that rustls uses.
    certified_key: Arc<CertifiedKey>,
    /// Presents `certified_key` in every handshake.
    resolver: Arc<SingleCertAndKey>,
    roots: Roots,
    /// The parsed first certificate of the chain.
    leaf: LeafCertificate,
    ca_generation: u64,
}

impl Credential {
    /// Combines a key with its issued certificate.
    ///
    /// # Errors
    /// [`CredentialError`] if the certificate is not for this key, does not chain to the given roots, or is not
    /// a mesh member's. The validity period is not checked: see [`Credential::is_expired`].
    pub fn new(key: PrivateKey, bundle: CertificateBundle) -> Result<Self, CredentialError> {
        let CertificateBundle { chain, roots, .. } = bundle;
        let leaf = LeafCertificate::read(chain.first().ok_or(CredentialError::EmptyChain)?)?;
        if chain.len() > MAX_CHAIN_CERTIFICATES {
            return Err(CredentialError::ChainTooLong);
        }
        verify_chain(&chain, &roots, leaf.peer.not_before)
            .map_err(CredentialError::UntrustedChain)?;
        let ca_generation = compute_ca_generation(&chain, &roots, leaf.peer.not_before);
        let certified_key = CertifiedKey::from_der(chain, key.to_der(), &crypto_provider())
            .map_err(CredentialError::KeyMismatch)?;
        let certified_key = Arc::new(certified_key);
        Ok(Self {
            key,
            resolver: Arc::new(SingleCertAndKey::from(Arc::clone(&certified_key))),
            certified_key,
            roots,
            leaf,
            ca_generation,
        })
    }

    /// Returns the holder's identity.
    #[must_use]
    pub fn id(&self) -> &SpiffeId {
        &self.leaf.peer.id
    }

    /// Returns the workload named in the certificate; `None` for the control plane.
    #[must_use]
    pub fn workload(&self) -> Option<&WorkloadName> {
        self.leaf.peer.workload.as_ref()
    }

    /// Returns the certificate chain, the holder's own first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified_key.cert
    }

    /// Returns the roots that the holder trusts.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Returns the CA generation, which identifies the CA's signing key and the trusted roots. It equals
    /// [`crate::Authority::ca_generation`] if the authority still has the signing key and the roots of this credential.
    #[must_use]
    pub fn ca_generation(&self) -> u64 {
        self.ca_generation
    }

    /// Returns the start of the certificate's validity.
    #[must_use]
    pub fn not_before(&self) -> SystemTime {
        self.leaf.peer.not_before
    }

    /// Returns the end of the certificate's validity.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.leaf.peer.not_after
    }

    /// Returns the time at which the certificate was issued.
    #[must_use]
    pub fn issue_time(&self) -> SystemTime {
        self.leaf.peer.issue_time()
    }

    /// Returns the renewal time: 40 to 50 % of the lifetime after issue, depending on `random`, so that proxies
    /// started together do not renew together. An outage of half a lifetime is tolerated.
    #[must_use]
    pub fn renewal_time(&self, random: u64) -> SystemTime {
        let issue_time = self.issue_time();
        let lifetime = self.not_after().duration_since(issue_time).unwrap_or_default();
        let half_lifetime = lifetime / 2;
        let fraction = f64::from((random >> 32) as u32) / f64::from(u32::MAX);
        issue_time + half_lifetime.mul_f64(0.8 + 0.2 * fraction)
    }

    /// True if the certificate has expired, so that peers reject it.
    #[must_use]
    pub fn is_expired(&self, now: SystemTime) -> bool {
        now >= self.not_after()
    }

    /// Writes the credential into a directory, readable by its owner only; each file atomically.
    ///
    /// # Errors
    /// An I/O error if the directory cannot be created or written.
    pub fn save(&self, directory: &Path) -> io::Result<()> {
        create_private_directory(directory)?;
        // The roots are written first: after a crash in between, the old certificate is used with the new
        // roots, which overlap with the old ones. Key and chain are one file, so they always match.
        let roots = self.roots.to_pem();
        disk::replace(&directory.join(ROOTS_FILE), roots.as_bytes(), FileAccess::AllUsers)?;
        let mut credential_pem = self.key.to_pem();
        for certificate in self.chain() {
            write_pem(&mut credential_pem, CERTIFICATE_LABEL, certificate);
        }
        disk::replace(
            &directory.join(CREDENTIAL_FILE),
            credential_pem.as_bytes(),
            FileAccess::Owner,
        )
    }

    /// True unless a file written by [`Credential::save`] is missing.
    #[must_use]
    pub fn is_saved(directory: &Path) -> bool {
        let is_missing = |name: &str| {
            let metadata = std::fs::symlink_metadata(directory.join(name));
            metadata.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        !is_missing(CREDENTIAL_FILE) && !is_missing(ROOTS_FILE)
    }

    /// Reads the files written by [`Credential::save`]; `None` if the credential file is missing. The credential may
    /// have expired.
    ///
    /// # Errors
    /// [`CredentialError`] if a file cannot be read, others may read the key, or key, chain and roots do not match.
    pub fn load(directory: &Path) -> Result<Option<Self>, CredentialError> {
        let Some(credential_pem) = disk::read(&directory.join(CREDENTIAL_FILE), FileAccess::Owner)?
        else {
            return Ok(None);
        };
        if credential_pem.is_empty() {
            return Err(CredentialError::EmptyFile);
        }
        let roots_pem = disk::read(&directory.join(ROOTS_FILE), FileAccess::AllUsers)?
            .ok_or(CredentialError::RootsMissing)?;
        let key = PrivateKey::from_pem(&credential_pem).map_err(|_| CredentialError::KeyMissing)?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(credential_pem.as_bytes())
            // One more than the maximum, so that `new` rejects a chain that is too long.
            .take(MAX_CHAIN_CERTIFICATES + 1)
            .collect::<Result<_, _>>()?;
        let bundle = CertificateBundle::new(chain, Roots::from_pem(&roots_pem)?)?;
        Self::new(key, bundle).map(Some)
    }

    /// Returns the resolver for TLS configurations.
    pub(crate) fn cert_resolver(&self) -> Arc<SingleCertAndKey> {
        Arc::clone(&self.resolver)
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("id", self.id())
            .field("workload", &self.workload())
            .field("not_after", &self.not_after())
            .finish_non_exhaustive()
    }
}

/// The reason that a key, a chain and roots are not a credential.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The directory or a file in it cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The chain is empty.
    #[error("the certificate chain is empty")]
    EmptyChain,
    /// The chain is longer than any chain of a mesh.
    #[error("the certificate chain has more than {MAX_CHAIN_CERTIFICATES} certificates")]
    ChainTooLong,
    /// The certificate has no identity of a mesh member.
    #[error("the certificate is not that of a mesh member")]
    InvalidCertificate(#[from] VerifyError),
    /// The certificate is for another key.
    #[error("the certificate is not for this private key")]
    KeyMismatch(#[source] rustls::Error),
    /// Peers would reject the chain.
    #[error("the certificate chain does not end at a trusted root")]
    UntrustedChain(#[source] rustls::Error),
    /// The trust bundle is invalid.
    #[error(transparent)]
    Roots(#[from] RootsError),
    /// The saved credential has no trust bundle.
    #[error("`{CREDENTIAL_FILE}` exists but `{ROOTS_FILE}` does not: remove both and join again")]
    RootsMissing,
    /// The saved credential is empty, as after a write to a full disk.
    #[error(
        "`{CREDENTIAL_FILE}` is empty and contains no P-256 private key: remove it and join again"
    )]
    EmptyFile,
    /// The saved credential has no key.
    #[error("`{CREDENTIAL_FILE}` contains no P-256 private key: remove it and join again")]
    KeyMissing,
    /// The saved credential is damaged.
    #[error("`{CREDENTIAL_FILE}` is not valid PEM: remove it and join again")]
    InvalidPem(#[from] pem::Error),
}

/// Computes the CA generation of a chain that ends at one of these roots. The second certificate of the chain issued the
/// first; in a chain of one certificate, the issuer is the root that verifies it.
fn compute_ca_generation(
    chain: &[CertificateDer<'static>],
    roots: &Roots,
    verification_time: SystemTime,
) -> u64 {
    let root_certificates = roots.certificates();
    let verifies_chain = |root: &&CertificateDer<'static>| {
        let root = Roots::new(vec![(*root).clone()]);
        // A single root has verified the chain before.
        root_certificates.len() == 1
            || root.is_ok_and(|root| verify_chain(chain, &root, verification_time).is_ok())
    };
    let issuer_der = chain.get(1).or_else(|| root_certificates.iter().find(verifies_chain));
    let issuer = issuer_der.and_then(|der| x509_parser::parse_x509_certificate(der).ok());
    let issuer_key = issuer.map(|(_, issuer)| issuer.public_key().subject_public_key.data.to_vec());
    ca_generation(&issuer_key.unwrap_or_default(), roots)
}

/// Returns a hash of the CA's public signing key and the trusted roots; never 0, which means an unknown generation in
/// snapshots.
pub(crate) fn ca_generation(signing_public_key: &[u8], roots: &Roots) -> u64 {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(signing_public_key);
    for root in roots.certificates() {
        hash.update(root);
    }
    let digest = hash.finish();
    let prefix = digest.as_ref().first_chunk::<8>().copied().unwrap_or_default();
    u64::from_be_bytes(prefix).max(1)
}

/// Verifies an issued certificate as a member of an older release does: any of the roots may be its issuer, even if
/// only intermediates may sign for members.
pub(crate) fn verify_with_full_store(
    bundle: &CertificateBundle,
    roots: &Roots,
) -> Result<(), rustls::Error> {
    let store = roots.full_store().unwrap_or_else(|| roots.member_store());
    verify_with_store(&bundle.chain, store, bundle.not_before)
}

/// Verifies a chain as current members do: only the roots that may sign for members are trusted.
fn verify_chain(
    chain: &[CertificateDer<'static>],
    roots: &Roots,
    verification_time: SystemTime,
) -> Result<(), rustls::Error> {
    verify_with_store(chain, roots.member_store(), verification_time)
}

fn verify_with_store(
    chain: &[CertificateDer<'static>],
    store: &RootCertStore,
    verification_time: SystemTime,
) -> Result<(), rustls::Error> {
    let Some((leaf, intermediates)) = chain.split_first() else {
        return Err(rustls::Error::NoCertificatesPresented);
    };
    let since_epoch: Duration = verification_time.duration_since(UNIX_EPOCH).unwrap_or_default();
    verify_server_cert_signed_by_trust_anchor(
        &ParsedCertificate::try_from(leaf)?,
        store,
        intermediates,
        UnixTime::since_unix_epoch(since_epoch),
        crypto_provider().signature_verification_algorithms.all,
    )
}

/// The time by which certificates are backdated, for peers with slow clocks.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Maximum length of a chain: a leaf, three intermediates (more than corporate CAs use), and two cross-certificates
/// of former intermediates.
const MAX_CHAIN_CERTIFICATES: usize = 6;

/// The file of the private key and the certificate chain.
const CREDENTIAL_FILE: &str = "credential.pem";
/// The file of the trust bundle.
const ROOTS_FILE: &str = "roots.pem";

#[cfg(test)]
mod tests;
