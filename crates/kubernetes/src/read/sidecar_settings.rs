//! Sidecar settings of pods and namespaces that the floor of a mesh may override.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::words::{
    INIT_CONTAINER, INJECTION, MEMBERSHIPS, PREFIXES, PROXY_CONTAINER, SIDECAR_IMAGE, is_disabled,
    is_enabled, is_exclusion,
};

/// The settings of one pod or namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SidecarSettings {
    /// The annotations that exclude traffic from redirection.
    pub(crate) exclusions: Vec<String>,
    /// The label or annotation by which a pod opts out of injection.
    pub(crate) opt_out: Option<String>,
    /// The image from an annotation.
    pub(crate) wanted_image: Option<String>,
    /// True if a pod has a sidecar container.
    pub(crate) has_sidecar: bool,
    /// The images of Leno's containers.
    pub(crate) images: BTreeSet<String>,
    /// True if a namespace has injection.
    pub(crate) has_injection: bool,
}

impl SidecarSettings {
    /// Reads the settings of a pod.
    pub(super) fn of_pod(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let containers = spec
            .into_iter()
            .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
        let is_ours =
            |it: &&Container| [PROXY_CONTAINER, INIT_CONTAINER].contains(&it.name.as_str());
        let ours: Vec<&Container> = containers.filter(is_ours).collect();
        let images = ours.iter().filter_map(|it| it.image.clone());
        Self {
            opt_out: opt_out(&pod.metadata),
            has_sidecar: ours.iter().any(|it| it.name == PROXY_CONTAINER),
            images: images.collect(),
            ..Self::from_annotations(&pod.metadata)
        }
    }

    /// Reads the settings of a namespace.
    pub(super) fn of_namespace(meta: &ObjectMeta) -> Self {
        let (labels, annotations) = (meta.labels.as_ref(), meta.annotations.as_ref());
        let monitored = MEMBERSHIPS.iter().filter(|label| **label != INJECTION);
        let is_monitored =
            monitored.into_iter().any(|it| labels.is_some_and(|all| all.contains_key(*it)));
        let own = [labels, annotations].into_iter().flatten().find_map(|all| all.get(INJECTION));
        Self {
            has_injection: own.map_or(is_monitored, |word| is_enabled(word)),
            ..Self::from_annotations(meta)
        }
    }

    fn from_annotations(meta: &ObjectMeta) -> Self {
        let annotations = meta.annotations.iter().flatten();
        let excludes = |(key, value): &(&String, &String)| {
            let name = PREFIXES.iter().find_map(|it| key.strip_prefix(it)?.strip_prefix('/'));
            name.is_some_and(is_exclusion) && !value.trim().is_empty()
        };
        let exclusions = annotations.filter(excludes).map(|(key, _)| key.clone());
        let wanted_image =
            meta.annotations.as_ref().and_then(|all| all.get(SIDECAR_IMAGE)).cloned();
        Self { exclusions: exclusions.collect(), wanted_image, ..Self::default() }
    }

    /// Returns true if a floor may override one of the settings.
    pub(crate) fn says_something(&self) -> bool {
        !self.exclusions.is_empty() || self.opt_out.is_some() || self.wanted_image.is_some()
    }
}

fn opt_out(meta: &ObjectMeta) -> Option<String> {
    let labels = meta.labels.iter().flatten().filter(|(key, _)| *key == INJECTION);
    let annotations = meta.annotations.iter().flatten().filter(|(key, _)| {
        *key == INJECTION
            || key.ends_with("/sidecar-injection") && PREFIXES.iter().any(|it| key.starts_with(it))
    });
    labels.chain(annotations).find(|(_, word)| is_disabled(word)).map(|(key, _)| key.clone())
}
