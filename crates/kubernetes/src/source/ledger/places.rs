//! In which zone workloads are, and which services want their requests to stay there.

use std::collections::BTreeMap;

use leno_model::{Object, ObjectKey, ServiceName, TagRouteName, TagScope, Workload, WorkloadName};

use super::Ledger;
use crate::read::{Nearness, ZONE, preference, preference_name, preferring};

/// Where workloads are, and who wants them near.
#[derive(Default)]
pub(super) struct Places {
    /// The zone of each node that has one.
    zones: BTreeMap<String, String>,
    /// The node of each workload.
    nodes: BTreeMap<WorkloadName, String>,
    near: BTreeMap<ServiceName, Nearness>,
}

impl Ledger {
    /// A node is there, in this zone; or is not, or in none.
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

    /// The workload with the zone of its node among its labels, unless it says one itself.
    pub(super) fn placed(&self, mut workload: Workload) -> Workload {
        let node = self.places.nodes.get(&workload.name);
        if let Some(zone) = node.and_then(|node| self.places.zones.get(node)) {
            workload.labels.entry(ZONE.to_owned()).or_insert_with(|| zone.clone());
        }
        workload
    }

    pub(super) fn see_nearness(&mut self, service: &ServiceName, nearness: Option<Nearness>) {
        let before = match nearness {
            Some(nearness) => self.places.near.insert(service.clone(), nearness),
            None => self.places.near.remove(service),
        };
        if before != nearness {
            self.dirty.extend(preference_name(service).map(ObjectKey::TagRoute));
        }
    }

    /// The preference that a service has because it asks for one; none where somebody wrote one.
    pub(super) fn preference(&self, name: &TagRouteName) -> Option<Object> {
        let service = preferring(name)?;
        let nearness = *self.places.near.get(&service)?;
        let is_written = self.customs.all().any(|object| match object {
            Object::TagRoute(route) => {
                let scope = matches!(&route.scope, TagScope::Service(of, _) if *of == service);
                scope && !route.rules.by_caller.is_empty()
            }
            _ => false,
        });
        if is_written {
            return None;
        }
        preference(&service, nearness).map(Object::TagRoute)
    }

    /// Somebody wrote or removed a rule: preferences may count, or not, that did not, or did.
    pub(super) fn touch_preferences(&mut self) {
        let names = self.places.near.keys().filter_map(preference_name);
        self.dirty.extend(names.map(ObjectKey::TagRoute));
    }
}
