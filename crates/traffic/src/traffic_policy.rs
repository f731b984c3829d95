//! Compiles the client-side traffic policies of a port, and counts the requests, connections and retries in progress
//! for the limits of circuit breakers. All data threads share the counters.

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

/// The client-side policies for requests to a port: either for requests to the port's own service, or for requests to
/// another service whose route forwards to the port. Policies that are used for both kinds of requests are the same
/// objects, and so have the same counters.
#[derive(Debug, Default)]
pub struct PortTrafficPolicy {
    /// Outlier detection for the port's endpoints.
    pub outlier_detection: Option<Arc<PortOutlierDetection>>,
    /// The circuit breaker of the port itself.
    pub breaker: Option<Arc<CompiledCircuitBreaker>>,
    /// The circuit breaker of the called service, if one of its routes forwards to the port.
    pub called_breaker: Option<Arc<CompiledCircuitBreaker>>,
    /// Fault injection.
    pub faults: Option<Arc<CompiledFaults>>,
    /// Load balancing; the default algorithm when absent.
    pub balancing: Option<Arc<PortLoadBalancing>>,
    /// Hedging.
    pub hedging: Option<Arc<PortHedging>>,
}

/// A compiled circuit breaker, with the counters for its concurrency limits, which all data threads share.
#[derive(Debug)]
pub struct CompiledCircuitBreaker {
    /// The policy and its rule.
    pub breaker: PortCircuitBreaker,
    /// The port of the service that the policy is attached to.
    pub subject: ServicePortId,
    /// The response while the circuit is open, if the policy sets one.
    pub response: Option<Arc<FixedResponse>>,
    /// The requests, connections and retries that the limits count.
    pub in_progress: InProgressCounts,
    /// The cached index of the counter for rejections.
    pub match_slot: MatchSlot,
}

/// One port of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePortId {
    /// The name of the service.
    pub service: ServiceName,
    /// The port of the service.
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
        let response = &breaker.rule.response;
        let response = (*response != FixedResponse::default()).then(|| Arc::new(response.clone()));
        let in_progress = InProgressCounts::new(breaker.rule.limits);
        Self { breaker, subject, response, in_progress, match_slot: MatchSlot::default() }
    }
}

impl PortTrafficPolicy {
    /// Compiles the policies for requests to the port's own service.
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
            called_breaker: None,
            faults: faults.map(Arc::new),
            balancing: rule.balancing.map(Arc::new),
            hedging: rule.hedging.map(Arc::new),
        })
    }

    /// Combines the policies of a called service (`called`) with the policies of the port that its route
    /// forwards to (`own`).
    ///
    /// Faults and hedging of the called service take precedence over those of the port. Both circuit breakers apply.
    /// Outlier detection and load balancing of the port take precedence over those of the called service.
    #[must_use]
    pub fn for_forwarded(called: &Self, own: Option<&Arc<Self>>) -> Arc<Self> {
        let no_policies = Self::default();
        let own_policy: &Self = own.map_or(&no_policies, |own| own);
        let combined_policy = Self {
            outlier_detection: own_policy
                .outlier_detection
                .clone()
                .or_else(|| copy_policy(called.outlier_detection.as_ref())),
            breaker: own_policy.breaker.clone(),
            called_breaker: called.breaker.clone(),
            faults: called.faults.clone().or_else(|| own_policy.faults.clone()),
            balancing: own_policy
                .balancing
                .clone()
                .or_else(|| copy_policy(called.balancing.as_ref())),
            hedging: called.hedging.clone().or_else(|| own_policy.hedging.clone()),
        };
        match own {
            Some(own) if combined_policy.has_same_policies(own) => Arc::clone(own),
            _ => Arc::new(combined_policy),
        }
    }

    /// True if all policies are the same objects as those of `other`.
    fn has_same_policies(&self, other: &Self) -> bool {
        is_same_object(self.outlier_detection.as_ref(), other.outlier_detection.as_ref())
            && is_same_object(self.breaker.as_ref(), other.breaker.as_ref())
            && is_same_object(self.called_breaker.as_ref(), other.called_breaker.as_ref())
            && is_same_object(self.faults.as_ref(), other.faults.as_ref())
            && is_same_object(self.balancing.as_ref(), other.balancing.as_ref())
            && is_same_object(self.hedging.as_ref(), other.hedging.as_ref())
    }

    /// Returns the names of all policies.
    pub fn policy_names(&self) -> impl Iterator<Item = &ServicePolicyName> {
        let outlier_detection =
            self.outlier_detection.iter().map(|outlier_detection| &outlier_detection.policy);
        let breakers = self
            .breaker
            .iter()
            .chain(&self.called_breaker)
            .map(|circuit_breaker| &circuit_breaker.breaker.policy);
        let faults = self.faults.iter().map(|faults| faults.policy());
        let balancing = self.balancing.iter().map(|balancing| &balancing.policy);
        let hedging = self.hedging.iter().map(|hedging| &hedging.policy);
        outlier_detection.chain(breakers).chain(faults).chain(balancing).chain(hedging)
    }

    /// Returns the timeout for connections to an endpoint; `None` if no policy sets one. The port's own policy takes
    /// precedence.
    #[must_use]
    pub fn connect_timeout(&self) -> Option<Duration> {
        let mut breakers = self.breaker.iter().chain(&self.called_breaker);
        breakers.find_map(|circuit_breaker| circuit_breaker.breaker.rule.connect_timeout)
    }

    /// True if a policy depends on the results or the endpoints of attempts.
    #[must_use]
    pub const fn observes_attempts(&self) -> bool {
        let Self { outlier_detection, breaker, called_breaker, balancing, .. } = self;
        outlier_detection.is_some()
            || breaker.is_some()
            || called_breaker.is_some()
            || balancing.is_some()
    }
}

/// Returns a copy of a policy as a separate object. The state of a policy is keyed by its object, so the copy has its
/// own state.
fn copy_policy<T: Clone>(policy: Option<&Arc<T>>) -> Option<Arc<T>> {
    policy.map(|policy| Arc::new(T::clone(policy)))
}

/// True if both are the same object, or both are absent.
fn is_same_object<T>(left: Option<&Arc<T>>, right: Option<&Arc<T>>) -> bool {
    match (left, right) {
        (None, None) => true,
        (Some(left), Some(right)) => Arc::ptr_eq(left, right),
        _ => false,
    }
}

/// The requests and connections in progress at a port, each with its limit.
#[derive(Debug)]
pub struct InProgressCounts {
    /// The number of opaque connections.
    pub connections: LimitedCount,
    /// The number of requests in progress.
    pub requests: LimitedCount,
    /// The number of requests that wait for a connection.
    pub pending: LimitedCount,
    /// The number of retries in progress.
    pub retries: LimitedCount,
}

impl InProgressCounts {
    fn new(limits: CircuitLimits) -> Self {
        let limited = |limit| LimitedCount { limit, count: AtomicU32::new(0) };
        Self {
            connections: limited(limits.connections),
            requests: limited(limits.requests),
            pending: limited(limits.pending),
            retries: limited(limits.retries),
        }
    }
}

/// A counter with a limit, such as that of requests in progress. A counter without a limit is never incremented.
#[derive(Debug)]
pub struct LimitedCount {
    limit: Option<u32>,
    count: AtomicU32,
}

/// The result of [`LimitedCount::try_increment`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountResult {
    /// There is no limit, and the count was not incremented.
    Unlimited,
    /// The count was incremented; [`LimitedCount::decrement`] must be called once.
    Counted,
    /// The limit is reached.
    Full,
}

impl LimitedCount {
    /// Increments the count, if the limit permits it. The order is relaxed, because no other memory depends on the
    /// count.
    pub fn try_increment(&self) -> CountResult {
        let Some(limit) = self.limit else {
            return CountResult::Unlimited;
        };
        let next_count = |count: u32| (count < limit).then(|| count + 1);
        match self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next_count) {
            Ok(_) => CountResult::Counted,
            Err(_) => CountResult::Full,
        }
    }

    /// Decrements the count.
    pub fn decrement(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_admitted_than_the_limit() {
        let limits = CircuitLimits { requests: Some(2), retries: Some(0), ..Default::default() };
        let counts = InProgressCounts::new(limits);
        assert_eq!(counts.requests.try_increment(), CountResult::Counted);
        assert_eq!(counts.requests.try_increment(), CountResult::Counted);
        assert_eq!(counts.requests.try_increment(), CountResult::Full);
        counts.requests.decrement();
        assert_eq!(counts.requests.try_increment(), CountResult::Counted);
        assert_eq!(counts.retries.try_increment(), CountResult::Full);
        assert_eq!(counts.pending.try_increment(), CountResult::Unlimited);
    }

    #[test]
    fn concurrent_threads_never_exceed_the_limit() {
        let counter = LimitedCount { limit: Some(3), count: AtomicU32::new(0) };
        let (entered, max_entered) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        if counter.try_increment() == CountResult::Counted {
                            let count = entered.fetch_add(1, Ordering::SeqCst) + 1;
                            max_entered.fetch_max(count, Ordering::SeqCst);
                            entered.fetch_sub(1, Ordering::SeqCst);
                            counter.decrement();
                        }
                    }
                });
            }
        });
        assert!((1..=3).contains(&max_entered.load(Ordering::SeqCst)));
        assert_eq!(counter.count.load(Ordering::SeqCst), 0);
    }
}
