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

use super::{drive_plan, ms, run};
use crate::{ErrorKind, Pace, Plan, Protocol, Report, Reuse, Target, TargetReport};

#[test]
fn streams_share_the_connections_of_a_run() {
    run(async {
        let server = Server::start(Act::Answer).await;
        let target = Target { body: vec![b'x'; 10_000], ..server.target_of() };
        let plan = Plan {
            protocol: Protocol::Http2 { streams: 4 },
            pace: Pace::Closed { connections: 2 },
            ..http2_plan(target)
        };
        let report = drive_plan(plan).await;
        let total = total_report(&report);
        assert!(total.request_count() > 8, "{total:?}");
        assert_eq!(total.success_count(), total.request_count(), "{total:?}");
        assert_eq!(server.connections.get(), 2);
        assert!(report.bytes_sent > total.request_count() * 10_000);
        assert!(report.bytes_received > total.request_count() * ANSWER.len() as u64);
    });
}

#[test]
fn fresh_connections_carry_one_request_each() {
    run(async {
        let server = Server::start(Act::Answer).await;
        let plan = Plan { reuse: Reuse::Fresh, ..http2_plan(server.target_of()) };
        let report = drive_plan(plan).await;
        assert_eq!(total_report(&report).success_count(), total_report(&report).request_count());
        assert_eq!(server.connections.get() as u64, total_report(&report).request_count());
    });
}

#[test]
fn a_connection_that_was_taken_back_is_opened_again_without_an_error() {
    run(async {
        let server = Server::start(Act::AnswerAndLeave).await;
        // Slow enough to notice it before the next request.
        let pace = Pace::Open { rate: 20, connections: 1 };
        let plan = Plan { pace, duration: ms(400), ..http2_plan(server.target_of()) };
        let report = drive_plan(plan).await;
        assert_eq!(total_report(&report).success_count(), 8, "{report:?}");
        // On a busy machine the client may notice it later.
        assert!(server.connections.get() > 1);
    });
}

#[test]
fn every_kind_of_error_is_counted_as_what_it_is() {
    for (act, kind) in [
        (Act::Status(503), "status-503"),
        (Act::Reset, "reset"),
        (Act::Hang, "timeout"),
        (Act::Cut, "closed"),
        (Act::SpeakHttp1, "malformed"),
    ] {
        run(async move {
            let server = Server::start(act).await;
            // Only the timeout case may time out.
            let timeout = if kind == "timeout" { ms(50) } else { ms(10_000) };
            let plan = Plan { timeout, ..http2_plan(server.target_of()) };
            let report = drive_plan(plan).await;
            let kinds: Vec<(String, u64)> = total_report(&report).errors_by_kind().collect();
            assert_eq!(
                kinds,
                [(kind.to_owned(), total_report(&report).request_count())],
                "{act:?}"
            );
        });
    }
}

#[test]
fn a_port_that_nobody_listens_on_is_a_connect_error() {
    run(async {
        let server = Server::start(Act::Answer).await;
        let vacant = tokio::net::TcpSocket::new_v4().unwrap();
        vacant.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let target = Target { address: vacant.local_addr().unwrap(), ..server.target_of() };
        let report = drive_plan(http2_plan(target)).await;
        assert_eq!(
            total_report(&report).error_count(ErrorKind::Connect),
            total_report(&report).request_count()
        );
    });
}

#[test]
fn calls_succeed_or_fail_by_the_status_of_grpc() {
    const OK: &str = "\0\0\0\0\x02ok";
    for (act, kind) in [
        (Act::Call { message: OK, status: Some("0") }, None),
        (Act::Call { message: OK, status: Some("14") }, Some("grpc-unavailable")),
        (Act::Call { message: "", status: Some("5") }, Some("grpc-not-found")),
        (Act::Call { message: OK, status: Some("99") }, Some("grpc-unknown")),
        (Act::CallWithoutBody { status: "16" }, Some("grpc-unauthenticated")),
        (Act::Call { message: OK, status: None }, Some("malformed")),
        (Act::Call { message: "", status: Some("0") }, Some("malformed")),
        (Act::Call { message: "\0\0\0\0\x03ok", status: Some("0") }, Some("malformed")),
        (Act::Call { message: OK, status: Some("x") }, Some("malformed")),
        (Act::Status(502), Some("status-502")),
    ] {
        run(async move {
            let server = Server::start(act).await;
            let target = Target { body: b"hi".to_vec(), ..server.target_of() };
            let plan = Plan { protocol: Protocol::Grpc { streams: 1 }, ..http2_plan(target) };
            let report = drive_plan(plan).await;
            let kinds: Vec<(String, u64)> = total_report(&report).errors_by_kind().collect();
            let expected =
                kind.map(|kind| (kind.to_owned(), total_report(&report).request_count()));
            assert!(total_report(&report).request_count() > 0);
            assert_eq!(kinds, Vec::from_iter(expected), "{act:?}");
            assert_eq!(
                total_report(&report).latency.count(),
                total_report(&report).success_count()
            );
        });
    }
}

fn http2_plan(target: Target) -> Plan {
    Plan { protocol: Protocol::Http2 { streams: 1 }, duration: ms(100), ..Plan::new(vec![target]) }
}

fn total_report(report: &Report) -> &TargetReport {
    report.target_report("t").unwrap()
}

/// The server's action for every request.
#[derive(Debug, Clone, Copy)]
enum Act {
    Answer,
    /// Responds, and accepts no further request on this connection.
    AnswerAndLeave,
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
    Cut,
    /// Speaks HTTP/1.1 only.
    SpeakHttp1,
}

struct Server {
    address: SocketAddr,
    connections: Rc<Cell<usize>>,
}

impl Server {
    async fn start(act: Act) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections: Rc<Cell<usize>> = Rc::default();
        let count = Rc::clone(&connections);
        spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.set(count.get() + 1);
                spawn_local(serve_connection(stream, act));
            }
        });
        Self { address, connections }
    }

    fn target_of(&self) -> Target {
        Target::get("t", self.address, "test", "/shop.Cart/Get")
    }
}

async fn serve_connection(stream: TcpStream, act: Act) {
    stream.set_nodelay(true).unwrap();
    if let Act::SpeakHttp1 = act {
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
    while let Some(Ok((request, respond))) = connection.accept().await {
        match act {
            Act::Cut => return,
            Act::AnswerAndLeave => connection.graceful_shutdown(),
            _ => {}
        }
        spawn_local(respond_with(request, respond, act));
    }
}

async fn respond_with(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, act: Act) {
    let mut body = request.into_body();
    while let Some(Ok(bytes)) = body.data().await {
        body.flow_control().release_capacity(bytes.len()).unwrap();
    }
    let head = |status: u16| Response::builder().status(status).body(()).unwrap();
    let value = HeaderValue::from_static;
    match act {
        Act::Answer | Act::AnswerAndLeave => {
            let mut stream = respond.send_response(head(200), false).unwrap();
            stream.send_data(Bytes::from_static(ANSWER), true).unwrap();
        }
        Act::Status(status) => drop(respond.send_response(head(status), true).unwrap()),
        Act::Call { message, status } => {
            let mut stream = respond.send_response(head(200), false).unwrap();
            if !message.is_empty() {
                stream.send_data(Bytes::from_static(message.as_bytes()), false).unwrap();
            }
            let trailers = status.map(|status| ("grpc-status".parse().unwrap(), value(status)));
            stream.send_trailers(HeaderMap::from_iter(trailers)).unwrap();
        }
        Act::CallWithoutBody { status } => {
            let mut head = head(200);
            head.headers_mut().insert("grpc-status", value(status));
            respond.send_response(head, true).unwrap();
        }
        Act::Reset => respond.send_reset(Reason::INTERNAL_ERROR),
        Act::Hang => tokio::time::sleep(Duration::from_secs(60)).await,
        Act::Cut | Act::SpeakHttp1 => {}
    }
}

const ANSWER: &[u8] = b"hello";
