//! A request that the mesh rejected is a failed span with its reason; an error of the application has no
//! reason.

use std::sync::Arc;

use http::Request;
use leno_model::{Access, Observability, Protocol};
use leno_outside::AttributeValue;
use prost::Message;
use tokio::sync::mpsc;

use super::super::{otlp, zipkin};
use super::source;
use crate::export::source::span_attributes;
use crate::request_trace::TraceEntry;
use crate::tests::fixture::{Application, Client, GET, Mesh, OK, Setup, run, wait_until};
use crate::tests::http2::{connect_client, grpc_request};
use crate::tests::tracing::tracing_settings;

/// Creates a mesh that traces only failures; the server enforces `access`.
async fn tracing_mesh(application: &Application, protocol: Protocol, access: Access) -> Mesh {
    let observability =
        Observability { tracing: Some(tracing_settings("0%")), ..Observability::default() };
    let setup = Setup { observability, protocol, access, ..Setup::default() };
    Mesh::new(application.address, setup).await
}

/// Sends one request in the protocol.
async fn call_once(mesh: &Mesh, protocol: Protocol) {
    match protocol {
        Protocol::Http2 => {
            let request = Request::get("http://ratings/").body(()).unwrap();
            let response =
                connect_client(mesh.listener).await.send_request(request, true).unwrap().0;
            drop(response.await.unwrap());
        }
        Protocol::Grpc => {
            let response = connect_client(mesh.listener)
                .await
                .send_request(grpc_request("/"), true)
                .unwrap()
                .0;
            drop(response.await.unwrap());
        }
        _ => drop(Client::connect(mesh.listener).await.send_request(GET).await),
    }
}

/// Returns the error and the reason of a sidecar's only span, as a collector gets it.
fn exported_span(
    spans: &mut mpsc::Receiver<Arc<TraceEntry>>,
    case: &str,
) -> (Option<String>, Option<AttributeValue>) {
    let batch = [spans.try_recv().unwrap_or_else(|_| panic!("{case}: a span"))];
    assert!(spans.try_recv().is_err(), "{case}: one span");
    let reason = span_attributes(&batch[0]).into_iter().find(|(name, _)| *name == "leno.reason");
    let request = otlp::spans::encode_request(&source(), &batch);
    let request = otlp::spans::ExportRequest::decode(&*request).unwrap();
    let span = &request.resource_spans[0].scope_spans[0].spans[0];
    let status = span.status.as_ref().map(|status| (status.code, status.message.clone()));
    assert!(status.as_ref().is_none_or(|(code, _)| *code == 2), "{case}: STATUS_CODE_ERROR");
    let error = status.map(|(_, message)| message);
    let zipkin: serde_json::Value =
        serde_json::from_slice(&zipkin::encode_spans(&source(), &batch)).unwrap();
    assert_eq!(zipkin[0]["tags"]["error"].as_str(), error.as_deref(), "{case}: Zipkin");
    (error, reason.map(|(_, value)| value))
}

fn expected_failure(reason: &str) -> (Option<String>, Option<AttributeValue>) {
    (Some(reason.to_owned()), Some(AttributeValue::Text(reason.to_owned())))
}

#[test]
fn a_rejection_is_a_failed_span_at_both_sidecars_in_every_protocol() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Http2, Protocol::Grpc] {
            let app = Application::with_response(OK).await;
            let mut mesh = tracing_mesh(&app, protocol, Access::AllowListed(Vec::new())).await;
            call_once(&mesh, protocol).await;
            wait_until(|| mesh.server.ended_count() == 1 && mesh.client.ended_count() == 1).await;
            for (side, sidecar) in [("server", &mut mesh.server), ("client", &mut mesh.client)] {
                let case = format!("{protocol:?}, {side}");
                assert_eq!(
                    exported_span(&mut sidecar.spans, &case),
                    expected_failure("denied"),
                    "{case}"
                );
            }
        }
    });
}

#[test]
fn a_rejection_by_the_clients_sidecar_is_a_failed_span_there() {
    run(async {
        for protocol in [Protocol::Http, Protocol::Http2, Protocol::Grpc] {
            let app = Application::with_response(OK).await;
            let mut mesh = tracing_mesh(&app, protocol, Access::AllowAll).await;
            mesh.route_to(&[]);
            call_once(&mesh, protocol).await;
            wait_until(|| mesh.client.ended_count() == 1).await;
            let case = format!("{protocol:?}");
            assert_eq!(
                exported_span(&mut mesh.client.spans, &case),
                expected_failure("no-endpoint"),
                "{case}"
            );
        }
    });
}

#[test]
fn a_malformed_request_is_a_failed_span() {
    run(async {
        let app = Application::with_response(OK).await;
        let mut mesh = tracing_mesh(&app, Protocol::Http, Access::AllowAll).await;
        for (head, reason) in [
            ("GET / HTTP/1.1\r\nhost : x\r\n\r\n".to_owned(), "bad-request"),
            (
                format!("GET / HTTP/1.1\r\nhost: x\r\na: {}\r\n\r\n", "x".repeat(80 << 10)),
                "head-too-large",
            ),
        ] {
            Client::connect(mesh.listener).await.send_request(&head).await;
            let spans = &mut mesh.client.spans;
            wait_until(|| !spans.is_empty()).await;
            assert_eq!(exported_span(spans, reason), expected_failure(reason));
        }
    });
}

#[test]
fn an_error_of_the_application_has_no_reason_in_its_span() {
    run(async {
        // Only statuses from 500 are failures: 403, 404 and 429 leave no unsampled span.
        for (status, error) in [(403, None), (404, None), (429, None), (500, Some("500"))] {
            let claims = format!(
                "HTTP/1.1 {status} Own\r\nleno-reason: denied;side=mesh\r\ncontent-length: 0\r\n\r\n"
            );
            let app = Application::respond_with(move |_| claims.clone()).await;
            let mut mesh = tracing_mesh(&app, Protocol::Http, Access::AllowAll).await;
            let observability = Observability {
                tracing: Some(tracing_settings("100%")),
                ..Observability::default()
            };
            for sidecar in [&mesh.client, &mesh.server] {
                sidecar.worker.config_store.observability.apply_settings(&observability);
            }
            call_once(&mesh, Protocol::Http).await;
            wait_until(|| mesh.server.ended_count() == 1 && mesh.client.ended_count() == 1).await;
            for sidecar in [&mut mesh.server, &mut mesh.client] {
                let case = status.to_string();
                let span = exported_span(&mut sidecar.spans, &case);
                assert_eq!(span, (error.map(str::to_owned), None), "{case}");
            }
        }
    });
}
