//! Forwarding of opaque bytes between a plain connection and a link stream, in both directions.

use std::cell::Cell;
use std::future::poll_fn;
use std::time::Duration;

use leno_model::Reason;
use leno_wire::http1::BodyLength;

use super::request_detection::RequestDetector;
use crate::error::{downstream_reason, upstream_reason};
use crate::http::body::{BodyRecorder, BodySink, BodySource, PauseLimit, PumpError, forward_body};
use crate::http::message::{MessageReader, MessageWriter};
use crate::link::LinkStream;
use crate::max_wait::wait_for_silence;
use crate::record::ExchangeRecord;

/// The side to which the client's bytes are forwarded: the client is at the other side.
#[derive(Clone, Copy)]
pub(super) enum PumpDirection<'a> {
    /// The client is at the plain connection; its bytes are forwarded to the link.
    Link,
    /// The client is at the link; its bytes are forwarded to the application, through the detector if there is
    /// one.
    Application(Option<&'a RequestDetector<'a>>),
}

/// Forwards both directions concurrently until both have ended, or until no byte was forwarded for `max_wait`.
/// Each direction ends on its own (half-close).
pub(super) async fn forward_streams(
    plain: &mut (MessageReader, MessageWriter),
    stream: &LinkStream,
    direction: PumpDirection<'_>,
    max_wait: Duration,
    record: &mut ExchangeRecord<'_>,
) -> Result<(), Reason> {
    let (bytes_to_stream, bytes_to_plain) = match direction {
        PumpDirection::Link => (&record.bytes_in, &record.bytes_out),
        PumpDirection::Application(_) => (&record.bytes_out, &record.bytes_in),
    };
    forward_counted(plain, stream, direction, max_wait, bytes_to_stream, bytes_to_plain).await
}

/// Forwards both directions like [`forward_streams`], and counts the bytes of each direction in
/// `bytes_to_stream` and `bytes_to_plain`.
pub(super) async fn forward_counted(
    (reader, writer): &mut (MessageReader, MessageWriter),
    stream: &LinkStream,
    direction: PumpDirection<'_>,
    max_wait: Duration,
    bytes_to_stream: &Cell<u64>,
    bytes_to_plain: &Cell<u64>,
) -> Result<(), Reason> {
    let mut plain_source = BodySource::from_http1(reader, BodyLength::UntilClose);
    let mut stream_sink = BodySink::Link { stream, max_wait };
    let mut stream_source = BodySource::from_link(stream, BodyLength::UntilClose);
    let recorder = |bytes| BodyRecorder::for_response(bytes, None);
    let io = writer.io.clone();
    let mut plain_sink = BodySink::Http1 { writer, is_chunked: false };
    let send = async {
        let outcome = forward_body(
            &mut plain_source,
            &mut stream_sink,
            PauseLimit::Unlimited,
            &recorder(bytes_to_stream),
        )
        .await;
        outcome.map_err(|error| direction.failure_reason(StreamDirection::ToStream, &error))
    };
    let receive = async {
        let outcome = async {
            if let PumpDirection::Application(Some(detector)) = direction {
                detector
                    .forward_inspected(&mut stream_source, &mut plain_sink, bytes_to_plain)
                    .await?;
            }
            forward_body(
                &mut stream_source,
                &mut plain_sink,
                PauseLimit::Unlimited,
                &recorder(bytes_to_plain),
            )
            .await?;
            poll_fn(|cx| io.poll_shutdown(cx)).await.map_err(|_| PumpError::Sink)
        };
        outcome.await.map_err(|error| direction.failure_reason(StreamDirection::FromStream, &error))
    };
    tokio::select! {
        biased;
        outcome = async { tokio::try_join!(send, receive) } => outcome.map(|((), ())| ()),
        // A receiver that does not read must not delay the detection of a lost stream.
        _ = stream.wait_until_lost() => Err(direction.loss_reason()),
        () = wait_for_silence(max_wait, bytes_to_stream, bytes_to_plain) => Err(Reason::IdleTimeout),
    }
}

/// The direction of bytes between the plain connection and the stream.
#[derive(Clone, Copy)]
pub(super) enum StreamDirection {
    /// From the plain connection to the stream.
    ToStream,
    /// From the stream to the plain connection.
    FromStream,
}

impl PumpDirection<'_> {
    /// Returns the reason for a failed direction, by the side at fault: the client or the upstream.
    pub(super) fn failure_reason(
        self,
        stream_direction: StreamDirection,
        error: &PumpError,
    ) -> Reason {
        match (self, stream_direction, error) {
            (Self::Link, StreamDirection::ToStream, PumpError::Source(error))
            | (Self::Application(_), StreamDirection::FromStream, PumpError::Source(error)) => {
                downstream_reason(error)
            }
            (Self::Link, StreamDirection::FromStream, PumpError::Source(error))
            | (Self::Application(_), StreamDirection::ToStream, PumpError::Source(error)) => {
                upstream_reason(error)
            }
            (_, _, PumpError::SinkStalled) => Reason::IdleTimeout,
            (Self::Link, StreamDirection::ToStream, PumpError::Sink)
            | (Self::Application(_), StreamDirection::FromStream, PumpError::Sink) => {
                Reason::UpstreamReset
            }
            (Self::Link, StreamDirection::FromStream, PumpError::Sink)
            | (Self::Application(_), StreamDirection::ToStream, PumpError::Sink) => {
                Reason::DownstreamClosed
            }
        }
    }

    /// Returns the reason for a lost stream, by the side at fault.
    pub(super) fn loss_reason(self) -> Reason {
        match self {
            Self::Link => Reason::UpstreamReset,
            Self::Application(_) => Reason::DownstreamClosed,
        }
    }
}
