//! Clients in other languages, most of them started by the mesh and configured only by `HTTP_PROXY`.

use std::process::Command;
use std::time::Duration;

use leno_tests::manifests::{client_manifest, http_access_manifest, mesh_config, server_manifest};
use leno_tests::{
    ApplicationResponse, TestApplication, TestMesh, free_port, python_program, script_path,
};

use super::{
    DEFAULT_POLICIES, assert_closed, bounded_command, incompressible_bytes, loopback_address,
    run_curl, wait_until_responding,
};

const REQUEST_COUNT: usize = 50;

/// Runs a client as a workload with either default policy, and waits for its result line.
fn check_client(name: &str, command: &[&str]) {
    for default_policy in DEFAULT_POLICIES {
        check_client_with_policy(default_policy, name, command);
    }
}

fn check_client_with_policy(default_policy: &str, name: &str, command: &[&str]) {
    // A proxy must not forward hop-by-hop headers (RFC 9110 §7.6.1).
    let application = TestApplication::start(|request| {
        if request.first_header("upgrade").or(request.first_header("http2-settings")).is_some() {
            return ApplicationResponse::Bytes(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".into(),
            );
        }
        let (method, target) = request.method_and_target();
        let mut body = format!("{method} {target} ").into_bytes();
        body.extend_from_slice(&request.body);
        ApplicationResponse::ok(body)
    });
    let request_count = REQUEST_COUNT.to_string();
    let command = [command, &["http://echo.shop:9080", &request_count]].concat();
    let manifests = [
        mesh_config(default_policy),
        server_manifest("echo", application.port(), &[]),
        client_manifest("user", &command, &[]),
        http_access_manifest("user", "echo", "/(hello|post)/.*"),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let line = mesh.up.wait_for_line(&format!("{name} client: "), Duration::from_secs(60));
    let expected = format!("{0} of {0} as expected", 2 * REQUEST_COUNT);
    assert!(line.contains(&expected), "{line}\n{}", mesh.up.printed_output());
    let proxy = format!("http://{}", mesh.sidecar("shop/user-1").proxy);
    let curl_arguments =
        ["-x", &proxy, "-o", "/dev/null", "-w", "%{http_code}", "http://echo.shop:9080/closed"];
    assert_eq!(run_curl(&curl_arguments), if default_policy == "deny" { "404" } else { "200" });
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
    for default_policy in DEFAULT_POLICIES {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("large"), incompressible_bytes(5 * 1024 * 1024))
            .unwrap();
        std::fs::write(directory.path().join("closed"), "nobody's").unwrap();
        let ([port, listener], directory_path) =
            (std::array::from_fn(|_| free_port()), directory.path());
        let port_text = port.to_string();
        let server_command = [
            "-m",
            "http.server",
            &port_text,
            "--bind",
            "127.0.0.1",
            "-d",
            directory_path.to_str().unwrap(),
        ];
        let manifests = [
            mesh_config(default_policy),
            server_manifest("files", port, &[&[python_program()][..], &server_command].concat()),
            client_manifest("user", &[], &[("files.shop", listener)]),
            http_access_manifest("user", "files", "/(large|absent)?"),
        ];
        let _mesh = TestMesh::up(&manifests.concat());
        wait_until_responding(loopback_address(listener));
        assert_closed(default_policy, loopback_address(listener), "/closed");
        let url = format!("http://127.0.0.1:{listener}");
        let mut client_command = bounded_command(python_program());
        let output = client_command
            .args(["-c", CLIENT_SCRIPT, &url, "/large", "/absent", "/large"])
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let checksum =
            Command::new("sha256sum").arg(directory_path.join("large")).output().unwrap();
        let checksum = String::from_utf8_lossy(&checksum.stdout).into_owned();
        let complete_line = format!("200 {}", checksum.split(' ').next().unwrap());
        let lines: Vec<_> = output.lines().collect();
        assert!(
            lines[0] == complete_line && lines[2] == complete_line,
            "5 MiB arrive unchanged: {output}"
        );
        assert!(lines[1].starts_with("404 "), "{output}");
    }
}

#[test]
fn a_go_client_finds_services_through_its_proxy_settings() {
    let directory = tempfile::tempdir().unwrap();
    let binary = directory.path().join("client");
    let binary = binary.to_str().unwrap();
    let build_output = Command::new("go")
        .args(["build", "-o", binary, &script_path("client.go")])
        .envs([("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("CGO_ENABLED", "0")])
        .output();
    let Ok(build_output) = build_output else {
        return eprintln!("skipped: go is not installed");
    };
    assert!(build_output.status.success(), "{}", String::from_utf8_lossy(&build_output.stderr));
    check_client("go", &[binary]);
}
