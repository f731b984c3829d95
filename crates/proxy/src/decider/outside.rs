//! Asking a decider outside the mesh: one connection of HTTP/2, opened beside the questions.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
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
    send: RefCell<Option<SendRequest<Bytes>>>,
    /// Whether somebody is opening it.
    is_opening: Cell<bool>,
    /// Why it could not be opened the last time.
    failed: RefCell<Option<NoAnswer>>,
    /// Told when opening it has ended.
    opened: Notify,
    /// Questions in a row that had no answer in time.
    late: Cell<u32>,
}

impl Connection {
    pub(super) async fn ask(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        server: &Server,
        question: &Question,
    ) -> Result<Bytes, NoAnswer> {
        let send = self.open(worker, server).await?;
        let mut send = match send.ready().await {
            Ok(send) => send,
            // The server has said goodbye since: nothing was sent yet.
            Err(_) => {
                self.send.take();
                let send = self.open(worker, server).await?;
                send.ready().await.map_err(|error| self.broken(error))?
            }
        };
        let request = Request::post(format!("{server}{}", question.method))
            .version(Version::HTTP_2)
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header("grpc-timeout", question.timeout())
            .body(())
            .map_err(protocol)?;
        let (response, mut stream) = send.send_request(request, false).map_err(protocol)?;
        stream.send_data(question.message.clone(), true).map_err(protocol)?;
        let (head, mut body) = response.await.map_err(protocol)?.into_parts();
        self.late.set(0);
        if !head.status.is_success() {
            return Err(NoAnswer::Status(head.status.as_u16()));
        }
        let mut answer = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(protocol)?;
            body.flow_control().release_capacity(chunk.len()).map_err(protocol)?;
            message::take(&mut answer, &chunk)?;
        }
        let trailers = body.trailers().await.map_err(protocol)?.unwrap_or_default();
        match status(&trailers).or_else(|| status(&head.headers)).as_deref() {
            Some("0") => Ok(message::unframed(answer.freeze())?),
            Some(status) => Err(NoAnswer::Grpc(status.to_owned())),
            None => Err(NoAnswer::Protocol("it has no grpc-status".to_owned())),
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
    ) -> Result<SendRequest<Bytes>, NoAnswer> {
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
        *self.send.borrow_mut() = Some(send);
        self.failed.take();
    }

    /// No more streams can be opened on it.
    fn broken(&self, error: h2::Error) -> NoAnswer {
        self.send.take();
        NoAnswer::Unreachable(error.to_string())
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

/// Questions without an answer in time after which another connection is opened.
const LATE_MAX: u32 = 8;
/// Statuses of gRPC have two digits.
const STATUS_CHARACTERS_MAX: usize = 8;
