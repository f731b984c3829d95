//! A ward: the endpoints of one port that a policy watches over, as one data thread knows them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{Endpoint, ServicePolicyName, Treatment};
use leno_telemetry::{Count, Gauge, Shard};
use leno_traffic::removal::{Cause, Ending, Event, Failed, Removed, Seen, Standing, failed};

use super::Upstream;
use crate::removed::{Entry, RemovedEndpoints};
use crate::worker::Worker;

/// The endpoints of one port under one policy. It lives as long as the policy says the same.
pub(crate) struct Ward {
    /// What it was made for; held, so that nothing else has its address.
    treatment: Arc<Treatment>,
    policy: ServicePolicyName,
    started: Instant,
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

impl Ward {
    /// A ward, if the treatment has something to watch for.
    pub(crate) fn new(worker: &Worker, treatment: &Arc<Treatment>) -> Option<Self> {
        let removal = treatment.removal.as_ref()?;
        let state = State {
            removed: Removed::new(&removal.algorithm, 0),
            endpoints: Arc::new([]),
            upstreams: Vec::new(),
            out: Vec::new(),
            events: Vec::new(),
        };
        Some(Self {
            treatment: treatment.clone(),
            policy: removal.policy.clone(),
            started: Instant::now(),
            version: Cell::new(0),
            state: RefCell::new(state),
            shard: worker.shard.clone(),
            list: worker.removed.clone(),
            number: worker.removed.number(),
        })
    }

    /// What identifies the treatment that it was made for.
    pub(crate) fn key(treatment: &Arc<Treatment>) -> usize {
        Arc::as_ptr(treatment).addr()
    }

    /// Whether it was made for this treatment.
    pub(crate) fn is_for(&self, treatment: &Arc<Treatment>) -> bool {
        Arc::ptr_eq(&self.treatment, treatment)
    }

    /// Keeps step with the world: these are the endpoints in this version of it, and time passes.
    pub(crate) fn attend(
        &self,
        worker: &Rc<Worker>,
        endpoints: &Arc<[Arc<Endpoint>]>,
        version: u64,
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
        state.removed.advance(self.now(), worker.draw(), &mut state.events);
        if !state.events.is_empty() {
            self.tell(state);
        }
    }

    /// Whether requests may go to an endpoint.
    pub(crate) fn admits(&self, upstream: &Upstream) -> bool {
        match upstream.slot.get() {
            NOWHERE => true,
            slot => self.state.borrow().removed.standing(slot) != Standing::Out,
        }
    }

    /// A request goes to an endpoint; what is returned takes how it ends.
    pub(crate) fn begin(self: &Rc<Self>, upstream: &Rc<Upstream>) -> Option<Trial> {
        let slot = upstream.slot.get();
        if slot == NOWHERE {
            return None;
        }
        let probe = self.state.borrow_mut().removed.begin(slot);
        Some(Trial { ward: self.clone(), upstream: upstream.clone(), probe, ended: false })
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What has happened goes into the log, the counters and the list.
    fn tell(&self, state: &mut State) {
        for event in std::mem::take(&mut state.events) {
            let (Event::Removed { slot, .. } | Event::Returned { slot }) = event;
            let Some(endpoint) = state.endpoints.get(slot) else { continue };
            let (service, port) = (&endpoint.id.service, endpoint.id.port);
            let (workload, policy) = (&endpoint.id.workload, &self.policy);
            match event {
                Event::Removed { cause, pause, .. } => {
                    self.shard.add(count_of(cause), 1);
                    state.out.retain(|(out, ..)| *out != slot);
                    state.out.push((slot, cause, Instant::now()));
                    let cause = cause.as_str();
                    tracing::warn!(%workload, %service, port, cause, ?pause, %policy, "endpoint removed");
                }
                Event::Returned { .. } => {
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
            Some(Entry { endpoint, policy: self.policy.clone(), cause: *cause, since: *since })
        };
        let entries: Vec<Entry> = out.iter().filter_map(entry).collect();
        self.shard.raise(Gauge::EndpointsRemoved, entries.len() as u64);
        self.shard.lower(Gauge::EndpointsRemoved, before as u64);
        self.list.set(self.number, entries);
    }
}

impl Drop for Ward {
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
    /// The endpoints are these now. What is known of those that stay as they are is kept.
    fn rearrange(&mut self, worker: &Rc<Worker>, endpoints: &Arc<[Arc<Endpoint>]>) {
        let old = |endpoint: &Arc<Endpoint>| {
            let found = self.endpoints.binary_search_by(|known| known.id.cmp(&endpoint.id)).ok()?;
            self.endpoints.get(found).is_some_and(|known| known == endpoint).then_some(found)
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

/// A request under way at an endpoint that is watched. Dropped without an end it proves nothing.
pub(crate) struct Trial {
    ward: Rc<Ward>,
    upstream: Rc<Upstream>,
    probe: bool,
    ended: bool,
}

impl Trial {
    /// It ended so.
    pub(crate) fn end(mut self, worker: &Worker, ending: Ending) {
        let slot = self.upstream.slot.get();
        let mut state = self.ward.state.borrow_mut();
        let state = &mut *state;
        let failed = match failed(state.removed.failures(), ending) {
            Failed::Unknown => return,
            Failed::Yes => true,
            Failed::No => false,
        };
        self.ended = true;
        let (probe, now) = (self.probe, self.ward.now());
        let seen = Seen { failed, probe, now, draw: worker.draw() };
        state.removed.learn(slot, seen, &mut state.events);
        if !state.events.is_empty() {
            self.ward.tell(state);
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if self.probe && !self.ended {
            let slot = self.upstream.slot.get();
            self.ward.state.borrow_mut().removed.release(slot, true);
        }
    }
}

fn count_of(cause: Cause) -> Count {
    match cause {
        Cause::Rate => Count::EndpointRemovedForRate,
        Cause::Consecutive => Count::EndpointRemovedForRow,
        Cause::Probe => Count::EndpointRemovedForProbe,
    }
}

/// The place of an endpoint that no ward knows.
pub(crate) const NOWHERE: usize = usize::MAX;
