//! The one task that owns the mesh: `next` waits, `apply` handles.

mod admin_query;
mod claims;
mod keys;
mod other_replicas;
mod pending_registrations;
mod proxies;
mod sidecars;
mod subscriptions;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_discovery::{
    ConnectionId, ConnectionTurn, Event, InboundListener, QueuedEvent, RegisteredSidecars,
};
use leno_model::{
    Change, MeshConfig, MetricsPush, Object, ObjectKey, SidecarFacts, TrustDomain, Workload,
    WorkloadName,
};
use leno_registry::RegistryUpdate;
use leno_telemetry::LogLimits;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::applications::Applications;
use crate::authority::{AuthorityReceiver, RevokedWorkloads};
use crate::certify::{Certifier, CertifierEvent};
use crate::config::{Limits, Times};
use crate::history::History;
use crate::keys::{ActiveKeySources, FetchOutcome, JwksFetches, KeyUpdate};
use crate::mesh::{AffectedSet, Listeners, Mesh};
use crate::peers::Peers;
use crate::presence::{Presence, StartupGrace};
use crate::publish::{ChangeCause, ConnectedProxies, ConnectedProxy, ObjectEdit};
use crate::replaced::ReplacedRejections;
use crate::server::{Gauges, PendingConnections};
use crate::status::Status;
use crate::watch::Diagnostics;

pub(crate) use admin_query::{AdminQuery, AdminResponse, SidecarLocation};
pub(crate) use pending_registrations::PendingRegistration;

/// The owner of the mesh and of all state that belongs to this task.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) times: Times,
    pub(crate) limits: Limits,
    pub(crate) mesh: Mesh,
    pub(crate) connected: ConnectedProxies,
    pub(crate) presence: Presence,
    pub(crate) start: StartupGrace,
    pub(crate) certifier: Certifier,
    /// Joins that wait for their workload to become known.
    pub(crate) pending_registrations: Vec<PendingRegistration>,
    pub(crate) diagnostics: Diagnostics,
    pub(crate) keys: JwksFetches,
    pub(crate) pending_connections: Arc<PendingConnections>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) sent: OwnerOutputs,
    pub(crate) peers: Peers,
    pub(crate) swept: Instant,
    pub(crate) queues: Queues,
    pub(crate) history: History,
    /// The interval of sidecars' traffic reports.
    pub(crate) report_interval: Option<Duration>,
    /// The time zero of the traffic history.
    pub(crate) began: Instant,
    /// Proxies with a response that is compiled in slices, each with its turn.
    pub(crate) unfinished: VecDeque<(ConnectionId, ConnectionTurn)>,
    /// Log limits, by verified identity.
    pub(crate) logs: LogLimits<String>,
    /// The URL of the page.
    pub(crate) page: Option<String>,
    /// The URL of live requests on the page.
    pub(crate) live: Option<String>,
    /// Applications run by this machine's supervisor.
    pub(crate) applications: Applications,
    /// Replaced sidecars.
    pub(crate) replaced: ReplacedRejections,
    /// True if a supervisor in this process runs the sidecar of each workload.
    pub(crate) supervised: bool,
    /// True in Kubernetes.
    pub(crate) kubernetes: bool,
}

/// Lengths of the owner's queues, as of its last check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Queues {
    pub(crate) updates: usize,
    pub(crate) events: usize,
    pub(crate) queries: usize,
}

/// The owner's input queues; all are bounded.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) updates: mpsc::Receiver<RegistryUpdate>,
    pub(crate) events: mpsc::Receiver<QueuedEvent>,
    pub(crate) queries: mpsc::Receiver<(AdminQuery, oneshot::Sender<AdminResponse>)>,
    pub(crate) authority: AuthorityReceiver,
    pub(crate) revoked: watch::Receiver<RevokedWorkloads>,
    pub(crate) keys: mpsc::Receiver<KeyUpdate>,
    /// The last query, after shutdown, for the final metrics export.
    pub(crate) last: oneshot::Receiver<(AdminQuery, oneshot::Sender<AdminResponse>)>,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Values that other tasks watch.
#[derive(Debug, Default)]
pub(crate) struct OwnerOutputs {
    pub(crate) workloads: watch::Sender<Arc<Vec<Workload>>>,
    pub(crate) registered: watch::Sender<Arc<BTreeSet<WorkloadName>>>,
    pub(crate) status: watch::Sender<Arc<Status>>,
    /// The JWKS endpoints in use.
    pub(crate) keys: watch::Sender<ActiveKeySources>,
    /// The destination of metrics exports.
    pub(crate) metrics: watch::Sender<Option<Box<MetricsPush>>>,
    /// Facts about sidecars for the cluster; updated while there is a receiver.
    pub(crate) sidecar_facts: watch::Sender<Arc<SidecarFacts>>,
    /// Sidecars connected here, for other control planes; updated while there is a receiver.
    pub(crate) here: watch::Sender<Arc<RegisteredSidecars>>,
    /// The time of the next report to watchers: one report covers many events.
    pub(crate) due: Option<Instant>,
    /// The earliest time of the next report: reports take a limited share of the owner's time, however frequent
    /// events are.
    pub(crate) not_before: Option<Instant>,
}

/// An event for the owner.
enum OwnerEvent {
    Update(RegistryUpdate),
    Event(QueuedEvent),
    /// The next slice of a response.
    Slice,
    Question(AdminQuery, oneshot::Sender<AdminResponse>),
    Certifier(CertifierEvent),
    /// The generation in which certificates are issued from now on.
    CaGeneration(u64),
    /// The complete set of workloads revoked by `leno revoke`.
    Revoked(RevokedWorkloads),
    Keys(KeyUpdate),
    Clock,
    Stop,
}

/// The time of an event.
#[derive(Clone, Copy)]
struct EventTime {
    clock: Instant,
    wall: SystemTime,
}

/// The state of an event: handled, or its proxy's response is compiled in slices.
enum EventHandling {
    Handled,
    InSlices(ConnectionId),
}

/// Continue or stop.
#[derive(PartialEq, Eq)]
enum LoopControl {
    Continue,
    Stop,
}

impl EventTime {
    fn read() -> Self {
        Self { clock: Instant::now(), wall: SystemTime::now() }
    }
}

/// Owns the mesh until shutdown; then ends the streams of all proxies.
pub(crate) async fn run_owner(mut owner: Owner, mut inbox: Inbox) {
    loop {
        let input = owner.next(&mut inbox).await;
        if owner.apply_input(input, EventTime::read()) == LoopControl::Stop {
            break;
        }
    }
    // The metrics export gets the same stop signal, and either queries or ends at once.
    if let Ok((query, answer)) = inbox.last.await {
        drop(answer.send(owner.handle_query(query, EventTime::read())));
    }
}

impl Owner {
    /// Applies the first facts, before watchers and proxies connect.
    pub(crate) fn with_first_update(
        mut self,
        first: RegistryUpdate,
        keys: Vec<KeyUpdate>,
        trust_domain: &TrustDomain,
        ca_generation: u64,
        revoked: RevokedWorkloads,
    ) -> Self {
        let now = EventTime::read();
        self.mesh.issue_in(ca_generation);
        self.mesh.set_revocations(revoked);
        self.mesh.apply(Change::Upsert(Object::MeshConfig(MeshConfig {
            trust_domain: trust_domain.clone(),
            ..MeshConfig::default()
        })));
        self.apply_update(first, now);
        keys.into_iter().for_each(|key_update| self.keys_read(key_update, now));
        self.publish_state(now);
        self
    }

    async fn next(&mut self, inbox: &mut Inbox) -> OwnerEvent {
        self.queues = Queues {
            updates: inbox.updates.len(),
            events: inbox.events.len(),
            queries: inbox.queries.len(),
        };
        let wake = self.wake_at();
        let has_slices = !self.unfinished.is_empty();
        tokio::select! {
            Some(update) = inbox.updates.recv() => OwnerEvent::Update(update),
            Some(event) = inbox.events.recv() => OwnerEvent::Event(event),
            Some((query, answer)) = inbox.queries.recv() => OwnerEvent::Question(query, answer),
            Ok(()) = inbox.authority.changed() => {
                OwnerEvent::CaGeneration(inbox.authority.borrow_and_update().ca_generation())
            }
            Ok(()) = inbox.revoked.changed() => {
                OwnerEvent::Revoked(inbox.revoked.borrow_and_update().clone())
            }
            Some(key_update) = inbox.keys.recv() => OwnerEvent::Keys(key_update),
            () = std::future::ready(()), if has_slices => OwnerEvent::Slice,
            done = self.certifier.next() => OwnerEvent::Certifier(done),
            () = tokio::time::sleep_until(wake) => OwnerEvent::Clock,
            _ = inbox.stop.wait_for(|stop| *stop) => OwnerEvent::Stop,
        }
    }

    fn wake_at(&self) -> Instant {
        let sweep = self.swept + SWEEP_EVERY;
        let times = [
            self.connected.due_at(),
            self.presence.next_loss(),
            self.start.latest_end(),
            self.sent.due,
            self.max_wait_ends(),
        ];
        times.into_iter().flatten().fold(sweep, Instant::min)
    }

    fn apply_input(&mut self, input: OwnerEvent, now: EventTime) -> LoopControl {
        // Traffic reports do not change the watched values; nor do fetches without new keys.
        let is_quiet = match &input {
            OwnerEvent::Clock | OwnerEvent::Slice | OwnerEvent::Question(..) => true,
            OwnerEvent::Event(QueuedEvent {
                event: Event::Traffic { .. } | Event::Reported { .. },
                ..
            }) => true,
            OwnerEvent::Keys(key_update) => {
                matches!(key_update.fetched, FetchOutcome::Same | FetchOutcome::Failed(_))
            }
            _ => false,
        };
        if !is_quiet {
            self.tell_soon(now);
        }
        match input {
            OwnerEvent::Update(update) => self.apply_update(update, now),
            OwnerEvent::Event(QueuedEvent { event, turn }) => {
                let before = self.connected.total_work();
                let progress = self.handle_event(event, now);
                self.charge_turn(progress, before, turn, now);
            }
            OwnerEvent::Slice => {
                if let Some((connection, turn)) = self.unfinished.pop_front() {
                    let before = self.connected.total_work();
                    let progress = self.continue_response(connection);
                    self.charge_turn(progress, before, turn, now);
                }
            }
            OwnerEvent::Question(query, answer) => {
                // The client may have disconnected, before or meanwhile.
                if !answer.is_closed() {
                    drop(answer.send(self.handle_query(query, now)));
                }
            }
            OwnerEvent::Certifier(CertifierEvent::Signed(signed, occasion)) => {
                self.handle_signed(&signed, occasion, now)
            }
            OwnerEvent::Certifier(CertifierEvent::Reviewed(reviewed)) => {
                self.handle_review(reviewed, now)
            }
            OwnerEvent::CaGeneration(ca_generation) => {
                let affected_set = self.mesh.issue_in(ca_generation);
                if !affected_set.is_empty() {
                    self.connected.record_change(
                        &affected_set,
                        &self.mesh,
                        ChangeCause::Authority,
                        now.clock,
                        now.clock,
                    );
                }
            }
            OwnerEvent::Revoked(revoked) => self.apply_revocations(revoked, now),
            OwnerEvent::Keys(key_update) => self.keys_read(key_update, now),
            OwnerEvent::Clock => {}
            OwnerEvent::Stop => {
                self.shutdown(now);
                return LoopControl::Stop;
            }
        }
        self.handle_due(now);
        LoopControl::Continue
    }

    /// Charges a connection for the work of its turn, and keeps the turn while there is more to do.
    fn charge_turn(
        &mut self,
        progress: EventHandling,
        before: u64,
        turn: ConnectionTurn,
        now: EventTime,
    ) {
        let done = self.connected.total_work().saturating_sub(before);
        turn.charge(EVENT_UNITS.saturating_add(done), now.clock);
        if let EventHandling::InSlices(connection) = progress {
            self.unfinished.push_back((connection, turn));
        }
    }

    fn tell_soon(&mut self, now: EventTime) {
        let soon = now.clock + TELL_AFTER;
        let due = self.sent.not_before.map_or(soon, |earliest| earliest.max(soon));
        self.sent.due.get_or_insert(due);
    }

    /// Handles everything that is due now, independent of the event.
    fn handle_due(&mut self, now: EventTime) {
        for workload in self.presence.take_lost(now.clock) {
            tracing::info!(%workload, "the sidecar did not reconnect: its endpoints are withdrawn");
            self.set_listeners(&workload, None, now);
        }
        for workload in self.presence.take_given_up(now.clock) {
            let affected_set = self.mesh.give_up(&workload);
            if !affected_set.is_empty() {
                tracing::warn!(%workload, "the port or account changed, and the sidecar has not reconnected: requests no longer wait for it");
                self.connected.record_change(
                    &affected_set,
                    &self.mesh,
                    ChangeCause::Gone(workload),
                    now.clock,
                    now.clock,
                );
            }
        }
        if self.start.check_end(&self.mesh, now.clock) {
            tracing::info!(
                "startup grace period ended: all expected sidecars reconnected, or are no longer awaited"
            );
            self.tell_soon(now);
            self.connected.update_all(&self.mesh, self.start.grace_state());
        }
        if self.connected.due_at().is_some_and(|due| due <= now.clock) {
            self.connected.publish(&self.mesh, self.start.grace_state(), now.clock);
        }
        if self.max_wait_ends().is_some_and(|until| until <= now.clock) {
            self.consider_all(now);
        }
        if self.swept + SWEEP_EVERY <= now.clock {
            self.swept = now.clock;
            self.end_expired_streams(now);
        }
        if self.sent.due.is_some_and(|due| due <= now.clock) {
            self.sent.due = None;
            let began = Instant::now();
            self.publish_state(now);
            let ended = Instant::now();
            self.sent.not_before = Some(ended + ended.duration_since(began) * TELL_PAUSE);
        }
    }

    fn apply_update(&mut self, update: RegistryUpdate, now: EventTime) {
        let trust_domain = self.mesh.config().trust_domain.clone();
        let noticed = update.noticed.map_or(now.clock, Instant::from_std);
        let changes = self.diagnostics.process_update(update, &trust_domain);
        if changes.is_empty() {
            return;
        }
        let mut affected_set = AffectedSet::default();
        let mut workloads = BTreeSet::new();
        let count = changes.len();
        let mut first = None;
        for change in changes {
            let key = match &change {
                Change::Upsert(object) => object.object_key(),
                Change::Remove(key) => key.clone(),
            };
            tracing::debug!(object = %key, "changed");
            first.get_or_insert_with(|| (key.clone(), ObjectEdit::from_change(&change)));
            if let ObjectKey::Workload(name) = key {
                workloads.insert(name);
            }
            affected_set.merge(self.mesh.apply(change));
        }
        let cause = match first {
            Some((key, edit)) if count > 1 => ChangeCause::Objects(count, key, edit),
            Some((key, edit)) => ChangeCause::Object(key, edit),
            None => return,
        };
        self.want_keys();
        self.want_metrics();
        self.connected.record_change(&affected_set, &self.mesh, cause, noticed, now.clock);
        tracing::info!(
            changes = count,
            id = self.connected.newest_change().0,
            "the configuration has changed"
        );
        for name in workloads.iter().filter(|name| self.mesh.has_changed(name)) {
            self.presence.expect_sidecar(name, now.clock + CHANGED_MAX);
        }
        let any_workload = !workloads.is_empty();
        if affected_set.all_proxies {
            // Some of them may be revoked.
            workloads.extend(self.connected.connected_workloads());
        }
        for name in &workloads {
            self.check_claim(name, now);
        }
        for name in workloads {
            // Another control plane may have read the files first.
            if self.connected.of_workload(&name).is_none() {
                self.apply_registration(&name, now);
            }
        }
        if any_workload {
            let all = self.mesh.workloads().cloned().collect();
            self.sent.workloads.send_replace(Arc::new(all));
            self.consider_all(now);
        }
    }

    fn handle_event(&mut self, event: Event, now: EventTime) -> EventHandling {
        match event {
            Event::Connected(connected) => return self.handle_connected(*connected, now),
            Event::Listeners { connection, listeners } => {
                self.update_listeners(connection, &listeners, now)
            }
            Event::Reported { connection, report } => {
                if let Some(proxy) = self.connected.proxy_mut(connection) {
                    proxy.report = *report;
                }
            }
            Event::SubscriptionsChanged { connection, change } => {
                return self.change_subscriptions(connection, *change, now);
            }
            Event::Applied { connection, change, refused, bytes } => {
                self.connected.record_applied(connection, change, refused, bytes, now.clock);
            }
            Event::Rejected { connection, refusals } => {
                self.record_rejections(connection, refusals, now)
            }
            Event::Traffic { connection, traffic } => {
                let at = now.clock.duration_since(self.began);
                if let Some(proxy) = self.connected.proxy_mut(connection) {
                    self.history.record_report(&self.mesh, &proxy.workload, &traffic, at);
                }
            }
            Event::CertificateRequested { connection, csr, answer } => {
                self.renew_certificate(connection, csr, answer, now);
            }
            Event::JoinRequested(joining) => self.join(joining, now),
            Event::Disconnected { connection } => self.handle_disconnect(connection, now),
            // The report follows every event.
            Event::PeerArrived => {}
            Event::OtherReplica { connection, here, gone } => {
                self.other_replicas(connection, here, &gone, now);
            }
            Event::PeerLeft { connection } => {
                for workload in self.peers.remove_peer(connection).keys() {
                    self.handle_stream_end(workload, connection, now);
                }
            }
        }
        EventHandling::Handled
    }

    fn set_listeners(
        &mut self,
        workload: &WorkloadName,
        listeners: Option<Listeners>,
        now: EventTime,
    ) {
        let cause = match listeners {
            Some(_) => ChangeCause::ListenersChanged(workload.clone()),
            None => ChangeCause::Gone(workload.clone()),
        };
        let affected_set = self.mesh.set_listeners(workload, listeners);
        if !affected_set.is_empty() {
            self.connected.record_change(&affected_set, &self.mesh, cause, now.clock, now.clock);
        }
    }

    /// Ends streams with an expired certificate or an ended task.
    fn end_expired_streams(&mut self, now: EventTime) {
        self.history.evict_expired(&self.mesh, now.clock.duration_since(self.began));
        let expired = |proxy: &ConnectedProxy| proxy.expires <= now.wall;
        let ended: Vec<(ConnectionId, bool)> = self
            .connected
            .proxies()
            .filter(|(_, proxy)| expired(proxy) || proxy.is_gone())
            .map(|(connection, proxy)| (connection, proxy.is_gone()))
            .collect();
        for (connection, gone) in ended {
            match gone {
                true => self.handle_disconnect(connection, now),
                false => self.dismiss_proxy(connection, EXPIRED.to_owned(), now),
            }
        }
    }

    fn shutdown(&mut self, now: EventTime) {
        let all: Vec<ConnectionId> = self.connected.proxies().map(|(id, _)| id).collect();
        for connection in all {
            if let Some(proxy) = self.connected.remove_proxy(connection, now.clock) {
                proxy.end_connection("the control plane is shutting down".to_owned());
            }
        }
    }
}

fn in_order(listeners: &[InboundListener]) -> Listeners {
    let pairs = listeners.iter().map(|listener| (listener.port, listener.address));
    pairs.collect()
}

/// The interval of checks for streams that should have ended by themselves.
const SWEEP_EVERY: Duration = Duration::from_secs(15);

/// The time after a change of a workload's port or account in which requests wait for its sidecar: the old
/// sidecar drains, the application ends, and the new sidecar starts.
const CHANGED_MAX: Duration = Duration::from_secs(30);

/// The delay of reports to watchers, so that a burst of events causes one report.
const TELL_AFTER: Duration = Duration::from_millis(10);

/// The pause after a report to all watchers, in multiples of its duration: reports take less than a tenth of
/// the time.
const TELL_PAUSE: u32 = 10;

/// The base cost of an event in a connection's budget, without the counted work.
const EVENT_UNITS: u64 = 32;

const EXPIRED: &str = "the certificate of this proxy has expired: renew it";
