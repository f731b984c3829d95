//! Converts a Kubernetes Service into a service of the mesh.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    Service as KubeService, ServicePort as KubeServicePort, ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::ObjectMeta;
use leno_model::{IpFamilies, Name, Protocol, Service, ServiceName, ServicePort, TargetPort};
use leno_registry::{RejectedDocument, Warning, app_protocol};

use super::slice::{listed_port_name, listed_selector};
use super::{field_location, is_tcp, named_protocol};
use crate::well_known::GATEWAY_PART;

/// The result of reading a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceReading {
    /// A service with a selector, and warnings about unsupported fields.
    WithSelector(Service, Vec<Warning>),
    /// A service without a selector; EndpointSlices list its endpoints. Gateways route to it. Sidecars route to
    /// it if one of the addresses belongs to a pod with a sidecar, or has belonged to one. The selector and the
    /// target ports match the workloads of [`read_endpoints`](super::read_endpoints).
    Selectorless(Service, Vec<Warning>),
    /// Not a service of the mesh, with the reason.
    NotInMesh(&'static str),
    /// An invalid service.
    Rejected(RejectedDocument),
}

/// Converts a Service.
#[must_use]
pub fn read_service(service: &KubeService) -> ServiceReading {
    let meta = &service.metadata;
    let Some(spec) = &service.spec else {
        return ServiceReading::NotInMesh("it has no spec");
    };
    if spec.type_.as_deref() == Some("ExternalName") {
        return ServiceReading::NotInMesh("it refers to a name outside the cluster");
    }
    if meta.labels.as_ref().is_some_and(|labels| labels.contains_key(GATEWAY_PART)) {
        return ServiceReading::NotInMesh("it is the Service of a gateway");
    }
    let own_selector = spec.selector.clone().filter(|selector| !selector.is_empty());
    let is_selectorless = own_selector.is_none();
    let selector =
        own_selector.unwrap_or_else(|| listed_selector(meta.name.as_deref().unwrap_or_default()));
    let mut warnings = unsupported_warnings(meta, spec);
    let mut ports = Vec::new();
    for (index, port) in spec.ports.iter().flatten().enumerate() {
        if !is_tcp(port.protocol.as_deref()) {
            continue;
        }
        match read_port(port) {
            Some((service_port, is_protocol_known)) => {
                if !is_protocol_known {
                    warnings.push(Warning {
                        location: field_location(
                            meta,
                            "Service",
                            &format!("spec.ports[{index}].appProtocol"),
                        ),
                        problem: "is unknown; the port is treated as TCP".to_owned(),
                        hint: "use http, http2, grpc or tcp, or remove it".to_owned(),
                    });
                }
                ports.push(service_port);
            }
            None => {
                return ServiceReading::Rejected(RejectedDocument {
                    location: field_location(meta, "Service", &format!("spec.ports[{index}]")),
                    problem: "has an invalid number or name".to_owned(),
                    hint: "use a number from 1 to 65535 and names of lower-case letters, digits \
                             and `-`"
                        .to_owned(),
                });
            }
        }
    }
    if ports.is_empty() {
        return ServiceReading::NotInMesh("it has no TCP port");
    }
    let name = match service_name(meta) {
        Ok(name) => name,
        Err(rejected) => return ServiceReading::Rejected(*rejected),
    };
    if is_selectorless {
        for port in &mut ports {
            port.target = TargetPort::Name(listed_port_name(port.name.as_ref()));
        }
    }
    let service = Service {
        name,
        selector,
        ports,
        addresses: cluster_addresses(spec),
        unready: spec.publish_not_ready_addresses == Some(true),
        families: address_families(spec),
    };
    match is_selectorless {
        true => ServiceReading::Selectorless(service, warnings),
        false => ServiceReading::WithSelector(service, warnings),
    }
}

fn service_name(meta: &ObjectMeta) -> Result<ServiceName, Box<RejectedDocument>> {
    let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    ServiceName::new(&or_empty(&meta.namespace), &or_empty(&meta.name)).map_err(|error| {
        Box::new(RejectedDocument {
            location: field_location(meta, "Service", "metadata.name"),
            problem: error.to_string(),
            hint: "use another name".to_owned(),
        })
    })
}

/// Returns the cluster IPs; a headless Service has "None".
fn cluster_addresses(spec: &ServiceSpec) -> BTreeSet<IpAddr> {
    let addresses = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    addresses.filter_map(|text| text.parse().ok()).collect()
}

/// Returns the IP families of a Service; `Both` if it does not specify any.
fn address_families(spec: &ServiceSpec) -> IpFamilies {
    let has_family =
        |family: &str| spec.ip_families.iter().flatten().any(|ip_family| ip_family == family);
    match (has_family("IPv4"), has_family("IPv6")) {
        (true, false) => IpFamilies::V4,
        (false, true) => IpFamilies::V6,
        (true, true) | (false, false) => IpFamilies::Both,
    }
}

/// Reads a port; the flag is true if its `appProtocol` is known. Returns `None` if its number or name is
/// invalid.
fn read_port(port: &KubeServicePort) -> Option<(ServicePort, bool)> {
    let port_number = u16::try_from(port.port).ok().filter(|port_number| *port_number > 0)?;
    let port_name = port.name.as_deref().filter(|text| !text.is_empty());
    let name = match port_name {
        Some(text) => Some(Name::new(text).ok()?),
        None => None,
    };
    let target = match &port.target_port {
        None | Some(IntOrString::Int(0)) => TargetPort::Number(port_number),
        Some(IntOrString::Int(target)) => TargetPort::Number(u16::try_from(*target).ok()?),
        Some(IntOrString::String(target)) => match target.parse() {
            Ok(target) => TargetPort::Number(target),
            Err(_) => TargetPort::Name(Name::new(target).ok()?),
        },
    };
    let (protocol, is_protocol_known) = match port.app_protocol.as_deref() {
        // Other values may belong to other controllers; opaque TCP carries every protocol.
        Some(protocol_name) => match app_protocol(protocol_name) {
            Some(protocol) => (Some(protocol), true),
            None => (Some(Protocol::Tcp), false),
        },
        None => (port_name.and_then(named_protocol), true),
    };
    Some((ServicePort { name, port: port_number, target, protocol }, is_protocol_known))
}

/// Returns warnings about features of a Service that the mesh does not support.
fn unsupported_warnings(meta: &ObjectMeta, spec: &ServiceSpec) -> Vec<Warning> {
    let build_warning = |field: &str, problem: &str, hint: &str| Warning {
        location: field_location(meta, "Service", field),
        problem: problem.to_owned(),
        hint: hint.to_owned(),
    };
    let mut warnings = Vec::new();
    if spec.session_affinity.as_deref().is_some_and(|affinity| affinity != "None") {
        warnings.push(build_warning(
            "spec.sessionAffinity",
            "is ignored for clients in the mesh",
            "use a LoadBalancing with a key",
        ));
    }
    if spec.internal_traffic_policy.as_deref() == Some("Local") {
        warnings.push(build_warning(
            "spec.internalTrafficPolicy",
            "is ignored for clients in the mesh, which use all endpoints",
            "use Cluster",
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: Value) -> ServiceReading {
        let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
        read_service(&serde_json::from_value(object).unwrap())
    }

    fn read_meshed(spec: Value) -> (Service, Vec<String>) {
        match read(spec) {
            ServiceReading::WithSelector(service, warnings) => {
                (service, warnings.iter().map(ToString::to_string).collect())
            }
            reading => panic!("{reading:?}"),
        }
    }

    fn read_service_port(port: Value) -> ServicePort {
        let spec = json!({"clusterIP": "10.0.0.9", "selector": {"app": "web"}, "ports": [port]});
        read_meshed(spec).0.ports.remove(0)
    }

    #[test]
    fn a_service_has_addresses_of_both_families() {
        let (service, warnings) = read_meshed(json!({
            "type": "LoadBalancer",
            "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", "fd00::9"],
            "selector": {"app": "web"},
            "ports": [{"name": "http-web", "port": 80, "targetPort": 8080, "nodePort": 30080}],
            "publishNotReadyAddresses": true,
            "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
        }));
        assert_eq!(service.name.to_string(), "shop/web");
        let addresses: Vec<String> = service.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.9", "fd00::9"]);
        assert!(service.unready);
        assert_eq!(warnings, [] as [&str; 0]);
    }

    #[test]
    fn a_headless_service_has_no_address() {
        let (service, _) = read_meshed(json!({
            "clusterIP": "None", "clusterIPs": ["None"], "selector": {"app": "db"},
            "ports": [{"port": 5432}],
        }));
        assert_eq!(service.addresses, BTreeSet::new());
        assert!(!service.unready);
        assert_eq!(service.families, IpFamilies::Both);
        for (families, expected) in [
            (json!(["IPv4"]), IpFamilies::V4),
            (json!(["IPv6"]), IpFamilies::V6),
            (json!(["IPv6", "IPv4"]), IpFamilies::Both),
        ] {
            let spec = json!({
                "clusterIP": "None", "ipFamilies": families, "selector": {"app": "db"},
                "ports": [{"port": 5432}],
            });
            assert_eq!(read_meshed(spec).0.families, expected);
        }
    }

    #[test]
    fn services_that_the_mesh_does_not_serve_are_not_in_it() {
        let port = json!([{"port": 80}]);
        let udp = json!([{"port": 53, "protocol": "UDP"}]);
        for spec in [
            json!({"type": "ExternalName", "externalName": "x.com", "selector": {"a": "b"}, "ports": port}),
            json!({"clusterIP": "10.0.0.1", "selector": {"a": "b"}, "ports": udp}),
            json!({"clusterIP": "10.0.0.1", "selector": {"a": "b"}}),
        ] {
            let reading = read(spec.clone());
            assert!(matches!(reading, ServiceReading::NotInMesh(_)), "{spec}: {reading:?}");
        }
    }

    #[test]
    fn a_service_without_a_selector_is_selectorless() {
        for spec in
            [json!({"ports": [{"port": 80}]}), json!({"selector": {}, "ports": [{"port": 80}]})]
        {
            let reading = read(spec.clone());
            assert!(matches!(reading, ServiceReading::Selectorless(..)), "{spec}: {reading:?}");
        }
    }

    #[test]
    fn a_target_port_is_a_number_a_name_or_the_port_itself() {
        for (port, expected) in [
            (json!({"port": 80}), TargetPort::Number(80)),
            (json!({"port": 80, "targetPort": 8080}), TargetPort::Number(8080)),
            (json!({"port": 80, "targetPort": "web"}), TargetPort::Name(Name::new("web").unwrap())),
        ] {
            assert_eq!(read_service_port(port.clone()).target, expected, "{port}");
        }
        let spec = json!({"selector": {"a": "b"}, "ports": [{"port": 80, "targetPort": "Web_"}]});
        assert!(matches!(read(spec), ServiceReading::Rejected(_)));
    }

    #[test]
    fn app_protocol_or_else_the_port_name_determines_the_protocol() {
        for (name, app_protocol, expected) in [
            (None, None, None),
            (Some("web"), None, None),
            (Some("http"), None, Some(Protocol::Http)),
            (Some("grpc"), None, Some(Protocol::Grpc)),
            (Some("https"), None, None),
            (Some("http-web"), None, Some(Protocol::Http)),
            (Some("grpc-api"), None, Some(Protocol::Grpc)),
            (Some("http2-api"), None, Some(Protocol::Http2)),
            (Some("tcp-db"), None, Some(Protocol::Tcp)),
            (Some("tcp-server-first-db"), None, Some(Protocol::Tcp)),
            (Some("tcp-db"), Some("http"), Some(Protocol::Http)),
            (None, Some("grpc"), Some(Protocol::Grpc)),
            (None, Some("kubernetes.io/h2c"), Some(Protocol::Http2)),
            (None, Some("kubernetes.io/ws"), Some(Protocol::Http)),
            (None, Some("https"), Some(Protocol::Tcp)),
            (None, Some("tcp"), Some(Protocol::Tcp)),
            (Some("http-x"), Some("mysql"), Some(Protocol::Tcp)),
            (Some("http-x"), Some("amqp"), Some(Protocol::Tcp)),
        ] {
            let port = json!({"port": 80, "name": name, "appProtocol": app_protocol});
            assert_eq!(read_service_port(port.clone()).protocol, expected, "{port}");
        }
    }

    #[test]
    fn unsupported_features_cause_warnings() {
        let (_, warnings) = read_meshed(json!({
            "clusterIP": "10.0.0.9", "selector": {"app": "web"}, "sessionAffinity": "ClientIP",
            "internalTrafficPolicy": "Local", "ports": [{"port": 80, "appProtocol": "amqp"}],
        }));
        let fields: Vec<&str> =
            warnings.iter().map(|line| line.split(": ").nth(1).unwrap()).collect();
        assert_eq!(
            fields,
            ["spec.sessionAffinity", "spec.internalTrafficPolicy", "spec.ports[0].appProtocol"]
        );
    }
}
