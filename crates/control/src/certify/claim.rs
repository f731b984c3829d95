//! Claims of certificates: the workload that they speak for, and the instance of the certificate after them.

use std::time::SystemTime;

use leno_identity::Peer;
use leno_model::{Instance, SpiffeId, TrustDomain, Workload, WorkloadName};

/// The last certificate of a holder, as far as its next one depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) instance: Option<Instance>,
    pub(crate) issued: SystemTime,
}

impl Held {
    pub(crate) fn of(peer: &Peer) -> Self {
        Self { instance: peer.instance.clone(), issued: peer.issued() }
    }
}

/// The instance of the next certificate of a holder: the one of its last certificate, which must be the one that
/// the workload is now.
///
/// A certificate of an older release has none. It is renewed into one that has, until it expires, so that two releases
/// work together; but not when its workload has joined again since it was issued.
pub(super) fn renewed(
    workload: &WorkloadName,
    held: &Held,
    current: &Instance,
) -> Result<Instance, ClaimError> {
    let former = |held: String| ClaimError::OtherInstance {
        workload: workload.clone(),
        held,
        current: current.clone(),
    };
    match (&held.instance, current) {
        (None, Instance::Registration(newest)) if is_before(held.issued, *newest) => {
            Err(former("none".to_owned()))
        }
        (None, current) => Ok(current.clone()),
        // The record of an old registration may have been removed, and a backup been restored.
        (Some(Instance::Registration(held)), Instance::Registration(newest)) if held >= newest => {
            Ok(Instance::Registration(*held))
        }
        (Some(held), current) if held == current => Ok(current.clone()),
        (Some(held), _) => Err(former(held.to_string())),
    }
}

/// True when a certificate was issued before a registration: those are numbered by milliseconds, and certificates say
/// whole seconds.
fn is_before(issued: SystemTime, registration: u64) -> bool {
    let since = issued.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() < registration / 1000
}

/// Vouches that a certificate lets its holder speak for a workload: it must be that workload's, of
/// the account that the workload runs under now, and of the instance that it is now.
///
/// # Errors
/// [`ClaimError`], in words for whoever operates the proxy.
pub(crate) fn vouch(
    peer: &Peer,
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
    renewed(claimed, &Held::of(peer), instance).map(drop)
}

/// Why a proxy may not speak for a workload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("the certificate is that of workload `{held}` and not of {claimed}")]
    OtherWorkload { claimed: WorkloadName, held: String },
    #[error("there is no Workload {0}: create it, or use the name of one that exists")]
    UnknownWorkload(WorkloadName),
    #[error(
        "workload {workload} runs as {expected} and the certificate is for {held}: join again \
         with a new token"
    )]
    OtherIdentity { workload: WorkloadName, held: Box<SpiffeId>, expected: Box<SpiffeId> },
    #[error(
        "workload {workload} has been replaced: it is `{current}` now, and the certificate is of \
         instance `{held}`; the new pod joins by itself, a proxy outside Kubernetes with a new token"
    )]
    OtherInstance { workload: WorkloadName, held: String, current: Instance },
}
