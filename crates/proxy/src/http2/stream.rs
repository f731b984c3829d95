//! One stream of HTTP/2: a body that arrives, a body that is sent, and the answer to a client.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason as Code, RecvStream, SendStream};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use leno_traffic::FieldEdits;
use leno_wire::http1::{FIELDS_MAX, HEAD_BYTES_MAX, Malformed, ResponseHead};
use leno_wire::link::ResetCode;

use super::cancel;
use super::half_close::HalfClose;
use super::head;
use crate::http::answer;
use crate::http::body::Piece;
use crate::http::message::ReadError;
use crate::http::respond::ClientGone;

/// A body that arrives. What was handed out is granted again when the next piece is asked for.
pub(crate) struct Received {
    stream: RecvStream,
    owed: usize,
    phase: Phase,
    /// The connection of the client that sends it.
    half_close: Option<Rc<HalfClose>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Data,
    Trailers,
    Ended,
}

impl Received {
    pub(crate) fn new(stream: RecvStream) -> Self {
        Self { stream, owed: 0, phase: Phase::Data, half_close: None }
    }

    /// The body of a request, which stays incomplete when its client's direction ends before.
    pub(super) fn of_request(stream: RecvStream, half_close: Rc<HalfClose>) -> Self {
        Self { half_close: Some(half_close), ..Self::new(stream) }
    }

    /// Whether all of it has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// The next piece; `None` at the end. The codec holds the peer to a declared length.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Piece>, ReadError>> {
        let owed = std::mem::take(&mut self.owed);
        if owed > 0 {
            // Failing means that the stream is gone, which the next read tells.
            drop(self.stream.flow_control().release_capacity(owed));
        }
        match self.poll_stream(cx) {
            Poll::Pending if self.half_close.as_ref().is_some_and(|it| it.has_ended()) => {
                Poll::Ready(Err(ReadError::Ended))
            }
            polled => polled,
        }
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Piece>, ReadError>> {
        loop {
            match self.phase {
                Phase::Data => match ready!(self.stream.poll_data(cx)) {
                    Some(Ok(data)) if data.is_empty() => {}
                    Some(Ok(data)) => {
                        self.owed = data.len();
                        // What ends with this piece is told to end with it: some servers give up
                        // an answer that is whole before they heard the end of its request.
                        if self.stream.is_end_stream() {
                            self.phase = Phase::Ended;
                        }
                        return Poll::Ready(Ok(Some(Piece::Data(data))));
                    }
                    Some(Err(error)) => return Poll::Ready(Err(broken(error))),
                    None => self.phase = Phase::Trailers,
                },
                Phase::Trailers => {
                    let trailers = ready!(self.stream.poll_trailers(cx)).map_err(broken)?;
                    self.phase = Phase::Ended;
                    if trailers.as_ref().is_some_and(|fields| fields.len() > FIELDS_MAX) {
                        return Poll::Ready(Err(Malformed::TooManyFields.into()));
                    }
                    let section = trailers.and_then(|fields| head::trailers(&fields));
                    if section.as_ref().is_some_and(|section| section.len() > HEAD_BYTES_MAX) {
                        return Poll::Ready(Err(Malformed::HeadTooLarge.into()));
                    }
                    return Poll::Ready(Ok(section.map(Piece::Trailers)));
                }
                Phase::Ended => return Poll::Ready(Ok(None)),
            }
        }
    }
}

fn broken(error: h2::Error) -> ReadError {
    match error.reason() {
        // The codec resets a stream for a broken rule: of trailers, or of the length of a body.
        Some(Code::PROTOCOL_ERROR) if error.is_library() => ReadError::Protocol,
        Some(code) if error.is_reset() => ReadError::Reset(ResetCode::of_http2(code.into())),
        _ => ReadError::Io(io::Error::other(error)),
    }
}

/// A body that is sent, as its peer grants room.
#[derive(Clone)]
pub(crate) struct Outgoing(Rc<RefCell<SendStream<Bytes>>>);

/// A stream to a server, while its answer is awaited.
pub(crate) struct Asked(Option<Outgoing>);

impl Asked {
    pub(crate) fn new(outgoing: &Outgoing) -> Self {
        Self(Some(outgoing.clone()))
    }

    /// The answer is over.
    pub(crate) fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Asked {
    /// The client gives its request up by a code of HTTP/2; without one the codec says CANCEL.
    fn drop(&mut self) {
        if let (Some(outgoing), Some(code)) = (&self.0, cancel::code().to_http2()) {
            outgoing.0.borrow_mut().send_reset(code.into());
        }
    }
}

/// The peer takes no more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gone;

impl Outgoing {
    pub(crate) fn new(stream: SendStream<Bytes>) -> Self {
        Self(Rc::new(RefCell::new(stream)))
    }

    /// Sends from the front of `data` until it is empty; with `end`, its last frame is the stream's.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        data: &mut Bytes,
        end: bool,
    ) -> Poll<Result<(), Gone>> {
        let mut stream = self.0.borrow_mut();
        while !data.is_empty() {
            stream.reserve_capacity(data.len().min(SEND_BYTES_MAX));
            while stream.capacity() == 0 {
                match ready!(stream.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Poll::Ready(Err(Gone)),
                }
            }
            let piece = data.split_to(stream.capacity().min(data.len()));
            let last = end && data.is_empty();
            stream.send_data(piece, last).map_err(|_| Gone)?;
            if last {
                return Poll::Ready(Ok(()));
            }
        }
        if end {
            stream.send_data(Bytes::new(), true).map_err(|_| Gone)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends a trailer section that was checked already; nothing follows.
    pub(crate) fn send_trailers(&self, section: &[u8]) -> Result<(), Gone> {
        self.0.borrow_mut().send_trailers(head::trailers_to(section)).map_err(|_| Gone)
    }

    /// Resolves when the peer has reset the stream, or its connection is gone.
    pub(crate) fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<Option<Code>> {
        self.0.borrow_mut().poll_reset(cx).map(Result::ok)
    }
}

/// The answer to one request. Clones are the same answer.
#[derive(Clone)]
pub(crate) struct Reply(Rc<RefCell<State>>);

enum State {
    Unanswered(SendResponse<Bytes>),
    Answering(Outgoing),
}

impl Reply {
    pub(super) fn new(respond: SendResponse<Bytes>) -> Self {
        Self(Rc::new(RefCell::new(State::Unanswered(respond))))
    }

    /// Passes an interim (1xx) head on.
    pub(crate) fn interim(&self, bytes: &[u8], head: &ResponseHead) -> Result<(), ClientGone> {
        self.inform(head::response_to(bytes, head).ok_or(ClientGone)?)
    }

    /// Asks for the body (`100 Continue`).
    pub(crate) fn ask_for_body(&self) -> Result<(), ClientGone> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::CONTINUE;
        self.inform(response)
    }

    fn inform(&self, response: Response<()>) -> Result<(), ClientGone> {
        match &mut *self.0.borrow_mut() {
            State::Unanswered(respond) => {
                respond.send_informational(response).map_err(|_| ClientGone)
            }
            State::Answering(_) => Err(ClientGone),
        }
    }

    /// Begins the final response, with more fields and edited as a rule says; what is returned
    /// takes its body.
    pub(crate) fn start(
        &self,
        bytes: &[u8],
        head: &ResponseHead,
        (add, rule): (&[(&str, &[u8])], Option<&FieldEdits>),
        bodiless: bool,
    ) -> Result<Outgoing, ClientGone> {
        let mut response = head::response_to(bytes, head).ok_or(ClientGone)?;
        if let Some(rule) = rule {
            answer::edit(rule, response.headers_mut()).ok_or(ClientGone)?;
        }
        for (name, value) in add {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| ClientGone)?;
            let value = HeaderValue::from_bytes(value).map_err(|_| ClientGone)?;
            response.headers_mut().append(name, value);
        }
        self.answer(response, bodiless)
    }

    /// Sends a final head; what is returned takes its body. `end`: none follows.
    pub(crate) fn answer(&self, head: Response<()>, end: bool) -> Result<Outgoing, ClientGone> {
        let mut state = self.0.borrow_mut();
        let State::Unanswered(respond) = &mut *state else {
            return Err(ClientGone);
        };
        let stream = respond.send_response(head, end).map_err(|_| ClientGone)?;
        let outgoing = Outgoing::new(stream);
        *state = State::Answering(outgoing.clone());
        Ok(outgoing)
    }

    /// Resolves when the client has cancelled the request, with the code, or is gone.
    pub(super) async fn gone(&self) -> ResetCode {
        poll_fn(|cx| match &mut *self.0.borrow_mut() {
            State::Unanswered(respond) => respond.poll_reset(cx).map(Result::ok),
            State::Answering(outgoing) => outgoing.poll_reset(cx),
        })
        .await
        .map_or(ResetCode::Cancelled, |code| ResetCode::of_http2(code.into()))
    }

    /// Whether no part of the answer is out.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(*self.0.borrow(), State::Unanswered(_))
    }

    /// Gives the stream up, with an answer that is not whole. The client gets the code of HTTP/2 that broke it.
    pub(super) fn reset(&self, code: ResetCode) {
        let code = code.to_http2().map_or(Code::INTERNAL_ERROR, Code::from);
        match &mut *self.0.borrow_mut() {
            State::Unanswered(respond) => respond.send_reset(code),
            State::Answering(outgoing) => outgoing.0.borrow_mut().send_reset(code),
        }
    }
}

/// What is reserved of the connection's room at once, so that streams take turns.
const SEND_BYTES_MAX: usize = 16 * 1024;
