//! Asking a decider outside the mesh: one connection of HTTP/2, opened beside the questions.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use h2::Reason as Code;
use h2::client::SendRequest;
use http::header::{CONTENT_TYPE, HeaderMap, TE};
use http::{Request, Version};
use leno_model::{AddressClass, Scheme, Server};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{NoAnswer, Question};
use crate::http::grpc::message;
use crate::http2::client::greet;
use crate::io::{Io, Stream};
use crate::worker::Worker;

/// The connection of one thread to one decider, while there is one.
#[derive(Default)]
pub(super) struct Connection {
    /// With its number among all of them.
    send: RefCell<Option<(u64, SendRequest<Bytes>)>>,
    opened_count: Cell<u64>,
    /// Whether somebody is opening it.
    is_opening: Cell<bool>,
    /// Why it could not be opened the last time.
    failed: RefCell<Option<NoAnswer>>,
    /// Told when opening it has ended.
    opened: Notify,
    /// Questions in a row that had no answer in time.
    late: Cell<u32>,
}

/// The end of one attempt without an answer.
enum Unanswered {
    /// The server did not process it (RFC 9113 §6.8 and §8.7), or it was not sent: it may be sent again.
    Unprocessed(NoAnswer),
    /// The server may have processed it.
    Final(NoAnswer),
}

impl From<NoAnswer> for Unanswered {
    fn from(error: NoAnswer) -> Self {
        Self::Final(error)
    }
}

impl Connection {
    /// Sends a question, over another connection if the server goes away without processing it.
    pub(super) async fn ask(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        server: &Server,
        question: &Question,
    ) -> Result<Bytes, NoAnswer> {
        let mut attempts = 1;
        loop {
            match self.attempt(worker, server, question).await {
                Ok(answer) => return Ok(answer),
                Err(Unanswered::Unprocessed(_)) if attempts < ATTEMPTS_MAX => attempts += 1,
                Err(Unanswered::Unprocessed(error) | Unanswered::Final(error)) => {
                    return Err(error);
                }
            }
        }
    }

    async fn attempt(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        server: &Server,
        question: &Question,
    ) -> Result<Bytes, Unanswered> {
        let (number, send) = self.open(worker, server).await?;
        let mut send = send.ready().await.map_err(|error| self.unsent(number, &error))?;
        let request = Request::post(format!("{server}{}", question.method))
            .version(Version::HTTP_2)
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header("grpc-timeout", question.timeout())
            .body(())
            .map_err(protocol)?;
        let opened = send.send_request(request, false);
        let (response, mut stream) = opened.map_err(|error| self.unsent(number, &error))?;
        // A stream that the server ended before says so by its response.
        drop(stream.send_data(question.message.clone(), true));
        let response = response.await.map_err(|error| self.unanswered(number, &error))?;
        let (head, mut body) = response.into_parts();
        self.late.set(0);
        if !head.status.is_success() {
            return Err(NoAnswer::Status(head.status.as_u16()).into());
        }
        let mut answer = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(protocol)?;
            body.flow_control().release_capacity(chunk.len()).map_err(protocol)?;
            message::take(&mut answer, &chunk).map_err(NoAnswer::from)?;
        }
        let trailers = body.trailers().await.map_err(protocol)?.unwrap_or_default();
        match status(&trailers).or_else(|| status(&head.headers)).as_deref() {
            Some("0") => Ok(message::unframed(answer.freeze()).map_err(NoAnswer::from)?),
            Some(status) => Err(NoAnswer::Grpc(status.to_owned()).into()),
            None => Err(NoAnswer::Protocol("it has no grpc-status".to_owned()).into()),
        }
    }

    /// The connection takes no more streams: the server has announced its end, or it broke.
    fn unsent(&self, number: u64, error: &h2::Error) -> Unanswered {
        self.retire(number);
        Unanswered::Unprocessed(NoAnswer::Unreachable(error.to_string()))
    }

    fn unanswered(&self, number: u64, error: &h2::Error) -> Unanswered {
        // The codec gives the error of a GOAWAY to the streams above the last one that the server processed.
        let is_above_last = error.is_go_away() && error.is_remote();
        if is_above_last || error.is_io() {
            self.retire(number);
        }
        let is_rejected = error.is_remote() && error.reason() == Some(Code::REFUSED_STREAM);
        match is_above_last || is_rejected {
            true => Unanswered::Unprocessed(NoAnswer::Protocol(error.to_string())),
            false => Unanswered::Final(NoAnswer::Protocol(error.to_string())),
        }
    }

    /// Forgets a connection; another one may have taken its place already.
    fn retire(&self, number: u64) {
        let mut send = self.send.borrow_mut();
        if send.as_ref().is_some_and(|(current, _)| *current == number) {
            *send = None;
        }
    }

    /// A question had no answer in time. A server that is gone without a word never has one.
    pub(super) fn was_late(&self) {
        let late = self.late.get().saturating_add(1);
        self.late.set(late);
        if late >= LATE_MAX {
            self.late.set(0);
            self.send.take();
        }
    }

    /// The connection, when there is one. It is opened by a task of its own: the next question finds
    /// it open, if this one cannot wait so long.
    async fn open(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        server: &Server,
    ) -> Result<(u64, SendRequest<Bytes>), NoAnswer> {
        if let Some(send) = self.send.borrow().as_ref() {
            return Ok(send.clone());
        }
        let opened = self.opened.notified();
        tokio::pin!(opened);
        opened.as_mut().enable();
        if !self.is_opening.replace(true) {
            let (this, worker, server) = (self.clone(), worker.clone(), server.clone());
            // It ends by itself, soon: with a connection or without.
            tokio::task::spawn_local(async move {
                let patience = worker.config.limits.connect_timeout;
                let opened = timeout(patience, connect(&worker, &server)).await;
                match opened.unwrap_or(Err(NoAnswer::Late)) {
                    Ok(send) => this.keep(send),
                    Err(error) => *this.failed.borrow_mut() = Some(error),
                }
                this.is_opening.set(false);
                this.opened.notify_waiters();
            });
        }
        opened.await;
        match self.send.borrow().as_ref() {
            Some(send) => Ok(send.clone()),
            None => Err(self.failed.borrow().clone().unwrap_or(NoAnswer::Late)),
        }
    }

    fn keep(&self, send: SendRequest<Bytes>) {
        let number = self.opened_count.get() + 1;
        self.opened_count.set(number);
        *self.send.borrow_mut() = Some((number, send));
        self.failed.take();
    }
}

async fn connect(worker: &Worker, server: &Server) -> Result<SendRequest<Bytes>, NoAnswer> {
    // A rule of a namespace names the server; the metadata service of a cloud is none.
    let permits = |address| AddressClass::of(address) != AddressClass::Special;
    let dial = &worker.config.interception;
    let tcp = leno_outside::connect_permitted(server, dial, permits).await;
    let tcp = tcp.map_err(|error| NoAnswer::Unreachable(error.to_string()))?;
    let stream = match server.scheme {
        Scheme::Http => Stream::Plain(tcp),
        Scheme::Https => {
            let session = worker.deciders.sessions.open((server, b"h2"), tcp).await;
            let session = session.map_err(|error| NoAnswer::Unreachable(error.to_string()))?;
            Stream::Client(Box::new(session))
        }
    };
    let greeted = greet(Io::new(stream), ()).await;
    greeted.map_err(|_| NoAnswer::Unreachable("it does not speak HTTP/2".to_owned()))
}

fn status(fields: &HeaderMap) -> Option<String> {
    let status = fields.get("grpc-status")?;
    Some(status.to_str().unwrap_or("2").chars().take(STATUS_CHARACTERS_MAX).collect())
}

fn protocol(error: impl std::fmt::Display) -> NoAnswer {
    NoAnswer::Protocol(error.to_string())
}

/// Attempts of one question that the server does not process.
pub(super) const ATTEMPTS_MAX: u32 = 3;
/// Questions without an answer in time after which another connection is opened.
const LATE_MAX: u32 = 8;
/// Statuses of gRPC have two digits.
const STATUS_CHARACTERS_MAX: usize = 8;
