//! Background traffic through the real sidecars of a mesh during measurements.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::RunningMesh;
use crate::admin_client;
use crate::output;

/// Sequential requests, through each real sidecar in turn.
pub(super) struct SequentialTraffic {
    shared: Arc<TrafficState>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct TrafficState {
    stop: AtomicBool,
    sent: AtomicU64,
    failed: AtomicU64,
}

impl SequentialTraffic {
    /// Starts the traffic.
    ///
    /// # Errors
    /// If a listener has no address.
    pub(super) fn start(mesh: &mut RunningMesh<'_, '_>) -> anyhow::Result<Self> {
        let mut listeners: Vec<SocketAddr> = Vec::new();
        for index in 0..mesh.crowd.real_sidecars {
            listeners.push(mesh.ports.address_for(&format!("listener-{index}-0"))?);
        }
        let shared = Arc::<TrafficState>::default();
        #[allow(clippy::disallowed_methods, reason = "the task runs until `finish`")]
        let task = tokio::spawn(send_requests(listeners, Arc::clone(&shared)));
        Ok(Self { shared, task })
    }

    /// Stops the traffic; returns the number of requests and of failures.
    pub(super) async fn stop_and_count(self) -> (u64, u64) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let result = self.task.await;
        let task_failures = u64::from(result.is_err());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.shared.sent), count(&self.shared.failed) + task_failures)
    }
}

async fn send_requests(listeners: Vec<SocketAddr>, shared: Arc<TrafficState>) {
    let mut ticks = interval(Duration::from_secs(1) / REQUESTS_PER_SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for listener in listeners.iter().cycle() {
        ticks.tick().await;
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let outcome = admin_client::query_admin(*listener, "/").await;
        shared.sent.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = outcome {
            tracing::debug!(%listener, error = output::format_error(&error), "a request failed");
            shared.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The request rate of all sidecars together: each of fifty serves all the time, and the load is negligible for the
/// measurement.
const REQUESTS_PER_SECOND: u32 = 100;
