//! Outlier detection: ejects the failing endpoints of one port, with the native algorithm or with Sermant's.

mod class;
mod native;
mod sermant;

use std::time::Duration;

use leno_model::{FailureClasses, OutlierAlgorithm};

pub use class::{EndpointResult, FailureEvidence, classify_check, classify_result};
pub use native::NativeDetector;
pub use sermant::SermantDetector;

/// The outlier detection state of the endpoints of one port. Each data thread has its own detector. An endpoint is
/// identified by its slot: its index in the list of endpoints of the last [`Self::update_endpoints`]. Times are
/// durations since an arbitrary start, given by the caller.
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
    /// The endpoint receives requests.
    InService,
    /// The endpoint is ejected.
    Ejected,
    /// The endpoint was ejected, and its next request is a probe.
    Probe,
}

/// A state change of an endpoint, for logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EjectionEvent {
    /// The endpoint was ejected.
    Ejected {
        /// The slot of the endpoint.
        slot: usize,
        /// The cause.
        cause: EjectionCause,
        /// The duration of the ejection; absent if it ends with successful health checks.
        pause: Option<Duration>,
    },
    /// The endpoint was returned to service.
    Unejected {
        /// The slot of the endpoint.
        slot: usize,
    },
}

/// The cause of an ejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EjectionCause {
    /// The failure rate is too high.
    FailureRate,
    /// Too many consecutive failures.
    ConsecutiveFailures,
    /// A failed probe.
    Probe,
    /// Failed health checks.
    HealthCheck,
}

impl EjectionCause {
    /// Returns the name for metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailureRate => "rate",
            Self::ConsecutiveFailures => "consecutive",
            Self::Probe => "probe",
            Self::HealthCheck => "check",
        }
    }
}

impl OutlierDetector {
    /// Creates a detector for this number of endpoints, without recorded results.
    #[must_use]
    pub fn new(algorithm: &OutlierAlgorithm, endpoint_count: usize) -> Self {
        match algorithm {
            OutlierAlgorithm::Native(rule) => {
                Self::Native(NativeDetector::new(rule.clone(), endpoint_count))
            }
            OutlierAlgorithm::Sermant(rule) => {
                Self::Sermant(SermantDetector::new(rule.clone(), endpoint_count))
            }
        }
    }

    /// Replaces the list of endpoints. `old_slots` contains the previous slot of each endpoint in the new list; `None`
    /// for a new endpoint.
    pub fn update_endpoints(&mut self, old_slots: &[Option<usize>]) {
        match self {
            Self::Native(detector) => detector.update_endpoints(old_slots),
            Self::Sermant(detector) => detector.update_endpoints(old_slots),
        }
    }

    /// Ends the windows and ejections whose time is over by `now`. `random` is a uniform random number, for the jitter
    /// of ejection times.
    pub fn advance_time(&mut self, now: Duration, random: u64, events: &mut Vec<EjectionEvent>) {
        match self {
            Self::Native(detector) => detector.advance_time(now, random, events),
            Self::Sermant(detector) => detector.advance_time(now, events),
        }
    }

    /// Returns the state of an endpoint, as of the last [`Self::advance_time`].
    #[must_use]
    pub fn endpoint_state(&self, slot: usize) -> EjectionState {
        match self {
            Self::Native(detector) => detector.endpoint_state(slot),
            Self::Sermant(detector) => detector.endpoint_state(slot),
        }
    }

    /// True if an endpoint would be ejected, but the limits on ejections prevent it. Always false for Sermant's
    /// algorithm.
    #[must_use]
    pub fn is_ejection_prevented(&self, slot: usize) -> bool {
        match self {
            Self::Native(detector) => detector.is_ejection_prevented(slot),
            Self::Sermant(_) => false,
        }
    }

    /// Records the start of a request to an endpoint. Returns true if the request is a probe; the endpoint then
    /// receives no other request until the probe ends.
    #[must_use]
    pub fn start_request(&mut self, slot: usize) -> bool {
        match self {
            Self::Native(detector) => detector.start_request(slot),
            Self::Sermant(_) => false,
        }
    }

    /// Records the end of a request without evidence about the endpoint. `probe` is true if the request was a probe.
    pub fn release_request(&mut self, slot: usize, probe: bool) {
        match self {
            Self::Native(detector) if probe => detector.release_request(slot),
            Self::Native(_) | Self::Sermant(_) => {}
        }
    }

    /// Records the result of a request that [`Self::start_request`] started.
    pub fn record_result(
        &mut self,
        slot: usize,
        result: RequestResult,
        events: &mut Vec<EjectionEvent>,
    ) {
        match self {
            Self::Native(detector) => detector.record_result(slot, result, events),
            Self::Sermant(detector) => detector.record_result(slot, result, events),
        }
    }

    /// Records the result of a health check, if the policy has health checks.
    pub fn record_check(
        &mut self,
        slot: usize,
        evidence: FailureEvidence,
        now: Duration,
        events: &mut Vec<EjectionEvent>,
    ) {
        match self {
            Self::Native(detector) => detector.record_check(slot, evidence, now, events),
            Self::Sermant(_) => {}
        }
    }

    /// Returns the failure classes that count.
    #[must_use]
    pub fn failure_classes(&self) -> &FailureClasses {
        match self {
            Self::Native(detector) => detector.failure_classes(),
            Self::Sermant(detector) => detector.failure_classes(),
        }
    }
}

/// The result of a request, as recorded by a detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestResult {
    /// True if the request failed in a class that counts.
    pub failed: bool,
    /// True if the request was a probe.
    pub probe: bool,
    /// The time at which the request ended.
    pub now: Duration,
    /// A uniform random number, for the jitter of an ejection time.
    pub random: u64,
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod vectors;
