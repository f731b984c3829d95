//! Sidecar queries in the Pods of the control plane: each responds for its own sidecars and names the others.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, kubectl};
use leno_tests::eventually;
use serde_json::Value;

/// Returns the names of the running Pods of the control plane.
fn list_control_plane_pods() -> Vec<String> {
    let selector = ["-l", "app.kubernetes.io/name=leno-control"];
    let running =
        ["--field-selector=status.phase=Running", "-o", "jsonpath={.items[*].metadata.name}"];
    let get = [&["-n", "leno-system", "get", "pods"], &selector[..], &running[..]].concat();
    expect_stdout(&kubectl(&get)).split_whitespace().map(str::to_owned).collect()
}

/// Runs `leno` in a Pod of the control plane.
fn run_leno(pod: &str, arguments: &[&str]) -> Output {
    let exec = ["-n", "leno-system", "exec", pod, "--", "/leno"];
    let data = ["--data", "/var/lib/leno/control"];
    kubectl(&[&exec[..], arguments, &data].concat())
}

/// Returns the text of the standard output, followed by that of the standard error.
fn combined_output(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

/// Returns the sidecars in a namespace that are connected to a Pod of the control plane.
fn list_sidecars(pod: &str, namespace: &TestNamespace) -> Vec<String> {
    let proxies = run_leno(pod, &["get", "proxies", "-o", "json"]);
    let proxies: Vec<Value> = serde_json::from_slice(&proxies.stdout).unwrap_or_default();
    let names = proxies.iter().filter_map(|proxy| proxy["workload"].as_str());
    let prefix = format!("{}/", namespace.name());
    names.filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect()
}

/// Returns the admin address of a Pod's sidecar, as logged at its start.
fn admin_address(namespace: &TestNamespace, pod: &str) -> Option<String> {
    let log = namespace.kubectl(&["logs", pod, "-c", "leno-proxy"]);
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let (_, value) = log.split_once(" admin=")?;
    value.split_whitespace().next().map(str::to_owned)
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn each_control_plane_queries_its_own_sidecars() {
    let namespace = TestNamespace::new("queried", SidecarInjection::Enabled);
    namespace.create_http_server("web", 4);
    namespace.create_client("front");
    namespace.wait_ready();
    let servers = namespace.list_pods("web");
    let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
    namespace.expect_reached("front", &["http://web/"], &servers);
    let pods = list_control_plane_pods();
    eventually("each sidecar is connected to one control plane", MAX_WAIT, || {
        (pods.iter().map(|pod| list_sidecars(pod, &namespace).len()).sum::<usize>() == 5)
            .then_some(())
    });
    let service = format!("{}/web", namespace.name());
    for pod in &pods {
        let own_sidecars = list_sidecars(pod, &namespace);
        let connections = run_leno(pod, &["get", "connections", "-o", "json"]);
        let rows: Vec<Value> = serde_json::from_slice(&connections.stdout).unwrap();
        for name in &own_sidecars {
            let row = rows.iter().find(|row| row["workload"] == **name);
            assert!(row.is_some_and(|row| row["open"].is_u64()), "{name} at {pod}: {row:?}");
            let output = combined_output(&run_leno(pod, &["diagnose", name, "--to", &service]));
            assert!(output.contains("✓ sidecar") && output.contains("✓ connectivity"), "{output}");
        }
        if own_sidecars.len() < 5 {
            let output = combined_output(&run_leno(pod, &["get", "connections"]));
            assert!(output.contains("scope: this control plane has "), "{output}");
            let output = combined_output(&run_leno(pod, &["get", "workloads"]));
            assert!(output.contains("other-replica"), "{output}");
        }
        let output = combined_output(&run_leno(pod, &["status"]));
        // Other scenarios create and delete Pods at the same time.
        let prefix = format!("{}/", namespace.name());
        let is_own =
            |line: &&str| line.contains("without a connected sidecar") && line.contains(&prefix);
        assert_eq!(output.lines().find(is_own), None, "{output}");
    }
}

/// Taps with a killed client. The container runtime keeps the command running; with `-i` it closes the standard
/// input, which ends the tap long before its hour is over.
#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_tap_ends_after_its_client_was_killed() {
    let namespace = TestNamespace::new("untapped", SidecarInjection::Enabled);
    namespace.create_http_server("web", 1);
    namespace.create_client("front");
    namespace.wait_ready();
    let front = format!("{}/front", namespace.name());
    let has_front = |pod: &String| list_sidecars(pod, &namespace).contains(&front);
    let (pod, _) = eventually("the sidecar is connected", MAX_WAIT, || {
        list_control_plane_pods().into_iter().find(has_front)
    });
    let service = format!("{}/web", namespace.name());
    let count_taps = || {
        let url = format!("http://{}/config", admin_address(&namespace, "front")?);
        let output =
            namespace.kubectl(&["exec", "front", "-c", "client", "--", "curl", "-s", &url]);
        let config: Value = serde_json::from_slice(&output.stdout).ok()?;
        let taps = config["taps"].as_array()?.iter();
        Some(taps.filter(|tap| tap["service"] == *service).count())
    };
    for (interactive, tap_duration) in [(false, "30s"), (true, "1h")] {
        let mut client = Command::new("kubectl");
        client.args(["-n", "leno-system", "exec"]).args(interactive.then_some("-i"));
        client.args([pod.as_str(), "--", "/leno", "tap", &service, "--duration", tap_duration]);
        client
            .args(["--data", "/var/lib/leno/control"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut client = client.spawn().expect("kubectl runs");
        eventually("the tap is open", MAX_WAIT, || (count_taps()? == 1).then_some(()));
        // Input that ends in the first second of a tap is inconclusive: a few queries take longer.
        for _ in 0..QUERY_COUNT {
            assert_eq!(count_taps(), Some(1), "the tap is open while its client runs");
        }
        // The client exits without closing its connection to the API server.
        client.kill().expect("the client runs");
        client.wait().expect("the client has exited");
        eventually("no tap is open", MAX_WAIT, || (count_taps()? == 0).then_some(()));
    }
}

/// The number of queries for which a tap must stay open: together more than a second. Each query runs two
/// commands in Pods, and each command takes at least a tenth of a second.
const QUERY_COUNT: usize = 8;
const MAX_WAIT: Duration = Duration::from_secs(120);
