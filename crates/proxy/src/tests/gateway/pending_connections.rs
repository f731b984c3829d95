//! Pending clients of a gateway, ten times as many as its limit.

use std::net::SocketAddr;

use leno_model::{GatewayCertificate, GatewayPortRules, Protocol};

use super::backends_to;
use super::fixture::{
    GatewayFixture, HTTP, HTTPS, connect_tls, gateway_listener, host_rules, path_rule, self_signed,
};
use super::sessions::tls_listener;
use crate::config::Limits;
use crate::tests::crowd::{Crowd, Sent, expect_served};
use crate::tests::fixture::{Application, Client, OK, run};
use crate::tests::pending_connections::{MAX_HANDSHAKES, few_handshakes_setup};
use crate::tls::ALPN_HTTP1;

const GET: &str = "GET / HTTP/1.1\r\nhost: a.com\r\n\r\n";

/// Creates a gateway with a plaintext port and a TLS port.
async fn start_gateway(limits: Limits, app: SocketAddr) -> (GatewayFixture, GatewayCertificate) {
    let gateway = GatewayFixture::with_limits(limits, app, Protocol::Http, app).await;
    let certificate = self_signed(&["a.com"]);
    let rules = vec![path_rule("/", backends_to("ratings"))];
    let plain = vec![gateway_listener("plain", "", vec![host_rules("", rules)])];
    gateway.set_ports(vec![
        (HTTP, GatewayPortRules::Http(plain)),
        (HTTPS, GatewayPortRules::Https(vec![tls_listener("one", "", &[&certificate])])),
    ]);
    (gateway, certificate)
}

#[test]
fn clients_are_served_despite_ten_times_as_many_silent_ones() {
    run(async {
        let app = Application::with_response(OK).await;
        let (gateway, certificate) =
            start_gateway(few_handshakes_setup().limits, app.address).await;
        let address = gateway.port_address(HTTPS).await;
        for sent in Sent::HANDSHAKES {
            expect_served(address, 10 * MAX_HANDSHAKES, sent, b"h2", async || {
                let session =
                    connect_tls(address, "a.com", &certificate, &[ALPN_HTTP1]).await.unwrap();
                assert_eq!(Client::new(session).send_request(GET).await.status, 200);
            })
            .await;
        }
    });
}

#[test]
fn clients_without_a_request_hold_a_limited_part_of_the_connections() {
    run(async {
        let mut limits = few_handshakes_setup().limits;
        limits.max_connections = 4 * MAX_HANDSHAKES;
        let app = Application::with_response(OK).await;
        let (gateway, certificate) = start_gateway(limits, app.address).await;
        let [http, https] = [gateway.port_address(HTTP).await, gateway.port_address(HTTPS).await];
        let crowd = Crowd::connect(https, 10 * MAX_HANDSHAKES, Sent::NoBytes, &b"h2"[..]).await;
        for sent in Sent::REQUESTS {
            expect_served(http, 10 * MAX_HANDSHAKES, sent, b"h2", async || {
                assert_eq!(Client::connect(http).await.send_request(GET).await.status, 200);
                let session =
                    connect_tls(https, "a.com", &certificate, &[ALPN_HTTP1]).await.unwrap();
                assert_eq!(Client::new(session).send_request(GET).await.status, 200);
            })
            .await;
        }
        drop(crowd);
        let rejections = gateway.mesh.client.telemetry.rejected_connections();
        assert_eq!(rejections.get("too-many-connections"), None, "{rejections:?}");
    });
}
