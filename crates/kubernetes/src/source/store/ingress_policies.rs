//! Tracks the sources of ingress policies (IngressBackends, which open ports of services to clients outside the mesh),
//! and finds the reasons that a policy does not open a port. Sources may be unmeshed pods. Also marks custom resources
//! that have changed.

use std::collections::BTreeSet;

use leno_model::{
    IngressBackend, IngressName, IngressPolicy, IngressSource, Object, ObjectKey, RouteGroupName,
    Service, ServiceName, Workload, WorkloadName,
};
use leno_registry::NODE_NETWORK_LABEL;

use super::{ObjectOrigin, ObjectStore, smallest_name};
use crate::read::{matches_selector, with_target_ports};

impl ObjectStore {
    /// Marks custom resources that may have changed.
    pub(super) fn mark_custom_resources(&mut self, keys: impl IntoIterator<Item = ObjectKey>) {
        let mut ingress_changed = false;
        for key in keys {
            ingress_changed |= matches!(key, ObjectKey::Ingress(_));
            self.statuses_stale |= matches!(key, ObjectKey::HttpRouteGroup(_));
            if matches!(key, ObjectKey::AccessCert(_) | ObjectKey::MeshConfig) {
                self.external_principals.mark_changed();
            }
            if key == ObjectKey::MeshConfig {
                self.mark_floor();
            }
            self.dirty.insert(key);
        }
        if ingress_changed {
            self.update_ingress_sources();
        }
    }

    /// Returns true if a workload is behind a service that is the source of an ingress policy.
    pub(super) fn is_ingress_source(&self, workload: &Workload) -> bool {
        let services =
            self.services.may_select(workload).chain(self.selectorless.may_select(workload));
        let mut source_services =
            services.filter(|service| self.ingress_sources.contains(&service.name));
        source_services.any(|service| matches_selector(&service.selector, &workload.labels))
    }

    /// Marks statuses as changed if the pods behind the services of an ingress policy change.
    pub(super) fn mark_ingress_policies(
        &mut self,
        old_pod: Option<&Workload>,
        new_pod: Option<&Workload>,
    ) {
        let relevant_fields = |workload: &Workload| {
            (workload.labels.clone(), workload.ports.clone(), workload.sidecar)
        };
        if self.statuses_stale || old_pod.map(relevant_fields) == new_pod.map(relevant_fields) {
            return;
        }
        let services_of = |workload: &Workload| -> BTreeSet<ServiceName> {
            self.services.may_select(workload).map(|service| service.name.clone()).collect()
        };
        let services: BTreeSet<ServiceName> =
            old_pod.into_iter().chain(new_pod).flat_map(services_of).collect();
        let targets_service = |policy: &IngressPolicy| {
            let backends = &policy.backends;
            let names = backends.iter().map(|backend| backend_service(policy, backend));
            names.into_iter().any(|name| services.contains(&name))
        };
        let is_source = services.iter().any(|name| self.ingress_sources.contains(name));
        self.statuses_stale |= is_source
            || (!services.is_empty()
                && self.custom_resources.all().filter_map(as_ingress).any(targets_service));
    }

    /// Returns the pods that a service selects.
    pub(super) fn pods_behind<'a>(
        &'a self,
        service: &'a Service,
    ) -> impl Iterator<Item = &'a Workload> {
        let namespace = service.name.namespace.clone();
        let range_start = WorkloadName { namespace: namespace.clone(), name: smallest_name() };
        let namespace_pods = self.workloads.range(range_start..);
        let namespace_pods =
            namespace_pods.take_while(move |(name, _)| name.namespace == namespace);
        namespace_pods
            .map(|(_, pod)| pod)
            .filter(|pod| matches_selector(&service.selector, &pod.labels))
    }

    /// Returns the reason that a port of an ingress policy is not open: another policy takes precedence, or an
    /// object is missing.
    pub(super) fn closed_reason(&self, origin: &ObjectOrigin) -> Option<String> {
        let Some(Object::Ingress(policy)) = self.custom_resources.get_by_origin(origin) else {
            return None;
        };
        for backend in &policy.backends {
            let precedes = |other: &IngressPolicy| {
                let mut other_backends = other.backends.iter();
                other.name.namespace == policy.name.namespace
                    && other.precedence() < policy.precedence()
                    && other_backends.any(|other_backend| {
                        (&other_backend.service, other_backend.port)
                            == (&backend.service, backend.port)
                    })
            };
            let policies = self.custom_resources.all().filter_map(as_ingress);
            if let Some(preceding_policy) =
                policies.filter(|other| precedes(other)).min_by_key(|other| other.precedence())
            {
                return Some(format!(
                    "spec.backends: the {} opens port {} of {}; merge the sources of both",
                    preceding_policy.name, backend.port, backend.service
                ));
            }
            if let Some(problem) = self.closed_backend_reason(policy, backend) {
                return Some(format!("spec.backends: {problem}"));
            }
        }
        let find_group = |group: &RouteGroupName| {
            self.custom_resources.get(&ObjectKey::HttpRouteGroup(group.clone()))
        };
        if let Some(group) = policy.groups.iter().find(|group| find_group(group).is_none()) {
            return Some(format!("spec.matches: there is no HTTPRouteGroup {group}"));
        }
        policy.sources.iter().find_map(|source| match source {
            IngressSource::Service(service) => self.missing_source_reason(service),
            IngressSource::Range(_) | IngressSource::Principal(_) | IngressSource::Named(_) => None,
        })
    }

    /// Returns the reason that the service of a source admits no client; `None` if it has an endpoint with an address
    /// of its own.
    fn missing_source_reason(&self, name: &ServiceName) -> Option<String> {
        let service = self.services.get(name).cloned().or_else(|| self.configured_service(name));
        let endpoints = service.iter().flat_map(|service| self.endpoints_of(service));
        let mut endpoints =
            endpoints.filter(|endpoint| !self.belongs_to_other_namespace(endpoint)).peekable();
        let has_endpoints = endpoints.peek().is_some();
        if endpoints.any(|endpoint| !endpoint.labels.contains_key(NODE_NETWORK_LABEL)) {
            return None;
        }
        let hint = match has_endpoints {
            true => {
                ": its pods have the addresses of their nodes (hostNetwork); write an IPRange with those addresses"
            }
            false => "",
        };
        Some(format!("endpoints not found for service {name}{hint}"))
    }

    /// Returns the reason that a port of a service is not open, or is open with settings of another policy; `None` if
    /// it is open as this policy specifies.
    fn closed_backend_reason(
        &self,
        policy: &IngressPolicy,
        backend: &IngressBackend,
    ) -> Option<String> {
        let (name, port) = (backend_service(policy, backend), backend.port);
        let selector_service = || self.services.get(&name);
        let joined_service = || {
            self.selectorless
                .service(&name)
                .filter(|service| self.joined_services.contains(&service.name))
        };
        let Some(service) = selector_service().or_else(joined_service) else {
            return Some(format!("there is no Service {name} that selects pods"));
        };
        let meshed_pods = || self.pods_behind(service).filter(|pod| pod.sidecar);
        let has_port = |pod: &Workload| {
            let selectorless = self.selectorless_services_of(pod);
            let ports_of_pod =
                with_target_ports(pod, self.services.may_select(pod).chain(&selectorless));
            ports_of_pod.ports.iter().any(|declared| declared.port == port)
        };
        if meshed_pods().next().is_some() && !meshed_pods().any(has_port) {
            return Some(format!("no pod of the Service {name} has the port {port}"));
        }
        let find_contradiction = |pod: &Workload| self.contradicting_policy(pod, policy, backend);
        let contradicting_policy = meshed_pods().find_map(find_contradiction)?;
        Some(format!(
            "the {contradicting_policy} opens port {port} of pods of {name} with other settings"
        ))
    }

    /// Returns the policy that opens a port of a pod with another protocol, perhaps through another service, and takes
    /// precedence.
    fn contradicting_policy<'a>(
        &'a self,
        pod: &Workload,
        policy: &IngressPolicy,
        backend: &IngressBackend,
    ) -> Option<IngressName> {
        let selecting_services = self
            .services
            .may_select(pod)
            .filter(|service| matches_selector(&service.selector, &pod.labels));
        let services: BTreeSet<&ServiceName> =
            selecting_services.map(|service| &service.name).collect();
        let policies = self.custom_resources.all().filter_map(as_ingress);
        let policies = policies.filter(|other| other.name.namespace == policy.name.namespace);
        let find_backend = |other: &'a IngressPolicy| {
            let mut backends = other.backends.iter();
            let matching_backend = backends.find(|other_backend| {
                other_backend.port == backend.port
                    && services.contains(&backend_service(other, other_backend))
            })?;
            Some((other, matching_backend.protocol.clone()))
        };
        let (first_policy, protocol) =
            policies.filter_map(find_backend).min_by_key(|(other, _)| other.precedence())?;
        (protocol != backend.protocol).then(|| first_policy.name.clone())
    }

    /// Updates the services that are sources of ingress policies, and marks their pods as changed.
    fn update_ingress_sources(&mut self) {
        // Another policy may be in force or in conflict now.
        self.statuses_stale = true;
        let sources =
            self.custom_resources.all().filter_map(as_ingress).flat_map(|policy| &policy.sources);
        let services = sources.filter_map(|source| match source {
            IngressSource::Service(service) => Some(service.clone()),
            IngressSource::Range(_) | IngressSource::Principal(_) | IngressSource::Named(_) => None,
        });
        let current_sources: BTreeSet<ServiceName> = services.collect();
        let previous_sources = std::mem::replace(&mut self.ingress_sources, current_sources);
        let changed_sources: Vec<ServiceName> =
            previous_sources.symmetric_difference(&self.ingress_sources).cloned().collect();
        for name in changed_sources {
            let service = self.known_service(&name).cloned();
            self.mark_selected_workloads(&name, &[service.as_ref()]);
            // A service without a selector becomes known to sidecars.
            self.dirty.insert(ObjectKey::Service(name));
        }
    }
}

fn backend_service(policy: &IngressPolicy, backend: &IngressBackend) -> ServiceName {
    ServiceName { namespace: policy.name.namespace.clone(), name: backend.service.clone() }
}

fn as_ingress(object: &Object) -> Option<&IngressPolicy> {
    match object {
        Object::Ingress(policy) => Some(policy),
        _ => None,
    }
}
