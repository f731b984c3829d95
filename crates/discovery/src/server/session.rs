//! Runs a connection after its first message: the event loop, and the handlers of the proxy's messages. The
//! state task, the task that owns the control plane's state, receives the results as events.

use std::sync::Arc;
use std::time::Duration;

use leno_model::WorkloadName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::pending::{AllowedEvents, PendingEvents};
use super::{ServeError, read_message};
use crate::client::MAX_CSR_BYTES;
use crate::condition::report_from_wire;
use crate::envelope::{
    addresses_from_wire, delta_to_wire, issued_to_wire, listeners_from_wire, rejections_from_wire,
    services_from_wire,
};
use crate::event::StateTaskResponse;
use crate::frame::{FrameReader, FrameWriter, MAX_MESSAGE_BYTES, MAX_OUTBOX_BYTES};
use crate::keepalive::Keepalive;
use crate::key::ChangeId;
use crate::message::{IssuanceFailure, IssuedCertificate};
use crate::proto::{self, from_proxy, to_proxy};
use crate::publisher::Publisher;
use crate::query::StreamQueries;
use crate::queue::EventSender;
use crate::subscriptions::SubscriptionLists;
use crate::tap::{OpenTap, TapRecords, records_from_wire, tap_to_wire};
use crate::traffic::traffic_from_wire;
use crate::{MAX_ADDRESSES, MAX_NAMES, MAX_SUBSCRIPTIONS};

/// The control plane's state of one connection, after the proxy's first message.
pub(super) struct Session<'a, W> {
    writer: &'a mut FrameWriter<W>,
    publisher: Publisher,
    /// The events that the state task has not taken yet.
    pending_events: Box<PendingEvents>,
    event_sender: &'a EventSender,
    keepalive: Keepalive,
    /// The deadline for the acknowledgement of the delta in flight; `None` if none is in flight.
    acknowledgement_deadline: Option<Instant>,
    /// The certificate request that the state task has not answered; `None` if no request is pending.
    pending_certificate: Option<PendingCertificate>,
    /// The earliest time to forward the next certificate request.
    next_certificate_at: Instant,
    /// The rate limit for traffic reports.
    traffic_limit: MessageRateLimit,
    /// The rate limit for messages with tapped requests.
    tap_limit: MessageRateLimit,
    /// The number of series in traffic reports that were dropped. The next report includes it as overflow.
    dropped_series: u32,
    /// The last reported acknowledgement: the change, and the number of rejected resources.
    last_acknowledgement: Option<(ChangeId, usize)>,
    /// The bytes of deltas sent since the last reported acknowledgement.
    delta_bytes: u64,
    /// The workload of the proxy.
    workload: WorkloadName,
    /// The open taps of operators.
    open_taps: watch::Receiver<Arc<Vec<OpenTap>>>,
    /// Queries of operators to this proxy.
    queries: Box<StreamQueries>,
}

/// A certificate request of the proxy that was forwarded to the state task.
struct PendingCertificate {
    id: u64,
    receiver: oneshot::Receiver<Result<IssuedCertificate, IssuanceFailure>>,
}

/// The reason why a connection ended.
pub(super) enum ConnectionEnd {
    /// The proxy closed it.
    Closed,
    /// The state task ended it.
    Goodbye(String),
    /// An error occurred.
    Failed(ServeError),
}

impl ConnectionEnd {
    /// Notifies the proxy, if it is still reachable.
    pub(super) async fn notify_proxy<W>(self, writer: FrameWriter<W>) -> Result<(), ServeError>
    where
        W: AsyncWrite + Unpin,
    {
        match self {
            Self::Closed => Ok(()),
            Self::Goodbye(reason) => {
                send_goodbye(writer, &reason).await;
                Ok(())
            }
            Self::Failed(error @ ServeError::Io(_)) => Err(error),
            Self::Failed(error) => {
                send_goodbye(writer, &error.to_string()).await;
                Err(error)
            }
        }
    }
}

/// Sends a goodbye message within a bounded time; its delivery is not ensured.
pub(super) async fn send_goodbye<W: AsyncWrite + Unpin>(mut writer: FrameWriter<W>, reason: &str) {
    let goodbye = to_proxy::Message::Goodbye(proto::Goodbye { reason: reason.to_owned() });
    let message = proto::ToProxy { message: Some(goodbye) };
    if writer.push(&message, MAX_MESSAGE_BYTES).is_ok() {
        timeout(SHUTDOWN_TIMEOUT, writer.finish()).await.ok();
    }
}

impl<'a, W: AsyncWrite + Unpin> Session<'a, W> {
    pub(super) fn new(
        writer: &'a mut FrameWriter<W>,
        publisher: Publisher,
        pending_events: Box<PendingEvents>,
        workload: WorkloadName,
        event_sender: &'a EventSender,
        open_taps: watch::Receiver<Arc<Vec<OpenTap>>>,
        queries: Box<StreamQueries>,
    ) -> Self {
        let now = Instant::now();
        Self {
            writer,
            publisher,
            pending_events,
            event_sender,
            keepalive: Keepalive::new(now),
            acknowledgement_deadline: None,
            pending_certificate: None,
            next_certificate_at: now,
            traffic_limit: MessageRateLimit {
                next_at: now,
                interval: MIN_TRAFFIC_INTERVAL,
                burst: TRAFFIC_BURST,
            },
            tap_limit: MessageRateLimit {
                next_at: now,
                interval: MIN_TAPPED_INTERVAL,
                burst: TAPPED_BURST,
            },
            dropped_series: 0,
            last_acknowledgement: None,
            delta_bytes: 0,
            workload,
            open_taps,
            queries,
        }
    }

    /// Runs the event loop until the connection ends.
    pub(super) async fn run<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut FrameReader<R>,
        mut responses: watch::Receiver<StateTaskResponse>,
    ) -> Result<ConnectionEnd, ServeError> {
        if !self.open_taps.borrow_and_update().is_empty() {
            self.send_ping(0)?;
        }
        let event_sender = self.event_sender;
        loop {
            let now = Instant::now();
            let (read_again_at, work_again_at) =
                (event_sender.budget().next_read_at(now), event_sender.budget().next_work_at(now));
            let allowed_events =
                if work_again_at.is_none() { AllowedEvents::All } else { AllowedEvents::Cheap };
            // Nothing is read from a proxy that does not read its own messages or has exceeded its budget.
            let may_read = read_again_at.is_none() && self.writer.queued_bytes() < MAX_OUTBOX_BYTES;
            tokio::select! {
                frame = read_message(reader, event_sender.budget()), if may_read => {
                    let Some(message) = frame? else { return Ok(ConnectionEnd::Closed) };
                    self.keepalive.record_received(Instant::now());
                    self.handle_message(message)?;
                }
                slot_result = event_sender.reserve_slot(), if self.pending_events.has_next_event(allowed_events) => {
                    let slot = slot_result.map_err(|_| ServeError::Stopped)?;
                    if let Some(event) = self.pending_events.next_event(allowed_events) {
                        slot.send_event(event);
                    }
                }
                () = wait_until(read_again_at) => {
                    if event_sender.budget().is_abused(Instant::now()) {
                        return Err(ServeError::Overload);
                    }
                }
                // All events are allowed again in the next iteration.
                () = wait_until(work_again_at),
                    if self.pending_events.has_next_event(AllowedEvents::All) => {}
                change_result = responses.changed() => {
                    let response = responses.borrow_and_update().clone();
                    match response {
                        StateTaskResponse::Goodbye(reason) => return Ok(ConnectionEnd::Goodbye(reason)),
                        // The state task dropped the sender without a goodbye.
                        _ if change_result.is_err() => {
                            return Ok(ConnectionEnd::Goodbye(SESSION_ENDED_REASON.to_owned()));
                        }
                        StateTaskResponse::Pending => {}
                        StateTaskResponse::Config(update) => self.publisher.set_update(update),
                        StateTaskResponse::PartialConfig(update, unknown_endpoints) => {
                            self.publisher.set_partial_update(update, unknown_endpoints);
                        }
                    }
                }
                write_result = self.writer.flush(), if !self.writer.is_idle() => write_result?,
                certificate_result = wait_for_certificate(&mut self.pending_certificate) => {
                    self.send_certificate(certificate_result)?;
                }
                () = sleep_until(self.keepalive.ping_at()), if self.writer.is_idle() => self.send_ping(0)?,
                () = wait_for_taps(&mut self.open_taps), if may_read => self.send_ping(0)?,
                query = self.queries.next(), if may_read => {
                    self.send_message(to_proxy::Message::Query(query))?;
                }
                () = sleep_until(self.keepalive.timeout_at()) => return Err(ServeError::Timeout),
                () = wait_until(self.acknowledgement_deadline) => return Err(ServeError::Unacknowledged),
            }
            self.send_next_delta()?;
        }
    }

    /// Sends the events of messages that arrived before the stream ended.
    pub(super) async fn finish(mut self) {
        while let Some(event) = self.pending_events.next_event_after_end() {
            if self.event_sender.send_event(event).await.is_err() {
                return;
            }
        }
    }

    /// Requests traffic reports at this interval. A proxy of a release without support interprets the
    /// message as a keepalive.
    pub(super) fn request_reports(&mut self, interval: Duration) -> Result<(), ServeError> {
        let report_interval_ms = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        self.send_ping(report_interval_ms)
    }

    /// Handles a message of the proxy. An error ends the connection.
    pub(super) fn handle_message(&mut self, message: proto::FromProxy) -> Result<(), ServeError> {
        match message.message {
            None => return Err(ServeError::Malformed("a message without content".into())),
            Some(from_proxy::Message::Hello(_)) => {
                return Err(ServeError::Malformed("a second Hello".into()));
            }
            // Any message counts as a sign of life; a ping has no other purpose.
            Some(from_proxy::Message::Ping(_)) => {}
            Some(from_proxy::Message::QueryAnswer(wire)) => self.receive_query_part(wire),
            Some(from_proxy::Message::Tapped(wire)) => self.forward_tapped(wire, Instant::now()),
            Some(from_proxy::Message::Ack(ack)) => self.handle_ack(ack.nonce)?,
            Some(from_proxy::Message::Nack(nack)) => {
                let rejections = rejections_from_wire(nack.rejections)?;
                let rejected_change = self.publisher.reject_delta(nack.nonce, &rejections);
                rejected_change.ok_or_else(|| unknown_nonce_error(nack.nonce))?;
                self.acknowledgement_deadline = None;
                self.pending_events.add_rejections(rejections);
            }
            Some(from_proxy::Message::Subscribe(wire)) => {
                self.pending_events.subscriptions.add(subscriptions_from_wire(wire)?);
            }
            Some(from_proxy::Message::Unsubscribe(wire)) => {
                self.pending_events.subscriptions.remove(&subscriptions_from_wire(wire)?);
            }
            Some(from_proxy::Message::Listeners(wire)) => {
                self.pending_events.update_listeners(&listeners_from_wire(&wire.listeners)?);
                let report = report_from_wire(wire.conditions, wire.named_addresses)?;
                self.pending_events.update_proxy_report(report);
            }
            Some(from_proxy::Message::Traffic(wire)) => {
                self.store_traffic_report(wire, Instant::now())
            }
            Some(from_proxy::Message::Certificate(wire)) => {
                self.forward_certificate_request(wire)?
            }
        }
        Ok(())
    }

    /// Stores a traffic report for the state task. A report that arrives too soon, or while another one is
    /// pending, is dropped; the next report includes the number of its series as overflow.
    fn store_traffic_report(&mut self, wire: proto::Traffic, now: Instant) {
        let mut traffic = Box::new(traffic_from_wire(wire));
        traffic.overflowed = traffic.overflowed.saturating_add(self.dropped_series);
        self.dropped_series = 0;
        let dropped_report = match self.traffic_limit.take_message(now) {
            true => self.pending_events.add_traffic_report(traffic),
            false => Some(traffic),
        };
        if let Some(traffic) = dropped_report {
            let series_count = u32::try_from(traffic.series.len()).unwrap_or(u32::MAX);
            self.dropped_series = traffic.overflowed.saturating_add(series_count);
        }
    }

    /// Sends a keepalive with all open taps, and with the report interval unless that is 0.
    fn send_ping(&mut self, report_interval_ms: u32) -> Result<(), ServeError> {
        let taps =
            self.open_taps.borrow().iter().map(|open_tap| tap_to_wire(&open_tap.tap)).collect();
        self.send_message(to_proxy::Message::Ping(proto::Ping { report_interval_ms, taps }))
    }

    /// Forwards tapped requests to their tap, if the tap is still open. Requests over the rate limit are only
    /// counted.
    fn forward_tapped(&mut self, wire: proto::Tapped, now: Instant) {
        let is_within_limit = self.tap_limit.take_message(now);
        let proto::Tapped { tap, records, dropped } = wire;
        let open_taps = self.open_taps.borrow();
        let Some(open_tap) = open_taps.iter().find(|open_tap| open_tap.tap.id == tap) else {
            return;
        };
        if !is_within_limit {
            return open_tap.record_lost(dropped.saturating_add(records.len() as u64));
        }
        let (records, excluded) = records_from_wire(records);
        let dropped = dropped.saturating_add(excluded);
        open_tap.forward_records(TapRecords { workload: self.workload.clone(), records, dropped });
    }

    /// Handles a part of a response to a query. The cost of reading a requested part is refunded to the proxy.
    fn receive_query_part(&mut self, wire: proto::QueryAnswer) {
        let units = reading_units(wire.part.len());
        if self.queries.receive_part(wire) {
            self.event_sender.budget().refund_reading(units, Instant::now());
        }
    }

    fn handle_ack(&mut self, nonce: u64) -> Result<(), ServeError> {
        self.acknowledgement_deadline = None;
        self.publisher.acknowledge(nonce).map(drop).ok_or_else(|| unknown_nonce_error(nonce))
    }

    /// Forwards a certificate request to the state task. One request may be pending at a time, and their rate
    /// is limited, because each request is costly.
    fn forward_certificate_request(
        &mut self,
        wire: proto::CertificateRequest,
    ) -> Result<(), ServeError> {
        if self.pending_certificate.is_some() {
            return Err(ServeError::Malformed(SECOND_CERTIFICATE_REQUEST_ERROR.to_owned()));
        }
        let now = Instant::now();
        let rejection = if wire.csr.len() > MAX_CSR_BYTES {
            "the request is larger than 64 KiB"
        } else if now < self.next_certificate_at {
            "certificate requests are too frequent: try again later"
        } else {
            let (reply, receiver) = oneshot::channel();
            self.pending_certificate = Some(PendingCertificate { id: wire.id, receiver });
            self.next_certificate_at = now + MIN_CERTIFICATE_INTERVAL;
            self.pending_events.add_certificate_request(wire.csr, reply);
            return Ok(());
        };
        let outcome = proto::certificate::Outcome::Error(rejection.to_owned());
        let certificate = proto::Certificate { id: wire.id, outcome: Some(outcome) };
        self.send_message(to_proxy::Message::Certificate(certificate))
    }

    /// Sends the result of a certificate request to the proxy.
    fn send_certificate(
        &mut self,
        certificate_result: CertificateResult,
    ) -> Result<(), ServeError> {
        let outcome = match certificate_result.issuance {
            Ok(issued) => proto::certificate::Outcome::Issued(issued_to_wire(issued)),
            Err(IssuanceFailure { reason, .. }) => proto::certificate::Outcome::Error(reason),
        };
        let certificate = proto::Certificate { id: certificate_result.id, outcome: Some(outcome) };
        self.send_message(to_proxy::Message::Certificate(certificate))
    }

    /// Sends the next delta. Then records resources that are too large to send, and the newest change that the
    /// proxy has applied, as events for the state task.
    fn send_next_delta(&mut self) -> Result<(), ServeError> {
        if let Some(delta) = self.publisher.next_delta() {
            self.acknowledgement_deadline = Some(Instant::now() + ACKNOWLEDGE_TIMEOUT);
            let queued_before = self.writer.queued_bytes();
            self.send_message(to_proxy::Message::Delta(delta_to_wire(delta)))?;
            self.delta_bytes += self.writer.queued_bytes().saturating_sub(queued_before) as u64;
        }
        let oversized = self.publisher.take_oversized();
        if !oversized.is_empty() {
            self.pending_events.add_rejections(oversized);
        }
        let Some(change) = self.publisher.applied_change() else {
            return Ok(());
        };
        let rejected_count = self.publisher.rejected_resources().count();
        if self.last_acknowledgement.replace((change, rejected_count))
            != Some((change, rejected_count))
        {
            self.pending_events.add_applied(
                change,
                rejected_count,
                std::mem::take(&mut self.delta_bytes),
            );
        }
        Ok(())
    }

    fn send_message(&mut self, message: to_proxy::Message) -> Result<(), ServeError> {
        self.keepalive.record_sent(Instant::now());
        let message = proto::ToProxy { message: Some(message) };
        Ok(self.writer.push(&message, MAX_MESSAGE_BYTES)?)
    }
}

/// Parses the subscriptions of one message. Fails if it contains more entries than a proxy may subscribe to.
fn subscriptions_from_wire(wire: proto::Services) -> Result<SubscriptionLists, ServeError> {
    let proto::Services { names, addresses, dns_names } = wire;
    let is_within_limits = names.len() <= MAX_SUBSCRIPTIONS
        && addresses.len() <= MAX_ADDRESSES
        && dns_names.len() <= MAX_NAMES;
    if !is_within_limits {
        return Err(ServeError::Malformed(TOO_MANY_SUBSCRIPTIONS_ERROR.to_owned()));
    }
    Ok(SubscriptionLists {
        services: services_from_wire(&names)?,
        addresses: addresses_from_wire(addresses)?,
        names: services_from_wire(&dns_names)?,
    })
}

/// Returns the cost of reading a message of any kind: its bytes, and a fixed part that limits the number of
/// short messages.
pub(super) fn reading_units(bytes: usize) -> u64 {
    MESSAGE_UNITS.saturating_add((bytes / BYTES_PER_UNIT) as u64)
}

/// A rate limit for messages of one kind, with a burst for a proxy that was delayed. Messages over the limit
/// are dropped.
struct MessageRateLimit {
    /// The earliest time of the next message.
    next_at: Instant,
    /// The average minimum time between two messages.
    interval: Duration,
    /// The maximum unused time that allows a burst: messages for this time may follow each other at once.
    burst: Duration,
}

impl MessageRateLimit {
    /// Counts one message. Returns false if it is over the limit.
    fn take_message(&mut self, now: Instant) -> bool {
        let is_permitted = self.next_at <= now;
        if is_permitted {
            // Shortly after the start of the machine, no earlier time may exist.
            let burst_start = now.checked_sub(self.burst).unwrap_or(now);
            self.next_at = self.next_at.max(burst_start) + self.interval;
        }
        is_permitted
    }
}

/// The result of a certificate request.
struct CertificateResult {
    /// The ID of the request.
    id: u64,
    issuance: Result<IssuedCertificate, IssuanceFailure>,
}

/// Waits for the result of the pending certificate request; forever if there is none. Cancel-safe.
async fn wait_for_certificate(
    pending_certificate: &mut Option<PendingCertificate>,
) -> CertificateResult {
    let Some(PendingCertificate { id, receiver }) = pending_certificate else {
        return std::future::pending().await;
    };
    let issuance = receiver.await.unwrap_or_else(|_| Err(ISSUANCE_DROPPED_REASON.into()));
    let certificate_result = CertificateResult { id: *id, issuance };
    *pending_certificate = None;
    certificate_result
}

/// Waits for a new set of taps; forever once the registry of taps is dropped.
async fn wait_for_taps(taps: &mut watch::Receiver<Arc<Vec<OpenTap>>>) {
    if taps.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Waits until a time; forever without one.
async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn unknown_nonce_error(nonce: u64) -> ServeError {
    ServeError::Malformed(format!("a response to delta {nonce}, which is not in flight"))
}

/// The fixed cost of a message: decryption, wake-up and decoding of the shortest message.
const MESSAGE_UNITS: u64 = 16;

/// The bytes that are decrypted and decoded for one unit.
const BYTES_PER_UNIT: usize = 128;

/// The deadline for applying a delta.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The minimum time between two certificate requests of one connection. Certificates live for at least a second
/// and are renewed after half of that; after a failure proxies wait for twice this long.
pub(super) const MIN_CERTIFICATE_INTERVAL: Duration = Duration::from_millis(100);

/// The average minimum time between two traffic reports: half of the minimum that the protocol allows proxies.
const MIN_TRAFFIC_INTERVAL: Duration = Duration::from_millis(500);

/// The burst of traffic reports, as unused time.
const TRAFFIC_BURST: Duration = Duration::from_secs(2);

/// The average minimum time between two messages for taps: a proxy sends one per tenth of a second for each
/// tap, and more only for taps of thousands of requests per second.
const MIN_TAPPED_INTERVAL: Duration = Duration::from_millis(10);

/// The burst of tap messages, as unused time.
const TAPPED_BURST: Duration = Duration::from_secs(1);

/// The maximum time for sending the last message.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The error for a proxy that has two pending certificate requests.
const SECOND_CERTIFICATE_REQUEST_ERROR: &str = "a certificate request while another one is pending";

/// The error for a message with too many subscriptions.
const TOO_MANY_SUBSCRIPTIONS_ERROR: &str =
    "a message requests more resources than a proxy may subscribe to";

/// The goodbye when the state task drops the connection without a reason.
const SESSION_ENDED_REASON: &str = "the control plane has ended the session of this workload";

/// The response to a certificate request that the state task dropped.
const ISSUANCE_DROPPED_REASON: &str = "the control plane could not respond: try again";
