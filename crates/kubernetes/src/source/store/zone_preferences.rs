//! Zones of workloads, and the zone preferences of services.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    Object, ObjectKey, ServiceName, TagRouteName, TagRules, TagScope, Workload, WorkloadName,
};

use super::{ObjectOrigin, ObjectStore};
use crate::read::{ZONE, ZonePreference, preference_name, preference_rule, service_of_preference};

/// The zones of workloads, and the zone preferences of services.
#[derive(Default)]
pub(super) struct ZonePreferences {
    /// The zone of each node that has one.
    zones: BTreeMap<String, String>,
    /// The node of each workload.
    nodes: BTreeMap<WorkloadName, String>,
    near: BTreeMap<ServiceName, ZonePreference>,
    /// The services with user rules that prefer instances by caller, by the object with the rules.
    written: BTreeMap<ObjectOrigin, BTreeSet<ServiceName>>,
    /// The number of such objects per service.
    counts: BTreeMap<ServiceName, usize>,
}

impl ObjectStore {
    /// Updates the zone of a node; `None` for a node without a zone or a deleted one.
    pub(super) fn see_node(&mut self, node: &str, zone: Option<String>) {
        let before = match zone.clone() {
            Some(zone) => self.places.zones.insert(node.to_owned(), zone),
            None => self.places.zones.remove(node),
        };
        if before != zone {
            let there = self.places.nodes.iter().filter(|(_, of)| *of == node);
            self.dirty.extend(there.map(|(name, _)| ObjectKey::Workload(name.clone())));
        }
    }

    pub(super) fn see_place(&mut self, workload: &WorkloadName, node: Option<String>) {
        match node {
            Some(node) => self.places.nodes.insert(workload.clone(), node),
            None => self.places.nodes.remove(workload),
        };
    }

    /// Adds the zone of its node to the labels of a workload, unless it has such a label.
    pub(super) fn with_zone(&self, mut workload: Workload) -> Workload {
        let node = self.places.nodes.get(&workload.name);
        if let Some(zone) = node.and_then(|node| self.places.zones.get(node)) {
            workload.labels.entry(ZONE.to_owned()).or_insert_with(|| zone.clone());
        }
        workload
    }

    pub(super) fn see_nearness(
        &mut self,
        service: &ServiceName,
        zone_preference: Option<ZonePreference>,
    ) {
        let before = match zone_preference {
            Some(zone_preference) => self.places.near.insert(service.clone(), zone_preference),
            None => self.places.near.remove(service),
        };
        if before != zone_preference {
            self.dirty.extend(preference_name(service).map(ObjectKey::TagRoute));
        }
    }

    /// Returns the rule for the zone preference of a service; `None` if users have written such rules.
    pub(super) fn zone_preference(&self, name: &TagRouteName) -> Option<Object> {
        let service = service_of_preference(name)?;
        let zone_preference = *self.places.near.get(&service)?;
        if self.places.counts.contains_key(&service) {
            return None;
        }
        preference_rule(&service, zone_preference).map(Object::TagRoute)
    }

    /// Updates the rules of an object, and marks the zone preferences that start or cease to apply.
    pub(super) fn see_preferences(&mut self, origin: &ObjectOrigin, object: Option<&Object>) {
        let now = object.map(preferred_services).unwrap_or_default();
        let before = match now.is_empty() {
            true => self.places.written.remove(origin),
            false => self.places.written.insert(origin.clone(), now.clone()),
        };
        let before = before.unwrap_or_default();
        for service in &now {
            *self.places.counts.entry(service.clone()).or_default() += 1;
        }
        for service in &before {
            if let Some(count) = self.places.counts.get_mut(service) {
                *count -= 1;
                if *count == 0 {
                    self.places.counts.remove(service);
                }
            }
        }
        let changed = before.symmetric_difference(&now);
        let near = changed.filter(|service| self.places.near.contains_key(*service));
        self.dirty.extend(near.filter_map(preference_name).map(ObjectKey::TagRoute));
    }
}

/// Returns the services for which an object has rules that prefer instances by caller.
fn preferred_services(object: &Object) -> BTreeSet<ServiceName> {
    let of = |scope: &TagScope, rules: &TagRules| match scope {
        TagScope::Service(service, _) if !rules.by_caller.is_empty() => Some(service.clone()),
        TagScope::Service(..) | TagScope::Namespace(_) | TagScope::Mesh => None,
    };
    match object {
        Object::TagRoute(route) => of(&route.scope, &route.rules).into_iter().collect(),
        Object::SermantRouteRule(rule) => {
            rule.entries.iter().filter_map(|(scope, it)| of(scope, &it.rules)).collect()
        }
        _ => BTreeSet::new(),
    }
}
