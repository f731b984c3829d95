//! Load balancing: by which rule an endpoint is chosen.

use std::time::Duration;

use crate::service_policy::ServicePolicyName;

/// How an endpoint of a port is chosen, and who said so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Balancing {
    /// The policy.
    pub policy: ServicePolicyName,
    /// What it says.
    pub rule: LoadBalancing,
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LoadBalancing {
    /// By which algorithm.
    pub algorithm: BalanceAlgorithm,
    /// How endpoints that are new get their full share; at once when absent. Never beside an
    /// algorithm that hashes.
    pub warm_up: Option<WarmUp>,
}

/// An algorithm that chooses endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BalanceAlgorithm {
    /// The one with the least of requests under way times how long it takes to answer, of so many
    /// that are drawn: 2 to [`LoadBalancing::CHOICES_MAX`]. With two, what is done where no policy
    /// says anything.
    PeakEwma {
        /// How many are drawn.
        choices: u8,
    },
    /// The one with the fewest requests under way, of so many that are drawn: 2 to
    /// [`LoadBalancing::CHOICES_MAX`].
    LeastRequest {
        /// How many are drawn.
        choices: u8,
    },
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// The first on a ring after the hash of a key.
    RingHash(HashKey),
    /// The one that the key's place in a table belongs to.
    Maglev(HashKey),
}

/// What is hashed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HashKey {
    /// The value of this header, in lower case; `:authority` is the host.
    Header(String),
    /// The value of this cookie.
    Cookie(String),
    /// The workload that calls: each keeps to one endpoint.
    Source,
}

/// How an endpoint that is new gets its full share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarmUp {
    /// How long it takes.
    pub time: Duration,
    /// With how much of its share it begins, percent, 1 to 100.
    pub percent_min: u8,
}

impl LoadBalancing {
    /// The most endpoints that are compared.
    pub const CHOICES_MAX: u8 = 16;
}

impl BalanceAlgorithm {
    /// What it hashes, if it does.
    #[must_use]
    pub fn key(&self) -> Option<&HashKey> {
        match self {
            Self::RingHash(key) | Self::Maglev(key) => Some(key),
            Self::PeakEwma { .. } | Self::LeastRequest { .. } | Self::RoundRobin | Self::Random => {
                None
            }
        }
    }
}
