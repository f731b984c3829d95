//! Protocol semantics through the mesh: rejections, half-close, GOAWAY.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::process::Command;
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config, server_with_protocol};
use leno_tests::{
    ApplicationResponse, Nginx, TestApplication, TestMesh, TestProgram, eventually, free_port,
    leno_command,
};
use serde_json::Value;

/// Returns the output of curl with HTTP/2 prior knowledge: head and body.
fn run_curl(arguments: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["-s", "-i", "--max-time", "20", "--http2-prior-knowledge"])
        .args(arguments)
        .output()
        .expect("curl runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// `defaultPolicy: deny` without a policy that allows the client to call the service.
#[test]
fn an_http2_or_grpc_client_without_permission_gets_a_response() {
    let application = TestApplication::start(|_| ApplicationResponse::ok("ok"));
    let protocols = ["HTTP", "HTTP2", "GRPC", ""];
    let listeners = protocols.map(|_| free_port());
    let service_names = ["http", "http2", "grpc", "undeclared"];
    let mut manifests = mesh_config("deny");
    for (name, protocol) in service_names.iter().zip(protocols) {
        manifests += &server_with_protocol(name, application.port(), protocol, &[]);
    }
    let service_listeners: Vec<_> = service_names.into_iter().zip(listeners).collect();
    manifests += &client_manifest("web", &[], &service_listeners);
    let _mesh = TestMesh::up(&manifests);
    for (name, listener) in service_listeners {
        let url = format!("http://127.0.0.1:{listener}/shop.Cart/Add");
        let response = run_curl(&[&url]);
        assert!(response.starts_with("HTTP/2 403"), "{name}: {response}");
        assert!(response.contains("leno-reason: denied-outbound;"), "{name}: {response}");
        let grpc_response = run_curl(&[
            "-H",
            "content-type: application/grpc",
            "-H",
            "te: trailers",
            "-d",
            "",
            &url,
        ]);
        assert!(
            grpc_response.starts_with("HTTP/2 200") && grpc_response.contains("grpc-status: 7\r"),
            "{name}: {grpc_response}"
        );
    }
}

/// Starts a mesh of one server and its client, and returns the client's listener.
fn start_pair(port: u16, protocol: &str) -> (TestMesh, u16) {
    let listener = free_port();
    let manifests = mesh_config("allow")
        + &server_with_protocol("app", port, protocol, &[])
        + &client_manifest("web", &[], &[("app", listener)]);
    (TestMesh::up(&manifests), listener)
}

#[test]
fn a_half_closed_client_receives_its_response() {
    let application = TestApplication::start(|request| match request.method_and_target().1 {
        "/late" => {
            std::thread::park_timeout(Duration::from_millis(300));
            ApplicationResponse::ok("late")
        }
        _ => ApplicationResponse::ok("ok"),
    });
    let (_mesh, listener) = start_pair(application.port(), "HTTP");
    for request in ["GET /late HTTP/1.1\r\nHost: a\r\n\r\n", "GET /late HTTP/1.0\r\n\r\n"] {
        let mut client_stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, listener)).expect("a listener");
        client_stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        client_stream.write_all(request.as_bytes()).expect("sent");
        client_stream.shutdown(Shutdown::Write).expect("a connection");
        let mut response = String::new();
        client_stream.read_to_string(&mut response).expect("a regular end");
        assert!(response.ends_with("late"), "{request}: {response}");
    }
}

/// The server ends an HTTP/2 connection after 20 requests.
#[test]
fn no_request_fails_when_nginx_closes_its_connections() {
    let port = free_port();
    let nginx = Nginx::prepare(&format!(
        "location / {{ return 200 ok; }} }}
         server {{
           listen 127.0.0.1:{port} http2;
           keepalive_requests 20;
           location / {{ return 200 hello; }}"
    ));
    let [binary, arguments @ ..] = nginx.command();
    let _nginx_program = TestProgram::start("nginx", Command::new(binary).args(arguments));
    eventually("nginx listens", Duration::from_secs(20), || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
    });
    let (_mesh, listener) = start_pair(port, "HTTP2");
    let url = format!("http://127.0.0.1:{listener}/");
    for arguments in [&["--method", "GET"][..], &["--body", "a message"]] {
        let output = leno_command()
            .args(["load", "-c", "8", "-n", "1000", "-o", "json"])
            .args(arguments)
            .arg(&url)
            .output()
            .expect("leno runs");
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        assert_eq!(
            report["statuses"],
            serde_json::json!({"200": 1000}),
            "{arguments:?} {report:#}"
        );
    }
}
