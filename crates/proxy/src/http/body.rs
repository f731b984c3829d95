//! Reads and writes message bodies over HTTP/1.1, HTTP/2 and links. [`forward_body`] moves a body from a source
//! to a sink; an exchange uses it for the bodies of the request and of the response.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use leno_wire::http1::{
    BodyDecoder, BodyLength, CHUNK_END, LAST_CHUNK, LAST_CHUNK_BEFORE_TRAILERS, write_chunk_size,
};

use super::buffered_body::{BufferedPrefix, PrefixedSource};
use super::grpc::GrpcCall;
use super::message::{MessageReader, MessageWriter, ReadError};
use super::replay::{ReplayBuffer, ReplaySource};
use crate::http2::stream::{OutgoingBody, ReceivedBody};
use crate::link::{LinkStream, ReceivedItem, StreamError};
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
    /// A stream of a link. `remaining`: the bytes that the head declared and that have not arrived yet.
    Link { stream: &'a LinkStream, has_ended: bool, remaining: Option<u64> },
    /// Another source, with its beginning buffered for another attempt.
    Replay(Box<ReplaySource<'a>>),
    /// Another source, with a buffered prefix.
    Prefixed(Box<PrefixedSource<'a>>),
}

/// The destination of a body.
pub(crate) enum BodySink<'a> {
    /// An HTTP/1.1 connection; chunked if its length is not known to the receiver.
    Http1 { writer: &'a mut MessageWriter, is_chunked: bool },
    /// A stream of a link. `stall_timeout`: the time after which a peer that takes no pending data counts as
    /// stalled.
    Link { stream: &'a LinkStream, stall_timeout: Duration },
    /// An HTTP/2 stream. `stall_timeout`: the same limit as for a link.
    Http2 { stream: OutgoingBody, stall_timeout: Duration },
}

/// The limit on pauses in the middle of a body.
#[derive(Clone, Copy)]
pub(crate) enum PauseLimit<'a> {
    /// No limit: the peer is known to be alive, or is checked elsewhere.
    Unlimited,
    /// No limit; the request is counted as a stream at the first pause.
    CountedStream(&'a ExchangeRecord<'a>),
    /// This limit until the response starts; no limit afterwards, because peers may then take turns.
    BeforeResponse { limit: Duration, response_started: &'a Cell<bool> },
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

/// The reason why [`forward_body`] ended before the end of the body.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// The source: its connection broke, or it sent malformed data.
    Source(ReadError),
    /// The sink accepts no more data.
    Sink,
    /// The sink is connected, and has accepted no data for too long.
    SinkStalled,
}

impl<'a> BodySource<'a> {
    /// Returns the body of this length that follows a head on an HTTP/1.1 connection.
    pub(crate) fn from_http1(reader: &'a mut MessageReader, length: BodyLength) -> Self {
        match length {
            BodyLength::Empty | BodyLength::ContentLength(0) => Self::Empty,
            BodyLength::ContentLength(_) | BodyLength::Chunked | BodyLength::UntilClose => {
                Self::Http1 { reader, decoder: BodyDecoder::new(length), trailers: None }
            }
        }
    }

    /// Returns the body that follows a head on a link, with the length that the head declares, if any.
    pub(crate) fn from_link(stream: &'a LinkStream, length: BodyLength) -> Self {
        let remaining = match length {
            BodyLength::Empty => return Self::Empty,
            BodyLength::ContentLength(bytes) => Some(bytes),
            BodyLength::Chunked | BodyLength::UntilClose => None,
        };
        Self::Link { stream, has_ended: false, remaining }
    }

    /// True if the end of the body was reached, even if the body is shorter than declared.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1 { decoder, trailers, .. } => decoder.is_complete() && trailers.is_none(),
            Self::Http2(received) => received.is_complete(),
            Self::Link { has_ended, .. } => *has_ended,
            Self::Replay(replay) => replay.is_complete(),
            Self::Prefixed(prefixed) => prefixed.is_complete(),
        }
    }

    /// True if no piece follows those already taken, and the body is not truncated.
    pub(super) fn is_exhausted(&self) -> bool {
        match self {
            Self::Replay(replay) => replay.is_exhausted(),
            Self::Prefixed(prefixed) => prefixed.is_exhausted(),
            Self::Link { remaining: Some(1..), .. } => false,
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
    pub(crate) fn start_buffering(&mut self, buffer: Rc<ReplayBuffer>) {
        let source = std::mem::replace(self, Self::Empty);
        *self = Self::Replay(Box::new(ReplaySource::new(source, buffer)));
    }

    /// Prepends a prefix of the body that was buffered before.
    pub(crate) fn prepend(&mut self, prefix: BufferedPrefix) {
        let source = std::mem::replace(self, Self::Empty);
        *self = Self::Prefixed(Box::new(prefix.into_source(source)));
    }

    /// Returns the whole body if it was read to its end and buffered; an absent body yields no pieces.
    pub(crate) fn buffered_pieces(&self) -> Option<Vec<BodyPiece>> {
        match self {
            Self::Empty => Some(Vec::new()),
            Self::Replay(replay) => replay.whole_body(),
            Self::Http1 { .. } | Self::Http2(_) | Self::Link { .. } | Self::Prefixed(_) => None,
        }
    }

    /// Starts again at the first byte, if the body is buffered.
    pub(crate) fn rewind(&mut self) {
        if let Self::Replay(replay) = self {
            replay.rewind();
        }
    }

    /// Skips the buffered pieces, which another attempt has sent.
    pub(crate) fn skip_buffered(&mut self) {
        if let Self::Replay(replay) = self {
            replay.skip_buffered();
        }
    }

    /// Returns the next piece; `None` at the end of the body.
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
            Self::Replay(replay) => replay.poll_next(cx),
            Self::Prefixed(prefixed) => prefixed.poll_next(cx),
            Self::Link { stream, has_ended, remaining } => {
                let next_piece = ready!(poll_link(stream, has_ended, cx))?;
                Poll::Ready(check_length(remaining, next_piece))
            }
        }
    }
}

/// Returns the next piece of a body on an HTTP/1.1 connection; `pending_trailers` receives a trailer section
/// that arrived together with data.
fn poll_http1(
    reader: &mut MessageReader,
    decoder: &mut BodyDecoder,
    pending_trailers: &mut Option<Bytes>,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<BodyPiece>, ReadError>> {
    loop {
        if decoder.is_complete() {
            return Poll::Ready(Ok(None));
        }
        if !reader.buffer.is_empty() {
            let piece = decoder.decode(&reader.buffer)?;
            if piece.consumed > 0 {
                let consumed = reader.buffer.split_to(piece.consumed).freeze();
                let data = Some(piece.data).filter(|data| !data.is_empty());
                let data = data.map(|data| BodyPiece::Data(consumed.slice(data)));
                let trailers = piece.trailers.map(|trailers| consumed.slice(trailers));
                match (data, trailers) {
                    (Some(data), trailers) => {
                        *pending_trailers = trailers;
                        return Poll::Ready(Ok(Some(data)));
                    }
                    (None, Some(trailers)) => {
                        return Poll::Ready(Ok(Some(BodyPiece::Trailers(trailers))));
                    }
                    // Only the framing of chunks was decoded.
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

/// Returns the next piece of a body on a stream of a link.
fn poll_link(
    stream: &LinkStream,
    has_ended: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<BodyPiece>, ReadError>> {
    while !*has_ended {
        match ready!(stream.poll_next(cx)) {
            Ok(ReceivedItem::Data { data, end }) => {
                *has_ended = end;
                if !data.is_empty() {
                    return Poll::Ready(Ok(Some(BodyPiece::Data(data))));
                }
            }
            Ok(ReceivedItem::Trailers(trailers)) => {
                *has_ended = true;
                check_trailers(&trailers)?;
                return Poll::Ready(Ok(Some(BodyPiece::Trailers(trailers))));
            }
            // A head with which the peer accepts a TCP connection. The link's state machine permits no head
            // after a final HTTP head.
            Ok(ReceivedItem::Head { end, .. }) => *has_ended = end,
            Err(
                StreamError::Broken
                | StreamError::Denied
                | StreamError::Refused
                | StreamError::Unreachable,
            ) => {
                return Poll::Ready(Err(ReadError::Ended));
            }
            Err(StreamError::Http2(code)) => return Poll::Ready(Err(ReadError::Reset(code))),
        }
    }
    Poll::Ready(Ok(None))
}

/// Rejects a trailer section that the chunk parser does not accept as exactly one section. A link carries
/// trailers unparsed, and on an HTTP/1.1 connection they are written between two messages.
fn check_trailers(trailers: &[u8]) -> Result<(), ReadError> {
    let chunks = [LAST_CHUNK_BEFORE_TRAILERS, trailers].concat();
    let piece = BodyDecoder::new(BodyLength::Chunked).decode(&chunks)?;
    match piece.complete && piece.consumed == chunks.len() && piece.trailers.is_some() {
        true => Ok(()),
        false => Err(ReadError::LengthMismatch),
    }
}

/// Enforces the declared length: a different length would make the receiver confuse this message with the next
/// one.
fn check_length(
    remaining: &mut Option<u64>,
    next_piece: Option<BodyPiece>,
) -> Result<Option<BodyPiece>, ReadError> {
    if let Some(remaining_bytes) = remaining {
        let arrived_bytes = match &next_piece {
            Some(BodyPiece::Data(data)) => data.len() as u64,
            // HTTP/1.1 sends trailers only after chunks, never after a body with a declared length.
            Some(BodyPiece::Trailers(_)) => return Err(ReadError::LengthMismatch),
            None if *remaining_bytes > 0 => return Err(ReadError::LengthMismatch),
            None => 0,
        };
        *remaining_bytes =
            remaining_bytes.checked_sub(arrived_bytes).ok_or(ReadError::LengthMismatch)?;
    }
    Ok(next_piece)
}

impl BodySink<'_> {
    /// Writes a piece; waits while the sink is full. `is_last`: no other piece follows.
    pub(crate) async fn push(
        &mut self,
        piece: BodyPiece,
        is_last: bool,
    ) -> Result<(), ForwardError> {
        match (self, piece) {
            (Self::Http1 { writer, is_chunked }, BodyPiece::Data(data)) => {
                let output = writer.output_buffer();
                if *is_chunked {
                    write_chunk_size(data.len(), output);
                }
                output.extend_from_slice(&data);
                if *is_chunked {
                    output.extend_from_slice(CHUNK_END);
                }
                if writer.is_full() { flush(writer).await } else { Ok(()) }
            }
            (Self::Http1 { writer, is_chunked }, BodyPiece::Trailers(trailers)) => {
                if *is_chunked {
                    writer.output_buffer().extend_from_slice(LAST_CHUNK_BEFORE_TRAILERS);
                    writer.output_buffer().extend_from_slice(&trailers);
                    // The section has ended the body, so `finish_body` writes no last chunk.
                    *is_chunked = false;
                }
                Ok(())
            }
            (Self::Link { stream, stall_timeout }, BodyPiece::Data(data)) => {
                send_link_data(stream, data, is_last, *stall_timeout).await
            }
            (Self::Http2 { stream, stall_timeout }, BodyPiece::Data(data)) => {
                send_http2_data(stream, data, is_last, *stall_timeout).await
            }
            (Self::Http2 { stream, .. }, BodyPiece::Trailers(trailers)) => {
                stream.send_trailers(&trailers).map_err(|_| ForwardError::Sink)
            }
            (Self::Link { stream, .. }, BodyPiece::Trailers(trailers)) => {
                stream.send_trailers(&trailers).map_err(|_| ForwardError::Sink)
            }
        }
    }

    /// Flushes buffered data.
    pub(crate) async fn flush(&mut self) -> Result<(), ForwardError> {
        match self {
            Self::Http1 { writer, .. } => flush(writer).await,
            Self::Link { .. } | Self::Http2 { .. } => Ok(()),
        }
    }

    /// Marks the body complete. `end_is_sent`: the end was already sent with the last piece.
    pub(super) async fn finish_body(&mut self, end_is_sent: bool) -> Result<(), ForwardError> {
        match self {
            Self::Http1 { writer, is_chunked } => {
                if *is_chunked {
                    writer.output_buffer().extend_from_slice(LAST_CHUNK);
                }
                flush(writer).await
            }
            Self::Link { .. } | Self::Http2 { .. } if end_is_sent => Ok(()),
            Self::Http2 { stream, stall_timeout } => {
                send_http2_data(stream, Bytes::new(), true, *stall_timeout).await
            }
            Self::Link { stream, stall_timeout } => {
                send_link_data(stream, Bytes::new(), true, *stall_timeout).await
            }
        }
    }

    /// Ends this direction of an upgraded connection.
    pub(super) async fn end_direction(&mut self) -> Result<(), ForwardError> {
        match self {
            Self::Http1 { writer, .. } => {
                poll_fn(|cx| writer.io.poll_shutdown(cx)).await.map_err(|_| ForwardError::Sink)
            }
            // The end of the body has already ended the stream.
            Self::Link { .. } | Self::Http2 { .. } => Ok(()),
        }
    }
}

async fn flush(writer: &mut MessageWriter) -> Result<(), ForwardError> {
    writer.flush().await.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => ForwardError::SinkStalled,
        _ => ForwardError::Sink,
    })
}

/// Sends all of `data` on a stream of a link; with `end_stream`, the last frame ends the stream.
pub(crate) async fn send_link_data(
    stream: &LinkStream,
    data: Bytes,
    end_stream: bool,
    stall_timeout: Duration,
) -> Result<(), ForwardError> {
    send_all_data(data, stall_timeout, |cx, data| {
        stream.poll_send(cx, data, end_stream).map_err(drop)
    })
    .await
}

/// Sends all of `data` on an HTTP/2 stream; with `end_stream`, the last frame ends the stream.
pub(super) async fn send_http2_data(
    stream: &OutgoingBody,
    data: Bytes,
    end_stream: bool,
    stall_timeout: Duration,
) -> Result<(), ForwardError> {
    send_all_data(data, stall_timeout, |cx, data| {
        stream.poll_send(cx, data, end_stream).map_err(drop)
    })
    .await
}

/// Sends all of `data`, as long as the peer grants credit within the timeout.
async fn send_all_data(
    mut data: Bytes,
    stall_timeout: Duration,
    mut poll_send: impl FnMut(&mut Context<'_>, &mut Bytes) -> Poll<Result<(), ()>>,
) -> Result<(), ForwardError> {
    loop {
        let old_length = data.len();
        match poll_within(stall_timeout, |cx| poll_send(cx, &mut data)).await {
            Some(result) => return result.map_err(|()| ForwardError::Sink),
            // The peer has taken some data, so the timeout starts again.
            None if data.len() < old_length => {}
            None => return Err(ForwardError::SinkStalled),
        }
    }
}

/// Counts the bytes of a body, records the gRPC status in its trailer section, and filters that section.
#[derive(Clone, Copy)]
pub(crate) struct BodyRecorder<'a> {
    /// The number of data bytes so far.
    pub(crate) bytes: &'a Cell<u64>,
    /// The gRPC call to which the body responds; `None` for other bodies.
    pub(crate) call: Option<GrpcCall<'a>>,
    /// Returns the permitted fields of a trailer section, or `None` if no field is permitted. Without a
    /// filter all trailers are permitted.
    pub(crate) trailer_filter: Option<&'a dyn Fn(Bytes) -> Option<Bytes>>,
}

impl<'a> BodyRecorder<'a> {
    /// Returns a recorder for the body of a request.
    pub(crate) const fn for_request(
        bytes: &'a Cell<u64>,
        trailer_filter: &'a dyn Fn(Bytes) -> Option<Bytes>,
    ) -> Self {
        Self { bytes, call: None, trailer_filter: Some(trailer_filter) }
    }

    /// Returns a recorder without a trailer filter: for the body of a response, or for one direction of a
    /// connection.
    pub(crate) const fn unfiltered(bytes: &'a Cell<u64>, call: Option<GrpcCall<'a>>) -> Self {
        Self { bytes, call, trailer_filter: None }
    }

    /// Records a trailer section, and removes the fields that are not permitted. Returns false if none is left.
    #[cold]
    fn filter_trailers(&self, section: &mut Bytes) -> bool {
        if let Some(call) = self.call {
            call.record_trailers(section);
        }
        let Some(trailer_filter) = self.trailer_filter else { return true };
        match trailer_filter(std::mem::take(section)) {
            Some(permitted) => {
                *section = permitted;
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
    pause_limit: PauseLimit<'_>,
    recorder: &BodyRecorder<'_>,
) -> Result<(), ForwardError> {
    loop {
        let available_piece = poll_fn(|cx| Poll::Ready(source.poll_next(cx))).await;
        let next_piece = match available_piece {
            Poll::Ready(next_piece) => next_piece,
            Poll::Pending => {
                sink.flush().await?;
                if let PauseLimit::CountedStream(record) = pause_limit {
                    record.count_stream();
                }
                pause_limit.read_piece(source).await
            }
        };
        let Some(mut piece) = next_piece.map_err(ForwardError::Source)? else {
            return sink.finish_body(false).await;
        };
        let is_last = match &mut piece {
            BodyPiece::Data(data) => {
                recorder.bytes.set(recorder.bytes.get() + data.len() as u64);
                source.is_exhausted()
            }
            BodyPiece::Trailers(section) => {
                if !recorder.filter_trailers(section) {
                    return sink.finish_body(false).await;
                }
                true
            }
        };
        sink.push(piece, is_last).await?;
        if is_last {
            return sink.finish_body(true).await;
        }
    }
}

impl PauseLimit<'_> {
    /// Returns the next piece of the source within this limit.
    async fn read_piece(self, source: &mut BodySource<'_>) -> Result<Option<BodyPiece>, ReadError> {
        if let Self::BeforeResponse { limit, response_started } = self
            && !response_started.get()
        {
            match poll_within(limit, |cx| source.poll_next(cx)).await {
                Some(next_piece) => return next_piece,
                // The response has started during the wait, which ends the limit.
                None if response_started.get() => {}
                None => return Err(ReadError::Stalled),
            }
        }
        if let Self::Limited(limit) = self {
            let next_piece = poll_within(limit, |cx| source.poll_next(cx)).await;
            return next_piece.unwrap_or(Err(ReadError::Stalled));
        }
        poll_fn(|cx| source.poll_next(cx)).await
    }
}
