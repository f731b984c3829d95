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
    /// The rate limit of new opaque connections. The mutual TLS links that requests share are not limited.
    pub connections: Option<Rate>,
    /// The rate limits of requests, in document order. A request is allowed if every matching rule allows it.
    pub rules: Vec<RateRule>,
    /// The limit of concurrent requests.
    pub concurrency: Option<Concurrency>,
    /// The rate limit service, called for requests that the rules above allow.
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
    /// The maximum number of concurrent requests, 1 to [`Rate::MAX_TOKENS`].
    pub requests: u32,
    /// The settings that reduce the limit while the application responds slowly; the limit is constant when absent.
    pub adaptive: Option<AdaptiveConcurrency>,
    /// The response to requests over the limit.
    pub response: FixedResponse,
}

/// An adaptive concurrency limit, which depends on the response latency of the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdaptiveConcurrency {
    /// The lower bound of the limit, from 1 to [`Concurrency::requests`].
    pub min_concurrency: u32,
    /// The latency increase, relative to the latency of an idle application, that does not reduce the limit; in
    /// percent.
    pub latency_tolerance_percent: u16,
}

/// A rate limit for matching requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RateRule {
    /// The name of the rule, or its index in the document, such as `rules[0]`.
    pub name: String,
    /// The requests that the rule matches; one matching entry is enough. All requests when empty.
    pub requests: Vec<RequestMatch>,
    /// The callers that the rule matches; one matching entry is enough. All callers when empty.
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

/// The property of a request that selects its bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum RateLimitKey {
    /// One bucket for all requests.
    #[default]
    None,
    /// One bucket for each calling account; all unauthenticated callers share one bucket.
    Client {
        /// The minimum number of most recently used buckets that are retained; at least 1. Older buckets may be
        /// dropped, and are full when they are used again.
        buckets: u32,
    },
    /// One bucket for each value of a header; all requests without the header share one bucket.
    Header {
        /// The header name, in lower case.
        name: String,
        /// The minimum number of most recently used buckets that are retained, as for `Client`; at least 1.
        buckets: u32,
    },
}

/// A token bucket: it holds at most `burst` tokens and is refilled evenly with `count` tokens per `period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// The number of tokens per `period`, at least 1.
    pub count: u32,
    /// The refill period; from a second to a day.
    pub period: Duration,
    /// The capacity, at least 1: the maximum burst.
    pub burst: u32,
}

impl Rate {
    /// The minimum refill period. With [`Self::MAX_TOKENS`], a bucket gets at most one token per microsecond.
    pub const MIN_PERIOD: Duration = Duration::from_secs(1);
    /// The maximum refill period.
    pub const MAX_PERIOD: Duration = Duration::from_secs(24 * 3600);
    /// The maximum number of tokens per period.
    pub const MAX_TOKENS: u32 = 1_000_000;
    /// The maximum capacity of a bucket: the tokens of two periods at the maximum rate.
    pub const MAX_BUCKET_SIZE: u32 = 2_000_000;
    /// The maximum of `buckets` in a rule's key. It bounds the memory of a rule.
    pub const MAX_BUCKETS: u32 = 100_000;
}
