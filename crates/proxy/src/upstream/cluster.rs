//! Per-thread state of one upstream service port under one traffic policy: outlier detection, circuit breakers,
//! balancer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Endpoint, EndpointId, PortLoadBalancing, Reason};
use leno_traffic::balance::{Balancer, SlowStartEndpoints};
use leno_traffic::outlier::EndpointResult;
use leno_traffic::traffic_policy::PortTrafficPolicy;

use super::Upstream;
use super::circuit_breaker::{CircuitBreakers, CircuitPermit, LimitPermit, LimitSelector};
use super::outlier_monitor::OutlierMonitor;
use crate::config_store::ConfigStore;
use crate::error::Failure;
use crate::worker::Worker;

/// One port under one traffic policy. It lives as long as the policy is unchanged, and shares the state of
/// common policies with other instances.
pub(crate) struct UpstreamCluster {
    /// The traffic policy; held, so that its address stays unique.
    traffic_policy: Arc<PortTrafficPolicy>,
    /// The clock of all policies.
    config_store: Arc<ConfigStore>,
    /// Outlier detection, if a policy configures it.
    outlier_monitor: Option<Rc<OutlierMonitor>>,
    /// Circuit breakers, if a policy configures them.
    circuit_breakers: Option<CircuitBreakers>,
    /// The load balancer, if a policy configures it.
    load_balancer: Option<Rc<LoadBalancer>>,
}

/// Slow-start endpoints of a port, shared by its successive states.
pub(crate) type PortSlowStart = Rc<RefCell<SlowStartEndpoints>>;

/// The load balancer of a port, and its slow-start endpoints.
struct LoadBalancer {
    balancing: Arc<PortLoadBalancing>,
    balancer: Balancer,
    slow_start_endpoints: PortSlowStart,
}

impl UpstreamCluster {
    /// Creates the state for a traffic policy. `slow_start_endpoints` are those of the port, `existing` the
    /// existing states, which share common policies.
    pub(crate) fn new<'a>(
        worker: &Rc<Worker>,
        traffic_policy: &Arc<PortTrafficPolicy>,
        slow_start_endpoints: PortSlowStart,
        existing: impl Iterator<Item = &'a Rc<Self>> + Clone,
    ) -> Rc<Self> {
        let outlier_monitor = traffic_policy.outlier_detection.as_ref().map(|outlier_detection| {
            let mut existing =
                existing.clone().filter_map(|cluster| cluster.outlier_monitor.as_ref());
            let shared =
                existing.find(|outlier_monitor| outlier_monitor.is_for(outlier_detection)).cloned();
            shared.unwrap_or_else(|| OutlierMonitor::start(worker, outlier_detection))
        });
        let load_balancer = traffic_policy.balancing.as_ref().map(|balancing| {
            let mut existing =
                existing.clone().filter_map(|cluster| cluster.load_balancer.as_ref());
            let shared = existing
                .find(|load_balancer| Arc::ptr_eq(&load_balancer.balancing, balancing))
                .cloned();
            shared.unwrap_or_else(|| {
                let (balancing, balancer) =
                    (balancing.clone(), Balancer::new(balancing.rule.clone()));
                Rc::new(LoadBalancer { balancing, balancer, slow_start_endpoints })
            })
        });
        let existing = existing.filter_map(|cluster| cluster.circuit_breakers.as_ref());
        Rc::new(Self {
            traffic_policy: traffic_policy.clone(),
            config_store: worker.config_store.clone(),
            outlier_monitor,
            circuit_breakers: CircuitBreakers::new(traffic_policy, worker, existing),
            load_balancer,
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
        if let Some(outlier_monitor) = &self.outlier_monitor {
            outlier_monitor.update_endpoints(worker, endpoints, version, self.now());
        }
        if let Some(load_balancer) = &self.load_balancer
            && let Some(slow_start) = load_balancer.balancer.rule().slow_start
        {
            let mut slow_start_endpoints = load_balancer.slow_start_endpoints.borrow_mut();
            slow_start_endpoints.update_endpoints(
                endpoints,
                worker.config_store.age(),
                slow_start.time,
            );
        }
    }

    /// Returns the load balancer, if a policy configures it.
    pub(crate) fn balancer(&self) -> Option<&Balancer> {
        self.load_balancer.as_ref().map(|load_balancer| &load_balancer.balancer)
    }

    /// Returns the age of an endpoint, if it is in slow start.
    pub(crate) fn endpoint_age(&self, worker: &Worker, endpoint: &EndpointId) -> Option<Duration> {
        let load_balancer = self.load_balancer.as_ref()?;
        load_balancer
            .slow_start_endpoints
            .borrow()
            .endpoint_age(endpoint, worker.config_store.age())
    }

    /// True if requests may go to an endpoint.
    pub(crate) fn is_admitted(&self, upstream: &Upstream) -> bool {
        self.outlier_monitor
            .as_ref()
            .is_none_or(|outlier_monitor| outlier_monitor.is_admitted(upstream))
    }

    /// True if an endpoint stays in service only because too many others are ejected.
    pub(crate) fn is_spared(&self, upstream: &Upstream) -> bool {
        self.outlier_monitor
            .as_ref()
            .is_some_and(|outlier_monitor| outlier_monitor.is_spared(upstream))
    }

    /// Begins an attempt at an endpoint, if circuit breakers permit it. The result records its outcome.
    pub(crate) fn start_attempt(
        self: &Rc<Self>,
        upstream: &Rc<Upstream>,
        selector: Option<LimitSelector>,
    ) -> Result<OutcomeGuard, Reason> {
        let circuit_permit = match &self.circuit_breakers {
            None => None,
            Some(circuit_breakers) => Some(circuit_breakers.admit_attempt(selector, self.now())?),
        };
        let is_probe = self
            .outlier_monitor
            .as_ref()
            .is_some_and(|outlier_monitor| outlier_monitor.start_attempt(upstream));
        let (cluster, upstream) = (self.clone(), upstream.clone());
        let rejection = Cell::new(None);
        Ok(OutcomeGuard {
            cluster,
            upstream,
            is_probe,
            circuit_permit,
            is_conclusive: false,
            rejection,
        })
    }

    /// Waits for a connection, subject to the limit of pending requests.
    pub(crate) async fn wait_for_connection<T>(
        &self,
        checkout: impl Future<Output = Result<T, Reason>>,
    ) -> Result<T, Reason> {
        match &self.circuit_breakers {
            None => checkout.await,
            Some(circuit_breakers) => circuit_breakers.wait_for_connection(checkout).await,
        }
    }

    /// Acquires a slot of a limit, or fails.
    pub(crate) fn acquire_slot(
        &self,
        selector: LimitSelector,
    ) -> Result<Option<LimitPermit>, Reason> {
        self.circuit_breakers
            .as_ref()
            .map_or(Ok(None), |circuit_breakers| circuit_breakers.acquire_slots(selector))
    }

    /// Returns the connect timeout of the policies, if any.
    pub(crate) fn connect_timeout(&self) -> Option<Duration> {
        self.circuit_breakers.as_ref()?.connect_timeout
    }

    /// Returns a failure, with the response that a policy configures for it.
    pub(crate) fn failure_for(&self, reason: Reason) -> Failure {
        let response = self
            .circuit_breakers
            .as_ref()
            .and_then(|circuit_breakers| circuit_breakers.fixed_response(reason, self.now()));
        Failure { response, ..Failure::from(reason) }
    }

    fn now(&self) -> Duration {
        self.config_store.age()
    }
}

/// An attempt in progress. If dropped without an outcome, it is not counted.
pub(crate) struct OutcomeGuard {
    cluster: Rc<UpstreamCluster>,
    upstream: Rc<Upstream>,
    /// True for a probe of outlier detection.
    is_probe: bool,
    circuit_permit: Option<CircuitPermit>,
    /// True if outlier detection has a conclusive outcome.
    is_conclusive: bool,
    /// The reason for which the endpoint's sidecar rejected the request.
    rejection: Cell<Option<Reason>>,
}

impl OutcomeGuard {
    /// Returns the upstream state that records the outcome.
    pub(crate) fn upstream_cluster(&self) -> &UpstreamCluster {
        &self.cluster
    }

    /// Records that the endpoint's sidecar rejected the request, for a reason of its own or of the client: the
    /// status of that response does not describe the endpoint. If its application violated HTTP, the status
    /// counts.
    pub(crate) fn record_rejection(&self, reason: Reason) {
        let is_inconclusive = reason.is_rejection() || reason == Reason::UpstreamRefused;
        self.rejection.set(is_inconclusive.then_some(reason));
    }

    /// Records the outcome.
    pub(crate) fn finish(mut self, worker: &Worker, result: EndpointResult) {
        // An exchange that breaks later has its own reason.
        let result = match (result, self.rejection.get()) {
            (EndpointResult::Response { .. }, Some(reason)) => EndpointResult::Failed(reason),
            (result, _) => result,
        };
        let now = self.cluster.now();
        if let (Some(circuit_breakers), Some(circuit_permit)) =
            (&self.cluster.circuit_breakers, &mut self.circuit_permit)
        {
            circuit_breakers.finish_attempt(circuit_permit, result, now);
        }
        if let Some(outlier_monitor) = &self.cluster.outlier_monitor {
            self.is_conclusive =
                outlier_monitor.finish_attempt(worker, &self.upstream, self.is_probe, result, now);
        }
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        if let (Some(circuit_breakers), Some(circuit_permit)) =
            (&self.cluster.circuit_breakers, &mut self.circuit_permit)
        {
            circuit_breakers.abandon_attempt(circuit_permit);
        }
        if let (Some(outlier_monitor), true, false) =
            (&self.cluster.outlier_monitor, self.is_probe, self.is_conclusive)
        {
            outlier_monitor.release_probe(&self.upstream);
        }
    }
}
