//! Compiled traffic policies of a port, with the counters that all threads share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leno_model::{
    CircuitLimits, FixedResponse, PortCircuitBreaker, PortHedging, PortLoadBalancing,
    PortOutlierDetection, ServiceName, ServicePolicyName, TrafficPolicy,
};

use crate::fault::CompiledFaults;
use crate::match_slot::MatchSlot;
use crate::pattern::InvalidPattern;

/// The client-side policies of one path to a port: a direct call of its service, or a call of another service
/// with a route to the port. Both paths share the counts of the port's own policies.
#[derive(Debug, Default)]
pub struct PortTrafficPolicy {
    /// Outlier detection for the port's endpoints.
    pub outlier_detection: Option<Arc<PortOutlierDetection>>,
    /// The circuit breaker of the port itself.
    pub breaker: Option<Arc<CompiledCircuitBreaker>>,
    /// The circuit breaker of the called service, if one of its routes forwards to the port.
    pub called: Option<Arc<CompiledCircuitBreaker>>,
    /// Fault injection.
    pub faults: Option<Arc<CompiledFaults>>,
    /// Load balancing; the default algorithm when absent.
    pub balancing: Option<Arc<PortLoadBalancing>>,
    /// Hedging.
    pub hedging: Option<Arc<PortHedging>>,
}

/// A circuit breaker, with the counts for its limits in the whole sidecar.
#[derive(Debug)]
pub struct CompiledCircuitBreaker {
    /// The policy and its rule.
    pub breaker: PortCircuitBreaker,
    /// The port of the service that the policy is attached to.
    pub subject: ServicePortId,
    /// The response while the circuit is open, if the policy sets one.
    pub answer: Option<Arc<FixedResponse>>,
    /// The requests, connections and retries that the limits count.
    pub in_progress: InProgressCounts,
    /// The counter of rejections.
    pub match_slot: MatchSlot,
}

/// One port of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePortId {
    /// The service.
    pub service: ServiceName,
    /// Its port.
    pub port: u16,
}

impl std::fmt::Display for ServicePortId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.service, self.port)
    }
}

impl CompiledCircuitBreaker {
    /// Creates a breaker without requests in progress.
    fn new(breaker: PortCircuitBreaker, subject: ServicePortId) -> Self {
        let answer = &breaker.rule.response;
        let answer = (*answer != FixedResponse::default()).then(|| Arc::new(answer.clone()));
        let under_way = InProgressCounts::new(breaker.rule.limits);
        Self { breaker, subject, answer, in_progress: under_way, match_slot: MatchSlot::default() }
    }
}

impl PortTrafficPolicy {
    /// Compiles the policies of direct calls of the port's service.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub fn new(rule: TrafficPolicy, subject: &ServicePortId) -> Result<Self, InvalidPattern> {
        let faults = rule.faults.as_ref().map(CompiledFaults::compile).transpose()?;
        Ok(Self {
            outlier_detection: rule.outlier_detection.map(Arc::new),
            breaker: rule
                .breaker
                .map(|breaker| Arc::new(CompiledCircuitBreaker::new(breaker, subject.clone()))),
            called: None,
            faults: faults.map(Arc::new),
            balancing: rule.balancing.map(Arc::new),
            hedging: rule.hedging.map(Arc::new),
        })
    }

    /// Combines the policies of a called service (`called`) with those of a port that its route forwards to
    /// (`own`).
    ///
    /// Faults and hedging of the called service take precedence over the port's own. Both circuit breakers
    /// apply. Outlier detection and load balancing belong to the endpoints: those of the called service are
    /// defaults for a port without its own.
    #[must_use]
    pub fn for_forwarded(called: &Self, own: Option<&Arc<Self>>) -> Arc<Self> {
        let none = Self::default();
        let port: &Self = own.map_or(&none, |own| own);
        let combined = Self {
            outlier_detection: port
                .outlier_detection
                .clone()
                .or_else(|| copy_counters(called.outlier_detection.as_ref())),
            breaker: port.breaker.clone(),
            called: called.breaker.clone(),
            faults: called.faults.clone().or_else(|| port.faults.clone()),
            balancing: port.balancing.clone().or_else(|| copy_counters(called.balancing.as_ref())),
            hedging: called.hedging.clone().or_else(|| port.hedging.clone()),
        };
        match own {
            Some(own) if combined.is_same(own) => Arc::clone(own),
            _ => Arc::new(combined),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        is_same(self.outlier_detection.as_ref(), other.outlier_detection.as_ref())
            && is_same(self.breaker.as_ref(), other.breaker.as_ref())
            && is_same(self.called.as_ref(), other.called.as_ref())
            && is_same(self.faults.as_ref(), other.faults.as_ref())
            && is_same(self.balancing.as_ref(), other.balancing.as_ref())
            && is_same(self.hedging.as_ref(), other.hedging.as_ref())
    }

    /// Returns the policies involved.
    pub fn policy_names(&self) -> impl Iterator<Item = &ServicePolicyName> {
        let outlier_detection =
            self.outlier_detection.iter().map(|outlier_detection| &outlier_detection.policy);
        let breakers = self.breaker.iter().chain(&self.called).map(|it| &it.breaker.policy);
        let faults = self.faults.iter().map(|faults| faults.policy());
        let balancing = self.balancing.iter().map(|balancing| &balancing.policy);
        let hedging = self.hedging.iter().map(|hedging| &hedging.policy);
        outlier_detection.chain(breakers).chain(faults).chain(balancing).chain(hedging)
    }

    /// Returns the timeout for connecting to an endpoint, if a policy sets one: the port's own first.
    #[must_use]
    pub fn connect_timeout(&self) -> Option<Duration> {
        let mut breakers = self.breaker.iter().chain(&self.called);
        breakers.find_map(|it| it.breaker.rule.connect_timeout)
    }

    /// True if a policy depends on attempts: on their results, or on their endpoints.
    #[must_use]
    pub const fn is_watchful(&self) -> bool {
        let Self { outlier_detection, breaker, called, balancing, .. } = self;
        outlier_detection.is_some() || breaker.is_some() || called.is_some() || balancing.is_some()
    }
}

/// Returns a copy with separate counters, since each port has its own.
fn copy_counters<T: Clone>(shared: Option<&Arc<T>>) -> Option<Arc<T>> {
    shared.map(|shared| Arc::new(T::clone(shared)))
}

fn is_same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}

/// The requests and connections in progress at a port, each with its limit.
#[derive(Debug)]
pub struct InProgressCounts {
    /// Opaque connections.
    pub connections: LimitedCount,
    /// Requests.
    pub requests: LimitedCount,
    /// Requests that wait for a connection.
    pub pending: LimitedCount,
    /// Retries in progress.
    pub retries: LimitedCount,
}

impl InProgressCounts {
    fn new(limits: CircuitLimits) -> Self {
        let bounded = |most| LimitedCount { most, now: AtomicU32::new(0) };
        Self {
            connections: bounded(limits.connections),
            requests: bounded(limits.requests),
            pending: bounded(limits.pending),
            retries: bounded(limits.retries),
        }
    }
}

/// A counter with a limit. Without a limit it does not count.
#[derive(Debug)]
pub struct LimitedCount {
    most: Option<u32>,
    now: AtomicU32,
}

/// The result of entering a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountResult {
    /// Admitted without being counted: there is no limit.
    Unlimited,
    /// Admitted and counted; [`LimitedCount::leave`] must be called once.
    Counted,
    /// The limit is reached.
    Full,
}

impl LimitedCount {
    /// Enters one more, if the limit permits it.
    pub fn try_enter(&self) -> CountResult {
        let Some(most) = self.most else {
            return CountResult::Unlimited;
        };
        let more = |now: u32| (now < most).then(|| now + 1);
        match self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => CountResult::Counted,
            Err(_) => CountResult::Full,
        }
    }

    /// Removes a counted one.
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
        let under_way = InProgressCounts::new(limits);
        assert_eq!(under_way.requests.try_enter(), CountResult::Counted);
        assert_eq!(under_way.requests.try_enter(), CountResult::Counted);
        assert_eq!(under_way.requests.try_enter(), CountResult::Full);
        under_way.requests.leave();
        assert_eq!(under_way.requests.try_enter(), CountResult::Counted);
        assert_eq!(under_way.retries.try_enter(), CountResult::Full);
        assert_eq!(under_way.pending.try_enter(), CountResult::Unlimited);
    }

    #[test]
    fn threads_together_never_pass_the_bound() {
        let bounded = LimitedCount { most: Some(3), now: AtomicU32::new(0) };
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        if bounded.try_enter() == CountResult::Counted {
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
