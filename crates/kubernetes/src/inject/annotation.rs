//! Parses the labels and annotations of pods and namespaces, and defines the errors of injection.

use leno_model::{DefaultPolicy, MtlsMode, Weight};
use serde_json::Value;

use crate::well_known::{DEFAULT_POLICY, MTLS, WEIGHT, is_disabled, is_enabled};

/// The reason that a pod cannot have the requested sidecar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// A boolean value that is neither on nor off.
    #[error("{object}: `{key}` is `{value}`; use `enabled` or `disabled`")]
    Switch {
        /// The object with the label or annotation.
        object: AnnotatedObject,
        /// The key of the label or annotation.
        key: String,
        /// The value that is neither on nor off.
        value: String,
    },
    /// Label and annotation of one object contradict each other.
    #[error(
        "{object}: `{key}` is a label and an annotation that contradict each other; remove one"
    )]
    Contradiction {
        /// The object with the label and the annotation.
        object: AnnotatedObject,
        /// The key of the label and the annotation.
        key: String,
    },
    /// An invalid list, image or quantity.
    #[error("{object}: annotation `{key}`: `{value}` is not {expected}")]
    Annotation {
        /// The object with the label or annotation.
        object: AnnotatedObject,
        /// The key of the label or annotation.
        key: String,
        /// The invalid value, or the invalid element of a list.
        value: String,
        /// A description of a valid value, with an example.
        expected: &'static str,
    },
    /// Port 53 is both redirected to the sidecar and excluded.
    #[error(
        "annotation `leno.dev/dns: proxy` redirects port 53 to the sidecar, and \
         `outbound-port-exclusion-list` excludes it; remove one of them"
    )]
    DnsPort,
    /// A container that uses the user ID of the sidecar, so that redirection cannot tell them apart.
    #[error(
        "container {container} runs as user {uid}, which is the sidecar's: its connections would \
         bypass the mesh; use another `runAsUser`, or annotate the pod `leno.dev/injection: \
         disabled`"
    )]
    SidecarUser {
        /// The name of the container.
        container: String,
        /// The user ID of the container.
        uid: u32,
    },
    /// The mesh floor (`spec.floor` of the MeshConfig) requires a sidecar, and a container has the sidecar's
    /// name but another image.
    #[error(
        "container {container} ({field}) has the name of the sidecar and runs {image}, which is \
         not a sidecar image, and spec.floor.injection of the MeshConfig requires a sidecar; \
         remove the container, and the pod gets a sidecar, or add the repository to \
         spec.floor.sidecarImages"
    )]
    Imitation {
        /// The path of the container's image field.
        field: String,
        /// The name of the container.
        container: String,
        /// The image of the container.
        image: String,
    },
    /// The mesh floor requires a sidecar, and the pod has only the redirection container.
    #[error(
        "spec has a container leno-init and no container leno-proxy, and spec.floor.injection of the MeshConfig \
         requires a sidecar; remove leno-init, and the pod gets both"
    )]
    Incomplete,
    /// A field of the pod has a value of the wrong type.
    #[error("{field} is not {expected}; give a valid Pod")]
    Shape {
        /// The path of the field.
        field: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The input is not a pod.
    #[error("{0} has no `spec` with `containers`; give a Pod, or an object with a Pod template")]
    NoPod(String),
}

/// The object with a label or annotation; the variants are in order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnnotatedObject {
    /// The pod.
    Pod,
    /// The namespace.
    Namespace,
}

impl std::fmt::Display for AnnotatedObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pod => "pod",
            Self::Namespace => "namespace",
        })
    }
}

/// An annotation of a pod that the control plane reads at run time.
pub(super) struct RuntimeAnnotation {
    pub(super) key: &'static str,
    /// Returns true for a valid value.
    pub(super) is_valid_value: fn(&str) -> bool,
    /// A description of a valid value, for the error message.
    pub(super) expected: &'static str,
}

/// All annotations that the control plane reads at run time.
pub(super) const RUNTIME_ANNOTATIONS: &[RuntimeAnnotation] = &[
    RuntimeAnnotation {
        key: DEFAULT_POLICY,
        is_valid_value: |text| DefaultPolicy::ALL.iter().any(|policy| policy.as_str() == text),
        expected: "a default policy; use `allow`, `deny` or `dry-run`",
    },
    RuntimeAnnotation {
        key: MTLS,
        is_valid_value: |text| MtlsMode::ALL.iter().any(|mode| mode.as_str() == text),
        expected: "a mutual TLS mode; use `permissive` or `strict`",
    },
    RuntimeAnnotation {
        key: WEIGHT,
        is_valid_value: |text| text.parse().ok().and_then(Weight::new).is_some(),
        expected: "a weight; use a number from 1 to 1000",
    },
];

/// Parses a boolean value, such as `enabled` or `disabled`. The comparison ignores case, as in OSM and FSM.
pub(super) fn parse_switch(
    object: AnnotatedObject,
    key: &str,
    value: &str,
) -> Result<bool, InjectError> {
    match (is_enabled(value), is_disabled(value)) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(InjectError::Switch { object, key: key.to_owned(), value: value.to_owned() }),
    }
}

/// Returns the elements of a comma-separated list, without surrounding spaces and without empty elements.
pub(super) fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|element| !element.is_empty())
}

/// Returns the value of a label or annotation of a pod; `map_field` is `labels` or `annotations`.
pub(super) fn pod_metadata<'a>(pod: &'a Value, map_field: &str, key: &str) -> Option<&'a str> {
    pod["metadata"][map_field].as_object()?.get(key)?.as_str()
}
