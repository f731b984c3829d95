//! The endpoints that sidecars balance over, and those without a sidecar that sidecars and gateways leave out: because of
//! policies that only a sidecar enforces, of the mode, or of `egress`.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    Egress, ObjectKey, PolicyAction, Service, ServiceName, ServicePort, TrafficMode, Workload,
    WorkloadName,
};
use leno_registry::JOINING_LABEL;

use super::service::target_port;
use crate::mesh::Mesh;

/// The stage at which the workloads behind a service take its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Ready, or any where the service wants such ones too.
    Ready,
    /// Terminating and still serving: kube-proxy uses these while no other is ready, and so do sidecars and gateways.
    Terminating,
}

impl Stage {
    /// The stage of the workloads behind a service that take its requests now.
    fn of(mesh: &Mesh, service: &Service) -> Self {
        let members = mesh.members_behind(&service.name);
        let mut all = members.chain(mesh.bystanders_behind(&service.name));
        match all.any(|it| Self::Ready.includes(service, it)) {
            true => Self::Ready,
            false => Self::Terminating,
        }
    }

    /// True for a workload at this stage.
    pub(super) fn includes(self, service: &Service, workload: &Workload) -> bool {
        match self {
            Self::Ready => workload.ready || service.unready,
            Self::Terminating => workload.terminating,
        }
    }
}

/// True if sidecars balance over the endpoints of a service: a workload behind it has a sidecar, ready or not. Its ready
/// endpoints without a sidecar are among the endpoints, so a pod that cannot start changes nothing. Sidecars balance before the
/// first pod with a sidecar is ready: the network of the cluster would lead plaintext to it.
///
/// While no workload with a sidecar takes requests, `egress: deny` keeps the service outside the mesh, where an `Egress` permits
/// it or not. The exceptions are policies that only a sidecar enforces.
pub(super) fn is_balanced(mesh: &Mesh, name: &ServiceName) -> bool {
    let Some(service) = mesh.service(name) else { return false };
    let mut members = mesh.members_behind(name).peekable();
    if members.peek().is_none() {
        return is_joining(mesh, service);
    }
    let stage = Stage::of(mesh, service);
    if members.any(|it| stage.includes(service, it)) {
        return true;
    }
    let is_outside = |workload: &Workload| {
        barrier(mesh, workload) == Some(Barrier::Egress) && !needs_sidecar(mesh, service, workload)
    };
    let others = mesh.bystanders_behind(name).filter(|it| stage.includes(service, it));
    let mut others = others.peekable();
    others.peek().is_none() || !others.all(is_outside)
}

/// True for a service without a selector that may get its first pod with a sidecar at any time, while sidecars may send plaintext
/// to each of its endpoints. That pod is known as its endpoint only when the network of the cluster leads plaintext to it
/// as well.
fn is_joining(mesh: &Mesh, service: &Service) -> bool {
    let others = mesh.bystanders_behind(&service.name);
    let mut others = others.filter(|it| Stage::Ready.includes(service, it)).peekable();
    let is_open = |it: &Workload| {
        it.labels.contains_key(JOINING_LABEL)
            && barrier(mesh, it).is_none()
            && !needs_sidecar(mesh, service, it)
    };
    others.peek().is_some() && others.all(is_open)
}

/// The setting that keeps sidecars from plaintext to a workload without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// The mode is `strict` there: only members of the mesh are called.
    Strict,
    /// The mesh has `egress: deny`.
    Egress,
}

/// The setting that keeps sidecars from plaintext to a workload without one; `None` without such a setting.
pub(crate) fn barrier(mesh: &Mesh, workload: &Workload) -> Option<Barrier> {
    if mesh.mode_of(workload) == TrafficMode::Strict {
        return Some(Barrier::Strict);
    }
    (mesh.config().egress == Egress::Deny).then_some(Barrier::Egress)
}

/// The ready workloads without a sidecar behind a service that sidecars leave out because of the mode or `egress`, while
/// they balance over its endpoints, also without a ready one that has a sidecar: their number, and the setting.
pub(crate) fn barred(mesh: &Mesh, service: &Service) -> Option<(usize, Barrier)> {
    if !is_balanced(mesh, &service.name) {
        return None;
    }
    let others = mesh.bystanders_behind(&service.name);
    let ready = others.filter(|it| Stage::Ready.includes(service, it));
    let mut barriers = ready.filter_map(|it| barrier(mesh, it));
    let first = barriers.next()?;
    Some((1 + barriers.count(), first))
}

/// Finds out for many workloads without a sidecar if a policy applies that only a sidecar enforces.
pub(super) struct Enforcement<'a> {
    mesh: &'a Mesh,
    /// Known results, by the services in front of a workload, each with those of its ports that lead to the port of the
    /// workload: named ports may lead to different numbers at each workload.
    known: BTreeMap<Vec<(&'a ServiceName, Vec<u16>)>, bool>,
}

impl<'a> Enforcement<'a> {
    pub(super) fn of(mesh: &'a Mesh) -> Self {
        Self { mesh, known: BTreeMap::new() }
    }

    /// True when no policy applies at a port of a workload that only a sidecar enforces.
    pub(super) fn is_complete(&mut self, workload: &'a Workload, number: u16) -> bool {
        let services = self.mesh.in_front_of_bystander(&workload.name);
        let key = services.map(|it| (&it.name, leading(it, workload, number).collect())).collect();
        let is_complete = || needing_sidecar(self.mesh, workload, number).is_empty();
        *self.known.entry(key).or_insert_with(is_complete)
    }
}

/// The ports of a service that lead to a port of a workload.
fn leading(service: &Service, workload: &Workload, number: u16) -> impl Iterator<Item = u16> {
    let leads = move |port: &&ServicePort| target_port(&port.target, workload) == Some(number);
    service.ports.iter().filter(leads).map(|port| port.port)
}

/// True when a policy applies at some port of a service at a workload without a sidecar that only a sidecar enforces.
pub(super) fn needs_sidecar(mesh: &Mesh, service: &Service, workload: &Workload) -> bool {
    let numbers = service.ports.iter().filter_map(|port| target_port(&port.target, workload));
    let mut numbers = numbers.collect::<BTreeSet<u16>>().into_iter();
    numbers.any(|number| !needing_sidecar(mesh, workload, number).is_empty())
}

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
        for port in leading(service, workload, number) {
            let limits = mesh.limits(&service.name, port).map(|limits| limits.policy);
            let guards = mesh.guards(&service.name, port).into_iter().map(|it| it.policy);
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

/// The endpoints without a sidecar that are left out because of a policy, by name. Empty where no gateway and no sidecar
/// leads.
pub(crate) fn left_out<'a>(mesh: &'a Mesh, policy: &ObjectKey) -> BTreeSet<&'a WorkloadName> {
    let is_led_to = |service: &&Service| {
        mesh.members_behind(&service.name).next().is_some() || mesh.is_led_to(&service.name)
    };
    let services = mesh.services_with_bystanders().filter(is_led_to);
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
