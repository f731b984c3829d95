//! Wire conversion of rate limits.

use std::time::Duration;

use leno_model::{AdaptiveConcurrency, Concurrency, Each, PortLimits, Rate, RateLimits, RateRule};

use super::breaker::{answer_from_wire, answer_to_wire};
use super::field::{Invalid, convert_each, parse_port};
use super::inbound::{peer_from_wire, peer_to_wire};
use super::traffic_policy::{policy_from_wire, policy_to_wire, to_nanoseconds};
use super::{guard, request};
use crate::proto;

pub(super) fn to_wire((port, policies): (&u16, &Vec<PortLimits>)) -> proto::LimitedPort {
    let limits = |limits: &PortLimits| proto::RateLimits {
        policy: Some(policy_to_wire(&limits.policy)),
        connections: limits.limits.connections.map(rate_to_wire),
        rules: limits.limits.rules.iter().map(rule_to_wire).collect(),
        concurrency: limits.limits.concurrency.as_ref().map(concurrency_to_wire),
        global: limits.limits.global.as_deref().map(guard::limit_to_wire),
    };
    proto::LimitedPort { port: u32::from(*port), policies: policies.iter().map(limits).collect() }
}

pub(super) fn from_wire(wire: proto::LimitedPort) -> Result<(u16, Vec<PortLimits>), Invalid> {
    let policies = convert_each("policies", wire.policies, limits_from_wire)?;
    if policies.is_empty() {
        return Err(Invalid::new("policies", "is empty"));
    }
    Ok((parse_port("port", wire.port)?, policies))
}

fn limits_from_wire(wire: proto::RateLimits) -> Result<PortLimits, Invalid> {
    let connections = wire.connections.map(rate_from_wire).transpose();
    let concurrency = wire.concurrency.map(concurrency_from_wire).transpose();
    let global = wire.global.map(guard::limit_from_wire).transpose();
    let limits = RateLimits {
        connections: connections.map_err(|invalid| invalid.with_parent("connections"))?,
        rules: convert_each("rules", wire.rules, rule_from_wire)?,
        concurrency: concurrency.map_err(|invalid| invalid.with_parent("concurrency"))?,
        global: global.map_err(|invalid| invalid.with_parent("global"))?.map(Box::new),
    };
    if limits.is_empty() {
        return Err(Invalid::new("", "has no limit, or one unknown to this version"));
    }
    Ok(PortLimits { policy: policy_from_wire(wire.policy)?, limits })
}

fn rule_to_wire(rule: &RateRule) -> proto::RateRule {
    use proto::rate_rule::Each as Wire;
    let (each, buckets) = match &rule.each {
        Each::Nothing => (Wire::Nothing(proto::Nothing {}), 0),
        Each::Client { buckets } => (Wire::Client(proto::Nothing {}), *buckets),
        Each::Header { name, buckets } => (Wire::Header(name.clone()), *buckets),
    };
    proto::RateRule {
        name: rule.name.clone(),
        requests: rule.requests.iter().map(request::to_wire).collect(),
        peers: rule.peers.iter().map(peer_to_wire).collect(),
        each: Some(each),
        buckets,
        rate: Some(rate_to_wire(rule.rate)),
        last: rule.is_last,
        answer: answer_to_wire(&rule.answer),
    }
}

fn rule_from_wire(wire: proto::RateRule) -> Result<RateRule, Invalid> {
    use proto::rate_rule::Each as Wire;
    let buckets = match wire.buckets {
        number if number <= Rate::BUCKETS_MAX => number,
        number => return Err(Invalid::new("buckets", format!("{number} are too many"))),
    };
    let several = || match buckets {
        0 => Err(Invalid::new("buckets", "is 0")),
        buckets => Ok(buckets),
    };
    let by = match wire.each {
        None => return Err(Invalid::new("each", "is missing, or unknown to this version")),
        Some(Wire::Nothing(proto::Nothing {})) if buckets == 0 => Each::Nothing,
        Some(Wire::Nothing(proto::Nothing {})) => {
            return Err(Invalid::new("buckets", "must be 0 where there is one bucket"));
        }
        Some(Wire::Client(proto::Nothing {})) => Each::Client { buckets: several()? },
        Some(Wire::Header(name)) if name.is_empty() || name.contains(char::is_uppercase) => {
            return Err(Invalid::new("header", "is not a lowercase header name"));
        }
        Some(Wire::Header(name)) => Each::Header { name, buckets: several()? },
    };
    let rate = wire.rate.ok_or_else(|| Invalid::new("rate", "is missing"))?;
    Ok(RateRule {
        name: wire.name,
        requests: convert_each("requests", wire.requests, request::from_wire)?,
        peers: convert_each("peers", wire.peers, peer_from_wire)?,
        each: by,
        rate: rate_from_wire(rate).map_err(|invalid| invalid.with_parent("rate"))?,
        is_last: wire.last,
        answer: answer_from_wire(wire.answer).map_err(|invalid| invalid.with_parent("answer"))?,
    })
}

fn concurrency_to_wire(concurrency: &Concurrency) -> proto::Concurrency {
    let adaptive = |adaptive: AdaptiveConcurrency| proto::AdaptiveConcurrency {
        least: adaptive.least,
        slower_percent: adaptive.slower_percent.into(),
    };
    proto::Concurrency {
        requests: concurrency.requests,
        adaptive: concurrency.adaptive.map(adaptive),
        answer: answer_to_wire(&concurrency.answer),
    }
}

fn concurrency_from_wire(wire: proto::Concurrency) -> Result<Concurrency, Invalid> {
    let requests = wire.requests;
    if !(1..=Rate::COUNT_MAX).contains(&requests) {
        return Err(Invalid::new(
            "requests",
            format!("{requests} is not from 1 to {}", Rate::COUNT_MAX),
        ));
    }
    let adaptive = |wire: proto::AdaptiveConcurrency| {
        let (least, slower) = (wire.least, wire.slower_percent);
        if !(1..=requests).contains(&least) {
            return Err(Invalid::new("least", format!("{least} is not from 1 to {requests}")));
        }
        match u16::try_from(slower) {
            Ok(slower_percent @ 1..) => Ok(AdaptiveConcurrency { least, slower_percent }),
            _ => Err(Invalid::new("slower_percent", format!("{slower} is out of range"))),
        }
    };
    let adaptive = wire.adaptive.map(adaptive).transpose();
    Ok(Concurrency {
        requests,
        adaptive: adaptive.map_err(|invalid| invalid.with_parent("adaptive"))?,
        answer: answer_from_wire(wire.answer).map_err(|invalid| invalid.with_parent("answer"))?,
    })
}

fn rate_to_wire(rate: Rate) -> proto::Rate {
    proto::Rate { count: rate.count, time_nanoseconds: to_nanoseconds(rate.time), size: rate.size }
}

fn rate_from_wire(wire: proto::Rate) -> Result<Rate, Invalid> {
    let number = |field: &str, number: u32, most: u32| match number {
        1.. if number <= most => Ok(number),
        _ => Err(Invalid::new(field, format!("{number} is not from 1 to {most}"))),
    };
    let time = Duration::from_nanos(wire.time_nanoseconds);
    if !(Rate::TIME_MIN..=Rate::TIME_MAX).contains(&time) {
        return Err(Invalid::new("time_nanoseconds", format!("{time:?} is out of range")));
    }
    let count = number("count", wire.count, Rate::COUNT_MAX)?;
    Ok(Rate { count, time, size: number("size", wire.size, Rate::SIZE_MAX)? })
}
