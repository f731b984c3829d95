//! The one task that owns the mesh: `next` waits, `apply` decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_discovery::{CertificateAnswer, Connected, ConnectionId, Event, InboundListener, Joining};
use leno_identity::Peer;
use leno_model::{
    Change, MeshConfig, Object, ObjectKey, ServiceName, TrustDomain, Workload, WorkloadName,
};
use leno_registry::Update;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::certify::{Certifier, CertifyError, Occasion, Signed, vouch};
use crate::config::{Limits, Times};
use crate::mesh::{Listeners, Mesh, Touched};
use crate::presence::{Presence, Start};
use crate::publish::{Audience, Contact};
use crate::report::Report;
use crate::server::{Gauges, Guests};
use crate::status::Status;
use crate::watch::Remarks;

/// The owner of the mesh and of everything that only it may touch.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) times: Times,
    pub(crate) limits: Limits,
    pub(crate) mesh: Mesh,
    pub(crate) audience: Audience,
    pub(crate) presence: Presence,
    pub(crate) start: Start,
    pub(crate) certifier: Certifier,
    pub(crate) remarks: Remarks,
    pub(crate) guests: Arc<Guests>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) told: Told,
    pub(crate) swept: Instant,
}

/// Where the owner reads from; every queue is bounded.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) updates: mpsc::Receiver<Update>,
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) questions: mpsc::Receiver<(Question, oneshot::Sender<Answer>)>,
    pub(crate) stop: watch::Receiver<bool>,
}

/// What everybody may watch.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) workloads: watch::Sender<Arc<Vec<Workload>>>,
    pub(crate) registered: watch::Sender<Arc<BTreeSet<WorkloadName>>>,
    pub(crate) status: watch::Sender<Arc<Status>>,
    /// When the next telling is due: after many events at once there is one.
    pub(crate) due: Option<Instant>,
}

/// What an operator wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    Certificates,
    Metrics,
    Policies,
    Proxies,
    Rejected,
    Routes,
    Services,
    Status,
    Workloads,
}

/// What an operator is told.
#[derive(Debug)]
pub(crate) enum Answer {
    Json(Value),
    Text(String),
}

/// Something that happened.
enum Input {
    Update(Update),
    Event(Event),
    Question(Question, oneshot::Sender<Answer>),
    Signed(Signed, Occasion),
    Clock,
    Stop,
}

/// When it happened.
#[derive(Clone, Copy)]
struct Now {
    clock: Instant,
    wall: SystemTime,
}

/// Whether the owner goes on.
#[derive(PartialEq, Eq)]
enum Verdict {
    GoOn,
    Stop,
}

/// Owns the mesh until told to stop; then says goodbye to every proxy.
pub(crate) async fn own(mut owner: Owner, mut inbox: Inbox) {
    loop {
        let input = owner.next(&mut inbox).await;
        let now = Now { clock: Instant::now(), wall: SystemTime::now() };
        if owner.apply(input, now) == Verdict::Stop {
            return;
        }
    }
}

impl Owner {
    /// With the first facts, before anybody watches or connects.
    pub(crate) fn with(mut self, first: Update, trust_domain: &TrustDomain) -> Self {
        let now = Now { clock: Instant::now(), wall: SystemTime::now() };
        self.mesh.apply(Change::Upsert(Object::MeshConfig(MeshConfig {
            trust_domain: trust_domain.clone(),
            ..MeshConfig::default()
        })));
        self.update(first, now);
        self.tell(now);
        self
    }

    async fn next(&mut self, inbox: &mut Inbox) -> Input {
        let wake = self.wake_at();
        tokio::select! {
            Some(update) = inbox.updates.recv() => Input::Update(update),
            Some(event) = inbox.events.recv() => Input::Event(event),
            Some((question, answer)) = inbox.questions.recv() => Input::Question(question, answer),
            (signed, occasion) = self.certifier.next() => Input::Signed(signed, occasion),
            () = tokio::time::sleep_until(wake) => Input::Clock,
            _ = inbox.stop.wait_for(|stop| *stop) => Input::Stop,
        }
    }

    fn wake_at(&self) -> Instant {
        let sweep = self.swept + SWEEP_EVERY;
        let times =
            [self.audience.due_at(), self.presence.next_loss(), self.start.until(), self.told.due];
        times.into_iter().flatten().fold(sweep, Instant::min)
    }

    fn apply(&mut self, input: Input, now: Now) -> Verdict {
        if !matches!(input, Input::Clock | Input::Question(..)) {
            self.told.due.get_or_insert(now.clock + TELL_AFTER);
        }
        match input {
            Input::Update(update) => self.update(update, now),
            Input::Event(event) => self.event(event, now),
            Input::Question(question, answer) => {
                // Whoever asked may have gone.
                drop(answer.send(self.answer(question, now)));
            }
            Input::Signed(signed, occasion) => self.signed(&signed, occasion),
            Input::Clock => {}
            Input::Stop => {
                self.farewell(now);
                return Verdict::Stop;
            }
        }
        self.pass(now);
        Verdict::GoOn
    }

    /// What is due now, whatever happened.
    fn pass(&mut self, now: Now) {
        for workload in self.presence.take_lost(now.clock) {
            tracing::info!(%workload, "its sidecar did not come back: its endpoints are withdrawn");
            self.listen(&workload, None, now);
        }
        if self.start.ends(&self.mesh, now.clock) {
            tracing::info!("the sidecars that were expected are back, or were given up");
            self.told.due.get_or_insert(now.clock + TELL_AFTER);
            self.audience.reconsider(&self.mesh, self.start.settling());
        }
        if self.audience.due_at().is_some_and(|due| due <= now.clock) {
            self.audience.publish(&self.mesh, self.start.settling());
        }
        if self.swept + SWEEP_EVERY <= now.clock {
            self.swept = now.clock;
            self.sweep(now);
        }
        if self.told.due.is_some_and(|due| due <= now.clock) {
            self.told.due = None;
            self.tell(now);
        }
    }

    fn update(&mut self, update: Update, now: Now) {
        let trust_domain = self.mesh.config().trust_domain.clone();
        let changes = self.remarks.take(update, &trust_domain);
        if changes.is_empty() {
            return;
        }
        let mut touched = Touched::default();
        let mut workloads = BTreeSet::new();
        tracing::info!(changes = changes.len(), "the facts have changed");
        for change in changes {
            let key = match &change {
                Change::Upsert(object) => object.key(),
                Change::Remove(key) => key.clone(),
            };
            tracing::debug!(object = %key, "changed");
            if let ObjectKey::Workload(name) = key {
                workloads.insert(name);
            }
            touched.merge(self.mesh.apply(change));
        }
        self.audience.notice(&touched, &self.mesh, now.clock);
        for name in &workloads {
            self.check_claim(name, now);
        }
        if !workloads.is_empty() {
            let all = self.mesh.workloads().cloned().collect();
            self.told.workloads.send_replace(Arc::new(all));
        }
    }

    /// A workload changed or is gone: its proxy may no longer be who it was.
    fn check_claim(&mut self, name: &WorkloadName, now: Now) {
        if self.mesh.workload(name).is_none() {
            self.presence.forget(name);
            self.certifier.forget(name);
        }
        let Some(connection) = self.audience.of_workload(name) else {
            return;
        };
        let peer = self.audience.contact(connection).map(|contact| contact.peer.clone());
        if let Some(Err(reason)) = peer.map(|peer| self.claim(&peer, name)) {
            self.dismiss(connection, reason, now);
            // It will not be back as who it was: there is no grace for it.
            self.presence.forget(name);
            self.listen(name, None, now);
        }
    }

    fn claim(&self, peer: &Peer, workload: &WorkloadName) -> Result<(), String> {
        let trust_domain = &self.mesh.config().trust_domain;
        let found = self.mesh.workload(workload);
        vouch(peer, workload, found, trust_domain).map_err(|error| error.to_string())
    }

    fn event(&mut self, event: Event, now: Now) {
        match event {
            Event::Connected(connected) => self.connected(*connected, now),
            Event::Listeners { connection, listeners } => {
                self.listeners(connection, &listeners, now)
            }
            Event::Subscribe { connection, services } => self.subscribe(connection, services),
            Event::Unsubscribe { connection, services } => self.unsubscribe(connection, &services),
            Event::Applied { connection, change, refused } => {
                self.audience.tally.applied += 1;
                if let Some(contact) = self.audience.contact(connection) {
                    contact.applied(change, refused);
                    if !contact.is_behind() {
                        self.audience.rounds.settle(connection, now.clock);
                    }
                }
            }
            Event::Refused { connection, refusals, .. } => {
                self.audience.tally.refused += 1;
                if let Some(contact) = self.audience.contact(connection) {
                    for refusal in &refusals {
                        tracing::warn!(workload = %contact.workload, %refusal, "refused");
                    }
                    contact.refused(refusals);
                }
            }
            Event::Certify { connection, csr, answer } => {
                self.certify(connection, csr, answer, now)
            }
            Event::Join(joining) => self.join(joining, now),
            Event::Left { connection } => self.left(connection, now),
        }
    }

    fn connected(&mut self, connected: Connected, now: Now) {
        let connection = connected.connection;
        let workload = connected.hello.workload.clone();
        let services = connected.hello.services.clone();
        let listeners = in_order(&connected.hello.listeners);
        let Some(peer) = self.guests.peer(connection) else {
            tracing::debug!(%workload, %connection, "its connection has ended already");
            return;
        };
        let claim = self.claim(&peer, &workload);
        let contact = Contact::new(connected, peer.clone(), now.clock);
        if let Err(reason) = claim {
            tracing::warn!(%workload, %reason, "a proxy is refused");
            contact.dismiss(reason);
            return;
        }
        tracing::info!(%workload, %connection, "a proxy is connected");
        if let Some(former) = self.audience.welcome(connection, contact, now.clock) {
            former.dismiss("a newer stream of the same workload takes its place".to_owned());
        }
        let (id, not_after) = (peer.id, peer.not_after);
        self.certifier.note(Signed { workload: workload.clone(), id, not_after });
        self.presence.arrive(&workload, connection);
        // One that has yet to learn its ports withdraws nothing: what was there before it stays
        // until it says where it listens, or for the grace.
        let serves = self.mesh.workload(&workload).is_some_and(|w| !w.ports.is_empty());
        if listeners.is_empty() && serves {
            if self.mesh.listeners(&workload).is_some() {
                let until = now.clock + self.times.grace;
                self.presence.doubt(&workload, until);
            }
        } else {
            self.listen(&workload, Some(listeners), now);
        }
        self.subscribe(connection, services);
    }

    fn listeners(&mut self, connection: ConnectionId, listeners: &[InboundListener], now: Now) {
        let Some(contact) = self.audience.contact(connection) else {
            return;
        };
        let workload = contact.workload.clone();
        self.presence.arrive(&workload, connection);
        self.listen(&workload, Some(in_order(listeners)), now);
    }

    /// Subscribes, and answers: even without services, since the plan is an answer too.
    fn subscribe(&mut self, connection: ConnectionId, services: Vec<ServiceName>) {
        let Some(contact) = self.audience.contact(connection) else {
            return;
        };
        for service in services {
            if contact.subscriptions.len() >= self.limits.subscriptions {
                tracing::warn!(workload = %contact.workload, "it uses too many services");
                break;
            }
            contact.subscriptions.insert(service);
        }
        let settling = self.start.settling();
        self.audience.answer(connection, &self.mesh, settling);
    }

    fn unsubscribe(&mut self, connection: ConnectionId, services: &[ServiceName]) {
        let Some(contact) = self.audience.contact(connection) else {
            return;
        };
        for service in services {
            contact.subscriptions.remove(service);
        }
        let settling = self.start.settling();
        self.audience.answer(connection, &self.mesh, settling);
    }

    fn join(&mut self, joining: Joining, now: Now) {
        let workload = self.mesh.workload(&joining.workload);
        let account = workload.map(|workload| workload.account.clone());
        self.certifier.join(joining, account, now.wall);
    }

    fn certify(
        &mut self,
        connection: ConnectionId,
        csr: Vec<u8>,
        answer: CertificateAnswer,
        now: Now,
    ) {
        let contact = self.audience.contact(connection);
        let Some(name) = contact.map(|contact| contact.workload.clone()) else {
            return;
        };
        match self.mesh.workload(&name) {
            Some(workload) => {
                self.certifier.renew((connection, workload), csr, answer, now.wall);
            }
            None => self.certifier.refuse(answer, CertifyError::UnknownWorkload(name)),
        }
    }

    /// The stream of a proxy lasts as long as the certificate that it got over that very stream.
    fn signed(&mut self, signed: &Signed, occasion: Occasion) {
        tracing::info!(workload = %signed.workload, id = %signed.id, "signed a certificate");
        if let Occasion::Renewal(connection) = occasion
            && let Some(contact) = self.audience.contact(connection)
        {
            contact.expires = signed.not_after;
        }
    }

    fn left(&mut self, connection: ConnectionId, now: Now) {
        let Some(contact) = self.audience.part(connection, now.clock) else {
            return;
        };
        tracing::info!(workload = %contact.workload, %connection, "a proxy has left");
        let until = now.clock + self.times.grace;
        self.presence.miss(&contact.workload, connection, until);
    }

    fn dismiss(&mut self, connection: ConnectionId, reason: String, now: Now) {
        if let Some(contact) = self.audience.part(connection, now.clock) {
            tracing::warn!(workload = %contact.workload, %reason, "a proxy has to go");
            let until = now.clock + self.times.grace;
            self.presence.miss(&contact.workload, connection, until);
            contact.dismiss(reason);
        }
    }

    fn listen(&mut self, workload: &WorkloadName, listeners: Option<Listeners>, now: Now) {
        let touched = self.mesh.listen(workload, listeners);
        if !touched.is_empty() {
            self.audience.notice(&touched, &self.mesh, now.clock);
        }
    }

    /// Ends streams whose certificate has expired, or whose task is gone.
    fn sweep(&mut self, now: Now) {
        let expired = |contact: &Contact| contact.expires <= now.wall;
        let ended: Vec<(ConnectionId, bool)> = self
            .audience
            .contacts()
            .filter(|(_, contact)| expired(contact) || contact.is_gone())
            .map(|(connection, contact)| (connection, contact.is_gone()))
            .collect();
        for (connection, gone) in ended {
            match gone {
                true => self.left(connection, now),
                false => self.dismiss(connection, EXPIRED.to_owned(), now),
            }
        }
    }

    fn farewell(&mut self, now: Now) {
        let all: Vec<ConnectionId> = self.audience.contacts().map(|(id, _)| id).collect();
        for connection in all {
            if let Some(contact) = self.audience.part(connection, now.clock) {
                contact.dismiss("the control plane is shutting down".to_owned());
            }
        }
    }

    fn tell(&mut self, now: Now) {
        let status = Arc::new(self.report(now).status());
        self.told.status.send_if_modified(|last| {
            let news = !same_but_for_age(last, &status);
            if news {
                *last = status;
            }
            news
        });
        let registered = self.mesh.workloads().filter(|w| self.mesh.is_registered(w));
        let registered: BTreeSet<WorkloadName> = registered.map(|w| w.name.clone()).collect();
        self.told.registered.send_if_modified(|last| {
            let news = **last != registered;
            if news {
                *last = Arc::new(registered);
            }
            news
        });
    }

    fn report(&self, now: Now) -> Report<'_> {
        Report {
            mesh: &self.mesh,
            audience: &self.audience,
            presence: &self.presence,
            start: &self.start,
            certifier: &self.certifier,
            remarks: &self.remarks,
            now: now.clock,
            wall: now.wall,
        }
    }

    fn answer(&self, question: Question, now: Now) -> Answer {
        let report = self.report(now);
        let json = match question {
            Question::Metrics => {
                return Answer::Text(crate::metrics::expose(&report, &self.gauges));
            }
            Question::Certificates => serde_json::to_value(report.certificates()),
            Question::Policies => serde_json::to_value(report.policies()),
            Question::Proxies => serde_json::to_value(report.proxies()),
            Question::Rejected => Ok(report.rejected()),
            Question::Routes => serde_json::to_value(report.routes()),
            Question::Services => serde_json::to_value(report.services()),
            Question::Status => serde_json::to_value(report.status()),
            Question::Workloads => serde_json::to_value(report.workloads()),
        };
        Answer::Json(json.unwrap_or_default())
    }
}

fn in_order(listeners: &[InboundListener]) -> Listeners {
    let pairs = listeners.iter().map(|listener| (listener.port, listener.address));
    pairs.collect()
}

fn same_but_for_age(one: &Status, other: &Status) -> bool {
    let mut aged = one.clone();
    if let (Some(aged), Some(other)) = (&mut aged.change, &other.change) {
        aged.age_ms = other.age_ms;
    }
    aged == *other
}

/// How often streams are checked that should have ended by themselves.
const SWEEP_EVERY: Duration = Duration::from_secs(15);

/// How long tellings are put off, so that a storm of events is told of once.
const TELL_AFTER: Duration = Duration::from_millis(10);

const EXPIRED: &str = "the certificate of this proxy has expired: renew it";
