//! A gateway on this machine: `leno gateway`, a control plane with its configuration, curl as the external
//! client.

mod edge;
mod stop;

use std::net::SocketAddr;
use std::time::Duration;

use edge::{
    TestGateway, gateway_listener, prefix_rule, self_signed_certificate, weighted_backends,
    with_certificate,
};
use leno_model::{
    GatewayListener, GatewayPortRules, Redirect, RouteKind, RouteRule, RuleActions, Scheme,
    TcpRule, TlsRule,
};
use leno_tests::{TestConnection, eventually, exchange_bytes, free_port};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::pending_connections::{LegitimateClient, measure_flood};

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

fn send_request(address: SocketAddr, path: &str, fields: &str) -> leno_tests::Response {
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: shop.example.com\r\nconnection: close\r\n{fields}\r\n"
    );
    exchange_bytes(address, &request).expect("a response")
}

#[test]
fn requests_of_external_clients_follow_the_routes() {
    let gateway = TestGateway::start();
    let port = free_port();
    gateway.set_ports(vec![(port, GatewayPortRules::Http(http_listeners("*.example.com")))]);
    gateway.wait_until_ready();
    let address = gateway.address_of_port(port);
    eventually("the sidecar is connected", MAX_WAIT, || {
        (send_request(address, "/", "").status == 200).then_some(())
    });
    for (path, status, expected_text) in [
        ("/a?b", 200, "meshed GET /a?b"),
        ("/plain/a", 200, "plain GET /plain/a"),
        ("/nobody", 500, ""),
        ("/absent", 500, ""),
        ("/idle", 503, ""),
    ] {
        let response = send_request(address, path, "");
        assert_eq!(response.status, status, "{path}: {}", response.head);
        let body = String::from_utf8_lossy(&response.body);
        assert!(body.contains(expected_text), "{path}: {body}");
    }
    let request_for_other_host =
        "GET / HTTP/1.1\r\nhost: else.example.com\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange_bytes(address, request_for_other_host).expect("a response").status, 404);
    let redirect = send_request(address, "/away/a", "");
    let location = redirect.first_header("location").map(str::to_owned);
    assert_eq!(
        (redirect.status, location.as_deref()),
        (301, Some("https://shop.example.com/away/a"))
    );
    let bodies: Vec<String> = (0..40)
        .map(|_| String::from_utf8_lossy(&send_request(address, "/both", "").body).into_owned())
        .collect();
    for name in ["meshed", "plain"] {
        assert!(bodies.iter().any(|body| body.starts_with(name)), "{bodies:?}");
    }
    let forged_fields = "x-forwarded-for: 192.0.2.1\r\nx-forwarded-proto: https\r\n";
    for path in ["/", "/plain"] {
        let body = String::from_utf8_lossy(&send_request(address, path, forged_fields).body)
            .to_ascii_lowercase();
        assert!(body.contains("x-forwarded-for: 127.0.0.1\r\n"), "{body}");
        assert!(body.contains("x-forwarded-proto: http\r\n"), "{body}");
        assert!(!body.contains("192.0.2.1"), "{body}");
    }
}

#[test]
fn tls_sessions_are_terminated_or_passed_through_by_server_name() {
    let gateway = TestGateway::start();
    let [first_certificate, second_certificate] =
        [self_signed_certificate("shop.example.com"), self_signed_certificate("cart.example.com")];
    let (https_port, passthrough_port) = (free_port(), free_port());
    let listeners = vec![
        with_certificate(
            gateway_listener("one", "shop.example.com", "", common_rules()),
            &first_certificate,
        ),
        with_certificate(
            gateway_listener("two", "cart.example.com", "", common_rules()),
            &second_certificate,
        ),
    ];
    // TLS passthrough forwards to the HTTPS port of the same gateway.
    gateway.add_unmeshed("beside", https_port);
    let passthrough_rule = TlsRule {
        route: "bookinfo/route".parse().expect("a name"),
        hostnames: vec!["shop.example.com".parse().expect("a name")],
        backends: weighted_backends(&[("beside", 1)]),
        ungranted_weight: 0,
    };
    gateway.set_ports(vec![
        (https_port, GatewayPortRules::Https(listeners.clone())),
        (passthrough_port, GatewayPortRules::Passthrough(vec![passthrough_rule.clone()])),
    ]);
    gateway.wait_until_ready();
    for (hostname, certificate, wrong_certificate) in [
        ("shop.example.com", &first_certificate, &second_certificate),
        ("cart.example.com", &second_certificate, &first_certificate),
    ] {
        for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
            let output = gateway.curl(hostname, https_port, certificate, &[flag]);
            assert_eq!(output, format!("200 {version}"), "{hostname}");
        }
        assert_eq!(
            gateway.curl(hostname, https_port, wrong_certificate, &[]),
            "000 0",
            "{hostname}"
        );
    }
    let other_host = ["-H", "Host: cart.example.com"];
    assert_eq!(
        gateway.curl("shop.example.com", https_port, &first_certificate, &other_host),
        "421 2"
    );
    assert_eq!(gateway.curl("else.example.com", https_port, &first_certificate, &["-k"]), "000 0");
    assert_eq!(
        gateway.curl("shop.example.com", passthrough_port, &first_certificate, &[]),
        "200 2"
    );
    assert_eq!(
        gateway.curl("cart.example.com", passthrough_port, &second_certificate, &[]),
        "000 0"
    );
    // A new certificate replaces the old one.
    let new_certificate = self_signed_certificate("shop.example.com");
    let listeners =
        vec![with_certificate(listeners[0].clone(), &new_certificate), listeners[1].clone()];
    gateway.set_ports(vec![
        (https_port, GatewayPortRules::Https(listeners)),
        (passthrough_port, GatewayPortRules::Passthrough(vec![passthrough_rule])),
    ]);
    eventually("the new certificate is shown", MAX_WAIT, || {
        (gateway.curl("shop.example.com", https_port, &new_certificate, &[]) == "200 2")
            .then_some(())
    });
    assert_eq!(gateway.curl("shop.example.com", https_port, &first_certificate, &[]), "000 0");
    assert_eq!(gateway.curl("cart.example.com", https_port, &second_certificate, &[]), "200 2");
}

#[test]
fn ports_open_and_close_without_closing_connections_to_other_ports() {
    let gateway = TestGateway::start();
    let (http_port, tcp_port) = (free_port(), free_port());
    let http_rules = || (http_port, GatewayPortRules::Http(http_listeners("")));
    let tcp_rules = || {
        let rule = TcpRule {
            route: "bookinfo/route".parse().expect("a name"),
            kind: RouteKind::Tcp,
            backends: weighted_backends(&[("plain", 1)]),
            ungranted_weight: 0,
        };
        (tcp_port, GatewayPortRules::Tcp(rule))
    };
    gateway.set_ports(vec![http_rules()]);
    gateway.wait_until_ready();
    let mut connection =
        TestConnection::open(gateway.address_of_port(http_port)).expect("a connection");
    let request = "GET /plain HTTP/1.1\r\nhost: shop.example.com\r\n\r\n";
    let mut assert_still_served = || {
        connection.send(request).expect("the connection is open");
        assert_eq!(connection.receive_response().expect("a response").status, 200);
    };
    assert_still_served();
    let request_status = |port| {
        let mut connection = TestConnection::open(gateway.address_of_port(port)).ok()?;
        connection.get("/").ok().map(|response| response.status)
    };
    assert_eq!(request_status(tcp_port), None, "closed");
    gateway.set_ports(vec![http_rules(), tcp_rules()]);
    eventually("the new port is open", MAX_WAIT, || {
        request_status(tcp_port).filter(|status| *status == 200)
    });
    assert_still_served();
    gateway.set_ports(vec![http_rules()]);
    eventually("the port is closed", MAX_WAIT, || request_status(tcp_port).is_none().then_some(()));
    assert_still_served();
}

/// The timeout of conditions, long enough for a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(20);

#[test]
#[ignore = "takes two minutes; run by hand to measure: pending_connections"]
fn latency_of_legitimate_gateway_clients_during_a_flood() {
    let gateway = TestGateway::start();
    let (port, certificate) = (free_port(), self_signed_certificate("shop.example.com"));
    let listener = gateway_listener("https", "", "shop.example.com", common_rules());
    gateway.set_ports(vec![(
        port,
        GatewayPortRules::Https(vec![with_certificate(listener, &certificate)]),
    )]);
    gateway.wait_until_ready();
    let mut roots = rustls::RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(certificate.chain.as_bytes()) {
        roots.add(der.expect("a certificate")).expect("a root");
    }
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = LegitimateClient {
        address: gateway.address_of_port(port),
        config: config.into(),
        server_name: "shop.example.com".try_into().expect("a name"),
        request: b"GET /plain HTTP/1.1\r\nhost: shop.example.com\r\n\r\n",
    };
    measure_flood("gateway", gateway.gateway_pid(), &client);
}
