//! Reader of the `leno.dev/v1alpha1` `CircuitBreaker` kind.

use std::time::Duration;

use leno_model::{
    CircuitBreaker, CircuitLimits, FailureThreshold, Name, PolicyScope, SlowRequests,
    TripConditions,
};

use super::outlier_detection::read_failure_classes;
use super::response;
use super::service_policy::{
    number_or, percent_or, read_duration_within, read_limit, read_targets, time_or,
};
use crate::field::Field;

pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, CircuitBreaker)> {
    let fields =
        spec.read_fields(&["targetRefs", "limits", "connectTimeout", "trip", "response"])?;
    let scope = read_targets(&fields, namespace);
    let mut rule = CircuitBreaker::default();
    if let Some(field) = fields.find("limits") {
        rule.limits = read_limits(field)?;
    }
    if let Some(field) = fields.find("connectTimeout") {
        rule.connect_timeout = Some(connect_timeout(field)?);
    }
    if let Some(field) = fields.find("trip") {
        rule.trip = Some(read_trip(field)?);
    }
    match fields.find("response") {
        Some(field) if rule.trip.is_none() => {
            field.reject("has no effect without `trip`", "add `trip`, or remove `response`");
        }
        Some(field) => rule.response = response::read(field)?,
        None => {}
    }
    if rule == CircuitBreaker::default() {
        spec.reject("has no effect", "add `limits`, `connectTimeout` or `trip`");
        return None;
    }
    Some((scope?, rule))
}

fn read_limits(field: &Field<'_>) -> Option<CircuitLimits> {
    let fields = field.read_fields(&["connections", "requests", "pending", "retries"])?;
    Some(CircuitLimits {
        connections: read_limit(&fields, "connections", 1)?,
        requests: read_limit(&fields, "requests", 1)?,
        pending: read_limit(&fields, "pending", 1)?,
        retries: read_limit(&fields, "retries", 0)?,
    })
}

fn read_trip(field: &Field<'_>) -> Option<TripConditions> {
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
    let slow = match fields.find("slow") {
        Some(field) => Some(read_slow(field)?),
        None => None,
    };
    let consecutive_failures = read_limit(&fields, "consecutiveFailures", 1)?;
    let share = |percent: u8| FailureThreshold {
        share_ppm: Some(u32::from(percent) * 10_000),
        number: None,
    };
    let failed = match fields.find("percent") {
        None if slow.is_some() || consecutive_failures.is_some() => FailureThreshold::default(),
        _ => share(percent_or(&fields, "percent", 1, 50)?),
    };
    Some(TripConditions {
        failures: read_failure_classes(&fields)?,
        window: time_or(&fields, "window", MIN_WINDOW, MAX_TIME, Duration::from_secs(10))?,
        buckets: u8::try_from(number_or(&fields, "buckets", 1, 60, 10)?).ok()?,
        requests_min: number_or(&fields, "minimumRequests", 1, MAX_COUNT, 20)?,
        failed,
        consecutive_failures,
        slow,
        open_duration: time_or(
            &fields,
            "openDuration",
            MIN_OPEN,
            MAX_TIME,
            Duration::from_secs(30),
        )?,
        half_open_requests: number_or(&fields, "halfOpenRequests", 1, 1000, 1)?,
    })
}

fn read_slow(field: &Field<'_>) -> Option<SlowRequests> {
    let fields = field.read_fields(&["threshold", "percent"])?;
    let threshold = fields.require("threshold").and_then(slow_threshold);
    let percent = percent_or(&fields, "percent", 1, 50)?;
    let too_many = FailureThreshold { share_ppm: Some(u32::from(percent) * 10_000), number: None };
    Some(SlowRequests { threshold: threshold?, too_many })
}

/// Reads the connect timeout.
pub(super) fn connect_timeout(field: &Field<'_>) -> Option<Duration> {
    read_duration_within(field, Duration::from_millis(1), Duration::from_secs(3600))
}

/// Reads the duration from which a response counts as slow.
pub(super) fn slow_threshold(field: &Field<'_>) -> Option<Duration> {
    read_duration_within(field, Duration::from_millis(1), MAX_TIME)
}

/// Minimum length of the window: shorter ones have buckets without requests.
pub(super) const MIN_WINDOW: Duration = Duration::from_millis(100);
/// Minimum time that the circuit stays open.
pub(super) const MIN_OPEN: Duration = Duration::from_millis(10);
/// Limit of all durations.
pub(super) const MAX_TIME: Duration = Duration::from_secs(24 * 3600);
/// Limit of numbers of requests.
pub(super) const MAX_COUNT: u32 = 1_000_000;
