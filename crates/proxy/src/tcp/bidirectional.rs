//! Forwards opaque bytes between a connection and a stream of a link, in both directions at the same time. The
//! client is at one of the two, the upstream (an endpoint's sidecar, or the application) at the other.

use std::cell::Cell;
use std::future::poll_fn;
use std::time::Duration;

use leno_model::Reason;
use leno_wire::http1::BodyLength;

use super::request_detection::RequestDetector;
use crate::error::{downstream_reason, upstream_reason};
use crate::http::body::{
    BodyRecorder, BodySink, BodySource, ForwardError, PauseLimit, forward_body,
};
use crate::http::message::{MessageReader, MessageWriter};
use crate::link::LinkStream;
use crate::max_wait::wait_for_silence;
use crate::record::ExchangeRecord;

/// The side at which the client is; the upstream is at the other side.
#[derive(Clone, Copy)]
pub(super) enum ClientSide<'a> {
    /// The client has the connection. Its bytes are forwarded to the link, and so to the endpoint's sidecar.
    Connection,
    /// The client's sidecar is at the other end of the link. The client's bytes are forwarded to the connection,
    /// which is the application's. On a port declared `TCP`, the detector checks whether they are a request.
    Link(Option<&'a RequestDetector<'a>>),
}

/// Forwards both directions until both have ended, or until no byte was forwarded for `idle_timeout`. Counts the
/// bytes of the client and of the upstream in the record. Each direction ends on its own (half-close).
pub(super) async fn forward_bidirectional(
    connection: &mut (MessageReader, MessageWriter),
    stream: &LinkStream,
    client_side: ClientSide<'_>,
    idle_timeout: Duration,
    record: &mut ExchangeRecord<'_>,
) -> Result<(), Reason> {
    let (bytes_to_stream, bytes_from_stream) = match client_side {
        ClientSide::Connection => (&record.bytes_in, &record.bytes_out),
        ClientSide::Link(_) => (&record.bytes_out, &record.bytes_in),
    };
    forward_with_counters(
        connection,
        stream,
        client_side,
        idle_timeout,
        bytes_to_stream,
        bytes_from_stream,
    )
    .await
}

/// Forwards both directions like [`forward_bidirectional`], for a connection without a record: counts the bytes
/// of each direction in `bytes_to_stream` and `bytes_from_stream`.
pub(super) async fn forward_with_counters(
    (reader, writer): &mut (MessageReader, MessageWriter),
    stream: &LinkStream,
    client_side: ClientSide<'_>,
    idle_timeout: Duration,
    bytes_to_stream: &Cell<u64>,
    bytes_from_stream: &Cell<u64>,
) -> Result<(), Reason> {
    let mut connection_source = BodySource::from_http1(reader, BodyLength::UntilClose);
    let mut stream_sink = BodySink::Link { stream, stall_timeout: idle_timeout };
    let mut stream_source = BodySource::from_link(stream, BodyLength::UntilClose);
    let recorder = |byte_count| BodyRecorder::unfiltered(byte_count, None);
    let io = writer.io.clone();
    let mut connection_sink = BodySink::Http1 { writer, is_chunked: false };
    let to_stream = async {
        forward_body(
            &mut connection_source,
            &mut stream_sink,
            PauseLimit::Unlimited,
            &recorder(bytes_to_stream),
        )
        .await
        .map_err(|error| client_side.failure_reason(StreamDirection::ToStream, &error))
    };
    let from_stream = async {
        let forwarding = async {
            if let ClientSide::Link(Some(detector)) = client_side {
                detector
                    .forward_inspected(&mut stream_source, &mut connection_sink, bytes_from_stream)
                    .await?;
            }
            forward_body(
                &mut stream_source,
                &mut connection_sink,
                PauseLimit::Unlimited,
                &recorder(bytes_from_stream),
            )
            .await?;
            poll_fn(|cx| io.poll_shutdown(cx)).await.map_err(|_| ForwardError::Sink)
        };
        forwarding
            .await
            .map_err(|error| client_side.failure_reason(StreamDirection::FromStream, &error))
    };
    tokio::select! {
        biased;
        result = async { tokio::try_join!(to_stream, from_stream) } => result.map(|((), ())| ()),
        // Polled on its own: while a slow reader of the connection blocks `from_stream`, nothing reads the stream.
        _ = stream.wait_until_lost() => Err(client_side.lost_stream_reason()),
        () = wait_for_silence(idle_timeout, bytes_to_stream, bytes_from_stream) => {
            Err(Reason::IdleTimeout)
        }
    }
}

/// The direction of bytes between the connection and the stream.
#[derive(Clone, Copy)]
pub(super) enum StreamDirection {
    /// From the connection to the stream.
    ToStream,
    /// From the stream to the connection.
    FromStream,
}

impl ClientSide<'_> {
    /// Returns the reason why forwarding in one direction failed: a reason of the client's side if the client did
    /// not send or receive, and otherwise a reason of the upstream's side.
    pub(super) fn failure_reason(
        self,
        stream_direction: StreamDirection,
        error: &ForwardError,
    ) -> Reason {
        match (self, stream_direction, error) {
            (Self::Connection, StreamDirection::ToStream, ForwardError::Source(error))
            | (Self::Link(_), StreamDirection::FromStream, ForwardError::Source(error)) => {
                downstream_reason(error)
            }
            (Self::Connection, StreamDirection::FromStream, ForwardError::Source(error))
            | (Self::Link(_), StreamDirection::ToStream, ForwardError::Source(error)) => {
                upstream_reason(error)
            }
            (_, _, ForwardError::SinkStalled) => Reason::IdleTimeout,
            (Self::Connection, StreamDirection::ToStream, ForwardError::Sink)
            | (Self::Link(_), StreamDirection::FromStream, ForwardError::Sink) => {
                Reason::UpstreamReset
            }
            (Self::Connection, StreamDirection::FromStream, ForwardError::Sink)
            | (Self::Link(_), StreamDirection::ToStream, ForwardError::Sink) => {
                Reason::DownstreamClosed
            }
        }
    }

    /// Returns the reason after the stream was lost: the upstream's if it was at the link, else the client's.
    fn lost_stream_reason(self) -> Reason {
        match self {
            Self::Connection => Reason::UpstreamReset,
            Self::Link(_) => Reason::DownstreamClosed,
        }
    }
}
