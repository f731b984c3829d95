//! Per-thread circuit breaker state of one upstream port.

use std::time::Duration;

use leno_model::{FailureThreshold, TripConditions};

/// A circuit. The owner provides the time, since any fixed moment.
#[derive(Debug)]
pub struct Circuit {
    rule: TripConditions,
    bucket: Duration,
    bucket_ends: Duration,
    /// The current bucket of the window.
    current: usize,
    buckets: Box<[Bucket]>,
    total: Bucket,
    consecutive_failures: u32,
    state: State,
    /// The number of transitions. Requests that started in an earlier epoch are not counted.
    epoch: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bucket {
    requests: u32,
    failed: u32,
    slow: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        until: Duration,
    },
    /// Probes are allowed.
    HalfOpen {
        succeeded: u32,
        under_way: u32,
        /// The deadline for probes, which may be long-lived streams.
        until: Duration,
    },
}

/// An admitted request. Returned when the request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitTicket {
    epoch: u32,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestOutcome {
    /// True if the failure counts.
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

/// The reason for which a circuit opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Too many failed requests in the window.
    Failed,
    /// Too many consecutive failures.
    Consecutive,
    /// Too many slow requests.
    Slow,
    /// A failed or slow probe.
    Probe,
}

impl Trigger {
    /// Returns the name for logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Consecutive => "consecutive",
            Self::Slow => "slow",
            Self::Probe => "probe",
        }
    }
}

impl Circuit {
    /// Creates a closed circuit.
    #[must_use]
    pub fn new(rule: TripConditions) -> Self {
        let buckets = rule.buckets.max(1);
        let bucket = rule.window / u32::from(buckets);
        Self {
            bucket,
            bucket_ends: bucket,
            current: 0,
            buckets: vec![Bucket::default(); usize::from(buckets)].into(),
            total: Bucket::default(),
            consecutive_failures: 0,
            state: State::Closed,
            epoch: 0,
            rule,
        }
    }

    /// Admits a request; `None` if the circuit rejects it.
    pub fn admit_request(&mut self, now: Duration) -> Option<CircuitTicket> {
        if let State::Open { until } | State::HalfOpen { until, .. } = self.state
            && until <= now
        {
            let until = now.saturating_add(self.rule.open_duration);
            self.change_state(State::HalfOpen { succeeded: 0, under_way: 0, until });
        }
        let probes = self.rule.half_open_requests.max(1);
        match &mut self.state {
            State::Closed => {}
            State::Open { .. } => return None,
            State::HalfOpen { succeeded, under_way, .. } if *succeeded + *under_way < probes => {
                *under_way += 1;
            }
            State::HalfOpen { .. } => return None,
        }
        Some(CircuitTicket { epoch: self.epoch })
    }

    /// Records the end of an admitted request.
    pub fn record_result(
        &mut self,
        ticket: CircuitTicket,
        shown: RequestOutcome,
        now: Duration,
    ) -> Option<Transition> {
        if ticket.epoch != self.epoch {
            return None;
        }
        let slow = self.rule.slow.is_some_and(|slow| shown.duration >= slow.threshold);
        match &mut self.state {
            State::Closed => {
                self.advance_window(now);
                self.count_request(shown.failed, slow);
                let trigger = self.open_trigger()?;
                Some(self.open_circuit(trigger, now))
            }
            State::HalfOpen { .. } if shown.failed || slow => {
                Some(self.open_circuit(Trigger::Probe, now))
            }
            State::HalfOpen { succeeded, under_way, .. } => {
                *under_way -= 1;
                *succeeded += 1;
                if *succeeded < self.rule.half_open_requests.max(1) {
                    return None;
                }
                self.change_state(State::Closed);
                self.buckets.fill(Bucket::default());
                self.total = Bucket::default();
                self.consecutive_failures = 0;
                Some(Transition::Closed)
            }
            // An epoch in which the circuit is open has no tickets.
            State::Open { .. } => None,
        }
    }

    /// Returns a ticket without an outcome.
    pub fn release_ticket(&mut self, ticket: CircuitTicket) {
        if ticket.epoch == self.epoch
            && let State::HalfOpen { under_way, .. } = &mut self.state
        {
            *under_way -= 1;
        }
    }

    /// True if no request is admitted now.
    #[must_use]
    pub fn is_open(&self, now: Duration) -> bool {
        let probes = self.rule.half_open_requests.max(1);
        match self.state {
            State::Closed => false,
            State::Open { until } => now < until,
            State::HalfOpen { succeeded, under_way, until } => {
                now < until && succeeded + under_way >= probes
            }
        }
    }

    /// Returns the rule.
    #[must_use]
    pub const fn rule(&self) -> &TripConditions {
        &self.rule
    }

    fn open_circuit(&mut self, trigger: Trigger, now: Duration) -> Transition {
        self.change_state(State::Open { until: now.saturating_add(self.rule.open_duration) });
        Transition::Opened(trigger)
    }

    fn change_state(&mut self, state: State) {
        self.state = state;
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Removes expired buckets from the window.
    fn advance_window(&mut self, now: Duration) {
        if now < self.bucket_ends {
            return;
        }
        let ended = 1 + (now - self.bucket_ends).as_nanos() / self.bucket.as_nanos().max(1);
        let turns = usize::try_from(ended).unwrap_or(usize::MAX).min(self.buckets.len());
        for _ in 0..turns {
            self.current = (self.current + 1) % self.buckets.len();
            if let Some(bucket) = self.buckets.get_mut(self.current) {
                let Bucket { requests, failed, slow } = std::mem::take(bucket);
                self.total.requests = self.total.requests.saturating_sub(requests);
                self.total.failed = self.total.failed.saturating_sub(failed);
                self.total.slow = self.total.slow.saturating_sub(slow);
            }
        }
        let ended = u32::try_from(ended).unwrap_or(u32::MAX);
        self.bucket_ends = self.bucket_ends.saturating_add(self.bucket.saturating_mul(ended));
    }

    fn count_request(&mut self, failed: bool, slow: bool) {
        self.consecutive_failures =
            if failed { self.consecutive_failures.saturating_add(1) } else { 0 };
        let Some(bucket) = self.buckets.get_mut(self.current) else { return };
        for counted in [bucket, &mut self.total] {
            counted.requests = counted.requests.saturating_add(1);
            counted.failed = counted.failed.saturating_add(u32::from(failed));
            counted.slow = counted.slow.saturating_add(u32::from(slow));
        }
    }

    /// Returns the reason to open now, if any.
    fn open_trigger(&self) -> Option<Trigger> {
        let Bucket { requests, failed, slow } = self.total;
        let row =
            self.rule.consecutive_failures.is_some_and(|many| self.consecutive_failures >= many);
        let enough = requests >= self.rule.requests_min;
        let too_slow =
            self.rule.slow.is_some_and(|rule| exceeds_limit(rule.too_many, slow, requests));
        if row {
            Some(Trigger::Consecutive)
        } else if enough && exceeds_limit(self.rule.failed, failed, requests) {
            Some(Trigger::Failed)
        } else if enough && too_slow {
            Some(Trigger::Slow)
        } else {
            None
        }
    }
}

/// True if the counted requests exceed the limit.
fn exceeds_limit(limit: FailureThreshold, counted: u32, requests: u32) -> bool {
    let share = limit
        .share_ppm
        .is_some_and(|ppm| u64::from(counted) * 1_000_000 >= u64::from(requests) * u64::from(ppm));
    counted > 0 && (share || limit.number.is_some_and(|number| counted >= number))
}

#[cfg(test)]
mod tests;
