//! gRPC: every standard case of grpc-go's interoperability tests, with both default policies.

use std::process::Command;
use std::time::{Duration, Instant};

use leno_tests::manifests::{
    client_manifest, http_access_manifest, mesh_config, server_with_protocol,
};
use leno_tests::{TestMesh, TestProgram, eventually, free_port, go_program};

mod java;

/// The cases of grpc/doc/interop-test-descriptions.md, except those with credentials of Google Cloud.
pub(super) const CASES: &[&str] = &[
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "custom_metadata",
    "rpc_soak",
    "channel_soak",
];

/// grpc-go's interop server behind one sidecar, with an outbound listener at another sidecar.
struct InteropMesh {
    mesh: TestMesh,
    listener: u16,
}

fn start_pair(default_policy: &str, protocol: &str) -> InteropMesh {
    let (port, listener) = (free_port(), free_port());
    let server = go_program("server");
    let server_command = [server.to_str().unwrap(), "--port", &port.to_string()];
    let manifests = [
        mesh_config(default_policy),
        server_with_protocol("grpc", port, protocol, &server_command),
        client_manifest("user", &[], &[("grpc.shop", listener)]),
    ];
    InteropMesh { mesh: TestMesh::up(&manifests.concat()), listener }
}

impl InteropMesh {
    /// Runs one case through the outbound listener.
    fn run_case(&self, case: &str) -> Result<(), String> {
        call_server(self.listener, case)
    }

    /// Runs one case through the HTTP proxy listener, configured by the client's environment.
    fn call_by_name(&self, case: &str) -> Result<(), String> {
        let proxy = format!("http://{}", self.mesh.sidecar("shop/user-1").proxy);
        let mut command = Command::new(go_program("client"));
        command
            .args(address_arguments("passthrough:///grpc.shop:9080", "0"))
            .env("HTTPS_PROXY", proxy);
        run_interop_client(&mut command, case)
    }

    /// Waits until a case succeeds.
    fn wait_until_passing(&self, case: &str) {
        eventually(&format!("{case} ends well"), MAX_WAIT, || self.run_case(case).ok());
    }

    /// Waits until a case fails with this gRPC status, and returns the client's output.
    fn wait_for_failure(&self, case: &str, status: &str) -> String {
        let condition = format!("{case} fails with {status}");
        let status = format!("code = {status} ");
        let poll = || self.run_case(case).err().filter(|output| output.contains(&status));
        eventually(&condition, MAX_WAIT, poll).0
    }

    fn assert_every_case_passes(&self) {
        self.wait_until_passing("empty_unary");
        for case in CASES {
            let started = Instant::now();
            let outcome = self.run_case(case);
            eprintln!("{case}: {:?}", started.elapsed());
            assert!(outcome.is_ok(), "{case}: {}", outcome.unwrap_err());
        }
    }
}

/// Runs one case with the server behind a loopback port; the error is the client's output.
pub(super) fn call_server(port: u16, case: &str) -> Result<(), String> {
    let port = port.to_string();
    run_interop_client(
        Command::new(go_program("client")).args(address_arguments("127.0.0.1", &port)),
        case,
    )
}

fn address_arguments<'a>(host: &'a str, port: &'a str) -> [&'a str; 4] {
    ["--server_host", host, "--server_port", port]
}

/// Runs the interop client; the error is the client's output.
fn run_interop_client(command: &mut Command, case: &str) -> Result<(), String> {
    let mut client = TestProgram::start("grpc-go's client", command.args(["--test_case", case]));
    match client.wait_for_exit(MAX_WAIT).success() {
        true => Ok(()),
        false => {
            client.wait_for_line("FATAL", MAX_WAIT);
            Err(client.printed_output())
        }
    }
}

#[test]
fn every_standard_case_passes_in_permissive_mode() {
    start_pair("allow", "GRPC").assert_every_case_passes();
}

#[test]
fn every_standard_case_passes_in_strict_mode_where_a_policy_allows_it() {
    let pair = start_pair("deny", "GRPC");
    pair.mesh.write("policy.yaml", &http_access_manifest("user", "grpc", WHOLE_SERVICE));
    pair.wait_until_passing("empty_unary");
    pair.assert_every_case_passes();
}

#[test]
fn calls_that_no_policy_allows_get_permission_denied() {
    let pair = start_pair("deny", "GRPC");
    // No policy names the client: its own sidecar rejects the call, in the client's protocol.
    pair.wait_for_failure("empty_unary", "PermissionDenied");
    // A policy names the client, but no policy allows this method. The server's sidecar rejects the call in the same
    // form.
    let policy = http_access_manifest("user", "grpc", "/grpc.testing.TestService/EmptyCall");
    pair.mesh.write("policy.yaml", &policy);
    pair.wait_until_passing("empty_unary");
    let output = pair.wait_for_failure("large_unary", "Unimplemented");
    assert!(output.contains("no-policy-route: "), "{output}");
    // Another client may call the method.
    pair.mesh
        .write("policy.yaml", &(policy + &http_access_manifest("other", "grpc", WHOLE_SERVICE)));
    let output = pair.wait_for_failure("large_unary", "PermissionDenied");
    assert!(output.contains("denied: "), "{output}");
    pair.wait_until_passing("empty_unary");
    pair.mesh.remove("policy.yaml");
    pair.wait_for_failure("empty_unary", "PermissionDenied");
}

#[test]
fn a_call_beyond_the_limit_gets_resource_exhausted() {
    let pair = start_pair("allow", "GRPC");
    pair.wait_until_passing("empty_unary");
    let limit = "apiVersion: leno.dev/v1alpha1
kind: RateLimit
metadata: {name: grpc, namespace: shop}
spec:
  targetRefs: [{name: grpc}]
  rules:
  - matches: [{path: {value: /grpc.testing.TestService}}]
    requests: 1
    per: 1h
    response: {headers: [{name: content-type, value: text/plain}, {name: grpc-status, value: \"0\"}]}
";
    pair.mesh.write("limit.yaml", limit);
    let output = pair.wait_for_failure("empty_unary", "ResourceExhausted");
    assert!(output.contains("The request exceeded a rate limit"), "{output}");
    pair.mesh.remove("limit.yaml");
    pair.wait_until_passing("empty_unary");
}

#[test]
fn an_injected_fault_has_the_status_of_the_policy() {
    let pair = start_pair("allow", "GRPC");
    pair.wait_until_passing("empty_unary");
    let fault_manifest = |abort: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1
kind: FaultInjection
metadata: {{name: grpc, namespace: shop}}
spec: {{targetRefs: [{{name: grpc}}], rules: [{{abort: {abort}}}]}}
"
        )
    };
    pair.mesh.write("fault.yaml", &fault_manifest("{grpcStatus: ABORTED}"));
    pair.wait_for_failure("empty_unary", "Aborted");
    // The gRPC status for an HTTP status.
    pair.mesh.write("fault.yaml", &fault_manifest("{httpStatus: 403}"));
    pair.wait_for_failure("empty_unary", "PermissionDenied");
    pair.mesh.remove("fault.yaml");
    pair.wait_until_passing("empty_unary");
}

#[test]
fn a_client_reaches_its_service_by_name_through_the_proxy_of_its_environment() {
    let pair = start_pair("allow", "GRPC");
    pair.wait_until_passing("empty_unary");
    for case in ["large_unary", "ping_pong", "cancel_after_first_response", "channel_soak"] {
        let outcome = pair.call_by_name(case);
        assert!(outcome.is_ok(), "{case}: {}", outcome.unwrap_err());
    }
}

#[test]
fn a_port_without_a_protocol_supports_grpc() {
    start_pair("allow", "").assert_every_case_passes();
}

/// The paths of all calls in the cases, except the unimplemented service.
pub(super) const WHOLE_SERVICE: &str = "/grpc.testing.TestService/.*";
/// The timeout of a case, which takes milliseconds; reconnecting to a starting server takes a second.
const MAX_WAIT: Duration = Duration::from_secs(20);
