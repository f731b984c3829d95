//! Per-thread state of one upstream service port under one traffic policy: outlier detection, circuit breakers,
//! balancer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Balancing, Endpoint, EndpointId, Reason};
use leno_traffic::balance::{Balancer, SlowStart};
use leno_traffic::outlier::Ending;
use leno_traffic::traffic_policy::PortTrafficPolicy;

use super::Upstream;
use super::gate::{Gates, Held, Passage, Which};
use super::watch::Watch;
use crate::error::Failure;
use crate::worker::Worker;
use crate::world::World;

/// One port under one traffic policy. It lives as long as the policy is unchanged, and shares the state of
/// common policies with other instances.
pub(crate) struct UpstreamCluster {
    /// The traffic policy; held, so that its address stays unique.
    traffic_policy: Arc<PortTrafficPolicy>,
    /// The clock of all policies.
    world: Arc<World>,
    /// Outlier detection, if a policy configures it.
    watch: Option<Rc<Watch>>,
    /// Circuit breakers, if a policy configures them.
    gates: Option<Gates>,
    /// The load balancer, if a policy configures it.
    balance: Option<Rc<Balance>>,
}

/// Slow-start endpoints of a port, shared by its successive states.
pub(crate) type PortSlowStart = Rc<RefCell<SlowStart>>;

/// A load balancer, and the slow-start endpoints.
struct Balance {
    balancing: Arc<Balancing>,
    balancer: Balancer,
    slow_start_endpoints: PortSlowStart,
}

impl UpstreamCluster {
    /// Creates the state for a traffic policy. `slow_start_endpoints` are the slow-start endpoints of the port, `known`
    /// the existing states.
    pub(crate) fn new<'a>(
        worker: &Rc<Worker>,
        traffic_policy: &Arc<PortTrafficPolicy>,
        slow_start_endpoints: PortSlowStart,
        known: impl Iterator<Item = &'a Rc<Self>> + Clone,
    ) -> Rc<Self> {
        let watch = traffic_policy.outlier_detection.as_ref().map(|outlier_detection| {
            let mut known = known.clone().filter_map(|cluster| cluster.watch.as_ref());
            let shared = known.find(|watch| watch.is_for(outlier_detection)).cloned();
            shared.unwrap_or_else(|| Watch::start(worker, outlier_detection))
        });
        let balance = traffic_policy.balancing.as_ref().map(|balancing| {
            let mut known = known.clone().filter_map(|cluster| cluster.balance.as_ref());
            let shared = known.find(|it| Arc::ptr_eq(&it.balancing, balancing)).cloned();
            shared.unwrap_or_else(|| {
                let (balancing, balancer) =
                    (balancing.clone(), Balancer::new(balancing.rule.clone()));
                Rc::new(Balance { balancing, balancer, slow_start_endpoints })
            })
        });
        let known = known.filter_map(|cluster| cluster.gates.as_ref());
        Rc::new(Self {
            traffic_policy: traffic_policy.clone(),
            world: worker.world.clone(),
            watch,
            gates: Gates::new(traffic_policy, worker, known),
            balance,
        })
    }

    /// Returns the key of a traffic policy.
    pub(crate) fn policy_key(traffic_policy: &Arc<PortTrafficPolicy>) -> usize {
        Arc::as_ptr(traffic_policy).addr()
    }

    /// True if it was created for this traffic policy.
    pub(crate) fn is_for(&self, traffic_policy: &Arc<PortTrafficPolicy>) -> bool {
        Arc::ptr_eq(&self.traffic_policy, traffic_policy)
    }

    /// Updates the endpoints to those of this configuration version, and advances time.
    pub(crate) fn update_endpoints(
        &self,
        worker: &Rc<Worker>,
        endpoints: &Arc<[Arc<Endpoint>]>,
        version: u64,
    ) {
        if let Some(watch) = &self.watch {
            watch.update_endpoints(worker, endpoints, version, self.now());
        }
        if let Some(balance) = &self.balance
            && let Some(warm_up) = balance.balancer.rule().warm_up
        {
            let mut slow_start_endpoints = balance.slow_start_endpoints.borrow_mut();
            slow_start_endpoints.update_endpoints(endpoints, worker.world.age(), warm_up.time);
        }
    }

    /// Returns the load balancer, if a policy configures it.
    pub(crate) fn balancer(&self) -> Option<&Balancer> {
        self.balance.as_ref().map(|balance| &balance.balancer)
    }

    /// Returns the age of an endpoint, if it is in slow start.
    pub(crate) fn endpoint_age(&self, worker: &Worker, endpoint: &EndpointId) -> Option<Duration> {
        let balance = self.balance.as_ref()?;
        balance.slow_start_endpoints.borrow().endpoint_age(endpoint, worker.world.age())
    }

    /// True if requests may go to an endpoint.
    pub(crate) fn is_admitted(&self, upstream: &Upstream) -> bool {
        self.watch.as_ref().is_none_or(|watch| watch.is_admitted(upstream))
    }

    /// True if an endpoint stays in service only because too many others are ejected.
    pub(crate) fn is_spared(&self, upstream: &Upstream) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_spared(upstream))
    }

    /// Begins an attempt at an endpoint, if circuit breakers permit it. The result records its outcome.
    pub(crate) fn start_attempt(
        self: &Rc<Self>,
        upstream: &Rc<Upstream>,
        which: Option<Which>,
    ) -> Result<Trial, Reason> {
        let passage = match &self.gates {
            None => None,
            Some(gates) => Some(gates.admit_attempt(which, self.now())?),
        };
        let probe = self.watch.as_ref().is_some_and(|watch| watch.start_attempt(upstream));
        let (cluster, upstream) = (self.clone(), upstream.clone());
        let rejection = Cell::new(None);
        Ok(Trial { cluster, upstream, probe, passage, ended: false, rejection })
    }

    /// Waits for a connection, subject to the limit of pending requests.
    pub(crate) async fn wait_for_connection<T>(
        &self,
        checkout: impl Future<Output = Result<T, Reason>>,
    ) -> Result<T, Reason> {
        match &self.gates {
            None => checkout.await,
            Some(gates) => gates.wait_for_connection(checkout).await,
        }
    }

    /// Acquires a slot of a limit, or fails.
    pub(crate) fn acquire_slot(&self, which: Which) -> Result<Option<Held>, Reason> {
        self.gates.as_ref().map_or(Ok(None), |gates| gates.acquire_slots(which))
    }

    /// Returns the connect timeout of the policies, if any.
    pub(crate) fn connect_timeout(&self) -> Option<Duration> {
        self.gates.as_ref()?.connect_timeout
    }

    /// Returns a failure, with the response that a policy configures for it.
    pub(crate) fn failure_for(&self, reason: Reason) -> Failure {
        let answer = self.gates.as_ref().and_then(|gates| gates.fixed_response(reason, self.now()));
        Failure { answer, ..Failure::from(reason) }
    }

    fn now(&self) -> Duration {
        self.world.age()
    }
}

/// An attempt in progress. If dropped without an outcome, it is not counted.
pub(crate) struct Trial {
    cluster: Rc<UpstreamCluster>,
    upstream: Rc<Upstream>,
    probe: bool,
    passage: Option<Passage>,
    ended: bool,
    /// The reason for which the endpoint's sidecar rejected the request.
    rejection: Cell<Option<Reason>>,
}

impl Trial {
    /// The upstream state that records the outcome.
    pub(crate) fn upstream_cluster(&self) -> &UpstreamCluster {
        &self.cluster
    }

    /// Records that the endpoint's sidecar rejected the request, for a reason of its own or of the client: the
    /// status of that response says nothing about the endpoint. If its application violated HTTP, the status
    /// counts.
    pub(crate) fn record_rejection(&self, reason: Reason) {
        let says_nothing = reason.is_rejection() || reason == Reason::UpstreamRefused;
        self.rejection.set(says_nothing.then_some(reason));
    }

    /// Records the outcome.
    pub(crate) fn finish(mut self, worker: &Worker, ending: Ending) {
        // An exchange that breaks later has its own reason.
        let ending = match (ending, self.rejection.get()) {
            (Ending::Answered { .. }, Some(reason)) => Ending::Broken(reason),
            (ending, _) => ending,
        };
        let now = self.cluster.now();
        if let (Some(gates), Some(passage)) = (&self.cluster.gates, &mut self.passage) {
            gates.finish_attempt(passage, ending, now);
        }
        if let Some(watch) = &self.cluster.watch {
            self.ended = watch.finish_attempt(worker, &self.upstream, self.probe, ending, now);
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let (Some(gates), Some(passage)) = (&self.cluster.gates, &mut self.passage) {
            gates.abandon_attempt(passage);
        }
        if let (Some(watch), true, false) = (&self.cluster.watch, self.probe, self.ended) {
            watch.release_probe(&self.upstream);
        }
    }
}
