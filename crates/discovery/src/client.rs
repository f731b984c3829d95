//! The proxy's end of a discovery stream: hello, deltas, requests and keepalive.

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
    addresses_to_wire, delta_from_wire, hello_to_wire, issued_from_wire, listeners_to_wire,
    looked_up_to_wire, nack_to_wire, services_to_wire,
};
use crate::frame::{
    FrameError, FrameReader, FrameWriter, MESSAGE_BYTES_MAX, OUTBOX_BYTES_MAX, REQUEST_BYTES_MAX,
};
use crate::keepalive::Keepalive;
use crate::message::{
    CertificateReply, ConfigUpdate, Delta, Hello, InboundListener, ResourceRejection,
};
use crate::proto::{self, from_proxy, to_proxy};
use crate::query::{Query, QueryInProgress, next_part};
use crate::resource::InvalidField;
use crate::subscriber::Subscriber;
use crate::tap::{RECORDS_MAX, taps_from_wire};
use crate::traffic::{REPORT_EVERY_MIN, TrafficReport, traffic_to_wire};

/// Follows the control plane over an authenticated stream until the stream ends, and returns the reason.
///
/// The [`UpdateHandler`] applies configurations, opens taps and reports traffic. The future may be dropped at any
/// time.
pub async fn follow_control_plane<S>(
    stream: S,
    hello: Hello,
    subscriber: &mut Subscriber,
    requests: &mut mpsc::Receiver<ProxyRequest>,
    follower: &mut dyn UpdateHandler,
) -> DiscoveryError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, MESSAGE_BYTES_MAX);
    let mut session = Session {
        writer: FrameWriter::new(write),
        keepalive: Keepalive::new(Instant::now()),
        subscriber,
        follower,
        taps: Vec::new(),
        renewal: None,
        renewals_seen: 0,
        reports: None,
        answering: None,
    };
    match session.run(&mut reader, hello, requests).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// A consumer of a discovery stream. Only `apply` is required.
pub trait UpdateHandler {
    /// Applies an update as the proxy's configuration. `Ok` only after the swap: then the delta is
    /// acknowledged. `Err` rejects it, and the subscriber keeps its configuration. First called when the proxy
    /// is in sync with the control plane, even without differences.
    ///
    /// # Errors
    /// The resources that cannot be accepted, with reasons.
    fn apply_update(&mut self, update: ConfigUpdate) -> Result<(), Vec<ResourceRejection>>;

    /// The traffic since the last call, if any. Called at the interval that the control plane requests; never
    /// by a control plane that requests none.
    fn take_traffic(&mut self) -> Option<TrafficReport> {
        None
    }
    /// Replaces the set of open taps.
    fn set_taps(&mut self, _taps: &[Tap]) {}

    /// Handles a query of an operator. Dropping the query answers it with an error.
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
        /// The receiver of the response; dropped if the stream ends first.
        answer: CertificateReply,
    },
}

/// The reason that a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The stream broke.
    #[error("the stream to the control plane broke")]
    Io(#[from] io::Error),
    /// The control plane closed the stream without a message.
    #[error("the control plane closed the stream")]
    Closed,
    /// No message arrived within the maximum silence.
    #[error("the control plane was silent for too long")]
    Silent,
    /// The control plane sent an invalid message.
    #[error("the control plane sent an invalid message: {0}")]
    Malformed(String),
    /// The control plane ended the stream with a reason.
    #[error("the control plane ended the stream: {0}")]
    Goodbye(String),
    /// All senders of requests are gone: the proxy no longer needs the stream.
    #[error("the proxy closed the stream")]
    Stopped,
}

impl From<FrameError> for DiscoveryError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => Self::Io(error),
            FrameError::Cut => Self::Io(io::ErrorKind::UnexpectedEof.into()),
            FrameError::Oversize { .. } => Self::Malformed(error.to_string()),
        }
    }
}

impl From<InvalidField> for DiscoveryError {
    fn from(invalid: InvalidField) -> Self {
        Self::Malformed(format!("{}: {}", invalid.field, invalid.reason))
    }
}

/// The state of an open stream.
struct Session<'a, S> {
    writer: FrameWriter<WriteHalf<S>>,
    keepalive: Keepalive,
    subscriber: &'a mut Subscriber,
    follower: &'a mut dyn UpdateHandler,
    /// The last received taps.
    taps: Vec<Tap>,
    /// The pending certificate request; the control plane allows one.
    renewal: Option<(u64, CertificateReply)>,
    renewals_seen: u64,
    /// The time of the next traffic report, and the interval.
    reports: Option<(Instant, Duration)>,
    /// The query being answered; the control plane sends one at a time.
    answering: Option<Box<QueryInProgress>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<'_, S> {
    /// The event loop; all decisions are made in other functions.
    async fn run<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut FrameReader<R>,
        hello: Hello,
        requests: &mut mpsc::Receiver<ProxyRequest>,
    ) -> Result<std::convert::Infallible, DiscoveryError> {
        self.send_hello(hello)?;
        loop {
            let room = self.writer.queued_bytes() < OUTBOX_BYTES_MAX;
            tokio::select! {
                frame = reader.next() => {
                    let frame = frame?.ok_or(DiscoveryError::Closed)?;
                    self.keepalive.record_received(Instant::now());
                    self.handle_message(proto::ToProxy::decode(frame).map_err(malformed_error)?)?;
                }
                written = self.writer.advance(), if !self.writer.is_idle() => written?,
                request = requests.recv(), if room => {
                    self.handle_request(request.ok_or(DiscoveryError::Stopped)?)?;
                }
                () = sleep_until(self.keepalive.ping_at()), if self.writer.is_idle() => {
                    self.send_message(from_proxy::Message::Ping(proto::Ping::default()))?;
                }
                () = wait_for_report(self.reports), if room => self.send_report()?,
                part = next_part(&mut self.answering), if room => {
                    self.send_message(from_proxy::Message::QueryAnswer(part))?;
                }
                () = sleep_until(self.keepalive.silent_at()) => return Err(DiscoveryError::Silent),
            }
        }
    }

    /// Sends the first message. If the list of held resources is too large, they are forgotten and sent again;
    /// the proxy serves from its current configuration until then.
    fn send_hello(&mut self, mut hello: Hello) -> Result<(), DiscoveryError> {
        let late = hello.services.split_off(hello.services.len().min(SERVICES_PER_MESSAGE_MAX));
        let wire = hello_to_wire(&hello, &self.subscriber.held_versions());
        let message = from_proxy::Message::Hello(wire);
        if matches!(self.push(message), Err(FrameError::Oversize { .. })) {
            *self.subscriber = Subscriber::new();
            self.send_message(from_proxy::Message::Hello(hello_to_wire(&hello, &[])))?;
        }
        self.handle_request(ProxyRequest::Subscribe(late))
    }

    fn handle_message(&mut self, message: proto::ToProxy) -> Result<(), DiscoveryError> {
        match message.message {
            None => Err(DiscoveryError::Malformed("a message without content".into())),
            Some(to_proxy::Message::Ping(wire)) => {
                self.set_report_interval(wire.report_interval_ms);
                self.update_taps(wire.taps);
                Ok(())
            }
            Some(to_proxy::Message::Goodbye(wire)) => Err(DiscoveryError::Goodbye(wire.reason)),
            Some(to_proxy::Message::Certificate(wire)) => self.handle_certificate(wire),
            Some(to_proxy::Message::Query(wire)) => {
                let (answering, query) = QueryInProgress::begin_query(wire);
                self.answering = Some(Box::new(answering));
                self.follower.handle_query(query);
                Ok(())
            }
            Some(to_proxy::Message::Delta(wire)) => {
                let delta = delta_from_wire(wire)?;
                let nonce = delta.nonce;
                match self.apply_delta(delta) {
                    Ok(()) => self.send_message(from_proxy::Message::Ack(proto::Ack { nonce })),
                    Err(refusals) => {
                        self.send_message(from_proxy::Message::Nack(nack_to_wire(nonce, &refusals)))
                    }
                }
            }
        }
    }

    /// Applies a delta, or leaves the configuration unchanged.
    fn apply_delta(&mut self, delta: Delta) -> Result<(), Vec<ResourceRejection>> {
        let whole = delta.whole;
        let staged = self.subscriber.stage(delta)?;
        if whole {
            self.follower.apply_update(staged.update().clone())?;
        }
        self.subscriber.commit(staged);
        Ok(())
    }

    /// Stores the report interval that the control plane requests, if any.
    fn set_report_interval(&mut self, report_interval_ms: u32) {
        let every = Duration::from_millis(report_interval_ms.into()).max(REPORT_EVERY_MIN);
        let known = self.reports.is_some_and(|(_, known)| known == every);
        if report_interval_ms > 0 && !known {
            self.reports = Some((Instant::now() + every, every));
        }
    }

    fn send_report(&mut self) -> Result<(), DiscoveryError> {
        if let Some((at, every)) = &mut self.reports {
            *at = Instant::now() + *every;
        }
        match self.follower.take_traffic() {
            Some(traffic) => {
                self.send_message(from_proxy::Message::Traffic(traffic_to_wire(&traffic)))
            }
            None => Ok(()),
        }
    }

    fn update_taps(&mut self, wire: Vec<proto::Tap>) {
        let taps = taps_from_wire(wire);
        if taps != self.taps {
            self.follower.set_taps(&taps);
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
        if let Some((_, answer)) = self.renewal.take_if(|(id, _)| *id == wire.id) {
            // The receiver may be gone.
            answer.send(result).ok();
        }
        Ok(())
    }

    fn handle_request(&mut self, request: ProxyRequest) -> Result<(), DiscoveryError> {
        match request {
            ProxyRequest::Subscribe(services) => {
                for part in services.chunks(SERVICES_PER_MESSAGE_MAX) {
                    self.send_message(from_proxy::Message::Subscribe(services_to_wire(part)))?;
                }
                Ok(())
            }
            ProxyRequest::Unsubscribe(services) => {
                for part in services.chunks(SERVICES_PER_MESSAGE_MAX) {
                    self.send_message(from_proxy::Message::Unsubscribe(services_to_wire(part)))?;
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
                self.send_message(from_proxy::Message::Subscribe(looked_up_to_wire(&names)))
            }
            ProxyRequest::UnsubscribeNames(names) => {
                for part in names.chunks(SERVICES_PER_MESSAGE_MAX) {
                    self.send_message(from_proxy::Message::Unsubscribe(looked_up_to_wire(part)))?;
                }
                Ok(())
            }
            ProxyRequest::Listeners(listeners, report) => {
                let wire = listeners_to_wire(&listeners, &report);
                self.send_message(from_proxy::Message::Listeners(wire))
            }
            ProxyRequest::Renew { csr, answer } => self.request_certificate(csr, answer),
            ProxyRequest::Tapped { tap, mut records, mut dropped } => {
                let too_many = records.len().saturating_sub(RECORDS_MAX) as u64;
                dropped = dropped.saturating_add(too_many);
                records.truncate(RECORDS_MAX);
                let tapped = proto::Tapped { tap, records, dropped };
                self.send_message(from_proxy::Message::Tapped(tapped))
            }
        }
    }

    fn request_certificate(
        &mut self,
        csr: Vec<u8>,
        answer: CertificateReply,
    ) -> Result<(), DiscoveryError> {
        let refusal = if csr.len() > CSR_BYTES_MAX {
            "the certificate signing request is larger than 64 KiB"
        } else if self.renewal.is_some() {
            "another certificate request is pending: wait for its response"
        } else {
            self.renewals_seen += 1;
            let id = self.renewals_seen;
            self.renewal = Some((id, answer));
            let request = proto::CertificateRequest { id, csr };
            return self.send_message(from_proxy::Message::Certificate(request));
        };
        answer.send(Err(refusal.into())).ok();
        Ok(())
    }

    fn send_message(&mut self, message: from_proxy::Message) -> Result<(), DiscoveryError> {
        Ok(self.push(message)?)
    }

    fn push(&mut self, message: from_proxy::Message) -> Result<(), FrameError> {
        self.keepalive.record_sent(Instant::now());
        self.writer.push(&proto::FromProxy { message: Some(message) }, REQUEST_BYTES_MAX)
    }
}

/// Waits until the next report is due; forever if there is none.
async fn wait_for_report(reports: Option<(Instant, Duration)>) {
    match reports {
        Some((at, _)) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn malformed_error(error: prost::DecodeError) -> DiscoveryError {
    DiscoveryError::Malformed(error.to_string())
}

/// Keeps a message of the longest names within its limit.
pub(crate) const SERVICES_PER_MESSAGE_MAX: usize = 1024;

/// The maximum size of a certificate signing request; those of proxies have 400 bytes.
pub(crate) const CSR_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests;
