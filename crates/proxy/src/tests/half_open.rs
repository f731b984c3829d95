//! Half-open clients that begin a handshake, ten times as many as the limit.

use leno_model::{Access, MtlsMode, Protocol, WorkloadConfig};
use leno_telemetry::Count;

use super::crowd::{Sent, expect_served};
use super::fixture::{
    Application, Client, GET, Mesh, OK, Setup, run, serving_plan, test_credential, tls_connect,
};
use crate::tls::{ALPN_HTTP1, ALPN_LINK};

/// A small limit, so that ten times as many need few descriptors.
pub(super) const ROOM: usize = 8;

pub(super) fn narrow_setup() -> Setup {
    let mut setup = Setup::default();
    setup.limits.handshakes_max = ROOM;
    setup
}

#[test]
fn members_come_in_past_ten_times_as_many_silent_clients() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, narrow_setup()).await;
        let identity = test_credential(&mesh.authority, "foreign");
        for sent in Sent::HANDSHAKES {
            expect_served(mesh.inbound, 10 * ROOM, sent, ALPN_LINK, async || {
                let tls = tls_connect(mesh.inbound, &identity, &[ALPN_HTTP1]).await.unwrap();
                assert_eq!(Client::new(tls).send_request(GET).await.status, 200);
            })
            .await;
        }
        assert!(mesh.server.telemetry.count(Count::HalfOpenConnectionsEvicted) > 0);
    });
}

#[test]
fn members_and_clients_in_clear_come_in_past_silent_ones_where_both_may() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Detect] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::new(app.address, Setup { protocol, ..narrow_setup() }).await;
            let plan = serving_plan(&mesh.server, protocol, Access::AllowAll);
            let plan = WorkloadConfig { mtls: MtlsMode::Permissive, ..plan };
            mesh.server.apply_config(plan, Vec::new());
            let identity = test_credential(&mesh.authority, "foreign");
            for sent in Sent::HANDSHAKES {
                expect_served(mesh.inbound, 10 * ROOM, sent, ALPN_LINK, async || {
                    assert_eq!(
                        Client::connect(mesh.inbound).await.send_request(GET).await.status,
                        200
                    );
                    let offered = &[ALPN_LINK, ALPN_HTTP1];
                    tls_connect(mesh.inbound, &identity, offered).await.unwrap();
                })
                .await;
            }
        }
    });
}

#[test]
fn clients_that_send_no_request_hold_a_part_of_the_connections() {
    run(async {
        let mut setup = narrow_setup();
        setup.limits.connections_max = 4 * ROOM;
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, setup).await;
        let plan = serving_plan(&mesh.server, Protocol::Http, Access::AllowAll);
        mesh.server.apply_config(WorkloadConfig { mtls: MtlsMode::Permissive, ..plan }, Vec::new());
        let identity = test_credential(&mesh.authority, "foreign");
        for sent in Sent::REQUESTS {
            expect_served(mesh.inbound, 10 * ROOM, sent, ALPN_LINK, async || {
                assert_eq!(Client::connect(mesh.inbound).await.send_request(GET).await.status, 200);
                let tls = tls_connect(mesh.inbound, &identity, &[ALPN_HTTP1]).await.unwrap();
                assert_eq!(Client::new(tls).send_request(GET).await.status, 200);
            })
            .await;
        }
        assert_eq!(mesh.server.telemetry.rejected_connections().get("too-many-connections"), None);
    });
}
