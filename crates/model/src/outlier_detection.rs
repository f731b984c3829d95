//! Outlier detection by Leno's algorithm: the conditions that eject an endpoint, and that return it to service.

use std::time::Duration;

use crate::definition::{Definition, ManifestBuilder, ManifestValue, Schema};
use crate::health_check::HealthCheck;

/// The conditions that eject an endpoint, and the conditions that return it to service.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Definition)]
#[definition(check = Self::with_default_limits)]
pub struct OutlierDetection {
    /// The responses that count as failures; never empty.
    #[field(include)]
    pub failures: FailureClasses,
    /// Length of the sliding window for the failure rate.
    // In a shorter window, most buckets would have no requests.
    #[field(duration("100ms", "24h"), default = "10s")]
    pub window: Duration,
    /// Number of buckets in the window. The failure rate is evaluated at the end of each bucket.
    #[field(integer(1, 60), default = "10")]
    pub buckets: u8,
    /// Failure rate that ejects an endpoint.
    #[field(
        absent = "50 % of at least 20 requests if `consecutiveFailures` is absent too, otherwise no rate"
    )]
    pub failure_rate: Option<FailureRate>,
    /// Number of consecutive failures that eject an endpoint at once.
    #[field(
        integer(1, MAX_REQUEST_COUNT),
        absent = "5 if `failureRate` is absent too, otherwise no limit"
    )]
    pub consecutive_failures: Option<u32>,
    /// Maximum share of ejected endpoints of the port in percent, rounded down.
    #[field(integer(1, 100), default = "50")]
    pub max_ejection_percent: u8,
    /// Minimum number of endpoints of the port that stay in service. If all others are ejected, these stay although they
    /// fail.
    #[field(integer(1, 1_000_000), default = "1")]
    pub min_healthy: u32,
    /// The ejection time.
    #[field(include)]
    pub ejection_time: EjectionTime,
    /// Number of requests that must succeed, one after the other, before an ejected endpoint returns to service.
    #[field(integer(1, 1000), default = "1")]
    pub probe_requests: u32,
    /// Active health checks, in addition to the observed responses.
    #[field(absent = "no health checks")]
    pub health_check: Option<Box<HealthCheck>>,
}

impl OutlierDetection {
    /// Sets both limits if neither is present.
    fn with_default_limits(mut self, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        if self.failure_rate.is_none() && self.consecutive_failures.is_none() {
            self.failure_rate = Some(FailureRate { percent: 50, min_requests: 20 });
            self.consecutive_failures = Some(5);
        }
        Some(self)
    }
}

/// The failure rate that ejects an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Definition)]
pub struct FailureRate {
    /// Share of failed requests in percent.
    #[field(integer(1, 100))]
    pub percent: u8,
    /// Minimum number of requests in the window. With fewer, the rate is ignored.
    #[field(name = "minimumRequests", integer(1, MAX_REQUEST_COUNT), default = "20")]
    pub min_requests: u32,
}

/// The ejection time: an exponential backoff from the base to the maximum, minus random jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EjectionTime {
    /// The first ejection time.
    pub base: Duration,
    /// The maximum ejection time.
    pub max: Duration,
    /// The maximum jitter, in percent.
    pub jitter_percent: u8,
}

/// The fields of an ejection time.
#[derive(Definition)]
#[definition(
    builds = EjectionTime,
    cel(
        "!has(self.maxEjectionTime) || !has(self.baseEjectionTime) \
         || duration(self.maxEjectionTime) >= duration(self.baseEjectionTime)",
        "maxEjectionTime must not be below baseEjectionTime"
    )
)]
struct EjectionTimeFields {
    /// Duration of the first ejection. Each further one lasts twice as long.
    #[field(duration("10ms", "24h"), default = "30s")]
    base_ejection_time: Duration,
    /// Maximum duration of an ejection.
    #[field(duration("10ms", "24h"), absent = "`300s`, or `baseEjectionTime` if that is longer")]
    max_ejection_time: Option<Duration>,
    /// Maximum random reduction of the duration in percent.
    #[field(integer(0, 100), default = "50")]
    ejection_jitter_percent: u8,
}

impl EjectionTimeFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<EjectionTime> {
        let base = self.base_ejection_time;
        let max = self.max_ejection_time.unwrap_or(DEFAULT_MAX_EJECTION_TIME.max(base));
        if max < base {
            let hint = "raise `maxEjectionTime`, or lower `baseEjectionTime`";
            builder.reject_field("maxEjectionTime", "is below `baseEjectionTime`", hint);
            return None;
        }
        Some(EjectionTime { base, max, jitter_percent: self.ejection_jitter_percent })
    }
}

/// The classes of failures that count as failures of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FailureClasses {
    /// No connection or TLS session with the endpoint, or with its application, was established.
    pub connect: bool,
    /// The connection, the response headers or the end of the response timed out.
    pub timeout: bool,
    /// The connection was reset, or the response was not valid HTTP.
    pub reset: bool,
    /// The response status was 500 to 599.
    pub server_errors: bool,
    /// The response status was 502, 503 or 504.
    pub gateway_errors: bool,
    /// The gRPC statuses that count, in order and without duplicates.
    pub grpc: Vec<u8>,
}

impl FailureClasses {
    /// True if no class counts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the flag of a class.
    const fn flag_mut(&mut self, class: FailureClass) -> &mut bool {
        match class {
            FailureClass::Connect => &mut self.connect,
            FailureClass::Timeout => &mut self.timeout,
            FailureClass::Reset => &mut self.reset,
            FailureClass::ServerErrors => &mut self.server_errors,
            FailureClass::GatewayErrors => &mut self.gateway_errors,
        }
    }
}

/// The fields of failure classes.
#[derive(Definition)]
#[definition(builds = FailureClasses)]
struct FailureClassFields {
    /// Results that count as failures.
    #[field(
        list(0, 5),
        absent = "`connect`, `timeout`, `reset` and `5xx` if `grpcStatuses` is absent too, otherwise none"
    )]
    failures: Option<Vec<FailureClass>>,
    /// gRPC statuses that count as failures, by name.
    #[field(list(0, 16), absent = "`UNAVAILABLE` if `failures` is absent too, otherwise none")]
    grpc_statuses: Option<Vec<GrpcFailure>>,
}

/// A class of failures, as named in manifests.
#[derive(Clone, Copy, Definition)]
enum FailureClass {
    #[field(name = "connect")]
    Connect,
    #[field(name = "timeout")]
    Timeout,
    #[field(name = "reset")]
    Reset,
    #[field(name = "5xx")]
    ServerErrors,
    #[field(name = "gateway")]
    GatewayErrors,
}

impl FailureClassFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<FailureClasses> {
        if self.failures.is_none() && self.grpc_statuses.is_none() {
            return Some(FailureClasses {
                connect: true,
                timeout: true,
                reset: true,
                server_errors: true,
                gateway_errors: false,
                grpc: vec![GrpcFailure::UNAVAILABLE.number()],
            });
        }
        let mut classes = FailureClasses::default();
        for class in self.failures.into_iter().flatten() {
            *classes.flag_mut(class) = true;
        }
        classes.grpc = self.grpc_statuses.into_iter().flatten().map(GrpcFailure::number).collect();
        classes.grpc.sort_unstable();
        classes.grpc.dedup();
        if classes.is_empty() {
            builder.reject(
                "has no failure conditions",
                "list classes in `failures` or `grpcStatuses`, or remove both for the default",
            );
            return None;
        }
        Some(classes)
    }
}

/// A gRPC status that is a failure; `OK` is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrpcFailure(u8);

impl GrpcFailure {
    const UNAVAILABLE: Self = Self(14);

    /// Returns the number of the status, 1 to 16.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl Definition for GrpcFailure {
    const SCHEMA: Schema = Schema::Choice(GRPC_FAILURES);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        u8::try_from(value.choice_index()? + 1).ok().map(Self)
    }
}

/// The gRPC statuses that are failures, in the order of their numbers, from 1.
const GRPC_FAILURES: &[&str] = &[
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
/// The default of `maxEjectionTime`, unless the base is longer.
const DEFAULT_MAX_EJECTION_TIME: Duration = Duration::from_secs(300);
/// Maximum value of the fields that count requests or failures.
pub(crate) const MAX_REQUEST_COUNT: u32 = 1_000_000;
