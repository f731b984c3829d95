//! Policies that only a sidecar enforces, and the endpoints without a sidecar that gateways leave out because of them.

use std::collections::BTreeSet;

use leno_model::{ObjectKey, PolicyAction, Service, TrafficMode, Workload, WorkloadName};

use super::service::target_port;
use crate::mesh::Mesh;

/// The policies that the sidecar of a workload would enforce at a port of its application: limits and guards of all
/// services that lead there, as in the plan of a sidecar, and access policies about the account of any workload behind one
/// of these services.
pub(super) fn needing_sidecar(
    mesh: &Mesh,
    workload: &Workload,
    number: u16,
) -> BTreeSet<ObjectKey> {
    let mut policies: BTreeSet<ObjectKey> = access_policies(mesh, workload).collect();
    for service in mesh.in_front_of_bystander(&workload.name) {
        let leading = service.ports.iter();
        let leading = leading.filter(|port| target_port(&port.target, workload) == Some(number));
        for port in leading {
            let limits = mesh.limits(&service.name, port.port).map(|limits| limits.policy);
            let guards = mesh.guards(&service.name, port.port).into_iter().map(|it| it.policy);
            policies.extend(limits.into_iter().chain(guards).map(ObjectKey::ServicePolicy));
        }
        let beside = mesh.behind(&service.name).chain(mesh.bystanders_behind(&service.name));
        policies.extend(beside.flat_map(|beside| access_policies(mesh, beside)));
    }
    policies
}

/// The policies about the account of a workload that reject something there. In mode `audit` none does; in mode
/// `permissive` those that allow do not.
fn access_policies<'a>(
    mesh: &'a Mesh,
    workload: &'a Workload,
) -> impl Iterator<Item = ObjectKey> + 'a {
    let mode = mesh.mode_of(workload);
    let rejects = move |action: PolicyAction| match mode {
        TrafficMode::Audit => false,
        TrafficMode::Permissive => action == PolicyAction::Deny,
        TrafficMode::Strict => true,
    };
    let access = mesh.access_policies_of(workload);
    let access = access.filter(move |policy| policy.rules.iter().any(|rule| rejects(rule.action)));
    let access = access.map(|policy| ObjectKey::AccessPolicy(policy.name.clone()));
    let targets = mesh.targets_of(&workload.account);
    let targets = targets.filter(move |_| rejects(PolicyAction::Allow));
    access.chain(targets.map(|target| ObjectKey::TrafficTarget(target.name.clone())))
}

/// The endpoints without a sidecar that gateways leave out because of a policy, by name. Empty where no gateway leads.
pub(crate) fn left_out<'a>(mesh: &'a Mesh, policy: &ObjectKey) -> BTreeSet<&'a WorkloadName> {
    let services = mesh.services_with_bystanders().filter(|service| mesh.is_led_to(&service.name));
    let left_out = services.flat_map(|service| {
        let bystanders = mesh.bystanders_behind(&service.name);
        bystanders.filter(move |workload| is_left_out(mesh, service, workload, policy))
    });
    left_out.map(|workload| &workload.name).collect()
}

fn is_left_out(mesh: &Mesh, service: &Service, workload: &Workload, policy: &ObjectKey) -> bool {
    let numbers = service.ports.iter().filter_map(|port| target_port(&port.target, workload));
    let numbers: BTreeSet<u16> = numbers.collect();
    numbers.into_iter().any(|number| needing_sidecar(mesh, workload, number).contains(policy))
}
