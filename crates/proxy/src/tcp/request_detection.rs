//! Detects HTTP requests on a port declared `TCP`. Policies that depend on requests cannot be evaluated
//! there, so an HTTP request is rejected if such policies exist.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use leno_model::{Protocol, Reason};
use leno_traffic::{Denial, PolicyDecision};
use leno_wire::sniff::{FirstLine, FirstLineReader};
use tokio::sync::Notify;

use crate::config_store::ConfigSnapshot;
use crate::error::Failure;
use crate::http::body::{BodyPiece, BodySink, BodySource, ForwardError};
use crate::session::Session;

/// Inspects the first bytes of one client at an application port.
pub(crate) struct RequestDetector<'a> {
    session: &'a Session,
    port: u16,
    /// True once an HTTP request was detected.
    has_request: Cell<bool>,
    /// Notified when a rejected HTTP request was detected.
    rejection_notified: Notify,
}

impl<'a> RequestDetector<'a> {
    /// Creates a detector for a connection to a port that is declared `TCP`; `None` for other ports, which
    /// reject all opaque bytes if a policy depends on requests.
    pub(super) fn for_port(session: &'a Session, port: u16) -> Option<Self> {
        let config = session.worker.config_store.current_config()?;
        let is_tcp_port = config.compiled.snapshot.config.declared_protocol(port) == Protocol::Tcp;
        let (has_request, rejection_notified) = (Cell::new(false), Notify::new());
        is_tcp_port.then_some(Self { session, port, has_request, rejection_notified })
    }

    /// Forwards bytes of the client, and counts them in `forwarded_bytes`, until it is known whether they start
    /// with an HTTP request. A rejected request is not forwarded: then this never returns, and the denial ends
    /// the connection.
    pub(crate) async fn forward_inspected(
        &self,
        source: &mut BodySource<'_>,
        sink: &mut BodySink<'_>,
        forwarded_bytes: &Cell<u64>,
    ) -> Result<(), ForwardError> {
        let mut first_line_reader = FirstLineReader::default();
        loop {
            let first_poll = poll_fn(|cx| Poll::Ready(source.poll_next(cx))).await;
            let next_piece = match first_poll {
                Poll::Ready(next_piece) => next_piece,
                Poll::Pending => {
                    sink.flush().await?;
                    poll_fn(|cx| source.poll_next(cx)).await
                }
            };
            let Some(BodyPiece::Data(data)) = next_piece.map_err(ForwardError::Source)? else {
                return Ok(());
            };
            let detection = first_line_reader.read(&data);
            if detection == FirstLine::Request {
                self.has_request.set(true);
                if self.is_rejected() {
                    self.rejection_notified.notify_one();
                    return pending().await;
                }
            }
            forwarded_bytes.set(forwarded_bytes.get() + data.len() as u64);
            sink.push(BodyPiece::Data(data), false).await?;
            if detection != FirstLine::Incomplete {
                return Ok(());
            }
        }
    }

    /// True if the current policies reject the detected request.
    fn is_rejected(&self) -> bool {
        let config = self.session.worker.config_store.current_config();
        config.is_some_and(|config| self.check_request(&config).is_err())
    }

    /// Resolves when a rejected HTTP request was detected.
    pub(super) async fn wait_until_rejected(&self) {
        self.rejection_notified.notified().await;
    }

    /// Checks a detected HTTP request against the policies of this configuration. Succeeds if no request was
    /// detected.
    ///
    /// # Errors
    /// `denied-by-policy` if a policy depends on requests, or the denial of the access policies.
    pub(super) fn check_request(&self, config: &ConfigSnapshot) -> Result<(), Failure> {
        if !self.has_request.get() {
            return Ok(());
        }
        if let Some(policy) =
            config.compiled.snapshot.config.policy_rejecting_hidden_requests(self.port)
        {
            let policy = Some(PolicyDecision::from_whole_policy(policy, &Arc::default()));
            return Err(Denial { policy, ..Denial::without_policy(Reason::DeniedByPolicy) }.into());
        }
        let access = &config.compiled.access;
        let permit = access.authorize_connection_from(
            self.session.identity.as_deref(),
            self.port,
            Some(self.session.origin()),
        )?;
        Ok(access.authorize_hidden_request(&permit)?)
    }
}
