//! Builds the heads of requests to HTTP/2 servers, with the edits of all rules applied.

use bytes::BytesMut;
use leno_model::Reason;
use leno_telemetry::trace::{PropagatedHeaders, TraceSpan};
use leno_wire::http1::{FramingPolicy, ParseProgress, write_request};

use super::request_edits;
use crate::http::exchange::Exchange;
use crate::http::generated_response;
use crate::http::request::{ParsedTarget, Request};
use crate::http2::{connect, head};
use crate::upstream::AttemptTarget;

/// Returns the head of the request, for the application or for a peer without links.
///
/// # Errors
/// `bad-request` for requests that HTTP/2 cannot express, `unsupported` for an upgrade that offers a choice of
/// protocols, `head-too-large` if rules enlarge the head over its limit.
pub(super) fn build_http2_request(
    exchange: &Exchange<'_, '_>,
    request_target: &ParsedTarget<'_>,
    attempt_target: &AttemptTarget,
) -> Result<http::Request<()>, Reason> {
    match attempt_target {
        AttemptTarget::Application(_) => {
            let received_target = exchange.request.head.target.slice_in(&exchange.request.bytes);
            let target =
                request_target.origin_form.as_deref().or(std::str::from_utf8(received_target).ok());
            let mut request_head = build_http2_head(
                exchange.request,
                "http",
                attempt_target,
                request_target.authority,
                target.unwrap_or_default(),
            )?;
            if let Some(actions) = &exchange.actions {
                generated_response::edit_fields(&actions.request, request_head.headers_mut())
                    .ok_or(Reason::BadRequest)?;
            }
            let trace_headers = exchange.span().map(PropagatedHeaders::from_span);
            let replaced_names = exchange.span().map_or(&[][..], TraceSpan::replaced_headers);
            head::add_fields(
                &mut request_head,
                &exchange.added_headers(trace_headers.as_ref()),
                replaced_names,
            );
            Ok(request_head)
        }
        // The edits are applied by the same code as for a link: the head is written in HTTP/1.1 format and
        // parsed again.
        AttemptTarget::Upstream(upstream) => {
            let trace_headers = exchange.span().map(PropagatedHeaders::from_span);
            let added_headers = exchange.added_headers(trace_headers.as_ref());
            let mut bytes = BytesMut::new();
            let edits = request_edits(
                exchange,
                request_target,
                exchange.actions.as_deref(),
                FramingPolicy::OutOfBand,
                &added_headers,
            );
            write_request(&exchange.request.bytes, exchange.request.head, &edits, &mut bytes);
            let mut head = exchange.session.worker.request_heads.take_object();
            match head.parse(&bytes) {
                Ok(ParseProgress::Complete(_)) => {}
                Ok(ParseProgress::Partial) | Err(_) => return Err(Reason::HeadTooLarge),
            }
            let is_upgrade = exchange.request.is_upgrade;
            let edited_request = Request { bytes: bytes.freeze(), head: &head, is_upgrade };
            let edited_target = edited_request.parse_target()?;
            let target_bytes = edited_request.head.target.slice_in(&edited_request.bytes);
            let target = std::str::from_utf8(target_bytes).unwrap_or_default();
            let is_unmeshed = upstream.endpoint.account.is_none();
            let scheme = if is_unmeshed { "http" } else { "https" };
            let authority = edited_target.authority;
            build_http2_head(&edited_request, scheme, attempt_target, authority, target)
        }
    }
}

/// Builds the head of a request, or of an extended CONNECT request for an upgrade. An empty `authority` is
/// replaced by the address of the target.
fn build_http2_head(
    request: &Request<'_>,
    scheme: &str,
    attempt_target: &AttemptTarget,
    authority: &str,
    target: &str,
) -> Result<http::Request<()>, Reason> {
    let address = attempt_target.address().to_string();
    let authority = if authority.is_empty() { &address } else { authority };
    match request.is_upgrade {
        true => connect::build_connect_request(request, scheme, authority, target),
        false => head::request_to_http2(&request.bytes, request.head, scheme, authority, target),
    }
}
