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
        certificates: certificates.iter().map(|it| (*it).clone()).collect(),
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
        let gate = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let [one, two] = [self_signed(&["a.com"]), self_signed(&["b.a.com", "c.a.com"])];
        let listeners =
            vec![tls_listener("one", "a.com", &[&one]), tls_listener("two", "*.a.com", &[&two])];
        gate.set_ports(vec![(HTTPS, GatewayPortRules::Https(listeners))]);
        let address = gate.port_address(HTTPS).await;
        for (name, certificate) in [("a.com", &one), ("b.a.com", &two), ("c.a.com", &two)] {
            let session = connect_tls(address, name, certificate, &[ALPN_HTTP1]).await.unwrap();
            let mut client = Client::new(session);
            let answer = client.send_request(&get(name)).await;
            assert_eq!(answer.status, 200, "{name}");
            assert!(
                answer.body_text().contains("x-forwarded-proto: https"),
                "{}",
                answer.body_text()
            );
        }
        assert!(connect_tls(address, "a.com", &two, &[]).await.is_err(), "the other certificate");
        assert!(connect_tls(address, "else.com", &one, &[]).await.is_err(), "for nobody");
        let mut client = Client::new(connect_tls(address, "b.a.com", &two, &[]).await.unwrap());
        assert_eq!(client.send_request(&get("c.a.com")).await.status, 200);
        assert_eq!(client.send_request(&get("a.com")).await.verdict(), (421, Some("misdirected")));
        assert_eq!(client.send_request(&get("else.com")).await.verdict(), (404, Some("no-route")));
        let mut plaintext = Client::connect(address).await;
        plaintext.send_bytes(get("a.com")).await;
        plaintext.read_rest().await;
        assert_eq!(gate.mesh.client.telemetry.rejected_connections()["plaintext-rejected"], 1);
    });
}

/// The scheme `https` is accepted in TLS only.
#[test]
fn an_absolute_target_has_the_scheme_of_its_listener() {
    run(async {
        let app = start_mirror("meshed").await;
        let gate = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let one = self_signed(&["a.com"]);
        gate.set_ports(vec![
            (HTTPS, GatewayPortRules::Https(vec![tls_listener("one", "a.com", &[&one])])),
            http_port(HTTP, vec![tls_listener("two", "", &[])]),
        ]);
        let session = connect_tls(gate.port_address(HTTPS).await, "a.com", &one, &[ALPN_HTTP1])
            .await
            .unwrap();
        let mut inside = Client::new(session);
        let mut clear = Client::connect(gate.port_address(HTTP).await).await;
        for (scheme, in_tls, in_clear) in
            [("https", 200, 501), ("HTTPS", 200, 501), ("http", 200, 200), ("ftp", 501, 501)]
        {
            let request = format!("GET {scheme}://a.com/x HTTP/1.1\r\nhost: a.com\r\n\r\n");
            let answer = inside.send_request(&request).await;
            assert_eq!(answer.status, in_tls, "{request}");
            if in_tls == 200 {
                assert!(answer.body_text().starts_with("meshed GET /x "), "{}", answer.body_text());
            }
            assert_eq!(clear.send_request(&request).await.status, in_clear, "{request}");
        }
    });
}

#[test]
fn half_a_hello_keeps_nobody_out() {
    run(async {
        let app = start_mirror("meshed").await;
        let limits = Limits { handshakes_max: 1, ..Setup::default().limits };
        let gate =
            GatewayFixture::with_limits(limits, app.address, Protocol::Http, app.address).await;
        let one = self_signed(&["a.com"]);
        gate.set_ports(vec![(
            HTTPS,
            GatewayPortRules::Https(vec![tls_listener("one", "", &[&one])]),
        )]);
        let address = gate.port_address(HTTPS).await;
        let mut slow = Client::connect(address).await;
        // A record of 512 bytes of which four arrive.
        slow.send_bytes(&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..]).await;
        for _ in 0..3 {
            let session = connect_tls(address, "a.com", &one, &[ALPN_HTTP1]).await.unwrap();
            assert_eq!(Client::new(session).send_request(&get("a.com")).await.status, 200);
        }
        drop(slow);
    });
}

#[test]
fn clients_that_offer_it_are_spoken_to_in_http2() {
    run(async {
        let app = start_mirror("meshed").await;
        let gate = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let one = self_signed(&["a.com"]);
        gate.set_ports(vec![(
            HTTPS,
            GatewayPortRules::Https(vec![tls_listener("one", "", &[&one])]),
        )]);
        let offered = &[ALPN_HTTP2, ALPN_HTTP1];
        let session =
            connect_tls(gate.port_address(HTTPS).await, "a.com", &one, offered).await.unwrap();
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
fn a_new_certificate_is_shown_to_new_connections_and_the_old_ones_live_on() {
    run(async {
        let app = start_mirror("meshed").await;
        let gate = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let [old, new] = [self_signed(&["a.com"]), self_signed(&["a.com"])];
        let serve = |certificates: &[&GatewayCertificate]| {
            gate.set_ports(vec![(
                HTTPS,
                GatewayPortRules::Https(vec![tls_listener("one", "a.com", certificates)]),
            )]);
        };
        let broken = GatewayCertificate { chain: old.chain.clone(), key: new.key.clone() };
        // A certificate that cannot be used does not affect others.
        serve(&[&broken, &old]);
        let address = gate.port_address(HTTPS).await;
        let mut client = Client::new(connect_tls(address, "a.com", &old, &[]).await.unwrap());
        assert_eq!(client.send_request(&get("a.com")).await.status, 200);
        serve(&[&new]);
        assert_eq!(client.send_request(&get("a.com")).await.status, 200);
        assert!(connect_tls(address, "a.com", &old, &[]).await.is_err());
        let mut client = Client::new(connect_tls(address, "a.com", &new, &[]).await.unwrap());
        assert_eq!(client.send_request(&get("a.com")).await.status, 200);
        serve(&[&broken]);
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
fn sessions_go_on_as_they_are_to_whom_they_name() {
    run(async {
        let own = self_signed(&["a.com", "b.com"]);
        let shows = own.clone();
        let app = Application::start(move |client| {
            let shows = shows.clone();
            async move {
                let Ok(session) = accept_tls(client.stream, &shows).await else { return };
                let mut client = Client::new(session);
                while client.read_head().await.is_some() {
                    client.send_bytes(OK).await;
                }
            }
        })
        .await;
        let gate = GatewayFixture::new(app.address, Protocol::Tcp, app.address).await;
        let rules = vec![
            tls_rule("a.com", backends_to("plain")),
            tls_rule("b.com", backends_to("ratings")),
            tls_rule("idle.com", backends_to("idle")),
            tls_rule("nobody.com", Vec::new()),
        ];
        gate.set_ports(vec![(TLS, GatewayPortRules::Passthrough(rules))]);
        let address = gate.port_address(TLS).await;
        for name in ["a.com", "b.com"] {
            let mut client = Client::new(connect_tls(address, name, &own, &[]).await.unwrap());
            assert_eq!(client.send_request(&get(name)).await.body_text(), "ok", "{name}");
        }
        for name in ["idle.com", "nobody.com", "else.com"] {
            assert!(connect_tls(address, name, &own, &[]).await.is_err(), "{name}");
        }
        let mut plaintext = Client::connect(address).await;
        plaintext.send_bytes(get("a.com")).await;
        plaintext.read_rest().await;
    });
}
