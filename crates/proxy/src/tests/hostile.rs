//! Link peers with a valid certificate that violate the protocol.

use std::rc::Rc;

use bytes::BytesMut;
use leno_wire::link::{GoAwayCode, LinkEvent, ResetCode, StreamKind};
use tokio::io::AsyncWriteExt;

use super::fixture::{
    Application, Client, GET, Mesh, OK, Peer, ReceivedMessage, meshed_endpoint, run,
    test_credential, wait_until, wait_until_stable,
};

/// Creates a mesh with an application, and a link to it.
async fn mesh_with_link(
    application: &Application,
) -> (Mesh, Peer<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>) {
    let mesh = Mesh::permissive(application.address).await;
    let identity = test_credential(&mesh.authority, "productpage");
    let peer = Peer::connect_link(mesh.inbound, &identity).await;
    (mesh, peer)
}

#[test]
fn a_body_with_another_length_than_declared_smuggles_nothing() {
    run(async {
        let app = Application::with_response(OK).await;
        let (mesh, mut peer) = mesh_with_link(&app).await;
        let smuggled_request = b"abcGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
        let head = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n";
        for data in [&smuggled_request[..], b"ab", b""] {
            let stream = peer.open_stream(StreamKind::Http, head, false);
            peer.send_data(stream, data, true);
            let (response, _, _) = peer.read_response(stream).await;
            assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
        }
        // A missing body, or one that the head does not announce.
        let stream = peer.open_stream(StreamKind::Http, head, true);
        assert!(peer.read_response(stream).await.0.starts_with("HTTP/1.1 400 "));
        let chunked = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        let stream = peer.open_stream(StreamKind::Http, chunked, false);
        peer.send_data(stream, b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n", true);
        assert!(peer.read_response(stream).await.0.starts_with("HTTP/1.1 400 "));
        // The link itself continues.
        let stream = peer.open_stream(StreamKind::Http, GET, true);
        assert_eq!(peer.read_response(stream).await.1, b"ok");
        let paths: Vec<_> =
            app.received_requests().into_iter().map(|request| request.head).collect();
        assert!(paths.iter().all(|head| !head.contains("smuggled")), "{paths:?}");
        assert_eq!(mesh.server.failure_counts(), [("bad-request", 5)].into());
    });
}

#[test]
fn a_body_without_a_length_is_framed_by_the_sidecar() {
    run(async {
        let app = Application::with_response(OK).await;
        let (_mesh, mut peer) = mesh_with_link(&app).await;
        let stream = peer.open_stream(StreamKind::Http, GET, false);
        let body = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
        peer.send_data(stream, body, true);
        assert_eq!(peer.read_response(stream).await.1, b"ok");
        let [request] = &app.received_requests()[..] else { panic!("one request") };
        assert_eq!(request.body, body);
    });
}

#[test]
fn invalid_trailers_smuggle_nothing() {
    run(async {
        let app = Application::with_response(OK).await;
        let (mesh, mut peer) = mesh_with_link(&app).await;
        for trailers in [
            &b"\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"[..],
            b"x: y\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n",
            b"x: y\r\n",
            b"x: y",
            b"",
            b"\r\n",
            b"content-length: 3\r\n\r\n",
        ] {
            let stream = peer.open_stream(StreamKind::Http, GET, false);
            peer.send_data(stream, b"abc", false);
            peer.link.send_trailers(stream, trailers).unwrap();
            let (response, _, _) = peer.read_response(stream).await;
            let trailer_text = String::from_utf8_lossy(trailers);
            assert!(response.starts_with("HTTP/1.1 400 "), "{trailer_text}: {response}");
        }
        assert!(app.received_requests().is_empty(), "{:?}", app.received_requests());
        assert_eq!(mesh.server.failure_counts(), [("bad-request", 7)].into());
        let stream = peer.open_stream(StreamKind::Http, GET, false);
        peer.link.send_trailers(stream, b"x: y\r\n\r\n").unwrap();
        assert_eq!(peer.read_response(stream).await.1, b"ok");
        assert_eq!(app.received_requests()[0].trailers, "x: y");
    });
}

#[test]
fn heads_from_links_are_parsed_as_strictly_as_those_of_clients() {
    run(async {
        let app = Application::with_response(OK).await;
        let (_mesh, mut peer) = mesh_with_link(&app).await;
        for (head, status) in [
            ("GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n", "431"),
            ("GET / HTTP/1.1\r\nhost: x\r\n", "431"),
            ("", "431"),
            ("GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", "400"),
            ("CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", "501"),
        ] {
            let stream = peer.open_stream(StreamKind::Http, head, true);
            let (response, _, _) = peer.read_response(stream).await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {response}");
        }
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn invalid_frames_break_only_their_link() {
    run(async {
        let app = Application::with_response(OK).await;
        let (mesh, mut other_peer) = mesh_with_link(&app).await;
        let identity = test_credential(&mesh.authority, "productpage");
        for garbage in [
            &[0xff; 64][..],
            // A frame of 16 MiB, a stream that was never opened, and a second HELLO.
            &[0xff, 0xff, 0xff, 4, 0, 0, 0, 1],
            &[0, 0, 1, 4, 0, 0, 0, 9, b'x'],
            &[0, 0, 20, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 4, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 64, 0],
        ] {
            let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
            peer.stream.write_all(garbage).await.unwrap();
            peer.stream.flush().await.unwrap();
            let is_broken = matches!(
                peer.next().await,
                Some(LinkEvent::GoAway { code: GoAwayCode::Protocol, .. }) | None
            );
            assert!(is_broken);
            while peer.next().await.is_some() {}
        }
        let stream = other_peer.open_stream(StreamKind::Http, GET, true);
        assert_eq!(other_peer.read_response(stream).await.1, b"ok");
        wait_until(|| mesh.server.telemetry.gauge(leno_telemetry::Gauge::LinksDownstream) == 1)
            .await;
    });
}

/// A stalled reader holds at most its windows, and the sidecar serves others.
#[test]
fn a_peer_that_never_reads_cannot_open_more_streams() {
    run(async {
        const STREAMS: usize = 100;
        const BYTES: usize = 16 * 1024 * 1024;
        let written = Rc::new(std::cell::Cell::new(0));
        let count = written.clone();
        let app = Application::start(move |mut client| {
            let count = count.clone();
            async move {
                while let Some(request) = client.read_head().await {
                    if !request.head.contains("/large") {
                        client.send_bytes(OK).await;
                        continue;
                    }
                    client
                        .send_bytes(format!("HTTP/1.1 200 OK\r\ncontent-length: {BYTES}\r\n\r\n"))
                        .await;
                    for piece in vec![b'x'; BYTES].chunks(16 * 1024) {
                        if client.stream.write_all(piece).await.is_err() {
                            return;
                        }
                        count.set(count.get() + piece.len());
                    }
                }
            }
        })
        .await;
        let (mesh, mut peer) = mesh_with_link(&app).await;
        for _ in 0..STREAMS {
            peer.open_stream(StreamKind::Http, "GET /large HTTP/1.1\r\nhost: x\r\n\r\n", true);
        }
        peer.flush().await;
        let written_bytes = wait_until_stable(|| written.get()).await;
        assert!(written_bytes < STREAMS * BYTES / 2, "{written_bytes} bytes were accepted");
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.body_text(), "ok");
        drop(peer);
        wait_until(|| mesh.server.ended_count() as usize == STREAMS + 1).await;
        assert_eq!(mesh.server.failure_counts(), [("downstream-closed", STREAMS as u64)].into());
    });
}

/// Heads are not limited by windows, only by the congestion of the whole link.
#[test]
fn heads_wait_for_a_peer_that_does_not_read() {
    run(async {
        const STREAMS: usize = 400;
        let head =
            format!("HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 0\r\n\r\n", "y".repeat(60_000));
        let app = Application::respond_with(move |_| head.clone()).await;
        let (mesh, mut peer) = mesh_with_link(&app).await;
        for count in 1..=STREAMS {
            peer.open_stream(StreamKind::Http, GET, true);
            // No more at once than the backlog of an application holds.
            if count % 100 == 0 {
                peer.flush().await;
                wait_until(|| app.requests.borrow().len() == count).await;
            }
        }
        let ended = wait_until_stable(|| mesh.server.ended_count() as usize).await;
        assert!(ended < STREAMS / 2, "{ended} responses were sent to a peer that reads none");
        let mut response_count = 0;
        while response_count < STREAMS {
            match peer.next().await {
                Some(LinkEvent::Head { .. }) => response_count += 1,
                Some(_) => {}
                None => panic!("the link broke after {response_count} responses"),
            }
        }
        assert!(mesh.server.failure_counts().is_empty());
    });
}

#[test]
fn a_reset_stream_ends_its_request() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.read_rest().await;
        })
        .await;
        let (mesh, mut peer) = mesh_with_link(&app).await;
        for _ in 0..50 {
            let stream = peer.open_stream(StreamKind::Http, GET, true);
            peer.flush().await;
            peer.link.reset_stream(stream, ResetCode::Cancelled);
        }
        peer.flush().await;
        wait_until(|| mesh.server.ended_count() == 50).await;
        assert_eq!(mesh.server.failure_counts(), [("downstream-closed", 50)].into());
    });
}

/// Serves the client's sidecar with `serve_peer`, frame by frame.
async fn mesh_with_peer(
    serve_peer: impl AsyncFn(&mut Peer<tokio_rustls::server::TlsStream<tokio::net::TcpStream>>, usize)
    + 'static,
) -> (Mesh, Application) {
    let app = Application::with_response(OK).await;
    let mesh = Mesh::permissive(app.address).await;
    let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
    let serve_peer = Rc::new(serve_peer);
    let hostile = Application::start(move |client| {
        let (identity, serve_peer) = (identity.clone(), serve_peer.clone());
        async move {
            let mut peer = Peer::accept_link(client.stream, &identity).await;
            let mut count = 0;
            while let Some(event) = peer.next().await {
                if let LinkEvent::Opened { .. } = event {
                    count += 1;
                    serve_peer(&mut peer, count).await;
                }
            }
        }
    })
    .await;
    mesh.route_to(&[meshed_endpoint("hostile-1", hostile.address, "ratings")]);
    (mesh, app)
}

fn stream_id(number: usize) -> leno_wire::link::StreamId {
    // Stream IDs are consecutive and have no public constructor: an opener creates them.
    let mut link = leno_wire::link::Link::new(
        leno_wire::link::Role::Opener,
        leno_wire::link::LinkLimits::default(),
    );
    (0..number)
        .map(|_| link.open_stream(StreamKind::Http, true, |_: &mut BytesMut| {}).unwrap())
        .last()
        .unwrap()
}

#[test]
fn a_link_response_with_another_length_than_declared_is_truncated_for_the_client() {
    run(async {
        for data in [&b"abHTTP/1.1 200 EVIL\r\ncontent-length: 0\r\n\r\n"[..], b"a"] {
            let (mesh, _app) = mesh_with_peer(async move |peer, number| {
                peer.send_head(
                    stream_id(number),
                    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n",
                    false,
                );
                peer.send_data(stream_id(number), data, true);
            })
            .await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes([GET, GET].concat()).await;
            let (received, end) = client.read_rest().await;
            let received = String::from_utf8_lossy(&received);
            assert_eq!(end, super::fixture::End::Reset);
            assert!(!received.contains("EVIL"), "{received}");
            assert_eq!(mesh.client.failure_counts(), [("upstream-malformed", 1)].into());
        }
    });
}

/// A frame and its status must agree on whether another head follows: the client reads the status.
#[test]
fn a_link_response_that_is_interim_and_final_is_invalid() {
    run(async {
        for (head, interim) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
            ("HTTP/1.1 103 Early Hints\r\n\r\n", false),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 EVIL\r\n\r\n", false),
            ("nonsense", false),
        ] {
            let (mesh, _app) = mesh_with_peer(async move |peer, number| {
                let write_head = |buffer: &mut BytesMut| buffer.extend_from_slice(head.as_bytes());
                peer.link.send_head(stream_id(number), interim, !interim, write_head).unwrap();
                if interim {
                    peer.send_head(stream_id(number), "HTTP/1.1 200 EVIL\r\n\r\n", true);
                }
            })
            .await;
            let response: ReceivedMessage =
                Client::connect(mesh.listener).await.send_request(GET).await;
            assert_eq!(response.verdict(), (502, Some("upstream-malformed")), "{head}");
        }
    });
}

#[test]
fn an_unexpected_body_over_a_link_does_not_desynchronize_the_client() {
    run(async {
        let (mesh, _app) = mesh_with_peer(async |peer, number| {
            peer.send_head(
                stream_id(number),
                "HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\n\r\n",
                false,
            );
            peer.send_data(
                stream_id(number),
                b"HTTP/1.1 200 EVIL\r\ncontent-length: 0\r\n\r\n",
                true,
            );
        })
        .await;
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..3 {
            assert_eq!(client.send_request(GET).await.status, 304);
        }
    });
}
