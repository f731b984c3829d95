//! Filters with effects beyond client and service: mirrors and CORS.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    ApplicationResponse, TestApplication, TestMesh, eventually, exchange_bytes, free_port, get,
};

/// The requests received by an application: target, host and length of the body.
type RecordedRequests = Arc<Mutex<Vec<(String, String, usize)>>>;

/// Returns an application that records its requests.
fn start_recording(
    respond: impl Fn() -> ApplicationResponse + Send + Sync + 'static,
) -> (TestApplication, RecordedRequests) {
    let recorded_requests = RecordedRequests::default();
    let recorder = recorded_requests.clone();
    let application = TestApplication::start(move |request| {
        let host = request.first_header("host").unwrap_or_default().to_owned();
        let request_record = (request.method_and_target().1.to_owned(), host, request.body.len());
        recorder.lock().expect("no thread panicked").push(request_record);
        respond()
    });
    (application, recorded_requests)
}

/// A mesh with a filter on the requests from `web` to `stock`.
struct Shop {
    mesh: TestMesh,
    listener: SocketAddr,
    _applications: Vec<TestApplication>,
}

fn route_manifest(filter: &str) -> String {
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: stock, namespace: shop}}
spec:
  parentRefs: [{{group: \"\", kind: Service, name: stock}}]
  rules:
  - filters: [{filter}]
    backendRefs: [{{name: stock, port: 9080}}]
"
    )
}

fn start_shop(
    stock_application: TestApplication,
    test_application: TestApplication,
    filter: &str,
) -> Shop {
    let listener = free_port();
    let manifests = [
        mesh_config("allow"),
        server_manifest("stock", stock_application.port(), &[]),
        server_manifest("test", test_application.port(), &[]),
        client_manifest("web", &[], &[("stock", listener)]),
        route_manifest(filter),
    ];
    let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, listener));
    Shop {
        mesh: TestMesh::up(&manifests.concat()),
        listener,
        _applications: vec![stock_application, test_application],
    }
}

fn post_request(path: &str, body_length: usize) -> String {
    let body = "x".repeat(body_length);
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {body_length}\r\n\r\n{body}"
    )
}

#[test]
fn mirrored_requests_do_not_delay_the_original() {
    let (stock, recorded_requests) = start_recording(|| ApplicationResponse::ok("stock"));
    // The application is silent: waiting for the mirror's response would delay the client noticeably.
    let (test, copied_requests) = start_recording(|| ApplicationResponse::NoResponse);
    let mirror = "{type: RequestMirror, requestMirror: {backendRef: {name: test, port: 9080}}}";
    let shop = start_shop(stock, test, mirror);
    let started = Instant::now();
    assert_eq!(get(shop.listener, "/one?a=b").expect("the listener responds").body, b"stock");
    let small_response =
        exchange_bytes(shop.listener, &post_request("/two", 5000)).expect("the listener responds");
    assert_eq!((small_response.status, small_response.body.as_slice()), (200, &b"stock"[..]));
    let large_response = exchange_bytes(shop.listener, &post_request("/three", 200_000))
        .expect("the listener responds");
    assert_eq!(large_response.status, 200);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let (mut copied_requests, _) = eventually("the copies arrive", MAX_WAIT, || {
        let copied_requests = copied_requests.lock().expect("no thread panicked").clone();
        (copied_requests.len() >= 2).then_some(copied_requests)
    });
    let recorded_requests = recorded_requests.lock().expect("no thread panicked").clone();
    assert_eq!(recorded_requests.len(), 3);
    // The copies equal the requests, including the host; large bodies are not copied.
    copied_requests.sort();
    assert_eq!(copied_requests, [recorded_requests[0].clone(), recorded_requests[1].clone()]);
    let web_sidecar = shop.mesh.sidecar("shop/web-1");
    assert_eq!(web_sidecar.sum_metrics("leno_mirrored_requests_total{result=\"dropped\"}"), 1.0);
}

#[test]
fn mirrored_requests_have_the_configured_share_and_their_failures_are_ignored() {
    let (stock, _) = start_recording(|| ApplicationResponse::ok("stock"));
    let (test, copied_requests) =
        start_recording(|| ApplicationResponse::Bytes(b"nonsense\r\n\r\n".to_vec()));
    let mirror = "{type: RequestMirror, requestMirror: {backendRef: {name: test, port: 9080}, \
                  fraction: {numerator: 1, denominator: 4}}}";
    let shop = start_shop(stock, test, mirror);
    for _ in 0..200 {
        assert_eq!(get(shop.listener, "/").expect("the listener responds").status, 200);
    }
    let web_sidecar = shop.mesh.sidecar("shop/web-1");
    let mirrored_count = |result: &str| {
        web_sidecar.sum_metrics(&format!("leno_mirrored_requests_total{{result=\"{result}\"}}"))
    };
    let (copy_count, _) = eventually("all copies have ended", MAX_WAIT, || {
        let copy_count =
            mirrored_count("responded") + mirrored_count("failed") + mirrored_count("dropped");
        (copy_count > 0.0
            && copy_count == copied_requests.lock().expect("no thread panicked").len() as f64)
            .then_some(copy_count)
    });
    assert!((20.0..=85.0).contains(&copy_count), "{copy_count} of 200");
}

#[test]
fn the_sidecar_of_the_client_responds_to_cors_preflights() {
    let stock_response =
        b"HTTP/1.1 200 OK\r\naccess-control-allow-origin: https://evil.example\r\n\
                 content-length: 5\r\n\r\nstock";
    let (stock, recorded_requests) =
        start_recording(|| ApplicationResponse::Bytes(stock_response.to_vec()));
    let (test, _) = start_recording(|| ApplicationResponse::ok("test"));
    let cors = "{type: CORS, cors: {allowOrigins: [\"https://*.shop.example\"], allowCredentials: true, \
                allowMethods: [PUT], allowHeaders: [x-a], exposeHeaders: [x-b], maxAge: 600}}";
    let shop = start_shop(stock, test, cors);
    let send_request = |method: &str, origin: &str, fields: &str| {
        let request = format!(
            "{method} /items HTTP/1.1\r\nhost: a\r\nconnection: close\r\norigin: {origin}\r\n{fields}\r\n"
        );
        exchange_bytes(shop.listener, &request).expect("the listener responds")
    };
    let preflight_fields =
        "access-control-request-method: PUT\r\naccess-control-request-headers: x-a\r\n";
    let response = send_request("OPTIONS", "https://a.shop.example", preflight_fields);
    for (name, value) in [
        (ALLOW_ORIGIN, Some("https://a.shop.example")),
        ("access-control-allow-credentials", Some("true")),
        ("access-control-allow-methods", Some("PUT")),
        ("access-control-allow-headers", Some("x-a")),
        ("access-control-max-age", Some("600")),
        ("vary", Some("origin")),
        ("leno-reason", None),
    ] {
        assert_eq!(response.first_header(name), value, "{name}");
    }
    assert_eq!((response.status, response.body.len()), (200, 0));
    let mut command = leno_tests::leno_command();
    command.args(["explain", "request", "--from", "shop/web-1", "-X", "OPTIONS"]);
    command.args([
        "-H",
        "origin: https://a.shop.example",
        "-H",
        "access-control-request-method: PUT",
    ]);
    command.args(["--url", "http://stock:9080/items", "-f"]).arg(shop.mesh.manifest_file(""));
    let explain_output = command.output().expect("leno runs");
    let explanation = String::from_utf8(explain_output.stdout).expect("text");
    assert!(explanation.contains("verdict   200: CORS preflight"), "{explanation}");
    assert_eq!(explain_output.status.code(), Some(3));
    let response = send_request("OPTIONS", "https://evil.example", preflight_fields);
    assert_eq!((response.status, response.first_header(ALLOW_ORIGIN)), (200, None));
    assert_eq!(
        recorded_requests.lock().expect("no thread panicked").len(),
        0,
        "no request arrives"
    );

    let response = send_request("GET", "https://a.shop.example", "");
    assert_eq!(response.first_header(ALLOW_ORIGIN), Some("https://a.shop.example"));
    assert_eq!(response.first_header("access-control-expose-headers"), Some("x-b"));
    assert_eq!(response.body, b"stock");
    assert_eq!(response.head.matches(ALLOW_ORIGIN).count(), 1);
    let response = send_request("GET", "https://evil.example", "");
    assert_eq!((response.status, response.first_header(ALLOW_ORIGIN)), (200, None));
    // Caches must not serve this response to pages of an allowed origin.
    assert_eq!(response.first_header("vary"), Some("origin"));
    assert_eq!(
        get(shop.listener, "/").expect("the listener responds").first_header("vary"),
        Some("origin")
    );
    assert_eq!(recorded_requests.lock().expect("no thread panicked").len(), 3);
}

const ALLOW_ORIGIN: &str = "access-control-allow-origin";
const MAX_WAIT: Duration = Duration::from_secs(30);
