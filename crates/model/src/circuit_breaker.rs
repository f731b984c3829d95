//! Circuit breakers: limits on concurrent traffic to a port, and the conditions that open its circuit.

use std::time::Duration;

use crate::definition::{Definition, ManifestBuilder};
use crate::fixed_response::FixedResponse;
use crate::outlier_detection::{FailureClasses, MAX_REQUEST_COUNT};
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

/// The fields of a circuit breaker.
#[derive(Definition)]
#[definition(
    builds = CircuitBreaker,
    cel(
        "has(self.limits) || has(self.connectTimeout) || has(self.trip)",
        "has no effect: set limits, connectTimeout or trip"
    ),
    cel("!has(self.response) || has(self.trip)", "response requires trip")
)]
struct CircuitBreakerFields {
    /// Limits of concurrent connections and requests. Each applies to all threads of the sidecar together.
    #[field(absent = "no limits")]
    limits: Option<CircuitLimits>,
    /// Timeout for connecting to an endpoint. It is also the longest time that a request waits for a connection that another
    /// request is opening.
    #[field(duration("1ms", "1h"), absent = "the sidecar's `--connect-timeout`")]
    connect_timeout: Option<Duration>,
    /// Conditions that open the circuit.
    #[field(absent = "the circuit never opens")]
    trip: Option<TripConditions>,
    /// Response while the circuit is open.
    #[field(absent = "503 with a sentence about the reason")]
    response: Option<FixedResponse>,
}

impl CircuitBreakerFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<CircuitBreaker> {
        let has_response_without_trip = self.response.is_some() && self.trip.is_none();
        if has_response_without_trip {
            let hint = "add `trip`, or remove `response`";
            builder.reject_field("response", "has no effect without `trip`", hint);
        }
        let limits = self.limits.unwrap_or_default();
        let has_effect = limits != CircuitLimits::default()
            || self.connect_timeout.is_some()
            || self.trip.is_some();
        if !has_effect {
            builder.reject("has no effect", "add `limits`, `connectTimeout` or `trip`");
        }
        (has_effect && !has_response_without_trip).then_some(CircuitBreaker {
            limits,
            trip: self.trip,
            response: self.response.unwrap_or_default(),
            connect_timeout: self.connect_timeout,
        })
    }
}

/// The concurrency limits of a port. There is no limit for an absent number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Definition)]
pub struct CircuitLimits {
    /// Maximum number of concurrent connections, on ports that carry TCP. The links that requests share are not limited.
    #[field(integer(1, u32::MAX), absent = "no limit")]
    pub connections: Option<u32>,
    /// Maximum number of concurrent requests. Each attempt of a request counts.
    #[field(integer(1, u32::MAX), absent = "no limit")]
    pub requests: Option<u32>,
    /// Maximum number of requests that wait for a connection.
    #[field(integer(1, u32::MAX), absent = "no limit")]
    pub pending: Option<u32>,
    /// Maximum number of concurrent retries; 0 disables retries.
    #[field(integer(0, u32::MAX), absent = "no limit")]
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

/// The fields of the conditions.
#[derive(Definition)]
#[definition(builds = TripConditions)]
struct TripConditionFields {
    /// The results that count as failures.
    #[field(include)]
    failures: FailureClasses,
    /// Length of the sliding window.
    // In a shorter window, most buckets would have no requests.
    #[field(duration("100ms", "24h"), default = "10s")]
    window: Duration,
    /// Number of buckets in the window, which slides by one bucket at a time.
    #[field(integer(1, 60), default = "10")]
    buckets: u8,
    /// Minimum number of requests in the window. With fewer, shares of requests do not open the circuit.
    #[field(integer(1, MAX_REQUEST_COUNT), default = "20")]
    minimum_requests: u32,
    /// Share of failed requests in percent that opens the circuit.
    #[field(
        integer(1, 100),
        absent = "50 if `consecutiveFailures` and `slow` are absent too, otherwise no share"
    )]
    percent: Option<u8>,
    /// Number of consecutive failures that open the circuit at once.
    #[field(integer(1, u32::MAX), absent = "no limit")]
    consecutive_failures: Option<u32>,
    /// Slow requests that open the circuit.
    #[field(absent = "the duration of requests has no effect")]
    slow: Option<SlowRequests>,
    /// Time that the circuit stays open.
    #[field(duration("10ms", "24h"), default = "30s")]
    open_duration: Duration,
    /// Number of requests that are allowed in the half-open state. All must succeed before the circuit closes.
    #[field(integer(1, 1000), default = "1")]
    half_open_requests: u32,
}

impl TripConditionFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> TripConditions {
        let has_other_condition = self.consecutive_failures.is_some() || self.slow.is_some();
        let failure_threshold = match self.percent {
            None if has_other_condition => RequestThreshold::default(),
            percent => RequestThreshold::from_percent(percent.unwrap_or(DEFAULT_PERCENT)),
        };
        TripConditions {
            failures: self.failures,
            window: self.window,
            buckets: self.buckets,
            min_requests: self.minimum_requests,
            failure_threshold,
            consecutive_failures: self.consecutive_failures,
            slow_requests: self.slow,
            open_duration: self.open_duration,
            half_open_requests: self.half_open_requests,
        }
    }
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

impl RequestThreshold {
    /// Returns the threshold for a percentage of the requests. One percent is 10,000 parts per million.
    fn from_percent(percent: u8) -> Self {
        Self { share_ppm: Some(u32::from(percent) * 10_000), count: None }
    }
}

/// The threshold of slow requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlowRequests {
    /// The minimum duration of a slow request.
    pub min_duration: Duration,
    /// The number or share of slow requests that opens the circuit.
    pub threshold: RequestThreshold,
}

/// The fields of slow requests.
#[derive(Definition)]
#[definition(builds = SlowRequests)]
struct SlowRequestFields {
    /// Minimum duration of a slow request, with its whole response.
    #[field(duration("1ms", "24h"))]
    threshold: Duration,
    /// Share of slow requests in percent that opens the circuit.
    #[field(integer(1, 100), default = "50")]
    percent: u8,
}

impl SlowRequestFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> SlowRequests {
        let threshold = RequestThreshold::from_percent(self.percent);
        SlowRequests { min_duration: self.threshold, threshold }
    }
}

/// The failure percentage that opens the circuit, unless another condition is present.
const DEFAULT_PERCENT: u8 = 50;
