//! Accepted routes without effect: their services are outside the mesh, or older routes have all their matches.

use std::collections::BTreeSet;

use leno_model::{HttpRoute, Object, ServiceName, Workload, first_because};

use super::ObjectStore;
use super::conflicts::ConflictIndex;
use super::desired_statuses::{OVERRIDDEN, route_backends};
use crate::status::StatusCondition;

impl ObjectStore {
    /// Returns the `Programmed` condition of an accepted route without effect for one of its parents.
    pub(super) fn idle_route(
        &self,
        route: &Object,
        service: &ServiceName,
        port: Option<u16>,
        conflicts: &ConflictIndex<'_>,
    ) -> Option<StatusCondition> {
        let (reason, message) = match self.first_of_same_matches(route, service, port, conflicts) {
            Some(first) => (OVERRIDDEN, format!("none of its rules has an effect: {first}")),
            None => {
                let (_, backends) = route_backends(route);
                let mut all = backends.iter().map(|(_, _, backend, _)| *backend).chain([service]);
                let is_outside = all.all(|it| self.is_outside(it));
                let message = format!(
                    "no pod of {service} or of a backend has a sidecar: clients reach the Service as without a mesh"
                );
                is_outside.then_some((NO_SIDECARS, message))?
            }
        };
        Some(StatusCondition { word: "Programmed", status: "False", reason, message })
    }

    /// Returns the first of the routes that leave a route no match at any port of a parent, as a sentence.
    fn first_of_same_matches(
        &self,
        route: &Object,
        service: &ServiceName,
        port: Option<u16>,
        conflicts: &ConflictIndex<'_>,
    ) -> Option<String> {
        let (Object::HttpRoute(own) | Object::GrpcRoute(own)) = route else { return None };
        let mut first = None;
        for port in self.ports_of_service(service, port) {
            let near = conflicts.routes_at_port(service, port, &own.name.namespace);
            let before: Vec<&HttpRoute> = near
                .into_iter()
                .filter_map(|it| match it {
                    Object::HttpRoute(it) | Object::GrpcRoute(it) => Some(it),
                    _ => None,
                })
                .filter(|it| {
                    it.kind == own.kind && (it.created, &it.name) < (own.created, &own.name)
                })
                .collect();
            for wanted in own.rules.iter().flat_map(|rule| &rule.matches) {
                let has_it = |it: &&&HttpRoute| {
                    let mut rules = it.rules.iter();
                    rules.any(|rule| rule.matches.contains(wanted))
                };
                let other = before.iter().find(has_it)?;
                first = first.or(Some(*other));
            }
        }
        let first = first?;
        let cause = first_because(first.created, own.created);
        Some(format!(
            "{} has the same matches, and {cause}",
            first.kind.object_key(first.name.clone())
        ))
    }

    /// Returns true for a service with pods of which none has a sidecar: sidecars pass connections to it through,
    /// and no gateway routes to it.
    fn is_outside(&self, service: &ServiceName) -> bool {
        let Some(known) = self.services.get(service) else { return false };
        let mut pods = self.pods_behind(known).peekable();
        pods.peek().is_some() && !pods.any(|it| it.sidecar) && !self.gateways_lead_to(service)
    }

    /// Notes if a service that routes name is outside the mesh; returns true if that has changed.
    pub(super) fn note_outside(&mut self, service: &ServiceName) -> bool {
        match self.attached.contains(service) && self.is_outside(service) {
            true => self.outside.insert(service.clone()),
            false => self.outside.remove(service),
        }
    }

    /// Marks statuses as changed if a change of a pod brings a service of a route into the mesh, or takes it out.
    pub(super) fn touch_outside(&mut self, before: Option<&Workload>, now: Option<&Workload>) {
        let shape = |it: &Workload| (it.sidecar, it.labels.clone());
        if before.map(shape) == now.map(shape) {
            return;
        }
        let near = |it: &Workload| -> BTreeSet<ServiceName> {
            self.services.may_select(it).map(|service| service.name.clone()).collect()
        };
        let near: BTreeSet<ServiceName> = before.into_iter().chain(now).flat_map(near).collect();
        for name in near {
            self.statuses_stale |= self.note_outside(&name);
        }
    }
}

/// The reason of `Programmed` for a route between services without sidecars.
const NO_SIDECARS: &str = "NoSidecars";
