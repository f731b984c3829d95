//! Faults that are injected on purpose: delays, and answers in place of the upstream's.

use std::time::Duration;

use crate::access_policy::PeerMatch;
use crate::breaker::FixedAnswer;
use crate::identity::ServiceAccount;
use crate::route::RequestMatch;
use crate::service_policy::ServicePolicyName;

/// The faults of requests to a port, and who said so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Faults {
    /// The policy.
    pub policy: ServicePolicyName,
    /// Its rules, in the order of the document: the first that fits a request decides.
    pub rules: Vec<FaultRule>,
}

/// What happens to which requests. At least one of the two faults is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FaultRule {
    /// Its own name, or its place in the document, such as `rules[0]`.
    pub name: String,
    /// What is asked, any of these; everything when empty.
    pub requests: Vec<RequestMatch>,
    /// Who calls, any of these; everybody when empty.
    pub peers: Vec<PeerMatch>,
    /// Requests wait.
    pub delay: Option<Delay>,
    /// Requests are answered and go nowhere.
    pub abort: Option<Abort>,
}

impl FaultRule {
    /// Whether it is about requests of this caller.
    #[must_use]
    pub fn names(&self, caller: &ServiceAccount) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|peer| peer.fits(caller))
    }
}

/// A share of requests waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Delay {
    /// Their share, in millionths.
    pub share_ppm: u32,
    /// How long, at most [`Delay::TIME_MAX`].
    pub time: Duration,
}

impl Delay {
    /// The longest delay: what waits holds its connection.
    pub const TIME_MAX: Duration = Duration::from_secs(600);
}

/// A share of requests is answered by the client's own sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Abort {
    /// Their share, in millionths.
    pub share_ppm: u32,
    /// What is answered.
    pub answer: FixedAnswer,
    /// The status that a call of gRPC gets, 1 to 16; when absent that which stands for the status.
    pub grpc: Option<u8>,
}

impl Abort {
    /// True when no request passes.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.share_ppm >= 1_000_000
    }
}
