//! Session affinity: clients stay at the endpoint that served them first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use leno_model::{
    Endpoint, PersistenceType, Protocol, RetryRule, RouteRule, RuleActions, SessionPersistence,
};

use super::fixture::{Application, Client, Mesh, PORT, ReceivedMessage, Sidecar, run};
use super::http2;
use super::routes::{path_rule, routed_services};

fn cookie_persistence() -> SessionPersistence {
    SessionPersistence {
        name: Some("cart".into()),
        kind: PersistenceType::Cookie,
        absolute_timeout: None,
        idle_timeout: None,
        path: None,
    }
}

fn sticky_rule(persistence: SessionPersistence) -> RouteRule {
    let actions = RuleActions { persistence: Some(persistence), ..RuleActions::default() };
    RouteRule { actions, ..path_rule("/", &[("ratings-v2", 1)]) }
}

/// Starts an application that responds with its name.
async fn start_named(name: &'static str) -> Application {
    Application::respond_with(move |_| {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len())
    })
    .await
}

/// Applies the rule at the client, with these endpoints.
fn apply_rule(mesh: &Mesh, rule: RouteRule, endpoints: &[Endpoint]) {
    let mut services = routed_services(mesh, vec![rule]);
    let backend = services.last_mut().unwrap().ports.get_mut(&PORT).unwrap();
    backend.endpoints = endpoints.iter().cloned().map(Arc::new).collect();
    mesh.set_client_services(services);
}

/// Creates a mesh with the servers `one`, `two` and `three`.
async fn start_three() -> (Mesh, Vec<Endpoint>, Vec<(Application, Option<Sidecar>)>) {
    let first_app = start_named("one").await;
    let mesh = Mesh::permissive(first_app.address).await;
    let mut endpoints = vec![mesh.server_endpoint()];
    let mut backends = vec![(first_app, None)];
    for (workload, name) in [("ratings-2", "two"), ("ratings-3", "three")] {
        let app = start_named(name).await;
        let (server, endpoint) = mesh.start_server(workload, app.address).await;
        endpoints.push(endpoint);
        backends.push((app, Some(server)));
    }
    (mesh, endpoints, backends)
}

fn get(fields: &str) -> String {
    format!("GET /ratings HTTP/1.1\r\nhost: x\r\n{fields}\r\n")
}

/// Returns the cookie set by a response, in the form of a request.
fn response_cookie(response: &ReceivedMessage) -> Option<String> {
    let (pair, _) = response.field_value("set-cookie")?.split_once(';')?;
    Some(format!("cookie: other=1; {pair}\r\n"))
}

#[test]
fn a_client_stays_at_the_endpoint_of_its_cookie() {
    run(async {
        let (mesh, endpoints, _held) = start_three().await;
        apply_rule(&mesh, sticky_rule(cookie_persistence()), &endpoints);
        let mut client = Client::connect(mesh.listener).await;
        let mut names = BTreeSet::new();
        while names.len() < 3 {
            let first = client.send_request(&get("")).await;
            let field = first.field_value("set-cookie").unwrap().to_owned();
            assert!(field.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{field}");
            let cookie = response_cookie(&first).unwrap();
            names.insert(first.body_text().to_owned());
            for _ in 0..20 {
                let second_response = client.send_request(&get(&cookie)).await;
                assert_eq!(second_response.body_text(), first.body_text());
                assert_eq!(second_response.field_value("set-cookie"), None, "it knows");
            }
        }
    });
}

#[test]
fn a_client_of_a_removed_endpoint_gets_another_one() {
    run(async {
        let (mesh, endpoints, _held) = start_three().await;
        apply_rule(&mesh, sticky_rule(cookie_persistence()), &endpoints);
        let mut client = Client::connect(mesh.listener).await;
        let first = client.send_request(&get("")).await;
        let gone =
            ["one", "two", "three"].iter().position(|name| *name == first.body_text()).unwrap();
        let mut remaining_endpoints = endpoints.clone();
        remaining_endpoints.remove(gone);
        apply_rule(&mesh, sticky_rule(cookie_persistence()), &remaining_endpoints);
        let second = client.send_request(&get(&response_cookie(&first).unwrap())).await;
        assert_ne!(second.body_text(), first.body_text());
        let cookie_of_second = response_cookie(&second).unwrap();
        // The endpoint returns, but the client stays at its current one.
        apply_rule(&mesh, sticky_rule(cookie_persistence()), &endpoints);
        for _ in 0..20 {
            assert_eq!(
                client.send_request(&get(&cookie_of_second)).await.body_text(),
                second.body_text()
            );
        }
    });
}

#[test]
fn a_client_of_an_unreachable_endpoint_gets_another_one() {
    run(async {
        let (mesh, endpoints, backends) = start_three().await;
        let mut rule = sticky_rule(cookie_persistence());
        let backoff = Duration::from_millis(1);
        rule.actions.retry = Some(RetryRule { codes: vec![503], attempts: 1, backoff });
        apply_rule(&mesh, rule, &endpoints);
        let mut client = Client::connect(mesh.listener).await;
        let first = client.send_request(&get("")).await;
        let failing_index =
            ["one", "two", "three"].iter().position(|name| *name == first.body_text()).unwrap();
        // The workload has moved to an address without a listener.
        let mut moved_endpoints = endpoints.clone();
        moved_endpoints[failing_index].address = super::fixture::closed_port();
        let mut rule = sticky_rule(cookie_persistence());
        rule.actions.retry = Some(RetryRule { codes: vec![503], attempts: 1, backoff });
        apply_rule(&mesh, rule, &moved_endpoints);
        let second = client.send_request(&get(&response_cookie(&first).unwrap())).await;
        assert_eq!(second.status, 200);
        assert_ne!(second.body_text(), first.body_text());
        assert_ne!(response_cookie(&second), response_cookie(&first));
        drop(backends);
    });
}

#[test]
fn the_idle_time_counts_from_the_last_response() {
    run(async {
        let (mesh, endpoints, _held) = start_three().await;
        let idle_timeout = Some(Duration::from_secs(3600));
        apply_rule(
            &mesh,
            sticky_rule(SessionPersistence { idle_timeout, ..cookie_persistence() }),
            &endpoints,
        );
        let mut client = Client::connect(mesh.listener).await;
        let first = client.send_request(&get("")).await;
        let second_response = client.send_request(&get(&response_cookie(&first).unwrap())).await;
        assert_eq!(second_response.body_text(), first.body_text());
        assert!(
            second_response.field_value("set-cookie").is_some(),
            "each response sets the cookie"
        );
        // The session's last response was in 1970.
        let cookie = response_cookie(&first).unwrap();
        let (number, _) = cookie.trim_end().split_once('.').unwrap();
        let mut endpoint_names = BTreeSet::new();
        while endpoint_names.len() < 3 {
            let response = client.send_request(&get(&format!("{number}.1.1\r\n"))).await;
            assert!(response.field_value("set-cookie").is_some());
            endpoint_names.insert(response.body_text().to_owned());
        }
    });
}

/// Starts an HTTP/2 application that responds with its name, preceded by `+` if the request has the header
/// `x-cart`, else by `-`. Its responses have that header with another value.
async fn named_over_http2(name: &'static str) -> Application {
    http2::start_application(move |request, mut respond| async move {
        let (parts, body) = request.into_parts();
        http2::read_body(body).await;
        let head = Response::builder().header("x-cart", "of-the-application").body(()).unwrap();
        let mut stream = respond.send_response(head, false).unwrap();
        let prefix = if parts.headers.contains_key("x-cart") { "+" } else { "-" };
        http2::send_data(&mut stream, Bytes::from(format!("{prefix}{name}")), true).await;
    })
    .await
}

#[test]
fn session_affinity_by_header_works_over_http2() {
    run(async {
        let (first_app, second_app) =
            (named_over_http2("one").await, named_over_http2("two").await);
        let mesh = http2::http2_mesh(first_app.address, Protocol::Http2).await;
        let (_server, second) = mesh.start_server("ratings-2", second_app.address).await;
        let header = SessionPersistence {
            name: Some("x-cart".into()),
            kind: PersistenceType::Header,
            ..cookie_persistence()
        };
        apply_rule(&mesh, sticky_rule(header), &[mesh.server_endpoint(), second]);
        let mut send = http2::connect_client(mesh.listener).await;
        let mut request_with = async |value: Option<&str>| {
            let mut request = http::Request::get("http://ratings/");
            if let Some(value) = value {
                request = request.header("x-cart", value);
            }
            let (response, _) = send.send_request(request.body(()).unwrap(), true).unwrap();
            let response = response.await.unwrap();
            let values: Vec<_> = response.headers().get_all("x-cart").iter().cloned().collect();
            assert_eq!(values.len(), 1, "{values:?}");
            let value = values[0].to_str().unwrap().to_owned();
            (String::from_utf8(http2::read_body(response.into_body()).await.0).unwrap(), value)
        };
        let mut serving_apps = BTreeSet::new();
        while serving_apps.len() < 2 {
            let (name, value) = request_with(None).await;
            for _ in 0..10 {
                // The application receives the clients' header.
                let encoded = name.replace('-', "+");
                assert_eq!(request_with(Some(&value)).await, (encoded, value.clone()));
            }
            serving_apps.insert(name);
        }
    });
}
