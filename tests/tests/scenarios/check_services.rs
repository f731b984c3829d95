//! External authorization and rate limit services: Envoy's own types, and its rate limit service.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest, server_with_protocol};
use leno_tests::{
    ApplicationResponse, Response, TestApplication, TestMesh, TestProgram, check_service,
    eventually, exchange_bytes, free_port,
};

fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn send_request(listener: SocketAddr, fields: &str) -> Option<Response> {
    let request =
        format!("GET /items?a=b HTTP/1.1\r\nhost: stock\r\nconnection: close\r\n{fields}\r\n");
    exchange_bytes(listener, &request).ok()
}

/// Returns an application that responds with the headers added by the authorization service.
fn start_stock() -> TestApplication {
    TestApplication::start(|request| {
        let (attributes, key) =
            (request.first_header("x-attributes"), request.first_header("x-key"));
        ApplicationResponse::ok(format!(
            "{} {}",
            attributes.unwrap_or("nobody"),
            key.unwrap_or("no key")
        ))
    })
}

fn authorization_manifest(name: &str, service_field: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: ExternalAuthorization\n\
         metadata: {{name: {name}, namespace: shop}}\nspec:\n  targetRefs: [{{name: stock}}]\n  \
         {service_field}\n  timeout: 10s\n  contextExtensions: {{rule: {name}}}\n"
    )
}

#[test]
#[ignore = "takes programs of Go that ./test check-services builds"]
fn authorization_services_inside_and_outside_the_mesh_decide() {
    let (stock, listener, port) = (start_stock(), free_port(), free_port());
    let address = format!("127.0.0.1:{port}");
    let authorizer = check_service("authorizer");
    let command = [authorizer.to_str().expect("a path of text"), &address];
    let manifests = [
        mesh_config("allow"),
        server_manifest("stock", stock.port(), &[]),
        server_with_protocol("authorizer", port, "GRPC", &command),
        client_manifest("web", &[], &[("stock", listener)]),
        authorization_manifest("inside", "service: {name: authorizer, port: 9080}"),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let listener = loopback_address(listener);
    let key_header = "x-key: open sesame\r\n";
    let allowed_by = |rule: &str| {
        let response =
            send_request(listener, key_header).filter(|response| response.status == 200)?;
        let expected_body = format!(
            "spiffe://cluster.local/ns/shop/sa/web spiffe://cluster.local/ns/shop/sa/stock {rule} no key"
        );
        (response.body == expected_body.as_bytes()
            && response.first_header("x-authorized") == Some("yes"))
        .then_some(())
    };
    eventually("the service of the mesh allows the request", MAX_WAIT, || allowed_by("inside"));
    let rejected = send_request(listener, "").expect("the listener responds");
    assert_eq!((rejected.status, rejected.rejection_reason()), (401, Some("denied-by-service")));
    assert_eq!(rejected.body, b"no key for GET /items?a=b");
    assert_eq!(rejected.first_header("www-authenticate"), Some("Key"));

    let mut command = leno_tests::leno_command();
    let url = "http://stock:9080/items";
    command.args(["explain", "request", "--from", "shop/web-1", "--url", url, "-f"]);
    let output = command.arg(mesh.manifest_file("")).output().expect("leno runs");
    let output = String::from_utf8(output.stdout).expect("text");
    assert!(
        output.contains("queries the authorization service shop/authorizer port 9080"),
        "{output}"
    );

    // The first policy by name decides.
    mesh.write(
        "a.yaml",
        &authorization_manifest("a-outside", &format!("url: \"http://{address}\"")),
    );
    eventually("the external server allows the request", MAX_WAIT, || allowed_by("a-outside"));
    assert_eq!(send_request(listener, "").expect("the listener responds").status, 401);
    // No server listens on this port.
    let unavailable = format!("url: \"http://127.0.0.1:{}\"", free_port());
    mesh.write("a.yaml", &authorization_manifest("a-outside", &unavailable));
    eventually("no authorization service is available", MAX_WAIT, || {
        (send_request(listener, key_header)?.rejection_reason()
            == Some("authorization-unavailable"))
        .then_some(())
    });
    mesh.write(
        "a.yaml",
        &authorization_manifest("a-outside", &format!("{unavailable}\n  failureMode: allow")),
    );
    eventually("requests are allowed without the service", MAX_WAIT, || {
        (send_request(listener, "")?.body == b"nobody no key").then_some(())
    });
}

#[test]
#[ignore = "takes programs of Go that ./test check-services builds"]
fn an_authorization_service_receives_request_bodies() {
    let stock = TestApplication::start(|request| ApplicationResponse::ok(request.body.clone()));
    let (listener, port) = (free_port(), free_port());
    let address = format!("127.0.0.1:{port}");
    let authorizer =
        TestProgram::start("authorizer", Command::new(check_service("authorizer")).arg(&address));
    authorizer.wait_for_line("listening at", MAX_WAIT);
    let service_field = format!("url: \"http://{address}\"");
    let manifests = [
        mesh_config("allow"),
        server_manifest("stock", stock.port(), &[]),
        client_manifest("web", &[], &[("stock", listener)]),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let post = |body: &str| {
        let request = format!(
            "POST /items HTTP/1.1\r\nhost: stock\r\nconnection: close\r\nx-key: open sesame\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        exchange_bytes(loopback_address(listener), &request).ok()
    };
    for (body_field, expected) in [
        ("body: {maxRequestBytes: 20}", r#""abc def" "" 7 "false""#),
        (
            "body: {maxRequestBytes: 3, allowPartialMessage: true, packAsBytes: true}",
            r#""" "abc" 7 "true""#,
        ),
    ] {
        mesh.write(
            "ask.yaml",
            &authorization_manifest("ask", &format!("{service_field}\n  {body_field}")),
        );
        eventually("the service sees the body", MAX_WAIT, || {
            let response = post("abc def")?;
            (response.body == b"abc def"
                && response.first_header("x-received-body") == Some(expected))
            .then_some(())
        });
    }
    mesh.write(
        "ask.yaml",
        &authorization_manifest(
            "ask",
            &format!("{service_field}\n  body: {{maxRequestBytes: 20}}"),
        ),
    );
    eventually("the service denies by the body", MAX_WAIT, || {
        let response = post("let me in, please")?;
        (response.rejection_reason() == Some("denied-by-service") && response.body == b"no please")
            .then_some(())
    });
    let response = post("more than twenty bytes are in this").expect("the listener responds");
    assert_eq!((response.status, response.rejection_reason()), (413, Some("body-too-large")));
}

/// Limits of envoyproxy/ratelimit: three requests per client and hour.
const LIMITS: &str = "domain: shop
descriptors:
- key: client
  rate_limit: {unit: hour, requests_per_unit: 3}
";

/// Starts a rate limit service with its own Redis. Returns both programs, and the gRPC port of the service.
fn start_rate_limiter(directory: &Path) -> (TestProgram, TestProgram, u16) {
    let (redis_port, grpc_port) = (free_port(), free_port());
    let mut command = Command::new("redis-server");
    command.args(["--port", &redis_port.to_string(), "--save", ""]).current_dir(directory);
    let redis_program = TestProgram::start("redis", &mut command);
    redis_program.wait_for_line("Ready to accept connections", MAX_WAIT);
    let limits_directory = directory.join("limits/config");
    std::fs::create_dir_all(&limits_directory).expect("a folder");
    std::fs::write(limits_directory.join("shop.yaml"), LIMITS).expect("limits");
    let mut command = Command::new(check_service("service_cmd"));
    command
        .env("GRPC_HOST", "127.0.0.1")
        .env("GRPC_PORT", grpc_port.to_string())
        .env("HOST", "127.0.0.1")
        .env("PORT", free_port().to_string())
        .env("DEBUG_HOST", "127.0.0.1")
        .env("DEBUG_PORT", free_port().to_string())
        .env("REDIS_SOCKET_TYPE", "tcp")
        .env("REDIS_URL", format!("127.0.0.1:{redis_port}"))
        .env("BACKEND_TYPE", "redis")
        .env("RUNTIME_ROOT", directory)
        .env("RUNTIME_SUBDIRECTORY", "limits")
        .env("RUNTIME_APPDIRECTORY", "config")
        .env("RUNTIME_WATCH_ROOT", "false")
        .env("USE_STATSD", "false")
        .env("LOG_LEVEL", "info");
    let rate_limit_program = TestProgram::start("ratelimit", &mut command);
    eventually("the service listens", MAX_WAIT, || {
        std::net::TcpStream::connect(loopback_address(grpc_port)).ok()
    });
    (redis_program, rate_limit_program, grpc_port)
}

#[test]
#[ignore = "takes programs of Go that ./test check-services builds"]
fn envoys_rate_limit_service_counts_for_two_servers() {
    let directory = tempfile::tempdir().expect("a folder");
    let (_store, _service, grpc_port) = start_rate_limiter(directory.path());
    let (first_application, second_application) = (start_stock(), start_stock());
    let listeners = [free_port(), free_port(), free_port()];
    let rate_limit_manifest = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: RateLimit\n\
         metadata: {{name: all, namespace: shop}}\nspec:\n  \
         targetRefs: [{{name: one}}, {{name: two}}]\n  global:\n    \
         url: \"http://127.0.0.1:{grpc_port}\"\n    timeout: 10s\n    failureMode: deny\n    domain: shop\n    \
         descriptors: [{{entries: [{{key: client, from: client}}]}}]\n    rateLimitHeaders: true\n"
    );
    let manifests = [
        mesh_config("allow"),
        server_manifest("one", first_application.port(), &[]),
        server_manifest("two", second_application.port(), &[]),
        client_manifest("web", &[], &[("one", listeners[0]), ("two", listeners[1])]),
        client_manifest("app", &[], &[("one", listeners[2])]),
        rate_limit_manifest,
    ];
    let _mesh = TestMesh::up(&manifests.concat());
    let [first_listener, second_listener, app_listener] = listeners.map(loopback_address);
    // Another client's response shows that the service has loaded its limits.
    let (first_response, _) = eventually("another client is allowed", MAX_WAIT, || {
        send_request(app_listener, "").filter(|response| response.status == 200)
    });
    assert_eq!(first_response.first_header("x-ratelimit-limit"), Some("3, 3;w=3600"));
    let statuses =
        [first_listener, second_listener, first_listener, second_listener, first_listener].map(
            |listener| {
                let response = send_request(listener, "").expect("the listener responds");
                (response.status, response.first_header("x-ratelimit-remaining").map(str::to_owned))
            },
        );
    let rate_response = |status: u16, remaining: &str| (status, Some(remaining.to_owned()));
    assert_eq!(
        statuses,
        [
            rate_response(200, "2"),
            rate_response(200, "1"),
            rate_response(200, "0"),
            rate_response(429, "0"),
            rate_response(429, "0")
        ]
    );
    let rejected = send_request(second_listener, "").expect("the listener responds");
    assert_eq!(rejected.rejection_reason(), Some("rate-limited"));
    let retry_after: u64 =
        rejected.first_header("retry-after").expect("a value").parse().expect("a number");
    assert!((1..=3600).contains(&retry_after), "{retry_after}");
}

const MAX_WAIT: Duration = Duration::from_secs(60);
