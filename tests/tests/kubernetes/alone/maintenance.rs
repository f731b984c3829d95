//! Cluster maintenance under load: no request may fail.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leno_tests::cluster::{TestNamespace, expect_stdout, kubectl};
use leno_tests::eventually;

use crate::gateways::{create_gateway, external_clients_at};
use crate::under_load::{LoadPod, find_process, node_names, start_servers};

/// Returns the number of Pods with a label on a node.
fn count_pods_on(node: &str, namespace: &TestNamespace, label: &str) -> usize {
    let field = format!("--field-selector=spec.nodeName={node}");
    expect_stdout(&namespace.kubectl(&["get", "pods", "-l", label, &field, "-o", "name"]))
        .lines()
        .count()
}

/// Drains a node under load; no request may fail.
#[allow(clippy::print_stderr, reason = "the number of requests belongs to the result")]
fn drain_node(node: &str, load: LoadPod<'_>, is_empty: impl Fn() -> bool) {
    let drain = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force"];
    let result = kubectl(&[&drain[..], &["--timeout=120s"]].concat());
    let is_empty = is_empty();
    // Other scenarios need the node, even if the drain has failed.
    expect_stdout(&kubectl(&["uncordon", node]));
    expect_stdout(&result);
    assert!(is_empty);
    let (requests, failures) = load.stop_load();
    eprintln!("{node} drained: of {requests} requests failed {failures}");
    assert!(requests > 1000, "{requests}");
    assert_eq!(failures, serde_json::json!({}));
}

/// One of the drained nodes runs the DNS server.
#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn each_drained_node_fails_no_request() {
    for node in node_names() {
        let namespace = start_servers("drained");
        namespace.apply_manifests(
            "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: server}, spec: {minAvailable: 1, \
             selector: {matchLabels: {app: server}}}}",
        );
        expect_stdout(&namespace.kubectl(&["scale", "deployment/server", "--replicas=4"]));
        namespace.wait_ready();
        let count_pods = || count_pods_on(&node, &namespace, "app=server");
        assert!(count_pods() > 0, "the node has some of the pods");
        let load = LoadPod::start_on_other_node(&namespace, "http://server/", &node);
        drain_node(&node, load, || count_pods() == 0);
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_drained_node_fails_no_request_of_a_gateway() {
    // Loads run on the first node.
    let node = node_names().pop().expect("there are nodes");
    let namespace = start_servers("fronted");
    let address = create_gateway(&namespace);
    expect_stdout(&namespace.kubectl(&["scale", "deployment/leno-gateway-front", "--replicas=2"]));
    let rolled_out = ["rollout", "status", "deployment/leno-gateway-front", "--timeout=120s"];
    expect_stdout(&namespace.kubectl(&rolled_out));
    let count_pods =
        || count_pods_on(&node, &namespace, "gateway.networking.k8s.io/gateway-name=front");
    assert!(count_pods() > 0, "the node has some of the pods");
    let (external_clients, url) = external_clients_at(&address);
    let load = LoadPod::start(&external_clients, &url);
    drain_node(&node, load, || count_pods() == 0);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_restarted_api_server_fails_no_request() {
    let namespace = start_servers("restarted");
    let load = LoadPod::start(&namespace, "http://server/");
    let old_process = find_api_server().expect("an API server runs");
    let result = Command::new("kill").args(["-9", &old_process.to_string()]).status().unwrap();
    assert!(result.success());
    eventually("another API server is ready", Duration::from_secs(180), || {
        let new_process = find_api_server().filter(|pid| *pid != old_process)?;
        kubectl(&["get", "--raw", "/readyz"]).status.success().then_some(new_process)
    });
    // The mesh continues to work: a new Pod joins and receives requests.
    expect_stdout(&namespace.kubectl(&["scale", "deployment/server", "--replicas=3"]));
    expect_stdout(&namespace.kubectl(&[
        "rollout",
        "status",
        "deployment/server",
        "--timeout=120s",
    ]));
    let (requests, failures) = load.stop_load();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failures, serde_json::json!({}));
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn killed_control_planes_fail_no_request() {
    let namespace = start_servers("killed");
    let load = LoadPod::start(&namespace, "http://server/");
    let pods = ["-n", "leno-system", "delete", "pods", "-l", "app.kubernetes.io/name=leno-control"];
    expect_stdout(&kubectl(&[&pods[..], &["--force", "--grace-period=0"]].concat()));
    // The restarted control plane works: a new Pod joins.
    expect_stdout(&namespace.kubectl(&["scale", "deployment/server", "--replicas=3"]));
    expect_stdout(&namespace.kubectl(&[
        "rollout",
        "status",
        "deployment/server",
        "--timeout=120s",
    ]));
    let (requests, failures) = load.stop_load();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failures, serde_json::json!({}));
}

/// Returns the process of this cluster's API server, which is restarted when it exits.
fn find_api_server() -> Option<u32> {
    let config = std::env::var_os("KUBECONFIG").expect("no cluster: run ./test kubernetes");
    let state = Path::new(&config)
        .parent()
        .expect("the kubeconfig is in the state directory of the cluster");
    let certificate = format!("--tls-cert-file={}/pki/apiserver.crt", state.display());
    find_process("cmdline", &certificate)
}
