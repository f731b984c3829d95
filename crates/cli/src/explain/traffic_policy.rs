//! Descriptions of the policies that apply to requests to a port, a sentence each.

use std::sync::Arc;

use leno_model::{
    BalanceAlgorithm, BodyExcerpt, CheckService, CircuitBreaker, Concurrency, FailureClasses,
    FailureMode, FailureThreshold, FaultRule, GlobalLimit, HashKey, HealthCheck, HealthProbe,
    HedgeRule, LoadBalancing, LongBodyAction, OutlierAlgorithm, OutlierDetection,
    PortLoadBalancing, PortOutlierDetection, Rate, RateLimitKey, RateRule, Reason, SermantRemoval,
    ServicePolicyName, TripConditions,
};
use leno_traffic::request_checks::{
    CompiledAuthorization, CompiledGlobalLimit, CompiledJwtValidation,
};
use leno_traffic::traffic_policy::{CompiledCircuitBreaker, PortTrafficPolicy};

use crate::figures::format_count;

/// A policy and its effect.
#[derive(Debug)]
pub(super) struct PolicyEffect {
    pub(super) policy: ServicePolicyName,
    pub(super) reported: String,
}

/// Describes the policies of a port that apply to every request, or to every connection if the port is opaque
/// (`is_opaque`).
pub(super) fn list_policies(
    traffic_policy: &PortTrafficPolicy,
    is_opaque: bool,
) -> Vec<PolicyEffect> {
    let acts = |outlier_detection: &&Arc<PortOutlierDetection>| {
        !is_opaque || outlier_detection.acts_on_connections()
    };
    let outlier_detection =
        traffic_policy.outlier_detection.iter().filter(acts).map(|outlier_detection| {
            PolicyEffect {
                policy: outlier_detection.policy.clone(),
                reported: match &outlier_detection.algorithm {
                    OutlierAlgorithm::Native(rule) => describe_outlier_detection(rule),
                    OutlierAlgorithm::Sermant(rule) => describe_sermant_detection(rule),
                },
            }
        });
    let breaks = |breaker: &Arc<CompiledCircuitBreaker>| {
        let rule = &breaker.breaker.rule;
        let reported = match is_opaque {
            false => describe_circuit_breaker(rule),
            true => describe_circuit_breaker(
                &Some(rule).filter(|it| it.acts_on_connections())?.for_connections(),
            ),
        };
        Some(PolicyEffect { policy: breaker.breaker.policy.clone(), reported })
    };
    let called = traffic_policy.called.iter().filter_map(breaks).map(|it| PolicyEffect {
        reported: format!("across all backends of the called service, {}", it.reported),
        ..it
    });
    let breaker = traffic_policy.breaker.iter().filter_map(breaks);
    let acts = |it: &&Arc<PortLoadBalancing>| !is_opaque || it.rule.acts_on_connections();
    let balancing = traffic_policy.balancing.iter().filter(acts).map(|balancing| PolicyEffect {
        policy: balancing.policy.clone(),
        reported: describe_load_balancing(&balancing.rule),
    });
    let hedging = traffic_policy.hedging.iter().filter(|_| !is_opaque).map(|hedging| {
        PolicyEffect { policy: hedging.policy.clone(), reported: second_attempt(&hedging.rule) }
    });
    outlier_detection.chain(called).chain(breaker).chain(balancing).chain(hedging).collect()
}

/// Describes the fault injection rule that applies to a request.
pub(super) fn describe_fault(policy: &ServicePolicyName, rule: &FaultRule) -> PolicyEffect {
    let share = |ppm: u32| format!("{} % of such requests", f64::from(ppm) / 1e4);
    let delay =
        rule.delay.map(|delay| format!("delays {} by {:?}", share(delay.share_ppm), delay.time));
    let abort = rule.abort.as_ref().map(|abort| {
        let status = abort.response.status.unwrap_or(Reason::FaultInjected.status());
        format!("aborts {} with {status}", share(abort.share_ppm))
    });
    let reported: Vec<String> = delay.into_iter().chain(abort).collect();
    PolicyEffect {
        policy: policy.clone(),
        reported: format!("{} {}", rule.name, reported.join(" and ")),
    }
}

fn second_attempt(rule: &HedgeRule) -> String {
    let which = match rule.methods.as_slice() {
        [] => "an idempotent method".to_owned(),
        methods => format!("the method {}", methods.join(" or ")),
    };
    format!("hedges requests with {which} to a second endpoint after {:?}", rule.after)
}

fn describe_load_balancing(rule: &LoadBalancing) -> String {
    let key = |key: &HashKey| match key {
        HashKey::Header(name) => format!("the header {name}"),
        HashKey::Cookie(name) => format!("the cookie {name}"),
        HashKey::Source => "the client workload".to_owned(),
    };
    let how = match &rule.algorithm {
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
        BalanceAlgorithm::RingHash(hashed) => {
            format!("picks the endpoint by a ring hash of {}", key(hashed))
        }
        BalanceAlgorithm::Maglev(hashed) => {
            format!("picks the endpoint by a Maglev hash of {}", key(hashed))
        }
    };
    match rule.slow_start {
        None => how,
        Some(warm) => {
            format!(
                "{how}; slow start of new endpoints from {} %, over {:?}",
                warm.percent_min, warm.time
            )
        }
    }
}

/// Describes a rule of a rate limit.
pub(super) fn describe_rate_limit(policy: &ServicePolicyName, rule: &RateRule) -> PolicyEffect {
    let whose = match &rule.key {
        RateLimitKey::Nothing => "in total".to_owned(),
        RateLimitKey::Client { .. } => "per client".to_owned(),
        RateLimitKey::Header { name, .. } => format!("per value of {name}"),
    };
    let status = rule.response.status.unwrap_or(Reason::RateLimited.status());
    let reported = format!(
        "{} allows {} {whose}; the rest receives {status}",
        rule.name,
        describe_rate(rule.rate, "request")
    );
    PolicyEffect { policy: policy.clone(), reported }
}

/// Describes a rate limit of opaque connections.
pub(super) fn limited_connections(policy: &ServicePolicyName, limit: Rate) -> PolicyEffect {
    let reported = format!("allows {} in total", describe_rate(limit, "connection"));
    PolicyEffect { policy: policy.clone(), reported }
}

/// Describes a concurrency limit.
pub(super) fn describe_concurrency(policy: &ServicePolicyName, rule: &Concurrency) -> PolicyEffect {
    let Concurrency { requests, adaptive, response } = rule;
    let status = response.status.unwrap_or(Reason::Overloaded.status());
    let fewer = adaptive.map(|adaptive| {
        format!(
            ", down to {} while latency is {} % above that of an idle application",
            adaptive.min_concurrency, adaptive.latency_tolerance_percent
        )
    });
    let fewer = fewer.unwrap_or_default();
    let reported = format!(
        "allows at most {} in flight{fewer}; the rest receives {status}",
        format_count(*requests, "request")
    );
    PolicyEffect { policy: policy.clone(), reported }
}

/// Describes the tokens that a request may or must have.
pub(super) fn describe_jwt_validation(
    rule: &CompiledJwtValidation,
    is_required: bool,
) -> PolicyEffect {
    let issuers: Vec<&str> = rule.rule.issuers.iter().map(|it| it.issuer.as_str()).collect();
    let must = if is_required { "requires" } else { "accepts" };
    let reported = format!("{must} a token of {}", issuers.join(" or "));
    PolicyEffect { policy: rule.policy.clone(), reported }
}

/// Describes an external authorization check.
pub(super) fn describe_authorization(rule: &CompiledAuthorization) -> PolicyEffect {
    let check_service = &rule.rule.check_service;
    let shown = rule.rule.body.map(describe_body).unwrap_or_default();
    let reported = format!(
        "queries the authorization service {}{shown}; {}",
        check_service.at,
        describe_timeout(check_service)
    );
    PolicyEffect { policy: rule.policy.clone(), reported }
}

/// Describes a check with a rate limit service.
pub(super) fn asked_for_room(rule: &CompiledGlobalLimit) -> PolicyEffect {
    let GlobalLimit { check_service, domain, .. } = &rule.rule;
    let status = rule.rule.response.status.unwrap_or(Reason::RateLimited.status());
    let reported = format!(
        "queries the rate limit service {} for the domain {domain:?}, and responds with {status} over the limit; {}",
        check_service.at,
        describe_timeout(check_service)
    );
    PolicyEffect { policy: rule.policy.clone(), reported }
}

fn describe_body(body: BodyExcerpt) -> String {
    let longer = match body.long_body {
        LongBodyAction::SendPrefix => "longer ones are truncated",
        LongBodyAction::Reject => "longer ones are rejected",
    };
    format!(", with bodies of up to {} bytes ({longer})", body.bytes_max)
}

fn describe_timeout(check_service: &CheckService) -> String {
    let then = match check_service.failure_mode {
        FailureMode::Allow => "allowed",
        FailureMode::Deny => "denied",
    };
    format!("if it does not respond in {:?}, the request is {then}", check_service.timeout)
}

fn describe_rate(rate: Rate, noun: &str) -> String {
    format!("{} per {:?} (burst {})", format_count(rate.count, noun), rate.time, rate.size)
}

fn describe_outlier_detection(rule: &OutlierDetection) -> String {
    let rate = rule.failure_rate.map(|rate| {
        format!(
            "{} % of at least {} in {:?} failed",
            rate.percent,
            format_count(rate.requests_min, "request"),
            rule.window
        )
    });
    let row = rule.consecutive_failures.map(|many| format!("{many} in a row failed"));
    let when: Vec<String> = rate.into_iter().chain(row).collect();
    let check = rule.health_check.as_deref().map(describe_health_check).unwrap_or_default();
    format!(
        "ejects an endpoint when {} ({}), for {:?} to {:?}{check}; at most {} % are ejected, at least {}",
        when.join(" or "),
        describe_failure_classes(&rule.failures),
        rule.ejection_time.base,
        rule.ejection_time.max,
        rule.max_ejection_percent,
        describe_min_healthy(rule.min_healthy),
    )
}

fn describe_min_healthy(count: u32) -> String {
    if count == 1 { "1 stays".to_owned() } else { format!("{count} stay") }
}

fn describe_health_check(check: &HealthCheck) -> String {
    let asked = match &check.probe {
        HealthProbe::Http { path } => format!("GET {path}"),
        HealthProbe::Grpc { service } if service.is_empty() => "its gRPC health".to_owned(),
        HealthProbe::Grpc { service } => format!("the gRPC health of {service}"),
    };
    format!(
        ", and when {} of its health checks in a row failed ({asked} every {:?}, timeout {:?}), until {} in a row succeeded",
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
    let limits = limits
        .into_iter()
        .filter_map(|(most, noun, state)| Some(format!("{}{state}", format_count(most?, noun))));
    let limits: Vec<String> = limits.collect();
    let limits =
        (!limits.is_empty()).then(|| format!("limits concurrency to {}", limits.join(", ")));
    let max_wait = rule.connect_timeout.map(|time| format!("connect timeout {time:?}"));
    let response = rule.response.status.map(|status| format!("responds with {status} while open"));
    let said = limits.into_iter().chain(max_wait).chain(rule.trip.as_ref().map(describe_trip));
    said.chain(response).collect::<Vec<_>>().join("; ")
}

fn describe_trip(trip: &TripConditions) -> String {
    let many = |too_many: FailureThreshold, what: &str| {
        let share = too_many.share_ppm.map(|ppm| {
            format!(
                "{} % of at least {} in {:?} {what}",
                f64::from(ppm) / 1e4,
                format_count(trip.requests_min, "request"),
                trip.window
            )
        });
        let number = too_many.number.map(|number| {
            format!("{} in {:?} {what}", format_count(number, "request"), trip.window)
        });
        share.into_iter().chain(number).collect::<Vec<_>>()
    };
    let mut when = many(trip.failed, "failed");
    when.extend(trip.consecutive_failures.map(|many| format!("{many} in a row failed")));
    if let Some(slow) = trip.slow {
        when.extend(many(slow.too_many, &format!("took {:?} or longer", slow.threshold)));
    }
    format!(
        "opens the circuit for {:?} when {} ({})",
        trip.open_duration,
        when.join(" or "),
        describe_failure_classes(&trip.failures)
    )
}

fn describe_sermant_detection(rule: &SermantRemoval) -> String {
    let share = |ppm: u32| f64::from(ppm) / 1e6;
    format!(
        "ejects an instance, as Sermant does, at an error rate of {} ({}) in {} of {:?}, \
         for {:?}; at most a share of {} is ejected, at least {}",
        share(rule.rule.error_rate_ppm),
        describe_failure_classes(&rule.common.failures),
        format_count(rule.common.windows, "window"),
        rule.common.window,
        rule.common.recovery,
        share(rule.rule.scale_up_limit_ppm),
        rule.rule.min_instances,
    )
}

fn describe_failure_classes(classes: &FailureClasses) -> String {
    let words = [
        (classes.connect, "connect"),
        (classes.timeout, "timeout"),
        (classes.reset, "reset"),
        (classes.server_errors, "5xx"),
        (classes.gateway_errors, "gateway"),
    ];
    let words = words.into_iter().filter(|(counts, _)| *counts).map(|(_, word)| word.to_owned());
    let grpc = classes.grpc.iter().map(|code| format!("gRPC status {code}"));
    let all: Vec<String> = words.chain(grpc).collect();
    match all.is_empty() {
        true => "no failures count".to_owned(),
        false => all.join(", "),
    }
}
