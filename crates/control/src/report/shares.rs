//! Reports the status of `TrafficSplit`s and `TCPRoute`s, which divide traffic among backends, to operators.

use leno_model::{GatewayTcpRoute, RouteKind, ServiceName, TrafficSplit};

use super::Report;
use crate::compile::{overriding_objects, tcp_conflict};
use crate::status::RouteStatus;

impl Report<'_> {
    /// Returns the status of a `TCPRoute`: missing and ungranted backends, and routes that take precedence.
    pub(super) fn gateway_tcp_route_status(&self, route: &GatewayTcpRoute) -> RouteStatus {
        let name = &route.rule.route;
        let backends: Vec<_> = route.rule.backends.iter().collect();
        let mut status =
            self.route_status(RouteKind::Tcp.as_str(), name, 1, &route.parents, &backends);
        status.add_unresolved(self.ungranted_services((RouteKind::Tcp, name), route));
        for (index, parent) in route.parents.iter().enumerate() {
            let conflicts = self.parent_ports(parent).into_iter().map(|port| {
                let conflict = tcp_conflict(self.mesh, name, &parent.service, port);
                conflict.into_iter().collect()
            });
            status.add_overrides(index, conflicts.collect());
        }
        status
    }

    /// Returns the status of a `TrafficSplit`: missing objects and ungranted backends, and objects that override it.
    pub(super) fn split_status(&self, split: &TrafficSplit) -> RouteStatus {
        let root = &split.root.service;
        let backend_texts = split
            .backends
            .iter()
            .map(|backend| format!("{} weight {}", backend.service, backend.weight));
        let kind = RouteKind::Split.as_str();
        let parents = std::iter::once(root.to_string());
        let mut status = RouteStatus::new(kind, &split.name, parents, 1, backend_texts.collect());
        status.reject_parent(ONLY_PARENT_INDEX, self.missing_reference(root, None));
        status.add_unresolved(
            split
                .backends
                .iter()
                .flat_map(|backend| self.backend_problems(split, &backend.service)),
        );
        let groups = split.groups.iter().flatten();
        let missing_groups = groups.filter(|group| self.mesh.route_group(group).is_none());
        status.add_unresolved(
            missing_groups.map(|group| format!("HTTPRouteGroup {group} does not exist")),
        );
        status.add_overrides(ONLY_PARENT_INDEX, overriding_objects(self.mesh, split));
        status
    }

    /// Returns the problems that keep a backend from receiving its share.
    fn backend_problems(&self, split: &TrafficSplit, backend: &ServiceName) -> Vec<String> {
        if !self.mesh.may_refer_to((RouteKind::Split, &split.name), backend) {
            return vec![format!("no ReferenceGrant permits the Service {backend}")];
        }
        let Some(service) = self.mesh.service(backend) else {
            return self.missing_reference(backend, None).into_iter().collect();
        };
        let root = self.mesh.service(&split.root.service);
        let ports = root.into_iter().flat_map(|root| &root.ports).map(|port| port.port);
        let missing_ports =
            ports.filter(|port| !service.ports.iter().any(|candidate| candidate.port == *port));
        missing_ports.map(|port| format!("Service {backend} has no port {port}")).collect()
    }
}

/// The index of a split's only parent.
const ONLY_PARENT_INDEX: usize = 0;
