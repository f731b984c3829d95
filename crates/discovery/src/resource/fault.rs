//! Converts fault injection rules to and from the wire. They are a part of a port's traffic policy.

use leno_model::{FaultAbort, FaultDelay, FaultRule, PortFaults};

use super::circuit_breaker::{response_from_wire, response_to_wire};
use super::field::{InvalidField, convert_each, to_nanoseconds};
use super::inbound::{peer_from_wire, peer_to_wire};
use super::request;
use super::traffic_policy::{parse_duration, parse_u8, policy_from_wire, policy_to_wire};
use crate::proto;

pub(super) fn to_wire(faults: &PortFaults) -> proto::Faults {
    proto::Faults {
        policy: Some(policy_to_wire(&faults.policy)),
        rules: faults.rules.iter().map(rule_to_wire).collect(),
    }
}

pub(super) fn from_wire(wire: proto::Faults) -> Result<PortFaults, InvalidField> {
    let rules = convert_each("rules", wire.rules, rule_from_wire)?;
    if rules.is_empty() {
        return Err(InvalidField::new("rules", "is empty"));
    }
    Ok(PortFaults { policy: policy_from_wire(wire.policy)?, rules })
}

fn rule_to_wire(rule: &FaultRule) -> proto::FaultRule {
    let delay_to_wire = |delay: FaultDelay| proto::FaultDelay {
        share_ppm: delay.share_ppm,
        time_nanoseconds: to_nanoseconds(delay.duration),
    };
    let abort_to_wire = |abort: &FaultAbort| proto::FaultAbort {
        share_ppm: abort.share_ppm,
        response: response_to_wire(&abort.response),
        grpc: abort.grpc.unwrap_or(0).into(),
    };
    proto::FaultRule {
        name: rule.name.clone(),
        requests: rule.requests.iter().map(request::to_wire).collect(),
        peers: rule.peers.iter().map(peer_to_wire).collect(),
        delay: rule.delay.map(delay_to_wire),
        abort: rule.abort.as_ref().map(abort_to_wire),
    }
}

/// Parses a rule, which must have a delay or an abort.
fn rule_from_wire(wire: proto::FaultRule) -> Result<FaultRule, InvalidField> {
    let delay = wire.delay.map(delay_from_wire).transpose();
    let abort = wire.abort.map(abort_from_wire).transpose();
    let rule = FaultRule {
        name: wire.name,
        requests: convert_each("requests", wire.requests, request::from_wire)?,
        peers: convert_each("peers", wire.peers, peer_from_wire)?,
        delay: delay.map_err(|invalid| invalid.with_parent("delay"))?,
        abort: abort.map_err(|invalid| invalid.with_parent("abort"))?,
    };
    match rule.delay.is_none() && rule.abort.is_none() {
        true => Err(InvalidField::new("", "has no effect, or one unknown to this version")),
        false => Ok(rule),
    }
}

fn delay_from_wire(wire: proto::FaultDelay) -> Result<FaultDelay, InvalidField> {
    let duration = parse_duration("time_nanoseconds", wire.time_nanoseconds)?;
    if duration > FaultDelay::MAX_DELAY {
        return Err(InvalidField::new("time_nanoseconds", format!("{duration:?} is too long")));
    }
    Ok(FaultDelay { share_ppm: parse_share(wire.share_ppm)?, duration })
}

/// Parses an abort. The gRPC status 0 (OK) stands for an abort without a gRPC status.
fn abort_from_wire(wire: proto::FaultAbort) -> Result<FaultAbort, InvalidField> {
    let response =
        response_from_wire(wire.response).map_err(|invalid| invalid.with_parent("response"))?;
    let grpc = parse_u8("grpc", wire.grpc, 0, 16)?;
    Ok(FaultAbort {
        share_ppm: parse_share(wire.share_ppm)?,
        response,
        grpc: (grpc > 0).then_some(grpc),
    })
}

/// Parses a share of requests in parts per million.
pub(super) fn parse_share(ppm: u32) -> Result<u32, InvalidField> {
    match ppm {
        ..=1_000_000 => Ok(ppm),
        _ => Err(InvalidField::new("share_ppm", format!("{ppm} is more than the whole"))),
    }
}
