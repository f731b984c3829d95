//! Clients in other languages, most of them started by the mesh and configured only by `HTTP_PROXY`.

use std::process::Command;
use std::time::Duration;

use leno_tests::manifests::{client_manifest, http_access_manifest, mesh_config, server_manifest};
use leno_tests::{
    ApplicationReply, TestApplication, TestMesh, free_port, python_program, script_path,
};

use super::{
    MODES, assert_closed, bounded_command, incompressible_bytes, loopback_address, run_curl,
    wait_until_responding,
};

const REQUESTS: usize = 50;

/// Runs a client as a workload in either mode, and waits for its result line.
fn check_client(name: &str, command: &[&str]) {
    for mode in MODES {
        check_client_in_mode(mode, name, command);
    }
}

fn check_client_in_mode(mode: &str, name: &str, command: &[&str]) {
    // A proxy must not forward hop-by-hop headers (RFC 9110 §7.6.1).
    let application = TestApplication::start(|request| {
        if request.first_header("upgrade").or(request.first_header("http2-settings")).is_some() {
            return ApplicationReply::Bytes(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".into(),
            );
        }
        let (method, target) = request.method_and_target();
        let mut body = format!("{method} {target} ").into_bytes();
        body.extend_from_slice(&request.body);
        ApplicationReply::ok(body)
    });
    let requests = REQUESTS.to_string();
    let command = [command, &["http://echo.shop:9080", &requests]].concat();
    let manifests = [
        mesh_config(mode),
        server_manifest("echo", application.port(), &[]),
        client_manifest("user", &command, &[]),
        http_access_manifest("user", "echo", "/(hello|post)/.*"),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let line = mesh.up.wait_for_line(&format!("{name} client: "), Duration::from_secs(60));
    let expected = format!("{0} of {0} as expected", 2 * REQUESTS);
    assert!(line.contains(&expected), "{line}\n{}", mesh.up.printed_output());
    let proxy = format!("http://{}", mesh.sidecar("shop/user-1").proxy);
    let code =
        ["-x", &proxy, "-o", "/dev/null", "-w", "%{http_code}", "http://echo.shop:9080/closed"];
    assert_eq!(run_curl(&code), if mode == "deny" { "404" } else { "200" });
}

#[test]
fn a_java_client_finds_services_through_its_proxy_settings() {
    check_client(
        "java",
        &["java", "-XX:TieredStopAtLevel=1", "-Xshare:auto", &script_path("Client.java")],
    );
}

#[test]
fn a_client_with_httpx_finds_services_through_its_proxy_settings() {
    check_client("httpx", &[python_program(), &script_path("httpx_client.py")]);
}

#[test]
fn a_client_with_httpx_reads_the_files_of_pythons_own_server() {
    const CLIENT_SCRIPT: &str = "import hashlib, httpx, sys
for name in sys.argv[2:]:
    response = httpx.get(sys.argv[1] + name)
    print(response.status_code, hashlib.sha256(response.content).hexdigest())";
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("large"), incompressible_bytes(5 * 1024 * 1024)).unwrap();
        std::fs::write(folder.path().join("closed"), "nobody's").unwrap();
        let ([port, listener], path) = (std::array::from_fn(|_| free_port()), folder.path());
        let number = port.to_string();
        let run =
            ["-m", "http.server", &number, "--bind", "127.0.0.1", "-d", path.to_str().unwrap()];
        let manifests = [
            mesh_config(mode),
            server_manifest("files", port, &[&[python_program()][..], &run].concat()),
            client_manifest("user", &[], &[("files.shop", listener)]),
            http_access_manifest("user", "files", "/(large|absent)?"),
        ];
        let _mesh = TestMesh::up(&manifests.concat());
        wait_until_responding(loopback_address(listener));
        assert_closed(mode, loopback_address(listener), "/closed");
        let url = format!("http://127.0.0.1:{listener}");
        let mut client = bounded_command(python_program());
        let output = client
            .args(["-c", CLIENT_SCRIPT, &url, "/large", "/absent", "/large"])
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let sum = Command::new("sha256sum").arg(path.join("large")).output().unwrap();
        let sum = String::from_utf8_lossy(&sum.stdout).into_owned();
        let complete = format!("200 {}", sum.split(' ').next().unwrap());
        let lines: Vec<_> = output.lines().collect();
        assert!(lines[0] == complete && lines[2] == complete, "5 MiB arrive unchanged: {output}");
        assert!(lines[1].starts_with("404 "), "{output}");
    }
}

#[test]
fn a_go_client_finds_services_through_its_proxy_settings() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("client");
    let binary = binary.to_str().unwrap();
    let build = Command::new("go")
        .args(["build", "-o", binary, &script_path("client.go")])
        .envs([("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("CGO_ENABLED", "0")])
        .output();
    let Ok(build) = build else {
        return eprintln!("skipped: go is not installed");
    };
    assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    check_client("go", &[binary]);
}
