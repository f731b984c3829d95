//! Forwards upgraded connections. Each direction ends independently (half-close), in either order.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

use leno_model::Reason;
use leno_wire::http1::ResponseHead;

use super::{RequestBodyState, ResponsePath};
use crate::error::upstream_reason;
use crate::http::body::{
    BodyRecorder, BodySink, BodySource, ForwardError, PauseLimit, forward_body,
};
use crate::http::message::ReadError;
use crate::http2::stream::OutgoingBody;
use crate::io::Io;
use crate::link::LinkStream;
use crate::max_wait::wait_for_silence;
use crate::session::Session;

/// Forwards the client's direction of an upgraded connection. If the upstream has ended its own direction, the
/// connection stays open until the upstream closes it or the client is idle for longer than the idle timeout.
pub(super) async fn forward_client(
    body: &mut BodySource<'_>,
    sink: &mut BodySink<'_>,
    session: &Session,
    recorder: &BodyRecorder<'_>,
    request_body_state: &Cell<RequestBodyState>,
) -> Result<(), ForwardError> {
    let upstream = TunnelUpstream::from_sink(sink);
    let forward_direction = async {
        forward_body(body, sink, PauseLimit::Unlimited, recorder).await?;
        sink.end_direction().await
    };
    let wait_for_abandonment = async {
        wait_for_condition(|| request_body_state.get() == RequestBodyState::HalfClosed).await;
        let idle_timeout = session.worker.config.limits.idle_connection;
        tokio::select! {
            () = upstream.wait_until_gone() => {}
            // The upstream sends no more, so the client's bytes stand for both directions.
            () = wait_for_silence(idle_timeout, recorder.bytes, recorder.bytes) => {}
        }
    };
    tokio::select! {
        biased;
        forward_result = forward_direction => forward_result,
        () = wait_for_abandonment => Err(ForwardError::Sink),
    }
}

impl ResponsePath<'_, '_> {
    /// Forwards the head and the direction of the upstream, and waits for the end of the client's direction.
    pub(super) async fn forward_upstream(
        &mut self,
        bytes: &[u8],
        head: &ResponseHead,
        mut source: BodySource<'_>,
    ) -> Result<(), Reason> {
        self.request_body_state.set(RequestBodyState::Tunnel);
        self.record.count_stream();
        self.record.head.status.set(head.status);
        self.response_started.set(true);
        let mut sink = self
            .responder
            .start_response(bytes, head, self.edits, self.affinity_field, false)
            .map_err(|_| Reason::DownstreamClosed)?;
        let outcome =
            forward_body(&mut source, &mut sink, PauseLimit::Unlimited, &self.recorder).await;
        if let Err(error) = outcome {
            return Err(self.failure_reason(&error));
        }
        let is_over = || !self.request_body_state.get().is_in_progress();
        if is_over() {
            return Ok(());
        }
        self.request_body_state.set(RequestBodyState::HalfClosed);
        // The client's direction is polled before the upstream's direction, and has to observe the new state.
        tokio::task::yield_now().await;
        let upstream_end = async {
            // An error is ignored, because reads detect a disconnect of the client.
            drop(sink.end_direction().await);
            std::future::pending().await
        };
        tokio::select! {
            biased;
            () = wait_for_condition(is_over) => Ok(()),
            never = upstream_end => never,
        }
    }

    /// Returns the reason for an incomplete response. Records the HTTP/2 code of a stream that the upstream
    /// reset.
    #[cold]
    pub(super) fn failure_reason(&self, error: &ForwardError) -> Reason {
        match error {
            ForwardError::Source(read_error) => {
                if let ReadError::Reset(code) = read_error {
                    self.reset_code.set(Some(*code));
                }
                upstream_reason(read_error)
            }
            ForwardError::Sink => Reason::DownstreamClosed,
            ForwardError::SinkStalled => Reason::BodyStalled,
        }
    }
}

/// Resolves once `condition` returns true; its result changes only while the same task is polled.
async fn wait_for_condition(condition: impl Fn() -> bool) {
    poll_fn(|_| if condition() { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// The upstream of an upgraded connection, to detect that it is gone.
enum TunnelUpstream<'a> {
    Http1(Io),
    Link(&'a LinkStream),
    Http2(OutgoingBody),
}

impl<'a> TunnelUpstream<'a> {
    fn from_sink(sink: &BodySink<'a>) -> Self {
        match sink {
            BodySink::Http1 { writer, .. } => Self::Http1(writer.io.clone()),
            BodySink::Link { stream, .. } => Self::Link(stream),
            BodySink::Http2 { stream, .. } => Self::Http2(stream.clone()),
        }
    }

    /// Resolves when an upstream that has ended its direction stops receiving.
    async fn wait_until_gone(&self) {
        match self {
            Self::Http1(io) => poll_fn(|cx| io.poll_gone_after_end(cx)).await,
            Self::Link(stream) => drop(stream.wait_until_lost().await),
            Self::Http2(stream) => drop(poll_fn(|cx| stream.poll_reset(cx)).await),
        }
    }
}
