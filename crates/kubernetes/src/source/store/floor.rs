//! Applies the floor, `spec.floor` of the MeshConfig: the settings that pods and namespaces cannot relax. Warns
//! about settings that the floor overrides, and rejects mesh-wide objects in namespaces that may not have them.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    AdmissionSettings, MeshConfig, Name, Object, ObjectKey, OverriddenSetting, SecurityFloor,
    TagScope, Workload, WorkloadName, repository_of,
};
use leno_registry::{DocumentLocation, RejectedDocument, Warning};

use super::{ObjectOrigin, ObjectStore, WatchedKind};
use crate::read::SidecarSettings;
use crate::well_known::{DEFAULT_POLICY, MTLS, SIDECAR_IMAGE};

/// The sidecar settings of pods and namespaces that the mesh floor may override.
#[derive(Default)]
pub(super) struct OverridableSettings {
    pod_settings: BTreeMap<WorkloadName, SidecarSettings>,
    namespace_settings: BTreeMap<Name, SidecarSettings>,
    /// The repository of the control plane's own image, which is always permitted.
    own_repository: Option<String>,
}

impl ObjectStore {
    /// Sets the default image of sidecars. The floor permits all images of its repository.
    pub(crate) fn set_image(&mut self, image: &str) {
        self.overridable_settings.own_repository = Some(repository_of(image).to_owned());
    }

    pub(super) fn set_pod_settings(
        &mut self,
        name: &WorkloadName,
        mut sidecar_settings: SidecarSettings,
    ) {
        let own_repository = self.overridable_settings.own_repository.as_deref();
        sidecar_settings.images.retain(|image| Some(repository_of(image)) != own_repository);
        let sidecar_settings = Some(sidecar_settings)
            .filter(|settings| settings.may_be_overridden() || !settings.images.is_empty());
        set_settings(&mut self.overridable_settings.pod_settings, name, sidecar_settings);
    }

    pub(super) fn set_namespace_settings(
        &mut self,
        name: &Name,
        sidecar_settings: Option<SidecarSettings>,
    ) {
        set_settings(&mut self.overridable_settings.namespace_settings, name, sidecar_settings);
    }

    pub(super) fn remove_pod_settings(&mut self, name: &WorkloadName) {
        self.overridable_settings.pod_settings.remove(name);
    }

    /// Returns true if the floor forbids the image of a pod's sidecar. Such a pod is not a member.
    pub(super) fn has_forbidden_image(&self, name: &WorkloadName) -> bool {
        let images = self
            .overridable_settings
            .pod_settings
            .get(name)
            .map(|sidecar_settings| &sidecar_settings.images);
        let floor = self.floor_in(&name.namespace).map(|(_, floor)| floor);
        floor
            .zip(images)
            .is_some_and(|(floor, images)| images.iter().any(|image| !floor.permits_image(image)))
    }

    /// Marks the workloads that a changed floor may affect.
    pub(super) fn mark_floor(&mut self) {
        self.statuses_stale = true;
        let pods = self.overridable_settings.pod_settings.keys().cloned().map(ObjectKey::Workload);
        self.dirty.extend(pods);
    }

    /// Returns the floor of Leno's MeshConfig; the default, which requires nothing, without a MeshConfig.
    pub(crate) fn mesh_floor(&self) -> SecurityFloor {
        self.own_config().map(|config| (*config.floor).clone()).unwrap_or_default()
    }

    /// Returns the MeshConfig and the floor for a namespace; `None` if no floor applies to it.
    fn floor_in(&self, namespace: &Name) -> Option<(&MeshConfig, &SecurityFloor)> {
        let config =
            self.own_config().filter(|config| *config.floor != SecurityFloor::default())?;
        Some((config, config.floor_in(namespace)?))
    }

    /// Returns warnings about the settings of a pod or namespace that the floor overrides.
    pub(super) fn floor_warnings(&self, origin: &ObjectOrigin) -> Vec<Warning> {
        let watched = self.kinds.get(origin.kind_index).map(|kind_state| kind_state.watched);
        match watched {
            Some(WatchedKind::Pods) => {
                let name = WorkloadName::new(&origin.id.namespace, &origin.id.name);
                name.map(|name| self.pod_floor_warnings(&name)).unwrap_or_default()
            }
            Some(WatchedKind::Namespaces) => {
                let name = Name::new(&origin.id.name);
                name.map(|name| self.namespace_floor_warnings(&name)).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the warnings of all pods and namespaces.
    pub(super) fn all_floor_warnings(&self) -> Vec<Warning> {
        if self.mesh_floor() == SecurityFloor::default() {
            return Vec::new();
        }
        let has_annotations =
            |(_, workload): &(_, &Workload)| workload.admission != AdmissionSettings::default();
        let pods = self.workloads.iter().filter(has_annotations).map(|(name, _)| name);
        let mut pods: Vec<&WorkloadName> =
            pods.chain(self.overridable_settings.pod_settings.keys()).collect();
        pods.sort();
        pods.dedup();
        let mut namespaces: Vec<&Name> = self
            .namespace_admission
            .keys()
            .chain(self.overridable_settings.namespace_settings.keys())
            .collect();
        namespaces.sort();
        namespaces.dedup();
        let namespace_warnings =
            namespaces.into_iter().flat_map(|name| self.namespace_floor_warnings(name));
        let pod_warnings = pods.into_iter().flat_map(|name| self.pod_floor_warnings(name));
        namespace_warnings.chain(pod_warnings).collect()
    }

    /// Returns a rejection for each pod with a sidecar image that the floor forbids.
    pub(super) fn forbidden_image_rejections(&self) -> Vec<RejectedDocument> {
        let pods = self
            .overridable_settings
            .pod_settings
            .iter()
            .filter(|(name, _)| self.has_forbidden_image(name));
        pods.map(|(name, sidecar_settings)| RejectedDocument {
            location: pod_location(name, "spec.initContainers"),
            problem: format!(
                "the sidecar runs {}, which spec.floor.sidecarImages of the MeshConfig does not permit: \
                 the pod is not a member of the mesh",
                join_images(&sidecar_settings.images)
            ),
            hint: "create the pod again with a permitted image".to_owned(),
        })
        .collect()
    }

    fn pod_floor_warnings(&self, name: &WorkloadName) -> Vec<Warning> {
        let Some((config, floor)) = self.floor_in(&name.namespace) else { return Vec::new() };
        let workload = self.workloads.get(name).filter(|workload| workload.sidecar);
        let admission = workload.map(|workload| workload.admission).unwrap_or_default();
        let overridden = config.overridden_in(&name.namespace, admission);
        let location = |field: &str| pod_location(name, field);
        let mut warnings = admission_warnings(&overridden, location);
        let Some(sidecar_settings) = self.overridable_settings.pod_settings.get(name) else {
            return warnings;
        };
        warnings.extend(self.annotation_warnings(floor, sidecar_settings, location));
        let namespace_settings = self.overridable_settings.namespace_settings.get(&name.namespace);
        let has_injection = namespace_settings.is_some_and(|settings| settings.has_injection);
        let lacks_sidecar =
            floor.injection_required && has_injection && !sidecar_settings.has_sidecar;
        if let Some(key) = sidecar_settings.opt_out.as_ref().filter(|_| lacks_sidecar) {
            warnings.push(Warning {
                location: location("metadata"),
                problem: format!(
                    "{key} disables the sidecar, and spec.floor.injection of the MeshConfig \
                     requires one"
                ),
                hint: "remove it and create the pod again, or add the namespace to \
                         spec.floor.exceptNamespaces"
                    .to_owned(),
            });
        }
        warnings
    }

    fn namespace_floor_warnings(&self, name: &Name) -> Vec<Warning> {
        let Some((config, floor)) = self.floor_in(name) else { return Vec::new() };
        let admission = self.namespace_admission.get(name).copied().unwrap_or_default();
        let location = |field: &str| DocumentLocation {
            kind: Some("Namespace".to_owned()),
            name: Some(name.to_string()),
            field: Some(field.to_owned()),
            ..DocumentLocation::default()
        };
        let mut warnings = admission_warnings(&config.overridden_in(name, admission), location);
        let sidecar_settings = self.overridable_settings.namespace_settings.get(name);
        warnings.extend(sidecar_settings.into_iter().flat_map(|sidecar_settings| {
            self.annotation_warnings(floor, sidecar_settings, location)
        }));
        warnings
    }

    /// Returns warnings about annotations that the floor overrides.
    fn annotation_warnings(
        &self,
        floor: &SecurityFloor,
        sidecar_settings: &SidecarSettings,
        location: impl Fn(&str) -> DocumentLocation,
    ) -> Vec<Warning> {
        let exclusion_warnings =
            sidecar_settings.exclusions.iter().filter(|_| floor.exclusions_forbidden);
        let exclusion_warnings = exclusion_warnings.map(|key| Warning {
            location: location(&format!("metadata.annotations[{key:?}]")),
            problem:
                "is below spec.floor.exclusions of the MeshConfig, and pods are created without it"
                    .to_owned(),
            hint: "remove the annotation; create pods again that were created with it".to_owned(),
        });
        let own_repository = self.overridable_settings.own_repository.as_deref();
        let is_forbidden = |image: &&String| {
            !floor.permits_image(image) && Some(repository_of(image)) != own_repository
        };
        let forbidden_image = sidecar_settings.requested_image.as_ref().filter(is_forbidden);
        let image_warning = forbidden_image.map(|image| Warning {
            location: location(&format!("metadata.annotations[{SIDECAR_IMAGE:?}]")),
            problem: format!(
                "{image} is not permitted by spec.floor.sidecarImages of the MeshConfig, and pods \
                 get the image of the mesh"
            ),
            hint: "remove the annotation".to_owned(),
        });
        exclusion_warnings.chain(image_warning).collect()
    }

    /// Returns the rejection of an object that affects more than its namespace, if the operator does not permit such
    /// objects in its namespace.
    pub(super) fn misplaced_rejection(&self, object: &Object) -> Option<RejectedDocument> {
        let (namespace, field, problem) = match object {
            Object::TagRoute(route) if route.scope == TagScope::Mesh => {
                (&route.name.namespace, "spec.scope", MESH_WIDE_PROBLEM)
            }
            Object::Egress(policy) => {
                let own_namespace = &policy.name.namespace;
                // A policy for accounts of its own namespace needs no permission.
                policy.sources.iter().find(|source| source.namespace != *own_namespace)?;
                (own_namespace, "spec.sources", "names accounts of other namespaces")
            }
            _ => return None,
        };
        (!self.permits_mesh_wide(namespace)).then(|| RejectedDocument {
            location: DocumentLocation::for_object(&object.object_key(), field),
            problem: format!("{problem}, which objects of the namespace {namespace} may not do"),
            hint: format!(
                "move the object into its target namespace or into that of the control plane, or \
                 install with `--settings-namespaces {namespace}`"
            ),
        })
    }
}

fn admission_warnings(
    overridden: &[OverriddenSetting],
    location: impl Fn(&str) -> DocumentLocation,
) -> Vec<Warning> {
    let warning = |setting: &OverriddenSetting| {
        let key = if setting.field == "mtls" { MTLS } else { DEFAULT_POLICY };
        Warning {
            location: location(&format!("metadata.annotations[{key:?}]")),
            problem: format!(
                "{} is below spec.floor.{} of the MeshConfig, and {} is in force",
                setting.requested, setting.field, setting.effective
            ),
            hint: "remove the annotation".to_owned(),
        }
    };
    overridden.iter().map(warning).collect()
}

fn pod_location(name: &WorkloadName, field: &str) -> DocumentLocation {
    DocumentLocation {
        kind: Some("Pod".to_owned()),
        namespace: Some(name.namespace.to_string()),
        name: Some(name.name.to_string()),
        field: Some(field.to_owned()),
        ..DocumentLocation::default()
    }
}

/// Replaces the settings of a pod or namespace; `None` removes them.
fn set_settings<K: Ord + Clone>(
    settings_by_key: &mut BTreeMap<K, SidecarSettings>,
    key: &K,
    sidecar_settings: Option<SidecarSettings>,
) {
    match sidecar_settings {
        Some(sidecar_settings) => drop(settings_by_key.insert(key.clone(), sidecar_settings)),
        None => drop(settings_by_key.remove(key)),
    }
}

fn join_images(images: &BTreeSet<String>) -> String {
    let listed_images: Vec<&str> =
        images.iter().take(MAX_LISTED_IMAGES).map(String::as_str).collect();
    listed_images.join(", ")
}

const MESH_WIDE_PROBLEM: &str = "applies to the whole mesh";
/// The maximum number of images in a warning: a pod may have many containers with our names.
const MAX_LISTED_IMAGES: usize = 2;
