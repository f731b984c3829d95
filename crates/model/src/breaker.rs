//! Circuit breaking: how much may be under way to a port, and when nothing is sent for a while.

use std::time::Duration;

use crate::action::Header;
use crate::service_policy::{FailureClasses, ServicePolicyName};

/// The circuit breaker of a port, and who said so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Breaker {
    /// The policy.
    pub policy: ServicePolicyName,
    /// What it says.
    pub rule: CircuitBreaker,
}

/// How much may be under way to a port, and when nothing is sent for a while.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CircuitBreaker {
    /// How much may be under way, for the whole sidecar.
    pub limits: CircuitLimits,
    /// When the circuit opens; never when absent.
    pub trip: Option<Trip>,
    /// What is answered while the circuit is open.
    pub answer: FixedAnswer,
    /// How long connecting to an endpoint may take; as long as for all when absent.
    pub connect_timeout: Option<Duration>,
}

/// How much may be under way to a port; no limit when absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CircuitLimits {
    /// Opaque connections. Requests share a link, which this does not bound.
    pub connections: Option<u32>,
    /// Requests, each attempt for itself.
    pub requests: Option<u32>,
    /// Requests that wait for a connection.
    pub pending: Option<u32>,
    /// Requests that are being sent once more.
    pub retries: Option<u32>,
}

/// When a circuit opens, and how it closes again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Trip {
    /// What counts as a failure; never empty.
    pub failures: FailureClasses,
    /// How far back it looks.
    pub window: Duration,
    /// Into how many steps the window is divided.
    pub steps: u8,
    /// Fewer requests in the window prove nothing.
    pub requests_min: u32,
    /// Opens when so many requests in the window failed.
    pub failed: TooMany,
    /// Opens after so many failures in a row; not when absent.
    pub consecutive: Option<u32>,
    /// Opens when too many requests in the window were slow; not when absent.
    pub slow: Option<Slow>,
    /// How long it stays open.
    pub open_for: Duration,
    /// How many requests are let through then, and must succeed before it closes.
    pub probes: u32,
}

/// How many are too many: either is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TooMany {
    /// A share of the requests, in millionths, at least 1.
    pub share_ppm: Option<u32>,
    /// A number of requests, at least 1.
    pub number: Option<u32>,
}

/// When a request is slow, and how many slow ones are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slow {
    /// It took as long as this, or longer.
    pub from: Duration,
    /// So many are too many.
    pub too_many: TooMany,
}

/// What is answered in place of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FixedAnswer {
    /// The status; that of the reason when absent.
    pub status: Option<u16>,
    /// The body; a sentence about the reason when absent.
    pub body: Option<String>,
    /// Headers beside those of every answer; their names are in lower case.
    pub headers: Vec<Header>,
}

impl FixedAnswer {
    /// Whether an answer of a policy may have this status: a final one, and with a body (RFC 9110
    /// §15.3.5, §15.3.6, §15.4.5).
    #[must_use]
    pub const fn may_have(status: u16) -> bool {
        matches!(status, 200..=599) && !matches!(status, 204 | 205 | 304)
    }
}
