//! Session affinity: clients stay at the endpoint that served them first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use leno_model::{Carries, Endpoint, Persistence, Protocol, RetryRule, RouteRule, RuleActions};

use super::fixture::{Answer, Application, Client, Mesh, PORT, Sidecar, run};
use super::http2;
use super::routes::{routed, rule};

fn cookie() -> Persistence {
    Persistence {
        name: Some("cart".into()),
        carrier: Carries::Cookie,
        absolute: None,
        idle: None,
        path: None,
    }
}

fn keeping(persistence: Persistence) -> RouteRule {
    let actions = RuleActions { persistence: Some(persistence), ..RuleActions::default() };
    RouteRule { actions, ..rule("/", &[("ratings-v2", 1)]) }
}

/// Starts an application that answers with its name.
async fn named(name: &'static str) -> Application {
    Application::answering(move |_| {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len())
    })
    .await
}

/// Applies the rule at the client, with these endpoints.
fn obey(mesh: &Mesh, rule: RouteRule, endpoints: &[Endpoint]) {
    let mut views = routed(mesh, vec![rule]);
    let backend = views.last_mut().unwrap().ports.get_mut(&PORT).unwrap();
    backend.endpoints = endpoints.iter().cloned().map(Arc::new).collect();
    mesh.client_knows(views);
}

/// Creates a mesh with the servers `one`, `two` and `three`.
async fn three() -> (Mesh, Vec<Endpoint>, Vec<(Application, Option<Sidecar>)>) {
    let one = named("one").await;
    let mesh = Mesh::permissive(one.address).await;
    let mut endpoints = vec![mesh.endpoint()];
    let mut held = vec![(one, None)];
    for (workload, name) in [("ratings-2", "two"), ("ratings-3", "three")] {
        let app = named(name).await;
        let (server, endpoint) = mesh.server(workload, app.address).await;
        endpoints.push(endpoint);
        held.push((app, Some(server)));
    }
    (mesh, endpoints, held)
}

fn get(fields: &str) -> String {
    format!("GET /ratings HTTP/1.1\r\nhost: x\r\n{fields}\r\n")
}

/// Returns the cookie set by a response, in the form of a request.
fn shown(answer: &Answer) -> Option<String> {
    let (pair, _) = answer.field("set-cookie")?.split_once(';')?;
    Some(format!("cookie: other=1; {pair}\r\n"))
}

#[test]
fn a_client_keeps_to_the_endpoint_that_its_cookie_names() {
    run(async {
        let (mesh, endpoints, _held) = three().await;
        obey(&mesh, keeping(cookie()), &endpoints);
        let mut client = Client::connect(mesh.listener).await;
        let mut seen = BTreeSet::new();
        while seen.len() < 3 {
            let first = client.ask(&get("")).await;
            let field = first.field("set-cookie").unwrap().to_owned();
            assert!(field.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{field}");
            let cookie = shown(&first).unwrap();
            seen.insert(first.text().to_owned());
            for _ in 0..20 {
                let again = client.ask(&get(&cookie)).await;
                assert_eq!(again.text(), first.text());
                assert_eq!(again.field("set-cookie"), None, "it knows");
            }
        }
    });
}

#[test]
fn when_its_endpoint_is_gone_a_client_is_reported_another_one() {
    run(async {
        let (mesh, endpoints, _held) = three().await;
        obey(&mesh, keeping(cookie()), &endpoints);
        let mut client = Client::connect(mesh.listener).await;
        let first = client.ask(&get("")).await;
        let gone = ["one", "two", "three"].iter().position(|name| *name == first.text()).unwrap();
        let mut left = endpoints.clone();
        left.remove(gone);
        obey(&mesh, keeping(cookie()), &left);
        let second = client.ask(&get(&shown(&first).unwrap())).await;
        assert_ne!(second.text(), first.text());
        let cookie_of_second = shown(&second).unwrap();
        // The endpoint returns, but the client stays at its current one.
        obey(&mesh, keeping(cookie()), &endpoints);
        for _ in 0..20 {
            assert_eq!(client.ask(&get(&cookie_of_second)).await.text(), second.text());
        }
    });
}

#[test]
fn when_its_endpoint_does_not_answer_a_client_is_reported_another_one() {
    run(async {
        let (mesh, endpoints, held) = three().await;
        let mut rule = keeping(cookie());
        let backoff = Duration::from_millis(1);
        rule.actions.retry = Some(RetryRule { codes: vec![503], attempts: 1, backoff });
        obey(&mesh, rule, &endpoints);
        let mut client = Client::connect(mesh.listener).await;
        let first = client.ask(&get("")).await;
        let sick = ["one", "two", "three"].iter().position(|name| *name == first.text()).unwrap();
        // The workload has moved to an address without a listener.
        let mut moved = endpoints.clone();
        moved[sick].address = super::fixture::closed_port();
        let mut rule = keeping(cookie());
        rule.actions.retry = Some(RetryRule { codes: vec![503], attempts: 1, backoff });
        obey(&mesh, rule, &moved);
        let second = client.ask(&get(&shown(&first).unwrap())).await;
        assert_eq!(second.status, 200);
        assert_ne!(second.text(), first.text());
        assert_ne!(shown(&second), shown(&first));
        drop(held);
    });
}

#[test]
fn an_idle_time_counts_from_the_last_answer() {
    run(async {
        let (mesh, endpoints, _held) = three().await;
        let idle = Some(Duration::from_secs(3600));
        obey(&mesh, keeping(Persistence { idle, ..cookie() }), &endpoints);
        let mut client = Client::connect(mesh.listener).await;
        let first = client.ask(&get("")).await;
        let again = client.ask(&get(&shown(&first).unwrap())).await;
        assert_eq!(again.text(), first.text());
        assert!(again.field("set-cookie").is_some(), "told anew each time");
        // Last answered in 1970.
        let cookie = shown(&first).unwrap();
        let (number, _) = cookie.trim_end().split_once('.').unwrap();
        let mut others = BTreeSet::new();
        while others.len() < 3 {
            let answer = client.ask(&get(&format!("{number}.1.1\r\n"))).await;
            assert!(answer.field("set-cookie").is_some());
            others.insert(answer.text().to_owned());
        }
    });
}

/// The same over HTTP/2; reports whether the request has the header, and sends a header of its own.
async fn named_over_http2(name: &'static str) -> Application {
    http2::application(move |request, mut respond| async move {
        let (parts, body) = request.into_parts();
        http2::whole(body).await;
        let head = Response::builder().header("x-cart", "of-the-application").body(()).unwrap();
        let mut stream = respond.send_response(head, false).unwrap();
        let shows = if parts.headers.contains_key("x-cart") { "+" } else { "-" };
        http2::send(&mut stream, Bytes::from(format!("{shows}{name}")), true).await;
    })
    .await
}

#[test]
fn a_header_carries_it_over_http2_too() {
    run(async {
        let (one, two) = (named_over_http2("one").await, named_over_http2("two").await);
        let mesh = http2::mesh(one.address, Protocol::Http2).await;
        let (_server, second) = mesh.server("ratings-2", two.address).await;
        let header =
            Persistence { name: Some("x-cart".into()), carrier: Carries::Header, ..cookie() };
        obey(&mesh, keeping(header), &[mesh.endpoint(), second]);
        let mut send = http2::connect(mesh.listener).await;
        let mut ask = async |value: Option<&str>| {
            let mut request = http::Request::get("http://ratings/");
            if let Some(value) = value {
                request = request.header("x-cart", value);
            }
            let (response, _) = send.send_request(request.body(()).unwrap(), true).unwrap();
            let response = response.await.unwrap();
            let values: Vec<_> = response.headers().get_all("x-cart").iter().cloned().collect();
            assert_eq!(values.len(), 1, "{values:?}");
            let value = values[0].to_str().unwrap().to_owned();
            (String::from_utf8(http2::whole(response.into_body()).await.0).unwrap(), value)
        };
        let mut both = BTreeSet::new();
        while both.len() < 2 {
            let (name, value) = ask(None).await;
            for _ in 0..10 {
                // The application receives the clients' header.
                let shown = name.replace('-', "+");
                assert_eq!(ask(Some(&value)).await, (shown, value.clone()));
            }
            both.insert(name);
        }
    });
}
