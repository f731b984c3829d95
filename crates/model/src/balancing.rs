//! Load balancing policies of service ports.

use std::time::Duration;

use crate::service_policy::ServicePolicyName;

/// The load balancing of a port, and the policy that sets it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortLoadBalancing {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The settings of the policy.
    pub rule: LoadBalancing,
}

/// The load balancing settings of a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LoadBalancing {
    /// The algorithm that selects an endpoint.
    pub algorithm: BalanceAlgorithm,
    /// The slow start of new endpoints; when absent, new endpoints receive their full share immediately. Never
    /// combined with a hash-based algorithm.
    pub slow_start: Option<SlowStart>,
}

/// A load balancing algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BalanceAlgorithm {
    /// Picks `choices` random endpoints, 2 to [`LoadBalancing::MAX_CHOICES`], and selects the one with the lowest
    /// product of requests in progress and response latency. The default, with two choices.
    PeakEwma {
        /// The number of endpoints that are compared.
        choices: u8,
    },
    /// Picks `choices` random endpoints, 2 to [`LoadBalancing::MAX_CHOICES`], and selects the one with the fewest
    /// requests in progress.
    LeastRequest {
        /// The number of endpoints that are compared.
        choices: u8,
    },
    /// Selects the endpoints in turn.
    RoundRobin,
    /// Selects an endpoint uniformly at random.
    Random,
    /// Selects the first endpoint on a hash ring after the hash of the key.
    RingHash(HashKey),
    /// Selects the endpoint in the Maglev table entry for the hash of the key.
    Maglev(HashKey),
}

/// The property of a request that is hashed to select the endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HashKey {
    /// The value of the header with this lower-case name; `:authority` is the host.
    Header(String),
    /// The value of the cookie with this name.
    Cookie(String),
    /// The calling workload: each workload uses one endpoint.
    Source,
}

/// The slow start of a new endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlowStart {
    /// The age at which an endpoint receives its full share.
    pub duration: Duration,
    /// The initial share of requests in percent of the full share, 1 to 100.
    pub min_percent: u8,
}

impl LoadBalancing {
    /// The maximum of `choices`. It bounds the work for one request.
    pub const MAX_CHOICES: u8 = 16;
}

impl BalanceAlgorithm {
    /// Returns the hash key of a hash-based algorithm; `None` for other algorithms.
    #[must_use]
    pub fn hash_key(&self) -> Option<&HashKey> {
        match self {
            Self::RingHash(key) | Self::Maglev(key) => Some(key),
            Self::PeakEwma { .. } | Self::LeastRequest { .. } | Self::RoundRobin | Self::Random => {
                None
            }
        }
    }
}
