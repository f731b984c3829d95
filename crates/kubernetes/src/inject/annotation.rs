//! What labels and annotations say, word by word, and what is wrong with it.

use leno_model::{Plaintext, TrafficMode, Weight};
use serde_json::Value;

use crate::words::{PLAINTEXT, TRAFFIC_MODE, WEIGHT, is_disabled, is_enabled};

/// Why a pod that should get a sidecar cannot have it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// A switch that is neither on nor off.
    #[error("{of}: `{key}` is `{value}`; use `enabled` or `disabled`")]
    Switch {
        /// Whose it is.
        of: Of,
        /// Its key.
        key: String,
        /// What it says.
        value: String,
    },
    /// Label and annotation of one object say different things.
    #[error("{of}: `{key}` is a label and an annotation that contradict each other; remove one")]
    Contradiction {
        /// Whose they are.
        of: Of,
        /// Their key.
        key: String,
    },
    /// A list, an image or a quantity that cannot be read.
    #[error("{of}: annotation `{key}`: `{value}` is not {expected}")]
    Annotation {
        /// Whose it is.
        of: Of,
        /// Its key.
        key: String,
        /// The part that cannot be read.
        value: String,
        /// What would be one, with an example.
        expected: &'static str,
    },
    /// Port 53 is to be led to the sidecar, and to be left alone.
    #[error(
        "annotation `leno.dev/dns: proxy` leads port 53 to the sidecar, and \
         `outbound-port-exclusion-list` leaves it alone; remove one of them"
    )]
    LookUps,
    /// A container that nothing could be told from the sidecar.
    #[error(
        "container {container} runs as user {uid}, which is the sidecar's: its connections would go \
         around the mesh; use another `runAsUser`, or annotate the pod `leno.dev/injection: disabled`"
    )]
    SidecarUser {
        /// The container.
        container: String,
        /// The user.
        uid: u32,
    },
    /// The floor of the mesh requires a sidecar, and a container has only its name.
    #[error(
        "container {container} ({field}) has the name of the sidecar and runs {image}, which is no image of the \
         sidecar, and spec.floor.injection of the MeshConfig requires a sidecar; remove the container, and the pod \
         gets a sidecar, or add the repository to spec.floor.sidecarImages"
    )]
    Imitation {
        /// The field of its image.
        field: String,
        /// The container.
        container: String,
        /// The image.
        image: String,
    },
    /// The floor of the mesh requires a sidecar, and the pod has the redirection to one alone.
    #[error(
        "spec has a container leno-intercept and no container leno-proxy, and spec.floor.injection of the MeshConfig \
         requires a sidecar; remove leno-intercept, and the pod gets both"
    )]
    Incomplete,
    /// A field of the pod has a value of another type.
    #[error("{field} is not {expected}; give a Pod as the API server accepts it")]
    Shape {
        /// The path of the field.
        field: String,
        /// The type.
        expected: &'static str,
    },
    /// What is given is no pod.
    #[error("{0} has no `spec` with `containers`; give a Pod, or something with a template of one")]
    NoPod(String),
}

/// Whose label or annotation it is, in the order in which they count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// The pod's.
    Pod,
    /// The namespace's.
    Namespace,
}

impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pod => "pod",
            Self::Namespace => "namespace",
        })
    }
}

/// An annotation of a pod that the control plane reads while the pod runs.
pub(super) struct RuntimeAnnotation {
    pub(super) key: &'static str,
    /// Its parser.
    pub(super) is_right: fn(&str) -> bool,
    /// A right value, for the message about a wrong one.
    pub(super) expected: &'static str,
}

/// All of them.
pub(super) const RUNTIME_ANNOTATIONS: &[RuntimeAnnotation] = &[
    RuntimeAnnotation {
        key: TRAFFIC_MODE,
        is_right: |text| TrafficMode::ALL.iter().any(|mode| mode.as_str() == text),
        expected: "a mode; use `permissive`, `strict` or `audit`",
    },
    RuntimeAnnotation {
        key: PLAINTEXT,
        is_right: |text| Plaintext::ALL.iter().any(|choice| choice.as_str() == text),
        expected: "a choice; use `accept` or `refuse`",
    },
    RuntimeAnnotation {
        key: WEIGHT,
        is_right: |text| text.parse().ok().and_then(Weight::new).is_some(),
        expected: "a weight; use a number from 1 to 1000",
    },
];

/// A switch, as OSM and FSM read it: in any case.
pub(super) fn switch(of: Of, key: &str, value: &str) -> Result<bool, InjectError> {
    match (is_enabled(value), is_disabled(value)) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(InjectError::Switch { of, key: key.to_owned(), value: value.to_owned() }),
    }
}

/// The elements of a comma-separated list; an empty one has none.
pub(super) fn elements(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|element| !element.is_empty())
}

/// A label or annotation of a pod.
pub(super) fn of_pod<'a>(pod: &'a Value, kind: &str, key: &str) -> Option<&'a str> {
    pod["metadata"][kind].as_object()?.get(key)?.as_str()
}
