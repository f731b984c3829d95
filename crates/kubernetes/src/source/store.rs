//! Store of all objects, with the changes that have not been published yet. Pure: no server, no clock.

mod boundary;
mod conflicts;
mod dangling;
mod desired_statuses;
mod effect;
mod enforcement;
mod external_principals;
mod floor;
mod gateway_state;
mod idle;
mod joined;
mod mesh_config;
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
use self::floor::Floors;
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
    /// The list of its kind in which each object was last seen.
    seen: BTreeMap<ObjectOrigin, u64>,
    workloads: BTreeMap<WorkloadName, Workload>,
    services: ServiceIndex,
    listed: SelectorlessServices,
    /// Gateways, if the kinds that they need are watched.
    edge: Option<GatewayState>,
    namespaces: BTreeMap<Name, AdmissionSettings>,
    /// The namespaces that were read at least once; those without annotations are not in `namespaces`.
    read_namespaces: BTreeSet<Name>,
    settings: MeshSettings,
    floors: Floors,
    external_principals: ExternalPrincipals,
    places: ZonePreferences,
    custom_resources: ObjectsInForce,
    routed: RoutedServices,
    /// The services that routes name, also where each names one only.
    attached: RoutedServices,
    /// Those of them with pods of which none has a sidecar.
    outside: BTreeSet<ServiceName>,
    /// The services with pods that are sources of an ingress policy.
    ingress_sources: BTreeSet<ServiceName>,
    /// The services that have had pods with a sidecar.
    joined: BTreeSet<ServiceName>,
    diagnostics: BTreeMap<ObjectOrigin, (Vec<RejectedDocument>, Vec<Warning>)>,
    /// Statuses that the API server rejects.
    unwritten: Arc<Vec<Warning>>,
    /// The data of custom resources for their statuses.
    records: BTreeMap<ObjectOrigin, StatusRecord>,
    /// True if statuses may have changed.
    statuses_stale: bool,
    /// The objects that may differ from the published ones.
    dirty: BTreeSet<ObjectKey>,
    reported: BTreeMap<ObjectKey, Object>,
    /// The published rejections and warnings; `None` before the first update.
    last: Option<(Vec<RejectedDocument>, Vec<Warning>)>,
}

/// An object, with the index of its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectOrigin {
    pub(crate) kind: usize,
    pub(crate) id: ObjectId,
}

/// The state of a kind.
struct KindState {
    watched: WatchedKind,
    /// True if it has been listed once, or cannot be.
    settled: bool,
    /// The number of the current list.
    listing: u64,
    /// The error of the server if it forbids reading the kind.
    forbidden: Option<String>,
}

impl ObjectStore {
    pub(crate) fn new(kinds: Vec<WatchedKind>) -> Self {
        let edge = kinds.contains(&WatchedKind::GatewayServices).then(GatewayState::default);
        let kind_state =
            |watched| KindState { watched, settled: false, listing: 0, forbidden: None };
        Self {
            kinds: kinds.into_iter().map(kind_state).collect(),
            seen: BTreeMap::new(),
            workloads: BTreeMap::new(),
            services: ServiceIndex::default(),
            listed: SelectorlessServices::default(),
            edge,
            namespaces: BTreeMap::new(),
            read_namespaces: BTreeSet::new(),
            settings: MeshSettings::default(),
            floors: Floors::default(),
            external_principals: ExternalPrincipals::default(),
            places: ZonePreferences::default(),
            custom_resources: ObjectsInForce::default(),
            routed: RoutedServices::default(),
            attached: RoutedServices::default(),
            outside: BTreeSet::new(),
            ingress_sources: BTreeSet::new(),
            joined: BTreeSet::new(),
            diagnostics: BTreeMap::new(),
            unwritten: Arc::default(),
            records: BTreeMap::new(),
            statuses_stale: false,
            dirty: BTreeSet::new(),
            reported: BTreeMap::new(),
            last: None,
        }
    }

    /// Returns the name of the kind with this index.
    pub(crate) fn kind_name(&self, kind: usize) -> &'static str {
        self.kinds.get(kind).map_or("", |kind_state| kind_state.watched.kind_name())
    }

    /// Returns the kinds that have not been listed yet.
    pub(crate) fn progress(&self) -> ListProgress {
        let waiting = self.kinds.iter().filter(|kind_state| !kind_state.settled);
        let (forbidden, waiting): (Vec<_>, Vec<_>) =
            waiting.partition(|kind_state| kind_state.forbidden.is_some());
        // The first update waits for Secrets, so that it does not publish gateways without certificates.
        let first = self.last.is_none() && self.waits_for_secrets();
        ListProgress {
            waiting: kind_names(&waiting).chain(first.then_some("Secret")).collect(),
            forbidden: kind_names(&forbidden).collect(),
        }
    }

    /// Updates the statuses that cannot be written.
    pub(crate) fn take_unwritten(&mut self, unwritten: Arc<Vec<Warning>>) {
        self.unwritten = unwritten;
    }

    /// Applies a watch event of a kind.
    pub(crate) fn apply_event(&mut self, kind: usize, event: WatchEvent) {
        let Some(kind_state) = self.kinds.get_mut(kind) else { return };
        match event {
            WatchEvent::Begin => {
                kind_state.listing += 1;
                kind_state.forbidden = None;
            }
            WatchEvent::Seen(seen) => {
                let listing = kind_state.listing;
                self.store_seen(kind, listing, *seen);
            }
            WatchEvent::Gone(id) => self.forget_object(&ObjectOrigin { kind, id }),
            WatchEvent::Covered(ids) => {
                kind_state.settled = true;
                if ids.is_empty() {
                    self.remove_unlisted(kind, |_| true);
                }
                self.edge.iter_mut().for_each(|edge| edge.set_covered(Arc::clone(&ids)));
            }
            WatchEvent::Complete => {
                kind_state.settled = true;
                let listing = kind_state.listing;
                self.remove_unlisted(kind, |seen| seen < listing);
            }
            WatchEvent::Absent => {
                kind_state.settled = true;
                kind_state.forbidden = None;
                self.remove_unlisted(kind, |_| true);
            }
            WatchEvent::Forbidden(reason) => {
                // Unknown objects are not the same as no objects.
                kind_state.settled |= !kind_state.watched.decides_access();
                kind_state.forbidden = Some(reason);
                if kind_state.watched == WatchedKind::Secrets {
                    self.edge.iter_mut().for_each(GatewayState::cover_nothing);
                }
            }
            WatchEvent::Failing(_) => {
                if kind_state.watched == WatchedKind::Secrets {
                    self.edge.iter_mut().for_each(GatewayState::mark_failed);
                }
            }
        }
    }

    /// Returns the changes to publish; `None` before every kind has been listed.
    pub(crate) fn flush(&mut self) -> Option<RegistryUpdate> {
        if !self.is_settled() || (self.last.is_none() && self.waits_for_secrets()) {
            return None;
        }
        let (mut removals, mut upserts) = (Vec::new(), Vec::new());
        for key in std::mem::take(&mut self.dirty) {
            match self.current_object(&key) {
                Some(object) if self.reported.get(&key) != Some(&object) => {
                    self.reported.insert(key, object.clone());
                    upserts.push(Change::Upsert(object));
                }
                None if self.reported.remove(&key).is_some() => removals.push(Change::Remove(key)),
                Some(_) | None => {}
            }
        }
        removals.append(&mut upserts);
        let (rejected, warnings) = self.all_diagnostics();
        let last = Some((rejected.clone(), warnings.clone()));
        if removals.is_empty() && self.last == last {
            return None;
        }
        self.last = last;
        let objects = self.reported.len();
        Some(RegistryUpdate {
            changes: removals,
            rejected,
            warnings,
            objects,
            locations: Vec::new(),
            noticed: None,
        })
    }

    /// Returns true if the first update was published.
    fn has_reported(&self) -> bool {
        self.last.is_some()
    }

    /// Returns true if every kind has been listed.
    fn is_settled(&self) -> bool {
        self.kinds.iter().all(|kind_state| kind_state.settled)
    }

    /// Returns true while gateways refer to Secrets that have not been listed.
    fn waits_for_secrets(&self) -> bool {
        self.edge.as_ref().is_some_and(GatewayState::holds_back)
    }

    fn store_seen(&mut self, kind: usize, listing: u64, seen: ConvertedObject) {
        let origin = ObjectOrigin { kind, id: seen.id };
        let item = seen.item;
        if item.is_none() {
            self.forget_item(&origin);
            self.see_silent_namespace(&origin, listing);
        }
        self.see_fact(&origin, listing, seen.fact);
        match seen.record {
            Some(record) => {
                self.statuses_stale = true;
                self.records.insert(origin.clone(), record);
                self.seen.insert(origin.clone(), listing);
            }
            // The object has no status any more.
            None => self.statuses_stale |= self.records.remove(&origin).is_some(),
        }
        let Some(item) = item else { return };
        self.diagnostics.remove(&origin);
        match item {
            MeshItem::Pod(pod) => self.see_pod(&origin, pod),
            MeshItem::Service(service) => self.see_service(&origin, service),
            MeshItem::Listed(service) => self.see_listed(service),
            MeshItem::Endpoints(workloads) => self.see_endpoints(&origin, workloads),
            MeshItem::Namespace(reading) => self.see_namespace(&origin, reading),
            MeshItem::Custom(custom) => self.see_custom(&origin, custom),
            MeshItem::Foreign(foreign) => self.see_foreign(&origin, foreign),
            MeshItem::ApiServer(addresses) => self.see_api_server(&origin, addresses),
            MeshItem::Node(zone) => self.see_node(&origin.id.name, zone),
        }
        self.seen.insert(origin, listing);
    }

    fn see_pod(&mut self, origin: &ObjectOrigin, pod: Result<MeshPod, Box<RejectedDocument>>) {
        let MeshPod { mut workload, admission, node, warnings, sidecar_settings } = match pod {
            Ok(member) => member,
            Err(refused) => return self.add_diagnostics(origin, vec![*refused], Vec::new()),
        };
        self.add_diagnostics(origin, Vec::new(), warnings);
        let known = self.workloads.get(&workload.name);
        // A pod that replaces one of the same name has no previous state.
        let is_same = |known: &&Workload| known.sidecar && known.uid == workload.uid;
        let before = known.filter(is_same).map(|known| known.admission);
        let (admission, rejected) = admission.resolve_with(before);
        workload.admission = admission;
        self.add_diagnostics(origin, rejected, Vec::new());
        self.see_choices_of_pod(&workload.name, sidecar_settings);
        self.see_place(&workload.name, node);
        self.dirty.insert(ObjectKey::Workload(workload.name.clone()));
        self.listed.see_pod(self.workloads.get(&workload.name), Some(&workload));
        workload.labels.extend(self.listed.labels_of(&workload));
        let before = self.workloads.insert(workload.name.clone(), workload.clone());
        self.see_joining(&workload);
        self.see_joining_namespace(&workload);
        self.touch_listed(before.as_ref(), Some(&workload));
        self.touch_openings(before.as_ref(), Some(&workload));
        self.touch_enforcement(before.as_ref(), Some(&workload));
        self.touch_outside(before.as_ref(), Some(&workload));
    }

    fn see_service(
        &mut self,
        origin: &ObjectOrigin,
        service: Result<SelectorService, RejectedDocument>,
    ) {
        match service {
            Ok(SelectorService { service, warnings, zone_preference }) => {
                self.add_diagnostics(origin, Vec::new(), warnings);
                let key = service.name.clone();
                self.see_nearness(&key, zone_preference);
                let listed = self.listed.remove_service(&key);
                let before = self.services.insert(service).or(listed);
                self.touch_service(&key, before.as_ref());
            }
            Err(refused) => self.add_diagnostics(origin, vec![refused], Vec::new()),
        }
    }

    /// Notes that a namespace without our annotations was read: an invalid annotation that is added later is
    /// ignored.
    fn see_silent_namespace(&mut self, origin: &ObjectOrigin, listing: u64) {
        let kind = self.kinds.get(origin.kind).map(|kind_state| kind_state.watched);
        if kind == Some(WatchedKind::Namespaces)
            && let Ok(name) = Name::new(&origin.id.name)
        {
            self.read_namespaces.insert(name);
            self.seen.insert(origin.clone(), listing);
        }
    }

    fn see_namespace(&mut self, origin: &ObjectOrigin, reading: NamespaceReading) {
        let Ok(name) = Name::new(&origin.id.name) else { return };
        let NamespaceReading { admission, warnings, sidecar_settings } = reading;
        self.add_diagnostics(origin, Vec::new(), warnings);
        self.see_choices_of_namespace(&name, Some(sidecar_settings));
        self.statuses_stale = true;
        self.dirty.insert(ObjectKey::MeshConfig);
        let is_first = self.read_namespaces.insert(name.clone());
        let before = (!is_first).then(|| self.namespaces.get(&name).copied().unwrap_or_default());
        let (admission, rejected) = admission.resolve_with(before);
        self.add_diagnostics(origin, rejected, Vec::new());
        match admission == AdmissionSettings::default() {
            true => self.namespaces.remove(&name),
            false => self.namespaces.insert(name, admission),
        };
    }

    fn see_custom(&mut self, origin: &ObjectOrigin, custom: CustomResource) {
        match custom.outcome {
            Ok((mut object, warnings)) => {
                if let Some(refused) = self.out_of_place(&object) {
                    return self.add_diagnostics(origin, vec![refused], Vec::new());
                }
                object.set_created(custom.created);
                self.add_diagnostics(origin, Vec::new(), warnings);
                self.see_preferences(origin, Some(&object));
                self.see_routed(origin, Some(&object));
                let affected = self.custom_resources.store_version(origin, object, custom.created);
                self.set_mentioned(origin, custom.mentioned);
                self.touch_customs(affected);
            }
            // The last valid version stays in use.
            Err(refused) => self.add_diagnostics(origin, refused, Vec::new()),
        }
    }

    fn add_diagnostics(
        &mut self,
        origin: &ObjectOrigin,
        rejected: Vec<RejectedDocument>,
        warnings: Vec<Warning>,
    ) {
        if !rejected.is_empty() || !warnings.is_empty() {
            let diagnostics = self.diagnostics.entry(origin.clone()).or_default();
            diagnostics.0.extend(rejected);
            diagnostics.1.extend(warnings);
        }
    }

    /// Removes objects that are not in a complete list.
    fn remove_unlisted(&mut self, kind: usize, gone: impl Fn(u64) -> bool) {
        let first =
            ObjectOrigin { kind, id: ObjectId { namespace: String::new(), name: String::new() } };
        let of_kind = self.seen.range(first..).take_while(|(origin, _)| origin.kind == kind);
        let swept = of_kind.filter(|(_, seen)| gone(**seen)).map(|(origin, _)| origin.clone());
        for origin in swept.collect::<Vec<_>>() {
            self.forget_object(&origin);
        }
    }

    fn forget_object(&mut self, origin: &ObjectOrigin) {
        self.forget_fact(origin);
        self.forget_item(origin);
    }

    /// Removes an object, except its facts for gateways.
    fn forget_item(&mut self, origin: &ObjectOrigin) {
        if self.seen.remove(origin).is_none() {
            return;
        }
        self.diagnostics.remove(origin);
        self.statuses_stale |= self.records.remove(origin).is_some();
        let Some(kind_state) = self.kinds.get(origin.kind) else { return };
        let ObjectId { namespace, name } = &origin.id;
        match kind_state.watched {
            WatchedKind::Pods => {
                if let Ok(name) = WorkloadName::new(namespace, name) {
                    let before = self.workloads.remove(&name);
                    self.listed.see_pod(before.as_ref(), None);
                    self.touch_listed(before.as_ref(), None);
                    self.forget_pod_choices(&name);
                    self.see_place(&name, None);
                    self.touch_openings(before.as_ref(), None);
                    self.touch_enforcement(before.as_ref(), None);
                    self.touch_outside(before.as_ref(), None);
                    self.dirty.insert(ObjectKey::Workload(name));
                }
            }
            WatchedKind::Services => {
                if let Ok(name) = ServiceName::new(namespace, name) {
                    let listed = self.listed.remove_service(&name);
                    let before = self.services.remove(&name).or(listed);
                    self.see_nearness(&name, None);
                    self.touch_service(&name, before.as_ref());
                }
            }
            WatchedKind::Nodes => self.see_node(name, None),
            WatchedKind::Namespaces => {
                if let Ok(name) = Name::new(name) {
                    self.see_choices_of_namespace(&name, None);
                    self.namespaces.remove(&name);
                    self.read_namespaces.remove(&name);
                    self.dirty.insert(ObjectKey::MeshConfig);
                }
            }
            WatchedKind::ApiServerService | WatchedKind::ApiServerEndpoints => {
                self.see_api_server(origin, BTreeSet::new());
            }
            WatchedKind::Slices => self.see_endpoints(origin, Vec::new()),
            WatchedKind::Secrets | WatchedKind::Deployments | WatchedKind::GatewayServices => {}
            WatchedKind::Custom(_) => {
                let affected = self.custom_resources.remove(origin);
                self.see_preferences(origin, None);
                self.see_routed(origin, None);
                self.forget_settings(origin);
                self.touch_customs(affected);
            }
        }
    }

    /// Marks a changed service, and the workloads in its namespace because their ports may have changed.
    fn touch_service(&mut self, name: &ServiceName, before: Option<&Service>) {
        self.dirty.insert(ObjectKey::Service(name.clone()));
        self.statuses_stale = true;
        self.note_outside(name);
        self.edge.iter_mut().for_each(GatewayState::mark_changed);
        let now = self.known_service(name).cloned();
        let now = now.as_ref();
        let same = before.zip(now).is_some_and(|(before, now)| {
            before.selector == now.selector
                && before.ports == now.ports
                && before.addresses.is_empty() == now.addresses.is_empty()
        });
        if !same {
            self.see_joining_service(name);
            self.touch_selected(name, &[before, now]);
        }
    }

    /// Marks the workloads that any of these versions of a service selects.
    fn touch_selected(&mut self, name: &ServiceName, versions: &[Option<&Service>]) {
        let selected = |workload: &Workload| {
            versions.iter().flatten().any(|it| matches_selector(&it.selector, &workload.labels))
        };
        let first = WorkloadName { namespace: name.namespace.clone(), name: smallest_name() };
        let is_near =
            |(workload, _): &(&WorkloadName, &Workload)| workload.namespace == name.namespace;
        // The range of a namespace ends at the next one.
        let own = self.workloads.range(first.clone()..).take_while(is_near);
        let listed = self.listed.workloads_from(first).take_while(is_near);
        let affected = own
            .chain(listed)
            .filter(|(_, workload)| selected(workload))
            .map(|(workload, _)| ObjectKey::Workload(workload.clone()));
        self.dirty.extend(affected);
    }

    /// Returns the current version of an object.
    fn current_object(&self, key: &ObjectKey) -> Option<Object> {
        match key {
            ObjectKey::Workload(name) => {
                let is_own = |it: &&Workload| !self.is_borrowed(it) && !self.is_of_member(it);
                let listed = || self.listed.workload(name).filter(is_own);
                let workload = self.workloads.get(name).or_else(listed)?;
                if workload.sidecar && self.has_forbidden_image(name) {
                    return None;
                }
                // An unmeshed workload is included if gateways or routes of the mesh lead to it, if it is behind a
                // headless service or a service that has had pods with a sidecar, or if it is the source of an
                // ingress policy.
                if !workload.sidecar
                    && !self.is_led_to(workload)
                    && !self.has_joined(workload)
                    && !self.is_let_in(workload)
                {
                    return None;
                }
                let listed = self.offered_near(workload);
                let services = self.services.may_select(workload).chain(&listed);
                let workload = self.mark_balanced(with_target_ports(workload, services));
                Some(Object::Workload(self.with_zone(workload)))
            }
            ObjectKey::Service(name) => {
                let own = self.services.get(name).cloned();
                own.or_else(|| self.configured_service(name)).map(Object::Service)
            }
            ObjectKey::Gateway(name) => {
                let gateway = self.edge.as_ref().and_then(|edge| edge.gateway(name));
                gateway.cloned().map(Object::Gateway)
            }
            ObjectKey::MeshConfig => self.mesh_config().map(Object::MeshConfig),
            ObjectKey::TagRoute(name) => {
                self.custom_resources.get(key).cloned().or_else(|| self.zone_preference(name))
            }
            other => self.custom_resources.get(other).cloned(),
        }
    }

    fn all_diagnostics(&self) -> (Vec<RejectedDocument>, Vec<Warning>) {
        let (mut rejected, mut warnings) = (Vec::new(), Vec::new());
        for (origin, (refusals, diagnostics)) in &self.diagnostics {
            rejected.extend_from_slice(refusals);
            if self.is_of_mesh(origin) {
                warnings.extend_from_slice(diagnostics);
            }
        }
        rejected.extend(self.custom_resources.list_duplicates());
        warnings.extend(self.mode_warnings());
        warnings.extend(self.all_overridden());
        warnings.extend(self.all_below_floor());
        rejected.extend(self.forbidden_images());
        warnings.extend(self.excluded_warnings());
        warnings.extend_from_slice(&self.unwritten);
        for kind_state in &self.kinds {
            let Some(reason) = &kind_state.forbidden else { continue };
            let kind = kind_state.watched.kind_name();
            let at =
                DocumentLocation { kind: Some(kind.to_owned()), ..DocumentLocation::default() };
            let problem = format!("the API server denies read access ({reason})");
            let hint = "allow the control plane's ServiceAccount to list and watch it".to_owned();
            // Without the MeshConfig the policies in force are unknown.
            match kind {
                "MeshConfig" => rejected.push(RejectedDocument { at, problem, hint }),
                _ => warnings.push(Warning { at, problem, hint }),
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
