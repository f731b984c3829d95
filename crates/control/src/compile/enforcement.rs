//! The endpoints that sidecars balance over, and the unmeshed endpoints that sidecars and gateways leave out
//! because of policies that only a sidecar enforces, the default policy, or `egress`.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    DefaultPolicy, Egress, ObjectKey, PolicyAction, Service, ServiceName, ServicePort, Workload,
    WorkloadName,
};
use leno_registry::JOINING_LABEL;

use super::service::target_port;
use crate::mesh::Mesh;

/// The lifecycle stage of the workloads that receive a service's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LifecycleStage {
    /// Ready, or any if the service publishes unready ones.
    Ready,
    /// Terminating and still serving: used while no other workload is ready, as by kube-proxy.
    Terminating,
}

impl LifecycleStage {
    /// Returns the stage of the workloads that receive a service's requests now.
    fn for_service(mesh: &Mesh, service: &Service) -> Self {
        let members = mesh.members_behind(&service.name);
        let mut all = members.chain(mesh.unmeshed_workloads_behind(&service.name));
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

/// True if sidecars balance over the endpoints of a service: a workload of the service has a sidecar, ready or
/// not. Its ready unmeshed endpoints are included, so a pod that cannot start changes nothing. Sidecars balance
/// before the first pod with a sidecar is ready: the cluster network would route plaintext to it.
///
/// While no workload with a sidecar receives requests, `egress: deny` keeps the service outside the mesh,
/// whether an `Egress` permits it or not. The exceptions are policies that only a sidecar enforces.
pub(super) fn is_balanced(mesh: &Mesh, name: &ServiceName) -> bool {
    let Some(service) = mesh.service(name) else { return false };
    let mut members = mesh.members_behind(name).peekable();
    if members.peek().is_none() {
        return is_joining(mesh, service);
    }
    let stage = LifecycleStage::for_service(mesh, service);
    if members.any(|it| stage.includes(service, it)) {
        return true;
    }
    let is_outside = |workload: &Workload| {
        barrier(mesh, workload) == Some(Barrier::Egress) && !needs_sidecar(mesh, service, workload)
    };
    let others = mesh.unmeshed_workloads_behind(name).filter(|it| stage.includes(service, it));
    let mut others = others.peekable();
    others.peek().is_none() || !others.all(is_outside)
}

/// True for a service without a selector that may get its first pod with a sidecar at any time, while sidecars
/// may send plaintext to each of its endpoints. The pod becomes known as an endpoint only when the cluster
/// network routes plaintext to it as well.
fn is_joining(mesh: &Mesh, service: &Service) -> bool {
    let others = mesh.unmeshed_workloads_behind(&service.name);
    let mut others = others.filter(|it| LifecycleStage::Ready.includes(service, it)).peekable();
    let is_open = |it: &Workload| {
        it.labels.contains_key(JOINING_LABEL)
            && barrier(mesh, it).is_none()
            && !needs_sidecar(mesh, service, it)
    };
    others.peek().is_some() && others.all(is_open)
}

/// The setting that forbids plaintext from sidecars to an unmeshed workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// The workload's default policy is `deny`: only members of the mesh are called.
    DefaultPolicy,
    /// The mesh has `egress: deny`.
    Egress,
}

/// Returns the setting that forbids plaintext from sidecars to an unmeshed workload; `None` without such a
/// setting.
pub(crate) fn barrier(mesh: &Mesh, workload: &Workload) -> Option<Barrier> {
    if mesh.mode_of(workload) == DefaultPolicy::Deny {
        return Some(Barrier::DefaultPolicy);
    }
    (mesh.config().egress == Egress::Deny).then_some(Barrier::Egress)
}

/// Returns the number of ready unmeshed workloads of a service that sidecars leave out because of the default policy or
/// `egress`, and the setting, while sidecars balance over its endpoints (even if none with a sidecar is ready).
pub(crate) fn barred_workloads(mesh: &Mesh, service: &Service) -> Option<(usize, Barrier)> {
    if !is_balanced(mesh, &service.name) {
        return None;
    }
    let others = mesh.unmeshed_workloads_behind(&service.name);
    let ready = others.filter(|it| LifecycleStage::Ready.includes(service, it));
    let mut barriers = ready.filter_map(|it| barrier(mesh, it));
    let first = barriers.next()?;
    Some((1 + barriers.count(), first))
}

/// Checks, for many unmeshed workloads, if a policy applies that only a sidecar enforces.
pub(super) struct Enforcement<'a> {
    mesh: &'a Mesh,
    /// Known results, by the services that select a workload, each with its ports that forward to the port of
    /// the workload: named ports may map to different numbers at each workload.
    known: BTreeMap<Vec<(&'a ServiceName, Vec<u16>)>, bool>,
}

impl<'a> Enforcement<'a> {
    pub(super) fn from_mesh(mesh: &'a Mesh) -> Self {
        Self { mesh, known: BTreeMap::new() }
    }

    /// True if no policy that only a sidecar enforces applies at a port of a workload.
    pub(super) fn is_complete(&mut self, workload: &'a Workload, number: u16) -> bool {
        let services = self.mesh.in_front_of_unmeshed_workload(&workload.name);
        let key = services
            .map(|it| (&it.name, forwarding_ports(it, workload, number).collect()))
            .collect();
        let is_complete = || needing_sidecar(self.mesh, workload, number).is_empty();
        *self.known.entry(key).or_insert_with(is_complete)
    }
}

/// Returns the ports of a service that forward to a port of a workload.
fn forwarding_ports(
    service: &Service,
    workload: &Workload,
    number: u16,
) -> impl Iterator<Item = u16> {
    let leads = move |port: &&ServicePort| target_port(&port.target, workload) == Some(number);
    service.ports.iter().filter(leads).map(|port| port.port)
}

/// True if a policy that only a sidecar enforces applies at some port of a service at an unmeshed workload.
pub(super) fn needs_sidecar(mesh: &Mesh, service: &Service, workload: &Workload) -> bool {
    let numbers = service.ports.iter().filter_map(|port| target_port(&port.target, workload));
    let mut numbers = numbers.collect::<BTreeSet<u16>>().into_iter();
    numbers.any(|number| !needing_sidecar(mesh, workload, number).is_empty())
}

/// Returns the policies that the sidecar of a workload would enforce at a port of its application: limits and
/// guards of all services that forward there, as in the plan of a sidecar, and access policies on the account
/// of any workload of one of these services.
pub(super) fn needing_sidecar(
    mesh: &Mesh,
    workload: &Workload,
    number: u16,
) -> BTreeSet<ObjectKey> {
    let mut policies: BTreeSet<ObjectKey> = access_policies(mesh, workload).collect();
    for service in mesh.in_front_of_unmeshed_workload(&workload.name) {
        for port in forwarding_ports(service, workload, number) {
            let limits = mesh.port_limits(&service.name, port).map(|limits| limits.policy);
            let guards = mesh.port_checks(&service.name, port).into_iter().map(|it| it.policy);
            policies.extend(limits.into_iter().chain(guards).map(ObjectKey::ServicePolicy));
        }
        let beside = mesh
            .service_workloads(&service.name)
            .chain(mesh.unmeshed_workloads_behind(&service.name));
        policies.extend(beside.flat_map(|beside| access_policies(mesh, beside)));
    }
    policies
}

/// Returns the policies on the account of a workload that reject requests there. With `defaultPolicy: dry-run`
/// none does; with `allow`, allow policies do not.
fn access_policies<'a>(
    mesh: &'a Mesh,
    workload: &'a Workload,
) -> impl Iterator<Item = ObjectKey> + 'a {
    let default_policy = mesh.mode_of(workload);
    let rejects = move |action: PolicyAction| match default_policy {
        DefaultPolicy::DryRun => false,
        DefaultPolicy::Allow => action == PolicyAction::Deny,
        DefaultPolicy::Deny => true,
    };
    let access = mesh.access_policies_of(workload);
    let access = access.filter(move |policy| policy.rules.iter().any(|rule| rejects(rule.action)));
    let access = access.map(|policy| ObjectKey::AccessPolicy(policy.name.clone()));
    let targets = mesh.targets_of(&workload.account);
    let targets = targets.filter(move |_| rejects(PolicyAction::Allow));
    access.chain(targets.map(|target| ObjectKey::TrafficTarget(target.name.clone())))
}

/// Returns the names of unmeshed endpoints that are left out because of a policy. Empty unless a gateway or a
/// sidecar routes to them.
pub(crate) fn left_out<'a>(mesh: &'a Mesh, policy: &ObjectKey) -> BTreeSet<&'a WorkloadName> {
    let is_led_to = |service: &&Service| {
        mesh.members_behind(&service.name).next().is_some() || mesh.is_led_to(&service.name)
    };
    let services = mesh.services_with_unmeshed_workloads().filter(is_led_to);
    let left_out = services.flat_map(|service| {
        let unmeshed_workloads = mesh.unmeshed_workloads_behind(&service.name);
        unmeshed_workloads.filter(move |workload| is_left_out(mesh, service, workload, policy))
    });
    left_out.map(|workload| &workload.name).collect()
}

fn is_left_out(mesh: &Mesh, service: &Service, workload: &Workload, policy: &ObjectKey) -> bool {
    let numbers = service.ports.iter().filter_map(|port| target_port(&port.target, workload));
    let numbers: BTreeSet<u16> = numbers.collect();
    numbers.into_iter().any(|number| needing_sidecar(mesh, workload, number).contains(policy))
}
