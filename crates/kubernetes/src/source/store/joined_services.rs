//! Tracks joined services: services that have had pods with a sidecar. Sidecars balance over all of their ready
//! pods, meshed or not.

use leno_model::{GATEWAY_LABEL, ObjectKey, Service, ServiceName, Workload, WorkloadName};

use super::{ObjectOrigin, ObjectStore, smallest_name};
use crate::read::matches_selector;
use crate::source::event::ObjectId;
use crate::source::kinds::WatchedKind;

impl ObjectStore {
    /// Marks the services of a pod with a sidecar as joined. Their unmeshed pods become endpoints, and remain
    /// so when the last sidecar is gone: clients keep connections to the service.
    pub(super) fn join_pod_services(&mut self, workload: &Workload) {
        if !workload.sidecar {
            return;
        }
        let services =
            self.services.may_select(workload).chain(self.selectorless.may_select(workload));
        let selecting_services = services.filter(|service| selects_workload(service, workload));
        let joining_services = selecting_services
            .filter(|service| !self.joined_services.contains(&service.name))
            .cloned();
        for service in joining_services.collect::<Vec<_>>() {
            self.joined_services.insert(service.name.clone());
            self.statuses_stale |= self.has_diagnostics(&service.name);
            self.mark_selected_workloads(&service.name, &[Some(&service)]);
            // A service without a selector becomes known to sidecars.
            self.dirty.insert(ObjectKey::Service(service.name));
        }
    }

    /// Marks as joined the services without a selector in the namespace of a pod with a sidecar.
    pub(super) fn join_selectorless_services(&mut self, workload: &Workload) {
        if !is_application_with_sidecar(workload) {
            return;
        }
        let services = self
            .selectorless
            .services_in(&workload.name.namespace)
            .map(|service| service.name.clone());
        for name in
            services.filter(|service| !self.joined_services.contains(service)).collect::<Vec<_>>()
        {
            self.join_selectorless_service(&name);
        }
    }

    /// Marks as joined a service without a selector that lists a pod, in a namespace with sidecars. Pods that
    /// are not listed yet may get a sidecar, but a slice lists them only when they are ready for requests,
    /// which is too late.
    pub(super) fn join_selectorless_service(&mut self, name: &ServiceName) {
        let service =
            self.selectorless.service(name).filter(|_| !self.joined_services.contains(name));
        let Some(service) = service.cloned() else { return };
        if !self.listed_endpoints_of(&service).any(|workload| self.is_pod_address(workload))
            || !self.namespace_has_sidecars(name)
        {
            return;
        }
        self.joined_services.insert(name.clone());
        self.statuses_stale = true;
        self.mark_selected_workloads(name, &[Some(&service)]);
        self.dirty.insert(ObjectKey::Service(name.clone()));
    }

    /// Returns true if the namespace of a service has a pod with a sidecar.
    fn namespace_has_sidecars(&self, service: &ServiceName) -> bool {
        let namespace = &service.namespace;
        let range_start = WorkloadName { namespace: namespace.clone(), name: smallest_name() };
        let pods = self.workloads.range(range_start..);
        let mut pods = pods.take_while(|(name, _)| name.namespace == *namespace);
        pods.any(|(_, pod)| is_application_with_sidecar(pod))
    }

    /// Updates the joined state of a service that is new, deleted, or has another selector.
    pub(super) fn update_joined_service(&mut self, name: &ServiceName) {
        let Some(service) = self.known_service(name) else {
            self.joined_services.remove(name);
            return;
        };
        let mut pods = self.workloads.values().filter(|workload| workload.sidecar);
        if pods.any(|pod| selects_workload(service, pod)) {
            self.joined_services.insert(name.clone());
        }
    }

    /// Returns true if the Service has rejections or warnings.
    fn has_diagnostics(&self, name: &ServiceName) -> bool {
        let id = ObjectId { namespace: name.namespace.to_string(), name: name.name.to_string() };
        let kind_index =
            self.kinds.iter().position(|kind_state| kind_state.watched == WatchedKind::Services);
        kind_index.is_some_and(|kind_index| {
            self.diagnostics.contains_key(&ObjectOrigin { kind_index, id })
        })
    }

    /// Returns false for a service that has had no pod with a sidecar and to which neither a gateway nor a
    /// route of another service routes: clients reach it as without a mesh, so all of its fields have their
    /// usual effect.
    pub(super) fn belongs_to_mesh(&self, origin: &ObjectOrigin) -> bool {
        let kind_state = self.kinds.get(origin.kind_index);
        if kind_state.is_none_or(|kind_state| kind_state.watched != WatchedKind::Services) {
            return true;
        }
        let name = ServiceName::new(&origin.id.namespace, &origin.id.name);
        name.is_ok_and(|name| {
            self.joined_services.contains(&name)
                || self.gateways_route_to(&name)
                || self.routed_services.contains(&name)
        })
    }

    /// Returns true if a service of the pod has had a pod with a sidecar.
    pub(super) fn has_joined(&self, workload: &Workload) -> bool {
        let mut services =
            self.services.may_select(workload).chain(self.selectorless.may_select(workload));
        services.any(|service| {
            self.joined_services.contains(&service.name) && selects_workload(service, workload)
        })
    }
}

/// Returns true for a pod with a sidecar and an application; the proxy of a gateway has no application.
fn is_application_with_sidecar(pod: &Workload) -> bool {
    pod.sidecar && !pod.labels.contains_key(GATEWAY_LABEL)
}

fn selects_workload(service: &Service, workload: &Workload) -> bool {
    service.name.namespace == workload.name.namespace
        && matches_selector(&service.selector, &workload.labels)
}
