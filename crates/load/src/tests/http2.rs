//! HTTP/2 and gRPC against a scripted server.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use super::{drive_plan, ms, run_test};
use crate::{
    ConnectionReuse, ErrorKind, LoadModel, LoadPlan, LoadProtocol, LoadReport, LoadTarget,
    TargetReport,
};

#[test]
fn streams_share_the_connections_of_a_run() {
    run_test(async {
        let server = Http2Server::start(ServerAction::Respond).await;
        let target = LoadTarget { body: vec![b'x'; 10_000], ..server.target() };
        let plan = LoadPlan {
            protocol: LoadProtocol::Http2 { streams: 4 },
            load_model: LoadModel::Closed { connections: 2 },
            ..http2_plan(target)
        };
        let report = drive_plan(plan).await;
        let total = total_report(&report);
        assert!(total.request_count() > 8, "{total:?}");
        assert_eq!(total.success_count(), total.request_count(), "{total:?}");
        assert_eq!(server.connections.get(), 2);
        assert!(report.bytes_sent > total.request_count() * 10_000);
        assert!(report.bytes_received > total.request_count() * BODY.len() as u64);
    });
}

#[test]
fn fresh_connections_carry_one_request_each() {
    run_test(async {
        let server = Http2Server::start(ServerAction::Respond).await;
        let plan = LoadPlan { reuse: ConnectionReuse::Fresh, ..http2_plan(server.target()) };
        let report = drive_plan(plan).await;
        assert_eq!(total_report(&report).success_count(), total_report(&report).request_count());
        assert_eq!(server.connections.get() as u64, total_report(&report).request_count());
    });
}

#[test]
fn a_connection_closed_by_goaway_is_replaced_without_an_error() {
    run_test(async {
        let server = Http2Server::start(ServerAction::RespondAndGoAway).await;
        // The rate is low enough that the client notices the GOAWAY before the next request.
        let load_model = LoadModel::Open { rate: 20, connections: 1 };
        let plan = LoadPlan { load_model, duration: ms(400), ..http2_plan(server.target()) };
        let report = drive_plan(plan).await;
        assert_eq!(total_report(&report).success_count(), 8, "{report:?}");
        // On a busy machine the client may notice the GOAWAY later.
        assert!(server.connections.get() > 1);
    });
}

#[test]
fn every_error_is_counted_under_its_kind() {
    for (action, kind) in [
        (ServerAction::Status(503), "status-503"),
        (ServerAction::Reset, "reset"),
        (ServerAction::Hang, "timeout"),
        (ServerAction::CloseMidResponse, "closed"),
        (ServerAction::RespondInHttp1, "malformed"),
    ] {
        run_test(async move {
            let server = Http2Server::start(action).await;
            // Only the timeout case may time out.
            let timeout = if kind == "timeout" { ms(50) } else { ms(10_000) };
            let plan = LoadPlan { timeout, ..http2_plan(server.target()) };
            let report = drive_plan(plan).await;
            let kinds: Vec<(String, u64)> = total_report(&report).errors_by_kind().collect();
            assert_eq!(
                kinds,
                [(kind.to_owned(), total_report(&report).request_count())],
                "{action:?}"
            );
        });
    }
}

#[test]
fn a_closed_port_is_a_connect_error() {
    run_test(async {
        let server = Http2Server::start(ServerAction::Respond).await;
        let unused_socket = tokio::net::TcpSocket::new_v4().unwrap();
        unused_socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let target = LoadTarget { address: unused_socket.local_addr().unwrap(), ..server.target() };
        let report = drive_plan(http2_plan(target)).await;
        assert_eq!(
            total_report(&report).error_count(ErrorKind::Connect),
            total_report(&report).request_count()
        );
    });
}

#[test]
fn calls_succeed_or_fail_by_their_grpc_status() {
    const OK: &str = "\0\0\0\0\x02ok";
    for (action, kind) in [
        (ServerAction::Call { message: OK, status: Some("0") }, None),
        (ServerAction::Call { message: OK, status: Some("14") }, Some("grpc-unavailable")),
        (ServerAction::Call { message: "", status: Some("5") }, Some("grpc-not-found")),
        (ServerAction::Call { message: OK, status: Some("99") }, Some("grpc-unknown")),
        (ServerAction::CallWithoutBody { status: "16" }, Some("grpc-unauthenticated")),
        (ServerAction::Call { message: OK, status: None }, Some("malformed")),
        (ServerAction::Call { message: "", status: Some("0") }, Some("malformed")),
        (ServerAction::Call { message: "\0\0\0\0\x03ok", status: Some("0") }, Some("malformed")),
        (ServerAction::Call { message: OK, status: Some("x") }, Some("malformed")),
        (ServerAction::Status(502), Some("status-502")),
    ] {
        run_test(async move {
            let server = Http2Server::start(action).await;
            let target = LoadTarget { body: b"hi".to_vec(), ..server.target() };
            let plan =
                LoadPlan { protocol: LoadProtocol::Grpc { streams: 1 }, ..http2_plan(target) };
            let report = drive_plan(plan).await;
            let kinds: Vec<(String, u64)> = total_report(&report).errors_by_kind().collect();
            let expected =
                kind.map(|kind| (kind.to_owned(), total_report(&report).request_count()));
            assert!(total_report(&report).request_count() > 0);
            assert_eq!(kinds, Vec::from_iter(expected), "{action:?}");
            assert_eq!(
                total_report(&report).latency.count(),
                total_report(&report).success_count()
            );
        });
    }
}

fn http2_plan(target: LoadTarget) -> LoadPlan {
    LoadPlan {
        protocol: LoadProtocol::Http2 { streams: 1 },
        duration: ms(100),
        ..LoadPlan::new(vec![target])
    }
}

fn total_report(report: &LoadReport) -> &TargetReport {
    report.target_report("t").unwrap()
}

/// The server's action for every request.
#[derive(Debug, Clone, Copy)]
enum ServerAction {
    Respond,
    /// Responds, and accepts no further request on this connection.
    RespondAndGoAway,
    Status(u16),
    Call {
        message: &'static str,
        status: Option<&'static str>,
    },
    CallWithoutBody {
        status: &'static str,
    },
    Reset,
    Hang,
    /// Closes the connection mid-response.
    CloseMidResponse,
    /// Speaks HTTP/1.1 only.
    RespondInHttp1,
}

struct Http2Server {
    address: SocketAddr,
    connections: Rc<Cell<usize>>,
}

impl Http2Server {
    async fn start(action: ServerAction) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections: Rc<Cell<usize>> = Rc::default();
        let connection_count = Rc::clone(&connections);
        spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connection_count.set(connection_count.get() + 1);
                spawn_local(serve_connection(stream, action));
            }
        });
        Self { address, connections }
    }

    fn target(&self) -> LoadTarget {
        LoadTarget::get("t", self.address, "test", "/shop.Cart/Get")
    }
}

async fn serve_connection(stream: TcpStream, action: ServerAction) {
    stream.set_nodelay(true).unwrap();
    if let ServerAction::RespondInHttp1 = action {
        stream.readable().await.unwrap();
        drop(stream.try_write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"));
        // Drain input: closing with unread data would reset the connection and lose the response.
        while stream.readable().await.is_ok() && !matches!(stream.try_read(&mut [0; 1024]), Ok(0)) {
        }
        return;
    }
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, sender))) = connection.accept().await {
        match action {
            ServerAction::CloseMidResponse => return,
            ServerAction::RespondAndGoAway => connection.graceful_shutdown(),
            _ => {}
        }
        spawn_local(respond_with(request, sender, action));
    }
}

async fn respond_with(
    request: Request<RecvStream>,
    mut sender: SendResponse<Bytes>,
    action: ServerAction,
) {
    let mut body = request.into_body();
    while let Some(Ok(bytes)) = body.data().await {
        body.flow_control().release_capacity(bytes.len()).unwrap();
    }
    let head = |status: u16| Response::builder().status(status).body(()).unwrap();
    let header_value = HeaderValue::from_static;
    match action {
        ServerAction::Respond | ServerAction::RespondAndGoAway => {
            let mut stream = sender.send_response(head(200), false).unwrap();
            stream.send_data(Bytes::from_static(BODY), true).unwrap();
        }
        ServerAction::Status(status) => drop(sender.send_response(head(status), true).unwrap()),
        ServerAction::Call { message, status } => {
            let mut stream = sender.send_response(head(200), false).unwrap();
            if !message.is_empty() {
                stream.send_data(Bytes::from_static(message.as_bytes()), false).unwrap();
            }
            let trailers =
                status.map(|status| ("grpc-status".parse().unwrap(), header_value(status)));
            stream.send_trailers(HeaderMap::from_iter(trailers)).unwrap();
        }
        ServerAction::CallWithoutBody { status } => {
            let mut head = head(200);
            head.headers_mut().insert("grpc-status", header_value(status));
            sender.send_response(head, true).unwrap();
        }
        ServerAction::Reset => sender.send_reset(Reason::INTERNAL_ERROR),
        ServerAction::Hang => tokio::time::sleep(Duration::from_secs(60)).await,
        ServerAction::CloseMidResponse | ServerAction::RespondInHttp1 => {}
    }
}

const BODY: &[u8] = b"hello";
