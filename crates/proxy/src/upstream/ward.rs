//! A ward: one port of a service that policies watch over, as one data thread knows it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{
    Endpoint, EndpointId, HealthCheck, REASON_FIELD, Reason, Removal, RemovalAlgorithm,
};
use leno_traffic::balance::{Balancer, Newcomers};
use leno_traffic::removal::{Ending, Failed};
use leno_traffic::treatment::PortTreatment;
use leno_wire::http1::ResponseHead;

use super::Upstream;
use super::check::Checking;
use super::gate::{Gate, Held, Passage, Which};
use super::watch::Watch;
use crate::error::Failure;
use crate::worker::Worker;

/// One port under its policies. It lives as long as they say the same.
pub(crate) struct Ward {
    /// What it was made for; held, so that nothing else has its address.
    treatment: Arc<PortTreatment>,
    started: Instant,
    /// Who is left out, if a policy removes any.
    watch: Option<Watch>,
    /// Asks them besides, if a policy has them asked.
    _checking: Option<Checking>,
    /// What is let through, if a policy bounds it.
    gate: Option<Gate>,
    /// Who chooses, if a policy says how.
    balance: Option<Balance>,
}

/// Who is new at a port, for all wards that it has in turn.
pub(crate) type PortNewcomers = Rc<RefCell<Newcomers>>;

/// How an endpoint is chosen, and who is new among them.
struct Balance {
    balancer: Balancer,
    newcomers: PortNewcomers,
}

impl Ward {
    /// A ward for a treatment with something to watch for. `newcomers`: who is new at the port.
    pub(crate) fn new(
        worker: &Rc<Worker>,
        treatment: &Arc<PortTreatment>,
        newcomers: PortNewcomers,
    ) -> Rc<Self> {
        let removal = treatment.rule.removal.as_ref();
        Rc::new_cyclic(|ward: &Weak<Self>| Self {
            treatment: treatment.clone(),
            started: Instant::now(),
            watch: removal.map(|removal| Watch::new(worker, removal)),
            _checking: removal
                .and_then(health_check)
                .map(|check| Checking::start(worker, ward.clone(), check.clone())),
            gate: Gate::new(worker, treatment),
            balance: treatment.rule.balancing.as_ref().map(|balancing| Balance {
                balancer: Balancer::new(balancing.rule.clone()),
                newcomers,
            }),
        })
    }

    /// A health check of an endpoint has ended.
    pub(super) fn hears_check(&self, upstream: &Upstream, heard: Failed) {
        if let Some(watch) = &self.watch {
            watch.hears_check(upstream, heard, self.now());
        }
    }

    /// What identifies the treatment that it was made for.
    pub(crate) fn key(treatment: &Arc<PortTreatment>) -> usize {
        Arc::as_ptr(treatment).addr()
    }

    /// Whether it was made for this treatment.
    pub(crate) fn is_for(&self, treatment: &Arc<PortTreatment>) -> bool {
        Arc::ptr_eq(&self.treatment, treatment)
    }

    /// Keeps step with the world: these are the endpoints in this version of it, and time passes.
    pub(crate) fn attend(
        &self,
        worker: &Rc<Worker>,
        endpoints: &Arc<[Arc<Endpoint>]>,
        version: u64,
    ) {
        if let Some(watch) = &self.watch {
            watch.attend(worker, (endpoints, version), self.now());
        }
        if let Some(Balance { balancer, newcomers }) = &self.balance
            && let Some(warm_up) = balancer.rule().warm_up
        {
            newcomers.borrow_mut().attend(endpoints, worker.world.age(), warm_up.time);
        }
    }

    /// Who chooses, if a policy says how.
    pub(crate) fn balancer(&self) -> Option<&Balancer> {
        self.balance.as_ref().map(|balance| &balance.balancer)
    }

    /// For how long an endpoint has been there, if it is new to a policy that looks at that.
    pub(crate) fn age(&self, worker: &Worker, endpoint: &EndpointId) -> Option<Duration> {
        let balance = self.balance.as_ref()?;
        balance.newcomers.borrow().age(endpoint, worker.world.age())
    }

    /// Whether requests may go to an endpoint.
    pub(crate) fn admits(&self, upstream: &Upstream) -> bool {
        self.watch.as_ref().is_none_or(|watch| watch.admits(upstream))
    }

    /// Whether requests may go to an endpoint only because too many others are left out.
    pub(crate) fn spares(&self, upstream: &Upstream) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.spares(upstream))
    }

    /// An attempt goes to an endpoint, if it is let through; what is returned takes how it ends.
    pub(crate) fn begin(
        self: &Rc<Self>,
        upstream: &Rc<Upstream>,
        which: Option<Which>,
    ) -> Result<Trial, Reason> {
        let passage = match &self.gate {
            None => None,
            Some(gate) => Some(gate.admit(upstream, which, self.now())?),
        };
        let probe = self.watch.as_ref().is_some_and(|watch| watch.begin(upstream));
        let (ward, upstream) = (self.clone(), upstream.clone());
        let overloaded = Cell::new(false);
        Ok(Trial { ward, upstream, probe, passage, ended: false, overloaded })
    }

    /// Waits for a connection, if there is room for one more who waits.
    pub(crate) async fn wait<T>(
        &self,
        lease: impl Future<Output = Result<T, Reason>>,
    ) -> Result<T, Reason> {
        match &self.gate {
            None => lease.await,
            Some(gate) => gate.wait(lease).await,
        }
    }

    /// Room for one more of a kind, or there is none.
    pub(crate) fn hold(&self, which: Which) -> Result<Option<Held>, Reason> {
        self.gate.as_ref().map_or(Ok(None), |gate| gate.hold(which))
    }

    /// A failure, with the answer that a policy has for it.
    pub(crate) fn failure(&self, reason: Reason) -> Failure {
        let answer = self.gate.as_ref().and_then(|gate| gate.answer(reason));
        Failure { answer, ..Failure::from(reason) }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

/// An attempt under way at an endpoint that is watched. Dropped without an end it proves nothing.
pub(crate) struct Trial {
    ward: Rc<Ward>,
    upstream: Rc<Upstream>,
    probe: bool,
    passage: Option<Passage>,
    ended: bool,
    /// The other sidecar answered that its application has enough to do.
    overloaded: Cell<bool>,
}

impl Trial {
    /// Who watches.
    pub(crate) fn ward(&self) -> &Ward {
        &self.ward
    }

    /// An answer has begun. Of a sidecar that refuses what is too much the endpoint has not failed.
    pub(crate) fn hears(&self, bytes: &[u8], head: &ResponseHead) {
        if self.upstream.is_plain() || self.upstream.is_foreign() {
            return;
        }
        let reason = refusal(bytes, head);
        self.overloaded.set(reason == Some(Reason::Overloaded.label().as_bytes()));
    }

    /// It ended so.
    pub(crate) fn end(mut self, worker: &Worker, ending: Ending) {
        let overloaded = self.overloaded.get();
        let ending = if overloaded { Ending::Broken(Reason::Overloaded) } else { ending };
        let now = self.ward.now();
        if let (Some(gate), Some(passage)) = (&self.ward.gate, &mut self.passage) {
            gate.end(&self.upstream.endpoint.id, passage, ending, now);
        }
        if let Some(watch) = &self.ward.watch {
            self.ended = watch.end((worker, &self.upstream), self.probe, ending, now);
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let (Some(gate), Some(passage)) = (&self.ward.gate, &mut self.passage) {
            gate.release(passage);
        }
        if let (Some(watch), true, false) = (&self.ward.watch, self.probe, self.ended) {
            watch.release(&self.upstream);
        }
    }
}

/// How endpoints are asked besides, if a policy has them asked.
fn health_check(removal: &Removal) -> Option<&HealthCheck> {
    match &removal.algorithm {
        RemovalAlgorithm::Native(rule) => rule.health_check.as_deref(),
        RemovalAlgorithm::Sermant(_) => None,
    }
}

/// The label of the reason for which another sidecar refused a request, as the head of its answer tells.
pub(crate) fn refusal<'a>(bytes: &'a [u8], head: &'a ResponseHead) -> Option<&'a [u8]> {
    head.find(bytes, REASON_FIELD).next()?.split(|byte| *byte == b';').next()
}
