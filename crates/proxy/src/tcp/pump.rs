//! Copies of the bytes of a connection in both directions.

use super::*;

/// The direction of the client's bytes.
#[derive(Clone, Copy)]
pub(super) enum PumpDirection<'a> {
    Link,
    /// With the inspection of the client's bytes, if required.
    Application(Option<&'a RequestDetector<'a>>),
}

/// Forwards both directions concurrently, each with its own end (half-close), until both have ended.
pub(super) async fn forward_streams(
    ends: &mut (MessageReader, MessageWriter),
    stream: &LinkStream,
    towards: PumpDirection<'_>,
    max_wait: Duration,
    record: &mut ExchangeRecord<'_>,
) -> Result<(), Reason> {
    let (to_stream, to_plain) = match towards {
        PumpDirection::Link => (&record.bytes_in, &record.bytes_out),
        PumpDirection::Application(_) => (&record.bytes_out, &record.bytes_in),
    };
    forward_counted(ends, stream, towards, max_wait, to_stream, to_plain).await
}

/// The same, with counters for the bytes to and from the stream.
pub(super) async fn forward_counted(
    (reader, writer): &mut (MessageReader, MessageWriter),
    stream: &LinkStream,
    towards: PumpDirection<'_>,
    max_wait: Duration,
    to_stream: &Cell<u64>,
    to_plain: &Cell<u64>,
) -> Result<(), Reason> {
    let mut from_plain = BodySource::from_http1(reader, BodyLength::UntilClose);
    let mut into_stream = BodySink::Link { stream, max_wait };
    let mut from_stream = BodySource::from_link(stream, BodyLength::UntilClose);
    let noted = |bytes| BodyRecorder::for_response(bytes, None);
    let io = writer.io.clone();
    let mut into_plain = BodySink::Http1 { writer, chunked: false };
    let forth = async {
        let pumped =
            forward_body(&mut from_plain, &mut into_stream, PauseLimit::Allowed, &noted(to_stream))
                .await;
        pumped.map_err(|broken| towards.failure_reason(StreamDirection::ToStream, &broken))
    };
    let back = async {
        let pumped = async {
            if let PumpDirection::Application(Some(examination)) = towards {
                examination.forward_inspected(&mut from_stream, &mut into_plain, to_plain).await?;
            }
            forward_body(&mut from_stream, &mut into_plain, PauseLimit::Allowed, &noted(to_plain))
                .await?;
            poll_fn(|cx| io.poll_shutdown(cx)).await.map_err(|_| PumpError::Sink)
        };
        pumped.await.map_err(|broken| towards.failure_reason(StreamDirection::FromStream, &broken))
    };
    tokio::select! {
        biased;
        carried = async { tokio::try_join!(forth, back) } => carried.map(|((), ())| ()),
        // One side may be stuck; the other does not wait for it.
        _ = stream.wait_until_lost() => Err(towards.loss_reason()),
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
    pub(super) fn failure_reason(self, way: StreamDirection, broken: &PumpError) -> Reason {
        match (self, way, broken) {
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
