//! Plaintext HTTP/2: h2spec, h2load and curl at an outbound listener, with nginx behind the sidecars.

use std::net::SocketAddr;

use leno_tests::manifests::{
    client_manifest, http_access_manifest, mesh_config, server_manifest, server_with_protocol,
};
use leno_tests::{
    ApplicationResponse, LineClient, Nginx, TestApplication, TestMesh, free_port, go_program,
    python_program, script_path,
};

use super::{
    DEFAULT_POLICIES, bounded_command, incompressible_bytes, loopback_address, run_curl,
    wait_until_responding,
};

/// An nginx with plaintext HTTP/2, and an outbound listener for nginx.
struct Site {
    nginx: Nginx,
    mesh: TestMesh,
    listener: SocketAddr,
}

fn start_site(default_policy: &str) -> Site {
    let [port, plain_port, listener] = std::array::from_fn(|_| free_port());
    let nginx = Nginx::prepare(&format!(
        "listen 127.0.0.1:{port} http2;
         listen 127.0.0.1:{plain_port};
         location /patient/ {{ proxy_pass http://127.0.0.1:{plain_port}/; }}
         client_max_body_size 64m;
         location /upload/ {{ dav_methods PUT; create_full_put_path on; }}"
    ));
    nginx.write("index.html", "hello\n");
    nginx.write("small", incompressible_bytes(1024));
    nginx.write("large", incompressible_bytes(5 * 1024 * 1024));
    std::fs::create_dir(nginx.served_file("upload")).unwrap();
    let command = nginx.command();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let manifests = [
        mesh_config(default_policy),
        server_with_protocol("web", port, "HTTP2", &command),
        client_manifest("user", &[], &[("web.shop", listener)]),
        http_access_manifest("user", "web", "/.*"),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let listener = loopback_address(listener);
    wait_until_responding(listener);
    Site { nginx, mesh, listener }
}

impl Site {
    fn url_of(&self, path: &str) -> String {
        format!("http://{}{path}", self.listener)
    }

    /// Returns the `-w` output of an HTTP/2 request; the body is written to a file next to nginx's files.
    fn curl_output(&self, path: &str, arguments: &[&str]) -> String {
        let download_file = self.nginx.served_file("../downloaded");
        let first_arguments =
            ["--http2-prior-knowledge", "-w", "%{http_version} %{http_code}", "-o"];
        let last_arguments = [download_file.to_str().unwrap(), &self.url_of(path)];
        run_curl(
            &[&first_arguments[..], &last_arguments[..1], arguments, &last_arguments[1..]].concat(),
        )
    }

    fn read_download(&self) -> Vec<u8> {
        std::fs::read(self.nginx.served_file("../downloaded")).unwrap()
    }
}

/// Runs all of h2spec, including its strict cases: none may fail.
fn run_h2spec(port: u16) {
    let mut command = bounded_command(go_program("h2spec").to_str().unwrap());
    // Longer than the default of two seconds: other tests run concurrently.
    command.args(["--strict", "--timeout", "10", "--host", "127.0.0.1"]);
    // nginx reads requests to their end here before it responds: h2spec does not evaluate frames after a
    // complete response (RFC 9113 §5.1, `closed`).
    command.args(["--port", &port.to_string(), "--path", "/patient/"]);
    let output = String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned();
    let summary_line = output.lines().last().unwrap_or_default();
    eprintln!("{summary_line}");
    assert_eq!(summary_line, "146 tests, 146 passed, 0 skipped, 0 failed", "{output}");
}

#[test]
fn h2spec_passes_at_an_outbound_listener() {
    for default_policy in DEFAULT_POLICIES {
        run_h2spec(start_site(default_policy).listener.port());
    }
}

#[test]
fn h2spec_passes_at_an_inbound_listener_for_members_without_a_sidecar() {
    for default_policy in DEFAULT_POLICIES {
        let site = start_site(default_policy);
        let inbound = site.mesh.sidecar("shop/web-1").inbound.unwrap();
        let credential = site.mesh.data_directory().join("proxies/shop/user-1/credential.pem");
        let (port, script) = (free_port(), script_path("mutual_tls.py"));
        let [listen, connect] = [port, inbound.port()].map(|port| port.to_string());
        let arguments = [&script[..], &listen, &connect, credential.to_str().unwrap()];
        let mut mutual_tls_client = LineClient::start(python_program(), &arguments);
        assert_eq!(mutual_tls_client.send_line(""), "listening");
        run_h2spec(port);
    }
}

#[test]
fn curl_uses_either_http_version_with_a_port_that_declares_http2() {
    for default_policy in DEFAULT_POLICIES {
        let site = start_site(default_policy);
        assert_eq!(site.curl_output("/", &[]), "2 200");
        assert_eq!(site.read_download(), b"hello\n");
        assert_eq!(site.curl_output("/large", &[]), "2 200");
        assert!(
            site.read_download() == incompressible_bytes(5 * 1024 * 1024),
            "5 MiB arrive unchanged"
        );
        assert_eq!(site.curl_output("/large", &["-r", "1000000-1000999"]), "2 206");
        assert!(
            site.read_download() == incompressible_bytes(1_001_000)[1_000_000..],
            "a range request returns exactly its range"
        );
        assert_eq!(site.curl_output("/large", &["-I"]), "2 200");
        assert_eq!(site.curl_output("/absent", &[]), "2 404");
        let large_file = site.nginx.served_file("large");
        let upload_arguments = ["-T", large_file.to_str().unwrap()];
        assert_eq!(site.curl_output("/upload/one", &upload_arguments), "2 201");
        let without_length = [&upload_arguments[..], &["-H", "content-length:"]].concat();
        assert_eq!(site.curl_output("/upload/two", &without_length), "2 201");
        let read_upload =
            |name: &str| std::fs::read(site.nginx.served_file("upload").join(name)).unwrap();
        for name in ["one", "two"] {
            assert!(
                read_upload(name) == incompressible_bytes(5 * 1024 * 1024),
                "5 MiB arrive unchanged"
            );
        }
        let short_upload = ["-X", "PUT", "--data-binary", "0123456789"];
        assert_eq!(site.curl_output("/upload/three", &short_upload), "2 201");
        assert_eq!(read_upload("three"), b"0123456789");
        // The last version offers an upgrade to HTTP/2 (RFC 7540 §3.2), which a server may ignore.
        for (version, expected_version) in
            [("--http1.0", "1.1"), ("--http1.1", "1.1"), ("--http2", "2")]
        {
            let output =
                run_curl(&[version, "-w", " %{http_version} %{http_code}", &site.url_of("/")]);
            assert_eq!(output, format!("hello\n {expected_version} 200"), "{version}");
        }
    }
}

#[test]
fn curl_upgrades_to_http2_with_an_http1_application() {
    for default_policy in ["allow", "deny"] {
        let application = TestApplication::start(|request| {
            let is_forwarded = request
                .first_header("upgrade")
                .or(request.first_header("http2-settings"))
                .is_some();
            ApplicationResponse::ok(if is_forwarded {
                "hop-by-hop fields arrived"
            } else {
                "hello"
            })
        });
        let listener = free_port();
        let manifests = [
            mesh_config(default_policy),
            server_manifest("echo", application.port(), &[]),
            client_manifest("user", &[], &[("echo.shop", listener)]),
            http_access_manifest("user", "echo", "/.*"),
        ];
        let _mesh = TestMesh::up(&manifests.concat());
        wait_until_responding(loopback_address(listener));
        let url = format!("http://{}/", loopback_address(listener));
        // Two requests share the upgraded connection; a request with a body is not upgraded.
        for (arguments, expected) in
            [(&[&*url][..], "hello 2 200hello 2 200"), (&["-d", "body"], "hello 1.1 200")]
        {
            let upgrade_arguments = ["--http2", "-w", " %{http_version} %{http_code}", &url];
            let output = run_curl(&[&upgrade_arguments[..], arguments].concat());
            assert_eq!(output, expected, "{default_policy}: {arguments:?}");
        }
    }
}

#[test]
fn h2load_sees_no_request_fail() {
    for default_policy in DEFAULT_POLICIES {
        let site = start_site(default_policy);
        let large_file = site.nginx.served_file("large");
        for (path, request_count, arguments) in [
            ("/small", 5000, &[][..]),
            ("/large", 40, &[]),
            ("/upload/same", 40, &["-H", ":method: PUT", "-d", large_file.to_str().unwrap()]),
        ] {
            let output = bounded_command("h2load")
                .args(["-c8", "-m16", "-t1", "-n", &request_count.to_string()])
                .args(arguments)
                .arg(site.url_of(path))
                .output()
                .unwrap();
            let report = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines = report
                .lines()
                .filter(|line| line.starts_with("requests:") || line.starts_with("finished in"));
            eprintln!("{default_policy}, {path}: {}", lines.collect::<Vec<_>>().join("; "));
            let expected = format!("{request_count} succeeded, 0 failed, 0 errored, 0 timeout");
            assert!(report.contains(&expected), "{report}");
            assert!(report.contains(&format!("status codes: {request_count} 2xx")), "{report}");
        }
    }
}

/// nginx ends a connection after `keepalive_requests` with a GOAWAY, and does not process streams above its
/// last stream id.
#[test]
fn no_request_is_lost_when_nginx_closes_connections_after_few_requests() {
    let request_limits = [3, 10, 20, 50];
    let sites = request_limits.map(|request_limit| {
        let [port, plain_port, listener] = std::array::from_fn(|_| free_port());
        let nginx = Nginx::prepare(&format!(
            "listen 127.0.0.1:{port} http2;
             listen 127.0.0.1:{plain_port};
             keepalive_requests {request_limit};
             location / {{ return 200; }}
             location /whole/ {{ proxy_pass http://127.0.0.1:{plain_port}/; }}"
        ));
        nginx.write("body", incompressible_bytes(2000));
        (nginx, port, loopback_address(listener))
    });
    let workload_names = request_limits.map(|request_limit| format!("web{request_limit}"));
    let service_names = workload_names.each_ref().map(|name| format!("{name}.shop"));
    let mut manifests = mesh_config("allow");
    for ((nginx, port, _), name) in sites.iter().zip(&workload_names) {
        let command = nginx.command();
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        manifests += &server_with_protocol(name, *port, "HTTP2", &command);
    }
    let listeners: Vec<(&str, u16)> = service_names
        .iter()
        .zip(&sites)
        .map(|(service, site)| (&**service, site.2.port()))
        .collect();
    let _mesh = TestMesh::up(&(manifests + &client_manifest("user", &[], &listeners)));
    for ((nginx, _, listener), request_limit) in sites.iter().zip(request_limits) {
        wait_until_responding(*listener);
        let body = nginx.served_file("body");
        for (path, arguments) in [("/", &[][..]), ("/whole/", &["-d", body.to_str().unwrap()])] {
            for load_options in [["-c20", "-m20"], ["-c10", "-m5"], ["-c4", "-m3"]] {
                let output = bounded_command("h2load")
                    .args(load_options)
                    .args(["-t1", "-n3000"])
                    .args(arguments)
                    .arg(format!("http://{listener}{path}"))
                    .output()
                    .unwrap();
                let report = String::from_utf8_lossy(&output.stdout).into_owned();
                let all_succeeded = report.contains("status codes: 3000 2xx");
                assert!(
                    all_succeeded,
                    "keepalive_requests {request_limit}, {load_options:?} {path}: {report}"
                );
            }
        }
    }
}
