//! The one task that owns the mesh: `next` waits, `apply` decides.

mod answers;
mod applicants;
mod claims;
mod elsewhere;
mod keys;
mod proxies;
mod sidecars;
mod wishes;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_discovery::{ConnectionId, Event, InboundListener, Queued, Registered, Turn};
use leno_model::{
    Change, MeshConfig, MetricsPush, Object, ObjectKey, SidecarFacts, TrustDomain, Workload,
    WorkloadName,
};
use leno_registry::Update;
use leno_telemetry::LogLimits;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::applications::Applications;
use crate::authority::{Current, Revoked};
use crate::certify::{Certifier, Done};
use crate::config::{Limits, Times};
use crate::history::History;
use crate::keys::{KeyNews, KeyReadings, Reading, Wanted};
use crate::mesh::{Listeners, Mesh, Touched};
use crate::peers::Peers;
use crate::presence::{Presence, Start};
use crate::publish::{Audience, Cause, Contact, Edit};
use crate::replaced::Replaced;
use crate::server::{Gauges, Visitors};
use crate::status::Status;
use crate::watch::Remarks;

pub(crate) use answers::{Answer, Question, SidecarPlace};
pub(crate) use applicants::Applicant;

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
    /// Those who wait for their workload to be known.
    pub(crate) applicants: Vec<Applicant>,
    pub(crate) remarks: Remarks,
    pub(crate) keys: KeyReadings,
    pub(crate) visitors: Arc<Visitors>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) told: Told,
    pub(crate) peers: Peers,
    pub(crate) swept: Instant,
    pub(crate) queues: Queues,
    pub(crate) history: History,
    /// How often sidecars tell of their traffic.
    pub(crate) report_every: Option<Duration>,
    /// When time begins, for what is remembered of traffic.
    pub(crate) began: Instant,
    /// Proxies with an answer that is compiled in slices, each with its turn.
    pub(crate) unfinished: VecDeque<(ConnectionId, Turn)>,
    /// The log lines that each proxy may cause, by its verified identity.
    pub(crate) logs: LogLimits<String>,
    /// Where the page is.
    pub(crate) page: Option<String>,
    /// What to open there for live requests.
    pub(crate) live: Option<String>,
    /// The applications that a supervisor on this machine runs.
    pub(crate) applications: Applications,
    /// Sidecars that another one replaced.
    pub(crate) replaced: Replaced,
    /// A supervisor in this process runs the sidecar of each workload.
    pub(crate) supervised: bool,
    /// It runs in Kubernetes.
    pub(crate) kubernetes: bool,
}

/// What waits for the owner, as of its last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Queues {
    pub(crate) updates: usize,
    pub(crate) events: usize,
    pub(crate) questions: usize,
}

/// Where the owner reads from; every queue is bounded.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) updates: mpsc::Receiver<Update>,
    pub(crate) events: mpsc::Receiver<Queued>,
    pub(crate) questions: mpsc::Receiver<(Question, oneshot::Sender<Answer>)>,
    pub(crate) authority: Current,
    pub(crate) revoked: watch::Receiver<Revoked>,
    pub(crate) keys: mpsc::Receiver<KeyNews>,
    /// What is asked when all is over, unless nobody wants to know.
    pub(crate) last: oneshot::Receiver<(Question, oneshot::Sender<Answer>)>,
    pub(crate) stop: watch::Receiver<bool>,
}

/// What everybody may watch.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) workloads: watch::Sender<Arc<Vec<Workload>>>,
    pub(crate) registered: watch::Sender<Arc<BTreeSet<WorkloadName>>>,
    pub(crate) status: watch::Sender<Arc<Status>>,
    /// Where keys of issuers are to be read.
    pub(crate) keys: watch::Sender<Wanted>,
    /// Where metrics are to be pushed.
    pub(crate) metrics: watch::Sender<Option<Box<MetricsPush>>>,
    /// Facts about sidecars for the cluster; up to date while one listens.
    pub(crate) sidecar_facts: watch::Sender<Arc<SidecarFacts>>,
    /// Who is connected here, for other control planes; up to date while one listens.
    pub(crate) here: watch::Sender<Arc<Registered>>,
    /// When the next telling is due: after many events at once there is one.
    pub(crate) due: Option<Instant>,
    /// The next one is not due before this: reports take a share of the owner's time, however often
    /// something happens.
    pub(crate) not_before: Option<Instant>,
}

/// Something that happened.
enum Input {
    Update(Update),
    Event(Queued),
    /// The next slice of an answer.
    Slice,
    Question(Question, oneshot::Sender<Answer>),
    Certifier(Done),
    /// Certificates are issued in this edition from now on.
    Edition(u64),
    /// These workloads are revoked from now on, and no others by `leno revoke`.
    Revoked(Revoked),
    Keys(KeyNews),
    Clock,
    Stop,
}

/// When it happened.
#[derive(Clone, Copy)]
struct Now {
    clock: Instant,
    wall: SystemTime,
}

/// The state of an event: handled, or its proxy is answered in slices.
enum Answered {
    AtOnce,
    InSlices(ConnectionId),
}

/// Whether the owner goes on.
#[derive(PartialEq, Eq)]
enum Verdict {
    GoOn,
    Stop,
}

impl Now {
    fn read() -> Self {
        Self { clock: Instant::now(), wall: SystemTime::now() }
    }
}

/// Owns the mesh until told to stop; then says goodbye to every proxy.
pub(crate) async fn own(mut owner: Owner, mut inbox: Inbox) {
    loop {
        let input = owner.next(&mut inbox).await;
        if owner.apply(input, Now::read()) == Verdict::Stop {
            break;
        }
    }
    // Whoever may want to know is told to stop as well, and asks or goes at once.
    if let Ok((question, answer)) = inbox.last.await {
        drop(answer.send(owner.answer(question, Now::read())));
    }
}

impl Owner {
    /// With the first facts, before anybody watches or connects.
    pub(crate) fn with(
        mut self,
        (first, keys): (Update, Vec<KeyNews>),
        trust_domain: &TrustDomain,
        edition: u64,
        revoked: Revoked,
    ) -> Self {
        let now = Now::read();
        self.mesh.issue_in(edition);
        self.mesh.revoke(revoked);
        self.mesh.apply(Change::Upsert(Object::MeshConfig(MeshConfig {
            trust_domain: trust_domain.clone(),
            ..MeshConfig::default()
        })));
        self.update(first, now);
        keys.into_iter().for_each(|news| self.keys_read(news, now));
        self.tell(now);
        self
    }

    async fn next(&mut self, inbox: &mut Inbox) -> Input {
        self.queues = Queues {
            updates: inbox.updates.len(),
            events: inbox.events.len(),
            questions: inbox.questions.len(),
        };
        let wake = self.wake_at();
        let has_slices = !self.unfinished.is_empty();
        tokio::select! {
            Some(update) = inbox.updates.recv() => Input::Update(update),
            Some(event) = inbox.events.recv() => Input::Event(event),
            Some((question, answer)) = inbox.questions.recv() => Input::Question(question, answer),
            Ok(()) = inbox.authority.changed() => {
                Input::Edition(inbox.authority.borrow_and_update().edition())
            }
            Ok(()) = inbox.revoked.changed() => {
                Input::Revoked(inbox.revoked.borrow_and_update().clone())
            }
            Some(news) = inbox.keys.recv() => Input::Keys(news),
            () = std::future::ready(()), if has_slices => Input::Slice,
            done = self.certifier.next() => Input::Certifier(done),
            () = tokio::time::sleep_until(wake) => Input::Clock,
            _ = inbox.stop.wait_for(|stop| *stop) => Input::Stop,
        }
    }

    fn wake_at(&self) -> Instant {
        let sweep = self.swept + SWEEP_EVERY;
        let times = [
            self.audience.due_at(),
            self.presence.next_loss(),
            self.start.until(),
            self.told.due,
            self.patience_ends(),
        ];
        times.into_iter().flatten().fold(sweep, Instant::min)
    }

    fn apply(&mut self, input: Input, now: Now) -> Verdict {
        // What traffic there is changes nothing that is told; nor do readings that bring no keys.
        let is_quiet = match &input {
            Input::Clock | Input::Slice | Input::Question(..) => true,
            Input::Event(Queued {
                event: Event::Traffic { .. } | Event::Reported { .. }, ..
            }) => true,
            Input::Keys(news) => matches!(news.reading, Reading::Same | Reading::Failed(_)),
            _ => false,
        };
        if !is_quiet {
            self.tell_soon(now);
        }
        match input {
            Input::Update(update) => self.update(update, now),
            Input::Event(Queued { event, turn }) => {
                let before = self.audience.work();
                let progress = self.event(event, now);
                self.turned(progress, before, turn, now);
            }
            Input::Slice => {
                if let Some((connection, turn)) = self.unfinished.pop_front() {
                    let before = self.audience.work();
                    let progress = self.satisfy(connection);
                    self.turned(progress, before, turn, now);
                }
            }
            Input::Question(question, answer) => {
                // Whoever asked may have gone, before or meanwhile.
                if !answer.is_closed() {
                    drop(answer.send(self.answer(question, now)));
                }
            }
            Input::Certifier(Done::Signed(signed, occasion)) => self.signed(&signed, occasion, now),
            Input::Certifier(Done::Reviewed(reviewed)) => self.reviewed(reviewed, now),
            Input::Edition(edition) => {
                let touched = self.mesh.issue_in(edition);
                if !touched.is_empty() {
                    let cause = (Cause::Authority, now.clock);
                    self.audience.notice(&touched, &self.mesh, cause, now.clock);
                }
            }
            Input::Revoked(revoked) => self.revoke(revoked, now),
            Input::Keys(news) => self.keys_read(news, now),
            Input::Clock => {}
            Input::Stop => {
                self.farewell(now);
                return Verdict::Stop;
            }
        }
        self.pass(now);
        Verdict::GoOn
    }

    /// Charges a connection for the work of its turn, and keeps the turn while there is more to do.
    fn turned(&mut self, progress: Answered, before: u64, turn: Turn, now: Now) {
        let done = self.audience.work().saturating_sub(before);
        turn.charge(EVENT_UNITS.saturating_add(done), now.clock);
        if let Answered::InSlices(connection) = progress {
            self.unfinished.push_back((connection, turn));
        }
    }

    fn tell_soon(&mut self, now: Now) {
        let soon = now.clock + TELL_AFTER;
        let due = self.told.not_before.map_or(soon, |earliest| earliest.max(soon));
        self.told.due.get_or_insert(due);
    }

    /// What is due now, whatever happened.
    fn pass(&mut self, now: Now) {
        for workload in self.presence.take_lost(now.clock) {
            tracing::info!(%workload, "its sidecar did not come back: its endpoints are withdrawn");
            self.listen(&workload, None, now);
        }
        for workload in self.presence.take_given_up(now.clock) {
            let touched = self.mesh.give_up(&workload);
            if !touched.is_empty() {
                tracing::warn!(%workload, "its port or account changed, and its sidecar is not back: requests wait no longer for it");
                let cause = (Cause::Gone(workload), now.clock);
                self.audience.notice(&touched, &self.mesh, cause, now.clock);
            }
        }
        if self.start.ends(&self.mesh, now.clock) {
            tracing::info!("the sidecars that were expected are back, or were given up");
            self.tell_soon(now);
            self.audience.reconsider(&self.mesh, self.start.settling());
        }
        if self.audience.due_at().is_some_and(|due| due <= now.clock) {
            self.audience.publish(&self.mesh, self.start.settling(), now.clock);
        }
        if self.patience_ends().is_some_and(|until| until <= now.clock) {
            self.consider_all(now);
        }
        if self.swept + SWEEP_EVERY <= now.clock {
            self.swept = now.clock;
            self.sweep(now);
        }
        if self.told.due.is_some_and(|due| due <= now.clock) {
            self.told.due = None;
            let began = Instant::now();
            self.tell(now);
            let ended = Instant::now();
            self.told.not_before = Some(ended + ended.duration_since(began) * TELL_PAUSE);
        }
    }

    fn update(&mut self, update: Update, now: Now) {
        let trust_domain = self.mesh.config().trust_domain.clone();
        let noticed = update.noticed.map_or(now.clock, Instant::from_std);
        let changes = self.remarks.take(update, &trust_domain);
        if changes.is_empty() {
            return;
        }
        let mut touched = Touched::default();
        let mut workloads = BTreeSet::new();
        let count = changes.len();
        let mut first = None;
        for change in changes {
            let key = match &change {
                Change::Upsert(object) => object.key(),
                Change::Remove(key) => key.clone(),
            };
            tracing::debug!(object = %key, "changed");
            first.get_or_insert_with(|| (key.clone(), Edit::of(&change)));
            if let ObjectKey::Workload(name) = key {
                workloads.insert(name);
            }
            touched.merge(self.mesh.apply(change));
        }
        let cause = match first {
            Some((key, edit)) if count > 1 => Cause::Objects(count, key, edit),
            Some((key, edit)) => Cause::Object(key, edit),
            None => return,
        };
        self.want_keys();
        self.want_metrics();
        self.audience.notice(&touched, &self.mesh, (cause, noticed), now.clock);
        tracing::info!(
            changes = count,
            id = self.audience.newest().0,
            "the configuration has changed"
        );
        for name in workloads.iter().filter(|name| self.mesh.has_changed(name)) {
            self.presence.expect(name, now.clock + CHANGED_MAX);
        }
        let any_workload = !workloads.is_empty();
        if touched.everybody {
            // Some of them may be revoked.
            workloads.extend(self.audience.workloads());
        }
        for name in &workloads {
            self.check_claim(name, now);
        }
        for name in workloads {
            // Another control plane may have read the files before us.
            if self.audience.of_workload(&name).is_none() {
                self.adopt(&name, now);
            }
        }
        if any_workload {
            let all = self.mesh.workloads().cloned().collect();
            self.told.workloads.send_replace(Arc::new(all));
            self.consider_all(now);
        }
    }

    fn event(&mut self, event: Event, now: Now) -> Answered {
        match event {
            Event::Connected(connected) => return self.connected(*connected, now),
            Event::Listeners { connection, listeners } => {
                self.listeners(connection, &listeners, now)
            }
            Event::Reported { connection, report } => {
                if let Some(contact) = self.audience.contact(connection) {
                    contact.report = *report;
                }
            }
            Event::Wanted { connection, change } => return self.want(connection, *change, now),
            Event::Applied { connection, change, refused, bytes } => {
                self.audience.applied(connection, (change, refused), bytes, now.clock);
            }
            Event::Refused { connection, refusals } => self.refused(connection, refusals, now),
            Event::Traffic { connection, traffic } => {
                let at = now.clock.duration_since(self.began);
                if let Some(contact) = self.audience.contact(connection) {
                    self.history.take(&self.mesh, &contact.workload, &traffic, at);
                }
            }
            Event::Certify { connection, csr, answer } => {
                self.certify(connection, csr, answer, now);
            }
            Event::Join(joining) => self.join(joining, now),
            Event::Left { connection } => self.left(connection, now),
            // Telling follows whatever happened.
            Event::PeerArrived => {}
            Event::Elsewhere { connection, here, gone } => {
                self.elsewhere(connection, here, &gone, now);
            }
            Event::PeerLeft { connection } => {
                for workload in self.peers.part(connection).keys() {
                    self.succeed(workload, connection, now);
                }
            }
        }
        Answered::AtOnce
    }

    fn listen(&mut self, workload: &WorkloadName, listeners: Option<Listeners>, now: Now) {
        let cause = match listeners {
            Some(_) => Cause::Listens(workload.clone()),
            None => Cause::Gone(workload.clone()),
        };
        let touched = self.mesh.listen(workload, listeners);
        if !touched.is_empty() {
            self.audience.notice(&touched, &self.mesh, (cause, now.clock), now.clock);
        }
    }

    /// Ends streams whose certificate has expired, or whose task is gone.
    fn sweep(&mut self, now: Now) {
        self.history.sweep(&self.mesh, now.clock.duration_since(self.began));
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
}

fn in_order(listeners: &[InboundListener]) -> Listeners {
    let pairs = listeners.iter().map(|listener| (listener.port, listener.address));
    pairs.collect()
}

/// How often streams are checked that should have ended by themselves.
const SWEEP_EVERY: Duration = Duration::from_secs(15);

/// The time after a change of a workload's port or account in which requests wait for its sidecar: the old sidecar drains, the
/// application ends, and the new sidecar starts.
const CHANGED_MAX: Duration = Duration::from_secs(30);

/// How long tellings are put off, so that a storm of events is told of once.
const TELL_AFTER: Duration = Duration::from_millis(10);

/// The pause after a report to all watchers, in multiples of its duration: reports take less than a
/// tenth of the time.
const TELL_PAUSE: u32 = 10;

/// The cost of any event to a connection's budget, without the work that is counted.
const EVENT_UNITS: u64 = 32;

const EXPIRED: &str = "the certificate of this proxy has expired: renew it";
