//! Pending clients that begin a handshake, ten times as many as the limit.

use leno_model::{Access, MtlsMode, Protocol, WorkloadConfig};
use leno_telemetry::Count;

use super::crowd::{Sent, expect_served};
use super::fixture::{
    Application, Client, GET, Mesh, OK, Setup, run, serving_config, test_credential, tls_connect,
};
use crate::tls::{ALPN_HTTP1, ALPN_LINK};

/// The limit of pending connections; small, so that ten times as many connections need few descriptors.
pub(super) const MAX_HANDSHAKES: usize = 8;

/// Returns options with the limit [`MAX_HANDSHAKES`] of concurrent handshakes.
pub(super) fn few_handshakes_setup() -> Setup {
    let mut setup = Setup::default();
    setup.limits.max_handshakes = MAX_HANDSHAKES;
    setup
}

#[test]
fn members_are_served_despite_ten_times_as_many_silent_clients() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, few_handshakes_setup()).await;
        let identity = test_credential(&mesh.authority, "foreign");
        for sent in Sent::HANDSHAKES {
            expect_served(mesh.inbound, 10 * MAX_HANDSHAKES, sent, ALPN_LINK, async || {
                let tls = tls_connect(mesh.inbound, &identity, &[ALPN_HTTP1]).await.unwrap();
                assert_eq!(Client::new(tls).send_request(GET).await.status, 200);
            })
            .await;
        }
        assert!(mesh.server.telemetry.count(Count::PendingConnectionsEvicted) > 0);
    });
}

#[test]
fn members_and_plaintext_clients_are_served_despite_silent_ones() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Detect] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::new(app.address, Setup { protocol, ..few_handshakes_setup() }).await;
            let workload_config = serving_config(&mesh.server, protocol, Access::AllowAll);
            let workload_config = WorkloadConfig { mtls: MtlsMode::Permissive, ..workload_config };
            mesh.server.apply_config(workload_config, Vec::new());
            let identity = test_credential(&mesh.authority, "foreign");
            for sent in Sent::HANDSHAKES {
                expect_served(mesh.inbound, 10 * MAX_HANDSHAKES, sent, ALPN_LINK, async || {
                    assert_eq!(
                        Client::connect(mesh.inbound).await.send_request(GET).await.status,
                        200
                    );
                    let offered_protocols = &[ALPN_LINK, ALPN_HTTP1];
                    tls_connect(mesh.inbound, &identity, offered_protocols).await.unwrap();
                })
                .await;
            }
        }
    });
}

#[test]
fn clients_without_a_request_hold_a_limited_part_of_the_connections() {
    run(async {
        let mut setup = few_handshakes_setup();
        setup.limits.max_connections = 4 * MAX_HANDSHAKES;
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, setup).await;
        let workload_config = serving_config(&mesh.server, Protocol::Http, Access::AllowAll);
        mesh.server.apply_config(
            WorkloadConfig { mtls: MtlsMode::Permissive, ..workload_config },
            Vec::new(),
        );
        let identity = test_credential(&mesh.authority, "foreign");
        for sent in Sent::REQUESTS {
            expect_served(mesh.inbound, 10 * MAX_HANDSHAKES, sent, ALPN_LINK, async || {
                assert_eq!(Client::connect(mesh.inbound).await.send_request(GET).await.status, 200);
                let tls = tls_connect(mesh.inbound, &identity, &[ALPN_HTTP1]).await.unwrap();
                assert_eq!(Client::new(tls).send_request(GET).await.status, 200);
            })
            .await;
        }
        assert_eq!(mesh.server.telemetry.rejected_connections().get("too-many-connections"), None);
    });
}
