//! Reads objects that a Kubernetes API server returns as JSON: they become the same trees as YAML documents, and the same
//! modules of `kinds` read them.

use leno_model::Object;
use serde_json::Value as Json;

use crate::document::{DocumentNode, NodeValue, TextPosition};
use crate::kinds::{self, gateway_route::GatewayRoute};
use crate::rejections::{RejectedDocument, Warning};

/// Reads one complete object: `apiVersion`, `kind`, `metadata` and `spec`. The caller adds the creation time with
/// [`Object::set_created`]. Locations contain the object and the field, but no file and line.
///
/// # Errors
/// All problems of the object; at least one rejection.
pub fn read_json(object: &Json) -> Result<(Object, Vec<Warning>), Vec<RejectedDocument>> {
    let accepted = kinds::read_document(None, &to_node(object)).outcome?;
    Ok((accepted.object, accepted.warnings))
}

/// Reads a complete Gateway API route of a gateway: its parents are ignored, and backends may be in any
/// namespace.
///
/// # Errors
/// All problems of the object; at least one rejection.
pub fn read_gateway_route(object: &Json) -> Result<GatewayRoute, Vec<RejectedDocument>> {
    kinds::read_gateway_route(&to_node(object))
}

/// Converts a JSON value to a document node without a position. The recursion is bounded: the JSON parser limits the
/// depth.
fn to_node(json: &Json) -> DocumentNode {
    let value = match json {
        Json::Null => NodeValue::Null,
        Json::Bool(value) => NodeValue::Boolean(*value),
        Json::Number(number) => NodeValue::Number(number.to_string()),
        Json::String(text) => NodeValue::Text(text.clone()),
        Json::Array(list) => NodeValue::List(list.iter().map(to_node).collect()),
        Json::Object(map) => NodeValue::Map(
            map.iter()
                .map(|(key, value)| {
                    (unpositioned_node(NodeValue::Text(key.clone())), to_node(value))
                })
                .collect(),
        ),
    };
    unpositioned_node(value)
}

/// Creates a node with the default position, for objects that are in no file.
fn unpositioned_node(value: NodeValue) -> DocumentNode {
    DocumentNode { position: TextPosition::default(), value }
}

#[cfg(test)]
mod tests {
    use leno_model::{DefaultPolicy, HttpRoute, MeshConfig};
    use serde_json::json;

    use super::*;
    use crate::kinds::gateway_route::GatewayRules;
    use crate::kinds::served_kinds;

    fn route_with_weight(weight: Json) -> Json {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {
                "name": "reviews", "namespace": "bookinfo", "generation": 3, "uid": "x",
                "creationTimestamp": "2025-01-01T00:00:00Z",
            },
            "spec": {
                "parentRefs": [{"group": "", "kind": "Service", "name": "reviews"}],
                "rules": [{
                    "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                    "backendRefs": [
                        {"group": "", "kind": "Service", "name": "a", "port": 80, "weight": weight},
                    ],
                }],
            },
            "status": {"parents": []},
        })
    }

    #[test]
    fn an_api_object_is_read_like_a_document() {
        let (object, warnings) = read_json(&route_with_weight(json!(3))).unwrap();
        let Object::HttpRoute(HttpRoute { name, rules, .. }) = object else { panic!() };
        assert_eq!(name.to_string(), "bookinfo/reviews");
        assert_eq!(rules[0].backends[0].weight, 3);
        assert_eq!(warnings, []);
    }

    #[test]
    fn rejections_name_the_object_but_no_file() {
        let rejections = read_json(&route_with_weight(json!("3"))).unwrap_err();
        let lines: Vec<String> = rejections.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "HTTPRoute bookinfo/reviews: spec.rules[0].backendRefs[0].weight: \"3\" is text, not \
              a number; write 3, without quotes or a tag"
            ]
        );
        for invalid in [json!(null), json!([]), json!({"kind": "HTTPRoute"})] {
            assert!(!read_json(&invalid).unwrap_err().is_empty(), "{invalid}");
        }
    }

    #[test]
    fn gateway_routes_have_host_names_and_backends_of_other_namespaces() {
        let route = |kind: &str, spec: Json| {
            read_gateway_route(&json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
                "metadata": {"name": "web", "namespace": "shop"}, "spec": spec,
            }))
        };
        let backends = json!([{"name": "a", "namespace": "other", "port": 80}]);
        let parents = json!([{"name": "edge"}]);
        let read = |kind: &str, hostnames: Json| {
            let rules = json!([{"backendRefs": backends}]);
            route(kind, json!({"parentRefs": parents, "hostnames": hostnames, "rules": rules}))
        };
        for (kind, hostnames, count) in [
            ("HTTPRoute", json!(["a.b", "*.a.b"]), Some(2)),
            ("HTTPRoute", json!([]), Some(0)),
            ("HTTPRoute", json!(null), Some(0)),
            ("GRPCRoute", json!(["a.b"]), Some(1)),
            ("TLSRoute", json!(["a.b"]), Some(1)),
            ("TLSRoute", json!([]), None),
            ("HTTPRoute", json!(["a.b", "a.b"]), None),
            ("HTTPRoute", json!(["A_B"]), None),
            ("Service", json!([]), None),
        ] {
            let hostname_count =
                read(kind, hostnames.clone()).ok().map(|route| route.hostnames.len());
            assert_eq!(hostname_count, count, "{kind} {hostnames}");
        }
        let rules = json!([{"backendRefs": backends}]);
        let tcp = route("TCPRoute", json!({"parentRefs": parents, "rules": rules})).unwrap();
        let GatewayRules::Connections(rule) = tcp.rules else { panic!("{tcp:?}") };
        assert_eq!(rule.backends[0].service.to_string(), "other/a");
    }

    #[test]
    fn a_mesh_config_has_no_namespace() {
        let (object, _) = read_json(&json!({
            "apiVersion": "leno.dev/v1alpha1",
            "kind": "MeshConfig",
            "metadata": {"name": "mesh"},
            "spec": {"defaultPolicy": "deny", "tracing": null},
        }))
        .unwrap();
        let strict = MeshConfig { default_policy: DefaultPolicy::Deny, ..MeshConfig::default() };
        assert_eq!(object, Object::MeshConfig(strict));
    }

    #[test]
    fn every_served_kind_has_one_group_and_its_versions() {
        let served = served_kinds();
        for kind in &served {
            assert!(!kind.group.is_empty(), "{kind:?}");
            for version in kind.api_versions {
                assert!(version.starts_with(&format!("{}/", kind.group)), "{kind:?}");
            }
        }
        let groups = |word| served.iter().filter(|kind| kind.kind == word).count();
        assert_eq!(groups("UpstreamTrafficSetting"), 2);
        assert_eq!(groups("TCPRoute"), 2);
        assert_eq!(groups("Workload") + groups("Service"), 0);
    }
}
