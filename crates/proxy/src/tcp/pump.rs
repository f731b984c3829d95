//! Copies of the bytes of a connection in both directions.

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

/// The direction of the client's bytes.
#[derive(Clone, Copy)]
pub(super) enum PumpDirection<'a> {
    Link,
    /// With the inspection of the client's bytes, if required.
    Application(Option<&'a RequestDetector<'a>>),
}

/// Forwards both directions concurrently, each with its own end (half-close), until both have ended.
pub(super) async fn forward_streams(
    plain: &mut (MessageReader, MessageWriter),
    stream: &LinkStream,
    direction: PumpDirection<'_>,
    max_wait: Duration,
    record: &mut ExchangeRecord<'_>,
) -> Result<(), Reason> {
    let (to_stream, to_plain) = match direction {
        PumpDirection::Link => (&record.bytes_in, &record.bytes_out),
        PumpDirection::Application(_) => (&record.bytes_out, &record.bytes_in),
    };
    forward_counted(plain, stream, direction, max_wait, to_stream, to_plain).await
}

/// The same, with counters for the bytes to and from the stream.
pub(super) async fn forward_counted(
    (reader, writer): &mut (MessageReader, MessageWriter),
    stream: &LinkStream,
    direction: PumpDirection<'_>,
    max_wait: Duration,
    to_stream: &Cell<u64>,
    to_plain: &Cell<u64>,
) -> Result<(), Reason> {
    let mut from_plain = BodySource::from_http1(reader, BodyLength::UntilClose);
    let mut into_stream = BodySink::Link { stream, max_wait };
    let mut from_stream = BodySource::from_link(stream, BodyLength::UntilClose);
    let recorder = |bytes| BodyRecorder::for_response(bytes, None);
    let io = writer.io.clone();
    let mut into_plain = BodySink::Http1 { writer, chunked: false };
    let send = async {
        let outcome = forward_body(
            &mut from_plain,
            &mut into_stream,
            PauseLimit::Unlimited,
            &recorder(to_stream),
        )
        .await;
        outcome.map_err(|error| direction.failure_reason(StreamDirection::ToStream, &error))
    };
    let receive = async {
        let outcome = async {
            if let PumpDirection::Application(Some(detector)) = direction {
                detector.forward_inspected(&mut from_stream, &mut into_plain, to_plain).await?;
            }
            forward_body(
                &mut from_stream,
                &mut into_plain,
                PauseLimit::Unlimited,
                &recorder(to_plain),
            )
            .await?;
            poll_fn(|cx| io.poll_shutdown(cx)).await.map_err(|_| PumpError::Sink)
        };
        outcome.await.map_err(|error| direction.failure_reason(StreamDirection::FromStream, &error))
    };
    tokio::select! {
        biased;
        outcome = async { tokio::try_join!(send, receive) } => outcome.map(|((), ())| ()),
        // One side may be stuck; the other does not wait for it.
        _ = stream.wait_until_lost() => Err(direction.loss_reason()),
        () = wait_for_silence(max_wait, to_stream, to_plain) => Err(Reason::IdleTimeout),
    }
}

/// The direction from the plain connection to the stream, or from the stream.
#[derive(Clone, Copy)]
pub(super) enum StreamDirection {
    ToStream,
    FromStream,
}

impl PumpDirection<'_> {
    /// Returns the reason for a broken pump, by the side at fault.
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
