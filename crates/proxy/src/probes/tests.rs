//! Probes of real servers on loopback.

use std::net::Ipv4Addr;

use bytes::{Bytes, BytesMut};
use leno_identity::join_server_config;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::tests::fixture::{DOMAIN, run, test_authority, test_credential};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn loopback_interception() -> Interception {
    Interception::Listeners { inbound: LOOPBACK, http_proxy: None }
}

/// Runs a readiness probe with this configuration.
async fn run_probe(probe_json: &str) -> Result<(), ProbeFailure> {
    let probes =
        Probes::from_json(&format!(r#"{{"app": {{"readiness": {probe_json}}}}}"#)).unwrap();
    probes.find_probe("app/readiness").unwrap().run_probe(LOOPBACK, &loopback_interception()).await
}

/// Serves every connection with `response`, over TLS if configured; returns the received requests.
async fn start_server(
    response: &'static str,
    tls: Option<TlsAcceptor>,
) -> (u16, mpsc::Receiver<String>, JoinSet<()>) {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (reported, requests) = mpsc::channel(8);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 4096];
            let count = match &tls {
                None => {
                    let count = tcp.read(&mut buffer).await.unwrap();
                    tcp.write_all(response.as_bytes()).await.unwrap();
                    count
                }
                Some(tls) => {
                    let mut tls = tls.accept(tcp).await.unwrap();
                    let count = tls.read(&mut buffer).await.unwrap();
                    tls.write_all(response.as_bytes()).await.unwrap();
                    count
                }
            };
            let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
            reported.send(text).await.unwrap();
        }
    });
    (port, requests, tasks)
}

#[test]
fn an_http_probe_equals_that_of_the_kubelet_and_only_the_status_counts() {
    run(async {
        let ok_response = "HTTP/1.1 204 No Content\r\n\r\n";
        let (port, mut requests, _server) = start_server(ok_response, None).await;
        let header =
            r#"{"name": "X-Who", "value": "me"}, {"name": "Host", "value": "shop.example"}"#;
        let probe_json = format!(
            r#"{{"httpGet": {{"path": "/healthz?full=1", "port": {port}, "scheme": "HTTP",
                "httpHeaders": [{header}]}}, "timeoutSeconds": 5}}"#
        );
        assert_eq!(run_probe(&probe_json).await, Ok(()));
        let text = requests.recv().await.unwrap().to_lowercase();
        assert!(text.starts_with("get /healthz?full=1 http/1.1\r\n"), "{text}");
        for line in ["x-who: me", "host: shop.example", "connection: close", "accept: */*"] {
            assert!(text.contains(&format!("\r\n{line}\r\n")), "{line}: {text}");
        }
        assert_eq!(text.matches("\r\nhost:").count(), 1, "{text}");
        // The default path is the root, the default host the address.
        assert_eq!(run_probe(&format!(r#"{{"httpGet": {{"port": {port}}}}}"#)).await, Ok(()));
        let text = requests.recv().await.unwrap().to_lowercase();
        assert!(text.starts_with("get / http/1.1\r\n"), "{text}");
        assert!(text.contains(&format!("\r\nhost: 127.0.0.1:{port}\r\n")), "{text}");
    });
}

#[test]
fn redirects_succeed_without_being_followed_and_failures_omit_the_body() {
    run(async {
        let redirect_response = "HTTP/1.1 302 Found\r\nlocation: http://192.0.2.1/\r\n\
                         content-length: 0\r\n\r\n";
        let failing_response = "HTTP/1.1 500 Oh\r\ncontent-length: 6\r\n\r\nsecret";
        for (response, expected) in [
            (redirect_response, Ok(())),
            (failing_response, Err(ProbeFailure::Status(500))),
            ("HTTP/1.1 400 Oh\r\ncontent-length: 0\r\n\r\n", Err(ProbeFailure::Status(400))),
            ("HTTP/1.1 799 Oh\r\ncontent-length: 0\r\n\r\n", Err(ProbeFailure::Status(799))),
            ("nonsense\r\n\r\n", Err(ProbeFailure::InvalidResponse)),
        ] {
            let (port, _requests, _server) = start_server(response, None).await;
            let result = run_probe(&format!(r#"{{"httpGet": {{"port": {port}}}}}"#)).await;
            assert_eq!(result, expected, "{response}");
        }
        assert!(!ProbeFailure::Status(500).to_string().contains("secret"));
    });
}

#[test]
fn an_https_probe_accepts_any_certificate() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let server_credential = test_credential(&test_authority(scratch.path(), DOMAIN), "ratings");
        let tls = TlsAcceptor::from(join_server_config(&server_credential, &[]).unwrap());
        let ok_response = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let (port, _requests, _server) = start_server(ok_response, Some(tls)).await;
        let probe_json = format!(r#"{{"httpGet": {{"port": {port}, "scheme": "HTTPS"}}}}"#);
        assert_eq!(run_probe(&probe_json).await, Ok(()));
    });
}

#[test]
fn a_tcp_probe_succeeds_if_the_port_accepts_a_connection() {
    run(async {
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let probe_json = format!(r#"{{"tcpSocket": {{"port": {port}}}}}"#);
        assert_eq!(run_probe(&probe_json).await, Ok(()));
        drop(listener);
        let refused = ProbeFailure::Connect(port, std::io::ErrorKind::ConnectionRefused);
        assert_eq!(run_probe(&probe_json).await, Err(refused));
    });
}

#[test]
fn a_probe_without_a_response_in_time_fails() {
    run(async {
        // Accepted by the kernel only: no process accepts.
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let probe_json = format!(r#"{{"httpGet": {{"port": {port}}}, "timeoutSeconds": 1}}"#);
        assert_eq!(run_probe(&probe_json).await, Err(ProbeFailure::Timeout));
    });
}

/// Starts a health service with one service and this status.
async fn health_service(status: u8) -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(tcp).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                assert_eq!(request.headers()["te"], "trailers");
                let mut body = request.into_body();
                let mut question = BytesMut::new();
                while let Some(Ok(part)) = body.data().await {
                    question.extend_from_slice(&part);
                }
                let is_known = question[..] == *b"\0\0\0\0\x06\x0a\x04shop";
                let response =
                    ::http::Response::builder().header("content-type", "application/grpc");
                let mut send = respond.send_response(response.body(()).unwrap(), false).unwrap();
                let mut trailers = ::http::HeaderMap::new();
                if is_known {
                    let message = Bytes::from(vec![0, 0, 0, 0, 2, 8, status]);
                    send.send_data(message, false).unwrap();
                }
                let code = if is_known { "0" } else { "5" };
                trailers.insert("grpc-status", code.parse().unwrap());
                send.send_trailers(trailers).unwrap();
            }
        }
    });
    (port, tasks)
}

#[test]
fn a_grpc_probe_calls_the_health_service() {
    run(async {
        for (status, service, expected) in [
            (1, "shop", Ok(())),
            (2, "shop", Err(ProbeFailure::NotServing)),
            (1, "other", Err(ProbeFailure::GrpcStatus)),
        ] {
            let (port, _service) = health_service(status).await;
            let probe_json = format!(r#"{{"grpc": {{"port": {port}, "service": "{service}"}}}}"#);
            assert_eq!(run_probe(&probe_json).await, expected, "{status} {service}");
        }
        // A server of another protocol has no health service.
        let (port, _requests, _server) =
            start_server("HTTP/1.1 400 Bad Request\r\n\r\n", None).await;
        assert_eq!(
            run_probe(&format!(r#"{{"grpc": {{"port": {port}}}}}"#)).await,
            Err(ProbeFailure::InvalidResponse)
        );
    });
}

#[test]
fn probes_are_found_by_container_and_kind_and_rejected_without_an_action() {
    let text = r#"{"app": {"readiness": {"httpGet": {"path": "/x", "port": 8080, "scheme": "HTTP",
        "httpHeaders": [{"name": "a", "value": "b"}]}, "timeoutSeconds": 1},
        "liveness": {"tcpSocket": {"port": 8080}},
        "startup": {"grpc": {"port": 9000, "service": "x"}}}, "other": {}}"#;
    let probes = Probes::from_json(text).unwrap();
    for path in ["app/readiness", "app/liveness", "app/startup"] {
        assert!(probes.find_probe(path).is_some(), "{path}");
    }
    for path in ["app", "app/", "app/ready", "app/readiness/", "other/readiness", "/readiness"] {
        assert!(probes.find_probe(path).is_none(), "{path}");
    }
    assert!(Probes::from_json("{}").unwrap().find_probe("app/readiness").is_none());
    for (invalid, expected) in [
        (r#"{"app": {"readiness": {}}}"#, "the readiness probe of container `app`"),
        (
            r#"{"app": {"liveness": {"tcpSocket": {"port": 1}, "httpGet": {"port": 1}}}}"#,
            "the liveness probe of container `app`",
        ),
        (r#"{"app": {"readiness": {"tcpSocket": {"port": 0}}}}"#, "invalid probes"),
        (r#"{"app": {"readiness": {"tcpSocket": {"port": "http"}}}}"#, "invalid probes"),
        (r#"{"app": {"ready": {"tcpSocket": {"port": 1}}}}"#, "invalid probes"),
        ("", "invalid probes"),
    ] {
        let error = Probes::from_json(invalid).unwrap_err().to_string();
        assert!(error.contains(expected), "{invalid}: {error}");
    }
}

#[test]
fn the_kubelet_receives_the_status_of_the_application_or_a_gateway_error() {
    let refused = ProbeFailure::Connect(8080, std::io::ErrorKind::ConnectionRefused);
    for (unwell, status) in [
        (ProbeFailure::Status(404), 404),
        (ProbeFailure::Status(503), 503),
        (ProbeFailure::Status(799), 799),
        (ProbeFailure::Status(101), 502),
        // From a server that does not support gRPC.
        (ProbeFailure::Status(302), 502),
        (ProbeFailure::InvalidResponse, 502),
        (refused, 502),
        (ProbeFailure::Timeout, 504),
        (ProbeFailure::GrpcStatus, 503),
        (ProbeFailure::NotServing, 503),
        (ProbeFailure::Busy, 503),
    ] {
        assert_eq!(unwell.status_code().as_u16(), status, "{unwell}");
    }
    let text = "the application accepts no connection on port 8080: connection refused";
    assert_eq!(refused.to_string(), text);
}
