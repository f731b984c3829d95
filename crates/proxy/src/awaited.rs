//! Requests without an endpoint wait for a workload that changed a moment ago.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::ServiceName;
use leno_traffic::ServicePlan;
use tokio::time::{sleep, timeout};

use crate::drain::Phase;
use crate::upstream::priorities::Priorities;
use crate::worker::Worker;
use crate::world::{Scene, World};

/// The version of the world by which a request failed that may be routed anew.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outdated {
    version: u64,
    /// It is the current one, and the sidecar of the endpoint has a newer one, without the port.
    is_behind: bool,
}

impl Outdated {
    /// `None` while one of these endpoints is current and its workload has the port.
    #[cold]
    pub(crate) fn by(
        world: &World,
        scene: &Scene,
        priorities: &Priorities,
        has_lost_port: bool,
    ) -> Option<Self> {
        let is_current = priorities.endpoints().any(|endpoint| world.is_current(endpoint));
        let outdated = Self { version: scene.version, is_behind: is_current };
        (has_lost_port || !is_current).then_some(outdated)
    }
}

impl Worker {
    /// Waits until a request for a service that began at `started` and failed may be routed anew. False where no endpoint is expected,
    /// and once the request has waited for long enough.
    #[cold]
    pub(crate) async fn endpoint_expected(
        &self,
        service: &ServiceName,
        Outdated { version, is_behind }: Outdated,
        started: Instant,
    ) -> bool {
        if is_behind {
            let mut versions = self.world.changes();
            let left = LAG_MAX.saturating_sub(started.elapsed());
            if timeout(left, versions.wait_for(|newer| *newer > version)).await.is_err() {
                return false;
            }
        }
        let left = AWAITED_MAX.saturating_sub(started.elapsed());
        if left.is_zero() {
            return false;
        }
        let mut phase = self.phase.clone();
        tokio::select! {
            biased;
            is_newer = newer(&self.world, service, version) => is_newer,
            () = sleep(left) => false,
            // The drain does not wait for requests that have no endpoint.
            _ = phase.wait_for(|phase| *phase == Phase::Draining) => false,
        }
    }
}

impl World {
    /// The outlook of a request that found no endpoint of a service in a version of the world.
    fn prospect(&self, service: &ServiceName, version: u64) -> Prospect {
        let Some(scene) = self.scene() else { return Prospect::None };
        let plan = scene.plans.service(service);
        let awaited = plan.filter(|plan| plan.view.awaited);
        let is_empty =
            |plan: &Arc<ServicePlan>| plan.ports.values().all(|port| port.endpoints.is_empty());
        match awaited {
            Some(plan) if is_empty(plan) || scene.version == version => Prospect::Awaited,
            _ if scene.version != version => Prospect::Newer,
            _ => Prospect::None,
        }
    }
}

/// The outlook of a request without an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prospect {
    /// There is a newer version of the world: the request may be routed by it.
    Newer,
    /// An endpoint is expected.
    Awaited,
    /// No endpoint is expected.
    None,
}

/// Waits for a later version of the world in which a request for a service may succeed. False where none is expected.
async fn newer(world: &World, service: &ServiceName, version: u64) -> bool {
    let mut changes = world.changes();
    loop {
        match world.prospect(service, version) {
            Prospect::Newer => return true,
            Prospect::None => return false,
            Prospect::Awaited => {}
        }
        // The world outlives its requests.
        if changes.changed().await.is_err() {
            return false;
        }
    }
}

/// The longest wait of a request: the old sidecar drains, the application ends, and the new sidecar starts.
const AWAITED_MAX: Duration = Duration::from_secs(20);
/// The time in which both sidecars of a request apply a change, unless the control plane is away.
const LAG_MAX: Duration = Duration::from_secs(1);
