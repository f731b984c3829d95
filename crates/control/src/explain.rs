//! Compiles the snapshot of one sidecar offline, from objects alone, without a running mesh.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use leno_model::{Object, ServiceName, Snapshot, WorkloadName};

use crate::compile::{ServiceConfigCache, compile_config, used_services};
use crate::mesh::{Listeners, Mesh};

/// Compiles the configuration that the sidecar of `client` would have if every workload had a connected sidecar. The
/// configuration contains `services` and the services of the client's outbound listeners; missing services are left
/// out.
///
/// Each endpoint has the address and ports of its workload, because no sidecar reports a listen address.
///
/// # Errors
/// Returns [`UnknownWorkload`] if `client` is not among the objects.
pub fn snapshot_for(
    objects: &[Object],
    client: &WorkloadName,
    services: &[ServiceName],
) -> Result<Snapshot, UnknownWorkload> {
    let mut mesh: Mesh = objects.iter().cloned().collect();
    let assumed_listeners: Vec<(WorkloadName, Listeners)> = mesh
        .workloads()
        .map(|workload| {
            let port_numbers = workload.ports.iter().map(|port| port.port);
            let listeners =
                port_numbers.map(|port| (port, SocketAddr::new(workload.address, port)));
            (workload.name.clone(), listeners.collect())
        })
        .collect();
    for (name, listeners) in assumed_listeners {
        mesh.set_listeners(&name, Some(listeners));
    }
    let Some(workload) = mesh.workload(client) else {
        let known = mesh.workloads().map(|workload| workload.name.clone());
        return Err(UnknownWorkload {
            name: client.clone(),
            known: known.take(MAX_NAMES_IN_ERROR).collect(),
        });
    };
    let subscriptions: BTreeSet<ServiceName> = services.iter().cloned().collect();
    let root_services = used_services(workload, &subscriptions);
    let compiled_config =
        compile_config(&mesh, workload, &root_services, &mut ServiceConfigCache::default());
    Ok(Snapshot::clone(&compiled_config.snapshot))
}

/// No workload has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no Workload {name}; there are: {}", list_names(known))]
pub struct UnknownWorkload {
    /// The name that was not found.
    pub name: WorkloadName,
    /// The names of existing workloads; the first 20 if there are many.
    pub known: Vec<WorkloadName>,
}

fn list_names(names: &[WorkloadName]) -> String {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    }
}

/// Maximum names in an error.
const MAX_NAMES_IN_ERROR: usize = 20;
