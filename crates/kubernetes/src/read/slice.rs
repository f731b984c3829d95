//! Converts the addresses of EndpointSlices into unmeshed workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::{EndpointPort, EndpointSlice};
use leno_model::{
    AddressClass, AdmissionSettings, Name, Protocol, ServiceAccount, ServiceName, Weight, Workload,
    WorkloadName, WorkloadPort,
};

use super::is_tcp;

/// Converts the first address of each endpoint into an unmeshed workload. Returns an empty list if the slice
/// belongs to no service.
#[must_use]
pub fn read_endpoints(slice: &EndpointSlice) -> Vec<Workload> {
    let meta = &slice.metadata;
    let service_label = meta.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME_LABEL));
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let service_name = service_label.and_then(|name| ServiceName::new(namespace, name).ok());
    let (Some(service), Some(slice_name)) = (service_name, meta.name.as_deref()) else {
        return Vec::new();
    };
    let ports: Vec<WorkloadPort> = slice.ports.iter().flatten().filter_map(read_port).collect();
    let Ok(account_name) = Name::new(PLACEHOLDER_ACCOUNT) else { return Vec::new() };
    let account = ServiceAccount { namespace: service.namespace.clone(), name: account_name };
    let mut workloads = Vec::new();
    for endpoint in &slice.endpoints {
        let conditions = endpoint.conditions.as_ref();
        // By the API, an absent `ready` means true, and an absent `serving` equals `ready`.
        let is_ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
        let is_serving = conditions.and_then(|conditions| conditions.serving).unwrap_or(is_ready);
        let is_terminating =
            conditions.and_then(|conditions| conditions.terminating).unwrap_or(false);
        // By the API, consumers use the first address.
        let address = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok());
        // Canonical form, because conflicts with addresses of pods are found by comparison.
        let Some(address) = address.map(|address| address.to_canonical()) else { continue };
        if AddressClass::is_loopback_or_special(address) {
            tracing::warn!(slice = slice_name, namespace, %address, "EndpointSlice address matches no workload");
            continue;
        }
        let endpoint_name =
            format!("{slice_name}.{}", address.to_string().replace(['.', ':'], "-"));
        // With a long slice name, the endpoint's name exceeds the limit of names.
        let Ok(name) = Name::new(endpoint_name.trim_end_matches('-')) else { continue };
        workloads.push(Workload {
            name: WorkloadName { namespace: service.namespace.clone(), name },
            uid: None,
            labels: listed_selector(service.name.as_str()),
            account: account.clone(),
            ports: ports.clone(),
            address,
            other_addresses: BTreeSet::new(),
            run: Vec::new(),
            run_options: Box::default(),
            outbound_listeners: Vec::new(),
            admission: AdmissionSettings::default(),
            weight: Weight::default(),
            ready: is_ready,
            terminating: is_serving && is_terminating && !is_ready,
            sidecar: false,
        });
    }
    workloads
}

fn read_port(port: &EndpointPort) -> Option<WorkloadPort> {
    let port_number = port
        .port
        .and_then(|port_number| u16::try_from(port_number).ok())
        .filter(|port_number| *port_number > 0)?;
    if !is_tcp(port.protocol.as_deref()) {
        return None;
    }
    let name_text = port.name.as_deref().filter(|text| !text.is_empty());
    let port_name = match name_text {
        Some(text) => Some(Name::new(text).ok()?),
        None => None,
    };
    let name = Some(listed_port_name(port_name.as_ref()));
    Some(WorkloadPort { name, port: port_number, protocol: Protocol::Detect })
}

/// Returns the selector of the endpoints that are listed for a service. No object of the cluster can have this
/// label: its key contains spaces.
pub(super) fn listed_selector(service: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(format!("{LISTED_FOR_PREFIX}{service}"), String::new())])
}

/// Extracts the service name from a key of [`listed_selector`]; returns `None` for other keys.
pub(crate) fn listed_service(key: &str) -> Option<&str> {
    key.strip_prefix(LISTED_FOR_PREFIX)
}

/// Returns the name of a port in slices, both for services and endpoints. An unnamed port gets the name
/// `unnamed`: it is the only port of its service.
pub(super) fn listed_port_name(name: Option<&Name>) -> Name {
    name.cloned().unwrap_or_else(|| Name::new("unnamed").expect("it is a name"))
}

/// The label of a slice with the name of its service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// The prefix of label keys, followed by the service name because a workload may be listed for several
/// services. Label keys in a cluster cannot contain spaces.
const LISTED_FOR_PREFIX: &str = "listed for ";
/// A placeholder: an unmeshed workload has no identity.
const PLACEHOLDER_ACCOUNT: &str = "default";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_address_becomes_a_workload_that_its_service_selects() {
        let slice = serde_json::from_value(json!({
            "metadata": {
                "name": "web-1", "namespace": "shop",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": "IPv4",
            "ports": [
                {"name": "http", "port": 3000}, {"name": "dns", "port": 53, "protocol": "UDP"},
            ],
            "endpoints": [
                {"addresses": ["10.0.0.1", "10.0.0.9"]},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                {"addresses": ["fd00::"]},
                {"addresses": ["::ffff:10.0.0.3"]},
                {"addresses": ["somewhere.example"]},
                {"addresses": ["169.254.169.254"]},
                {"addresses": ["::ffff:127.0.0.1"]},
                {"addresses": ["fd00:ec2::254"]},
            ],
        }))
        .unwrap();
        let workloads = read_endpoints(&slice);
        let rows: Vec<(String, String, bool)> = workloads
            .iter()
            .map(|workload| {
                (workload.name.to_string(), workload.address.to_string(), workload.ready)
            })
            .collect();
        let row = |name: &str, address: &str, ready| (name.to_owned(), address.to_owned(), ready);
        assert_eq!(
            rows,
            [
                row("shop/web-1.10-0-0-1", "10.0.0.1", true),
                row("shop/web-1.10-0-0-2", "10.0.0.2", false),
                row("shop/web-1.fd00", "fd00::", true),
                row("shop/web-1.10-0-0-3", "10.0.0.3", true),
            ]
        );
        assert!(
            workloads
                .iter()
                .all(|workload| !workload.sidecar && workload.labels == listed_selector("web"))
        );
        let ports: Vec<(String, u16)> = workloads[0]
            .ports
            .iter()
            .map(|workload_port| {
                (workload_port.name.as_ref().unwrap().to_string(), workload_port.port)
            })
            .collect();
        assert_eq!(ports, [("http".to_owned(), 3000)]);
    }

    #[test]
    fn an_endpoint_that_still_serves_while_it_ends_is_terminating() {
        for (conditions, expected) in [
            (json!({}), (true, false)),
            (json!({"ready": false}), (false, false)),
            (json!({"ready": false, "serving": true, "terminating": true}), (false, true)),
            (json!({"ready": false, "serving": false, "terminating": true}), (false, false)),
            (json!({"ready": false, "serving": true}), (false, false)),
            (json!({"ready": false, "terminating": true}), (false, false)),
            (json!({"ready": true, "serving": true, "terminating": true}), (true, false)),
        ] {
            let slice = serde_json::from_value(json!({
                "metadata": {
                    "name": "web-1", "namespace": "shop",
                    "labels": {"kubernetes.io/service-name": "web"},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.0.0.1"], "conditions": conditions.clone()}],
            }));
            let workloads = read_endpoints(&slice.unwrap());
            assert_eq!((workloads[0].ready, workloads[0].terminating), expected, "{conditions}");
        }
    }

    #[test]
    fn a_slice_without_a_service_has_no_workloads() {
        let slice = json!({
            "metadata": {"name": "web-1", "namespace": "shop"}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"]}],
        });
        assert_eq!(read_endpoints(&serde_json::from_value(slice).unwrap()), []);
    }
}
