//! Runs the state task: the one task with all changing state of the control plane, namely the mesh and the state of all
//! proxies. All other tasks send it events, so the state needs no locks. `next_event` waits for an event of a registry,
//! a proxy or an operator, and `apply_event` applies it without waiting.

mod admin_query;
mod claims;
mod keys;
mod other_replicas;
mod proxies;
mod sidecars;
mod subscriptions;
mod waiting_joins;

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
use crate::server::{ConnectionCounters, VerifiedConnections};
use crate::status::Status;
use crate::watch::Diagnostics;

pub(crate) use admin_query::{AdminQuery, AdminResponse, SidecarLocation};
pub(crate) use waiting_joins::WaitingJoin;

/// All state of the state task. The submodules implement how each kind of event changes it.
#[derive(Debug)]
pub(crate) struct ControlState {
    pub(crate) times: Times,
    pub(crate) limits: Limits,
    pub(crate) mesh: Mesh,
    pub(crate) connected_proxies: ConnectedProxies,
    pub(crate) presence: Presence,
    pub(crate) startup_grace: StartupGrace,
    pub(crate) certifier: Certifier,
    /// Joins that wait until a registry reports their workload.
    pub(crate) waiting_joins: Vec<WaitingJoin>,
    pub(crate) diagnostics: Diagnostics,
    /// The results of JWKS fetches, for diagnostics and metrics.
    pub(crate) jwks_fetches: JwksFetches,
    /// The connections of members and of other control planes, shared with the listener.
    pub(crate) verified_connections: Arc<VerifiedConnections>,
    pub(crate) connection_counters: Arc<ConnectionCounters>,
    pub(crate) outputs: StateOutputs,
    /// The other control planes and their sidecars.
    pub(crate) peers: Peers,
    /// The time at which expired and ended streams were last searched.
    pub(crate) last_stream_check: Instant,
    pub(crate) queues: QueueLengths,
    pub(crate) history: History,
    /// The interval of the sidecars' traffic reports; `None` if sidecars do not report traffic.
    pub(crate) report_interval: Option<Duration>,
    /// The start of the traffic history: its times are relative to this one.
    pub(crate) history_start: Instant,
    /// Proxies with a response that is compiled in slices. The work is charged to the proxy's turn in the event queue.
    pub(crate) unfinished_responses: VecDeque<(ConnectionId, ConnectionTurn)>,
    /// Log limits, by verified identity.
    pub(crate) log_limits: LogLimits<String>,
    /// The URL of the browser page; `None` without a page.
    pub(crate) page_url: Option<String>,
    /// The URL of the browser page's view of live requests; `None` without a page.
    pub(crate) live_url: Option<String>,
    /// Applications run by this machine's supervisor.
    pub(crate) applications: Applications,
    /// Rejections of replaced sidecars, which may join again.
    pub(crate) replaced_rejections: ReplacedRejections,
    /// True if a supervisor in this process runs the sidecar of each workload.
    pub(crate) supervised: bool,
    /// True if the control plane runs in Kubernetes.
    pub(crate) kubernetes: bool,
}

/// The lengths of the state task's queues when it last waited for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct QueueLengths {
    pub(crate) updates: usize,
    pub(crate) events: usize,
    pub(crate) queries: usize,
}

/// The state task's input queues; all are bounded.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) updates: mpsc::Receiver<RegistryUpdate>,
    pub(crate) events: mpsc::Receiver<QueuedEvent>,
    pub(crate) queries: mpsc::Receiver<(AdminQuery, oneshot::Sender<AdminResponse>)>,
    pub(crate) authority: AuthorityReceiver,
    pub(crate) revoked: watch::Receiver<RevokedWorkloads>,
    pub(crate) key_updates: mpsc::Receiver<KeyUpdate>,
    /// The query of the final metrics export, after the shutdown.
    pub(crate) final_query: oneshot::Receiver<(AdminQuery, oneshot::Sender<AdminResponse>)>,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Values that other tasks watch, and the times of the updates of these values.
#[derive(Debug, Default)]
pub(crate) struct StateOutputs {
    pub(crate) workloads: watch::Sender<Arc<Vec<Workload>>>,
    pub(crate) registered_workloads: watch::Sender<Arc<BTreeSet<WorkloadName>>>,
    pub(crate) status: watch::Sender<Arc<Status>>,
    /// The JWKS endpoints in use.
    pub(crate) key_sources: watch::Sender<ActiveKeySources>,
    /// The destination of metrics exports.
    pub(crate) metrics_destination: watch::Sender<Option<Box<MetricsPush>>>,
    /// Facts about sidecars for their cluster; updated while there is a receiver.
    pub(crate) sidecar_facts: watch::Sender<Arc<SidecarFacts>>,
    /// Sidecars connected here, for other control planes; updated while there is a receiver.
    pub(crate) local_sidecars: watch::Sender<Arc<RegisteredSidecars>>,
    /// The time of the next update of these values; `None` if no event has changed them. One update covers many events.
    pub(crate) next_output_update: Option<Instant>,
    /// The earliest time of the next update of these values: updates take a limited share of the state task's time,
    /// however frequent events are.
    pub(crate) earliest_output_update: Option<Instant>,
}

/// An event for the state task.
enum StateEvent {
    Update(RegistryUpdate),
    /// An event of a connection: of a proxy, a join or another control plane.
    Connection(QueuedEvent),
    /// The next slice of an unfinished response.
    Slice,
    Query(AdminQuery, oneshot::Sender<AdminResponse>),
    Certifier(CertifierEvent),
    /// The CA generation of new certificates changed.
    CaGeneration(u64),
    /// The complete set of workloads revoked by `leno revoke`.
    Revoked(RevokedWorkloads),
    Keys(KeyUpdate),
    Timer,
    Stop,
}

/// The time of an event, by the monotonic clock and by the wall clock.
#[derive(Clone, Copy)]
struct EventTime {
    clock: Instant,
    wall_time: SystemTime,
}

/// The result of handling an event: the event is handled completely, or the response to its proxy is compiled in slices
/// later.
enum EventHandling {
    Handled,
    InSlices(ConnectionId),
}

/// The decision to continue or stop the state task's loop.
#[derive(PartialEq, Eq)]
enum LoopControl {
    Continue,
    Stop,
}

impl EventTime {
    fn read() -> Self {
        Self { clock: Instant::now(), wall_time: SystemTime::now() }
    }
}

/// Applies events until shutdown; then ends the streams of all proxies.
pub(crate) async fn run_state_task(mut state: ControlState, mut inbox: Inbox) {
    loop {
        let event = state.next_event(&mut inbox).await;
        if state.apply_event(event, EventTime::read()) == LoopControl::Stop {
            break;
        }
    }
    // The metrics exporter gets the same stop signal. It either sends its final query or drops the sender at once.
    if let Ok((query, reply_sender)) = inbox.final_query.await {
        drop(reply_sender.send(state.handle_query(query, EventTime::read())));
    }
}

impl ControlState {
    /// Applies the first update of the registries, before other tasks watch the outputs and before proxies connect.
    pub(crate) fn with_first_update(
        mut self,
        first_update: RegistryUpdate,
        key_updates: Vec<KeyUpdate>,
        trust_domain: &TrustDomain,
        ca_generation: u64,
        revoked: RevokedWorkloads,
    ) -> Self {
        let now = EventTime::read();
        self.mesh.set_ca_generation(ca_generation);
        self.mesh.set_revocations(revoked);
        self.mesh.apply(Change::Upsert(Object::MeshConfig(MeshConfig {
            trust_domain: trust_domain.clone(),
            ..MeshConfig::default()
        })));
        self.apply_update(first_update, now);
        key_updates.into_iter().for_each(|key_update| self.apply_key_update(key_update, now));
        self.update_outputs(now);
        self
    }

    /// Waits for the next event of any queue, or for the next timer.
    async fn next_event(&mut self, inbox: &mut Inbox) -> StateEvent {
        self.queues = QueueLengths {
            updates: inbox.updates.len(),
            events: inbox.events.len(),
            queries: inbox.queries.len(),
        };
        let wake_time = self.next_wake_time();
        let has_slices = !self.unfinished_responses.is_empty();
        tokio::select! {
            Some(update) = inbox.updates.recv() => StateEvent::Update(update),
            Some(event) = inbox.events.recv() => StateEvent::Connection(event),
            Some((query, reply_sender)) = inbox.queries.recv() => StateEvent::Query(query, reply_sender),
            Ok(()) = inbox.authority.changed() => {
                StateEvent::CaGeneration(inbox.authority.borrow_and_update().ca_generation())
            }
            Ok(()) = inbox.revoked.changed() => {
                StateEvent::Revoked(inbox.revoked.borrow_and_update().clone())
            }
            Some(key_update) = inbox.key_updates.recv() => StateEvent::Keys(key_update),
            // `select!` polls in random order, so slices alternate with other events.
            () = std::future::ready(()), if has_slices => StateEvent::Slice,
            signing_event = self.certifier.next_event() => StateEvent::Certifier(signing_event),
            () = tokio::time::sleep_until(wake_time) => StateEvent::Timer,
            _ = inbox.stop.wait_for(|stop| *stop) => StateEvent::Stop,
        }
    }

    fn next_wake_time(&self) -> Instant {
        let next_stream_check = self.last_stream_check + STREAM_CHECK_INTERVAL;
        let times = [
            self.connected_proxies.due_at(),
            self.presence.next_deadline(),
            self.startup_grace.latest_end(),
            self.outputs.next_output_update,
            self.join_deadline(),
        ];
        times.into_iter().flatten().fold(next_stream_check, Instant::min)
    }

    /// Applies an event, and then handles expired timers. Never waits.
    fn apply_event(&mut self, event: StateEvent, now: EventTime) -> LoopControl {
        // Traffic reports and fetches without new keys do not change the watched values.
        let keeps_watched_values = match &event {
            StateEvent::Timer | StateEvent::Slice | StateEvent::Query(..) => true,
            StateEvent::Connection(QueuedEvent {
                event: Event::Traffic { .. } | Event::Reported { .. },
                ..
            }) => true,
            StateEvent::Keys(key_update) => {
                matches!(key_update.outcome, FetchOutcome::Unchanged | FetchOutcome::Failed(_))
            }
            _ => false,
        };
        if !keeps_watched_values {
            self.schedule_output_update(now);
        }
        match event {
            StateEvent::Update(update) => self.apply_update(update, now),
            StateEvent::Connection(QueuedEvent { event, turn }) => {
                let work_before = self.connected_proxies.total_work();
                let event_handling = self.handle_event(event, now);
                self.charge_turn(event_handling, work_before, turn, now);
            }
            StateEvent::Slice => {
                if let Some((connection, turn)) = self.unfinished_responses.pop_front() {
                    let work_before = self.connected_proxies.total_work();
                    let event_handling = self.continue_response(connection);
                    self.charge_turn(event_handling, work_before, turn, now);
                }
            }
            StateEvent::Query(query, reply_sender) => {
                // The client may have disconnected before its query is handled, or before it gets the response.
                if !reply_sender.is_closed() {
                    drop(reply_sender.send(self.handle_query(query, now)));
                }
            }
            StateEvent::Certifier(CertifierEvent::Signed(certificate, reason)) => {
                self.handle_signed(&certificate, reason, now)
            }
            StateEvent::Certifier(CertifierEvent::Reviewed(review_result)) => {
                self.handle_review(review_result, now)
            }
            StateEvent::CaGeneration(ca_generation) => {
                let affected_set = self.mesh.set_ca_generation(ca_generation);
                if !affected_set.is_empty() {
                    self.connected_proxies.record_change(
                        &affected_set,
                        &self.mesh,
                        ChangeCause::AuthorityChanged,
                        now.clock,
                        now.clock,
                    );
                }
            }
            StateEvent::Revoked(revoked) => self.apply_revocations(revoked, now),
            StateEvent::Keys(key_update) => self.apply_key_update(key_update, now),
            StateEvent::Timer => {}
            StateEvent::Stop => {
                self.shutdown(now);
                return LoopControl::Stop;
            }
        }
        self.handle_timers(now);
        LoopControl::Continue
    }

    /// Charges a connection for the work of its turn, and queues the turn again if slices remain.
    fn charge_turn(
        &mut self,
        event_handling: EventHandling,
        work_before: u64,
        turn: ConnectionTurn,
        now: EventTime,
    ) {
        let units = self.connected_proxies.total_work().saturating_sub(work_before);
        turn.charge(EVENT_UNITS.saturating_add(units), now.clock);
        if let EventHandling::InSlices(connection) = event_handling {
            self.unfinished_responses.push_back((connection, turn));
        }
    }

    /// Schedules the next update of the values that other tasks watch, unless one is scheduled already.
    fn schedule_output_update(&mut self, now: EventTime) {
        let earliest_allowed = now.clock + OUTPUT_UPDATE_DELAY;
        let due_at = self
            .outputs
            .earliest_output_update
            .map_or(earliest_allowed, |earliest| earliest.max(earliest_allowed));
        self.outputs.next_output_update.get_or_insert(due_at);
    }

    /// Handles all expired timers. Called after every event.
    fn handle_timers(&mut self, now: EventTime) {
        for workload in self.presence.take_lost(now.clock) {
            tracing::info!(%workload, "the sidecar did not reconnect: its endpoints are withdrawn");
            self.set_listeners(&workload, None, now);
        }
        for workload in self.presence.take_expired_waits(now.clock) {
            let affected_set = self.mesh.stop_waiting_for(&workload);
            if !affected_set.is_empty() {
                tracing::warn!(%workload, "the port or account changed, and the sidecar has not reconnected: requests no longer wait for it");
                self.connected_proxies.record_change(
                    &affected_set,
                    &self.mesh,
                    ChangeCause::ListenersWithdrawn(workload),
                    now.clock,
                    now.clock,
                );
            }
        }
        if self.startup_grace.end_if_over(&self.mesh, now.clock) {
            tracing::info!(
                "startup grace period ended: all expected sidecars reconnected, or are no longer awaited"
            );
            self.schedule_output_update(now);
            self.connected_proxies.update_all(&self.mesh, self.startup_grace.grace_state());
        }
        if self.connected_proxies.due_at().is_some_and(|due| due <= now.clock) {
            self.connected_proxies.publish(&self.mesh, self.startup_grace.grace_state(), now.clock);
        }
        if self.join_deadline().is_some_and(|deadline| deadline <= now.clock) {
            self.retry_waiting_joins(now);
        }
        if self.last_stream_check + STREAM_CHECK_INTERVAL <= now.clock {
            self.last_stream_check = now.clock;
            self.remove_expired(now);
        }
        if self.outputs.next_output_update.is_some_and(|due| due <= now.clock) {
            self.outputs.next_output_update = None;
            let update_start = Instant::now();
            self.update_outputs(now);
            let update_end = Instant::now();
            self.outputs.earliest_output_update = Some(
                update_end + update_end.duration_since(update_start) * OUTPUT_UPDATE_PAUSE_FACTOR,
            );
        }
    }

    /// Applies the changes of a registry update, and records them as one change for the affected proxies. Then checks
    /// the proxies and waiting joins of changed workloads.
    fn apply_update(&mut self, update: RegistryUpdate, now: EventTime) {
        let trust_domain = self.mesh.config().trust_domain.clone();
        let noticed_at = update.first_event_at.map_or(now.clock, Instant::from_std);
        let changes = self.diagnostics.process_update(update, &trust_domain);
        if changes.is_empty() {
            return;
        }
        let mut affected_set = AffectedSet::default();
        let mut workloads = BTreeSet::new();
        let change_count = changes.len();
        let mut first_change = None;
        for change in changes {
            let key = match &change {
                Change::Upsert(object) => object.object_key(),
                Change::Remove(key) => key.clone(),
            };
            tracing::debug!(object = %key, "changed");
            first_change.get_or_insert_with(|| (key.clone(), ObjectEdit::from_change(&change)));
            if let ObjectKey::Workload(name) = key {
                workloads.insert(name);
            }
            affected_set.merge(self.mesh.apply(change));
        }
        let cause = match first_change {
            Some((key, edit)) if change_count > 1 => {
                ChangeCause::ObjectsChanged(change_count, key, edit)
            }
            Some((key, edit)) => ChangeCause::ObjectChanged(key, edit),
            None => return,
        };
        self.publish_key_sources();
        self.publish_metrics_destination();
        self.connected_proxies.record_change(
            &affected_set,
            &self.mesh,
            cause,
            noticed_at,
            now.clock,
        );
        tracing::info!(
            changes = change_count,
            id = self.connected_proxies.newest_change().0,
            "the configuration has changed"
        );
        for name in workloads.iter().filter(|name| self.mesh.has_changed(name)) {
            self.presence.expect_sidecar(name, now.clock + CHANGED_SIDECAR_WAIT);
        }
        let has_workload_change = !workloads.is_empty();
        if affected_set.all_proxies {
            // Some connected proxies may be revoked.
            workloads.extend(self.connected_proxies.connected_workloads());
        }
        for name in &workloads {
            self.enforce_claim(name, now);
        }
        for name in workloads {
            // Another control plane may have read the files first, and may have reported the sidecar already.
            if self.connected_proxies.connection_of_workload(&name).is_none() {
                self.apply_registration(&name, now);
            }
        }
        if has_workload_change {
            let workloads = self.mesh.workloads().cloned().collect();
            self.outputs.workloads.send_replace(Arc::new(workloads));
            self.retry_waiting_joins(now);
        }
    }

    fn handle_event(&mut self, event: Event, now: EventTime) -> EventHandling {
        match event {
            Event::Connected(connected) => return self.handle_connected(*connected, now),
            Event::Listeners { connection, listeners } => {
                self.update_listeners(connection, &listeners, now)
            }
            Event::Reported { connection, report } => {
                if let Some(proxy) = self.connected_proxies.proxy_mut(connection) {
                    proxy.report = *report;
                }
            }
            Event::SubscriptionsChanged { connection, change } => {
                return self.change_subscriptions(connection, *change, now);
            }
            Event::Applied { connection, change, rejected_count, bytes } => {
                self.connected_proxies.record_applied(
                    connection,
                    change,
                    rejected_count,
                    bytes,
                    now.clock,
                );
            }
            Event::Rejected { connection, rejections } => {
                self.record_rejections(connection, rejections, now)
            }
            Event::Traffic { connection, traffic } => {
                let history_time = now.clock.duration_since(self.history_start);
                if let Some(proxy) = self.connected_proxies.proxy_mut(connection) {
                    self.history.record_report(&self.mesh, &proxy.workload, &traffic, history_time);
                }
            }
            Event::CertificateRequested { connection, csr, reply } => {
                self.renew_certificate(connection, csr, reply, now);
            }
            Event::JoinRequested(pending_join) => self.start_join(pending_join, now),
            Event::Disconnected { connection } => self.handle_disconnect(connection, now),
            // Every event schedules an update of the outputs, and this event has no other effect.
            Event::PeerConnected => {}
            Event::PeerSidecars { connection, connected, disconnected } => {
                self.apply_replica_report(connection, connected, &disconnected, now);
            }
            Event::PeerDisconnected { connection } => {
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
            None => ChangeCause::ListenersWithdrawn(workload.clone()),
        };
        let affected_set = self.mesh.set_listeners(workload, listeners);
        if !affected_set.is_empty() {
            self.connected_proxies.record_change(
                &affected_set,
                &self.mesh,
                cause,
                now.clock,
                now.clock,
            );
        }
    }

    /// Evicts expired traffic history, and ends streams with an expired certificate or an ended task.
    fn remove_expired(&mut self, now: EventTime) {
        self.history.evict_expired(&self.mesh, now.clock.duration_since(self.history_start));
        let is_expired = |proxy: &ConnectedProxy| proxy.expires_at <= now.wall_time;
        let streams_to_end: Vec<(ConnectionId, bool)> = self
            .connected_proxies
            .proxies()
            .filter(|(_, proxy)| is_expired(proxy) || proxy.is_closed())
            .map(|(connection, proxy)| (connection, proxy.is_closed()))
            .collect();
        for (connection, has_ended) in streams_to_end {
            match has_ended {
                true => self.handle_disconnect(connection, now),
                false => self.dismiss_proxy(connection, EXPIRED_REASON.to_owned(), now),
            }
        }
    }

    fn shutdown(&mut self, now: EventTime) {
        let connections: Vec<ConnectionId> =
            self.connected_proxies.proxies().map(|(id, _)| id).collect();
        for connection in connections {
            if let Some(proxy) = self.connected_proxies.remove_proxy(connection, now.clock) {
                proxy.end_connection("the control plane is shutting down".to_owned());
            }
        }
    }
}

fn listener_map(listeners: &[InboundListener]) -> Listeners {
    let addresses = listeners.iter().map(|listener| (listener.port, listener.address));
    addresses.collect()
}

/// The interval of checks for expired history, and for streams that should have ended by themselves.
const STREAM_CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// The time for which requests wait for the sidecar of a workload after a change of its port or account: the
/// old sidecar drains, the application exits, and the new sidecar starts.
const CHANGED_SIDECAR_WAIT: Duration = Duration::from_secs(30);

/// The delay of an update of the outputs; a burst of events causes a single update.
const OUTPUT_UPDATE_DELAY: Duration = Duration::from_millis(10);

/// The pause after an update of the outputs, in multiples of its duration. With 10, updates take less than a tenth of the
/// time.
const OUTPUT_UPDATE_PAUSE_FACTOR: u32 = 10;

/// The base cost of an event in a connection's budget, without the counted work.
const EVENT_UNITS: u64 = 32;

/// The reason that a proxy receives if its stream ends because its certificate has expired.
const EXPIRED_REASON: &str = "the certificate of this proxy has expired: renew it";
