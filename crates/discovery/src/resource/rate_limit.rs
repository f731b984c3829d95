//! Converts the rate and concurrency limits of application ports to and from the wire.

use std::time::Duration;

use leno_model::{
    AdaptiveConcurrency, Concurrency, PortLimits, Rate, RateLimitKey, RateLimits, RateRule,
};

use super::circuit_breaker::{response_from_wire, response_to_wire};
use super::field::{InvalidField, convert_each, parse_port, to_nanoseconds};
use super::inbound::{peer_from_wire, peer_to_wire};
use super::traffic_policy::{policy_from_wire, policy_to_wire};
use super::{request, request_check};
use crate::proto;

pub(super) fn to_wire((port, policies): (&u16, &Vec<PortLimits>)) -> proto::LimitedPort {
    let limits_to_wire = |limits: &PortLimits| proto::RateLimits {
        policy: Some(policy_to_wire(&limits.policy)),
        connections: limits.limits.connections.map(rate_to_wire),
        rules: limits.limits.rules.iter().map(rule_to_wire).collect(),
        concurrency: limits.limits.concurrency.as_ref().map(concurrency_to_wire),
        global: limits.limits.global.as_deref().map(request_check::limit_to_wire),
    };
    proto::LimitedPort {
        port: u32::from(*port),
        policies: policies.iter().map(limits_to_wire).collect(),
    }
}

pub(super) fn from_wire(wire: proto::LimitedPort) -> Result<(u16, Vec<PortLimits>), InvalidField> {
    let policies = convert_each("policies", wire.policies, limits_from_wire)?;
    if policies.is_empty() {
        return Err(InvalidField::new("policies", "is empty"));
    }
    Ok((parse_port("port", wire.port)?, policies))
}

/// Parses the limits of one policy, at least one.
fn limits_from_wire(wire: proto::RateLimits) -> Result<PortLimits, InvalidField> {
    let connections = wire.connections.map(rate_from_wire).transpose();
    let concurrency = wire.concurrency.map(concurrency_from_wire).transpose();
    let global = wire.global.map(request_check::limit_from_wire).transpose();
    let limits = RateLimits {
        connections: connections.map_err(|invalid| invalid.with_parent("connections"))?,
        rules: convert_each("rules", wire.rules, rule_from_wire)?,
        concurrency: concurrency.map_err(|invalid| invalid.with_parent("concurrency"))?,
        global: global.map_err(|invalid| invalid.with_parent("global"))?.map(Box::new),
    };
    if limits.is_empty() {
        return Err(InvalidField::new("", "has no limit, or one unknown to this version"));
    }
    Ok(PortLimits { policy: policy_from_wire(wire.policy)?, limits })
}

fn rule_to_wire(rule: &RateRule) -> proto::RateRule {
    use proto::rate_rule::Key as Wire;
    let (key, buckets) = match &rule.key {
        RateLimitKey::None => (Wire::Nothing(proto::Nothing {}), 0),
        RateLimitKey::Client { buckets } => (Wire::Client(proto::Nothing {}), *buckets),
        RateLimitKey::Header { name, buckets } => (Wire::Header(name.clone()), *buckets),
    };
    proto::RateRule {
        name: rule.name.clone(),
        requests: rule.requests.iter().map(request::to_wire).collect(),
        peers: rule.peers.iter().map(peer_to_wire).collect(),
        key: Some(key),
        buckets,
        rate: Some(rate_to_wire(rule.rate)),
        stop: rule.stop,
        response: response_to_wire(&rule.response),
    }
}

/// Parses a rule. The number of buckets is 0 for one bucket for all requests, and at least 1 for a bucket per
/// client or header value.
fn rule_from_wire(wire: proto::RateRule) -> Result<RateRule, InvalidField> {
    use proto::rate_rule::Key as Wire;
    let buckets = match wire.buckets {
        number if number <= Rate::MAX_BUCKETS => number,
        number => {
            let reason = format!("{number} is more than {}", Rate::MAX_BUCKETS);
            return Err(InvalidField::new("buckets", reason));
        }
    };
    let nonzero_buckets = || match buckets {
        0 => Err(InvalidField::new("buckets", "is 0")),
        buckets => Ok(buckets),
    };
    let key = match wire.key {
        None => return Err(InvalidField::new("key", "is missing, or unknown to this version")),
        Some(Wire::Nothing(proto::Nothing {})) if buckets == 0 => RateLimitKey::None,
        Some(Wire::Nothing(proto::Nothing {})) => {
            return Err(InvalidField::new("buckets", "must be 0 where there is one bucket"));
        }
        Some(Wire::Client(proto::Nothing {})) => {
            RateLimitKey::Client { buckets: nonzero_buckets()? }
        }
        Some(Wire::Header(name)) if name.is_empty() || name.contains(char::is_uppercase) => {
            return Err(InvalidField::new("header", "is not a lowercase header name"));
        }
        Some(Wire::Header(name)) => RateLimitKey::Header { name, buckets: nonzero_buckets()? },
    };
    let rate = wire.rate.ok_or_else(|| InvalidField::new("rate", "is missing"))?;
    Ok(RateRule {
        name: wire.name,
        requests: convert_each("requests", wire.requests, request::from_wire)?,
        peers: convert_each("peers", wire.peers, peer_from_wire)?,
        key,
        rate: rate_from_wire(rate).map_err(|invalid| invalid.with_parent("rate"))?,
        stop: wire.stop,
        response: response_from_wire(wire.response)
            .map_err(|invalid| invalid.with_parent("response"))?,
    })
}

fn concurrency_to_wire(concurrency: &Concurrency) -> proto::Concurrency {
    let adaptive_to_wire = |adaptive: AdaptiveConcurrency| proto::AdaptiveConcurrency {
        min_concurrency: adaptive.min_concurrency,
        latency_tolerance_percent: adaptive.latency_tolerance_percent.into(),
    };
    proto::Concurrency {
        requests: concurrency.requests,
        adaptive: concurrency.adaptive.map(adaptive_to_wire),
        response: response_to_wire(&concurrency.response),
    }
}

/// Parses concurrency limits: from 1 to the maximum number of tokens, with a minimum that is at most the limit.
fn concurrency_from_wire(wire: proto::Concurrency) -> Result<Concurrency, InvalidField> {
    let requests = wire.requests;
    if !(1..=Rate::MAX_TOKENS).contains(&requests) {
        return Err(InvalidField::new(
            "requests",
            format!("{requests} is not from 1 to {}", Rate::MAX_TOKENS),
        ));
    }
    let parse_adaptive = |wire: proto::AdaptiveConcurrency| {
        let (min_concurrency, tolerance_percent) =
            (wire.min_concurrency, wire.latency_tolerance_percent);
        if !(1..=requests).contains(&min_concurrency) {
            return Err(InvalidField::new(
                "min_concurrency",
                format!("{min_concurrency} is not from 1 to {requests}"),
            ));
        }
        match u16::try_from(tolerance_percent) {
            Ok(latency_tolerance_percent @ 1..) => {
                Ok(AdaptiveConcurrency { min_concurrency, latency_tolerance_percent })
            }
            _ => Err(InvalidField::new(
                "latency_tolerance_percent",
                format!("{tolerance_percent} is out of range"),
            )),
        }
    };
    let adaptive = wire.adaptive.map(parse_adaptive).transpose();
    Ok(Concurrency {
        requests,
        adaptive: adaptive.map_err(|invalid| invalid.with_parent("adaptive"))?,
        response: response_from_wire(wire.response)
            .map_err(|invalid| invalid.with_parent("response"))?,
    })
}

fn rate_to_wire(rate: Rate) -> proto::Rate {
    proto::Rate {
        count: rate.count,
        time_nanoseconds: to_nanoseconds(rate.period),
        size: rate.burst,
    }
}

fn rate_from_wire(wire: proto::Rate) -> Result<Rate, InvalidField> {
    let parse_count = |field: &str, count: u32, max: u32| match count {
        1.. if count <= max => Ok(count),
        _ => Err(InvalidField::new(field, format!("{count} is not from 1 to {max}"))),
    };
    let period = Duration::from_nanos(wire.time_nanoseconds);
    if !(Rate::MIN_PERIOD..=Rate::MAX_PERIOD).contains(&period) {
        return Err(InvalidField::new("time_nanoseconds", format!("{period:?} is out of range")));
    }
    let count = parse_count("count", wire.count, Rate::MAX_TOKENS)?;
    Ok(Rate { count, period, burst: parse_count("size", wire.size, Rate::MAX_BUCKET_SIZE)? })
}
