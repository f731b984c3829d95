//! Filters of rules: header edits, rewrites and redirects, over every protocol of a client.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, Response};
use leno_model::{
    AllowedNames, Cors, Header, HeaderEdits, Name, OriginPattern, PathEdit, Protocol, Redirect,
    RouteRule, RuleActions, UrlRewrite,
};

use super::fixture::{Application, Client, Mesh, OK, PORT, run};
use super::http2;
use super::routes::{path_rule, routed_services};

fn set_header(name: &str, value: &str) -> Header {
    Header { name: name.to_owned(), value: value.to_owned() }
}

/// Returns a rule that edits both heads, and replaces host and prefix.
pub(super) fn editing_rule() -> RouteRule {
    let actions = RuleActions {
        request_headers: HeaderEdits {
            set: vec![set_header("x-set", "new")],
            add: vec![set_header("x-add", "two")],
            remove: vec!["x-gone".to_owned()],
        },
        response_headers: HeaderEdits {
            set: vec![set_header("server", "leno")],
            add: vec![set_header("x-more", "b")],
            remove: vec!["x-secret".to_owned()],
        },
        rewrite: Some(UrlRewrite {
            hostname: Some(Name::new("inner.example").unwrap()),
            path: Some(PathEdit::Prefix("/v2".to_owned())),
        }),
        ..RuleActions::default()
    };
    RouteRule { actions, ..path_rule("/ratings", &[("ratings-v2", 1)]) }
}

fn redirect_rule(redirect: Redirect) -> RouteRule {
    let actions = RuleActions {
        redirect: Some(redirect),
        response_headers: HeaderEdits {
            set: vec![set_header("x-why", "moved")],
            ..HeaderEdits::default()
        },
        ..RuleActions::default()
    };
    RouteRule { actions, ..path_rule("/ratings", &[]) }
}

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nServer: app\r\nX-More: a\r\nX-Secret: 1\r\nx-kept: 2\r\n\
                      content-length: 2\r\n\r\nok";
const REQUEST: &str = "GET /ratings/1?q=1 HTTP/1.1\r\nHost: ratings\r\nX-Set: old\r\nx-add: one\r\n\
                       X-Gone: 1\r\nx-kept: 2\r\n\r\n";
/// A request with header names that CGI, WSGI, PHP and Rack treat like those of the rule.
const REQUEST_WITH_EQUIVALENT_NAMES: &str = "GET /ratings/1?q=1 HTTP/1.1\r\nHost: ratings\r\nX_Set: evil\r\nx.gone: 1\r\nx_add: one\r\n\r\n";

#[test]
fn responses_of_the_sidecar_have_cors_headers_for_allowed_origins() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let cors = Cors {
            origins: vec![OriginPattern::new("https://*.example").unwrap()],
            allows_credentials: true,
            methods: AllowedNames::Any,
            headers: AllowedNames::Any,
            exposed_headers: AllowedNames::default(),
            max_age_seconds: 5,
        };
        let mut rule = editing_rule();
        rule.actions.cors = Some(cors);
        let mut services = routed_services(&mesh, vec![rule]);
        // The service has no endpoint.
        services.last_mut().unwrap().ports.get_mut(&PORT).unwrap().endpoints.clear();
        mesh.set_client_services(services);
        let mut client = Client::connect(mesh.listener).await;
        for (origin, allowed) in
            [("https://a.example", Some("https://a.example")), ("https://evil", None)]
        {
            let request =
                format!("GET /ratings HTTP/1.1\r\nhost: ratings\r\norigin: {origin}\r\n\r\n");
            let response = client.send_request(&request).await;
            assert_eq!(response.verdict(), (503, Some("no-endpoint")));
            assert_eq!(response.field_value("access-control-allow-origin"), allowed);
            assert_eq!(response.field_value("vary"), Some("origin"));
            // Response filters of the rule do not apply to the sidecar's own response.
            assert_eq!(response.field_value("x-more"), None);
        }
    });
}

#[test]
fn request_and_response_headers_are_edited() {
    run(async {
        let app = Application::with_response(RESPONSE).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_client_services(routed_services(&mesh, vec![editing_rule()]));
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..2 {
            let response = client.send_request(REQUEST).await;
            assert_eq!(response.status, 200);
            let fields = parse_fields(&response.head);
            let expected: &[(&str, &[&str])] = &[
                ("server", &["leno"]),
                ("x-more", &["a", "b"]),
                ("x-kept", &["2"]),
                ("x-secret", &[]),
            ];
            for (name, values) in expected {
                assert_eq!(
                    fields.get(*name).map_or(&[][..], |values| values),
                    *values,
                    "{}",
                    response.head
                );
            }
        }
        for request in app.received_requests() {
            assert!(request.head.starts_with("GET /v2/1?q=1 HTTP/1.1\r\n"), "{}", request.head);
            let fields = parse_fields(&request.head);
            let expected: &[(&str, &[&str])] = &[
                ("host", &["inner.example"]),
                ("x-set", &["new"]),
                ("x-add", &["one", "two"]),
                ("x-gone", &[]),
                ("x-kept", &["2"]),
            ];
            for (name, values) in expected {
                assert_eq!(
                    fields.get(*name).map_or(&[][..], |values| values),
                    *values,
                    "{}",
                    request.head
                );
            }
        }
    });
}

#[test]
fn headers_with_equivalent_names_are_set_and_removed() {
    run(async {
        let app = Application::with_response(RESPONSE).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_client_services(routed_services(&mesh, vec![editing_rule()]));
        let response =
            Client::connect(mesh.listener).await.send_request(REQUEST_WITH_EQUIVALENT_NAMES).await;
        assert_eq!(response.status, 200);
        let head = &app.received_requests()[0].head;
        let fields = parse_fields(head);
        let expected: &[(&str, &[&str])] = &[
            ("x-set", &["new"]),
            ("x_set", &[]),
            ("x.gone", &[]),
            ("x-add", &["two"]),
            ("x_add", &["one"]),
        ];
        for (name, values) in expected {
            assert_eq!(fields.get(*name).map_or(&[][..], |values| values), *values, "{head}");
        }
    });
}

#[test]
fn grpc_calls_are_edited() {
    run(async {
        let app = http2::start_application(|request, mut respond| async move {
            let (parts, body) = request.into_parts();
            http2::read_body(body).await;
            let reported =
                |name: &str| parts.headers.get(name).map_or("", |value| value.to_str().unwrap());
            let head = Response::builder()
                .header("content-type", "application/grpc")
                .header("server", "app")
                .header("x-secret", "1")
                .header("saw-uri", parts.uri.to_string())
                .header("saw-set", reported("x-set"))
                .header("saw-gone", reported("x-gone"));
            let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
            http2::send_data(&mut stream, Bytes::from_static(b"message"), false).await;
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            stream.send_trailers(trailers).unwrap();
        })
        .await;
        let mesh = http2::http2_mesh(app.address, Protocol::Grpc).await;
        mesh.set_client_services(routed_services(&mesh, vec![editing_rule()]));
        let mut client = http2::connect_client(mesh.listener).await;
        let mut call = http2::grpc_request("/ratings/Rate");
        call.headers_mut().insert("x-gone", "1".parse().unwrap());
        call.headers_mut().insert("x-set", "old".parse().unwrap());
        let (response, mut stream) = client.send_request(call, false).unwrap();
        http2::send_data(&mut stream, Bytes::from_static(b"message"), true).await;
        let response = response.await.unwrap();
        let reported =
            |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!(reported("saw-uri"), Some("http://inner.example/v2/Rate"));
        assert_eq!(reported("saw-set"), Some("new"));
        assert_eq!(reported("saw-gone"), Some(""));
        assert_eq!(reported("server"), Some("leno"));
        assert_eq!(reported("x-secret"), None);
        let mut body = response.into_body();
        while let Some(Ok(_)) = body.data().await {}
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers.get("grpc-status").unwrap(), "0");
    });
}

#[test]
fn a_redirect_is_sent_without_an_upstream_request() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = http2::http2_mesh(app.address, Protocol::Http2).await;
        let redirect = Redirect {
            scheme: None,
            hostname: Some(Name::new("b.example").unwrap()),
            path: Some(PathEdit::Prefix("/new".to_owned())),
            port: None,
            status: 308,
        };
        mesh.set_client_services(routed_services(&mesh, vec![redirect_rule(redirect)]));
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..2 {
            let reply = client.send_request(REQUEST).await;
            assert_eq!(reply.verdict(), (308, None));
            assert_eq!(reply.field_value("location"), Some("http://b.example:9080/new/1?q=1"));
            assert_eq!(reply.field_value("x-why"), Some("moved"));
            assert_eq!(reply.field_value("content-length"), Some("0"));
            assert!(reply.field_value("date").is_some());
        }
        let mut client = http2::connect_client(mesh.listener).await;
        let request = http::Request::get("http://x/ratings").body(()).unwrap();
        let response = client.send_request(request, true).unwrap().0.await.unwrap();
        assert_eq!(response.status(), 308);
        assert_eq!(response.headers().get("location").unwrap(), "http://b.example:9080/new");
        assert_eq!(response.headers().get("x-why").unwrap(), "moved");
        assert_eq!(app.accepted.get(), 0);
        assert_eq!(mesh.client.failure_counts(), BTreeMap::new());
    });
}

#[test]
fn an_unread_body_of_a_redirected_request_ends_the_connection() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let redirect =
            Redirect { scheme: None, hostname: None, path: None, port: None, status: 307 };
        mesh.set_client_services(routed_services(&mesh, vec![redirect_rule(redirect)]));
        let mut client = Client::connect(mesh.listener).await;
        client
            .send_bytes("POST /ratings HTTP/1.1\r\nhost: a:81\r\ncontent-length: 5\r\n\r\n")
            .await;
        let response = client.read_response().await;
        assert_eq!(response.field_value("location"), Some("http://a:81/ratings"));
        assert_eq!(response.field_value("connection"), Some("close"));
    });
}

/// Returns the values of each field, by its name in lower case.
fn parse_fields(head: &str) -> BTreeMap<String, Vec<&str>> {
    let mut fields: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, value) in head.lines().skip(1).filter_map(|line| line.split_once(':')) {
        fields.entry(name.to_ascii_lowercase()).or_default().push(value.trim());
    }
    fields
}
