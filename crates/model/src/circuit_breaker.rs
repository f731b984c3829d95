//! Circuit breakers: limits on concurrent traffic to a port, and the conditions that open its circuit.

use std::time::Duration;

use crate::action::Header;
use crate::outlier_detection::FailureClasses;
use crate::service_policy::ServicePolicyName;

/// The circuit breaker of a port, and the policy that sets it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortCircuitBreaker {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The settings of the policy.
    pub rule: CircuitBreaker,
}

/// A circuit breaker: concurrency limits of a port, and the conditions that open its circuit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CircuitBreaker {
    /// The concurrency limits; each applies to all data threads of the sidecar together.
    pub limits: CircuitLimits,
    /// The conditions that open the circuit; it never opens when absent.
    pub trip: Option<TripConditions>,
    /// The response while the circuit is open.
    pub response: FixedResponse,
    /// The timeout for a connection to an endpoint; the sidecar's general connect timeout when absent.
    pub connect_timeout: Option<Duration>,
}

/// The concurrency limits of a port. There is no limit for an absent number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CircuitLimits {
    /// The maximum number of opaque connections. The links that requests share are not limited.
    pub connections: Option<u32>,
    /// The maximum number of requests in progress; each attempt counts.
    pub requests: Option<u32>,
    /// The maximum number of requests that wait for a connection.
    pub pending: Option<u32>,
    /// The maximum number of retries in progress.
    pub retries: Option<u32>,
}

/// The conditions that open a circuit, and the conditions that close it again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TripConditions {
    /// The responses that count as failures; never empty.
    pub failures: FailureClasses,
    /// The length of the sliding window.
    pub window: Duration,
    /// The number of buckets of the window; it slides by one bucket at a time.
    pub buckets: u8,
    /// The minimum number of requests in the window; with fewer the circuit does not open.
    pub min_requests: u32,
    /// Opens at this many failed requests in the window.
    pub failure_threshold: RequestThreshold,
    /// Opens after this many consecutive failures; disabled when absent.
    pub consecutive_failures: Option<u32>,
    /// Opens at too many slow requests in the window; disabled when absent.
    pub slow_requests: Option<SlowRequests>,
    /// The time that the circuit stays open.
    pub open_duration: Duration,
    /// The number of requests that are allowed in the half-open state. The circuit closes when all of them succeed.
    pub half_open_requests: u32,
}

/// A threshold of failed or slow requests, as a share of all requests or as a number. The threshold is reached when the
/// share or the number is reached. A share or number that is absent is never reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RequestThreshold {
    /// A share of the requests, in millionths, at least 1.
    pub share_ppm: Option<u32>,
    /// A number of requests, at least 1.
    pub count: Option<u32>,
}

/// The threshold of slow requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlowRequests {
    /// The minimum duration of a slow request.
    pub min_duration: Duration,
    /// The number or share of slow requests that opens the circuit.
    pub threshold: RequestThreshold,
}

/// A response that the sidecar sends instead of an upstream response.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FixedResponse {
    /// The HTTP status; the default status of the rejection reason when absent.
    pub status: Option<u16>,
    /// The body; a sentence about the rejection reason when absent.
    pub body: Option<String>,
    /// Additional response headers; their names are in lower case.
    pub headers: Vec<Header>,
}

impl FixedResponse {
    /// True for a valid status of a fixed response: a final status whose responses have a body (RFC 9110 §15.3.5,
    /// §15.3.6, §15.4.5).
    #[must_use]
    pub const fn is_valid_status(status: u16) -> bool {
        matches!(status, 200..=599) && !matches!(status, 204 | 205 | 304)
    }
}
