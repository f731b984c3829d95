//! Circuit breakers of one way to a port, as one data thread sees them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leno_model::{FixedAnswer, Reason};
use leno_telemetry::{Count, Shard};
use leno_traffic::circuit::{Circuit, Shown, Ticket, Trigger, Turn};
use leno_traffic::removal::{Ending, Failed, failed};
use leno_traffic::treatment::{Bounded, Entry, PortBreaker, PortTreatment, ServicePort, UnderWay};

use super::ward::Ward;
use crate::conditions::OpenCircuit;
use crate::hits;
use crate::worker::Worker;
use crate::world::World;

/// One circuit breaker. All ways to its port share it, and all ports that a route of its service
/// forwards to.
pub(crate) struct Gate {
    breaker: Arc<PortBreaker>,
    circuit: Option<RefCell<Circuit>>,
    /// The number of the circuit among the conditions of the proxy.
    number: u64,
    world: Arc<World>,
    shard: Rc<Shard>,
}

/// The circuit breakers that a request passes: that of the called service, then that of the port.
/// Both hold.
#[derive(Clone)]
pub(crate) struct Gates {
    called: Option<Rc<Gate>>,
    own: Option<Rc<Gate>>,
    pub(super) connect_timeout: Option<Duration>,
}

/// A request that was let through.
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
            number: worker.world.conditions.number(),
            world: worker.world.clone(),
            shard: worker.shard.clone(),
        }
    }

    /// Lets an attempt through its circuit, if it has one.
    fn admit(&self, now: Duration) -> Result<Option<Ticket>, Reason> {
        let Some(circuit) = &self.circuit else { return Ok(None) };
        let ticket = circuit.borrow_mut().admit(now);
        ticket.map(Some).ok_or_else(|| self.turned_away(Reason::CircuitOpen))
    }

    fn end(&self, ticket: Option<Ticket>, ending: Ending, (began, now): (Duration, Duration)) {
        let (Some(circuit), Some(ticket)) = (&self.circuit, ticket) else { return };
        let mut circuit = circuit.borrow_mut();
        let failed = match failed(&circuit.rule().failures, ending) {
            Failed::Unknown => return circuit.release(ticket),
            Failed::Yes => true,
            Failed::No => false,
        };
        let upgraded = matches!(ending, Ending::Answered { status: 101, .. });
        let took = if upgraded { Duration::ZERO } else { now.saturating_sub(began) };
        let turn = circuit.end(ticket, Shown { failed, took }, now);
        self.tell(turn);
    }

    fn release(&self, ticket: Option<Ticket>) {
        if let (Some(circuit), Some(ticket)) = (&self.circuit, ticket) {
            circuit.borrow_mut().release(ticket);
        }
    }

    /// Enters one of its limits. True: it counts, and has to be left.
    fn enter(&self, which: Which) -> Result<bool, Reason> {
        match which(&self.breaker.under_way).enter() {
            Entry::Free => Ok(false),
            Entry::Counted => Ok(true),
            Entry::Full => Err(self.turned_away(Reason::CircuitFull)),
        }
    }

    /// Counts that something is let through no further, for this reason.
    fn turned_away(&self, reason: Reason) -> Reason {
        hits::whole(&self.shard, &self.breaker.breaker.policy, &self.breaker.hits);
        reason
    }

    fn is_open(&self, now: Duration) -> bool {
        self.circuit.as_ref().is_some_and(|circuit| circuit.borrow().is_open(now))
    }

    fn tell(&self, turn: Option<Turn>) {
        let policy = &self.breaker.breaker.policy;
        let ServicePort { service, port } = &self.breaker.subject;
        match turn {
            None => {}
            Some(Turn::Opened(trigger)) => {
                self.shard.add(Count::CircuitOpened, 1);
                self.report(trigger);
                let open_for = self.breaker.breaker.rule.trip.as_ref().map(|trip| trip.open_for);
                let open_for = tracing::field::debug(open_for.unwrap_or_default());
                let trigger = trigger.as_str();
                tracing::warn!(%service, port, %policy, trigger, open_for, "circuit opened");
            }
            Some(Turn::Closed) => {
                self.shard.add(Count::CircuitClosed, 1);
                self.world.conditions.close(self.number);
                tracing::info!(%service, port, %policy, "circuit closed");
            }
        }
    }
}

impl Gate {
    /// Lists the circuit among the conditions of the proxy.
    fn report(&self, trigger: Trigger) {
        let breaker = &self.breaker.breaker;
        let circuit = OpenCircuit {
            subject: self.breaker.subject.clone(),
            policy: breaker.policy.clone(),
            trigger,
            since: Instant::now(),
            open_for: breaker.rule.trip.as_ref().map(|trip| trip.open_for).unwrap_or_default(),
            status: breaker.rule.answer.status.unwrap_or(Reason::CircuitOpen.status()),
        };
        self.world.conditions.open(self.number, circuit);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.circuit.is_some() {
            self.world.conditions.close(self.number);
        }
    }
}

impl Gates {
    /// The circuit breakers of a treatment, if it has any; `known` are those of other ways, which it
    /// shares.
    pub(crate) fn new<'a>(
        treatment: &PortTreatment,
        worker: &Worker,
        known: impl Iterator<Item = &'a Self> + Clone,
    ) -> Option<Self> {
        let gate = |breaker: &Arc<PortBreaker>| {
            let mut known = known.clone().flat_map(Self::all);
            let shared = known.find(|gate| Arc::ptr_eq(&gate.breaker, breaker)).cloned();
            shared.unwrap_or_else(|| Rc::new(Gate::new(breaker, worker)))
        };
        let called = treatment.called.as_ref().map(gate);
        let own = treatment.breaker.as_ref().map(gate);
        let connect_timeout = treatment.connect_timeout();
        (called.is_some() || own.is_some()).then_some(Self { called, own, connect_timeout })
    }

    fn all(&self) -> impl Iterator<Item = &Rc<Gate>> {
        self.called.iter().chain(&self.own)
    }

    /// Lets an attempt through, or returns the reason against it.
    pub(crate) fn admit(&self, which: Option<Which>, now: Duration) -> Result<Passage, Reason> {
        let held = which.map_or(Ok(None), |which| self.hold(which))?;
        let mut tickets = [None, None];
        for (gate, ticket) in self.all().zip(&mut tickets) {
            match gate.admit(now) {
                Ok(given) => *ticket = given,
                Err(reason) => {
                    self.release(&mut tickets);
                    return Err(reason);
                }
            }
        }
        Ok(Passage { tickets, began: now, _held: held })
    }

    /// The attempt ended so.
    pub(crate) fn end(&self, passage: &mut Passage, ending: Ending, now: Duration) {
        for (gate, ticket) in self.all().zip(&mut passage.tickets) {
            gate.end(ticket.take(), ending, (passage.began, now));
        }
    }

    /// The attempt ended in a way that proves nothing.
    pub(crate) fn abandon(&self, passage: &mut Passage) {
        self.release(&mut passage.tickets);
    }

    fn release(&self, tickets: &mut [Option<Ticket>; 2]) {
        for (gate, ticket) in self.all().zip(tickets) {
            gate.release(ticket.take());
        }
    }

    /// Room for one more of a kind below each limit, or there is none.
    pub(crate) fn hold(&self, which: Which) -> Result<Option<Held>, Reason> {
        let mut held = Held { which, breakers: [None, None] };
        for (gate, place) in self.all().zip(&mut held.breakers) {
            // Limits that were entered before one that is reached are left on drop.
            if gate.enter(which)? {
                *place = Some(gate.breaker.clone());
            }
        }
        Ok(held.breakers.iter().any(Option::is_some).then_some(held))
    }

    /// Waits for something that is not there at once, if there is room for one more who waits.
    pub(crate) async fn wait<T>(
        &self,
        lease: impl Future<Output = Result<T, Reason>>,
    ) -> Result<T, Reason> {
        let mut lease = pin!(lease);
        let first = std::future::poll_fn(|cx| Poll::Ready(lease.as_mut().poll(cx))).await;
        match first {
            Poll::Ready(leased) => leased,
            Poll::Pending => {
                let _held = self.hold(|under_way| &under_way.pending)?;
                lease.await
            }
        }
    }

    /// The answer while a circuit is open, where its policy has one.
    pub(crate) fn answer(&self, reason: Reason, now: Duration) -> Option<Arc<FixedAnswer>> {
        if reason != Reason::CircuitOpen {
            return None;
        }
        let open = self.all().find(|gate| gate.is_open(now)).or_else(|| self.all().next())?;
        open.breaker.answer.clone()
    }
}

/// One of the numbers that are bounded.
pub(crate) type Which = fn(&UnderWay) -> &Bounded;

/// One that was counted below the limits of one or two circuit breakers, until dropped.
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

/// That an exchange is sent once more, where that is bounded: counted once, until its end.
#[derive(Default)]
pub(crate) struct Retrying(Cell<Option<Held>>);

impl Retrying {
    /// Whether there is room for it.
    pub(crate) fn claim(&self, ward: Option<&Ward>) -> bool {
        let held = self.0.take();
        if held.is_some() {
            self.0.set(held);
            return true;
        }
        match ward.map(|ward| ward.hold(|under_way| &under_way.retries)) {
            None => true,
            Some(Ok(held)) => {
                self.0.set(held);
                true
            }
            Some(Err(_)) => false,
        }
    }

    /// It is not sent once more after all: others may be.
    pub(crate) fn give_back(&self) {
        drop(self.0.take());
    }
}
