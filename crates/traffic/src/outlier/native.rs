//! Native outlier detection: sliding windows, worst endpoint first, ejection times that double, probes and
//! health checks.

use std::time::Duration;

use leno_model::{FailureClasses, OutlierDetection};

use super::{EjectionCause, EjectionEvent, EjectionState, FailureEvidence, RequestResult};

/// Outlier detection state of one port.
///
/// Failure rates are evaluated at the end of each bucket, over all endpoints at once and the worst first;
/// consecutive failures are evaluated at once. Ejected and probed endpoints count against both bounds. Health
/// checks are separate evidence: an endpoint that they ejected is returned by them, and one ejected for its
/// requests is returned by a request.
#[derive(Debug)]
pub struct NativeDetector {
    rule: OutlierDetection,
    bucket: Duration,
    bucket_ends: Duration,
    /// The current bucket in each member's ring.
    current: usize,
    members: Vec<DetectedEndpoint>,
    /// The earliest end of an ejection.
    next_return: Option<Duration>,
}

/// Recent results and ejections of one endpoint.
#[derive(Debug, Clone)]
struct DetectedEndpoint {
    buckets: Box<[Bucket]>,
    total: Bucket,
    consecutive_failures: u32,
    state: State,
    /// The number of successive ejections: the exponent of the ejection time.
    ejections: u32,
    /// The time of the last return to service.
    returned_at: Duration,
    /// It would be ejected for its requests, but for the bounds.
    is_spared: bool,
    checks: HealthCheckState,
}

/// The health check state of an endpoint.
#[derive(Debug, Clone, Copy, Default)]
struct HealthCheckState {
    /// The last result, and the number of consecutive equal results.
    failed: bool,
    consecutive_failures: u32,
    /// It is ejected by health checks.
    is_unhealthy: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bucket {
    requests: u32,
    failures: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InService,
    Ejected {
        until: Duration,
    },
    /// Probed: the number of successes, and true if a probe is in progress.
    Probed {
        succeeded: u32,
        under_way: bool,
    },
}

impl NativeDetector {
    /// Creates a detector without evidence.
    #[must_use]
    pub fn new(rule: OutlierDetection, endpoints: usize) -> Self {
        let bucket = rule.window / u32::from(rule.buckets.max(1));
        let member = DetectedEndpoint::new(rule.buckets);
        let members = vec![member; endpoints];
        Self { rule, bucket, bucket_ends: bucket, current: 0, members, next_return: None }
    }

    /// Returns the failure classes that count.
    #[must_use]
    pub fn failure_classes(&self) -> &FailureClasses {
        &self.rule.failures
    }

    pub(super) fn update_endpoints(&mut self, places: &[Option<usize>]) {
        let fresh = DetectedEndpoint::new(self.rule.buckets);
        let old = |place: &Option<usize>| place.and_then(|old| self.members.get(old)).cloned();
        self.members = places.iter().map(|place| old(place).unwrap_or(fresh.clone())).collect();
        for member in &mut self.members {
            // The pending probe may have used the old index, and its end would be lost.
            if let State::Probed { under_way, .. } = &mut member.state {
                *under_way = false;
            }
        }
        self.keep_bounds();
    }

    pub(super) fn endpoint_state(&self, slot: usize) -> EjectionState {
        let Some(member) = self.members.get(slot) else { return EjectionState::InService };
        match member.state {
            _ if member.checks.is_unhealthy => EjectionState::Ejected,
            State::InService => EjectionState::InService,
            State::Probed { under_way: false, .. } => EjectionState::Probe,
            State::Ejected { .. } | State::Probed { under_way: true, .. } => EjectionState::Ejected,
        }
    }

    pub(super) fn is_spared(&self, slot: usize) -> bool {
        let Some(member) = self.members.get(slot) else { return false };
        let HealthCheckState { failed, consecutive_failures, .. } = member.checks;
        let is_ill =
            self.rule.health_check.as_ref().is_some_and(|it| consecutive_failures >= it.failures);
        member.is_in() && (member.is_spared || failed && is_ill)
    }

    pub(super) fn advance_time(
        &mut self,
        now: Duration,
        draw: u64,
        events: &mut Vec<EjectionEvent>,
    ) {
        if now >= self.bucket_ends {
            self.end_buckets(now, draw, events);
        }
        if self.next_return.is_some_and(|next| next <= now) {
            self.end_ejections(now);
        }
    }

    pub(super) fn start_request(&mut self, slot: usize) -> bool {
        match self.members.get_mut(slot).map(|member| &mut member.state) {
            Some(State::Probed { under_way, .. }) if !*under_way => {
                *under_way = true;
                true
            }
            _ => false,
        }
    }

    pub(super) fn release_request(&mut self, slot: usize) {
        if let Some(State::Probed { under_way, .. }) =
            self.members.get_mut(slot).map(|member| &mut member.state)
        {
            *under_way = false;
        }
    }

    pub(super) fn record_outcome(
        &mut self,
        slot: usize,
        seen: RequestResult,
        events: &mut Vec<EjectionEvent>,
    ) {
        let current = self.current;
        let Some(member) = self.members.get_mut(slot) else { return };
        match &mut member.state {
            State::InService if !member.checks.is_unhealthy => {
                member.count_request(current, seen.failed);
                if !seen.failed || !member.is_guilty_by_count(&self.rule) {
                    return;
                }
                member.is_spared = true;
                if self.has_room() {
                    self.eject(slot, EjectionCause::Consecutive, seen.now, seen.draw, events);
                }
            }
            // Requests in progress at the time of the ejection are old evidence.
            State::InService | State::Ejected { .. } => {}
            State::Probed { under_way, .. } if member.checks.is_unhealthy => {
                *under_way &= !seen.probe
            }
            State::Probed { .. } if !seen.probe => {}
            State::Probed { .. } if seen.failed => {
                self.eject(slot, EjectionCause::Probe, seen.now, seen.draw, events);
            }
            State::Probed { succeeded, under_way } => {
                *succeeded += 1;
                *under_way = false;
                if *succeeded >= self.rule.probe_requests {
                    member.state = State::InService;
                    member.returned_at = seen.now;
                    events.push(EjectionEvent::Unejected { slot });
                }
            }
        }
    }

    /// Records the result of a health check. The bounds apply to these ejections too: an endpoint that cannot
    /// be ejected for lack of room is reconsidered at its next check. An ejected endpoint with inconclusive
    /// checks is returned to service, where its requests decide.
    pub(super) fn record_check(
        &mut self,
        slot: usize,
        heard: FailureEvidence,
        now: Duration,
        events: &mut Vec<EjectionEvent>,
    ) {
        let Some(rule) = &self.rule.health_check else { return };
        let failed = heard == FailureEvidence::Yes;
        let enough = if failed { rule.failures } else { rule.successes };
        let has_room = self.has_room();
        let Some(member) = self.members.get_mut(slot) else { return };
        let is_in = member.state == State::InService;
        let checks = &mut member.checks;
        if heard == FailureEvidence::Unknown && !checks.is_unhealthy {
            return;
        }
        checks.consecutive_failures =
            if checks.failed == failed { checks.consecutive_failures.saturating_add(1) } else { 1 };
        checks.failed = failed;
        if checks.consecutive_failures < enough || checks.is_unhealthy == failed {
            return;
        }
        match failed {
            true if is_in && !has_room => return,
            true => {
                member.clear();
                events.push(EjectionEvent::Ejected {
                    slot,
                    cause: EjectionCause::Check,
                    pause: None,
                });
            }
            false if is_in => {
                member.returned_at = now;
                events.push(EjectionEvent::Unejected { slot });
            }
            // It is also ejected for its requests.
            false => {}
        }
        member.checks.is_unhealthy = failed;
    }

    /// Ends one or more buckets: evaluates the counts up to the end of the first one.
    fn end_buckets(&mut self, now: Duration, draw: u64, events: &mut Vec<EjectionEvent>) {
        self.eject_worst(now, draw, events);
        let ended = 1 + (now - self.bucket_ends).as_nanos() / self.bucket.as_nanos().max(1);
        let buckets = usize::from(self.rule.buckets.max(1));
        let ended_buckets = usize::try_from(ended).unwrap_or(usize::MAX);
        let rule = &self.rule;
        for member in &mut self.members {
            // It receives no requests that could clear it: it is tried again when its window is over.
            member.is_spared = ended_buckets <= buckets
                && (member.is_guilty_by_rate(rule) || member.is_guilty_by_count(rule));
        }
        for _ in 0..ended_buckets.min(buckets) {
            self.current = (self.current + 1) % buckets;
            for member in &mut self.members {
                member.clear_step(self.current);
            }
        }
        let ended = u32::try_from(ended).unwrap_or(u32::MAX);
        self.bucket_ends = self.bucket_ends.saturating_add(self.bucket.saturating_mul(ended));
    }

    /// Ejects endpoints with too high a failure rate, the worst first, within the bounds.
    fn eject_worst(&mut self, now: Duration, draw: u64, events: &mut Vec<EjectionEvent>) {
        let mut draw = draw;
        while self.has_room() {
            let members = self.members.iter().enumerate();
            let guilty = members.filter(|(_, member)| member.is_guilty_by_rate(&self.rule));
            // Of equals the first.
            let worst = guilty.rev().max_by(|(_, a), (_, b)| a.total.compare_rates(b.total));
            let Some(worst) = worst.map(|(slot, _)| slot) else { return };
            self.eject(worst, EjectionCause::Rate, now, draw, events);
            draw = draw.rotate_left(21).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    /// True if one more endpoint may be ejected.
    fn has_room(&self) -> bool {
        let (out, most) = self.out_and_most();
        out < most
    }

    /// Returns the number of ejected or probed endpoints, and its limit.
    fn out_and_most(&self) -> (usize, usize) {
        let all = self.members.len();
        let out = self.members.iter().filter(|member| !member.is_in()).count();
        let most = all * usize::from(self.rule.max_ejection_percent.min(100)) / 100;
        let keep = usize::try_from(self.rule.min_healthy).unwrap_or(usize::MAX);
        (out, most.min(all.saturating_sub(keep)))
    }

    /// After endpoints were deleted, returns as many of those ejected by health checks as the bounds require.
    /// The next check may eject them again.
    fn keep_bounds(&mut self) {
        loop {
            let (out, most) = self.out_and_most();
            let mut ill = self.members.iter_mut().filter(|member| member.checks.is_unhealthy);
            match ill.next() {
                Some(member) if out > most => member.checks.is_unhealthy = false,
                _ => return,
            }
        }
    }

    fn eject(
        &mut self,
        slot: usize,
        cause: EjectionCause,
        now: Duration,
        draw: u64,
        events: &mut Vec<EjectionEvent>,
    ) {
        let rule = &self.rule;
        let Some(member) = self.members.get_mut(slot) else { return };
        if member.state == State::InService {
            // Time without ejection reduces the ejection time by one doubling per base time.
            let well = now.saturating_sub(member.returned_at).as_nanos();
            let forgiven = well / rule.ejection_time.base.as_nanos().max(1);
            let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
            member.ejections = member.ejections.saturating_sub(forgiven);
        }
        let factor = 1_u32.checked_shl(member.ejections).unwrap_or(u32::MAX);
        let whole = rule.ejection_time.base.saturating_mul(factor).min(rule.ejection_time.max);
        let jitter = whole * u32::from(rule.ejection_time.jitter_percent.min(100)) / 100;
        let chance = (u128::from(draw) * jitter.as_nanos()) >> 64;
        let pause = whole - Duration::from_nanos(u64::try_from(chance).unwrap_or(0));
        member.ejections = member.ejections.saturating_add(1).min(EJECTIONS_MAX);
        member.clear();
        let until = now.saturating_add(pause);
        member.state = State::Ejected { until };
        self.next_return = Some(self.next_return.map_or(until, |next| next.min(until)));
        events.push(EjectionEvent::Ejected { slot, cause, pause: Some(pause) });
    }

    fn end_ejections(&mut self, now: Duration) {
        let mut next = None;
        for member in &mut self.members {
            match member.state {
                State::Ejected { until } if until <= now => {
                    member.state = State::Probed { succeeded: 0, under_way: false };
                }
                State::Ejected { until } => {
                    next = Some(next.map_or(until, |next: Duration| next.min(until)));
                }
                State::InService | State::Probed { .. } => {}
            }
        }
        self.next_return = next;
    }
}

impl DetectedEndpoint {
    fn new(buckets: u8) -> Self {
        Self {
            buckets: vec![Bucket::default(); usize::from(buckets.max(1))].into(),
            total: Bucket::default(),
            consecutive_failures: 0,
            state: State::InService,
            ejections: 0,
            returned_at: Duration::ZERO,
            is_spared: false,
            checks: HealthCheckState::default(),
        }
    }

    /// True if it is neither ejected nor unhealthy.
    fn is_in(&self) -> bool {
        self.state == State::InService && !self.checks.is_unhealthy
    }

    /// True if its failure rate is too high.
    fn is_guilty_by_rate(&self, rule: &OutlierDetection) -> bool {
        let Some(rate) = rule.failure_rate else { return false };
        let Bucket { requests, failures } = self.total;
        self.is_in()
            && requests >= rate.requests_min.max(1)
            && u64::from(failures) * 100 >= u64::from(requests) * u64::from(rate.percent)
    }

    /// True if it has too many consecutive failures, the last one within the window.
    fn is_guilty_by_count(&self, rule: &OutlierDetection) -> bool {
        let limit = rule.consecutive_failures.unwrap_or(u32::MAX);
        self.is_in() && self.consecutive_failures >= limit && self.total.requests > 0
    }

    fn count_request(&mut self, current: usize, failed: bool) {
        self.consecutive_failures =
            if failed { self.consecutive_failures.saturating_add(1) } else { 0 };
        if let Some(bucket) = self.buckets.get_mut(current) {
            for counted in [bucket, &mut self.total] {
                counted.requests = counted.requests.saturating_add(1);
                counted.failures = counted.failures.saturating_add(u32::from(failed));
            }
        }
    }

    /// Clears a bucket before its reuse.
    fn clear_step(&mut self, index: usize) {
        if let Some(bucket) = self.buckets.get_mut(index) {
            let Bucket { requests, failures } = std::mem::take(bucket);
            self.total.requests = self.total.requests.saturating_sub(requests);
            self.total.failures = self.total.failures.saturating_sub(failures);
        }
    }

    /// Clears the evidence of an ejection, so that it does not cause another.
    fn clear(&mut self) {
        self.buckets.fill(Bucket::default());
        self.total = Bucket::default();
        self.consecutive_failures = 0;
        self.is_spared = false;
    }
}

impl Bucket {
    /// Compares failure rates, then failure counts.
    fn compare_rates(self, other: Self) -> std::cmp::Ordering {
        let mine = u64::from(self.failures) * u64::from(other.requests);
        let its = u64::from(other.failures) * u64::from(self.requests);
        mine.cmp(&its).then(self.failures.cmp(&other.failures))
    }
}

/// More doublings than any ejection time needs.
const EJECTIONS_MAX: u32 = 31;

#[cfg(test)]
mod tests;
