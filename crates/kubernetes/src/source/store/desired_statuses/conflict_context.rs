//! Gives conflict checks access to the services, routes and policies in the object store.

use leno_model::{Destinations, PolicyContext, PolicySide, Protocol, ServiceName, ServicePolicy};

use super::StatusContext;
use crate::read::matches_selector;
use crate::source::store::ObjectStore;
use crate::source::store::conflicts::ConflictIndex;

/// The objects of the cluster with which a policy may be in conflict.
pub(crate) struct ConflictContext<'a, 'b> {
    pub(super) store: &'b ObjectStore,
    pub(super) shared: &'b StatusContext<'a>,
}

impl<'a> ConflictContext<'a, '_> {
    pub(crate) fn conflicts(&self) -> &ConflictIndex<'a> {
        &self.shared.conflicts
    }
}

impl<'a> PolicyContext<'a> for ConflictContext<'a, '_> {
    fn policies_of(&self, service: &ServiceName) -> Vec<&'a ServicePolicy> {
        self.shared.policies_for(service)
    }

    fn port_destinations(&self, service: &ServiceName, port: u16) -> Destinations {
        let Self { store, shared } = self;
        let is_opaque = store.is_opaque(service, port);
        let attached = shared.conflicts.attached_routes(service);
        attached.compute_destinations(service, port, is_opaque, |(kind, name), backend| {
            let route_namespace = &name.namespace;
            *route_namespace == backend.namespace
                || shared
                    .grants
                    .iter()
                    .any(|grant| grant.permits_route(kind, route_namespace, backend))
        })
    }

    fn shares_workloads(&self, service: &ServiceName, port: u16) -> bool {
        let store = self.store;
        // An unknown service or port may share workloads with another service.
        let Some(definition) = store.services.get(service) else { return true };
        let Some(service_port) = definition.ports.iter().find(|candidate| candidate.port == port)
        else {
            return true;
        };
        let mut endpoints = store.endpoints_of(definition).peekable();
        // Without pods, it is unknown which services will select them.
        endpoints.peek().is_none()
            || endpoints.any(|workload| {
                let other_services = store.services.may_select(workload);
                let other_services = other_services.filter(|other| {
                    other.name != *service && matches_selector(&other.selector, &workload.labels)
                });
                let mut other_ports = other_services.flat_map(|other| &other.ports);
                other_ports
                    .any(|other_port| other_port.target.is_same_at(&service_port.target, workload))
            })
    }

    fn is_backend(&self, service: &ServiceName, port: u16) -> bool {
        let Self { store, shared } = self;
        store.gateways_route_to(service) || shared.conflicts.forwards_to(service, port)
    }

    fn sees_requests(&self, service: &ServiceName, port: u16, side: PolicySide) -> bool {
        let Self { store, shared } = self;
        !store.is_opaque(service, port)
            || store.gateways_route_to(service)
            || shared
                .conflicts
                .forwards_requests_to(service, port, |name| store.is_opaque(name, port))
            || side == PolicySide::Server && store.applications_see_requests(service, port)
    }
}

impl ObjectStore {
    /// Returns true for a port that is declared as TCP, where sidecars see no requests.
    pub(super) fn is_opaque(&self, service: &ServiceName, port: u16) -> bool {
        let definition = self.services.get(service);
        let service_port = definition.and_then(|definition| {
            definition.ports.iter().find(|candidate| candidate.port == port)
        });
        service_port.is_some_and(|service_port| service_port.protocol == Some(Protocol::Tcp))
    }

    /// Returns true if all ports of a service are declared as TCP.
    pub(super) fn is_opaque_at_each_port(&self, service: &ServiceName) -> bool {
        let definition = self.services.get(service).filter(|service| !service.ports.is_empty());
        definition.is_some_and(|definition| {
            definition.ports.iter().all(|port| self.is_opaque(service, port.port))
        })
    }

    /// Returns true if a workload behind a port declares a protocol other than TCP, or another service targets
    /// the same port of it with another protocol.
    pub(super) fn applications_see_requests(&self, service: &ServiceName, port: u16) -> bool {
        let definition = self.services.get(service);
        let Some((definition, service_port)) = definition.and_then(|definition| {
            Some((definition, definition.ports.iter().find(|candidate| candidate.port == port)?))
        }) else {
            return false;
        };
        self.endpoints_of(definition).any(|workload| {
            let candidates = self.services.may_select(workload);
            let selecting_services =
                candidates.filter(|other| matches_selector(&other.selector, &workload.labels));
            let ports = selecting_services.flat_map(|other| &other.ports);
            let non_tcp_ports = ports.filter(|port| port.protocol != Some(Protocol::Tcp));
            service_port.target.sees_requests_at(workload, non_tcp_ports.map(|port| &port.target))
        })
    }
}
