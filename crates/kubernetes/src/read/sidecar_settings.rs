//! Reads the sidecar settings of pods and namespaces that the floor may override: `spec.floor` of the
//! MeshConfig, below which pods and namespaces cannot go.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::well_known::{
    INIT_CONTAINER, INJECTION, MEMBERSHIPS, PREFIXES, PROXY_CONTAINER, SIDECAR_IMAGE, is_disabled,
    is_enabled, is_exclusion,
};

/// The settings of one pod or namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SidecarSettings {
    /// The annotations that exclude traffic from redirection.
    pub(crate) exclusions: Vec<String>,
    /// The key of the label or annotation by which a pod opts out of injection; `None` if it does not.
    pub(crate) opt_out: Option<String>,
    /// The image that an annotation requests, if any.
    pub(crate) requested_image: Option<String>,
    /// True if a pod has a sidecar container.
    pub(crate) has_sidecar: bool,
    /// The images of Leno's containers.
    pub(crate) images: BTreeSet<String>,
    /// True if a namespace has injection.
    pub(crate) has_injection: bool,
}

impl SidecarSettings {
    /// Reads the settings of a pod.
    pub(super) fn from_pod(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let containers = spec
            .into_iter()
            .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
        let is_own = |container: &&Container| {
            [PROXY_CONTAINER, INIT_CONTAINER].contains(&container.name.as_str())
        };
        let own_containers: Vec<&Container> = containers.filter(is_own).collect();
        let images = own_containers.iter().filter_map(|container| container.image.clone());
        Self {
            opt_out: find_opt_out(&pod.metadata),
            has_sidecar: own_containers.iter().any(|container| container.name == PROXY_CONTAINER),
            images: images.collect(),
            ..Self::from_annotations(&pod.metadata)
        }
    }

    /// Reads the settings of a namespace.
    pub(super) fn from_namespace(meta: &ObjectMeta) -> Self {
        let (labels, annotations) = (meta.labels.as_ref(), meta.annotations.as_ref());
        let monitor_labels = MEMBERSHIPS.iter().filter(|label| **label != INJECTION);
        let is_monitored = monitor_labels
            .into_iter()
            .any(|label| labels.is_some_and(|labels| labels.contains_key(*label)));
        let injection =
            [labels, annotations].into_iter().flatten().find_map(|entries| entries.get(INJECTION));
        Self {
            has_injection: injection.map_or(is_monitored, |value| is_enabled(value)),
            ..Self::from_annotations(meta)
        }
    }

    fn from_annotations(meta: &ObjectMeta) -> Self {
        let annotations = meta.annotations.iter().flatten();
        let is_exclusion_set = |(key, value): &(&String, &String)| {
            let name =
                PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix)?.strip_prefix('/'));
            name.is_some_and(is_exclusion) && !value.trim().is_empty()
        };
        let exclusions = annotations.filter(is_exclusion_set).map(|(key, _)| key.clone());
        let requested_image = meta
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(SIDECAR_IMAGE))
            .cloned();
        Self { exclusions: exclusions.collect(), requested_image, ..Self::default() }
    }

    /// Returns true if the mesh floor may override one of the settings.
    pub(crate) fn may_be_overridden(&self) -> bool {
        !self.exclusions.is_empty() || self.opt_out.is_some() || self.requested_image.is_some()
    }
}

/// Returns the key of the label or annotation that disables injection, if any.
fn find_opt_out(meta: &ObjectMeta) -> Option<String> {
    let labels = meta.labels.iter().flatten().filter(|(key, _)| *key == INJECTION);
    let annotations = meta.annotations.iter().flatten().filter(|(key, _)| {
        *key == INJECTION
            || key.ends_with("/sidecar-injection")
                && PREFIXES.iter().any(|prefix| key.starts_with(prefix))
    });
    labels.chain(annotations).find(|(_, value)| is_disabled(value)).map(|(key, _)| key.clone())
}
