//! The proxy's end of a stream: say hello, apply deltas, carry requests, notice silence.

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
use crate::message::{CertificateAnswer, Delta, Hello, InboundListener, Refusal, Update};
use crate::proto::{self, from_proxy, to_proxy};
use crate::query::{Answering, Query, next_part};
use crate::resource::Invalid;
use crate::subscriber::Subscriber;
use crate::tap::{RECORDS_MAX, taps_from_wire};
use crate::traffic::{REPORT_EVERY_MIN, Traffic, traffic_to_wire};
use crate::vigil::Vigil;

/// Follows the control plane over an authenticated stream until the stream ends, and says why.
///
/// The [`Follower`] applies worlds, opens taps and tells what it counted. The future may be dropped
/// at any time.
pub async fn follow<S>(
    stream: S,
    hello: Hello,
    subscriber: &mut Subscriber,
    requests: &mut mpsc::Receiver<Request>,
    follower: &mut dyn Follower,
) -> FollowError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, MESSAGE_BYTES_MAX);
    let mut session = Session {
        writer: FrameWriter::new(write),
        vigil: Vigil::new(Instant::now()),
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

/// Whoever follows a control plane. What only applies worlds is one too.
pub trait Follower {
    /// Makes an update the proxy's world. `Ok` only when it was swapped: then the delta is
    /// acknowledged. With `Err` it is refused and the subscriber keeps what it had. Called first
    /// when the proxy is in step with the control plane, even if nothing differs.
    ///
    /// # Errors
    /// Which resources cannot be accepted, and why.
    fn apply(&mut self, update: Update) -> Result<(), Vec<Refusal>>;

    /// What was counted since this was last asked, or nothing when that is nothing. Asked as often
    /// as the control plane wants to hear of it, and never by one that does not.
    fn traffic(&mut self) -> Option<Traffic> {
        None
    }
    /// Operators want to see these live requests from now on, and no others.
    fn tap(&mut self, _taps: &[Tap]) {}

    /// An operator queries the proxy. The answer of a follower that drops the query says that there is none.
    fn query(&mut self, _query: Query) {}
}

impl<F: FnMut(Update) -> Result<(), Vec<Refusal>>> Follower for F {
    fn apply(&mut self, update: Update) -> Result<(), Vec<Refusal>> {
        self(update)
    }
}

/// Something that the proxy wants from the control plane.
#[derive(Debug)]
pub enum Request {
    /// It tells of requests that are tapped.
    Tapped {
        /// Which tap.
        tap: u64,
        /// Each as the access log writes it in JSON; 512 at most are sent.
        records: Vec<String>,
        /// How many more there were.
        dropped: u64,
    },
    /// It uses these services from now on, in addition.
    Subscribe(Vec<ServiceName>),
    /// It no longer uses these services.
    Unsubscribe(Vec<ServiceName>),
    /// It wants to know from now on what is at these addresses, in addition.
    Ask(Vec<IpAddr>),
    /// It no longer wants to know of these addresses.
    Forget(Vec<IpAddr>),
    /// It wants to know from now on what these names stand for, in addition.
    LookUp(Vec<ServiceName>),
    /// It no longer wants to know of these names.
    ForgetNames(Vec<ServiceName>),
    /// Its inbound listeners and its state for operators are now these.
    Listeners(Vec<InboundListener>, ProxyReport),
    /// It wants a new certificate.
    Renew {
        /// A certificate signing request, DER, at most 64 KiB.
        csr: Vec<u8>,
        /// Where the answer is awaited; dropped when the stream ends first.
        answer: CertificateAnswer,
    },
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The stream broke.
    #[error("the stream to the control plane broke")]
    Io(#[from] io::Error),
    /// The control plane closed the stream without a word.
    #[error("the control plane closed the stream")]
    Closed,
    /// Nothing came for longer than the bounded silence.
    #[error("the control plane was silent for too long")]
    Silent,
    /// The control plane sent something that is not of this protocol.
    #[error("the control plane sent an invalid message: {0}")]
    Malformed(String),
    /// The control plane ended the stream and said why.
    #[error("the control plane ended the stream: {0}")]
    Goodbye(String),
    /// All senders of requests are gone: the proxy has no more use for the stream.
    #[error("the proxy let go of the stream")]
    Stopped,
}

impl From<FrameError> for FollowError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => Self::Io(error),
            FrameError::Cut => Self::Io(io::ErrorKind::UnexpectedEof.into()),
            FrameError::Oversize { .. } => Self::Malformed(error.to_string()),
        }
    }
}

impl From<Invalid> for FollowError {
    fn from(invalid: Invalid) -> Self {
        Self::Malformed(format!("{}: {}", invalid.field, invalid.reason))
    }
}

/// A stream while it lasts.
struct Session<'a, S> {
    writer: FrameWriter<WriteHalf<S>>,
    vigil: Vigil,
    subscriber: &'a mut Subscriber,
    follower: &'a mut dyn Follower,
    /// The taps that it heard of last.
    taps: Vec<Tap>,
    /// The certificate request that is not answered yet; the control plane allows one.
    renewal: Option<(u64, CertificateAnswer)>,
    renewals_seen: u64,
    /// When the control plane is told of traffic next, and how often.
    reports: Option<(Instant, Duration)>,
    /// The query that is being answered; the control plane sends one at a time.
    answering: Option<Box<Answering>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<'_, S> {
    /// Waits; everything that is decided is decided in the other functions.
    async fn run<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut FrameReader<R>,
        hello: Hello,
        requests: &mut mpsc::Receiver<Request>,
    ) -> Result<std::convert::Infallible, FollowError> {
        self.introduce(hello)?;
        loop {
            let room = self.writer.queued() < OUTBOX_BYTES_MAX;
            tokio::select! {
                frame = reader.next() => {
                    let frame = frame?.ok_or(FollowError::Closed)?;
                    self.vigil.heard(Instant::now());
                    self.receive(proto::ToProxy::decode(frame).map_err(malformed)?)?;
                }
                written = self.writer.advance(), if !self.writer.is_idle() => written?,
                request = requests.recv(), if room => {
                    self.request(request.ok_or(FollowError::Stopped)?)?;
                }
                () = sleep_until(self.vigil.ping_at()), if self.writer.is_idle() => {
                    self.send(from_proxy::Message::Ping(proto::Ping::default()))?;
                }
                () = until(self.reports), if room => self.report()?,
                part = next_part(&mut self.answering), if room => {
                    self.send(from_proxy::Message::QueryAnswer(part))?;
                }
                () = sleep_until(self.vigil.silent_at()) => return Err(FollowError::Silent),
            }
        }
    }

    /// The first message. A world too large to be listed is forgotten and sent anew; the proxy
    /// serves from it until then.
    fn introduce(&mut self, mut hello: Hello) -> Result<(), FollowError> {
        let late = hello.services.split_off(hello.services.len().min(SERVICES_PER_MESSAGE_MAX));
        let wire = hello_to_wire(&hello, &self.subscriber.held());
        let message = from_proxy::Message::Hello(wire);
        if matches!(self.push(message), Err(FrameError::Oversize { .. })) {
            *self.subscriber = Subscriber::new();
            self.send(from_proxy::Message::Hello(hello_to_wire(&hello, &[])))?;
        }
        self.request(Request::Subscribe(late))
    }

    fn receive(&mut self, message: proto::ToProxy) -> Result<(), FollowError> {
        match message.message {
            None => Err(FollowError::Malformed("a message without content".into())),
            Some(to_proxy::Message::Ping(wire)) => {
                self.heed(wire.report_every_ms);
                self.tap(wire.taps);
                Ok(())
            }
            Some(to_proxy::Message::Goodbye(wire)) => Err(FollowError::Goodbye(wire.reason)),
            Some(to_proxy::Message::Certificate(wire)) => self.certificate(wire),
            Some(to_proxy::Message::Query(wire)) => {
                let (answering, query) = Answering::begin(wire);
                self.answering = Some(Box::new(answering));
                self.follower.query(query);
                Ok(())
            }
            Some(to_proxy::Message::Delta(wire)) => {
                let delta = delta_from_wire(wire)?;
                let nonce = delta.nonce;
                match self.adopt(delta) {
                    Ok(()) => self.send(from_proxy::Message::Ack(proto::Ack { nonce })),
                    Err(refusals) => {
                        self.send(from_proxy::Message::Nack(nack_to_wire(nonce, &refusals)))
                    }
                }
            }
        }
    }

    /// Makes a delta the proxy's world, or leaves everything as it was.
    fn adopt(&mut self, delta: Delta) -> Result<(), Vec<Refusal>> {
        let whole = delta.whole;
        let staged = self.subscriber.stage(delta)?;
        if whole {
            self.follower.apply(staged.update().clone())?;
        }
        self.subscriber.commit(staged);
        Ok(())
    }

    /// Notes how often the control plane wants to hear of traffic, if it says so.
    fn heed(&mut self, report_every_ms: u32) {
        let every = Duration::from_millis(report_every_ms.into()).max(REPORT_EVERY_MIN);
        let known = self.reports.is_some_and(|(_, known)| known == every);
        if report_every_ms > 0 && !known {
            self.reports = Some((Instant::now() + every, every));
        }
    }

    fn report(&mut self) -> Result<(), FollowError> {
        if let Some((at, every)) = &mut self.reports {
            *at = Instant::now() + *every;
        }
        match self.follower.traffic() {
            Some(traffic) => self.send(from_proxy::Message::Traffic(traffic_to_wire(&traffic))),
            None => Ok(()),
        }
    }

    fn tap(&mut self, wire: Vec<proto::Tap>) {
        let taps = taps_from_wire(wire);
        if taps != self.taps {
            self.follower.tap(&taps);
            self.taps = taps;
        }
    }

    fn certificate(&mut self, wire: proto::Certificate) -> Result<(), FollowError> {
        let result = match wire.outcome {
            None => {
                return Err(FollowError::Malformed("a certificate without content".into()));
            }
            Some(proto::certificate::Outcome::Issued(issued)) => Ok(issued_from_wire(issued)),
            Some(proto::certificate::Outcome::Error(reason)) => Err(reason.into()),
        };
        if let Some((_, answer)) = self.renewal.take_if(|(id, _)| *id == wire.id) {
            // Whoever asked may have gone.
            answer.send(result).ok();
        }
        Ok(())
    }

    fn request(&mut self, request: Request) -> Result<(), FollowError> {
        match request {
            Request::Subscribe(services) => {
                for part in services.chunks(SERVICES_PER_MESSAGE_MAX) {
                    self.send(from_proxy::Message::Subscribe(services_to_wire(part)))?;
                }
                Ok(())
            }
            Request::Unsubscribe(services) => {
                for part in services.chunks(SERVICES_PER_MESSAGE_MAX) {
                    self.send(from_proxy::Message::Unsubscribe(services_to_wire(part)))?;
                }
                Ok(())
            }
            Request::Ask(addresses) => {
                self.send(from_proxy::Message::Subscribe(addresses_to_wire(&addresses)))
            }
            Request::Forget(addresses) => {
                self.send(from_proxy::Message::Unsubscribe(addresses_to_wire(&addresses)))
            }
            Request::LookUp(names) => {
                self.send(from_proxy::Message::Subscribe(looked_up_to_wire(&names)))
            }
            Request::ForgetNames(names) => {
                for part in names.chunks(SERVICES_PER_MESSAGE_MAX) {
                    self.send(from_proxy::Message::Unsubscribe(looked_up_to_wire(part)))?;
                }
                Ok(())
            }
            Request::Listeners(listeners, report) => {
                let wire = listeners_to_wire(&listeners, &report);
                self.send(from_proxy::Message::Listeners(wire))
            }
            Request::Renew { csr, answer } => self.renew(csr, answer),
            Request::Tapped { tap, mut records, mut dropped } => {
                let too_many = records.len().saturating_sub(RECORDS_MAX) as u64;
                dropped = dropped.saturating_add(too_many);
                records.truncate(RECORDS_MAX);
                let tapped = proto::Tapped { tap, records, dropped };
                self.send(from_proxy::Message::Tapped(tapped))
            }
        }
    }

    fn renew(&mut self, csr: Vec<u8>, answer: CertificateAnswer) -> Result<(), FollowError> {
        let refusal = if csr.len() > CSR_BYTES_MAX {
            "the certificate signing request is larger than 64 KiB"
        } else if self.renewal.is_some() {
            "another certificate request is not answered yet: wait for that"
        } else {
            self.renewals_seen += 1;
            let id = self.renewals_seen;
            self.renewal = Some((id, answer));
            let request = proto::CertificateRequest { id, csr };
            return self.send(from_proxy::Message::Certificate(request));
        };
        answer.send(Err(refusal.into())).ok();
        Ok(())
    }

    fn send(&mut self, message: from_proxy::Message) -> Result<(), FollowError> {
        Ok(self.push(message)?)
    }

    fn push(&mut self, message: from_proxy::Message) -> Result<(), FrameError> {
        self.vigil.spoke(Instant::now());
        self.writer.push(&proto::FromProxy { message: Some(message) }, REQUEST_BYTES_MAX)
    }
}

/// Waits until the next report is due; for ever when none is wanted.
async fn until(reports: Option<(Instant, Duration)>) {
    match reports {
        Some((at, _)) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn malformed(error: prost::DecodeError) -> FollowError {
    FollowError::Malformed(error.to_string())
}

/// So that a message of the longest names stays within its limit.
pub(crate) const SERVICES_PER_MESSAGE_MAX: usize = 1024;

/// The longest certificate signing request; ours have 400 bytes.
pub(crate) const CSR_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests;
