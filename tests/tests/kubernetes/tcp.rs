//! Opaque TCP between Pods: client-first and server-first protocols, and authorization.

use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, kubectl};
use leno_tests::eventually;

/// Returns the manifests of a server of a line protocol and of its Service with a port named `port`. The server
/// sends `banner` first.
pub(super) fn line_server(name: &str, banner: &str, port: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}}}}}
---
{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: {name}}}}}, spec: {{serviceAccountName: {name}, containers: [
  {{name: app, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [tcp, -banner, '{banner}'], ports: [{{containerPort: 9000}}]}}]}}}}
---
{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{selector: {{app: {name}}}, ports: [{{name: {port}, port: 9000}}]}}}}
"
    )
}

/// Returns the response to a client that sends one line, if any.
pub(super) fn exchange_line(namespace: &TestNamespace, client: &str, server: &str) -> String {
    let command = format!("(echo hello; sleep 1) | nc -w 3 {server} 9000");
    let output = namespace.exec(client, &["sh", "-c", &command]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until the response to one line is the expected one.
pub(super) fn expect_lines(
    namespace: &TestNamespace,
    client: &str,
    server: &str,
    is_expected: impl Fn(&str) -> bool,
) {
    eventually(
        &format!("{client} gets the expected lines from {server}"),
        Duration::from_secs(90),
        || is_expected(&exchange_line(namespace, client, server)).then_some(()),
    );
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn client_first_and_server_first_protocols_work() {
    let namespace = TestNamespace::new("tcp", SidecarInjection::Enabled);
    namespace.create_client("client");
    namespace.apply_manifests(
        &[line_server("echo", "", "tcp-echo"), line_server("first", "welcome", "tcp-first")]
            .join("---\n"),
    );
    // No protocol is declared.
    namespace.apply_manifests(&line_server("unnamed", "welcome", "lines"));
    namespace.wait_ready();
    expect_lines(&namespace, "client", "echo", |lines| lines == "pod=echo line=hello\n");
    for name in ["first", "unnamed"] {
        let expected = format!("welcome from {name}\npod={name} line=hello\n");
        expect_lines(&namespace, "client", name, |lines| lines == expected);
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_strict_namespace_requires_a_tcp_route() {
    let namespace = TestNamespace::with_metadata(
        "tcpstrict",
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/default-policy: deny}",
    );
    namespace.create_client("client");
    namespace.apply_manifests(&line_server("echo", "", "tcp-echo"));
    namespace.wait_ready();
    expect_lines(&namespace, "client", "echo", str::is_empty);
    let policies = "
{apiVersion: specs.smi-spec.io/v1alpha4, kind: TCPRoute, metadata: {name: route}, spec: {matches: {ports: [9000]}}}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: target}
spec:
  destination: {kind: ServiceAccount, name: echo, namespace: NAMESPACE}
  rules: [{kind: TCPRoute, name: route}]
  sources: [{kind: ServiceAccount, name: client, namespace: NAMESPACE}]
";
    namespace.apply_manifests(&policies.replace("NAMESPACE", namespace.name()));
    expect_lines(&namespace, "client", "echo", |lines| lines == "pod=echo line=hello\n");
    expect_stdout(&kubectl(&["-n", namespace.name(), "delete", "traffictarget", "target"]));
    expect_lines(&namespace, "client", "echo", str::is_empty);
}
