//! Converts circuit breakers, which are a part of a port's traffic policy, to and from the wire, and the fixed
//! responses that several policies configure.

use std::time::Duration;

use leno_model::{
    CircuitBreaker, CircuitLimits, FixedResponse, PortCircuitBreaker, RequestThreshold,
    SlowRequests, TripConditions,
};

use super::action::{header_from_wire, header_to_wire};
use super::field::{InvalidField, to_nanoseconds};
use super::traffic_policy::{
    classes_from_wire, classes_to_wire, parse_duration, parse_nonzero, parse_u8, policy_from_wire,
    policy_to_wire,
};
use crate::proto;

pub(super) fn to_wire(breaker: &PortCircuitBreaker) -> proto::CircuitBreaker {
    let CircuitBreaker { limits, trip, response, connect_timeout } = &breaker.rule;
    proto::CircuitBreaker {
        policy: Some(policy_to_wire(&breaker.policy)),
        connections: limits.connections,
        requests: limits.requests,
        pending: limits.pending,
        retries: limits.retries,
        trip: trip.as_ref().map(trip_to_wire),
        response: response_to_wire(response),
        connect_timeout_nanoseconds: connect_timeout.map(to_nanoseconds),
    }
}

pub(super) fn from_wire(wire: proto::CircuitBreaker) -> Result<PortCircuitBreaker, InvalidField> {
    let trip = wire.trip.map(trip_from_wire).transpose();
    let rule = CircuitBreaker {
        limits: CircuitLimits {
            connections: wire.connections,
            requests: wire.requests,
            pending: wire.pending,
            retries: wire.retries,
        },
        trip: trip.map_err(|invalid| invalid.with_parent("trip"))?,
        response: response_from_wire(wire.response)
            .map_err(|invalid| invalid.with_parent("response"))?,
        connect_timeout: wire.connect_timeout_nanoseconds.map(Duration::from_nanos),
    };
    Ok(PortCircuitBreaker { policy: policy_from_wire(wire.policy)?, rule })
}

/// Encodes a response; `None` for the default response.
pub(super) fn response_to_wire(response: &FixedResponse) -> Option<proto::FixedResponse> {
    (*response != FixedResponse::default()).then(|| proto::FixedResponse {
        status: response.status.map(u32::from),
        body: response.body.clone(),
        headers: response.headers.iter().map(header_to_wire).collect(),
    })
}

/// Parses a response; an absent one is the default response.
pub(super) fn response_from_wire(
    wire: Option<proto::FixedResponse>,
) -> Result<FixedResponse, InvalidField> {
    let Some(wire) = wire else {
        return Ok(FixedResponse::default());
    };
    let status = match wire.status {
        None => None,
        Some(status) => match u16::try_from(status) {
            Ok(status) if FixedResponse::is_valid_status(status) => Some(status),
            _ => {
                return Err(InvalidField::new(
                    "status",
                    format!("{status} is not a response status"),
                ));
            }
        },
    };
    let headers = wire.headers.into_iter().map(header_from_wire);
    Ok(FixedResponse { status, body: wire.body, headers: headers.collect::<Result<_, _>>()? })
}

fn trip_to_wire(trip: &TripConditions) -> proto::TripConditions {
    proto::TripConditions {
        failures: Some(classes_to_wire(&trip.failures)),
        window_nanoseconds: to_nanoseconds(trip.window),
        buckets: trip.buckets.into(),
        min_requests: trip.min_requests,
        failed: Some(threshold_to_wire(trip.failure_threshold)),
        consecutive_failures: trip.consecutive_failures.unwrap_or(0),
        slow_nanoseconds: trip.slow_requests.map_or(0, |slow| to_nanoseconds(slow.min_duration)),
        slow: trip.slow_requests.map(|slow| threshold_to_wire(slow.threshold)),
        open_nanoseconds: to_nanoseconds(trip.open_duration),
        half_open_requests: trip.half_open_requests,
    }
}

/// Parses the conditions that open a circuit: at least one failure condition; 0 disables consecutive failures
/// and slow requests.
fn trip_from_wire(wire: proto::TripConditions) -> Result<TripConditions, InvalidField> {
    let failures = classes_from_wire(wire.failures)?;
    if failures.is_empty() {
        return Err(InvalidField::new("failures", "has no failure condition"));
    }
    let slow_requests = match wire.slow_nanoseconds {
        0 => None,
        min_nanoseconds => Some(SlowRequests {
            min_duration: Duration::from_nanos(min_nanoseconds),
            threshold: threshold_from_wire(wire.slow),
        }),
    };
    Ok(TripConditions {
        failures,
        window: parse_duration("window_nanoseconds", wire.window_nanoseconds)?,
        buckets: parse_u8("buckets", wire.buckets, 1, 255)?,
        min_requests: wire.min_requests,
        failure_threshold: threshold_from_wire(wire.failed),
        consecutive_failures: (wire.consecutive_failures > 0).then_some(wire.consecutive_failures),
        slow_requests,
        open_duration: parse_duration("open_nanoseconds", wire.open_nanoseconds)?,
        half_open_requests: parse_nonzero("half_open_requests", wire.half_open_requests)?,
    })
}

/// Encodes a threshold; 0 stands for an unset share or count.
fn threshold_to_wire(threshold: RequestThreshold) -> proto::FailureThreshold {
    let RequestThreshold { share_ppm, count } = threshold;
    proto::FailureThreshold { share_ppm: share_ppm.unwrap_or(0), number: count.unwrap_or(0) }
}

fn threshold_from_wire(wire: Option<proto::FailureThreshold>) -> RequestThreshold {
    let proto::FailureThreshold { share_ppm, number } = wire.unwrap_or_default();
    let nonzero = |number: u32| (number > 0).then_some(number);
    RequestThreshold { share_ppm: nonzero(share_ppm), count: nonzero(number) }
}
