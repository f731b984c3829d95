//! Applies the circuit breakers of a port on one data thread. Each attempt needs the permission of all circuit
//! breakers that apply to it, and reports its outcome to them. A circuit breaker has limits on work in
//! progress, and may have a circuit, which opens after failures and then rejects all attempts. An admitted
//! attempt holds a slot of the limit and a ticket of the circuit.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leno_model::{FixedResponse, Reason};
use leno_telemetry::{Count, MetricsShard};
use leno_traffic::circuit_breaker::{Circuit, CircuitTicket, RequestOutcome, Transition, Trigger};
use leno_traffic::outlier::{EndpointResult, FailureEvidence, classify_result};
use leno_traffic::traffic_policy::{
    CompiledCircuitBreaker, CountResult, InProgressCounts, LimitedCount, PortTrafficPolicy,
    ServicePortId,
};

use super::cluster::UpstreamCluster;
use crate::conditions::OpenCircuit;
use crate::config_store::ConfigStore;
use crate::rule_matches;
use crate::worker::Worker;

/// One circuit breaker, shared by all policy sets of its port, and by all ports to which a route of its service
/// forwards.
pub(crate) struct CircuitBreakerState {
    /// The policy of the circuit breaker, with its counts of work in progress.
    compiled_breaker: Arc<CompiledCircuitBreaker>,
    /// The circuit; `None` if the policy has no conditions for opening one.
    circuit: Option<RefCell<Circuit>>,
    /// The number of the circuit in the proxy's list of open circuits.
    circuit_number: u64,
    config_store: Arc<ConfigStore>,
    metrics: Rc<MetricsShard>,
}

/// The circuit breakers that apply to a request: one of the called service, and one of the port to which the
/// request is routed. Both must permit the request.
#[derive(Clone)]
pub(crate) struct CircuitBreakers {
    /// The circuit breaker of the called service, if it has one.
    service_breaker: Option<Rc<CircuitBreakerState>>,
    /// The circuit breaker of the port to which the request is routed, if it has one.
    port_breaker: Option<Rc<CircuitBreakerState>>,
    /// The connect timeout of the policies; `None` if they set none.
    pub(super) connect_timeout: Option<Duration>,
}

/// The permit of one attempt.
pub(crate) struct CircuitPermit {
    /// One ticket for each circuit breaker, in the order of [`CircuitBreakers::breakers`].
    tickets: [Option<CircuitTicket>; 2],
    /// The time of admission, on the clock of [`ConfigStore::age`].
    started_at: Duration,
    /// The slots in the limits on attempts in progress; `None` if no limit applies.
    _limit_permit: Option<LimitPermit>,
}

impl CircuitBreakerState {
    fn new(compiled_breaker: &Arc<CompiledCircuitBreaker>, worker: &Worker) -> Self {
        let trip = compiled_breaker.breaker.rule.trip.clone();
        Self {
            compiled_breaker: compiled_breaker.clone(),
            circuit: trip.map(|trip| RefCell::new(Circuit::new(trip))),
            circuit_number: worker.config_store.conditions.next_circuit_number(),
            config_store: worker.config_store.clone(),
            metrics: worker.metrics.clone(),
        }
    }

    /// Admits an attempt to the circuit; `None` without a circuit. Fails while the circuit is open.
    fn admit_attempt(&self, now: Duration) -> Result<Option<CircuitTicket>, Reason> {
        let Some(circuit) = &self.circuit else { return Ok(None) };
        let admitted_ticket = circuit.borrow_mut().admit_request(now);
        admitted_ticket.map(Some).ok_or_else(|| self.count_rejection(Reason::CircuitOpen))
    }

    /// Records the result of an attempt that the circuit admitted.
    fn finish_attempt(
        &self,
        ticket: Option<CircuitTicket>,
        result: EndpointResult,
        started_at: Duration,
        now: Duration,
    ) {
        let (Some(circuit), Some(ticket)) = (&self.circuit, ticket) else { return };
        let mut circuit = circuit.borrow_mut();
        let is_failure = match classify_result(&circuit.rule().failures, result) {
            FailureEvidence::Unknown => return circuit.release_ticket(ticket),
            FailureEvidence::Failure => true,
            FailureEvidence::Success => false,
        };
        // The duration of an upgraded connection says nothing about the endpoint.
        let is_upgrade = matches!(result, EndpointResult::Response { status: 101, .. });
        let duration = if is_upgrade { Duration::ZERO } else { now.saturating_sub(started_at) };
        let transition =
            circuit.record_result(ticket, RequestOutcome { failed: is_failure, duration }, now);
        self.report_transition(transition);
    }

    /// Releases the ticket of an attempt with an unknown result.
    fn release_ticket(&self, ticket: Option<CircuitTicket>) {
        if let (Some(circuit), Some(ticket)) = (&self.circuit, ticket) {
            circuit.borrow_mut().release_ticket(ticket);
        }
    }

    /// Acquires a slot of one of the limits. Returns true if the slot is counted and has to be released, and
    /// false if the policy does not set this limit. Fails if the limit is reached.
    fn acquire_slot(&self, selector: LimitSelector) -> Result<bool, Reason> {
        match selector(&self.compiled_breaker.in_progress).try_increment() {
            CountResult::Unlimited => Ok(false),
            CountResult::Counted => Ok(true),
            CountResult::Full => Err(self.count_rejection(Reason::CircuitFull)),
        }
    }

    /// Counts a rejection, and returns its reason.
    fn count_rejection(&self, reason: Reason) -> Reason {
        rule_matches::count_whole_policy(
            &self.metrics,
            &self.compiled_breaker.breaker.policy,
            &self.compiled_breaker.match_slot,
        );
        reason
    }

    /// True while the circuit is open; false without a circuit.
    fn is_open(&self, now: Duration) -> bool {
        self.circuit.as_ref().is_some_and(|circuit| circuit.borrow().is_open(now))
    }

    /// Reports a transition of the circuit to the counters, the log and the conditions of the proxy.
    fn report_transition(&self, transition: Option<Transition>) {
        let policy = &self.compiled_breaker.breaker.policy;
        let ServicePortId { service, port } = &self.compiled_breaker.subject;
        match transition {
            None => {}
            Some(Transition::Opened(trigger)) => {
                self.metrics.add(Count::CircuitOpened, 1);
                self.report_open(trigger);
                // Only a policy with `trip` has a circuit, so the default duration is never used.
                let trip = self.compiled_breaker.breaker.rule.trip.as_ref();
                let open_duration =
                    tracing::field::debug(trip.map(|trip| trip.open_duration).unwrap_or_default());
                let trigger = trigger.as_str();
                tracing::warn!(%service, port, %policy, trigger, open_duration, "circuit opened");
            }
            Some(Transition::Closed) => {
                self.metrics.add(Count::CircuitClosed, 1);
                self.config_store.conditions.remove_circuit(self.circuit_number);
                tracing::info!(%service, port, %policy, "circuit closed");
            }
        }
    }

    /// Adds the open circuit to the conditions of the proxy.
    fn report_open(&self, trigger: Trigger) {
        let breaker = &self.compiled_breaker.breaker;
        let circuit = OpenCircuit {
            subject: self.compiled_breaker.subject.clone(),
            policy: breaker.policy.clone(),
            trigger,
            since: Instant::now(),
            open_for: breaker.rule.trip.as_ref().map(|trip| trip.open_duration).unwrap_or_default(),
            status: breaker.rule.response.status.unwrap_or(Reason::CircuitOpen.status()),
        };
        self.config_store.conditions.add_circuit(self.circuit_number, circuit);
    }
}

impl Drop for CircuitBreakerState {
    fn drop(&mut self) {
        if self.circuit.is_some() {
            self.config_store.conditions.remove_circuit(self.circuit_number);
        }
    }
}

impl CircuitBreakers {
    /// Returns the circuit breakers of a traffic policy; `None` if the policy has none. A circuit breaker
    /// that another policy set in `existing_breakers` already has is shared.
    pub(crate) fn new<'a>(
        traffic_policy: &PortTrafficPolicy,
        worker: &Worker,
        existing_breakers: impl Iterator<Item = &'a Self> + Clone,
    ) -> Option<Self> {
        let get_or_create = |compiled_breaker: &Arc<CompiledCircuitBreaker>| {
            let mut shareable_breakers = existing_breakers.clone().flat_map(Self::breakers);
            let shared_breaker = shareable_breakers
                .find(|circuit_breaker| {
                    Arc::ptr_eq(&circuit_breaker.compiled_breaker, compiled_breaker)
                })
                .cloned();
            shared_breaker
                .unwrap_or_else(|| Rc::new(CircuitBreakerState::new(compiled_breaker, worker)))
        };
        let service_breaker = traffic_policy.called_breaker.as_ref().map(get_or_create);
        let port_breaker = traffic_policy.breaker.as_ref().map(get_or_create);
        let connect_timeout = traffic_policy.connect_timeout();
        (service_breaker.is_some() || port_breaker.is_some()).then_some(Self {
            service_breaker,
            port_breaker,
            connect_timeout,
        })
    }

    fn breakers(&self) -> impl Iterator<Item = &Rc<CircuitBreakerState>> {
        self.service_breaker.iter().chain(&self.port_breaker)
    }

    /// Admits an attempt, or returns the reason for the rejection. `selector`: the limit on attempts in
    /// progress, if one applies.
    pub(crate) fn admit_attempt(
        &self,
        selector: Option<LimitSelector>,
        now: Duration,
    ) -> Result<CircuitPermit, Reason> {
        let limit_permit = selector.map_or(Ok(None), |selector| self.acquire_slots(selector))?;
        let mut tickets = [None, None];
        for (circuit_breaker, ticket) in self.breakers().zip(&mut tickets) {
            match circuit_breaker.admit_attempt(now) {
                Ok(admitted_ticket) => *ticket = admitted_ticket,
                Err(reason) => {
                    self.release_tickets(&mut tickets);
                    return Err(reason);
                }
            }
        }
        Ok(CircuitPermit { tickets, started_at: now, _limit_permit: limit_permit })
    }

    /// Records the outcome of the attempt.
    pub(crate) fn finish_attempt(
        &self,
        circuit_permit: &mut CircuitPermit,
        result: EndpointResult,
        now: Duration,
    ) {
        for (circuit_breaker, ticket) in self.breakers().zip(&mut circuit_permit.tickets) {
            circuit_breaker.finish_attempt(ticket.take(), result, circuit_permit.started_at, now);
        }
    }

    /// Releases the tickets of an attempt that ended without an outcome.
    pub(crate) fn abandon_attempt(&self, circuit_permit: &mut CircuitPermit) {
        self.release_tickets(&mut circuit_permit.tickets);
    }

    fn release_tickets(&self, tickets: &mut [Option<CircuitTicket>; 2]) {
        for (circuit_breaker, ticket) in self.breakers().zip(tickets) {
            circuit_breaker.release_ticket(ticket.take());
        }
    }

    /// Acquires a slot of the same limit in each circuit breaker; `None` if no circuit breaker has this limit.
    /// Fails if one of the limits is reached.
    pub(crate) fn acquire_slots(
        &self,
        selector: LimitSelector,
    ) -> Result<Option<LimitPermit>, Reason> {
        let mut permit = LimitPermit { selector, breakers: [None, None] };
        for (circuit_breaker, slot) in self.breakers().zip(&mut permit.breakers) {
            // Slots acquired before a limit that is reached are released on drop.
            if circuit_breaker.acquire_slot(selector)? {
                *slot = Some(circuit_breaker.compiled_breaker.clone());
            }
        }
        Ok(permit.breakers.iter().any(Option::is_some).then_some(permit))
    }

    /// Waits for a connection that is not available at once, subject to the limit of pending requests.
    pub(crate) async fn wait_for_connection<T>(
        &self,
        checkout: impl Future<Output = Result<T, Reason>>,
    ) -> Result<T, Reason> {
        let mut checkout = pin!(checkout);
        let poll_result = std::future::poll_fn(|cx| Poll::Ready(checkout.as_mut().poll(cx))).await;
        match poll_result {
            Poll::Ready(result) => result,
            Poll::Pending => {
                let _limit_permit = self.acquire_slots(|counts| &counts.pending)?;
                checkout.await
            }
        }
    }

    /// Returns the response that the policy of an open circuit configures. `None` if the circuit is not the
    /// reason for the rejection, or no response is configured.
    pub(crate) fn fixed_response(
        &self,
        reason: Reason,
        now: Duration,
    ) -> Option<Arc<FixedResponse>> {
        if reason != Reason::CircuitOpen {
            return None;
        }
        // The circuit may have closed since the rejection. Then the first circuit breaker is used.
        let open_breaker = self
            .breakers()
            .find(|circuit_breaker| circuit_breaker.is_open(now))
            .or_else(|| self.breakers().next())?;
        open_breaker.compiled_breaker.response.clone()
    }
}

/// Selects the counter of one limit: requests, pending requests or retries.
pub(crate) type LimitSelector = fn(&InProgressCounts) -> &LimitedCount;

/// A slot of one limit in one or two circuit breakers, held until dropped.
pub(crate) struct LimitPermit {
    selector: LimitSelector,
    breakers: [Option<Arc<CompiledCircuitBreaker>>; 2],
}

impl Drop for LimitPermit {
    fn drop(&mut self) {
        for breaker in self.breakers.iter().flatten() {
            (self.selector)(&breaker.in_progress).decrement();
        }
    }
}

/// The slot of an exchange in the limit on concurrent retries: acquired once, and held until the exchange ends.
#[derive(Default)]
pub(crate) struct RetrySlot(Cell<Option<LimitPermit>>);

impl RetrySlot {
    /// Acquires the slot. Returns true if the slot is held or no limit applies, and false at the limit.
    pub(crate) fn try_acquire(&self, cluster: Option<&UpstreamCluster>) -> bool {
        let permit = self.0.take();
        if permit.is_some() {
            self.0.set(permit);
            return true;
        }
        match cluster.map(|cluster| cluster.acquire_slot(|counts| &counts.retries)) {
            None => true,
            Some(Ok(permit)) => {
                self.0.set(permit);
                true
            }
            Some(Err(_)) => false,
        }
    }

    /// Releases the slot, because the exchange is not retried after all.
    pub(crate) fn release(&self) {
        drop(self.0.take());
    }
}
