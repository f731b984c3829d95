//! Services that routes and splits of the mesh name: sidecars send requests to their pods without a sidecar.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{Object, RouteParent, ServiceName, WeightedBackend, Workload};

use super::{ObjectOrigin, ObjectStore};
use crate::read::matches_selector;

/// The services that routes and splits name, by object and with the number of objects.
#[derive(Default)]
pub(super) struct RoutedServices {
    by_object: BTreeMap<ObjectOrigin, BTreeSet<ServiceName>>,
    counts: BTreeMap<ServiceName, usize>,
}

impl RoutedServices {
    pub(super) fn contains(&self, service: &ServiceName) -> bool {
        self.counts.contains_key(service)
    }

    /// Replaces the services that an object names; returns those that are new or gone.
    fn replace_services(
        &mut self,
        origin: &ObjectOrigin,
        now: BTreeSet<ServiceName>,
    ) -> Vec<ServiceName> {
        let before = self.by_object.remove(origin).unwrap_or_default();
        let mut changed = Vec::new();
        for service in now.difference(&before) {
            let count = self.counts.entry(service.clone()).or_default();
            *count += 1;
            if *count == 1 {
                changed.push(service.clone());
            }
        }
        for service in before.difference(&now) {
            if let Some(count) = self.counts.get_mut(service) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(service);
                    changed.push(service.clone());
                }
            }
        }
        if !now.is_empty() {
            self.by_object.insert(origin.clone(), now);
        }
        changed
    }
}

impl ObjectStore {
    /// Updates the services that an object names, and marks the pods of those that are new or gone.
    pub(super) fn see_routed(&mut self, origin: &ObjectOrigin, object: Option<&Object>) {
        let named = object.map(named_services).unwrap_or_default();
        // An object that names one service does not bring it into the mesh.
        let now = if named.len() < 2 { BTreeSet::new() } else { named.clone() };
        for name in self.attached.replace_services(origin, named) {
            self.note_outside(&name);
        }
        for name in self.routed.replace_services(origin, now) {
            let service = self.services.get(&name).cloned();
            self.touch_selected(&name, &[service.as_ref()]);
            // Endpoints without a sidecar affect policies.
            self.statuses_stale = true;
        }
    }

    /// Returns true if a route of another service names a service of the workload.
    pub(super) fn is_behind_route(&self, workload: &Workload) -> bool {
        let mut services = self.services.may_select(workload);
        services.any(|it| {
            self.routed.contains(&it.name) && matches_selector(&it.selector, &workload.labels)
        })
    }
}

/// Returns the parents and backends of a route or split.
fn named_services(object: &Object) -> BTreeSet<ServiceName> {
    match object {
        Object::HttpRoute(route) | Object::GrpcRoute(route) => {
            let rules = route.rules.iter();
            let backends = rules.flat_map(|it| it.backends.iter().chain(&it.actions.mirrors));
            services_of(&route.parents, backends)
        }
        Object::TlsRoute(route) => services_of(&route.parents, &route.rule.backends),
        Object::GatewayTcpRoute(route) => services_of(&route.parents, &route.rule.backends),
        Object::TrafficSplit(split) => {
            let backends = split.backends.iter().map(|it| it.service.clone());
            backends.chain([split.root.service.clone()]).collect()
        }
        _ => BTreeSet::new(),
    }
}

fn services_of<'a>(
    parents: &[RouteParent],
    backends: impl IntoIterator<Item = &'a WeightedBackend>,
) -> BTreeSet<ServiceName> {
    let parents = parents.iter().map(|it| it.service.clone());
    parents.chain(backends.into_iter().map(|it| it.service.clone())).collect()
}
