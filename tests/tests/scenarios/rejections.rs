//! Rejected requests as failures with a reason in every view, whichever sidecar rejects them, in every
//! protocol.

use std::cell::RefCell;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::time::Duration;

use leno_tests::manifests::{
    client_manifest, http_access_manifest, mesh_config, route_manifest, server_with_protocol,
    service_manifest,
};
use leno_tests::{
    AdminEndpoint, ApplicationResponse, TestApplication, TestConnection, TestMesh, eventually,
    exchange_bytes, free_port, get, get_page, ratings_manifests,
};
use serde_json::Value;

/// A service called by web-1, with most calls rejected.
struct RejectionCase {
    service: &'static str,
    protocol: &'static str,
    manifests: String,
    reason: &'static str,
    /// The object that decides, if any.
    decided_by_object: String,
    rejecting_side: RejectingSide,
    /// True if one request holds the only concurrency permit.
    holds_permit: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum RejectingSide {
    Server,
    Client,
}

fn http_case(
    service: &'static str,
    manifests: String,
    reason: &'static str,
    decided_by_object: &str,
) -> RejectionCase {
    let (protocol, rejecting_side, decided_by_object) =
        ("HTTP", RejectingSide::Server, decided_by_object.to_owned());
    RejectionCase {
        service,
        protocol,
        manifests,
        reason,
        decided_by_object,
        rejecting_side,
        holds_permit: false,
    }
}

/// Returns a case with one object, which decides about the requests.
fn decided_case(
    kind: &str,
    service: &'static str,
    spec: &str,
    reason: &'static str,
) -> RejectionCase {
    let object = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: of-{service}, namespace: shop}}\n\
         spec:\n  {spec}\n"
    );
    http_case(service, object, reason, &format!("{kind} shop/of-{service}"))
}

/// Returns a case with an object that is attached to the service.
fn attached_case(
    kind: &str,
    service: &'static str,
    spec: &str,
    reason: &'static str,
) -> RejectionCase {
    let target = format!("targetRefs: [{{kind: Service, name: {service}}}]");
    decided_case(kind, service, &format!("{target}\n  {spec}"), reason)
}

/// Returns a case with a rule that denies every request.
fn denied_case(service: &'static str, protocol: &'static str) -> RejectionCase {
    let rule = format!("serviceAccounts: [{service}]\n  deny: [{{name: all}}]");
    RejectionCase { protocol, ..decided_case("AccessPolicy", service, &rule, "denied-by-policy") }
}

const ISSUER: &str = "required: true\n  issuers:\n  - issuer: me\n    jwks:\n      inline: |\n        {\"keys\": [{\"kty\": \"EC\", \
                  \"crv\": \"P-256\", \"kid\": \"1\", \"use\": \"sig\", \
                  \"x\": \"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4\", \
                  \"y\": \"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM\"}]}";

const ONE_PER_HOUR: &str = "rules: [{requests: 1, per: 1h}]";
const ONE_AT_A_TIME: &str = "concurrency: {requests: 1}";

/// Returns the cases in a mesh with the default policy allow.
fn default_allow_cases() -> Vec<RejectionCase> {
    [separate_cases(), server_cases(), client_cases()].into_iter().flatten().collect()
}

/// Returns cases in which each client has its own connection.
fn separate_cases() -> Vec<RejectionCase> {
    let cases = vec![
        denied_case("own", SEPARATE_CONNECTIONS),
        attached_case("RateLimit", "own-rate", ONE_PER_HOUR, "rate-limited"),
        attached_case("JwtValidation", "own-jwt", ISSUER, "token-missing"),
        RejectionCase {
            holds_permit: true,
            ..attached_case("RateLimit", "own-busy", ONE_AT_A_TIME, "overloaded")
        },
    ];
    cases.into_iter().map(|case| RejectionCase { protocol: SEPARATE_CONNECTIONS, ..case }).collect()
}

/// Returns cases in which the server's sidecar rejects the requests.
fn server_cases() -> Vec<RejectionCase> {
    let connection_limit = "connections: {count: 1, per: 1h}";
    let authorizer_reference = "service: {name: authorizer, port: 9080}";
    let unavailable_case = attached_case(
        "ExternalAuthorization",
        "auth",
        authorizer_reference,
        "authorization-unavailable",
    );
    let authorizer = service_manifest("authorizer");
    vec![
        denied_case("http", "HTTP"),
        denied_case("http2", "HTTP2"),
        denied_case("grpc", "GRPC"),
        denied_case("tcp", "TCP"),
        attached_case("RateLimit", "rate", ONE_PER_HOUR, "rate-limited"),
        RejectionCase {
            protocol: "TCP",
            ..attached_case("RateLimit", "many", connection_limit, "rate-limited")
        },
        RejectionCase {
            holds_permit: true,
            ..attached_case("RateLimit", "busy", ONE_AT_A_TIME, "overloaded")
        },
        attached_case("JwtValidation", "jwt", ISSUER, "token-missing"),
        RejectionCase { manifests: authorizer + &unavailable_case.manifests, ..unavailable_case },
    ]
}

/// Returns cases in which the client's sidecar rejects the requests.
fn client_cases() -> Vec<RejectionCase> {
    let abort_rule = "rules: [{name: all, abort: {httpStatus: 418}}]";
    let full_case =
        attached_case("CircuitBreaker", "full", "limits: {requests: 1}", "circuit-full");
    let other_path_rule = "{matches: [{path: {type: Exact, value: /other}}], backendRefs: [{name: route, port: 9080}]}";
    let cases = vec![
        attached_case("FaultInjection", "fault", abort_rule, "fault-injected"),
        RejectionCase { holds_permit: true, ..full_case },
        http_case(
            "route",
            route_manifest("route", &[other_path_rule]),
            "no-route",
            "HTTPRoute shop/route",
        ),
        http_case("empty", String::new(), "no-endpoint", ""),
        RejectionCase {
            protocol: LARGE_HEAD,
            ..http_case("cookies", String::new(), "head-too-large", "")
        },
    ];
    cases
        .into_iter()
        .map(|case| RejectionCase { rejecting_side: RejectingSide::Client, ..case })
        .collect()
}

/// Returns the cases in a mesh with the default policy deny.
fn default_deny_cases() -> Vec<RejectionCase> {
    let read = |service: &str| http_access_manifest("web", service, "/read");
    let not_allowed = |service, protocol| RejectionCase {
        protocol,
        rejecting_side: RejectingSide::Client,
        ..http_case(service, String::new(), "denied-outbound", "")
    };
    vec![
        http_case("path", read("path"), "no-policy-route", "TrafficTarget shop/web-to-path"),
        RejectionCase {
            protocol: "HTTP2",
            ..http_case(
                "path2",
                read("path2"),
                "no-policy-route",
                "TrafficTarget shop/web-to-path2",
            )
        },
        RejectionCase {
            protocol: "GRPC",
            ..http_case("call", read("call"), "no-policy-route", "TrafficTarget shop/web-to-call")
        },
        not_allowed("nobody", "HTTP"),
        not_allowed("opaque", "TCP"),
    ]
}

/// Returns an application with its own errors, which imitate those of a sidecar.
fn start_application() -> TestApplication {
    TestApplication::start(|request| {
        match request.method_and_target().1 {
        "/hold" => ApplicationResponse::NoResponse,
        "/events" => {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n";
            ApplicationResponse::Bytes(head.as_bytes().to_vec())
        }
        path => match path.strip_prefix("/own/") {
            Some(status) => ApplicationResponse::Bytes(
                format!(
                    "HTTP/1.1 {status} Own\r\nleno-reason: denied;side=mesh\r\nconnection: leno-rejected\r\n\
                     content-length: 0\r\n\r\n"
                )
                .into_bytes(),
            ),
            None => ApplicationResponse::ok("ok"),
        },
    }
    })
}

/// A mesh with all of these services, and the outbound listener of each.
struct Shop {
    mesh: TestMesh,
    listeners: Vec<u16>,
    page_address: SocketAddr,
    _application: TestApplication,
}

impl Shop {
    fn start_shop(default_policy: &str, cases: &[RejectionCase]) -> Self {
        let application = start_application();
        let mut manifests = mesh_config(default_policy);
        let listeners: Vec<u16> = cases.iter().map(|_| free_port()).collect();
        for case in cases {
            manifests += &match case.service {
                "empty" => service_manifest(case.service),
                service_name => {
                    let is_own = [SEPARATE_CONNECTIONS, LARGE_HEAD].contains(&case.protocol);
                    let declared_protocol = if is_own { "HTTP" } else { case.protocol };
                    server_with_protocol(service_name, application.port(), declared_protocol, &[])
                }
            };
            manifests += &case.manifests;
        }
        let outbound_listeners =
            cases.iter().map(|case| case.service).zip(listeners.iter().copied());
        manifests += &client_manifest("web", &[], &outbound_listeners.collect::<Vec<_>>());
        let mesh =
            TestMesh::up_with(&manifests, &["--access-log", "json", "--report-interval", "1s"]);
        let status_output = mesh.run_leno(&["status", "-o", "json"]);
        let status_output: Value = serde_json::from_slice(&status_output.stdout).expect("JSON");
        let page_address = status_output["mesh"]["page"].as_str().expect("a page");
        let page_address = page_address.trim_start_matches("http://").trim_end_matches('/').parse();
        Self {
            mesh,
            listeners,
            page_address: page_address.expect("an address"),
            _application: application,
        }
    }

    fn get_traffic(&self) -> Value {
        let head = format!("Host: {}\r\nConnection: close\r\n\r\n", self.page_address);
        let response =
            exchange_bytes(self.page_address, &format!("GET /api/traffic HTTP/1.1\r\n{head}"));
        serde_json::from_slice(&response.expect("the page responds").body).expect("JSON")
    }

    fn run_leno(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.mesh.run_leno(arguments);
        let output_text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&output_text).into_owned())
    }

    /// Returns the number of requests that a sidecar counted in all series with these labels.
    fn request_count(&self, workload: &str, series_labels: &[String]) -> f64 {
        let admin_endpoint = AdminEndpoint::for_workload(&self.mesh.get_json("proxies"), workload)
            .expect("a sidecar");
        let metrics =
            get_page(admin_endpoint.address, "/metrics").expect("the admin endpoint responds").body;
        let metrics = String::from_utf8(metrics).expect("text");
        let lines = metrics.lines().filter(|line| line.starts_with("leno_requests_total{"));
        let lines =
            lines.filter(|line| series_labels.iter().all(|label| line.contains(label.as_str())));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }
}

/// Sends a request as a client of this protocol does.
fn send_request(listener: u16, protocol: &str, path: &str) {
    let mut curl = Command::new("curl");
    curl.args(["-s", "-o", "/dev/null", "--max-time", "20"]);
    match protocol {
        "HTTP2" => drop(curl.arg("--http2-prior-knowledge")),
        "GRPC" => {
            curl.args(["--http2-prior-knowledge", "-X", "POST", "--data-binary", ""]);
            curl.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
        }
        SEPARATE_CONNECTIONS => drop(curl.args(["-H", "authorization: NTLM bWU="])),
        LARGE_HEAD => drop(curl.args(["-H", &format!("cookie: {}", "y".repeat(70_000))])),
        _ => {}
    }
    let url = format!("http://{}:{listener}{path}", Ipv4Addr::LOCALHOST);
    // Connections that are reset have no status.
    curl.arg(url).status().expect("curl runs");
}

fn check_cases(default_policy: &str, cases: &[RejectionCase]) {
    let shop = Shop::start_shop(default_policy, cases);
    let mut permit_holders = Vec::new();
    for (case, listener) in cases.iter().zip(&shop.listeners) {
        if case.holds_permit {
            permit_holders.push(hold_permit(*listener, case.reason));
        }
        for _ in 0..REQUEST_COUNT {
            send_request(*listener, case.protocol, "/");
        }
    }
    for case in cases {
        check_counts(&shop, case);
    }
    for (case, listener) in cases.iter().zip(&shop.listeners) {
        check_views(&shop, case, *listener);
    }
    for mut child in permit_holders {
        drop(child.kill());
        drop(child.wait());
    }
}

/// Starts a request that holds the only concurrency permit.
fn hold_permit(listener: u16, reason: &str) -> Child {
    let url = format!("http://{}:{listener}/hold", Ipv4Addr::LOCALHOST);
    let start_request = || Command::new("curl").args(["-s", &url]).spawn().expect("curl runs");
    let mut child = start_request();
    eventually("the permit is held", MAX_WAIT, || {
        let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, listener));
        let is_rejected = get(listener, "/").ok()?.rejection_reason() == Some(reason);
        if child.try_wait().expect("a child of this test").is_some() {
            // Another request had the permit.
            child = start_request();
            return None;
        }
        is_rejected.then_some(())
    });
    child
}

/// Checks the metrics and access logs of both sidecars.
fn check_counts(shop: &Shop, case: &RejectionCase) {
    let RejectionCase { service, reason, .. } = case;
    let series_labels = |direction: &str| {
        vec![
            format!("direction=\"{direction}\""),
            format!("destination_service=\"shop/{service}\""),
            format!("reason=\"{reason}\""),
        ]
    };
    let min_count = f64::from(REQUEST_COUNT - 1);
    eventually(&format!("{service}: the client counts {reason}"), MAX_WAIT, || {
        (shop.request_count("shop/web-1", &series_labels("outbound")) >= min_count).then_some(())
    });
    let server_workload = format!("shop/{service}-1");
    if case.rejecting_side == RejectingSide::Server {
        let inbound_count = shop.request_count(&server_workload, &series_labels("inbound"));
        assert!(inbound_count >= min_count, "{service}: the server counts {inbound_count}");
    }
    let printed_output = shop.mesh.up.printed_output();
    for direction in ["outbound", "inbound"] {
        let is_line = |line: &&str| {
            line.contains(&format!("\"direction\":\"{direction}\""))
                && line.contains(&format!("\"response_code_details\":\"{reason}\""))
                && line.contains(&format!("\"upstream_cluster\":\"shop/{service}\""))
        };
        let line_count = printed_output.lines().filter(is_line).count();
        let expected = direction == "outbound" || case.rejecting_side == RejectingSide::Server;
        assert_eq!(line_count > 0, expected, "{service}: {direction} lines of the access log");
    }
}

/// Checks `top`, `status`, `diagnose` and the page.
fn check_views(shop: &Shop, case: &RejectionCase, listener: u16) {
    let RejectionCase { service, reason, decided_by_object, protocol, .. } = case;
    let service_name = format!("shop/{service}");
    let rejecting_side =
        if case.rejecting_side == RejectingSide::Server { "server" } else { "client" };
    let is_rejected = |traffic: &Value| {
        let matches_case = |rejection: &&Value| {
            rejection["service"] == *service_name
                && rejection["reason"] == *reason
                && rejection["side"] == rejecting_side
                && rejection["share"].as_f64().is_some_and(|share| share > 0.5)
        };
        traffic["rejections"].as_array()?.iter().find(matches_case)?;
        let services = traffic["services"].as_array()?;
        let rates = services.iter().find(|entry| entry["name"] == *service_name)?;
        rates["success"].as_f64().filter(|success| *success < 0.5).map(drop)
    };
    // The views cover the last half minute: requests continue meanwhile.
    let assert_shown = |view: &str, poll: &dyn Fn() -> Option<()>| {
        eventually(&format!("{view} shows {reason} of {service_name}"), MAX_WAIT, || {
            (0..REQUEST_COUNT).for_each(|_| send_request(listener, protocol, "/"));
            poll()
        });
    };
    assert_shown("the page", &|| is_rejected(&shop.get_traffic()));
    assert_shown("leno top", &|| {
        let (exit_code, output_text) = shop.run_leno(&["top", "-o", "json"]);
        is_rejected(&serde_json::from_str(&output_text).ok().filter(|_| exit_code == Some(0))?)
    });
    assert_shown("leno status", &|| {
        let (exit_code, output_text) = shop.run_leno(&["status"]);
        let rejection_text = format!("✗ {service_name}: the mesh rejects ");
        let line = output_text.lines().find(|line| line.contains(&rejection_text))?;
        let is_complete = line.contains(reason) && line.ends_with(decided_by_object.as_str());
        (exit_code == Some(1)
            && is_complete
            && output_text.contains(&format!("leno explain {reason}")))
        .then_some(())
    });
    assert_shown("leno diagnose", &|| {
        let (exit_code, output_text) =
            shop.run_leno(&["diagnose", "shop/web-1", "--to", &service_name]);
        let step = output_text.lines().find(|line| line.contains("✗ requests"))?;
        (exit_code == Some(1)
            && step.contains(reason)
            && step.ends_with(decided_by_object.as_str()))
        .then_some(())
    });
    assert_shown("leno diagnose of the client", &|| {
        let (exit_code, output_text) = shop.run_leno(&["diagnose", "shop/web-1"]);
        let is_step =
            |line: &&str| line.contains(&format!("✗ requests     {service_name}: the mesh"));
        let step = output_text.lines().find(is_step)?;
        (exit_code == Some(1)
            && step.contains(reason)
            && step.ends_with(decided_by_object.as_str()))
        .then_some(())
    });
}

#[test]
fn every_view_shows_a_rejection_as_a_failure_with_its_reason() {
    check_cases("allow", &default_allow_cases());
}

#[test]
fn every_view_shows_a_denial_in_strict_mode_with_its_reason() {
    check_cases("deny", &default_deny_cases());
}

#[test]
fn application_errors_are_not_counted_as_rejections() {
    let case = http_case("own", String::new(), "denied", "");
    let shop = Shop::start_shop("allow", &[case]);
    let status_classes = [("403", "4xx"), ("404", "4xx"), ("429", "4xx"), ("500", "5xx")];
    for (status, _) in status_classes {
        for protocol in ["HTTP", SEPARATE_CONNECTIONS] {
            (0..REQUEST_COUNT)
                .for_each(|_| send_request(shop.listeners[0], protocol, &format!("/own/{status}")));
        }
    }
    for (status_class, count) in [("4xx", 60.0), ("5xx", 20.0)] {
        for (workload, direction) in [("shop/web-1", "outbound"), ("shop/own-1", "inbound")] {
            let series_labels = [
                format!("direction=\"{direction}\""),
                format!("code=\"{status_class}\""),
                "reason=\"\"".to_owned(),
            ];
            let counted = || (shop.request_count(workload, &series_labels) >= count).then_some(());
            eventually(&format!("{workload} counts {status_class}"), MAX_WAIT, counted);
        }
    }
    eventually("the control plane counts all requests", MAX_WAIT, || {
        let traffic = shop.get_traffic();
        let rates = traffic["services"].as_array()?.first()?.clone();
        (rates["requests"] == 80 && rates["failed"] == 20).then_some(())
    });
    assert_eq!(shop.get_traffic()["rejections"].as_array().map(Vec::len), Some(0));
}

#[test]
fn open_tcp_connections_have_a_rate() {
    assert_has_rate("TCP", "");
}

#[test]
fn open_streams_have_a_rate() {
    assert_has_rate("HTTP", "GET /events HTTP/1.1\r\nhost: a\r\n\r\n");
}

/// Asserts that open connections have a rate after these bytes are sent.
fn assert_has_rate(protocol: &'static str, request: &str) {
    let long_case = RejectionCase { protocol, ..http_case("long", String::new(), "", "") };
    let shop = Shop::start_shop("allow", &[long_case]);
    let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, shop.listeners[0]));
    let connect = |_| {
        let mut connection = TcpStream::connect(listener).expect("the sidecar listens");
        connection.write_all(request.as_bytes()).expect("the sidecar reads");
        connection
    };
    let first_connections: Vec<_> = (0..REQUEST_COUNT).map(connect).collect();
    eventually("the control plane counts all requests", MAX_WAIT, || {
        let traffic = shop.get_traffic();
        let rates = traffic["services"].as_array()?.first()?.clone();
        let is_counted = rates["requests"] == REQUEST_COUNT && rates["failed"] == 0;
        (is_counted && rates["success"] == 1.0 && rates["per_second"].as_f64()? > 0.0).then_some(())
    });
    // The views cover the last half minute: further connections are opened meanwhile, and stay open.
    let open_connections = RefCell::new(first_connections);
    for (view, arguments) in [
        ("leno top", &["top", "--once"][..]),
        ("leno get services", &["get", "services", "-o", "wide"]),
    ] {
        eventually(&format!("{view} shows a rate"), MAX_WAIT, || {
            open_connections.borrow_mut().push(connect(0));
            let (exit_code, output_text) = shop.run_leno(arguments);
            let line = output_text.lines().find(|line| line.starts_with("shop/long"))?;
            let is_rate = |word: &str| word.ends_with("/s") && word != "0/s";
            let has_rate = line.split_whitespace().any(is_rate);
            (exit_code == Some(0) && has_rate && line.contains("100 %")).then_some(())
        });
    }
}

#[test]
fn requests_to_an_unknown_service_are_a_finding_of_their_client() {
    let listener = free_port();
    let mesh = TestMesh::up_with(
        &(mesh_config("allow") + &client_manifest("web", &[], &[("missing", listener)])),
        &["--report-interval", "1s"],
    );
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, listener));
    let views: [(&[&str], &str); 3] = [
        (&["status"], "not services with unknown-service"),
        (&["diagnose", "shop/web-1"], "not services with unknown-service"),
        (&["top", "--once"], "(no service)  unknown-service"),
    ];
    for (command, expected) in views {
        eventually(&format!("{command:?} names the reason"), MAX_WAIT, || {
            for _ in 0..REQUEST_COUNT {
                assert_eq!(get(address, "/").ok()?.rejection_reason(), Some("unknown-service"));
            }
            let output = mesh.run_leno(command);
            let is_failure = command == ["top", "--once"] || output.status.code() == Some(1);
            let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
            (is_failure && output_text.contains(expected)).then_some(())
        });
    }
}

/// HTTP/1.1 with connection-based authentication: the sidecars give the client its own connection.
const SEPARATE_CONNECTIONS: &str = "HTTP, alone";
/// HTTP/1.1 with more cookies than a sidecar accepts: the client's own sidecar rejects the head before the route is
/// known.
const LARGE_HEAD: &str = "HTTP, large";
const REQUEST_COUNT: u32 = 10;
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A port without a declared protocol, with a policy that requires requests.
#[test]
fn a_connection_without_bytes_is_not_counted_as_rejected() {
    let application = TestApplication::start_echo();
    let listener = free_port();
    let policy = "---\napiVersion: leno.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: closed, namespace: bookinfo}\n\
                  spec: {serviceAccounts: [ratings], deny: [{name: admin, requests: [{path: {value: /admin}}]}]}\n";
    let manifests = ratings_manifests("", application.port(), listener, "allow");
    let manifests = manifests.replace(", protocol: HTTP", "");
    let mesh = TestMesh::up(&format!("{manifests}{policy}"));
    let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, listener));
    let mut connection = TestConnection::open(listener).unwrap();
    for _ in 0..3 {
        let mut idle_connection = TestConnection::open(listener).unwrap();
        assert!(
            !idle_connection.has_activity(Duration::from_secs(1)).unwrap(),
            "the connection is closed"
        );
    }
    assert!(!connection.has_activity(Duration::from_secs(1)).unwrap(), "the connection is closed");
    assert_eq!(connection.get("/").unwrap().status, 200);
    assert_eq!(connection.get("/admin").unwrap().status, 403);
    // Only the rejection of the request to `/admin` is counted.
    let server_endpoint =
        AdminEndpoint::for_workload(&mesh.get_json("proxies"), "bookinfo/ratings-1").unwrap();
    let denied_series = eventually("the rejection is counted", Duration::from_secs(60), || {
        let metrics =
            String::from_utf8(get_page(server_endpoint.address, "/metrics").ok()?.body).unwrap();
        let denied_series = metrics.lines().filter(|line| {
            line.starts_with("leno_requests_total{") && line.contains("reason=\"denied-by-policy\"")
        });
        let denied_series: Vec<String> = denied_series.map(str::to_owned).collect();
        (!denied_series.is_empty()).then_some(denied_series)
    });
    let denied_series = denied_series.0;
    assert!(denied_series.len() == 1 && denied_series[0].ends_with("} 1"), "{denied_series:?}");
    // Bytes of another protocol are rejected, and the client gets a reset.
    let mut non_http_connection = TestConnection::open(listener).unwrap();
    assert!(
        !non_http_connection.has_activity(Duration::from_secs(1)).unwrap(),
        "the connection is closed"
    );
    non_http_connection.send("\0").unwrap();
    let error = non_http_connection.read_to_end().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
