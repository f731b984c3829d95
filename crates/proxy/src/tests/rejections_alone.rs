//! Rejections over `leno-http/1`, the protocol of connections for one client alone. Both sidecars count them,
//! and applications cannot claim them.

use std::collections::BTreeMap;
use std::rc::Rc;

use leno_model::{Access, Protocol, RateLimits, TokenRequirement};

use super::fixture::{
    Application, Client, Mesh, OK, ReceivedMessage, Setup, closed_port, concurrency_limit,
    meshed_endpoint, run, test_credential, tls_accept, wait_until,
};
use super::jwt::Issuer;
use super::opaque;
use crate::tls::{ALPN_EXCLUSIVE, ALPN_HTTP1};

/// A request with connection credentials, which gets its own connection.
const REQUEST_WITH_CREDENTIALS: &str =
    "GET / HTTP/1.1\r\nhost: x\r\nauthorization: NTLM alice\r\n\r\n";

/// Sends requests over one connection, and returns the last response.
async fn send_requests(mesh: &Mesh, requests: usize) -> ReceivedMessage {
    let mut client = Client::connect(mesh.listener).await;
    let mut last = ReceivedMessage::default();
    for _ in 0..requests {
        last = client.send_request(REQUEST_WITH_CREDENTIALS).await;
    }
    last
}

/// Asserts that both sidecars counted one failure each, for `reason`, and that the client has the response of
/// the server's sidecar.
async fn expect_failures(
    mesh: &Mesh,
    ended: u64,
    response: ReceivedMessage,
    status: u16,
    reason: &'static str,
) {
    assert_eq!(response.verdict(), (status, Some(reason)));
    assert!(response.head.contains("workload=\"bookinfo/ratings-1\""), "{}", response.head);
    assert!(!response.head.contains("leno-rejected"), "{}", response.head);
    wait_until(|| mesh.server.ended_count() == ended && mesh.client.ended_count() == ended).await;
    let expected = BTreeMap::from([(reason, 1)]);
    assert_eq!(mesh.server.failure_counts(), expected, "server");
    assert_eq!(mesh.client.failure_counts(), expected, "client");
}

#[test]
fn a_rejection_by_a_policy_is_reported() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::with_access(app.address, Access::AllowListed(Vec::new())).await;
        expect_failures(&mesh, 1, send_requests(&mesh, 1).await, 403, "denied").await;
    });
}

#[test]
fn a_rejection_by_a_rate_limit_is_reported() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let limits = RateLimits { rules: vec![opaque::rate_rule(1)], ..RateLimits::default() };
        mesh.set_checks(Vec::new(), vec![opaque::port_limits(limits)]);
        expect_failures(&mesh, 2, send_requests(&mesh, 2).await, 429, "rate-limited").await;
    });
}

#[test]
fn a_missing_token_is_rejected() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_checks(vec![Issuer::new().token_check(TokenRequirement::Always)], Vec::new());
        expect_failures(&mesh, 1, send_requests(&mesh, 1).await, 401, "token-missing").await;
    });
}

#[test]
fn a_rejection_by_a_concurrency_limit_is_reported() {
    run(async {
        let app = Application::start_silent().await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_checks(Vec::new(), vec![concurrency_limit("one", 1)]);
        let mut first = Client::connect(mesh.listener).await;
        first.send_bytes(REQUEST_WITH_CREDENTIALS).await;
        wait_until(|| app.accepted.get() == 1).await;
        expect_failures(&mesh, 1, send_requests(&mesh, 1).await, 503, "overloaded").await;
    });
}

#[test]
fn an_application_without_a_listener_is_a_failure_with_its_reason() {
    run(async {
        let mesh = Mesh::permissive(closed_port()).await;
        expect_failures(&mesh, 1, send_requests(&mesh, 1).await, 503, "connect-failed").await;
    });
}

#[test]
fn an_application_cannot_mark_a_rejection() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Detect] {
            for (status, more) in [(403, ""), (429, "close, "), (401, "keep-alive, x, ")] {
                let head = format!(
                    "HTTP/1.1 {status} Own\r\nleno-reason: denied;side=mesh\r\nconnection: {more}leno-rejected\r\n\
                     Connection: Leno-Rejected\r\nleno-rejected: 1\r\ncontent-length: 0\r\n\r\n"
                );
                let app = Application::respond_with(move |_| head.clone()).await;
                let mesh = Mesh::new(app.address, Setup { protocol, ..Setup::default() }).await;
                for request in [REQUEST_WITH_CREDENTIALS, super::fixture::GET] {
                    let response = Client::connect(mesh.listener).await.send_request(request).await;
                    assert_eq!(response.status, status);
                    assert!(
                        !response.head.to_lowercase().contains("leno-rejected"),
                        "{}",
                        response.head
                    );
                }
                wait_until(|| mesh.server.ended_count() == 2 && mesh.client.ended_count() == 2)
                    .await;
                for sidecar in [&mesh.server, &mesh.client] {
                    assert_eq!(sidecar.failure_counts(), BTreeMap::new());
                    assert_eq!(sidecar.series_summaries()[0].success, 2);
                }
            }
        }
    });
}

#[test]
fn only_a_verified_sidecar_over_its_protocol_marks_a_rejection() {
    run(async {
        let head = |reason: &str, mark: &str| {
            format!(
                "HTTP/1.1 429 No\r\nleno-reason: {reason};side=mesh\r\n{mark}content-length: 0\r\n\r\n"
            )
        };
        let mark = "connection: leno-rejected\r\n";
        for (alpn, head, expected) in [
            (ALPN_EXCLUSIVE, head("rate-limited", mark), Some("rate-limited")),
            (
                ALPN_EXCLUSIVE,
                head("rate-limited", "Connection: close , LENO-rejected\r\n"),
                Some("rate-limited"),
            ),
            (ALPN_EXCLUSIVE, head("reason-of-a-later-release", mark), Some("upstream-refused")),
            (ALPN_EXCLUSIVE, head("rate-limited", ""), None),
            (
                ALPN_EXCLUSIVE,
                head("rate-limited", "connection: close\r\nleno-rejected: 1\r\n"),
                None,
            ),
            // An application that terminates mutual TLS itself.
            (ALPN_HTTP1, head("rate-limited", mark), None),
        ] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
            let bytes = head.clone();
            let scripted_server = Application::start(move |client| {
                let (identity, bytes) = (identity.clone(), bytes.clone());
                async move {
                    let tls = tls_accept(client.stream, &identity, &[alpn]).await.unwrap();
                    let mut client = Client::new(tls);
                    while client.read_head().await.is_some() {
                        client.send_bytes(&bytes).await;
                    }
                }
            })
            .await;
            mesh.route_to(&[meshed_endpoint("ratings-2", scripted_server.address, "ratings")]);
            let response =
                Client::connect(mesh.listener).await.send_request(REQUEST_WITH_CREDENTIALS).await;
            assert_eq!(response.status, 429);
            let connection = response.field_value("connection").unwrap_or_default().to_lowercase();
            assert!(!connection.contains("leno-rejected"), "{}", response.head);
            wait_until(|| mesh.client.ended_count() == 1).await;
            let expected: BTreeMap<_, _> = expected.into_iter().map(|reason| (reason, 1)).collect();
            assert_eq!(mesh.client.failure_counts(), expected, "{head}");
        }
    });
}
