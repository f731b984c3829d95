//! Keeps the state of a crowd, and measures the delivery of endpoint changes to its members.

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

/// The state of a member that its stream task and the command loop share.
pub(super) struct MemberState {
    pub(super) workload: WorkloadName,
    pub(super) port: u16,
    pub(super) used_services: BTreeSet<ServiceName>,
    /// The service that the member is an endpoint of. Without one, the member has no subscribers.
    pub(super) own_service: Option<ServiceName>,
    pub(super) request_sender: mpsc::Sender<ProxyRequest>,
}

/// The members of a crowd, and the updates that they have received. All members run on one thread.
pub(super) struct CrowdState {
    pub(super) members: Vec<MemberState>,
    deliveries: RefCell<DeliveryLog>,
    pub(super) update_received: Notify,
}

/// The moves of members, and the updates and streams with which members receive them.
#[derive(Default)]
struct DeliveryLog {
    /// The times of each member's moves, in order. The listener port of the member encodes the number of moves.
    move_times: BTreeMap<WorkloadName, Vec<Instant>>,
    /// The number of moves that a member has received, by receiver and moved workload.
    moves_seen: BTreeMap<(usize, WorkloadName), usize>,
    delivery_latencies: Histogram,
    /// The number of expected deliveries since the statistics were cleared.
    expected_count: usize,
    /// The number of complete deliveries since the statistics were cleared.
    delivered_count: usize,
    /// The number of messages received, by member.
    message_counts: Vec<usize>,
    /// The configuration of each member, and the time of its latest change in microseconds since the Unix epoch.
    member_configs: Vec<Option<(Arc<WorkloadConfig>, u64)>>,
    stream_count: usize,
}

impl CrowdState {
    pub(super) fn new(members: Vec<MemberState>) -> Self {
        let deliveries = DeliveryLog {
            message_counts: vec![0; members.len()],
            member_configs: vec![None; members.len()],
            ..DeliveryLog::default()
        };
        Self { members, deliveries: RefCell::new(deliveries), update_received: Notify::new() }
    }

    /// Records an update that a member received.
    pub(super) fn record_update(&self, member_index: usize, update: &ConfigUpdate) {
        let now = Instant::now();
        self.update_received.notify_one();
        let mut deliveries = self.deliveries.borrow_mut();
        let deliveries = &mut *deliveries;
        deliveries.message_counts[member_index] += 1;
        let config = &update.snapshot.config;
        let last_change = &mut deliveries.member_configs[member_index];
        if last_change.as_ref().is_none_or(|(last_config, _)| last_config != config) {
            *last_change = Some((Arc::clone(config), unix_micros()));
        }
        let services = update.snapshot.services.values();
        let endpoints =
            services.flat_map(|service| service.ports.values()).flat_map(|port| &port.endpoints);
        for endpoint in endpoints {
            // Real sidecars do not move.
            let Some(move_times) = deliveries.move_times.get(&endpoint.id.workload) else {
                continue;
            };
            // The update contains the address before the first move.
            let Some(latest_move) = endpoint.address.port().checked_sub(FIRST_MOVED_PORT) else {
                continue;
            };
            let move_count = usize::from(latest_move) + 1;
            let moves_seen = deliveries
                .moves_seen
                .entry((member_index, endpoint.id.workload.clone()))
                .or_default();
            // One update may deliver several moves. The range is invalid if the update repeats an earlier move.
            for move_time in move_times.get(*moves_seen..move_count).unwrap_or_default() {
                deliveries.delivery_latencies.record(now.duration_since(*move_time));
                deliveries.delivered_count += 1;
            }
            *moves_seen = move_count.max(*moves_seen);
        }
    }

    /// Records that a member's stream has connected or disconnected.
    pub(super) fn record_stream(&self, is_connected: bool) {
        let mut deliveries = self.deliveries.borrow_mut();
        deliveries.stream_count = match is_connected {
            true => deliveries.stream_count + 1,
            false => deliveries.stream_count.saturating_sub(1),
        };
    }

    /// Returns the number of members with a stream to the control plane.
    pub(super) fn stream_count(&self) -> usize {
        self.deliveries.borrow().stream_count
    }

    /// Returns the inbound listener of a member, at its current address.
    pub(super) fn inbound_listener(&self, member_index: usize) -> InboundListener {
        let member_state = &self.members[member_index];
        let move_count =
            self.deliveries.borrow().move_times.get(&member_state.workload).map_or(0, Vec::len);
        let port =
            match move_count.checked_sub(1).and_then(|last_move| u16::try_from(last_move).ok()) {
                Some(last_move) => FIRST_MOVED_PORT.saturating_add(last_move),
                None => member_state.port,
            };
        InboundListener {
            port: member_state.port,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        }
    }

    /// Moves a member to another listener address and reports it.
    pub(super) async fn move_member(&self, member_index: usize) -> anyhow::Result<()> {
        let member_state = &self.members[member_index];
        let subscriber_count = self.subscribers_of(member_index).count();
        {
            let mut deliveries = self.deliveries.borrow_mut();
            deliveries
                .move_times
                .entry(member_state.workload.clone())
                .or_default()
                .push(Instant::now());
            deliveries.expected_count += subscriber_count;
        }
        let listeners = vec![self.inbound_listener(member_index)];
        Ok(member_state
            .request_sender
            .send(ProxyRequest::Listeners(listeners, Default::default()))
            .await?)
    }

    /// Returns the indices of the members that use the service of a member.
    pub(super) fn subscribers_of(&self, member_index: usize) -> impl Iterator<Item = usize> + '_ {
        let own_service = self.members[member_index].own_service.clone();
        let is_subscriber = move |member_state: &MemberState| {
            own_service.as_ref().is_some_and(|name| member_state.used_services.contains(name))
        };
        self.members
            .iter()
            .enumerate()
            .filter(move |(_, member_state)| is_subscriber(member_state))
            .map(|(index, _)| index)
    }

    /// Waits until all expected deliveries are complete. Returns false if the timeout expires first.
    pub(super) async fn wait_until_complete(&self, max_wait: Duration) -> bool {
        let deadline = Instant::now() + max_wait;
        loop {
            {
                let deliveries = self.deliveries.borrow();
                if deliveries.delivered_count >= deliveries.expected_count {
                    return true;
                }
            }
            if tokio::time::timeout_at(deadline, self.update_received.notified()).await.is_err() {
                return false;
            }
        }
    }

    /// Returns the number of messages that each member has received.
    pub(super) fn message_counts(&self) -> Vec<usize> {
        self.deliveries.borrow().message_counts.clone()
    }

    /// Clears the latencies and the delivery counts.
    pub(super) fn clear_statistics(&self) {
        let mut deliveries = self.deliveries.borrow_mut();
        deliveries.delivery_latencies = Histogram::new();
        (deliveries.expected_count, deliveries.delivered_count) = (0, 0);
    }

    /// Returns the statistics of the deliveries since [`Self::clear_statistics`]. The caller sets `users` and `to_others`.
    pub(super) fn delivery_statistics(
        &self,
        change_count: usize,
        elapsed: Duration,
    ) -> ChangeDelivery {
        let deliveries = self.deliveries.borrow();
        let quantile_ms =
            |fraction| deliveries.delivery_latencies.quantile(fraction).as_secs_f64() * 1e3;
        ChangeDelivery {
            changes: change_count,
            missed: deliveries.expected_count.saturating_sub(deliveries.delivered_count),
            users: 0,
            to_others: 0,
            p50_ms: quantile_ms(0.5),
            p99_ms: quantile_ms(0.99),
            max_ms: quantile_ms(1.0),
            per_second: change_count as f64 / elapsed.as_secs_f64().max(1e-9),
        }
    }

    /// Returns the times of configuration changes since `since_micros`, in microseconds since the Unix epoch.
    pub(super) fn config_changes_since(&self, since_micros: u64) -> Vec<u64> {
        let deliveries = self.deliveries.borrow();
        let change_times = deliveries.member_configs.iter().flatten().map(|(_, time)| *time);
        change_times.filter(|time| *time >= since_micros).collect()
    }
}

/// Returns the current time in microseconds since the Unix epoch.
pub(in crate::bench) fn unix_micros() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}

/// A member's listener port after its first move; each further move increments it. No process listens there.
const FIRST_MOVED_PORT: u16 = 20_000;
