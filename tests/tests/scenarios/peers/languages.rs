//! Clients of other languages, started by the mesh, with nothing but `HTTP_PROXY` to guide them.

use std::process::Command;
use std::time::Duration;

use leno_tests::manifests::{client, mesh_config, server};
use leno_tests::{Answer, Application, Mesh, python, script};

const REQUESTS: usize = 50;

/// Runs a client as a workload and waits for the line in which it tells what it saw.
fn check(name: &str, command: &[&str]) {
    // A proxy must not pass on what was meant for this one connection (RFC 9110 §7.6.1).
    let application = Application::start(|request| {
        if request.header("upgrade").or(request.header("http2-settings")).is_some() {
            return Answer::Bytes(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".into());
        }
        let (method, target) = request.what();
        let mut body = format!("{method} {target} ").into_bytes();
        body.extend_from_slice(&request.body);
        Answer::ok(body)
    });
    let requests = REQUESTS.to_string();
    let command = [command, &["http://echo.shop:9080", &requests]].concat();
    let manifests = [
        mesh_config("permissive"),
        server("echo", application.port(), &[]),
        client("user", &command, &[]),
    ];
    let mesh = Mesh::up(&manifests.concat());
    let line = mesh.up.wait_for_line(&format!("{name} client: "), Duration::from_secs(60));
    let all = format!("{0} of {0} as expected", 2 * REQUESTS);
    assert!(line.contains(&all), "{line}\n{}", mesh.up.printed());
}

#[test]
fn a_java_client_finds_services_through_its_proxy_settings() {
    check("java", &["java", "-XX:TieredStopAtLevel=1", "-Xshare:auto", &script("Client.java")]);
}

#[test]
fn a_client_with_httpx_finds_services_through_its_proxy_settings() {
    check("httpx", &[python(), &script("httpx_client.py")]);
}

#[test]
fn a_go_client_finds_services_through_its_proxy_settings() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("client");
    let binary = binary.to_str().unwrap();
    let build = Command::new("go")
        .args(["build", "-o", binary, &script("client.go")])
        .envs([("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("CGO_ENABLED", "0")])
        .output();
    let Ok(build) = build else {
        return eprintln!("skipped: go is not installed");
    };
    assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    check("go", &[binary]);
}
