//! A ward: one port of a service under the policies of one way to it, as one data thread knows it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Balancing, Endpoint, EndpointId, Reason};
use leno_traffic::balance::{Balancer, Newcomers};
use leno_traffic::removal::Ending;
use leno_traffic::treatment::PortTreatment;

use super::Upstream;
use super::gate::{Gates, Held, Passage, Which};
use super::watch::Watch;
use crate::error::Failure;
use crate::worker::Worker;
use crate::world::World;

/// One port under the policies of one way to it. It lives as long as these are the same, and shares the
/// state of common policies with other ways.
pub(crate) struct Ward {
    /// What it was made for; held, so that nothing else has its address.
    treatment: Arc<PortTreatment>,
    /// The clock of all policies.
    world: Arc<World>,
    /// Outlier detection, if a policy has some.
    watch: Option<Rc<Watch>>,
    /// What is let through, if a policy bounds it.
    gates: Option<Gates>,
    /// Who chooses, if a policy says how.
    balance: Option<Rc<Balance>>,
}

/// Who is new at a port, for all wards that it has in turn.
pub(crate) type PortNewcomers = Rc<RefCell<Newcomers>>;

/// How an endpoint is chosen, and who is new among them.
struct Balance {
    balancing: Arc<Balancing>,
    balancer: Balancer,
    newcomers: PortNewcomers,
}

impl Ward {
    /// A ward for a treatment with something to watch for. `newcomers` are the endpoints that are new at
    /// the port, `known` the wards that there are.
    pub(crate) fn new<'a>(
        worker: &Rc<Worker>,
        treatment: &Arc<PortTreatment>,
        newcomers: PortNewcomers,
        known: impl Iterator<Item = &'a Rc<Self>> + Clone,
    ) -> Rc<Self> {
        let watch = treatment.removal.as_ref().map(|removal| {
            let mut known = known.clone().filter_map(|ward| ward.watch.as_ref());
            let shared = known.find(|watch| watch.is_for(removal)).cloned();
            shared.unwrap_or_else(|| Watch::start(worker, removal))
        });
        let balance = treatment.balancing.as_ref().map(|balancing| {
            let mut known = known.clone().filter_map(|ward| ward.balance.as_ref());
            let shared = known.find(|it| Arc::ptr_eq(&it.balancing, balancing)).cloned();
            shared.unwrap_or_else(|| {
                let (balancing, balancer) =
                    (balancing.clone(), Balancer::new(balancing.rule.clone()));
                Rc::new(Balance { balancing, balancer, newcomers })
            })
        });
        let known = known.filter_map(|ward| ward.gates.as_ref());
        Rc::new(Self {
            treatment: treatment.clone(),
            world: worker.world.clone(),
            watch,
            gates: Gates::new(treatment, worker, known),
            balance,
        })
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
        if let Some(balance) = &self.balance
            && let Some(warm_up) = balance.balancer.rule().warm_up
        {
            let mut newcomers = balance.newcomers.borrow_mut();
            newcomers.attend(endpoints, worker.world.age(), warm_up.time);
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
        let passage = match &self.gates {
            None => None,
            Some(gates) => Some(gates.admit(which, self.now())?),
        };
        let probe = self.watch.as_ref().is_some_and(|watch| watch.begin(upstream));
        let (ward, upstream) = (self.clone(), upstream.clone());
        let rejection = Cell::new(None);
        Ok(Trial { ward, upstream, probe, passage, ended: false, rejection })
    }

    /// Waits for a connection, if there is room for one more who waits.
    pub(crate) async fn wait<T>(
        &self,
        lease: impl Future<Output = Result<T, Reason>>,
    ) -> Result<T, Reason> {
        match &self.gates {
            None => lease.await,
            Some(gates) => gates.wait(lease).await,
        }
    }

    /// Room for one more of a kind, or there is none.
    pub(crate) fn hold(&self, which: Which) -> Result<Option<Held>, Reason> {
        self.gates.as_ref().map_or(Ok(None), |gates| gates.hold(which))
    }

    /// The time for connecting to an endpoint, where a policy bounds it.
    pub(crate) fn connect_timeout(&self) -> Option<Duration> {
        self.gates.as_ref()?.connect_timeout
    }

    /// A failure, with the answer that a policy has for it.
    pub(crate) fn failure(&self, reason: Reason) -> Failure {
        let answer = self.gates.as_ref().and_then(|gates| gates.answer(reason, self.now()));
        Failure { answer, ..Failure::from(reason) }
    }

    fn now(&self) -> Duration {
        self.world.age()
    }
}

/// An attempt under way at an endpoint that is watched. Dropped without an end it proves nothing.
pub(crate) struct Trial {
    ward: Rc<Ward>,
    upstream: Rc<Upstream>,
    probe: bool,
    passage: Option<Passage>,
    ended: bool,
    /// The reason for which the endpoint's sidecar rejected the request itself.
    rejection: Cell<Option<Reason>>,
}

impl Trial {
    /// Who watches.
    pub(crate) fn ward(&self) -> &Ward {
        &self.ward
    }

    /// The endpoint's sidecar rejected the request, for a reason of its own or of the client: the status of
    /// that response says nothing about the endpoint. Where its application broke the rules of HTTP, the
    /// status counts.
    pub(crate) fn rejected(&self, reason: Reason) {
        let says_nothing = reason.is_rejection() || reason == Reason::UpstreamRefused;
        self.rejection.set(says_nothing.then_some(reason));
    }

    /// It ended so.
    pub(crate) fn end(mut self, worker: &Worker, ending: Ending) {
        // An exchange that breaks later has its own reason.
        let ending = match (ending, self.rejection.get()) {
            (Ending::Answered { .. }, Some(reason)) => Ending::Broken(reason),
            (ending, _) => ending,
        };
        let now = self.ward.now();
        if let (Some(gates), Some(passage)) = (&self.ward.gates, &mut self.passage) {
            gates.end(passage, ending, now);
        }
        if let Some(watch) = &self.ward.watch {
            self.ended = watch.end((worker, &self.upstream), self.probe, ending, now);
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let (Some(gates), Some(passage)) = (&self.ward.gates, &mut self.passage) {
            gates.abandon(passage);
        }
        if let (Some(watch), true, false) = (&self.ward.watch, self.probe, self.ended) {
            watch.release(&self.upstream);
        }
    }
}
