//! Reader of the `UpstreamTrafficSetting` kind of `policy.openservicemesh.io` and `policy.flomesh.io`.

use std::time::Duration;

use leno_model::{
    CircuitBreaker, FailureClasses, FailureThreshold, FixedResponse, Name, PolicyScope, RateLimits,
    RouteParent, ServiceName, SlowRequests, TripConditions,
};

use super::circuit_breaker::{
    MAX_COUNT, MAX_TIME, MIN_OPEN, MIN_WINDOW, connect_timeout, slow_threshold,
};
use super::response::read_body;
use super::service_policy::{read_duration_within, read_limit, read_share};
use super::upstream_rate_limit::{self, BurstMeaning};
use crate::field::{Field, MapFields};

pub(super) fn read(
    namespace: &Name,
    burst: BurstMeaning,
    spec: &Field<'_>,
) -> Option<(PolicyScope, (CircuitBreaker, RateLimits))> {
    let fields = spec.read_fields(&["host", "connectionSettings", "rateLimit", "httpRoutes"])?;
    let service = fields.require("host").and_then(|field| parse_host(field, namespace));
    let breaker = match fields.find("connectionSettings") {
        Some(settings) => read_connection_settings(settings)?,
        None => CircuitBreaker::default(),
    };
    let limits = upstream_rate_limit::read(&fields, burst)?;
    if breaker == CircuitBreaker::default() && limits.is_empty() {
        spec.reject("has no limits", "add `connectionSettings`, `rateLimit` or `httpRoutes`");
        return None;
    }
    let parent = RouteParent { service: service?, port: None };
    Some((PolicyScope::Services(vec![parent]), (breaker, limits)))
}

fn read_connection_settings(settings: &Field<'_>) -> Option<CircuitBreaker> {
    let parts = settings.read_fields(&["tcp", "http"])?;
    let mut rule = CircuitBreaker::default();
    if let Some(field) = parts.find("tcp") {
        let tcp = field.read_fields(&["maxConnections", "connectTimeout"])?;
        rule.limits.connections = read_limit(&tcp, "maxConnections", 0)?.filter(is_bounded);
        if let Some(field) = tcp.find("connectTimeout") {
            rule.connect_timeout = Some(connect_timeout(field)?);
        }
    }
    if let Some(field) = parts.find("http") {
        read_http(field, &mut rule)?;
    }
    if rule == CircuitBreaker::default() {
        settings.reject("has no limits", "add a limit, or remove it");
        return None;
    }
    Some(rule)
}

fn read_http(field: &Field<'_>, rule: &mut CircuitBreaker) -> Option<()> {
    let fields = field.read_fields(&[
        "maxRequests",
        "maxRequestsPerConnection",
        "maxPendingRequests",
        "maxRetries",
        "circuitBreaking",
    ])?;
    // The maximum is the schema's default, and means "no limit".
    if read_limit(&fields, "maxRequestsPerConnection", 0)?.is_some_and(|max| is_bounded(&max)) {
        fields.reject_unsupported(
            "maxRequestsPerConnection",
            "is not supported: requests to an endpoint share one link",
            "remove it; `maxRequests` limits concurrent requests",
        );
    }
    rule.limits.requests = read_limit(&fields, "maxRequests", 0)?.filter(is_bounded);
    rule.limits.pending = read_limit(&fields, "maxPendingRequests", 1)?.filter(is_bounded);
    rule.limits.retries = read_limit(&fields, "maxRetries", 0)?.filter(is_bounded);
    if let Some(field) = fields.find("circuitBreaking") {
        let (trip, response) = read_circuit_breaking(field)?;
        (rule.trip, rule.response) = (Some(trip), response);
    }
    Some(())
}

fn read_circuit_breaking(field: &Field<'_>) -> Option<(TripConditions, FixedResponse)> {
    let fields = field.read_fields(&[
        "statTimeWindow",
        "minRequestAmount",
        "degradedTimeWindow",
        "slowTimeThreshold",
        "slowAmountThreshold",
        "slowRatioThreshold",
        "errorAmountThreshold",
        "errorRatioThreshold",
        "degradedStatusCode",
        "degradedResponseContent",
    ])?;
    let window = fields
        .require("statTimeWindow")
        .and_then(|field| read_duration_within(field, MIN_WINDOW, MAX_TIME));
    let open_duration = fields
        .require("degradedTimeWindow")
        .and_then(|field| read_duration_within(field, MIN_OPEN, MAX_TIME));
    let requests_min =
        fields.require("minRequestAmount").and_then(|field| field.read_number(1, MAX_COUNT));
    let failed = read_failure_threshold(&fields, "errorAmountThreshold", "errorRatioThreshold")?;
    let slow = read_slow(&fields)?;
    if failed == FailureThreshold::default() && slow.is_none() {
        field.reject("never opens", "add `errorRatioThreshold` or another threshold");
    }
    let status = match fields.find("degradedStatusCode") {
        Some(field) => {
            let status = u16::try_from(field.read_number(200, 599)?).ok()?;
            if !FixedResponse::is_valid_status(status) {
                field.reject("has no body", "use a status that permits a body, such as 409");
                return None;
            }
            status
        }
        None => STATUS_DEFAULT,
    };
    let body = read_body(&fields, "degradedResponseContent")?;
    let window = window?;
    let trip = TripConditions {
        failures: FailureClasses {
            connect: true,
            timeout: true,
            reset: true,
            server_errors: true,
            ..FailureClasses::default()
        },
        window,
        // Buckets of one second, as in the original implementation.
        buckets: u8::try_from(window.as_secs().clamp(1, 60)).ok()?,
        requests_min: requests_min?,
        failed,
        consecutive_failures: None,
        slow,
        open_duration: open_duration?,
        half_open_requests: 1,
    };
    let body = Some(body.unwrap_or_else(|| BODY_DEFAULT.to_owned()));
    Some((trip, FixedResponse { status: Some(status), body, headers: Vec::new() }))
}

fn read_slow(fields: &MapFields<'_>) -> Option<Option<SlowRequests>> {
    let too_many = read_failure_threshold(fields, "slowAmountThreshold", "slowRatioThreshold")?;
    let threshold = match fields.find("slowTimeThreshold") {
        Some(field) => {
            if too_many == FailureThreshold::default() {
                field.reject("has no effect alone", "add `slowRatioThreshold`, or remove it");
            }
            slow_threshold(field)?
        }
        None => SLOW_THRESHOLD_DEFAULT,
    };
    Some((too_many != FailureThreshold::default()).then_some(SlowRequests { threshold, too_many }))
}

/// Reads a failure threshold from the fields with these names, for a number and for a share of requests.
fn read_failure_threshold(
    fields: &MapFields<'_>,
    amount: &str,
    ratio: &str,
) -> Option<FailureThreshold> {
    let share_ppm = match fields.find(ratio) {
        Some(field) => match read_share(field)? {
            0 => {
                field.reject("is 0", "use a ratio above 0");
                return None;
            }
            ppm => Some(ppm),
        },
        None => None,
    };
    let number = match fields.find(amount) {
        Some(field) => Some(field.read_number(1, MAX_COUNT)?),
        None => None,
    };
    Some(FailureThreshold { share_ppm, number })
}

/// Parses `NAME.NAMESPACE`, with or without a cluster domain suffix.
fn parse_host(field: &Field<'_>, namespace: &Name) -> Option<ServiceName> {
    let text = field.read_text()?;
    let short = text.strip_suffix(".svc.cluster.local").or(text.strip_suffix(".svc"));
    let service = short.unwrap_or(text).split_once('.').and_then(|(name, namespace_text)| {
        let label = |text: &str| Name::new(text).ok().filter(|name| !name.as_str().contains('.'));
        Some(ServiceName { namespace: label(namespace_text)?, name: label(name)? })
    });
    match service {
        Some(service) if service.namespace == *namespace => Some(service),
        Some(service) => {
            field.reject(
                format!("is in the namespace {}, not in {namespace}", service.namespace),
                "put the policy into the namespace of the service",
            );
            None
        }
        None => {
            field.reject(
                format!("{} is not the host name of a service", field.quoted_value()),
                "use NAME.NAMESPACE.svc.cluster.local",
            );
            None
        }
    }
}

/// True unless the limit is the schema's value for "no limit".
fn is_bounded(limit: &u32) -> bool {
    *limit != u32::MAX
}

/// The schema's default status while the circuit is open.
const STATUS_DEFAULT: u16 = 409;
/// The schema's default body while the circuit is open.
const BODY_DEFAULT: &str = "Coming soon ...";
/// The schema's default duration from which a response is slow.
const SLOW_THRESHOLD_DEFAULT: Duration = Duration::from_secs(5);
