//! Session affinity of browsers.

use leno_model::{Carries, GatewayListener, Persistence, Protocol, RouteRule, Serves};

use super::fixture::{Gate, HTTP, HTTPS, backend, certificate, host, http, listener, rule, tls};
use crate::tests::fixture::{Application, Client, run};
use crate::tls::ALPN_HTTP1;

async fn named(name: &'static str) -> Application {
    Application::answering(move |_| {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len())
    })
    .await
}

/// Returns a rule for a path, to a service with a sidecar and one without.
fn keeping(path: &str) -> RouteRule {
    let persistence = Persistence {
        name: None,
        carrier: Carries::Cookie,
        absolute: None,
        idle: None,
        path: None,
    };
    let mut rule = rule(path, [backend("ratings"), backend("plain")].concat());
    rule.actions.persistence = Some(persistence);
    rule
}

fn get(path: &str, cookie: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a.com\r\n{cookie}\r\n")
}

#[test]
fn a_browser_keeps_to_its_endpoint_with_a_sidecar_or_without() {
    run(async {
        let (meshed, plain, other) = (named("meshed").await, named("p1").await, named("p2").await);
        let gate = Gate::new(meshed.address, (Protocol::Http, plain.address)).await;
        gate.also_at(other.address);
        let rules = vec![keeping("/a"), keeping("/b")];
        let one = certificate(&["a.com"]);
        let shown = GatewayListener {
            certificates: vec![one.clone()],
            ..listener("tls", "", vec![host("", rules.clone())])
        };
        gate.serve(vec![
            http(HTTP, vec![listener("http", "", vec![host("", rules)])]),
            (HTTPS, Serves::Https(vec![shown])),
        ]);
        let mut plaintext = Client::connect(gate.at(HTTP).await).await;
        let mut safe =
            Client::new(tls(gate.at(HTTPS).await, "a.com", &one, &[ALPN_HTTP1]).await.unwrap());
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < 3 {
            let first = plaintext.ask(&get("/a", "")).await;
            let (pair, attributes) = first.field("set-cookie").unwrap().split_once("; ").unwrap();
            assert_eq!(attributes, "Path=/a; HttpOnly; SameSite=Strict");
            let cookie = format!("cookie: {pair}\r\n");
            for _ in 0..10 {
                assert_eq!(plaintext.ask(&get("/a", &cookie)).await.text(), first.text());
                assert_eq!(safe.ask(&get("/a", &cookie)).await.text(), first.text());
            }
            seen.insert(first.text().to_owned());
            // The other rule has a session of its own.
            let at_another = safe.ask(&get("/b", &cookie)).await;
            let (its_pair, attributes) =
                at_another.field("set-cookie").unwrap().split_once("; ").unwrap();
            assert_eq!(attributes, "Path=/b; HttpOnly; Secure; SameSite=Strict");
            assert_ne!(its_pair, pair);
        }
    });
}
