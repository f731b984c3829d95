//! Converts Kubernetes objects into inputs of gateways, one object at a time and without I/O.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::core::{DynamicObject, ObjectMeta};
use leno_registry::{ServedKind, read_gateway_route};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::inputs::{
    GATEWAY_GROUP, GatewayAddress, GatewayInput, GatewayService, Grant, ObservedGateway,
    ObservedGatewayClass, ObservedRoute, UnsupportedBackend, ValidRoute,
};
use crate::well_known::{GATEWAY_CONTROLLER, SERVICE_TYPE};

/// The kinds that only gateways need.
pub(crate) const GATEWAY_KINDS: [ServedKind; 3] = [
    ServedKind {
        group: GATEWAY_GROUP,
        kind: "GatewayClass",
        api_versions: &["gateway.networking.k8s.io/v1"],
    },
    ServedKind {
        group: GATEWAY_GROUP,
        kind: "Gateway",
        api_versions: &["gateway.networking.k8s.io/v1"],
    },
    ServedKind {
        group: GATEWAY_GROUP,
        kind: "BackendTLSPolicy",
        api_versions: &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha3"],
    },
];

/// Converts an object of the Gateway API into an input. Returns `None` if the object does not concern gateways.
pub(crate) fn read_gateway_input(
    kind: ServedKind,
    api_version: &str,
    object: &DynamicObject,
) -> Option<GatewayInput> {
    if kind.group != GATEWAY_GROUP {
        return None;
    }
    let spec = object.data.get("spec").unwrap_or(&Value::Null);
    let meta = &object.metadata;
    match kind.kind {
        "GatewayClass" => read_class(meta, spec).map(GatewayInput::Class),
        "Gateway" => {
            read_gateway(meta, spec).map(|gateway| GatewayInput::Gateway(Box::new(gateway)))
        }
        "ReferenceGrant" => parse_spec::<Grant>(spec, meta).map(GatewayInput::Grant),
        "BackendTLSPolicy" => Some(GatewayInput::TlsServices(read_tls_services(spec))),
        // The other kinds of the group are routes.
        _ => {
            let route = read_route(kind.kind, api_version, meta, spec)?;
            Some(GatewayInput::Route(kind.kind, Box::new(route)))
        }
    }
}

fn read_class(meta: &ObjectMeta, spec: &Value) -> Option<ObservedGatewayClass> {
    let is_ours = spec.get("controllerName").is_some_and(|name| name == GATEWAY_CONTROLLER);
    is_ours.then(|| ObservedGatewayClass {
        has_parameters: spec.get("parametersRef").is_some_and(|parameters| !parameters.is_null()),
        service_type: read_service_type(meta),
        generation: generation(meta),
    })
}

fn read_gateway(meta: &ObjectMeta, spec: &Value) -> Option<ObservedGateway> {
    Some(ObservedGateway {
        uid: meta.uid.clone()?,
        generation: generation(meta),
        created: creation_time(meta),
        service_type: read_service_type(meta),
        spec: parse_spec(spec, meta)?,
    })
}

/// Returns the services that a BackendTLSPolicy targets, regardless of the port.
fn read_tls_services(spec: &Value) -> BTreeSet<String> {
    let targets = spec.get("targetRefs").and_then(Value::as_array).into_iter().flatten();
    let services = targets.filter(|target| unsupported_kind(target).is_none());
    let names = services.filter_map(|target| target.get("name").and_then(Value::as_str));
    names.map(str::to_owned).collect()
}

fn read_service_type(meta: &ObjectMeta) -> Option<String> {
    meta.annotations.as_ref()?.get(SERVICE_TYPE).cloned()
}

/// Parses a spec. Errors are only logged, because specs that the API's own schema accepts are expected to parse.
fn parse_spec<T: DeserializeOwned>(spec: &Value, meta: &ObjectMeta) -> Option<T> {
    match T::deserialize(spec) {
        Ok(parsed) => Some(parsed),
        Err(error) => {
            let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
            tracing::warn!(namespace, name, %error, "cannot parse an object of the Gateway API");
            None
        }
    }
}

/// Returns the generation; 0 if the object has none.
fn generation(meta: &ObjectMeta) -> i64 {
    meta.generation.unwrap_or_default()
}

/// Returns the creation time in Unix seconds; 0 if the object has none.
fn creation_time(meta: &ObjectMeta) -> i64 {
    meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

/// Converts a route; returns `None` for a route without a Gateway as its parent. The result has either a valid
/// version or a rejection; the store adds the last valid version to a rejection.
fn read_route(
    kind: &str,
    api_version: &str,
    meta: &ObjectMeta,
    spec: &Value,
) -> Option<ObservedRoute> {
    let parent_refs = spec.get("parentRefs").and_then(Value::as_array).into_iter().flatten();
    let parents: Vec<Value> =
        parent_refs.filter(|parent| is_gateway_parent(parent)).cloned().collect();
    if parents.is_empty() {
        return None;
    }
    let mut spec = spec.clone();
    let unsupported_backends = remove_unsupported_backends(&mut spec);
    let document = json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": meta.name, "namespace": meta.namespace},
        "spec": spec,
    });
    let build_route = |valid_route, rejection| ObservedRoute {
        generation: generation(meta),
        created: creation_time(meta),
        parents: parents.clone(),
        last_valid: valid_route,
        rejection,
    };
    Some(match read_gateway_route(&document) {
        Ok(route) => {
            let valid_route = ValidRoute { parents: parents.clone(), route, unsupported_backends };
            build_route(Some(Arc::new(valid_route)), None)
        }
        Err(rejections) => {
            let lines = rejections.iter().take(MAX_ERRORS).map(|rejected| {
                let field = rejected.location.field.as_deref().unwrap_or_default();
                format!("{field}: {}; {}", rejected.problem, rejected.hint)
            });
            let message = lines.collect::<Vec<_>>().join("\n");
            build_route(None, Some(message.chars().take(MAX_REJECTION_CHARACTERS).collect()))
        }
    })
}

/// Returns true if a `parentRef` is a Gateway, which is the default.
fn is_gateway_parent(parent: &Value) -> bool {
    let group = parent.get("group").and_then(Value::as_str).unwrap_or(GATEWAY_GROUP);
    let kind = parent.get("kind").and_then(Value::as_str).unwrap_or("Gateway");
    group == GATEWAY_GROUP && kind == "Gateway"
}

/// Removes references to backends other than Services from the rules; the remaining backends stay in use.
fn remove_unsupported_backends(spec: &mut Value) -> Vec<UnsupportedBackend> {
    let mut unsupported = Vec::new();
    let rules = spec.get_mut("rules").and_then(Value::as_array_mut);
    for (index, rule) in rules.into_iter().flatten().enumerate() {
        if let Some(backends) = rule.get_mut("backendRefs").and_then(Value::as_array_mut) {
            backends.retain(|backend| {
                let Some(kind) = unsupported_kind(backend) else { return true };
                // The default weight of the Gateway API is 1.
                let weight = backend.get("weight").and_then(Value::as_u64).unwrap_or(1);
                let weight = u32::try_from(weight).unwrap_or(u32::MAX);
                unsupported.push(UnsupportedBackend { rule_index: index, weight, kind });
                false
            });
        }
        if let Some(filters) = rule.get_mut("filters").and_then(Value::as_array_mut) {
            filters.retain(|filter| {
                let mirrored = filter.pointer("/requestMirror/backendRef");
                let Some(kind) = mirrored.and_then(unsupported_kind) else { return true };
                unsupported.push(UnsupportedBackend { rule_index: index, weight: 0, kind });
                false
            });
        }
    }
    unsupported
}

/// Returns the kind of a reference, as `KIND.GROUP`, if it is not a Service.
fn unsupported_kind(reference: &Value) -> Option<String> {
    let group = reference.get("group").and_then(Value::as_str).unwrap_or_default();
    let kind = reference.get("kind").and_then(Value::as_str).unwrap_or("Service");
    let is_service = matches!(group, "" | "core") && kind == "Service";
    (!is_service).then(|| match group {
        "" => kind.to_owned(),
        group => format!("{kind}.{group}"),
    })
}

/// Converts a Secret into a certificate.
pub(crate) fn read_certificate(secret: &Secret) -> GatewayInput {
    GatewayInput::Certificate(super::certificate::parse_certificate(secret))
}

/// Converts a Deployment of a gateway: true if at least one pod is available.
pub(crate) fn read_deployment(deployment: &Deployment) -> GatewayInput {
    let status = deployment.status.as_ref();
    let available = status.and_then(|status| status.available_replicas).unwrap_or_default();
    GatewayInput::Deployment(available > 0)
}

/// Converts the Service of a gateway into its addresses.
pub(crate) fn read_service(service: &Service) -> GatewayInput {
    let spec = service.spec.as_ref();
    let is_load_balancer = spec
        .and_then(|spec| spec.type_.as_deref())
        .is_some_and(|service_type| service_type == "LoadBalancer");
    let load_balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress_entries = load_balancer
        .and_then(|load_balancer| load_balancer.ingress.as_ref())
        .into_iter()
        .flatten();
    let ingress_addresses =
        ingress_entries.filter_map(|entry| match (&entry.ip, &entry.hostname) {
            (Some(ip), _) => Some(GatewayAddress::from_ip(ip)),
            (None, Some(name)) => Some(GatewayAddress::from_hostname(name)),
            (None, None) => None,
        });
    let cluster_ips = spec.and_then(|spec| spec.cluster_ips.as_ref()).into_iter().flatten();
    let cluster_addresses =
        cluster_ips.filter(|ip| *ip != "None").map(|ip| GatewayAddress::from_ip(ip));
    GatewayInput::GatewayService(GatewayService {
        is_load_balancer,
        ingress_addresses: ingress_addresses.collect(),
        cluster_addresses: cluster_addresses.collect(),
    })
}

/// The maximum number of errors in the rejection of one route.
const MAX_ERRORS: usize = 5;
/// The maximum length of a rejection. The API allows 32768 bytes, which is too long to read.
const MAX_REJECTION_CHARACTERS: usize = 2000;
