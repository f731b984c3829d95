//! Objects of the cluster become objects of the mesh: pure, one object at a time.

mod custom;
mod namespace;
mod ours;
mod pod;
mod service;

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use leno_model::TrafficMode;
use leno_registry::{Place, Rejected};

pub(crate) use custom::{Custom, custom};
pub use namespace::{NamespaceMode, namespace};
pub(crate) use ours::is_service_parent;
pub use pod::{Member, member, with_target_ports};
pub use service::{ServiceReading, service};

use crate::words::TRAFFIC_MODE;

/// The mode that the annotation of a namespace or pod asks for.
fn traffic_mode(meta: &ObjectMeta, kind: &str) -> Result<Option<TrafficMode>, Box<Rejected>> {
    let Some(text) = meta.annotations.as_ref().and_then(|all| all.get(TRAFFIC_MODE)) else {
        return Ok(None);
    };
    let known = TrafficMode::ALL.iter().find(|mode| mode.as_str() == text);
    known.copied().map(Some).ok_or_else(|| {
        let shown: String = text.chars().take(SHOWN_CHARACTERS_MAX).collect();
        Box::new(Rejected {
            at: place(meta, kind, &format!("metadata.annotations[{TRAFFIC_MODE:?}]")),
            problem: format!(
                "{shown:?} is no mode; the last good one stays in force, or strict if there is none"
            ),
            remedy: "use permissive, strict or audit, or remove it".to_owned(),
        })
    })
}

/// A field of an object.
fn place(meta: &ObjectMeta, kind: &str, field: &str) -> Place {
    Place {
        kind: Some(kind.to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        field: Some(field.to_owned()),
        ..Place::default()
    }
}

/// Whether a port's protocol, as Kubernetes writes it, is TCP.
fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

/// Whether labels satisfy a selector; an empty one selects nothing.
pub(crate) fn selects(
    selector: &BTreeMap<String, String>,
    labels: &BTreeMap<String, String>,
) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// How much of a value is quoted in a message.
const SHOWN_CHARACTERS_MAX: usize = 80;
