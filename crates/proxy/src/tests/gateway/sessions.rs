//! TLS sessions: terminated at the gateway, or passed through.

use leno_model::WeightedBackend;
use leno_model::{GatewayCertificate, GatewayListener, GatewayPortRules, Protocol, TlsRule};

use super::fixture::{
    GatewayFixture, HTTP, HTTPS, TLS, accept_tls, backends_to, connect_tls, gateway_listener,
    host_rules, http_port, path_rule, self_signed,
};
use super::start_mirror;
use crate::config::Limits;
use crate::tests::fixture::{Application, Client, OK, Setup, run};
use crate::tests::http2::read_body;
use crate::tls::{ALPN_HTTP1, ALPN_HTTP2};

pub(super) fn tls_listener(
    name: &str,
    hostname: &str,
    certificates: &[&GatewayCertificate],
) -> GatewayListener {
    let rules =
        vec![path_rule("/", backends_to("ratings")), path_rule("/plain", backends_to("plain"))];
    GatewayListener {
        certificates: certificates.iter().map(|certificate| (*certificate).clone()).collect(),
        ..gateway_listener(name, hostname, vec![host_rules("", rules)])
    }
}

fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")
}

#[test]
fn each_name_has_its_own_certificate_and_requests_stay_in_their_session() {
    run(async {
        let app = start_mirror("meshed").await;
        let gateway = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let [certificate1, certificate2] =
            [self_signed(&["a.com"]), self_signed(&["b.a.com", "c.a.com"])];
        let listeners = vec![
            tls_listener("one", "a.com", &[&certificate1]),
            tls_listener("two", "*.a.com", &[&certificate2]),
        ];
        gateway.set_ports(vec![(HTTPS, GatewayPortRules::Https(listeners))]);
        let address = gateway.port_address(HTTPS).await;
        for (name, certificate) in
            [("a.com", &certificate1), ("b.a.com", &certificate2), ("c.a.com", &certificate2)]
        {
            let session = connect_tls(address, name, certificate, &[ALPN_HTTP1]).await.unwrap();
            let mut client = Client::new(session);
            let response = client.send_request(&get(name)).await;
            assert_eq!(response.status, 200, "{name}");
            assert!(
                response.body_text().contains("x-forwarded-proto: https"),
                "{}",
                response.body_text()
            );
        }
        assert!(
            connect_tls(address, "a.com", &certificate2, &[]).await.is_err(),
            "the other certificate"
        );
        assert!(
            connect_tls(address, "else.com", &certificate1, &[]).await.is_err(),
            "no listener has this name"
        );
        let mut client =
            Client::new(connect_tls(address, "b.a.com", &certificate2, &[]).await.unwrap());
        assert_eq!(client.send_request(&get("c.a.com")).await.status, 200);
        assert_eq!(client.send_request(&get("a.com")).await.verdict(), (421, Some("misdirected")));
        assert_eq!(client.send_request(&get("else.com")).await.verdict(), (404, Some("no-route")));
        let mut plaintext = Client::connect(address).await;
        plaintext.send_bytes(get("a.com")).await;
        plaintext.read_rest().await;
        assert_eq!(gateway.mesh.client.telemetry.rejected_connections()["plaintext-rejected"], 1);
    });
}

/// The scheme `https` is accepted in TLS only.
#[test]
fn an_absolute_target_has_the_scheme_of_its_listener() {
    run(async {
        let app = start_mirror("meshed").await;
        let gateway = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let certificate = self_signed(&["a.com"]);
        gateway.set_ports(vec![
            (HTTPS, GatewayPortRules::Https(vec![tls_listener("one", "a.com", &[&certificate])])),
            http_port(HTTP, vec![tls_listener("two", "", &[])]),
        ]);
        let session =
            connect_tls(gateway.port_address(HTTPS).await, "a.com", &certificate, &[ALPN_HTTP1])
                .await
                .unwrap();
        let mut inside = Client::new(session);
        let mut plaintext_client = Client::connect(gateway.port_address(HTTP).await).await;
        for (scheme, in_tls, in_clear) in
            [("https", 200, 501), ("HTTPS", 200, 501), ("http", 200, 200), ("ftp", 501, 501)]
        {
            let request = format!("GET {scheme}://a.com/x HTTP/1.1\r\nhost: a.com\r\n\r\n");
            let response = inside.send_request(&request).await;
            assert_eq!(response.status, in_tls, "{request}");
            if in_tls == 200 {
                assert!(
                    response.body_text().starts_with("meshed GET /x "),
                    "{}",
                    response.body_text()
                );
            }
            assert_eq!(plaintext_client.send_request(&request).await.status, in_clear, "{request}");
        }
    });
}

#[test]
fn an_incomplete_client_hello_does_not_block_other_clients() {
    run(async {
        let app = start_mirror("meshed").await;
        let limits = Limits { max_handshakes: 1, ..Setup::default().limits };
        let gateway =
            GatewayFixture::with_limits(limits, app.address, Protocol::Http, app.address).await;
        let certificate = self_signed(&["a.com"]);
        gateway.set_ports(vec![(
            HTTPS,
            GatewayPortRules::Https(vec![tls_listener("one", "", &[&certificate])]),
        )]);
        let address = gateway.port_address(HTTPS).await;
        let mut slow_client = Client::connect(address).await;
        // A record of 512 bytes of which four arrive.
        slow_client.send_bytes(&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..]).await;
        for _ in 0..3 {
            let session = connect_tls(address, "a.com", &certificate, &[ALPN_HTTP1]).await.unwrap();
            assert_eq!(Client::new(session).send_request(&get("a.com")).await.status, 200);
        }
        drop(slow_client);
    });
}

#[test]
fn clients_that_offer_http2_are_served_with_http2() {
    run(async {
        let app = start_mirror("meshed").await;
        let gateway = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let certificate = self_signed(&["a.com"]);
        gateway.set_ports(vec![(
            HTTPS,
            GatewayPortRules::Https(vec![tls_listener("one", "", &[&certificate])]),
        )]);
        let offered_protocols = &[ALPN_HTTP2, ALPN_HTTP1];
        let session = connect_tls(
            gateway.port_address(HTTPS).await,
            "a.com",
            &certificate,
            offered_protocols,
        )
        .await
        .unwrap();
        assert_eq!(session.get_ref().1.alpn_protocol(), Some(ALPN_HTTP2));
        let (mut send, connection) = h2::client::handshake(session).await.unwrap();
        tokio::task::spawn_local(async move { drop(connection.await) });
        for path in ["/", "/plain"] {
            let request = http::Request::get(format!("https://a.com{path}")).body(()).unwrap();
            let (response, _) = send.send_request(request, true).unwrap();
            let response = response.await.unwrap();
            assert_eq!(response.status(), 200);
            let (body, _) = read_body(response.into_body()).await;
            let text = String::from_utf8(body).unwrap();
            assert!(text.contains("x-forwarded-proto: https"), "{text}");
        }
    });
}

#[test]
fn new_connections_receive_a_new_certificate_and_old_ones_continue() {
    run(async {
        let app = start_mirror("meshed").await;
        let gateway = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let [old, new] = [self_signed(&["a.com"]), self_signed(&["a.com"])];
        let serve_certificates = |certificates: &[&GatewayCertificate]| {
            gateway.set_ports(vec![(
                HTTPS,
                GatewayPortRules::Https(vec![tls_listener("one", "a.com", certificates)]),
            )]);
        };
        let mismatched_certificate =
            GatewayCertificate { chain: old.chain.clone(), key: new.key.clone() };
        // A certificate that cannot be used does not affect others.
        serve_certificates(&[&mismatched_certificate, &old]);
        let address = gateway.port_address(HTTPS).await;
        let mut client = Client::new(connect_tls(address, "a.com", &old, &[]).await.unwrap());
        assert_eq!(client.send_request(&get("a.com")).await.status, 200);
        serve_certificates(&[&new]);
        assert_eq!(client.send_request(&get("a.com")).await.status, 200);
        assert!(connect_tls(address, "a.com", &old, &[]).await.is_err());
        let mut client = Client::new(connect_tls(address, "a.com", &new, &[]).await.unwrap());
        assert_eq!(client.send_request(&get("a.com")).await.status, 200);
        serve_certificates(&[&mismatched_certificate]);
        assert!(connect_tls(address, "a.com", &new, &[]).await.is_err(), "nothing to show");
    });
}

fn tls_rule(hostname: &str, backends: Vec<WeightedBackend>) -> TlsRule {
    TlsRule {
        route: "bookinfo/route".parse().unwrap(),
        hostnames: vec![hostname.parse().unwrap()],
        backends,
        ungranted_weight: 0,
    }
}

#[test]
fn tls_sessions_are_forwarded_unchanged_by_server_name() {
    run(async {
        let own_certificate = self_signed(&["a.com", "b.com"]);
        let shown_certificate = own_certificate.clone();
        let app = Application::start(move |client| {
            let shown_certificate = shown_certificate.clone();
            async move {
                let Ok(session) = accept_tls(client.stream, &shown_certificate).await else {
                    return;
                };
                let mut client = Client::new(session);
                while client.read_head().await.is_some() {
                    client.send_bytes(OK).await;
                }
            }
        })
        .await;
        let gateway = GatewayFixture::new(app.address, Protocol::Tcp, app.address).await;
        let rules = vec![
            tls_rule("a.com", backends_to("plain")),
            tls_rule("b.com", backends_to("ratings")),
            tls_rule("idle.com", backends_to("idle")),
            tls_rule("nobody.com", Vec::new()),
        ];
        gateway.set_ports(vec![(TLS, GatewayPortRules::Passthrough(rules))]);
        let address = gateway.port_address(TLS).await;
        for name in ["a.com", "b.com"] {
            let mut client =
                Client::new(connect_tls(address, name, &own_certificate, &[]).await.unwrap());
            assert_eq!(client.send_request(&get(name)).await.body_text(), "ok", "{name}");
        }
        for name in ["idle.com", "nobody.com", "else.com"] {
            assert!(connect_tls(address, name, &own_certificate, &[]).await.is_err(), "{name}");
        }
        let mut plaintext = Client::connect(address).await;
        plaintext.send_bytes(get("a.com")).await;
        plaintext.read_rest().await;
    });
}
