//! A gate: what a circuit breaker lets through to one port, as one data thread sees it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leno_model::{Breaker, EndpointId, FixedAnswer, Reason};
use leno_telemetry::{Count, Shard};
use leno_traffic::circuit::{Circuit, Shown, Ticket, Trigger, Turn};
use leno_traffic::removal::{Ending, Failed, failed};
use leno_traffic::treatment::{Bounded, Entry, PortTreatment, UnderWay};

use super::Upstream;
use super::ward::Ward;
use crate::conditions::OpenCircuit;
use crate::hits;
use crate::worker::Worker;
use crate::world::World;

/// The breaker of one port.
pub(crate) struct Gate {
    treatment: Arc<PortTreatment>,
    breaker: Breaker,
    circuit: Option<RefCell<Circuit>>,
    /// The number of the circuit among the conditions of the proxy.
    number: u64,
    world: Arc<World>,
    shard: Rc<Shard>,
}

/// A request that was let through.
pub(crate) struct Passage {
    ticket: Option<Ticket>,
    began: Duration,
    _held: Option<Held>,
}

impl Gate {
    /// A gate, if the treatment has a breaker.
    pub(crate) fn new(worker: &Worker, treatment: &Arc<PortTreatment>) -> Option<Self> {
        let breaker = treatment.rule.breaker.clone()?;
        let trip = breaker.rule.trip.clone();
        Some(Self {
            treatment: treatment.clone(),
            circuit: trip.map(|trip| RefCell::new(Circuit::new(trip))),
            breaker,
            number: worker.world.conditions.number(),
            world: worker.world.clone(),
            shard: worker.shard.clone(),
        })
    }

    /// Lets an attempt through, or says why not.
    pub(crate) fn admit(
        &self,
        upstream: &Upstream,
        which: Option<Which>,
        now: Duration,
    ) -> Result<Passage, Reason> {
        let held = which.map_or(Ok(None), |which| self.hold(which))?;
        let ticket = match &self.circuit {
            None => None,
            Some(circuit) => {
                let ticket = circuit.borrow_mut().admit(now);
                Some(ticket.ok_or_else(|| self.turned_away(Reason::CircuitOpen))?)
            }
        };
        if self.breaker.rule.connect_timeout.is_some() {
            upstream.connect_timeout.set(self.breaker.rule.connect_timeout);
        }
        Ok(Passage { ticket, began: now, _held: held })
    }

    /// It ended so.
    pub(crate) fn end(
        &self,
        endpoint: &EndpointId,
        passage: &mut Passage,
        ending: Ending,
        now: Duration,
    ) {
        let (Some(circuit), Some(ticket)) = (&self.circuit, passage.ticket.take()) else {
            return;
        };
        let mut circuit = circuit.borrow_mut();
        let failed = match failed(&circuit.rule().failures, ending) {
            Failed::Unknown => return circuit.release(ticket),
            Failed::Yes => true,
            Failed::No => false,
        };
        let upgraded = matches!(ending, Ending::Answered { status: 101, .. });
        let took = if upgraded { Duration::ZERO } else { now.saturating_sub(passage.began) };
        let turn = circuit.end(ticket, Shown { failed, took }, now);
        self.tell(turn, endpoint);
    }

    /// It ended in a way that proves nothing.
    pub(crate) fn release(&self, passage: &mut Passage) {
        if let (Some(circuit), Some(ticket)) = (&self.circuit, passage.ticket.take()) {
            circuit.borrow_mut().release(ticket);
        }
    }

    /// Room for one more of a kind, or there is none.
    pub(crate) fn hold(&self, which: Which) -> Result<Option<Held>, Reason> {
        match which(&self.treatment.under_way).enter() {
            Entry::Free => Ok(None),
            Entry::Counted => Ok(Some(Held { treatment: self.treatment.clone(), which })),
            Entry::Full => Err(self.turned_away(Reason::CircuitFull)),
        }
    }

    /// Counts that something is let through no further, for this reason.
    fn turned_away(&self, reason: Reason) -> Reason {
        hits::whole(&self.shard, &self.breaker.policy, &self.treatment.breaker_hits);
        reason
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

    /// What is answered while the circuit is open, if the policy says.
    pub(crate) fn answer(&self, reason: Reason) -> Option<Arc<FixedAnswer>> {
        self.treatment.answer.clone().filter(|_| reason == Reason::CircuitOpen)
    }

    fn tell(&self, turn: Option<Turn>, endpoint: &EndpointId) {
        let policy = &self.breaker.policy;
        match turn {
            None => {}
            Some(Turn::Opened(trigger)) => {
                self.shard.add(Count::CircuitOpened, 1);
                let pause = self.breaker.rule.trip.as_ref().map(|trip| trip.open_for);
                self.report(trigger, endpoint);
                tracing::warn!(%policy, trigger = trigger.as_str(), ?pause, "circuit opened");
            }
            Some(Turn::Closed) => {
                self.shard.add(Count::CircuitClosed, 1);
                self.world.conditions.close(self.number);
                tracing::info!(%policy, "circuit closed");
            }
        }
    }
}

impl Gate {
    /// Lists the circuit among the conditions of the proxy.
    fn report(&self, trigger: Trigger, endpoint: &EndpointId) {
        let circuit = OpenCircuit {
            service: endpoint.service.clone(),
            port: endpoint.port,
            policy: self.breaker.policy.clone(),
            trigger,
            since: Instant::now(),
            open_for: self.breaker.rule.trip.as_ref().map(|trip| trip.open_for).unwrap_or_default(),
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

/// One of the numbers that are bounded.
pub(crate) type Which = fn(&UnderWay) -> &Bounded;

/// One that was counted, until dropped.
pub(crate) struct Held {
    treatment: Arc<PortTreatment>,
    which: Which,
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.which)(&self.treatment.under_way).leave();
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
