//! Outlier detection with the exact behavior of Sermant's service-removal, for migrations.
//!
//! Its differences from the native algorithm are intended: it ejects the first instance in the list, not the
//! worst; one failed call in a quiet window suffices; the ejection time never grows; there are no probes.

use std::collections::VecDeque;
use std::time::Duration;

use leno_model::{FailureClasses, SermantRemoval};

use super::{EjectionCause, EjectionEvent, EjectionState, RequestResult};

/// Outlier detection state of the instances of one service, in their order.
#[derive(Debug)]
pub struct SermantDetector {
    rule: SermantRemoval,
    window_ends: Duration,
    instances: Vec<Instance>,
    /// The time until which the filtered list is valid; absent if it must be filtered at once.
    settled_until: Option<Duration>,
}

/// The state of one instance, as in Sermant. A forgotten instance is as new.
#[derive(Debug, Clone, Default)]
struct Instance {
    /// The time of the last call; absent if unknown.
    called: Option<Duration>,
    requests: u64,
    failures: u64,
    windows: VecDeque<(u64, u64)>,
    /// In thousandths, rounded.
    error_rate: u64,
    ejected_until: Option<Duration>,
}

impl SermantDetector {
    /// Creates a detector without evidence.
    #[must_use]
    pub fn new(rule: SermantRemoval, instances: usize) -> Self {
        let window_ends = rule.common.window;
        let instances = vec![Instance::default(); instances];
        Self { rule, window_ends, instances, settled_until: None }
    }

    /// Returns the failure classes that count.
    #[must_use]
    pub fn failure_classes(&self) -> &FailureClasses {
        &self.rule.common.failures
    }

    pub(super) fn update_endpoints(&mut self, places: &[Option<usize>]) {
        let old = |place: &Option<usize>| place.and_then(|old| self.instances.get(old)).cloned();
        self.instances = places.iter().map(|place| old(place).unwrap_or_default()).collect();
        self.settled_until = None;
    }

    pub(super) fn endpoint_state(&self, slot: usize) -> EjectionState {
        match self.instances.get(slot).is_some_and(|instance| instance.ejected_until.is_some()) {
            true => EjectionState::Ejected,
            false => EjectionState::InService,
        }
    }

    /// Filtering is idempotent without new events, so it runs only at the end of a window or an ejection, or
    /// after a change of the instances.
    pub(super) fn advance_time(&mut self, now: Duration, events: &mut Vec<EjectionEvent>) {
        if now < self.window_ends && self.settled_until.is_some_and(|until| now < until) {
            return;
        }
        let all: Vec<usize> = (0..self.instances.len()).collect();
        self.filter_instances(&all, now, events);
        // A timestamp has passed if it is strictly earlier than now.
        let tick = Duration::from_nanos(1);
        let stamps = self.instances.iter().filter_map(|instance| instance.ejected_until);
        let stamps = stamps.map(|stamp| stamp.saturating_add(tick));
        self.settled_until = stamps.chain([self.window_ends]).min();
    }

    pub(super) fn record_outcome(
        &mut self,
        slot: usize,
        seen: RequestResult,
        events: &mut Vec<EjectionEvent>,
    ) {
        self.end_windows(seen.now, events);
        if let Some(instance) = self.instances.get_mut(slot) {
            instance.called = Some(seen.now);
            instance.requests += 1;
            instance.failures += u64::from(seen.failed);
        }
    }

    /// Filters a list of instances, keeping its order: Sermant does this each time a client library reads its
    /// server list.
    pub fn filter_instances(
        &mut self,
        list: &[usize],
        now: Duration,
        events: &mut Vec<EjectionEvent>,
    ) -> Vec<usize> {
        self.end_windows(now, events);
        let mut left = Vec::with_capacity(list.len());
        for slot in list {
            let Some(instance) = self.instances.get_mut(*slot) else { continue };
            match instance.ejected_until {
                Some(until) if now <= until => continue,
                Some(_) => {
                    instance.ejected_until = None;
                    events.push(EjectionEvent::Unejected { slot: *slot });
                }
                None => {}
            }
            left.push(*slot);
        }
        let (all, gone) = (signed_count(list.len()), signed_count(list.len() - left.len()));
        let rule = self.rule.rule;
        let by_share = all * i64::from(rule.scale_up_limit_ppm) - gone * MILLION;
        let by_number = (all - gone - i64::from(rule.min_instances)) * MILLION;
        let mut budget = by_share.min(by_number);
        let pause = self.rule.common.recovery;
        left.retain(|slot| {
            let Some(instance) = self.instances.get_mut(*slot) else { return false };
            let known = instance.called.is_some() && !instance.windows.is_empty();
            let guilty = instance.error_rate * 1000 >= u64::from(rule.error_rate_ppm);
            if !known || !guilty || budget < MILLION {
                return true;
            }
            budget -= MILLION;
            instance.ejected_until = Some(now.saturating_add(pause));
            events.push(EjectionEvent::Ejected {
                slot: *slot,
                cause: EjectionCause::Rate,
                pause: Some(pause),
            });
            false
        });
        left
    }

    /// Ends the windows until now.
    fn end_windows(&mut self, now: Duration, events: &mut Vec<EjectionEvent>) {
        if now < self.window_ends {
            return;
        }
        let window = self.rule.common.window.max(Duration::from_millis(1));
        let ended = 1 + (now - self.window_ends).as_nanos() / window.as_nanos();
        let ended = u32::try_from(ended).unwrap_or(u32::MAX);
        let first = self.window_ends;
        let last = first.saturating_add(window.saturating_mul(ended - 1));
        for (slot, instance) in self.instances.iter_mut().enumerate() {
            let was_out = instance.ejected_until.is_some();
            instance.end_windows(first, last, ended, &self.rule);
            // The ejection of a forgotten instance ends too.
            if was_out && instance.ejected_until.is_none() {
                events.push(EjectionEvent::Unejected { slot });
            }
        }
        self.window_ends = last.saturating_add(window);
        self.settled_until = None;
    }
}

impl Instance {
    /// Ends this number of windows, the first and the last at these times.
    fn end_windows(&mut self, first: Duration, last: Duration, ended: u32, rule: &SermantRemoval) {
        let Some(called) = self.called else { return };
        let expired = |at: Duration| at.saturating_sub(called) >= rule.common.expire;
        if expired(first) || expired(last) {
            *self = Self::default();
            return;
        }
        let kept = rule.common.windows;
        // Beyond the number of stored windows, further empty ones change nothing.
        for _ in 0..ended.min(kept.saturating_add(1)) {
            let counted = (std::mem::take(&mut self.requests), std::mem::take(&mut self.failures));
            self.windows.push_back(counted);
            while self.windows.len() > usize::try_from(kept).unwrap_or(usize::MAX) {
                self.windows.pop_front();
            }
        }
        let sum = |sum: (u64, u64), window: &(u64, u64)| (sum.0 + window.0, sum.1 + window.1);
        let (requests, failures) = self.windows.iter().fold((0, 0), sum);
        // Rounded half up to three decimals.
        self.error_rate = (failures * 2000 + requests).checked_div(requests * 2).unwrap_or(0);
    }
}

fn signed_count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX / MILLION / 2)
}

const MILLION: i64 = 1_000_000;
