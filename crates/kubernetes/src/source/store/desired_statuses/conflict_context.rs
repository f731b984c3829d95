//! The services and policies that a conflict check considers.

use super::*;

/// The objects around a policy in the cluster.
pub(crate) struct ConflictContext<'a, 'b> {
    pub(super) store: &'b ObjectStore,
    pub(super) others: &'b StatusContext<'a>,
}

impl<'a> ConflictContext<'a, '_> {
    pub(crate) fn conflicts(&self) -> &ConflictIndex<'a> {
        &self.others.conflicts
    }
}

impl<'a> PolicyContext<'a> for ConflictContext<'a, '_> {
    fn policies_of(&self, service: &ServiceName) -> Vec<&'a ServicePolicy> {
        self.others.policies_for(service)
    }

    fn port_destinations(&self, service: &ServiceName, port: u16) -> Destinations {
        let Self { store, others } = self;
        let is_opaque = store.is_opaque(service, port);
        let attached = others.conflicts.attached_routes(service);
        attached.compute_destinations(service, port, is_opaque, |(kind, name), to| {
            let own = &name.namespace;
            *own == to.namespace
                || others.grants.iter().any(|grant| grant.permits_route(kind, own, to))
        })
    }

    fn shares_workloads(&self, service: &ServiceName, port: u16) -> bool {
        let store = self.store;
        let Some(own) = store.services.get(service) else { return true };
        let Some(port) = own.ports.iter().find(|it| it.port == port) else { return true };
        let mut behind = store.endpoints_of(own).peekable();
        // Future pods are unknown.
        behind.peek().is_none()
            || behind.any(|workload| {
                let others = store.services.may_select(workload);
                let others = others.filter(|it| {
                    it.name != *service && matches_selector(&it.selector, &workload.labels)
                });
                let mut others = others.flat_map(|other| &other.ports);
                others.any(|it| it.target.is_same_at(&port.target, workload))
            })
    }

    fn is_backend(&self, service: &ServiceName, port: u16) -> bool {
        let Self { store, others } = self;
        store.gateways_lead_to(service) || others.conflicts.forwards_to(service, port)
    }

    fn sees_requests(&self, service: &ServiceName, port: u16, side: PolicySide) -> bool {
        let Self { store, others } = self;
        !store.is_opaque(service, port)
            || store.gateways_lead_to(service)
            || others
                .conflicts
                .forwards_requests_to(service, port, |name| store.is_opaque(name, port))
            || side == PolicySide::Server && store.applications_see_requests(service, port)
    }
}

impl ObjectStore {
    /// Returns true for a port that is declared as TCP, where sidecars see no requests.
    pub(super) fn is_opaque(&self, service: &ServiceName, port: u16) -> bool {
        let found = self.services.get(service);
        let port = found.and_then(|it| it.ports.iter().find(|it| it.port == port));
        port.is_some_and(|it| it.protocol == Some(Protocol::Tcp))
    }

    /// Returns true if all ports of a service are declared as TCP.
    pub(super) fn is_opaque_at_each_port(&self, service: &ServiceName) -> bool {
        let found = self.services.get(service).filter(|it| !it.ports.is_empty());
        found.is_some_and(|it| it.ports.iter().all(|port| self.is_opaque(service, port.port)))
    }

    /// Returns true if a workload behind a port declares a protocol other than TCP, or another service targets
    /// the same port of it with another protocol.
    pub(super) fn applications_see_requests(&self, service: &ServiceName, port: u16) -> bool {
        let own = self.services.get(service);
        let Some((own, port)) =
            own.and_then(|own| Some((own, own.ports.iter().find(|it| it.port == port)?)))
        else {
            return false;
        };
        self.endpoints_of(own).any(|workload| {
            let others = self.services.may_select(workload);
            let others = others.filter(|it| matches_selector(&it.selector, &workload.labels));
            let clear = others.flat_map(|it| &it.ports);
            let clear = clear.filter(|it| it.protocol != Some(Protocol::Tcp));
            port.target.sees_requests_at(workload, clear.map(|it| &it.target))
        })
    }
}
