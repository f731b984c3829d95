//! Extracts the peer from an end-entity certificate: exactly one SPIFFE id, and optionally the workload and its instance.
//! The verifiers in `verifier` verify the chain.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_model::{ExternalPrincipalId, Instance, InvalidName, SpiffeId, TrustDomain, WorkloadName};
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::OID_X509_SERIALNUMBER;
use x509_parser::time::ASN1Time;

use crate::credential::CLOCK_SKEW;
use crate::roots::Roots;
use crate::verifier::chains_to_mesh_authority;

/// The verified peer of a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VerifiedPeer {
    /// The identity of the peer.
    pub id: SpiffeId,
    /// The workload of the peer, if the certificate names it.
    pub workload: Option<WorkloadName>,
    /// The Pod or registration of the workload, if the certificate contains it. Certificates of older releases
    /// do not.
    pub instance: Option<Instance>,
    /// The start of the validity of the peer's certificate.
    pub not_before: SystemTime,
    /// The end of the validity of the peer's certificate.
    pub not_after: SystemTime,
}

impl VerifiedPeer {
    /// Returns the time of issue: `not_before` plus the time by which certificates are backdated for slow clocks.
    #[must_use]
    pub fn issue_time(&self) -> SystemTime {
        (self.not_before + CLOCK_SKEW).min(self.not_after)
    }
}

/// Returns the peer of an established session, from the session's certificates; `None` if the peer presented no
/// certificate, which only configurations with optional client certificates allow.
///
/// A resumed session is not verified again: it keeps the certificate of the previous session. The expiry is
/// therefore checked here again, and `now` is an argument.
///
/// # Errors
/// [`VerifyError`] if the certificate has expired, or is not a mesh member's.
pub fn session_peer(
    certificates: Option<&[CertificateDer<'_>]>,
    now: SystemTime,
) -> Result<Option<VerifiedPeer>, VerifyError> {
    let Some(certificate) = certificates.and_then(<[_]>::first) else {
        return Ok(None);
    };
    let leaf = LeafCertificate::read(certificate)?;
    if now >= leaf.peer.not_after {
        return Err(VerifyError::Expired);
    }
    Ok(Some(leaf.peer))
}

/// True if the session's certificates chain to the mesh's own authority. If that is an intermediate of an external
/// root, a client with a certificate of another intermediate may be accepted as an external client.
#[must_use]
pub fn is_member_chain(roots: &Roots, chain: &[CertificateDer<'_>], now: SystemTime) -> bool {
    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    chains_to_mesh_authority(roots, chain, UnixTime::since_unix_epoch(since_epoch))
}

/// The reason that a certificate is not the expected peer's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The certificate cannot be parsed.
    #[error("the certificate is malformed")]
    Malformed,
    /// The certificate does not have exactly one URI name, as SPIFFE requires.
    #[error("the certificate has {count} URI names; a SPIFFE certificate has exactly one")]
    UriCount {
        /// The number of URI names.
        count: usize,
    },
    /// The URI is not an identity of this mesh.
    #[error("the certificate's URI is not `spiffe://<trust domain>/ns/<namespace>/sa/<account>`")]
    InvalidUri(#[source] InvalidName),
    /// The certificate is valid, but of another trust domain.
    #[error("the peer is `{found}`, of another trust domain than `{expected}`")]
    ForeignTrustDomain {
        /// The identity of the peer.
        found: SpiffeId,
        /// The accepted trust domain.
        expected: TrustDomain,
    },
    /// The peer is an external principal of another trust domain.
    #[error("the peer is the external client `{found}`, of another trust domain than `{expected}`")]
    ForeignExternalPrincipal {
        /// The identity of the peer.
        found: ExternalPrincipalId,
        /// The accepted trust domain.
        expected: TrustDomain,
    },
    /// The certificate of an external principal has no name, or an invalid name.
    #[error("the certificate of an external client has no DNS name, or an invalid one")]
    ExternalPrincipalNames,
    /// The certificate chains to the external root, but not to the mesh's own intermediate.
    #[error(
        "the certificate of `{found}` was signed by another intermediate CA below the same root: only the CA of the mesh may \
         sign certificates of members"
    )]
    OtherIssuer {
        /// The identity in the certificate.
        found: SpiffeId,
    },
    /// The peer is another mesh member than the expected member.
    #[error("the peer is `{found}`, not `{expected}`")]
    WrongIdentity {
        /// The identity of the peer.
        found: SpiffeId,
        /// The expected identity.
        expected: SpiffeId,
    },
    /// The certificate of the peer expired, possibly during a session or before its resumption.
    #[error("the peer's certificate has expired since its session began")]
    Expired,
}

/// The holder in an end-entity certificate, the leaf of a chain. It is not verified here: webpki verifies the chain, before
/// or at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeafCertificate {
    pub(crate) peer: VerifiedPeer,
}

impl LeafCertificate {
    /// Parses the certificate.
    ///
    /// # Errors
    /// [`VerifyError`] if it is malformed, or does not have exactly one URI name, which must be a SPIFFE id of a member.
    pub(crate) fn read(der: &CertificateDer<'_>) -> Result<Self, VerifyError> {
        let (trailing_bytes, certificate) =
            x509_parser::parse_x509_certificate(der).map_err(|_| VerifyError::Malformed)?;
        if !trailing_bytes.is_empty() {
            return Err(VerifyError::Malformed);
        }
        let validity = certificate.validity();
        let peer = VerifiedPeer {
            id: sole_uri(&certificate)?.parse().map_err(VerifyError::InvalidUri)?,
            workload: sole_workload(&certificate),
            instance: sole_instance(&certificate),
            not_before: to_system_time(validity.not_before)?,
            not_after: to_system_time(validity.not_after)?,
        };
        Ok(Self { peer })
    }
}

/// Returns the only URI among the certificate's alternative names; other kinds of names are ignored.
pub(crate) fn sole_uri<'a>(certificate: &'a X509Certificate<'_>) -> Result<&'a str, VerifyError> {
    let names = certificate.subject_alternative_name().map_err(|_| VerifyError::Malformed)?;
    let uris: Vec<&str> = names
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        })
        .collect();
    match uris.as_slice() {
        [uri] => Ok(uri),
        uris => Err(VerifyError::UriCount { count: uris.len() }),
    }
}

/// Converts a time in a certificate.
///
/// # Errors
/// [`VerifyError::Malformed`] if the time is before 1970 or too late for the system.
pub(crate) fn to_system_time(time: ASN1Time) -> Result<SystemTime, VerifyError> {
    let seconds = u64::try_from(time.timestamp()).map_err(|_| VerifyError::Malformed)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).ok_or(VerifyError::Malformed)
}

/// Returns the workload in the common name; `None` without exactly one common name of this form. Leno's authority writes
/// `namespace/name`; other CAs may write any text.
fn sole_workload(certificate: &X509Certificate<'_>) -> Option<WorkloadName> {
    let mut common_names = certificate.subject().iter_common_name();
    let common_name = common_names.next()?;
    match common_names.next() {
        None => common_name.as_str().ok()?.parse().ok(),
        Some(_) => None,
    }
}

/// Returns the instance in the subject's serial number; `None` without exactly one serial number of this form. Leno's
/// authority writes the instance; other CAs may write any text.
fn sole_instance(certificate: &X509Certificate<'_>) -> Option<Instance> {
    let mut serial_numbers = certificate.subject().iter_by_oid(&OID_X509_SERIALNUMBER);
    let serial_number = serial_numbers.next()?;
    match serial_numbers.next() {
        None => serial_number.as_str().ok()?.parse().ok(),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{DnType, SanType};

    use super::*;
    use crate::testing::{TestAuthority, now, workload_id, workload_name};

    #[test]
    fn the_peer_is_the_subject_that_the_authority_signed() {
        let fixture = TestAuthority::new("cluster.local");
        let credential = fixture.issue_credential(&workload_id("ratings"));
        let peer = session_peer(Some(credential.chain()), now()).unwrap().unwrap();
        assert_eq!(peer.id, workload_id("ratings"));
        assert_eq!(peer.workload, Some(workload_name("ratings-1")));
        assert_eq!(peer.not_after, credential.not_after());
    }

    #[test]
    fn a_session_without_certificates_has_no_peer() {
        assert_eq!(session_peer(None, now()), Ok(None));
        assert_eq!(session_peer(Some(&[]), now()), Ok(None));
    }

    #[test]
    fn an_established_session_ends_with_its_certificate() {
        let fixture = TestAuthority::new("cluster.local");
        let credential = fixture.issue_credential(&workload_id("ratings"));
        let end = credential.not_after();
        let before = end - Duration::from_secs(1);
        assert!(session_peer(Some(credential.chain()), before).is_ok());
        assert_eq!(session_peer(Some(credential.chain()), end), Err(VerifyError::Expired));
    }

    #[test]
    fn exactly_one_valid_spiffe_uri_is_required() {
        let uri = |text: &str| SanType::URI(text.try_into().unwrap());
        let valid = || uri("spiffe://cluster.local/ns/bookinfo/sa/ratings");
        let dns = SanType::DnsName("ratings.bookinfo".try_into().unwrap());
        let fixture = TestAuthority::new("cluster.local");
        let read = |names: Vec<SanType>| {
            let (chain, _) =
                fixture.forge_certificate(|parameters| parameters.subject_alt_names = names);
            LeafCertificate::read(&chain[0]).map(|leaf| leaf.peer.id)
        };
        assert_eq!(read(vec![valid()]), Ok(workload_id("ratings")));
        assert_eq!(read(vec![dns.clone(), valid()]), Ok(workload_id("ratings")));
        for (names, count) in [(vec![], 0), (vec![dns], 0), (vec![valid(), valid()], 2)] {
            assert_eq!(read(names), Err(VerifyError::UriCount { count }));
        }
        for invalid in [
            "https://cluster.local/ns/bookinfo/sa/ratings",
            "spiffe://cluster.local/ns/bookinfo/sa/ratings/",
            "spiffe://cluster.local/ns/bookinfo/sa/ratings?x",
            "spiffe://cluster.local:1/ns/bookinfo/sa/ratings",
            "SPIFFE://cluster.local/ns/bookinfo/sa/ratings",
        ] {
            assert!(
                matches!(read(vec![uri(invalid)]), Err(VerifyError::InvalidUri(_))),
                "{invalid}"
            );
        }
    }

    #[test]
    fn a_common_name_that_is_not_a_workload_is_ignored() {
        let fixture = TestAuthority::new("cluster.local");
        for name in ["Example Ltd", "a/b/c", ""] {
            let (chain, _) = fixture.forge_certificate(|parameters| {
                parameters.distinguished_name.push(DnType::CommonName, name);
            });
            assert_eq!(LeafCertificate::read(&chain[0]).unwrap().peer.workload, None, "{name}");
        }
    }

    #[test]
    fn damaged_certificates_never_cause_a_panic() {
        let fixture = TestAuthority::new("cluster.local");
        let credential = fixture.issue_credential(&workload_id("ratings"));
        let valid = credential.chain()[0].to_vec();
        for index in 0..valid.len() {
            let truncated = CertificateDer::from(valid[..index].to_vec());
            assert_eq!(LeafCertificate::read(&truncated), Err(VerifyError::Malformed));
            for bit in 0..8 {
                let mut changed = valid.clone();
                changed[index] ^= 1 << bit;
                drop(LeafCertificate::read(&CertificateDer::from(changed)));
            }
        }
    }
}
