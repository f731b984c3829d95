//! gRPC between Pods: as plaintext with HTTP routes, and with the application's own TLS as opaque bytes.
#![allow(clippy::print_stderr, reason = "the last output shows why a scenario failed")]

use std::time::Duration;

use leno_tests::cluster::{TestNamespace, expect_stdout};
use leno_tests::eventually;

/// Returns a gRPC server and its Service.
fn grpc_server(name: &str, arguments: &str, protocol: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}}}}}
---
{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: {name}}}}}, spec: {{serviceAccountName: {name}, containers: [
  {{name: app, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [grpc{arguments}], ports: [{{containerPort: 9000}}]}}]}}}}
---
{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{selector: {{app: {name}}}, ports: [
  {{name: calls, port: 9000, appProtocol: {protocol}}}]}}}}
"
    )
}

/// Policies that allow the account `caller` one method of `clear`, and everything of `secure`.
const POLICIES: &str = "
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: calls}
spec: {matches: [{name: check, pathRegex: /grpc.health.v1.Health/Check, methods: [POST]}]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: clear}
spec:
  destination: {kind: ServiceAccount, name: clear, namespace: NAMESPACE}
  rules: [{kind: HTTPRouteGroup, name: calls, matches: [check]}]
  sources: [{kind: ServiceAccount, name: caller, namespace: NAMESPACE}]
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: calls}
spec: {matches: {ports: [9000]}}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: secure}
spec:
  destination: {kind: ServiceAccount, name: secure, namespace: NAMESPACE}
  rules: [{kind: TCPRoute, name: calls}]
  sources: [{kind: ServiceAccount, name: caller, namespace: NAMESPACE}]
";

/// The output of a successful call.
const SERVED_OUTPUT: &str = "OK SERVING";
/// The output of a call that no policy allows.
const DENIED_OUTPUT: &str = "code = PermissionDenied desc = denied-outbound";
/// The output of an opaque call that no policy allows.
const RESET_OUTPUT: &str = "code = Unavailable";
/// The output of a call that matches no route of a policy.
const NO_ROUTE_OUTPUT: &str = "code = Unimplemented desc = no-policy-route";

/// Waits until the output of a call contains a text.
fn expect_call(namespace: &TestNamespace, arguments: &[&str], expected: &str) {
    let mut last_output = String::new();
    eventually(
        &format!("call {arguments:?} ends with {expected}"),
        Duration::from_secs(90),
        || {
            let output = namespace.exec("caller", &[&["/testapp", "call"][..], arguments].concat());
            let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
            if stdout != last_output {
                eprintln!("call {arguments:?} -> {stdout}");
            }
            last_output = stdout;
            last_output.contains(expected).then_some(())
        },
    );
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn plaintext_grpc_is_routed_and_encrypted_grpc_is_forwarded_as_tcp() {
    let strict_metadata =
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/default-policy: deny}";
    let namespace = TestNamespace::with_metadata("calls", strict_metadata);
    namespace.apply_manifests(
        &[grpc_server("clear", "", "grpc"), grpc_server("secure", ", -tls", "tcp")].join("---\n"),
    );
    namespace.create_caller("caller");
    namespace.wait_ready();
    let plaintext = |method| ["clear:9000", method];
    let secure = ["-tls", "secure:9000", "/grpc.health.v1.Health/Check"];
    // A client without a policy is rejected: plaintext calls with a status, opaque bytes with a reset.
    expect_call(&namespace, &plaintext("/grpc.health.v1.Health/Check"), DENIED_OUTPUT);
    expect_call(&namespace, &secure, RESET_OUTPUT);
    namespace.apply_manifests(&POLICIES.replace("NAMESPACE", namespace.name()));
    expect_call(&namespace, &plaintext("/grpc.health.v1.Health/Check"), SERVED_OUTPUT);
    // The server does not implement this method either, but would report that with another description.
    expect_call(&namespace, &plaintext("/grpc.health.v1.Health/Other"), NO_ROUTE_OUTPUT);
    expect_call(&namespace, &secure, SERVED_OUTPUT);
    expect_stdout(&namespace.kubectl(&["delete", "traffictarget", "clear", "secure"]));
    expect_call(&namespace, &plaintext("/grpc.health.v1.Health/Check"), DENIED_OUTPUT);
    expect_call(&namespace, &secure, RESET_OUTPUT);
}
