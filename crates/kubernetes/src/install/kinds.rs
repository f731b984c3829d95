//! Builds the CustomResourceDefinitions of `leno.dev/v1alpha1`, and of the supported kinds of SMI (Service Mesh
//! Interface), OSM (Open Service Mesh) and FSM (Flomesh Service Mesh).
//!
//! The schemas of `leno.dev` reject the same objects as the readers of `leno-registry`, as far as a schema can
//! express their rules; the maximum lengths of lists are those of the readers. The control plane reports other errors
//! in the status of the object.

use leno_model::{KIND_DEFINITIONS, KindDefinition};
use serde_json::{Value, json};

use super::common_labels;
use super::definition_schema::map_schema;
use super::schema::{
    any_value, enumeration, list, object, pruned_object, text, with_description, with_keyword,
};

/// Returns the definitions of our kinds.
pub(super) fn kind_definitions() -> Vec<Value> {
    kinds().map(kind_definition).collect()
}

fn kinds() -> impl Iterator<Item = &'static KindDefinition> {
    KIND_DEFINITIONS.iter().filter(|definition| definition.is_own())
}

/// Returns the plurals of our kinds.
pub(super) fn plurals() -> impl Iterator<Item = &'static str> {
    kinds().map(|kind| kind.plural)
}

/// Returns the name of the CustomResourceDefinition of one of our kinds.
#[must_use]
pub fn crd_name(plural: &str) -> String {
    format!("{plural}.{GROUP}")
}

/// Returns the schema of a generation. It has no maximum: API servers store bounds as 64-bit floating-point
/// numbers, which cannot represent the maximum of a 64-bit integer.
fn generation_schema() -> Value {
    json!({"type": "integer", "format": "int64", "minimum": 0})
}

/// Returns the CustomResourceDefinition of a kind.
fn kind_definition(kind: &KindDefinition) -> Value {
    // The limits are those of the type `Condition` of the Kubernetes API.
    let condition = pruned_object([
        ("type!", text(316)),
        ("status!", enumeration(&["True", "False", "Unknown"])),
        ("observedGeneration", generation_schema()),
        ("lastTransitionTime!", json!({"type": "string", "format": "date-time"})),
        ("reason!", text(1024)),
        ("message!", text(32_768)),
    ]);
    let conditions = with_keyword(list(condition, 16), "x-kubernetes-list-type", json!("map"));
    let conditions = with_keyword(conditions, "x-kubernetes-list-map-keys", json!(["type"]));
    let status =
        pruned_object([("observedGeneration", generation_schema()), ("conditions", conditions)]);
    let spec = map_schema(kind.spec);
    let schema = with_description(
        object([
            ("apiVersion", json!({"type": "string"})),
            ("kind", json!({"type": "string"})),
            ("metadata", json!({"type": "object"})),
            ("spec!", spec),
            (
                "status",
                with_description(status, "Status of the object, written by the control plane."),
            ),
        ]),
        kind.description,
    );
    let mut labels = common_labels();
    if has_targets(kind) {
        // GEP-713: the policy applies to its targets, and not to objects below them.
        labels.insert("gateway.networking.k8s.io/policy".to_owned(), "Direct".into());
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": crd_name(kind.plural), "labels": labels},
        "spec": {
            "group": GROUP,
            "scope": kind.scope.as_str(),
            "names": {
                "kind": kind.kind,
                "listKind": format!("{}List", kind.kind),
                "plural": kind.plural,
                "singular": kind.kind.to_lowercase(),
                "shortNames": [kind.short_name],
                "categories": ["leno"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": printer_columns(kind),
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

/// Returns the columns of `kubectl get`: the first target, the conditions, and the reason that the object has no effect.
fn printer_columns(kind: &KindDefinition) -> Value {
    let condition_path = |condition: &str, field: &str| {
        format!(r#".status.conditions[?(@.type=="{condition}")].{field}"#)
    };
    let mut columns = Vec::new();
    if has_targets(kind) {
        let path = ".spec.targetRefs[0].name";
        columns.push(json!({"name": "Target", "type": "string", "jsonPath": path}));
    } else if has_field(kind, "service") {
        columns.push(json!({"name": "Target", "type": "string", "jsonPath": ".spec.service"}));
    }
    let accepted_path = condition_path("Accepted", "status");
    // `Programmed` repeats the reason of `Accepted` unless the object is accepted and has no effect.
    let reason_path = condition_path("Programmed", "reason");
    columns.extend([
        json!({"name": "Accepted", "type": "string", "jsonPath": accepted_path}),
        json!({"name": "Reason", "type": "string", "jsonPath": reason_path}),
        json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}),
    ]);
    columns.into()
}

/// True for a policy with `targetRefs`.
fn has_targets(kind: &KindDefinition) -> bool {
    has_field(kind, "targetRefs")
}

fn has_field(kind: &KindDefinition, name: &str) -> bool {
    kind.spec.all_fields().iter().any(|field| field.name == name)
}

/// Returns definitions of the supported kinds of SMI, OSM and FSM, for clusters without these kinds. They accept any
/// spec, because the control plane reports errors.
pub(super) fn smi_kind_definitions() -> Vec<Value> {
    let definition = |(group, kind, plural, versions): &(&str, &str, &str, &[&str])| {
        let version = |(index, name): (usize, &&str)| {
            let schema = with_keyword(any_value(), "type", json!("object"));
            json!({
                "name": name,
                "served": true,
                "storage": index == 0,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema},
            })
        };
        let versions: Vec<Value> = versions.iter().enumerate().map(version).collect();
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}"), "labels": common_labels()},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {
                    "kind": kind,
                    "listKind": format!("{kind}List"),
                    "plural": plural,
                    "singular": kind.to_lowercase(),
                },
                "versions": versions,
            },
        })
    };
    SMI_KINDS.iter().map(definition).collect()
}

pub(super) const GROUP: &str = "leno.dev";

/// The API group of policies of OSM and osm-edge.
pub(super) const OSM_GROUP: &str = "policy.openservicemesh.io";
/// The API group of policies of FSM.
pub(super) const FSM_GROUP: &str = "policy.flomesh.io";

/// The supported kinds of SMI, OSM and FSM: group, kind, plural, and versions. The first version is stored.
const SMI_KINDS: &[(&str, &str, &str, &[&str])] = &[
    ("access.smi-spec.io", "TrafficTarget", "traffictargets", &["v1alpha3"]),
    ("specs.smi-spec.io", "HTTPRouteGroup", "httproutegroups", &["v1alpha4"]),
    ("specs.smi-spec.io", "TCPRoute", "tcproutes", &["v1alpha4"]),
    ("split.smi-spec.io", "TrafficSplit", "trafficsplits", &["v1alpha4", "v1alpha2"]),
    (OSM_GROUP, "UpstreamTrafficSetting", "upstreamtrafficsettings", &["v1alpha1"]),
    (FSM_GROUP, "UpstreamTrafficSetting", "upstreamtrafficsettings", &["v1alpha1"]),
    (FSM_GROUP, "TrafficWarmup", "trafficwarmups", &["v1alpha1"]),
    (OSM_GROUP, "IngressBackend", "ingressbackends", &["v1alpha1"]),
    (FSM_GROUP, "IngressBackend", "ingressbackends", &["v1alpha1"]),
    (OSM_GROUP, "AccessControl", "accesscontrols", &["v1alpha1"]),
    (FSM_GROUP, "AccessControl", "accesscontrols", &["v1alpha1"]),
    (OSM_GROUP, "AccessCert", "accesscerts", &["v1alpha1"]),
    (FSM_GROUP, "AccessCert", "accesscerts", &["v1alpha1"]),
    (OSM_GROUP, "Egress", "egresses", &["v1alpha1"]),
    (FSM_GROUP, "Egress", "egresses", &["v1alpha1"]),
    (OSM_GROUP, "Retry", "retries", &["v1alpha1"]),
    (FSM_GROUP, "Retry", "retries", &["v1alpha1"]),
];
