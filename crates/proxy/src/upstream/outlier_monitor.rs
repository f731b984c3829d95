//! Per-thread outlier detection for one service port under one policy.

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
    version: Cell<u64>,
    state: RefCell<MonitorState>,
    shard: Rc<MetricsShard>,
    /// The list of ejected endpoints, shared with the admin interface.
    ejected_list: Arc<EjectedEndpoints>,
    /// The number of the monitor in that list.
    monitor_number: u64,
}

/// The mutable state of a monitor.
struct MonitorState {
    detector: OutlierDetector,
    endpoints: Arc<[Arc<Endpoint>]>,
    /// In the order of `endpoints`.
    upstreams: Vec<Rc<Upstream>>,
    /// The ejected endpoints by index, with cause and time.
    ejected: Vec<(usize, EjectionCause, Instant)>,
    /// A reused buffer of events.
    events: Vec<EjectionEvent>,
}

impl OutlierMonitor {
    /// Creates a monitor without ejected endpoints, and starts its health checks.
    pub(crate) fn start(
        worker: &Rc<Worker>,
        outlier_detection: &Arc<PortOutlierDetection>,
    ) -> Rc<Self> {
        Rc::new_cyclic(|outlier_monitor: &Weak<Self>| {
            let check = health_check(outlier_detection).cloned();
            let start_task = |check| {
                HealthCheckTask::start(
                    worker,
                    outlier_monitor.clone(),
                    outlier_detection.clone(),
                    check,
                )
            };
            Self::new(worker, outlier_detection, check.map(start_task))
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
            ejected: Vec::new(),
            events: Vec::new(),
        };
        Self {
            outlier_detection: outlier_detection.clone(),
            _health_check_task: health_check_task,
            version: Cell::new(0),
            state: RefCell::new(state),
            shard: worker.shard.clone(),
            ejected_list: worker.ejected.clone(),
            monitor_number: worker.ejected.next_number(),
        }
    }

    /// True if it was created for this policy of this port.
    pub(crate) fn is_for(&self, outlier_detection: &Arc<PortOutlierDetection>) -> bool {
        Arc::ptr_eq(&self.outlier_detection, outlier_detection)
    }

    /// Updates the endpoints to those of this configuration version, and advances time.
    pub(crate) fn update_endpoints(
        &self,
        worker: &Rc<Worker>,
        endpoints: &Arc<[Arc<Endpoint>]>,
        version: u64,
        now: Duration,
    ) {
        let mut state = self.state.borrow_mut();
        // A request may hold an older configuration.
        if version > self.version.get() {
            self.version.set(version);
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
    pub(crate) fn is_spared(&self, upstream: &Upstream) -> bool {
        let state = self.state.borrow();
        state.slot_for(upstream).is_some_and(|slot| state.detector.is_spared(slot))
    }

    /// Begins an attempt at an endpoint. Returns true if it is a probe.
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
            FailureEvidence::NoFailure => false,
        };
        let request_result = RequestResult {
            failed: is_failure,
            probe: is_probe,
            now,
            random: worker.random_number(),
        };
        let slot = state.slot_for(upstream).unwrap_or(NO_SLOT);
        state.detector.record_outcome(slot, request_result, &mut state.events);
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

    /// Drops a probe without a conclusive outcome.
    pub(crate) fn release_probe(&self, upstream: &Upstream) {
        let mut state = self.state.borrow_mut();
        if let Some(slot) = state.slot_for(upstream) {
            state.detector.release_request(slot, true);
        }
    }

    /// Reports events to the log, the counters and the list.
    fn report_events(&self, state: &mut MonitorState) {
        for event in std::mem::take(&mut state.events) {
            let (EjectionEvent::Ejected { slot, .. } | EjectionEvent::Unejected { slot }) = event;
            let Some(endpoint) = state.endpoints.get(slot) else { continue };
            let (service, port) = (&endpoint.id.service, endpoint.id.port);
            let (workload, policy) = (&endpoint.id.workload, &self.outlier_detection.policy);
            match event {
                EjectionEvent::Ejected { cause, pause, .. } => {
                    self.shard.add(ejection_counter(cause), 1);
                    state.ejected.retain(|(ejected_slot, ..)| *ejected_slot != slot);
                    state.ejected.push((slot, cause, Instant::now()));
                    let cause = cause.as_str();
                    let pause = pause.map_or("until it is healthy".to_owned(), |duration| {
                        format!("{duration:?}")
                    });
                    tracing::warn!(%workload, %service, port, cause, duration = pause, %policy, "endpoint ejected");
                }
                EjectionEvent::Unejected { .. } => {
                    if let Some(upstream) = state.upstreams.get(slot) {
                        upstream.reset_latency();
                    }
                    self.shard.add(Count::EndpointUnejections, 1);
                    tracing::info!(%workload, %service, port, %policy, "endpoint unejected");
                }
            }
        }
        self.update_list(state);
    }

    /// Updates the list and the gauge of ejected endpoints.
    fn update_list(&self, state: &mut MonitorState) {
        let old_count = self.ejected_list.count(self.monitor_number);
        let MonitorState { detector, ejected, endpoints, .. } = state;
        ejected.retain(|(slot, ..)| detector.endpoint_state(*slot) != EjectionState::InService);
        let to_record = |(slot, cause, since): &(usize, EjectionCause, Instant)| {
            let endpoint = endpoints.get(*slot)?.clone();
            Some(EjectionRecord {
                endpoint,
                policy: self.outlier_detection.policy.clone(),
                cause: *cause,
                since: *since,
            })
        };
        let entries: Vec<EjectionRecord> = ejected.iter().filter_map(to_record).collect();
        self.shard.raise(Gauge::EndpointsEjected, entries.len() as u64);
        self.shard.lower(Gauge::EndpointsEjected, old_count as u64);
        self.ejected_list.set_entries(self.monitor_number, entries);
    }
}

impl Drop for OutlierMonitor {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        state.detector.update_endpoints(&[]);
        state.ejected.clear();
        let old_count = self.ejected_list.count(self.monitor_number);
        self.shard.lower(Gauge::EndpointsEjected, old_count as u64);
        self.ejected_list.set_entries(self.monitor_number, Vec::new());
    }
}

impl MonitorState {
    /// Returns the index of an endpoint. Several policies may apply to one endpoint, briefly with different
    /// configuration versions: then its cached index is that of another policy.
    #[inline]
    fn slot_for(&self, upstream: &Upstream) -> Option<usize> {
        let cached_slot = upstream.slot.get();
        if cached_slot == NO_SLOT {
            return None;
        }
        let is_upstream = |candidate: &Rc<Upstream>| std::ptr::eq(&raw const **candidate, upstream);
        match self.upstreams.get(cached_slot) {
            Some(candidate) if is_upstream(candidate) => Some(cached_slot),
            _ => self.upstreams.iter().position(is_upstream),
        }
    }

    /// Replaces the endpoints. Statistics of those that remain are kept.
    fn replace_endpoints(&mut self, worker: &Rc<Worker>, endpoints: &Arc<[Arc<Endpoint>]>) {
        let old_slot = |endpoint: &Arc<Endpoint>| {
            let index = self
                .endpoints
                .binary_search_by(|old_endpoint| old_endpoint.id.cmp(&endpoint.id))
                .ok()?;
            let old_endpoint = self.endpoints.get(index)?;
            old_endpoint.has_same_address(endpoint).then_some(index)
        };
        let old_slots: Vec<Option<usize>> = endpoints.iter().map(old_slot).collect();
        self.detector.update_endpoints(&old_slots);
        let move_to_new_slot = |(old_slot, cause, since): (usize, EjectionCause, Instant)| {
            let slot = old_slots.iter().position(|candidate| *candidate == Some(old_slot))?;
            Some((slot, cause, since))
        };
        self.ejected =
            std::mem::take(&mut self.ejected).into_iter().filter_map(move_to_new_slot).collect();
        for upstream in self.upstreams.drain(..) {
            upstream.slot.set(NO_SLOT);
        }
        self.upstreams.extend(endpoints.iter().map(|endpoint| worker.upstream_for(endpoint)));
        for (slot, upstream) in self.upstreams.iter().enumerate() {
            upstream.slot.set(slot);
        }
        self.endpoints = endpoints.clone();
    }
}

/// Returns the active health check of a policy.
fn health_check(outlier_detection: &PortOutlierDetection) -> Option<&HealthCheck> {
    match &outlier_detection.algorithm {
        OutlierAlgorithm::Native(rule) => rule.health_check.as_deref(),
        OutlierAlgorithm::Sermant(_) => None,
    }
}

/// Returns the counter of ejections for this cause.
fn ejection_counter(cause: EjectionCause) -> Count {
    match cause {
        EjectionCause::Rate => Count::EndpointEjectedForRate,
        EjectionCause::Consecutive => Count::EndpointEjectedForConsecutive,
        EjectionCause::Probe => Count::EndpointEjectedForProbe,
        EjectionCause::Check => Count::EndpointEjectedForCheck,
    }
}

/// The index of an endpoint without outlier detection.
pub(crate) const NO_SLOT: usize = usize::MAX;
