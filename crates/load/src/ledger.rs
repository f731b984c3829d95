//! The books of a run: what is reported in the end and what is shown meanwhile.

use std::time::Duration;

use crate::exchange::Response;
use crate::report::{ErrorKind, Report, TargetReport, is_success};

/// How a run is going. Counts begin again when the warm-up ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Since the start, warm-up included.
    pub elapsed: Duration,
    /// Whether the warm-up is over.
    pub measuring: bool,
    /// Responses and failures.
    pub requests: u64,
    /// Responses of a status from 200 to 299.
    pub successes: u64,
    /// Requests without a response.
    pub failures: u64,
}

/// What came of one request.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) target: usize,
    /// How long after it was due.
    pub(crate) latency: Duration,
    pub(crate) result: Result<Response, ErrorKind>,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// Whether it counts.
    pub(crate) measured: bool,
}

/// The books of a run.
#[derive(Debug)]
pub(crate) struct Ledger {
    targets: Vec<TargetReport>,
    counters: Counters,
}

impl Ledger {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self { targets: names.map(TargetReport::new).collect(), counters: Counters::default() }
    }

    /// Enters one request.
    pub(crate) fn record(&mut self, outcome: &Outcome) {
        if outcome.measured && !self.counters.measuring {
            self.counters = Counters { measuring: true, ..Counters::default() };
        }
        if outcome.measured == self.counters.measuring {
            self.count(outcome);
        }
        if !outcome.measured {
            return;
        }
        let Some(target) = self.targets.get_mut(outcome.target) else {
            return;
        };
        match outcome.result {
            Ok(response) => target.record_response(response.status, outcome.latency),
            Err(kind) => target.record_error(kind),
        }
        target.bytes_sent += outcome.bytes_sent;
        target.bytes_received += outcome.bytes_received;
    }

    /// How it is going, `elapsed` after the start.
    pub(crate) fn counters(&self, elapsed: Duration) -> Counters {
        Counters { elapsed, ..self.counters }
    }

    /// Closes the books.
    pub(crate) fn into_report(self, elapsed: Duration) -> Report {
        Report { targets: self.targets, elapsed }
    }

    fn count(&mut self, outcome: &Outcome) {
        self.counters.requests += 1;
        match outcome.result {
            Ok(response) => self.counters.successes += u64::from(is_success(response.status)),
            Err(_) => self.counters.failures += 1,
        }
    }
}
