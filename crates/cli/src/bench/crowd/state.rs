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

/// One member as the others see it.
pub(super) struct MemberState {
    pub(super) workload: WorkloadName,
    pub(super) port: u16,
    pub(super) uses: BTreeSet<ServiceName>,
    /// The service that it is an endpoint of.
    pub(super) behind: Option<ServiceName>,
    pub(super) requests: mpsc::Sender<ProxyRequest>,
}

/// The updates that all members have received so far. Single-threaded.
pub(super) struct CrowdState {
    pub(super) seats: Vec<MemberState>,
    heard: RefCell<ReceivedUpdates>,
    pub(super) changed: Notify,
}

#[derive(Default)]
struct ReceivedUpdates {
    /// Times of each member's moves, in order; its address encodes their number.
    moves: BTreeMap<WorkloadName, Vec<Instant>>,
    /// The last received move of each endpoint, per member.
    known: BTreeMap<(usize, WorkloadName), usize>,
    latencies: Histogram,
    /// Expected and completed deliveries.
    expected: usize,
    reached: usize,
    /// Messages by member.
    messages: Vec<usize>,
    /// The configuration of each member, and the time of its last change.
    plans: Vec<Option<(Arc<WorkloadConfig>, u64)>>,
    streams: usize,
}

impl CrowdState {
    pub(super) fn new(seats: Vec<MemberState>) -> Self {
        let heard = ReceivedUpdates {
            messages: vec![0; seats.len()],
            plans: vec![None; seats.len()],
            ..ReceivedUpdates::default()
        };
        Self { seats, heard: RefCell::new(heard), changed: Notify::new() }
    }

    /// Records an update of a member.
    pub(super) fn record_update(&self, member: usize, update: &ConfigUpdate) {
        let now = Instant::now();
        self.changed.notify_one();
        let mut heard = self.heard.borrow_mut();
        let heard = &mut *heard;
        heard.messages[member] += 1;
        let plan = &update.snapshot.config;
        let last = &mut heard.plans[member];
        if last.as_ref().is_none_or(|(last, _)| last != plan) {
            *last = Some((Arc::clone(plan), since_1970()));
        }
        let views = update.snapshot.services.values();
        let endpoints = views.flat_map(|view| view.ports.values()).flat_map(|port| &port.endpoints);
        for endpoint in endpoints {
            let Some(moves) = heard.moves.get(&endpoint.id.workload) else { continue };
            let Some(latest) = endpoint.address.port().checked_sub(FIRST_MOVE) else { continue };
            let latest = usize::from(latest) + 1;
            let known = heard.known.entry((member, endpoint.id.workload.clone())).or_default();
            for moved in moves.get(*known..latest).unwrap_or_default() {
                heard.latencies.record(now.duration_since(*moved));
                heard.reached += 1;
            }
            *known = latest.max(*known);
        }
    }

    /// Records that a stream is up or down.
    pub(super) fn record_stream(&self, up: bool) {
        let mut heard = self.heard.borrow_mut();
        heard.streams = match up {
            true => heard.streams + 1,
            false => heard.streams.saturating_sub(1),
        };
    }

    pub(super) fn stream_count(&self) -> usize {
        self.heard.borrow().streams
    }

    /// Returns the current listener address of a member.
    pub(super) fn listener_address(&self, member: usize) -> InboundListener {
        let seat = &self.seats[member];
        let moves = self.heard.borrow().moves.get(&seat.workload).map_or(0, Vec::len);
        let port = match moves.checked_sub(1).and_then(|last| u16::try_from(last).ok()) {
            Some(last) => FIRST_MOVE.saturating_add(last),
            None => seat.port,
        };
        InboundListener { port: seat.port, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    /// Moves a member to another listener address and reports it.
    pub(super) async fn move_member(&self, member: usize) -> anyhow::Result<()> {
        let seat = &self.seats[member];
        let users = self.users_of(member).count();
        {
            let mut heard = self.heard.borrow_mut();
            heard.moves.entry(seat.workload.clone()).or_default().push(Instant::now());
            heard.expected += users;
        }
        let listeners = vec![self.listener_address(member)];
        Ok(seat.requests.send(ProxyRequest::Listeners(listeners, Default::default())).await?)
    }

    /// Returns the members that use the service of a member.
    pub(super) fn users_of(&self, member: usize) -> impl Iterator<Item = usize> + '_ {
        let behind = self.seats[member].behind.clone();
        let uses =
            move |seat: &MemberState| behind.as_ref().is_some_and(|name| seat.uses.contains(name));
        self.seats.iter().enumerate().filter(move |(_, seat)| uses(seat)).map(|(at, _)| at)
    }

    /// Waits until all expected deliveries are complete; false on timeout.
    pub(super) async fn wait_until_complete(&self, max_wait: Duration) -> bool {
        let until = Instant::now() + max_wait;
        loop {
            {
                let heard = self.heard.borrow();
                if heard.reached >= heard.expected {
                    return true;
                }
            }
            if tokio::time::timeout_at(until, self.changed.notified()).await.is_err() {
                return false;
            }
        }
    }

    /// Returns the number of messages per member.
    pub(super) fn message_counts(&self) -> Vec<usize> {
        self.heard.borrow().messages.clone()
    }

    /// Clears the latencies.
    pub(super) fn clear_latencies(&self) {
        let mut heard = self.heard.borrow_mut();
        heard.latencies = Histogram::new();
        (heard.expected, heard.reached) = (0, 0);
    }

    /// Returns the deliveries since.
    pub(super) fn delivery_statistics(&self, changes: usize, elapsed: Duration) -> ChangeDelivery {
        let heard = self.heard.borrow();
        let ms = |share| heard.latencies.quantile(share).as_secs_f64() * 1e3;
        ChangeDelivery {
            changes,
            missed: heard.expected.saturating_sub(heard.reached),
            users: 0,
            to_others: 0,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            max_ms: ms(1.0),
            per_second: changes as f64 / elapsed.as_secs_f64().max(1e-9),
        }
    }

    /// Returns the times of configuration changes after `since`, in microseconds since the Unix epoch.
    pub(super) fn plans_since(&self, since: u64) -> Vec<u64> {
        let heard = self.heard.borrow();
        let changed = heard.plans.iter().flatten().map(|(_, at)| *at);
        changed.filter(|at| *at >= since).collect()
    }
}

/// Returns the current time in microseconds since the Unix epoch.
pub(in crate::bench) fn since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A member's listener port after its first move: the port counts the moves. No process listens there.
const FIRST_MOVE: u16 = 20_000;
