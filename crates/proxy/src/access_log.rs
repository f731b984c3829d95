//! Lines of the access log: gathered on the data thread, written by the control thread.

use std::net::SocketAddr;
use std::time::SystemTime;

use leno_model::Reason;
use leno_telemetry::{Entry, GrpcStatus, Outcome, RequestLabels, write_json};
use leno_traffic::Ruling;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::mpsc;

use crate::http::request::Request;
use crate::session::Session;

/// What a line will tell, on its way to the control thread.
#[derive(Debug, Default)]
pub(crate) struct LogLine {
    method: String,
    path: String,
    authority: String,
    user_agent: String,
    request_id: String,
    forwarded_for: String,
    downstream: Option<SocketAddr>,
    /// The address of the endpoint, or of the application, that was tried last.
    pub(crate) upstream: Option<SocketAddr>,
    /// The policy that allowed it, or would allow it to others.
    pub(crate) policy: Option<Ruling>,
    /// Why it would have been denied.
    pub(crate) audited: Option<Reason>,
    ended: Option<Ended>,
}

#[derive(Debug)]
struct Ended {
    at: SystemTime,
    labels: RequestLabels,
    outcome: Outcome,
    retries: u8,
}

impl LogLine {
    /// A line about an exchange of this session.
    pub(crate) fn of(session: &Session) -> Self {
        Self { downstream: Some(session.peer), ..Self::default() }
    }

    /// Notes what the request says about itself.
    pub(crate) fn request(&mut self, request: &Request<'_>) {
        let field = |name: &str| {
            let value = request.head.find(&request.bytes, name).next().unwrap_or_default();
            String::from_utf8_lossy(value).into_owned()
        };
        self.method = request.method().to_owned();
        if let Ok(aim) = request.aim() {
            self.path = aim.path.to_owned();
            self.authority = aim.authority.to_owned();
        }
        self.user_agent = field("user-agent");
        self.request_id = field("x-request-id");
        self.forwarded_for = field("x-forwarded-for");
    }

    /// Notes how it ended.
    pub(crate) fn finish(
        &mut self,
        at: SystemTime,
        labels: &RequestLabels,
        outcome: &Outcome,
        retries: u32,
    ) {
        let retries = u8::try_from(retries).unwrap_or(u8::MAX);
        self.ended = Some(Ended { at, labels: labels.clone(), outcome: *outcome, retries });
    }

    pub(crate) fn write(&self, out: &mut String) {
        let Some(Ended { at, labels, outcome, retries }) = &self.ended else {
            return;
        };
        let started = OffsetDateTime::from(*at) - outcome.duration;
        let started = started.format(&Rfc3339).unwrap_or_default();
        let policy = self.policy.as_ref().map(ToString::to_string).unwrap_or_default();
        let entry = Entry {
            direction: labels.direction,
            method: &self.method,
            path: &self.path,
            protocol: labels.protocol,
            authority: &self.authority,
            status: outcome.status,
            reason: outcome.reason,
            grpc_status: outcome.grpc.map(GrpcStatus::label).unwrap_or_default(),
            service: &labels.service,
            route: &labels.route,
            policy: &policy,
            audit: self.audited.map(Reason::label).unwrap_or_default(),
            peer: &labels.peer,
            downstream: self.downstream,
            upstream: self.upstream,
            bytes_in: outcome.bytes_in,
            bytes_out: outcome.bytes_out,
            duration: outcome.duration,
            time_to_first_byte: None,
            upstream_time: None,
            retries: *retries,
            forwarded_for: &self.forwarded_for,
            user_agent: &self.user_agent,
            request_id: &self.request_id,
            server_name: "",
        };
        write_json(&entry, &started, out);
    }
}

/// Writes lines to standard output until all data threads are gone. A reader that is too slow
/// costs lines, which are counted, and never time on the data path.
pub(crate) async fn write(mut lines: mpsc::Receiver<LogLine>) {
    use tokio::io::AsyncWriteExt;
    let mut out = tokio::io::stdout();
    let mut batch = Vec::new();
    let mut text = String::new();
    while lines.recv_many(&mut batch, BATCH_MAX).await > 0 {
        text.clear();
        for line in batch.drain(..) {
            line.write(&mut text);
        }
        let written = async {
            out.write_all(text.as_bytes()).await?;
            out.flush().await
        };
        if let Err(error) = written.await {
            return tracing::error!(%error, "the access log cannot be written any more");
        }
    }
}

/// Lines that may wait for the writer, over all data threads.
pub(crate) const QUEUE_MAX: usize = 4096;
/// Lines written at once.
const BATCH_MAX: usize = 256;
