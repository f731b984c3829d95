//! A port's treatment, compiled: what its policies say, and what all threads count together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leno_model::{CircuitLimits, FixedAnswer, Treatment};

use crate::fault::FaultPlan;
use crate::hits::HitSlot;
use crate::pattern::BadPattern;

/// What the policies of a port say, and what is under way there in the whole sidecar.
#[derive(Debug)]
pub struct PortTreatment {
    /// What they say.
    pub rule: Treatment,
    /// What is answered while the circuit is open.
    pub answer: Option<Arc<FixedAnswer>>,
    /// What is under way.
    pub under_way: UnderWay,
    /// Delays and errors on purpose.
    pub faults: Option<FaultPlan>,
    /// Where it is counted that the breaker lets something through no further.
    pub breaker_hits: HitSlot,
}

impl PortTreatment {
    /// Nothing is under way yet.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used.
    pub fn new(rule: Treatment) -> Result<Self, BadPattern> {
        let breaker = rule.breaker.as_ref().map(|breaker| &breaker.rule);
        let limits = breaker.map(|rule| rule.limits).unwrap_or_default();
        let answer = breaker.map(|rule| &rule.answer);
        let answer = answer.filter(|answer| **answer != FixedAnswer::default());
        let answer = answer.cloned().map(Arc::new);
        let faults = rule.faults.as_ref().map(FaultPlan::compile).transpose()?;
        let breaker_hits = HitSlot::default();
        Ok(Self { rule, answer, under_way: UnderWay::new(limits), faults, breaker_hits })
    }

    /// Whether anything of it has to do with attempts: how they end, or where they go.
    #[must_use]
    pub const fn is_watchful(&self) -> bool {
        let Treatment { removal, breaker, balancing, .. } = &self.rule;
        removal.is_some() || breaker.is_some() || balancing.is_some()
    }
}

/// What is under way at a port, each with its bound.
#[derive(Debug)]
pub struct UnderWay {
    /// Opaque connections.
    pub connections: Bounded,
    /// Requests.
    pub requests: Bounded,
    /// Requests that wait for a connection.
    pub pending: Bounded,
    /// Requests that are being sent once more.
    pub retries: Bounded,
}

impl UnderWay {
    fn new(limits: CircuitLimits) -> Self {
        let bounded = |most| Bounded { most, now: AtomicU32::new(0) };
        Self {
            connections: bounded(limits.connections),
            requests: bounded(limits.requests),
            pending: bounded(limits.pending),
            retries: bounded(limits.retries),
        }
    }
}

/// A number that may not exceed a bound. Without a bound nothing is counted.
#[derive(Debug)]
pub struct Bounded {
    most: Option<u32>,
    now: AtomicU32,
}

/// Whether one more was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Without being counted: there is no bound.
    Free,
    /// It was counted, and [`Bounded::leave`] is called for it once.
    Counted,
    /// There is no room.
    Full,
}

impl Bounded {
    /// One more wants in.
    pub fn enter(&self) -> Entry {
        let Some(most) = self.most else {
            return Entry::Free;
        };
        let more = |now: u32| (now < most).then(|| now + 1);
        match self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Entry::Counted,
            Err(_) => Entry::Full,
        }
    }

    /// One that was counted has left.
    pub fn leave(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_in_as_many_as_the_bound_and_no_more() {
        let limits = CircuitLimits { requests: Some(2), retries: Some(0), ..Default::default() };
        let under_way = UnderWay::new(limits);
        assert_eq!(under_way.requests.enter(), Entry::Counted);
        assert_eq!(under_way.requests.enter(), Entry::Counted);
        assert_eq!(under_way.requests.enter(), Entry::Full);
        under_way.requests.leave();
        assert_eq!(under_way.requests.enter(), Entry::Counted);
        assert_eq!(under_way.retries.enter(), Entry::Full);
        assert_eq!(under_way.pending.enter(), Entry::Free);
    }

    #[test]
    fn threads_together_never_pass_the_bound() {
        let bounded = Bounded { most: Some(3), now: AtomicU32::new(0) };
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        if bounded.enter() == Entry::Counted {
                            let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                            most.fetch_max(now, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            bounded.leave();
                        }
                    }
                });
            }
        });
        assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
        assert_eq!(bounded.now.load(Ordering::SeqCst), 0);
    }
}
