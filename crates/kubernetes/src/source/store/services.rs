//! Indexes services by one label of their selectors.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{Name, Service, ServiceName, Workload};

use super::smallest_name;

/// Services by name and by one label of their selectors, to find the services of a workload efficiently.
#[derive(Default)]
pub(super) struct ServiceIndex {
    services_by_name: BTreeMap<ServiceName, Service>,
    names_by_label: BTreeMap<SelectorLabel, BTreeSet<ServiceName>>,
}

/// A label in the selector of a service, and the namespace of the service.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SelectorLabel {
    namespace: Name,
    key: String,
    value: String,
}

impl ServiceIndex {
    pub(super) fn get(&self, name: &ServiceName) -> Option<&Service> {
        self.services_by_name.get(name)
    }

    /// Returns all services, by name.
    pub(super) fn all(&self) -> impl Iterator<Item = &Service> {
        self.services_by_name.values()
    }

    /// Returns the services of a namespace, by name.
    pub(super) fn in_namespace<'a>(
        &'a self,
        namespace: &'a Name,
    ) -> impl Iterator<Item = &'a Service> {
        let range_start = ServiceName { namespace: namespace.clone(), name: smallest_name() };
        let services = self.services_by_name.range(range_start..).map(|(_, service)| service);
        services.take_while(move |service| service.name.namespace == *namespace)
    }

    /// Inserts a service; returns the previous one of its name.
    pub(super) fn insert(&mut self, service: Service) -> Option<Service> {
        let previous_service = self.remove(&service.name);
        if let Some(label) = first_label(&service) {
            self.names_by_label.entry(label).or_default().insert(service.name.clone());
        }
        self.services_by_name.insert(service.name.clone(), service);
        previous_service
    }

    pub(super) fn remove(&mut self, name: &ServiceName) -> Option<Service> {
        let removed = self.services_by_name.remove(name)?;
        if let Some(label) = first_label(&removed)
            && let Some(names) = self.names_by_label.get_mut(&label)
        {
            names.remove(name);
            if names.is_empty() {
                self.names_by_label.remove(&label);
            }
        }
        Some(removed)
    }

    /// Returns the services that may select a workload: a superset of those that select it.
    pub(super) fn may_select<'a>(
        &'a self,
        workload: &'a Workload,
    ) -> impl Iterator<Item = &'a Service> {
        let names = workload.labels.iter().filter_map(|(key, value)| {
            let namespace = workload.name.namespace.clone();
            self.names_by_label.get(&SelectorLabel {
                namespace,
                key: key.clone(),
                value: value.clone(),
            })
        });
        names.flatten().filter_map(|name| self.services_by_name.get(name))
    }
}

/// Returns the label of a service's selector by which it is indexed; `None` without a selector.
fn first_label(service: &Service) -> Option<SelectorLabel> {
    let (key, value) = service.selector.first_key_value()?;
    let namespace = service.name.namespace.clone();
    Some(SelectorLabel { namespace, key: key.clone(), value: value.clone() })
}
