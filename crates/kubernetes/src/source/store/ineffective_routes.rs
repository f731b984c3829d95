//! Detects accepted routes without effect: their services are outside the mesh, or older routes have all their
//! matches.

use std::collections::BTreeSet;

use leno_model::{HttpRoute, Object, ServiceName, Workload, precedence_reason};

use super::ObjectStore;
use super::conflicts::ConflictIndex;
use super::desired_statuses::{OVERRIDDEN, route_backends};
use crate::status::StatusCondition;

impl ObjectStore {
    /// Returns the `Programmed` condition of an accepted route without effect for one of its parents; `None` if
    /// the route has an effect.
    pub(super) fn ineffective_route_condition(
        &self,
        route: &Object,
        service: &ServiceName,
        port: Option<u16>,
        conflicts: &ConflictIndex<'_>,
    ) -> Option<StatusCondition> {
        let (reason, message) = match self.overriding_route(route, service, port, conflicts) {
            Some(sentence) => (OVERRIDDEN, format!("none of its rules has an effect: {sentence}")),
            None => {
                let (_, backends) = route_backends(route);
                let mut services = backends.iter().map(|backend| backend.service).chain([service]);
                let is_unmeshed = services.all(|service| self.is_unmeshed(service));
                let message = format!(
                    "no pod of {service} or of a backend has a sidecar: clients reach the Service as without a mesh"
                );
                is_unmeshed.then_some((NO_SIDECARS, message))?
            }
        };
        Some(StatusCondition { name: "Programmed", status: "False", reason, message })
    }

    /// Returns a sentence about the first of the older routes that together have all matches of a route, at
    /// every port of a parent; `None` if a match of the route has an effect.
    fn overriding_route(
        &self,
        route: &Object,
        service: &ServiceName,
        port: Option<u16>,
        conflicts: &ConflictIndex<'_>,
    ) -> Option<String> {
        let (Object::HttpRoute(own_route) | Object::GrpcRoute(own_route)) = route else {
            return None;
        };
        let mut first_overriding = None;
        for port in self.ports_of_service(service, port) {
            let routes = conflicts.routes_at_port(service, port, &own_route.name.namespace);
            let older_routes: Vec<&HttpRoute> = routes
                .into_iter()
                .filter_map(|object| match object {
                    Object::HttpRoute(other) | Object::GrpcRoute(other) => Some(other),
                    _ => None,
                })
                .filter(|other| {
                    other.kind == own_route.kind
                        && (other.created, &other.name) < (own_route.created, &own_route.name)
                })
                .collect();
            for route_match in own_route.rules.iter().flat_map(|rule| &rule.matches) {
                let has_match = |route: &&&HttpRoute| {
                    let mut rules = route.rules.iter();
                    rules.any(|rule| rule.matches.contains(route_match))
                };
                let overriding_route = older_routes.iter().find(has_match)?;
                first_overriding = first_overriding.or(Some(*overriding_route));
            }
        }
        let first_overriding = first_overriding?;
        let reason = precedence_reason(first_overriding.created, own_route.created);
        Some(format!(
            "{} has the same matches, and {reason}",
            first_overriding.kind.object_key(first_overriding.name.clone())
        ))
    }

    /// Returns true for a service with pods of which none has a sidecar: sidecars pass connections to it
    /// through, and no gateway routes to it.
    fn is_unmeshed(&self, service: &ServiceName) -> bool {
        let Some(indexed_service) = self.services.get(service) else { return false };
        let mut pods = self.pods_behind(indexed_service).peekable();
        pods.peek().is_some() && !pods.any(|pod| pod.sidecar) && !self.gateways_route_to(service)
    }

    /// Updates `unmeshed_services` for a service that routes name; returns true if this changes the set.
    pub(super) fn update_unmeshed_service(&mut self, service: &ServiceName) -> bool {
        match self.attached_services.contains(service) && self.is_unmeshed(service) {
            true => self.unmeshed_services.insert(service.clone()),
            false => self.unmeshed_services.remove(service),
        }
    }

    /// Marks statuses as changed if a change of a pod brings a service of a route into the mesh, or takes it
    /// out.
    pub(super) fn mark_unmeshed_services(
        &mut self,
        old_pod: Option<&Workload>,
        new_pod: Option<&Workload>,
    ) {
        let relevant_fields = |workload: &Workload| (workload.sidecar, workload.labels.clone());
        if old_pod.map(relevant_fields) == new_pod.map(relevant_fields) {
            return;
        }
        let services_of = |workload: &Workload| -> BTreeSet<ServiceName> {
            self.services.may_select(workload).map(|service| service.name.clone()).collect()
        };
        let services: BTreeSet<ServiceName> =
            old_pod.into_iter().chain(new_pod).flat_map(services_of).collect();
        for name in services {
            self.statuses_stale |= self.update_unmeshed_service(&name);
        }
    }
}

/// The reason of `Programmed` for a route between services without sidecars.
const NO_SIDECARS: &str = "NoSidecars";
