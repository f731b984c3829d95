//! A failure becomes a response: reason → status, header, a sentence. One table, in `Reason`.

use http::header::DATE;
use leno_model::{Retry, Side, WorkloadName};
use leno_wire::link::ResetCode;

use super::body::{send, send_http2};
use super::date;
use super::grpc;
use super::respond::Responder;
use crate::error::Failure;

/// Answers for the upstream that did not. False: nothing can be answered, the client is cut off.
pub(crate) async fn answer(
    failure: &Failure,
    workload: &WorkloadName,
    responder: &mut Responder<'_>,
    bodiless: bool,
) -> bool {
    let status = failure.reason.status();
    if status == 0 {
        return false;
    }
    let body = body(failure);
    let now = date::now();
    let date = std::str::from_utf8(&now).unwrap_or_default();
    let side = side(failure.reason.side());
    let label = failure.reason.label();
    let head = format!(
        "HTTP/1.1 {status} {}\r\ndate: {date}\r\nleno-reason: {label};side={side};workload=\"{workload}\"\r\n\
         content-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n",
        phrase(status),
        body.len(),
    );
    let body = if bodiless { "" } else { &body };
    match responder {
        Responder::Http1 { writer, keep_alive, .. } => {
            writer.room().extend_from_slice(head.as_bytes());
            let close: &[u8] = if *keep_alive { b"\r\n" } else { b"connection: close\r\n\r\n" };
            writer.room().extend_from_slice(close);
            writer.room().extend_from_slice(body.as_bytes());
            writer.flush().await.is_ok()
        }
        Responder::Http2 { reply, patience, grpc } => {
            let why = format!("{label};side={side};workload=\"{workload}\"");
            let head = match *grpc {
                true => grpc_head(failure, why),
                false => http2_head(status, body.len(), why),
            };
            let Ok(head) = head else {
                return false;
            };
            let body = if *grpc { "" } else { body };
            let Ok(stream) = reply.answer(head, body.is_empty()) else {
                return false;
            };
            let body = bytes::Bytes::copy_from_slice(body.as_bytes());
            body.is_empty() || send_http2(&stream, body, true, *patience).await.is_ok()
        }
        // Nothing reached the application: the client's sidecar may know another endpoint.
        Responder::Link { stream, .. } if failure.reason.retry() == Retry::Always => {
            stream.reset(ResetCode::Unreachable);
            true
        }
        // It broke half-way: only the client's sidecar knows whether another may be asked.
        Responder::Link { stream, .. } if failure.reason.retry() == Retry::IfUnsent => {
            stream.reset(ResetCode::Failed);
            true
        }
        Responder::Link { stream, patience } => {
            let Some(Ok(())) = stream.uncongested(*patience).await else {
                return false;
            };
            let body = bytes::Bytes::copy_from_slice(body.as_bytes());
            let sent = stream.send_head(false, body.is_empty(), |out| {
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(b"\r\n");
            });
            sent.is_ok() && (body.is_empty() || send(stream, body, true, *patience).await.is_ok())
        }
    }
}

fn http2_head(status: u16, length: usize, why: String) -> http::Result<http::Response<()>> {
    let head = http::Response::builder().status(status).header("leno-reason", why);
    let head =
        head.header("content-type", "text/plain; charset=utf-8").header(DATE, &date::now()[..]);
    head.header("content-length", length).body(())
}

/// An answer without messages: its trailers are its head, and the status is in them.
fn grpc_head(failure: &Failure, why: String) -> http::Result<http::Response<()>> {
    let head = http::Response::builder().status(200).header("leno-reason", why);
    let head = head.header("content-type", "application/grpc").header(DATE, &date::now()[..]);
    let head = head.header("grpc-status", u16::from(grpc::status(failure.reason).code()));
    head.header("grpc-message", failure.reason.caption()).body(())
}

fn body(failure: &Failure) -> String {
    let caption = failure.reason.caption();
    match &failure.policy {
        Some(policy) => format!("leno: {caption} (TrafficTarget {policy})\n"),
        None => format!("leno: {caption}\n"),
    }
}

fn side(side: Side) -> &'static str {
    match side {
        Side::Downstream => "downstream",
        Side::Ours => "ours",
        Side::Upstream => "upstream",
    }
}

/// The reason phrases of RFC 9110 §15 for the statuses in `Reason`.
fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use leno_model::Reason;

    use super::*;

    #[test]
    fn every_status_of_the_table_has_its_phrase() {
        for reason in Reason::ALL {
            assert!(reason.status() == 0 || phrase(reason.status()) != "Error", "{reason:?}");
        }
    }
}
