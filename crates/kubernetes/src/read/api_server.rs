//! Reads the addresses of the API server from its Service and its EndpointSlice.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use leno_model::AddressClass;

use super::is_tcp;

/// Returns the addresses of the API server's Service, each with each of its ports.
pub(crate) fn service_addresses(service: &Service) -> BTreeSet<SocketAddr> {
    let Some(spec) = &service.spec else { return BTreeSet::new() };
    let addresses = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    let ports = spec.ports.iter().flatten().filter(|port| is_tcp(port.protocol.as_deref()));
    combine_addresses(addresses, ports.map(|port| port.port))
}

/// Returns the addresses of the API server's endpoints, ready or not: allowing an API server that is starting
/// is harmless.
pub(crate) fn endpoint_addresses(slice: &EndpointSlice) -> BTreeSet<SocketAddr> {
    let addresses = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
    let ports = slice.ports.iter().flatten().filter(|port| is_tcp(port.protocol.as_deref()));
    combine_addresses(addresses, ports.filter_map(|port| port.port))
}

/// Combines addresses and ports. Loopback and special addresses, such as a cloud's metadata server, are
/// excluded.
fn combine_addresses<'a>(
    addresses: impl Iterator<Item = &'a String>,
    ports: impl Iterator<Item = i32>,
) -> BTreeSet<SocketAddr> {
    let valid_ports = ports.filter_map(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    let ports: BTreeSet<u16> = valid_ports.take(MAX_API_SERVER_PORTS).collect();
    let usable_addresses = addresses
        .filter_map(|text| text.parse::<IpAddr>().ok())
        .map(|address| address.to_canonical())
        .filter(|address| !AddressClass::is_loopback_or_special(*address));
    let addresses: BTreeSet<IpAddr> = usable_addresses.take(MAX_API_SERVER_ADDRESSES).collect();
    let pairs =
        addresses.iter().flat_map(|address| ports.iter().map(move |port| (*address, *port)));
    pairs.map(SocketAddr::from).collect()
}

/// The maximum number of addresses. Every sidecar receives all of them; clusters have fewer than ten API
/// servers.
const MAX_API_SERVER_ADDRESSES: usize = 32;
/// The maximum number of ports: the API server has one.
const MAX_API_SERVER_PORTS: usize = 4;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sorted_strings(addresses: &BTreeSet<SocketAddr>) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_service_has_its_cluster_addresses() {
        let service = json!({"spec": {
            "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
            "ports": [{"name": "https", "port": 443, "targetPort": 6443}, {"port": 53, "protocol": "UDP"}],
        }});
        let addresses = service_addresses(&serde_json::from_value(service).unwrap());
        assert_eq!(sorted_strings(&addresses), ["10.96.0.1:443", "[fd00::1]:443"]);
        let headless = json!({"spec": {"clusterIP": "None", "ports": [{"port": 443}]}});
        let addresses = service_addresses(&serde_json::from_value(headless).unwrap());
        assert_eq!(sorted_strings(&addresses), [] as [&str; 0]);
    }

    #[test]
    fn endpoints_have_their_own_port_and_no_special_address() {
        let slice = json!({
            "addressType": "IPv4", "ports": [{"name": "https", "port": 6443}],
            "endpoints": [
                {"addresses": ["192.0.2.7"]}, {"addresses": ["192.0.2.8"], "conditions": {"ready": false}},
                {"addresses": ["127.0.0.1"]}, {"addresses": ["169.254.169.254"]}, {"addresses": ["name.example"]},
            ],
        });
        let addresses = endpoint_addresses(&serde_json::from_value(slice).unwrap());
        assert_eq!(sorted_strings(&addresses), ["192.0.2.7:6443", "192.0.2.8:6443"]);
        let many: Vec<_> =
            (0..200).map(|number| json!({"addresses": [format!("192.0.2.{number}")]})).collect();
        let slice = json!({"addressType": "IPv4", "ports": [{"port": 6443}], "endpoints": many});
        let addresses = endpoint_addresses(&serde_json::from_value(slice).unwrap());
        assert_eq!(addresses.len(), MAX_API_SERVER_ADDRESSES);
    }
}
