//! Stores Services without a selector, and their endpoints from EndpointSlices. If a pod with a sidecar has a
//! listed address, the pod is the endpoint; other listed addresses are unmeshed endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use leno_model::{
    GATEWAY_LABEL, Name, ObjectKey, Service, ServiceName, TargetPort, Workload, WorkloadName,
};

use leno_registry::{DocumentLocation, JOINING_LABEL, NODE_NETWORK_LABEL, Warning};

use super::services::ServiceIndex;
use super::{ObjectOrigin, ObjectStore, smallest_name};
use crate::read::{listed_service, matches_selector};

/// Services without selectors, and the endpoints in EndpointSlices, which are stored as workloads.
#[derive(Default)]
pub(super) struct SelectorlessServices {
    services: ServiceIndex,
    /// The listed endpoints.
    workloads: BTreeMap<WorkloadName, Workload>,
    workloads_by_slice: BTreeMap<ObjectOrigin, Vec<WorkloadName>>,
    workloads_by_address: BTreeMap<IpAddr, BTreeSet<WorkloadName>>,
    /// The numbers of each named port of a service, each with the number of endpoints that have it.
    port_numbers: BTreeMap<ServiceName, BTreeMap<Name, BTreeMap<u16, usize>>>,
    /// The pods at listed addresses.
    pods_by_address: BTreeMap<IpAddr, BTreeSet<WorkloadName>>,
}

impl SelectorlessServices {
    pub(super) fn service(&self, name: &ServiceName) -> Option<&Service> {
        self.services.get(name)
    }

    /// Returns the services of a namespace.
    pub(super) fn services_in<'a>(
        &'a self,
        namespace: &'a Name,
    ) -> impl Iterator<Item = &'a Service> {
        self.services.in_namespace(namespace)
    }

    /// Returns the services that may select a workload: a superset of those that select it.
    pub(super) fn may_select<'a>(
        &'a self,
        workload: &'a Workload,
    ) -> impl Iterator<Item = &'a Service> {
        self.services.may_select(workload)
    }

    pub(super) fn remove_service(&mut self, name: &ServiceName) -> Option<Service> {
        self.services.remove(name)
    }

    pub(super) fn workload(&self, name: &WorkloadName) -> Option<&Workload> {
        self.workloads.get(name)
    }

    /// Returns the workloads, sorted by name, that start with `first_name`.
    pub(super) fn workloads_from(
        &self,
        first_name: WorkloadName,
    ) -> impl Iterator<Item = (&WorkloadName, &Workload)> {
        self.workloads.range(first_name..)
    }

    /// Updates the addresses of a pod that is new, changed or deleted.
    pub(super) fn apply_pod(&mut self, old_pod: Option<&Workload>, new_pod: Option<&Workload>) {
        for (pod, address) in old_pod.into_iter().flat_map(own_addresses) {
            if let Some(pods) = self.pods_by_address.get_mut(&address) {
                pods.remove(&pod.name);
                if pods.is_empty() {
                    self.pods_by_address.remove(&address);
                }
            }
        }
        for (pod, address) in new_pod.into_iter().flat_map(own_addresses) {
            if self.workloads_by_address.contains_key(&address) {
                self.pods_by_address.entry(address).or_default().insert(pod.name.clone());
            }
        }
    }

    /// Returns the labels by which services without a selector select a pod with a sidecar: those services in
    /// its namespace for which one of the pod's addresses is listed as ready. Services of other namespaces
    /// cannot affect the configuration of a pod.
    pub(super) fn service_labels(&self, pod: &Workload) -> BTreeMap<String, String> {
        let addresses = own_addresses(pod).filter(|_| pod.sidecar);
        let names = addresses.filter_map(|(_, address)| self.workloads_by_address.get(&address));
        let endpoints = names.flatten().filter_map(|name| self.workloads.get(name));
        let in_namespace = endpoints.filter(|workload| {
            workload.name.namespace == pod.name.namespace
                && (workload.ready || workload.terminating)
        });
        in_namespace.flat_map(|workload| workload.labels.clone()).collect()
    }

    /// Returns the service with its port numbers if they are the same at all endpoints, otherwise `None`. Port
    /// names in slices have no meaning for a pod: its containers name their own ports.
    fn with_port_numbers(&self, service: &Service) -> Option<Service> {
        let numbers_by_port_name = self.port_numbers.get(&service.name)?;
        let mut service = service.clone();
        let mut is_uniform = true;
        service.ports.retain_mut(|port| {
            let TargetPort::Name(name) = &port.target else { return true };
            // No endpoint has the port.
            let Some(numbers) = numbers_by_port_name.get(name) else { return false };
            is_uniform &= numbers.len() == 1;
            let first_number = numbers.keys().next().copied();
            port.target = first_number.map_or_else(|| port.target.clone(), TargetPort::Number);
            true
        });
        (is_uniform && !service.ports.is_empty()).then_some(service)
    }

    fn insert_endpoint(&mut self, workload: Workload) {
        self.remove_endpoint(&workload.name);
        self.workloads_by_address
            .entry(workload.address)
            .or_default()
            .insert(workload.name.clone());
        for (service, port_name, port_number) in endpoint_ports(&workload) {
            let numbers =
                self.port_numbers.entry(service).or_default().entry(port_name).or_default();
            *numbers.entry(port_number).or_default() += 1;
        }
        self.workloads.insert(workload.name.clone(), workload);
    }

    fn remove_endpoint(&mut self, name: &WorkloadName) -> Option<Workload> {
        let removed = self.workloads.remove(name)?;
        if let Some(names) = self.workloads_by_address.get_mut(&removed.address) {
            names.remove(name);
            if names.is_empty() {
                self.workloads_by_address.remove(&removed.address);
            }
        }
        for (service, port_name, port_number) in endpoint_ports(&removed) {
            let Some(ports) = self.port_numbers.get_mut(&service) else { continue };
            if let Some(numbers) = ports.get_mut(&port_name) {
                match numbers.get_mut(&port_number) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => {
                        numbers.remove(&port_number);
                    }
                }
                if numbers.is_empty() {
                    ports.remove(&port_name);
                }
            }
            if ports.is_empty() {
                self.port_numbers.remove(&service);
            }
        }
        Some(removed)
    }
}

/// Returns the pod with each of its addresses. Returns no addresses for pods in the host network, which share the
/// node's address, and for the proxies of gateways, which have no application.
fn own_addresses(pod: &Workload) -> impl Iterator<Item = (&Workload, IpAddr)> {
    let has = |label: &str| pod.labels.contains_key(label);
    let is_own = !has(NODE_NETWORK_LABEL) && !has(GATEWAY_LABEL);
    let addresses = pod.addresses().filter(move |_| is_own);
    addresses.map(move |address| (pod, address))
}

/// Returns the service for which a slice lists the endpoint.
fn service_of_endpoint(endpoint: &Workload) -> Option<ServiceName> {
    let name = endpoint.labels.keys().find_map(|key| listed_service(key))?;
    ServiceName::new(endpoint.name.namespace.as_str(), name).ok()
}

/// Returns the named ports of a listed endpoint: the service, the port name and the port number of each.
fn endpoint_ports(endpoint: &Workload) -> impl Iterator<Item = (ServiceName, Name, u16)> {
    let service = service_of_endpoint(endpoint);
    endpoint
        .ports
        .iter()
        .filter_map(move |port| Some((service.clone()?, port.name.clone()?, port.port)))
}

impl ObjectStore {
    /// Returns a service by name, with a selector or without one. Without gateways, a service without a
    /// selector belongs to the mesh if it has or had an endpoint with a sidecar.
    pub(super) fn mesh_service(&self, name: &ServiceName) -> Option<&Service> {
        self.known_service(name).filter(|_| {
            self.gateways.is_some()
                || self.services.get(name).is_some()
                || self.joined_services.contains(name)
        })
    }

    /// Returns a service by name, whether it belongs to the mesh or not.
    pub(super) fn known_service(&self, name: &ServiceName) -> Option<&Service> {
        self.services.get(name).or_else(|| self.selectorless.service(name))
    }

    /// Returns a service without a selector as configured in sidecars and gateways; `None` while neither
    /// sidecars nor gateways route to the service and it is not the source of an ingress policy.
    pub(super) fn configured_service(&self, name: &ServiceName) -> Option<Service> {
        let service = self.selectorless.service(name)?;
        let has_joined = self.joined_services.contains(name);
        let joined = has_joined.then(|| self.selectorless.with_port_numbers(service)).flatten();
        let is_source = !has_joined && self.ingress_sources.contains(name);
        joined.or_else(|| (is_source || self.gateways_route_to(name)).then(|| service.clone()))
    }

    /// Returns the services without a selector that list a pod with a sidecar.
    pub(super) fn selectorless_services_of(&self, pod: &Workload) -> Vec<Service> {
        let services = self.selectorless.may_select(pod).filter(|_| pod.sidecar);
        services.filter_map(|service| self.selectorless.with_port_numbers(service)).collect()
    }

    pub(super) fn apply_selectorless_service(&mut self, service: Service) {
        let name = service.name.clone();
        // The topology annotation is supported only for services with a selector.
        self.set_zone_preference(&name, None);
        let selector_service = self.services.remove(&name);
        let old_service = self.selectorless.services.insert(service).or(selector_service);
        self.mark_service(&name, old_service.as_ref());
        self.join_selectorless_service(&name);
    }

    /// Replaces the content of a slice.
    pub(super) fn apply_endpoints(&mut self, origin: &ObjectOrigin, mut workloads: Vec<Workload>) {
        let mut changed: Vec<Workload> = Vec::new();
        for name in self.selectorless.workloads_by_slice.remove(origin).unwrap_or_default() {
            changed.extend(self.selectorless.remove_endpoint(&name));
        }
        let capacity = MAX_LISTED_ENDPOINTS.saturating_sub(self.selectorless.workloads.len());
        if workloads.len() > capacity {
            self.add_diagnostics(
                origin,
                Vec::new(),
                vec![limit_warning(origin, workloads.len() - capacity)],
            );
            workloads.truncate(capacity);
        }
        if !workloads.is_empty() {
            let names = workloads.iter().map(|workload| workload.name.clone()).collect();
            self.selectorless.workloads_by_slice.insert(origin.clone(), names);
        }
        for workload in workloads {
            changed.push(workload.clone());
            self.selectorless.insert_endpoint(workload);
        }
        self.update_labels(&changed.iter().map(|workload| workload.address).collect());
        let services: BTreeSet<ServiceName> =
            changed.iter().filter_map(service_of_endpoint).collect();
        self.dirty.extend(changed.into_iter().map(|workload| ObjectKey::Workload(workload.name)));
        for name in services {
            // The port numbers of the service may have changed.
            if let Some(service) = self.selectorless.service(&name).cloned()
                && self.joined_services.contains(&name)
            {
                self.mark_selected_workloads(&name, &[Some(&service)]);
            }
            self.join_selectorless_service(&name);
            self.statuses_stale |= self.ingress_sources.contains(&name);
            self.dirty.insert(ObjectKey::Service(name));
        }
    }

    /// Updates the labels by which services without a selector select the pods at these addresses.
    fn update_labels(&mut self, addresses: &BTreeSet<IpAddr>) {
        if addresses.is_empty() {
            return;
        }
        let has_address = |pod: &&Workload| {
            own_addresses(pod).any(|(_, own_address)| addresses.contains(&own_address))
        };
        let pods: Vec<Workload> = self.workloads.values().filter(has_address).cloned().collect();
        for mut pod in pods {
            self.selectorless.apply_pod(Some(&pod), Some(&pod));
            let old_labels = pod.labels.clone();
            pod.labels.retain(|key, _| listed_service(key).is_none());
            pod.labels.extend(self.selectorless.service_labels(&pod));
            if pod.labels != old_labels {
                self.statuses_stale = true;
                self.dirty.insert(ObjectKey::Workload(pod.name.clone()));
                self.workloads.insert(pod.name.clone(), pod.clone());
                self.join_pod_services(&pod);
            }
        }
    }

    /// Returns the pods at a listed address.
    fn pods_at(&self, listed: &Workload) -> impl Iterator<Item = &Workload> {
        let names = self.selectorless.pods_by_address.get(&listed.address).into_iter().flatten();
        names.filter_map(|name| self.workloads.get(name))
    }

    /// Returns true for a listed address of a pod in another namespace: sidecars and gateways do not route to
    /// it.
    pub(super) fn belongs_to_other_namespace(&self, listed: &Workload) -> bool {
        let namespace = &listed.name.namespace;
        let mut pods = self.pods_at(listed);
        let gateways = self.gateways.as_ref();
        pods.any(|pod| pod.sidecar && pod.name.namespace != *namespace)
            || gateways
                .is_some_and(|gateways| gateways.is_in_other_namespace(listed.address, namespace))
    }

    /// Returns true for a listed address of a pod with a sidecar in the same namespace: that pod is the
    /// endpoint.
    pub(super) fn is_meshed_pod(&self, listed: &Workload) -> bool {
        let mut pods = self.pods_at(listed);
        pods.any(|pod| pod.sidecar && pod.name.namespace == listed.name.namespace)
    }

    /// Returns true for a listed address of a pod in the same namespace.
    pub(super) fn is_pod_address(&self, listed: &Workload) -> bool {
        self.pods_at(listed).any(|pod| pod.name.namespace == listed.name.namespace)
    }

    /// Returns the endpoints that slices list for a service.
    pub(super) fn listed_endpoints_of<'a>(
        &'a self,
        service: &'a Service,
    ) -> impl Iterator<Item = &'a Workload> {
        let namespace = service.name.namespace.clone();
        let range_start = WorkloadName { namespace: namespace.clone(), name: smallest_name() };
        let endpoints = self.selectorless.workloads_from(range_start);
        let in_namespace = endpoints.take_while(move |(name, _)| name.namespace == namespace);
        in_namespace
            .map(|(_, workload)| workload)
            .filter(|workload| matches_selector(&service.selector, &workload.labels))
    }

    /// Adds the joining label to a listed endpoint of a joined service: the sidecars of clients balance over it
    /// although it has no sidecar.
    pub(super) fn with_joining_label(&self, mut workload: Workload) -> Workload {
        let service = service_of_endpoint(&workload).filter(|_| !workload.sidecar);
        if service.is_some_and(|service| self.joined_services.contains(&service)) {
            workload.labels.insert(JOINING_LABEL.to_owned(), String::new());
        }
        workload
    }

    /// Marks endpoints that are listed at the addresses of a pod that is new, changed or deleted.
    pub(super) fn mark_listed_endpoints(
        &mut self,
        old_pod: Option<&Workload>,
        new_pod: Option<&Workload>,
    ) {
        let pods = old_pod.into_iter().chain(new_pod);
        let addresses: BTreeSet<IpAddr> = pods.flat_map(Workload::addresses).collect();
        addresses.into_iter().for_each(|address| self.mark_address(address));
    }

    /// Marks endpoints at an address that a pod has gained or lost.
    pub(super) fn mark_address(&mut self, address: IpAddr) {
        let names = self.selectorless.workloads_by_address.get(&address).into_iter().flatten();
        self.dirty.extend(names.map(|name| ObjectKey::Workload(name.clone())));
    }

    /// Returns a warning for each listed address that is excluded because its pod is in another namespace.
    pub(super) fn excluded_address_warnings(&self) -> impl Iterator<Item = Warning> {
        let hint = match self.gateways.is_some() {
            true => "route to a Service there, with a ReferenceGrant",
            false => "call a Service of that namespace",
        };
        let excluded = self
            .selectorless
            .workloads
            .iter()
            .filter(|(_, workload)| self.belongs_to_other_namespace(workload));
        excluded.map(move |(name, workload)| Warning {
            location: DocumentLocation {
                kind: Some("EndpointSlice".to_owned()),
                name: Some(name.to_string()),
                field: Some("endpoints".to_owned()),
                ..DocumentLocation::default()
            },
            problem: format!("{} is a pod of another namespace", workload.address),
            hint: hint.to_owned(),
        })
    }

    /// Returns true if gateways or routes of other services forward to a workload, or it is behind a headless
    /// service.
    pub(super) fn is_routed_to(&self, workload: &Workload) -> bool {
        let mut services = self.services.may_select(workload);
        services.any(|service| {
            service.addresses.is_empty() && matches_selector(&service.selector, &workload.labels)
        }) || self.is_behind_gateway(workload)
            || self.is_behind_route(workload)
    }

    /// Returns true if a gateway routes to a service of the workload.
    pub(super) fn is_behind_gateway(&self, workload: &Workload) -> bool {
        let mut services = self
            .services
            .may_select(workload)
            .chain(self.selectorless.services.may_select(workload));
        services.any(|service| {
            self.gateways_route_to(&service.name)
                && matches_selector(&service.selector, &workload.labels)
        })
    }
}

/// Returns the warning about a slice with endpoints above the limit.
fn limit_warning(slice: &ObjectOrigin, count: usize) -> Warning {
    Warning {
        location: DocumentLocation {
            kind: Some("EndpointSlice".to_owned()),
            namespace: Some(slice.id.namespace.clone()),
            name: Some(slice.id.name.clone()),
            field: Some("endpoints".to_owned()),
            ..DocumentLocation::default()
        },
        problem: format!(
            "{count} of its endpoints are ignored: the limit of {MAX_LISTED_ENDPOINTS} endpoints of all \
             Services without a selector is exceeded"
        ),
        hint: "give the Services of pods a selector".to_owned(),
    }
}

/// The maximum number of endpoints of services without a selector. They take about 12 MiB of memory.
pub(super) const MAX_LISTED_ENDPOINTS: usize = 16_384;
