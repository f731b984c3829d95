//! Creates join bundles for new proxies: the control planes' addresses, the trust roots and a one-time token.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_identity::{JoinBundle, Tokens};
use leno_model::{TrustDomain, Workload, WorkloadName};
use tokio::sync::watch;

use crate::authority::AuthorityReceiver;

/// Creates join bundles for new proxies, for the admin socket and other commands of this process.
#[derive(Debug)]
pub(crate) struct Invitations {
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) authority: AuthorityReceiver,
    pub(crate) trust_domain: TrustDomain,
    /// The addresses of the control planes that a bundle lists.
    pub(crate) control_addresses: Vec<SocketAddr>,
    /// The default lifetime of a token.
    pub(crate) token_lifetime: Duration,
    /// The workloads of the mesh: only they can be invited.
    pub(crate) workloads: watch::Receiver<Arc<Vec<Workload>>>,
}

impl Invitations {
    /// Creates a bundle with a new one-time token, valid for this workload only. Without a `lifetime`, the token has
    /// the default lifetime.
    pub(crate) fn create_bundle(
        &self,
        workload: &WorkloadName,
        lifetime: Option<Duration>,
        now: SystemTime,
    ) -> Result<JoinBundle, InviteError> {
        let exists = self.workloads.borrow().iter().any(|existing| existing.name == *workload);
        if !exists {
            return Err(InviteError::UnknownWorkload(workload.clone()));
        }
        Ok(JoinBundle {
            token: self.tokens.issue_token(
                workload,
                lifetime.unwrap_or(self.token_lifetime),
                now,
            )?,
            control_addresses: self.control_addresses.clone(),
            trust_domain: self.trust_domain.clone(),
            roots: self.authority.borrow().roots(),
        })
    }
}

/// The reason why no join bundle is created.
#[derive(Debug, thiserror::Error)]
pub enum InviteError {
    /// The workload does not exist.
    #[error("there is no Workload {0}: create it first")]
    UnknownWorkload(WorkloadName),
    /// The directory of tokens cannot be used, or the lifetime is invalid.
    #[error("cannot create the join token: {0}")]
    Tokens(#[from] io::Error),
}
