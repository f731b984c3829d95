//! Describes the policies that apply to a request, for `leno explain request`: the effect of each in one sentence.

use std::sync::Arc;

use leno_model::{
    BalanceAlgorithm, BodyExcerpt, CheckService, CircuitBreaker, Concurrency, FailureClasses,
    FailureMode, FaultRule, GlobalLimit, HashKey, HealthCheck, HealthProbe, HedgeMethod, HedgeRule,
    LoadBalancing, LongBodyAction, OutlierAlgorithm, OutlierDetection, PortLoadBalancing,
    PortOutlierDetection, Rate, RateLimitKey, RateRule, Reason, RequestThreshold, SermantRemoval,
    ServicePolicyName, TripConditions,
};
use leno_traffic::request_checks::{
    CompiledAuthorization, CompiledGlobalLimit, CompiledJwtValidation,
};
use leno_traffic::traffic_policy::{CompiledCircuitBreaker, PortTrafficPolicy};

use crate::figures::format_count;

/// A policy, with the description of its effect on a request.
#[derive(Debug)]
pub(super) struct PolicyEffect {
    pub(super) policy: ServicePolicyName,
    pub(super) description: String,
}

/// Describes the policies of a port that apply to every request, or to every connection if the port is opaque
/// (`is_opaque`).
pub(super) fn describe_policies(
    traffic_policy: &PortTrafficPolicy,
    is_opaque: bool,
) -> Vec<PolicyEffect> {
    // On an opaque connection, a policy applies only if it acts on connections.
    let detection_applies = |outlier_detection: &&Arc<PortOutlierDetection>| {
        !is_opaque || outlier_detection.acts_on_connections()
    };
    let outlier_detection = traffic_policy.outlier_detection.iter().filter(detection_applies).map(
        |outlier_detection| PolicyEffect {
            policy: outlier_detection.policy.clone(),
            description: match &outlier_detection.algorithm {
                OutlierAlgorithm::Native(rule) => describe_outlier_detection(rule),
                OutlierAlgorithm::Sermant(rule) => describe_sermant_detection(rule),
            },
        },
    );
    let describe_breaker = |compiled: &Arc<CompiledCircuitBreaker>| {
        let rule = &compiled.breaker.rule;
        let description = match is_opaque {
            false => describe_circuit_breaker(rule),
            true => describe_circuit_breaker(
                &Some(rule).filter(|rule| rule.acts_on_connections())?.for_connections(),
            ),
        };
        Some(PolicyEffect { policy: compiled.breaker.policy.clone(), description })
    };
    let service_breaker =
        traffic_policy.called_breaker.iter().filter_map(describe_breaker).map(|effect| {
            PolicyEffect {
                description: format!(
                    "across all backends of the called service, {}",
                    effect.description
                ),
                ..effect
            }
        });
    let backend_breaker = traffic_policy.breaker.iter().filter_map(describe_breaker);
    let balancing_applies =
        |balancing: &&Arc<PortLoadBalancing>| !is_opaque || balancing.rule.acts_on_connections();
    let balancing =
        traffic_policy.balancing.iter().filter(balancing_applies).map(|balancing| PolicyEffect {
            policy: balancing.policy.clone(),
            description: describe_load_balancing(&balancing.rule),
        });
    let hedging =
        traffic_policy.hedging.iter().filter(|_| !is_opaque).map(|hedging| PolicyEffect {
            policy: hedging.policy.clone(),
            description: describe_hedging(&hedging.rule),
        });
    outlier_detection
        .chain(service_breaker)
        .chain(backend_breaker)
        .chain(balancing)
        .chain(hedging)
        .collect()
}

/// Describes the fault injection rule that applies to a request.
pub(super) fn describe_fault(policy: &ServicePolicyName, rule: &FaultRule) -> PolicyEffect {
    let describe_share = |ppm: u32| format!("{} % of such requests", f64::from(ppm) / 1e4);
    let delay = rule
        .delay
        .map(|delay| format!("delays {} by {:?}", describe_share(delay.share_ppm), delay.duration));
    let abort = rule.abort.as_ref().map(|abort| {
        let status = abort.response.status.unwrap_or(Reason::FaultInjected.status());
        format!("aborts {} with {status}", describe_share(abort.share_ppm))
    });
    let faults: Vec<String> = delay.into_iter().chain(abort).collect();
    PolicyEffect {
        policy: policy.clone(),
        description: format!("{} {}", rule.name, faults.join(" and ")),
    }
}

fn describe_hedging(rule: &HedgeRule) -> String {
    let methods: Vec<&str> = rule.methods.iter().map(HedgeMethod::as_str).collect();
    let methods_text = match methods.is_empty() {
        true => "an idempotent method".to_owned(),
        false => format!("the method {}", methods.join(" or ")),
    };
    format!("hedges requests with {methods_text} to a second endpoint after {:?}", rule.after)
}

fn describe_load_balancing(rule: &LoadBalancing) -> String {
    let describe_key = |hash_key: &HashKey| match hash_key {
        HashKey::Header(name) => format!("the header {name}"),
        HashKey::Cookie(name) => format!("the cookie {name}"),
        HashKey::Source => "the client workload".to_owned(),
    };
    let algorithm_text = match &rule.algorithm {
        BalanceAlgorithm::PeakEwma { choices } => {
            format!(
                "picks the endpoint with the least load, by latency (peak EWMA) and requests in \
                 flight, of {choices} chosen at random"
            )
        }
        BalanceAlgorithm::LeastRequest { choices } => {
            format!(
                "picks the endpoint with the fewest requests in flight of {choices} chosen at random"
            )
        }
        BalanceAlgorithm::RoundRobin => "picks endpoints in turn".to_owned(),
        BalanceAlgorithm::Random => "picks a random endpoint".to_owned(),
        BalanceAlgorithm::RingHash(hash_key) => {
            format!("picks the endpoint by a ring hash of {}", describe_key(hash_key))
        }
        BalanceAlgorithm::Maglev(hash_key) => {
            format!("picks the endpoint by a Maglev hash of {}", describe_key(hash_key))
        }
    };
    match rule.slow_start {
        None => algorithm_text,
        Some(slow_start) => {
            format!(
                "{algorithm_text}; slow start of new endpoints from {} %, over {:?}",
                slow_start.min_percent, slow_start.duration
            )
        }
    }
}

/// Describes a rate limit rule.
pub(super) fn describe_rate_limit(policy: &ServicePolicyName, rule: &RateRule) -> PolicyEffect {
    let scope = match &rule.key {
        RateLimitKey::None => "in total".to_owned(),
        RateLimitKey::Client { .. } => "per client".to_owned(),
        RateLimitKey::Header { name, .. } => format!("per value of {name}"),
    };
    let status = rule.response.status.unwrap_or(Reason::RateLimited.status());
    let description = format!(
        "{} allows {} {scope}; the rest receives {status}",
        rule.name,
        describe_rate(rule.rate, "request")
    );
    PolicyEffect { policy: policy.clone(), description }
}

/// Describes a rate limit of opaque connections.
pub(super) fn describe_connection_limit(policy: &ServicePolicyName, limit: Rate) -> PolicyEffect {
    let description = format!("allows {} in total", describe_rate(limit, "connection"));
    PolicyEffect { policy: policy.clone(), description }
}

/// Describes a concurrency limit.
pub(super) fn describe_concurrency(policy: &ServicePolicyName, rule: &Concurrency) -> PolicyEffect {
    let Concurrency { requests, adaptive, response } = rule;
    let status = response.status.unwrap_or(Reason::Overloaded.status());
    let adaptive_text = adaptive
        .map(|adaptive| {
            format!(
                ", down to {} while latency is {} % above that of an idle application",
                adaptive.min_concurrency, adaptive.latency_tolerance_percent
            )
        })
        .unwrap_or_default();
    let description = format!(
        "allows at most {} in flight{adaptive_text}; the rest receives {status}",
        format_count(*requests, "request")
    );
    PolicyEffect { policy: policy.clone(), description }
}

/// Describes the JWT issuers whose tokens the policy accepts; with `is_required` a request must have a token.
pub(super) fn describe_jwt_validation(
    validation: &CompiledJwtValidation,
    is_required: bool,
) -> PolicyEffect {
    let issuers: Vec<&str> =
        validation.rule.issuers.iter().map(|issuer| issuer.issuer.as_str()).collect();
    let verb = if is_required { "requires" } else { "accepts" };
    let description = format!("{verb} a token of {}", issuers.join(" or "));
    PolicyEffect { policy: validation.policy.clone(), description }
}

/// Describes an external authorization check.
pub(super) fn describe_authorization(authorization: &CompiledAuthorization) -> PolicyEffect {
    let check_service = &authorization.rule.check_service;
    let body_text = authorization.rule.body.map(describe_body).unwrap_or_default();
    let description = format!(
        "queries the authorization service {}{body_text}; {}",
        check_service.address,
        describe_timeout(check_service)
    );
    PolicyEffect { policy: authorization.policy.clone(), description }
}

/// Describes a check with a rate limit service.
pub(super) fn describe_global_limit(global_limit: &CompiledGlobalLimit) -> PolicyEffect {
    let GlobalLimit { check_service, domain, .. } = &global_limit.rule;
    let status = global_limit.rule.response.status.unwrap_or(Reason::RateLimited.status());
    let description = format!(
        "queries the rate limit service {} for the domain {domain:?}, and responds with {status} over the limit; {}",
        check_service.address,
        describe_timeout(check_service)
    );
    PolicyEffect { policy: global_limit.policy.clone(), description }
}

fn describe_body(body: BodyExcerpt) -> String {
    let long_body_text = match body.long_body {
        LongBodyAction::SendPrefix => "longer ones are truncated",
        LongBodyAction::Reject => "longer ones are rejected",
    };
    format!(", with bodies of up to {} bytes ({long_body_text})", body.max_bytes)
}

fn describe_timeout(check_service: &CheckService) -> String {
    let failure_result = match check_service.failure_mode {
        FailureMode::Allow => "allowed",
        FailureMode::Deny => "denied",
    };
    format!(
        "if it does not respond in {:?}, the request is {failure_result}",
        check_service.timeout
    )
}

fn describe_rate(rate: Rate, noun: &str) -> String {
    format!("{} per {:?} (burst {})", format_count(rate.count, noun), rate.period, rate.burst)
}

fn describe_outlier_detection(rule: &OutlierDetection) -> String {
    let rate_condition = rule.failure_rate.map(|rate| {
        format!(
            "{} % of at least {} in {:?} failed",
            rate.percent,
            format_count(rate.min_requests, "request"),
            rule.window
        )
    });
    let consecutive_failures =
        rule.consecutive_failures.map(|count| format!("{count} in a row failed"));
    let conditions: Vec<String> = rate_condition.into_iter().chain(consecutive_failures).collect();
    let health_check = rule.health_check.as_deref().map(describe_health_check).unwrap_or_default();
    format!(
        "ejects an endpoint when {} ({}), for {:?} to {:?}{health_check}; at most {} % are ejected, at least {}",
        conditions.join(" or "),
        describe_failure_classes(&rule.failures),
        rule.ejection_time.base,
        rule.ejection_time.max,
        rule.max_ejection_percent,
        describe_min_healthy(rule.min_healthy),
    )
}

/// Describes the minimum number of endpoints that outlier detection does not eject.
fn describe_min_healthy(count: u32) -> String {
    if count == 1 { "1 stays".to_owned() } else { format!("{count} stay") }
}

fn describe_health_check(check: &HealthCheck) -> String {
    let probe = match &check.probe {
        HealthProbe::Http { path } => format!("GET {path}"),
        HealthProbe::Grpc { service } if service.is_empty() => "its gRPC health".to_owned(),
        HealthProbe::Grpc { service } => format!("the gRPC health of {service}"),
    };
    format!(
        ", and when {} of its health checks in a row failed ({probe} every {:?}, timeout {:?}), until {} in a row succeeded",
        check.failures, check.interval, check.timeout, check.successes
    )
}

fn describe_circuit_breaker(rule: &CircuitBreaker) -> String {
    let limits = [
        (rule.limits.connections, "TCP connection", ""),
        (rule.limits.requests, "request", ""),
        (rule.limits.pending, "request", " waiting for a connection"),
        (rule.limits.retries, "retry", ""),
    ];
    let limit_texts: Vec<String> = limits
        .into_iter()
        .filter_map(|(count, noun, state)| Some(format!("{}{state}", format_count(count?, noun))))
        .collect();
    let limits_text = (!limit_texts.is_empty())
        .then(|| format!("limits concurrency to {}", limit_texts.join(", ")));
    let timeout_text = rule.connect_timeout.map(|time| format!("connect timeout {time:?}"));
    let response_text =
        rule.response.status.map(|status| format!("responds with {status} while open"));
    let effects =
        limits_text.into_iter().chain(timeout_text).chain(rule.trip.as_ref().map(describe_trip));
    effects.chain(response_text).collect::<Vec<_>>().join("; ")
}

fn describe_trip(trip: &TripConditions) -> String {
    let describe_threshold = |threshold: RequestThreshold, outcome: &str| {
        let share_condition = threshold.share_ppm.map(|ppm| {
            format!(
                "{} % of at least {} in {:?} {outcome}",
                f64::from(ppm) / 1e4,
                format_count(trip.min_requests, "request"),
                trip.window
            )
        });
        let count_condition = threshold.count.map(|count| {
            format!("{} in {:?} {outcome}", format_count(count, "request"), trip.window)
        });
        share_condition.into_iter().chain(count_condition).collect::<Vec<_>>()
    };
    let mut conditions = describe_threshold(trip.failure_threshold, "failed");
    conditions.extend(trip.consecutive_failures.map(|count| format!("{count} in a row failed")));
    if let Some(slow) = trip.slow_requests {
        conditions.extend(describe_threshold(
            slow.threshold,
            &format!("took {:?} or longer", slow.min_duration),
        ));
    }
    format!(
        "opens the circuit for {:?} when {} ({})",
        trip.open_duration,
        conditions.join(" or "),
        describe_failure_classes(&trip.failures)
    )
}

fn describe_sermant_detection(rule: &SermantRemoval) -> String {
    let to_share = |ppm: u32| f64::from(ppm) / 1e6;
    format!(
        "ejects an instance, as Sermant does, at an error rate of {} ({}) in {} of {:?}, \
         for {:?}; at most a share of {} is ejected, at least {}",
        to_share(rule.rule.error_rate_ppm),
        describe_failure_classes(&rule.common.failures),
        format_count(rule.common.windows, "window"),
        rule.common.window,
        rule.common.recovery,
        to_share(rule.rule.scale_up_limit_ppm),
        rule.rule.min_instances,
    )
}

fn describe_failure_classes(failures: &FailureClasses) -> String {
    let classes = [
        (failures.connect, "connect"),
        (failures.timeout, "timeout"),
        (failures.reset, "reset"),
        (failures.server_errors, "5xx"),
        (failures.gateway_errors, "gateway"),
    ];
    let class_names =
        classes.into_iter().filter(|(is_counted, _)| *is_counted).map(|(_, name)| name.to_owned());
    let grpc_names = failures.grpc.iter().map(|code| format!("gRPC status {code}"));
    let names: Vec<String> = class_names.chain(grpc_names).collect();
    match names.is_empty() {
        true => "no failures count".to_owned(),
        false => names.join(", "),
    }
}
