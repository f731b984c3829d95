//! Runs the proxy's end of a discovery stream: sends the Hello, the proxy's requests and keepalives, and
//! applies the deltas of the control plane.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use leno_model::{ServiceName, Tap};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::condition::ProxyReport;
use crate::envelope::{
    addresses_to_wire, delta_from_wire, dns_names_to_wire, hello_to_wire, issued_from_wire,
    listeners_to_wire, nack_to_wire, services_to_wire,
};
use crate::frame::{
    FrameError, FrameReader, FrameWriter, MAX_MESSAGE_BYTES, MAX_OUTBOX_BYTES, MAX_REQUEST_BYTES,
};
use crate::keepalive::Keepalive;
use crate::message::{
    CertificateReply, ConfigUpdate, Delta, Hello, InboundListener, ResourceRejection,
};
use crate::proto::{self, from_proxy, to_proxy};
use crate::query::{Query, QueryInProgress, next_part};
use crate::resource::InvalidField;
use crate::subscriber::Subscriber;
use crate::tap::{MAX_RECORDS, taps_from_wire};
use crate::traffic::{MIN_REPORT_INTERVAL, TrafficReport, traffic_to_wire};

/// Follows the control plane over an authenticated stream until the stream ends, and returns the reason.
///
/// The [`UpdateHandler`] applies configurations, opens taps and reports traffic. The future may be dropped at
/// any time.
pub async fn follow_control_plane<S>(
    stream: S,
    hello: Hello,
    subscriber: &mut Subscriber,
    requests: &mut mpsc::Receiver<ProxyRequest>,
    handler: &mut dyn UpdateHandler,
) -> DiscoveryError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, MAX_MESSAGE_BYTES);
    let mut session = Session {
        writer: FrameWriter::new(write),
        keepalive: Keepalive::new(Instant::now()),
        subscriber,
        handler,
        taps: Vec::new(),
        pending_certificate: None,
        last_certificate_id: 0,
        report_schedule: None,
        query_in_progress: None,
    };
    match session.run(&mut reader, hello, requests).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// The consumer of a discovery stream. Only [`Self::apply_update`] is required.
pub trait UpdateHandler {
    /// Applies an update as the proxy's configuration. It returns after the proxy serves from the update,
    /// because the client then acknowledges the delta. An error rejects the delta, and the subscriber retains
    /// its configuration. The first call comes when the proxy is in sync with the control plane, even if the
    /// proxy already held all resources.
    ///
    /// # Errors
    /// The resources that cannot be accepted, with reasons.
    fn apply_update(&mut self, update: ConfigUpdate) -> Result<(), Vec<ResourceRejection>>;

    /// Returns the traffic since the last call; `None` if there was no traffic. Called at the interval that the
    /// control plane requests, and never if it requests no reports.
    fn take_traffic(&mut self) -> Option<TrafficReport> {
        None
    }

    /// Replaces the set of open taps.
    fn set_taps(&mut self, _taps: &[Tap]) {}

    /// Handles a query of an operator. Dropping the query sends an error as its response.
    fn handle_query(&mut self, _query: Query) {}
}

impl<F: FnMut(ConfigUpdate) -> Result<(), Vec<ResourceRejection>>> UpdateHandler for F {
    fn apply_update(&mut self, update: ConfigUpdate) -> Result<(), Vec<ResourceRejection>> {
        self(update)
    }
}

/// A message from the proxy to the control plane.
#[derive(Debug)]
pub enum ProxyRequest {
    /// Reports tapped requests.
    Tapped {
        /// The ID of the tap.
        tap: u64,
        /// Access log lines in JSON; at most 512 are sent.
        records: Vec<String>,
        /// The number of further requests that are not included.
        dropped: u64,
    },
    /// Adds subscribed services.
    Subscribe(Vec<ServiceName>),
    /// Removes subscribed services.
    Unsubscribe(Vec<ServiceName>),
    /// Adds queried addresses.
    SubscribeAddresses(Vec<IpAddr>),
    /// Removes queried addresses.
    UnsubscribeAddresses(Vec<IpAddr>),
    /// Adds queried DNS names.
    SubscribeNames(Vec<ServiceName>),
    /// Removes queried DNS names.
    UnsubscribeNames(Vec<ServiceName>),
    /// Replaces the inbound listeners and the operational state.
    Listeners(Vec<InboundListener>, ProxyReport),
    /// Requests a new certificate.
    Renew {
        /// A certificate signing request, DER, at most 64 KiB.
        csr: Vec<u8>,
        /// The sender of the response; dropped without a response if the stream ends first.
        reply: CertificateReply,
    },
}

/// The reason why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The stream broke.
    #[error("the stream to the control plane broke")]
    Io(#[from] io::Error),
    /// The control plane closed the stream without a message.
    #[error("the control plane closed the stream")]
    Closed,
    /// No message from the control plane arrived within the maximum silence.
    #[error("the control plane was silent for too long")]
    Timeout,
    /// The control plane sent an invalid message.
    #[error("the control plane sent an invalid message: {0}")]
    Malformed(String),
    /// The control plane ended the stream with a reason.
    #[error("the control plane ended the stream: {0}")]
    Goodbye(String),
    /// All senders of [`ProxyRequest`]s were dropped: the proxy no longer needs the stream.
    #[error("the proxy closed the stream")]
    Stopped,
}

impl From<FrameError> for DiscoveryError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => Self::Io(error),
            FrameError::Truncated => Self::Io(io::ErrorKind::UnexpectedEof.into()),
            FrameError::Oversize { .. } => Self::Malformed(error.to_string()),
        }
    }
}

impl From<InvalidField> for DiscoveryError {
    fn from(invalid: InvalidField) -> Self {
        Self::Malformed(format!("{}: {}", invalid.field, invalid.reason))
    }
}

/// The proxy's state of an open stream.
struct Session<'a, S> {
    writer: FrameWriter<WriteHalf<S>>,
    keepalive: Keepalive,
    subscriber: &'a mut Subscriber,
    handler: &'a mut dyn UpdateHandler,
    /// The open taps that the control plane sent last.
    taps: Vec<Tap>,
    /// The ID of the pending certificate request, and the sender of its result to the proxy. The control plane
    /// allows one request at a time. `None` if no request is pending.
    pending_certificate: Option<(u64, CertificateReply)>,
    /// The ID of the last certificate request.
    last_certificate_id: u64,
    /// The schedule of traffic reports; `None` if the control plane requests none.
    report_schedule: Option<ReportSchedule>,
    /// The open query; the control plane sends one at a time.
    query_in_progress: Option<Box<QueryInProgress>>,
}

/// The schedule of traffic reports.
#[derive(Debug, Clone, Copy)]
struct ReportSchedule {
    /// The time of the next report.
    next_at: Instant,
    interval: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<'_, S> {
    /// Runs the event loop until the stream ends.
    async fn run<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut FrameReader<R>,
        hello: Hello,
        requests: &mut mpsc::Receiver<ProxyRequest>,
    ) -> Result<std::convert::Infallible, DiscoveryError> {
        self.send_hello(hello)?;
        loop {
            let has_room = self.writer.queued_bytes() < MAX_OUTBOX_BYTES;
            tokio::select! {
                frame = reader.next() => {
                    let frame = frame?.ok_or(DiscoveryError::Closed)?;
                    self.keepalive.record_received(Instant::now());
                    self.handle_message(proto::ToProxy::decode(frame).map_err(malformed_error)?)?;
                }
                write_result = self.writer.flush(), if !self.writer.is_idle() => write_result?,
                request = requests.recv(), if has_room => {
                    self.handle_request(request.ok_or(DiscoveryError::Stopped)?)?;
                }
                () = sleep_until(self.keepalive.ping_at()), if self.writer.is_idle() => {
                    self.send_message(from_proxy::Message::Ping(proto::Ping::default()))?;
                }
                () = wait_for_report(self.report_schedule), if has_room => self.send_report()?,
                part = next_part(&mut self.query_in_progress), if has_room => {
                    self.send_message(from_proxy::Message::QueryAnswer(part))?;
                }
                () = sleep_until(self.keepalive.timeout_at()) => return Err(DiscoveryError::Timeout),
            }
        }
    }

    /// Sends the first message. If it is too large with the held versions, the subscriber forgets these
    /// versions, and the control plane sends all resources again. The proxy serves from its current
    /// configuration until they have arrived.
    fn send_hello(&mut self, mut hello: Hello) -> Result<(), DiscoveryError> {
        let later_services =
            hello.services.split_off(hello.services.len().min(MAX_SERVICES_PER_MESSAGE));
        let wire = hello_to_wire(&hello, &self.subscriber.held_versions());
        let message = from_proxy::Message::Hello(wire);
        if matches!(self.queue_message(message), Err(FrameError::Oversize { .. })) {
            *self.subscriber = Subscriber::new();
            self.send_message(from_proxy::Message::Hello(hello_to_wire(&hello, &[])))?;
        }
        self.handle_request(ProxyRequest::Subscribe(later_services))
    }

    /// Handles a message of the control plane.
    fn handle_message(&mut self, message: proto::ToProxy) -> Result<(), DiscoveryError> {
        match message.message {
            None => Err(DiscoveryError::Malformed("a message without content".into())),
            // A ping also carries the report interval and all open taps.
            Some(to_proxy::Message::Ping(wire)) => {
                self.set_report_interval(wire.report_interval_ms);
                self.update_taps(wire.taps);
                Ok(())
            }
            Some(to_proxy::Message::Goodbye(wire)) => Err(DiscoveryError::Goodbye(wire.reason)),
            Some(to_proxy::Message::Certificate(wire)) => self.handle_certificate(wire),
            Some(to_proxy::Message::Query(wire)) => {
                let (query_in_progress, query) = QueryInProgress::parse_query(wire);
                self.query_in_progress = Some(Box::new(query_in_progress));
                self.handler.handle_query(query);
                Ok(())
            }
            Some(to_proxy::Message::Delta(wire)) => {
                let delta = delta_from_wire(wire)?;
                let nonce = delta.nonce;
                match self.apply_delta(delta) {
                    Ok(()) => self.send_message(from_proxy::Message::Ack(proto::Ack { nonce })),
                    Err(rejections) => self
                        .send_message(from_proxy::Message::Nack(nack_to_wire(nonce, &rejections))),
                }
            }
        }
    }

    /// Applies a delta, or leaves the configuration unchanged.
    fn apply_delta(&mut self, delta: Delta) -> Result<(), Vec<ResourceRejection>> {
        let whole = delta.whole;
        let staged_delta = self.subscriber.stage(delta)?;
        if whole {
            self.handler.apply_update(staged_delta.update().clone())?;
        }
        self.subscriber.commit(staged_delta);
        Ok(())
    }

    /// Stores the report interval that the control plane requests; 0 keeps the current one.
    fn set_report_interval(&mut self, report_interval_ms: u32) {
        let interval = Duration::from_millis(report_interval_ms.into()).max(MIN_REPORT_INTERVAL);
        let is_unchanged =
            self.report_schedule.is_some_and(|schedule| schedule.interval == interval);
        if report_interval_ms > 0 && !is_unchanged {
            let next_at = Instant::now() + interval;
            self.report_schedule = Some(ReportSchedule { next_at, interval });
        }
    }

    /// Sends the traffic since the last report, and schedules the next report.
    fn send_report(&mut self) -> Result<(), DiscoveryError> {
        if let Some(schedule) = &mut self.report_schedule {
            schedule.next_at = Instant::now() + schedule.interval;
        }
        match self.handler.take_traffic() {
            Some(traffic) => {
                self.send_message(from_proxy::Message::Traffic(traffic_to_wire(&traffic)))
            }
            None => Ok(()),
        }
    }

    fn update_taps(&mut self, wire: Vec<proto::Tap>) {
        let taps = taps_from_wire(wire);
        if taps != self.taps {
            self.handler.set_taps(&taps);
            self.taps = taps;
        }
    }

    fn handle_certificate(&mut self, wire: proto::Certificate) -> Result<(), DiscoveryError> {
        let result = match wire.outcome {
            None => {
                return Err(DiscoveryError::Malformed("a certificate without content".into()));
            }
            Some(proto::certificate::Outcome::Issued(issued)) => Ok(issued_from_wire(issued)),
            Some(proto::certificate::Outcome::Error(reason)) => Err(reason.into()),
        };
        // A certificate with another ID does not belong to the pending request, and is ignored.
        if let Some((_, reply)) = self.pending_certificate.take_if(|(id, _)| *id == wire.id) {
            // The receiver may be gone.
            reply.send(result).ok();
        }
        Ok(())
    }

    /// Sends the message, or the messages of bounded size, for a request of the proxy.
    fn handle_request(&mut self, request: ProxyRequest) -> Result<(), DiscoveryError> {
        match request {
            ProxyRequest::Subscribe(services) => {
                for chunk in services.chunks(MAX_SERVICES_PER_MESSAGE) {
                    self.send_message(from_proxy::Message::Subscribe(services_to_wire(chunk)))?;
                }
                Ok(())
            }
            ProxyRequest::Unsubscribe(services) => {
                for chunk in services.chunks(MAX_SERVICES_PER_MESSAGE) {
                    self.send_message(from_proxy::Message::Unsubscribe(services_to_wire(chunk)))?;
                }
                Ok(())
            }
            ProxyRequest::SubscribeAddresses(addresses) => {
                self.send_message(from_proxy::Message::Subscribe(addresses_to_wire(&addresses)))
            }
            ProxyRequest::UnsubscribeAddresses(addresses) => {
                self.send_message(from_proxy::Message::Unsubscribe(addresses_to_wire(&addresses)))
            }
            ProxyRequest::SubscribeNames(names) => {
                self.send_message(from_proxy::Message::Subscribe(dns_names_to_wire(&names)))
            }
            ProxyRequest::UnsubscribeNames(names) => {
                for chunk in names.chunks(MAX_SERVICES_PER_MESSAGE) {
                    self.send_message(from_proxy::Message::Unsubscribe(dns_names_to_wire(chunk)))?;
                }
                Ok(())
            }
            ProxyRequest::Listeners(listeners, report) => {
                let wire = listeners_to_wire(&listeners, &report);
                self.send_message(from_proxy::Message::Listeners(wire))
            }
            ProxyRequest::Renew { csr, reply } => self.request_certificate(csr, reply),
            ProxyRequest::Tapped { tap, mut records, mut dropped } => {
                let excess_records = records.len().saturating_sub(MAX_RECORDS) as u64;
                dropped = dropped.saturating_add(excess_records);
                records.truncate(MAX_RECORDS);
                let tapped = proto::Tapped { tap, records, dropped };
                self.send_message(from_proxy::Message::Tapped(tapped))
            }
        }
    }

    /// Sends a certificate request. If it cannot be sent, its `reply` receives the reason.
    fn request_certificate(
        &mut self,
        csr: Vec<u8>,
        reply: CertificateReply,
    ) -> Result<(), DiscoveryError> {
        let rejection = if csr.len() > MAX_CSR_BYTES {
            "the certificate signing request is larger than 64 KiB"
        } else if self.pending_certificate.is_some() {
            "another certificate request is pending: wait for its response"
        } else {
            self.last_certificate_id += 1;
            let id = self.last_certificate_id;
            self.pending_certificate = Some((id, reply));
            let request = proto::CertificateRequest { id, csr };
            return self.send_message(from_proxy::Message::Certificate(request));
        };
        reply.send(Err(rejection.into())).ok();
        Ok(())
    }

    /// Queues a message. An error ends the stream.
    fn send_message(&mut self, message: from_proxy::Message) -> Result<(), DiscoveryError> {
        Ok(self.queue_message(message)?)
    }

    /// Queues a message, or returns an error that tells an oversized message from a broken stream.
    fn queue_message(&mut self, message: from_proxy::Message) -> Result<(), FrameError> {
        self.keepalive.record_sent(Instant::now());
        self.writer.push(&proto::FromProxy { message: Some(message) }, MAX_REQUEST_BYTES)
    }
}

/// Waits until the next traffic report is due; forever if the control plane requests none.
async fn wait_for_report(report_schedule: Option<ReportSchedule>) {
    match report_schedule {
        Some(schedule) => sleep_until(schedule.next_at).await,
        None => std::future::pending().await,
    }
}

fn malformed_error(error: prost::DecodeError) -> DiscoveryError {
    DiscoveryError::Malformed(error.to_string())
}

/// The maximum number of services in one message: with the longest names the message stays within its size
/// limit.
pub(crate) const MAX_SERVICES_PER_MESSAGE: usize = 1024;

/// The maximum size of a certificate signing request; a proxy's requests have about 400 bytes.
pub(crate) const MAX_CSR_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests;
