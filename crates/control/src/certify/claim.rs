//! Checks if a certificate permits its holder to act for a workload, and selects the instance for the renewed
//! certificate. An instance is a pod's UID or the number of a registration: it distinguishes successive holders of one
//! workload name.

use std::time::SystemTime;

use leno_identity::VerifiedPeer;
use leno_model::{Instance, SpiffeId, TrustDomain, Workload, WorkloadName};

/// The fields of the previous certificate that its renewal depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreviousCertificate {
    /// `None` in certificates of older releases.
    pub(crate) instance: Option<Instance>,
    pub(crate) issued_at: SystemTime,
}

impl PreviousCertificate {
    pub(crate) fn from_peer(peer: &VerifiedPeer) -> Self {
        Self { instance: peer.instance.clone(), issued_at: peer.issue_time() }
    }
}

/// Returns the instance for the renewed certificate: the instance of the previous certificate, which must be the
/// workload's current instance.
///
/// Certificates of older releases have no instance. Their renewal adds the current instance, so that two
/// releases work together, unless the workload has joined again since the certificate was issued.
pub(super) fn renewed_instance(
    workload: &WorkloadName,
    previous_certificate: &PreviousCertificate,
    current: &Instance,
) -> Result<Instance, ClaimError> {
    let other_instance = |held: String| ClaimError::OtherInstance {
        workload: workload.clone(),
        held,
        current: current.clone(),
    };
    match (&previous_certificate.instance, current) {
        (None, Instance::Registration(registration))
            if was_issued_before(previous_certificate.issued_at, *registration) =>
        {
            Err(other_instance("none".to_owned()))
        }
        (None, current) => Ok(current.clone()),
        // The record of an old registration may have been removed, or a backup restored.
        (Some(Instance::Registration(held)), Instance::Registration(newest)) if held >= newest => {
            Ok(Instance::Registration(*held))
        }
        (Some(held), current) if held == current => Ok(current.clone()),
        (Some(held), _) => Err(other_instance(held.to_string())),
    }
}

/// True if a certificate was issued before a registration. The number of a registration is its time in milliseconds
/// since 1970, and certificates have whole seconds.
fn was_issued_before(issued_at: SystemTime, registration: u64) -> bool {
    let issued_since_epoch = issued_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    issued_since_epoch.as_secs() < registration / 1000
}

/// Verifies that a certificate authorizes its holder to act for a workload: it must match the workload, its
/// current account and its current instance.
///
/// # Errors
/// Returns a [`ClaimError`], worded for the operator of the proxy.
pub(crate) fn verify_claim(
    peer: &VerifiedPeer,
    claimed: &WorkloadName,
    workload: Option<(&Workload, &Instance)>,
    trust_domain: &TrustDomain,
) -> Result<(), ClaimError> {
    if peer.workload.as_ref() != Some(claimed) {
        return Err(ClaimError::OtherWorkload {
            claimed: claimed.clone(),
            held: peer.workload.as_ref().map(ToString::to_string).unwrap_or_default(),
        });
    }
    let Some((workload, instance)) = workload else {
        return Err(ClaimError::UnknownWorkload(claimed.clone()));
    };
    let expected =
        SpiffeId { trust_domain: trust_domain.clone(), account: workload.account.clone() };
    if peer.id != expected {
        return Err(ClaimError::OtherIdentity {
            workload: claimed.clone(),
            held: Box::new(peer.id.clone()),
            expected: Box::new(expected),
        });
    }
    renewed_instance(claimed, &PreviousCertificate::from_peer(peer), instance).map(drop)
}

/// The reason why a proxy may not act for a workload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("the certificate was issued to workload `{held}`, not {claimed}")]
    OtherWorkload { claimed: WorkloadName, held: String },
    #[error("there is no Workload {0}: create it, or use the name of one that exists")]
    UnknownWorkload(WorkloadName),
    #[error(
        "workload {workload} runs as {expected}, but the certificate was issued to {held}: join again \
         with a new token"
    )]
    OtherIdentity { workload: WorkloadName, held: Box<SpiffeId>, expected: Box<SpiffeId> },
    #[error(
        "workload {workload} was replaced: its instance is now `{current}`, but the certificate was issued to `{held}`; a \
         new pod joins automatically, a proxy outside Kubernetes needs a new token"
    )]
    OtherInstance { workload: WorkloadName, held: String, current: Instance },
}
