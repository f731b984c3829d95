//! Removal: which endpoints of a port are left out for a while, natively or as Sermant does it.

mod class;
mod native;
mod sermant;

use std::time::Duration;

use leno_model::{FailureClasses, RemovalAlgorithm};

pub use class::{Ending, Failed, checked, failed};
pub use native::Outliers;
pub use sermant::SermantOutliers;

/// What is known of the endpoints of one port, in their order. One data thread owns one, and says
/// what time it is: the time since any moment of its choice.
#[derive(Debug)]
pub enum Removed {
    /// By our own rules.
    Native(Outliers),
    /// By Sermant's.
    Sermant(SermantOutliers),
}

/// Where an endpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It takes requests.
    In,
    /// It is removed.
    Out,
    /// It was removed, and the next request shows whether it is well.
    Probe,
}

/// What happened to an endpoint, for logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was removed.
    Removed {
        /// Which, by its place.
        slot: usize,
        /// Why.
        cause: Cause,
        /// For how long; until checks succeed when absent.
        pause: Option<Duration>,
    },
    /// It takes requests again.
    Returned {
        /// Which, by its place.
        slot: usize,
    },
}

/// Why an endpoint was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Too large a share of its requests failed.
    Rate,
    /// Too many failed in a row.
    Consecutive,
    /// A probe failed.
    Probe,
    /// Health checks failed.
    Check,
}

impl Cause {
    /// The word used in metrics and logs.
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

impl Removed {
    /// Nothing is known of any endpoint yet.
    #[must_use]
    pub fn new(algorithm: &RemovalAlgorithm, endpoints: usize) -> Self {
        match algorithm {
            RemovalAlgorithm::Native(rule) => Self::Native(Outliers::new(rule.clone(), endpoints)),
            RemovalAlgorithm::Sermant(rule) => {
                Self::Sermant(SermantOutliers::new(rule.clone(), endpoints))
            }
        }
    }

    /// The endpoints are others now: each new place says which old one it was, if any.
    pub fn rearrange(&mut self, places: &[Option<usize>]) {
        match self {
            Self::Native(outliers) => outliers.rearrange(places),
            Self::Sermant(outliers) => outliers.rearrange(places),
        }
    }

    /// Takes note of the time: windows end, and who was out long enough may come back. `draw` is
    /// chance. Cheap when nothing is due.
    pub fn advance(&mut self, now: Duration, draw: u64, events: &mut Vec<Event>) {
        match self {
            Self::Native(outliers) => outliers.advance(now, draw, events),
            Self::Sermant(outliers) => outliers.advance(now, events),
        }
    }

    /// Where an endpoint stands, as of the last [`Self::advance`].
    #[must_use]
    pub fn standing(&self, slot: usize) -> Standing {
        match self {
            Self::Native(outliers) => outliers.standing(slot),
            Self::Sermant(outliers) => outliers.standing(slot),
        }
    }

    /// Whether an endpoint takes requests for the bounds alone: what is known of it would have it
    /// removed. Nobody is, by Sermant's algorithm.
    #[must_use]
    pub fn is_spared(&self, slot: usize) -> bool {
        match self {
            Self::Native(outliers) => outliers.is_spared(slot),
            Self::Sermant(_) => false,
        }
    }

    /// A request goes to an endpoint. True: it is a probe, and others wait for how it ends.
    #[must_use]
    pub fn begin(&mut self, slot: usize) -> bool {
        match self {
            Self::Native(outliers) => outliers.begin(slot),
            Self::Sermant(_) => false,
        }
    }

    /// A request ended in a way that proves nothing.
    pub fn release(&mut self, slot: usize, probe: bool) {
        match self {
            Self::Native(outliers) if probe => outliers.release(slot),
            Self::Native(_) | Self::Sermant(_) => {}
        }
    }

    /// How a request ended that [`Self::begin`] began.
    pub fn learn(&mut self, slot: usize, seen: Seen, events: &mut Vec<Event>) {
        match self {
            Self::Native(outliers) => outliers.learn(slot, seen, events),
            Self::Sermant(outliers) => outliers.learn(slot, seen, events),
        }
    }

    /// How a health check of an endpoint ended, where its rule has them made.
    pub fn check(&mut self, slot: usize, heard: Failed, now: Duration, events: &mut Vec<Event>) {
        match self {
            Self::Native(outliers) => outliers.check(slot, heard, now, events),
            Self::Sermant(_) => {}
        }
    }

    /// What counts as a failure.
    #[must_use]
    pub fn failures(&self) -> &FailureClasses {
        match self {
            Self::Native(outliers) => outliers.failures(),
            Self::Sermant(outliers) => outliers.failures(),
        }
    }
}

/// How a request ended, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Whether it failed in a way that counts.
    pub failed: bool,
    /// Whether it was a probe.
    pub probe: bool,
    /// When.
    pub now: Duration,
    /// Chance.
    pub draw: u64,
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod vectors;
