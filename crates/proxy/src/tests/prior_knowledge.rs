//! HTTP/2 clients with prior knowledge, on each kind of port, and rejections at both sidecars.

use std::future::poll_fn;
use std::task::Poll;

use http::{Request, Response};
use leno_model::{Access, ClientAuthorization, Endpoint, Protocol, ServiceConfig};
use leno_wire::link::{LinkEvent, LinkLimits, Role, StreamKind};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::fixture::frames::{self, OPENING};
use super::fixture::{
    Application, Client, Mesh, OK, Peer, Setup, meshed_endpoint, run, service_config,
    test_credential, tls_accept, wait_until,
};
use super::http2::{connect_client, grpc_request, start_application};
use crate::session::ListenerKind;
use crate::tls::ALPN_LINK;

fn get() -> Request<()> {
    Request::get("http://ratings.bookinfo:9080/").body(()).unwrap()
}

async fn send_request(mesh: &Mesh, request: Request<()>) -> Response<h2::RecvStream> {
    let (response, _stream) =
        connect_client(mesh.listener).await.send_request(request, true).unwrap();
    response.await.expect("an answer over HTTP/2")
}

#[test]
fn a_rejection_by_the_clients_sidecar_is_valid_in_http2_and_grpc() {
    run(async {
        let app = start_application(|_, _| async {}).await;
        let mesh = super::http2::http2_mesh(app.address, Protocol::Grpc).await;
        // The sidecar receives no ports of a service that it must not use.
        let service = service_config(Protocol::Grpc, &[]);
        let denied_service = ServiceConfig {
            client_authorization: ClientAuthorization::Denied,
            ports: Default::default(),
            ..service
        };
        mesh.set_client_services(vec![denied_service]);
        let response = send_request(&mesh, get()).await;
        assert_eq!(response.status(), 403);
        assert!(
            response.headers()["leno-reason"].to_str().unwrap().starts_with("denied-outbound;")
        );
        let response = send_request(&mesh, grpc_request("/shop.Cart/Add")).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["grpc-status"]),
            (200, &"7".parse().unwrap())
        );
        assert!(
            response.headers()["leno-reason"].to_str().unwrap().starts_with("denied-outbound;")
        );
        assert_eq!(mesh.client.failure_counts(), [("denied-outbound", 2)].into());
    });
}

/// The client uses the HTTP proxy port like the port of a server.
#[test]
fn the_http_proxy_rejects_http2_with_an_explanation() {
    run(async {
        let mesh = Mesh::permissive("127.0.0.1:1".parse().unwrap()).await;
        let proxy = mesh.client.open_listener(ListenerKind::HttpProxy).await;
        for (request, status, grpc) in
            [(get(), 501, None), (grpc_request("/shop.Cart/Add"), 200, Some("12"))]
        {
            let (client, connection) =
                h2::client::handshake(TcpStream::connect(proxy).await.unwrap()).await.unwrap();
            let connection_task = tokio::task::spawn_local(connection);
            let mut client = client.ready().await.unwrap();
            let response = client.send_request(request, true).unwrap().0.await.unwrap();
            assert_eq!(response.status(), status);
            let field =
                |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
            assert!(field("leno-reason").unwrap().starts_with("unsupported;"));
            assert_eq!(field("grpc-status"), grpc);
            let message = field("grpc-message").map(str::to_owned);
            let (body, _) = super::http2::read_body(response.into_body()).await;
            let text = message.unwrap_or_else(|| String::from_utf8(body).unwrap());
            assert!(text.contains("The HTTP proxy supports HTTP/1.1 only"), "{text}");
            drop(connection_task.await.unwrap());
            assert!(client.ready().await.is_err(), "the connection has ended");
        }

        // The response comes on stream 1, and GOAWAY after it.
        let mut client = Client::connect(proxy).await;
        client.send_bytes([OPENING, &frames::get(1)].concat()).await;
        let (mut kinds, mut last) = (Vec::new(), None);
        while let Some(frame) = client.read_frame().await {
            match frame.kind {
                frames::HEADERS | frames::DATA => {
                    assert_eq!(frame.stream, 1);
                    kinds.push(frame.kind);
                }
                frames::GOAWAY => {
                    assert_eq!(frame.error_code(), 0, "NO_ERROR");
                    kinds.push(frame.kind);
                    last = Some(frame.payload[..4].to_vec());
                }
                frames::PING if frame.flags == 0 => {
                    client
                        .send_bytes(frames::encode_frame(frames::PING, 1, 0, &frame.payload))
                        .await;
                }
                _ => {}
            }
        }
        kinds.dedup();
        assert_eq!(kinds, [frames::HEADERS, frames::DATA, frames::GOAWAY]);
        assert_eq!(last.unwrap(), [0, 0, 0, 1]);
        assert_eq!(mesh.client.failure_counts(), [("unsupported", 3)].into());

        // A preface alone is not counted as a request; other bytes are counted as an unreadable one.
        let mut client = Client::connect(proxy).await;
        client.send_bytes(&OPENING[..18]).await;
        client.stream.shutdown().await.unwrap();
        while client.read_frame().await.is_some() {}
        let reply = Client::connect(proxy).await.send_request("PRI * HTTP/1.1\r\n\r\n").await;
        assert_eq!(reply.reason_code(), Some("bad-request"));
        wait_until(|| {
            mesh.client.failure_counts() == [("bad-request", 1), ("unsupported", 3)].into()
        })
        .await;
    });
}

/// Some clients drop a response when a reset follows it at once, although RFC 9113 §8.1 permits the reset.
#[test]
fn a_rejected_request_is_read_completely() {
    run(async {
        let app = start_application(|_, _| async {}).await;
        let mesh = super::http2::http2_mesh(app.address, Protocol::Http2).await;
        mesh.set_access(Access::AllowListed(Vec::new()));
        let mut client = connect_client(mesh.listener).await;
        let (response, mut body) = client.send_request(grpc_request("/"), false).unwrap();
        let response = response.await.expect("a response");
        assert_eq!(response.headers()["grpc-status"], "7");
        for at in 0..64 {
            body.reserve_capacity(16 * 1024);
            while body.capacity() < 16 * 1024 {
                let more = poll_fn(|cx| body.poll_capacity(cx)).await;
                more.expect("the stream is open").expect("the stream is open");
            }
            body.send_data(vec![0; 16 * 1024].into(), at == 63).expect("no reset");
        }
        // The response to a later request follows all frames of the first one.
        let (later, _) = client.send_request(get(), true).unwrap();
        assert_eq!(later.await.expect("a response").status(), 403);
        let reset = poll_fn(|cx| Poll::Ready(body.poll_reset(cx))).await;
        assert!(reset.is_pending(), "{reset:?}");
    });
}

const BAD_REQUEST: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n";

/// Starts an application that responds to the HTTP/2 preface with these bytes.
pub(super) async fn start_without_http2(response: &'static str) -> Application {
    Application::start(move |mut client| async move {
        client.read_exactly(24).await;
        client.send_bytes(response).await;
        // The application continues to read, as servers do to ensure that their response arrives.
        client.stream.shutdown().await.unwrap();
        drop(client.read_rest().await);
    })
    .await
}

#[test]
fn an_application_without_http2_is_reported_as_a_protocol_mismatch() {
    run(async {
        for response in [BAD_REQUEST, "<!DOCTYPE HTML>"] {
            let app = start_without_http2(response).await;
            for protocol in [Protocol::Detect, Protocol::Http2, Protocol::Grpc] {
                let setup = Setup { protocol, ..Setup::default() };
                let mesh = Mesh::new(app.address, setup).await;
                let response = send_request(&mesh, get()).await;
                let reason = response.headers()["leno-reason"].to_str().unwrap();
                assert!(reason.starts_with("protocol-mismatch;"), "{protocol:?}: {reason}");
                assert_eq!(response.status(), 502);
                let response = send_request(&mesh, grpc_request("/shop.Cart/Add")).await;
                assert_eq!(response.headers()["grpc-status"], "14");
                wait_until(|| mesh.client.failure_counts() == [("protocol-mismatch", 2)].into())
                    .await;
                // Each request is retried once: its endpoint might have been another one.
                wait_until(|| mesh.server.failure_counts() == [("protocol-mismatch", 4)].into())
                    .await;
            }
        }
        // A closed port is another fault.
        let closed_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = closed_listener.local_addr().unwrap();
        drop(closed_listener);
        let mesh = super::http2::http2_mesh(address, Protocol::Http2).await;
        let reason = send_request(&mesh, get()).await.headers()["leno-reason"].clone();
        assert!(reason.to_str().unwrap().starts_with("connect-failed;"), "{reason:?}");
    });
}

#[test]
fn an_http2_only_application_is_reported_to_http1_clients() {
    run(async {
        for ends in [true, false] {
            let app = Application::start(move |mut client| async move {
                client.send_bytes(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x80").await;
                client.read_exactly(18).await;
                if ends {
                    client.send_bytes(b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01").await;
                    client.stream.shutdown().await.unwrap();
                }
                drop(client.read_rest().await);
            })
            .await;
            for protocol in [Protocol::Detect, Protocol::Http] {
                let setup = Setup { protocol, ..Setup::default() };
                let mesh = Mesh::new(app.address, setup).await;
                let mut client = Client::connect(mesh.listener).await;
                let response = client.send_request("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
                let expected = (502, Some("protocol-mismatch"));
                assert_eq!(response.verdict(), expected, "{protocol:?}, {ends}");
                wait_until(|| mesh.client.failure_counts() == [("protocol-mismatch", 1)].into())
                    .await;
                // The request is retried once: its endpoint might have been another one.
                wait_until(|| mesh.server.failure_counts() == [("protocol-mismatch", 2)].into())
                    .await;
            }
        }
    });
}

#[test]
fn an_endpoint_with_http2_is_used_if_another_one_lacks_it() {
    run(async {
        let (without, with) =
            (start_without_http2(BAD_REQUEST).await, start_application(respond_ok).await);
        for protocol in [Protocol::Detect, Protocol::Http2] {
            let mesh = super::http2::http2_mesh(with.address, protocol).await;
            let setup = Setup { protocol, ..Setup::default() };
            let (other_server, mismatched) =
                mesh.start_server_with("ratings-2", without.address, &setup).await;
            mesh.route_to(&[mesh.server_endpoint(), mismatched]);
            while other_server.failure_counts().is_empty() {
                assert_eq!(send_request(&mesh, get()).await.status(), 200, "{protocol:?}");
            }
            for _ in 0..10 {
                assert_eq!(send_request(&mesh, get()).await.status(), 200, "{protocol:?}");
            }
            assert_eq!(
                other_server.failure_counts().keys().collect::<Vec<_>>(),
                [&"protocol-mismatch"]
            );
            assert!(mesh.client.failure_counts().is_empty());
        }
    });
}

async fn respond_ok(
    _: Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<bytes::Bytes>,
) {
    respond.send_response(Response::new(()), true).unwrap();
}

/// Media types are case-insensitive (RFC 9110 §8.3.1).
#[test]
fn the_content_type_of_grpc_is_case_insensitive() {
    run(async {
        let app = start_application(|_, _| async {}).await;
        let mesh = super::http2::http2_mesh(app.address, Protocol::Grpc).await;
        mesh.set_access(Access::AllowListed(Vec::new()));
        let request = Request::post("http://ratings.bookinfo:9080/shop.Cart/Add");
        let request = request.header("content-type", "Application/gRPC").body(()).unwrap();
        let response = send_request(&mesh, request).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["grpc-status"]),
            (200, &"7".parse().unwrap())
        );
    });
}

#[test]
fn requests_are_detected_on_a_port_without_a_declared_protocol() {
    run(async {
        let app = start_application(|request, mut respond| async move {
            assert!(!request.headers().contains_key("upgrade"));
            let response = Response::builder().header("x-path", request.uri().path());
            drop(respond.send_response(response.body(()).unwrap(), true).unwrap());
        })
        .await;
        let setup = Setup { protocol: Protocol::Detect, ..Setup::default() };
        let mesh = Mesh::new(app.address, setup).await;
        let response = send_request(&mesh, grpc_request("/shop.Cart/Add")).await;
        assert_eq!(response.headers()["x-path"], "/shop.Cart/Add");
        for sidecar in [&mesh.client, &mesh.server] {
            wait_until(|| sidecar.ended_count() == 1).await;
            assert_eq!(sidecar.series_summaries()[0].labels.protocol, "http");
        }
        // `defaultPolicy: deny` responds as well.
        mesh.set_access(Access::AllowListed(Vec::new()));
        let response = send_request(&mesh, get()).await;
        assert_eq!(response.status(), 403);
        assert_eq!(mesh.server.failure_counts(), [("denied", 1)].into());
    });
}

#[test]
fn both_http_versions_are_used_on_a_port_without_a_declared_protocol() {
    run(async {
        // An HTTP/1.1 application gets HTTP/1.1 from clients that use it.
        let app = Application::with_response(OK).await;
        let setup = Setup { protocol: Protocol::Detect, ..Setup::default() };
        let mesh = Mesh::new(app.address, setup).await;
        let mut client = Client::connect(mesh.listener).await;
        let offer = "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
        assert_eq!(client.send_request(offer).await.status, 200);
    });
}

#[test]
fn an_endpoint_without_a_sidecar_receives_the_http_version_of_its_client() {
    run(async {
        let meshed = Application::with_response(OK).await;
        let setup = Setup { protocol: Protocol::Detect, ..Setup::default() };
        let mesh = Mesh::new(meshed.address, setup).await;
        let plain = |address| Endpoint {
            account: None,
            ..meshed_endpoint("ratings-2", address, "ratings")
        };
        let app = start_application(|request, mut respond| async move {
            assert!(!request.headers().contains_key("upgrade"));
            let response = Response::builder().header("x-path", request.uri().path());
            drop(respond.send_response(response.body(()).unwrap(), true).unwrap());
        })
        .await;
        mesh.route_to(&[plain(app.address)]);
        for _ in 0..2 {
            let response = send_request(&mesh, grpc_request("/shop.Cart/Add")).await;
            assert_eq!(response.headers()["x-path"], "/shop.Cart/Add");
        }
        let http1 = Application::with_response(OK).await;
        mesh.route_to(&[plain(http1.address)]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.status, 200);
        assert!(http1.received_requests()[0].head.starts_with("GET / HTTP/1.1"));
        assert_eq!((meshed.received_requests().len(), mesh.client.failure_counts().len()), (0, 0));
    });
}

#[test]
fn an_http2_client_is_served_on_a_port_that_declares_http11() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        assert_eq!(send_request(&mesh, get()).await.status(), 200);
        assert!(app.received_requests()[0].head.starts_with("GET / HTTP/1.1"));
    });
}

#[test]
fn a_sidecar_of_an_earlier_release_receives_opaque_bytes() {
    run(async {
        let app = Application::with_response(OK).await;
        let setup = Setup { protocol: Protocol::Detect, ..Setup::default() };
        let mesh = Mesh::new(app.address, setup).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let earlier = meshed_endpoint("ratings-9", listener.local_addr().unwrap(), "ratings");
        mesh.route_to(&[earlier]);
        let identity = test_credential(&mesh.authority, "ratings");
        let server = async {
            let (tcp, _) = listener.accept().await.unwrap();
            let tls = tls_accept(tcp, &identity, &[ALPN_LINK]).await.unwrap();
            let limits = LinkLimits { reads_http2_mark: false, ..LinkLimits::default() };
            let mut peer = Peer::new(tls, Role::Acceptor, limits);
            loop {
                match peer.next().await.unwrap() {
                    LinkEvent::Opened { stream, kind, head, .. } => {
                        assert_eq!((kind, &*head), (StreamKind::Tcp, &b"h2"[..]));
                        peer.send_head(stream, "", false);
                        peer.flush().await;
                    }
                    LinkEvent::Data { data, .. } => {
                        assert!(data.starts_with(b"PRI * HTTP/2.0"));
                        return;
                    }
                    _ => {}
                }
            }
        };
        let mut client = connect_client(mesh.listener).await;
        let (_response, _stream) = client.send_request(get(), true).unwrap();
        server.await;
    });
}
