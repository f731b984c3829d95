//! Builds the resource identity of exported telemetry, and the names and attributes of spans, for all export formats.

use std::net::SocketAddr;

use leno_model::WorkloadName;
use leno_outside::{AttributeValue, ResourceIdentity};
use leno_telemetry::GrpcStatus;

use crate::config_store::ConfigSnapshot;
use crate::request_trace::TraceEntry;

/// Returns the resource of this sidecar's telemetry. The service name is that of the workload's first service,
/// or its account if it has no service.
pub(super) fn resource_identity(
    workload: &WorkloadName,
    config: Option<&ConfigSnapshot>,
) -> ResourceIdentity {
    let workload_config = config.map(|config| &config.compiled.snapshot.config);
    let first_service = workload_config.and_then(|config| config.port_services.values().next());
    let account = workload_config.map_or(&workload.name, |config| &config.account.name);
    ResourceIdentity {
        service: first_service.map_or(account, |service| &service.name).to_string(),
        namespace: workload.namespace.to_string(),
        instance: workload.to_string(),
    }
}

/// Returns the name of a span: the method and the service, both of low cardinality.
pub(super) fn span_name(trace_entry: &TraceEntry) -> String {
    let method = if is_standard_method(&trace_entry.method) { &trace_entry.method } else { "HTTP" };
    match trace_entry.labels.service.as_str() {
        "" => method.to_owned(),
        service => format!("{method} {service}"),
    }
}

/// True if the server's sidecar recorded the request.
pub(super) fn is_inbound(trace_entry: &TraceEntry) -> bool {
    trace_entry.labels.direction == "inbound"
}

/// Returns the address of the peer: the client's address for an inbound request, the endpoint's for an outbound one.
pub(super) fn peer_address(trace_entry: &TraceEntry) -> Option<SocketAddr> {
    if is_inbound(trace_entry) { Some(trace_entry.downstream) } else { trace_entry.upstream }
}

/// Returns the attributes of a span, with the names of the OpenTelemetry semantic conventions if they define
/// one. Empty texts are omitted. Headers, bodies and the query are never included.
pub(crate) fn span_attributes(trace_entry: &TraceEntry) -> Vec<(&'static str, AttributeValue)> {
    let text = |value: &str| (!value.is_empty()).then(|| AttributeValue::Text(value.to_owned()));
    let number = |value: u64| Some(AttributeValue::Int(i64::try_from(value).unwrap_or(i64::MAX)));
    let optional_text = |value: Option<String>| value.map(AttributeValue::Text);
    let labels = &trace_entry.labels;
    let has_standard_method = is_standard_method(&trace_entry.method);
    // User information before the host may contain a password.
    let host = trace_entry.authority.rsplit('@').next().unwrap_or_default();
    let status = Some(trace_entry.outcome.status).filter(|status| *status != 0);
    let grpc = trace_entry.outcome.grpc;
    [
        (
            "http.request.method",
            text(if has_standard_method { &trace_entry.method } else { "_OTHER" }),
        ),
        (
            "http.request.method_original",
            text(&trace_entry.method).filter(|_| !has_standard_method),
        ),
        ("url.path", text(trace_entry.path.split(['?', '#']).next().unwrap_or_default())),
        ("server.address", text(host)),
        ("http.response.status_code", status.and_then(|status| number(status.into()))),
        ("rpc.grpc.status_code", grpc.and_then(|grpc| number(grpc.code().into()))),
        ("error.type", span_error(trace_entry).map(AttributeValue::Text)),
        ("user_agent.original", text(&trace_entry.user_agent)),
        ("client.address", Some(AttributeValue::Text(trace_entry.downstream.ip().to_string()))),
        (
            "network.peer.address",
            optional_text(peer_address(trace_entry).map(|peer| peer.ip().to_string())),
        ),
        (
            "network.peer.port",
            peer_address(trace_entry).and_then(|peer| number(peer.port().into())),
        ),
        ("leno.direction", text(labels.direction)),
        ("leno.service", text(&labels.service)),
        ("leno.route", text(&labels.route)),
        ("leno.policy", optional_text(trace_entry.policy.as_ref().map(ToString::to_string))),
        ("leno.peer", text(&labels.peer)),
        ("leno.endpoint", optional_text(trace_entry.upstream.map(|upstream| upstream.to_string()))),
        ("leno.reason", text(trace_entry.outcome.reason.unwrap_or_default())),
        (
            "leno.dry_run_reason",
            text(trace_entry.dry_run_reason.map(leno_model::Reason::label).unwrap_or_default()),
        ),
        ("leno.retries", number(trace_entry.retries.into())),
        ("leno.sampled", Some(AttributeValue::Text(is_sampled(trace_entry).to_string()))),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

/// True if the trace is sampled. A span of an unsampled trace is exported only because its request failed; the
/// other spans of the trace are missing.
fn is_sampled(trace_entry: &TraceEntry) -> bool {
    trace_entry.span.is_some_and(|span| span.is_sampled)
}

/// Returns the error of a failed request: its reason, its gRPC status or its HTTP status. `None` after success.
pub(super) fn span_error(trace_entry: &TraceEntry) -> Option<String> {
    let outcome = &trace_entry.outcome;
    if !outcome.is_failure() {
        return None;
    }
    let grpc_status = outcome.grpc.filter(|grpc| grpc.is_failure()).map(GrpcStatus::label);
    let error = outcome.reason.or(grpc_status).map(str::to_owned);
    Some(error.unwrap_or_else(|| outcome.status.to_string()))
}

/// True for the methods of RFC 9110 §9 and RFC 5789. Clients invent methods, but span names must have low
/// cardinality.
fn is_standard_method(method: &str) -> bool {
    let standard_methods =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    standard_methods.contains(&method)
}
