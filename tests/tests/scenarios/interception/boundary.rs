//! Ingress and egress by policies of OSM and FSM.

use super::{CLIENT, EXTERNAL_CLIENT, Pods, SERVER};
use leno_tests::is_root;

const STRICT: &str = "apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {trafficMode: strict, egress: deny}
";

/// Returns a policy that opens the server's port to a range of addresses.
fn open(group: &str, kind: &str, range: &str) -> String {
    format!(
        "apiVersion: {group}/v1alpha1\nkind: {kind}\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{backends: [{{name: server, port: {{number: 8080, protocol: http}}}}], \
         sources: [{{kind: IPRange, name: {range}}}]}}\n"
    )
}

#[test]
fn external_clients_come_in_where_a_policy_opens_the_port() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let mut pods = Pods::up();
    pods.serve(SERVER, 8080);
    pods.mesh(SERVER, "server");
    pods.control.write("settings.yaml", STRICT);
    let (named, other) = (pods.address(EXTERNAL_CLIENT) + "/32", pods.address(CLIENT) + "/32");
    for (group, kind) in [
        ("policy.openservicemesh.io", "IngressBackend"),
        ("policy.flomesh.io", "IngressBackend"),
        ("policy.flomesh.io", "AccessControl"),
    ] {
        pods.control.write("open.yaml", &open(group, kind, &named));
        pods.reaches((EXTERNAL_CLIENT, SERVER, 8080), "200");
        // No other client is accepted, although equally external.
        assert_eq!(pods.ask(CLIENT, SERVER, 8080), "reset", "{group} {kind}");
        pods.control.write("open.yaml", &open(group, kind, &other));
        pods.reaches((CLIENT, SERVER, 8080), "200");
        assert_eq!(pods.ask(EXTERNAL_CLIENT, SERVER, 8080), "reset", "{group} {kind}");
    }
    pods.control.write("open.yaml", "");
    pods.reaches((CLIENT, SERVER, 8080), "reset");
}

/// Returns the egress policy of the client.
fn out(rest: &str) -> String {
    format!(
        "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: Egress\n\
         metadata: {{name: out, namespace: shop}}\n\
         spec: {{sources: [{{kind: ServiceAccount, name: client, namespace: shop}}], {rest}}}\n"
    )
}

#[test]
fn an_account_goes_out_where_a_policy_says_so() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let mut pods = Pods::up();
    pods.serve(EXTERNAL_CLIENT, 8080);
    pods.serve(EXTERNAL_CLIENT, 8081);
    pods.mesh(CLIENT, "client");
    pods.reaches((CLIENT, EXTERNAL_CLIENT, 8080), "200");
    pods.control.write("settings.yaml", STRICT);
    pods.reaches((CLIENT, EXTERNAL_CLIENT, 8080), "reset");
    let there = pods.address(EXTERNAL_CLIENT);
    let by_address = "ipAddresses: [THERE/32], ports: [{number: 8080, protocol: tcp}]";
    pods.control.write("out.yaml", &out(&by_address.replace("THERE", &there)));
    pods.reaches((CLIENT, EXTERNAL_CLIENT, 8080), "200");
    assert_eq!(pods.ask(CLIENT, EXTERNAL_CLIENT, 8081), "reset");
    // Here the request's host decides, which is the address: the requests succeed.
    let by_host = "hosts: [THERE], ports: [{number: 8081, protocol: http}]";
    pods.control.write("out.yaml", &out(&by_host.replace("THERE", &there)));
    pods.reaches((CLIENT, EXTERNAL_CLIENT, 8081), "200");
    pods.reaches((CLIENT, EXTERNAL_CLIENT, 8080), "reset");
    pods.control.write("out.yaml", &out(&by_host.replace("THERE", "api.example")));
    pods.reaches((CLIENT, EXTERNAL_CLIENT, 8081), "403");
    pods.control.write("out.yaml", "");
    pods.reaches((CLIENT, EXTERNAL_CLIENT, 8081), "reset");
}
