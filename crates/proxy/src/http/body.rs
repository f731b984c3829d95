//! Body sources and sinks, and the pump between them.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use leno_wire::http1::{
    BodyDecoder, BodyLength, CHUNK_END, LAST_CHUNK, TRAILERS_FOLLOW, write_chunk_size,
};

use super::buffered_body::{BufferedPrefix, PrefixedSource};
use super::grpc::GrpcCall;
use super::message::{MessageReader, MessageWriter, ReadError};
use super::replay::{ReplayBuffer, ReplaySource};
use crate::http2::stream::{OutgoingBody, ReceivedBody};
use crate::link::{Incoming, LinkStream, StreamLoss};
use crate::max_wait::poll_within;
use crate::record::ExchangeRecord;

/// The source of a body.
pub(crate) enum BodySource<'a> {
    /// No body.
    Empty,
    /// An HTTP/1.1 connection. `trailers`: the section that arrived together with the last data.
    Http1 { reader: &'a mut MessageReader, decoder: BodyDecoder, trailers: Option<Bytes> },
    /// An HTTP/2 stream.
    Http2(ReceivedBody),
    /// A stream of a link. `owed`: the bytes that the head declared and that have not arrived yet.
    Link { stream: &'a LinkStream, ended: bool, owed: Option<u64> },
    /// Another source, with its beginning buffered for another attempt.
    Replay(Box<ReplaySource<'a>>),
    /// Another source, with a buffered prefix.
    Prefixed(Box<PrefixedSource<'a>>),
}

/// The destination of a body.
pub(crate) enum BodySink<'a> {
    /// An HTTP/1.1 connection; chunked if its length is not known to the receiver.
    Http1 { writer: &'a mut MessageWriter, chunked: bool },
    /// A stream of a link. `max_wait`: the time after which a peer that takes no pending data counts as
    /// stalled.
    Link { stream: &'a LinkStream, max_wait: Duration },
    /// An HTTP/2 stream. `max_wait`: as for a link.
    Http2 { stream: OutgoingBody, max_wait: Duration },
}

/// The limit on pauses in the middle of a body.
#[derive(Clone, Copy)]
pub(crate) enum PauseLimit<'a> {
    /// No limit: the peer is known to be alive, or is checked elsewhere.
    Allowed,
    /// No limit: this is a streaming request, which is counted as such at the first pause.
    OfStream(&'a ExchangeRecord<'a>),
    /// This limit, unless the response has started: peers may then take turns.
    Bounded { limit: Duration, answered: &'a Cell<bool> },
    /// This limit: the length of the body is known, and it is not a stream of events.
    Limited(Duration),
}

/// A piece of a body.
#[derive(Clone)]
pub(crate) enum BodyPiece {
    Data(Bytes),
    /// A raw trailer section; no data follows it.
    Trailers(Bytes),
}

/// The side that ended a pump early.
#[derive(Debug)]
pub(crate) enum PumpError {
    /// The source: its connection broke, or it sent malformed data.
    Source(ReadError),
    /// The sink accepts no more data.
    Sink,
    /// The sink is connected, and has accepted no data for too long.
    SinkStalled,
}

impl<'a> BodySource<'a> {
    pub(crate) fn from_http1(reader: &'a mut MessageReader, length: BodyLength) -> Self {
        match length {
            BodyLength::Empty | BodyLength::Known(0) => Self::Empty,
            BodyLength::Known(_) | BodyLength::Chunked | BodyLength::UntilClose => {
                Self::Http1 { reader, decoder: BodyDecoder::new(length), trailers: None }
            }
        }
    }

    /// Returns the body that follows a head on a link, with the length that the head declares, if any.
    pub(crate) fn from_link(stream: &'a LinkStream, length: BodyLength) -> Self {
        let owed = match length {
            BodyLength::Empty => return Self::Empty,
            BodyLength::Known(bytes) => Some(bytes),
            BodyLength::Chunked | BodyLength::UntilClose => None,
        };
        Self::Link { stream, ended: false, owed }
    }

    /// True if the whole body has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1 { decoder, trailers, .. } => decoder.is_complete() && trailers.is_none(),
            Self::Http2(received) => received.is_complete(),
            Self::Link { ended, .. } => *ended,
            Self::Replay(kept) => kept.is_complete(),
            Self::Prefixed(ahead) => ahead.is_complete(),
        }
    }

    /// True if no piece follows those taken, and none is missing.
    pub(super) fn is_exhausted(&self) -> bool {
        match self {
            Self::Replay(kept) => kept.is_exhausted(),
            Self::Prefixed(ahead) => ahead.is_exhausted(),
            Self::Link { owed: Some(1..), .. } => false,
            Self::Empty | Self::Http1 { .. } | Self::Http2(_) | Self::Link { .. } => {
                self.is_complete()
            }
        }
    }

    /// True if there is no body.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Buffers all data from now on, so that it can be sent again.
    pub(crate) fn start_buffering(&mut self, hold: Rc<ReplayBuffer>) {
        let source = std::mem::replace(self, Self::Empty);
        *self = Self::Replay(Box::new(ReplaySource::new(source, hold)));
    }

    /// Prepends a buffered prefix.
    pub(crate) fn begin_with(&mut self, beginning: BufferedPrefix) {
        let source = std::mem::replace(self, Self::Empty);
        *self = Self::Prefixed(Box::new(beginning.followed_by(source)));
    }

    /// Returns the whole body if it was read to its end and buffered; an absent body yields no pieces.
    pub(crate) fn buffered_pieces(&self) -> Option<Vec<BodyPiece>> {
        match self {
            Self::Empty => Some(Vec::new()),
            Self::Replay(kept) => kept.whole_body(),
            Self::Http1 { .. } | Self::Http2(_) | Self::Link { .. } | Self::Prefixed(_) => None,
        }
    }

    /// Starts again at the first byte, if it is buffered.
    pub(crate) fn rewind(&mut self) {
        if let Self::Replay(kept) = self {
            kept.restart();
        }
    }

    /// Skips the buffered part, which another attempt has sent.
    pub(crate) fn skip_kept(&mut self) {
        if let Self::Replay(kept) = self {
            kept.skip_buffered();
        }
    }

    /// Returns the next piece; `None` at the end.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<BodyPiece>, ReadError>> {
        match self {
            Self::Empty => Poll::Ready(Ok(None)),
            Self::Http1 { trailers, .. } if trailers.is_some() => {
                Poll::Ready(Ok(trailers.take().map(BodyPiece::Trailers)))
            }
            Self::Http1 { reader, decoder, trailers } => poll_http1(reader, decoder, trailers, cx),
            Self::Http2(received) => received.poll_next(cx),
            Self::Replay(kept) => kept.poll_next(cx),
            Self::Prefixed(ahead) => ahead.poll_next(cx),
            Self::Link { stream, ended, owed } => {
                let next = ready!(poll_link(stream, ended, cx))?;
                Poll::Ready(check_length(owed, next))
            }
        }
    }
}

fn poll_http1(
    reader: &mut MessageReader,
    decoder: &mut BodyDecoder,
    later: &mut Option<Bytes>,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<BodyPiece>, ReadError>> {
    loop {
        if decoder.is_complete() {
            return Poll::Ready(Ok(None));
        }
        if !reader.buffer.is_empty() {
            let piece = decoder.decode(&reader.buffer)?;
            if piece.consumed > 0 {
                let taken = reader.buffer.split_to(piece.consumed).freeze();
                let data = Some(piece.data).filter(|data| !data.is_empty());
                let data = data.map(|data| BodyPiece::Data(taken.slice(data)));
                let trailers = piece.trailers.map(|trailers| taken.slice(trailers));
                match (data, trailers) {
                    (Some(data), trailers) => {
                        *later = trailers;
                        return Poll::Ready(Ok(Some(data)));
                    }
                    (None, Some(trailers)) => {
                        return Poll::Ready(Ok(Some(BodyPiece::Trailers(trailers))));
                    }
                    (None, None) => continue,
                }
            }
        }
        if ready!(reader.poll_more(cx))? == 0 {
            decoder.end_of_input()?;
            return Poll::Ready(Ok(None));
        }
    }
}

fn poll_link(
    stream: &LinkStream,
    ended: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<BodyPiece>, ReadError>> {
    while !*ended {
        match ready!(stream.poll_next(cx)) {
            Ok(Incoming::Data { data, end }) => {
                *ended = end;
                if !data.is_empty() {
                    return Poll::Ready(Ok(Some(BodyPiece::Data(data))));
                }
            }
            Ok(Incoming::Trailers(trailers)) => {
                *ended = true;
                check_trailers(&trailers)?;
                return Poll::Ready(Ok(Some(BodyPiece::Trailers(trailers))));
            }
            // The peer's acceptance of a TCP connection. The link's state machine permits no other head after a
            // final HTTP head.
            Ok(Incoming::Head { end, .. }) => *ended = end,
            Err(
                StreamLoss::Broken
                | StreamLoss::Denied
                | StreamLoss::Refused
                | StreamLoss::Unreachable,
            ) => {
                return Poll::Ready(Err(ReadError::Ended));
            }
            Err(StreamLoss::Http2(code)) => return Poll::Ready(Err(ReadError::Reset(code))),
        }
    }
    Poll::Ready(Ok(None))
}

/// A link carries trailers unparsed, and after this proxy they stand between two messages: a section that the
/// chunk parser does not accept as exactly one is rejected.
fn check_trailers(trailers: &[u8]) -> Result<(), ReadError> {
    let chunks = [TRAILERS_FOLLOW, trailers].concat();
    let piece = BodyDecoder::new(BodyLength::Chunked).decode(&chunks)?;
    match piece.complete && piece.consumed == chunks.len() && piece.trailers.is_some() {
        true => Ok(()),
        false => Err(ReadError::LengthMismatch),
    }
}

/// Enforces the declared length: with any other, the receiver would confuse this message with the next one.
fn check_length(
    owed: &mut Option<u64>,
    next: Option<BodyPiece>,
) -> Result<Option<BodyPiece>, ReadError> {
    if let Some(owed) = owed {
        let arrived = match &next {
            Some(BodyPiece::Data(data)) => data.len() as u64,
            Some(BodyPiece::Trailers(_)) => return Err(ReadError::LengthMismatch),
            None if *owed > 0 => return Err(ReadError::LengthMismatch),
            None => 0,
        };
        *owed = owed.checked_sub(arrived).ok_or(ReadError::LengthMismatch)?;
    }
    Ok(next)
}

impl BodySink<'_> {
    /// Writes a piece; waits while the sink is full. `last`: no other piece follows.
    pub(crate) async fn push(&mut self, piece: BodyPiece, last: bool) -> Result<(), PumpError> {
        match (self, piece) {
            (Self::Http1 { writer, chunked }, BodyPiece::Data(data)) => {
                let room = writer.output_buffer();
                if *chunked {
                    write_chunk_size(data.len(), room);
                }
                room.extend_from_slice(&data);
                if *chunked {
                    room.extend_from_slice(CHUNK_END);
                }
                if writer.is_full() { flush(writer).await } else { Ok(()) }
            }
            (Self::Http1 { writer, chunked }, BodyPiece::Trailers(trailers)) => {
                if *chunked {
                    writer.output_buffer().extend_from_slice(TRAILERS_FOLLOW);
                    writer.output_buffer().extend_from_slice(&trailers);
                    *chunked = false;
                }
                Ok(())
            }
            (Self::Link { stream, max_wait }, BodyPiece::Data(data)) => {
                send_data(stream, data, last, *max_wait).await
            }
            (Self::Http2 { stream, max_wait }, BodyPiece::Data(data)) => {
                send_http2(stream, data, last, *max_wait).await
            }
            (Self::Http2 { stream, .. }, BodyPiece::Trailers(trailers)) => {
                stream.send_trailers(&trailers).map_err(|_| PumpError::Sink)
            }
            (Self::Link { stream, .. }, BodyPiece::Trailers(trailers)) => {
                stream.send_trailers(&trailers).map_err(|_| PumpError::Sink)
            }
        }
    }

    /// Flushes buffered data.
    pub(crate) async fn flush(&mut self) -> Result<(), PumpError> {
        match self {
            Self::Http1 { writer, .. } => flush(writer).await,
            Self::Link { .. } | Self::Http2 { .. } => Ok(()),
        }
    }

    /// Marks the body complete; `reported`: its last piece has already done so.
    pub(super) async fn finish_body(&mut self, reported: bool) -> Result<(), PumpError> {
        match self {
            Self::Http1 { writer, chunked } => {
                if *chunked {
                    writer.output_buffer().extend_from_slice(LAST_CHUNK);
                }
                flush(writer).await
            }
            Self::Link { .. } | Self::Http2 { .. } if reported => Ok(()),
            Self::Http2 { stream, max_wait } => {
                send_http2(stream, Bytes::new(), true, *max_wait).await
            }
            Self::Link { stream, max_wait } => {
                send_data(stream, Bytes::new(), true, *max_wait).await
            }
        }
    }

    /// Ends this direction of an upgraded connection.
    pub(super) async fn end_direction(&mut self) -> Result<(), PumpError> {
        match self {
            Self::Http1 { writer, .. } => {
                poll_fn(|cx| writer.io.poll_shutdown(cx)).await.map_err(|_| PumpError::Sink)
            }
            // The end of the body has already ended the stream.
            Self::Link { .. } | Self::Http2 { .. } => Ok(()),
        }
    }
}

async fn flush(writer: &mut MessageWriter) -> Result<(), PumpError> {
    writer.flush().await.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => PumpError::SinkStalled,
        _ => PumpError::Sink,
    })
}

/// Sends all of `data` on a stream of a link.
pub(crate) async fn send_data(
    stream: &LinkStream,
    data: Bytes,
    end: bool,
    max_wait: Duration,
) -> Result<(), PumpError> {
    push_all(data, max_wait, |cx, data| stream.poll_send(cx, data, end).map_err(drop)).await
}

/// Sends all of `data` on an HTTP/2 stream.
pub(super) async fn send_http2(
    stream: &OutgoingBody,
    data: Bytes,
    end: bool,
    max_wait: Duration,
) -> Result<(), PumpError> {
    push_all(data, max_wait, |cx, data| stream.poll_send(cx, data, end).map_err(drop)).await
}

/// Sends all of `data`, as long as the peer grants credit within the timeout.
async fn push_all(
    mut data: Bytes,
    max_wait: Duration,
    mut poll: impl FnMut(&mut Context<'_>, &mut Bytes) -> Poll<Result<(), ()>>,
) -> Result<(), PumpError> {
    loop {
        let before = data.len();
        match poll_within(max_wait, |cx| poll(cx, &mut data)).await {
            Some(sent) => return sent.map_err(|()| PumpError::Sink),
            None if data.len() < before => {}
            None => return Err(PumpError::SinkStalled),
        }
    }
}

/// Byte counters of a body, and a filter of its trailer section.
#[derive(Clone, Copy)]
pub(crate) struct BodyRecorder<'a> {
    pub(crate) bytes: &'a Cell<u64>,
    /// The gRPC call to which the body responds.
    pub(crate) call: Option<GrpcCall<'a>>,
    /// Returns the permitted rest of a trailer section; without it, all trailers are permitted.
    pub(crate) permitted: Option<&'a dyn Fn(Bytes) -> Option<Bytes>>,
}

impl<'a> BodyRecorder<'a> {
    /// Counts the body of a request.
    pub(crate) const fn for_request(
        bytes: &'a Cell<u64>,
        permitted: &'a dyn Fn(Bytes) -> Option<Bytes>,
    ) -> Self {
        Self { bytes, call: None, permitted: Some(permitted) }
    }

    /// Counts the body of a response, or one direction of a connection.
    pub(crate) const fn for_response(bytes: &'a Cell<u64>, call: Option<GrpcCall<'a>>) -> Self {
        Self { bytes, call, permitted: None }
    }

    /// Records a trailer section, and removes the fields that are not permitted. Returns false if none is left.
    #[cold]
    fn lets_pass(&self, section: &mut Bytes) -> bool {
        if let Some(call) = self.call {
            call.record_trailers(section);
        }
        let Some(permitted) = self.permitted else { return true };
        match permitted(std::mem::take(section)) {
            Some(rest) => {
                *section = rest;
                true
            }
            None => false,
        }
    }
}

/// Moves a whole body from source to sink. Available pieces are coalesced into one write; a pause of the source
/// flushes.
pub(crate) async fn forward_body(
    source: &mut BodySource<'_>,
    sink: &mut BodySink<'_>,
    silence: PauseLimit<'_>,
    noted: &BodyRecorder<'_>,
) -> Result<(), PumpError> {
    loop {
        let at_once = poll_fn(|cx| Poll::Ready(source.poll_next(cx))).await;
        let next = match at_once {
            Poll::Ready(next) => next,
            Poll::Pending => {
                sink.flush().await?;
                if let PauseLimit::OfStream(record) = silence {
                    record.count_stream();
                }
                silence.next(source).await
            }
        };
        let Some(mut piece) = next.map_err(PumpError::Source)? else {
            return sink.finish_body(false).await;
        };
        let last = match &mut piece {
            BodyPiece::Data(data) => {
                noted.bytes.set(noted.bytes.get() + data.len() as u64);
                source.is_exhausted()
            }
            BodyPiece::Trailers(section) => {
                if !noted.lets_pass(section) {
                    return sink.finish_body(false).await;
                }
                true
            }
        };
        sink.push(piece, last).await?;
        if last {
            return sink.finish_body(true).await;
        }
    }
}

impl PauseLimit<'_> {
    async fn next(self, source: &mut BodySource<'_>) -> Result<Option<BodyPiece>, ReadError> {
        if let Self::Bounded { limit, answered } = self
            && !answered.get()
        {
            match poll_within(limit, |cx| source.poll_next(cx)).await {
                Some(next) => return next,
                None if answered.get() => {}
                None => return Err(ReadError::Stalled),
            }
        }
        if let Self::Limited(limit) = self {
            let next = poll_within(limit, |cx| source.poll_next(cx)).await;
            return next.unwrap_or(Err(ReadError::Stalled));
        }
        poll_fn(|cx| source.poll_next(cx)).await
    }
}
