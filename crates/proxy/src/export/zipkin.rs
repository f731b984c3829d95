//! Spans as Zipkin v2 JSON (<https://zipkin.io/zipkin-api/zipkin2-api.yaml>).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use leno_outside::{Source, Value};
use serde_json::{Map, Value as Json, json};

use super::source::{is_server, other_end, span_attributes, span_error, span_name};
use crate::seen::Seen;

/// Encodes the request body.
pub(super) fn encode_spans(source: &Source, batch: &[Arc<Seen>]) -> Vec<u8> {
    let spans: Vec<Json> = batch.iter().filter_map(|seen| zipkin_span(source, seen)).collect();
    Json::from(spans).to_string().into_bytes()
}

fn zipkin_span(source: &Source, seen: &Seen) -> Option<Json> {
    let context = seen.span?;
    let began = seen.started_at().duration_since(UNIX_EPOCH).unwrap_or_default();
    let tags = span_attributes(seen).into_iter().map(|(name, value)| match value {
        Value::Text(text) => (name.to_owned(), text.into()),
        Value::Number(number) => (name.to_owned(), number.to_string().into()),
        Value::Fraction(fraction) => (name.to_owned(), fraction.to_string().into()),
    });
    let mut tags: Map<String, Json> = tags.collect();
    tags.insert("leno.workload".to_owned(), source.instance.clone().into());
    if let Some(error) = span_error(seen) {
        // The presence of this tag marks a span as failed.
        tags.insert("error".to_owned(), error.into());
    }
    let mut span = json!({
        "traceId": context.trace.to_string(),
        "id": context.id.to_string(),
        "kind": if is_server(seen) { "SERVER" } else { "CLIENT" },
        "name": span_name(seen),
        "timestamp": u64::try_from(began.as_micros()).unwrap_or(u64::MAX),
        // Zipkin does not accept a duration of zero.
        "duration": u64::try_from(seen.outcome.duration.as_micros()).unwrap_or(u64::MAX).max(1),
        "localEndpoint": { "serviceName": format!("{}.{}", source.service, source.namespace) },
        "tags": tags,
    });
    if let Some(parent) = context.parent {
        span["parentId"] = parent.to_string().into();
    }
    if let Some(other) = other_end(seen) {
        span["remoteEndpoint"] = zipkin_endpoint(other, remote_name(seen));
    }
    Some(span)
}

/// Returns the name of the peer: its account, or the requested service.
fn remote_name(seen: &Seen) -> String {
    let name = if is_server(seen) { &seen.labels.peer } else { &seen.labels.service };
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    match (namespace, name) {
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{name}.{namespace}"),
    }
}

fn zipkin_endpoint(address: SocketAddr, name: String) -> Json {
    let version = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let mut endpoint = json!({ version: address.ip().to_string(), "port": address.port() });
    if !name.is_empty() {
        endpoint["serviceName"] = name.into();
    }
    endpoint
}
