//! Reads custom resources with the readers of configuration files, and detects fields that the API server has
//! dropped.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::DynamicObject;
use leno_model::Object;
use leno_registry::{RejectedDocument, ServedKind, UNKNOWN_FIELD, Warning, read_json};
use serde_json::{Map, Value, json};

use super::creation_time;
use super::mesh_parts::retain_mesh_parts;

/// The result of reading a custom resource.
pub(crate) struct CustomResource {
    /// The object with warnings, or the reasons for its rejection.
    pub(crate) outcome: Result<(Object, Vec<Warning>), Vec<RejectedDocument>>,
    /// The creation time, in Unix seconds.
    pub(crate) created: i64,
    /// The fields that a MeshConfig specifies; empty for other kinds.
    pub(crate) specified_fields: BTreeSet<String>,
}

/// Reads a custom resource that is served as `api_version`. Returns `None` if it does not concern the mesh.
pub(crate) fn read_custom(
    kind: ServedKind,
    api_version: &str,
    mut object: DynamicObject,
) -> Option<CustomResource> {
    let mut spec = object.data.get_mut("spec").map_or(Value::Null, Value::take);
    let full_spec = (kind.kind == GRANT_KIND).then(|| spec.clone());
    if !retain_mesh_parts(kind.group, kind.kind, &mut spec) {
        return None;
    }
    let specified_fields = match kind.kind {
        "MeshConfig" => spec.as_object().map(|spec| spec.keys().cloned().collect()),
        _ => None,
    };
    let dropped = dropped_fields(kind, &object, full_spec.as_ref().unwrap_or(&spec));
    // The document has only the metadata that readers check, because the API server adds many fields that are not
    // the author's.
    let created = creation_time(&object.metadata);
    let mut metadata = json!({"name": object.metadata.name});
    if let Some(namespace) = object.metadata.namespace {
        metadata["namespace"] = Value::String(namespace);
    }
    let mut document =
        json!({"apiVersion": api_version, "kind": kind.kind, "metadata": metadata, "spec": spec});
    // Our schemas keep unknown fields, also outside `spec`; the reader rejects them.
    let other_fields = object.data.as_object_mut().map(std::mem::take).unwrap_or_default();
    for (key, value) in
        other_fields.into_iter().filter(|(key, _)| !["spec", "status"].contains(&key.as_str()))
    {
        document[key] = value;
    }
    let specified_fields = specified_fields.unwrap_or_default();
    let outcome = match read_json(&document) {
        // A rule without a dropped condition may permit more than its author intended.
        Ok(_) if !dropped.is_empty() => Err(dropped),
        read_result => read_result,
    };
    Some(CustomResource { outcome, created, specified_fields })
}

/// Returns the fields that the author applied but the API server dropped because they are not in the schema: a
/// rule would lack a condition that its author wrote. Only `kubectl apply` without `--server-side` keeps the
/// manifest in an annotation of the object. Other clients correct an object without updating the annotation.
/// Therefore a field counts only while `live`, the spec reduced to the parts for the mesh, still matches the
/// applied one.
fn dropped_fields(kind: ServedKind, object: &DynamicObject, live: &Value) -> Vec<RejectedDocument> {
    // Our own kinds keep unknown fields, which the reader checks.
    if kind.group == LENO_GROUP {
        return Vec::new();
    }
    let meta = &object.metadata;
    let annotation =
        meta.annotations.as_ref().and_then(|annotations| annotations.get(LAST_APPLIED_ANNOTATION));
    let parsed = annotation.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let Some(mut applied) = parsed else { return Vec::new() };
    let version = applied.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !kind.api_versions.contains(&&*version) || applied.get("kind") != Some(&kind.kind.into()) {
        return Vec::new();
    }
    let mut spec = applied.get_mut("spec").map_or(Value::Null, Value::take);
    if kind.kind != GRANT_KIND && !retain_mesh_parts(kind.group, kind.kind, &mut spec) {
        return Vec::new();
    }
    let mut metadata = json!({"name": meta.name});
    if let Some(namespace) = &meta.namespace {
        metadata["namespace"] = Value::String(namespace.clone());
    }
    let manifest =
        json!({"apiVersion": version, "kind": kind.kind, "metadata": metadata, "spec": spec});
    let mut unknown_fields = read_json(&manifest).err().unwrap_or_default();
    unknown_fields.retain(|rejected| rejected.problem == UNKNOWN_FIELD);
    let corrected = corrected_fields(&manifest["spec"], live, &unknown_fields);
    let is_corrected = |rejected: &RejectedDocument| {
        rejected.location.field.as_ref().is_some_and(|field| corrected.contains(field))
    };
    unknown_fields
        .into_iter()
        .filter(|rejected| !is_corrected(rejected))
        .map(|rejected| RejectedDocument {
            problem: "was applied, but the API server dropped it because the schema of the kind \
                      does not contain it"
                .to_owned(),
            hint: format!("{}; apply the object again", rejected.hint),
            ..rejected
        })
        .collect()
}

/// Reads a `ReferenceGrant` with dropped fields, including one for gateways only. Such a grant permits no
/// references.
pub(crate) fn incomplete_grant(kind: ServedKind, object: &DynamicObject) -> Option<CustomResource> {
    let dropped = match kind.kind {
        GRANT_KIND => dropped_fields(kind, object, &object.data["spec"]),
        _ => Vec::new(),
    };
    let (created, specified_fields) = (creation_time(&object.metadata), BTreeSet::new());
    (!dropped.is_empty()).then_some(CustomResource {
        outcome: Err(dropped),
        created,
        specified_fields,
    })
}

/// Returns the unknown fields of an applied spec that another client has corrected since.
fn corrected_fields(
    applied: &Value,
    live: &Value,
    unknown_fields: &[RejectedDocument],
) -> BTreeSet<String> {
    let field_and_hint = |rejected: &RejectedDocument| {
        Some((rejected.location.field.clone()?, rejected.hint.clone()))
    };
    let unknown_field_hints = unknown_fields.iter().filter_map(field_and_hint).collect();
    let mut comparison = SpecComparison { unknown_field_hints, corrected_paths: BTreeSet::new() };
    comparison.compare_fields(applied, Some(live), "spec");
    comparison.corrected_paths
}

/// A comparison of an applied spec with the live one, which also contains defaults of the API server.
struct SpecComparison {
    /// The unknown fields of the applied spec, each with its hint.
    unknown_field_hints: BTreeMap<String, String>,
    /// The paths of the unknown fields that another client has corrected.
    corrected_paths: BTreeSet<String>,
}

impl SpecComparison {
    /// Collects the corrected fields of an applied value at `path`; `live` is the live value there.
    fn compare_fields(&mut self, applied: &Value, live: Option<&Value>, path: &str) {
        match applied {
            Value::Object(fields) => {
                let live_fields = live.and_then(Value::as_object);
                for (key, value) in fields {
                    let field = append_field(path, key);
                    if !self.unknown_field_hints.contains_key(&field) {
                        self.compare_fields(
                            value,
                            live_fields.and_then(|live_fields| live_fields.get(key)),
                            &field,
                        );
                    } else if live_fields.is_none_or(|live_fields| {
                        self.is_corrected(fields, live_fields, path, key.as_str())
                    }) {
                        self.corrected_paths.insert(field);
                    }
                }
            }
            Value::Array(elements) => {
                let live_elements = live.and_then(Value::as_array);
                for (index, element) in elements.iter().enumerate() {
                    let live_element =
                        live_elements.and_then(|live_elements| live_elements.get(index));
                    self.compare_fields(element, live_element, &format!("{path}[{index}]"));
                }
            }
            // A scalar contains no fields.
            _ => {}
        }
    }

    /// Returns true if the object around an unknown field has changed, or has the field under the suggested
    /// name.
    fn is_corrected(
        &self,
        applied: &Map<String, Value>,
        live: &Map<String, Value>,
        path: &str,
        key: &str,
    ) -> bool {
        let field = append_field(path, key);
        let hint = self.unknown_field_hints.get(&field).map(String::as_str).unwrap_or_default();
        let is_suggested = |(name, value): (&String, &Value)| {
            let is_new = !applied.contains_key(name) && hint.contains(&format!("`{name}`"));
            is_new
                && applied
                    .get(key)
                    .is_some_and(|applied_value| self.is_value_within(applied_value, value, &field))
        };
        live.contains_key(key)
            || !self.are_fields_within(applied, live, path)
            || live.iter().any(is_suggested)
    }

    /// Returns true if the live map contains the known fields of an applied map with the same values.
    fn are_fields_within(
        &self,
        applied: &Map<String, Value>,
        live: &Map<String, Value>,
        path: &str,
    ) -> bool {
        applied.iter().all(|(key, value)| {
            let field = append_field(path, key);
            match live.get(key) {
                _ if self.unknown_field_hints.contains_key(&field) => true,
                Some(live_value) => self.is_value_within(value, live_value, &field),
                None => value.is_null(),
            }
        })
    }

    /// Returns true if the live value equals the applied one, apart from unknown fields and defaults.
    fn is_value_within(&self, applied: &Value, live: &Value, path: &str) -> bool {
        match (applied, live) {
            (Value::Object(applied), Value::Object(live)) => {
                self.are_fields_within(applied, live, path)
            }
            (Value::Array(applied), Value::Array(live)) => {
                let mut pairs = applied.iter().zip(live).enumerate();
                applied.len() == live.len()
                    && pairs.all(|(index, (applied, live))| {
                        self.is_value_within(applied, live, &format!("{path}[{index}]"))
                    })
            }
            // An API server may write `1` for `1.0`.
            (Value::Number(applied), Value::Number(live)) => {
                applied == live || applied.as_f64() == live.as_f64()
            }
            _ => applied == live,
        }
    }
}

/// Appends a field to a path in the notation of the readers.
fn append_field(path: &str, key: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if key.chars().all(is_plain) { format!("{path}.{key}") } else { format!("{path}[{key:?}]") }
}

const GRANT_KIND: &str = "ReferenceGrant";
const LENO_GROUP: &str = "leno.dev";
/// The annotation in which `kubectl apply` keeps the manifest.
const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[cfg(test)]
mod tests {
    use leno_registry::DocumentLocation;

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
                "annotations": {LAST_APPLIED_ANNOTATION: manifest.to_string()},
            },
            "spec": {"matches": [live]},
        });
        let object = serde_json::from_value(object).unwrap();
        let custom = read_custom(GROUPS, GROUPS.api_versions[0], object).unwrap();
        let lines =
            |rejected: Vec<RejectedDocument>| rejected.iter().map(ToString::to_string).collect();
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
            ["HTTPRouteGroup shop/reads: spec.matches[0].metods: was applied, but the API \
                 server dropped it because the schema of the kind does not contain it; did you \
                 mean `methods`?; apply the object again"]
        );
        // A field that a later edit removed is a known one.
        let edited = json!({"name": "all", "pathRegex": "/a", "methods": ["GET"]});
        assert!(read(&live, &edited).is_ok());
    }

    #[test]
    fn a_field_that_another_client_corrected_is_not_missing() {
        let applied = json!({"name": "all", "pathRegex": "/a", "metods": ["GET"]});
        for live in [
            json!({"name": "all", "pathRegex": "/a", "methods": ["GET"]}),
            json!({"name": "all", "pathRegex": "/b"}),
            json!({"name": "gets", "methods": ["GET"]}),
        ] {
            assert!(read(&live, &applied).is_ok(), "{live}");
        }
        // Other fields are defaults of the API server, or corrections of other fields.
        for live in [
            json!({"name": "all", "pathRegex": "/a"}),
            json!({"name": "all", "pathRegex": "/a", "methods": ["*"]}),
            json!({"name": "all", "pathRegex": "/a", "headers": {"a": "b"}}),
        ] {
            assert!(read(&live, &applied).is_err(), "{live}");
        }
    }

    #[test]
    fn a_field_counts_as_corrected_if_its_object_changed_or_has_the_suggested_field() {
        let unknown = |field: &str| RejectedDocument {
            location: DocumentLocation {
                field: Some(field.to_owned()),
                ..DocumentLocation::default()
            },
            problem: UNKNOWN_FIELD.to_owned(),
            hint: "did you mean `path`?".to_owned(),
        };
        let applied = json!({"rules": [
            {"matches": [{"pth": {"value": "/a"}, "weight": 1.0, "none": null}]},
            {"matches": []},
        ]});
        let field = "spec.rules[0].matches[0].pth";
        for (live_match, is_corrected) in [
            (json!({"weight": 1}), false),
            // A default is not the value that was written.
            (json!({"weight": 1, "path": {"type": "PathPrefix", "value": "/"}}), false),
            (json!({"weight": 1, "path": {"type": "PathPrefix", "value": "/a"}}), true),
            (json!({"weight": 2}), true),
            (json!({}), true),
        ] {
            // An edit of another rule does not restore the field.
            let live = json!({"rules": [{"matches": [live_match]}], "more": true});
            let corrected = corrected_fields(&applied, &live, &[unknown(field)]);
            assert_eq!(corrected.contains(field), is_corrected, "{live}");
        }
        let corrected = corrected_fields(&applied, &json!({"rules": []}), &[unknown(field)]);
        assert!(corrected.contains(field), "its rule is gone");
    }

    #[test]
    fn a_grant_without_a_field_that_was_applied_grants_nothing() {
        let kind = ServedKind {
            group: "gateway.networking.k8s.io",
            kind: GRANT_KIND,
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
                "apiVersion": kind.api_versions[0], "kind": GRANT_KIND,
                "metadata": {"name": "cert", "namespace": "shop"},
                "spec": {"from": [from], "to": [to]},
            })
        };
        for (applied, live, is_incomplete) in
            [(Some("nmae"), None, true), (Some("name"), Some("name"), false), (None, None, false)]
        {
            let mut object = grant(live);
            object["metadata"]["annotations"] =
                json!({LAST_APPLIED_ANNOTATION: grant(applied).to_string()});
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            assert_eq!(incomplete_grant(kind, &object).is_some(), is_incomplete, "{applied:?}");
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
        let read = read_custom(kind, kind.api_versions[0], serde_json::from_value(object).unwrap());
        let rejected = read.unwrap().outcome.unwrap_err();
        assert!(rejected[0].to_string().contains("ports: is an unknown field"));
    }
}
