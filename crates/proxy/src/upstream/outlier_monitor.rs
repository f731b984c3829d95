//! Runs outlier detection for one service port under one policy on one data thread: passes the outcomes of
//! requests and health checks to the detector of `leno-traffic`, and reports its ejections to the log, the
//! metrics and the admin endpoint.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{Endpoint, HealthCheck, OutlierAlgorithm, PortOutlierDetection};
use leno_telemetry::{Count, Gauge, MetricsShard};
use leno_traffic::outlier::{
    EjectionCause, EjectionEvent, EjectionState, EndpointResult, FailureEvidence, OutlierDetector,
    RequestResult, classify_result,
};

use super::Upstream;
use super::health_check::HealthCheckTask;
use crate::ejected::{EjectedEndpoints, EjectionRecord};
use crate::worker::Worker;

/// The outlier detector of one port under one policy.
pub(crate) struct OutlierMonitor {
    /// The policy; held, so that its address stays unique.
    outlier_detection: Arc<PortOutlierDetection>,
    /// Active health checks, if the policy configures them.
    _health_check_task: Option<HealthCheckTask>,
    /// The configuration version of the endpoints.
    config_version: Cell<u64>,
    state: RefCell<MonitorState>,
    metrics: Rc<MetricsShard>,
    /// The list of ejected endpoints, shared with the admin endpoint.
    ejected_list: Arc<EjectedEndpoints>,
    /// The number of this monitor in `ejected_list`.
    monitor_number: u64,
}

/// The mutable state of a monitor.
struct MonitorState {
    detector: OutlierDetector,
    endpoints: Arc<[Arc<Endpoint>]>,
    /// The upstreams of `endpoints`, in the same order.
    upstreams: Vec<Rc<Upstream>>,
    ejected_slots: Vec<EjectedSlot>,
    /// A reused buffer of events.
    events: Vec<EjectionEvent>,
}

/// An ejected endpoint.
struct EjectedSlot {
    /// The index of the endpoint in [`MonitorState::endpoints`].
    slot: usize,
    cause: EjectionCause,
    /// The time of the ejection.
    since: Instant,
}

impl OutlierMonitor {
    /// Creates a monitor without ejected endpoints, and starts its health checks.
    pub(crate) fn start(
        worker: &Rc<Worker>,
        outlier_detection: &Arc<PortOutlierDetection>,
    ) -> Rc<Self> {
        Rc::new_cyclic(|outlier_monitor: &Weak<Self>| {
            let health_check = active_health_check(outlier_detection).cloned();
            let start_task = |health_check| {
                HealthCheckTask::start(
                    worker,
                    outlier_monitor.clone(),
                    outlier_detection.clone(),
                    health_check,
                )
            };
            Self::new(worker, outlier_detection, health_check.map(start_task))
        })
    }

    fn new(
        worker: &Worker,
        outlier_detection: &Arc<PortOutlierDetection>,
        health_check_task: Option<HealthCheckTask>,
    ) -> Self {
        let state = MonitorState {
            detector: OutlierDetector::new(&outlier_detection.algorithm, 0),
            endpoints: Arc::new([]),
            upstreams: Vec::new(),
            ejected_slots: Vec::new(),
            events: Vec::new(),
        };
        Self {
            outlier_detection: outlier_detection.clone(),
            _health_check_task: health_check_task,
            config_version: Cell::new(0),
            state: RefCell::new(state),
            metrics: worker.metrics.clone(),
            ejected_list: worker.ejected_endpoints.clone(),
            monitor_number: worker.ejected_endpoints.next_monitor_number(),
        }
    }

    /// True if this monitor was created for this policy of this port.
    pub(crate) fn is_for(&self, outlier_detection: &Arc<PortOutlierDetection>) -> bool {
        Arc::ptr_eq(&self.outlier_detection, outlier_detection)
    }

    /// Replaces the endpoints by the endpoints of this configuration version, and advances the clock of the
    /// detector.
    pub(crate) fn update_endpoints(
        &self,
        worker: &Rc<Worker>,
        endpoints: &Arc<[Arc<Endpoint>]>,
        version: u64,
        now: Duration,
    ) {
        let mut state = self.state.borrow_mut();
        // A request may hold an older configuration.
        if version > self.config_version.get() {
            self.config_version.set(version);
            if !Arc::ptr_eq(&state.endpoints, endpoints) {
                state.replace_endpoints(worker, endpoints);
                self.update_list(&mut state);
            }
        }
        let state = &mut *state;
        state.detector.advance_time(now, worker.random_number(), &mut state.events);
        if !state.events.is_empty() {
            self.report_events(state);
        }
    }

    /// True if requests may go to an endpoint.
    pub(crate) fn is_admitted(&self, upstream: &Upstream) -> bool {
        let state = self.state.borrow();
        state
            .slot_for(upstream)
            .is_none_or(|slot| state.detector.endpoint_state(slot) != EjectionState::Ejected)
    }

    /// True if an endpoint stays in service only because of the ejection limits.
    pub(crate) fn is_exempt_from_ejection(&self, upstream: &Upstream) -> bool {
        let state = self.state.borrow();
        state.slot_for(upstream).is_some_and(|slot| state.detector.is_ejection_prevented(slot))
    }

    /// Begins an attempt at an endpoint. Returns true if the attempt is a probe: one of the few requests that
    /// test if an ejected endpoint has recovered.
    pub(crate) fn start_attempt(&self, upstream: &Upstream) -> bool {
        let mut state = self.state.borrow_mut();
        let slot = state.slot_for(upstream);
        slot.is_some_and(|slot| state.detector.start_request(slot))
    }

    /// Records the outcome of an attempt. Returns true if it is conclusive.
    pub(crate) fn finish_attempt(
        &self,
        worker: &Worker,
        upstream: &Upstream,
        is_probe: bool,
        result: EndpointResult,
        now: Duration,
    ) -> bool {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let is_failure = match classify_result(state.detector.failure_classes(), result) {
            FailureEvidence::Unknown => return false,
            FailureEvidence::Failure => true,
            FailureEvidence::Success => false,
        };
        let request_result = RequestResult {
            failed: is_failure,
            probe: is_probe,
            now,
            random: worker.random_number(),
        };
        // The detector counts no outcome for an endpoint that was removed meanwhile.
        let slot = state.slot_for(upstream).unwrap_or(NO_SLOT);
        state.detector.record_result(slot, request_result, &mut state.events);
        if !state.events.is_empty() {
            self.report_events(state);
        }
        true
    }

    /// Records the result of a health check.
    pub(crate) fn record_check(
        &self,
        upstream: &Upstream,
        evidence: FailureEvidence,
        now: Duration,
    ) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let slot = state.slot_for(upstream).unwrap_or(NO_SLOT);
        state.detector.record_check(slot, evidence, now, &mut state.events);
        if !state.events.is_empty() {
            self.report_events(state);
        }
    }

    /// Ends a probe without a conclusive outcome, so that another request may probe the endpoint.
    pub(crate) fn release_probe(&self, upstream: &Upstream) {
        let mut state = self.state.borrow_mut();
        if let Some(slot) = state.slot_for(upstream) {
            state.detector.release_request(slot, true);
        }
    }

    /// Reports the detector's events to the log, the metrics and the list of ejected endpoints.
    fn report_events(&self, state: &mut MonitorState) {
        for event in std::mem::take(&mut state.events) {
            let (EjectionEvent::Ejected { slot, .. } | EjectionEvent::Unejected { slot }) = event;
            let Some(endpoint) = state.endpoints.get(slot) else { continue };
            let (service, port) = (&endpoint.id.service, endpoint.id.port);
            let (workload, policy) = (&endpoint.id.workload, &self.outlier_detection.policy);
            match event {
                EjectionEvent::Ejected { cause, pause, .. } => {
                    self.metrics.add(ejection_counter(cause), 1);
                    state.ejected_slots.retain(|ejected| ejected.slot != slot);
                    let ejected_slot = EjectedSlot { slot, cause, since: Instant::now() };
                    state.ejected_slots.push(ejected_slot);
                    let cause = cause.as_str();
                    let pause_text = pause.map_or("until it is healthy".to_owned(), |duration| {
                        format!("{duration:?}")
                    });
                    tracing::warn!(%workload, %service, port, cause, duration = pause_text, %policy, "endpoint ejected");
                }
                EjectionEvent::Unejected { .. } => {
                    if let Some(upstream) = state.upstreams.get(slot) {
                        upstream.reset_latency();
                    }
                    self.metrics.add(Count::EndpointUnejections, 1);
                    tracing::info!(%workload, %service, port, %policy, "endpoint unejected");
                }
            }
        }
        self.update_list(state);
    }

    /// Updates the list and the gauge of ejected endpoints.
    fn update_list(&self, state: &mut MonitorState) {
        let old_count = self.ejected_list.count(self.monitor_number);
        let MonitorState { detector, ejected_slots, endpoints, .. } = state;
        ejected_slots
            .retain(|ejected| detector.endpoint_state(ejected.slot) != EjectionState::InService);
        let to_record = |ejected: &EjectedSlot| {
            let endpoint = endpoints.get(ejected.slot)?.clone();
            Some(EjectionRecord {
                endpoint,
                policy: self.outlier_detection.policy.clone(),
                cause: ejected.cause,
                since: ejected.since,
            })
        };
        let entries: Vec<EjectionRecord> = ejected_slots.iter().filter_map(to_record).collect();
        self.metrics.increment(Gauge::EndpointsEjected, entries.len() as u64);
        self.metrics.decrement(Gauge::EndpointsEjected, old_count as u64);
        self.ejected_list.replace_records(self.monitor_number, entries);
    }
}

impl Drop for OutlierMonitor {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        state.detector.update_endpoints(&[]);
        state.ejected_slots.clear();
        let old_count = self.ejected_list.count(self.monitor_number);
        self.metrics.decrement(Gauge::EndpointsEjected, old_count as u64);
        self.ejected_list.replace_records(self.monitor_number, Vec::new());
    }
}

impl MonitorState {
    /// Returns the index of an endpoint in this monitor; `None` if the endpoint is not in it. If several
    /// policies apply to one endpoint, briefly with different configuration versions, the index cached in
    /// `upstream` may belong to another policy.
    #[inline]
    fn slot_for(&self, upstream: &Upstream) -> Option<usize> {
        let cached_slot = upstream.detector_slot.get();
        if cached_slot == NO_SLOT {
            return None;
        }
        let is_upstream = |candidate: &Rc<Upstream>| std::ptr::eq(&raw const **candidate, upstream);
        match self.upstreams.get(cached_slot) {
            Some(candidate) if is_upstream(candidate) => Some(cached_slot),
            _ => self.upstreams.iter().position(is_upstream),
        }
    }

    /// Replaces the endpoints. Endpoints that remain keep their statistics.
    fn replace_endpoints(&mut self, worker: &Rc<Worker>, endpoints: &Arc<[Arc<Endpoint>]>) {
        let old_slot = |endpoint: &Arc<Endpoint>| {
            let index = self
                .endpoints
                .binary_search_by(|old_endpoint| old_endpoint.id.cmp(&endpoint.id))
                .ok()?;
            let old_endpoint = self.endpoints.get(index)?;
            old_endpoint.is_same_upstream(endpoint).then_some(index)
        };
        let old_slots: Vec<Option<usize>> = endpoints.iter().map(old_slot).collect();
        self.detector.update_endpoints(&old_slots);
        let move_to_new_slot = |ejected: EjectedSlot| {
            let slot = old_slots.iter().position(|old_slot| *old_slot == Some(ejected.slot))?;
            Some(EjectedSlot { slot, ..ejected })
        };
        self.ejected_slots = std::mem::take(&mut self.ejected_slots)
            .into_iter()
            .filter_map(move_to_new_slot)
            .collect();
        for upstream in self.upstreams.drain(..) {
            upstream.detector_slot.set(NO_SLOT);
        }
        self.upstreams.extend(endpoints.iter().map(|endpoint| worker.upstream_for(endpoint)));
        for (slot, upstream) in self.upstreams.iter().enumerate() {
            upstream.detector_slot.set(slot);
        }
        self.endpoints = endpoints.clone();
    }
}

/// Returns the active health check of a policy; `None` if it configures none.
fn active_health_check(outlier_detection: &PortOutlierDetection) -> Option<&HealthCheck> {
    match &outlier_detection.algorithm {
        OutlierAlgorithm::Native(rule) => rule.health_check.as_deref(),
        OutlierAlgorithm::Sermant(_) => None,
    }
}

/// Returns the counter of ejections for this cause.
fn ejection_counter(cause: EjectionCause) -> Count {
    match cause {
        EjectionCause::FailureRate => Count::EndpointEjectedForRate,
        EjectionCause::ConsecutiveFailures => Count::EndpointEjectedForConsecutive,
        EjectionCause::Probe => Count::EndpointEjectedForProbe,
        EjectionCause::HealthCheck => Count::EndpointEjectedForCheck,
    }
}

/// The index of an endpoint without outlier detection.
pub(crate) const NO_SLOT: usize = usize::MAX;
