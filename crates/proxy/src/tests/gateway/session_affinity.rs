//! Session affinity of browsers.

use leno_model::{
    GatewayListener, GatewayPortRules, PersistenceType, Protocol, RouteRule, SessionPersistence,
};

use super::fixture::{
    GatewayFixture, HTTP, HTTPS, backends_to, connect_tls, gateway_listener, host_rules, http_port,
    path_rule, self_signed,
};
use crate::tests::fixture::{Application, Client, run};
use crate::tls::ALPN_HTTP1;

async fn start_named(name: &'static str) -> Application {
    Application::respond_with(move |_| {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len())
    })
    .await
}

/// Returns a rule for a path, to a service with a sidecar and one without.
fn sticky_rule(path: &str) -> RouteRule {
    let persistence = SessionPersistence {
        name: None,
        kind: PersistenceType::Cookie,
        absolute_timeout: None,
        idle_timeout: None,
        path: None,
    };
    let mut rule = path_rule(path, [backends_to("ratings"), backends_to("plain")].concat());
    rule.actions.persistence = Some(persistence);
    rule
}

fn get(path: &str, cookie: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a.com\r\n{cookie}\r\n")
}

#[test]
fn a_browser_stays_at_its_endpoint_with_and_without_a_sidecar() {
    run(async {
        let (meshed, plain, other) =
            (start_named("meshed").await, start_named("p1").await, start_named("p2").await);
        let gateway = GatewayFixture::new(meshed.address, Protocol::Http, plain.address).await;
        gateway.add_endpoint_at(other.address);
        let rules = vec![sticky_rule("/a"), sticky_rule("/b")];
        let certificate = self_signed(&["a.com"]);
        let listener = GatewayListener {
            certificates: vec![certificate.clone()],
            ..gateway_listener("tls", "", vec![host_rules("", rules.clone())])
        };
        gateway.set_ports(vec![
            http_port(HTTP, vec![gateway_listener("http", "", vec![host_rules("", rules)])]),
            (HTTPS, GatewayPortRules::Https(vec![listener])),
        ]);
        let mut plaintext = Client::connect(gateway.port_address(HTTP).await).await;
        let mut secure_client = Client::new(
            connect_tls(gateway.port_address(HTTPS).await, "a.com", &certificate, &[ALPN_HTTP1])
                .await
                .unwrap(),
        );
        let mut names = std::collections::BTreeSet::new();
        while names.len() < 3 {
            let first = plaintext.send_request(&get("/a", "")).await;
            let (pair, attributes) =
                first.field_value("set-cookie").unwrap().split_once("; ").unwrap();
            assert_eq!(attributes, "Path=/a; HttpOnly; SameSite=Strict");
            let cookie = format!("cookie: {pair}\r\n");
            for _ in 0..10 {
                assert_eq!(
                    plaintext.send_request(&get("/a", &cookie)).await.body_text(),
                    first.body_text()
                );
                assert_eq!(
                    secure_client.send_request(&get("/a", &cookie)).await.body_text(),
                    first.body_text()
                );
            }
            names.insert(first.body_text().to_owned());
            // The other rule has its own session.
            let other_response = secure_client.send_request(&get("/b", &cookie)).await;
            let (other_pair, attributes) =
                other_response.field_value("set-cookie").unwrap().split_once("; ").unwrap();
            assert_eq!(attributes, "Path=/b; HttpOnly; Secure; SameSite=Strict");
            assert_ne!(other_pair, pair);
        }
    });
}
