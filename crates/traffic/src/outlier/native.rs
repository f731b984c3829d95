//! Implements the native outlier detection algorithm: sliding windows, ejection of the worst endpoint first, doubling
//! ejection times, probes and health checks.

use std::time::Duration;

use leno_model::{FailureClasses, OutlierDetection};

use super::{EjectionCause, EjectionEvent, EjectionState, FailureEvidence, RequestResult};

/// The outlier detection state of one port. Methods without a description are described at
/// [`OutlierDetector`](super::OutlierDetector).
///
/// Failure rates are evaluated at the end of each bucket; the endpoint with the highest rate is ejected first.
/// Consecutive failures are evaluated immediately. Ejected and probed endpoints count against the limits
/// `max_ejection_percent` and `min_healthy`.
///
/// Health checks and requests are separate evidence. An endpoint that failed health checks ejected is returned to
/// service by successful health checks. An endpoint that failed requests ejected is returned by successful probes,
/// which are requests.
#[derive(Debug)]
pub struct NativeDetector {
    rule: OutlierDetection,
    /// The duration of one bucket of the window.
    bucket_length: Duration,
    /// The end of the current bucket.
    bucket_end: Duration,
    /// The index of the current bucket in the ring of each endpoint.
    current_bucket: usize,
    endpoints: Vec<EndpointRecord>,
    /// The earliest end of an ejection.
    next_ejection_end: Option<Duration>,
}

/// The recent results and ejections of one endpoint.
#[derive(Debug, Clone)]
struct EndpointRecord {
    /// The buckets of the sliding window.
    buckets: Box<[Bucket]>,
    /// The sum of all buckets.
    total: Bucket,
    consecutive_failures: u32,
    state: ServiceState,
    /// The number of successive ejections, each of which doubles the ejection time. Time in service reduces the number.
    ejection_count: u32,
    /// The time of the last return to service.
    returned_at: Duration,
    /// True if the endpoint would be ejected for its requests, but the limits prevent it.
    is_ejection_prevented: bool,
    health_check: HealthCheckState,
}

/// The health check state of an endpoint.
#[derive(Debug, Clone, Copy, Default)]
struct HealthCheckState {
    /// True if the last check failed.
    failed: bool,
    /// The number of consecutive checks with the same result as the last.
    consecutive_results: u32,
    /// True if the endpoint is ejected by health checks.
    is_unhealthy: bool,
}

/// The results of requests in one part of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bucket {
    requests: u32,
    failures: u32,
}

/// The state of an endpoint as determined by its requests. Health checks are evaluated separately: see
/// [`HealthCheckState`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServiceState {
    /// The endpoint receives requests.
    InService,
    /// The endpoint receives no requests.
    Ejected {
        /// The time at which probes start.
        until: Duration,
    },
    /// The ejection time is over; the endpoint receives one probe at a time.
    Probed {
        /// The number of successful probes.
        successes: u32,
        /// True if a probe is in progress.
        in_progress: bool,
    },
}

impl NativeDetector {
    /// Creates a detector without evidence.
    #[must_use]
    pub fn new(rule: OutlierDetection, endpoint_count: usize) -> Self {
        let bucket_length = rule.window / u32::from(rule.buckets.max(1));
        let endpoints = vec![EndpointRecord::new(rule.buckets); endpoint_count];
        Self {
            rule,
            bucket_length,
            bucket_end: bucket_length,
            current_bucket: 0,
            endpoints,
            next_ejection_end: None,
        }
    }

    /// Returns the failure classes that count.
    #[must_use]
    pub fn failure_classes(&self) -> &FailureClasses {
        &self.rule.failures
    }

    pub(super) fn update_endpoints(&mut self, old_slots: &[Option<usize>]) {
        let new_endpoint = EndpointRecord::new(self.rule.buckets);
        let existing_endpoint = |old_slot: &Option<usize>| {
            old_slot.and_then(|old_slot| self.endpoints.get(old_slot)).cloned()
        };
        self.endpoints = old_slots
            .iter()
            .map(|old_slot| existing_endpoint(old_slot).unwrap_or(new_endpoint.clone()))
            .collect();
        for endpoint in &mut self.endpoints {
            // A probe in progress may have the old slot, so its result would be recorded for another endpoint.
            if let ServiceState::Probed { in_progress, .. } = &mut endpoint.state {
                *in_progress = false;
            }
        }
        self.enforce_limits();
    }

    pub(super) fn endpoint_state(&self, slot: usize) -> EjectionState {
        let Some(endpoint) = self.endpoints.get(slot) else { return EjectionState::InService };
        match endpoint.state {
            _ if endpoint.health_check.is_unhealthy => EjectionState::Ejected,
            ServiceState::InService => EjectionState::InService,
            ServiceState::Probed { in_progress: false, .. } => EjectionState::Probe,
            ServiceState::Ejected { .. } | ServiceState::Probed { in_progress: true, .. } => {
                EjectionState::Ejected
            }
        }
    }

    pub(super) fn is_ejection_prevented(&self, slot: usize) -> bool {
        let Some(endpoint) = self.endpoints.get(slot) else { return false };
        let HealthCheckState { failed, consecutive_results, .. } = endpoint.health_check;
        let health_check = self.rule.health_check.as_ref();
        let reaches_threshold =
            health_check.is_some_and(|health_check| consecutive_results >= health_check.failures);
        endpoint.is_in_service() && (endpoint.is_ejection_prevented || failed && reaches_threshold)
    }

    pub(super) fn advance_time(
        &mut self,
        now: Duration,
        random: u64,
        events: &mut Vec<EjectionEvent>,
    ) {
        if now >= self.bucket_end {
            self.end_buckets(now, random, events);
        }
        if self.next_ejection_end.is_some_and(|next| next <= now) {
            self.start_probes(now);
        }
    }

    pub(super) fn start_request(&mut self, slot: usize) -> bool {
        match self.endpoints.get_mut(slot).map(|endpoint| &mut endpoint.state) {
            Some(ServiceState::Probed { in_progress, .. }) if !*in_progress => {
                *in_progress = true;
                true
            }
            _ => false,
        }
    }

    pub(super) fn release_request(&mut self, slot: usize) {
        if let Some(ServiceState::Probed { in_progress, .. }) =
            self.endpoints.get_mut(slot).map(|endpoint| &mut endpoint.state)
        {
            *in_progress = false;
        }
    }

    pub(super) fn record_result(
        &mut self,
        slot: usize,
        result: RequestResult,
        events: &mut Vec<EjectionEvent>,
    ) {
        let current_bucket = self.current_bucket;
        let Some(endpoint) = self.endpoints.get_mut(slot) else { return };
        match &mut endpoint.state {
            ServiceState::InService if !endpoint.health_check.is_unhealthy => {
                endpoint.count_request(current_bucket, result.failed);
                if !result.failed || !endpoint.exceeds_consecutive_failures(&self.rule) {
                    return;
                }
                endpoint.is_ejection_prevented = true;
                if self.may_eject() {
                    self.eject_endpoint(
                        slot,
                        EjectionCause::ConsecutiveFailures,
                        result.now,
                        result.random,
                        events,
                    );
                }
            }
            // Requests that started before the ejection are not counted again.
            ServiceState::InService | ServiceState::Ejected { .. } => {}
            // An unhealthy endpoint needs successful health checks, so the result of the probe has no other effect.
            ServiceState::Probed { in_progress, .. } if endpoint.health_check.is_unhealthy => {
                *in_progress &= !result.probe
            }
            // The request started before the ejection.
            ServiceState::Probed { .. } if !result.probe => {}
            ServiceState::Probed { .. } if result.failed => {
                self.eject_endpoint(slot, EjectionCause::Probe, result.now, result.random, events);
            }
            ServiceState::Probed { successes, in_progress } => {
                *successes += 1;
                *in_progress = false;
                if *successes >= self.rule.probe_requests {
                    endpoint.state = ServiceState::InService;
                    endpoint.returned_at = result.now;
                    events.push(EjectionEvent::Unejected { slot });
                }
            }
        }
    }

    /// Records the result of a health check. The limits also apply to ejections by health checks: an endpoint that the
    /// limits keep in service is reconsidered at its next check. Inconclusive checks count as successful for an
    /// endpoint that failed checks ejected, so that its requests are evaluated again.
    pub(super) fn record_check(
        &mut self,
        slot: usize,
        evidence: FailureEvidence,
        now: Duration,
        events: &mut Vec<EjectionEvent>,
    ) {
        let Some(rule) = &self.rule.health_check else { return };
        let failed = evidence == FailureEvidence::Failure;
        let threshold = if failed { rule.failures } else { rule.successes };
        let may_eject = self.may_eject();
        let Some(endpoint) = self.endpoints.get_mut(slot) else { return };
        let is_in_service = endpoint.state == ServiceState::InService;
        let check_state = &mut endpoint.health_check;
        if evidence == FailureEvidence::Unknown && !check_state.is_unhealthy {
            return;
        }
        check_state.consecutive_results = if check_state.failed == failed {
            check_state.consecutive_results.saturating_add(1)
        } else {
            1
        };
        check_state.failed = failed;
        if check_state.consecutive_results < threshold || check_state.is_unhealthy == failed {
            return;
        }
        match failed {
            true if is_in_service && !may_eject => return,
            true => {
                endpoint.clear_evidence();
                events.push(EjectionEvent::Ejected {
                    slot,
                    cause: EjectionCause::HealthCheck,
                    pause: None,
                });
            }
            false if is_in_service => {
                endpoint.returned_at = now;
                events.push(EjectionEvent::Unejected { slot });
            }
            // The endpoint stays ejected because of its requests.
            false => {}
        }
        endpoint.health_check.is_unhealthy = failed;
    }

    /// Ends the current bucket, and also the following buckets if their time is over. The counts are evaluated once, as
    /// of the end of the current bucket.
    fn end_buckets(&mut self, now: Duration, random: u64, events: &mut Vec<EjectionEvent>) {
        self.eject_worst_endpoints(now, random, events);
        let ended_count =
            1 + (now - self.bucket_end).as_nanos() / self.bucket_length.as_nanos().max(1);
        let bucket_count = usize::from(self.rule.buckets.max(1));
        let ended_buckets = usize::try_from(ended_count).unwrap_or(usize::MAX);
        let rule = &self.rule;
        for endpoint in &mut self.endpoints {
            // An endpoint without requests has no successes that could clear the flag, so it is cleared with the
            // window.
            endpoint.is_ejection_prevented = ended_buckets <= bucket_count
                && (endpoint.exceeds_failure_rate(rule)
                    || endpoint.exceeds_consecutive_failures(rule));
        }
        for _ in 0..ended_buckets.min(bucket_count) {
            self.current_bucket = (self.current_bucket + 1) % bucket_count;
            for endpoint in &mut self.endpoints {
                endpoint.clear_bucket(self.current_bucket);
            }
        }
        let length_multiple = u32::try_from(ended_count).unwrap_or(u32::MAX);
        let elapsed = self.bucket_length.saturating_mul(length_multiple);
        self.bucket_end = self.bucket_end.saturating_add(elapsed);
    }

    /// Ejects the endpoints with too high a failure rate, the highest rate first, within the limits.
    fn eject_worst_endpoints(
        &mut self,
        now: Duration,
        random: u64,
        events: &mut Vec<EjectionEvent>,
    ) {
        let mut random = random;
        while self.may_eject() {
            let endpoints = self.endpoints.iter().enumerate();
            let failing_endpoints =
                endpoints.filter(|(_, endpoint)| endpoint.exceeds_failure_rate(&self.rule));
            // Among endpoints with equal rates, the first is ejected.
            let worst_endpoint = failing_endpoints
                .rev()
                .max_by(|(_, left), (_, right)| left.total.compare_rates(right.total));
            let Some(worst_endpoint) = worst_endpoint.map(|(slot, _)| slot) else { return };
            self.eject_endpoint(worst_endpoint, EjectionCause::FailureRate, now, random, events);
            // Derives another random number, so that the next ejection has another jitter. The multiplier is 2^64
            // divided by the golden ratio.
            random = random.rotate_left(21).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    /// True if one more endpoint may be ejected.
    fn may_eject(&self) -> bool {
        let (ejected_count, limit) = self.ejection_count_and_limit();
        ejected_count < limit
    }

    /// Returns the number of ejected or probed endpoints, and the maximum of this number.
    fn ejection_count_and_limit(&self) -> (usize, usize) {
        let endpoint_count = self.endpoints.len();
        let ejected_count =
            self.endpoints.iter().filter(|endpoint| !endpoint.is_in_service()).count();
        let limit_by_percent =
            endpoint_count * usize::from(self.rule.max_ejection_percent.min(100)) / 100;
        let min_healthy = usize::try_from(self.rule.min_healthy).unwrap_or(usize::MAX);
        (ejected_count, limit_by_percent.min(endpoint_count.saturating_sub(min_healthy)))
    }

    /// Enforces the limits after endpoints were removed: returns endpoints that health checks ejected to service until
    /// the limits hold. The next check may eject them again.
    fn enforce_limits(&mut self) {
        loop {
            let (ejected_count, limit) = self.ejection_count_and_limit();
            let mut unhealthy_endpoints =
                self.endpoints.iter_mut().filter(|endpoint| endpoint.health_check.is_unhealthy);
            match unhealthy_endpoints.next() {
                Some(endpoint) if ejected_count > limit => {
                    endpoint.health_check.is_unhealthy = false
                }
                _ => return,
            }
        }
    }

    /// Ejects an endpoint because of its requests. The ejection time doubles with each successive ejection, up to the
    /// maximum, and is reduced by a random part of the jitter.
    fn eject_endpoint(
        &mut self,
        slot: usize,
        cause: EjectionCause,
        now: Duration,
        random: u64,
        events: &mut Vec<EjectionEvent>,
    ) {
        let rule = &self.rule;
        let Some(endpoint) = self.endpoints.get_mut(slot) else { return };
        if endpoint.state == ServiceState::InService {
            // The ejection time is halved for each period of the base ejection time that the endpoint was in service.
            let time_in_service = now.saturating_sub(endpoint.returned_at).as_nanos();
            let base_periods = time_in_service / rule.ejection_time.base.as_nanos().max(1);
            let halvings = u32::try_from(base_periods).unwrap_or(u32::MAX);
            endpoint.ejection_count = endpoint.ejection_count.saturating_sub(halvings);
        }
        let factor = 1_u32.checked_shl(endpoint.ejection_count).unwrap_or(u32::MAX);
        let full_ejection_time =
            rule.ejection_time.base.saturating_mul(factor).min(rule.ejection_time.max);
        let jitter =
            full_ejection_time * u32::from(rule.ejection_time.jitter_percent.min(100)) / 100;
        // Scales the random number, which is a fraction of 2^64, to the jitter.
        let reduction = (u128::from(random) * jitter.as_nanos()) >> 64;
        let ejection_time =
            full_ejection_time - Duration::from_nanos(u64::try_from(reduction).unwrap_or(0));
        endpoint.ejection_count = endpoint.ejection_count.saturating_add(1).min(MAX_EJECTIONS);
        endpoint.clear_evidence();
        let until = now.saturating_add(ejection_time);
        endpoint.state = ServiceState::Ejected { until };
        self.next_ejection_end =
            Some(self.next_ejection_end.map_or(until, |earliest| earliest.min(until)));
        events.push(EjectionEvent::Ejected { slot, cause, pause: Some(ejection_time) });
    }

    /// Starts the probes of endpoints whose ejection time is over.
    fn start_probes(&mut self, now: Duration) {
        let mut next_ejection_end = None;
        for endpoint in &mut self.endpoints {
            match endpoint.state {
                ServiceState::Ejected { until } if until <= now => {
                    endpoint.state = ServiceState::Probed { successes: 0, in_progress: false };
                }
                ServiceState::Ejected { until } => {
                    next_ejection_end =
                        Some(next_ejection_end.map_or(until, |next_ejection_end: Duration| {
                            next_ejection_end.min(until)
                        }));
                }
                ServiceState::InService | ServiceState::Probed { .. } => {}
            }
        }
        self.next_ejection_end = next_ejection_end;
    }
}

impl EndpointRecord {
    fn new(buckets: u8) -> Self {
        Self {
            buckets: vec![Bucket::default(); usize::from(buckets.max(1))].into(),
            total: Bucket::default(),
            consecutive_failures: 0,
            state: ServiceState::InService,
            ejection_count: 0,
            returned_at: Duration::ZERO,
            is_ejection_prevented: false,
            health_check: HealthCheckState::default(),
        }
    }

    /// True if the endpoint is neither ejected, probed nor unhealthy.
    fn is_in_service(&self) -> bool {
        self.state == ServiceState::InService && !self.health_check.is_unhealthy
    }

    /// True if the failure rate of the endpoint is too high.
    fn exceeds_failure_rate(&self, rule: &OutlierDetection) -> bool {
        let Some(rate) = rule.failure_rate else { return false };
        let Bucket { requests, failures } = self.total;
        self.is_in_service()
            && requests >= rate.min_requests.max(1)
            && u64::from(failures) * 100 >= u64::from(requests) * u64::from(rate.percent)
    }

    /// True if the endpoint has too many consecutive failures, the last one within the window.
    fn exceeds_consecutive_failures(&self, rule: &OutlierDetection) -> bool {
        let threshold = rule.consecutive_failures.unwrap_or(u32::MAX);
        self.is_in_service() && self.consecutive_failures >= threshold && self.total.requests > 0
    }

    /// Adds a request to the current bucket and the totals.
    fn count_request(&mut self, current_bucket: usize, failed: bool) {
        self.consecutive_failures =
            if failed { self.consecutive_failures.saturating_add(1) } else { 0 };
        if let Some(bucket) = self.buckets.get_mut(current_bucket) {
            for counts in [bucket, &mut self.total] {
                counts.requests = counts.requests.saturating_add(1);
                counts.failures = counts.failures.saturating_add(u32::from(failed));
            }
        }
    }

    /// Clears a bucket before its reuse.
    fn clear_bucket(&mut self, index: usize) {
        if let Some(bucket) = self.buckets.get_mut(index) {
            let Bucket { requests, failures } = std::mem::take(bucket);
            self.total.requests = self.total.requests.saturating_sub(requests);
            self.total.failures = self.total.failures.saturating_sub(failures);
        }
    }

    /// Clears the recorded results after an ejection, so that they do not cause another ejection.
    fn clear_evidence(&mut self) {
        self.buckets.fill(Bucket::default());
        self.total = Bucket::default();
        self.consecutive_failures = 0;
        self.is_ejection_prevented = false;
    }
}

impl Bucket {
    /// Compares failure rates, then failure counts.
    fn compare_rates(self, other: Self) -> std::cmp::Ordering {
        let own_rate = u64::from(self.failures) * u64::from(other.requests);
        let other_rate = u64::from(other.failures) * u64::from(self.requests);
        own_rate.cmp(&other_rate).then(self.failures.cmp(&other.failures))
    }
}

/// The maximum number of successive ejections that are counted. More doublings would exceed any ejection time.
const MAX_EJECTIONS: u32 = 31;

#[cfg(test)]
mod tests;
