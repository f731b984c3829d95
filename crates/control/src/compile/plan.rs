//! The plan of a sidecar: the workload behind it and the rules at its door.

use std::collections::BTreeMap;

use leno_model::{Service, ServiceName, Workload, WorkloadPlan};

use super::access::access;
use super::service::target_port;
use crate::mesh::Mesh;

/// Compiles what a sidecar is for.
pub(crate) fn plan(mesh: &Mesh, workload: &Workload) -> WorkloadPlan {
    WorkloadPlan {
        workload: workload.name.clone(),
        account: workload.account.clone(),
        trust_domain: mesh.config().trust_domain.clone(),
        address: workload.address,
        ports: workload.ports.clone(),
        served: served(mesh, workload),
        doors: workload.doors.clone(),
        access: access(mesh, &workload.account),
        revoked: mesh.config().revoked.clone(),
        edition: mesh.edition(),
    }
}

/// The service under which each port of the application is counted: when several lead there, the
/// one that chooses by the fewest labels (`reviews` rather than `reviews-v1`), then by name.
fn served(mesh: &Mesh, workload: &Workload) -> BTreeMap<u16, ServiceName> {
    let mut services: Vec<&Service> = mesh.in_front_of(&workload.name).collect();
    // Stable: services come in order of their names.
    services.sort_by_key(|service| service.selector.len());
    let mut served = BTreeMap::new();
    for service in services {
        for port in &service.ports {
            if let Some(number) = target_port(&port.target, workload) {
                served.entry(number).or_insert_with(|| service.name.clone());
            }
        }
    }
    served
}
