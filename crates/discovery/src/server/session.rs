//! A connection after its introduction: one loop that waits, and functions that decide.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{ServiceName, WorkloadName};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::ServeError;
use crate::client::CSR_BYTES_MAX;
use crate::envelope::{
    addresses_from_wire, delta_to_wire, issued_to_wire, listeners_from_wire, refusals_from_wire,
    services_from_wire,
};
use crate::event::{ConnectionId, Event, Standing};
use crate::frame::{FrameReader, FrameWriter, MESSAGE_BYTES_MAX, OUTBOX_BYTES_MAX};
use crate::key::ChangeId;
use crate::message::IssuedBytes;
use crate::proto::{self, from_proxy, to_proxy};
use crate::publisher::Publisher;
use crate::tap::{OpenTap, Tapped, Taps, records_from_wire, tap_to_wire};
use crate::traffic::traffic_from_wire;
use crate::vigil::Vigil;
use crate::{ADDRESSES_MAX, NAMES_MAX, SUBSCRIPTIONS_MAX};

/// A connection after its introduction.
pub(super) struct Session<'a, W> {
    writer: &'a mut FrameWriter<W>,
    publisher: Publisher,
    connection: ConnectionId,
    events: &'a mpsc::Sender<Event>,
    vigil: Vigil,
    /// When the delta in flight must have been answered.
    answer_by: Option<Instant>,
    renewal: Option<Renewal>,
    /// When the next certificate request is passed on at the earliest.
    renew_from: Instant,
    /// When the next message about traffic is passed on at the earliest, and the next for a tap.
    traffic: Tempo,
    tapped: Tempo,
    /// Series of messages about traffic that were not passed on.
    unheard: u32,
    /// What was last reported as applied.
    applied: Option<(ChangeId, usize)>,
    /// Bytes of deltas that were not reported yet.
    delta_bytes: u64,
    /// Whose proxy it is.
    workload: WorkloadName,
    /// Operators who tap; the proxy was told of them, or of none.
    taps: watch::Receiver<Arc<Vec<OpenTap>>>,
}

/// A certificate request that the owner of the mesh has not answered yet.
struct Renewal {
    id: u64,
    answer: oneshot::Receiver<Result<IssuedBytes, String>>,
}

/// How a connection ended.
pub(super) enum Ending {
    /// The proxy closed it.
    Closed,
    /// The owner of the mesh ended it.
    Goodbye(String),
    /// Something is wrong.
    Failed(ServeError),
}

impl Ending {
    /// Tells the proxy, if it can still be told.
    pub(super) async fn part<W>(self, writer: FrameWriter<W>) -> Result<(), ServeError>
    where
        W: AsyncWrite + Unpin,
    {
        match self {
            Self::Closed => Ok(()),
            Self::Goodbye(reason) => {
                farewell(writer, &reason).await;
                Ok(())
            }
            Self::Failed(error @ ServeError::Io(_)) => Err(error),
            Self::Failed(error) => {
                farewell(writer, &error.to_string()).await;
                Err(error)
            }
        }
    }
}

/// Says goodbye within a bounded time; whether it arrives matters to nobody here.
pub(super) async fn farewell<W: AsyncWrite + Unpin>(mut writer: FrameWriter<W>, reason: &str) {
    let goodbye = to_proxy::Message::Goodbye(proto::Goodbye { reason: reason.to_owned() });
    let message = proto::ToProxy { message: Some(goodbye) };
    if writer.push(&message, MESSAGE_BYTES_MAX).is_ok() {
        timeout(FAREWELL_WAIT, writer.finish()).await.ok();
    }
}

impl<'a, W: AsyncWrite + Unpin> Session<'a, W> {
    pub(super) fn new(
        writer: &'a mut FrameWriter<W>,
        publisher: Publisher,
        (connection, workload): (ConnectionId, WorkloadName),
        events: &'a mpsc::Sender<Event>,
        taps: &Taps,
    ) -> Self {
        let now = Instant::now();
        Self {
            writer,
            publisher,
            connection,
            events,
            vigil: Vigil::new(now),
            answer_by: None,
            renewal: None,
            renew_from: now,
            traffic: Tempo { from: now, every: TRAFFIC_INTERVAL_MIN, saved: TRAFFIC_BURST },
            tapped: Tempo { from: now, every: TAPPED_INTERVAL_MIN, saved: TAPPED_BURST },
            unheard: 0,
            applied: None,
            delta_bytes: 0,
            workload,
            taps: taps.watch(),
        }
    }

    /// Waits; everything that is decided is decided in the other functions.
    pub(super) async fn run<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut FrameReader<R>,
        mut standing: watch::Receiver<Standing>,
    ) -> Result<Ending, ServeError> {
        if !self.taps.borrow_and_update().is_empty() {
            self.ping(0)?;
        }
        loop {
            // Whoever asks and does not read the answers is not asked what else it wants.
            let room = self.writer.queued() < OUTBOX_BYTES_MAX;
            tokio::select! {
                frame = reader.next(), if room => {
                    let Some(frame) = frame? else { return Ok(Ending::Closed) };
                    self.vigil.heard(Instant::now());
                    self.receive(proto::FromProxy::decode(frame)?).await?;
                }
                changed = standing.changed() => {
                    let newest = standing.borrow_and_update().clone();
                    match newest {
                        Standing::Goodbye(reason) => return Ok(Ending::Goodbye(reason)),
                        _ if changed.is_err() => return Ok(Ending::Goodbye(LET_GO.to_owned())),
                        Standing::Pending => {}
                        Standing::Offer(update) => self.publisher.offer(update),
                        Standing::Partial(update, doubt) => {
                            self.publisher.offer_in_doubt(update, doubt);
                        }
                    }
                }
                written = self.writer.advance(), if !self.writer.is_idle() => written?,
                result = answered(&mut self.renewal) => self.certificate(result)?,
                () = sleep_until(self.vigil.ping_at()), if self.writer.is_idle() => self.ping(0)?,
                () = changed(&mut self.taps), if room => self.ping(0)?,
                () = sleep_until(self.vigil.silent_at()) => return Err(ServeError::Silent),
                () = until(self.answer_by) => return Err(ServeError::Unacknowledged),
            }
            self.publish().await?;
        }
    }

    /// Says how often the control plane wants to hear of traffic. A proxy of a release that does not
    /// know this takes it for a sign of life.
    pub(super) fn ask_for_reports(&mut self, every: Duration) -> Result<(), ServeError> {
        let report_every_ms = u32::try_from(every.as_millis()).unwrap_or(u32::MAX);
        self.ping(report_every_ms)
    }

    async fn receive(&mut self, message: proto::FromProxy) -> Result<(), ServeError> {
        let connection = self.connection;
        let event = match message.message {
            None => return Err(ServeError::Malformed("a message without content".into())),
            Some(from_proxy::Message::Hello(_)) => {
                return Err(ServeError::Malformed("a second Hello".into()));
            }
            Some(from_proxy::Message::Ping(_)) => return Ok(()),
            Some(from_proxy::Message::Tapped(wire)) => {
                self.tapped(wire, Instant::now());
                return Ok(());
            }
            Some(from_proxy::Message::Ack(ack)) => return self.acknowledged(ack.nonce),
            Some(from_proxy::Message::Nack(nack)) => {
                let refusals = refusals_from_wire(nack.refusals)?;
                let known = self.publisher.refuse(nack.nonce, &refusals);
                known.ok_or_else(|| unknown_nonce(nack.nonce))?;
                self.answer_by = None;
                Event::Refused { connection, refusals }
            }
            Some(from_proxy::Message::Subscribe(wire)) => {
                let Lists { services, addresses, names } = Lists::from_wire(wire)?;
                let is_only_that = addresses.is_empty() && names.is_empty();
                if !addresses.is_empty() {
                    self.tell(Event::Ask { connection, addresses }).await?;
                }
                if !names.is_empty() {
                    self.tell(Event::LookUp { connection, names }).await?;
                }
                if services.is_empty() && !is_only_that {
                    return Ok(());
                }
                Event::Subscribe { connection, services }
            }
            Some(from_proxy::Message::Unsubscribe(wire)) => {
                let Lists { services, addresses, names } = Lists::from_wire(wire)?;
                let is_only_that = addresses.is_empty() && names.is_empty();
                if !addresses.is_empty() {
                    self.tell(Event::Forget { connection, addresses }).await?;
                }
                if !names.is_empty() {
                    self.tell(Event::ForgetNames { connection, names }).await?;
                }
                if services.is_empty() && !is_only_that {
                    return Ok(());
                }
                Event::Unsubscribe { connection, services }
            }
            Some(from_proxy::Message::Listeners(wire)) => {
                Event::Listeners { connection, listeners: listeners_from_wire(&wire.listeners)? }
            }
            Some(from_proxy::Message::Traffic(wire)) => {
                let mut traffic = Box::new(traffic_from_wire(wire));
                traffic.folded = traffic.folded.saturating_add(self.unheard);
                if !self.traffic.takes(Instant::now()) {
                    let series = u32::try_from(traffic.series.len()).unwrap_or(u32::MAX);
                    self.unheard = traffic.folded.saturating_add(series);
                    return Ok(());
                }
                self.unheard = 0;
                Event::Traffic { connection, traffic }
            }
            Some(from_proxy::Message::Certificate(wire)) => match self.renew(wire)? {
                Some(event) => event,
                None => return Ok(()),
            },
        };
        self.tell(event).await
    }

    /// A sign of life, and all taps that are open; how often traffic is told, unless that is 0.
    fn ping(&mut self, report_every_ms: u32) -> Result<(), ServeError> {
        let taps = self.taps.borrow().iter().map(|open| tap_to_wire(&open.tap)).collect();
        self.send(to_proxy::Message::Ping(proto::Ping { report_every_ms, taps }))
    }

    /// What the proxy tells goes to the tap that it is for, if that is still open. What is too much
    /// is counted, and no more.
    fn tapped(&mut self, wire: proto::Tapped, now: Instant) {
        let may = self.tapped.takes(now);
        let proto::Tapped { tap, records, dropped } = wire;
        let open = self.taps.borrow();
        let Some(open) = open.iter().find(|open| open.tap.id == tap) else { return };
        if !may {
            return open.lose(dropped.saturating_add(records.len() as u64));
        }
        let (records, left_out) = records_from_wire(records);
        let dropped = dropped.saturating_add(left_out);
        open.tell(Tapped { workload: self.workload.clone(), records, dropped });
    }

    fn acknowledged(&mut self, nonce: u64) -> Result<(), ServeError> {
        self.answer_by = None;
        self.publisher.acknowledge(nonce).map(drop).ok_or_else(|| unknown_nonce(nonce))
    }

    /// Passes a certificate request on: one at a time, and not too often, for each is work.
    fn renew(&mut self, wire: proto::CertificateRequest) -> Result<Option<Event>, ServeError> {
        if self.renewal.is_some() {
            return Err(ServeError::Malformed(SECOND_RENEWAL.to_owned()));
        }
        let now = Instant::now();
        let refusal = if wire.csr.len() > CSR_BYTES_MAX {
            "the request is larger than 64 KiB"
        } else if now < self.renew_from {
            "the last certificate request was a moment ago: try again later"
        } else {
            let (answer, receiver) = oneshot::channel();
            self.renewal = Some(Renewal { id: wire.id, answer: receiver });
            self.renew_from = now + RENEWAL_INTERVAL_MIN;
            let (connection, csr) = (self.connection, wire.csr);
            return Ok(Some(Event::Certify { connection, csr, answer }));
        };
        let outcome = Some(proto::certificate::Outcome::Error(refusal.to_owned()));
        self.send(to_proxy::Message::Certificate(proto::Certificate { id: wire.id, outcome }))?;
        Ok(None)
    }

    fn certificate(&mut self, answer: Answer) -> Result<(), ServeError> {
        let outcome = match answer.result {
            Ok(issued) => proto::certificate::Outcome::Issued(issued_to_wire(issued)),
            Err(reason) => proto::certificate::Outcome::Error(reason),
        };
        let certificate = proto::Certificate { id: answer.id, outcome: Some(outcome) };
        self.send(to_proxy::Message::Certificate(certificate))
    }

    /// Sends what is to be sent, and reports what the proxy has reached.
    async fn publish(&mut self) -> Result<(), ServeError> {
        if let Some(delta) = self.publisher.next_delta() {
            self.answer_by = Some(Instant::now() + ANSWER_WAIT);
            let before = self.writer.queued();
            self.send(to_proxy::Message::Delta(delta_to_wire(delta)))?;
            self.delta_bytes += self.writer.queued().saturating_sub(before) as u64;
        }
        let oversized = self.publisher.take_oversized();
        if !oversized.is_empty() {
            let connection = self.connection;
            self.tell(Event::Refused { connection, refusals: oversized }).await?;
        }
        let Some(change) = self.publisher.settled() else {
            return Ok(());
        };
        let applied = (change, self.publisher.refused().count());
        if self.applied.replace(applied) == Some(applied) {
            return Ok(());
        }
        let (change, refused) = applied;
        let (connection, bytes) = (self.connection, std::mem::take(&mut self.delta_bytes));
        self.tell(Event::Applied { connection, change, refused, bytes }).await
    }

    async fn tell(&self, event: Event) -> Result<(), ServeError> {
        self.events.send(event).await.map_err(|_| ServeError::Stopped)
    }

    fn send(&mut self, message: to_proxy::Message) -> Result<(), ServeError> {
        self.vigil.spoke(Instant::now());
        let message = proto::ToProxy { message: Some(message) };
        Ok(self.writer.push(&message, MESSAGE_BYTES_MAX)?)
    }
}

/// What a message asks for, or lets go of.
struct Lists {
    services: Vec<ServiceName>,
    addresses: Vec<IpAddr>,
    names: Vec<ServiceName>,
}

impl Lists {
    fn from_wire(wire: proto::Services) -> Result<Self, ServeError> {
        let proto::Services { names, addresses, looked_up } = wire;
        let fits = names.len() <= SUBSCRIPTIONS_MAX
            && addresses.len() <= ADDRESSES_MAX
            && looked_up.len() <= NAMES_MAX;
        if !fits {
            return Err(ServeError::Malformed(TOO_MANY.to_owned()));
        }
        Ok(Self {
            services: services_from_wire(&names)?,
            addresses: addresses_from_wire(addresses)?,
            names: services_from_wire(&looked_up)?,
        })
    }
}

/// How often messages of one kind are passed on: so many in a time, and some more at once of a proxy
/// that was held up. Who sends more than that is not heard.
struct Tempo {
    /// When the next is at the earliest.
    from: Instant,
    every: Duration,
    /// How much time may be saved up.
    saved: Duration,
}

impl Tempo {
    /// Whether one more is passed on now.
    fn takes(&mut self, now: Instant) -> bool {
        let takes = self.from <= now;
        if takes {
            let saved_up = now.checked_sub(self.saved).unwrap_or(now);
            self.from = self.from.max(saved_up) + self.every;
        }
        takes
    }
}

/// What came of a certificate request.
struct Answer {
    id: u64,
    result: Result<IssuedBytes, String>,
}

/// Waits for the answer to the request under way; for ever when there is none. Cancel-safe.
async fn answered(renewal: &mut Option<Renewal>) -> Answer {
    let Some(Renewal { id, answer }) = renewal else {
        return std::future::pending().await;
    };
    let result = answer.await.unwrap_or_else(|_| Err(TRY_AGAIN.to_owned()));
    let answer = Answer { id: *id, result };
    *renewal = None;
    answer
}

/// Waits for another set of taps; for ever when there will be none.
async fn changed(taps: &mut watch::Receiver<Arc<Vec<OpenTap>>>) {
    if taps.changed().await.is_err() {
        std::future::pending().await
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn unknown_nonce(nonce: u64) -> ServeError {
    ServeError::Malformed(format!("an answer to delta {nonce}, which is not in flight"))
}

/// How long a proxy may take to apply a delta.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Between two certificate requests of one connection. Certificates live for a second at least
/// and are renewed at half of that; after a failure proxies wait for twice this long.
pub(super) const RENEWAL_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Between two messages about traffic, on average: half of what a proxy that keeps to the contract
/// waits at least.
const TRAFFIC_INTERVAL_MIN: Duration = Duration::from_millis(500);

/// How much of that time may be saved up.
const TRAFFIC_BURST: Duration = Duration::from_secs(2);

/// Between two messages for taps, on average: a proxy sends one in a tenth of a second for each tap,
/// and more only of those who are told of thousands of requests in a second.
const TAPPED_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// How much of that time may be saved up.
const TAPPED_BURST: Duration = Duration::from_secs(1);

/// How long a proxy is given to read the last message.
pub(super) const FAREWELL_WAIT: Duration = Duration::from_secs(2);

const SECOND_RENEWAL: &str = "a certificate request before the one before it was answered";

const TOO_MANY: &str = "one message names more than a proxy may ask for";

const LET_GO: &str = "the control plane has no more to say to this workload";

const TRY_AGAIN: &str = "the control plane could not answer: try again";
