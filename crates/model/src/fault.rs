//! Fault injection: delays of requests, and responses that the client's sidecar sends instead of forwarding.

use std::time::Duration;

use crate::access_policy::PeerMatch;
use crate::circuit_breaker::FixedResponse;
use crate::identity::ServiceAccount;
use crate::route::RequestMatch;
use crate::service_policy::ServicePolicyName;

/// The faults of requests to a port, and the policy that sets them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortFaults {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The rules in document order; the first match decides.
    pub rules: Vec<FaultRule>,
}

/// A fault rule. At least one of `delay` and `abort` is set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FaultRule {
    /// The name of the rule, or its index in the document, such as `rules[0]`.
    pub name: String,
    /// The requests that the rule matches; one matching entry is enough. All requests when empty.
    pub requests: Vec<RequestMatch>,
    /// The callers that the rule matches; one matching entry is enough. All callers when empty.
    pub peers: Vec<PeerMatch>,
    /// The delay of requests, if any.
    pub delay: Option<FaultDelay>,
    /// The response that aborts requests, if any; aborted requests are not forwarded.
    pub abort: Option<FaultAbort>,
}

impl FaultRule {
    /// True if the rule matches this caller.
    #[must_use]
    pub fn matches_caller(&self, caller: &ServiceAccount) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|peer| peer.matches_account(caller))
    }
}

/// A delay of a share of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FaultDelay {
    /// The share of requests that are delayed, in millionths.
    pub share_ppm: u32,
    /// The length of the delay, at most [`FaultDelay::MAX_DELAY`].
    pub duration: Duration,
}

impl FaultDelay {
    /// The maximum delay: a delayed request holds its connection.
    pub const MAX_DELAY: Duration = Duration::from_secs(600);
}

/// A response from the client's own sidecar to a share of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FaultAbort {
    /// The share of requests that are aborted, in millionths.
    pub share_ppm: u32,
    /// The response to the aborted request.
    pub response: FixedResponse,
    /// The gRPC status of the response to a gRPC request, 1 to 16; derived from the HTTP status when absent.
    pub grpc: Option<u8>,
}

impl FaultAbort {
    /// True if the fault applies to every request.
    #[must_use]
    pub const fn applies_to_all(&self) -> bool {
        self.share_ppm >= 1_000_000
    }
}
