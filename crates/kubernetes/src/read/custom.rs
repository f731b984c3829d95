//! Custom resources: read by the same readers as documents in files.

use std::collections::BTreeSet;

use kube::core::DynamicObject;
use leno_model::Object;
use leno_registry::{Rejected, ServedKind, UNKNOWN_FIELD, Warning, read_json};
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
    let dropped = dropped_fields(kind, &object);
    // Only what readers look at: a cluster adds much, and what it adds is not the author's.
    let created = created(&object.metadata);
    let mut metadata = json!({"name": object.metadata.name});
    if let Some(namespace) = object.metadata.namespace {
        metadata["namespace"] = Value::String(namespace);
    }
    let mut document =
        json!({"apiVersion": api_version, "kind": kind.kind, "metadata": metadata, "spec": spec});
    // Schemas of ours keep unknown fields, also outside `spec`; the reader rejects them.
    let others = object.data.as_object_mut().map(std::mem::take).unwrap_or_default();
    for (key, value) in
        others.into_iter().filter(|(key, _)| !["spec", "status"].contains(&key.as_str()))
    {
        document[key] = value;
    }
    let mentioned = mentioned.unwrap_or_default();
    let outcome = read_json(&document);
    let outcome = match outcome {
        Ok(_) if !dropped.is_empty() => Err(dropped),
        outcome => outcome,
    };
    Some(Custom { outcome, created, mentioned })
}

/// The fields that the author applied and that the API server dropped because the schema of the kind has none: a rule
/// would be read without a condition that its author wrote. Only `kubectl apply` without `--server-side` leaves the
/// manifest in an annotation of the object.
pub(crate) fn dropped_fields(kind: ServedKind, object: &DynamicObject) -> Vec<Rejected> {
    // Objects of ours keep their unknown fields: the reader sees them.
    if kind.group == OUR_GROUP {
        return Vec::new();
    }
    let meta = &object.metadata;
    let applied = meta.annotations.as_ref().and_then(|all| all.get(LAST_APPLIED));
    let applied = applied.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let Some(mut applied) = applied else { return Vec::new() };
    let version = applied.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !kind.api_versions.contains(&&*version) || applied.get("kind") != Some(&kind.kind.into()) {
        return Vec::new();
    }
    let mut spec = applied.get_mut("spec").map_or(Value::Null, Value::take);
    if kind.kind != GRANT && !keep_ours(kind.group, kind.kind, &mut spec) {
        return Vec::new();
    }
    let mut metadata = json!({"name": meta.name});
    if let Some(namespace) = &meta.namespace {
        metadata["namespace"] = Value::String(namespace.clone());
    }
    let written =
        json!({"apiVersion": version, "kind": kind.kind, "metadata": metadata, "spec": spec});
    let unknown = read_json(&written).err().unwrap_or_default().into_iter();
    unknown
        .filter(|refused| refused.problem == UNKNOWN_FIELD)
        .map(|refused| Rejected {
            problem: "was applied and is not in the object: the API server dropped it, because the schema of \
                      the kind does not have it"
                .to_owned(),
            remedy: format!("{}; apply the object again", refused.remedy),
            ..refused
        })
        .collect()
}

/// Reads a `ReferenceGrant` that lost fields, also one that is for gateways alone: it grants nothing.
pub(crate) fn spoilt_grant(kind: ServedKind, object: &DynamicObject) -> Option<Custom> {
    let dropped = if kind.kind == GRANT { dropped_fields(kind, object) } else { Vec::new() };
    let (created, mentioned) = (created(&object.metadata), BTreeSet::new());
    (!dropped.is_empty()).then_some(Custom { outcome: Err(dropped), created, mentioned })
}

const GRANT: &str = "ReferenceGrant";
const OUR_GROUP: &str = "leno.dev";
/// The annotation in which `kubectl apply` keeps a manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: ServedKind = ServedKind {
        group: "specs.smi-spec.io",
        kind: "HTTPRouteGroup",
        api_versions: &["specs.smi-spec.io/v1alpha4"],
    };

    fn read(live: &Value, applied: &Value) -> Result<Object, Vec<String>> {
        let manifest = json!({
            "apiVersion": "specs.smi-spec.io/v1alpha4", "kind": "HTTPRouteGroup",
            "metadata": {"name": "reads", "namespace": "shop"}, "spec": {"matches": [applied]},
        });
        let object = json!({
            "metadata": {
                "name": "reads", "namespace": "shop",
                "annotations": {LAST_APPLIED: manifest.to_string()},
            },
            "spec": {"matches": [live]},
        });
        let object = serde_json::from_value(object).unwrap();
        let custom = custom(GROUPS, GROUPS.api_versions[0], object).unwrap();
        let lines = |refused: Vec<Rejected>| refused.iter().map(ToString::to_string).collect();
        custom.outcome.map(|(object, _)| object).map_err(lines)
    }

    #[test]
    fn a_rule_without_a_field_that_was_applied_is_rejected() {
        let live = json!({"name": "all", "pathRegex": "/a"});
        let mut applied = live.clone();
        assert!(read(&live, &applied).is_ok());
        applied["metods"] = json!(["GET"]);
        assert_eq!(
            read(&live, &applied).unwrap_err(),
            [
                "HTTPRouteGroup shop/reads: spec.matches[0].metods: was applied and is not in the object: the API \
              server dropped it, because the schema of the kind does not have it; did you mean `methods`?; \
              apply the object again"
            ]
        );
        // A field that an edit removed later is known.
        let edited = json!({"name": "all", "pathRegex": "/a", "methods": ["GET"]});
        assert!(read(&live, &edited).is_ok());
    }

    #[test]
    fn a_grant_without_a_field_that_was_applied_grants_nothing() {
        let kind = ServedKind {
            group: "gateway.networking.k8s.io",
            kind: GRANT,
            api_versions: &["gateway.networking.k8s.io/v1"],
        };
        let grant = |name_field: Option<&str>| {
            let from = json!({
                "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "edge",
            });
            let mut to = json!({"group": "", "kind": "Secret"});
            if let Some(field) = name_field {
                to[field] = json!("shop-cert");
            }
            json!({
                "apiVersion": kind.api_versions[0], "kind": GRANT,
                "metadata": {"name": "cert", "namespace": "shop"},
                "spec": {"from": [from], "to": [to]},
            })
        };
        for (applied, live, spoilt) in
            [(Some("nmae"), None, true), (Some("name"), Some("name"), false), (None, None, false)]
        {
            let mut object = grant(live);
            object["metadata"]["annotations"] = json!({LAST_APPLIED: grant(applied).to_string()});
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            assert_eq!(spoilt_grant(kind, &object).is_some(), spoilt, "{applied:?}");
        }
    }

    #[test]
    fn fields_outside_spec_are_read() {
        let kind = ServedKind {
            group: "leno.dev",
            kind: "AccessPolicy",
            api_versions: &["leno.dev/v1alpha1"],
        };
        let object = json!({
            "metadata": {"name": "a", "namespace": "shop"},
            "spec": {"allow": [{"from": [{"serviceAccount": "web"}]}]},
            "ports": [80],
            "status": {"conditions": []},
        });
        let read = custom(kind, kind.api_versions[0], serde_json::from_value(object).unwrap());
        let refused = read.unwrap().outcome.unwrap_err();
        assert!(refused[0].to_string().contains("ports: is not a field that is known here"));
    }
}
