//! Wraps the parts of an HTTP/2 stream: a received body, a sent body, and the response to a client. The client
//! and the server share the bodies.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason as Http2Code, RecvStream, SendStream};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use leno_traffic::FieldEdits;
use leno_wire::http1::{MAX_FIELDS, MAX_HEAD_BYTES, Malformed, ResponseHead};
use leno_wire::link::ResetCode;

use super::cancel;
use super::half_close::HalfClose;
use super::head;
use crate::http::body::BodyPiece;
use crate::http::generated_response;
use crate::http::message::ReadError;
use crate::http::respond::ClientGone;

/// A received body. Flow control credit for a piece is returned when the next piece is requested.
pub(crate) struct ReceivedBody {
    stream: RecvStream,
    /// The flow control credit of the last piece, in bytes.
    unreleased_bytes: usize,
    phase: BodyPhase,
    /// The state of the client connection from which the body arrives; `None` for the body of a response.
    half_close: Option<Rc<HalfClose>>,
}

/// The next part of a received body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyPhase {
    Data,
    Trailers,
    Ended,
}

impl ReceivedBody {
    pub(crate) fn new(stream: RecvStream) -> Self {
        Self { stream, unreleased_bytes: 0, phase: BodyPhase::Data, half_close: None }
    }

    /// Returns the body of a request, which fails if its client half-closes the connection before the end of
    /// the body.
    pub(super) fn for_request(stream: RecvStream, half_close: Rc<HalfClose>) -> Self {
        Self { half_close: Some(half_close), ..Self::new(stream) }
    }

    /// True if the whole body has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.phase == BodyPhase::Ended
    }

    /// Returns the next piece; `None` at the end of the body. The codec enforces a declared length.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<BodyPiece>, ReadError>> {
        let unreleased_bytes = std::mem::take(&mut self.unreleased_bytes);
        if unreleased_bytes > 0 {
            // An error means that the stream has ended, which the next read reports.
            drop(self.stream.flow_control().release_capacity(unreleased_bytes));
        }
        match self.poll_stream(cx) {
            Poll::Pending
                if self.half_close.as_ref().is_some_and(|half_close| half_close.has_ended()) =>
            {
                Poll::Ready(Err(ReadError::Ended))
            }
            poll_result => poll_result,
        }
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<BodyPiece>, ReadError>> {
        loop {
            match self.phase {
                BodyPhase::Data => match ready!(self.stream.poll_data(cx)) {
                    Some(Ok(data)) if data.is_empty() => {}
                    Some(Ok(data)) => {
                        self.unreleased_bytes = data.len();
                        // If this piece ends the stream, the end is reported together with it: some servers
                        // cancel a complete response if they have not received the end of the request.
                        if self.stream.is_end_stream() {
                            self.phase = BodyPhase::Ended;
                        }
                        return Poll::Ready(Ok(Some(BodyPiece::Data(data))));
                    }
                    Some(Err(error)) => return Poll::Ready(Err(read_error(error))),
                    None => self.phase = BodyPhase::Trailers,
                },
                BodyPhase::Trailers => {
                    let trailers = ready!(self.stream.poll_trailers(cx)).map_err(read_error)?;
                    self.phase = BodyPhase::Ended;
                    if trailers.as_ref().is_some_and(|fields| fields.len() > MAX_FIELDS) {
                        return Poll::Ready(Err(Malformed::TooManyFields.into()));
                    }
                    let section = trailers.and_then(|fields| head::trailers_to_http1(&fields));
                    if section.as_ref().is_some_and(|section| section.len() > MAX_HEAD_BYTES) {
                        return Poll::Ready(Err(Malformed::HeadTooLarge.into()));
                    }
                    return Poll::Ready(Ok(section.map(BodyPiece::Trailers)));
                }
                BodyPhase::Ended => return Poll::Ready(Ok(None)),
            }
        }
    }
}

/// Returns the error of a read for an error of the codec.
fn read_error(error: h2::Error) -> ReadError {
    match error.reason() {
        // The codec resets a stream for malformed trailers or a wrong body length.
        Some(Http2Code::PROTOCOL_ERROR) if error.is_library() => ReadError::Protocol,
        Some(code) if error.is_reset() => ReadError::Reset(ResetCode::from_http2(code.into())),
        _ => ReadError::Io(io::Error::other(error)),
    }
}

/// A sent body, subject to flow control.
#[derive(Clone)]
pub(crate) struct OutgoingBody(Rc<RefCell<SendStream<Bytes>>>);

/// A stream to a server with a pending response.
pub(crate) struct RequestStream(Option<OutgoingBody>);

impl RequestStream {
    pub(crate) fn new(outgoing: &OutgoingBody) -> Self {
        Self(Some(outgoing.clone()))
    }

    /// Records that the response is complete.
    pub(crate) fn complete(mut self) {
        self.0 = None;
    }
}

impl Drop for RequestStream {
    /// Resets the stream with the HTTP/2 code of the client that canceled its request. Without such a code, the
    /// codec sends CANCEL.
    fn drop(&mut self) {
        if let (Some(outgoing), Some(code)) = (&self.0, cancel::current_code().to_http2()) {
            outgoing.0.borrow_mut().send_reset(code.into());
        }
    }
}

/// The error of a stream when the peer accepts no more data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerGone;

impl OutgoingBody {
    pub(crate) fn new(stream: SendStream<Bytes>) -> Self {
        Self(Rc::new(RefCell::new(stream)))
    }

    /// Sends from the front of `data` until it is empty; with `end_stream`, the last frame ends the stream.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        data: &mut Bytes,
        end_stream: bool,
    ) -> Poll<Result<(), PeerGone>> {
        let mut stream = self.0.borrow_mut();
        while !data.is_empty() {
            stream.reserve_capacity(data.len().min(MAX_SEND_BYTES));
            while stream.capacity() == 0 {
                match ready!(stream.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Poll::Ready(Err(PeerGone)),
                }
            }
            let piece = data.split_to(stream.capacity().min(data.len()));
            let is_last = end_stream && data.is_empty();
            stream.send_data(piece, is_last).map_err(|_| PeerGone)?;
            if is_last {
                return Poll::Ready(Ok(()));
            }
        }
        if end_stream {
            stream.send_data(Bytes::new(), true).map_err(|_| PeerGone)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends a validated trailer section; no frame follows it.
    pub(crate) fn send_trailers(&self, section: &[u8]) -> Result<(), PeerGone> {
        self.0.borrow_mut().send_trailers(head::trailers_to_http2(section)).map_err(|_| PeerGone)
    }

    /// Resolves when the peer has reset the stream, with its code, or when the connection has ended, with
    /// `None`.
    pub(crate) fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<Option<Http2Code>> {
        self.0.borrow_mut().poll_reset(cx).map(Result::ok)
    }
}

/// The response to one request. Clones refer to the same response.
#[derive(Clone)]
pub(crate) struct Http2Response(Rc<RefCell<ResponseState>>);

/// The state of a response.
enum ResponseState {
    /// No final head was sent.
    Pending(SendResponse<Bytes>),
    /// The final head was sent.
    Started(OutgoingBody),
}

impl Http2Response {
    pub(super) fn new(send_response: SendResponse<Bytes>) -> Self {
        Self(Rc::new(RefCell::new(ResponseState::Pending(send_response))))
    }

    /// Forwards an interim (1xx) head.
    pub(crate) fn send_interim(&self, bytes: &[u8], head: &ResponseHead) -> Result<(), ClientGone> {
        self.send_informational(head::response_to_http2(bytes, head).ok_or(ClientGone)?)
    }

    /// Requests the body (`100 Continue`).
    pub(crate) fn send_continue(&self) -> Result<(), ClientGone> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::CONTINUE;
        self.send_informational(response)
    }

    fn send_informational(&self, response: Response<()>) -> Result<(), ClientGone> {
        match &mut *self.0.borrow_mut() {
            ResponseState::Pending(send_response) => {
                send_response.send_informational(response).map_err(|_| ClientGone)
            }
            ResponseState::Started(_) => Err(ClientGone),
        }
    }

    /// Starts the final response, with additional fields and the edits of a rule. Returns the sink of its body.
    pub(crate) fn start_response(
        &self,
        bytes: &[u8],
        head: &ResponseHead,
        added_fields: &[(&str, &[u8])],
        rule_edits: Option<&FieldEdits>,
        is_bodiless: bool,
    ) -> Result<OutgoingBody, ClientGone> {
        let mut response = head::response_to_http2(bytes, head).ok_or(ClientGone)?;
        if let Some(rule_edits) = rule_edits {
            generated_response::edit_fields(rule_edits, response.headers_mut())
                .ok_or(ClientGone)?;
        }
        for (name, value) in added_fields {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| ClientGone)?;
            let value = HeaderValue::from_bytes(value).map_err(|_| ClientGone)?;
            response.headers_mut().append(name, value);
        }
        self.send_head(response, is_bodiless)
    }

    /// Sends a final head, and returns the sink of its body. `end_stream`: no body follows.
    pub(crate) fn send_head(
        &self,
        head: Response<()>,
        end_stream: bool,
    ) -> Result<OutgoingBody, ClientGone> {
        let mut response_state = self.0.borrow_mut();
        let ResponseState::Pending(send_response) = &mut *response_state else {
            return Err(ClientGone);
        };
        let stream = send_response.send_response(head, end_stream).map_err(|_| ClientGone)?;
        let outgoing = OutgoingBody::new(stream);
        *response_state = ResponseState::Started(outgoing.clone());
        Ok(outgoing)
    }

    /// Resolves when the client has canceled the request or its connection has ended. Returns the client's
    /// code, or CANCEL without a code.
    pub(super) async fn wait_canceled(&self) -> ResetCode {
        poll_fn(|cx| match &mut *self.0.borrow_mut() {
            ResponseState::Pending(send_response) => send_response.poll_reset(cx).map(Result::ok),
            ResponseState::Started(outgoing) => outgoing.poll_reset(cx),
        })
        .await
        .map_or(ResetCode::Cancelled, |code| ResetCode::from_http2(code.into()))
    }

    /// True if no part of the response was sent.
    pub(super) fn is_pending(&self) -> bool {
        matches!(*self.0.borrow(), ResponseState::Pending(_))
    }

    /// Resets the stream of an incomplete response. The client receives the HTTP/2 code of the upstream.
    pub(super) fn reset_stream(&self, code: ResetCode) {
        let code = code.to_http2().map_or(Http2Code::INTERNAL_ERROR, Http2Code::from);
        match &mut *self.0.borrow_mut() {
            ResponseState::Pending(send_response) => send_response.send_reset(code),
            ResponseState::Started(outgoing) => outgoing.0.borrow_mut().send_reset(code),
        }
    }
}

/// The amount of connection credit that is reserved at once, so that streams take turns.
const MAX_SEND_BYTES: usize = 16 * 1024;
