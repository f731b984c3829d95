//! Certificate renewal under traffic.

use std::cell::Cell;
use std::rc::Rc;

use leno_telemetry::{Count, Gauge};
use tokio::task::JoinSet;

use super::fixture::{
    Application, Client, GET, Mesh, OK, run, test_credential, tls_connect, wait_until,
};
use crate::tls::ALPN_LINK;

#[test]
fn a_renewal_keeps_connections_and_new_ones_use_the_new_certificate() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (request_count, stop) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let mut traffic = JoinSet::new();
        for _ in 0..8 {
            let (listener, request_count, stop) =
                (mesh.listener, request_count.clone(), stop.clone());
            traffic.spawn_local(async move {
                let mut client = Client::connect(listener).await;
                while !stop.get() {
                    assert_eq!(client.send_request(GET).await.verdict(), (200, None));
                    request_count.set(request_count.get() + 1);
                }
            });
        }
        let identity = test_credential(&mesh.authority, "foreign");
        let page = async || {
            let tls = tls_connect(mesh.inbound, &identity, &[ALPN_LINK]).await.unwrap();
            tls.get_ref().1.peer_certificates().unwrap()[0].clone()
        };
        for round in 1..=5 {
            wait_until(|| request_count.get() > round * 50).await;
            for (sidecar, name) in [(&mesh.server, "ratings"), (&mesh.client, "productpage")] {
                let renewed = test_credential(&mesh.authority, name);
                let expected = renewed.chain()[0].clone();
                sidecar.set_credential(renewed);
                if name == "ratings" {
                    assert_eq!(page().await, expected);
                }
            }
        }
        stop.set(true);
        while let Some(client) = traffic.join_next().await {
            client.unwrap();
        }
        assert!(mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty());
        // The existing link was not closed.
        assert_eq!(mesh.client.telemetry.count(Count::UpstreamConnected), 1);
        assert_eq!(mesh.client.telemetry.gauge(Gauge::LinksUpstream), 1);
    });
}
