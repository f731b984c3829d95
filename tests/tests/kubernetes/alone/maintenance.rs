//! What operators do to a cluster while requests go through a mesh in it: none may fail.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leno_tests::cluster::{kubectl, printed};
use leno_tests::eventually;

use crate::under_load::{Load, prepared};

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_drained_node_fails_no_request() {
    let nodes = printed(&kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]));
    let mut nodes: Vec<_> = nodes.split(' ').collect();
    nodes.sort_unstable();
    let [_, drained] = nodes[..] else { panic!("two nodes, not {nodes:?}") };
    let namespace = prepared("drained");
    namespace.apply(
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: server}, spec: {minAvailable: 1, \
         selector: {matchLabels: {app: server}}}}",
    );
    printed(&namespace.kubectl(&["scale", "deployment/server", "--replicas=4"]));
    namespace.wait_ready();
    let there = || {
        let field = format!("--field-selector=spec.nodeName={drained}");
        let pods = namespace.kubectl(&["get", "pods", "-l", "app=server", &field, "-o", "name"]);
        printed(&pods).lines().count()
    };
    assert!(there() > 0, "the node has some of the pods");
    let load = Load::start(&namespace, "http://server/", 40);
    let drain = ["drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--force"];
    printed(&kubectl(&[&drain[..], &["--timeout=120s"]].concat()));
    assert_eq!(there(), 0);
    let (requests, failed) = load.end();
    printed(&kubectl(&["uncordon", drained]));
    assert!(requests > 1000, "{requests}");
    assert_eq!(failed, serde_json::json!({}));
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_restarted_api_server_fails_no_request() {
    let namespace = prepared("restarted");
    let load = Load::start(&namespace, "http://server/", 30);
    let before = api_server().expect("an API server runs");
    let killed = Command::new("kill").args(["-9", &before.to_string()]).status().unwrap();
    assert!(killed.success());
    eventually("another API server is ready", Duration::from_secs(180), || {
        let other = api_server().filter(|pid| *pid != before)?;
        kubectl(&["get", "--raw", "/readyz"]).status.success().then_some(other)
    });
    // What follows it goes on: a new pod joins, and is called.
    printed(&namespace.kubectl(&["scale", "deployment/server", "--replicas=3"]));
    printed(&namespace.kubectl(&["rollout", "status", "deployment/server", "--timeout=120s"]));
    let (requests, failed) = load.end();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failed, serde_json::json!({}));
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn killed_control_planes_fail_no_request() {
    let namespace = prepared("killed");
    let load = Load::start(&namespace, "http://server/", 30);
    let pods = ["-n", "leno-system", "delete", "pods", "-l", "app.kubernetes.io/name=leno-control"];
    printed(&kubectl(&[&pods[..], &["--force", "--grace-period=0"]].concat()));
    let (requests, failed) = load.end();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failed, serde_json::json!({}));
    // And what comes back serves: a new pod joins.
    printed(&namespace.kubectl(&["scale", "deployment/server", "--replicas=3"]));
    printed(&namespace.kubectl(&["rollout", "status", "deployment/server", "--timeout=120s"]));
}

/// The process of this cluster's API server, which starts again when it ends.
fn api_server() -> Option<u32> {
    let config = std::env::var_os("KUBECONFIG").expect("no cluster: run ./test kubernetes");
    let state = Path::new(&config).parent().expect("it is in the directory of the cluster's state");
    let certificate = format!("--tls-cert-file={}/pki/apiserver.crt", state.display());
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.filter_map(|process| process.file_name().to_str()?.parse().ok()).find(|pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split(|byte| *byte == 0).any(|word| word == certificate.as_bytes())
    })
}
