//! Reads the `leno.dev/v1alpha1` `CircuitBreaker` kind.

use std::time::Duration;

use leno_model::{
    CircuitBreaker, CircuitLimits, Name, PolicyScope, RequestThreshold, SlowRequests,
    TripConditions,
};

use super::response;
use super::service_policy::{
    read_duration_or, read_number_or, read_optional_limit, read_percent_or, read_targets,
};
use crate::duration::read_duration_within;
use crate::field::Field;
use crate::schema_reader::read_included;

/// Reads the `spec` of a `CircuitBreaker`.
pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, CircuitBreaker)> {
    let fields =
        spec.read_fields(&["targetRefs", "limits", "connectTimeout", "trip", "response"])?;
    let scope = read_targets(&fields, namespace);
    let mut circuit_breaker = CircuitBreaker::default();
    if let Some(field) = fields.find("limits") {
        circuit_breaker.limits = read_limits(field)?;
    }
    if let Some(field) = fields.find("connectTimeout") {
        circuit_breaker.connect_timeout = Some(read_connect_timeout(field)?);
    }
    if let Some(field) = fields.find("trip") {
        circuit_breaker.trip = Some(read_trip(field, namespace)?);
    }
    match fields.find("response") {
        Some(field) if circuit_breaker.trip.is_none() => {
            field.reject("has no effect without `trip`", "add `trip`, or remove `response`");
        }
        Some(field) => circuit_breaker.response = response::read(field)?,
        None => {}
    }
    if circuit_breaker == CircuitBreaker::default() {
        spec.reject("has no effect", "add `limits`, `connectTimeout` or `trip`");
        return None;
    }
    Some((scope?, circuit_breaker))
}

/// Reads `limits`: the maximum numbers of connections, requests, pending requests and retries; unlimited if absent.
fn read_limits(field: &Field<'_>) -> Option<CircuitLimits> {
    let fields = field.read_fields(&["connections", "requests", "pending", "retries"])?;
    Some(CircuitLimits {
        connections: read_optional_limit(&fields, "connections", 1)?,
        requests: read_optional_limit(&fields, "requests", 1)?,
        pending: read_optional_limit(&fields, "pending", 1)?,
        retries: read_optional_limit(&fields, "retries", 0)?,
    })
}

/// Reads `trip`: the conditions that open the circuit. The failure rate has a default only if there is no other
/// condition.
fn read_trip(field: &Field<'_>, namespace: &Name) -> Option<TripConditions> {
    let fields = field.read_fields(&[
        "failures",
        "grpcStatuses",
        "window",
        "buckets",
        "minimumRequests",
        "percent",
        "consecutiveFailures",
        "slow",
        "openDuration",
        "halfOpenRequests",
    ])?;
    let failures = read_included(&fields, namespace);
    let slow_requests = match fields.find("slow") {
        Some(field) => Some(read_slow_requests(field)?),
        None => None,
    };
    let consecutive_failures = read_optional_limit(&fields, "consecutiveFailures", 1)?;
    let failure_threshold = match fields.find("percent") {
        None if slow_requests.is_some() || consecutive_failures.is_some() => {
            RequestThreshold::default()
        }
        _ => threshold_from_percent(read_percent_or(&fields, "percent", 1, 50)?),
    };
    Some(TripConditions {
        window: read_duration_or(
            &fields,
            "window",
            MIN_WINDOW,
            MAX_DURATION,
            Duration::from_secs(10),
        )?,
        buckets: u8::try_from(read_number_or(&fields, "buckets", 1, 60, 10)?).ok()?,
        min_requests: read_number_or(&fields, "minimumRequests", 1, MAX_REQUEST_COUNT, 20)?,
        failure_threshold,
        consecutive_failures,
        slow_requests,
        open_duration: read_duration_or(
            &fields,
            "openDuration",
            MIN_OPEN_DURATION,
            MAX_DURATION,
            Duration::from_secs(30),
        )?,
        half_open_requests: read_number_or(&fields, "halfOpenRequests", 1, 1000, 1)?,
        failures: failures?,
    })
}

/// Reads `slow`: the duration from which a response is slow, and the share of slow responses that opens the circuit.
fn read_slow_requests(field: &Field<'_>) -> Option<SlowRequests> {
    let fields = field.read_fields(&["threshold", "percent"])?;
    let min_duration = fields.require("threshold").and_then(read_slow_threshold);
    let percent = read_percent_or(&fields, "percent", 1, 50)?;
    let threshold = threshold_from_percent(percent);
    Some(SlowRequests { min_duration: min_duration?, threshold })
}

/// Returns the threshold for a percentage of the requests. One percent is 10,000 parts per million.
fn threshold_from_percent(percent: u8) -> RequestThreshold {
    RequestThreshold { share_ppm: Some(u32::from(percent) * 10_000), count: None }
}

/// Reads the connect timeout, from 1 ms to one hour.
pub(super) fn read_connect_timeout(field: &Field<'_>) -> Option<Duration> {
    read_duration_within(field, Duration::from_millis(1), Duration::from_secs(3600))
}

/// Reads the duration from which a response counts as slow, from 1 ms to [`MAX_DURATION`].
pub(super) fn read_slow_threshold(field: &Field<'_>) -> Option<Duration> {
    read_duration_within(field, Duration::from_millis(1), MAX_DURATION)
}

/// Minimum length of the window: in a shorter window, most buckets would have no requests.
pub(super) const MIN_WINDOW: Duration = Duration::from_millis(100);
/// Minimum time that the circuit stays open.
pub(super) const MIN_OPEN_DURATION: Duration = Duration::from_millis(10);
/// Maximum window, open duration and slow threshold.
pub(super) const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Maximum value of the fields that count requests.
pub(super) const MAX_REQUEST_COUNT: u32 = 1_000_000;
