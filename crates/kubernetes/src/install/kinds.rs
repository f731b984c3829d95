//! Builds the CustomResourceDefinitions of `leno.dev/v1alpha1`, and of the supported kinds of SMI (Service Mesh
//! Interface), OSM (Open Service Mesh) and FSM (Flomesh Service Mesh).
//!
//! The schemas of `leno.dev` reject the same objects as the readers of `leno-registry`, as far as a schema can
//! express their rules; the maximum lengths of lists are those of the readers. The control plane reports other errors
//! in the status of the object.

mod mesh;
mod policies;
mod tags;

use leno_model::PolicyTargets;
use serde_json::{Value, json};

use super::common_labels;
use super::definition_schema::schema_of_field;
use super::schema::{
    any_value, enumeration, list, map, object, pruned_object, text, with_description, with_keyword,
};

/// One kind of `leno.dev`, from which its CustomResourceDefinition is built.
struct CrdKind {
    /// The name of the kind.
    kind: &'static str,
    /// The plural of the kind in API paths.
    plural: &'static str,
    /// The short name of the kind for `kubectl`.
    short_name: &'static str,
    scope: CrdScope,
    /// The description of the kind, in one sentence.
    description: &'static str,
    /// The schema of the `spec`.
    spec_schema: fn() -> Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CrdScope {
    Namespaced,
    Cluster,
}

/// Returns the definitions of our kinds.
pub(super) fn kind_definitions() -> Vec<Value> {
    KINDS.iter().map(kind_definition).collect()
}

/// Returns the plurals of our kinds.
pub(super) fn plurals() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.plural)
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
fn kind_definition(kind: &CrdKind) -> Value {
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
    let schema = with_description(
        object([
            ("apiVersion", json!({"type": "string"})),
            ("kind", json!({"type": "string"})),
            ("metadata", json!({"type": "object"})),
            ("spec!", (kind.spec_schema)()),
            (
                "status",
                with_description(status, "Status of the object, written by the control plane."),
            ),
        ]),
        kind.description,
    );
    let accepted_path = r#".status.conditions[?(@.type=="Accepted")].status"#;
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": crd_name(kind.plural), "labels": common_labels()},
        "spec": {
            "group": GROUP,
            "scope": match kind.scope {
                CrdScope::Namespaced => "Namespaced",
                CrdScope::Cluster => "Cluster",
            },
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
                "additionalPrinterColumns": [
                    {"name": "Accepted", "type": "string", "jsonPath": accepted_path},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
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

/// Returns the schema of target references: services of the policy's namespace, by name and optional port.
fn target_refs() -> Value {
    schema_of_field::<PolicyTargets>("targetRefs")
}

/// Returns the schema of value matches, by name: a text, or an operator with its operand.
fn value_matches() -> Value {
    map(any_value(), 256)
}

pub(super) const GROUP: &str = "leno.dev";

/// The kinds of Leno.
const KINDS: &[CrdKind] = &[
    CrdKind {
        kind: "MeshConfig",
        plural: "meshconfigs",
        short_name: "lmc",
        scope: CrdScope::Cluster,
        description: "Mesh-wide settings; a mesh has one MeshConfig.",
        spec_schema: mesh::mesh_config,
    },
    CrdKind {
        kind: "AccessPolicy",
        plural: "accesspolicies",
        short_name: "lap",
        scope: CrdScope::Namespaced,
        description: "Allow and deny rules for requests and connections.",
        spec_schema: policies::access_policy,
    },
    CrdKind {
        kind: "OutlierDetection",
        plural: "outlierdetections",
        short_name: "lod",
        scope: CrdScope::Namespaced,
        description: "Outlier detection and health checks for the endpoints of a service.",
        spec_schema: policies::outlier_detection,
    },
    CrdKind {
        kind: "SermantRemoval",
        plural: "sermantremovals",
        short_name: "lsr",
        scope: CrdScope::Namespaced,
        description: "Outlier detection in the format of Sermant.",
        spec_schema: policies::sermant_removal,
    },
    CrdKind {
        kind: "CircuitBreaker",
        plural: "circuitbreakers",
        short_name: "lcb",
        scope: CrdScope::Namespaced,
        description: "Circuit breaker and concurrency limits for requests to a service.",
        spec_schema: policies::circuit_breaker,
    },
    CrdKind {
        kind: "RateLimit",
        plural: "ratelimits",
        short_name: "lrl",
        scope: CrdScope::Namespaced,
        description: "Rate and concurrency limits of a service.",
        spec_schema: policies::rate_limit,
    },
    CrdKind {
        kind: "FaultInjection",
        plural: "faultinjections",
        short_name: "lfi",
        scope: CrdScope::Namespaced,
        description: "Injection of delays and errors.",
        spec_schema: policies::fault_injection,
    },
    CrdKind {
        kind: "LoadBalancing",
        plural: "loadbalancings",
        short_name: "llb",
        scope: CrdScope::Namespaced,
        description: "Load-balancing algorithm for the endpoints of a service.",
        spec_schema: policies::load_balancing,
    },
    CrdKind {
        kind: "Hedging",
        plural: "hedgings",
        short_name: "lhg",
        scope: CrdScope::Namespaced,
        description: "Hedging: delay before a request is also sent to a second endpoint.",
        spec_schema: policies::hedging,
    },
    CrdKind {
        kind: "ExternalAuthorization",
        plural: "externalauthorizations",
        short_name: "lea",
        scope: CrdScope::Namespaced,
        description: "Requests that an external authorization service checks.",
        spec_schema: policies::external_authorization,
    },
    CrdKind {
        kind: "JwtValidation",
        plural: "jwtvalidations",
        short_name: "ljv",
        scope: CrdScope::Namespaced,
        description: "Optional or required JSON web tokens of requests.",
        spec_schema: policies::jwt_validation,
    },
    CrdKind {
        kind: "TagRoute",
        plural: "tagroutes",
        short_name: "ltr",
        scope: CrdScope::Namespaced,
        description: "Routing of requests to instances of a service by tags.",
        spec_schema: tags::tag_route,
    },
    CrdKind {
        kind: "Lane",
        plural: "lanes",
        short_name: "lln",
        scope: CrdScope::Namespaced,
        description: "Headers that mark requests on arrival at a service.",
        spec_schema: tags::lane,
    },
    CrdKind {
        kind: "SermantRouteRule",
        plural: "sermantrouterules",
        short_name: "lsrr",
        scope: CrdScope::Namespaced,
        description: "Tag rules in the format of Sermant.",
        spec_schema: tags::sermant_route_rule,
    },
];

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
