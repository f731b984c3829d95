//! Bodies in motion: where they come from, where they go, and the pump between the two.

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

use super::ahead::{Ahead, Beginning};
use super::grpc::Call;
use super::message::{ReadError, Reader, Writer};
use super::replay::{Hold, Kept};
use crate::http2::stream::{Outgoing, Received};
use crate::link::{Incoming, LinkStream, Lost};
use crate::patience::within;
use crate::record::Record;

/// Where a body comes from.
pub(crate) enum Source<'a> {
    /// There is none.
    Empty,
    /// An HTTP/1.1 connection. `trailers`: they arrived together with the last of the data.
    Http1 { reader: &'a mut Reader, decoder: BodyDecoder, trailers: Option<Bytes> },
    /// A stream of HTTP/2.
    Http2(Received),
    /// A stream of a link. `owed`: what the head declared and has not arrived yet.
    Link { stream: &'a LinkStream, ended: bool, owed: Option<u64> },
    /// Another one, of which the beginning is kept for another attempt.
    Kept(Box<Kept<'a>>),
    /// Another one, of which the beginning was read ahead.
    Ahead(Box<Ahead<'a>>),
}

/// Where a body goes.
pub(crate) enum Sink<'a> {
    /// An HTTP/1.1 connection; chunked if its length is not known to the receiver.
    Http1 { writer: &'a mut Writer, chunked: bool },
    /// A stream of a link. `patience`: how long its peer may take nothing of what waits for it.
    Link { stream: &'a LinkStream, patience: Duration },
    /// A stream of HTTP/2. `patience`: as for a link.
    Http2 { stream: Outgoing, patience: Duration },
}

/// How long a source may say nothing in the middle of a body.
#[derive(Clone, Copy)]
pub(crate) enum Silence<'a> {
    /// For ever: its owner is known to live, or somebody else has an eye on it.
    Allowed,
    /// For ever: it is a stream of this request, which is counted with the first pause.
    OfStream(&'a Record<'a>),
    /// No longer than this, unless it was answered meanwhile: who has an answer may take turns.
    Bounded { limit: Duration, answered: &'a Cell<bool> },
    /// No longer than this: the length of the body is known, and it is not a stream of events.
    Limited(Duration),
}

/// A piece of a body.
#[derive(Clone)]
pub(crate) enum Piece {
    Data(Bytes),
    /// A raw trailer section; nothing follows.
    Trailers(Bytes),
}

/// Which side ended a pump before its time.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The source: its connection broke or what it sent is malformed.
    Source(ReadError),
    /// The sink takes no more.
    Sink,
    /// The sink is there, and has taken nothing for too long.
    SinkStalled,
}

impl<'a> Source<'a> {
    pub(crate) fn http1(reader: &'a mut Reader, length: BodyLength) -> Self {
        match length {
            BodyLength::Empty | BodyLength::Known(0) => Self::Empty,
            BodyLength::Known(_) | BodyLength::Chunked | BodyLength::UntilClose => {
                Self::Http1 { reader, decoder: BodyDecoder::new(length), trailers: None }
            }
        }
    }

    /// A body that follows a head on a link; the head says how long it is, or does not.
    pub(crate) fn link(stream: &'a LinkStream, length: BodyLength) -> Self {
        let owed = match length {
            BodyLength::Empty => return Self::Empty,
            BodyLength::Known(bytes) => Some(bytes),
            BodyLength::Chunked | BodyLength::UntilClose => None,
        };
        Self::Link { stream, ended: false, owed }
    }

    /// Whether all of it has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1 { decoder, trailers, .. } => decoder.is_complete() && trailers.is_none(),
            Self::Http2(received) => received.is_complete(),
            Self::Link { ended, .. } => *ended,
            Self::Kept(kept) => kept.is_complete(),
            Self::Ahead(ahead) => ahead.is_complete(),
        }
    }

    /// Whether no piece follows those taken, and none is missing.
    pub(super) fn is_exhausted(&self) -> bool {
        match self {
            Self::Kept(kept) => kept.is_exhausted(),
            Self::Ahead(ahead) => ahead.is_exhausted(),
            Self::Link { owed: Some(1..), .. } => false,
            Self::Empty | Self::Http1 { .. } | Self::Http2(_) | Self::Link { .. } => {
                self.is_complete()
            }
        }
    }

    /// Whether there never was any.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Keeps what passes from now on, so that it can be sent once more.
    pub(crate) fn keep(&mut self, hold: Rc<Hold>) {
        let source = std::mem::replace(self, Self::Empty);
        *self = Self::Kept(Box::new(Kept::new(source, hold)));
    }

    /// Begins with what was read ahead of it.
    pub(crate) fn begin_with(&mut self, beginning: Beginning) {
        let source = std::mem::replace(self, Self::Empty);
        *self = Self::Ahead(Box::new(beginning.followed_by(source)));
    }

    /// All of it, where it has come to its end and was kept whole; nothing is what there never was.
    pub(crate) fn kept(&self) -> Option<Vec<Piece>> {
        match self {
            Self::Empty => Some(Vec::new()),
            Self::Kept(kept) => kept.whole(),
            Self::Http1 { .. } | Self::Http2(_) | Self::Link { .. } | Self::Ahead(_) => None,
        }
    }

    /// Begins anew with the first byte, where that is kept.
    pub(crate) fn rewind(&mut self) {
        if let Self::Kept(kept) = self {
            kept.rewind();
        }
    }

    /// What is kept has been sent by another attempt.
    pub(crate) fn skip_kept(&mut self) {
        if let Self::Kept(kept) = self {
            kept.skip();
        }
    }

    /// The next piece; `None` at the end.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Piece>, ReadError>> {
        match self {
            Self::Empty => Poll::Ready(Ok(None)),
            Self::Http1 { trailers, .. } if trailers.is_some() => {
                Poll::Ready(Ok(trailers.take().map(Piece::Trailers)))
            }
            Self::Http1 { reader, decoder, trailers } => poll_http1(reader, decoder, trailers, cx),
            Self::Http2(received) => received.poll_next(cx),
            Self::Kept(kept) => kept.poll_next(cx),
            Self::Ahead(ahead) => ahead.poll_next(cx),
            Self::Link { stream, ended, owed } => {
                let next = ready!(poll_link(stream, ended, cx))?;
                Poll::Ready(settle(owed, next))
            }
        }
    }
}

fn poll_http1(
    reader: &mut Reader,
    decoder: &mut BodyDecoder,
    later: &mut Option<Bytes>,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Piece>, ReadError>> {
    loop {
        if decoder.is_complete() {
            return Poll::Ready(Ok(None));
        }
        if !reader.buffer.is_empty() {
            let piece = decoder.decode(&reader.buffer)?;
            if piece.consumed > 0 {
                let taken = reader.buffer.split_to(piece.consumed).freeze();
                let data = Some(piece.data).filter(|data| !data.is_empty());
                let data = data.map(|data| Piece::Data(taken.slice(data)));
                let trailers = piece.trailers.map(|trailers| taken.slice(trailers));
                match (data, trailers) {
                    (Some(data), trailers) => {
                        *later = trailers;
                        return Poll::Ready(Ok(Some(data)));
                    }
                    (None, Some(trailers)) => {
                        return Poll::Ready(Ok(Some(Piece::Trailers(trailers))));
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
) -> Poll<Result<Option<Piece>, ReadError>> {
    while !*ended {
        match ready!(stream.poll_next(cx)) {
            Ok(Incoming::Data { data, end }) => {
                *ended = end;
                if !data.is_empty() {
                    return Poll::Ready(Ok(Some(Piece::Data(data))));
                }
            }
            Ok(Incoming::Trailers(trailers)) => {
                *ended = true;
                check_trailers(&trailers)?;
                return Poll::Ready(Ok(Some(Piece::Trailers(trailers))));
            }
            // What the peer says about a TCP connection. After a final head of HTTP the state
            // machine of the link lets no other pass.
            Ok(Incoming::Head { end, .. }) => *ended = end,
            Err(Lost::Broken | Lost::Denied | Lost::Refused | Lost::Unreachable) => {
                return Poll::Ready(Err(ReadError::Ended));
            }
            Err(Lost::Http2(code)) => return Poll::Ready(Err(ReadError::Reset(code))),
        }
    }
    Poll::Ready(Ok(None))
}

/// A link carries trailers as they are, and behind us they stand between two messages: what is
/// not one section to the reader of chunks goes no further.
fn check_trailers(trailers: &[u8]) -> Result<(), ReadError> {
    let chunks = [TRAILERS_FOLLOW, trailers].concat();
    let piece = BodyDecoder::new(BodyLength::Chunked).decode(&chunks)?;
    match piece.complete && piece.consumed == chunks.len() && piece.trailers.is_some() {
        true => Ok(()),
        false => Err(ReadError::LengthMismatch),
    }
}

/// Holds a peer to the length it declared: behind us it would be taken for another message.
fn settle(owed: &mut Option<u64>, next: Option<Piece>) -> Result<Option<Piece>, ReadError> {
    if let Some(owed) = owed {
        let arrived = match &next {
            Some(Piece::Data(data)) => data.len() as u64,
            Some(Piece::Trailers(_)) => return Err(ReadError::LengthMismatch),
            None if *owed > 0 => return Err(ReadError::LengthMismatch),
            None => 0,
        };
        *owed = owed.checked_sub(arrived).ok_or(ReadError::LengthMismatch)?;
    }
    Ok(next)
}

impl Sink<'_> {
    /// Takes a piece; waits while the sink is full. `last`: nothing comes after it.
    pub(crate) async fn push(&mut self, piece: Piece, last: bool) -> Result<(), Broken> {
        match (self, piece) {
            (Self::Http1 { writer, chunked }, Piece::Data(data)) => {
                let room = writer.room();
                if *chunked {
                    write_chunk_size(data.len(), room);
                }
                room.extend_from_slice(&data);
                if *chunked {
                    room.extend_from_slice(CHUNK_END);
                }
                if writer.is_full() { flush(writer).await } else { Ok(()) }
            }
            (Self::Http1 { writer, chunked }, Piece::Trailers(trailers)) => {
                if *chunked {
                    writer.room().extend_from_slice(TRAILERS_FOLLOW);
                    writer.room().extend_from_slice(&trailers);
                    *chunked = false;
                }
                Ok(())
            }
            (Self::Link { stream, patience }, Piece::Data(data)) => {
                send(stream, data, last, *patience).await
            }
            (Self::Http2 { stream, patience }, Piece::Data(data)) => {
                send_http2(stream, data, last, *patience).await
            }
            (Self::Http2 { stream, .. }, Piece::Trailers(trailers)) => {
                stream.send_trailers(&trailers).map_err(|_| Broken::Sink)
            }
            (Self::Link { stream, .. }, Piece::Trailers(trailers)) => {
                stream.send_trailers(&trailers).map_err(|_| Broken::Sink)
            }
        }
    }

    /// Hands on what is buffered.
    pub(crate) async fn flush(&mut self) -> Result<(), Broken> {
        match self {
            Self::Http1 { writer, .. } => flush(writer).await,
            Self::Link { .. } | Self::Http2 { .. } => Ok(()),
        }
    }

    /// Says that the body is complete; `told`: its last piece said so already.
    pub(super) async fn finish(&mut self, told: bool) -> Result<(), Broken> {
        match self {
            Self::Http1 { writer, chunked } => {
                if *chunked {
                    writer.room().extend_from_slice(LAST_CHUNK);
                }
                flush(writer).await
            }
            Self::Link { .. } | Self::Http2 { .. } if told => Ok(()),
            Self::Http2 { stream, patience } => {
                send_http2(stream, Bytes::new(), true, *patience).await
            }
            Self::Link { stream, patience } => send(stream, Bytes::new(), true, *patience).await,
        }
    }

    /// Says that nothing more comes in this direction of another protocol.
    pub(super) async fn end(&mut self) -> Result<(), Broken> {
        match self {
            Self::Http1 { writer, .. } => {
                poll_fn(|cx| writer.io.poll_shutdown(cx)).await.map_err(|_| Broken::Sink)
            }
            // The end of the body said so.
            Self::Link { .. } | Self::Http2 { .. } => Ok(()),
        }
    }
}

async fn flush(writer: &mut Writer) -> Result<(), Broken> {
    writer.flush().await.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Broken::SinkStalled,
        _ => Broken::Sink,
    })
}

/// Sends all of `data` on a stream of a link.
pub(crate) async fn send(
    stream: &LinkStream,
    data: Bytes,
    end: bool,
    patience: Duration,
) -> Result<(), Broken> {
    push_all(data, patience, |cx, data| stream.poll_send(cx, data, end).map_err(drop)).await
}

/// The same on a stream of HTTP/2.
pub(super) async fn send_http2(
    stream: &Outgoing,
    data: Bytes,
    end: bool,
    patience: Duration,
) -> Result<(), Broken> {
    push_all(data, patience, |cx, data| stream.poll_send(cx, data, end).map_err(drop)).await
}

/// Sends all of `data`, for as long as the peer grants room for some of it now and then.
async fn push_all(
    mut data: Bytes,
    patience: Duration,
    mut poll: impl FnMut(&mut Context<'_>, &mut Bytes) -> Poll<Result<(), ()>>,
) -> Result<(), Broken> {
    loop {
        let before = data.len();
        match within(patience, |cx| poll(cx, &mut data)).await {
            Some(sent) => return sent.map_err(|()| Broken::Sink),
            None if data.len() < before => {}
            None => return Err(Broken::SinkStalled),
        }
    }
}

/// Counters of a body on its way, and a filter of its trailer section.
#[derive(Clone, Copy)]
pub(crate) struct Noted<'a> {
    pub(crate) bytes: &'a Cell<u64>,
    /// The body answers a call of gRPC.
    pub(crate) call: Option<Call<'a>>,
    /// The rest of a trailer section after the filter; no filter when absent.
    pub(crate) permitted: Option<&'a dyn Fn(Bytes) -> Option<Bytes>>,
}

impl<'a> Noted<'a> {
    /// A body of a request.
    pub(crate) const fn request(
        bytes: &'a Cell<u64>,
        permitted: &'a dyn Fn(Bytes) -> Option<Bytes>,
    ) -> Self {
        Self { bytes, call: None, permitted: Some(permitted) }
    }

    /// A body of a response, or bytes in one direction of a connection.
    pub(crate) const fn response(bytes: &'a Cell<u64>, call: Option<Call<'a>>) -> Self {
        Self { bytes, call, permitted: None }
    }

    /// Notes a trailer section, and removes the fields that are not permitted. False when none is left.
    #[cold]
    fn lets_pass(&self, section: &mut Bytes) -> bool {
        if let Some(call) = self.call {
            call.trailers(section);
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

/// Moves a body from source to sink, whole. What is there is gathered and
/// written together; a pause of the source flushes.
pub(crate) async fn pump(
    source: &mut Source<'_>,
    sink: &mut Sink<'_>,
    silence: Silence<'_>,
    noted: &Noted<'_>,
) -> Result<(), Broken> {
    loop {
        let at_once = poll_fn(|cx| Poll::Ready(source.poll_next(cx))).await;
        let next = match at_once {
            Poll::Ready(next) => next,
            Poll::Pending => {
                sink.flush().await?;
                if let Silence::OfStream(record) = silence {
                    record.count_stream();
                }
                silence.next(source).await
            }
        };
        let Some(mut piece) = next.map_err(Broken::Source)? else {
            return sink.finish(false).await;
        };
        let last = match &mut piece {
            Piece::Data(data) => {
                noted.bytes.set(noted.bytes.get() + data.len() as u64);
                source.is_exhausted()
            }
            Piece::Trailers(section) => {
                if !noted.lets_pass(section) {
                    return sink.finish(false).await;
                }
                true
            }
        };
        sink.push(piece, last).await?;
        if last {
            return sink.finish(true).await;
        }
    }
}

impl Silence<'_> {
    async fn next(self, source: &mut Source<'_>) -> Result<Option<Piece>, ReadError> {
        if let Self::Bounded { limit, answered } = self
            && !answered.get()
        {
            match within(limit, |cx| source.poll_next(cx)).await {
                Some(next) => return next,
                None if answered.get() => {}
                None => return Err(ReadError::Stalled),
            }
        }
        if let Self::Limited(limit) = self {
            let next = within(limit, |cx| source.poll_next(cx)).await;
            return next.unwrap_or(Err(ReadError::Stalled));
        }
        poll_fn(|cx| source.poll_next(cx)).await
    }
}
