//! Network failure of a node: other nodes stop sending requests to its Pods before Kubernetes notices.

use std::process::Command;
use std::time::{Duration, Instant};

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, http_server};
use leno_tests::eventually;
use serde_json::Value;

use crate::under_load::{LoadPod, node_names};

/// A node without network until this is dropped.
struct IsolatedNode(String);

impl IsolatedNode {
    fn isolate(node: &str) -> Self {
        set_link(node, "down");
        Self(node.to_owned())
    }
}

impl Drop for IsolatedNode {
    fn drop(&mut self) {
        set_link(&self.0, "up");
    }
}

/// Sets the link of a node `up` or `down`. The link at the bridge has the node's name.
fn set_link(node: &str, state: &str) {
    let result = Command::new("ip").args(["link", "set", node, state]).status().unwrap();
    assert!(result.success(), "the link of {node}");
}

/// Returns a Deployment of servers on one node, behind the Service `server`.
fn server_deployment(node: &str, name: &str, replicas: u32) -> String {
    // All servers have the label of the Service; the label `at` tells the Deployments apart.
    http_server(name, replicas, "")
        .replace(&format!("{{app: {name}}}, }}"), &format!("{{app: server, at: {name}}}}}"))
        .replace(
            &format!("{{matchLabels: {{app: {name}}}}}"),
            &format!("{{matchLabels: {{app: server, at: {name}}}}}"),
        )
        .replace(
            &format!("serviceAccountName: {name}"),
            &format!(
                "serviceAccountName: {name}\n      nodeSelector: {{kubernetes.io/hostname: {node}}}"
            ),
        )
}

/// Three of five servers are on a node without network for 25 s. Requests in progress there fail, at most one
/// per connection and server; after 3 s none fails, and 99 % take at most 1 s.
#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
#[allow(clippy::print_stderr, reason = "the figures are the result")]
fn a_node_without_network_fails_only_requests_in_progress() {
    let nodes = node_names();
    let [near_node, far_node] = &nodes[..] else { panic!("two nodes, not {nodes:?}") };
    let namespace = TestNamespace::new("cut-off", SidecarInjection::Enabled);
    namespace.apply_manifests(&server_deployment(near_node, "near", 2));
    namespace.apply_manifests(&server_deployment(far_node, "far", 3));
    namespace.apply_manifests(
        "{apiVersion: v1, kind: Service, metadata: {name: server}, spec: {selector: {app: server}, \
         ports: [{name: http, port: 80, targetPort: http}]}}",
    );
    namespace.wait_ready();
    // The DNS server may be on the failed node.
    let address = ["get", "service/server", "-o", "jsonpath={.spec.clusterIP}"];
    let url = format!("http://{}/", expect_stdout(&namespace.kubectl(&address)));
    let load = LoadPod::start(&namespace, &url);
    let isolated = IsolatedNode::isolate(far_node);
    let started = Instant::now();
    eventually("the detection time is over", DETECTION_TIME * 10, || {
        (started.elapsed() >= DETECTION_TIME).then_some(())
    });
    let late_report = namespace.kubectl(&[
        "exec", "job/load", "-c", "load", "--", "/leno", "load", &url, "--rate", "100", "-c", "8",
        "--warmup", "0s", "-d", "20s", "-o", "json",
    ]);
    eventually("the outage was long enough", OUTAGE * 10, || {
        (started.elapsed() >= OUTAGE).then_some(())
    });
    drop(isolated);
    let (requests, failures) = load.stop_load();
    let late_report: Value = serde_json::from_str(&expect_stdout(&late_report)).expect("a report");
    eprintln!("of {requests} failed {failures}; after {DETECTION_TIME:?}: {late_report}");
    assert!(requests > 1000, "{requests}");
    let failures: u64 = failures.as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert!(failures <= CONNECTIONS * SERVERS_CUT_OFF, "{failures} of {requests}");
    assert_eq!(late_report["errors_by_kind"], serde_json::json!({}), "{late_report}");
    // 100 requests per second for 20 s, with a margin of 5 %.
    assert!(late_report["requests"].as_u64() >= Some(1900), "{late_report}");
    assert!(late_report["latency_us"]["p99"].as_f64().expect("a latency") <= 1e6, "{late_report}");
}

/// The maximum time until other nodes stop sending requests to the isolated node.
const DETECTION_TIME: Duration = Duration::from_secs(3);
/// The time for which the node has no network.
const OUTAGE: Duration = Duration::from_secs(25);
/// The number of connections of the load.
const CONNECTIONS: u64 = 8;
/// The number of servers on the isolated node.
const SERVERS_CUT_OFF: u64 = 3;
