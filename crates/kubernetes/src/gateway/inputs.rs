//! Defines the inputs from which gateways are resolved: Gateways, their classes and routes, and the objects on
//! which they depend, as read from the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use leno_model::{GatewayCertificate, HostPattern};
use leno_registry::GatewayRoute;
use serde::Deserialize;
use serde_json::Value;

use crate::source::ObjectId;

/// All inputs that determine the configuration of gateways.
#[derive(Default)]
pub(crate) struct GatewayInputs {
    /// The classes of our controller, by name.
    pub(crate) classes: BTreeMap<String, ObservedGatewayClass>,
    pub(crate) gateways: BTreeMap<ObjectId, ObservedGateway>,
    pub(crate) routes: BTreeMap<RouteId, ObservedRoute>,
    pub(crate) grants: BTreeMap<ObjectId, Grant>,
    /// The names of the services to which each BackendTLSPolicy requires TLS; they are in the namespace of the policy.
    pub(crate) tls_services: BTreeMap<ObjectId, BTreeSet<String>>,
    /// The pods at each address.
    pub(crate) pods: BTreeMap<IpAddr, BTreeSet<ObjectId>>,
    /// The certificate in each Secret that gateways refer to, or the reason that it cannot be used.
    pub(crate) certificates: BTreeMap<ObjectId, Result<GatewayCertificate, String>>,
    /// The labels of namespaces.
    pub(crate) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// By Deployment of a gateway: true if at least one of its pods is available.
    pub(crate) deployments: BTreeMap<ObjectId, bool>,
    /// The Services of gateways.
    pub(crate) gateway_services: BTreeMap<ObjectId, GatewayService>,
}

/// The input that one object contributes. `Route` has the kind of the route, `Pod` the addresses of the pod, and
/// `Namespace` its labels; `Deployment` is true if at least one of its pods is available.
pub(crate) enum GatewayInput {
    Class(ObservedGatewayClass),
    Gateway(Box<ObservedGateway>),
    Route(&'static str, Box<ObservedRoute>),
    Grant(Grant),
    TlsServices(BTreeSet<String>),
    Pod(BTreeSet<IpAddr>),
    Certificate(Result<GatewayCertificate, String>),
    Namespace(BTreeMap<String, String>),
    Deployment(bool),
    GatewayService(GatewayService),
}

/// The kind and name of a route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId {
    pub(crate) kind: &'static str,
    pub(crate) id: ObjectId,
}

/// A GatewayClass of our controller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ObservedGatewayClass {
    /// True if the class has a `parametersRef`, which is not supported.
    pub(crate) has_parameters: bool,
    /// The value of the annotation [`SERVICE_TYPE`](crate::well_known::SERVICE_TYPE), not validated.
    pub(crate) service_type: Option<String>,
    pub(crate) generation: i64,
}

/// A Gateway of any class.
#[derive(Debug, Clone)]
pub(crate) struct ObservedGateway {
    pub(crate) uid: String,
    /// The generation of the spec.
    pub(crate) generation: i64,
    /// The creation time, in Unix seconds.
    pub(crate) created: i64,
    /// The value of the annotation [`SERVICE_TYPE`](crate::well_known::SERVICE_TYPE), not validated.
    pub(crate) service_type: Option<String>,
    pub(crate) spec: GatewaySpec,
}

/// Unknown fields. Objects that set them are rejected because their author may rely on them.
pub(crate) type UnknownFields = BTreeMap<String, Value>;

/// The spec of a Gateway.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GatewaySpec {
    pub(crate) gateway_class_name: String,
    #[serde(default)]
    pub(crate) listeners: Vec<ListenerSpec>,
    #[serde(default)]
    pub(crate) addresses: Vec<GatewayAddress>,
    #[serde(default)]
    pub(crate) infrastructure: Infrastructure,
    /// Client certificate validation, and the certificate of the gateway as a client.
    #[serde(default)]
    pub(crate) tls: Option<Value>,
    #[serde(flatten)]
    pub(crate) unknown_fields: UnknownFields,
}

/// Labels and annotations of all objects that are created for a gateway.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Infrastructure {
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) parameters_ref: Option<Value>,
    #[serde(flatten)]
    pub(crate) unknown_fields: UnknownFields,
}

/// An address that a Gateway requests or has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct GatewayAddress {
    /// The type: `IPAddress`, `Hostname`, or one that is not supported.
    #[serde(rename = "type", default = "default_address_type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) value: String,
}

/// A listener in the spec of a Gateway, not validated.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListenerSpec {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) hostname: Option<String>,
    pub(crate) port: u16,
    pub(crate) protocol: String,
    #[serde(default)]
    pub(crate) tls: Option<ListenerTls>,
    #[serde(default)]
    pub(crate) allowed_routes: AllowedRoutes,
    #[serde(flatten)]
    pub(crate) unknown_fields: UnknownFields,
}

/// TLS settings of a listener.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListenerTls {
    #[serde(default)]
    pub(crate) mode: Option<String>,
    #[serde(default)]
    pub(crate) certificate_refs: Vec<CertificateRef>,
    #[serde(default)]
    pub(crate) options: BTreeMap<String, String>,
    #[serde(flatten)]
    pub(crate) unknown_fields: UnknownFields,
}

/// A reference to a certificate.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct CertificateRef {
    #[serde(default)]
    pub(crate) group: String,
    #[serde(default)]
    pub(crate) kind: Option<String>,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) namespace: Option<String>,
}

/// The routes that may attach to a listener.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct AllowedRoutes {
    #[serde(default)]
    pub(crate) namespaces: AllowedNamespaces,
    #[serde(default)]
    pub(crate) kinds: Vec<RouteKindRef>,
    #[serde(flatten)]
    pub(crate) unknown_fields: UnknownFields,
}

/// The namespaces from which routes may attach to a listener.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct AllowedNamespaces {
    #[serde(default)]
    pub(crate) from: Option<String>,
    #[serde(default)]
    pub(crate) selector: Option<LabelSelector>,
    #[serde(flatten)]
    pub(crate) unknown_fields: UnknownFields,
}

/// A route kind that may attach to a listener.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RouteKindRef {
    #[serde(default)]
    pub(crate) group: Option<String>,
    pub(crate) kind: String,
}

/// A route, as far as gateways are concerned.
#[derive(Debug, Clone)]
pub(crate) struct ObservedRoute {
    /// The generation of the spec.
    pub(crate) generation: i64,
    /// The creation time, in Unix seconds.
    pub(crate) created: i64,
    /// The gateways that the route refers to, as written.
    pub(crate) parents: Vec<Value>,
    /// The last valid version of the route; `None` if it never was valid.
    pub(crate) last_valid: Option<Arc<ValidRoute>>,
    /// The reason that the newest version is invalid; `None` if it is valid.
    pub(crate) rejection: Option<String>,
}

/// A route that passed validation, with its parents and the backends that are not supported.
#[derive(Debug, Clone)]
pub(crate) struct ValidRoute {
    pub(crate) parents: Vec<Value>,
    pub(crate) route: GatewayRoute,
    /// References to backends that are not Services. The rules do not contain them.
    pub(crate) unsupported_backends: Vec<UnsupportedBackend>,
}

/// A backend that is not a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnsupportedBackend {
    /// The index of the rule that has the backend.
    pub(crate) rule_index: usize,
    /// The weight of the backend; 0 for mirrors.
    pub(crate) weight: u32,
    /// The kind of the backend.
    pub(crate) kind: String,
}

/// The spec of a ReferenceGrant: references that are allowed into its namespace.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grant {
    #[serde(default)]
    pub(crate) from: Vec<GrantFrom>,
    #[serde(default)]
    pub(crate) to: Vec<GrantTo>,
}

/// The referring objects that a ReferenceGrant permits: those of one kind in one namespace.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrantFrom {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
}

/// The objects that a ReferenceGrant permits to refer to: those of one kind, or only the one with the name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrantTo {
    #[serde(default)]
    pub(crate) group: String,
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) name: Option<String>,
}

/// The Service of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct GatewayService {
    pub(crate) is_load_balancer: bool,
    /// The addresses of the load balancer.
    pub(crate) ingress_addresses: Vec<GatewayAddress>,
    /// The cluster IPs.
    pub(crate) cluster_addresses: Vec<GatewayAddress>,
}

impl GatewayInputs {
    /// Returns true if objects of a kind in a namespace (`from`) may refer to an object with a kind and a name
    /// (`to`). References within a namespace need no grant.
    pub(crate) fn permits_reference(&self, from: (&str, &str), to: (&str, &ObjectId)) -> bool {
        let ((kind, namespace), (target_kind, target)) = (from, to);
        if namespace == target.namespace {
            return true;
        }
        let is_from = |grant_from: &GrantFrom| {
            grant_from.group == GATEWAY_GROUP
                && grant_from.kind == kind
                && grant_from.namespace == namespace
        };
        let is_to = |grant_to: &GrantTo| {
            matches!(grant_to.group.as_str(), "" | "core")
                && grant_to.kind == target_kind
                && grant_to.name.as_ref().is_none_or(|name| *name == target.name)
        };
        self.grants.iter().any(|(id, grant)| {
            id.namespace == target.namespace
                && grant.from.iter().any(is_from)
                && grant.to.iter().any(is_to)
        })
    }

    /// Returns the BackendTLSPolicy that requires TLS to a service, if any.
    pub(crate) fn tls_policy(&self, service: &ObjectId) -> Option<&ObjectId> {
        let namespace_policies =
            self.tls_services.iter().filter(|(id, _)| id.namespace == service.namespace);
        namespace_policies
            .filter(|(_, names)| names.contains(&service.name))
            .map(|(id, _)| id)
            .next()
    }

    /// Returns the gateways of Leno's classes, each with its class.
    pub(crate) fn our_gateways(
        &self,
    ) -> impl Iterator<Item = (&ObjectId, &ObservedGateway, &ObservedGatewayClass)> {
        let class = |gateway: &ObservedGateway| self.classes.get(&gateway.spec.gateway_class_name);
        self.gateways.iter().filter_map(move |(id, gateway)| Some((id, gateway, class(gateway)?)))
    }
}

/// Returns the first unknown field with a value. `null` and `"None"` count as unset. So does the API's default of
/// `allowedListeners`, where `namespaces.from` is `None`.
pub(crate) fn first_unknown_field(fields: &UnknownFields) -> Option<&str> {
    let is_unset = |value: &Value| {
        let is_empty = |value: &Value| value.is_null() || *value == "None";
        is_empty(value) || value.pointer("/namespaces/from").is_some_and(is_empty)
    };
    fields.iter().find(|(_, value)| !is_unset(value)).map(|(key, _)| key.as_str())
}

impl GatewayAddress {
    /// Creates an address from an IP address.
    pub(crate) fn from_ip(value: &str) -> Self {
        Self { kind: default_address_type(), value: value.to_owned() }
    }

    /// Creates an address from a host name.
    pub(crate) fn from_hostname(value: &str) -> Self {
        Self { kind: "Hostname".to_owned(), value: value.to_owned() }
    }
}

/// Returns the intersection of two host name patterns: `None` if the patterns have no host name in common. A pattern
/// that is `None` matches any host name, so `Some(None)` is an unrestricted intersection.
pub(crate) fn intersect_patterns(
    left: Option<&HostPattern>,
    right: Option<&HostPattern>,
) -> Option<Option<HostPattern>> {
    let (left, right) = match (left, right) {
        (None, pattern) | (pattern, None) => return Some(pattern.cloned()),
        (Some(left), Some(right)) => (left, right),
    };
    let intersection = match (left, right) {
        (HostPattern::Exact(left_name), HostPattern::Exact(right_name)) => {
            (left_name == right_name).then_some(left)
        }
        (HostPattern::Exact(left_name), HostPattern::Below(right_name)) => {
            is_proper_subdomain(left_name.as_str(), right_name.as_str()).then_some(left)
        }
        (HostPattern::Below(left_name), HostPattern::Exact(right_name)) => {
            is_proper_subdomain(right_name.as_str(), left_name.as_str()).then_some(right)
        }
        (HostPattern::Below(left_name), HostPattern::Below(right_name)) => {
            if left_name == right_name
                || is_proper_subdomain(left_name.as_str(), right_name.as_str())
            {
                Some(left)
            } else {
                is_proper_subdomain(right_name.as_str(), left_name.as_str()).then_some(right)
            }
        }
    };
    intersection.cloned().map(Some)
}

/// Returns true if a name is a proper subdomain of another one.
fn is_proper_subdomain(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent).is_some_and(|prefix| prefix.len() > 1 && prefix.ends_with('.'))
}

fn default_address_type() -> String {
    "IPAddress".to_owned()
}

pub(crate) const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
