//! From the mesh to what one workload's sidecar should know: pure, and the same each time.

mod access;
mod address;
mod border;
mod enforcement;
mod plan;
mod service;
mod split;
mod whereabouts;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_discovery::Doubt;
use leno_model::{Occupant, ServiceName, Snapshot, Whereabouts, Workload};

use self::enforcement::is_balanced;
use self::plan::plan;
use self::service::{backends, unheard};
use crate::mesh::Mesh;

pub(crate) use self::access::missing;
pub(crate) use self::address::occupants;
pub(crate) use self::border::{closed, missing_groups};
pub(crate) use self::enforcement::{Barrier, barred, left_out};
pub(crate) use self::service::{Viewer, Views, is_opaque, target_port, view};
pub(crate) use self::split::{rivals, tcp_rival};
pub(crate) use self::whereabouts::whereabouts;

/// What one workload's sidecar should know, before it is numbered and sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) snapshot: Arc<Snapshot>,
    /// Services that are wanted, or named by a rule, and do not exist.
    pub(crate) absent: BTreeSet<ServiceName>,
}

/// The services that a workload uses: through its fixed doors, and those it subscribed to.
pub(crate) fn wanted(
    workload: &Workload,
    subscriptions: &BTreeSet<ServiceName>,
) -> BTreeSet<ServiceName> {
    let doors = workload.doors.iter().map(|door| &door.service);
    doors.chain(subscriptions).cloned().collect()
}

/// Compiles what a workload should know: its plan, the services it wants, those that its gateway
/// leads to, and the backends that their routes name.
///
/// Requests reach a backend directly, whatever routes it has itself. But its sidecar may also be
/// asked for it by name, and then those count: so they are there, and their backends with them.
pub(crate) fn world(
    mesh: &Mesh,
    workload: &Workload,
    wanted: &BTreeSet<ServiceName>,
    views: &mut Views,
) -> World {
    let viewer = Viewer::of(mesh, workload);
    let plan = Arc::new(plan(mesh, workload));
    let mut services = BTreeMap::new();
    let mut absent = BTreeSet::new();
    let gateway = plan.gateway.iter().flat_map(|gateway| gateway.backends());
    let gateway: BTreeSet<&ServiceName> = gateway.map(|backend| &backend.service).collect();
    let mut open: Vec<ServiceName> = wanted.iter().chain(gateway).cloned().collect();
    // Ends: each name is looked at once, and names come from services that exist.
    while let Some(name) = open.pop() {
        if services.contains_key(&name) || absent.contains(&name) {
            continue;
        }
        match views.view(mesh, &viewer, &name) {
            Some(view) => {
                open.extend(backends(&view).cloned());
                services.insert(name, view);
            }
            None => {
                absent.insert(name);
            }
        }
    }
    let (addresses, names) = (BTreeMap::new(), BTreeMap::new());
    World { snapshot: Arc::new(Snapshot { plan, services, addresses, names }), absent }
}

/// Compiles views that a workload's world needs: a slice of those that are not there yet. Says whether
/// all of them are there now.
pub(crate) fn prepare(
    mesh: &Mesh,
    (workload, services, addresses): (&Workload, &BTreeSet<ServiceName>, &BTreeSet<IpAddr>),
    views: &mut Views,
) -> bool {
    let viewer = Viewer::of(mesh, workload);
    let end = views.compiled().saturating_add(SLICE_VIEWS);
    let mut seen = BTreeSet::new();
    let mut open: Vec<ServiceName> = wanted(workload, services).into_iter().collect();
    for address in addresses {
        let Some(service) = mesh.service_at(*address) else { continue };
        if !is_balanced(mesh, &service.name) {
            views.view(mesh, &Viewer::Anybody, &service.name);
        }
        open.push(service.name.clone());
        if views.compiled() >= end {
            return false;
        }
    }
    // Ends, as that of a world does.
    while let Some(name) = open.pop() {
        if seen.contains(&name) {
            continue;
        }
        if let Some(view) = views.view(mesh, &viewer, &name) {
            open.extend(backends(&view).cloned());
        }
        seen.insert(name);
        if views.compiled() >= end {
            return false;
        }
    }
    true
}

impl World {
    /// The same, and what is at the addresses that were asked for.
    pub(crate) fn with_addresses(mut self, at: BTreeMap<IpAddr, Arc<Occupant>>) -> Self {
        Arc::make_mut(&mut self.snapshot).addresses = at;
        self
    }

    /// The same, and what the names stand for that were looked up.
    pub(crate) fn with_names(mut self, names: BTreeMap<ServiceName, Arc<Whereabouts>>) -> Self {
        Arc::make_mut(&mut self.snapshot).names = names;
        self
    }
}

/// The endpoints that the services of a workload's world lack because their sidecars have not been
/// heard of. What the facts alone decide, such as whether it may call them, is certain.
pub(crate) fn doubt(mesh: &Mesh, workload: &Workload, world: &World) -> Doubt {
    let viewer = Viewer::of(mesh, workload);
    let views = world.snapshot.services.values();
    views.flat_map(|view| unheard(mesh, &viewer, view)).collect()
}

/// The views that are compiled in one slice: a few milliseconds.
const SLICE_VIEWS: u64 = 256;

#[cfg(test)]
mod tests;
