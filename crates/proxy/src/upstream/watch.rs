//! Who is left out of the endpoints of one port, by one policy, as one data thread knows it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{Endpoint, HealthCheck, Removal, RemovalAlgorithm};
use leno_telemetry::{Count, Gauge, Shard};
use leno_traffic::removal::{Cause, Ending, Event, Failed, Removed, Seen, Standing, failed};

use super::Upstream;
use super::check::Checking;
use crate::removed::{Entry, RemovedEndpoints};
use crate::worker::Worker;

/// The endpoints of one port under one policy.
pub(crate) struct Watch {
    /// The policy; held, so that nothing else has its address.
    removal: Arc<Removal>,
    /// Active health checks, if the policy has some.
    _checking: Option<Checking>,
    /// The version of the world that the endpoints are from.
    version: Cell<u64>,
    state: RefCell<State>,
    shard: Rc<Shard>,
    /// Where everybody can see what is out.
    list: Arc<RemovedEndpoints>,
    number: u64,
}

struct State {
    removed: Removed,
    endpoints: Arc<[Arc<Endpoint>]>,
    /// In the same order.
    upstreams: Vec<Rc<Upstream>>,
    /// What is out, by place: why, and since when.
    out: Vec<(usize, Cause, Instant)>,
    /// Room for what happens.
    events: Vec<Event>,
}

impl Watch {
    /// Begins to watch; no endpoint is left out yet.
    pub(crate) fn start(worker: &Rc<Worker>, removal: &Arc<Removal>) -> Rc<Self> {
        Rc::new_cyclic(|watch: &Weak<Self>| {
            let check = health_check(removal).cloned();
            let start = |check| Checking::start(worker, (watch.clone(), removal.clone()), check);
            Self::new(worker, removal, check.map(start))
        })
    }

    fn new(worker: &Worker, removal: &Arc<Removal>, checking: Option<Checking>) -> Self {
        let state = State {
            removed: Removed::new(&removal.algorithm, 0),
            endpoints: Arc::new([]),
            upstreams: Vec::new(),
            out: Vec::new(),
            events: Vec::new(),
        };
        Self {
            removal: removal.clone(),
            _checking: checking,
            version: Cell::new(0),
            state: RefCell::new(state),
            shard: worker.shard.clone(),
            list: worker.removed.clone(),
            number: worker.removed.number(),
        }
    }

    /// Reports that it was made for this policy of this port.
    pub(crate) fn is_for(&self, removal: &Arc<Removal>) -> bool {
        Arc::ptr_eq(&self.removal, removal)
    }

    /// Keeps step with the world: these are the endpoints in this version of it, and time passes.
    pub(crate) fn attend(
        &self,
        worker: &Rc<Worker>,
        (endpoints, version): (&Arc<[Arc<Endpoint>]>, u64),
        now: Duration,
    ) {
        let mut state = self.state.borrow_mut();
        // A request may hold an older world.
        if version > self.version.get() {
            self.version.set(version);
            if !Arc::ptr_eq(&state.endpoints, endpoints) {
                state.rearrange(worker, endpoints);
                self.settle(&mut state);
            }
        }
        let state = &mut *state;
        state.removed.advance(now, worker.draw(), &mut state.events);
        if !state.events.is_empty() {
            self.tell(state);
        }
    }

    /// Whether requests may go to an endpoint.
    pub(crate) fn admits(&self, upstream: &Upstream) -> bool {
        let state = self.state.borrow();
        state.slot(upstream).is_none_or(|slot| state.removed.standing(slot) != Standing::Out)
    }

    /// Whether requests may go to an endpoint for the bounds alone.
    pub(crate) fn spares(&self, upstream: &Upstream) -> bool {
        let state = self.state.borrow();
        state.slot(upstream).is_some_and(|slot| state.removed.is_spared(slot))
    }

    /// An attempt goes to an endpoint. True: it is a probe.
    pub(crate) fn begin(&self, upstream: &Upstream) -> bool {
        let mut state = self.state.borrow_mut();
        let slot = state.slot(upstream);
        slot.is_some_and(|slot| state.removed.begin(slot))
    }

    /// It ended so. True: that says something.
    pub(crate) fn end(
        &self,
        (worker, upstream): (&Worker, &Upstream),
        probe: bool,
        ending: Ending,
        now: Duration,
    ) -> bool {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let failed = match failed(state.removed.failures(), ending) {
            Failed::Unknown => return false,
            Failed::Yes => true,
            Failed::No => false,
        };
        let seen = Seen { failed, probe, now, draw: worker.draw() };
        let slot = state.slot(upstream).unwrap_or(NOWHERE);
        state.removed.learn(slot, seen, &mut state.events);
        if !state.events.is_empty() {
            self.tell(state);
        }
        true
    }

    /// A health check of an endpoint has ended.
    pub(crate) fn hears_check(&self, upstream: &Upstream, heard: Failed, now: Duration) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let slot = state.slot(upstream).unwrap_or(NOWHERE);
        state.removed.check(slot, heard, now, &mut state.events);
        if !state.events.is_empty() {
            self.tell(state);
        }
    }

    /// A probe ended in a way that proves nothing.
    pub(crate) fn release(&self, upstream: &Upstream) {
        let mut state = self.state.borrow_mut();
        if let Some(slot) = state.slot(upstream) {
            state.removed.release(slot, true);
        }
    }

    /// What has happened goes into the log, the counters and the list.
    fn tell(&self, state: &mut State) {
        for event in std::mem::take(&mut state.events) {
            let (Event::Removed { slot, .. } | Event::Returned { slot }) = event;
            let Some(endpoint) = state.endpoints.get(slot) else { continue };
            let (service, port) = (&endpoint.id.service, endpoint.id.port);
            let (workload, policy) = (&endpoint.id.workload, &self.removal.policy);
            match event {
                Event::Removed { cause, pause, .. } => {
                    self.shard.add(count_of(cause), 1);
                    state.out.retain(|(out, ..)| *out != slot);
                    state.out.push((slot, cause, Instant::now()));
                    let cause = cause.as_str();
                    let pause = pause.map_or("until it is well".to_owned(), |it| format!("{it:?}"));
                    tracing::warn!(%workload, %service, port, cause, pause, %policy, "endpoint removed");
                }
                Event::Returned { .. } => {
                    if let Some(upstream) = state.upstreams.get(slot) {
                        upstream.forget_times();
                    }
                    self.shard.add(Count::EndpointReturns, 1);
                    tracing::info!(%workload, %service, port, %policy, "endpoint returned");
                }
            }
        }
        self.settle(state);
    }

    /// The list and the gauge say what is out now.
    fn settle(&self, state: &mut State) {
        let before = self.list.count(self.number);
        let State { removed, out, endpoints, .. } = state;
        out.retain(|(slot, ..)| removed.standing(*slot) != Standing::In);
        let entry = |(slot, cause, since): &(usize, Cause, Instant)| {
            let endpoint = endpoints.get(*slot)?.clone();
            Some(Entry {
                endpoint,
                policy: self.removal.policy.clone(),
                cause: *cause,
                since: *since,
            })
        };
        let entries: Vec<Entry> = out.iter().filter_map(entry).collect();
        self.shard.raise(Gauge::EndpointsRemoved, entries.len() as u64);
        self.shard.lower(Gauge::EndpointsRemoved, before as u64);
        self.list.set(self.number, entries);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        state.removed.rearrange(&[]);
        state.out.clear();
        let before = self.list.count(self.number);
        self.shard.lower(Gauge::EndpointsRemoved, before as u64);
        self.list.set(self.number, Vec::new());
    }
}

impl State {
    /// The place of an endpoint. Several policies may watch one endpoint, each from another version of
    /// the world for a moment: then the place that it has noted is that of another policy.
    #[inline]
    fn slot(&self, upstream: &Upstream) -> Option<usize> {
        let noted = upstream.slot.get();
        if noted == NOWHERE {
            return None;
        }
        let is_it = |known: &Rc<Upstream>| std::ptr::eq(&raw const **known, upstream);
        match self.upstreams.get(noted) {
            Some(known) if is_it(known) => Some(noted),
            _ => self.upstreams.iter().position(is_it),
        }
    }

    /// The endpoints are these now. What is known of those that stay where they are is kept.
    fn rearrange(&mut self, worker: &Rc<Worker>, endpoints: &Arc<[Arc<Endpoint>]>) {
        let old = |endpoint: &Arc<Endpoint>| {
            let found = self.endpoints.binary_search_by(|known| known.id.cmp(&endpoint.id)).ok()?;
            let known = self.endpoints.get(found)?;
            known.is_same_place(endpoint).then_some(found)
        };
        let places: Vec<Option<usize>> = endpoints.iter().map(old).collect();
        self.removed.rearrange(&places);
        let moved = |(slot, cause, since): (usize, Cause, Instant)| {
            let place = places.iter().position(|place| *place == Some(slot))?;
            Some((place, cause, since))
        };
        self.out = std::mem::take(&mut self.out).into_iter().filter_map(moved).collect();
        for upstream in self.upstreams.drain(..) {
            upstream.slot.set(NOWHERE);
        }
        self.upstreams.extend(endpoints.iter().map(|endpoint| worker.upstream(endpoint)));
        for (slot, upstream) in self.upstreams.iter().enumerate() {
            upstream.slot.set(slot);
        }
        self.endpoints = endpoints.clone();
    }
}

/// The active health checks of a policy.
fn health_check(removal: &Removal) -> Option<&HealthCheck> {
    match &removal.algorithm {
        RemovalAlgorithm::Native(rule) => rule.health_check.as_deref(),
        RemovalAlgorithm::Sermant(_) => None,
    }
}

fn count_of(cause: Cause) -> Count {
    match cause {
        Cause::Rate => Count::EndpointRemovedForRate,
        Cause::Consecutive => Count::EndpointRemovedForRow,
        Cause::Probe => Count::EndpointRemovedForProbe,
        Cause::Check => Count::EndpointRemovedForCheck,
    }
}

/// The place of an endpoint that nobody watches.
pub(crate) const NOWHERE: usize = usize::MAX;
