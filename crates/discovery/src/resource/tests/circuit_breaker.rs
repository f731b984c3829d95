//! Strategies for random circuit breakers.

use std::time::Duration;

use leno_model::{
    CircuitBreaker, CircuitLimits, FailureClasses, FixedResponse, Header, PortCircuitBreaker,
    RequestThreshold, ServicePolicyKind, ServicePolicyName, SlowRequests, TripConditions,
};
use proptest::prelude::*;

use super::any_name;

pub(super) fn any_breaker() -> impl Strategy<Value = PortCircuitBreaker> {
    let limit = || prop::option::of(any::<u32>());
    let limits = (limit(), limit(), limit(), limit());
    let limits = limits.prop_map(|(connections, requests, pending, retries)| CircuitLimits {
        connections,
        requests,
        pending,
        retries,
    });
    (
        any_policy_name(),
        limits,
        prop::option::of(any_trip()),
        any_fixed_response(),
        prop::option::of(any_duration()),
    )
        .prop_map(|(policy, limits, trip, response, connect_timeout)| {
            let rule = CircuitBreaker { limits, trip, response, connect_timeout };
            PortCircuitBreaker { policy, rule }
        })
}

pub(super) fn any_policy_name() -> impl Strategy<Value = ServicePolicyName> {
    let kind = prop::sample::select(ServicePolicyKind::ALL);
    (kind, any_name()).prop_map(|(kind, name)| ServicePolicyName {
        kind,
        namespace: name.clone(),
        name,
    })
}

pub(super) fn any_fixed_response() -> impl Strategy<Value = FixedResponse> {
    let header = ("x-[a-z]{1,5}", "[a-z]{0,5}").prop_map(|(name, value)| Header { name, value });
    let headers = prop::collection::vec(header, 0..3);
    let status = (200..600_u16)
        .prop_filter("is a response status", |status| FixedResponse::is_valid_status(*status));
    (prop::option::of(status), prop::option::of(any::<String>()), headers)
        .prop_map(|(status, body, headers)| FixedResponse { status, body, headers })
}

pub(super) fn any_duration() -> impl Strategy<Value = Duration> {
    (1_000_000..u64::MAX).prop_map(Duration::from_nanos)
}

fn any_threshold() -> impl Strategy<Value = RequestThreshold> {
    let nonzero = || prop::option::of(1..u32::MAX);
    (nonzero(), nonzero())
        .prop_map(|(share_ppm, number)| RequestThreshold { share_ppm, count: number })
}

fn any_trip() -> impl Strategy<Value = TripConditions> {
    let slow = (any_duration(), any_threshold())
        .prop_map(|(min_duration, threshold)| SlowRequests { min_duration, threshold });
    let counts = (1..=60_u8, any::<u32>(), prop::option::of(1..u32::MAX), 1..u32::MAX);
    (any_duration(), any_duration(), any_threshold(), prop::option::of(slow), counts).prop_map(
        |(
            window,
            open_duration,
            failed,
            slow,
            (buckets, min_requests, consecutive_failures, half_open_requests),
        )| TripConditions {
            failures: FailureClasses { timeout: true, ..FailureClasses::default() },
            window,
            buckets,
            min_requests,
            failure_threshold: failed,
            consecutive_failures,
            slow_requests: slow,
            open_duration,
            half_open_requests,
        },
    )
}
