//! An unmodified nginx behind a sidecar, with curl and wrk as clients.

use std::net::SocketAddr;
use std::process::Command;

use leno_tests::manifests::{client_manifest, http_access_manifest, mesh_config, server_manifest};
use leno_tests::{Nginx, TestConnection, TestMesh, free_port};

use super::{
    DEFAULT_POLICIES, assert_closed, incompressible_bytes, loopback_address, run_curl,
    wait_until_responding,
};

const LOCATIONS: &str = "
    location /list/ { autoindex on; }
    location /text { gzip on; gzip_types text/plain; gzip_min_length 256; }
    if_modified_since before;
    location /fixed { return 200 \"you sent $request_method $content_length\\n\"; }
    location /upload/ { dav_methods PUT; create_full_put_path on; client_max_body_size 64m; }
";

/// nginx behind a sidecar, and the listener through which the client calls it.
struct Site {
    nginx: Nginx,
    _mesh: TestMesh,
    listener: SocketAddr,
}

/// Starts the site; with `defaultPolicy: deny` a policy allows only the requests of the tests.
fn start_site(default_policy: &str) -> Site {
    let (nginx, listener) = (Nginx::prepare(LOCATIONS), free_port());
    nginx.write("index.html", "hello\n");
    nginx.write("small", incompressible_bytes(1024));
    nginx.write("large", incompressible_bytes(5 * 1024 * 1024));
    nginx.write("text", "all work and no play\n".repeat(1000));
    std::fs::create_dir(nginx.served_file("list")).unwrap();
    std::fs::create_dir(nginx.served_file("upload")).unwrap();
    nginx.write("list/one", "1");
    let command = nginx.command();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let manifests = [
        mesh_config(default_policy),
        server_manifest("web", nginx.port, &command),
        client_manifest("user", &[], &[("web.shop", listener)]),
        http_access_manifest(
            "user",
            "web",
            "/((list|upload)/.*|index.html|small|large|text|fixed|absent)?",
        ),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let listener = loopback_address(listener);
    wait_until_responding(listener);
    assert_closed(default_policy, listener, "/closed");
    Site { nginx, _mesh: mesh, listener }
}

impl Site {
    fn url_of(&self, path: &str) -> String {
        format!("http://{}{path}", self.listener)
    }

    /// Downloads with curl and returns the bytes.
    fn download_file(&self, path: &str, arguments: &[&str]) -> Vec<u8> {
        let download_file = self.nginx.served_file("../downloaded");
        run_curl(
            &[arguments, &["-o", download_file.to_str().unwrap(), &self.url_of(path)]].concat(),
        );
        std::fs::read(download_file).unwrap()
    }
}

#[test]
fn nginx_serves_complete_files_and_ranges() {
    for default_policy in DEFAULT_POLICIES {
        let site = start_site(default_policy);
        let (small, large_file) =
            (incompressible_bytes(1024), incompressible_bytes(5 * 1024 * 1024));
        assert!(site.download_file("/small", &[]) == small, "1 KiB arrives unchanged");
        assert!(site.download_file("/large", &[]) == large_file, "5 MiB arrive unchanged");
        let range = site.download_file("/large", &["-r", "1000000-1000999"]);
        assert!(range == large_file[1_000_000..1_001_000], "a range arrives unchanged");
        let head = run_curl(&["-I", &site.url_of("/large")]);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.to_lowercase().contains("content-length: 5242880"), "{head}");
        let status_arguments = ["-o", "/dev/null", "-w", "%{http_code}"];
        let request_status = |path: &str, arguments: &[&str]| {
            run_curl(&[&status_arguments, arguments, &[&site.url_of(path)[..]]].concat())
        };
        assert_eq!(request_status("/absent", &[]), "404");
        assert_eq!(request_status("/large", &["-r", "9000000-"]), "416");
        let modified_field = "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT";
        assert_eq!(request_status("/small", &["-H", modified_field]), "304");
    }
}

#[test]
fn chunked_bodies_compression_and_http1_0_clients_work_both_ways() {
    for default_policy in DEFAULT_POLICIES {
        let site = start_site(default_policy);
        let listing = run_curl(&["-i", &site.url_of("/list/")]);
        assert!(listing.to_lowercase().contains("transfer-encoding: chunked"), "{listing}");
        assert!(listing.contains("<a href=\"one\">"), "{listing}");
        let compressed = run_curl(&["-i", "--compressed", &site.url_of("/text")]);
        assert!(compressed.to_lowercase().contains("content-encoding: gzip"), "{compressed}");
        assert!(compressed.ends_with(&"all work and no play\n".repeat(1000)), "{compressed}");
        let http1_0 = run_curl(&["-i", "--http1.0", &site.url_of("/list/")]);
        assert!(
            !http1_0.to_lowercase().contains("transfer-encoding"),
            "HTTP/1.0 has no chunks: {http1_0}"
        );
        assert!(http1_0.contains("<a href=\"one\">"), "{http1_0}");
        assert!(
            site.download_file("/large", &["--http1.0"]) == incompressible_bytes(5 * 1024 * 1024)
        );
        // A body of unknown length: curl sends chunks.
        let chunked_arguments = [
            "-H",
            "Transfer-Encoding: chunked",
            "-T",
            site.nginx.served_file("large").to_str().unwrap(),
        ]
        .map(str::to_owned);
        let chunked_arguments: Vec<&str> = chunked_arguments.iter().map(String::as_str).collect();
        run_curl(&[&chunked_arguments[..], &[&site.url_of("/upload/chunked")]].concat());
        assert!(
            std::fs::read(site.nginx.served_file("upload/chunked")).unwrap()
                == incompressible_bytes(5 * 1024 * 1024)
        );
    }
}

#[test]
fn uploads_arrive_complete_with_and_without_expect_continue() {
    for default_policy in DEFAULT_POLICIES {
        let site = start_site(default_policy);
        let response = run_curl(&["--data-binary", "0123456789", &site.url_of("/fixed")]);
        assert_eq!(response, "you sent POST 10\n");
        let large_file = site.nginx.served_file("large");
        let upload_file = |name: &str, arguments: &[&str]| {
            let url = site.url_of(&format!("/upload/{name}"));
            let output = Command::new("curl")
                .args(["-sSv", "--max-time", "15", "-T", large_file.to_str().unwrap()])
                .args(arguments)
                .arg(url)
                .output()
                .unwrap();
            let curl_log = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(curl_log.contains("< HTTP/1.1 201"), "{curl_log}");
            let uploaded_bytes =
                std::fs::read(site.nginx.served_file(&format!("upload/{name}"))).unwrap();
            assert!(
                uploaded_bytes == incompressible_bytes(5 * 1024 * 1024),
                "5 MiB arrive unchanged"
            );
            curl_log
        };
        upload_file("plain", &["-H", "Expect:"]);
        let curl_log = upload_file("announced", &["-H", "Expect: 100-continue"]);
        assert!(
            curl_log.contains("< HTTP/1.1 100"),
            "the 100 response of nginx is forwarded: {curl_log}"
        );
    }
}

#[test]
fn connections_are_reused_and_pipelined_and_wrk_reports_no_error() {
    for default_policy in DEFAULT_POLICIES {
        let site = start_site(default_policy);
        let mut connection = TestConnection::open(site.listener).unwrap();
        let small = incompressible_bytes(1024);
        for _ in 0..200 {
            let response = connection.get("/small").unwrap();
            assert!(response.status == 200 && response.body == small);
        }
        // Pipelined requests get responses in order.
        let request_head = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
        let paths = ["/small", "/absent", "/index.html", "/list/", "/small"];
        connection.send(paths.map(request_head).concat()).unwrap();
        let statuses = paths.map(|_| connection.receive_response().unwrap().status);
        assert_eq!(statuses, [200, 404, 200, 200, 200]);
        let wrk = Command::new("wrk").args(["-t1", "-c32", "-d2", &site.url_of("/small")]).output();
        let report = String::from_utf8_lossy(&wrk.unwrap().stdout).into_owned();
        eprintln!("{report}");
        assert!(report.contains("requests in"), "{report}");
        assert!(!report.contains("Non-2xx") && !report.contains("Socket errors"), "{report}");
    }
}
