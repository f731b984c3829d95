//! CustomResourceDefinitions of `leno.dev/v1alpha1`.
//!
//! Schemas reject what the readers of `leno-registry` reject, as far as a schema can express it. The control
//! plane reports the rest in the status of the object.

mod mesh;
mod policies;
mod tags;

use serde_json::{Value, json};

use super::common_labels;
use super::schema::{
    any_value, enumeration, list, map, object, pruned_object, text, with_description, with_keyword,
};

/// The definition of one kind.
struct CrdKind {
    /// The name of the kind.
    kind: &'static str,
    /// The plural of the kind in API paths.
    plural: &'static str,
    /// The short name of the kind for `kubectl`.
    short: &'static str,
    scope: CrdScope,
    /// The description of the kind, in one sentence.
    description: &'static str,
    /// The schema of the `spec`.
    spec: fn() -> Value,
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

/// Returns the schema of a generation. It has no maximum: API servers keep bounds as 64-bit floating-point
/// numbers, which cannot represent that of a 64-bit integer.
fn generation_schema() -> Value {
    json!({"type": "integer", "format": "int64", "minimum": 0})
}

fn kind_definition(kind: &CrdKind) -> Value {
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
            ("spec!", (kind.spec)()),
            (
                "status",
                with_description(status, "Status of the object, written by the control plane."),
            ),
        ]),
        kind.description,
    );
    let accepted = r#".status.conditions[?(@.type=="Accepted")].status"#;
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
                "shortNames": [kind.short],
                "categories": ["leno"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Accepted", "type": "string", "jsonPath": accepted},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

/// Returns definitions of the supported kinds of SMI and OSM, for clusters without their own. They have no
/// schema: the control plane reports errors.
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
    SMI.iter().map(definition).collect()
}

/// Returns the schema of target references: services of the policy's namespace, by name and optional port.
fn target_refs() -> Value {
    let target = object([
        ("group", enumeration(&["", "core"])),
        ("kind", enumeration(&["Service"])),
        ("name!", super::schema::dns_label()),
        ("namespace", super::schema::dns_label()),
        ("port", super::schema::port()),
    ]);
    let description = "Target services, in the namespace of the policy.";
    with_description(super::schema::non_empty_list(target, 16), description)
}

/// Returns the schema of value matches, by name: a text, or an operator with its operand.
fn value_matches() -> Value {
    map(any_value(), 256)
}

pub(super) const GROUP: &str = "leno.dev";

const KINDS: &[CrdKind] = &[
    CrdKind {
        kind: "MeshConfig",
        plural: "meshconfigs",
        short: "lmc",
        scope: CrdScope::Cluster,
        description: "Mesh-wide settings; a mesh has one MeshConfig.",
        spec: mesh::mesh_config,
    },
    CrdKind {
        kind: "AccessPolicy",
        plural: "accesspolicies",
        short: "lap",
        scope: CrdScope::Namespaced,
        description: "Allow and deny rules for requests and connections.",
        spec: policies::access_policy,
    },
    CrdKind {
        kind: "OutlierDetection",
        plural: "outlierdetections",
        short: "lod",
        scope: CrdScope::Namespaced,
        description: "Outlier detection and health checks for the endpoints of a service.",
        spec: policies::outlier_detection,
    },
    CrdKind {
        kind: "SermantRemoval",
        plural: "sermantremovals",
        short: "lsr",
        scope: CrdScope::Namespaced,
        description: "Outlier detection in the format of Sermant.",
        spec: policies::sermant_removal,
    },
    CrdKind {
        kind: "CircuitBreaker",
        plural: "circuitbreakers",
        short: "lcb",
        scope: CrdScope::Namespaced,
        description: "Circuit breaker and concurrency limits for requests to a service.",
        spec: policies::circuit_breaker,
    },
    CrdKind {
        kind: "RateLimit",
        plural: "ratelimits",
        short: "lrl",
        scope: CrdScope::Namespaced,
        description: "Rate and concurrency limits of a service.",
        spec: policies::rate_limit,
    },
    CrdKind {
        kind: "FaultInjection",
        plural: "faultinjections",
        short: "lfi",
        scope: CrdScope::Namespaced,
        description: "Injection of delays and errors.",
        spec: policies::fault_injection,
    },
    CrdKind {
        kind: "LoadBalancing",
        plural: "loadbalancings",
        short: "llb",
        scope: CrdScope::Namespaced,
        description: "Load-balancing algorithm for the endpoints of a service.",
        spec: policies::load_balancing,
    },
    CrdKind {
        kind: "Hedging",
        plural: "hedgings",
        short: "lhg",
        scope: CrdScope::Namespaced,
        description: "Hedging: delay before a request is also sent to a second endpoint.",
        spec: policies::hedging,
    },
    CrdKind {
        kind: "ExternalAuthorization",
        plural: "externalauthorizations",
        short: "lea",
        scope: CrdScope::Namespaced,
        description: "Requests that an external authorization service checks.",
        spec: policies::external_authorization,
    },
    CrdKind {
        kind: "JwtValidation",
        plural: "jwtvalidations",
        short: "ljv",
        scope: CrdScope::Namespaced,
        description: "Optional or required JSON web tokens of requests.",
        spec: policies::jwt_validation,
    },
    CrdKind {
        kind: "TagRoute",
        plural: "tagroutes",
        short: "ltr",
        scope: CrdScope::Namespaced,
        description: "Routing of requests to instances of a service by tags.",
        spec: tags::tag_route,
    },
    CrdKind {
        kind: "Lane",
        plural: "lanes",
        short: "lln",
        scope: CrdScope::Namespaced,
        description: "Headers that mark requests on arrival at a service.",
        spec: tags::lane,
    },
    CrdKind {
        kind: "SermantRouteRule",
        plural: "sermantrouterules",
        short: "lsrr",
        scope: CrdScope::Namespaced,
        description: "Tag rules in the format of Sermant.",
        spec: tags::sermant_route_rule,
    },
];

/// The policy groups of OSM (also of osm-edge) and FSM.
pub(super) const OSM: &str = "policy.openservicemesh.io";
pub(super) const FSM: &str = "policy.flomesh.io";

/// Group, kind, plural, and versions; the first version is stored.
const SMI: &[(&str, &str, &str, &[&str])] = &[
    ("access.smi-spec.io", "TrafficTarget", "traffictargets", &["v1alpha3"]),
    ("specs.smi-spec.io", "HTTPRouteGroup", "httproutegroups", &["v1alpha4"]),
    ("specs.smi-spec.io", "TCPRoute", "tcproutes", &["v1alpha4"]),
    ("split.smi-spec.io", "TrafficSplit", "trafficsplits", &["v1alpha4", "v1alpha2"]),
    (OSM, "UpstreamTrafficSetting", "upstreamtrafficsettings", &["v1alpha1"]),
    (FSM, "UpstreamTrafficSetting", "upstreamtrafficsettings", &["v1alpha1"]),
    (FSM, "TrafficWarmup", "trafficwarmups", &["v1alpha1"]),
    (OSM, "IngressBackend", "ingressbackends", &["v1alpha1"]),
    (FSM, "IngressBackend", "ingressbackends", &["v1alpha1"]),
    (OSM, "AccessControl", "accesscontrols", &["v1alpha1"]),
    (FSM, "AccessControl", "accesscontrols", &["v1alpha1"]),
    (OSM, "AccessCert", "accesscerts", &["v1alpha1"]),
    (FSM, "AccessCert", "accesscerts", &["v1alpha1"]),
    (OSM, "Egress", "egresses", &["v1alpha1"]),
    (FSM, "Egress", "egresses", &["v1alpha1"]),
    (OSM, "Retry", "retries", &["v1alpha1"]),
    (FSM, "Retry", "retries", &["v1alpha1"]),
];
