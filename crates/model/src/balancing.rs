//! Load balancing policies of service ports.

use std::time::Duration;

use crate::definition::{
    Definition, HEADER_NAME, ManifestBuilder, TextProblem, TextSchema, normalize_header_name,
};
use crate::service_policy::ServicePolicyName;
use crate::token::is_token;

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

/// The fields of load balancing settings.
#[derive(Definition)]
#[definition(
    builds = LoadBalancing,
    cel(
        "!has(self.choiceCount) || !has(self.algorithm) \
         || self.algorithm in ['PeakEwma', 'LeastRequest']",
        "choiceCount requires PeakEwma or LeastRequest"
    ),
    cel(
        "has(self.key) == (has(self.algorithm) && self.algorithm in ['RingHash', 'Maglev'])",
        "key is required for RingHash and Maglev, and not supported for other algorithms"
    ),
    cel(
        "!has(self.key) || !has(self.warmup)",
        "warmup is not supported for algorithms with a key"
    )
)]
struct LoadBalancingFields {
    /// Algorithm that selects an endpoint.
    #[field(default = "PeakEwma")]
    algorithm: AlgorithmName,
    /// Number of endpoints that PeakEwma and LeastRequest pick at random and compare. Other algorithms do not support it.
    #[field(integer(2, LoadBalancing::MAX_CHOICES), absent = "2")]
    choice_count: Option<u8>,
    /// Property of the request that is hashed: `{header: NAME}`, `{cookie: NAME}` or `{source: true}`. RingHash and Maglev
    /// require it, and other algorithms do not support it.
    key: Option<HashKey>,
    /// Slow start: a new endpoint gets less than its share at first. It is not supported with RingHash and Maglev.
    #[field(absent = "a new endpoint gets its share at once")]
    warmup: Option<SlowStart>,
}

/// An algorithm as named in manifests, without its parameters.
#[derive(Clone, Copy, Definition)]
enum AlgorithmName {
    PeakEwma,
    LeastRequest,
    RoundRobin,
    Random,
    RingHash,
    Maglev,
}

impl LoadBalancingFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<LoadBalancing> {
        let is_valid = self.check_parameters(builder);
        let choices = self.choice_count.unwrap_or(DEFAULT_CHOICES);
        let algorithm = match self.algorithm {
            AlgorithmName::PeakEwma => BalanceAlgorithm::PeakEwma { choices },
            AlgorithmName::LeastRequest => BalanceAlgorithm::LeastRequest { choices },
            AlgorithmName::RoundRobin => BalanceAlgorithm::RoundRobin,
            AlgorithmName::Random => BalanceAlgorithm::Random,
            AlgorithmName::RingHash => BalanceAlgorithm::RingHash(self.key?),
            AlgorithmName::Maglev => BalanceAlgorithm::Maglev(self.key?),
        };
        is_valid.then_some(LoadBalancing { algorithm, slow_start: self.warmup })
    }

    /// True if the algorithm supports all parameters that are present, and none is missing.
    fn check_parameters(&self, builder: &mut ManifestBuilder<'_>) -> bool {
        let uses_choice_count =
            matches!(self.algorithm, AlgorithmName::PeakEwma | AlgorithmName::LeastRequest);
        let uses_key = matches!(self.algorithm, AlgorithmName::RingHash | AlgorithmName::Maglev);
        let has_foreign_count = self.choice_count.is_some() && !uses_choice_count;
        if has_foreign_count {
            let problem = "requires PeakEwma or LeastRequest";
            builder.reject_field("choiceCount", problem, "remove it, or use one of these");
        }
        if self.key.is_some() && !uses_key {
            let problem = "requires RingHash or Maglev";
            builder.reject_field("key", problem, "remove it, or use one of these");
        }
        if self.key.is_none() && uses_key {
            builder.reject("has no `key`, which RingHash and Maglev require", "add `key`");
        }
        let has_useless_warmup = self.warmup.is_some() && uses_key;
        if has_useless_warmup {
            builder.reject_field(
                "warmup",
                "is not supported with a key, which selects its endpoint regardless of age",
                "remove it, or use another algorithm",
            );
        }
        !has_foreign_count && self.key.is_some() == uses_key && !has_useless_warmup
    }
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

/// The keys of a hash key.
#[derive(Definition)]
#[definition(noun = "key", builds = HashKey)]
enum HashKeyFields {
    /// Name of the header whose values are hashed, in any case; `host` is the host of the request.
    #[field(text = HEADER_NAME)]
    Header(String),
    /// Name of the cookie whose value is hashed.
    #[field(text = COOKIE_NAME)]
    Cookie(String),
    /// `true` for the calling workload: each workload uses one endpoint.
    Source(bool),
}

impl HashKeyFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<HashKey> {
        match self {
            Self::Header(name) => Some(HashKey::Header(normalize_header_name(&name))),
            Self::Cookie(name) => Some(HashKey::Cookie(name)),
            Self::Source(true) => Some(HashKey::Source),
            Self::Source(false) => {
                let hint = "use `source: true`, or another key";
                builder.reject_field("source", "has no key", hint);
                None
            }
        }
    }
}

/// The name of a cookie, which is a token (RFC 6265 §4.1.1).
const COOKIE_NAME: TextSchema = TextSchema::new(256, |text| match is_token(text) {
    true => Ok(()),
    false => Err(TextProblem::new("is not the name of a cookie", "use letters, digits and `-`")),
});

/// The slow start of a new endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Definition)]
pub struct SlowStart {
    /// Age at which an endpoint gets its full share. The share grows linearly.
    #[field(duration("1s", "24h"))]
    pub duration: Duration,
    /// Initial share of requests in percent of the full share.
    #[field(name = "minimumPercent", integer(1, 100), default = "10")]
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

/// The default number of endpoints that are compared.
const DEFAULT_CHOICES: u8 = 2;
