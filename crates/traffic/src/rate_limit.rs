//! Local rate limits and concurrency limits of inbound ports. The server's sidecar admits each request and each opaque
//! connection by them.

mod bucket;
mod concurrency;

use std::borrow::Cow;
use std::cell::{Cell, LazyCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    FixedResponse, ObjectKey, PortLimits, RateLimitKey, RateRule, ServiceAccount, ServicePolicyName,
};

use crate::match_index::{IndexedCandidates, MatchIndex};
use crate::match_slot::MatchSlot;
use crate::matcher::{DenialMatcher, FieldScope, RequestMatcher, may_override_method};
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::rule_index::LookupKeys;
use crate::variant::{PathKind, PathVariants};
use bucket::{Bucket, BucketRate, KeyedBuckets};
use concurrency::{ConcurrencySlots, ResponseOutcome};

/// The compiled limits of a workload's ports, with their token buckets. All data threads share them.
#[derive(Debug, Default)]
pub struct CompiledLimits {
    /// The limits of all policies, by port.
    ports: BTreeMap<u16, Arc<[Arc<PolicyLimits>]>>,
}

/// The limits of one policy for one port.
#[derive(Debug)]
struct PolicyLimits {
    /// The configuration that was compiled.
    config: PortLimits,
    /// The rate limit of opaque connections, if any.
    connection_limit: Option<(BucketRate, Bucket)>,
    /// The cached index of the counter for rejected connections.
    match_slot: Arc<MatchSlot>,
    /// The rules, if they are evaluated one by one; empty if `indexed` has them.
    unindexed: Box<[CompiledRateRule]>,
    /// The rules with their index, if [`MatchIndex`] indexes this number of rules.
    indexed: Option<(MatchIndex, Box<[CompiledRateRule]>)>,
    /// The concurrency limit, if any.
    concurrency_limit: Option<ConcurrencyLimit>,
}

/// The concurrency limit of one policy, with its slots.
#[derive(Debug)]
struct ConcurrencyLimit {
    slots: ConcurrencySlots,
    /// The response to requests over the limit, if the policy sets one.
    response: Option<Arc<FixedResponse>>,
    /// The cached index of the counter for rejected requests.
    match_slot: Arc<MatchSlot>,
}

/// A rate limit rule with its compiled request matches and its buckets.
#[derive(Debug)]
struct CompiledRateRule {
    /// The rule as configured.
    config: RateRule,
    /// The requests that the rule counts, in every interpretation; all when empty.
    request_matchers: Box<[DenialMatcher]>,
    /// For a rule with `stop`, after which later rules are skipped: the same requests, matched only as sent and with a
    /// single interpretation, so that no alternative encoding makes a request skip the later rules.
    exact_matchers: Box<[RequestMatcher]>,
    /// The rate of each bucket.
    rate: BucketRate,
    /// The token buckets.
    buckets: TokenBuckets,
    /// The response to requests over the limit, if the rule sets one.
    response: Option<Arc<FixedResponse>>,
    /// The cached index of the counter for rejected requests.
    match_slot: Arc<MatchSlot>,
}

/// The token buckets of a rule.
#[derive(Debug)]
enum TokenBuckets {
    /// One bucket for all requests.
    Shared(Bucket),
    /// One bucket for each key.
    PerKey(KeyedBuckets),
}

/// A rejection by a rate limit.
#[derive(Debug)]
pub struct RateLimitExceeded<'a> {
    /// The name of the policy.
    pub policy: &'a ServicePolicyName,
    /// The name of the rule in the policy.
    pub rule: &'a str,
    /// The response, if the policy sets one.
    pub response: Option<Arc<FixedResponse>>,
    /// The time until a token is available, from which the `retry-after` header is computed.
    pub wait: Duration,
    /// The cached index of the counter for the rule's rejections.
    pub match_slot: &'a Arc<MatchSlot>,
}

/// A rejection by a concurrency limit.
#[derive(Debug)]
pub struct ConcurrencyExceeded<'a> {
    /// The name of the policy.
    pub policy: &'a ServicePolicyName,
    /// The name of the concurrency limit in reports, in place of a rule's name.
    pub rule: &'static str,
    /// The response, if the policy sets one.
    pub response: Option<Arc<FixedResponse>>,
    /// The cached index of the counter for the policy's rejections.
    pub match_slot: &'a Arc<MatchSlot>,
}

/// One slot in each concurrency limit of a port, held by one request and released on drop.
#[derive(Debug)]
pub struct ConcurrencySlot {
    policies: Arc<[Arc<PolicyLimits>]>,
    phase: Cell<RequestPhase>,
}

/// The phase of a request with a slot.
#[derive(Debug, Clone, Copy)]
enum RequestPhase {
    /// The client has not sent the whole request.
    Sending,
    /// The request was complete at this time, and the application has not responded.
    Waiting { since: Duration },
    /// The response has started, or there will be none.
    Finished,
}

impl ConcurrencySlot {
    /// Records that the request was sent completely, so that it now waits for the application.
    pub fn mark_sent(&self, now: Duration) {
        if matches!(self.phase.get(), RequestPhase::Sending) {
            self.phase.set(RequestPhase::Waiting { since: now });
            self.concurrency_limits().for_each(|limit| limit.slots.mark_waiting());
        }
    }

    /// Records that a successful response started. Its latency is a sample for adaptive limits.
    pub fn record_response(&self, now: Duration) {
        self.record_outcome(ResponseOutcome::Success, now);
    }

    /// Records that an error response started. Its latency is a sample only if it is high.
    pub fn record_error(&self, now: Duration) {
        self.record_outcome(ResponseOutcome::Error, now);
    }

    /// Records that there will be no response. The elapsed time is a sample only if it is high.
    pub fn record_abandoned(&self, now: Duration) {
        self.record_outcome(ResponseOutcome::Abandoned, now);
    }

    fn record_outcome(&self, outcome: ResponseOutcome, now: Duration) {
        if let RequestPhase::Waiting { since } = self.phase.replace(RequestPhase::Finished) {
            for limit in self.concurrency_limits() {
                limit.slots.record_outcome(since, outcome, now);
                limit.slots.finish_waiting();
            }
        }
    }

    fn concurrency_limits(&self) -> impl Iterator<Item = &ConcurrencyLimit> {
        self.policies.iter().filter_map(|policy| policy.concurrency_limit.as_ref())
    }
}

impl Drop for ConcurrencySlot {
    fn drop(&mut self) {
        let is_waiting = matches!(self.phase.get(), RequestPhase::Waiting { .. });
        self.concurrency_limits().for_each(|limit| limit.slots.release(is_waiting));
    }
}

impl<'a> RateLimitExceeded<'a> {
    /// Creates the rejection by a rule. Marked cold, because most requests get a token.
    #[cold]
    fn from_rule(policy: &'a PolicyLimits, rule: &'a CompiledRateRule, wait: Duration) -> Self {
        let response = rule.response.clone();
        Self {
            policy: &policy.config.policy,
            rule: &rule.config.name,
            response,
            wait,
            match_slot: &rule.match_slot,
        }
    }

    /// Returns the wait in seconds for `retry-after` (RFC 9110 §10.2.3), rounded up and at least one: a retry before
    /// the end of the wait would fail.
    #[must_use]
    pub const fn retry_after(&self) -> u64 {
        let seconds = self.wait.as_secs();
        if self.wait.subsec_nanos() > 0 || seconds == 0 { seconds + 1 } else { seconds }
    }
}

impl CompiledLimits {
    /// Compiles limits, and reuses the buckets of unchanged policies.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub fn build(
        limits: &BTreeMap<u16, Vec<PortLimits>>,
        previous: Option<&Self>,
    ) -> Result<Self, InvalidPattern> {
        let mut ports = BTreeMap::new();
        for (port, policies) in limits {
            let previous_policies = previous.and_then(|limits| limits.ports.get(port));
            let previous_policies = previous_policies.map_or(&[][..], |policies| &**policies);
            let compiled_policies = policies.iter().map(|config| {
                match previous_policies.iter().find(|policy| policy.config == *config) {
                    Some(unchanged) => Ok(Arc::clone(unchanged)),
                    None => PolicyLimits::compile(config).map(Arc::new),
                }
            });
            ports.insert(*port, compiled_policies.collect::<Result<_, _>>()?);
        }
        Ok(Self { ports })
    }

    /// True if a port has limits.
    #[must_use]
    pub fn has_limits(&self, port: u16) -> bool {
        !self.ports.is_empty() && self.ports.contains_key(&port)
    }

    /// Admits a request if each rule that counts it has a token, and takes one token from each of these rules. If a
    /// rule has no token, the tokens that were already taken from earlier rules are returned. `now` is the time since
    /// an arbitrary start.
    ///
    /// # Errors
    /// [`RateLimitExceeded`] for the first rule without a token.
    pub fn admit_request(
        &self,
        port: u16,
        request: &RequestView<'_>,
        caller: Option<&ServiceAccount>,
        now: Duration,
    ) -> Result<(), RateLimitExceeded<'_>> {
        let now = to_nanos(now);
        let mut tokens_taken = 0_usize;
        let exceeded = self.find_counting_rule(port, request, caller, |policy, rule| {
            match rule.take_token(rule.bucket_key(request, caller), now) {
                Ok(()) => tokens_taken += 1,
                Err(wait) => return Some(RateLimitExceeded::from_rule(policy, rule, wait)),
            }
            None
        });
        let Some(exceeded) = exceeded else { return Ok(()) };
        self.find_counting_rule(port, request, caller, |_, rule| {
            tokens_taken = tokens_taken.checked_sub(1)?;
            rule.return_token(rule.bucket_key(request, caller));
            // The search continues with the next rule.
            None::<()>
        });
        Err(exceeded)
    }

    /// Returns the tokens of a request that was [admitted](Self::admit_request) but not forwarded.
    pub fn return_tokens(
        &self,
        port: u16,
        request: &RequestView<'_>,
        caller: Option<&ServiceAccount>,
    ) {
        self.find_counting_rule(port, request, caller, |_, rule| {
            rule.return_token(rule.bucket_key(request, caller));
            None::<()>
        });
    }

    /// Acquires a concurrency slot for a request at a port; `None` if the port has no concurrency limit.
    /// `is_fully_sent` is true if the client has sent the whole request. `now` is the time since an arbitrary start.
    ///
    /// # Errors
    /// [`ConcurrencyExceeded`] for the first policy without a free slot.
    pub fn acquire_slot(
        &self,
        port: u16,
        is_fully_sent: bool,
        now: Duration,
    ) -> Result<Option<ConcurrencySlot>, ConcurrencyExceeded<'_>> {
        let Some(policies) = self.ports.get(&port) else { return Ok(None) };
        let limits = || {
            policies.iter().filter_map(|policy| Some((policy, policy.concurrency_limit.as_ref()?)))
        };
        let Some((exhausted_position, (policy, exhausted_limit))) = limits()
            .enumerate()
            .find(|(_, (_, limit))| !limit.slots.try_acquire(is_fully_sent, now))
        else {
            let phase = if is_fully_sent {
                RequestPhase::Waiting { since: now }
            } else {
                RequestPhase::Sending
            };
            let slot = || ConcurrencySlot { policies: policies.clone(), phase: Cell::new(phase) };
            // A port without concurrency limits needs no slot.
            return Ok(limits().next().map(|_| slot()));
        };
        limits()
            .take(exhausted_position)
            .for_each(|(_, acquired)| acquired.slots.release(is_fully_sent));
        let (policy, response) = (&policy.config.policy, exhausted_limit.response.clone());
        Err(ConcurrencyExceeded {
            policy,
            rule: CONCURRENCY_LIMIT_NAME,
            response,
            match_slot: &exhausted_limit.match_slot,
        })
    }

    /// Admits an opaque connection if each policy has a token for it, and takes one token from each.
    ///
    /// # Errors
    /// [`RateLimitExceeded`] for the first policy without a token.
    pub fn admit_connection(&self, port: u16, now: Duration) -> Result<(), RateLimitExceeded<'_>> {
        let now = to_nanos(now);
        let policies = self.port_policies(port);
        let limits = || {
            policies.iter().filter_map(|policy| Some((policy, policy.connection_limit.as_ref()?)))
        };
        let exceeded = limits().enumerate().find_map(|(position, (policy, (rate, bucket)))| {
            let wait = bucket.take_token(*rate, now).err()?;
            let (match_slot, policy, rule) =
                (&policy.match_slot, &policy.config.policy, CONNECTION_LIMIT_NAME);
            Some((position, RateLimitExceeded { policy, rule, response: None, wait, match_slot }))
        });
        let Some((exceeded_position, exceeded)) = exceeded else { return Ok(()) };
        for (_, (rate, bucket)) in limits().take(exceeded_position) {
            bucket.return_token(*rate);
        }
        Err(exceeded)
    }

    /// Returns the rules that count a request, each with its policy. For diagnostic tools such as `leno explain`.
    #[must_use]
    pub fn counting_rules(
        &self,
        port: u16,
        request: &RequestView<'_>,
        caller: Option<&ServiceAccount>,
    ) -> Vec<(&ServicePolicyName, &RateRule)> {
        let mut counting_rules = Vec::new();
        self.find_counting_rule(port, request, caller, |policy, rule| {
            counting_rules.push((&policy.config.policy, &rule.config));
            None::<()>
        });
        counting_rules
    }

    /// Returns the limits of all policies for a port.
    pub fn policy_limits(&self, port: u16) -> impl Iterator<Item = &PortLimits> {
        self.port_policies(port).iter().map(|policy| &policy.config)
    }

    /// Returns the limits of all policies for a port; empty if there are none.
    fn port_policies(&self, port: u16) -> &[Arc<PolicyLimits>] {
        self.ports.get(&port).map_or(&[], |policies| &**policies)
    }

    /// Calls `select` for each rule that counts a request, and returns its first result. A rule counts a request if any
    /// interpretation matches, so that alternative encodings cannot bypass a limit. A rule with `stop` ends the
    /// evaluation of its policy only for a request with a single interpretation.
    fn find_counting_rule<'a, T>(
        &'a self,
        port: u16,
        request: &RequestView<'_>,
        caller: Option<&ServiceAccount>,
        mut select: impl FnMut(&'a PolicyLimits, &'a CompiledRateRule) -> Option<T>,
    ) -> Option<T> {
        // Parsed only if a rule has request matches.
        let parsed_path = LazyCell::new(|| {
            let kind = PathKind::from_path(request.path);
            ParsedPath { kind, variants: PathVariants::from_path(request.path, kind) }
        });
        for policy in self.port_policies(port) {
            let mut candidates = policy.candidate_rules(|| {
                LookupKeys::as_interpreted(request, &parsed_path.variants).with_caller(caller)
            });
            // Borrowed, because a move of the candidates would copy many bytes.
            let rules = candidates.by_ref().filter(|rule| rule.config.matches_caller(caller));
            for rule in rules {
                if !rule.counts_all_requests() && !rule.may_count(request, &parsed_path.variants) {
                    continue;
                }
                if let Some(selected) = select(policy, rule) {
                    return Some(selected);
                }
                if rule.config.stop
                    && parsed_path.kind == PathKind::Plain
                    && rule.counts_request(request)
                {
                    break;
                }
            }
        }
        None
    }
}

/// The kind and the variants of a request's path.
struct ParsedPath {
    kind: PathKind,
    variants: PathVariants,
}

/// An iterator over the candidate rules of a policy for a request, a superset of the matching rules. Only one of the
/// two fields has rules.
struct CandidateRules<'a> {
    unindexed: std::slice::Iter<'a, CompiledRateRule>,
    indexed: Option<(IndexedCandidates<'a>, &'a [CompiledRateRule])>,
}

impl<'a> Iterator for CandidateRules<'a> {
    type Item = &'a CompiledRateRule;

    #[inline]
    fn next(&mut self) -> Option<&'a CompiledRateRule> {
        self.unindexed.next().or_else(|| self.next_indexed())
    }
}

impl<'a> CandidateRules<'a> {
    /// Returns the next candidate of the index. This is a separate function so that policies with few rules do not
    /// need its stack space.
    #[inline(never)]
    fn next_indexed(&mut self) -> Option<&'a CompiledRateRule> {
        let (positions, rules) = self.indexed.as_mut()?;
        rules.get(positions.next()?)
    }
}

impl PolicyLimits {
    fn compile(config: &PortLimits) -> Result<Self, InvalidPattern> {
        let rules = config.limits.rules.iter().map(CompiledRateRule::compile);
        let rules: Box<[CompiledRateRule]> = rules
            .collect::<Result<_, _>>()
            .map_err(|error| error.with_object(ObjectKey::ServicePolicy(config.policy.clone())))?;
        let matchers_and_callers =
            rules.iter().map(|rule| (&*rule.request_matchers, &*rule.config.peers));
        let (unindexed, indexed) = match MatchIndex::with_callers(matchers_and_callers) {
            None => (rules, None),
            Some(index) => (Box::default(), Some((index, rules))),
        };
        let connection_rate = config.limits.connections;
        let concurrency_limit = config.limits.concurrency.as_ref().map(|rule| ConcurrencyLimit {
            slots: ConcurrencySlots::new(rule),
            response: (rule.response != FixedResponse::default())
                .then(|| Arc::new(rule.response.clone())),
            match_slot: Arc::default(),
        });
        Ok(Self {
            concurrency_limit,
            connection_limit: connection_rate
                .map(|rate| (BucketRate::from_rate(rate), Bucket::default())),
            unindexed,
            indexed,
            match_slot: Arc::default(),
            config: config.clone(),
        })
    }

    /// Returns the candidate rules for a request in order, a superset of the matching rules. `keys` is called only if
    /// the policy has an index.
    #[inline]
    fn candidate_rules<'a>(&self, keys: impl FnOnce() -> LookupKeys<'a>) -> CandidateRules<'_> {
        let mut candidates = CandidateRules { unindexed: self.unindexed.iter(), indexed: None };
        // Assigned in place, so that policies with few rules do not copy the state of an index lookup.
        if let Some((index, rules)) = &self.indexed {
            candidates.indexed = Some((index.candidates(keys()), rules));
        }
        candidates
    }
}

impl CompiledRateRule {
    fn compile(rule: &RateRule) -> Result<Self, InvalidPattern> {
        let request_matchers = rule.requests.iter().map(DenialMatcher::compile);
        let exact_matchers = rule.requests.iter().filter(|_| rule.stop);
        let exact_matchers = exact_matchers
            .map(|request| RequestMatcher::compile_for(request, FieldScope::SingleValue));
        let token_buckets = match &rule.key {
            RateLimitKey::None => TokenBuckets::Shared(Bucket::default()),
            RateLimitKey::Client { buckets } | RateLimitKey::Header { buckets, .. } => {
                TokenBuckets::PerKey(KeyedBuckets::new(*buckets))
            }
        };
        let response = (rule.response != FixedResponse::default()).then(|| rule.response.clone());
        Ok(Self {
            request_matchers: request_matchers.collect::<Result<_, _>>()?,
            exact_matchers: exact_matchers.collect::<Result<_, _>>()?,
            rate: BucketRate::from_rate(rule.rate),
            buckets: token_buckets,
            response: response.map(Arc::new),
            match_slot: Arc::default(),
            config: rule.clone(),
        })
    }

    /// True if the rule counts all requests.
    fn counts_all_requests(&self) -> bool {
        self.request_matchers.is_empty()
    }

    /// True if the request, which must have a plain path, has a single interpretation and matches. For rules with
    /// `stop`.
    fn counts_request(&self, request: &RequestView<'_>) -> bool {
        self.counts_all_requests()
            || self.exact_matchers.iter().any(|matcher| matcher.matches(request))
                && !may_override_method(request)
    }

    /// True if an application may interpret the request as a matching one.
    fn may_count(&self, request: &RequestView<'_>, variants: &PathVariants) -> bool {
        self.request_matchers.iter().any(|matcher| matcher.may_match(request, variants))
    }

    /// Returns the key of the request's bucket.
    fn bucket_key(&self, request: &RequestView<'_>, caller: Option<&ServiceAccount>) -> u128 {
        match &self.config.key {
            RateLimitKey::None => 0,
            RateLimitKey::Client { .. } => hash_key(&caller),
            RateLimitKey::Header { name, .. } => {
                let authority_value = || Some(Cow::Borrowed(request.authority));
                match name.as_str() {
                    ":authority" => hash_key(&authority_value()),
                    name => hash_key(&request.fields.joined_values(name)),
                }
            }
        }
    }

    /// Takes a token from the bucket of this key, or returns the time until a token is available.
    fn take_token(&self, key: u128, now: u64) -> Result<(), Duration> {
        match &self.buckets {
            TokenBuckets::Shared(bucket) => bucket.take_token(self.rate, now),
            TokenBuckets::PerKey(buckets) => buckets.take_token(key, self.rate, now),
        }
    }

    /// Returns an unused token to the bucket of this key.
    fn return_token(&self, key: u128) {
        match &self.buckets {
            TokenBuckets::Shared(bucket) => bucket.return_token(self.rate),
            TokenBuckets::PerKey(buckets) => buckets.return_token(key, self.rate),
        }
    }
}

/// Returns a 128-bit hash of a value. With this length, a client cannot find a value whose bucket is that of another
/// client. Hashes limit the memory for long values.
fn hash_key(value: &impl Hash) -> u128 {
    let half_hash = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, value).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half_hash(0) << 64 | half_hash(1)
}

/// Returns a time in nanoseconds.
fn to_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The name of a policy's connection limit in reports, in place of a rule's name.
const CONNECTION_LIMIT_NAME: &str = "connections";
/// The name of a policy's concurrency limit in reports, in place of a rule's name.
const CONCURRENCY_LIMIT_NAME: &str = "concurrency";

#[cfg(test)]
mod tests;
