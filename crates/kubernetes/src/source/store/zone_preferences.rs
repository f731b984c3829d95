//! Tracks the zones of workloads and the zone preferences of services in the object store. A preference becomes
//! a tag rule unless a user-defined rule of the service already prefers endpoints by caller.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    Object, ObjectKey, ServiceName, TagRouteName, TagRules, TagScope, Workload, WorkloadName,
};

use super::{ObjectOrigin, ObjectStore};
use crate::read::{
    ZONE_LABEL, ZonePreference, preference_name, preference_rule, service_of_preference,
};

/// The zones of workloads, and the zone preferences of services.
#[derive(Default)]
pub(super) struct ZonePreferences {
    /// The zone of each node that has one.
    zones_by_node: BTreeMap<String, String>,
    /// The node of each workload.
    nodes_by_workload: BTreeMap<WorkloadName, String>,
    preferences_by_service: BTreeMap<ServiceName, ZonePreference>,
    /// For each object with user-defined rules that prefer endpoints by caller: the services of these rules.
    rules_by_object: BTreeMap<ObjectOrigin, BTreeSet<ServiceName>>,
    /// The number of objects with such rules, by service.
    rule_counts: BTreeMap<ServiceName, usize>,
}

impl ObjectStore {
    /// Updates the zone of a node; `None` for a deleted node or a node without a zone.
    pub(super) fn apply_node(&mut self, node: &str, zone: Option<String>) {
        let previous_zone = match zone.clone() {
            Some(zone) => self.zone_preferences.zones_by_node.insert(node.to_owned(), zone),
            None => self.zone_preferences.zones_by_node.remove(node),
        };
        if previous_zone != zone {
            let workloads = self
                .zone_preferences
                .nodes_by_workload
                .iter()
                .filter(|(_, workload_node)| *workload_node == node);
            self.dirty.extend(workloads.map(|(name, _)| ObjectKey::Workload(name.clone())));
        }
    }

    pub(super) fn set_node(&mut self, workload: &WorkloadName, node: Option<String>) {
        match node {
            Some(node) => self.zone_preferences.nodes_by_workload.insert(workload.clone(), node),
            None => self.zone_preferences.nodes_by_workload.remove(workload),
        };
    }

    /// Adds the zone of its node to the labels of a workload, unless it already has a zone label.
    pub(super) fn with_zone(&self, mut workload: Workload) -> Workload {
        let node = self.zone_preferences.nodes_by_workload.get(&workload.name);
        if let Some(zone) = node.and_then(|node| self.zone_preferences.zones_by_node.get(node)) {
            workload.labels.entry(ZONE_LABEL.to_owned()).or_insert_with(|| zone.clone());
        }
        workload
    }

    pub(super) fn set_zone_preference(
        &mut self,
        service: &ServiceName,
        zone_preference: Option<ZonePreference>,
    ) {
        let previous_preference = match zone_preference {
            Some(zone_preference) => self
                .zone_preferences
                .preferences_by_service
                .insert(service.clone(), zone_preference),
            None => self.zone_preferences.preferences_by_service.remove(service),
        };
        if previous_preference != zone_preference {
            self.dirty.extend(preference_name(service).map(ObjectKey::TagRoute));
        }
    }

    /// Returns the rule for the zone preference of a service; `None` if a user-defined rule already prefers
    /// endpoints by caller.
    pub(super) fn zone_rule(&self, name: &TagRouteName) -> Option<Object> {
        let service = service_of_preference(name)?;
        let zone_preference = *self.zone_preferences.preferences_by_service.get(&service)?;
        if self.zone_preferences.rule_counts.contains_key(&service) {
            return None;
        }
        preference_rule(&service, zone_preference).map(Object::TagRoute)
    }

    /// Updates the rules of an object, and marks the zone preferences that start or cease to apply.
    pub(super) fn apply_tag_rules(&mut self, origin: &ObjectOrigin, object: Option<&Object>) {
        let services = object.map(preferred_services).unwrap_or_default();
        let previous_services = match services.is_empty() {
            true => self.zone_preferences.rules_by_object.remove(origin),
            false => self.zone_preferences.rules_by_object.insert(origin.clone(), services.clone()),
        };
        let previous_services = previous_services.unwrap_or_default();
        for service in &services {
            *self.zone_preferences.rule_counts.entry(service.clone()).or_default() += 1;
        }
        for service in &previous_services {
            if let Some(count) = self.zone_preferences.rule_counts.get_mut(service) {
                *count -= 1;
                if *count == 0 {
                    self.zone_preferences.rule_counts.remove(service);
                }
            }
        }
        let changed_services = previous_services.symmetric_difference(&services);
        let affected_services = changed_services
            .filter(|service| self.zone_preferences.preferences_by_service.contains_key(*service));
        self.dirty.extend(affected_services.filter_map(preference_name).map(ObjectKey::TagRoute));
    }
}

/// Returns the services for which an object has rules that prefer endpoints by caller.
fn preferred_services(object: &Object) -> BTreeSet<ServiceName> {
    let in_scope = |scope: &TagScope, rules: &TagRules| match scope {
        TagScope::Service(service, _) if !rules.caller_rules.is_empty() => Some(service.clone()),
        TagScope::Service(..) | TagScope::Namespace(_) | TagScope::Mesh => None,
    };
    match object {
        Object::TagRoute(route) => in_scope(&route.scope, &route.rules).into_iter().collect(),
        Object::SermantRouteRule(rule) => {
            rule.entries.iter().filter_map(|(scope, rules)| in_scope(scope, &rules.rules)).collect()
        }
        _ => BTreeSet::new(),
    }
}
