//! Reads the core `v1` `Service` kind.
//!
//! Services behave as `ClusterIP` services, headless or not. Fields that require other behavior (external
//! access, session affinity, external names) are rejected; fields that a cluster fills in and that have no
//! effect here are accepted.

use std::collections::{BTreeSet, HashSet};

use leno_model::{IpFamilies, Protocol, Service, ServiceName, ServicePort, TargetPort};

use super::ObjectMetadata;
use crate::document::NodeValue;
use crate::field::{Field, MapFields};

/// Reads the `spec` of a `Service`. Numbers and names of ports must be distinct.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<Service> {
    let known_fields: Vec<&str> = SUPPORTED_FIELDS
        .iter()
        .chain(IGNORED_FIELDS)
        .copied()
        .chain(UNSUPPORTED_FIELDS.iter().map(|(key, _)| *key))
        .collect();
    let fields = spec.read_fields(&known_fields)?;
    reject_unsupported_fields(&fields);
    let selector = fields.find("selector").map(Field::read_text_map).unwrap_or_default();
    let elements = fields.require("ports")?.read_list(MAX_PORTS)?;
    if elements.is_empty() {
        fields.require("ports")?.reject("is empty", "list at least one port");
    }
    let mut port_numbers = HashSet::new();
    let mut port_names = HashSet::new();
    let mut ports = Vec::new();
    for element in elements {
        let Some(port) = read_port(&element) else {
            continue;
        };
        if !port_numbers.insert(port.port) {
            let problem = format!("port {} is listed twice", port.port);
            element.reject(problem, "remove one of the two");
        }
        if let Some(name) = &port.name
            && !port_names.insert(name.clone())
        {
            element.reject("its name is used by another port", "use another name");
        }
        ports.push(port);
    }
    Some(Service {
        name: ServiceName { namespace: metadata.namespace, name: metadata.name },
        selector,
        ports,
        // Only the Service of a cluster has addresses, and IP families of its own.
        addresses: BTreeSet::new(),
        unready: fields
            .find("publishNotReadyAddresses")
            .and_then(Field::read_boolean)
            .unwrap_or(false),
        families: IpFamilies::Both,
    })
}

/// Rejects unsupported fields, and unsupported values of fields with one accepted value.
fn reject_unsupported_fields(fields: &MapFields<'_>) {
    for (key, hint) in UNSUPPORTED_FIELDS {
        fields.reject_unsupported(key, "is not supported", hint);
    }
    let require_value = |key: &str, value: &str, hint: &str| {
        if let Some(field) = fields.find(key)
            && let Some(text) = field.read_text()
            && text != value
        {
            field.reject(format!("{} is not supported", field.quoted_value()), hint);
        }
    };
    require_value(
        "type",
        "ClusterIP",
        "use ClusterIP: the mesh has no external listeners and no external names",
    );
    require_value("sessionAffinity", "None", "use None");
    require_value("internalTrafficPolicy", "Cluster", "use Cluster");
    require_value("externalTrafficPolicy", "Cluster", "use Cluster");
}

/// Reads one of the `ports`. The target port defaults to the same number.
fn read_port(element: &Field<'_>) -> Option<ServicePort> {
    let fields = element.read_fields(&[
        "name",
        "port",
        "targetPort",
        "protocol",
        "appProtocol",
        "nodePort",
    ])?;
    fields.reject_unsupported("nodePort", "is not supported", "remove it");
    if let Some(field) = fields.find("protocol")
        && let Some(text) = field.read_text()
        && text != "TCP"
    {
        field.reject(
            format!("{} is not supported", field.quoted_value()),
            "use TCP; set the application protocol in `appProtocol`",
        );
    }
    let name = fields.find("name").map(Field::read_label);
    let port = fields.require("port").and_then(Field::read_port);
    let target_port = fields.find("targetPort").map(read_target_port);
    let protocol = read_protocol(&fields);
    let port = port?;
    Some(ServicePort {
        name: name.flatten(),
        port,
        target: target_port.unwrap_or(Some(TargetPort::Number(port)))?,
        protocol,
    })
}

/// Reads the number or the name of a workload port.
fn read_target_port(field: &Field<'_>) -> Option<TargetPort> {
    match field.value() {
        NodeValue::Text(text) if !text.bytes().all(|b| b.is_ascii_digit()) => {
            field.read_label().map(TargetPort::Name)
        }
        _ => field.read_port().map(TargetPort::Number),
    }
}

/// Reads the protocol from `appProtocol`, or else from the prefix of the port's name, as OSM does.
fn read_protocol(fields: &MapFields<'_>) -> Option<Protocol> {
    if let Some(field) = fields.find("appProtocol") {
        return field.read_choice(APP_PROTOCOLS);
    }
    let name = fields.find("name").map(Field::value);
    match name {
        Some(NodeValue::Text(name)) => port_name_protocol(name),
        _ => None,
    }
}

/// Returns the protocol for this value of `appProtocol`; `None` for an unknown value.
#[must_use]
pub fn app_protocol(word: &str) -> Option<Protocol> {
    APP_PROTOCOLS.iter().find(|(name, _)| *name == word).map(|(_, protocol)| *protocol)
}

/// Returns the protocol for a port name with the prefix `http-`, `http2-`, `grpc-` or `tcp-`; `None` for other names.
#[must_use]
pub fn port_name_protocol(name: &str) -> Option<Protocol> {
    let (prefix, _) = name.split_once('-')?;
    match prefix {
        "http" => Some(Protocol::Http),
        "http2" => Some(Protocol::Http2),
        "grpc" => Some(Protocol::Grpc),
        "tcp" => Some(Protocol::Tcp),
        _ => None,
    }
}

/// Maximum number of ports per service.
const MAX_PORTS: usize = 256;
/// The fields of `spec` that have an effect.
const SUPPORTED_FIELDS: &[&str] = &["selector", "ports", "publishNotReadyAddresses", "type"];
/// The fields of `spec` that are ignored, or for which only one value is accepted.
const IGNORED_FIELDS: &[&str] = &[
    "clusterIP",
    "clusterIPs",
    "externalTrafficPolicy",
    "internalTrafficPolicy",
    "ipFamilies",
    "ipFamilyPolicy",
    "sessionAffinity",
];
/// The fields of `spec` that are rejected if they have a value, with hints.
const UNSUPPORTED_FIELDS: &[(&str, &str)] = &[
    ("allocateLoadBalancerNodePorts", "remove it"),
    ("externalIPs", "remove it"),
    ("externalName", "remove it"),
    ("healthCheckNodePort", "remove it"),
    ("loadBalancerClass", "remove it"),
    ("loadBalancerIP", "remove it"),
    ("loadBalancerSourceRanges", "remove it"),
    ("sessionAffinityConfig", "remove it"),
    ("trafficDistribution", "remove it"),
];
/// The protocols by `appProtocol`. The application's own TLS is opaque to the mesh.
const APP_PROTOCOLS: &[(&str, Protocol)] = &[
    ("http", Protocol::Http),
    ("http2", Protocol::Http2),
    ("grpc", Protocol::Grpc),
    ("tcp", Protocol::Tcp),
    ("https", Protocol::Tcp),
    ("tls", Protocol::Tcp),
    ("tcp-server-first", Protocol::Tcp),
    ("mysql", Protocol::Tcp),
    ("mongo", Protocol::Tcp),
    ("redis", Protocol::Tcp),
    ("smtp", Protocol::Tcp),
    ("h2c", Protocol::Http2),
    ("kubernetes.io/h2c", Protocol::Http2),
    ("kubernetes.io/ws", Protocol::Http),
    ("kubernetes.io/wss", Protocol::Tcp),
];
