//! One request and its response on one connection.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;

use leno_wire::http1::{Answers, BodyDecoder, Parsed, ResponseHead};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::report::ErrorKind;
use crate::request::Request;

/// What a response came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The connection can take another request.
    pub(crate) reusable: bool,
}

/// Opens a connection.
pub(crate) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Whether a kept connection is still open and quiet. Costs no system call if nothing happened.
pub(crate) fn is_idle(stream: &TcpStream) -> bool {
    let outcome = stream.try_read(&mut [0]);
    matches!(outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// Where responses are read into; kept from request to request.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    head: ResponseHead,
    buffer: Vec<u8>,
    /// How much of the buffer is dealt with.
    at: usize,
    /// Bytes received for the request at hand.
    pub(crate) received: u64,
}

impl Inbox {
    /// Sends a request and reads its response to the end.
    pub(crate) async fn exchange(
        &mut self,
        stream: &mut TcpStream,
        request: &Request,
    ) -> Result<Response, ErrorKind> {
        let Request { bytes, answers } = request;
        let sent = match stream.try_write(bytes) {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(kind(&error)),
        };
        match bytes.get(sent..) {
            None | Some([]) => self.receive(stream, *answers).await,
            Some(rest) => self.exchange_rest(stream, rest, *answers).await,
        }
    }

    /// Sends what did not fit into the socket at once, ready for an answer that comes before
    /// the end of the request, as refusals do.
    async fn exchange_rest(
        &mut self,
        stream: &mut TcpStream,
        rest: &[u8],
        answers: Answers,
    ) -> Result<Response, ErrorKind> {
        let (mut reader, mut writer) = stream.split();
        let mut sending = pin!(writer.write_all(rest));
        let mut receiving = pin!(self.receive(&mut reader, answers));
        let (response, sent) = tokio::select! {
            response = &mut receiving => (response?, false),
            // If the server does not want the rest it may still say why.
            sent = &mut sending => (receiving.await?, sent.is_ok()),
        };
        Ok(Response { reusable: response.reusable && sent, ..response })
    }

    async fn receive(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        answers: Answers,
    ) -> Result<Response, ErrorKind> {
        self.buffer.clear();
        self.at = 0;
        self.read_head(reader, answers).await?;
        let mut interim = 0;
        while self.head.is_interim() {
            interim += 1;
            if interim > INTERIM_RESPONSES_MAX {
                return Err(ErrorKind::Malformed);
            }
            self.read_head(reader, answers).await?;
        }
        let (status, tunnel) = (self.head.status, self.head.tunnel);
        if !tunnel {
            self.read_body(reader).await?;
            if self.at < self.buffer.len() {
                // Nobody asked for more: whatever it is, it is not the next response.
                return Err(ErrorKind::Malformed);
            }
        }
        Ok(Response { status, reusable: self.head.keep_alive && !tunnel })
    }

    async fn read_head(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        answers: Answers,
    ) -> Result<(), ErrorKind> {
        loop {
            let bytes = self.buffer.get(self.at..).unwrap_or_default();
            match self.head.parse(bytes, answers) {
                Ok(Parsed::Complete(length)) => {
                    self.at += length;
                    return Ok(());
                }
                Ok(Parsed::Partial) => {
                    if self.fill(reader).await? == 0 {
                        return Err(ErrorKind::Closed);
                    }
                }
                Err(_) => return Err(ErrorKind::Malformed),
            }
        }
    }

    async fn read_body(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> Result<(), ErrorKind> {
        let mut body = BodyDecoder::new(self.head.body);
        while !body.is_complete() {
            let bytes = self.buffer.get(self.at..).unwrap_or_default();
            let piece = body.decode(bytes).map_err(|_| ErrorKind::Malformed)?;
            self.at += piece.consumed;
            if piece.consumed == 0 && !piece.complete && self.fill(reader).await? == 0 {
                body.end_of_input().map_err(|_| ErrorKind::Closed)?;
            }
        }
        Ok(())
    }

    /// Reads more; what is dealt with makes room. Heads and chunk framing are bounded by their
    /// parsers, so the buffer is too.
    async fn fill(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> Result<usize, ErrorKind> {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.reserve(READ_BYTES);
        let read = reader.read_buf(&mut self.buffer).await.map_err(|error| kind(&error))?;
        self.received += read as u64;
        Ok(read)
    }
}

fn kind(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => ErrorKind::Reset,
        io::ErrorKind::TimedOut => ErrorKind::Timeout,
        _ => ErrorKind::Other,
    }
}

/// Room for each read: most responses in one, and a small price for many connections.
const READ_BYTES: usize = 16 * 1024;

/// A server may say 100 Continue, and early hints; more than a few make no sense.
const INTERIM_RESPONSES_MAX: u32 = 16;
