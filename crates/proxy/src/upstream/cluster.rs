//! Holds the state of one upstream service port under one traffic policy on one data thread: outlier detection,
//! circuit breakers and load balancer.

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

/// One port under one traffic policy. It lives as long as the policy is unchanged. If several traffic policies
/// of a port contain the same outlier detection, circuit breaker or load balancer, they share its state.
pub(crate) struct UpstreamCluster {
    /// The traffic policy; held, so that its address stays unique.
    traffic_policy: Arc<PortTrafficPolicy>,
    /// The configuration store; its age is the clock of all policies.
    config_store: Arc<ConfigStore>,
    /// Outlier detection, if a policy configures it.
    outlier_monitor: Option<Rc<OutlierMonitor>>,
    /// Circuit breakers, if a policy configures them.
    circuit_breakers: Option<CircuitBreakers>,
    /// The load balancer, if a policy configures it.
    load_balancer: Option<Rc<LoadBalancer>>,
}

/// Slow-start endpoints of a port, shared by the successive cluster states of the port.
pub(crate) type PortSlowStart = Rc<RefCell<SlowStartEndpoints>>;

/// The load balancer of a port, and its slow-start endpoints.
struct LoadBalancer {
    balancing: Arc<PortLoadBalancing>,
    balancer: Balancer,
    slow_start_endpoints: PortSlowStart,
}

impl UpstreamCluster {
    /// Creates the state for a traffic policy. `slow_start_endpoints`: the slow-start endpoints of the port.
    /// `existing_clusters`: the cluster states of other traffic policies, with which equal policies share
    /// their state.
    pub(crate) fn new<'a>(
        worker: &Rc<Worker>,
        traffic_policy: &Arc<PortTrafficPolicy>,
        slow_start_endpoints: PortSlowStart,
        existing_clusters: impl Iterator<Item = &'a Rc<Self>> + Clone,
    ) -> Rc<Self> {
        let outlier_monitor = traffic_policy.outlier_detection.as_ref().map(|outlier_detection| {
            let mut existing_monitors =
                existing_clusters.clone().filter_map(|cluster| cluster.outlier_monitor.as_ref());
            let shared_monitor = existing_monitors
                .find(|outlier_monitor| outlier_monitor.is_for(outlier_detection))
                .cloned();
            shared_monitor.unwrap_or_else(|| OutlierMonitor::start(worker, outlier_detection))
        });
        let load_balancer = traffic_policy.balancing.as_ref().map(|balancing| {
            let mut existing_balancers =
                existing_clusters.clone().filter_map(|cluster| cluster.load_balancer.as_ref());
            let shared_balancer = existing_balancers
                .find(|load_balancer| Arc::ptr_eq(&load_balancer.balancing, balancing))
                .cloned();
            shared_balancer.unwrap_or_else(|| {
                let (balancing, balancer) =
                    (balancing.clone(), Balancer::new(balancing.rule.clone()));
                Rc::new(LoadBalancer { balancing, balancer, slow_start_endpoints })
            })
        });
        let existing_breakers =
            existing_clusters.filter_map(|cluster| cluster.circuit_breakers.as_ref());
        Rc::new(Self {
            traffic_policy: traffic_policy.clone(),
            config_store: worker.config_store.clone(),
            outlier_monitor,
            circuit_breakers: CircuitBreakers::new(traffic_policy, worker, existing_breakers),
            load_balancer,
        })
    }

    /// Returns the key of a traffic policy in maps: its address in memory.
    pub(crate) fn policy_key(traffic_policy: &Arc<PortTrafficPolicy>) -> usize {
        Arc::as_ptr(traffic_policy).addr()
    }

    /// True if this state was created for this traffic policy.
    pub(crate) fn is_for(&self, traffic_policy: &Arc<PortTrafficPolicy>) -> bool {
        Arc::ptr_eq(&self.traffic_policy, traffic_policy)
    }

    /// Replaces the endpoints by the endpoints of this configuration version, and advances the clock of the
    /// policies.
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
                slow_start.duration,
            );
        }
    }

    /// Returns the load balancer, if a policy configures it.
    pub(crate) fn balancer(&self) -> Option<&Balancer> {
        self.load_balancer.as_ref().map(|load_balancer| &load_balancer.balancer)
    }

    /// Returns the age of an endpoint in slow start; `None` for other endpoints.
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

    /// True if an endpoint stays in service only because the ejection limit is reached.
    pub(crate) fn is_exempt_from_ejection(&self, upstream: &Upstream) -> bool {
        self.outlier_monitor
            .as_ref()
            .is_some_and(|outlier_monitor| outlier_monitor.is_exempt_from_ejection(upstream))
    }

    /// Begins an attempt at an endpoint. Fails if a circuit breaker rejects the attempt; otherwise the returned
    /// guard records its outcome. `selector`: the limit on attempts in progress, if one applies.
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
        let rejection_reason = Cell::new(None);
        Ok(OutcomeGuard {
            cluster,
            upstream,
            is_probe,
            circuit_permit,
            is_conclusive: false,
            rejection_reason,
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

    /// Acquires a slot of a limit; `None` without this limit. Fails if the limit is reached.
    pub(crate) fn acquire_slot(
        &self,
        selector: LimitSelector,
    ) -> Result<Option<LimitPermit>, Reason> {
        self.circuit_breakers
            .as_ref()
            .map_or(Ok(None), |circuit_breakers| circuit_breakers.acquire_slots(selector))
    }

    /// Returns the connect timeout of the policies; `None` if they configure none.
    pub(crate) fn connect_timeout(&self) -> Option<Duration> {
        self.circuit_breakers.as_ref()?.connect_timeout
    }

    /// Returns the failure for a reason, with the response that a policy configures for it, if any.
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
    /// The permit of the circuit breakers; `None` if no circuit breaker applies.
    circuit_permit: Option<CircuitPermit>,
    /// True once outlier detection has received a conclusive outcome.
    is_conclusive: bool,
    /// The reason for which the endpoint's sidecar rejected the request; `None` if it did not.
    rejection_reason: Cell<Option<Reason>>,
}

impl OutcomeGuard {
    /// Returns the upstream state that records the outcome.
    pub(crate) fn upstream_cluster(&self) -> &UpstreamCluster {
        &self.cluster
    }

    /// Records that the endpoint's sidecar rejected the request. If the sidecar or the client is the cause, the
    /// status of the response says nothing about the endpoint and is ignored. If the application violated HTTP,
    /// the status counts as the outcome.
    pub(crate) fn record_rejection(&self, reason: Reason) {
        let is_inconclusive = reason.is_rejection() || reason == Reason::UpstreamRefused;
        self.rejection_reason.set(is_inconclusive.then_some(reason));
    }

    /// Records the outcome.
    pub(crate) fn finish(mut self, worker: &Worker, result: EndpointResult) {
        // Only the status of a rejection is replaced. An exchange that fails later has its own reason.
        let result = match (result, self.rejection_reason.get()) {
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
        // After `finish`, the permit has no tickets left to release.
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
