//! Sends background traffic through the real sidecars of a mesh during measurements.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::RunningMesh;
use crate::admin_client;
use crate::output;

/// Traffic in progress: one request after another, through each real sidecar in turn.
pub(super) struct SequentialTraffic {
    traffic_state: Arc<TrafficState>,
    task: JoinHandle<()>,
}

/// The counters that the task updates, and the flag that ends it.
#[derive(Default)]
struct TrafficState {
    stop_requested: AtomicBool,
    sent_count: AtomicU64,
    failure_count: AtomicU64,
}

impl SequentialTraffic {
    /// Starts the traffic.
    ///
    /// # Errors
    /// If a listener has no address.
    pub(super) fn start(mesh: &mut RunningMesh<'_, '_>) -> anyhow::Result<Self> {
        let mut listener_addresses: Vec<SocketAddr> = Vec::new();
        for index in 0..mesh.setup.real_sidecars {
            listener_addresses.push(mesh.ports.address_for(&format!("listener-{index}-0"))?);
        }
        let traffic_state = Arc::<TrafficState>::default();
        #[allow(clippy::disallowed_methods, reason = "the task runs until `stop_and_count`")]
        let task = tokio::spawn(send_requests(listener_addresses, Arc::clone(&traffic_state)));
        Ok(Self { traffic_state, task })
    }

    /// Stops the traffic. Returns the number of requests, and the number of failed ones.
    pub(super) async fn stop_and_count(self) -> (u64, u64) {
        self.traffic_state.stop_requested.store(true, Ordering::Relaxed);
        // The end of the task precedes the reads below, so that relaxed ordering suffices. A panic counts as a failure.
        let task_failures = u64::from(self.task.await.is_err());
        let read_counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (
            read_counter(&self.traffic_state.sent_count),
            read_counter(&self.traffic_state.failure_count) + task_failures,
        )
    }
}

async fn send_requests(listener_addresses: Vec<SocketAddr>, traffic_state: Arc<TrafficState>) {
    let mut ticks = interval(Duration::from_secs(1) / REQUESTS_PER_SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for listener in listener_addresses.iter().cycle() {
        ticks.tick().await;
        if traffic_state.stop_requested.load(Ordering::Relaxed) {
            return;
        }
        let outcome = admin_client::query_admin(*listener, "/").await;
        traffic_state.sent_count.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = outcome {
            tracing::debug!(%listener, error = output::format_error(&error), "a request failed");
            traffic_state.failure_count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The request rate of all sidecars together. Each of fifty sidecars receives two requests per second, which do not
/// affect the measurement.
const REQUESTS_PER_SECOND: u32 = 100;
