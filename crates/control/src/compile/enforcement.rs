//! Decides which services sidecars balance, and which unmeshed endpoints (workloads without a sidecar) sidecars and
//! gateways leave out. The reasons are policies that only a sidecar enforces, the default policy, or `egress`.

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
    /// The workload is ready, or the service publishes unready workloads.
    Ready,
    /// The workload is terminating and still serves requests: used while no workload is ready, as in
    /// kube-proxy.
    Terminating,
}

impl LifecycleStage {
    /// Returns the stage of the workloads that receive a service's requests now.
    fn for_service(mesh: &Mesh, service: &Service) -> Self {
        let meshed_workloads = mesh.workloads_with_sidecar(&service.name);
        let mut workloads = meshed_workloads.chain(mesh.unmeshed_workloads_of(&service.name));
        match workloads.any(|workload| Self::Ready.includes(service, workload)) {
            true => Self::Ready,
            false => Self::Terminating,
        }
    }

    /// True if a workload is at this stage.
    pub(super) fn includes(self, service: &Service, workload: &Workload) -> bool {
        match self {
            Self::Ready => workload.ready || service.unready,
            Self::Terminating => workload.terminating,
        }
    }
}

/// True if sidecars balance over the endpoints of a service: a workload of the service has a sidecar, ready or
/// not. Sidecars balance even before that workload is ready, because the cluster network would send plaintext to it
/// as soon as it is ready. Until then, requests go to the service's ready unmeshed endpoints, so a pod with a sidecar
/// that cannot start changes nothing.
///
/// While no workload with a sidecar receives requests, `egress: deny` keeps the service outside the mesh,
/// whether an `Egress` permits it or not. The exceptions are policies that only a sidecar enforces.
pub(super) fn is_balanced(mesh: &Mesh, name: &ServiceName) -> bool {
    let Some(service) = mesh.service(name) else { return false };
    let mut meshed_workloads = mesh.workloads_with_sidecar(name).peekable();
    if meshed_workloads.peek().is_none() {
        return is_joining(mesh, service);
    }
    let stage = LifecycleStage::for_service(mesh, service);
    if meshed_workloads.any(|workload| stage.includes(service, workload)) {
        return true;
    }
    let is_external = |workload: &Workload| {
        plaintext_restriction(mesh, workload) == Some(PlaintextRestriction::Egress)
            && !requires_sidecar(mesh, service, workload)
    };
    let mut unmeshed_workloads = mesh
        .unmeshed_workloads_of(name)
        .filter(|workload| stage.includes(service, workload))
        .peekable();
    unmeshed_workloads.peek().is_none() || !unmeshed_workloads.all(is_external)
}

/// True for a service without a selector that a pod with a sidecar may join at any time, if sidecars may send plaintext
/// to each of its ready endpoints. Sidecars must balance before that pod joins: it becomes an endpoint for the control
/// plane only when the cluster network already routes plaintext to it.
fn is_joining(mesh: &Mesh, service: &Service) -> bool {
    let mut unmeshed_workloads = mesh
        .unmeshed_workloads_of(&service.name)
        .filter(|workload| LifecycleStage::Ready.includes(service, workload))
        .peekable();
    let accepts_plaintext = |workload: &Workload| {
        workload.labels.contains_key(JOINING_LABEL)
            && plaintext_restriction(mesh, workload).is_none()
            && !requires_sidecar(mesh, service, workload)
    };
    unmeshed_workloads.peek().is_some() && unmeshed_workloads.all(accepts_plaintext)
}

/// The setting that forbids plaintext from sidecars to an unmeshed workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaintextRestriction {
    /// The workload's default policy is `deny`: only members of the mesh are called.
    DefaultPolicy,
    /// The mesh has `egress: deny`.
    Egress,
}

/// Returns the setting that forbids plaintext from sidecars to an unmeshed workload; `None` if plaintext is
/// permitted.
pub(crate) fn plaintext_restriction(
    mesh: &Mesh,
    workload: &Workload,
) -> Option<PlaintextRestriction> {
    if mesh.default_policy_of(workload) == DefaultPolicy::Deny {
        return Some(PlaintextRestriction::DefaultPolicy);
    }
    (mesh.config().egress == Egress::Deny).then_some(PlaintextRestriction::Egress)
}

/// Returns the number of ready unmeshed workloads of a service that sidecars leave out because of the default
/// policy or `egress`, and the setting that excludes the first of these workloads. Returns `None` if sidecars leave
/// out no workload, or do not balance over the endpoints of the service.
pub(crate) fn restricted_workloads(
    mesh: &Mesh,
    service: &Service,
) -> Option<(usize, PlaintextRestriction)> {
    if !is_balanced(mesh, &service.name) {
        return None;
    }
    let unmeshed_workloads = mesh.unmeshed_workloads_of(&service.name);
    let ready_workloads =
        unmeshed_workloads.filter(|workload| LifecycleStage::Ready.includes(service, workload));
    let mut restrictions =
        ready_workloads.filter_map(|workload| plaintext_restriction(mesh, workload));
    let first_restriction = restrictions.next()?;
    Some((1 + restrictions.count(), first_restriction))
}

/// A cache that records, for many unmeshed workloads, if a policy applies that only a sidecar enforces.
pub(super) struct EnforcementCache<'a> {
    mesh: &'a Mesh,
    /// The cached results of [`Self::is_unrestricted`], by the services that select a workload, each with its ports that
    /// forward to the port of the workload. Named ports may map to different numbers at each workload.
    results: BTreeMap<Vec<(&'a ServiceName, Vec<u16>)>, bool>,
}

impl<'a> EnforcementCache<'a> {
    pub(super) fn new(mesh: &'a Mesh) -> Self {
        Self { mesh, results: BTreeMap::new() }
    }

    /// True if no policy that only a sidecar enforces applies at a port of a workload; cached.
    pub(super) fn is_unrestricted(&mut self, workload: &'a Workload, port_number: u16) -> bool {
        let services = self.mesh.services_of_unmeshed_workload(&workload.name);
        let key = services
            .map(|service| {
                (&service.name, forwarding_ports(service, workload, port_number).collect())
            })
            .collect();
        let is_unrestricted =
            || policies_needing_sidecar(self.mesh, workload, port_number).is_empty();
        *self.results.entry(key).or_insert_with(is_unrestricted)
    }
}

/// Returns the ports of a service that forward to a port of a workload.
fn forwarding_ports(
    service: &Service,
    workload: &Workload,
    port_number: u16,
) -> impl Iterator<Item = u16> {
    let forwards =
        move |port: &&ServicePort| target_port(&port.target, workload) == Some(port_number);
    service.ports.iter().filter(forwards).map(|port| port.port)
}

/// True if a policy that only a sidecar enforces applies at some port of a service at an unmeshed workload.
pub(super) fn requires_sidecar(mesh: &Mesh, service: &Service, workload: &Workload) -> bool {
    let mut port_numbers = service
        .ports
        .iter()
        .filter_map(|port| target_port(&port.target, workload))
        .collect::<BTreeSet<u16>>()
        .into_iter();
    port_numbers
        .any(|port_number| !policies_needing_sidecar(mesh, workload, port_number).is_empty())
}

/// Returns the policies that the sidecar of a workload would enforce at a port of its application: limits and
/// external checks of all services that forward there, as in a sidecar's configuration, and access policies on
/// the account of any workload of one of these services.
pub(super) fn policies_needing_sidecar(
    mesh: &Mesh,
    workload: &Workload,
    port_number: u16,
) -> BTreeSet<ObjectKey> {
    let mut policies: BTreeSet<ObjectKey> = access_policies(mesh, workload).collect();
    for service in mesh.services_of_unmeshed_workload(&workload.name) {
        for port in forwarding_ports(service, workload, port_number) {
            let limits = mesh.port_limits(&service.name, port).map(|limits| limits.policy);
            let checks = mesh
                .port_checks(&service.name, port)
                .into_iter()
                .map(|port_check| port_check.policy);
            policies.extend(limits.into_iter().chain(checks).map(ObjectKey::ServicePolicy));
        }
        let workloads =
            mesh.service_workloads(&service.name).chain(mesh.unmeshed_workloads_of(&service.name));
        policies
            .extend(workloads.flat_map(|service_workload| access_policies(mesh, service_workload)));
    }
    policies
}

/// Returns the policies on the account of a workload that reject requests there. With `defaultPolicy: dry-run`
/// no policy rejects requests; with `allow`, only deny policies do.
fn access_policies<'a>(
    mesh: &'a Mesh,
    workload: &'a Workload,
) -> impl Iterator<Item = ObjectKey> + 'a {
    let default_policy = mesh.default_policy_of(workload);
    let rejects = move |action: PolicyAction| match default_policy {
        DefaultPolicy::DryRun => false,
        DefaultPolicy::Allow => action == PolicyAction::Deny,
        DefaultPolicy::Deny => true,
    };
    let policies = mesh
        .access_policies_of(workload)
        .filter(move |policy| policy.rules.iter().any(|rule| rejects(rule.action)))
        .map(|policy| ObjectKey::AccessPolicy(policy.name.clone()));
    let targets = mesh.targets_of(&workload.account).filter(move |_| rejects(PolicyAction::Allow));
    policies.chain(targets.map(|target| ObjectKey::TrafficTarget(target.name.clone())))
}

/// Returns the names of unmeshed endpoints that are left out because of a policy. Empty unless a gateway or a
/// sidecar routes to them.
pub(crate) fn excluded_endpoints<'a>(
    mesh: &'a Mesh,
    policy: &ObjectKey,
) -> BTreeSet<&'a WorkloadName> {
    let is_reached = |service: &&Service| {
        mesh.workloads_with_sidecar(&service.name).next().is_some()
            || mesh.is_reached_by_gateway(&service.name)
    };
    let services = mesh.services_with_unmeshed_workloads().filter(is_reached);
    let excluded_endpoints = services.flat_map(|service| {
        let unmeshed_workloads = mesh.unmeshed_workloads_of(&service.name);
        unmeshed_workloads.filter(move |workload| is_excluded(mesh, service, workload, policy))
    });
    excluded_endpoints.map(|workload| &workload.name).collect()
}

fn is_excluded(mesh: &Mesh, service: &Service, workload: &Workload, policy: &ObjectKey) -> bool {
    let port_numbers: BTreeSet<u16> =
        service.ports.iter().filter_map(|port| target_port(&port.target, workload)).collect();
    port_numbers
        .into_iter()
        .any(|port_number| policies_needing_sidecar(mesh, workload, port_number).contains(policy))
}
