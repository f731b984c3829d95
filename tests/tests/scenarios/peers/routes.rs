//! Routing to unmodified servers, with live route changes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leno_tests::manifests::{
    client_manifest, mesh_config, route_manifest, server_manifest, service_manifest,
};
use leno_tests::{
    ApplicationResponse, Nginx, Response, TestApplication, TestConnection, TestMesh, eventually,
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
    _served_directory: tempfile::TempDir,
    _silent_application: TestApplication,
}

fn start_shop() -> Shop {
    let nginx = Nginx::prepare(
        "location / { return 200 nginx; } \
         location /echo/ { add_header x-secret 1; return 200 $request_uri,$host,$http_x_set; } \
         location /busy/ { return 503 busy; }",
    );
    let served_directory = tempfile::tempdir().unwrap();
    for directory in ["", "a", "a/b", "ab", "who"] {
        let directory = served_directory.path().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("index.html"), "python").unwrap();
    }
    let silent_application = TestApplication::start(|_| ApplicationResponse::NoResponse);
    let [python_port, listener, python_listener, nginx_listener] =
        std::array::from_fn(|_| free_port());
    let python_port_text = python_port.to_string();
    let directory = served_directory.path().to_str().unwrap();
    let python_command =
        ["python3", "-m", "http.server", &python_port_text, "--bind", "127.0.0.1", "-d", directory];
    let nginx_command = nginx.command();
    let nginx_command: Vec<&str> = nginx_command.iter().map(String::as_str).collect();
    let listeners =
        [("web.shop", listener), ("python.shop", python_listener), ("nginx.shop", nginx_listener)];
    let manifests = [
        mesh_config("allow"),
        service_manifest("web"),
        server_manifest("python", python_port, &python_command),
        server_manifest("nginx", nginx.port, &nginx_command),
        server_manifest("silent", silent_application.port(), &[]),
        client_manifest("user", &[], &listeners),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    wait_until_responding(loopback_address(python_listener));
    wait_until_responding(loopback_address(nginx_listener));
    Shop {
        mesh,
        listener: loopback_address(listener),
        _nginx: nginx,
        _served_directory: served_directory,
        _silent_application: silent_application,
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
        let length_field = if method == "POST" { "content-length: 0\r\n" } else { "" };
        let head = format!("{method} {path} HTTP/1.1\r\nhost: web\r\n{length_field}{fields}\r\n");
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

const PYTHON_BACKEND: &str = "backendRefs: [{name: python, port: 9080}]";
const NGINX_BACKEND: &str = "backendRefs: [{name: nginx, port: 9080}]";

#[test]
fn weights_split_requests_between_services_and_change_live() {
    const REQUESTS: usize = 500;
    let shop = start_shop();
    assert_eq!(
        shop.describe_response("GET", "/who/", ""),
        "503 no-endpoint",
        "the service has no workload"
    );
    shop.replace_routes(&[PYTHON_BACKEND], has_body("python"));
    let split_rule = |python: u32, nginx_count: u32| {
        format!(
            "backendRefs: [{{name: python, port: 9080, weight: {python}}}, \
             {{name: nginx, port: 9080, weight: {nginx_count}}}]"
        )
    };
    shop.replace_routes(&[&split_rule(0, 1)], has_body("nginx"));
    // Either backend may respond now; the first response of the other backend shows that the route is in force.
    shop.replace_routes(&[&split_rule(90, 10)], has_body("python"));
    let mut connection = TestConnection::open(shop.listener).unwrap();
    let responses: Vec<_> = (0..REQUESTS).map(|_| connection.get("/who/").unwrap()).collect();
    assert!(responses.iter().all(|response| response.status == 200));
    let nginx_count = responses.iter().filter(|response| response.body == b"nginx").count();
    eprintln!("{nginx_count} of {REQUESTS} went to the backend of weight 10");
    // Five standard deviations of a binomial distribution: wrong once in a million runs.
    let max_deviation = (REQUESTS as f64 * 0.9 * 0.1).sqrt() * 5.0;
    assert!(
        (nginx_count as f64 - REQUESTS as f64 * 0.1).abs() < max_deviation,
        "{nginx_count} of {REQUESTS}"
    );
    shop.replace_routes(&[&split_rule(0, 0)], |response| response.status == 500);
    shop.mesh.remove("route.yaml");
    eventually("the service has no routes", Duration::from_secs(10), || {
        (shop.describe_response("GET", "/who/", "") == "503 no-endpoint").then_some(())
    });
}

#[test]
fn the_most_specific_rule_by_path_header_and_method_applies() {
    let shop = start_shop();
    let rules = [
        &format!("{{matches: [{{path: {{type: PathPrefix, value: /a}}}}], {PYTHON_BACKEND}}}")[..],
        &format!("{{matches: [{{path: {{type: PathPrefix, value: /a/b}}}}], {NGINX_BACKEND}}}"),
        &format!("{{matches: [{{path: {{type: Exact, value: /who/}}}}], {PYTHON_BACKEND}}}"),
        &format!(
            "{{matches: [{{path: {{type: Exact, value: /who/}}, headers: [{{name: End-User, value: \
             jason}}]}}], {NGINX_BACKEND}}}"
        ),
        &format!("{{matches: [{{path: {{value: /a}}, method: POST}}], {NGINX_BACKEND}}}"),
        &format!(
            "{{matches: [{{path: {{value: /a}}, queryParams: [{{name: to, value: nginx}}]}}], \
             {NGINX_BACKEND}}}"
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
    let slow_rule = "{matches: [{path: {value: /slow}}], timeouts: {request: 300ms}, \
                backendRefs: [{name: silent, port: 9080}]}";
    shop.replace_routes(&[slow_rule, &format!("{{{PYTHON_BACKEND}}}")], has_body("python"));
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
        &format!("{{{NGINX_BACKEND}}}"),
    ];
    shop.replace_routes(&rules, has_body("nginx"));
    let response = shop.send_request("GET", "/shown/a?b=c", "x-set: old\r\n");
    assert_eq!(response.body, b"/echo/a?b=c,inner.example,new", "{}", response.head);
    assert_eq!(response.first_header("x-secret"), None);
    let unchanged_response = shop.send_request("GET", "/echo/a", "x-set: old\r\n");
    assert_eq!(unchanged_response.body, b"/echo/a,web.shop,old", "{}", unchanged_response.head);
    assert_eq!(unchanged_response.first_header("x-secret"), Some("1"));
    let redirect = shop.send_request("GET", "/moved?b=c", "");
    assert_eq!(redirect.status, 302);
    assert_eq!(redirect.first_header("location"), Some("https://b.example/moved?b=c"));
}

#[test]
fn a_rule_with_retries_stops_after_its_attempts() {
    let shop = start_shop();
    let retry_settings = "retry: {codes: [503], attempts: 2, backoff: 10ms}";
    let slow_rule = "{matches: [{path: {value: /slow}}], timeouts: {request: 5s, backendRequest: 200ms}, \
                retry: {attempts: 1, backoff: 10ms}, backendRefs: [{name: silent, port: 9080}]}";
    shop.replace_routes(
        &[slow_rule, &format!("{{{NGINX_BACKEND}, {retry_settings}}}")],
        has_body("nginx"),
    );
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
    shop.replace_routes(&[&format!("{{{NGINX_BACKEND}}}")], has_body("nginx"));
    let write_retry_policy = |retry_limit: u8| {
        let spec = format!(
            "{{source: {{kind: ServiceAccount, name: user, namespace: shop}}, \
             destinations: [{{kind: Service, name: web, namespace: shop}}], \
             retryPolicy: {{retryOn: 5xx, perTryTimeout: 1s, numRetries: {retry_limit}, \
             retryBackoffBaseInterval: 1ms}}}}"
        );
        let head = "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: Retry\n\
                    metadata: {name: user-to-web, namespace: shop}";
        shop.mesh.write("retry.yaml", &format!("{head}\nspec: {spec}\n"));
    };
    let user_sidecar = connected_sidecar(&shop.mesh, "shop/user-1");
    let retry_count = || user_sidecar.metric_value("leno_retries_total");
    let retries_before = retry_count();
    write_retry_policy(5);
    // The first request under the new policy has all of its retries.
    let (retries_after, _) = eventually("the policy is in force", Duration::from_secs(10), || {
        let response = shop.send_request("GET", "/busy/", "");
        assert_eq!((response.status, &response.body[..]), (503, &b"busy"[..]));
        Some(retry_count()).filter(|current| *current > retries_before)
    });
    assert_eq!(retries_after - retries_before, 5.0);
    let rule_matches = "leno_rule_matches_total{rule_kind=\"Retry\",rule_namespace=\"shop\",rule_name=\"user-to-web\",rule=\"\"}";
    assert_eq!(user_sidecar.metric_value(rule_matches), 5.0);
    let policies = shop.mesh.get_json("policies");
    assert_eq!((&policies[0]["kind"], &policies[0]["in_force"]), (&"Retry".into(), &true.into()));
}
