//! Encodes spans as Zipkin v2 JSON (<https://zipkin.io/zipkin-api/zipkin2-api.yaml>).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use leno_outside::{AttributeValue, ResourceIdentity};
use serde_json::{Map, Value as Json, json};

use super::source::{is_inbound, peer_address, span_attributes, span_error, span_name};
use crate::request_trace::TraceEntry;

/// Encodes the spans of a batch as the body of one request to the collector. Entries without a span are
/// skipped.
pub(super) fn encode_spans(
    resource_identity: &ResourceIdentity,
    batch: &[Arc<TraceEntry>],
) -> Vec<u8> {
    let spans: Vec<Json> =
        batch.iter().filter_map(|trace_entry| build_span(resource_identity, trace_entry)).collect();
    Json::from(spans).to_string().into_bytes()
}

/// Builds the Zipkin span of an entry; `None` if the entry has no span.
fn build_span(resource_identity: &ResourceIdentity, trace_entry: &TraceEntry) -> Option<Json> {
    let context = trace_entry.span?;
    let start_since_epoch = trace_entry.started_at().duration_since(UNIX_EPOCH).unwrap_or_default();
    let attribute_tags =
        span_attributes(trace_entry).into_iter().map(|(name, value)| match value {
            AttributeValue::Text(text) => (name.to_owned(), text.into()),
            AttributeValue::Int(number) => (name.to_owned(), number.to_string().into()),
            AttributeValue::Double(fraction) => (name.to_owned(), fraction.to_string().into()),
        });
    let mut tags: Map<String, Json> = attribute_tags.collect();
    tags.insert("leno.workload".to_owned(), resource_identity.instance.clone().into());
    if let Some(error) = span_error(trace_entry) {
        // The presence of this tag marks a span as failed.
        tags.insert("error".to_owned(), error.into());
    }
    let mut span = json!({
        "traceId": context.trace.to_string(),
        "id": context.id.to_string(),
        "kind": if is_inbound(trace_entry) { "SERVER" } else { "CLIENT" },
        "name": span_name(trace_entry),
        "timestamp": u64::try_from(start_since_epoch.as_micros()).unwrap_or(u64::MAX),
        // Zipkin does not accept a duration of zero.
        "duration": u64::try_from(trace_entry.outcome.duration.as_micros()).unwrap_or(u64::MAX).max(1),
        "localEndpoint": { "serviceName": format!("{}.{}", resource_identity.service, resource_identity.namespace) },
        "tags": tags,
    });
    if let Some(parent) = context.parent {
        span["parentId"] = parent.to_string().into();
    }
    if let Some(peer) = peer_address(trace_entry) {
        span["remoteEndpoint"] = build_endpoint(peer, peer_name(trace_entry));
    }
    Some(span)
}

/// Returns the name of the peer as `NAME.NAMESPACE`: the client's account for inbound requests, the requested
/// service for outbound ones. Empty if unknown.
fn peer_name(trace_entry: &TraceEntry) -> String {
    let qualified_name = if is_inbound(trace_entry) {
        &trace_entry.labels.peer
    } else {
        &trace_entry.labels.service
    };
    let (namespace, name) = qualified_name.split_once('/').unwrap_or(("", qualified_name));
    match (namespace, name) {
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{name}.{namespace}"),
    }
}

fn build_endpoint(address: SocketAddr, name: String) -> Json {
    let version = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let mut endpoint = json!({ version: address.ip().to_string(), "port": address.port() });
    if !name.is_empty() {
        endpoint["serviceName"] = name.into();
    }
    endpoint
}
