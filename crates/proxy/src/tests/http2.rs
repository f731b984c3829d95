//! HTTP/2 and gRPC through two sidecars, with another implementation's client and server.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::{Builder, SendResponse};
use h2::{Reason as Code, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use leno_model::{Access, Protocol};
use leno_telemetry::Gauge;
use tokio::net::TcpStream;

use super::fixture::frames;
use super::fixture::{
    Application, Client, GET, Mesh, OK, Setup, run, test_credential, tls_connect, wait_until,
};
use crate::drain::Phase;
use crate::tls::ALPN_HTTP2;

/// Starts an HTTP/2-only application; each stream is passed to `serve`.
pub(crate) async fn start_application<F, S>(serve: S) -> Application
where
    F: Future<Output = ()> + 'static,
    S: Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + 'static,
{
    start_application_with(Builder::new(), serve).await
}

/// Starts an HTTP/2-only application with these connection settings; each stream is passed to `serve`.
pub(crate) async fn start_application_with<F, S>(builder: Builder, serve: S) -> Application
where
    F: Future<Output = ()> + 'static,
    S: Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + 'static,
{
    let serve = Rc::new(serve);
    Application::start(move |client| {
        let (builder, serve) = (builder.clone(), serve.clone());
        async move {
            let Ok(mut connection) = builder.handshake(client.stream).await else { return };
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::task::spawn_local(serve(request, respond));
            }
        }
    })
    .await
}

pub(crate) async fn http2_mesh(application: SocketAddr, protocol: Protocol) -> Mesh {
    Mesh::new(application, Setup { protocol, ..Setup::default() }).await
}

/// Connects an HTTP/2 client with prior knowledge.
pub(crate) async fn connect_client(listener: SocketAddr) -> SendRequest<Bytes> {
    connect_over(TcpStream::connect(listener).await.unwrap()).await
}

pub(super) async fn connect_over(tcp: TcpStream) -> SendRequest<Bytes> {
    let (send, connection) = h2::client::handshake(tcp).await.unwrap();
    tokio::task::spawn_local(async move { drop(connection.await) });
    send.ready().await.unwrap()
}

pub(crate) fn grpc_request(path: &str) -> Request<()> {
    Request::post(format!("http://ratings.bookinfo:9080{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap()
}

pub(super) async fn open_stream(
    listener: SocketAddr,
    path: &str,
) -> (ResponseFuture, SendStream<Bytes>) {
    connect_client(listener).await.send_request(grpc_request(path), false).unwrap()
}

/// Reads all data and the trailers of a body.
pub(crate) async fn read_body(mut body: RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut data = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        data.extend_from_slice(&piece);
    }
    (data, body.trailers().await.unwrap())
}

/// Sends all data as fast as flow control permits.
pub(crate) async fn send_data(stream: &mut SendStream<Bytes>, mut data: Bytes, end: bool) {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let granted = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let granted = granted.expect("open").expect("granted");
        stream.send_data(data.split_to(granted.min(data.len())), false).unwrap();
    }
    if end {
        stream.send_data(Bytes::new(), true).unwrap();
    }
}

/// Echoes each piece, and ends with trailers.
async fn echo_stream(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    assert_eq!(request.headers()["te"], "trailers");
    assert_eq!(request.headers()["x-custom"], "a");
    assert_eq!(request.uri().path_and_query().unwrap().as_str(), "/echo?x=%20");
    assert_eq!(request.uri().authority().unwrap().as_str(), "ratings.bookinfo:9080");
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut stream = respond.send_response(head, false).unwrap();
    let mut body = request.into_body();
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        send_data(&mut stream, piece, false).await;
    }
    let received = body.trailers().await.unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    trailers.extend(received.unwrap_or_default());
    stream.send_trailers(trailers).unwrap();
}

#[test]
fn streams_are_forwarded_with_trailers_in_both_directions() {
    run(async {
        let app = start_application(echo_stream).await;
        let mesh = http2_mesh(app.address, Protocol::Grpc).await;
        let mut request = grpc_request("/echo?x=%20");
        request.headers_mut().insert("x-custom", "a".parse().unwrap());
        let mut client = connect_client(mesh.listener).await;
        let (response, mut stream) = client.send_request(request, false).unwrap();
        // Each side waits for the other: no piece is buffered until the message is complete.
        stream.send_data(Bytes::from_static(b"ping"), false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/grpc");
        let mut body = response.into_body();
        let pong = body.data().await.unwrap().unwrap();
        assert_eq!(pong, "ping");
        body.flow_control().release_capacity(4).unwrap();
        // The message exceeds every window on the path.
        let long_body: Vec<u8> = (0..2_000_000_u32).map(|index| index as u8).collect();
        let sent = long_body.clone();
        let upload = tokio::task::spawn_local(async move {
            send_data(&mut stream, sent.into(), false).await;
            let mut trailers = HeaderMap::new();
            trailers.insert("x-checksum", "7".parse().unwrap());
            stream.send_trailers(trailers).unwrap();
        });
        let (received, trailers) = read_body(body).await;
        upload.await.unwrap();
        assert!(received == long_body, "{} bytes", received.len());
        let trailers = trailers.unwrap();
        assert_eq!(
            (&trailers["grpc-status"], &trailers["x-checksum"]),
            (&"0".parse().unwrap(), &"7".parse().unwrap())
        );
        wait_until(|| mesh.client.ended_count() == 1 && mesh.server.ended_count() == 1).await;
        assert!(mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty());
    });
}

/// Servers that respond before the end of the request reset the stream after the response, and Envoy drops the
/// rest of such a response.
#[test]
fn the_end_of_a_request_arrives_with_its_last_bytes() {
    run(async {
        let app = start_application(|request, mut respond| async move {
            let mut body = request.into_body();
            let piece = body.data().await.unwrap().unwrap();
            let head = Response::builder().header("whole", (piece.len() == 4).to_string());
            let head = head.header("ended", body.is_end_stream().to_string()).body(()).unwrap();
            respond.send_response(head, true).unwrap();
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Grpc).await;
        let (response, mut stream) = open_stream(mesh.listener, "/unary").await;
        stream.send_data(Bytes::from_static(b"ping"), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(
            (&response.headers()["whole"], &response.headers()["ended"]),
            (&"true".parse().unwrap(), &"true".parse().unwrap())
        );
    });
}

#[test]
fn many_streams_share_one_connection_to_the_application() {
    run(async {
        let app = start_application(|_, mut respond| async move {
            respond.send_response(Response::new(()), true).unwrap();
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let client = connect_client(mesh.listener).await;
        let mut responses = Vec::new();
        for _ in 0..100 {
            let mut client = client.clone().ready().await.unwrap();
            responses.push(client.send_request(grpc_request("/"), true).unwrap().0);
        }
        for response in responses {
            assert_eq!(response.await.unwrap().status(), 200);
        }
        assert_eq!(app.accepted.get(), 1);
        assert_eq!(mesh.client.ended_count(), 100);
    });
}

#[test]
fn a_canceled_call_is_canceled_at_the_application_at_once() {
    run(async {
        let received_code: Rc<RefCell<Option<Code>>> = Rc::default();
        let reset_code = received_code.clone();
        let app = start_application(move |request, mut respond| {
            let reset_code = reset_code.clone();
            async move {
                let _request = request;
                let mut stream = respond.send_response(Response::new(()), false).unwrap();
                let code = std::future::poll_fn(|cx| stream.poll_reset(cx)).await;
                *reset_code.borrow_mut() = code.ok();
            }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Grpc).await;
        let (response, mut stream) = open_stream(mesh.listener, "/").await;
        let response = response.await.unwrap();
        stream.send_reset(Code::CANCEL);
        wait_until(|| received_code.borrow().is_some()).await;
        assert_eq!(*received_code.borrow(), Some(Code::CANCEL));
        drop(response);
        wait_until(|| mesh.client.ended_count() == 1).await;
        assert_eq!(mesh.client.failure_counts(), [("downstream-closed", 1)].into());
    });
}

#[test]
fn a_slow_reader_stops_the_sender() {
    run(async {
        let sent = Rc::new(std::cell::Cell::new(0));
        let count = sent.clone();
        let app = start_application(move |_, mut respond| {
            let count = count.clone();
            async move {
                let mut stream = respond.send_response(Response::new(()), false).unwrap();
                loop {
                    let piece = Bytes::from_static(&[0; 16_384]);
                    stream.reserve_capacity(piece.len());
                    let granted = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                    let Some(Ok(granted)) = granted else { return };
                    count.set(count.get() + granted);
                    stream.send_data(piece.slice(..granted), false).unwrap();
                }
            }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let (response, _stream) = open_stream(mesh.listener, "/").await;
        let body = response.await.unwrap().into_body();
        let sent_before_stall = super::fixture::wait_until_stable(|| sent.get()).await;
        assert!(
            sent_before_stall < 2 * 1024 * 1024,
            "{sent_before_stall} bytes are in flight to a client that does not read"
        );
        drop(body);
    });
}

#[test]
fn each_http_version_reaches_an_application_of_the_other() {
    run(async {
        let app = start_application(|request, mut respond| async move {
            let (parts, body) = request.into_parts();
            let (data, _) = read_body(body).await;
            let line = format!("{} {} {}", parts.method, parts.uri.path(), data.len());
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            stream.send_data(line.into(), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-end", "1".parse().unwrap());
            stream.send_trailers(trailers).unwrap();
        })
        .await;
        let first_mesh = http2_mesh(app.address, Protocol::Http2).await;
        let mut client = Client::connect(first_mesh.listener).await;
        let reply =
            client.send_request("POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi").await;
        assert_eq!((reply.body_text(), &*reply.trailers), ("POST /a 2", "x-end: 1"));
        assert_eq!(client.send_request(GET).await.body_text(), "GET /ratings/1 0");

        // The client uses HTTP/2 with its sidecar, the application HTTP/1.1 with its own.
        let app = Application::respond_with(|request| {
            let cookie = request.field_value("cookie").unwrap_or_default().to_owned();
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{cookie}", cookie.len())
        })
        .await;
        let second_mesh = http2_mesh(app.address, Protocol::Http2).await;
        let plain = http2_mesh(app.address, Protocol::Http).await;
        second_mesh.route_to(&[plain.server_endpoint()]);
        let identity = test_credential(&plain.authority, "productpage");
        second_mesh.client.set_credential(identity);
        let mut request = grpc_request("/");
        for crumb in ["a=1", "b=2"] {
            request.headers_mut().append("cookie", crumb.parse().unwrap());
        }
        let mut client = connect_client(second_mesh.listener).await;
        let (response, mut stream) = client.send_request(request, false).unwrap();
        send_data(&mut stream, Bytes::from_static(b"body"), true).await;
        let (data, trailers) = read_body(response.await.unwrap().into_body()).await;
        assert_eq!((&data[..], trailers), (&b"a=1; b=2"[..], None));
        assert_eq!(app.received_requests()[0].body, b"body");
    });
}

#[test]
fn responses_of_the_sidecar_have_an_http_or_a_grpc_status() {
    run(async {
        let app = start_application(|_, _| async {}).await;
        let setup = Setup {
            access: Access::AllowListed(Vec::new()),
            protocol: Protocol::Grpc,
            ..Setup::default()
        };
        let mesh = Mesh::new(app.address, setup).await;
        let (response, _stream) = open_stream(mesh.listener, "/").await;
        let response = response.await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["grpc-status"]),
            (200, &"7".parse().unwrap())
        );
        assert!(response.headers()["leno-reason"].to_str().unwrap().starts_with("denied;"));
        mesh.route_to(&[]);
        let response = open_stream(mesh.listener, "/").await.0.await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["grpc-status"]),
            (200, &"14".parse().unwrap())
        );
        let request = Request::get("http://ratings/").body(()).unwrap();
        let mut client = connect_client(mesh.listener).await;
        let response = client.send_request(request, true).unwrap().0.await.unwrap();
        assert_eq!(response.status(), 503);
        assert!(response.headers()["leno-reason"].to_str().unwrap().starts_with("no-endpoint;"));
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn a_drain_sends_goaway_and_finishes_open_streams() {
    run(async {
        let app = start_application(|request, mut respond| async move {
            drop(read_body(request.into_body()).await);
            respond.send_response(Response::new(()), true).unwrap();
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let mut client = connect_client(mesh.listener).await;
        let (response, mut stream) = client.send_request(grpc_request("/"), false).unwrap();
        wait_until(|| mesh.server.telemetry.gauge(Gauge::RequestsInFlight) == 1).await;
        mesh.client.phase.send_replace(Phase::Draining);
        wait_until(|| client.clone().send_request(grpc_request("/"), true).is_err()).await;
        stream.send_data(Bytes::new(), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 200);
    });
}

#[test]
fn a_client_without_links_may_use_http2_over_mutual_tls() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let identity = test_credential(&mesh.authority, "foreign");
        let tls = tls_connect(mesh.inbound, &identity, &[ALPN_HTTP2]).await.unwrap();
        let (client, connection) = h2::client::handshake(tls).await.unwrap();
        tokio::task::spawn_local(async move { drop(connection.await) });
        let mut client = client.ready().await.unwrap();
        let response = client.send_request(grpc_request("/"), true).unwrap().0.await.unwrap();
        assert_eq!(read_body(response.into_body()).await.0, b"ok");
        assert!(app.received_requests()[0].field_value("te").is_none());
    });
}

#[test]
fn rapid_resets_and_malformed_frames_end_the_connection() {
    run(async {
        let app = start_application(|_, respond| async move {
            let _never = respond;
            std::future::pending::<()>().await;
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let sender = connect_client(mesh.listener).await;
        for _ in 0..5_000 {
            let Ok(mut sender) = sender.clone().ready().await else { break };
            let Ok((_, mut stream)) = sender.send_request(grpc_request("/"), true) else { break };
            stream.send_reset(Code::CANCEL);
            tokio::task::yield_now().await;
        }
        // No request remains in progress.
        let invalid_bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0xff; 64]].concat();
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(invalid_bytes).await;
        client.read_rest().await;
        drop(sender);
        wait_until(|| mesh.client.telemetry.gauge(Gauge::RequestsInFlight) == 0).await;
        wait_until(|| mesh.server.telemetry.gauge(Gauge::RequestsInFlight) == 0).await;
    });
}

#[test]
fn calls_beyond_the_stream_limit_use_another_connection() {
    run(async {
        let (release, release_receiver) = tokio::sync::watch::channel(false);
        let app = Application::start(move |client| {
            let release_receiver = release_receiver.clone();
            async move {
                let mut builder = Builder::new();
                builder.max_concurrent_streams(2);
                let connection = builder.handshake::<_, Bytes>(client.stream).await;
                let Ok(mut connection) = connection else { return };
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let mut release_receiver = release_receiver.clone();
                    tokio::task::spawn_local(async move {
                        drop(release_receiver.wait_for(|released| *released).await);
                        drop(respond.send_response(Response::new(()), true));
                    });
                }
            }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let client = connect_client(mesh.listener).await;
        let mut responses = Vec::new();
        for _ in 0..7 {
            responses.push(client.clone().send_request(grpc_request("/"), true).unwrap().0);
        }
        wait_until(|| app.accepted.get() == 4).await;
        release.send_replace(true);
        for response in responses {
            assert_eq!(response.await.unwrap().status(), 200);
        }
    });
}

#[test]
fn unread_streams_do_not_block_others() {
    run(async {
        let app = start_application(|request, mut respond| async move {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            if request.uri().path() == "/short" {
                stream.send_data(Bytes::from_static(b"short"), true).unwrap();
                return;
            }
            let response_bytes = if request.uri().path() == "/small" { 10 } else { 16_384 };
            for _ in 0..20_000 {
                stream.reserve_capacity(response_bytes);
                let granted = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                let Some(Ok(granted @ 1..)) = granted else { return };
                let piece = vec![0; granted.min(response_bytes)];
                if stream.send_data(piece.into(), false).is_err() {
                    return;
                }
            }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let mut unread = Vec::new();
        for path in ["/small", "/large"].repeat(20) {
            let (response, stream) = open_stream(mesh.listener, path).await;
            unread.push((response.await.unwrap(), stream));
        }
        super::fixture::wait_until_stable(|| mesh.client.ended_count() as usize).await;
        let (response, _stream) = open_stream(mesh.listener, "/short").await;
        assert_eq!(read_body(response.await.unwrap().into_body()).await.0, b"short");
        assert_eq!(app.accepted.get(), 1, "all requests use one connection");
        assert_eq!(mesh.server.ended_count(), 1, "no other request is lost");
    });
}

#[test]
fn a_response_without_a_body_is_followed_by_none() {
    run(async {
        let app = start_application(|request, mut respond| async move {
            let status = request.uri().path().trim_start_matches('/').parse().unwrap();
            let head = Response::builder().status::<u16>(status).body(()).unwrap();
            let mut stream = respond.send_response(head, status == 200).unwrap();
            if status != 200 {
                let forged_response = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged";
                stream.send_data(forged_response.into(), true).unwrap();
            }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let identity = test_credential(&mesh.authority, "foreign");
        let alpn = &[crate::tls::ALPN_HTTP1];
        let mut client = Client::new(tls_connect(mesh.inbound, &identity, alpn).await.unwrap());
        for status in [204, 304, 200] {
            let response =
                client.send_request(&format!("GET /{status} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
            assert_eq!((response.status, &*response.body), (status, &b""[..]), "{}", response.head);
        }
    });
}

#[test]
fn an_options_request_for_the_whole_server_is_forwarded() {
    run(async {
        let http1_app = Application::respond_with(|request| {
            let line = request.head.lines().next().unwrap_or_default().to_owned();
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{line}", line.len())
        })
        .await;
        let new = start_application(|request, mut respond| async move {
            let target = request.uri().path_and_query().unwrap().to_string();
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            stream.send_data(format!("{} {target}", request.method()).into(), true).unwrap();
        })
        .await;
        let mesh_for_protocol = |app: &Application, protocol| http2_mesh(app.address, protocol);
        for (mesh, expected) in [
            (mesh_for_protocol(&http1_app, Protocol::Http).await, "OPTIONS * HTTP/1.1"),
            (mesh_for_protocol(&new, Protocol::Http2).await, "OPTIONS *"),
        ] {
            let identity = test_credential(&mesh.authority, "foreign");
            let tls = tls_connect(mesh.inbound, &identity, &[ALPN_HTTP2]).await.unwrap();
            let mut client = Client::new(tls);
            client.send_bytes(frames::OPENING).await;
            let flags = frames::END_STREAM | frames::END_HEADERS;
            let head = frames::request_block("OPTIONS", "*");
            client.send_bytes(frames::encode_frame(frames::HEADERS, flags, 1, &head)).await;
            let response = client.read_frame_of_kind(frames::DATA).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&response.payload), expected);
        }
    });
}

#[test]
fn trailers_with_framing_or_routing_fields_are_omitted() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let identity = test_credential(&mesh.authority, "foreign");
        let tls = tls_connect(mesh.inbound, &identity, &[ALPN_HTTP2]).await.unwrap();
        let (client, connection) = h2::client::handshake(tls).await.unwrap();
        tokio::task::spawn_local(async move { drop(connection.await) });
        for (names, expected) in
            [(vec!["content-length", "host", "x-sum"], "x-sum: 5"), (vec!["host"], "")]
        {
            let mut client = client.clone().ready().await.unwrap();
            let (response, mut stream) = client.send_request(grpc_request("/"), false).unwrap();
            stream.send_data(Bytes::from_static(b"hello"), false).unwrap();
            let mut trailers = HeaderMap::new();
            for name in names {
                trailers.insert(name, "5".parse().unwrap());
            }
            stream.send_trailers(trailers).unwrap();
            assert_eq!(response.await.unwrap().status(), 200);
            let received = app.received_requests().pop().unwrap();
            assert_eq!((&*received.body, &*received.trailers), (&b"hello"[..], expected));
        }
    });
}
