//! Routing to unmodified servers, with live route changes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leno_tests::manifests::{
    client_manifest, mesh_config, route_manifest, server_manifest, service_manifest,
};
use leno_tests::{
    ApplicationReply, Nginx, Response, TestApplication, TestConnection, TestMesh, eventually,
    free_port,
};

use super::{loopback_address, wait_until_responding};
use crate::faults::connected_sidecar;

/// A service `web` with routes to `python` (a `python3 -m http.server`), to `nginx`, or to `silent`, which
/// never responds.
struct Shop {
    mesh: TestMesh,
    listener: SocketAddr,
    _nginx: Nginx,
    _files: tempfile::TempDir,
    _silent: TestApplication,
}

fn start_shop() -> Shop {
    let nginx = Nginx::prepare(
        "location / { return 200 nginx; } \
         location /echo/ { add_header x-secret 1; return 200 $request_uri,$host,$http_x_set; } \
         location /busy/ { return 503 busy; }",
    );
    let files = tempfile::tempdir().unwrap();
    for folder in ["", "a", "a/b", "ab", "who"] {
        let folder = files.path().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("index.html"), "python").unwrap();
    }
    let silent = TestApplication::start(|_| ApplicationReply::Silence);
    let [python, listener, to_python, to_nginx] = std::array::from_fn(|_| free_port());
    let port = python.to_string();
    let folder = files.path().to_str().unwrap();
    let run_python = ["python3", "-m", "http.server", &port, "--bind", "127.0.0.1", "-d", folder];
    let run_nginx = nginx.command();
    let run_nginx: Vec<&str> = run_nginx.iter().map(String::as_str).collect();
    let listeners = [("web.shop", listener), ("python.shop", to_python), ("nginx.shop", to_nginx)];
    let manifests = [
        mesh_config("allow"),
        service_manifest("web"),
        server_manifest("python", python, &run_python),
        server_manifest("nginx", nginx.port, &run_nginx),
        server_manifest("silent", silent.port(), &[]),
        client_manifest("user", &[], &listeners),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    wait_until_responding(loopback_address(to_python));
    wait_until_responding(loopback_address(to_nginx));
    Shop {
        mesh,
        listener: loopback_address(listener),
        _nginx: nginx,
        _files: files,
        _silent: silent,
    }
}

impl Shop {
    /// Replaces the routes of `web`, and waits until its response satisfies `is_expected`.
    fn replace_routes(&self, rules: &[&str], is_expected: impl Fn(&Response) -> bool) {
        self.mesh.write("route.yaml", &route_manifest("web", rules));
        let (_, elapsed) =
            eventually("the new routes are in force", Duration::from_secs(10), || {
                let response = self.send_request("GET", "/who/", "");
                is_expected(&response).then_some(())
            });
        assert!(elapsed < Duration::from_secs(1), "applied after {elapsed:?}");
    }

    fn send_request(&self, method: &str, path: &str, fields: &str) -> Response {
        let mut connection = TestConnection::open(self.listener).unwrap();
        let length = if method == "POST" { "content-length: 0\r\n" } else { "" };
        let head = format!("{method} {path} HTTP/1.1\r\nhost: web\r\n{length}{fields}\r\n");
        connection.send(head).unwrap();
        connection.receive_response().unwrap()
    }

    fn describe_response(&self, method: &str, path: &str, fields: &str) -> String {
        let response = self.send_request(method, path, fields);
        match response.rejection_reason() {
            Some(reason) => format!("{} {reason}", response.status),
            None => String::from_utf8(response.body).unwrap(),
        }
    }
}

fn has_body(body: &str) -> impl Fn(&Response) -> bool {
    move |response| response.status == 200 && response.body == body.as_bytes()
}

const TO_PYTHON: &str = "backendRefs: [{name: python, port: 9080}]";
const TO_NGINX: &str = "backendRefs: [{name: nginx, port: 9080}]";

#[test]
fn weights_split_requests_between_services_and_change_live() {
    const REQUESTS: usize = 500;
    let shop = start_shop();
    assert_eq!(
        shop.describe_response("GET", "/who/", ""),
        "503 no-endpoint",
        "the service has no workload"
    );
    shop.replace_routes(&[TO_PYTHON], has_body("python"));
    let split = |python: u32, nginx: u32| {
        format!(
            "backendRefs: [{{name: python, port: 9080, weight: {python}}}, \
             {{name: nginx, port: 9080, weight: {nginx}}}]"
        )
    };
    shop.replace_routes(&[&split(0, 1)], has_body("nginx"));
    // Either backend may respond now; the first response of the other backend shows that the route is in force.
    shop.replace_routes(&[&split(90, 10)], has_body("python"));
    let mut connection = TestConnection::open(shop.listener).unwrap();
    let responses: Vec<_> = (0..REQUESTS).map(|_| connection.get("/who/").unwrap()).collect();
    assert!(responses.iter().all(|response| response.status == 200));
    let nginx = responses.iter().filter(|response| response.body == b"nginx").count();
    eprintln!("{nginx} of {REQUESTS} went to the backend of weight 10");
    // Five standard deviations of a binomial distribution: wrong once in a million runs.
    let deviation = (REQUESTS as f64 * 0.9 * 0.1).sqrt() * 5.0;
    assert!((nginx as f64 - REQUESTS as f64 * 0.1).abs() < deviation, "{nginx} of {REQUESTS}");
    shop.replace_routes(&[&split(0, 0)], |response| response.status == 500);
    shop.mesh.remove("route.yaml");
    eventually("the service has no routes", Duration::from_secs(10), || {
        (shop.describe_response("GET", "/who/", "") == "503 no-endpoint").then_some(())
    });
}

#[test]
fn the_most_specific_rule_by_path_header_and_method_applies() {
    let shop = start_shop();
    let rules = [
        &format!("{{matches: [{{path: {{type: PathPrefix, value: /a}}}}], {TO_PYTHON}}}")[..],
        &format!("{{matches: [{{path: {{type: PathPrefix, value: /a/b}}}}], {TO_NGINX}}}"),
        &format!("{{matches: [{{path: {{type: Exact, value: /who/}}}}], {TO_PYTHON}}}"),
        &format!(
            "{{matches: [{{path: {{type: Exact, value: /who/}}, headers: [{{name: End-User, value: \
             jason}}]}}], {TO_NGINX}}}"
        ),
        &format!("{{matches: [{{path: {{value: /a}}, method: POST}}], {TO_NGINX}}}"),
        &format!(
            "{{matches: [{{path: {{value: /a}}, queryParams: [{{name: to, value: nginx}}]}}], \
             {TO_NGINX}}}"
        ),
    ];
    shop.replace_routes(&rules, has_body("python"));
    for (method, path, fields, expected) in [
        ("GET", "/a/", "", "python"),
        ("GET", "/a/b/", "", "nginx"),
        ("GET", "/a/b", "", "nginx"),
        ("GET", "/ab/", "", "404 no-route"),
        ("POST", "/a/", "", "nginx"),
        ("GET", "/a/?to=nginx", "", "nginx"),
        ("GET", "/a/?to=python", "", "python"),
        ("GET", "/who/", "", "python"),
        ("GET", "/who/", "end-user: jason\r\n", "nginx"),
        ("GET", "/who/", "end-user: jasons\r\n", "python"),
        ("GET", "/", "", "404 no-route"),
    ] {
        assert_eq!(
            shop.describe_response(method, path, fields),
            expected,
            "{method} {path} {fields}"
        );
    }
    // The same rules with an inverted header match, applied live.
    let changed_rules: Vec<String> =
        rules.iter().map(|rule| rule.replace("jason", "mary")).collect();
    let changed_rules: Vec<&str> = changed_rules.iter().map(String::as_str).collect();
    shop.mesh.write("route.yaml", &route_manifest("web", &changed_rules));
    eventually("mary is sent to nginx", Duration::from_secs(1), || {
        (shop.describe_response("GET", "/who/", "end-user: mary\r\n") == "nginx").then_some(())
    });
    assert_eq!(shop.describe_response("GET", "/who/", "end-user: jason\r\n"), "python");
}

#[test]
fn a_slow_request_ends_with_request_timeout() {
    let shop = start_shop();
    let slow = "{matches: [{path: {value: /slow}}], timeouts: {request: 300ms}, \
                backendRefs: [{name: silent, port: 9080}]}";
    shop.replace_routes(&[slow, &format!("{{{TO_PYTHON}}}")], has_body("python"));
    for _ in 0..3 {
        let started = Instant::now();
        assert_eq!(shop.describe_response("GET", "/slow", ""), "504 request-timeout");
        let elapsed = started.elapsed();
        assert!(
            elapsed >= Duration::from_millis(300) && elapsed < Duration::from_secs(3),
            "{elapsed:?}"
        );
    }
    assert_eq!(
        shop.describe_response("GET", "/who/", ""),
        "python",
        "other requests are not delayed"
    );
}

#[test]
fn filters_modify_requests_and_responses_of_an_unmodified_server() {
    let shop = start_shop();
    let rules = [
        "{matches: [{path: {value: /shown}}], backendRefs: [{name: nginx, port: 9080}], filters: [\
         {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-set, value: new}]}}, \
         {type: ResponseHeaderModifier, responseHeaderModifier: {remove: [x-secret]}}, \
         {type: URLRewrite, urlRewrite: {hostname: inner.example, path: \
         {type: ReplacePrefixMatch, replacePrefixMatch: /echo}}}]}",
        "{matches: [{path: {value: /moved}}], filters: [{type: RequestRedirect, requestRedirect: \
         {scheme: https, hostname: b.example}}]}",
        &format!("{{{TO_NGINX}}}"),
    ];
    shop.replace_routes(&rules, has_body("nginx"));
    let response = shop.send_request("GET", "/shown/a?b=c", "x-set: old\r\n");
    assert_eq!(response.body, b"/echo/a?b=c,inner.example,new", "{}", response.head);
    assert_eq!(response.first_header("x-secret"), None);
    let unchanged = shop.send_request("GET", "/echo/a", "x-set: old\r\n");
    assert_eq!(unchanged.body, b"/echo/a,web.shop,old", "{}", unchanged.head);
    assert_eq!(unchanged.first_header("x-secret"), Some("1"));
    let redirect = shop.send_request("GET", "/moved?b=c", "");
    assert_eq!(redirect.status, 302);
    assert_eq!(redirect.first_header("location"), Some("https://b.example/moved?b=c"));
}

#[test]
fn a_rule_with_retries_stops_after_its_attempts() {
    let shop = start_shop();
    let retry = "retry: {codes: [503], attempts: 2, backoff: 10ms}";
    let slow = "{matches: [{path: {value: /slow}}], timeouts: {request: 5s, backendRequest: 200ms}, \
                retry: {attempts: 1, backoff: 10ms}, backendRefs: [{name: silent, port: 9080}]}";
    shop.replace_routes(&[slow, &format!("{{{TO_NGINX}, {retry}}}")], has_body("nginx"));
    let response = shop.send_request("GET", "/busy/", "");
    assert_eq!((response.status, &response.body[..]), (503, &b"busy"[..]));
    let started = Instant::now();
    assert_eq!(shop.describe_response("GET", "/slow", ""), "504 attempt-timeout");
    let elapsed = started.elapsed();
    assert!(
        elapsed >= Duration::from_millis(400) && elapsed < Duration::from_secs(4),
        "{elapsed:?}"
    );
}

#[test]
fn an_osm_retry_applies_where_no_route_configures_retries() {
    let shop = start_shop();
    shop.replace_routes(&[&format!("{{{TO_NGINX}}}")], has_body("nginx"));
    let write_retry_policy = |times: u8| {
        let spec = format!(
            "{{source: {{kind: ServiceAccount, name: user, namespace: shop}}, \
             destinations: [{{kind: Service, name: web, namespace: shop}}], \
             retryPolicy: {{retryOn: 5xx, perTryTimeout: 1s, numRetries: {times}, \
             retryBackoffBaseInterval: 1ms}}}}"
        );
        let head = "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: Retry\n\
                    metadata: {name: user-to-web, namespace: shop}";
        shop.mesh.write("retry.yaml", &format!("{head}\nspec: {spec}\n"));
    };
    let page = connected_sidecar(&shop.mesh, "shop/user-1");
    let retries = || page.metric_value("leno_retries_total");
    let before = retries();
    write_retry_policy(5);
    // The first request under the new policy has all of its retries.
    let (after, _) = eventually("the policy is in force", Duration::from_secs(10), || {
        let response = shop.send_request("GET", "/busy/", "");
        assert_eq!((response.status, &response.body[..]), (503, &b"busy"[..]));
        Some(retries()).filter(|current| *current > before)
    });
    assert_eq!(after - before, 5.0);
    let matches = "leno_rule_matches_total{rule_kind=\"Retry\",rule_namespace=\"shop\",rule_name=\"user-to-web\",rule=\"\"}";
    assert_eq!(page.metric_value(matches), 5.0);
    let policies = shop.mesh.get_json("policies");
    assert_eq!((&policies[0]["kind"], &policies[0]["in_force"]), (&"Retry".into(), &true.into()));
}
