//! Rate limits: whether what comes in at a port of the application, or is under way there, is too much.

mod bucket;
mod concurrency;

use std::borrow::Cow;
use std::cell::{Cell, LazyCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    Each, FixedAnswer, ObjectKey, PortLimits, RateRule, ServiceAccount, ServicePolicyName,
};

use crate::hits::HitSlot;
use crate::lookup::Sought;
use crate::many::{Many, Rules};
use crate::matcher::{DenialMatcher, RequestMatcher};
use crate::pattern::BadPattern;
use crate::request::RequestView;
use crate::spelling::{PathKind, Spelling};
use bucket::{Bucket, Buckets, Pace};
use concurrency::{Heard, Places};

/// The limits of a workload's ports, compiled, with their buckets. Threads share them.
#[derive(Debug, Default)]
pub struct Limits {
    ports: BTreeMap<u16, Arc<[Arc<PolicyLimits>]>>,
}

/// What one policy says about one port.
#[derive(Debug)]
struct PolicyLimits {
    /// What it was compiled from.
    said: PortLimits,
    connections: Option<(Pace, Bucket)>,
    /// Where connections that are turned away are counted.
    hits: Arc<HitSlot>,
    /// Rules that are asked one after the other,
    few: Box<[CompiledRule]>,
    /// or that are looked up instead.
    many: Option<(Many, Box<[CompiledRule]>)>,
    concurrency: Option<Bounded>,
}

/// What bounds the requests that are under way.
#[derive(Debug)]
struct Bounded {
    places: Places,
    answer: Option<Arc<FixedAnswer>>,
    hits: Arc<HitSlot>,
}

#[derive(Debug)]
struct CompiledRule {
    rule: RateRule,
    requests: Box<[DenialMatcher]>,
    /// The same requests where these alone keep later rules from one.
    plain: Box<[RequestMatcher]>,
    pace: Pace,
    tokens: Tokens,
    answer: Option<Arc<FixedAnswer>>,
    hits: Arc<HitSlot>,
}

#[derive(Debug)]
enum Tokens {
    Together(Bucket),
    Each(Buckets),
}

/// Who lets no more in.
#[derive(Debug)]
pub struct Exceeded<'a> {
    /// The policy.
    pub policy: &'a ServicePolicyName,
    /// The rule in it.
    pub rule: &'a str,
    /// What is answered, when the policy says.
    pub answer: Option<Arc<FixedAnswer>>,
    /// How long until there is room again.
    pub wait: Duration,
    /// Where it is counted that the rule lets no more in.
    pub hits: &'a Arc<HitSlot>,
}

/// Who lets no more be under way.
#[derive(Debug)]
pub struct Full<'a> {
    /// The policy.
    pub policy: &'a ServicePolicyName,
    /// The part of it.
    pub rule: &'static str,
    /// What is answered, when the policy says.
    pub answer: Option<Arc<FixedAnswer>>,
    /// Where it is counted.
    pub hits: &'a Arc<HitSlot>,
}

/// A place for a request among those that may be under way; given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    policies: Arc<[Arc<PolicyLimits>]>,
    waits: Cell<Waits>,
}

/// What the request that has a place waits for.
#[derive(Debug, Clone, Copy)]
enum Waits {
    /// For its client, who has not sent all of it.
    Client,
    /// For the application, since then.
    Application { sent: Duration },
    /// For nothing: its answer has begun.
    Nothing,
}

impl Place {
    /// The request has come to its end: from now on it waits for the application.
    pub fn sent(&self, now: Duration) {
        if matches!(self.waits.get(), Waits::Client) {
            self.waits.set(Waits::Application { sent: now });
            self.bounded().for_each(|it| it.places.waits());
        }
    }

    /// Its answer begins, and no error: how long that took is learned.
    pub fn answered(&self, now: Duration) {
        self.hear(Heard::Answer, now);
    }

    /// Its answer is an error: it is learned if that took long.
    pub fn failed(&self, now: Duration) {
        self.hear(Heard::Error, now);
    }

    /// No answer has begun, and none will: it is learned if that took long.
    pub fn given_up(&self, now: Duration) {
        self.hear(Heard::GivenUp, now);
    }

    fn hear(&self, heard: Heard, now: Duration) {
        if let Waits::Application { sent } = self.waits.replace(Waits::Nothing) {
            for bounded in self.bounded() {
                bounded.places.learn(sent, (heard, now));
                bounded.places.is_heard();
            }
        }
    }

    fn bounded(&self) -> impl Iterator<Item = &Bounded> {
        self.policies.iter().filter_map(|policy| policy.concurrency.as_ref())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let waits = matches!(self.waits.get(), Waits::Application { .. });
        self.bounded().for_each(|it| it.places.leave(waits));
    }
}

impl<'a> Exceeded<'a> {
    /// Out of line, since most requests have a token.
    #[cold]
    fn of(policy: &'a PolicyLimits, rule: &'a CompiledRule, wait: Duration) -> Self {
        let answer = rule.answer.clone();
        Self { policy: &policy.said.policy, rule: &rule.rule.name, answer, wait, hits: &rule.hits }
    }

    /// The wait in whole seconds, at least one: what `retry-after` says (RFC 9110 §10.2.3), and not
    /// less than the wait, which would be in vain.
    #[must_use]
    pub const fn seconds(&self) -> u64 {
        let seconds = self.wait.as_secs();
        if self.wait.subsec_nanos() > 0 || seconds == 0 { seconds + 1 } else { seconds }
    }
}

impl Limits {
    /// Compiles limits. The buckets of what says the same as before are taken over.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used.
    pub fn build(
        limits: &BTreeMap<u16, Vec<PortLimits>>,
        previous: Option<&Self>,
    ) -> Result<Self, BadPattern> {
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

    /// Whether anything bounds what comes in at a port.
    #[must_use]
    pub fn concern(&self, port: u16) -> bool {
        !self.ports.is_empty() && self.ports.contains_key(&port)
    }

    /// Lets a request in when every rule that is about it has a token; then each has one less. The
    /// time is that since any moment, the same for all.
    ///
    /// # Errors
    /// [`Exceeded`] for the first rule without a token; then no rule has one less.
    pub fn admit(
        &self,
        port: u16,
        (request, caller): (&RequestView<'_>, Option<&ServiceAccount>),
        now: Duration,
    ) -> Result<(), Exceeded<'_>> {
        let now = nanoseconds(now);
        let mut taken = 0_usize;
        let exceeded = self.visit(port, (request, caller), |policy, rule| {
            match rule.take(rule.key(request, caller), now) {
                Ok(()) => taken += 1,
                Err(wait) => return Some(Exceeded::of(policy, rule, wait)),
            }
            None
        });
        let Some(exceeded) = exceeded else { return Ok(()) };
        self.visit(port, (request, caller), |_, rule| {
            taken = taken.checked_sub(1)?;
            rule.give_back(rule.key(request, caller));
            None::<()>
        });
        Err(exceeded)
    }

    /// Gives the tokens back of a request that was [admitted](Self::admit) and went no further.
    pub fn give_back(
        &self,
        port: u16,
        (request, caller): (&RequestView<'_>, Option<&ServiceAccount>),
    ) {
        self.visit(port, (request, caller), |_, rule| {
            rule.give_back(rule.key(request, caller));
            None::<()>
        });
    }

    /// A place among the requests that may be under way at a port; `None` where nothing bounds them. The
    /// time is that since any moment, the same for all. `is_whole`: no more of the request will come.
    ///
    /// # Errors
    /// [`Full`] for the first policy without a place.
    pub fn enter(
        &self,
        port: u16,
        is_whole: bool,
        now: Duration,
    ) -> Result<Option<Place>, Full<'_>> {
        let Some(policies) = self.ports.get(&port) else { return Ok(None) };
        let all = || policies.iter().filter_map(|it| Some((it, it.concurrency.as_ref()?)));
        let Some((taken, (policy, bounded))) =
            all().enumerate().find(|(_, (_, bounded))| !bounded.places.take(is_whole, now))
        else {
            let waits = if is_whole { Waits::Application { sent: now } } else { Waits::Client };
            let place = || Place { policies: policies.clone(), waits: Cell::new(waits) };
            return Ok(all().next().map(|_| place()));
        };
        all().take(taken).for_each(|(_, taken)| taken.places.leave(is_whole));
        let (policy, answer) = (&policy.said.policy, bounded.answer.clone());
        Err(Full { policy, rule: CONCURRENCY, answer, hits: &bounded.hits })
    }

    /// Lets an opaque connection in when every policy has a token for it; then each has one less.
    ///
    /// # Errors
    /// [`Exceeded`] for the first policy without a token.
    pub fn admit_connection(&self, port: u16, now: Duration) -> Result<(), Exceeded<'_>> {
        let now = nanoseconds(now);
        let all = || self.of(port).iter().filter_map(|it| Some((it, it.connections.as_ref()?)));
        let exceeded = all().enumerate().find_map(|(index, (policy, (pace, bucket)))| {
            let wait = bucket.take(*pace, now).err()?;
            let (hits, policy, rule) = (&policy.hits, &policy.said.policy, CONNECTIONS);
            Some((index, Exceeded { policy, rule, answer: None, wait, hits }))
        });
        let Some((taken, exceeded)) = exceeded else { return Ok(()) };
        for (_, (pace, bucket)) in all().take(taken) {
            bucket.give_back(*pace);
        }
        Err(exceeded)
    }

    /// The rules that count a request, each with its policy; for tools.
    #[must_use]
    pub fn counting(
        &self,
        port: u16,
        request: &RequestView<'_>,
        caller: Option<&ServiceAccount>,
    ) -> Vec<(&ServicePolicyName, &RateRule)> {
        let mut counting = Vec::new();
        self.visit(port, (request, caller), |policy, rule| {
            counting.push((&policy.said.policy, &rule.rule));
            None::<()>
        });
        counting
    }

    /// What all policies say about a port.
    pub fn said(&self, port: u16) -> impl Iterator<Item = &PortLimits> {
        self.of(port).iter().map(|policy| &policy.said)
    }

    fn of(&self, port: u16) -> &[Arc<PolicyLimits>] {
        self.ports.get(&port).map_or(&[], |policies| &**policies)
    }

    /// The first that `found` makes of the rules that are about a request. Whatever it may mean to
    /// the application counts, so that no odd spelling gets around a limit; and only what it plainly
    /// says keeps the rules after one from it.
    fn visit<'a, T>(
        &'a self,
        port: u16,
        (request, caller): (&RequestView<'_>, Option<&ServiceAccount>),
        mut found: impl FnMut(&'a PolicyLimits, &'a CompiledRule) -> Option<T>,
    ) -> Option<T> {
        // Read for the first rule that asks about the request: a limit for all pays nothing for it.
        let meaning = LazyCell::new(|| {
            let path = PathKind::of(request.path);
            (path, Spelling::of(request.path, path))
        });
        for policy in self.of(port) {
            let mut candidates = policy.rules(|| Sought::meant(request, &meaning.1).by(caller));
            // Borrowed, for they are large to move.
            let named = candidates.by_ref().filter(|rule| rule.rule.names(caller));
            for rule in named {
                if !rule.is_for_all() && !rule.may_count(request, &meaning.1) {
                    continue;
                }
                if let Some(found) = found(policy, rule) {
                    return Some(found);
                }
                if rule.rule.is_last && meaning.0 == PathKind::Plain && rule.counts(request) {
                    break;
                }
            }
        }
        None
    }
}

/// The rules of a policy that may count a request, and perhaps others.
struct Candidates<'a> {
    few: std::slice::Iter<'a, CompiledRule>,
    many: Option<(Rules<'a>, &'a [CompiledRule])>,
}

impl<'a> Iterator for Candidates<'a> {
    type Item = &'a CompiledRule;

    #[inline]
    fn next(&mut self) -> Option<&'a CompiledRule> {
        self.few.next().or_else(|| self.looked_up())
    }
}

impl<'a> Candidates<'a> {
    /// Apart, so that a few, which are asked one after the other, do not pay for it.
    #[inline(never)]
    fn looked_up(&mut self) -> Option<&'a CompiledRule> {
        let (places, rules) = self.many.as_mut()?;
        rules.get(places.next()?)
    }
}

impl PolicyLimits {
    fn compile(said: &PortLimits) -> Result<Self, BadPattern> {
        let rules = said.limits.rules.iter().map(CompiledRule::compile);
        let rules: Box<[CompiledRule]> = rules
            .collect::<Result<_, _>>()
            .map_err(|bad| bad.within(ObjectKey::ServicePolicy(said.policy.clone())))?;
        let about = rules.iter().map(|rule| (&*rule.requests, &*rule.rule.peers));
        let (few, many) = match Many::naming(about) {
            None => (rules, None),
            Some(many) => (Box::default(), Some((many, rules))),
        };
        let connections = said.limits.connections;
        let concurrency = said.limits.concurrency.as_ref().map(|rule| Bounded {
            places: Places::new(rule),
            answer: (rule.answer != FixedAnswer::default()).then(|| Arc::new(rule.answer.clone())),
            hits: Arc::default(),
        });
        Ok(Self {
            concurrency,
            connections: connections.map(|rate| (Pace::of(rate), Bucket::default())),
            few,
            many,
            hits: Arc::default(),
            said: said.clone(),
        })
    }

    /// The rules that may count a request, in order, and perhaps others.
    #[inline]
    fn rules<'a>(&self, sought: impl FnOnce() -> Sought<'a>) -> Candidates<'_> {
        let mut candidates = Candidates { few: self.few.iter(), many: None };
        // Written in place: a policy with few rules has no lookup to copy.
        if let Some((many, rules)) = &self.many {
            candidates.many = Some((many.all(sought()), rules));
        }
        candidates
    }
}

impl CompiledRule {
    fn compile(rule: &RateRule) -> Result<Self, BadPattern> {
        let requests = rule.requests.iter().map(DenialMatcher::compile);
        let plain = rule.requests.iter().filter(|_| rule.is_last).map(RequestMatcher::compile);
        let tokens = match &rule.each {
            Each::Nothing => Tokens::Together(Bucket::default()),
            Each::Client { buckets } | Each::Header { buckets, .. } => {
                Tokens::Each(Buckets::new(*buckets))
            }
        };
        let answer = (rule.answer != FixedAnswer::default()).then(|| rule.answer.clone());
        Ok(Self {
            requests: requests.collect::<Result<_, _>>()?,
            plain: plain.collect::<Result<_, _>>()?,
            pace: Pace::of(rule.rate),
            tokens,
            answer: answer.map(Arc::new),
            hits: Arc::default(),
            rule: rule.clone(),
        })
    }

    /// True when every request fits, whatever its path.
    fn is_for_all(&self) -> bool {
        self.requests.is_empty()
    }

    /// True when the request, the path of which is plain, plainly fits. For rules that are `last`.
    fn counts(&self, request: &RequestView<'_>) -> bool {
        self.is_for_all() || self.plain.iter().any(|it| it.matches(request))
    }

    /// True when an application may take the request for one that fits.
    fn may_count(&self, request: &RequestView<'_>, spelling: &Spelling) -> bool {
        self.requests.iter().any(|it| it.may_mean(request, spelling))
    }

    /// Whose bucket it is.
    fn key(&self, request: &RequestView<'_>, caller: Option<&ServiceAccount>) -> u128 {
        match &self.rule.each {
            Each::Nothing => 0,
            Each::Client { .. } => key(&caller),
            Each::Header { name, .. } => {
                let authority = || Some(Cow::Borrowed(request.authority));
                match name.as_str() {
                    ":authority" => key(&authority()),
                    name => key(&request.fields.find(name)),
                }
            }
        }
    }

    fn take(&self, key: u128, now: u64) -> Result<(), Duration> {
        match &self.tokens {
            Tokens::Together(bucket) => bucket.take(self.pace, now),
            Tokens::Each(buckets) => buckets.take(key, self.pace, now),
        }
    }

    fn give_back(&self, key: u128) {
        match &self.tokens {
            Tokens::Together(bucket) => bucket.give_back(self.pace),
            Tokens::Each(buckets) => buckets.give_back(key, self.pace),
        }
    }
}

/// 128 bits that stand for a value: who wants to share somebody's bucket finds no other value with
/// the same, and what is kept of a value does not grow with it.
fn key(value: &impl Hash) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, value).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The part of a policy that bounds opaque connections, in place of a rule's name.
const CONNECTIONS: &str = "connections";
/// The part that bounds the requests that are under way.
const CONCURRENCY: &str = "concurrency";

#[cfg(test)]
mod tests;
