//! The resource of exported telemetry, and the span attributes that both formats share.

use std::net::SocketAddr;

use leno_model::WorkloadName;
use leno_outside::{Source, Value};
use leno_telemetry::GrpcStatus;

use crate::seen::Seen;
use crate::world::ConfigSnapshot;

/// Returns the workload of the sidecar, with its service, or its account if it has no service.
pub(super) fn source(workload: &WorkloadName, config: Option<&ConfigSnapshot>) -> Source {
    let plan = config.map(|config| &config.plans.snapshot.plan);
    let served = plan.and_then(|plan| plan.served.values().next());
    let account = plan.map_or(&workload.name, |plan| &plan.account.name);
    Source {
        service: served.map_or(account, |service| &service.name).to_string(),
        namespace: workload.namespace.to_string(),
        instance: workload.to_string(),
    }
}

/// Returns the name of a span: the method and the service, both of low cardinality.
pub(super) fn span_name(seen: &Seen) -> String {
    let method = if is_known(&seen.method) { &seen.method } else { "HTTP" };
    match seen.labels.service.as_str() {
        "" => method.to_owned(),
        service => format!("{method} {service}"),
    }
}

/// True if the server's side recorded the request.
pub(super) fn is_server(seen: &Seen) -> bool {
    seen.labels.direction == "inbound"
}

/// Returns the address of the peer: the client for a server, the endpoint for a client.
pub(super) fn other_end(seen: &Seen) -> Option<SocketAddr> {
    if is_server(seen) { Some(seen.downstream) } else { seen.upstream }
}

/// Returns the attributes of a span, named by OpenTelemetry's semantic conventions if defined there. Empty
/// texts are left out. Headers, bodies and the query are never included.
pub(crate) fn span_attributes(seen: &Seen) -> Vec<(&'static str, Value)> {
    let text = |text: &str| (!text.is_empty()).then(|| Value::Text(text.to_owned()));
    let number = |number: u64| Some(Value::Number(i64::try_from(number).unwrap_or(i64::MAX)));
    let shown = |value: Option<String>| value.map(Value::Text);
    let labels = &seen.labels;
    let is_standard = is_known(&seen.method);
    let host = seen.authority.rsplit('@').next().unwrap_or_default();
    let status = Some(seen.outcome.status).filter(|status| *status != 0);
    let grpc = seen.outcome.grpc;
    [
        ("http.request.method", text(if is_standard { &seen.method } else { "_OTHER" })),
        ("http.request.method_original", text(&seen.method).filter(|_| !is_standard)),
        ("url.path", text(seen.path.split(['?', '#']).next().unwrap_or_default())),
        ("server.address", text(host)),
        ("http.response.status_code", status.and_then(|status| number(status.into()))),
        ("rpc.grpc.status_code", grpc.and_then(|grpc| number(grpc.code().into()))),
        ("error.type", span_error(seen).map(Value::Text)),
        ("user_agent.original", text(&seen.user_agent)),
        ("client.address", Some(Value::Text(seen.downstream.ip().to_string()))),
        ("network.peer.address", shown(other_end(seen).map(|it| it.ip().to_string()))),
        ("network.peer.port", other_end(seen).and_then(|it| number(it.port().into()))),
        ("leno.direction", text(labels.direction)),
        ("leno.service", text(&labels.service)),
        ("leno.route", text(&labels.route)),
        ("leno.policy", shown(seen.policy.as_ref().map(ToString::to_string))),
        ("leno.peer", text(&labels.peer)),
        ("leno.endpoint", shown(seen.upstream.map(|upstream| upstream.to_string()))),
        ("leno.reason", text(seen.outcome.reason.unwrap_or_default())),
        (
            "leno.dry_run_reason",
            text(seen.dry_run_reason.map(leno_model::Reason::label).unwrap_or_default()),
        ),
        ("leno.retries", number(seen.retries.into())),
        ("leno.sampled", Some(Value::Text(is_sampled(seen).to_string()))),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

/// True if the trace is sampled. A span of an unsampled trace is exported because it failed; other spans of its
/// trace are missing.
fn is_sampled(seen: &Seen) -> bool {
    seen.span.is_some_and(|span| span.is_sampled)
}

/// Returns the error of a failed request: its reason, or the status.
pub(super) fn span_error(seen: &Seen) -> Option<String> {
    let outcome = &seen.outcome;
    if !outcome.is_failure() {
        return None;
    }
    let grpc = outcome.grpc.filter(|grpc| grpc.is_failure()).map(GrpcStatus::label);
    let named = outcome.reason.or(grpc).map(str::to_owned);
    Some(named.unwrap_or_else(|| outcome.status.to_string()))
}

/// Methods of RFC 9110 §9 and RFC 5789. Clients invent methods, but span names must have low cardinality.
fn is_known(method: &str) -> bool {
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    known.contains(&method)
}
