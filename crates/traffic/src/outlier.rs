//! Outlier detection for one port, native or compatible with Sermant.

mod class;
mod native;
mod sermant;

use std::time::Duration;

use leno_model::{FailureClasses, OutlierAlgorithm};

pub use class::{EndpointResult, FailureEvidence, classify_check, classify_ending};
pub use native::NativeDetector;
pub use sermant::SermantDetector;

/// Outlier detection state of the endpoints of one port, in their order. Owned by one data thread, which
/// provides the time since any fixed moment.
#[derive(Debug)]
pub enum OutlierDetector {
    /// The native algorithm.
    Native(NativeDetector),
    /// Sermant's algorithm.
    Sermant(SermantDetector),
}

/// The ejection state of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EjectionState {
    /// It receives requests.
    InService,
    /// It is ejected.
    Ejected,
    /// It was ejected, and the next request is a probe.
    Probe,
}

/// A state change of an endpoint, for logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EjectionEvent {
    /// It was ejected.
    Ejected {
        /// The index of the endpoint.
        slot: usize,
        /// The cause.
        cause: EjectionCause,
        /// The duration; absent if it ends with successful health checks.
        pause: Option<Duration>,
    },
    /// It was returned to service.
    Unejected {
        /// The index of the endpoint.
        slot: usize,
    },
}

/// The cause of an ejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EjectionCause {
    /// Too high a failure rate.
    Rate,
    /// Too many consecutive failures.
    Consecutive,
    /// A failed probe.
    Probe,
    /// Failed health checks.
    Check,
}

impl EjectionCause {
    /// Returns the name for metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Consecutive => "consecutive",
            Self::Probe => "probe",
            Self::Check => "check",
        }
    }
}

impl OutlierDetector {
    /// Creates a detector without evidence.
    #[must_use]
    pub fn new(algorithm: &OutlierAlgorithm, endpoints: usize) -> Self {
        match algorithm {
            OutlierAlgorithm::Native(rule) => {
                Self::Native(NativeDetector::new(rule.clone(), endpoints))
            }
            OutlierAlgorithm::Sermant(rule) => {
                Self::Sermant(SermantDetector::new(rule.clone(), endpoints))
            }
        }
    }

    /// Updates the set of endpoints: each new index has its old one, if any.
    pub fn update_endpoints(&mut self, places: &[Option<usize>]) {
        match self {
            Self::Native(outliers) => outliers.update_endpoints(places),
            Self::Sermant(outliers) => outliers.update_endpoints(places),
        }
    }

    /// Advances the time: windows end, and ejections may expire. `draw`: a random number. Cheap if nothing is
    /// due.
    pub fn advance_time(&mut self, now: Duration, draw: u64, events: &mut Vec<EjectionEvent>) {
        match self {
            Self::Native(outliers) => outliers.advance_time(now, draw, events),
            Self::Sermant(outliers) => outliers.advance_time(now, events),
        }
    }

    /// Returns the state of an endpoint, as of the last [`Self::advance_time`].
    #[must_use]
    pub fn endpoint_state(&self, slot: usize) -> EjectionState {
        match self {
            Self::Native(outliers) => outliers.endpoint_state(slot),
            Self::Sermant(outliers) => outliers.endpoint_state(slot),
        }
    }

    /// True if an endpoint would be ejected, but the bounds prevent it. Always false for Sermant's algorithm.
    #[must_use]
    pub fn is_spared(&self, slot: usize) -> bool {
        match self {
            Self::Native(outliers) => outliers.is_spared(slot),
            Self::Sermant(_) => false,
        }
    }

    /// Records the start of a request to an endpoint. True if it is a probe: other requests wait for its
    /// result.
    #[must_use]
    pub fn start_request(&mut self, slot: usize) -> bool {
        match self {
            Self::Native(outliers) => outliers.start_request(slot),
            Self::Sermant(_) => false,
        }
    }

    /// Records the end of a request without evidence.
    pub fn release_request(&mut self, slot: usize, probe: bool) {
        match self {
            Self::Native(outliers) if probe => outliers.release_request(slot),
            Self::Native(_) | Self::Sermant(_) => {}
        }
    }

    /// Records the result of a request started by [`Self::start_request`].
    pub fn record_outcome(
        &mut self,
        slot: usize,
        seen: RequestResult,
        events: &mut Vec<EjectionEvent>,
    ) {
        match self {
            Self::Native(outliers) => outliers.record_outcome(slot, seen, events),
            Self::Sermant(outliers) => outliers.record_outcome(slot, seen, events),
        }
    }

    /// Records the result of a health check, if the policy has health checks.
    pub fn record_check(
        &mut self,
        slot: usize,
        heard: FailureEvidence,
        now: Duration,
        events: &mut Vec<EjectionEvent>,
    ) {
        match self {
            Self::Native(outliers) => outliers.record_check(slot, heard, now, events),
            Self::Sermant(_) => {}
        }
    }

    /// Returns the failure classes that count.
    #[must_use]
    pub fn failure_classes(&self) -> &FailureClasses {
        match self {
            Self::Native(outliers) => outliers.failure_classes(),
            Self::Sermant(outliers) => outliers.failure_classes(),
        }
    }
}

/// The result of a request, with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestResult {
    /// True if it failed in a class that counts.
    pub failed: bool,
    /// True if it was a probe.
    pub probe: bool,
    /// The time of the end.
    pub now: Duration,
    /// A random number.
    pub draw: u64,
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod vectors;
