//! Delivery of endpoint changes to a crowd: receivers and latencies.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_discovery::{ConfigUpdate, InboundListener, ProxyRequest};
use leno_model::{ServiceName, WorkloadConfig, WorkloadName};
use leno_telemetry::Histogram;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::command::ChangeDelivery;

/// The state of one member that the whole crowd uses.
pub(super) struct MemberState {
    pub(super) workload: WorkloadName,
    pub(super) port: u16,
    pub(super) used_services: BTreeSet<ServiceName>,
    /// The service that it is an endpoint of.
    pub(super) own_service: Option<ServiceName>,
    pub(super) requests: mpsc::Sender<ProxyRequest>,
}

/// The updates that all members have received so far. Single-threaded.
pub(super) struct CrowdState {
    pub(super) members: Vec<MemberState>,
    received: RefCell<ReceivedUpdates>,
    pub(super) changed: Notify,
}

#[derive(Default)]
struct ReceivedUpdates {
    /// Times of each member's moves, in order; its address encodes their number.
    moves: BTreeMap<WorkloadName, Vec<Instant>>,
    /// The last received move of each endpoint, per member.
    last_moves: BTreeMap<(usize, WorkloadName), usize>,
    latencies: Histogram,
    /// Expected and completed deliveries.
    expected: usize,
    delivered: usize,
    /// Messages by member.
    messages: Vec<usize>,
    /// The configuration of each member, and the time of its last change.
    configs: Vec<Option<(Arc<WorkloadConfig>, u64)>>,
    streams: usize,
}

impl CrowdState {
    pub(super) fn new(members: Vec<MemberState>) -> Self {
        let received = ReceivedUpdates {
            messages: vec![0; members.len()],
            configs: vec![None; members.len()],
            ..ReceivedUpdates::default()
        };
        Self { members, received: RefCell::new(received), changed: Notify::new() }
    }

    /// Records an update of a member.
    pub(super) fn record_update(&self, member: usize, update: &ConfigUpdate) {
        let now = Instant::now();
        self.changed.notify_one();
        let mut received = self.received.borrow_mut();
        let received = &mut *received;
        received.messages[member] += 1;
        let config = &update.snapshot.config;
        let last_change = &mut received.configs[member];
        if last_change.as_ref().is_none_or(|(last_config, _)| last_config != config) {
            *last_change = Some((Arc::clone(config), unix_micros()));
        }
        let services = update.snapshot.services.values();
        let endpoints =
            services.flat_map(|service| service.ports.values()).flat_map(|port| &port.endpoints);
        for endpoint in endpoints {
            let Some(moves) = received.moves.get(&endpoint.id.workload) else { continue };
            let Some(move_count) = endpoint.address.port().checked_sub(FIRST_MOVE) else {
                continue;
            };
            let move_count = usize::from(move_count) + 1;
            let last_move =
                received.last_moves.entry((member, endpoint.id.workload.clone())).or_default();
            for move_time in moves.get(*last_move..move_count).unwrap_or_default() {
                received.latencies.record(now.duration_since(*move_time));
                received.delivered += 1;
            }
            *last_move = move_count.max(*last_move);
        }
    }

    /// Records that a stream is up or down.
    pub(super) fn record_stream(&self, is_connected: bool) {
        let mut received = self.received.borrow_mut();
        received.streams = match is_connected {
            true => received.streams + 1,
            false => received.streams.saturating_sub(1),
        };
    }

    pub(super) fn stream_count(&self) -> usize {
        self.received.borrow().streams
    }

    /// Returns the current listener address of a member.
    pub(super) fn listener_address(&self, member: usize) -> InboundListener {
        let member_state = &self.members[member];
        let moves = self.received.borrow().moves.get(&member_state.workload).map_or(0, Vec::len);
        let port = match moves.checked_sub(1).and_then(|last| u16::try_from(last).ok()) {
            Some(last) => FIRST_MOVE.saturating_add(last),
            None => member_state.port,
        };
        InboundListener {
            port: member_state.port,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        }
    }

    /// Moves a member to another listener address and reports it.
    pub(super) async fn move_member(&self, member: usize) -> anyhow::Result<()> {
        let member_state = &self.members[member];
        let users = self.users_of(member).count();
        {
            let mut received = self.received.borrow_mut();
            received.moves.entry(member_state.workload.clone()).or_default().push(Instant::now());
            received.expected += users;
        }
        let listeners = vec![self.listener_address(member)];
        Ok(member_state
            .requests
            .send(ProxyRequest::Listeners(listeners, Default::default()))
            .await?)
    }

    /// Returns the members that use the service of a member.
    pub(super) fn users_of(&self, member: usize) -> impl Iterator<Item = usize> + '_ {
        let own_service = self.members[member].own_service.clone();
        let is_user = move |member_state: &MemberState| {
            own_service.as_ref().is_some_and(|name| member_state.used_services.contains(name))
        };
        self.members
            .iter()
            .enumerate()
            .filter(move |(_, member_state)| is_user(member_state))
            .map(|(index, _)| index)
    }

    /// Waits until all expected deliveries are complete; false on timeout.
    pub(super) async fn wait_until_complete(&self, max_wait: Duration) -> bool {
        let deadline = Instant::now() + max_wait;
        loop {
            {
                let received = self.received.borrow();
                if received.delivered >= received.expected {
                    return true;
                }
            }
            if tokio::time::timeout_at(deadline, self.changed.notified()).await.is_err() {
                return false;
            }
        }
    }

    /// Returns the number of messages per member.
    pub(super) fn message_counts(&self) -> Vec<usize> {
        self.received.borrow().messages.clone()
    }

    /// Clears the latencies and the counts of deliveries.
    pub(super) fn clear_latencies(&self) {
        let mut received = self.received.borrow_mut();
        received.latencies = Histogram::new();
        (received.expected, received.delivered) = (0, 0);
    }

    /// Returns the statistics of the deliveries since [`Self::clear_latencies`].
    pub(super) fn delivery_statistics(&self, changes: usize, elapsed: Duration) -> ChangeDelivery {
        let received = self.received.borrow();
        let ms = |fraction| received.latencies.quantile(fraction).as_secs_f64() * 1e3;
        ChangeDelivery {
            changes,
            missed: received.expected.saturating_sub(received.delivered),
            users: 0,
            to_others: 0,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            max_ms: ms(1.0),
            per_second: changes as f64 / elapsed.as_secs_f64().max(1e-9),
        }
    }

    /// Returns the times of configuration changes since `since`, in microseconds since the Unix epoch.
    pub(super) fn config_changes_since(&self, since: u64) -> Vec<u64> {
        let received = self.received.borrow();
        let changed = received.configs.iter().flatten().map(|(_, time)| *time);
        changed.filter(|time| *time >= since).collect()
    }
}

/// Returns the current time in microseconds since the Unix epoch.
pub(in crate::bench) fn unix_micros() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}

/// A member's listener port after its first move: the port counts the moves. No process listens there.
const FIRST_MOVE: u16 = 20_000;
