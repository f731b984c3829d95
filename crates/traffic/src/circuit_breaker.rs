//! The circuit breaker of one upstream port: the per-thread state that opens and closes the circuit. The concurrency
//! limits of circuit breakers are counted by [`InProgressCounts`](crate::traffic_policy::InProgressCounts).

use std::time::Duration;

use leno_model::{RequestThreshold, TripConditions};

/// The circuit breaker of one upstream port. Times are durations since an arbitrary start, given by the caller.
#[derive(Debug)]
pub struct Circuit {
    rule: TripConditions,
    bucket_length: Duration,
    /// The end of the current bucket.
    bucket_end: Duration,
    /// The index of the current bucket.
    current_bucket: usize,
    /// The buckets of the sliding window.
    buckets: Box<[Bucket]>,
    /// The sum of all buckets.
    totals: Bucket,
    consecutive_failures: u32,
    state: CircuitState,
    /// The number of state changes. Requests that were admitted in an earlier epoch, before the last state change, are
    /// not counted.
    epoch: u32,
}

/// The numbers of requests by outcome, in one part of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bucket {
    /// All requests.
    requests: u32,
    /// The failed requests.
    failed: u32,
    /// The slow requests, failed or not.
    slow: u32,
}

/// The state of a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CircuitState {
    /// All requests are admitted.
    Closed,
    /// No request is admitted.
    Open {
        /// The time at which the circuit becomes half-open.
        until: Duration,
    },
    /// A limited number of requests, the probes, is admitted.
    HalfOpen {
        /// The number of successful probes.
        successes: u32,
        /// The number of probes in progress.
        in_progress: u32,
        /// The time at which new probes replace those in progress, which may be long-lived streams.
        until: Duration,
    },
}

/// The ticket of an admitted request. The caller passes it to [`Circuit::record_result`] or
/// [`Circuit::release_ticket`] when the request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitTicket {
    /// The epoch of the circuit at the admission.
    epoch: u32,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestOutcome {
    /// True if the request failed with a failure class that counts.
    pub failed: bool,
    /// The duration of the request.
    pub duration: Duration,
}

/// A state transition of a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// The circuit opened.
    Opened(Trigger),
    /// The circuit closed.
    Closed,
}

/// The reason why a circuit opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Too many failed requests in the window.
    FailureThreshold,
    /// Too many consecutive failures.
    ConsecutiveFailures,
    /// Too many slow requests.
    SlowRequests,
    /// A failed or slow probe.
    Probe,
}

impl Trigger {
    /// Returns the name for logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailureThreshold => "failed",
            Self::ConsecutiveFailures => "consecutive",
            Self::SlowRequests => "slow",
            Self::Probe => "probe",
        }
    }
}

impl Circuit {
    /// Creates a closed circuit.
    #[must_use]
    pub fn new(rule: TripConditions) -> Self {
        let buckets = rule.buckets.max(1);
        let bucket_length = rule.window / u32::from(buckets);
        Self {
            bucket_length,
            bucket_end: bucket_length,
            current_bucket: 0,
            buckets: vec![Bucket::default(); usize::from(buckets)].into(),
            totals: Bucket::default(),
            consecutive_failures: 0,
            state: CircuitState::Closed,
            epoch: 0,
            rule,
        }
    }

    /// Admits a request; `None` if the circuit rejects it.
    pub fn admit_request(&mut self, now: Duration) -> Option<CircuitTicket> {
        if let CircuitState::Open { until } | CircuitState::HalfOpen { until, .. } = self.state
            && until <= now
        {
            let until = now.saturating_add(self.rule.open_duration);
            self.change_state(CircuitState::HalfOpen { successes: 0, in_progress: 0, until });
        }
        // A circuit without probes would never close.
        let max_probes = self.rule.half_open_requests.max(1);
        match &mut self.state {
            CircuitState::Closed => {}
            CircuitState::Open { .. } => return None,
            CircuitState::HalfOpen { successes, in_progress, .. }
                if *successes + *in_progress < max_probes =>
            {
                *in_progress += 1;
            }
            CircuitState::HalfOpen { .. } => return None,
        }
        Some(CircuitTicket { epoch: self.epoch })
    }

    /// Records the outcome of an admitted request. Returns the transition that it caused, if any.
    pub fn record_result(
        &mut self,
        ticket: CircuitTicket,
        outcome: RequestOutcome,
        now: Duration,
    ) -> Option<Transition> {
        if ticket.epoch != self.epoch {
            // The state changed since the request was admitted.
            return None;
        }
        let is_slow =
            self.rule.slow_requests.is_some_and(|slow| outcome.duration >= slow.min_duration);
        match &mut self.state {
            CircuitState::Closed => {
                self.advance_window(now);
                self.count_request(outcome.failed, is_slow);
                let trigger = self.open_trigger()?;
                Some(self.open_circuit(trigger, now))
            }
            CircuitState::HalfOpen { .. } if outcome.failed || is_slow => {
                Some(self.open_circuit(Trigger::Probe, now))
            }
            CircuitState::HalfOpen { successes, in_progress, .. } => {
                *in_progress -= 1;
                *successes += 1;
                if *successes < self.rule.half_open_requests.max(1) {
                    return None;
                }
                self.change_state(CircuitState::Closed);
                self.buckets.fill(Bucket::default());
                self.totals = Bucket::default();
                self.consecutive_failures = 0;
                Some(Transition::Closed)
            }
            // No ticket is issued while the circuit is open.
            CircuitState::Open { .. } => None,
        }
    }

    /// Releases the ticket of a request that ends without an outcome, such as a cancelled request.
    pub fn release_ticket(&mut self, ticket: CircuitTicket) {
        if ticket.epoch == self.epoch
            && let CircuitState::HalfOpen { in_progress, .. } = &mut self.state
        {
            *in_progress -= 1;
        }
    }

    /// True if no request is admitted now.
    #[must_use]
    pub fn is_open(&self, now: Duration) -> bool {
        let max_probes = self.rule.half_open_requests.max(1);
        match self.state {
            CircuitState::Closed => false,
            CircuitState::Open { until } => now < until,
            CircuitState::HalfOpen { successes, in_progress, until } => {
                now < until && successes + in_progress >= max_probes
            }
        }
    }

    /// Returns the conditions under which the circuit opens and closes.
    #[must_use]
    pub const fn rule(&self) -> &TripConditions {
        &self.rule
    }

    /// Opens the circuit for [`TripConditions::open_duration`].
    fn open_circuit(&mut self, trigger: Trigger, now: Duration) -> Transition {
        self.change_state(CircuitState::Open {
            until: now.saturating_add(self.rule.open_duration),
        });
        Transition::Opened(trigger)
    }

    /// Changes the state and starts a new epoch.
    fn change_state(&mut self, state: CircuitState) {
        self.state = state;
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Removes expired buckets from the window.
    fn advance_window(&mut self, now: Duration) {
        if now < self.bucket_end {
            return;
        }
        let ended_count =
            1 + (now - self.bucket_end).as_nanos() / self.bucket_length.as_nanos().max(1);
        let expired_buckets =
            usize::try_from(ended_count).unwrap_or(usize::MAX).min(self.buckets.len());
        for _ in 0..expired_buckets {
            self.current_bucket = (self.current_bucket + 1) % self.buckets.len();
            if let Some(bucket) = self.buckets.get_mut(self.current_bucket) {
                let Bucket { requests, failed, slow } = std::mem::take(bucket);
                self.totals.requests = self.totals.requests.saturating_sub(requests);
                self.totals.failed = self.totals.failed.saturating_sub(failed);
                self.totals.slow = self.totals.slow.saturating_sub(slow);
            }
        }
        let length_multiple = u32::try_from(ended_count).unwrap_or(u32::MAX);
        self.bucket_end =
            self.bucket_end.saturating_add(self.bucket_length.saturating_mul(length_multiple));
    }

    /// Adds a request to the current bucket and the totals.
    fn count_request(&mut self, failed: bool, is_slow: bool) {
        self.consecutive_failures =
            if failed { self.consecutive_failures.saturating_add(1) } else { 0 };
        let Some(bucket) = self.buckets.get_mut(self.current_bucket) else { return };
        for counts in [bucket, &mut self.totals] {
            counts.requests = counts.requests.saturating_add(1);
            counts.failed = counts.failed.saturating_add(u32::from(failed));
            counts.slow = counts.slow.saturating_add(u32::from(is_slow));
        }
    }

    /// Returns the reason for which the circuit must open; `None` if no condition is met.
    fn open_trigger(&self) -> Option<Trigger> {
        let Bucket { requests, failed, slow } = self.totals;
        let has_consecutive_failures = self
            .rule
            .consecutive_failures
            .is_some_and(|min_failures| self.consecutive_failures >= min_failures);
        let has_enough_requests = requests >= self.rule.min_requests;
        let has_too_many_slow_requests = self
            .rule
            .slow_requests
            .is_some_and(|slow_rule| reaches_threshold(slow_rule.threshold, slow, requests));
        if has_consecutive_failures {
            Some(Trigger::ConsecutiveFailures)
        } else if has_enough_requests
            && reaches_threshold(self.rule.failure_threshold, failed, requests)
        {
            Some(Trigger::FailureThreshold)
        } else if has_enough_requests && has_too_many_slow_requests {
            Some(Trigger::SlowRequests)
        } else {
            None
        }
    }
}

/// True if `count` of `requests` requests reach the threshold. A count of 0 never reaches it.
fn reaches_threshold(threshold: RequestThreshold, count: u32, requests: u32) -> bool {
    let reaches_share = threshold.share_ppm.is_some_and(|share_ppm| {
        u64::from(count) * 1_000_000 >= u64::from(requests) * u64::from(share_ppm)
    });
    count > 0 && (reaches_share || threshold.count.is_some_and(|min_count| count >= min_count))
}

#[cfg(test)]
mod tests;
