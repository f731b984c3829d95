//! Reduces routes and ReferenceGrants, which gateways use as well, to the parts for the mesh: parents and
//! targets that are Services.

use serde_json::Value;

/// Reduces the spec of an object to the parts for the mesh; returns false if no part remains.
pub(super) fn retain_mesh_parts(group: &str, kind: &str, spec: &mut Value) -> bool {
    match (group, kind) {
        (GATEWAY_GROUP, "ReferenceGrant") => retain_mesh_grants(spec),
        (GATEWAY_GROUP, "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute") => {
            retain_service_parents(spec)
        }
        // All other kinds concern only the mesh.
        _ => true,
    }
}

/// Returns true if a `parentRef` is a Service; the default is a Gateway.
pub(crate) fn is_service_parent(parent: &Value) -> bool {
    let group = parent.get("group").and_then(Value::as_str).unwrap_or(GATEWAY_GROUP);
    let kind = parent.get("kind").and_then(Value::as_str).unwrap_or("Gateway");
    matches!(group, "" | "core") && kind == "Service"
}

fn retain_service_parents(spec: &mut Value) -> bool {
    retain_elements(spec, "parentRefs", is_service_parent)
}

/// Reduces a ReferenceGrant to supported routes as sources and Services as targets; returns false if either is
/// missing.
fn retain_mesh_grants(spec: &mut Value) -> bool {
    let string_field =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let has_sources = retain_elements(spec, "from", |from| {
        let (group, kind) = (string_field(from, "group"), string_field(from, "kind"));
        match group.as_deref() {
            Some(GATEWAY_GROUP) => {
                let routes = ["HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute"];
                kind.is_some_and(|kind| routes.contains(&kind.as_str()))
            }
            Some("split.smi-spec.io") => kind.as_deref() == Some("TrafficSplit"),
            _ => false,
        }
    });
    let has_targets = retain_elements(spec, "to", |to| {
        let (group, kind) = (string_field(to, "group"), string_field(to, "kind"));
        matches!(group.as_deref(), None | Some("" | "core")) && kind.as_deref() == Some("Service")
    });
    has_sources && has_targets
}

/// Retains the matching elements of a list; returns true if any element remains.
fn retain_elements(spec: &mut Value, key: &str, is_retained: impl Fn(&Value) -> bool) -> bool {
    let Some(list) = spec.get_mut(key).and_then(Value::as_array_mut) else { return false };
    list.retain(is_retained);
    !list.is_empty()
}

pub(crate) const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn routes_of_gateways_are_ignored() {
        let service = json!({"group": "", "kind": "Service", "name": "web"});
        for (parents, retained) in [
            (json!([{"name": "edge"}]), None),
            (json!([{"kind": "Gateway", "name": "edge"}]), None),
            (json!([{"kind": "Service", "name": "web"}]), None),
            (json!([]), None),
            (json!([service]), Some(1)),
            (json!([{"name": "edge"}, service]), Some(1)),
        ] {
            let mut spec = json!({"parentRefs": parents});
            let is_retained = retain_mesh_parts(GATEWAY_GROUP, "HTTPRoute", &mut spec);
            assert_eq!(is_retained, retained.is_some(), "{parents}");
            if let Some(retained) = retained {
                assert_eq!(spec["parentRefs"].as_array().unwrap().len(), retained, "{parents}");
            }
        }
        assert!(!retain_mesh_parts(GATEWAY_GROUP, "TLSRoute", &mut json!({})));
    }

    #[test]
    fn grants_for_other_kinds_are_ignored() {
        let from =
            |group: &str, kind: &str| json!({"group": group, "kind": kind, "namespace": "a"});
        let service = json!({"group": "", "kind": "Service"});
        let secret = json!({"group": "", "kind": "Secret"});
        for (from, to, is_retained) in [
            (json!([from(GATEWAY_GROUP, "HTTPRoute")]), json!([service, secret]), true),
            (json!([from(GATEWAY_GROUP, "TLSRoute")]), json!([service]), true),
            (json!([from("split.smi-spec.io", "TrafficSplit")]), json!([service]), true),
            (json!([from(GATEWAY_GROUP, "Gateway")]), json!([secret]), false),
            (json!([from(GATEWAY_GROUP, "HTTPRoute")]), json!([secret]), false),
            (json!([from("other.io", "HTTPRoute")]), json!([service]), false),
        ] {
            let mut spec = json!({"from": from, "to": to});
            assert_eq!(
                retain_mesh_parts(GATEWAY_GROUP, "ReferenceGrant", &mut spec),
                is_retained,
                "{from} {to}"
            );
        }
    }
}
