//! Converts an `UpstreamTrafficSetting` of OSM or FSM to a `CircuitBreaker` and a `RateLimit`, and a `TrafficWarmup`
//! of FSM to a `LoadBalancing`.

use leno_model::{
    CircuitBreaker, FixedResponse, Object, PathMatch, PolicyScope, Rate, RateLimitKey, RateLimits,
    RateRule, RequestThreshold, ServicePolicy, ServicePolicyKind, ServiceRule, SlowStart,
    TripConditions, UpstreamTrafficSettings,
};
use serde_json::{Map, Value, json};

use super::native_values::format_duration;

/// Converts a policy to native policies, or returns the reason why their meaning would differ. Returns `None`
/// for policies of other kinds.
pub(super) fn convert_policy(
    objects: &[&Object],
    policy: &ServicePolicy,
) -> Option<Result<Vec<Value>, String>> {
    match &policy.rule {
        ServiceRule::UpstreamTrafficSetting(settings) => {
            let UpstreamTrafficSettings { circuit_breaker, rate_limits } = &**settings;
            Some(convert_traffic_setting(objects, policy, circuit_breaker, rate_limits))
        }
        ServiceRule::LoadBalancing(rule)
            if policy.name.kind == ServicePolicyKind::TrafficWarmup =>
        {
            Some(convert_slow_start(objects, policy, rule.slow_start))
        }
        _ => None,
    }
}

/// Converts a `TrafficWarmup` to a `LoadBalancing`. Only one `LoadBalancing` applies to a service.
fn convert_slow_start(
    objects: &[&Object],
    policy: &ServicePolicy,
    slow_start: Option<SlowStart>,
) -> Result<Vec<Value>, String> {
    let name = &policy.name;
    if let Some(reason) = conflict_reason(objects, policy, &[ServicePolicyKind::LoadBalancing]) {
        return Err(reason);
    }
    let Some(SlowStart { duration, min_percent }) = slow_start else {
        return Err("it is disabled: remove it".to_owned());
    };
    Ok(vec![json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "LoadBalancing",
        "metadata": {"name": name.name.as_str(), "namespace": name.namespace.as_str()},
        "spec": {
            "targetRefs": [{"kind": "Service", "name": name.name.as_str()}],
            "warmup": {"duration": format_exact_duration(duration)?, "minimumPercent": min_percent},
        },
    })])
}

/// Returns the reason if a native policy of these kinds conflicts with the conversion of a policy: because both are
/// attached to the same service, or have the same name.
fn conflict_reason(
    objects: &[&Object],
    policy: &ServicePolicy,
    native_kinds: &[ServicePolicyKind],
) -> Option<String> {
    let name = &policy.name;
    let shares_parent = |other_policy: &ServicePolicy| match (&policy.scope, &other_policy.scope) {
        (PolicyScope::Services(parents), PolicyScope::Services(other_parents)) => {
            parents.iter().any(|parent| other_parents.contains(parent))
        }
        _ => false,
    };
    objects.iter().find_map(|object| match object {
        Object::ServicePolicy(other_policy) if native_kinds.contains(&other_policy.name.kind) => {
            let has_same_name = (&other_policy.name.namespace, &other_policy.name.name)
                == (&name.namespace, &name.name);
            let object_key = object.object_key();
            if shares_parent(other_policy) {
                Some(format!("add its settings to {object_key}: only one of the two applies"))
            } else if has_same_name {
                Some(format!("{object_key} of another service exists already: rename it"))
            } else {
                None
            }
        }
        _ => None,
    })
}

/// Converts an `UpstreamTrafficSetting`, given as its circuit breaker and its rate limits, to a native policy
/// for each of the two that is set.
fn convert_traffic_setting(
    objects: &[&Object],
    policy: &ServicePolicy,
    breaker: &CircuitBreaker,
    limits: &RateLimits,
) -> Result<Vec<Value>, String> {
    let breaker_kind =
        (*breaker != CircuitBreaker::default()).then_some(ServicePolicyKind::CircuitBreaker);
    let limits_kind = (!limits.is_empty()).then_some(ServicePolicyKind::RateLimit);
    let native_kinds: Vec<_> = breaker_kind.into_iter().chain(limits_kind).collect();
    if let Some(reason) = conflict_reason(objects, policy, &native_kinds) {
        return Err(reason);
    }
    if limits.global.is_some() {
        let reason = "it uses a rate limit service: write it as `global` of a RateLimit manually";
        return Err(reason.to_owned());
    }
    let PolicyScope::Services(targets) = &policy.scope else {
        return Err("it applies to a whole namespace".to_owned());
    };
    let target_refs: Vec<Value> = targets
        .iter()
        .map(|target| json!({"kind": "Service", "name": target.service.name.as_str()}))
        .collect();
    let build_object = |kind: ServicePolicyKind, mut spec: Map<String, Value>| {
        spec.shift_insert(0, "targetRefs".to_owned(), json!(target_refs));
        json!({
            "apiVersion": "leno.dev/v1alpha1",
            "kind": kind.as_str(),
            "metadata": {
                "name": policy.name.name.as_str(),
                "namespace": policy.name.namespace.as_str(),
            },
            "spec": spec,
        })
    };
    let mut native_policies = Vec::new();
    if *breaker != CircuitBreaker::default() {
        native_policies.push(build_object(
            ServicePolicyKind::CircuitBreaker,
            build_circuit_breaker_spec(breaker)?,
        ));
    }
    if !limits.is_empty() {
        native_policies
            .push(build_object(ServicePolicyKind::RateLimit, build_rate_limit_spec(limits)?));
    }
    Ok(native_policies)
}

fn build_circuit_breaker_spec(breaker: &CircuitBreaker) -> Result<Map<String, Value>, String> {
    let mut spec = Map::new();
    let mut limits = Map::new();
    for (key, limit, minimum) in [
        ("connections", breaker.limits.connections, 1),
        ("requests", breaker.limits.requests, 1),
        ("pending", breaker.limits.pending, 1),
        ("retries", breaker.limits.retries, 0),
    ] {
        let Some(limit) = limit else { continue };
        if limit < minimum {
            return Err(format!(
                "a limit of 0 {key} has no native equivalent: deny them with a policy"
            ));
        }
        limits.insert(key.to_owned(), json!(limit));
    }
    if !limits.is_empty() {
        spec.insert("limits".to_owned(), Value::Object(limits));
    }
    if let Some(timeout) = breaker.connect_timeout {
        spec.insert("connectTimeout".to_owned(), json!(format_exact_duration(timeout)?));
    }
    if let Some(trip) = &breaker.trip {
        spec.insert("trip".to_owned(), Value::Object(build_trip_spec(trip)?));
        let FixedResponse { status, body, .. } = &breaker.response;
        let mut response = Map::new();
        if let Some(status) = status {
            if !(400..=599).contains(status) {
                return Err(format!("an open circuit responds with {status}, natively 400 to 599"));
            }
            response.insert("status".to_owned(), json!(status));
        }
        if let Some(body) = body {
            response.insert("body".to_owned(), json!(body));
        }
        if !response.is_empty() {
            spec.insert("response".to_owned(), Value::Object(response));
        }
    }
    Ok(spec)
}

fn build_trip_spec(trip: &TripConditions) -> Result<Map<String, Value>, String> {
    let mut spec = Map::new();
    spec.insert("failures".to_owned(), json!(["connect", "timeout", "reset", "5xx"]));
    spec.insert("window".to_owned(), json!(format_exact_duration(trip.window)?));
    spec.insert("buckets".to_owned(), json!(trip.buckets));
    spec.insert("minimumRequests".to_owned(), json!(trip.min_requests));
    if let Some(percent) = to_whole_percent(trip.failure_threshold)? {
        spec.insert("percent".to_owned(), json!(percent));
    }
    if let Some(slow) = trip.slow_requests {
        let percent = to_whole_percent(slow.threshold)?
            .ok_or("a ratio of slow requests without a percentage")?;
        spec.insert(
            "slow".to_owned(),
            json!({"threshold": format_exact_duration(slow.min_duration)?, "percent": percent}),
        );
    }
    spec.insert("openDuration".to_owned(), json!(format_exact_duration(trip.open_duration)?));
    spec.insert("halfOpenRequests".to_owned(), json!(trip.half_open_requests));
    Ok(spec)
}

/// Converts a ratio to whole percent; `None` without a ratio. Returns a reason if the threshold has no
/// equivalent.
fn to_whole_percent(threshold: RequestThreshold) -> Result<Option<u32>, String> {
    match threshold {
        RequestThreshold { count: Some(_), .. } => {
            Err("a circuit opens at a number of failures, natively only at a percentage".to_owned())
        }
        RequestThreshold { share_ppm: Some(ppm), count: None } if ppm % 10_000 != 0 => {
            Err("a ratio is not a whole percentage".to_owned())
        }
        RequestThreshold { share_ppm, count: None } => Ok(share_ppm.map(|ppm| ppm / 10_000)),
    }
}

fn build_rate_limit_spec(limits: &RateLimits) -> Result<Map<String, Value>, String> {
    let mut spec = Map::new();
    if let Some(rate) = limits.connections {
        spec.insert("connections".to_owned(), Value::Object(build_rate_spec(rate, "count")?));
    }
    let mut rules = Vec::new();
    for rule in &limits.rules {
        rules.push(Value::Object(build_rate_rule_spec(rule)?));
    }
    if !rules.is_empty() {
        spec.insert("rules".to_owned(), Value::Array(rules));
    }
    Ok(spec)
}

fn build_rate_rule_spec(rule: &RateRule) -> Result<Map<String, Value>, String> {
    let mut spec = Map::new();
    let mut matches = Vec::new();
    for request in &rule.requests {
        let PathMatch::Regex(path) = &request.path else {
            return Err("a path is not a regular expression".to_owned());
        };
        matches.push(json!({"path": {"type": "RegularExpression", "value": path}}));
    }
    if !matches.is_empty() {
        spec.insert("matches".to_owned(), Value::Array(matches));
    }
    debug_assert_eq!(rule.key, RateLimitKey::None, "the schema has one bucket for all");
    spec.extend(build_rate_spec(rule.rate, "requests")?);
    if rule.stop {
        spec.insert("stop".to_owned(), json!(true));
    }
    let mut response = Map::new();
    if let Some(status) = rule.response.status {
        response.insert("status".to_owned(), json!(status));
    }
    let headers: Vec<Value> = rule
        .response
        .headers
        .iter()
        .map(|header| json!({"name": header.name, "value": header.value}))
        .collect();
    if !headers.is_empty() {
        response.insert("headers".to_owned(), Value::Array(headers));
    }
    if !response.is_empty() {
        spec.insert("response".to_owned(), Value::Object(response));
    }
    Ok(spec)
}

fn build_rate_spec(rate: Rate, key: &str) -> Result<Map<String, Value>, String> {
    let mut spec = Map::new();
    spec.insert(key.to_owned(), json!(rate.count));
    spec.insert("per".to_owned(), json!(format_exact_duration(rate.period)?));
    if rate.burst != rate.count {
        spec.insert("burst".to_owned(), json!(rate.burst));
    }
    Ok(spec)
}

fn format_exact_duration(duration: std::time::Duration) -> Result<String, String> {
    format_duration(duration)
        .ok_or_else(|| format!("{duration:?} is not a multiple of a millisecond"))
}
