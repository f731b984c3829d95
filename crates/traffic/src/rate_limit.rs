//! Local rate limits and concurrency limits of inbound ports.

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

use crate::match_index::{MatchIndex, MatchingRules};
use crate::match_slot::MatchSlot;
use crate::matcher::{DenialMatcher, FieldScope, RequestMatcher, may_override_method};
use crate::pattern::InvalidPattern;
use crate::request::RequestView;
use crate::rule_index::LookupKeys;
use crate::variant::{PathKind, PathVariants};
use bucket::{Bucket, BucketRate, Buckets};
use concurrency::{ConcurrencySlots, ResponseOutcome};

/// The compiled limits of a workload's ports, with their buckets. Shared by threads.
#[derive(Debug, Default)]
pub struct CompiledLimits {
    ports: BTreeMap<u16, Arc<[Arc<PolicyLimits>]>>,
}

/// The limits of one policy for one port.
#[derive(Debug)]
struct PolicyLimits {
    /// The source of the compilation.
    said: PortLimits,
    connections: Option<(BucketRate, Bucket)>,
    /// The counter of rejected connections.
    match_slot: Arc<MatchSlot>,
    /// Rules that are tried one by one.
    few: Box<[CompiledRateRule]>,
    /// Rules with an index.
    many: Option<(MatchIndex, Box<[CompiledRateRule]>)>,
    concurrency: Option<PolicyConcurrency>,
}

/// The limit of concurrent requests.
#[derive(Debug)]
struct PolicyConcurrency {
    places: ConcurrencySlots,
    answer: Option<Arc<FixedResponse>>,
    match_slot: Arc<MatchSlot>,
}

#[derive(Debug)]
struct CompiledRateRule {
    rule: RateRule,
    requests: Box<[DenialMatcher]>,
    /// The same requests, matched as sent and in one meaning: a match stops the evaluation of later rules.
    plain: Box<[RequestMatcher]>,
    pace: BucketRate,
    tokens: Tokens,
    answer: Option<Arc<FixedResponse>>,
    match_slot: Arc<MatchSlot>,
}

#[derive(Debug)]
enum Tokens {
    Shared(Bucket),
    PerKey(Buckets),
}

/// A rejection by a rate limit.
#[derive(Debug)]
pub struct RateLimitExceeded<'a> {
    /// The policy.
    pub policy: &'a ServicePolicyName,
    /// The rule in it.
    pub rule: &'a str,
    /// The response, if the policy sets one.
    pub answer: Option<Arc<FixedResponse>>,
    /// The time until a token is available.
    pub wait: Duration,
    /// The counter of the rule's rejections.
    pub match_slot: &'a Arc<MatchSlot>,
}

/// A rejection by a concurrency limit.
#[derive(Debug)]
pub struct ConcurrencyExceeded<'a> {
    /// The policy.
    pub policy: &'a ServicePolicyName,
    /// The part of the policy.
    pub rule: &'static str,
    /// The response, if the policy sets one.
    pub answer: Option<Arc<FixedResponse>>,
    /// The match counter.
    pub match_slot: &'a Arc<MatchSlot>,
}

/// A concurrency permit; returned on drop.
#[derive(Debug)]
pub struct ConcurrencySlot {
    policies: Arc<[Arc<PolicyLimits>]>,
    waits: Cell<RequestPhase>,
}

/// The phase of a request with a permit.
#[derive(Debug, Clone, Copy)]
enum RequestPhase {
    /// Its client has not sent all of it.
    Client,
    /// It was sent at this time, and the application has not responded.
    Application { sent: Duration },
    /// Its response has started.
    Nothing,
}

impl ConcurrencySlot {
    /// Records that the request was sent completely: from now on it waits for the application.
    pub fn mark_sent(&self, now: Duration) {
        if matches!(self.waits.get(), RequestPhase::Client) {
            self.waits.set(RequestPhase::Application { sent: now });
            self.bounded_policies().for_each(|it| it.places.mark_waiting());
        }
    }

    /// Records that a successful response started; its latency is a sample.
    pub fn record_response(&self, now: Duration) {
        self.record_outcome(ResponseOutcome::Answer, now);
    }

    /// Records that the response is an error; its latency is a sample if it is high.
    pub fn record_error(&self, now: Duration) {
        self.record_outcome(ResponseOutcome::Error, now);
    }

    /// Records that there will be no response; the elapsed time is a sample if it is high.
    pub fn given_up(&self, now: Duration) {
        self.record_outcome(ResponseOutcome::GivenUp, now);
    }

    fn record_outcome(&self, heard: ResponseOutcome, now: Duration) {
        if let RequestPhase::Application { sent } = self.waits.replace(RequestPhase::Nothing) {
            for bounded in self.bounded_policies() {
                bounded.places.record_outcome(sent, heard, now);
                bounded.places.is_heard();
            }
        }
    }

    fn bounded_policies(&self) -> impl Iterator<Item = &PolicyConcurrency> {
        self.policies.iter().filter_map(|policy| policy.concurrency.as_ref())
    }
}

impl Drop for ConcurrencySlot {
    fn drop(&mut self) {
        let waits = matches!(self.waits.get(), RequestPhase::Application { .. });
        self.bounded_policies().for_each(|it| it.places.release(waits));
    }
}

impl<'a> RateLimitExceeded<'a> {
    /// Out of line, since most requests find a token.
    #[cold]
    fn from_rule(policy: &'a PolicyLimits, rule: &'a CompiledRateRule, wait: Duration) -> Self {
        let answer = rule.answer.clone();
        Self {
            policy: &policy.said.policy,
            rule: &rule.rule.name,
            answer,
            wait,
            match_slot: &rule.match_slot,
        }
    }

    /// Returns the wait in whole seconds for `retry-after` (RFC 9110 §10.2.3): rounded up, at least one, since
    /// a retry before the end of the wait would fail.
    #[must_use]
    pub const fn retry_after(&self) -> u64 {
        let seconds = self.wait.as_secs();
        if self.wait.subsec_nanos() > 0 || seconds == 0 { seconds + 1 } else { seconds }
    }
}

impl CompiledLimits {
    /// Compiles limits. Buckets of unchanged limits are reused.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub fn build(
        limits: &BTreeMap<u16, Vec<PortLimits>>,
        previous: Option<&Self>,
    ) -> Result<Self, InvalidPattern> {
        let mut ports = BTreeMap::new();
        for (port, policies) in limits {
            let known = previous.and_then(|limits| limits.ports.get(port));
            let known = known.map_or(&[][..], |known| &**known);
            let compiled = policies.iter().map(|said| {
                let same = known.iter().find(|known| known.said == *said);
                same.map_or_else(|| PolicyLimits::compile(said).map(Arc::new), |it| Ok(it.clone()))
            });
            ports.insert(*port, compiled.collect::<Result<_, _>>()?);
        }
        Ok(Self { ports })
    }

    /// True if a port has limits.
    #[must_use]
    pub fn has_limits(&self, port: u16) -> bool {
        !self.ports.is_empty() && self.ports.contains_key(&port)
    }

    /// Admits a request if each rule for it has a token, and takes one token from each. The time is relative to
    /// any fixed moment.
    ///
    /// # Errors
    /// [`RateLimitExceeded`] for the first rule without a token; no token is then taken.
    pub fn admit_request(
        &self,
        port: u16,
        request: &RequestView<'_>,
        caller: Option<&ServiceAccount>,
        now: Duration,
    ) -> Result<(), RateLimitExceeded<'_>> {
        let now = to_nanos(now);
        let mut taken = 0_usize;
        let exceeded = self.visit(port, request, caller, |policy, rule| {
            match rule.take_token(rule.bucket_key(request, caller), now) {
                Ok(()) => taken += 1,
                Err(wait) => return Some(RateLimitExceeded::from_rule(policy, rule, wait)),
            }
            None
        });
        let Some(exceeded) = exceeded else { return Ok(()) };
        self.visit(port, request, caller, |_, rule| {
            taken = taken.checked_sub(1)?;
            rule.give_back(rule.bucket_key(request, caller));
            None::<()>
        });
        Err(exceeded)
    }

    /// Returns the tokens of a request that was [admitted](Self::admit_request) but not forwarded.
    pub fn give_back(&self, port: u16, request: &RequestView<'_>, caller: Option<&ServiceAccount>) {
        self.visit(port, request, caller, |_, rule| {
            rule.give_back(rule.bucket_key(request, caller));
            None::<()>
        });
    }

    /// Acquires a concurrency permit for a request at a port; `None` if the port has no limit. The time is
    /// relative to any fixed moment. `is_whole`: the request has no further bytes.
    ///
    /// # Errors
    /// [`ConcurrencyExceeded`] for the first policy without a free permit.
    pub fn acquire_permit(
        &self,
        port: u16,
        is_whole: bool,
        now: Duration,
    ) -> Result<Option<ConcurrencySlot>, ConcurrencyExceeded<'_>> {
        let Some(policies) = self.ports.get(&port) else { return Ok(None) };
        let all = || policies.iter().filter_map(|it| Some((it, it.concurrency.as_ref()?)));
        let Some((taken, (policy, bounded))) =
            all().enumerate().find(|(_, (_, bounded))| !bounded.places.try_acquire(is_whole, now))
        else {
            let waits = if is_whole {
                RequestPhase::Application { sent: now }
            } else {
                RequestPhase::Client
            };
            let place = || ConcurrencySlot { policies: policies.clone(), waits: Cell::new(waits) };
            return Ok(all().next().map(|_| place()));
        };
        all().take(taken).for_each(|(_, taken)| taken.places.release(is_whole));
        let (policy, answer) = (&policy.said.policy, bounded.answer.clone());
        Err(ConcurrencyExceeded {
            policy,
            rule: CONCURRENCY,
            answer,
            match_slot: &bounded.match_slot,
        })
    }

    /// Admits an opaque connection if each policy has a token for it, and takes one token from each.
    ///
    /// # Errors
    /// [`RateLimitExceeded`] for the first policy without a token.
    pub fn admit_connection(&self, port: u16, now: Duration) -> Result<(), RateLimitExceeded<'_>> {
        let now = to_nanos(now);
        let all = || {
            self.port_policies(port).iter().filter_map(|it| Some((it, it.connections.as_ref()?)))
        };
        let exceeded = all().enumerate().find_map(|(index, (policy, (pace, bucket)))| {
            let wait = bucket.take_token(*pace, now).err()?;
            let (match_slot, policy, rule) = (&policy.match_slot, &policy.said.policy, CONNECTIONS);
            Some((index, RateLimitExceeded { policy, rule, answer: None, wait, match_slot }))
        });
        let Some((taken, exceeded)) = exceeded else { return Ok(()) };
        for (_, (pace, bucket)) in all().take(taken) {
            bucket.give_back(*pace);
        }
        Err(exceeded)
    }

    /// Returns the rules that count a request, each with its policy; for tools.
    #[must_use]
    pub fn counting_rules(
        &self,
        port: u16,
        request: &RequestView<'_>,
        caller: Option<&ServiceAccount>,
    ) -> Vec<(&ServicePolicyName, &RateRule)> {
        let mut counting = Vec::new();
        self.visit(port, request, caller, |policy, rule| {
            counting.push((&policy.said.policy, &rule.rule));
            None::<()>
        });
        counting
    }

    /// Returns the limits of all policies for a port.
    pub fn policy_limits(&self, port: u16) -> impl Iterator<Item = &PortLimits> {
        self.port_policies(port).iter().map(|policy| &policy.said)
    }

    fn port_policies(&self, port: u16) -> &[Arc<PolicyLimits>] {
        self.ports.get(&port).map_or(&[], |policies| &**policies)
    }

    /// Returns the first result of `found` over the rules that count a request. Every meaning of the request
    /// counts, so that alternative encodings cannot bypass a limit; only a match of a request with one meaning
    /// stops the evaluation of later rules.
    fn visit<'a, T>(
        &'a self,
        port: u16,
        request: &RequestView<'_>,
        caller: Option<&ServiceAccount>,
        mut found: impl FnMut(&'a PolicyLimits, &'a CompiledRateRule) -> Option<T>,
    ) -> Option<T> {
        // Parsed for the first rule with request matches: a limit for all requests does not pay for it.
        let meaning = LazyCell::new(|| {
            let path = PathKind::from_path(request.path);
            (path, PathVariants::from_path(request.path, path))
        });
        for policy in self.port_policies(port) {
            let mut candidates = policy
                .candidate_rules(|| LookupKeys::as_meant(request, &meaning.1).with_caller(caller));
            // Borrowed, because candidates are large to move.
            let named = candidates.by_ref().filter(|rule| rule.rule.matches_caller(caller));
            for rule in named {
                if !rule.is_for_all() && !rule.may_count(request, &meaning.1) {
                    continue;
                }
                if let Some(found) = found(policy, rule) {
                    return Some(found);
                }
                if rule.rule.stop && meaning.0 == PathKind::Plain && rule.counts_request(request) {
                    break;
                }
            }
        }
        None
    }
}

/// The candidate rules of a policy for a request, a superset of the matching ones.
struct CandidateRules<'a> {
    few: std::slice::Iter<'a, CompiledRateRule>,
    many: Option<(MatchingRules<'a>, &'a [CompiledRateRule])>,
}

impl<'a> Iterator for CandidateRules<'a> {
    type Item = &'a CompiledRateRule;

    #[inline]
    fn next(&mut self) -> Option<&'a CompiledRateRule> {
        self.few.next().or_else(|| self.looked_up())
    }
}

impl<'a> CandidateRules<'a> {
    /// Separate, so that a small number of rules does not pay for it.
    #[inline(never)]
    fn looked_up(&mut self) -> Option<&'a CompiledRateRule> {
        let (places, rules) = self.many.as_mut()?;
        rules.get(places.next()?)
    }
}

impl PolicyLimits {
    fn compile(said: &PortLimits) -> Result<Self, InvalidPattern> {
        let rules = said.limits.rules.iter().map(CompiledRateRule::compile);
        let rules: Box<[CompiledRateRule]> = rules
            .collect::<Result<_, _>>()
            .map_err(|bad| bad.with_object(ObjectKey::ServicePolicy(said.policy.clone())))?;
        let about = rules.iter().map(|rule| (&*rule.requests, &*rule.rule.peers));
        let (few, many) = match MatchIndex::with_callers(about) {
            None => (rules, None),
            Some(many) => (Box::default(), Some((many, rules))),
        };
        let connections = said.limits.connections;
        let concurrency = said.limits.concurrency.as_ref().map(|rule| PolicyConcurrency {
            places: ConcurrencySlots::new(rule),
            answer: (rule.response != FixedResponse::default())
                .then(|| Arc::new(rule.response.clone())),
            match_slot: Arc::default(),
        });
        Ok(Self {
            concurrency,
            connections: connections.map(|rate| (BucketRate::from_rate(rate), Bucket::default())),
            few,
            many,
            match_slot: Arc::default(),
            said: said.clone(),
        })
    }

    /// Returns the candidate rules for a request in order, a superset of the matching ones.
    #[inline]
    fn candidate_rules<'a>(&self, sought: impl FnOnce() -> LookupKeys<'a>) -> CandidateRules<'_> {
        let mut candidates = CandidateRules { few: self.few.iter(), many: None };
        // Written in place: a policy with few rules has no lookup to copy.
        if let Some((many, rules)) = &self.many {
            candidates.many = Some((many.candidates(sought()), rules));
        }
        candidates
    }
}

impl CompiledRateRule {
    fn compile(rule: &RateRule) -> Result<Self, InvalidPattern> {
        let requests = rule.requests.iter().map(DenialMatcher::compile);
        let plain = rule.requests.iter().filter(|_| rule.stop);
        let plain = plain.map(|it| RequestMatcher::compile_for(it, FieldScope::OneValue));
        let tokens = match &rule.key {
            RateLimitKey::Nothing => Tokens::Shared(Bucket::default()),
            RateLimitKey::Client { buckets } | RateLimitKey::Header { buckets, .. } => {
                Tokens::PerKey(Buckets::new(*buckets))
            }
        };
        let answer = (rule.response != FixedResponse::default()).then(|| rule.response.clone());
        Ok(Self {
            requests: requests.collect::<Result<_, _>>()?,
            plain: plain.collect::<Result<_, _>>()?,
            pace: BucketRate::from_rate(rule.rate),
            tokens,
            answer: answer.map(Arc::new),
            match_slot: Arc::default(),
            rule: rule.clone(),
        })
    }

    /// True if every request matches, whatever its path.
    fn is_for_all(&self) -> bool {
        self.requests.is_empty()
    }

    /// True if the request, which has a plain path, matches in its only meaning. For rules with `stop`.
    fn counts_request(&self, request: &RequestView<'_>) -> bool {
        self.is_for_all()
            || self.plain.iter().any(|it| it.matches(request)) && !may_override_method(request)
    }

    /// True if an application may interpret the request as a matching one.
    fn may_count(&self, request: &RequestView<'_>, variant: &PathVariants) -> bool {
        self.requests.iter().any(|it| it.may_mean(request, variant))
    }

    /// Returns the key of the request's bucket.
    fn bucket_key(&self, request: &RequestView<'_>, caller: Option<&ServiceAccount>) -> u128 {
        match &self.rule.key {
            RateLimitKey::Nothing => 0,
            RateLimitKey::Client { .. } => hash_key(&caller),
            RateLimitKey::Header { name, .. } => {
                let authority = || Some(Cow::Borrowed(request.authority));
                match name.as_str() {
                    ":authority" => hash_key(&authority()),
                    name => hash_key(&request.fields.joined_values(name)),
                }
            }
        }
    }

    fn take_token(&self, key: u128, now: u64) -> Result<(), Duration> {
        match &self.tokens {
            Tokens::Shared(bucket) => bucket.take_token(self.pace, now),
            Tokens::PerKey(buckets) => buckets.take_token(key, self.pace, now),
        }
    }

    fn give_back(&self, key: u128) {
        match &self.tokens {
            Tokens::Shared(bucket) => bucket.give_back(self.pace),
            Tokens::PerKey(buckets) => buckets.give_back(key, self.pace),
        }
    }
}

/// Returns a 128-bit hash of a value: clients must not find a collision with the bucket of another, and memory
/// use does not depend on the length of values.
fn hash_key(value: &impl Hash) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, value).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

fn to_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The connection limit of a policy, in place of a rule's name.
const CONNECTIONS: &str = "connections";
/// The concurrency limit of a policy, in place of a rule's name.
const CONCURRENCY: &str = "concurrency";

#[cfg(test)]
mod tests;
