//! Failing endpoints: requests that are retried, requests that are not, and the reported errors.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use leno_model::Protocol;
use leno_telemetry::Count;
use leno_wire::link::{GoAwayCode, LinkEvent, ResetCode};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, Peer, Setup, closed_port, meshed_endpoint, run,
    test_credential, wait_until,
};

const POST: &str = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc";
const POST_EMPTY: &str = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";

#[test]
fn one_unreachable_endpoint_of_two_loses_no_request() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.route_to(&[
            mesh.server_endpoint(),
            meshed_endpoint("ratings-2", closed_port(), "ratings"),
        ]);
        for index in 0..40 {
            let mut client = Client::connect(mesh.listener).await;
            let response = client.send_request(if index % 2 == 0 { GET } else { POST }).await;
            assert_eq!(response.verdict(), (200, None));
        }
        assert!(mesh.client.failure_counts().is_empty());
        assert!(mesh.client.telemetry.count(Count::Retries) > 0);
        assert!(mesh.client.telemetry.count(Count::EndpointBackoffs) > 0);
    });
}

#[test]
fn unreachable_endpoints_are_reported_to_the_client() {
    run(async {
        let mesh = Mesh::permissive(closed_port()).await;
        mesh.route_to(&[]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.verdict(), (503, Some("no-endpoint")));
        let dead_endpoint = |name| meshed_endpoint(name, closed_port(), "ratings");
        mesh.route_to(&[dead_endpoint("ratings-1"), dead_endpoint("ratings-2")]);
        let response = client.send_request(GET).await;
        assert_eq!(response.status, 503);
        let reason = "connect-failed;side=upstream;workload=\"bookinfo/productpage\"";
        assert_eq!(response.field_value("leno-reason"), Some(reason));
        assert_eq!(client.send_request(POST).await.verdict(), (503, Some("connect-failed")));
    });
}

#[test]
fn a_request_leaves_an_endpoint_that_does_not_respond_in_time() {
    run(async {
        let mut setup = Setup::default();
        setup.limits.connect_timeout = Duration::from_secs(1);
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, setup).await;
        // The kernel accepts, but the server never starts TLS; or it completes TLS, but never sends the first
        // bytes of a link.
        let silent_app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
        let tls_only_app = Application::start(move |client| {
            let identity = identity.clone();
            async move {
                let alpn = &[crate::tls::ALPN_LINK];
                let tls = super::fixture::tls_accept(client.stream, &identity, alpn).await;
                Client::new(tls.unwrap()).read_rest().await;
            }
        })
        .await;
        for silent_address in [silent_app.address, tls_only_app.address] {
            let silent_endpoint = meshed_endpoint("ratings-2", silent_address, "ratings");
            mesh.route_to(std::slice::from_ref(&silent_endpoint));
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(GET).await.verdict(), (504, Some("connect-timeout")));
            mesh.route_to(&[mesh.server_endpoint(), silent_endpoint]);
            for _ in 0..10 {
                assert_eq!(client.send_request(POST).await.status, 200);
            }
        }
        // Abandoned links are closed.
        let link_gauge = leno_telemetry::Gauge::LinksUpstream;
        wait_until(|| mesh.client.telemetry.gauge(link_gauge) == 1).await;
    });
}

/// Half of all dead applications have a healthy sidecar.
#[test]
fn a_request_leaves_an_application_that_accepts_no_connections() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (_server, dead_endpoint) = mesh.start_server("ratings-2", closed_port()).await;
        mesh.route_to(&[mesh.server_endpoint(), dead_endpoint.clone()]);
        let mut client = Client::connect(mesh.listener).await;
        for request in [GET, POST_EMPTY].repeat(10) {
            assert_eq!(client.send_request(request).await.verdict(), (200, None));
        }
        mesh.route_to(&[dead_endpoint]);
        assert_eq!(client.send_request(GET).await.verdict(), (503, Some("connect-failed")));
    });
}

/// Starts a server with this test as its sidecar; `handle_event` handles each stream.
async fn start_peer(
    mesh: &Mesh,
    handle_event: impl AsyncFn(&mut Peer<TlsStream<TcpStream>>, LinkEvent) -> PeerAction + 'static,
) -> Application {
    let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
    let handle_event = Rc::new(handle_event);
    Application::start(move |client| {
        let (identity, handle_event) = (identity.clone(), handle_event.clone());
        async move {
            let mut peer = Peer::accept_link(client.stream, &identity).await;
            while let Some(event) = peer.next().await {
                if let PeerAction::Close = handle_event(&mut peer, event).await {
                    return;
                }
            }
        }
    })
    .await
}

enum PeerAction {
    Continue,
    Close,
}

#[test]
fn requests_in_flight_move_to_another_endpoint_if_they_are_idempotent() {
    run(async {
        for (request, verdict, repeated) in [
            (GET, (200, None), 1),
            ("DELETE / HTTP/1.1\r\nhost: x\r\n\r\n", (200, None), 1),
            (POST_EMPTY, (502, Some("upstream-reset")), 0),
            (POST, (502, Some("upstream-reset")), 0),
            // The request is idempotent, but its body was not kept.
            (
                "PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc",
                (502, Some("upstream-reset")),
                0,
            ),
        ] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let dying_peer = start_peer(&mesh, async |_, event| match event {
                LinkEvent::Opened { .. } => PeerAction::Close,
                _ => PeerAction::Continue,
            })
            .await;
            // Both are usable at first: the balancer may select either.
            let dying_endpoint = meshed_endpoint("ratings-2", dying_peer.address, "ratings");
            mesh.route_to(&[mesh.server_endpoint(), dying_endpoint]);
            let mut lost_requests = 0;
            while lost_requests == 0 {
                let count_before = app.requests.borrow().len();
                let response = Client::connect(mesh.listener).await.send_request(request).await;
                let retries = mesh.client.telemetry.count(Count::Retries);
                if retries == 1 || response.status != 200 {
                    lost_requests += 1;
                    assert_eq!(response.verdict(), verdict, "{request}");
                    assert_eq!(app.requests.borrow().len() - count_before, repeated);
                }
            }
        }
    });
}

#[test]
fn unprocessed_streams_are_retried_with_any_method() {
    run(async {
        for code in [None, Some(ResetCode::Refused), Some(ResetCode::Unreachable)] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let refused_streams = Rc::new(Cell::new(0));
            let refused_count = refused_streams.clone();
            let refusing_peer = start_peer(&mesh, async move |peer, event| {
                if let LinkEvent::Opened { stream, .. } = event {
                    refused_count.set(refused_count.get() + 1);
                    match code {
                        Some(code) => peer.link.reset_stream(stream, code),
                        // GOAWAY without a stream, written by hand: our implementation would include this one.
                        None => peer
                            .link
                            .output()
                            .extend_from_slice(&[0, 0, 5, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
                    }
                }
                PeerAction::Continue
            })
            .await;
            mesh.route_to(&[
                mesh.server_endpoint(),
                meshed_endpoint("ratings-2", refusing_peer.address, "ratings"),
            ]);
            let mut client = Client::connect(mesh.listener).await;
            while refused_streams.get() < 2 {
                assert_eq!(
                    client.send_request(POST_EMPTY).await.verdict(),
                    (200, None),
                    "{code:?}"
                );
                // An unreachable endpoint is not selected for a while.
                tokio::task::yield_now().await;
            }
            assert!(mesh.client.failure_counts().is_empty());
        }
    });
}

#[test]
fn after_goaway_a_link_finishes_its_streams_and_a_new_link_gets_others() {
    run(async {
        let links = Rc::new(Cell::new(0));
        let count = links.clone();
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let draining = start_peer(&mesh, async move |peer, event| {
            if let LinkEvent::Opened { stream, .. } = event {
                count.set(count.get() + 1);
                // Sends GOAWAY while this stream is in progress, and responds afterwards.
                peer.link.go_away(GoAwayCode::Drain);
                peer.send_head(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true);
            }
            PeerAction::Continue
        })
        .await;
        mesh.route_to(&[meshed_endpoint("ratings-2", draining.address, "ratings")]);
        let mut client = Client::connect(mesh.listener).await;
        for index in 1..=5 {
            assert_eq!(client.send_request(POST).await.status, 200);
            assert_eq!((links.get(), draining.accepted.get()), (index, index));
        }
        wait_until(|| mesh.client.telemetry.gauge(leno_telemetry::Gauge::LinksUpstream) == 0).await;
    });
}

#[test]
fn a_kept_connection_that_the_application_closed_loses_no_request() {
    run(async {
        // The application closes each connection after the second response, like a server with a keep-alive
        // limit.
        let served = Rc::new(Cell::new(0));
        let app = Application::start(move |mut client| {
            let served = served.clone();
            async move {
                for _ in 0..2 {
                    let Some(mut request) = client.read_head().await else { return };
                    client.read_body(&mut request).await.unwrap();
                    served.set(served.get() + 1);
                    client.send_bytes(OK).await;
                }
            }
        })
        .await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for request in [GET, POST, POST_EMPTY].repeat(10) {
            assert_eq!(client.send_request(request).await.verdict(), (200, None));
            // The end of the connection arrives before the next request.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(app.accepted.get(), 15);
        assert!(mesh.server.failure_counts().is_empty());
    });
}

#[test]
fn a_request_to_a_crashed_application_is_retried_only_if_that_is_safe() {
    run(async {
        for (request, verdict, request_count) in [
            (GET, (502, Some("upstream-reset")), 2),
            (POST_EMPTY, (502, Some("upstream-reset")), 1),
            (POST, (502, Some("upstream-reset")), 1),
        ] {
            let app = Application::with_response("").await;
            let mesh = Mesh::permissive(app.address).await;
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(request).await.verdict(), verdict);
            assert_eq!(app.received_requests().len(), request_count, "{request}");
        }
    });
}

/// Requests that arrive while the first connection is opened share it, and its result.
#[test]
fn a_burst_to_a_new_endpoint_opens_one_link() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut clients = Vec::new();
        for _ in 0..100 {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            clients.push(client);
        }
        for client in &mut clients {
            assert_eq!(client.read_response().await.status, 200);
        }
        assert_eq!(mesh.client.telemetry.count(Count::UpstreamConnected), 1);
        assert_eq!(mesh.client.telemetry.gauge(leno_telemetry::Gauge::LinksUpstream), 1);
    });
}

/// In TLS 1.3 a server rejects a client only after the client has completed the handshake.
#[test]
fn a_rejected_certificate_fails_all_requests_of_a_burst_equally() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let directory = tempfile::tempdir().unwrap();
        let external_client =
            super::fixture::test_authority(directory.path(), super::fixture::DOMAIN);
        let identity =
            super::fixture::credential_trusting(&external_client, "productpage", &mesh.authority);
        mesh.client.set_credential(identity);
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(POST).await;
            clients.push(client);
        }
        for client in &mut clients {
            assert_eq!(
                client.read_response().await.verdict(),
                (502, Some("upstream-handshake-failed"))
            );
        }
    });
}

#[test]
fn removed_endpoints_finish_their_requests_and_close() {
    run(async {
        let (release, released) = tokio::sync::watch::channel(false);
        let app = Application::start(move |mut client| {
            let mut released = released.clone();
            async move {
                client.read_head().await.unwrap();
                released.wait_for(|is_released| *is_released).await.unwrap();
                client.send_bytes(OK).await;
            }
        })
        .await;
        let other_app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut slow_client = Client::connect(mesh.listener).await;
        slow_client.send_bytes(GET).await;
        wait_until(|| app.accepted.get() == 1).await;
        let (_server, endpoint) = mesh.start_server("ratings-2", other_app.address).await;
        mesh.route_to(&[endpoint]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        release.send_replace(true);
        assert_eq!(slow_client.read_response().await.status, 200);
        wait_until(|| mesh.server.telemetry.gauge(leno_telemetry::Gauge::LinksDownstream) == 0)
            .await;
        assert_eq!(mesh.client.telemetry.gauge(leno_telemetry::Gauge::LinksUpstream), 1);
    });
}

#[test]
fn a_configuration_change_keeps_the_links_to_remaining_endpoints() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for index in 0..5 {
            assert_eq!(client.send_request(GET).await.status, 200);
            let name = format!("ratings-{}", index + 2);
            mesh.route_to(&[
                mesh.server_endpoint(),
                meshed_endpoint(&name, closed_port(), "ratings"),
            ]);
        }
        mesh.route_to(&[mesh.server_endpoint()]);
        assert_eq!(client.send_request(GET).await.status, 200);
        assert_eq!(mesh.client.telemetry.count(Count::UpstreamConnected), 1);
        assert_eq!(mesh.server.telemetry.count(Count::DownstreamOpened), 1);
    });
}

#[test]
fn tcp_connections_spread_over_endpoints_and_skip_unreachable_ones() {
    run(async {
        let hold = || {
            Application::start(|mut client| async move {
                client.send_bytes("x").await;
                client.read_rest().await;
            })
        };
        let (first, second) = (hold().await, hold().await);
        let setup = Setup { protocol: Protocol::Tcp, ..Setup::default() };
        let mesh = Mesh::new(first.address, setup).await;
        let (_server, other_endpoint) = mesh.start_server("ratings-2", second.address).await;
        let dead_endpoint = meshed_endpoint("ratings-3", closed_port(), "ratings");
        mesh.route_to(&[mesh.server_endpoint(), other_endpoint, dead_endpoint]);
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.read_exactly(1).await, b"x");
            clients.push(client);
        }
        // Least-loaded of two: open connections count as load.
        let accepted_counts = (first.accepted.get(), second.accepted.get());
        assert!(accepted_counts.0 >= 8 && accepted_counts.1 >= 8, "{accepted_counts:?}");
        for client in &mut clients {
            use tokio::io::AsyncWriteExt;
            client.stream.shutdown().await.unwrap();
            assert_eq!(client.read_end().await, End::Clean);
        }
    });
}

/// A kept-alive connection that ends as the request is sent: only the sidecar directly before it can detect
/// that.
#[test]
fn a_kept_connection_that_ends_under_a_request_is_replaced_by_the_sidecar() {
    run(async {
        // The second request on each connection gets no response.
        let request_count = Rc::new(Cell::new(0));
        let count = request_count.clone();
        let app = Application::start(move |mut client| {
            let count = count.clone();
            async move {
                for response in [OK, ""] {
                    if client.read_head().await.is_none() {
                        return;
                    }
                    count.set(count.get() + 1);
                    client.send_bytes(response).await;
                }
            }
        })
        .await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for index in 0..5 {
            assert_eq!(client.send_request(GET).await.verdict(), (200, None));
            assert_eq!(request_count.get(), 2 * index + 1);
        }
        assert_eq!(mesh.server.telemetry.count(Count::Retries), 4);
        assert_eq!(mesh.client.telemetry.count(Count::Retries), 0);
    });
}
