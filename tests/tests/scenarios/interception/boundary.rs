//! Ingress and egress by policies of OSM and FSM.

use super::{CLIENT, EXTERNAL_CLIENT, PodNetwork, SERVER};
use leno_tests::is_root;

/// Settings that deny all traffic, also to external addresses, unless a policy permits it.
const DENY_SETTINGS: &str = "apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {defaultPolicy: deny, egress: deny}
";

/// Returns a policy that opens the server's port to a range of addresses.
fn ingress_policy(group: &str, kind: &str, range: &str) -> String {
    format!(
        "apiVersion: {group}/v1alpha1\nkind: {kind}\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{backends: [{{name: server, port: {{number: 8080, protocol: http}}}}], \
         sources: [{{kind: IPRange, name: {range}}}]}}\n"
    )
}

#[test]
fn external_clients_are_accepted_on_ports_opened_by_a_policy() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let mut pods = PodNetwork::start_pods();
    pods.start_server(SERVER, 8080);
    pods.start_sidecar(SERVER, "server");
    pods.control.write("settings.yaml", DENY_SETTINGS);
    let (permitted_range, other_range) =
        (pods.pod_address(EXTERNAL_CLIENT) + "/32", pods.pod_address(CLIENT) + "/32");
    for (group, kind) in [
        ("policy.openservicemesh.io", "IngressBackend"),
        ("policy.flomesh.io", "IngressBackend"),
        ("policy.flomesh.io", "AccessControl"),
    ] {
        pods.control.write("open.yaml", &ingress_policy(group, kind, &permitted_range));
        pods.wait_for_response(EXTERNAL_CLIENT, SERVER, 8080, "200");
        // No other client is accepted, although the other client is external as well.
        assert_eq!(pods.request_from(CLIENT, SERVER, 8080), "reset", "{group} {kind}");
        pods.control.write("open.yaml", &ingress_policy(group, kind, &other_range));
        pods.wait_for_response(CLIENT, SERVER, 8080, "200");
        assert_eq!(pods.request_from(EXTERNAL_CLIENT, SERVER, 8080), "reset", "{group} {kind}");
    }
    pods.control.write("open.yaml", "");
    pods.wait_for_response(CLIENT, SERVER, 8080, "reset");
}

/// Returns the egress policy of the client.
fn egress_policy(destination: &str) -> String {
    format!(
        "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: Egress\n\
         metadata: {{name: out, namespace: shop}}\n\
         spec: {{sources: [{{kind: ServiceAccount, name: client, namespace: shop}}], {destination}}}\n"
    )
}

#[test]
fn an_egress_policy_permits_an_account_to_reach_external_servers() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let mut pods = PodNetwork::start_pods();
    pods.start_server(EXTERNAL_CLIENT, 8080);
    pods.start_server(EXTERNAL_CLIENT, 8081);
    pods.start_sidecar(CLIENT, "client");
    pods.wait_for_response(CLIENT, EXTERNAL_CLIENT, 8080, "200");
    pods.control.write("settings.yaml", DENY_SETTINGS);
    pods.wait_for_response(CLIENT, EXTERNAL_CLIENT, 8080, "reset");
    let server_address = pods.pod_address(EXTERNAL_CLIENT);
    let address_destination = "ipAddresses: [THERE/32], ports: [{number: 8080, protocol: tcp}]";
    pods.control
        .write("out.yaml", &egress_policy(&address_destination.replace("THERE", &server_address)));
    pods.wait_for_response(CLIENT, EXTERNAL_CLIENT, 8080, "200");
    assert_eq!(pods.request_from(CLIENT, EXTERNAL_CLIENT, 8081), "reset");
    // The host of the request decides here. It is the address of the server, so the requests succeed.
    let host_destination = "hosts: [THERE], ports: [{number: 8081, protocol: http}]";
    pods.control
        .write("out.yaml", &egress_policy(&host_destination.replace("THERE", &server_address)));
    pods.wait_for_response(CLIENT, EXTERNAL_CLIENT, 8081, "200");
    pods.wait_for_response(CLIENT, EXTERNAL_CLIENT, 8080, "reset");
    pods.control
        .write("out.yaml", &egress_policy(&host_destination.replace("THERE", "api.example")));
    pods.wait_for_response(CLIENT, EXTERNAL_CLIENT, 8081, "403");
    pods.control.write("out.yaml", "");
    pods.wait_for_response(CLIENT, EXTERNAL_CLIENT, 8081, "reset");
}
