//! Forwards interim and final responses to the client, and records them.

use leno_model::Reason;
use leno_wire::http1::{BodyLength, ResponseHead};

use super::ResponsePath;
use super::request_body_state::RequestBodyState;
use crate::error::stream_error_reason;
use crate::http::body::{BodySink, BodySource, PauseLimit, forward_body};
use crate::http::grpc;
use crate::http::respond::Responder;
use crate::http::retry::ResponseFilter;
use crate::http2::connect;
use crate::link::{LinkStream, StreamError};

impl ResponsePath<'_, '_> {
    /// Forwards an interim (1xx) head.
    pub(super) async fn send_interim(
        &mut self,
        bytes: &[u8],
        head: &ResponseHead,
    ) -> Result<(), Reason> {
        self.responder.wait_uncongested().await.map_err(|_| Reason::DownstreamClosed)?;
        self.responder.send_interim(bytes, head).await.map_err(|_| Reason::DownstreamClosed)
    }

    /// Forwards the final head and its body.
    pub(super) async fn send_final(
        &mut self,
        bytes: &[u8],
        head: &ResponseHead,
        mut source: BodySource<'_>,
    ) -> Result<(), Reason> {
        if let Some(timed_attempt) = self.timed_attempt {
            timed_attempt.record_response(match self.recorder.call {
                None => head.status,
                Some(_) => grpc::equivalent_http_status(bytes, head),
            });
        }
        let response_filter = self.response_filter.as_ref();
        if response_filter
            .is_some_and(|response_filter| response_filter.withhold(bytes, head, self.observer))
        {
            // The caller discards this reason.
            return Err(Reason::UpstreamReset);
        }
        if let Some(observer) = self.observer {
            observer.record_response(self.request, bytes, head);
        }
        self.responder.wait_uncongested().await.map_err(|_| Reason::DownstreamClosed)?;
        if self.is_upgrade && matches!(self.responder, Responder::Http2 { .. }) {
            connect::check_connect_response(self.request, bytes, head)?;
        }
        let request_body_state = self.request_body_state.get();
        let is_body_pending =
            matches!(request_body_state, RequestBodyState::InProgress | RequestBodyState::Rejected);
        if is_body_pending || self.worker.is_leaving() {
            // The rest of a request body is not awaited once the response has started.
            self.responder.close_after_exchange();
        }
        if head.tunnel {
            // Boxed to keep the future small for other requests.
            return Box::pin(self.forward_upstream(bytes, head, source)).await;
        }
        self.record.head.status.set(head.status);
        self.response_started.set(true);
        let is_bodiless = source.is_empty();
        let mut sink = self
            .responder
            .start_response(bytes, head, self.edits, self.affinity_field, is_bodiless)
            .map_err(|_| Reason::DownstreamClosed)?;
        if is_bodiless && matches!(sink, BodySink::Link { .. } | BodySink::Http2 { .. }) {
            if let Some(call) = self.recorder.call {
                call.finish_response(bytes, head);
            }
            return Ok(());
        }
        let pause_limit = match head.body {
            BodyLength::ContentLength(_) => {
                PauseLimit::Limited(self.worker.config.limits.body_stall_timeout)
            }
            // The body may be an event stream, in which pauses of any length are normal.
            BodyLength::Empty | BodyLength::Chunked | BodyLength::UntilClose => {
                PauseLimit::CountedStream(self.record)
            }
        };
        let outcome = forward_body(&mut source, &mut sink, pause_limit, &self.recorder).await;
        if let (Ok(()), Some(call)) = (&outcome, self.recorder.call) {
            call.finish_response(bytes, head);
        }
        outcome.map_err(|error| self.failure_reason(&error))
    }

    /// True if this response is withheld and another attempt follows.
    #[cold]
    pub(super) fn is_withheld(&self) -> bool {
        self.response_filter.as_ref().is_some_and(ResponseFilter::has_withheld)
    }

    /// Records that the peer's sidecar rejected the request, so that the response is not the application's.
    ///
    /// # Errors
    /// `unknown-service` if the workload no longer has the port, and the request has no body: a newer
    /// configuration may contain another endpoint.
    #[cold]
    pub(super) fn record_rejection(&mut self, reason: Reason) -> Result<(), Reason> {
        self.record.head.rejection.set(Some(reason));
        if let Some(outcome_guard) = self.outcome_guard {
            outcome_guard.record_rejection(reason);
        }
        let is_whole = self.request.head.body == BodyLength::Empty;
        if reason == Reason::UnknownService && is_whole { Err(reason) } else { Ok(()) }
    }

    /// Returns the reason for a failed stream: the reason that an unreachable peer reports, or the default of
    /// the error. Records an HTTP/2 reset code.
    #[cold]
    pub(super) fn stream_error_reason(
        &self,
        stream_error: StreamError,
        stream: &LinkStream,
    ) -> Reason {
        if let StreamError::Http2(code) = stream_error {
            self.reset_code.set(Some(code));
        }
        let reported_reason = (stream_error == StreamError::Unreachable)
            .then(|| stream.unreachable_reason())
            .flatten();
        reported_reason.unwrap_or_else(|| stream_error_reason(stream_error))
    }
}
