//! Tracks the services that routes and splits of the mesh name. Sidecars send requests to pods of these
//! services even if the pods have no sidecar.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{Object, RouteParent, ServiceName, WeightedBackend, Workload};

use super::{ObjectOrigin, ObjectStore};
use crate::read::matches_selector;

/// The services that routes and splits name.
#[derive(Default)]
pub(super) struct RoutedServices {
    services_by_object: BTreeMap<ObjectOrigin, BTreeSet<ServiceName>>,
    /// The number of objects that name a service.
    object_counts: BTreeMap<ServiceName, usize>,
}

impl RoutedServices {
    pub(super) fn contains(&self, service: &ServiceName) -> bool {
        self.object_counts.contains_key(service)
    }

    /// Replaces the services that an object names. Returns the services that no object named before, and the
    /// services that no object names any more.
    fn replace_services(
        &mut self,
        origin: &ObjectOrigin,
        services: BTreeSet<ServiceName>,
    ) -> Vec<ServiceName> {
        let previous_services = self.services_by_object.remove(origin).unwrap_or_default();
        let mut changed_services = Vec::new();
        for service in services.difference(&previous_services) {
            let count = self.object_counts.entry(service.clone()).or_default();
            *count += 1;
            if *count == 1 {
                changed_services.push(service.clone());
            }
        }
        for service in previous_services.difference(&services) {
            if let Some(count) = self.object_counts.get_mut(service) {
                *count -= 1;
                if *count == 0 {
                    self.object_counts.remove(service);
                    changed_services.push(service.clone());
                }
            }
        }
        if !services.is_empty() {
            self.services_by_object.insert(origin.clone(), services);
        }
        changed_services
    }
}

impl ObjectStore {
    /// Updates the services that an object names, and marks the pods of services that are new or gone.
    pub(super) fn apply_routes(&mut self, origin: &ObjectOrigin, object: Option<&Object>) {
        let service_names = object.map(named_services).unwrap_or_default();
        // An object that names one service does not bring it into the mesh.
        let routed_names =
            if service_names.len() < 2 { BTreeSet::new() } else { service_names.clone() };
        for name in self.attached_services.replace_services(origin, service_names) {
            self.update_unmeshed_service(&name);
        }
        for name in self.routed_services.replace_services(origin, routed_names) {
            let service = self.services.get(&name).cloned();
            self.mark_selected_workloads(&name, &[service.as_ref()]);
            // Endpoints without a sidecar affect policies.
            self.statuses_stale = true;
        }
    }

    /// Returns true if a route of another service names a service of the workload.
    pub(super) fn is_behind_route(&self, workload: &Workload) -> bool {
        let mut services = self.services.may_select(workload);
        services.any(|service| {
            self.routed_services.contains(&service.name)
                && matches_selector(&service.selector, &workload.labels)
        })
    }
}

/// Returns the parents and backends of a route or split.
fn named_services(object: &Object) -> BTreeSet<ServiceName> {
    match object {
        Object::HttpRoute(route) | Object::GrpcRoute(route) => {
            let rules = route.rules.iter();
            let backends = rules.flat_map(|rule| rule.backends.iter().chain(&rule.actions.mirrors));
            parents_and_backends(&route.parents, backends)
        }
        Object::TlsRoute(route) => parents_and_backends(&route.parents, &route.rule.backends),
        Object::GatewayTcpRoute(route) => {
            parents_and_backends(&route.parents, &route.rule.backends)
        }
        Object::TrafficSplit(split) => {
            let backends = split.backends.iter().map(|backend| backend.service.clone());
            backends.chain([split.root.service.clone()]).collect()
        }
        _ => BTreeSet::new(),
    }
}

fn parents_and_backends<'a>(
    parents: &[RouteParent],
    backends: impl IntoIterator<Item = &'a WeightedBackend>,
) -> BTreeSet<ServiceName> {
    let parents = parents.iter().map(|parent| parent.service.clone());
    parents.chain(backends.into_iter().map(|backend| backend.service.clone())).collect()
}
