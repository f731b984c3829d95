//! Outlier detection with the exact behavior of Sermant's service-removal plugin, for migrations.
//!
//! The differences from the native algorithm are intended. The first failing instance of the list is ejected, not the
//! worst. One failed call suffices in a window with few calls. The ejection time does not increase with each ejection.
//! There are no probes. As in Sermant, endpoints are called instances here.

use std::collections::VecDeque;
use std::time::Duration;

use leno_model::{FailureClasses, SermantRemoval};

use super::{EjectionCause, EjectionEvent, EjectionState, RequestResult};

/// The outlier detection state of the instances of one service, in their order. Methods without a description are
/// described at [`OutlierDetector`](super::OutlierDetector).
#[derive(Debug)]
pub struct SermantDetector {
    rule: SermantRemoval,
    /// The end of the current window.
    window_end: Duration,
    instances: Vec<Instance>,
    /// The time until which the last filtering is valid; absent if the instances must be filtered immediately.
    valid_until: Option<Duration>,
}

/// The state of one instance, with the same fields as in Sermant. An instance without calls for the `expire`
/// time is reset.
#[derive(Debug, Clone, Default)]
struct Instance {
    /// The time of the last call; absent if there was none.
    last_call: Option<Duration>,
    /// The number of requests in the current window.
    requests: u64,
    /// The number of failed requests in the current window.
    failures: u64,
    /// The requests and failures of each previous window.
    windows: VecDeque<(u64, u64)>,
    /// The failure rate over the previous windows, in thousandths, rounded.
    error_rate: u64,
    /// The end of the ejection; absent if the instance is in service.
    ejected_until: Option<Duration>,
}

impl SermantDetector {
    /// Creates a detector without evidence.
    #[must_use]
    pub fn new(rule: SermantRemoval, instance_count: usize) -> Self {
        let window_end = rule.common.window;
        let instances = vec![Instance::default(); instance_count];
        Self { rule, window_end, instances, valid_until: None }
    }

    /// Returns the failure classes that count.
    #[must_use]
    pub fn failure_classes(&self) -> &FailureClasses {
        &self.rule.common.failures
    }

    pub(super) fn update_endpoints(&mut self, old_slots: &[Option<usize>]) {
        let existing_instance = |old_slot: &Option<usize>| {
            old_slot.and_then(|old_slot| self.instances.get(old_slot)).cloned()
        };
        self.instances =
            old_slots.iter().map(|slot| existing_instance(slot).unwrap_or_default()).collect();
        self.valid_until = None;
    }

    pub(super) fn endpoint_state(&self, slot: usize) -> EjectionState {
        match self.instances.get(slot).is_some_and(|instance| instance.ejected_until.is_some()) {
            true => EjectionState::Ejected,
            false => EjectionState::InService,
        }
    }

    /// Ends the windows and ejections whose time is over. Filtering has no effect between such events, so it runs only
    /// at the end of a window or an ejection, or after a change of the instances.
    pub(super) fn advance_time(&mut self, now: Duration, events: &mut Vec<EjectionEvent>) {
        if now < self.window_end && self.valid_until.is_some_and(|until| now < until) {
            return;
        }
        let all_instances: Vec<usize> = (0..self.instances.len()).collect();
        self.filter_instances(&all_instances, now, events);
        // An ejection is over when its end is strictly earlier than `now`, so the next filtering is one nanosecond
        // later.
        let next_nanosecond = |until: Duration| until.saturating_add(Duration::from_nanos(1));
        let ejection_ends = self.instances.iter().filter_map(|instance| instance.ejected_until);
        let expiry_times = ejection_ends.map(next_nanosecond);
        self.valid_until = expiry_times.chain([self.window_end]).min();
    }

    pub(super) fn record_result(
        &mut self,
        slot: usize,
        result: RequestResult,
        events: &mut Vec<EjectionEvent>,
    ) {
        self.end_windows(result.now, events);
        if let Some(instance) = self.instances.get_mut(slot) {
            instance.last_call = Some(result.now);
            instance.requests += 1;
            instance.failures += u64::from(result.failed);
        }
    }

    /// Returns the instances of a list that are in service, in their order; ejects and returns instances as needed.
    /// Sermant filters each time a client library reads its server list.
    pub fn filter_instances(
        &mut self,
        slots: &[usize],
        now: Duration,
        events: &mut Vec<EjectionEvent>,
    ) -> Vec<usize> {
        self.end_windows(now, events);
        let mut in_service = Vec::with_capacity(slots.len());
        for slot in slots {
            let Some(instance) = self.instances.get_mut(*slot) else { continue };
            match instance.ejected_until {
                Some(until) if now <= until => continue,
                Some(_) => {
                    instance.ejected_until = None;
                    events.push(EjectionEvent::Unejected { slot: *slot });
                }
                None => {}
            }
            in_service.push(*slot);
        }
        let (instance_count, ejected_count) =
            (signed_count(slots.len()), signed_count(slots.len() - in_service.len()));
        let rule = self.rule.rule;
        // The further ejections that the two limits permit, in millionths of an instance.
        let share_budget =
            instance_count * i64::from(rule.scale_up_limit_ppm) - ejected_count * MILLION;
        let count_budget =
            (instance_count - ejected_count - i64::from(rule.min_instances)) * MILLION;
        let mut budget = share_budget.min(count_budget);
        let ejection_time = self.rule.common.recovery;
        in_service.retain(|slot| {
            let Some(instance) = self.instances.get_mut(*slot) else { return false };
            let has_statistics = instance.last_call.is_some() && !instance.windows.is_empty();
            // The rate of the instance is in thousandths, that of the rule in millionths.
            let exceeds_error_rate = instance.error_rate * 1000 >= u64::from(rule.error_rate_ppm);
            if !has_statistics || !exceeds_error_rate || budget < MILLION {
                return true;
            }
            budget -= MILLION;
            instance.ejected_until = Some(now.saturating_add(ejection_time));
            events.push(EjectionEvent::Ejected {
                slot: *slot,
                cause: EjectionCause::FailureRate,
                pause: Some(ejection_time),
            });
            false
        });
        in_service
    }

    /// Ends all windows that are over by `now`.
    fn end_windows(&mut self, now: Duration, events: &mut Vec<EjectionEvent>) {
        if now < self.window_end {
            return;
        }
        let window = self.rule.common.window.max(Duration::from_millis(1));
        let ended_count = 1 + (now - self.window_end).as_nanos() / window.as_nanos();
        let ended_count = u32::try_from(ended_count).unwrap_or(u32::MAX);
        let first_end = self.window_end;
        let last_end = first_end.saturating_add(window.saturating_mul(ended_count - 1));
        for (slot, instance) in self.instances.iter_mut().enumerate() {
            let was_ejected = instance.ejected_until.is_some();
            instance.end_windows(first_end, last_end, ended_count, &self.rule);
            // The reset of an expired instance also ends its ejection.
            if was_ejected && instance.ejected_until.is_none() {
                events.push(EjectionEvent::Unejected { slot });
            }
        }
        self.window_end = last_end.saturating_add(window);
        self.valid_until = None;
    }
}

impl Instance {
    /// Ends `ended_count` windows; the first one ends at `first_end`, the last one at `last_end`.
    fn end_windows(
        &mut self,
        first_end: Duration,
        last_end: Duration,
        ended_count: u32,
        rule: &SermantRemoval,
    ) {
        let Some(last_call) = self.last_call else { return };
        let is_expired = |time: Duration| time.saturating_sub(last_call) >= rule.common.expire;
        if is_expired(first_end) || is_expired(last_end) {
            *self = Self::default();
            return;
        }
        let max_windows = rule.common.windows;
        // After all stored windows are replaced, further empty windows change nothing.
        for _ in 0..ended_count.min(max_windows.saturating_add(1)) {
            let counts = (std::mem::take(&mut self.requests), std::mem::take(&mut self.failures));
            self.windows.push_back(counts);
            while self.windows.len() > usize::try_from(max_windows).unwrap_or(usize::MAX) {
                self.windows.pop_front();
            }
        }
        let (mut requests, mut failures) = (0_u64, 0_u64);
        for (window_requests, window_failures) in &self.windows {
            requests += window_requests;
            failures += window_failures;
        }
        // Rounded half up to three decimals.
        self.error_rate = (failures * 2000 + requests).checked_div(requests * 2).unwrap_or(0);
    }
}

/// Converts a count for the computation of the ejection budget. A count above `i64::MAX` is replaced by a
/// smaller number, so that its product with [`MILLION`] does not overflow.
fn signed_count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX / MILLION / 2)
}

/// One instance in the unit of the ejection budget, which is a millionth of an instance.
const MILLION: i64 = 1_000_000;
