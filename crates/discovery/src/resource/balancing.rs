//! Converts load balancing settings to and from the wire. They are a part of a port's traffic policy.

use leno_model::{BalanceAlgorithm, HashKey, LoadBalancing, PortLoadBalancing, SlowStart};

use super::field::{InvalidField, to_nanoseconds};
use super::traffic_policy::{parse_duration, parse_u8, policy_from_wire, policy_to_wire};
use crate::proto;
use crate::proto::balancing::Algorithm;
use crate::proto::hash_key::Key;

pub(super) fn to_wire(balancing: &PortLoadBalancing) -> proto::Balancing {
    let nothing = proto::Nothing {};
    let algorithm = match &balancing.rule.algorithm {
        BalanceAlgorithm::PeakEwma { choices } | BalanceAlgorithm::LeastRequest { choices } => {
            Algorithm::LeastRequest((*choices).into())
        }
        BalanceAlgorithm::RoundRobin => Algorithm::RoundRobin(nothing),
        BalanceAlgorithm::Random => Algorithm::Random(nothing),
        BalanceAlgorithm::RingHash(key) => Algorithm::RingHash(key_to_wire(key)),
        BalanceAlgorithm::Maglev(key) => Algorithm::Maglev(key_to_wire(key)),
    };
    let slow_start_to_wire = |slow_start: SlowStart| proto::SlowStart {
        time_nanoseconds: to_nanoseconds(slow_start.duration),
        min_percent: slow_start.min_percent.into(),
    };
    proto::Balancing {
        policy: Some(policy_to_wire(&balancing.policy)),
        algorithm: Some(algorithm),
        warm_up: balancing.rule.slow_start.map(slow_start_to_wire),
        by_latency: matches!(balancing.rule.algorithm, BalanceAlgorithm::PeakEwma { .. }),
    }
}

/// Parses settings. `by_latency` selects peak EWMA instead of least request, and is rejected with other
/// algorithms; slow start is rejected with hash-based algorithms.
pub(super) fn from_wire(wire: proto::Balancing) -> Result<PortLoadBalancing, InvalidField> {
    let algorithm = match wire.algorithm {
        None => {
            return Err(InvalidField::new("algorithm", "is missing, or unknown to this version"));
        }
        Some(Algorithm::LeastRequest(choices)) => {
            let choices = parse_u8("least_request", choices, 2, LoadBalancing::MAX_CHOICES)?;
            match wire.by_latency {
                true => BalanceAlgorithm::PeakEwma { choices },
                false => BalanceAlgorithm::LeastRequest { choices },
            }
        }
        Some(_) if wire.by_latency => {
            return Err(InvalidField::new(
                "by_latency",
                "must be absent except with least_request",
            ));
        }
        Some(Algorithm::RoundRobin(proto::Nothing {})) => BalanceAlgorithm::RoundRobin,
        Some(Algorithm::Random(proto::Nothing {})) => BalanceAlgorithm::Random,
        Some(Algorithm::RingHash(key)) => BalanceAlgorithm::RingHash(key_from_wire(key)?),
        Some(Algorithm::Maglev(key)) => BalanceAlgorithm::Maglev(key_from_wire(key)?),
    };
    let slow_start = match wire.warm_up {
        None => None,
        Some(_) if algorithm.hash_key().is_some() => {
            return Err(InvalidField::new("warm_up", "must be absent with a hash"));
        }
        Some(proto::SlowStart { time_nanoseconds, min_percent }) => Some(SlowStart {
            duration: parse_duration("warm_up.time_nanoseconds", time_nanoseconds)?,
            min_percent: parse_u8("warm_up.min_percent", min_percent, 1, 100)?,
        }),
    };
    let rule = LoadBalancing { algorithm, slow_start };
    Ok(PortLoadBalancing { policy: policy_from_wire(wire.policy)?, rule })
}

fn key_to_wire(key: &HashKey) -> proto::HashKey {
    let key = match key {
        HashKey::Header(name) => Key::Header(name.clone()),
        HashKey::Cookie(name) => Key::Cookie(name.clone()),
        HashKey::Source => Key::Source(proto::Nothing {}),
    };
    proto::HashKey { key: Some(key) }
}

fn key_from_wire(wire: proto::HashKey) -> Result<HashKey, InvalidField> {
    match wire.key {
        None => Err(InvalidField::new("key", "is missing, or unknown to this version")),
        Some(Key::Header(name)) if name.is_empty() || name.contains(char::is_uppercase) => {
            Err(InvalidField::new("key.header", "is not a lowercase header name"))
        }
        Some(Key::Header(name)) => Ok(HashKey::Header(name)),
        Some(Key::Cookie(name)) if name.is_empty() => {
            Err(InvalidField::new("key.cookie", "is empty"))
        }
        Some(Key::Cookie(name)) => Ok(HashKey::Cookie(name)),
        Some(Key::Source(proto::Nothing {})) => Ok(HashKey::Source),
    }
}
