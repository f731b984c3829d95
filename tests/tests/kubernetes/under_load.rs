//! Load on a mesh at a constant rate: no request may fail, except by the application itself.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, kubectl, program_image};
use leno_tests::eventually;
use serde_json::Value;

/// A Pod that sends requests at a constant rate until it is stopped.
pub(crate) struct LoadPod<'a> {
    namespace: &'a TestNamespace,
    start_time: Instant,
}

impl<'a> LoadPod<'a> {
    /// Starts the load on the first node, with persistent connections.
    pub(crate) fn start(namespace: &'a TestNamespace, url: &str) -> Self {
        Self::start_load(namespace, url, &node_names()[0], "")
    }

    /// Starts the load on another node than `node`.
    pub(crate) fn start_on_other_node(namespace: &'a TestNamespace, url: &str, node: &str) -> Self {
        let other_node =
            node_names().into_iter().find(|name| name != node).expect("there is another node");
        Self::start_load(namespace, url, &other_node, "")
    }

    /// Starts the load with a new connection for each request.
    pub(crate) fn start_with_new_connections(namespace: &'a TestNamespace, url: &str) -> Self {
        Self::start_load(namespace, url, &node_names()[0], ", --disable-keepalive")
    }

    fn start_load(
        namespace: &'a TestNamespace,
        url: &str,
        node: &str,
        extra_arguments: &str,
    ) -> Self {
        let image = program_image();
        let namespace_name = namespace.name();
        namespace.apply_manifests(&format!(
            "apiVersion: batch/v1
kind: Job
metadata: {{name: load}}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      # A node that stays when others are drained.
      nodeSelector: {{kubernetes.io/hostname: {node}}}
      containers:
      - name: load
        image: {image}
        imagePullPolicy: Never
        # Not that of the sidecar, whose connections are left alone.
        securityContext: {{runAsUser: 2000}}
        env: [{{name: {LOAD_VARIABLE}, value: {namespace_name}}}]
        args: [load, '{url}', --rate, '100', -c, '8', --warmup, 1s, -d, 15m, -o, json{extra_arguments}]
"
        ));
        eventually("the load runs", Duration::from_secs(180), || {
            let state = namespace.kubectl(&["get", "job/load", "-o", "jsonpath={.status.ready}"]);
            (expect_stdout(&state) == "1").then_some(())
        });
        Self { namespace, start_time: Instant::now() }
    }

    /// Stops the load after at least half a minute; returns the number of requests and the failures. All
    /// actions in between took place under load.
    pub(crate) fn stop_load(self) -> (u64, Value) {
        eventually("the load has run for long enough", 2 * MIN_DURATION, || {
            (self.start_time.elapsed() >= MIN_DURATION).then_some(())
        });
        let variable = format!("{LOAD_VARIABLE}={}", self.namespace.name());
        let process =
            find_process("environ", &variable).expect("the load runs until it is stopped");
        let output = Command::new("kill").args(["-INT", &process.to_string()]).status().unwrap();
        assert!(output.success());
        eventually("the load ends", Duration::from_secs(60), || {
            let state_path = "jsonpath={.status.succeeded}{.status.failed}";
            let state =
                expect_stdout(&self.namespace.kubectl(&["get", "job/load", "-o", state_path]));
            (!state.is_empty()).then_some(())
        });
        let log = expect_stdout(&self.namespace.kubectl(&["logs", "job/load", "-c", "load"]));
        let report: Value = serde_json::from_str(&log).expect(&log);
        (report["requests"].as_u64().unwrap_or_default(), report["errors_by_kind"].clone())
    }
}

/// Returns the ID of a process of this machine, which includes the cluster's, whose command line (`file` is
/// `cmdline`) or environment (`environ`) has an entry equal to `expected`.
pub(crate) fn find_process(file: &str, expected: &str) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.filter_map(|process| process.file_name().to_str()?.parse().ok()).find(|pid: &u32| {
        let strings = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        strings.split(|byte| *byte == 0).any(|argument| argument == expected.as_bytes())
    })
}

/// Returns the sorted names of the nodes.
pub(crate) fn node_names() -> Vec<String> {
    let nodes =
        expect_stdout(&kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]));
    let mut nodes: Vec<String> = nodes.split(' ').map(str::to_owned).collect();
    nodes.sort_unstable();
    nodes
}

/// Creates a meshed namespace with two ready servers.
pub(crate) fn start_servers(name: &str) -> TestNamespace {
    let namespace = TestNamespace::new(name, SidecarInjection::Enabled);
    namespace.create_http_server("server", 2);
    namespace.wait_ready();
    namespace
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_rolling_restart_fails_no_request() {
    let namespace = start_servers("rolling");
    let load = LoadPod::start(&namespace, "http://server/");
    expect_stdout(&namespace.kubectl(&["rollout", "restart", "deployment/server"]));
    expect_stdout(&namespace.kubectl(&[
        "rollout",
        "status",
        "deployment/server",
        "--timeout=120s",
    ]));
    expect_stdout(&namespace.kubectl(&["scale", "deployment/server", "--replicas=4"]));
    expect_stdout(&namespace.kubectl(&[
        "rollout",
        "status",
        "deployment/server",
        "--timeout=120s",
    ]));
    expect_stdout(&namespace.kubectl(&["scale", "deployment/server", "--replicas=1"]));
    eventually("three of the pods are gone", Duration::from_secs(120), || {
        (namespace.list_pods("server").len() == 1).then_some(())
    });
    let (requests, failures) = load.stop_load();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failures, serde_json::json!({}));
}

/// The environment variable that identifies the process of a load on this machine.
const LOAD_VARIABLE: &str = "LOAD_OF";
/// The minimum duration of a load: long enough for more than a thousand requests.
const MIN_DURATION: Duration = Duration::from_secs(30);
