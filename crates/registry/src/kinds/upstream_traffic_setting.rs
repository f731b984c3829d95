//! Reads the `UpstreamTrafficSetting` kind of OSM (`policy.openservicemesh.io`) and FSM (`policy.flomesh.io`).

use std::time::Duration;

use leno_model::fixed_response::BODY;
use leno_model::{
    CircuitBreaker, FailureClasses, FixedResponse, Name, PolicyScope, RequestThreshold,
    RouteParent, ServiceName, SlowRequests, TripConditions, UpstreamTrafficSettings,
};

use super::service_policy::{read_optional_limit, read_share};
use super::upstream_rate_limit::{self, BurstMeaning};
use crate::duration::read_duration_within;
use crate::field::{Field, MapFields};
use crate::schema_reader::read_text;

/// Reads the `spec` of an `UpstreamTrafficSetting`: its service, the circuit breaker, and the rate limits.
pub(super) fn read(
    namespace: &Name,
    burst_meaning: BurstMeaning,
    spec: &Field<'_>,
) -> Option<(PolicyScope, UpstreamTrafficSettings)> {
    let fields = spec.read_fields(&["host", "connectionSettings", "rateLimit", "httpRoutes"])?;
    let service = fields.require("host").and_then(|field| read_host(field, namespace));
    let circuit_breaker = match fields.find("connectionSettings") {
        Some(settings) => read_connection_settings(settings)?,
        None => CircuitBreaker::default(),
    };
    let rate_limits = upstream_rate_limit::read(&fields, burst_meaning)?;
    if circuit_breaker == CircuitBreaker::default() && rate_limits.is_empty() {
        spec.reject("has no limits", "add `connectionSettings`, `rateLimit` or `httpRoutes`");
        return None;
    }
    let parent = RouteParent { service: service?, port: None };
    let settings = UpstreamTrafficSettings { circuit_breaker, rate_limits };
    Some((PolicyScope::Services(vec![parent]), settings))
}

/// Reads the limits of connections and requests, and the conditions that open the circuit.
fn read_connection_settings(settings: &Field<'_>) -> Option<CircuitBreaker> {
    let fields = settings.read_fields(&["tcp", "http"])?;
    let mut circuit_breaker = CircuitBreaker::default();
    if let Some(field) = fields.find("tcp") {
        let tcp_fields = field.read_fields(&["maxConnections", "connectTimeout"])?;
        circuit_breaker.limits.connections =
            read_optional_limit(&tcp_fields, "maxConnections", 0)?.filter(is_bounded);
        if let Some(field) = tcp_fields.find("connectTimeout") {
            circuit_breaker.connect_timeout =
                Some(read_duration_within(field, MIN_DURATION, MAX_CONNECT_TIMEOUT)?);
        }
    }
    if let Some(field) = fields.find("http") {
        read_http_settings(field, &mut circuit_breaker)?;
    }
    if circuit_breaker == CircuitBreaker::default() {
        settings.reject("has no limits", "add a limit, or remove it");
        return None;
    }
    Some(circuit_breaker)
}

/// Reads the settings for HTTP into `circuit_breaker`.
fn read_http_settings(field: &Field<'_>, circuit_breaker: &mut CircuitBreaker) -> Option<()> {
    let fields = field.read_fields(&[
        "maxRequests",
        "maxRequestsPerConnection",
        "maxPendingRequests",
        "maxRetries",
        "circuitBreaking",
    ])?;
    // The default of the schema is the largest number, which means "no limit" and is accepted.
    if read_optional_limit(&fields, "maxRequestsPerConnection", 0)?
        .is_some_and(|max| is_bounded(&max))
    {
        fields.reject_unsupported(
            "maxRequestsPerConnection",
            "is not supported: requests to an endpoint share one link",
            "remove it; `maxRequests` limits concurrent requests",
        );
    }
    let limits = &mut circuit_breaker.limits;
    limits.requests = read_optional_limit(&fields, "maxRequests", 0)?.filter(is_bounded);
    limits.pending = read_optional_limit(&fields, "maxPendingRequests", 1)?.filter(is_bounded);
    limits.retries = read_optional_limit(&fields, "maxRetries", 0)?.filter(is_bounded);
    if let Some(field) = fields.find("circuitBreaking") {
        let (trip, response) = read_circuit_breaking(field)?;
        (circuit_breaker.trip, circuit_breaker.response) = (Some(trip), response);
    }
    Some(())
}

/// Reads `circuitBreaking`: the conditions that open the circuit, and the response while it is open.
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
        .and_then(|field| read_duration_within(field, MIN_WINDOW, MAX_DURATION));
    let open_duration = fields
        .require("degradedTimeWindow")
        .and_then(|field| read_duration_within(field, MIN_OPEN_DURATION, MAX_DURATION));
    let min_requests = fields
        .require("minRequestAmount")
        .and_then(|field| field.read_number(1, MAX_REQUEST_COUNT));
    let failure_threshold =
        read_request_threshold(&fields, "errorAmountThreshold", "errorRatioThreshold")?;
    let slow = read_slow_requests(&fields)?;
    if failure_threshold == RequestThreshold::default() && slow.is_none() {
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
        None => DEFAULT_STATUS,
    };
    let body = match fields.find("degradedResponseContent") {
        Some(field) => read_text(field, &BODY)?,
        None => DEFAULT_BODY.to_owned(),
    };
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
        // Buckets of one second, as in FSM.
        buckets: u8::try_from(window.as_secs().clamp(1, 60)).ok()?,
        min_requests: min_requests?,
        failure_threshold,
        consecutive_failures: None,
        slow_requests: slow,
        open_duration: open_duration?,
        half_open_requests: 1,
    };
    let response = FixedResponse { status: Some(status), body: Some(body), headers: Vec::new() };
    Some((trip, response))
}

/// Reads the conditions for slow requests; `Some(None)` without a threshold for them.
fn read_slow_requests(fields: &MapFields<'_>) -> Option<Option<SlowRequests>> {
    let threshold = read_request_threshold(fields, "slowAmountThreshold", "slowRatioThreshold")?;
    let min_duration = match fields.find("slowTimeThreshold") {
        Some(field) => {
            if threshold == RequestThreshold::default() {
                field.reject("has no effect alone", "add `slowRatioThreshold`, or remove it");
            }
            read_duration_within(field, MIN_DURATION, MAX_DURATION)?
        }
        None => DEFAULT_SLOW_THRESHOLD,
    };
    Some(
        (threshold != RequestThreshold::default())
            .then_some(SlowRequests { min_duration, threshold }),
    )
}

/// Reads a threshold for failed or slow requests from two fields: `amount_key` names the field for a number of requests, and
/// `ratio_key` the field for a share of requests.
fn read_request_threshold(
    fields: &MapFields<'_>,
    amount_key: &str,
    ratio_key: &str,
) -> Option<RequestThreshold> {
    let share_ppm = match fields.find(ratio_key) {
        Some(field) => match read_share(field)? {
            0 => {
                field.reject("is 0", "use a ratio above 0");
                return None;
            }
            share_ppm => Some(share_ppm),
        },
        None => None,
    };
    let count = match fields.find(amount_key) {
        Some(field) => Some(field.read_number(1, MAX_REQUEST_COUNT)?),
        None => None,
    };
    Some(RequestThreshold { share_ppm, count })
}

/// Reads `NAME.NAMESPACE`, with or without a cluster domain suffix. A service of another namespace is rejected.
fn read_host(field: &Field<'_>, own_namespace: &Name) -> Option<ServiceName> {
    let text = field.read_text()?;
    let short_name = text.strip_suffix(".svc.cluster.local").or(text.strip_suffix(".svc"));
    let service = short_name.unwrap_or(text).split_once('.').and_then(|(name, namespace_text)| {
        let parse_label =
            |text: &str| Name::new(text).ok().filter(|name| !name.as_str().contains('.'));
        Some(ServiceName { namespace: parse_label(namespace_text)?, name: parse_label(name)? })
    });
    match service {
        Some(service) if service.namespace == *own_namespace => Some(service),
        Some(service) => {
            field.reject(
                format!("is in the namespace {}, not in {own_namespace}", service.namespace),
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
const DEFAULT_STATUS: u16 = 409;
/// The schema's default body while the circuit is open.
const DEFAULT_BODY: &str = "Coming soon ...";
/// The schema's default duration from which a response counts as slow.
const DEFAULT_SLOW_THRESHOLD: Duration = Duration::from_secs(5);
/// Minimum connect timeout and slow threshold.
const MIN_DURATION: Duration = Duration::from_millis(1);
/// Minimum length of the window: in a shorter window, most buckets would have no requests.
const MIN_WINDOW: Duration = Duration::from_millis(100);
/// Minimum time that the circuit stays open.
const MIN_OPEN_DURATION: Duration = Duration::from_millis(10);
/// Maximum connect timeout.
const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum window, open duration and slow threshold.
const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Maximum value of the fields that count requests.
const MAX_REQUEST_COUNT: u32 = 1_000_000;
