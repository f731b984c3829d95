//! Circuit breakers of a port under one set of policies, as one data thread sees them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leno_model::{FixedResponse, Reason};
use leno_telemetry::{Count, Shard};
use leno_traffic::circuit::{Circuit, Shown, Ticket, Transition, Trigger};
use leno_traffic::outlier::{Ending, Failed, classify_ending};
use leno_traffic::traffic_policy::{
    Bounded, Entry, PortBreaker, PortTrafficPolicy, ServicePort, UnderWay,
};

use super::cluster::UpstreamCluster;
use crate::conditions::OpenCircuit;
use crate::rule_matches;
use crate::worker::Worker;
use crate::world::World;

/// One circuit breaker, shared by all policy sets of its port, and by all ports to which a route of its service
/// forwards.
pub(crate) struct Gate {
    breaker: Arc<PortBreaker>,
    circuit: Option<RefCell<Circuit>>,
    /// The number of the circuit in the conditions of the proxy.
    number: u64,
    world: Arc<World>,
    shard: Rc<Shard>,
}

/// The circuit breakers that apply to a request: that of the called service, then that of the port. Both must
/// permit it.
#[derive(Clone)]
pub(crate) struct Gates {
    called: Option<Rc<Gate>>,
    own: Option<Rc<Gate>>,
    pub(super) connect_timeout: Option<Duration>,
}

/// A permitted attempt.
pub(crate) struct Passage {
    /// One for each circuit, in the order of [`Gates::all`].
    tickets: [Option<Ticket>; 2],
    began: Duration,
    _held: Option<Held>,
}

impl Gate {
    fn new(breaker: &Arc<PortBreaker>, worker: &Worker) -> Self {
        let trip = breaker.breaker.rule.trip.clone();
        Self {
            breaker: breaker.clone(),
            circuit: trip.map(|trip| RefCell::new(Circuit::new(trip))),
            number: worker.world.conditions.next_number(),
            world: worker.world.clone(),
            shard: worker.shard.clone(),
        }
    }

    /// Admits an attempt to its circuit, if it has one.
    fn admit_attempt(&self, now: Duration) -> Result<Option<Ticket>, Reason> {
        let Some(circuit) = &self.circuit else { return Ok(None) };
        let ticket = circuit.borrow_mut().admit_request(now);
        ticket.map(Some).ok_or_else(|| self.turned_away(Reason::CircuitOpen))
    }

    fn finish_attempt(
        &self,
        ticket: Option<Ticket>,
        ending: Ending,
        began: Duration,
        now: Duration,
    ) {
        let (Some(circuit), Some(ticket)) = (&self.circuit, ticket) else { return };
        let mut circuit = circuit.borrow_mut();
        let failed = match classify_ending(&circuit.rule().failures, ending) {
            Failed::Unknown => return circuit.release_ticket(ticket),
            Failed::Yes => true,
            Failed::No => false,
        };
        let upgraded = matches!(ending, Ending::Answered { status: 101, .. });
        let took = if upgraded { Duration::ZERO } else { now.saturating_sub(began) };
        let transition = circuit.record_result(ticket, Shown { failed, took }, now);
        self.report_transition(transition);
    }

    fn release_ticket(&self, ticket: Option<Ticket>) {
        if let (Some(circuit), Some(ticket)) = (&self.circuit, ticket) {
            circuit.borrow_mut().release_ticket(ticket);
        }
    }

    /// Acquires a slot of one of its limits. Returns true if it is counted, and has to be released.
    fn acquire_slot(&self, which: Which) -> Result<bool, Reason> {
        match which(&self.breaker.under_way).try_enter() {
            Entry::Free => Ok(false),
            Entry::Counted => Ok(true),
            Entry::Full => Err(self.turned_away(Reason::CircuitFull)),
        }
    }

    /// Counts a rejection, and returns its reason.
    fn turned_away(&self, reason: Reason) -> Reason {
        rule_matches::count_whole_policy(
            &self.shard,
            &self.breaker.breaker.policy,
            &self.breaker.match_slot,
        );
        reason
    }

    fn is_open(&self, now: Duration) -> bool {
        self.circuit.as_ref().is_some_and(|circuit| circuit.borrow().is_open(now))
    }

    fn report_transition(&self, transition: Option<Transition>) {
        let policy = &self.breaker.breaker.policy;
        let ServicePort { service, port } = &self.breaker.subject;
        match transition {
            None => {}
            Some(Transition::Opened(trigger)) => {
                self.shard.add(Count::CircuitOpened, 1);
                self.report_open(trigger);
                let open_duration =
                    self.breaker.breaker.rule.trip.as_ref().map(|trip| trip.open_duration);
                let open_duration = tracing::field::debug(open_duration.unwrap_or_default());
                let trigger = trigger.as_str();
                tracing::warn!(%service, port, %policy, trigger, open_duration, "circuit opened");
            }
            Some(Transition::Closed) => {
                self.shard.add(Count::CircuitClosed, 1);
                self.world.conditions.remove_circuit(self.number);
                tracing::info!(%service, port, %policy, "circuit closed");
            }
        }
    }
}

impl Gate {
    /// Adds the circuit to the conditions of the proxy.
    fn report_open(&self, trigger: Trigger) {
        let breaker = &self.breaker.breaker;
        let circuit = OpenCircuit {
            subject: self.breaker.subject.clone(),
            policy: breaker.policy.clone(),
            trigger,
            since: Instant::now(),
            open_for: breaker.rule.trip.as_ref().map(|trip| trip.open_duration).unwrap_or_default(),
            status: breaker.rule.response.status.unwrap_or(Reason::CircuitOpen.status()),
        };
        self.world.conditions.add_circuit(self.number, circuit);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.circuit.is_some() {
            self.world.conditions.remove_circuit(self.number);
        }
    }
}

impl Gates {
    /// Returns the circuit breakers of a traffic policy, if it has any; `known` are those of other policy sets,
    /// which are shared.
    pub(crate) fn new<'a>(
        traffic_policy: &PortTrafficPolicy,
        worker: &Worker,
        known: impl Iterator<Item = &'a Self> + Clone,
    ) -> Option<Self> {
        let gate = |breaker: &Arc<PortBreaker>| {
            let mut known = known.clone().flat_map(Self::breakers);
            let shared = known.find(|gate| Arc::ptr_eq(&gate.breaker, breaker)).cloned();
            shared.unwrap_or_else(|| Rc::new(Gate::new(breaker, worker)))
        };
        let called = traffic_policy.called.as_ref().map(gate);
        let own = traffic_policy.breaker.as_ref().map(gate);
        let connect_timeout = traffic_policy.connect_timeout();
        (called.is_some() || own.is_some()).then_some(Self { called, own, connect_timeout })
    }

    fn breakers(&self) -> impl Iterator<Item = &Rc<Gate>> {
        self.called.iter().chain(&self.own)
    }

    /// Admits an attempt, or returns the reason for the rejection.
    pub(crate) fn admit_attempt(
        &self,
        which: Option<Which>,
        now: Duration,
    ) -> Result<Passage, Reason> {
        let held = which.map_or(Ok(None), |which| self.acquire_slots(which))?;
        let mut tickets = [None, None];
        for (gate, ticket) in self.breakers().zip(&mut tickets) {
            match gate.admit_attempt(now) {
                Ok(given) => *ticket = given,
                Err(reason) => {
                    self.release_tickets(&mut tickets);
                    return Err(reason);
                }
            }
        }
        Ok(Passage { tickets, began: now, _held: held })
    }

    /// Records the outcome of the attempt.
    pub(crate) fn finish_attempt(&self, passage: &mut Passage, ending: Ending, now: Duration) {
        for (gate, ticket) in self.breakers().zip(&mut passage.tickets) {
            gate.finish_attempt(ticket.take(), ending, passage.began, now);
        }
    }

    /// Drops the attempt without an outcome.
    pub(crate) fn abandon_attempt(&self, passage: &mut Passage) {
        self.release_tickets(&mut passage.tickets);
    }

    fn release_tickets(&self, tickets: &mut [Option<Ticket>; 2]) {
        for (gate, ticket) in self.breakers().zip(tickets) {
            gate.release_ticket(ticket.take());
        }
    }

    /// Acquires a slot below each limit, or fails.
    pub(crate) fn acquire_slots(&self, which: Which) -> Result<Option<Held>, Reason> {
        let mut held = Held { which, breakers: [None, None] };
        for (gate, place) in self.breakers().zip(&mut held.breakers) {
            // Slots acquired before a limit that is reached are released on drop.
            if gate.acquire_slot(which)? {
                *place = Some(gate.breaker.clone());
            }
        }
        Ok(held.breakers.iter().any(Option::is_some).then_some(held))
    }

    /// Waits for a connection that is not available at once, subject to the limit of pending requests.
    pub(crate) async fn wait_for_connection<T>(
        &self,
        checkout: impl Future<Output = Result<T, Reason>>,
    ) -> Result<T, Reason> {
        let mut checkout = pin!(checkout);
        let first = std::future::poll_fn(|cx| Poll::Ready(checkout.as_mut().poll(cx))).await;
        match first {
            Poll::Ready(checked_out) => checked_out,
            Poll::Pending => {
                let _held = self.acquire_slots(|under_way| &under_way.pending)?;
                checkout.await
            }
        }
    }

    /// Returns the response while a circuit is open, if its policy has one.
    pub(crate) fn fixed_response(
        &self,
        reason: Reason,
        now: Duration,
    ) -> Option<Arc<FixedResponse>> {
        if reason != Reason::CircuitOpen {
            return None;
        }
        let open =
            self.breakers().find(|gate| gate.is_open(now)).or_else(|| self.breakers().next())?;
        open.breaker.answer.clone()
    }
}

/// Selects one of the limited counters.
pub(crate) type Which = fn(&UnderWay) -> &Bounded;

/// A slot of one or two circuit breakers, until dropped.
pub(crate) struct Held {
    which: Which,
    breakers: [Option<Arc<PortBreaker>>; 2],
}

impl Drop for Held {
    fn drop(&mut self) {
        for breaker in self.breakers.iter().flatten() {
            (self.which)(&breaker.under_way).leave();
        }
    }
}

/// A retry slot of an exchange: acquired once, and held until its end.
#[derive(Default)]
pub(crate) struct Retrying(Cell<Option<Held>>);

impl Retrying {
    /// Acquires the slot. Returns false at the limit.
    pub(crate) fn try_claim(&self, cluster: Option<&UpstreamCluster>) -> bool {
        let held = self.0.take();
        if held.is_some() {
            self.0.set(held);
            return true;
        }
        match cluster.map(|cluster| cluster.acquire_slot(|under_way| &under_way.retries)) {
            None => true,
            Some(Ok(held)) => {
                self.0.set(held);
                true
            }
            Some(Err(_)) => false,
        }
    }

    /// Releases the slot, because the exchange is not retried after all.
    pub(crate) fn give_back(&self) {
        drop(self.0.take());
    }
}
