//! Long-lived streams: they outlive the rules and certificates in force at their start, and continue during a
//! sidecar's drain until its timeout.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use leno_tests::manifests::{
    client_manifest, http_access_manifest, mesh_config, route_manifest, server_with_protocol,
};
use leno_tests::{
    ControlProgram, LineClient, SidecarProgram, TestMesh, TestProgram, eventually, free_port, get,
    go_program, python_program, script_path,
};
use rustix::process::Signal;

use super::loopback_address;

/// The protocol of a bidirectional stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamProtocol {
    WebSocket,
    /// Over HTTP/2 (RFC 8441), to an HTTP/1.1 server.
    WebSocketOverHttp2,
    /// gRPC messages.
    Grpc,
}

impl StreamProtocol {
    fn request_path(self) -> &'static str {
        match self {
            Self::WebSocket | Self::WebSocketOverHttp2 => "/room",
            Self::Grpc => "/grpc.testing.TestService/FullDuplexCall",
        }
    }

    fn server_command(self, port: u16) -> Vec<String> {
        match self {
            Self::WebSocket | Self::WebSocketOverHttp2 => {
                vec![
                    python_program().to_owned(),
                    script_path("websocket_server.py"),
                    port.to_string(),
                ]
            }
            Self::Grpc => {
                let server = go_program("server").display().to_string();
                vec![server, "--port".to_owned(), port.to_string()]
            }
        }
    }

    /// Returns a service `chat` and a client with an outbound listener for it; `server_command` runs the server,
    /// or is empty.
    fn chat_manifests(self, port: u16, listener: u16, server_command: &[String]) -> String {
        let server_command: Vec<&str> = server_command.iter().map(String::as_str).collect();
        let server = match self {
            Self::WebSocket => server_with_protocol("chat", port, "HTTP", &server_command),
            Self::Grpc => server_with_protocol("chat", port, "GRPC", &server_command),
            Self::WebSocketOverHttp2 => server_with_protocol("chat", port, "HTTP", &server_command)
                .replace("targetPort: main", "targetPort: main, appProtocol: kubernetes.io/h2c"),
        };
        let client = client_manifest("user", &[], &[("chat.shop", listener)]);
        let policy = http_access_manifest("user", "chat", self.request_path());
        [mesh_config("allow"), server, client, policy].concat()
    }

    /// Returns a client with an open stream through an outbound listener.
    fn open_stream(self, listener: u16) -> LongLivedStream {
        let (program, script, scheme) = match self {
            Self::WebSocket => (python_program(), "websocket_client.py", "ws"),
            Self::WebSocketOverHttp2 => ("node", "websocket_http2.mjs", "http"),
            Self::Grpc => ("node", "grpc_stream.mjs", "http"),
        };
        let mut client = LineClient::start(program, &[&script_path(script)]);
        let open_line = format!("open {scheme}://127.0.0.1:{listener}{}", self.request_path());
        eventually("the server listens", MAX_WAIT, || {
            (client.send_line(&open_line) == "open").then_some(())
        });
        LongLivedStream { client, open_line }
    }
}

struct LongLivedStream {
    client: LineClient,
    open_line: String,
}

impl LongLivedStream {
    /// Sends messages of many sizes and receives them back.
    fn exchange_messages(&mut self) {
        for length in ["1", "125", "126", "65535", "65536", "1048576"] {
            assert_eq!(
                self.client.send_line(&format!("echo {length}")),
                format!("echoed {length}")
            );
        }
    }

    /// Opens another stream.
    fn open_another_stream(&mut self) {
        assert_eq!(self.client.send_line(&self.open_line), "open");
        self.exchange_messages();
    }
}

/// Changes the rules so that the open stream would no longer be allowed: first no matching route and a short
/// timeout, then no route, `defaultPolicy: deny`, and other labels.
fn check_outlives_rules(stream_protocol: StreamProtocol) {
    let (port, listener) = (free_port(), free_port());
    let mesh = TestMesh::up(&stream_protocol.chat_manifests(
        port,
        listener,
        &stream_protocol.server_command(port),
    ));
    let mut stream = stream_protocol.open_stream(listener);
    let initial_pid = mesh.sidecar("shop/user-1").pid;
    let wait_for_rejection = |path: &str, reason: &str| {
        let poll = || {
            get(loopback_address(listener), path)
                .ok()
                .filter(|response| response.rejection_reason() == Some(reason))
        };
        eventually(&format!("{path} gets {reason}"), MAX_WAIT, poll);
    };
    let other_route = "{matches: [{path: {type: Exact, value: /another}}], \
                     timeouts: {request: 1s}, backendRefs: [{name: chat, port: 9080}]}";
    mesh.write("route.yaml", &route_manifest("chat", &[other_route]));
    wait_for_rejection(stream_protocol.request_path(), "no-route");
    stream.exchange_messages();
    mesh.remove("route.yaml");
    let manifests = std::fs::read_to_string(mesh.manifest_file("mesh.yaml")).unwrap();
    let edited_manifests = manifests
        .replace("defaultPolicy: allow", "defaultPolicy: deny")
        .replace("labels: {app: user}", "labels: {app: user, edited: \"yes\"}");
    mesh.write("mesh.yaml", &edited_manifests);
    wait_for_rejection("/another", "no-policy-route");
    stream.exchange_messages();
    assert_eq!(mesh.sidecar("shop/user-1").pid, initial_pid, "the sidecar was not replaced");
    stream.open_another_stream();
}

/// Certificates live for ten seconds, and the stream continues when all initial ones have expired.
fn check_outlives_certificates(stream_protocol: StreamProtocol) {
    let (port, listener) = (free_port(), free_port());
    let manifests =
        stream_protocol.chat_manifests(port, listener, &stream_protocol.server_command(port));
    let mesh = TestMesh::up_with(&manifests, &["--certificate-lifetime", "10s"]);
    let mut stream = stream_protocol.open_stream(listener);
    let initial_expiries = certificate_expiries(&mesh);
    let last_expiry = initial_expiries.iter().copied().max().unwrap();
    eventually("all initial certificates have expired", Duration::from_secs(60), || {
        assert_eq!(stream.client.send_line("echo 1000"), "echoed 1000");
        let current_expiries = certificate_expiries(&mesh);
        // Certificates are renewed at half their lifetime: one that expires 1.5 lifetimes after the first was
        // issued after the first had expired.
        current_expiries.iter().all(|expiry| *expiry >= last_expiry + 10).then_some(())
    });
    stream.exchange_messages();
    stream.open_another_stream();
}

/// Stops either sidecar: new streams are rejected, the open stream continues and ends with the drain.
fn check_continues_while_a_sidecar_drains(stream_protocol: StreamProtocol) {
    let (port, listener) = (free_port(), free_port());
    let server_command = stream_protocol.server_command(port);
    let _server = TestProgram::start(
        "the server",
        Command::new(&server_command[0]).args(&server_command[1..]),
    );
    let control = ControlProgram::start(&stream_protocol.chat_manifests(port, listener, &[]), &[]);
    let drain_options = ["--drain-timeout", "5s"];
    let mut chat_sidecar = SidecarProgram::join(&control, "shop/chat-1", &drain_options);
    let mut user_sidecar = SidecarProgram::join(&control, "shop/user-1", &drain_options);
    let inbound_address = chat_sidecar.admin_endpoint.inbound_listener(port);
    for (stopped_sidecar, listener_address) in
        [(&mut user_sidecar, loopback_address(listener)), (&mut chat_sidecar, inbound_address)]
    {
        let mut stream = stream_protocol.open_stream(listener);
        let stopped_at = Instant::now();
        stopped_sidecar.program.send_signal(Signal::TERM);
        let connect_error = || TcpStream::connect(listener_address).err();
        eventually("a draining sidecar accepts no connection", MAX_WAIT, connect_error);
        stream.exchange_messages();
        assert_eq!(stream.client.send_line("ended"), "ended");
        let elapsed = stopped_at.elapsed();
        assert!(
            elapsed >= DRAIN_TIMEOUT,
            "the stream ended after {elapsed:?}, before the drain timeout"
        );
        assert_eq!(stopped_sidecar.program.wait_for_exit(MAX_WAIT).code(), Some(0));
        stopped_sidecar.restart();
    }
    stream_protocol.open_stream(listener).exchange_messages();
}

#[test]
fn a_websocket_outlives_the_rules_in_force_at_its_start() {
    check_outlives_rules(StreamProtocol::WebSocket);
}

#[test]
fn a_websocket_over_http2_outlives_the_rules_in_force_at_its_start() {
    check_outlives_rules(StreamProtocol::WebSocketOverHttp2);
}

#[test]
fn a_grpc_stream_outlives_the_rules_in_force_at_its_start() {
    check_outlives_rules(StreamProtocol::Grpc);
}

#[test]
fn a_websocket_outlives_its_initial_certificates() {
    check_outlives_certificates(StreamProtocol::WebSocket);
}

#[test]
fn a_websocket_over_http2_outlives_its_initial_certificates() {
    check_outlives_certificates(StreamProtocol::WebSocketOverHttp2);
}

#[test]
fn a_grpc_stream_outlives_its_initial_certificates() {
    check_outlives_certificates(StreamProtocol::Grpc);
}

#[test]
fn a_websocket_continues_while_a_sidecar_drains() {
    check_continues_while_a_sidecar_drains(StreamProtocol::WebSocket);
}

#[test]
fn a_websocket_over_http2_continues_while_a_sidecar_drains() {
    check_continues_while_a_sidecar_drains(StreamProtocol::WebSocketOverHttp2);
}

#[test]
fn a_grpc_stream_continues_while_a_sidecar_drains() {
    check_continues_while_a_sidecar_drains(StreamProtocol::Grpc);
}

/// Returns the expiry times of the certificates known to the control plane.
fn certificate_expiries(mesh: &TestMesh) -> Vec<u64> {
    let certificates = mesh.get_json("certificates");
    let certificates = certificates.as_array().into_iter().flatten();
    certificates.filter_map(|certificate| certificate["not_after"].as_u64()).collect()
}

/// The drain timeout of a sidecar in these tests.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_WAIT: Duration = Duration::from_secs(20);
