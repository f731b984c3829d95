//! Custom resources: read by the same readers as documents in files.

use std::collections::BTreeSet;

use kube::core::DynamicObject;
use leno_model::Object;
use leno_registry::{Rejected, ServedKind, Warning, read_json};
use serde_json::{Value, json};

use super::created;
use super::ours::keep_ours;

/// What became of a custom resource.
pub(crate) struct Custom {
    pub(crate) outcome: Result<(Object, Vec<Warning>), Vec<Rejected>>,
    /// When it was made, in seconds.
    pub(crate) created: i64,
    /// What the settings of the mesh mention; of other kinds nobody asks.
    pub(crate) mentioned: BTreeSet<String>,
}

/// Reads a custom resource that is served as `api_version`; `None` when it is not for a mesh.
pub(crate) fn custom(
    kind: ServedKind,
    api_version: &str,
    mut object: DynamicObject,
) -> Option<Custom> {
    let mut spec = object.data.get_mut("spec").map_or(Value::Null, Value::take);
    if !keep_ours(kind.group, kind.kind, &mut spec) {
        return None;
    }
    let mentioned = match kind.kind {
        "MeshConfig" => spec.as_object().map(|spec| spec.keys().cloned().collect()),
        _ => None,
    };
    // Only what readers look at: a cluster adds much, and what it adds is not the author's.
    let created = created(&object.metadata);
    let mut metadata = json!({"name": object.metadata.name});
    if let Some(namespace) = object.metadata.namespace {
        metadata["namespace"] = Value::String(namespace);
    }
    let document =
        json!({"apiVersion": api_version, "kind": kind.kind, "metadata": metadata, "spec": spec});
    let mentioned = mentioned.unwrap_or_default();
    Some(Custom { outcome: read_json(&document), created, mentioned })
}
