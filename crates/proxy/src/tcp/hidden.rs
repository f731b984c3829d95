//! Detection of HTTP requests on a port declared `TCP`, for policies that decide by request and reject them.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use leno_model::{Protocol, Reason};
use leno_traffic::{Denial, PolicyDecision};
use leno_wire::sniff::{FirstLine, FirstLineReader};
use tokio::sync::Notify;

use crate::error::Failure;
use crate::http::body::{Broken, Piece, Sink, Source};
use crate::session::Session;
use crate::world::ConfigSnapshot;

/// The inspection of the bytes of one client.
pub(crate) struct Examination<'a> {
    session: &'a Session,
    port: u16,
    /// True once an HTTP request was detected.
    has_begun: Cell<bool>,
    begun: Notify,
}

impl<'a> Examination<'a> {
    /// Returns the inspection of a connection to a port that is declared `TCP`. Other ports reject all bytes if
    /// a policy decides by request.
    pub(super) fn for_port(session: &'a Session, port: u16) -> Option<Self> {
        let config = session.worker.world.current_config()?;
        let is_declared = config.plans.snapshot.plan.declared_protocol(port) == Protocol::Tcp;
        let (has_begun, begun) = (Cell::new(false), Notify::new());
        is_declared.then_some(Self { session, port, has_begun, begun })
    }

    /// Forwards bytes of the client until it is known if they start with an HTTP request. Rejected bytes are
    /// not forwarded: the denial ends the connection.
    pub(crate) async fn forward_inspected(
        &self,
        source: &mut Source<'_>,
        sink: &mut Sink<'_>,
        bytes: &Cell<u64>,
    ) -> Result<(), Broken> {
        let mut line = FirstLineReader::default();
        loop {
            let at_once = poll_fn(|cx| Poll::Ready(source.poll_next(cx))).await;
            let next = match at_once {
                Poll::Ready(next) => next,
                Poll::Pending => {
                    sink.flush().await?;
                    poll_fn(|cx| source.poll_next(cx)).await
                }
            };
            let Some(Piece::Data(data)) = next.map_err(Broken::Source)? else { return Ok(()) };
            let read = line.read(&data);
            if read == FirstLine::Request {
                self.has_begun.set(true);
                if self.is_rejected() {
                    self.begun.notify_one();
                    return pending().await;
                }
            }
            bytes.set(bytes.get() + data.len() as u64);
            sink.push(Piece::Data(data), false).await?;
            if read != FirstLine::More {
                return Ok(());
            }
        }
    }

    fn is_rejected(&self) -> bool {
        let config = self.session.worker.world.current_config();
        config.is_some_and(|config| self.check_request(&config).is_err())
    }

    /// Resolves when a rejected HTTP request was detected.
    pub(super) async fn wait_until_rejected(&self) {
        self.begun.notified().await;
    }

    /// # Errors
    /// `denied-by-policy` if an HTTP request was detected and a policy depends on requests.
    pub(super) fn check_request(&self, config: &ConfigSnapshot) -> Result<(), Failure> {
        if !self.has_begun.get() {
            return Ok(());
        }
        if let Some(policy) = config.plans.snapshot.plan.rejects_hidden_requests(self.port) {
            let policy = Some(PolicyDecision::whole_policy(policy, &Arc::default()));
            return Err(Denial { policy, ..Denial::without_policy(Reason::DeniedByPolicy) }.into());
        }
        let access = &config.plans.access;
        let permit = access.visit(
            self.session.identity.as_deref(),
            self.port,
            Some(self.session.origin()),
        )?;
        Ok(access.hidden_request(&permit)?)
    }
}
