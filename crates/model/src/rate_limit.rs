//! Rate limits and concurrency limits of inbound traffic, enforced by the server's sidecar.

use std::time::Duration;

use crate::access_policy::PeerMatch;
use crate::check_service::GlobalLimit;
use crate::definition::{
    Definition, HEADER_NAME, ManifestBuilder, ManifestValue, Schema, normalize_header_name,
};
use crate::fixed_response::FixedResponse;
use crate::identity::ServiceAccount;
use crate::request_match::RequestMatch;
use crate::rule_conditions::{RuleConditions, check_rule_names};
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
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Definition)]
#[definition(
    check = Self::with_any_limit,
    cel(
        "has(self.connections) || has(self.rules) || has(self.concurrency) || has(self.global)",
        "has no limits: set rules, connections, concurrency or global"
    )
)]
pub struct RateLimits {
    /// Rate limit of TCP connections, at ports that forward bytes without parsing requests. The mutual TLS links that
    /// requests share are not limited.
    #[field(absent = "no limit")]
    pub connections: Option<Rate>,
    /// Rate limits of requests. Every rule that matches a request must have a token for it.
    #[field(list(0, MAX_RULES), check = RateRule::with_different_names)]
    pub rules: Vec<RateRule>,
    /// Limit of concurrent requests.
    #[field(absent = "no limit")]
    pub concurrency: Option<Concurrency>,
    /// Rate limit service that counts requests for all sidecars. A sidecar calls it for requests that the rules allow.
    #[field(absent = "no rate limit service")]
    pub global: Option<Box<GlobalLimit>>,
}

impl RateLimits {
    /// True if there is no limit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { connections, rules, concurrency, global } = self;
        connections.is_none() && rules.is_empty() && concurrency.is_none() && global.is_none()
    }

    fn with_any_limit(self, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        if self.is_empty() {
            let hint = "add `rules`, `connections`, `concurrency` or `global`";
            builder.reject("has no limits", hint);
            return None;
        }
        Some(self)
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

/// The fields of a limit of concurrent requests.
#[derive(Definition)]
#[definition(
    builds = Concurrency,
    cel(
        "!has(self.adaptive) || !has(self.adaptive.minConcurrency) \
         || self.adaptive.minConcurrency <= self.requests",
        "adaptive.minConcurrency must not exceed requests"
    )
)]
struct ConcurrencyFields {
    /// Maximum number of concurrent requests.
    #[field(integer(1, Rate::MAX_TOKENS))]
    requests: u32,
    /// Adaptive limit, which is lower while the application is overloaded; `{}` for the defaults.
    #[field(absent = "a constant limit")]
    adaptive: Option<AdaptiveFields>,
    /// Response to requests over the limit.
    #[field(absent = "503 with a sentence about the reason")]
    response: Option<FixedResponse>,
}

/// The fields of an adaptive limit. The default of one depends on the limit.
#[derive(Definition)]
struct AdaptiveFields {
    /// Minimum of the limit, at most `requests`.
    #[field(integer(1, Rate::MAX_TOKENS), absent = "4, or `requests` if that is less")]
    min_concurrency: Option<u32>,
    /// Tolerated slowdown of responses, relative to an application without load, in percent.
    // Few clients notice 50 % more latency.
    #[field(integer(1, 1000), default = "50")]
    latency_tolerance_percent: u16,
}

impl ConcurrencyFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<Concurrency> {
        let Self { requests, adaptive, response } = self;
        let adaptive = match adaptive {
            Some(fields) => Some(fields.build_within(requests, builder)?),
            None => None,
        };
        Some(Concurrency { requests, adaptive, response: response.unwrap_or_default() })
    }
}

impl AdaptiveFields {
    /// Builds the settings of an adaptive limit of at most `requests` requests.
    fn build_within(
        self,
        requests: u32,
        builder: &mut ManifestBuilder<'_>,
    ) -> Option<AdaptiveConcurrency> {
        let min_concurrency = self.min_concurrency.unwrap_or(DEFAULT_MIN_CONCURRENCY.min(requests));
        if min_concurrency > requests {
            builder.build_below("adaptive", |builder| {
                let problem = format!("{min_concurrency} is above `requests`, {requests}");
                builder.reject_field("minConcurrency", problem, "lower it, or raise `requests`");
            });
            return None;
        }
        let latency_tolerance_percent = self.latency_tolerance_percent;
        Some(AdaptiveConcurrency { min_concurrency, latency_tolerance_percent })
    }
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

    fn with_different_names(
        rules: Vec<Self>,
        builder: &mut ManifestBuilder<'_>,
    ) -> Option<Vec<Self>> {
        check_rule_names(rules, |rule| &rule.name, builder)
    }
}

/// The fields of a rule.
#[derive(Definition)]
#[definition(builds = RateRule)]
struct RateRuleFields {
    /// The name and the conditions.
    #[field(include)]
    conditions: RuleConditions,
    /// Number of requests per period.
    #[field(integer(1, Rate::MAX_TOKENS))]
    requests: u32,
    /// Period for which the number of requests applies.
    #[field(duration(Rate::MIN_PERIOD, Rate::MAX_PERIOD))]
    per: Duration,
    /// Maximum burst: the number of tokens that a bucket holds.
    #[field(integer(1, Rate::MAX_BUCKET_SIZE), absent = "the number of `requests`")]
    burst: Option<u32>,
    /// The key.
    #[field(include)]
    key: RateLimitKey,
    /// `true` skips later rules for requests that this rule matches.
    #[field(default = "false")]
    stop: bool,
    /// Response to requests over the limit.
    #[field(absent = "429 with a sentence about the reason")]
    response: Option<FixedResponse>,
}

impl RateRuleFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> RateRule {
        let RuleConditions { name, requests, peers } = self.conditions;
        RateRule {
            name,
            requests,
            peers,
            key: self.key,
            rate: Rate::with_burst(self.requests, self.per, self.burst),
            stop: self.stop,
            response: self.response.unwrap_or_default(),
        }
    }
}

/// The fields of the key of a rule.
#[derive(Definition)]
#[definition(builds = RateLimitKey)]
struct KeyFields {
    /// Key of the buckets. `client` is a separate bucket for each account, and `{header: NAME}` one for each value of the
    /// header.
    #[field(absent = "one bucket for all requests")]
    key: Option<KeyProperty>,
    /// With `key`, the number of buckets to keep, the most recently used.
    #[field(integer(1, Rate::MAX_BUCKETS), absent = "1000")]
    max_keys: Option<u32>,
}

impl KeyFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<RateLimitKey> {
        let buckets = self.max_keys.unwrap_or(DEFAULT_BUCKETS);
        match self.key {
            Some(KeyProperty::Client) => Some(RateLimitKey::Client { buckets }),
            Some(KeyProperty::Header(name)) => Some(RateLimitKey::Header { name, buckets }),
            None if self.max_keys.is_some() => {
                let problem = "requires several buckets, but there is only one";
                builder.reject_field("maxKeys", problem, "add `key`, or remove it");
                None
            }
            None => Some(RateLimitKey::None),
        }
    }
}

/// The field `key`: `client`, or `{header: NAME}`.
enum KeyProperty {
    Client,
    /// The header with this lower-case name.
    Header(String),
}

impl Definition for KeyProperty {
    const SCHEMA: Schema = Schema::Either {
        scalar: &Schema::Choice(&["client"]),
        collection: &HeaderKeyFields::SCHEMA,
    };

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        match value {
            ManifestValue::Choice(_) => Some(Self::Client),
            value => {
                let HeaderKeyFields { header } = HeaderKeyFields::build(value, builder)?;
                Some(Self::Header(normalize_header_name(&header)))
            }
        }
    }
}

/// The fields of a key that is a header.
#[derive(Definition)]
struct HeaderKeyFields {
    /// Name of the header, in any case. Requests without the header share one bucket.
    #[field(text = HEADER_NAME)]
    header: String,
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

    /// Returns a rate. The burst defaults to the count.
    fn with_burst(count: u32, period: Duration, burst: Option<u32>) -> Self {
        Self { count, period, burst: burst.unwrap_or(count) }
    }
}

/// The fields of a rate of connections.
#[derive(Definition)]
#[definition(builds = Rate)]
struct RateFields {
    /// Number of connections per period.
    #[field(integer(1, Rate::MAX_TOKENS))]
    count: u32,
    /// Period for which the number of connections applies.
    #[field(duration(Rate::MIN_PERIOD, Rate::MAX_PERIOD))]
    per: Duration,
    /// Maximum burst: the number of tokens that the bucket holds.
    #[field(integer(1, Rate::MAX_BUCKET_SIZE), absent = "the number of `count`")]
    burst: Option<u32>,
}

impl RateFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> Rate {
        Rate::with_burst(self.count, self.per, self.burst)
    }
}

/// Maximum number of rules per policy.
const MAX_RULES: usize = 64;
/// The default of `minConcurrency`, low enough for applications with very little capacity.
const DEFAULT_MIN_CONCURRENCY: u32 = 4;
/// The default of `maxKeys`: enough for the clients of most services, at about 100 KiB.
const DEFAULT_BUCKETS: u32 = 1000;
