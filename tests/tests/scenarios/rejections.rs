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
    AdminPage, ApplicationReply, TestApplication, TestConnection, TestMesh, eventually,
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
    held_open: bool,
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
        held_open: false,
    }
}

/// Returns a service with one object, and the rejections by that object.
fn decided_by(
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

/// Returns an object that is attached to the service.
fn attached_case(
    kind: &str,
    service: &'static str,
    spec: &str,
    reason: &'static str,
) -> RejectionCase {
    let target = format!("targetRefs: [{{kind: Service, name: {service}}}]");
    decided_by(kind, service, &format!("{target}\n  {spec}"), reason)
}

/// Returns a rule that denies every request.
fn denied_case(service: &'static str, protocol: &'static str) -> RejectionCase {
    let rule = format!("serviceAccounts: [{service}]\n  deny: [{{name: all}}]");
    RejectionCase { protocol, ..decided_by("AccessPolicy", service, &rule, "denied-by-policy") }
}

const ISSUER: &str = "required: true\n  issuers:\n  - issuer: me\n    jwks:\n      inline: |\n        {\"keys\": [{\"kty\": \"EC\", \
                  \"crv\": \"P-256\", \"kid\": \"1\", \"use\": \"sig\", \
                  \"x\": \"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4\", \
                  \"y\": \"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM\"}]}";

const ONE_PER_HOUR: &str = "rules: [{requests: 1, per: 1h}]";
const ONE_AT_A_TIME: &str = "concurrency: {requests: 1}";

fn permissive_cases() -> Vec<RejectionCase> {
    [separate_cases(), server_cases(), client_cases()].into_iter().flatten().collect()
}

/// Returns rejections of requests with their own connections.
fn separate_cases() -> Vec<RejectionCase> {
    let cases = vec![
        denied_case("own", SEPARATE),
        attached_case("RateLimit", "own-rate", ONE_PER_HOUR, "rate-limited"),
        attached_case("JwtValidation", "own-jwt", ISSUER, "token-missing"),
        RejectionCase {
            held_open: true,
            ..attached_case("RateLimit", "own-busy", ONE_AT_A_TIME, "overloaded")
        },
    ];
    cases.into_iter().map(|case| RejectionCase { protocol: SEPARATE, ..case }).collect()
}

fn server_cases() -> Vec<RejectionCase> {
    let connections = "connections: {count: 1, per: 1h}";
    let unavailable = "service: {name: authorizer, port: 9080}";
    let unavailable =
        attached_case("ExternalAuthorization", "auth", unavailable, "authorization-unavailable");
    let authorizer = service_manifest("authorizer");
    vec![
        denied_case("http", "HTTP"),
        denied_case("http2", "HTTP2"),
        denied_case("grpc", "GRPC"),
        denied_case("tcp", "TCP"),
        attached_case("RateLimit", "rate", ONE_PER_HOUR, "rate-limited"),
        RejectionCase {
            protocol: "TCP",
            ..attached_case("RateLimit", "many", connections, "rate-limited")
        },
        RejectionCase {
            held_open: true,
            ..attached_case("RateLimit", "busy", ONE_AT_A_TIME, "overloaded")
        },
        attached_case("JwtValidation", "jwt", ISSUER, "token-missing"),
        RejectionCase { manifests: authorizer + &unavailable.manifests, ..unavailable },
    ]
}

fn client_cases() -> Vec<RejectionCase> {
    let abort = "rules: [{name: all, abort: {httpStatus: 418}}]";
    let full = attached_case("CircuitBreaker", "full", "limits: {requests: 1}", "circuit-full");
    let other_path_rule = "{matches: [{path: {type: Exact, value: /other}}], backendRefs: [{name: route, port: 9080}]}";
    let cases = vec![
        attached_case("FaultInjection", "fault", abort, "fault-injected"),
        RejectionCase { held_open: true, ..full },
        http_case(
            "route",
            route_manifest("route", &[other_path_rule]),
            "no-route",
            "HTTPRoute shop/route",
        ),
        http_case("empty", String::new(), "no-endpoint", ""),
        RejectionCase {
            protocol: LARGE,
            ..http_case("cookies", String::new(), "head-too-large", "")
        },
    ];
    cases
        .into_iter()
        .map(|case| RejectionCase { rejecting_side: RejectingSide::Client, ..case })
        .collect()
}

fn strict_cases() -> Vec<RejectionCase> {
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
        "/hold" => ApplicationReply::Silence,
        "/events" => {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n";
            ApplicationReply::Bytes(head.as_bytes().to_vec())
        }
        path => match path.strip_prefix("/own/") {
            Some(status) => ApplicationReply::Bytes(
                format!(
                    "HTTP/1.1 {status} Own\r\nleno-reason: denied;side=mesh\r\nconnection: leno-rejected\r\n\
                     content-length: 0\r\n\r\n"
                )
                .into_bytes(),
            ),
            None => ApplicationReply::ok("ok"),
        },
    }
    })
}

/// A mesh with all of these services, and the outbound listener of each.
struct Shop {
    mesh: TestMesh,
    listeners: Vec<u16>,
    page: SocketAddr,
    _application: TestApplication,
}

impl Shop {
    fn start_shop(mode: &str, cases: &[RejectionCase]) -> Self {
        let application = start_application();
        let mut manifests = mesh_config(mode);
        let listeners: Vec<u16> = cases.iter().map(|_| free_port()).collect();
        for case in cases {
            manifests += &match case.service {
                "empty" => service_manifest(case.service),
                name => {
                    let is_own = [SEPARATE, LARGE].contains(&case.protocol);
                    let declared = if is_own { "HTTP" } else { case.protocol };
                    server_with_protocol(name, application.port(), declared, &[])
                }
            };
            manifests += &case.manifests;
        }
        let pairs = cases.iter().map(|case| case.service).zip(listeners.iter().copied());
        manifests += &client_manifest("web", &[], &pairs.collect::<Vec<_>>());
        let mesh =
            TestMesh::up_with(&manifests, &["--access-log", "json", "--report-interval", "1s"]);
        let status = mesh.run_leno(&["status", "-o", "json"]);
        let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
        let page = status["mesh"]["page"].as_str().expect("a page");
        let page = page.trim_start_matches("http://").trim_end_matches('/').parse();
        Self { mesh, listeners, page: page.expect("an address"), _application: application }
    }

    fn get_traffic(&self) -> Value {
        let head = format!("Host: {}\r\nConnection: close\r\n\r\n", self.page);
        let response = exchange_bytes(self.page, &format!("GET /api/traffic HTTP/1.1\r\n{head}"));
        serde_json::from_slice(&response.expect("the page responds").body).expect("JSON")
    }

    fn run_leno(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.mesh.run_leno(arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the number of requests that a sidecar counted in all series with these labels.
    fn counted_requests(&self, workload: &str, labels: &[String]) -> f64 {
        let page =
            AdminPage::for_workload(&self.mesh.get_json("proxies"), workload).expect("a sidecar");
        let text = get_page(page.address, "/metrics").expect("the admin endpoint responds").body;
        let text = String::from_utf8(text).expect("text");
        let lines = text.lines().filter(|line| line.starts_with("leno_requests_total{"));
        let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label.as_str())));
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
        SEPARATE => drop(curl.args(["-H", "authorization: NTLM bWU="])),
        LARGE => drop(curl.args(["-H", &format!("cookie: {}", "y".repeat(70_000))])),
        _ => {}
    }
    let url = format!("http://{}:{listener}{path}", Ipv4Addr::LOCALHOST);
    // Connections that are reset have no status.
    curl.arg(url).status().expect("curl runs");
}

fn check_cases(mode: &str, cases: &[RejectionCase]) {
    let shop = Shop::start_shop(mode, cases);
    let mut held_open = Vec::new();
    for (case, listener) in cases.iter().zip(&shop.listeners) {
        if case.held_open {
            held_open.push(hold_permit(*listener, case.reason));
        }
        for _ in 0..REQUESTS {
            send_request(*listener, case.protocol, "/");
        }
    }
    for case in cases {
        check_counts(&shop, case);
    }
    for (case, listener) in cases.iter().zip(&shop.listeners) {
        check_views(&shop, case, *listener);
    }
    for mut child in held_open {
        drop(child.kill());
        drop(child.wait());
    }
}

/// Starts a request that holds the only concurrency permit.
fn hold_permit(listener: u16, reason: &str) -> Child {
    let url = format!("http://{}:{listener}/hold", Ipv4Addr::LOCALHOST);
    let start = || Command::new("curl").args(["-s", &url]).spawn().expect("curl runs");
    let mut child = start();
    eventually("the permit is held", MAX_WAIT, || {
        let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, listener));
        let is_rejected = get(listener, "/").ok()?.rejection_reason() == Some(reason);
        if child.try_wait().expect("a child of this test").is_some() {
            // Another request had the permit.
            child = start();
            return None;
        }
        is_rejected.then_some(())
    });
    child
}

/// Checks the metrics and access logs of both sidecars.
fn check_counts(shop: &Shop, case: &RejectionCase) {
    let RejectionCase { service, reason, .. } = case;
    let labels = |direction: &str| {
        vec![
            format!("direction=\"{direction}\""),
            format!("destination_service=\"shop/{service}\""),
            format!("reason=\"{reason}\""),
        ]
    };
    let minimum = f64::from(REQUESTS - 1);
    eventually(&format!("{service}: the client counts {reason}"), MAX_WAIT, || {
        (shop.counted_requests("shop/web-1", &labels("outbound")) >= minimum).then_some(())
    });
    let server = format!("shop/{service}-1");
    if case.rejecting_side == RejectingSide::Server {
        let inbound = shop.counted_requests(&server, &labels("inbound"));
        assert!(inbound >= minimum, "{service}: the server counts {inbound}");
    }
    let printed = shop.mesh.up.printed_output();
    for direction in ["outbound", "inbound"] {
        let is_line = |line: &&str| {
            line.contains(&format!("\"direction\":\"{direction}\""))
                && line.contains(&format!("\"response_code_details\":\"{reason}\""))
                && line.contains(&format!("\"upstream_cluster\":\"shop/{service}\""))
        };
        let lines = printed.lines().filter(is_line).count();
        let expected = direction == "outbound" || case.rejecting_side == RejectingSide::Server;
        assert_eq!(lines > 0, expected, "{service}: {direction} lines of the access log");
    }
}

/// Checks `top`, `status`, `diagnose` and the page.
fn check_views(shop: &Shop, case: &RejectionCase, listener: u16) {
    let RejectionCase { service, reason, decided_by_object, protocol, .. } = case;
    let name = format!("shop/{service}");
    let rejecting_side =
        if case.rejecting_side == RejectingSide::Server { "server" } else { "client" };
    let is_rejected = |traffic: &Value| {
        let matches_case = |rejection: &&Value| {
            rejection["service"] == *name
                && rejection["reason"] == *reason
                && rejection["side"] == rejecting_side
                && rejection["share"].as_f64().is_some_and(|share| share > 0.5)
        };
        traffic["rejections"].as_array()?.iter().find(matches_case)?;
        let services = traffic["services"].as_array()?;
        let rates = services.iter().find(|entry| entry["name"] == *name)?;
        rates["success"].as_f64().filter(|success| *success < 0.5).map(drop)
    };
    // The views cover the last half minute: requests continue meanwhile.
    let assert_shown = |view: &str, poll: &dyn Fn() -> Option<()>| {
        eventually(&format!("{view} shows {reason} of {name}"), MAX_WAIT, || {
            (0..REQUESTS).for_each(|_| send_request(listener, protocol, "/"));
            poll()
        });
    };
    assert_shown("the page", &|| is_rejected(&shop.get_traffic()));
    assert_shown("leno top", &|| {
        let (code, text) = shop.run_leno(&["top", "-o", "json"]);
        is_rejected(&serde_json::from_str(&text).ok().filter(|_| code == Some(0))?)
    });
    assert_shown("leno status", &|| {
        let (code, text) = shop.run_leno(&["status"]);
        let rejection_text = format!("✗ {name}: the mesh rejects ");
        let line = text.lines().find(|line| line.contains(&rejection_text))?;
        let is_complete = line.contains(reason) && line.ends_with(decided_by_object.as_str());
        (code == Some(1) && is_complete && text.contains(&format!("leno explain {reason}")))
            .then_some(())
    });
    assert_shown("leno diagnose", &|| {
        let (code, text) = shop.run_leno(&["diagnose", "shop/web-1", "--to", &name]);
        let step = text.lines().find(|line| line.contains("✗ requests"))?;
        (code == Some(1) && step.contains(reason) && step.ends_with(decided_by_object.as_str()))
            .then_some(())
    });
    assert_shown("leno diagnose of the client", &|| {
        let (code, text) = shop.run_leno(&["diagnose", "shop/web-1"]);
        let is_step = |line: &&str| line.contains(&format!("✗ requests     {name}: the mesh"));
        let step = text.lines().find(is_step)?;
        (code == Some(1) && step.contains(reason) && step.ends_with(decided_by_object.as_str()))
            .then_some(())
    });
}

#[test]
fn every_view_shows_a_rejection_as_a_failure_with_its_reason() {
    check_cases("allow", &permissive_cases());
}

#[test]
fn every_view_shows_a_denial_in_strict_mode_with_its_reason() {
    check_cases("deny", &strict_cases());
}

#[test]
fn application_errors_are_not_counted_as_rejections() {
    let case = http_case("own", String::new(), "denied", "");
    let shop = Shop::start_shop("allow", &[case]);
    let codes = [("403", "4xx"), ("404", "4xx"), ("429", "4xx"), ("500", "5xx")];
    for (status, _) in codes {
        for protocol in ["HTTP", SEPARATE] {
            (0..REQUESTS)
                .for_each(|_| send_request(shop.listeners[0], protocol, &format!("/own/{status}")));
        }
    }
    for (code, count) in [("4xx", 60.0), ("5xx", 20.0)] {
        for (workload, direction) in [("shop/web-1", "outbound"), ("shop/own-1", "inbound")] {
            let labels = [
                format!("direction=\"{direction}\""),
                format!("code=\"{code}\""),
                "reason=\"\"".to_owned(),
            ];
            let counted = || (shop.counted_requests(workload, &labels) >= count).then_some(());
            eventually(&format!("{workload} counts {code}"), MAX_WAIT, counted);
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
        let mut open = TcpStream::connect(listener).expect("the sidecar listens");
        open.write_all(request.as_bytes()).expect("the sidecar reads");
        open
    };
    let open: Vec<_> = (0..REQUESTS).map(connect).collect();
    eventually("the control plane counts all requests", MAX_WAIT, || {
        let traffic = shop.get_traffic();
        let rates = traffic["services"].as_array()?.first()?.clone();
        let is_counted = rates["requests"] == REQUESTS && rates["failed"] == 0;
        (is_counted && rates["success"] == 1.0 && rates["per_second"].as_f64()? > 0.0).then_some(())
    });
    // The views cover the last half minute: further connections are opened meanwhile, and stay open.
    let connections = RefCell::new(open);
    for (view, arguments) in [
        ("leno top", &["top", "--once"][..]),
        ("leno get services", &["get", "services", "-o", "wide"]),
    ] {
        eventually(&format!("{view} shows a rate"), MAX_WAIT, || {
            connections.borrow_mut().push(connect(0));
            let (code, text) = shop.run_leno(arguments);
            let line = text.lines().find(|line| line.starts_with("shop/long"))?;
            let is_rate = |word: &str| word.ends_with("/s") && word != "0/s";
            let has_rate = line.split_whitespace().any(is_rate);
            (code == Some(0) && has_rate && line.contains("100 %")).then_some(())
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
            for _ in 0..REQUESTS {
                assert_eq!(get(address, "/").ok()?.rejection_reason(), Some("unknown-service"));
            }
            let output = mesh.run_leno(command);
            let fails = command == ["top", "--once"] || output.status.code() == Some(1);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            (fails && text.contains(expected)).then_some(())
        });
    }
}

/// HTTP/1.1 with connection-based authentication: the sidecars give the client its own connection.
const SEPARATE: &str = "HTTP, alone";
/// HTTP/1.1 with more cookies than a sidecar accepts: the client's own rejects the head before the route is
/// known.
const LARGE: &str = "HTTP, large";
const REQUESTS: u32 = 10;
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
        let mut idle = TestConnection::open(listener).unwrap();
        assert!(!idle.has_activity(Duration::from_secs(1)).unwrap(), "the connection is closed");
    }
    assert!(!connection.has_activity(Duration::from_secs(1)).unwrap(), "the connection is closed");
    assert_eq!(connection.get("/").unwrap().status, 200);
    assert_eq!(connection.get("/admin").unwrap().status, 403);
    // The rejection of that request only.
    let server = AdminPage::for_workload(&mesh.get_json("proxies"), "bookinfo/ratings-1").unwrap();
    let denied = eventually("the rejection is counted", Duration::from_secs(60), || {
        let metrics = String::from_utf8(get_page(server.address, "/metrics").ok()?.body).unwrap();
        let denied = metrics.lines().filter(|line| {
            line.starts_with("leno_requests_total{") && line.contains("reason=\"denied-by-policy\"")
        });
        let denied: Vec<String> = denied.map(str::to_owned).collect();
        (!denied.is_empty()).then_some(denied)
    });
    let denied = denied.0;
    assert!(denied.len() == 1 && denied[0].ends_with("} 1"), "{denied:?}");
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
