//! A gateway on this machine: `leno gateway`, a control plane with its configuration, curl as the external
//! client.

mod edge;
mod stop;

use std::net::SocketAddr;
use std::time::Duration;

use edge::{
    TestGateway, gateway_listener, prefix_rule, self_signed, weighted_backends, with_certificate,
};
use leno_model::{
    GatewayListener, GatewayPortRules, Redirect, RouteKind, RouteRule, RuleActions, Scheme,
    TcpRule, TlsRule,
};
use leno_tests::{TestConnection, eventually, exchange_bytes, free_port};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::half_open::{LegitimateClient, measure_flood};

/// Returns the rules of most listeners here.
fn common_rules() -> Vec<RouteRule> {
    let redirect = Redirect {
        scheme: Some(Scheme::Https),
        hostname: None,
        path: None,
        port: None,
        status: 301,
    };
    let mut rules = vec![
        prefix_rule("/", &weighted_backends(&[("meshed", 1)])),
        prefix_rule("/plain", &weighted_backends(&[("plain", 1)])),
        prefix_rule("/both", &weighted_backends(&[("meshed", 1), ("plain", 1)])),
        prefix_rule("/nobody", &weighted_backends(&[("plain", 0)])),
        prefix_rule("/absent", &weighted_backends(&[("absent", 1)])),
        prefix_rule("/idle", &weighted_backends(&[("idle", 1)])),
        prefix_rule("/away", &[]),
    ];
    let actions = RuleActions { redirect: Some(redirect), ..RuleActions::default() };
    rules.last_mut().expect("there are some").actions = actions;
    rules
}

fn http_listeners(hostname: &str) -> Vec<GatewayListener> {
    vec![gateway_listener("http", hostname, "shop.example.com", common_rules())]
}

fn send_request(address: SocketAddr, path: &str, more: &str) -> leno_tests::Response {
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: shop.example.com\r\nconnection: close\r\n{more}\r\n");
    exchange_bytes(address, &request).expect("an answer")
}

#[test]
fn requests_of_external_clients_follow_the_routes() {
    let edge = TestGateway::start();
    let port = free_port();
    edge.set_ports(vec![(port, GatewayPortRules::Http(http_listeners("*.example.com")))]);
    edge.is_ready();
    let at = edge.address_of_port(port);
    eventually("the sidecar is there", MAX_WAIT, || {
        (send_request(at, "/", "").status == 200).then_some(())
    });
    for (path, status, text) in [
        ("/a?b", 200, "meshed GET /a?b"),
        ("/plain/a", 200, "plain GET /plain/a"),
        ("/nobody", 500, ""),
        ("/absent", 500, ""),
        ("/idle", 503, ""),
    ] {
        let answer = send_request(at, path, "");
        assert_eq!(answer.status, status, "{path}: {}", answer.head);
        let body = String::from_utf8_lossy(&answer.body);
        assert!(body.contains(text), "{path}: {body}");
    }
    let other = "GET / HTTP/1.1\r\nhost: else.example.com\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange_bytes(at, other).expect("an answer").status, 404);
    let away = send_request(at, "/away/a", "");
    let location = away.first_header("location").map(str::to_owned);
    assert_eq!((away.status, location.as_deref()), (301, Some("https://shop.example.com/away/a")));
    let answers: Vec<String> = (0..40)
        .map(|_| String::from_utf8_lossy(&send_request(at, "/both", "").body).into_owned())
        .collect();
    for name in ["meshed", "plain"] {
        assert!(answers.iter().any(|answer| answer.starts_with(name)), "{answers:?}");
    }
    let claims = "x-forwarded-for: 192.0.2.1\r\nx-forwarded-proto: https\r\n";
    for path in ["/", "/plain"] {
        let output =
            String::from_utf8_lossy(&send_request(at, path, claims).body).to_ascii_lowercase();
        assert!(output.contains("x-forwarded-for: 127.0.0.1\r\n"), "{output}");
        assert!(output.contains("x-forwarded-proto: http\r\n"), "{output}");
        assert!(!output.contains("192.0.2.1"), "{output}");
    }
}

#[test]
fn sessions_end_at_the_gateway_or_go_on_by_their_server_name() {
    let edge = TestGateway::start();
    let [one, two] = [self_signed("shop.example.com"), self_signed("cart.example.com")];
    let (https, through) = (free_port(), free_port());
    let listeners = vec![
        with_certificate(gateway_listener("one", "shop.example.com", "", common_rules()), &one),
        with_certificate(gateway_listener("two", "cart.example.com", "", common_rules()), &two),
    ];
    // TLS passthrough forwards to the HTTPS port of the same gateway.
    edge.plain_at("beside", https);
    let passthrough = TlsRule {
        route: "bookinfo/route".parse().expect("a name"),
        hostnames: vec!["shop.example.com".parse().expect("a name")],
        backends: weighted_backends(&[("beside", 1)]),
        ungranted_weight: 0,
    };
    edge.set_ports(vec![
        (https, GatewayPortRules::Https(listeners.clone())),
        (through, GatewayPortRules::Passthrough(vec![passthrough.clone()])),
    ]);
    edge.is_ready();
    for (name, certificate, other) in
        [("shop.example.com", &one, &two), ("cart.example.com", &two, &one)]
    {
        for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
            let output = edge.curl_gateway(name, https, certificate, &[flag]);
            assert_eq!(output, format!("200 {version}"), "{name}");
        }
        assert_eq!(edge.curl_gateway(name, https, other, &[]), "000 0", "{name}");
    }
    let host = ["-H", "Host: cart.example.com"];
    assert_eq!(edge.curl_gateway("shop.example.com", https, &one, &host), "421 2");
    assert_eq!(edge.curl_gateway("else.example.com", https, &one, &["-k"]), "000 0");
    assert_eq!(edge.curl_gateway("shop.example.com", through, &one, &[]), "200 2");
    assert_eq!(edge.curl_gateway("cart.example.com", through, &two, &[]), "000 0");
    // A new certificate replaces the old one.
    let three = self_signed("shop.example.com");
    let listeners = vec![with_certificate(listeners[0].clone(), &three), listeners[1].clone()];
    edge.set_ports(vec![
        (https, GatewayPortRules::Https(listeners)),
        (through, GatewayPortRules::Passthrough(vec![passthrough])),
    ]);
    eventually("the new certificate is shown", MAX_WAIT, || {
        (edge.curl_gateway("shop.example.com", https, &three, &[]) == "200 2").then_some(())
    });
    assert_eq!(edge.curl_gateway("shop.example.com", https, &one, &[]), "000 0");
    assert_eq!(edge.curl_gateway("cart.example.com", https, &two, &[]), "200 2");
}

#[test]
fn ports_come_and_go_while_connections_to_others_live_on() {
    let edge = TestGateway::start();
    let (http_port, tcp_port) = (free_port(), free_port());
    let http = || (http_port, GatewayPortRules::Http(http_listeners("")));
    let tcp = || {
        let rule = TcpRule {
            route: "bookinfo/route".parse().expect("a name"),
            kind: RouteKind::Tcp,
            backends: weighted_backends(&[("plain", 1)]),
            ungranted_weight: 0,
        };
        (tcp_port, GatewayPortRules::Tcp(rule))
    };
    edge.set_ports(vec![http()]);
    edge.is_ready();
    let mut lasting = TestConnection::open(edge.address_of_port(http_port)).expect("a connection");
    let request = "GET /plain HTTP/1.1\r\nhost: shop.example.com\r\n\r\n";
    let mut goes_on = || {
        lasting.send(request).expect("it is there");
        assert_eq!(lasting.receive_response().expect("an answer").status, 200);
    };
    goes_on();
    let status = |port| {
        let mut connection = TestConnection::open(edge.address_of_port(port)).ok()?;
        connection.get("/").ok().map(|answer| answer.status)
    };
    assert_eq!(status(tcp_port), None, "closed");
    edge.set_ports(vec![http(), tcp()]);
    eventually("the new port is open", MAX_WAIT, || status(tcp_port).filter(|it| *it == 200));
    goes_on();
    edge.set_ports(vec![http()]);
    eventually("the port is closed", MAX_WAIT, || status(tcp_port).is_none().then_some(()));
    goes_on();
}

/// Long enough for a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(20);

#[test]
#[ignore = "takes two minutes; run by hand to measure: half_open"]
fn honest_clients_of_a_gateway_during_a_flood() {
    let edge = TestGateway::start();
    let (port, shown) = (free_port(), self_signed("shop.example.com"));
    let listener = gateway_listener("https", "", "shop.example.com", common_rules());
    edge.set_ports(vec![(port, GatewayPortRules::Https(vec![with_certificate(listener, &shown)]))]);
    edge.is_ready();
    let mut roots = rustls::RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(shown.chain.as_bytes()) {
        roots.add(der.expect("a certificate")).expect("a root");
    }
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let honest = LegitimateClient {
        address: edge.address_of_port(port),
        config: config.into(),
        name: "shop.example.com".try_into().expect("a name"),
        request: b"GET /plain HTTP/1.1\r\nhost: shop.example.com\r\n\r\n",
    };
    measure_flood("gateway", edge.gateway_pid(), &honest);
}
