//! Rejects HTTP/2 clients with prior knowledge on the HTTP proxy port, which supports HTTP/1.1 only.

use std::rc::Rc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use leno_model::Reason;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::{Http2ConnectionEnd, SHUTDOWN_TIMEOUT, drain_body, is_grpc};
use crate::error::Failure;
use crate::http::body::BodySource;
use crate::http::error_response;
use crate::http::respond::Responder;
use crate::http2::stream::{Http2Response, ReceivedBody};
use crate::http2::transport::Transport;
use crate::record::ExchangeRecord;
use crate::session::Session;

/// Rejects each request with a response that explains the mismatch, and ends the connection after the first
/// one.
pub(super) async fn reject_requests(
    session: &Rc<Session>,
    mut connection: Connection<Transport, Bytes>,
) -> Http2ConnectionEnd {
    let response_sent = Rc::new(Notify::new());
    let mut is_ending = false;
    let mut deadline = Instant::now() + session.worker.config.limits.head_timeout;
    loop {
        let accept_result = tokio::select! {
            biased;
            accept_result = timeout_at(deadline, connection.accept()) => accept_result,
            () = response_sent.notified(), if !is_ending => {
                is_ending = true;
                deadline = Instant::now() + SHUTDOWN_TIMEOUT;
                connection.graceful_shutdown();
                continue;
            }
        };
        match accept_result {
            Ok(Some(Ok((request, send_response)))) => {
                let (session, response_sent) = (session.clone(), response_sent.clone());
                tokio::task::spawn_local(async move {
                    let body = reject_request(&session, request, send_response).await;
                    response_sent.notify_one();
                    drain_body(&mut BodySource::Http2(ReceivedBody::new(body))).await;
                });
            }
            Ok(None) => return Http2ConnectionEnd::Graceful,
            Ok(Some(Err(_))) | Err(_) => return Http2ConnectionEnd::Abrupt,
        }
    }
}

/// Responds to a request without waiting for its body. Returns the body.
async fn reject_request(
    session: &Session,
    request: http::Request<RecvStream>,
    send_response: SendResponse<Bytes>,
) -> RecvStream {
    let (request_parts, body) = request.into_parts();
    let stall_timeout = session.worker.config.limits.body_stall_timeout;
    let grpc = is_grpc(&request_parts.headers);
    let mut responder =
        Responder::Http2 { response: Http2Response::new(send_response), stall_timeout, grpc };
    let _record = ExchangeRecord::open_unreadable(session, Reason::Unsupported);
    let failure = Failure::from(Reason::Unsupported);
    let is_head = request_parts.method == http::Method::HEAD;
    error_response::send_error(&failure, session, &mut responder, is_head, false, None).await;
    body
}
