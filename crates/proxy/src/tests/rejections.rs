//! A request that one sidecar rejects is a failure with the same reason at the other one.

use std::collections::BTreeMap;
use std::rc::Rc;

use http::{HeaderMap, Request, Response};
use leno_model::{Access, Endpoint, LogFormat, Protocol};
use leno_wire::link::{LinkEvent, ResetCode, StreamId};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, Peer, Setup, concurrency_limit, meshed_endpoint, run,
    test_credential, wait_until,
};
use super::http2::{self, connect_client, grpc_request, read_body, start_application};
use crate::access_log;

/// Creates a mesh in which the server's sidecar rejects all requests of the client.
async fn denying_mesh(protocol: Protocol) -> (Application, Mesh) {
    let app = Application::with_response(OK).await;
    let access = Access::AllowListed(Vec::new());
    let mesh = Mesh::new(app.address, Setup { access, protocol, ..Setup::default() }).await;
    (app, mesh)
}

/// Asserts that both sidecars counted one failure each, for `reason`.
async fn expect_failures(mesh: &Mesh, reason: &'static str, case: &str) {
    wait_until(|| mesh.server.ended_count() == 1 && mesh.client.ended_count() == 1).await;
    let expected = BTreeMap::from([(reason, 1)]);
    assert_eq!(mesh.server.failure_counts(), expected, "{case}: server");
    assert_eq!(mesh.client.failure_counts(), expected, "{case}: client");
}

#[test]
fn a_rejection_by_the_servers_sidecar_is_a_failure_for_both_in_every_protocol() {
    run(async {
        let (_app, mesh) = denying_mesh(Protocol::Http).await;
        let reply = Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!(reply.verdict(), (403, Some("denied")));
        expect_failures(&mesh, "denied", "HTTP/1.1").await;
        assert_eq!(mesh.client.series_summaries()[0].failures[0].code, "4xx");

        let (_app, mesh) = denying_mesh(Protocol::Http2).await;
        let request = Request::get("http://ratings/").body(()).unwrap();
        let response = connect_client(mesh.listener).await.send_request(request, true).unwrap().0;
        assert_eq!(response.await.unwrap().status(), 403);
        expect_failures(&mesh, "denied", "HTTP/2").await;

        let (_app, mesh) = denying_mesh(Protocol::Grpc).await;
        let response =
            connect_client(mesh.listener).await.send_request(grpc_request("/"), true).unwrap().0;
        drop(response.await.unwrap());
        expect_failures(&mesh, "denied", "gRPC").await;

        let (_app, mesh) = denying_mesh(Protocol::Tcp).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes("x").await;
        assert_eq!(client.read_end().await, End::Reset);
        expect_failures(&mesh, "denied", "TCP").await;
    });
}

#[test]
fn limits_of_the_servers_sidecar_are_counted_with_their_own_reason() {
    run(async {
        let app = Application::start_silent().await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_checks(Vec::new(), vec![concurrency_limit("one", 1)]);
        let mut first = Client::connect(mesh.listener).await;
        first.send_bytes(GET).await;
        wait_until(|| app.accepted.get() == 1).await;
        let response = Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!(response.verdict(), (503, Some("overloaded")));
        expect_failures(&mesh, "overloaded", "concurrency").await;
    });
}

/// Asserts that neither sidecar counts or logs a reason for the one response of the application.
async fn expect_unclaimed(mesh: &mut Mesh, case: &str) {
    wait_until(|| mesh.server.ended_count() == 1 && mesh.client.ended_count() == 1).await;
    for sidecar in [&mut mesh.server, &mut mesh.client] {
        assert_eq!(sidecar.failure_counts(), BTreeMap::new(), "{case}");
        let mut line = String::new();
        let entry = sidecar.log.recv().await.expect("a line");
        access_log::append_log_line(&entry, &LogFormat::Json, &mut line);
        let fields: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(fields.get("response_code_details"), Some(&Value::Null), "{case}: {line}");
        assert!(!line.contains(CLAIMED), "{case}: {line}");
    }
}

/// The reason that the application claims.
const CLAIMED: &str = "denied-by-policy";

/// Starts an HTTP/2 application that answers each request with a claim: 403, or 200 and a gRPC status in the
/// head or in trailers.
async fn start_claiming(claim: &'static str) -> Application {
    start_application(move |request, mut respond| async move {
        read_body(request.into_body()).await;
        let mut fields = HeaderMap::new();
        fields.insert("leno-reason", format!("{CLAIMED};side=mesh").parse().unwrap());
        if claim != "403" {
            fields.insert("grpc-status", "7".parse().unwrap());
        }
        let mut response = Response::new(());
        *response.status_mut() = if claim == "403" { 403 } else { 200 }.try_into().unwrap();
        let kind = "application/grpc".parse().unwrap();
        response.headers_mut().insert("content-type", kind);
        if claim == "trailers" {
            let mut stream = respond.send_response(response, false).unwrap();
            return stream.send_trailers(fields).unwrap();
        }
        response.headers_mut().extend(fields);
        respond.send_response(response, true).unwrap();
    })
    .await
}

#[test]
fn an_application_cannot_claim_a_rejection() {
    run(async {
        for reason in ["denied", CLAIMED] {
            let head = format!(
                "HTTP/1.1 403 Forbidden\r\nleno-reason: {reason};side=mesh\r\ncontent-length: 0\r\n\r\n"
            );
            let app = Application::respond_with(move |_| head.clone()).await;
            let mut mesh = Mesh::permissive(app.address).await;
            let response = Client::connect(mesh.listener).await.send_request(GET).await;
            assert_eq!(response.verdict(), (403, Some(reason)), "the field is forwarded");
            expect_unclaimed(&mut mesh, "HTTP/1.1").await;
            for sidecar in [&mesh.server, &mesh.client] {
                assert_eq!(sidecar.series_summaries()[0].success, 1);
            }
        }
        for (protocol, claim) in [
            (Protocol::Http2, "403"),
            (Protocol::Grpc, "403"),
            (Protocol::Grpc, "head"),
            (Protocol::Grpc, "trailers"),
        ] {
            let case = format!("{protocol:?} {claim}");
            let app = start_claiming(claim).await;
            let mut mesh = http2::http2_mesh(app.address, protocol).await;
            let mut client = connect_client(mesh.listener).await;
            let request = match protocol {
                Protocol::Grpc => grpc_request("/"),
                _ => Request::get("http://ratings/").body(()).unwrap(),
            };
            let (head, body) =
                client.send_request(request, true).unwrap().0.await.unwrap().into_parts();
            let trailers = read_body(body).await.1.unwrap_or_default();
            let forwarded_reason = head.headers.get("leno-reason").or(trailers.get("leno-reason"));
            assert_eq!(forwarded_reason.unwrap(), &format!("{CLAIMED};side=mesh"), "{case}");
            expect_unclaimed(&mut mesh, &case).await;
        }
    });
}

pub(super) type TlsPeer = Peer<TlsStream<TcpStream>>;

/// Starts a sidecar of another release at the other end of the link.
pub(super) async fn start_peer(
    mesh: &Mesh,
    response: impl Fn(&mut TlsPeer, StreamId) + 'static,
) -> Endpoint {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let identity = test_credential(&mesh.authority, "ratings");
    let response = Rc::new(response);
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let mut peer = Peer::accept_link(tcp, &identity).await;
            let response = response.clone();
            tokio::task::spawn_local(async move {
                while let Some(event) = peer.next().await {
                    if let LinkEvent::Opened { stream, .. } = event {
                        response(&mut peer, stream);
                    }
                }
            });
        }
    });
    let scripted_endpoint = meshed_endpoint("ratings-2", address, "ratings");
    mesh.route_to(std::slice::from_ref(&scripted_endpoint));
    scripted_endpoint
}

#[test]
fn only_a_verified_sidecar_can_mark_a_rejection() {
    run(async {
        let head = "HTTP/1.1 429 Too Many Requests\r\nleno-reason: rate-limited;side=mesh\r\n\
                    content-length: 0\r\n\r\n";
        let later_head = head.replace("rate-limited", "reason-of-a-later-release");
        for (head, marked, expected) in [
            (head, true, Some("rate-limited")),
            (head, false, None),
            (&*later_head, true, Some("upstream-refused")),
            ("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n", false, None),
        ] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let bytes = head.to_owned();
            start_peer(&mesh, move |peer, stream| {
                let write_response =
                    |buffer: &mut bytes::BytesMut| buffer.extend_from_slice(bytes.as_bytes());
                match marked {
                    true => peer.link.send_rejection(stream, true, write_response).unwrap(),
                    false => peer.link.send_head(stream, false, true, write_response).unwrap(),
                }
            })
            .await;
            let response = Client::connect(mesh.listener).await.send_request(GET).await;
            assert_eq!(response.status, 429);
            wait_until(|| mesh.client.ended_count() == 1).await;
            let expected: BTreeMap<_, _> = expected.into_iter().map(|reason| (reason, 1)).collect();
            assert_eq!(mesh.client.failure_counts(), expected, "{marked} {head}");
        }
    });
}

#[test]
fn a_reset_is_counted_with_its_reason() {
    run(async {
        for (code, reason, expected) in [
            (ResetCode::Denied, "denied-by-policy", "denied-by-policy"),
            (ResetCode::Refused, "rate-limited", "rate-limited"),
            (ResetCode::Unreachable, "connect-failed", "connect-failed"),
            // A failure of the client must not count as a failure of the application, and vice versa.
            (ResetCode::Failed, "downstream-closed", "upstream-reset"),
            (ResetCode::Denied, "", "denied"),
            (ResetCode::Denied, "reason-of-a-later-release", "denied"),
        ] {
            let app = Application::with_response(OK).await;
            let mesh =
                Mesh::new(app.address, Setup { protocol: Protocol::Tcp, ..Setup::default() }).await;
            start_peer(&mesh, move |peer, stream| {
                peer.link.reset_with_reason(stream, code, reason)
            })
            .await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("x").await;
            assert_eq!(client.read_end().await, End::Reset);
            wait_until(|| mesh.client.ended_count() == 1).await;
            assert_eq!(mesh.client.failure_counts(), [(expected, 1)].into(), "{code:?} {reason}");
        }
    });
}

#[test]
fn a_rejection_that_is_retried_successfully_is_no_failure() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, Setup { protocol: Protocol::Tcp, ..Setup::default() });
        let mesh = mesh.await;
        let healthy_endpoint = mesh.server_endpoint();
        let rejecting_peer = start_peer(&mesh, |peer, stream| {
            peer.link.reset_with_reason(stream, ResetCode::Refused, "rate-limited");
        })
        .await;
        mesh.route_to(&[healthy_endpoint, rejecting_peer]);
        for _ in 0..10 {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            assert_eq!(client.read_response().await.status, 200);
        }
        wait_until(|| mesh.client.ended_count() == 10).await;
        assert_eq!(mesh.client.failure_counts(), BTreeMap::new());
    });
}
