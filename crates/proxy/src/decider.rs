//! Asking deciders: calls of gRPC beside a request, bounded in number, size and time.

mod inside;
mod outside;
mod protobuf;

pub(crate) mod authorization;
pub(crate) mod limit;

pub(crate) use inside::answer;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use leno_model::{Decider, DeciderAddress, Reason};
use leno_outside::Sessions;
use leno_telemetry::LogLimit;
use rustc_hash::FxHashMap;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::outside::Connections;
use crate::http::ahead::Taken;
use crate::http::grpc::message::{self, NotOne};
use crate::worker::Worker;

/// The deciders that one thread has asked.
pub(crate) struct Deciders {
    known: RefCell<FxHashMap<DeciderAddress, Rc<Contact>>>,
    sessions: Sessions,
    /// What bodies take that were read ahead for them, and are here still.
    pub(crate) ahead: Rc<Taken>,
}

/// One of them.
struct Contact {
    at: DeciderAddress,
    /// Room for questions under way.
    places: Semaphore,
    /// The connections to one outside the mesh.
    connections: Rc<Connections>,
    /// Whether it answered last: its trouble is logged once.
    is_well: Cell<bool>,
    /// One that answers every other time is logged no more often than others.
    logs: RefCell<LogLimit>,
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// It took too long.
    #[error("it did not answer in time")]
    Late,
    /// It cannot be reached.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// The mesh does not lead there.
    #[error("it cannot be reached: {}", .0.label())]
    Mesh(Reason),
    /// It answered with this status of HTTP.
    #[error("it answered with status {0}")]
    Status(u16),
    /// It answered with this status of gRPC.
    #[error("it answered with status {0} of gRPC")]
    Grpc(String),
    /// What came is no call of gRPC.
    #[error("it does not speak gRPC, or the connection broke: {0}")]
    Protocol(String),
    /// It answered, and nobody knows what.
    #[error("its answer cannot be used: {0}")]
    Unusable(String),
}

impl From<NotOne> for NoAnswer {
    fn from(error: NotOne) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl Deciders {
    pub(crate) fn new(roots: Option<PathBuf>) -> Self {
        Self { known: RefCell::default(), sessions: Sessions::new(roots), ahead: Rc::default() }
    }

    fn contact(&self, at: &DeciderAddress) -> Rc<Contact> {
        let mut known = self.known.borrow_mut();
        if let Some(contact) = known.get(at) {
            return contact.clone();
        }
        // Those that rules named before are let go of; those that they name now come back.
        if known.len() >= CONTACTS_MAX {
            known.clear();
        }
        let contact = Rc::new(Contact {
            at: at.clone(),
            places: Semaphore::new(UNDER_WAY_MAX),
            connections: Rc::default(),
            is_well: Cell::new(true),
            logs: RefCell::default(),
        });
        known.insert(at.clone(), contact.clone());
        contact
    }
}

/// Asks a decider one question: a message for a method, and `read` makes something of its answer.
pub(crate) async fn ask<T>(
    worker: &Rc<Worker>,
    decider: &Decider,
    (method, message): (&'static str, Vec<u8>),
    read: impl FnOnce(Bytes) -> Result<T, NoAnswer>,
) -> Result<T, NoAnswer> {
    let contact = worker.deciders.contact(&decider.at);
    let question = Question { method, message: message::framed(&message), time: decider.timeout };
    // It may show a body: twice is once too often.
    drop(message);
    let asked = async {
        let place = contact.places.acquire().await;
        let _place = place.map_err(|_| NoAnswer::Late)?;
        match &contact.at {
            DeciderAddress::Service { service, port } => {
                inside::ask(worker, (service, *port), &question).await
            }
            DeciderAddress::Outside(server) => {
                contact.connections.ask(worker, server, &question).await
            }
        }
    };
    let answer = match timeout(decider.timeout, asked).await {
        Ok(answer) => answer.and_then(read),
        Err(_) => {
            contact.connections.was_late();
            Err(NoAnswer::Late)
        }
    };
    contact.tell(&answer);
    answer
}

/// What is asked.
struct Question {
    /// The path of the method.
    method: &'static str,
    /// The message, framed.
    message: Bytes,
    /// How long its answer is waited for.
    time: std::time::Duration,
}

impl Question {
    /// As `grpc-timeout` says it.
    fn timeout(&self) -> String {
        format!("{}m", self.time.as_millis().max(1))
    }
}

impl Contact {
    fn tell<T>(&self, answer: &Result<T, NoAnswer>) {
        if self.is_well.replace(answer.is_ok()) == answer.is_ok() {
            return;
        }
        let line = self.logs.borrow_mut().permit(Instant::now());
        let Some(suppressed) = line.map(|line| line.suppressed) else { return };
        match answer {
            Err(error) => {
                tracing::warn!(decider = %self.at, %error, suppressed, "a decider does not answer; what is not decided is counted");
            }
            Ok(_) => tracing::info!(decider = %self.at, suppressed, "a decider answers again"),
        }
    }
}

/// Questions under way from one data thread to one decider; others wait, within their time.
const UNDER_WAY_MAX: usize = 256;
/// More deciders than the rules of a workload name.
const CONTACTS_MAX: usize = 64;

#[cfg(test)]
mod tests;
