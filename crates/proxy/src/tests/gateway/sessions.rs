//! TLS sessions: terminated at the gateway, or passed through.

use leno_model::WeightedBackend;
use leno_model::{GatewayCertificate, GatewayListener, Protocol, Serves, TlsRule};

use super::fixture::{
    Gate, HTTP, HTTPS, TLS, accept, backend, certificate, host, http, listener, rule, tls,
};
use super::mirror;
use crate::config::Limits;
use crate::tests::fixture::{Application, Client, OK, Setup, run};
use crate::tests::http2::whole;
use crate::tls::{ALPN_HTTP1, ALPN_HTTP2};

pub(super) fn shown(
    name: &str,
    hostname: &str,
    certificates: &[&GatewayCertificate],
) -> GatewayListener {
    let rules = vec![rule("/", backend("ratings")), rule("/plain", backend("plain"))];
    GatewayListener {
        certificates: certificates.iter().map(|it| (*it).clone()).collect(),
        ..listener(name, hostname, vec![host("", rules)])
    }
}

fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")
}

#[test]
fn each_name_has_its_own_certificate_and_requests_stay_in_their_session() {
    run(async {
        let app = mirror("meshed").await;
        let gate = Gate::new(app.address, (Protocol::Http, app.address)).await;
        let [one, two] = [certificate(&["a.com"]), certificate(&["b.a.com", "c.a.com"])];
        let listeners = vec![shown("one", "a.com", &[&one]), shown("two", "*.a.com", &[&two])];
        gate.serve(vec![(HTTPS, Serves::Https(listeners))]);
        let address = gate.at(HTTPS).await;
        for (name, certificate) in [("a.com", &one), ("b.a.com", &two), ("c.a.com", &two)] {
            let session = tls(address, name, certificate, &[ALPN_HTTP1]).await.unwrap();
            let mut client = Client::new(session);
            let answer = client.ask(&get(name)).await;
            assert_eq!(answer.status, 200, "{name}");
            assert!(answer.text().contains("x-forwarded-proto: https"), "{}", answer.text());
        }
        assert!(tls(address, "a.com", &two, &[]).await.is_err(), "the other certificate");
        assert!(tls(address, "else.com", &one, &[]).await.is_err(), "for nobody");
        let mut client = Client::new(tls(address, "b.a.com", &two, &[]).await.unwrap());
        assert_eq!(client.ask(&get("c.a.com")).await.status, 200);
        assert_eq!(client.ask(&get("a.com")).await.verdict(), (421, Some("misdirected")));
        assert_eq!(client.ask(&get("else.com")).await.verdict(), (404, Some("no-route")));
        let mut plaintext = Client::connect(address).await;
        plaintext.send(get("a.com")).await;
        plaintext.last().await;
        assert_eq!(gate.mesh.client.telemetry.refusals()["plaintext-refused"], 1);
    });
}

/// The scheme `https` is accepted in TLS only.
#[test]
fn an_absolute_target_has_the_scheme_of_its_listener() {
    run(async {
        let app = mirror("meshed").await;
        let gate = Gate::new(app.address, (Protocol::Http, app.address)).await;
        let one = certificate(&["a.com"]);
        gate.serve(vec![
            (HTTPS, Serves::Https(vec![shown("one", "a.com", &[&one])])),
            http(HTTP, vec![shown("two", "", &[])]),
        ]);
        let session = tls(gate.at(HTTPS).await, "a.com", &one, &[ALPN_HTTP1]).await.unwrap();
        let mut inside = Client::new(session);
        let mut clear = Client::connect(gate.at(HTTP).await).await;
        for (scheme, in_tls, in_clear) in
            [("https", 200, 501), ("HTTPS", 200, 501), ("http", 200, 200), ("ftp", 501, 501)]
        {
            let request = format!("GET {scheme}://a.com/x HTTP/1.1\r\nhost: a.com\r\n\r\n");
            let answer = inside.ask(&request).await;
            assert_eq!(answer.status, in_tls, "{request}");
            if in_tls == 200 {
                assert!(answer.text().starts_with("meshed GET /x "), "{}", answer.text());
            }
            assert_eq!(clear.ask(&request).await.status, in_clear, "{request}");
        }
    });
}

#[test]
fn half_a_hello_keeps_nobody_out() {
    run(async {
        let app = mirror("meshed").await;
        let limits = Limits { handshakes_max: 1, ..Setup::default().limits };
        let gate = Gate::within(limits, app.address, (Protocol::Http, app.address)).await;
        let one = certificate(&["a.com"]);
        gate.serve(vec![(HTTPS, Serves::Https(vec![shown("one", "", &[&one])]))]);
        let address = gate.at(HTTPS).await;
        let mut slow = Client::connect(address).await;
        // A record of 512 bytes of which four arrive.
        slow.send(&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..]).await;
        for _ in 0..3 {
            let session = tls(address, "a.com", &one, &[ALPN_HTTP1]).await.unwrap();
            assert_eq!(Client::new(session).ask(&get("a.com")).await.status, 200);
        }
        drop(slow);
    });
}

#[test]
fn clients_that_offer_it_are_spoken_to_in_http2() {
    run(async {
        let app = mirror("meshed").await;
        let gate = Gate::new(app.address, (Protocol::Http, app.address)).await;
        let one = certificate(&["a.com"]);
        gate.serve(vec![(HTTPS, Serves::Https(vec![shown("one", "", &[&one])]))]);
        let offered = &[ALPN_HTTP2, ALPN_HTTP1];
        let session = tls(gate.at(HTTPS).await, "a.com", &one, offered).await.unwrap();
        assert_eq!(session.get_ref().1.alpn_protocol(), Some(ALPN_HTTP2));
        let (mut send, connection) = h2::client::handshake(session).await.unwrap();
        tokio::task::spawn_local(async move { drop(connection.await) });
        for path in ["/", "/plain"] {
            let request = http::Request::get(format!("https://a.com{path}")).body(()).unwrap();
            let (response, _) = send.send_request(request, true).unwrap();
            let response = response.await.unwrap();
            assert_eq!(response.status(), 200);
            let (body, _) = whole(response.into_body()).await;
            let text = String::from_utf8(body).unwrap();
            assert!(text.contains("x-forwarded-proto: https"), "{text}");
        }
    });
}

#[test]
fn a_new_certificate_is_shown_to_new_connections_and_the_old_ones_live_on() {
    run(async {
        let app = mirror("meshed").await;
        let gate = Gate::new(app.address, (Protocol::Http, app.address)).await;
        let [old, new] = [certificate(&["a.com"]), certificate(&["a.com"])];
        let serve = |certificates: &[&GatewayCertificate]| {
            gate.serve(vec![(HTTPS, Serves::Https(vec![shown("one", "a.com", certificates)]))]);
        };
        let broken = GatewayCertificate { chain: old.chain.clone(), key: new.key.clone() };
        // A certificate that cannot be used does not affect others.
        serve(&[&broken, &old]);
        let address = gate.at(HTTPS).await;
        let mut client = Client::new(tls(address, "a.com", &old, &[]).await.unwrap());
        assert_eq!(client.ask(&get("a.com")).await.status, 200);
        serve(&[&new]);
        assert_eq!(client.ask(&get("a.com")).await.status, 200);
        assert!(tls(address, "a.com", &old, &[]).await.is_err());
        let mut client = Client::new(tls(address, "a.com", &new, &[]).await.unwrap());
        assert_eq!(client.ask(&get("a.com")).await.status, 200);
        serve(&[&broken]);
        assert!(tls(address, "a.com", &new, &[]).await.is_err(), "nothing to show");
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
        let own = certificate(&["a.com", "b.com"]);
        let shows = own.clone();
        let app = Application::start(move |client| {
            let shows = shows.clone();
            async move {
                let Ok(session) = accept(client.stream, &shows).await else { return };
                let mut client = Client::new(session);
                while client.head().await.is_some() {
                    client.send(OK).await;
                }
            }
        })
        .await;
        let gate = Gate::new(app.address, (Protocol::Tcp, app.address)).await;
        let rules = vec![
            tls_rule("a.com", backend("plain")),
            tls_rule("b.com", backend("ratings")),
            tls_rule("idle.com", backend("idle")),
            tls_rule("nobody.com", Vec::new()),
        ];
        gate.serve(vec![(TLS, Serves::Passthrough(rules))]);
        let address = gate.at(TLS).await;
        for name in ["a.com", "b.com"] {
            let mut client = Client::new(tls(address, name, &own, &[]).await.unwrap());
            assert_eq!(client.ask(&get(name)).await.text(), "ok", "{name}");
        }
        for name in ["idle.com", "nobody.com", "else.com"] {
            assert!(tls(address, name, &own, &[]).await.is_err(), "{name}");
        }
        let mut plaintext = Client::connect(address).await;
        plaintext.send(get("a.com")).await;
        plaintext.last().await;
    });
}
