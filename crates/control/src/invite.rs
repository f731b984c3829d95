//! Invitations: what a new proxy needs to find, verify and convince this control plane.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_identity::{JoinBundle, Tokens};
use leno_model::{TrustDomain, Workload, WorkloadName};
use tokio::sync::watch;

use crate::authority::Current;

/// Makes join bundles.
#[derive(Debug)]
pub(crate) struct Invitations {
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) authority: Current,
    pub(crate) trust_domain: TrustDomain,
    /// Where proxies find control planes, as far as that is known.
    pub(crate) control: Vec<SocketAddr>,
    /// How long a token can be used when nobody says.
    pub(crate) lifetime: Duration,
    pub(crate) workloads: watch::Receiver<Arc<Vec<Workload>>>,
}

impl Invitations {
    /// A bundle with a new one-time token, good for this workload only and for `lifetime`.
    pub(crate) fn invite(
        &self,
        workload: &WorkloadName,
        lifetime: Option<Duration>,
        now: SystemTime,
    ) -> Result<JoinBundle, InviteError> {
        let known = self.workloads.borrow().iter().any(|w| w.name == *workload);
        if !known {
            return Err(InviteError::UnknownWorkload(workload.clone()));
        }
        Ok(JoinBundle {
            token: self.tokens.mint(workload, lifetime.unwrap_or(self.lifetime), now)?,
            control: self.control.clone(),
            trust_domain: self.trust_domain.clone(),
            roots: self.authority.borrow().roots(),
        })
    }
}

/// Why there is no join bundle.
#[derive(Debug, thiserror::Error)]
pub enum InviteError {
    /// Nobody to join as.
    #[error("there is no Workload {0}: create it first")]
    UnknownWorkload(WorkloadName),
    /// The directory of tokens, or a lifetime that no token may have.
    #[error("there is no join token: {0}")]
    Tokens(#[from] io::Error),
}
