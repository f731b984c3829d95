//! Results of gRPC calls, as both sidecars count them.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, Response};
use leno_model::{Access, Protocol};
use serde_json::Value;

use super::fixture::{Application, Mesh, Setup, Sidecar, run, wait_until};
use super::http2::{
    connect_client, grpc_request, http2_mesh, read_body, send_data, start_application,
};

/// Returns the calls that a sidecar counted, by HTTP status, reason and gRPC status.
fn call_counts(sidecar: &Sidecar) -> BTreeMap<String, u64> {
    let mut page = String::new();
    sidecar.telemetry.expose(leno_telemetry::ExpositionFormat::Prometheus, &mut page);
    let lines = page.lines().filter(|line| line.starts_with("leno_requests_total{"));
    let parts = lines.map(|line| {
        let (labels, count) = line.rsplit_once("} ").unwrap();
        (labels[labels.find("code=").unwrap()..].to_owned(), count.parse().unwrap())
    });
    parts.collect()
}

fn expected_counts(lines: &[(&str, u64)]) -> BTreeMap<String, u64> {
    lines.iter().map(|(line, count)| ((*line).to_owned(), *count)).collect()
}

/// Starts an application that responds to `/trailers/N` with a message and a status, `/head/N` with a status
/// alone, and `/silent` with a message and no status.
async fn start_grpc() -> Application {
    start_application(|request, mut respond| async move {
        let path = request.uri().path().to_owned();
        let (_, how, status) = {
            let mut parts = path.splitn(3, '/');
            (parts.next(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
        };
        read_body(request.into_body()).await;
        let head = Response::builder().header("content-type", "application/grpc");
        if how == "head" {
            let head = head.header("grpc-status", status).body(()).unwrap();
            respond.send_response(head, true).unwrap();
            return;
        }
        let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
        send_data(&mut stream, Bytes::from_static(b"message"), how == "silent").await;
        if how == "trailers" {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-message", "why".parse().unwrap());
            trailers.insert("grpc-status", status.parse().unwrap());
            stream.send_trailers(trailers).unwrap();
        }
    })
    .await
}

async fn send_call(mesh: &Mesh, path: &str) {
    let mut client = connect_client(mesh.listener).await;
    let (response, mut stream) = client.send_request(grpc_request(path), false).unwrap();
    send_data(&mut stream, Bytes::from_static(b"message"), true).await;
    let mut body = response.await.unwrap().into_body();
    while let Some(Ok(_)) = body.data().await {}
    drop(body.trailers().await);
}

#[test]
fn both_sidecars_count_what_the_trailers_or_the_head_reported() {
    run(async {
        let app = start_grpc().await;
        let mut mesh = http2_mesh(app.address, Protocol::Grpc).await;
        for path in [
            "/trailers/0",
            "/trailers/0",
            "/trailers/13",
            "/trailers/77",
            "/head/5",
            "/head/14",
            "/silent",
        ] {
            send_call(&mesh, path).await;
        }
        let expected = expected_counts(&[
            (r#"code="2xx",reason="",grpc_status="OK""#, 2),
            (r#"code="2xx",reason="",grpc_status="INTERNAL""#, 1),
            (r#"code="2xx",reason="",grpc_status="NOT_FOUND""#, 1),
            (r#"code="2xx",reason="",grpc_status="UNAVAILABLE""#, 1),
            (r#"code="2xx",reason="",grpc_status="UNKNOWN""#, 2),
        ]);
        for sidecar in [&mesh.client, &mesh.server] {
            wait_until(|| sidecar.ended_count() == 7).await;
            assert_eq!(call_counts(sidecar), expected);
            let series = sidecar.series_summaries();
            assert_eq!((series[0].requests, series[0].success), (7, 3));
        }
        let mut text = String::new();
        let entry = mesh.client.log.try_recv().expect("a line");
        crate::access_log::append_log_line(&entry, &leno_model::LogFormat::Json, &mut text);
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["grpc_status"], "OK");
    });
}

#[test]
fn a_truncated_response_has_a_reason_and_no_grpc_status() {
    run(async {
        let app = start_application(|request, mut respond| async move {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            read_body(request.into_body()).await;
            stream.send_reset(h2::Reason::INTERNAL_ERROR);
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Grpc).await;
        let mut client = connect_client(mesh.listener).await;
        let (response, mut stream) = client.send_request(grpc_request("/"), false).unwrap();
        let mut body = response.await.unwrap().into_body();
        send_data(&mut stream, Bytes::from_static(b"message"), true).await;
        assert!(body.data().await.unwrap().is_err());
        let expected = expected_counts(&[(r#"code="2xx",reason="upstream-reset""#, 1)]);
        for sidecar in [&mesh.client, &mesh.server] {
            wait_until(|| sidecar.ended_count() == 1).await;
            assert_eq!(call_counts(sidecar), expected);
        }
    });
}

#[test]
fn a_failure_of_the_mesh_is_counted_with_the_status_that_the_caller_receives() {
    run(async {
        let app = start_grpc().await;
        let access = Access::AllowListed(Vec::new());
        let protocol = Protocol::Grpc;
        let mesh = Mesh::new(app.address, Setup { access, protocol, ..Setup::default() }).await;
        send_call(&mesh, "/trailers/0").await;
        let denied_labels = r#"code="4xx",reason="denied",grpc_status="PERMISSION_DENIED""#;
        wait_until(|| mesh.server.ended_count() == 1 && mesh.client.ended_count() == 1).await;
        assert_eq!(call_counts(&mesh.server), expected_counts(&[(denied_labels, 1)]));
        assert_eq!(call_counts(&mesh.client), expected_counts(&[(denied_labels, 1)]));
        mesh.route_to(&[]);
        send_call(&mesh, "/trailers/0").await;
        wait_until(|| mesh.client.ended_count() == 2).await;
        let no_endpoint_labels = r#"code="5xx",reason="no-endpoint",grpc_status="UNAVAILABLE""#;
        assert_eq!(
            call_counts(&mesh.client),
            expected_counts(&[(denied_labels, 1), (no_endpoint_labels, 1)])
        );
    });
}

#[test]
fn other_requests_have_no_grpc_status() {
    run(async {
        let app = start_grpc().await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let mut client = connect_client(mesh.listener).await;
        for kind in ["text/plain", "application/grpc-web"] {
            let mut request = grpc_request("/head/13");
            request.headers_mut().insert("content-type", kind.parse().unwrap());
            let response = client.send_request(request, true).unwrap().0.await.unwrap();
            assert_eq!(response.headers()["grpc-status"], "13");
        }
        for sidecar in [&mesh.client, &mesh.server] {
            wait_until(|| sidecar.ended_count() == 2).await;
            assert_eq!(call_counts(sidecar), expected_counts(&[(r#"code="2xx",reason="""#, 2)]));
        }
    });
}
