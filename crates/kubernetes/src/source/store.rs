//! Stores all objects, and the changes that are not published yet. No I/O: the source applies watch events.

mod conflicts;
mod desired_statuses;
mod enforcement;
mod external_principals;
mod floor;
mod gateway_state;
mod ineffective_routes;
mod ineffective_rules;
mod ingress_policies;
mod joined_services;
mod mesh_config;
mod missing_references;
mod objects_in_force;
mod routed_services;
mod selectorless_services;
mod services;
mod zone_preferences;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leno_model::{
    AdmissionSettings, Change, Name, Object, ObjectKey, Service, ServiceName, Workload,
    WorkloadName,
};
use leno_registry::{DocumentLocation, RegistryUpdate, RejectedDocument, Warning};

use self::external_principals::ExternalPrincipals;
use self::floor::OverridableSettings;
use self::gateway_state::GatewayState;
use self::mesh_config::MeshSettings;
use self::objects_in_force::ObjectsInForce;
use self::routed_services::RoutedServices;
use self::selectorless_services::SelectorlessServices;
use self::services::ServiceIndex;
use self::zone_preferences::ZonePreferences;
use super::event::{ConvertedObject, MeshItem, ObjectId, SelectorService, WatchEvent};
use super::kinds::WatchedKind;
use super::progress::ListProgress;
use super::status_record::StatusRecord;
use crate::read::{CustomResource, MeshPod, NamespaceReading, matches_selector, with_target_ports};

/// The store of all objects, with the changes that have not been published yet.
pub(crate) struct ObjectStore {
    kinds: Vec<KindState>,
    /// For each object, the number of the last list of its kind that contained it.
    list_numbers: BTreeMap<ObjectOrigin, u64>,
    workloads: BTreeMap<WorkloadName, Workload>,
    services: ServiceIndex,
    selectorless: SelectorlessServices,
    /// Gateways, if the kinds that they need are watched.
    gateways: Option<GatewayState>,
    namespace_admission: BTreeMap<Name, AdmissionSettings>,
    /// The namespaces that were read at least once, with or without annotations.
    observed_namespaces: BTreeSet<Name>,
    settings: MeshSettings,
    overridable_settings: OverridableSettings,
    external_principals: ExternalPrincipals,
    zone_preferences: ZonePreferences,
    custom_resources: ObjectsInForce,
    /// The services that a route or split of the mesh names together with others.
    routed_services: RoutedServices,
    /// The services that routes name, including those of routes that name only one service.
    attached_services: RoutedServices,
    /// The services in `attached_services` that have pods, but no pod with a sidecar.
    unmeshed_services: BTreeSet<ServiceName>,
    /// The services with pods that are sources of an ingress policy.
    ingress_sources: BTreeSet<ServiceName>,
    /// The services that have had pods with a sidecar.
    joined_services: BTreeSet<ServiceName>,
    /// The rejections and warnings of each object.
    diagnostics: BTreeMap<ObjectOrigin, (Vec<RejectedDocument>, Vec<Warning>)>,
    /// Warnings about statuses that the API server rejects.
    unwritten_statuses: Arc<Vec<Warning>>,
    /// The data of objects for their statuses and events.
    records: BTreeMap<ObjectOrigin, StatusRecord>,
    /// True if statuses may have changed.
    statuses_stale: bool,
    /// The objects that may differ from the published ones.
    dirty: BTreeSet<ObjectKey>,
    /// The objects as last published.
    published_objects: BTreeMap<ObjectKey, Object>,
    /// The published rejections and warnings; `None` before the first update.
    published_diagnostics: Option<(Vec<RejectedDocument>, Vec<Warning>)>,
}

/// The identity of an object: the index of its watched kind, and its namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectOrigin {
    pub(crate) kind_index: usize,
    pub(crate) id: ObjectId,
}

struct KindState {
    watched: WatchedKind,
    /// True if the kind has been listed, or cannot be listed and does not determine access.
    is_synced: bool,
    /// The number of the current list: how many lists of the kind have started.
    list_number: u64,
    /// The error of the API server if it forbids reading the kind.
    forbidden: Option<String>,
}

impl ObjectStore {
    pub(crate) fn new(kinds: Vec<WatchedKind>) -> Self {
        let gateways = kinds.contains(&WatchedKind::GatewayServices).then(GatewayState::default);
        let kind_state =
            |watched| KindState { watched, is_synced: false, list_number: 0, forbidden: None };
        Self {
            kinds: kinds.into_iter().map(kind_state).collect(),
            list_numbers: BTreeMap::new(),
            workloads: BTreeMap::new(),
            services: ServiceIndex::default(),
            selectorless: SelectorlessServices::default(),
            gateways,
            namespace_admission: BTreeMap::new(),
            observed_namespaces: BTreeSet::new(),
            settings: MeshSettings::default(),
            overridable_settings: OverridableSettings::default(),
            external_principals: ExternalPrincipals::default(),
            zone_preferences: ZonePreferences::default(),
            custom_resources: ObjectsInForce::default(),
            routed_services: RoutedServices::default(),
            attached_services: RoutedServices::default(),
            unmeshed_services: BTreeSet::new(),
            ingress_sources: BTreeSet::new(),
            joined_services: BTreeSet::new(),
            diagnostics: BTreeMap::new(),
            unwritten_statuses: Arc::default(),
            records: BTreeMap::new(),
            statuses_stale: false,
            dirty: BTreeSet::new(),
            published_objects: BTreeMap::new(),
            published_diagnostics: None,
        }
    }

    pub(crate) fn kind_name(&self, kind_index: usize) -> &'static str {
        self.kinds.get(kind_index).map_or("", |kind_state| kind_state.watched.kind_name())
    }

    /// Returns the kinds that have not been listed yet.
    pub(crate) fn progress(&self) -> ListProgress {
        let unlisted = self.kinds.iter().filter(|kind_state| !kind_state.is_synced);
        let (forbidden, unlisted): (Vec<_>, Vec<_>) =
            unlisted.partition(|kind_state| kind_state.forbidden.is_some());
        // The first update waits for Secrets, so that it does not publish gateways without certificates.
        let is_waiting = self.published_diagnostics.is_none() && self.waits_for_secrets();
        ListProgress {
            unlisted: kind_names(&unlisted).chain(is_waiting.then_some("Secret")).collect(),
            forbidden: kind_names(&forbidden).collect(),
        }
    }

    /// Replaces the warnings about statuses that cannot be written.
    pub(crate) fn set_unwritten(&mut self, unwritten_statuses: Arc<Vec<Warning>>) {
        self.unwritten_statuses = unwritten_statuses;
    }

    /// Applies a watch event of a kind.
    pub(crate) fn apply_event(&mut self, kind_index: usize, event: WatchEvent) {
        let Some(kind_state) = self.kinds.get_mut(kind_index) else { return };
        match event {
            WatchEvent::ListStarted => {
                kind_state.list_number += 1;
                kind_state.forbidden = None;
            }
            WatchEvent::Applied(object) => {
                let list_number = kind_state.list_number;
                self.apply_object(kind_index, list_number, *object);
            }
            WatchEvent::Deleted(id) => self.remove_object(&ObjectOrigin { kind_index, id }),
            WatchEvent::SecretsReceived(ids) => {
                kind_state.is_synced = true;
                // No list precedes this event if gateways refer to no Secret.
                if ids.is_empty() {
                    self.remove_unlisted(kind_index, |_| true);
                }
                self.gateways
                    .iter_mut()
                    .for_each(|state| state.set_received_secrets(Arc::clone(&ids)));
            }
            WatchEvent::ListComplete => {
                kind_state.is_synced = true;
                let list_number = kind_state.list_number;
                self.remove_unlisted(kind_index, |last_number| last_number < list_number);
            }
            WatchEvent::KindNotServed => {
                kind_state.is_synced = true;
                kind_state.forbidden = None;
                self.remove_unlisted(kind_index, |_| true);
            }
            WatchEvent::Forbidden(reason) => {
                // Without such a kind, access is unknown: the first update keeps waiting.
                kind_state.is_synced |= !kind_state.watched.decides_access();
                kind_state.forbidden = Some(reason);
                if kind_state.watched == WatchedKind::Secrets {
                    self.gateways.iter_mut().for_each(GatewayState::mark_secrets_forbidden);
                }
            }
            WatchEvent::Unavailable(_) => {
                if kind_state.watched == WatchedKind::Secrets {
                    self.gateways.iter_mut().for_each(GatewayState::mark_secrets_failed);
                }
            }
        }
    }

    /// Returns the changes to publish; `None` if there are none, or before every kind has been listed.
    pub(crate) fn flush(&mut self) -> Option<RegistryUpdate> {
        if !self.is_synced() || (!self.has_published() && self.waits_for_secrets()) {
            return None;
        }
        let (mut changes, mut upserts) = (Vec::new(), Vec::new());
        for key in std::mem::take(&mut self.dirty) {
            match self.current_object(&key) {
                Some(object) if self.published_objects.get(&key) != Some(&object) => {
                    self.published_objects.insert(key, object.clone());
                    upserts.push(Change::Upsert(object));
                }
                None if self.published_objects.remove(&key).is_some() => {
                    changes.push(Change::Remove(key))
                }
                Some(_) | None => {}
            }
        }
        changes.append(&mut upserts);
        let (rejected, warnings) = self.all_diagnostics();
        let diagnostics = Some((rejected.clone(), warnings.clone()));
        if changes.is_empty() && self.published_diagnostics == diagnostics {
            return None;
        }
        self.published_diagnostics = diagnostics;
        let object_count = self.published_objects.len();
        Some(RegistryUpdate {
            changes,
            rejected,
            warnings,
            object_count,
            locations: Vec::new(),
            first_event_at: None,
        })
    }

    fn has_published(&self) -> bool {
        self.published_diagnostics.is_some()
    }

    /// Returns true if every kind has been listed.
    fn is_synced(&self) -> bool {
        self.kinds.iter().all(|kind_state| kind_state.is_synced)
    }

    /// Returns true while gateways refer to Secrets that have not been listed.
    fn waits_for_secrets(&self) -> bool {
        self.gateways.as_ref().is_some_and(GatewayState::has_pending_secrets)
    }

    fn apply_object(&mut self, kind_index: usize, list_number: u64, object: ConvertedObject) {
        let origin = ObjectOrigin { kind_index, id: object.id };
        let item = object.item;
        if item.is_none() {
            self.remove_item(&origin);
            self.mark_namespace_read(&origin, list_number);
        }
        self.apply_gateway_input(&origin, list_number, object.gateway_input);
        match object.record {
            Some(record) => {
                self.statuses_stale = true;
                self.records.insert(origin.clone(), record);
                self.list_numbers.insert(origin.clone(), list_number);
            }
            // The object has no status any more.
            None => self.statuses_stale |= self.records.remove(&origin).is_some(),
        }
        let Some(item) = item else { return };
        self.diagnostics.remove(&origin);
        match item {
            MeshItem::Pod(pod) => self.apply_pod(&origin, pod),
            MeshItem::Service(service) => self.apply_service(&origin, service),
            MeshItem::SelectorlessService(service) => self.apply_selectorless_service(service),
            MeshItem::Endpoints(workloads) => self.apply_endpoints(&origin, workloads),
            MeshItem::Namespace(reading) => self.apply_namespace(&origin, reading),
            MeshItem::Custom(custom) => self.apply_custom_resource(&origin, custom),
            MeshItem::ForeignSettings(foreign) => self.apply_foreign_settings(&origin, foreign),
            MeshItem::ApiServer(addresses) => self.apply_api_server(&origin, addresses),
            MeshItem::Node(zone) => self.apply_node(&origin.id.name, zone),
        }
        self.list_numbers.insert(origin, list_number);
    }

    fn apply_pod(&mut self, origin: &ObjectOrigin, pod: Result<MeshPod, Box<RejectedDocument>>) {
        let MeshPod { mut workload, admission, node, warnings, sidecar_settings } = match pod {
            Ok(mesh_pod) => mesh_pod,
            Err(rejected) => return self.add_diagnostics(origin, vec![*rejected], Vec::new()),
        };
        self.add_diagnostics(origin, Vec::new(), warnings);
        let existing_pod = self.workloads.get(&workload.name);
        // A pod that replaces a pod of the same name has no previous settings.
        let is_same = |existing: &&Workload| existing.sidecar && existing.uid == workload.uid;
        let previous_admission = existing_pod.filter(is_same).map(|existing| existing.admission);
        let (admission, rejected) = admission.resolve_with(previous_admission);
        workload.admission = admission;
        self.add_diagnostics(origin, rejected, Vec::new());
        self.set_pod_settings(&workload.name, sidecar_settings);
        self.set_node(&workload.name, node);
        self.dirty.insert(ObjectKey::Workload(workload.name.clone()));
        self.selectorless.apply_pod(self.workloads.get(&workload.name), Some(&workload));
        workload.labels.extend(self.selectorless.service_labels(&workload));
        let old_workload = self.workloads.insert(workload.name.clone(), workload.clone());
        self.join_pod_services(&workload);
        self.join_selectorless_services(&workload);
        self.mark_listed_endpoints(old_workload.as_ref(), Some(&workload));
        self.mark_ingress_policies(old_workload.as_ref(), Some(&workload));
        self.mark_enforcement(old_workload.as_ref(), Some(&workload));
        self.mark_unmeshed_services(old_workload.as_ref(), Some(&workload));
    }

    fn apply_service(
        &mut self,
        origin: &ObjectOrigin,
        service: Result<SelectorService, RejectedDocument>,
    ) {
        match service {
            Ok(SelectorService { service, warnings, zone_preference }) => {
                self.add_diagnostics(origin, Vec::new(), warnings);
                let key = service.name.clone();
                self.set_zone_preference(&key, zone_preference);
                let selectorless_service = self.selectorless.remove_service(&key);
                let old_service = self.services.insert(service).or(selectorless_service);
                self.mark_service(&key, old_service.as_ref());
            }
            Err(rejected) => self.add_diagnostics(origin, vec![rejected], Vec::new()),
        }
    }

    /// Marks a namespace without Leno's annotations as read. An invalid annotation that is added later then leaves
    /// the settings unset, and does not cause the strictest settings.
    fn mark_namespace_read(&mut self, origin: &ObjectOrigin, list_number: u64) {
        let kind = self.kinds.get(origin.kind_index).map(|kind_state| kind_state.watched);
        if kind == Some(WatchedKind::Namespaces)
            && let Ok(name) = Name::new(&origin.id.name)
        {
            self.observed_namespaces.insert(name);
            self.list_numbers.insert(origin.clone(), list_number);
        }
    }

    fn apply_namespace(&mut self, origin: &ObjectOrigin, reading: NamespaceReading) {
        let Ok(name) = Name::new(&origin.id.name) else { return };
        let NamespaceReading { admission, warnings, sidecar_settings } = reading;
        self.add_diagnostics(origin, Vec::new(), warnings);
        self.set_namespace_settings(&name, Some(sidecar_settings));
        self.statuses_stale = true;
        self.dirty.insert(ObjectKey::MeshConfig);
        let is_first = self.observed_namespaces.insert(name.clone());
        let previous =
            (!is_first).then(|| self.namespace_admission.get(&name).copied().unwrap_or_default());
        let (admission, rejected) = admission.resolve_with(previous);
        self.add_diagnostics(origin, rejected, Vec::new());
        match admission == AdmissionSettings::default() {
            true => self.namespace_admission.remove(&name),
            false => self.namespace_admission.insert(name, admission),
        };
    }

    fn apply_custom_resource(&mut self, origin: &ObjectOrigin, custom: CustomResource) {
        match custom.outcome {
            Ok((mut object, warnings)) => {
                if let Some(rejected) = self.misplaced_rejection(&object) {
                    return self.add_diagnostics(origin, vec![rejected], Vec::new());
                }
                object.set_created(custom.created);
                self.add_diagnostics(origin, Vec::new(), warnings);
                self.apply_tag_rules(origin, Some(&object));
                self.apply_routes(origin, Some(&object));
                let affected = self.custom_resources.store_version(origin, object, custom.created);
                self.set_specified_fields(origin, custom.specified_fields);
                self.mark_custom_resources(affected);
            }
            // The last valid version stays in use.
            Err(rejected) => self.add_diagnostics(origin, rejected, Vec::new()),
        }
    }

    fn add_diagnostics(
        &mut self,
        origin: &ObjectOrigin,
        rejected: Vec<RejectedDocument>,
        warnings: Vec<Warning>,
    ) {
        if !rejected.is_empty() || !warnings.is_empty() {
            let (all_rejected, all_warnings) = self.diagnostics.entry(origin.clone()).or_default();
            all_rejected.extend(rejected);
            all_warnings.extend(warnings);
        }
    }

    /// Removes the objects of a kind for which `is_gone` returns true, given the number of the last list with the object.
    fn remove_unlisted(&mut self, kind_index: usize, is_gone: impl Fn(u64) -> bool) {
        let first_id = ObjectId { namespace: String::new(), name: String::new() };
        let later_numbers = self.list_numbers.range(ObjectOrigin { kind_index, id: first_id }..);
        let kind_numbers = later_numbers.take_while(|(origin, _)| origin.kind_index == kind_index);
        let unlisted = kind_numbers
            .filter(|(_, list_number)| is_gone(**list_number))
            .map(|(origin, _)| origin.clone());
        for origin in unlisted.collect::<Vec<_>>() {
            self.remove_object(&origin);
        }
    }

    fn remove_object(&mut self, origin: &ObjectOrigin) {
        self.remove_gateway_input(origin);
        self.remove_item(origin);
    }

    /// Removes an object, except its input for gateways.
    fn remove_item(&mut self, origin: &ObjectOrigin) {
        if self.list_numbers.remove(origin).is_none() {
            return;
        }
        self.diagnostics.remove(origin);
        self.statuses_stale |= self.records.remove(origin).is_some();
        let Some(kind_state) = self.kinds.get(origin.kind_index) else { return };
        let ObjectId { namespace, name } = &origin.id;
        match kind_state.watched {
            WatchedKind::Pods => {
                if let Ok(name) = WorkloadName::new(namespace, name) {
                    let old_version = self.workloads.remove(&name);
                    self.selectorless.apply_pod(old_version.as_ref(), None);
                    self.mark_listed_endpoints(old_version.as_ref(), None);
                    self.remove_pod_settings(&name);
                    self.set_node(&name, None);
                    self.mark_ingress_policies(old_version.as_ref(), None);
                    self.mark_enforcement(old_version.as_ref(), None);
                    self.mark_unmeshed_services(old_version.as_ref(), None);
                    self.dirty.insert(ObjectKey::Workload(name));
                }
            }
            WatchedKind::Services => {
                if let Ok(name) = ServiceName::new(namespace, name) {
                    let selectorless_service = self.selectorless.remove_service(&name);
                    let old_version = self.services.remove(&name).or(selectorless_service);
                    self.set_zone_preference(&name, None);
                    self.mark_service(&name, old_version.as_ref());
                }
            }
            WatchedKind::Nodes => self.apply_node(name, None),
            WatchedKind::Namespaces => {
                if let Ok(name) = Name::new(name) {
                    self.set_namespace_settings(&name, None);
                    self.namespace_admission.remove(&name);
                    self.observed_namespaces.remove(&name);
                    self.dirty.insert(ObjectKey::MeshConfig);
                }
            }
            WatchedKind::ApiServerService | WatchedKind::ApiServerEndpoints => {
                self.apply_api_server(origin, BTreeSet::new());
            }
            WatchedKind::Slices => self.apply_endpoints(origin, Vec::new()),
            // Only gateways use these objects.
            WatchedKind::Secrets | WatchedKind::Deployments | WatchedKind::GatewayServices => {}
            WatchedKind::Custom(_) => {
                let affected = self.custom_resources.remove(origin);
                self.apply_tag_rules(origin, None);
                self.apply_routes(origin, None);
                self.remove_settings(origin);
                self.mark_custom_resources(affected);
            }
        }
    }

    /// Marks a changed service, and the workloads in its namespace because their ports may have changed.
    fn mark_service(&mut self, name: &ServiceName, old_service: Option<&Service>) {
        self.dirty.insert(ObjectKey::Service(name.clone()));
        self.statuses_stale = true;
        self.update_unmeshed_service(name);
        self.gateways.iter_mut().for_each(GatewayState::mark_changed);
        let new_service = self.known_service(name).cloned();
        let new_service = new_service.as_ref();
        let is_unchanged = old_service.zip(new_service).is_some_and(|(old, new)| {
            old.selector == new.selector
                && old.ports == new.ports
                && old.addresses.is_empty() == new.addresses.is_empty()
        });
        if !is_unchanged {
            self.update_joined_service(name);
            self.mark_selected_workloads(name, &[old_service, new_service]);
        }
    }

    /// Marks the workloads that any of these versions of a service selects.
    fn mark_selected_workloads(&mut self, name: &ServiceName, versions: &[Option<&Service>]) {
        let is_selected = |workload: &Workload| {
            let mut services = versions.iter().flatten();
            services.any(|service| matches_selector(&service.selector, &workload.labels))
        };
        let range_start = WorkloadName { namespace: name.namespace.clone(), name: smallest_name() };
        let is_in_namespace =
            |(workload, _): &(&WorkloadName, &Workload)| workload.namespace == name.namespace;
        // Names are sorted by namespace.
        let pods = self.workloads.range(range_start.clone()..).take_while(is_in_namespace);
        let endpoints = self.selectorless.workloads_from(range_start).take_while(is_in_namespace);
        let affected_workloads = pods
            .chain(endpoints)
            .filter(|(_, workload)| is_selected(workload))
            .map(|(workload, _)| ObjectKey::Workload(workload.clone()));
        self.dirty.extend(affected_workloads);
    }

    /// Returns the current version of an object; `None` if the mesh does not have it.
    fn current_object(&self, key: &ObjectKey) -> Option<Object> {
        match key {
            ObjectKey::Workload(name) => {
                let is_endpoint = |workload: &&Workload| {
                    !self.belongs_to_other_namespace(workload) && !self.is_meshed_pod(workload)
                };
                let listed_endpoint = || self.selectorless.workload(name).filter(is_endpoint);
                let workload = self.workloads.get(name).or_else(listed_endpoint)?;
                if workload.sidecar && self.has_forbidden_image(name) {
                    return None;
                }
                // An unmeshed workload is included if gateways or routes of the mesh use it, if it is behind a
                // headless service or a service that has had pods with a sidecar, or if it is the source of an
                // ingress policy.
                if !workload.sidecar
                    && !self.is_routed_to(workload)
                    && !self.has_joined(workload)
                    && !self.is_ingress_source(workload)
                {
                    return None;
                }
                let selectorless = self.selectorless_services_of(workload);
                let services = self.services.may_select(workload).chain(&selectorless);
                let workload = self.with_joining_label(with_target_ports(workload, services));
                Some(Object::Workload(self.with_zone(workload)))
            }
            ObjectKey::Service(name) => {
                let service = self.services.get(name).cloned();
                service.or_else(|| self.configured_service(name)).map(Object::Service)
            }
            ObjectKey::Gateway(name) => {
                let gateway = self.gateways.as_ref().and_then(|gateways| gateways.gateway(name));
                gateway.cloned().map(Object::Gateway)
            }
            ObjectKey::MeshConfig => self.mesh_config().map(Object::MeshConfig),
            ObjectKey::TagRoute(name) => {
                self.custom_resources.get(key).cloned().or_else(|| self.zone_rule(name))
            }
            key => self.custom_resources.get(key).cloned(),
        }
    }

    fn all_diagnostics(&self) -> (Vec<RejectedDocument>, Vec<Warning>) {
        let (mut rejected, mut warnings) = (Vec::new(), Vec::new());
        for (origin, (rejections, object_warnings)) in &self.diagnostics {
            rejected.extend_from_slice(rejections);
            if self.belongs_to_mesh(origin) {
                warnings.extend_from_slice(object_warnings);
            }
        }
        rejected.extend(self.custom_resources.list_duplicates());
        warnings.extend(self.default_policy_warnings());
        warnings.extend(self.all_foreign_settings_warnings());
        warnings.extend(self.all_floor_warnings());
        rejected.extend(self.forbidden_image_rejections());
        warnings.extend(self.excluded_address_warnings());
        warnings.extend_from_slice(&self.unwritten_statuses);
        for kind_state in &self.kinds {
            let Some(reason) = &kind_state.forbidden else { continue };
            let kind = kind_state.watched.kind_name();
            let location =
                DocumentLocation { kind: Some(kind.to_owned()), ..DocumentLocation::default() };
            let problem = format!("the API server denies read access ({reason})");
            let hint = "allow the control plane's ServiceAccount to list and watch it".to_owned();
            // Without the MeshConfig the policies in force are unknown.
            match kind {
                "MeshConfig" => rejected.push(RejectedDocument { location, problem, hint }),
                _ => warnings.push(Warning { location, problem, hint }),
            }
        }
        rejected.sort();
        warnings.sort();
        (rejected, warnings)
    }
}

fn kind_names(kinds: &[&KindState]) -> impl Iterator<Item = &'static str> {
    kinds.iter().map(|kind_state| kind_state.watched.kind_name())
}

/// Returns the first name in sort order.
fn smallest_name() -> Name {
    Name::new("0").expect("a digit is a name")
}

#[cfg(test)]
mod tests;
