//! Authentication of clients and servers by certificate alone.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use leno_identity::{Credential, client_config, join_client_config, server_name};
use leno_model::SpiffeId;
use leno_telemetry::Gauge;
use leno_wire::link::{GoAwayCode, LinkEvent, StreamKind};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::fixture::{
    Application, Client, DOMAIN, End, GET, Mesh, OK, Peer, credential_from, credential_trusting,
    meshed_endpoint, run, service_account, test_authority, test_credential, test_service,
    tls_accept, tls_connect, wait_until,
};
use crate::tls::{ALPN_HTTP1, ALPN_LINK};

/// Connects with this certificate and expects a rejection for this reason.
async fn expect_rejection(mesh: &Mesh, credential: &Credential, reason: &'static str) {
    let tls = tls_connect(mesh.inbound, credential, &[ALPN_HTTP1, ALPN_LINK]).await.unwrap();
    // In TLS 1.3 the client receives the server's rejection only after its handshake.
    assert_eq!(Client::new(tls).read_rest().await, (Vec::new(), End::Reset), "{reason}");
    wait_until(|| mesh.server.telemetry.rejected_connections().get(reason) == Some(&1)).await;
}

#[test]
fn clients_without_a_valid_certificate_are_rejected_and_counted() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let directory = tempfile::tempdir().unwrap();

        // Another root of the same trust domain. The client still trusts the server.
        let external_client = test_authority(directory.path(), DOMAIN);
        let untrusted_credential =
            credential_trusting(&external_client, "productpage", &mesh.authority);
        expect_rejection(&mesh, &untrusted_credential, "untrusted-peer").await;

        let issue_time = SystemTime::now() - Duration::from_secs(7200);
        let expired = credential_from(&mesh.authority, "productpage", issue_time);
        expect_rejection(&mesh, &expired, "expired-peer").await;
        assert_eq!(mesh.server.telemetry.rejected_connections().len(), 2);

        // A mesh that trusts both roots still distinguishes their domains.
        let other_authority = test_authority(directory.path(), "elsewhere.example");
        mesh.server.set_credential(credential_trusting(
            &mesh.authority,
            "ratings",
            &other_authority,
        ));
        let untrusted_credential =
            credential_trusting(&other_authority, "productpage", &mesh.authority);
        let id = SpiffeId {
            trust_domain: mesh.authority.trust_domain().clone(),
            account: service_account("ratings"),
        };
        let config = client_config(&untrusted_credential, &id, &[ALPN_LINK]).unwrap();
        let tcp = TcpStream::connect(mesh.inbound).await.unwrap();
        let name = server_name(&test_service()).unwrap();
        let tls = TlsConnector::from(config).connect(name, tcp).await.unwrap();
        assert_eq!(Client::new(tls).read_rest().await.1, End::Reset);
        wait_until(|| {
            mesh.server.telemetry.rejected_connections().contains_key("foreign-trust-domain")
        })
        .await;
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn a_client_without_a_certificate_is_rejected() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let id = SpiffeId {
            trust_domain: mesh.authority.trust_domain().clone(),
            account: service_account("ratings"),
        };
        let config = join_client_config(&mesh.authority.roots(), &id, &[ALPN_HTTP1]).unwrap();
        let tcp = TcpStream::connect(mesh.inbound).await.unwrap();
        let name = server_name(&test_service()).unwrap();
        let mut client = Client::new(TlsConnector::from(config).connect(name, tcp).await.unwrap());
        assert_eq!(client.read_rest().await, (Vec::new(), End::Reset));
        wait_until(|| {
            mesh.server.telemetry.rejected_connections() == [("handshake-failed", 1)].into()
        })
        .await;
    });
}

#[test]
fn plaintext_at_the_inbound_port_is_reset() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.inbound).await;
        client.send_bytes(GET).await;
        let (response, end) = client.read_rest().await;
        assert_eq!(end, End::Reset);
        assert!(!String::from_utf8_lossy(&response).contains("HTTP"));
        wait_until(|| {
            mesh.server.telemetry.rejected_connections() == [("plaintext-rejected", 1)].into()
        })
        .await;
        // The condition names the client. One that sends no byte is not listed.
        let conditions =
            mesh.server.worker.config_store.conditions.active_conditions(std::time::Instant::now());
        let conditions: Vec<_> = conditions
            .iter()
            .map(|condition| (condition.kind.as_str(), condition.reason.as_str()))
            .collect();
        assert_eq!(conditions, [("plaintext-rejected", "127.0.0.1")]);
        // A client that sends no byte has not sent plaintext.
        drop(Client::connect(mesh.inbound).await);
        wait_until(|| {
            mesh.server.telemetry.rejected_connections().contains_key("handshake-failed")
        })
        .await;
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn a_stalled_handshake_times_out() {
    run(async {
        let mut setup = super::fixture::Setup::default();
        setup.limits.handshake_timeout = Duration::from_millis(50);
        setup.limits.max_handshakes = 1;
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, setup).await;
        let mut silent_client = Client::connect(mesh.inbound).await;
        let mut waiting_client = Client::connect(mesh.inbound).await;
        silent_client.read_rest().await;
        waiting_client.read_rest().await;
        wait_until(|| {
            mesh.server.telemetry.rejected_connections() == [("handshake-failed", 2)].into()
        })
        .await;
    });
}

#[test]
fn an_endpoint_with_another_identity_gets_no_request() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        // The server has the account `ratings`; the configuration expects `details`.
        mesh.route_to(&[meshed_endpoint("ratings-1", mesh.inbound, "details")]);
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..2 {
            assert_eq!(client.send_request(GET).await.verdict(), (502, Some("wrong-identity")));
        }
        assert_eq!(app.accepted.get(), 0);
        assert_eq!(mesh.client.failure_counts(), [("wrong-identity", 2)].into());
        assert_eq!(mesh.client.telemetry.count(leno_telemetry::Count::Retries), 0);
    });
}

#[test]
fn an_endpoint_with_an_expired_or_foreign_certificate_gets_no_request() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let directory = tempfile::tempdir().unwrap();
        let issue_time = SystemTime::now() - Duration::from_secs(7200);
        for identity in [
            credential_from(&mesh.authority, "ratings", issue_time),
            test_credential(&test_authority(directory.path(), DOMAIN), "ratings"),
            test_credential(&test_authority(directory.path(), "elsewhere.example"), "ratings"),
        ] {
            let identity = Rc::new(identity);
            let impostor_server = Application::start(move |client| {
                let identity = identity.clone();
                async move {
                    assert!(tls_accept(client.stream, &identity, &[ALPN_LINK]).await.is_err());
                }
            })
            .await;
            mesh.route_to(&[meshed_endpoint("ratings-1", impostor_server.address, "ratings")]);
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(GET).await.verdict(), (502, Some("wrong-identity")));
        }
    });
}

#[test]
fn a_link_accepts_no_stream_once_a_certificate_has_expired() {
    run(async {
        let old_issue_time = || SystemTime::now() - Duration::from_secs(3600 - 6);
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        // The client's certificate expires: its open streams continue, new ones are rejected.
        let identity = credential_from(&mesh.authority, "productpage", old_issue_time());
        let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
        let stream = peer.open_stream(StreamKind::Http, GET, true);
        assert!(peer.read_response(stream).await.2, "before it has expired");
        let go_away_event = peer.next().await;
        assert!(
            matches!(go_away_event, Some(LinkEvent::GoAway { code: GoAwayCode::Drain, .. })),
            "{go_away_event:?}"
        );

        // The server's certificate expires: its client opens another link, and finds the new certificate there.
        mesh.server.set_credential(credential_from(&mesh.authority, "ratings", old_issue_time()));
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        assert_eq!(mesh.client.telemetry.gauge(Gauge::LinksUpstream), 1);
        mesh.server.set_credential(test_credential(&mesh.authority, "ratings"));
        wait_until(|| mesh.client.telemetry.gauge(Gauge::LinksUpstream) == 0).await;
        assert_eq!(client.send_request(GET).await.status, 200);
    });
}
