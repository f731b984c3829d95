//! Clients without a sidecar, and sidecars without a control plane: reports in every operator view.

use std::process::Command;
use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, kubectl};
use leno_tests::{eventually, leno_command};

/// Returns the notes of the events `PlaintextRejected` on a Pod.
fn rejection_notes(namespace: &TestNamespace, pod: &str) -> Vec<String> {
    let selector = format!("involvedObject.name={pod},reason=PlaintextRejected");
    let path = "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}";
    let notes = namespace.kubectl(&["get", "events", "--field-selector", &selector, "-o", path]);
    expect_stdout(&notes).lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_pod_has_an_event_for_each_client_without_a_sidecar() {
    let unmeshed = TestNamespace::new("legacy", SidecarInjection::Disabled);
    unmeshed.create_client("first");
    unmeshed.create_client("second");
    unmeshed.wait_ready();
    let meshed = TestNamespace::new("guarded", SidecarInjection::Enabled);
    meshed.create_http_server("server", 1);
    meshed.create_client("member");
    meshed.create_annotated_client("neighbor", "leno.dev/injection: disabled");
    meshed.wait_ready();
    let url = format!("http://server.{}/", meshed.name());
    meshed.expect_curl("member", &[&url], 0, 200);
    // Repeated rejections of one client are one event.
    unmeshed.expect_curl("first", &[&url], 56, 0);
    unmeshed.expect_curl("first", &[&url], 56, 0);
    unmeshed.expect_curl("second", &[&url], 56, 0);
    meshed.expect_curl("neighbor", &[&url], 56, 0);
    let servers = meshed.list_pods("server");
    let [pod] = servers.as_slice() else { panic!("one pod, not {servers:?}") };
    let address = |pod: &str| {
        expect_stdout(&unmeshed.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.podIP}"]))
    };
    // Readers of these events may have no access to the namespace of the first two.
    let expected = [
        format!("status.podIP={}` names its pod) to port 8080", address("first")),
        format!("status.podIP={}` names its pod) to port 8080", address("second")),
        "(pod neighbor) to port 8080".to_owned(),
    ];
    let count = |notes: &[String]| {
        let count_notes = |text: &String| notes.iter().filter(|note| note.contains(text)).count();
        expected.each_ref().map(count_notes)
    };
    let (notes, _) = eventually("each client has an event", MAX_WAIT, || {
        let notes = rejection_notes(&meshed, pod);
        count(&notes).iter().all(|count| *count > 0).then_some(notes)
    });
    assert_eq!((count(&notes), notes.len()), ([1, 1, 1], 3), "{notes:?}");
    assert!(notes.iter().all(|note| !note.contains(unmeshed.name())), "{notes:?}");
    assert!(notes[0].contains("annotation leno.dev/mtls: permissive"), "{notes:?}");
    // `kubectl describe` includes it: the event has the UID of the Pod.
    let described = expect_stdout(&meshed.kubectl(&["describe", "pod", pod]));
    assert!(described.contains("PlaintextRejected"), "{described}");
}

/// The client's sidecar does not intercept the port of the Service.
#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn the_event_about_a_pod_with_a_sidecar_reports_a_bypassed_mesh() {
    let namespace = TestNamespace::new("past", SidecarInjection::Enabled);
    namespace.create_http_server("server", 1);
    namespace.create_annotated_client(
        "by-port",
        "openservicemesh.io/outbound-port-exclusion-list: '80'",
    );
    namespace.wait_ready();
    namespace.expect_curl("by-port", &["http://server/"], 56, 0);
    let servers = namespace.list_pods("server");
    let [pod] = servers.as_slice() else { panic!("one pod, not {servers:?}") };
    let (notes, _) = eventually("the client has an event", MAX_WAIT, || {
        Some(rejection_notes(&namespace, pod)).filter(|notes| !notes.is_empty())
    });
    let expected =
        "(pod by-port) to port 8080; it has a sidecar and its connection bypasses the mesh";
    assert!(notes.iter().all(|note| note.contains(expected)), "{notes:?}");
    assert!(notes.iter().all(|note| !note.contains("start these clients")), "{notes:?}");
}

/// Returns the process ID of a Pod's sidecar.
fn find_sidecar_pid(namespace: &TestNamespace, pod: &str) -> String {
    let mut processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let process = entry.ok()?.file_name().into_string().ok()?;
        let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
        let has_variable = |name: &str, value: &str| {
            let expected = format!("{name}={value}");
            environment.split(|byte| *byte == 0).any(|variable| variable == expected.as_bytes())
        };
        let is_sidecar_of_pod =
            has_variable("POD_NAME", pod) && has_variable("POD_NAMESPACE", namespace.name());
        is_sidecar_of_pod.then_some(process)
    });
    processes.next().expect("the sidecar of the pod runs on this machine")
}

/// Returns the finding of `leno check --kubernetes` about connections of sidecars.
fn connections_finding() -> String {
    let output =
        leno_command().args(["check", "--kubernetes"]).output().expect("the program starts");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let lines = text.lines().filter(|line| line.contains("connections of sidecars"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_sidecar_without_a_control_plane_is_reported_by_check() {
    let namespace = TestNamespace::new("astray", SidecarInjection::Enabled);
    namespace.create_http_server("server", 1);
    namespace.create_client("client");
    namespace.wait_ready();
    namespace.expect_curl("client", &["http://server/"], 0, 200);
    let name = format!("{}/client", namespace.name());
    let previous_finding = connections_finding();
    assert!(
        !previous_finding.is_empty() && !previous_finding.contains(&name),
        "{previous_finding}"
    );
    // No packet of the Pod reaches a control plane, whatever its address.
    let query_addresses = |arguments: &[&str]| {
        expect_stdout(&kubectl(&[&["-n", "leno-system", "get"], arguments].concat()))
    };
    let service_addresses =
        query_addresses(&["service", "leno-control", "-o", "jsonpath={.spec.clusterIPs[*]}"]);
    let selector = "app.kubernetes.io/name=leno-control";
    let pod_addresses = query_addresses(&[
        "pods",
        "-l",
        selector,
        "-o",
        "jsonpath={.items[*].status.podIPs[*].ip}",
    ]);
    let pid = find_sidecar_pid(&namespace, "client");
    for address in service_addresses.split_whitespace().chain(pod_addresses.split_whitespace()) {
        let version = if address.contains(':') { "-6" } else { "-4" };
        let blackhole = ["ip", version, "route", "add", "blackhole", address];
        let result = Command::new("nsenter").args(["-t", &pid, "-n"]).args(blackhole).status();
        assert!(result.unwrap().success(), "{address}");
    }
    eventually("the sidecar without a connection is reported", MAX_WAIT, || {
        connections_finding().contains(&name).then_some(())
    });
    // The sidecar continues with its last configuration.
    namespace.expect_curl("client", &["http://server/"], 0, 200);
    let server = format!("{}/server", namespace.name());
    assert!(!connections_finding().contains(&server), "{}", connections_finding());
}

const MAX_WAIT: Duration = Duration::from_secs(180);
