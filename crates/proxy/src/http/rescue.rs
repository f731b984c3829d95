//! A failure becomes a response: reason → status, header, a sentence. One table, in `Reason`.

use http::header::DATE;
use leno_model::{Retry, Side, WorkloadName};
use leno_wire::link::ResetCode;

use super::answer::Answer;
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
    let status = failure.status();
    if status == 0 {
        return false;
    }
    let side = side(failure.reason.side());
    let label = failure.reason.label();
    let why = format!("{label};side={side};workload=\"{workload}\"");
    match responder {
        // Over HTTP/2 a call looks for its own status.
        Responder::Http2 { reply, grpc: true, .. } => {
            grpc_head(failure, why).is_ok_and(|head| reply.answer(head, true).is_ok())
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
        responder => {
            let text = body(failure);
            let fields = [("leno-reason", &*why), ("content-type", "text/plain; charset=utf-8")];
            let more = failure.answer.iter().flat_map(|answer| &answer.headers);
            let more = more.map(|header| (&*header.name, &*header.value));
            let fields: Vec<(&str, &str)> = fields.into_iter().chain(more).collect();
            let answer = Answer { status, fields: &fields, text: &text, edits: None };
            answer.send(responder, bodiless).await
        }
    }
}

/// An answer without messages: its trailers are its head, and the status is in them.
fn grpc_head(failure: &Failure, why: String) -> http::Result<http::Response<()>> {
    let head = http::Response::builder().status(200).header("leno-reason", why);
    let head = head.header("content-type", "application/grpc").header(DATE, &date::now()[..]);
    let head = head.header("grpc-status", u16::from(grpc::status(failure.reason).code()));
    head.header("grpc-message", failure.reason.caption()).body(())
}

fn body(failure: &Failure) -> String {
    if let Some(body) = failure.answer.as_ref().and_then(|answer| answer.body.clone()) {
        return body;
    }
    let caption = failure.reason.caption();
    match &failure.policy {
        Some(policy) => format!("leno: {caption} ({} {policy})\n", policy.kind()),
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
