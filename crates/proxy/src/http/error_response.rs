//! Sends error responses in the client's protocol: the HTTP or gRPC status, the `leno-reason` header and the
//! text of a failure. The table of [`Reason`] determines them.

use std::borrow::Cow;

use leno_model::{FailureSide, REASON_FIELD, Reason, RetryCondition};
use leno_traffic::FieldEdits;
use leno_wire::link::ResetCode;

use super::generated_response::GeneratedResponse;
use super::respond::Responder;
use crate::error::Failure;
use crate::session::{ListenerKind, Session};

/// Sends an error response. External clients receive the reason without names of policies and workloads.
/// `is_bodiless`: the client reads no body. `is_grpc_call`: the client expects `grpc-status`. `cors_edits`: the
/// headers that let a web page read the response. Returns false if no response is possible and the client must
/// be disconnected.
pub(crate) async fn send_error(
    failure: &Failure,
    session: &Session,
    responder: &mut Responder<'_>,
    is_bodiless: bool,
    is_grpc_call: bool,
    cors_edits: Option<&FieldEdits>,
) -> bool {
    let status = failure.status();
    // Status 0 stands for a failure without a response.
    if status == 0 {
        return false;
    }
    let is_external_client = session.gateway_connection.is_some();
    let to_sidecar = session.is_dedicated;
    let label = failure.reason.label();
    let reason_value = if is_external_client {
        Cow::Borrowed(label)
    } else {
        let side = side_name(failure.reason.side());
        let workload = &session.worker.config.workload;
        Cow::Owned(format!("{label};side={side};workload=\"{workload}\""))
    };
    match responder {
        // The application is reachable, but has not processed this request.
        Responder::Link { stream, .. } if failure.reason == Reason::UpstreamRefused => {
            stream.reset(ResetCode::Refused);
            true
        }
        // The request has not reached the application: the client's sidecar may know another endpoint.
        Responder::Link { stream, .. } if failure.reason.retry() == RetryCondition::Always => {
            stream.reset_for(ResetCode::Unreachable, failure.reason);
            true
        }
        // The attempt failed after it began: only the client's sidecar can decide about a retry.
        Responder::Link { stream, .. } if failure.reason.retry() == RetryCondition::IfUnsent => {
            stream.reset(failure.reset.unwrap_or(ResetCode::Failed));
            true
        }
        responder if expects_grpc(responder, is_grpc_call) => {
            let grpc_code = failure.grpc_status().code().to_string();
            // Applications log this message; `leno explain` accepts its reason.
            let grpc_message = format!("{label}: {}", failure_caption(failure, session, responder));
            let error_fields = [
                (REASON_FIELD, &*reason_value),
                ("content-type", "application/grpc"),
                (GRPC_STATUS_FIELD, &*grpc_code),
                ("grpc-message", &*grpc_message),
            ];
            let merged_fields = merge_policy_fields(failure, &error_fields);
            let borrowed_fields = borrow_fields(&merged_fields);
            let (status, fields, edits) = (200, &*borrowed_fields, cors_edits);
            let response = GeneratedResponse {
                status,
                fields,
                text: "",
                edits,
                is_rejection: true,
                to_sidecar,
            };
            response.send(responder, true).await
        }
        responder => {
            let text = render_body(
                failure,
                is_external_client,
                failure_caption(failure, session, responder),
            );
            let error_fields =
                [(REASON_FIELD, &*reason_value), ("content-type", "text/plain; charset=utf-8")];
            let merged_fields = merge_policy_fields(failure, &error_fields);
            let borrowed_fields = borrow_fields(&merged_fields);
            let (fields, text, edits) = (&*borrowed_fields, &*text, cors_edits);
            let response =
                GeneratedResponse { status, fields, text, edits, is_rejection: true, to_sidecar };
            response.send(responder, is_bodiless).await
        }
    }
}

/// True if the client expects a response in gRPC format: trailers only, with the gRPC status. Clients map a
/// bare HTTP status to a code and lose the reason (grpc/doc/http-grpc-status-mapping.md).
fn expects_grpc(responder: &Responder<'_>, is_grpc_call: bool) -> bool {
    match responder {
        Responder::Http2 { grpc, .. } => *grpc,
        Responder::Link { .. } => is_grpc_call,
        Responder::Http1 { .. } => false,
    }
}

/// Merges the fields of an error response with the fields that the policy configures. The policy's fields take
/// precedence, except for fields that are necessary to interpret the response.
fn merge_policy_fields<'a>(
    failure: &'a Failure,
    error_fields: &[(&'a str, &'a str)],
) -> Vec<(&'a str, Cow<'a, str>)> {
    let is_grpc_call = error_fields.iter().any(|(name, _)| *name == GRPC_STATUS_FIELD);
    let is_reserved = |name: &str| match name {
        REASON_FIELD | "date" => true,
        "content-type" => is_grpc_call,
        name => is_grpc_call && name.starts_with("grpc-"),
    };
    let policy_headers = failure.response.iter().flat_map(|response| &response.headers);
    let policy_fields: Vec<(&str, Cow<'_, str>)> = policy_headers
        .filter(|header| !is_reserved(&header.name))
        .map(|header| (&*header.name, Cow::Borrowed(&*header.value)))
        .collect();
    let retry_after =
        failure.retry_after.map(|seconds| ("retry-after", seconds.to_string().into()));
    let default_fields = error_fields.iter().map(|(name, value)| (*name, Cow::Borrowed(*value)));
    let is_replaced =
        |name: &str| policy_fields.iter().any(|(policy_name, _)| *policy_name == name);
    let retained_fields = default_fields.chain(retry_after).filter(|(name, _)| !is_replaced(name));
    let retained_fields: Vec<(&str, Cow<'_, str>)> = retained_fields.collect();
    retained_fields.into_iter().chain(policy_fields).collect()
}

/// Borrows the values of fields.
fn borrow_fields<'a>(fields: &'a [(&'a str, Cow<'_, str>)]) -> Vec<(&'a str, &'a str)> {
    fields.iter().map(|(name, value)| (*name, &**value)).collect()
}

/// Returns the sentence that describes the failure.
fn failure_caption(
    failure: &Failure,
    session: &Session,
    responder: &Responder<'_>,
) -> &'static str {
    match responder {
        // The HTTP proxy port sends no other HTTP/2 responses.
        Responder::Http2 { .. } if session.listener_kind == ListenerKind::HttpProxy => {
            HTTP2_AT_HTTP_PROXY
        }
        _ => failure.reason.caption(),
    }
}

/// Returns the text of the response: the body that the policy configures, or the caption of the failure.
fn render_body(failure: &Failure, is_external_client: bool, caption: &str) -> String {
    if let Some(body) = failure.response.as_ref().and_then(|response| response.body.clone()) {
        return body;
    }
    match &failure.policy {
        Some(policy) if !is_external_client => {
            format!("leno: {caption} ({} {policy})\n", policy.policy_kind())
        }
        _ => format!("leno: {caption}\n"),
    }
}

fn side_name(side: FailureSide) -> &'static str {
    match side {
        FailureSide::Downstream => "downstream",
        FailureSide::Mesh => "mesh",
        FailureSide::Upstream => "upstream",
    }
}

/// The sentence for clients that use HTTP/2 on the HTTP proxy port.
const HTTP2_AT_HTTP_PROXY: &str =
    "The HTTP proxy supports HTTP/1.1 only, and the client sent HTTP/2 with prior knowledge.";
/// The field with the gRPC status of a call.
const GRPC_STATUS_FIELD: &str = "grpc-status";
