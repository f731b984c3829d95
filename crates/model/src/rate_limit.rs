//! Rate limits and concurrency limits of inbound traffic, enforced by the server's sidecar.

use std::time::Duration;

use crate::access_policy::PeerMatch;
use crate::check_service::GlobalLimit;
use crate::circuit_breaker::FixedResponse;
use crate::identity::ServiceAccount;
use crate::route::RequestMatch;
use crate::service_policy::ServicePolicyName;

/// The limits of a port, and the policy that sets them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortLimits {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The settings of the policy.
    pub limits: RateLimits,
}

/// The rate limits and the concurrency limit of a port. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RateLimits {
    /// The rate limit of opaque connections. The links that requests share are not limited.
    pub connections: Option<Rate>,
    /// Request limits in document order; a request needs room under every matching rule.
    pub rules: Vec<RateRule>,
    /// The limit of concurrent requests.
    pub concurrency: Option<Concurrency>,
    /// The rate limit service, called for requests with room under these rules.
    pub global: Option<Box<GlobalLimit>>,
}

impl RateLimits {
    /// True if there is no limit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { connections, rules, concurrency, global } = self;
        connections.is_none() && rules.is_empty() && concurrency.is_none() && global.is_none()
    }
}

/// A limit of concurrent requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Concurrency {
    /// The maximum, at least 1 and at most [`Rate::MAX_TOKENS`].
    pub requests: u32,
    /// Lowers the limit while the application responds slowly; disabled when absent.
    pub adaptive: Option<AdaptiveConcurrency>,
    /// The response to requests over the limit.
    pub response: FixedResponse,
}

/// An adaptive concurrency limit, by the response latency of the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdaptiveConcurrency {
    /// The lower bound of the limit, from 1 to the maximum.
    pub min_concurrency: u32,
    /// The tolerated latency increase over an idle application, in percent.
    pub latency_tolerance_percent: u16,
}

/// A rate limit for matching requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RateRule {
    /// The name of the rule, or its index in the document, such as `rules[0]`.
    pub name: String,
    /// Matching requests, any of these; all when empty.
    pub requests: Vec<RequestMatch>,
    /// Matching callers, any of these; all when empty.
    pub peers: Vec<PeerMatch>,
    /// The key that assigns requests to buckets.
    pub key: RateLimitKey,
    /// The rate of each bucket.
    pub rate: Rate,
    /// True if later rules are skipped for matching requests.
    pub stop: bool,
    /// The response to requests over the limit.
    pub response: FixedResponse,
}

impl RateRule {
    /// True if the rule matches this caller; `None` is an unauthenticated caller.
    #[must_use]
    pub fn matches_caller(&self, caller: Option<&ServiceAccount>) -> bool {
        let is_peer = |account| self.peers.iter().any(|peer| peer.matches_account(account));
        self.peers.is_empty() || caller.is_some_and(is_peer)
    }
}

/// The key of the buckets of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum RateLimitKey {
    /// One bucket for all requests.
    #[default]
    Nothing,
    /// One bucket for each calling account; unauthenticated callers share one.
    Client {
        /// The minimum number of retained buckets, the most recently used ones; at least 1.
        buckets: u32,
    },
    /// One bucket for each value of a header; requests without it share one.
    Header {
        /// The header name, in lower case.
        name: String,
        /// The minimum number of retained buckets, the most recently used ones; at least 1.
        buckets: u32,
    },
}

/// A token bucket: it holds at most `size` tokens and is refilled evenly with `count` tokens per `time`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// The number of tokens per `time`, at least 1.
    pub count: u32,
    /// The refill period; from a second to a day.
    pub time: Duration,
    /// The capacity, at least 1: the maximum burst.
    pub size: u32,
}

impl Rate {
    /// The minimum period: tokens of a bucket are at least a microsecond apart.
    pub const MIN_PERIOD: Duration = Duration::from_secs(1);
    /// The maximum refill period.
    pub const MAX_PERIOD: Duration = Duration::from_secs(24 * 3600);
    /// The maximum number of tokens per period.
    pub const MAX_TOKENS: u32 = 1_000_000;
    /// The maximum capacity of a bucket.
    pub const MAX_BUCKET_SIZE: u32 = 2_000_000;
    /// The maximum number of buckets of a rule.
    pub const MAX_BUCKETS: u32 = 100_000;
}
