//! A port's treatment, compiled: what its policies say, and what all threads count together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leno_model::{
    Balancing, Breaker, CircuitLimits, FixedAnswer, Hedging, Removal, ServiceName,
    ServicePolicyName, Treatment,
};

use crate::fault::FaultPlan;
use crate::hits::HitSlot;
use crate::pattern::BadPattern;

/// The client-side policies of one way to a port: a direct call of its service, or a call of another
/// service with a route to the port. Both ways share the counts of the port's own policies.
#[derive(Debug, Default)]
pub struct PortTreatment {
    /// Outlier detection among the port's endpoints.
    pub removal: Option<Arc<Removal>>,
    /// The circuit breaker of the port itself.
    pub breaker: Option<Arc<PortBreaker>>,
    /// The circuit breaker of the called service, where a route of it forwards to the port.
    pub called: Option<Arc<PortBreaker>>,
    /// Delays and errors on purpose.
    pub faults: Option<Arc<FaultPlan>>,
    /// The choice of an endpoint; the default algorithm when absent.
    pub balancing: Option<Arc<Balancing>>,
    /// Second attempts.
    pub hedging: Option<Arc<Hedging>>,
}

/// A circuit breaker, and the requests below its limits in the whole sidecar.
#[derive(Debug)]
pub struct PortBreaker {
    /// The policy and its rule.
    pub breaker: Breaker,
    /// The port of the service that the policy is attached to.
    pub subject: ServicePort,
    /// The answer while the circuit is open, where the policy has one.
    pub answer: Option<Arc<FixedAnswer>>,
    /// The requests, connections and retries that the limits count.
    pub under_way: UnderWay,
    /// The counter of rejections.
    pub hits: HitSlot,
}

/// One port of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePort {
    /// The service.
    pub service: ServiceName,
    /// Its port.
    pub port: u16,
}

impl std::fmt::Display for ServicePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.service, self.port)
    }
}

impl PortBreaker {
    /// Nothing is under way yet.
    fn new(breaker: Breaker, subject: ServicePort) -> Self {
        let answer = &breaker.rule.answer;
        let answer = (*answer != FixedAnswer::default()).then(|| Arc::new(answer.clone()));
        let under_way = UnderWay::new(breaker.rule.limits);
        Self { breaker, subject, answer, under_way, hits: HitSlot::default() }
    }
}

impl PortTreatment {
    /// The treatment of requests that call the port's service directly.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used.
    pub fn new(rule: Treatment, subject: &ServicePort) -> Result<Self, BadPattern> {
        let faults = rule.faults.as_ref().map(FaultPlan::compile).transpose()?;
        Ok(Self {
            removal: rule.removal.map(Arc::new),
            breaker: rule
                .breaker
                .map(|breaker| Arc::new(PortBreaker::new(breaker, subject.clone()))),
            called: None,
            faults: faults.map(Arc::new),
            balancing: rule.balancing.map(Arc::new),
            hedging: rule.hedging.map(Arc::new),
        })
    }

    /// The treatment of requests that call a service (`called`) with a route that forwards them to a
    /// port with policies of its own (`own`).
    ///
    /// Faults and hedging belong to the called service, and the port's own apply where the called
    /// service has none. Both circuit breakers hold. Outlier detection and load balancing belong to
    /// the endpoints: those of the called service are defaults for a port without its own.
    #[must_use]
    pub fn forwarded(called: &Self, own: Option<&Arc<Self>>) -> Arc<Self> {
        let none = Self::default();
        let port: &Self = own.map_or(&none, |own| own);
        let combined = Self {
            removal: port.removal.clone().or_else(|| copied(called.removal.as_ref())),
            breaker: port.breaker.clone(),
            called: called.breaker.clone(),
            faults: called.faults.clone().or_else(|| port.faults.clone()),
            balancing: port.balancing.clone().or_else(|| copied(called.balancing.as_ref())),
            hedging: called.hedging.clone().or_else(|| port.hedging.clone()),
        };
        match own {
            Some(own) if combined.is_same(own) => Arc::clone(own),
            _ => Arc::new(combined),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        same(self.removal.as_ref(), other.removal.as_ref())
            && same(self.breaker.as_ref(), other.breaker.as_ref())
            && same(self.called.as_ref(), other.called.as_ref())
            && same(self.faults.as_ref(), other.faults.as_ref())
            && same(self.balancing.as_ref(), other.balancing.as_ref())
            && same(self.hedging.as_ref(), other.hedging.as_ref())
    }

    /// The policies that take part.
    pub fn policies(&self) -> impl Iterator<Item = &ServicePolicyName> {
        let removal = self.removal.iter().map(|removal| &removal.policy);
        let breakers = self.breaker.iter().chain(&self.called).map(|it| &it.breaker.policy);
        let faults = self.faults.iter().map(|faults| faults.policy());
        let balancing = self.balancing.iter().map(|balancing| &balancing.policy);
        let hedging = self.hedging.iter().map(|hedging| &hedging.policy);
        removal.chain(breakers).chain(faults).chain(balancing).chain(hedging)
    }

    /// The time for connecting to an endpoint, where a policy bounds it: the port's own first.
    #[must_use]
    pub fn connect_timeout(&self) -> Option<Duration> {
        let mut breakers = self.breaker.iter().chain(&self.called);
        breakers.find_map(|it| it.breaker.rule.connect_timeout)
    }

    /// Reports that something of it has to do with attempts: how they end, or where they go.
    #[must_use]
    pub const fn is_watchful(&self) -> bool {
        let Self { removal, breaker, called, balancing, .. } = self;
        removal.is_some() || breaker.is_some() || called.is_some() || balancing.is_some()
    }
}

/// A copy with an identity of its own, since each port has its own counts.
fn copied<T: Clone>(shared: Option<&Arc<T>>) -> Option<Arc<T>> {
    shared.map(|shared| Arc::new(T::clone(shared)))
}

fn same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
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
