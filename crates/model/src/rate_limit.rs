//! Rate limits: how much may come in at a port in a time, and be under way there, as the server's
//! sidecar counts it.

use std::time::Duration;

use crate::access_policy::PeerMatch;
use crate::breaker::FixedAnswer;
use crate::decider::GlobalLimit;
use crate::identity::ServiceAccount;
use crate::route::RequestMatch;
use crate::service_policy::ServicePolicyName;

/// What may come in at a port, and who said so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortLimits {
    /// The policy.
    pub policy: ServicePolicyName,
    /// What it says.
    pub limits: RateLimits,
}

/// How much may come in at a port in a time, and be under way there. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RateLimits {
    /// Opaque connections. Requests share a link, which this does not bound.
    pub connections: Option<Rate>,
    /// Requests, in the order of the document: all that fit must have room.
    pub rules: Vec<RateRule>,
    /// Requests that are under way at once.
    pub concurrency: Option<Concurrency>,
    /// What a rate limit service is asked about requests that have room under these rules.
    pub global: Option<Box<GlobalLimit>>,
}

impl RateLimits {
    /// Whether nothing is bounded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { connections, rules, concurrency, global } = self;
        connections.is_none() && rules.is_empty() && concurrency.is_none() && global.is_none()
    }
}

/// How many requests may be under way at once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Concurrency {
    /// So many, at least 1 and at most [`Rate::COUNT_MAX`].
    pub requests: u32,
    /// Fewer, where the application answers slower than it can; never when absent.
    pub adaptive: Option<AdaptiveConcurrency>,
    /// What is answered to those that are too many.
    pub answer: FixedAnswer,
}

/// How a number of requests follows what an application can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdaptiveConcurrency {
    /// So many at least, from 1 to the most.
    pub least: u32,
    /// By how many percent answers may take longer than those of an application that has little to do.
    pub slower_percent: u16,
}

/// Which requests are counted, and how many of them may come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RateRule {
    /// Its own name, or its place in the document, such as `rules[0]`.
    pub name: String,
    /// What is asked, any of these; everything when empty.
    pub requests: Vec<RequestMatch>,
    /// Who calls, any of these; everybody when empty.
    pub peers: Vec<PeerMatch>,
    /// What has a bucket of its own.
    pub each: Each,
    /// How many may come.
    pub rate: Rate,
    /// Whether rules after it are not asked about what it fits.
    pub is_last: bool,
    /// What is answered to those that are too many.
    pub answer: FixedAnswer,
}

impl RateRule {
    /// Whether it is about this caller; `None` is one that proved no identity.
    #[must_use]
    pub fn names(&self, caller: Option<&ServiceAccount>) -> bool {
        let named = |account| self.peers.iter().any(|peer| peer.fits(account));
        self.peers.is_empty() || caller.is_some_and(named)
    }
}

/// What has a bucket of its own under one rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Each {
    /// All requests have one together.
    #[default]
    Nothing,
    /// Every account that calls; who proved no identity shares one.
    Client {
        /// How many buckets are remembered at least, those used last; at least 1.
        buckets: u32,
    },
    /// Every value of a header; requests without it share one.
    Header {
        /// Its name, in lower case.
        name: String,
        /// How many buckets are remembered at least, those used last; at least 1.
        buckets: u32,
    },
}

/// A token bucket: it holds `size` tokens at most and gets `count` of them evenly over `time`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// How many tokens it gets, at least 1.
    pub count: u32,
    /// In which time; from a second to a day.
    pub time: Duration,
    /// How many it holds, at least 1: so many may come at once.
    pub size: u32,
}

impl Rate {
    /// The shortest time: tokens of a bucket are a microsecond apart at least.
    pub const TIME_MIN: Duration = Duration::from_secs(1);
    /// The longest time.
    pub const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
    /// The most tokens that a bucket gets.
    pub const COUNT_MAX: u32 = 1_000_000;
    /// The most tokens that a bucket holds.
    pub const SIZE_MAX: u32 = 2_000_000;
    /// The most buckets of one rule.
    pub const BUCKETS_MAX: u32 = 100_000;
}
