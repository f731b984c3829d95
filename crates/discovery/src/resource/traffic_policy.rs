//! Converts a port's traffic policy to and from the wire: outlier detection, and fields that other parts of the
//! policy share.

use std::time::Duration;

use leno_model::{
    EjectionTime, FailureClasses, FailureRate, HealthCheck, HealthProbe, OutlierAlgorithm,
    OutlierDetection, PortOutlierDetection, SermantCommon, SermantRemoval, SermantRule,
    ServicePolicyKind, ServicePolicyName, TrafficPolicy,
};

use super::field::{InvalidField, to_nanoseconds};
use super::{balancing, circuit_breaker, fault};
use crate::proto;

/// Encodes policies; `None` if there are none, so that the encoding of a port without policies is unchanged.
pub(super) fn to_wire(traffic_policy: &TrafficPolicy) -> Option<proto::TrafficPolicy> {
    // Hedging is encoded in another field: a release without hedging would receive an empty message here.
    if (TrafficPolicy { hedging: None, ..traffic_policy.clone() }).is_empty() {
        return None;
    }
    Some(proto::TrafficPolicy {
        outlier_detection: traffic_policy.outlier_detection.as_ref().map(outlier_detection_to_wire),
        breaker: traffic_policy.breaker.as_ref().map(circuit_breaker::to_wire),
        faults: traffic_policy.faults.as_ref().map(fault::to_wire),
        balancing: traffic_policy.balancing.as_ref().map(balancing::to_wire),
    })
}

/// Parses policies, without hedging, which has a field of its own. A present message without any known policy
/// is rejected.
pub(super) fn from_wire(wire: Option<proto::TrafficPolicy>) -> Result<TrafficPolicy, InvalidField> {
    let Some(wire) = wire else {
        return Ok(TrafficPolicy::default());
    };
    let outlier_detection = wire.outlier_detection.map(outlier_detection_from_wire).transpose();
    let outlier_detection =
        outlier_detection.map_err(|invalid| invalid.with_parent("outlier_detection"))?;
    let breaker = wire.breaker.map(circuit_breaker::from_wire).transpose();
    let breaker = breaker.map_err(|invalid| invalid.with_parent("breaker"))?;
    let faults = wire.faults.map(fault::from_wire).transpose();
    let faults = faults.map_err(|invalid| invalid.with_parent("faults"))?;
    let balancing = wire.balancing.map(balancing::from_wire).transpose();
    let balancing = balancing.map_err(|invalid| invalid.with_parent("balancing"))?;
    let traffic_policy =
        TrafficPolicy { outlier_detection, breaker, faults, balancing, hedging: None };
    match traffic_policy.is_empty() {
        true => Err(InvalidField::new("", "is empty, or unknown to this version")),
        false => Ok(traffic_policy),
    }
}

fn outlier_detection_to_wire(
    outlier_detection: &PortOutlierDetection,
) -> proto::PortOutlierDetection {
    let algorithm = match &outlier_detection.algorithm {
        OutlierAlgorithm::Native(rule) => {
            proto::port_outlier_detection::Algorithm::Native(native_to_wire(rule))
        }
        OutlierAlgorithm::Sermant(rule) => {
            proto::port_outlier_detection::Algorithm::Sermant(sermant_to_wire(rule))
        }
    };
    proto::PortOutlierDetection {
        policy: Some(policy_to_wire(&outlier_detection.policy)),
        algorithm: Some(algorithm),
    }
}

fn outlier_detection_from_wire(
    wire: proto::PortOutlierDetection,
) -> Result<PortOutlierDetection, InvalidField> {
    let algorithm = match wire.algorithm {
        None => {
            return Err(InvalidField::new("algorithm", "is missing, or unknown to this version"));
        }
        Some(proto::port_outlier_detection::Algorithm::Native(rule)) => {
            let rule = native_from_wire(rule).map_err(|invalid| invalid.with_parent("native"))?;
            OutlierAlgorithm::Native(rule)
        }
        Some(proto::port_outlier_detection::Algorithm::Sermant(rule)) => {
            let rule = sermant_from_wire(rule).map_err(|invalid| invalid.with_parent("sermant"))?;
            OutlierAlgorithm::Sermant(rule)
        }
    };
    Ok(PortOutlierDetection { policy: policy_from_wire(wire.policy)?, algorithm })
}

pub(super) fn policy_to_wire(policy: &ServicePolicyName) -> proto::ServicePolicy {
    let name = format!("{}/{}", policy.namespace, policy.name);
    proto::ServicePolicy { kind: policy.kind.as_str().to_owned(), name }
}

pub(super) fn policy_from_wire(
    wire: Option<proto::ServicePolicy>,
) -> Result<ServicePolicyName, InvalidField> {
    let wire = wire.ok_or_else(|| InvalidField::new("policy", "is missing"))?;
    let kind = ServicePolicyKind::from_word(&wire.kind)
        .ok_or_else(|| InvalidField::new("policy.kind", "is unknown to this version"))?;
    let (namespace, name) = wire
        .name
        .split_once('/')
        .ok_or_else(|| InvalidField::new("policy.name", "is written `namespace/name`"))?;
    ServicePolicyName::new(kind, namespace, name)
        .map_err(|error| InvalidField::new("policy.name", error))
}

pub(super) fn classes_to_wire(classes: &FailureClasses) -> proto::FailureClasses {
    proto::FailureClasses {
        connect: classes.connect,
        timeout: classes.timeout,
        reset: classes.reset,
        server_errors: classes.server_errors,
        gateway_errors: classes.gateway_errors,
        grpc: classes.grpc.iter().map(|code| u32::from(*code)).collect(),
    }
}

/// Parses failure classes. The gRPC codes must be sorted and unique, so that equal classes have equal
/// encodings.
pub(super) fn classes_from_wire(
    wire: Option<proto::FailureClasses>,
) -> Result<FailureClasses, InvalidField> {
    let wire = wire.ok_or_else(|| InvalidField::new("failures", "is missing"))?;
    let grpc = wire.grpc.into_iter().map(|code| parse_u8("failures.grpc", code, 0, 255));
    let grpc = grpc.collect::<Result<Vec<u8>, _>>()?;
    if !grpc.is_sorted_by(|a, b| a < b) {
        return Err(InvalidField::new("failures.grpc", "is not sorted, or has duplicates"));
    }
    Ok(FailureClasses {
        connect: wire.connect,
        timeout: wire.timeout,
        reset: wire.reset,
        server_errors: wire.server_errors,
        gateway_errors: wire.gateway_errors,
        grpc,
    })
}

fn native_to_wire(rule: &OutlierDetection) -> proto::OutlierDetection {
    proto::OutlierDetection {
        failures: Some(classes_to_wire(&rule.failures)),
        window_nanoseconds: to_nanoseconds(rule.window),
        buckets: rule.buckets.into(),
        percent: rule.failure_rate.map_or(0, |rate| rate.percent.into()),
        min_requests: rule.failure_rate.map_or(0, |rate| rate.min_requests),
        consecutive_failures: rule.consecutive_failures.unwrap_or(0),
        max_ejection_percent: rule.max_ejection_percent.into(),
        min_healthy: rule.min_healthy,
        base_ejection_nanoseconds: to_nanoseconds(rule.ejection_time.base),
        max_ejection_nanoseconds: to_nanoseconds(rule.ejection_time.max),
        ejection_jitter_percent: rule.ejection_time.jitter_percent.into(),
        probe_requests: rule.probe_requests,
        health_check: rule.health_check.as_deref().map(health_check_to_wire),
    }
}

fn health_check_to_wire(check: &HealthCheck) -> proto::HealthCheck {
    use proto::health_check::Probe;
    let probe = match &check.probe {
        HealthProbe::Http { path } => Probe::HttpPath(path.clone()),
        HealthProbe::Grpc { service } => Probe::GrpcService(service.clone()),
    };
    proto::HealthCheck {
        interval_nanoseconds: to_nanoseconds(check.interval),
        timeout_nanoseconds: to_nanoseconds(check.timeout),
        failures: check.failures,
        successes: check.successes,
        probe: Some(probe),
    }
}

/// Parses a health check; `None` if its probe is of an unknown kind.
fn health_check_from_wire(wire: proto::HealthCheck) -> Result<Option<HealthCheck>, InvalidField> {
    use proto::health_check::Probe;
    let probe = match wire.probe {
        Some(Probe::HttpPath(path)) if is_path(&path) => HealthProbe::Http { path },
        Some(Probe::HttpPath(_)) => {
            return Err(InvalidField::new("health_check.http_path", "is not a path"));
        }
        Some(Probe::GrpcService(service)) => HealthProbe::Grpc { service },
        None => return Ok(None),
    };
    let interval = parse_duration("health_check.interval_nanoseconds", wire.interval_nanoseconds)?;
    let timeout = parse_duration("health_check.timeout_nanoseconds", wire.timeout_nanoseconds)?;
    if timeout > interval {
        return Err(InvalidField::new("health_check.timeout_nanoseconds", "is above the interval"));
    }
    Ok(Some(HealthCheck {
        probe,
        interval,
        timeout,
        failures: parse_nonzero("health_check.failures", wire.failures)?,
        successes: parse_nonzero("health_check.successes", wire.successes)?,
    }))
}

/// True for a valid path: it is copied into the request line.
fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Parses native outlier detection: at least one failure condition, and a failure rate only if its percentage
/// is set.
fn native_from_wire(wire: proto::OutlierDetection) -> Result<OutlierDetection, InvalidField> {
    let failures = classes_from_wire(wire.failures)?;
    if failures.is_empty() {
        return Err(InvalidField::new("failures", "has no failure condition"));
    }
    let failure_rate = match wire.percent {
        0 => None,
        percent => {
            let percent = parse_u8("percent", percent, 1, 100)?;
            Some(FailureRate {
                percent,
                min_requests: parse_nonzero("min_requests", wire.min_requests)?,
            })
        }
    };
    Ok(OutlierDetection {
        failures,
        window: parse_duration("window_nanoseconds", wire.window_nanoseconds)?,
        buckets: parse_u8("buckets", wire.buckets, 1, 255)?,
        failure_rate,
        consecutive_failures: (wire.consecutive_failures > 0).then_some(wire.consecutive_failures),
        max_ejection_percent: parse_u8("max_ejection_percent", wire.max_ejection_percent, 0, 100)?,
        min_healthy: parse_nonzero("min_healthy", wire.min_healthy)?,
        ejection_time: EjectionTime {
            base: parse_duration("base_ejection_nanoseconds", wire.base_ejection_nanoseconds)?,
            max: parse_duration("max_ejection_nanoseconds", wire.max_ejection_nanoseconds)?,
            jitter_percent: parse_u8(
                "ejection_jitter_percent",
                wire.ejection_jitter_percent,
                0,
                100,
            )?,
        },
        probe_requests: parse_nonzero("probe_requests", wire.probe_requests)?,
        health_check: match wire.health_check {
            Some(check) => health_check_from_wire(check)?.map(Box::new),
            None => None,
        },
    })
}

fn sermant_to_wire(rule: &SermantRemoval) -> proto::SermantRemoval {
    proto::SermantRemoval {
        failures: Some(classes_to_wire(&rule.common.failures)),
        expire_nanoseconds: to_nanoseconds(rule.common.expire),
        recovery_nanoseconds: to_nanoseconds(rule.common.recovery),
        window_nanoseconds: to_nanoseconds(rule.common.window),
        windows: rule.common.windows,
        scale_up_limit_ppm: rule.rule.scale_up_limit_ppm,
        min_instances: rule.rule.min_instances,
        error_rate_ppm: rule.rule.error_rate_ppm,
    }
}

fn sermant_from_wire(wire: proto::SermantRemoval) -> Result<SermantRemoval, InvalidField> {
    let common = SermantCommon {
        failures: classes_from_wire(wire.failures)?,
        expire: parse_duration("expire_nanoseconds", wire.expire_nanoseconds)?,
        recovery: parse_duration("recovery_nanoseconds", wire.recovery_nanoseconds)?,
        window: parse_duration("window_nanoseconds", wire.window_nanoseconds)?,
        windows: parse_nonzero("windows", wire.windows)?,
    };
    let rule = SermantRule {
        scale_up_limit_ppm: wire.scale_up_limit_ppm,
        min_instances: wire.min_instances,
        error_rate_ppm: wire.error_rate_ppm,
    };
    Ok(SermantRemoval { common, rule })
}

/// Parses a duration of at least a millisecond: a time that is divided into windows must not be zero.
pub(super) fn parse_duration(field: &str, nanoseconds: u64) -> Result<Duration, InvalidField> {
    match Duration::from_nanos(nanoseconds) {
        time if time >= Duration::from_millis(1) => Ok(time),
        time => Err(InvalidField::new(field, format!("{time:?} is less than a millisecond"))),
    }
}

pub(super) fn parse_u8(field: &str, number: u32, min: u8, max: u8) -> Result<u8, InvalidField> {
    match u8::try_from(number) {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(InvalidField::new(field, format!("{number} is not from {min} to {max}"))),
    }
}

pub(super) fn parse_nonzero(field: &str, number: u32) -> Result<u32, InvalidField> {
    match number {
        0 => Err(InvalidField::new(field, "is 0")),
        number => Ok(number),
    }
}
