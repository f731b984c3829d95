//! Half-open clients of a gateway, ten times as many as its limit.

use std::net::SocketAddr;

use leno_model::{GatewayCertificate, Protocol, Serves};

use super::backend;
use super::fixture::{Gate, HTTP, HTTPS, certificate, host, listener, rule, tls};
use super::sessions::shown;
use crate::config::Limits;
use crate::tests::crowd::{Crowd, Sent, expect_served};
use crate::tests::fixture::{Application, Client, OK, run};
use crate::tests::half_open::{ROOM, narrow};
use crate::tls::ALPN_HTTP1;

const GET: &str = "GET / HTTP/1.1\r\nhost: a.com\r\n\r\n";

/// Creates a gateway with a plaintext port and a TLS port.
async fn gate(limits: Limits, app: SocketAddr) -> (Gate, GatewayCertificate) {
    let gate = Gate::within(limits, app, (Protocol::Http, app)).await;
    let one = certificate(&["a.com"]);
    let rules = vec![rule("/", backend("ratings"))];
    let plain = vec![listener("plain", "", vec![host("", rules)])];
    gate.serve(vec![
        (HTTP, Serves::Http(plain)),
        (HTTPS, Serves::Https(vec![shown("one", "", &[&one])])),
    ]);
    (gate, one)
}

#[test]
fn clients_come_in_past_ten_times_as_many_silent_ones() {
    run(async {
        let app = Application::canned(OK).await;
        let (gate, certificate) = gate(narrow().limits, app.address).await;
        let address = gate.at(HTTPS).await;
        for sent in Sent::HANDSHAKES {
            expect_served((address, 10 * ROOM), (sent, b"h2"), async || {
                let session = tls(address, "a.com", &certificate, &[ALPN_HTTP1]).await.unwrap();
                assert_eq!(Client::new(session).ask(GET).await.status, 200);
            })
            .await;
        }
    });
}

#[test]
fn clients_that_send_no_request_hold_a_part_of_the_connections() {
    run(async {
        let mut limits = narrow().limits;
        limits.connections_max = 4 * ROOM;
        let app = Application::canned(OK).await;
        let (gate, certificate) = gate(limits, app.address).await;
        let [http, https] = [gate.at(HTTP).await, gate.at(HTTPS).await];
        let silent = (Sent::Nothing, &b"h2"[..]);
        let crowd = Crowd::at(https, 10 * ROOM, silent).await;
        for sent in Sent::REQUESTS {
            expect_served((http, 10 * ROOM), (sent, b"h2"), async || {
                assert_eq!(Client::connect(http).await.ask(GET).await.status, 200);
                let session = tls(https, "a.com", &certificate, &[ALPN_HTTP1]).await.unwrap();
                assert_eq!(Client::new(session).ask(GET).await.status, 200);
            })
            .await;
        }
        drop(crowd);
        let refusals = gate.mesh.client.telemetry.refusals();
        assert_eq!(refusals.get("too-many-connections"), None, "{refusals:?}");
    });
}
