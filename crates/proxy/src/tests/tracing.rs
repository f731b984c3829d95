//! Trace context of requests, and the export of sampled spans.

use std::sync::Arc;

use leno_model::{
    AccessLog, Collector, CollectorProtocol, LogFormat, LogTemplate, Observability,
    PropagationFormat, Protocol, Sampling, Signal, Tracing,
};
use leno_telemetry::Count;
use leno_telemetry::trace::SpanId;

use super::fixture::{
    Application, Client, Mesh, OK, Setup, closed_port, meshed_endpoint, run, wait_until,
};
use crate::request_trace::{MAX_QUEUED_SPANS, TraceEntry};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

pub(crate) fn tracing_settings(sampling: &str) -> Tracing {
    Tracing {
        sampling: Sampling::parse(sampling).unwrap(),
        errors: true,
        propagation: PropagationFormat::W3c,
        collector: Collector::parse(
            Signal::Traces,
            CollectorProtocol::OtlpHttp,
            "http://127.0.0.1:1",
        )
        .unwrap(),
    }
}

fn tracing_setup(sampling: &str) -> Setup {
    let observability =
        Observability { tracing: Some(tracing_settings(sampling)), ..Observability::default() };
    Setup { observability, ..Setup::default() }
}

/// Returns the spans of the client's sidecar and of the server's, one each.
async fn span_pair(mesh: &mut Mesh) -> (Arc<TraceEntry>, Arc<TraceEntry>) {
    wait_until(|| mesh.client.ended_count() > 0 && mesh.server.ended_count() > 0).await;
    let outbound = mesh.client.spans.try_recv().expect("a span of the client's sidecar");
    let inbound = mesh.server.spans.try_recv().expect("a span of the server's sidecar");
    assert!(mesh.client.spans.try_recv().is_err() && mesh.server.spans.try_recv().is_err());
    (outbound, inbound)
}

fn span_ids(entry: &TraceEntry) -> (String, String, Option<String>) {
    let span = entry.span.unwrap();
    let parent = span.parent.map(|SpanId(id)| format!("{id:016x}"));
    (span.trace.to_string(), span.id.to_string(), parent)
}

#[test]
fn a_trace_continues_through_both_sidecars_to_the_application() {
    run(async {
        let app = Application::with_response(OK).await;
        let mut mesh = Mesh::new(app.address, tracing_setup("0%")).await;
        let mut client = Client::connect(mesh.listener).await;
        let context = format!("00-{TRACE}-{PARENT}-01");
        let request = format!(
            "GET /ratings/1?token=x HTTP/1.1\r\nhost: x\r\nTraceparent: {context}\r\n\
             tracestate: a=b\r\n\r\n"
        );
        assert_eq!(client.send_request(&request).await.status, 200);
        let (outbound, inbound) = span_pair(&mut mesh).await;
        let (first, second) = (span_ids(&outbound), span_ids(&inbound));
        assert_eq!((&*first.0, first.2.as_deref()), (TRACE, Some(PARENT)));
        assert_eq!((&*second.0, second.2), (TRACE, Some(first.1.clone())));
        let [received] = &app.received_requests()[..] else { panic!("one request") };
        assert_eq!(
            received.field_value("traceparent"),
            Some(&*format!("00-{TRACE}-{}-01", second.1))
        );
        assert_eq!(received.field_value("tracestate"), Some("a=b"));
        assert_eq!(received.head.to_lowercase().matches("traceparent").count(), 1);
        assert_eq!((outbound.labels.direction, inbound.labels.direction), ("outbound", "inbound"));
        assert_eq!(outbound.upstream, Some(mesh.inbound));
        assert_eq!(inbound.upstream, Some(app.address));
        assert_eq!(inbound.labels.peer, "bookinfo/productpage");
        assert_eq!((inbound.path.as_str(), inbound.outcome.status), ("/ratings/1", 200));
    });
}

#[test]
fn the_first_sidecar_makes_the_sampling_decision() {
    run(async {
        for (sampling, flags) in [("100%", "01"), ("0%", "00")] {
            let app = Application::with_response(OK).await;
            let mut mesh = Mesh::new(app.address, tracing_setup(sampling)).await;
            // The sampling of the server's sidecar does not apply.
            let other_sampling = if flags == "01" { "0%" } else { "100%" };
            mesh.server
                .worker
                .config_store
                .observability
                .apply_settings(&tracing_setup(other_sampling).observability);
            let mut client = Client::connect(mesh.listener).await;
            for _ in 0..3 {
                client.send_request("GET / HTTP/1.1\r\nhost: x\r\ntracestate: a=b\r\n\r\n").await;
            }
            wait_until(|| mesh.server.ended_count() == 3 && mesh.client.ended_count() == 3).await;
            for received in app.received_requests() {
                let context = received.field_value("traceparent").unwrap();
                assert!(context.ends_with(flags) && context.len() == 55, "{context}");
                assert_eq!(received.field_value("tracestate"), None, "it belongs to no trace");
            }
            let sidecars = [&mut mesh.client, &mut mesh.server];
            let spans = sidecars
                .map(|sidecar| std::iter::from_fn(|| sidecar.spans.try_recv().ok()).count());
            assert_eq!(spans, if flags == "01" { [3, 3] } else { [0, 0] }, "{sampling}");
        }
    });
}

#[test]
fn b3_is_propagated_as_b3() {
    run(async {
        let app = Application::with_response(OK).await;
        let mut mesh = Mesh::new(app.address, tracing_setup("0%")).await;
        let mut client = Client::connect(mesh.listener).await;
        let short_id = &TRACE[16..];
        let request = format!(
            "GET / HTTP/1.1\r\nhost: x\r\nX-B3-TraceId: {short_id}\r\nX-B3-SpanId: {PARENT}\r\n\
             X-B3-ParentSpanId: {PARENT}\r\nX-B3-Sampled: 1\r\n\r\n"
        );
        client.send_request(&request).await;
        let (_, inbound) = span_pair(&mut mesh).await;
        let (trace, id, parent) = span_ids(&inbound);
        let [received] = &app.received_requests()[..] else { panic!("one request") };
        assert_eq!(trace, format!("{}{short_id}", "0".repeat(16)));
        assert_eq!(received.field_value("x-b3-traceid"), Some(short_id));
        assert_eq!(received.field_value("x-b3-spanid"), Some(&*id));
        assert_eq!(received.field_value("x-b3-parentspanid"), parent.as_deref());
        assert_eq!(received.field_value("x-b3-sampled"), Some("1"));
        assert_eq!(received.field_value("traceparent"), None);
    });
}

#[test]
fn a_failed_request_has_a_span_in_an_unsampled_trace() {
    run(async {
        let mut mesh = Mesh::new(closed_port(), tracing_setup("0%")).await;
        mesh.route_to(&[meshed_endpoint("ratings-9", closed_port(), "ratings")]);
        let mut client = Client::connect(mesh.listener).await;
        let context = format!("00-{TRACE}-{PARENT}-00");
        let request = format!("GET / HTTP/1.1\r\nhost: x\r\ntraceparent: {context}\r\n\r\n");
        assert_eq!(client.send_request(&request).await.verdict(), (503, Some("connect-failed")));
        wait_until(|| mesh.client.ended_count() == 1).await;
        let entry = mesh.client.spans.try_recv().expect("a span");
        assert_eq!(
            (entry.outcome.reason, span_ids(&entry).0.as_str()),
            (Some("connect-failed"), TRACE)
        );
        assert!(!entry.span.unwrap().is_sampled && entry.upstream.is_some());
        // The settings can disable spans of failed requests.
        let quiet_settings = Tracing { errors: false, ..tracing_settings("0%") };
        mesh.client.worker.config_store.observability.apply_settings(&Observability {
            tracing: Some(quiet_settings),
            ..Observability::default()
        });
        client.send_request(&request).await;
        wait_until(|| mesh.client.ended_count() == 2).await;
        assert!(mesh.client.spans.try_recv().is_err());
    });
}

#[test]
fn without_tracing_contexts_are_forwarded_unchanged() {
    run(async {
        let app = Application::with_response(OK).await;
        let mut mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client
            .send_request(
                "GET / HTTP/1.1\r\nhost: x\r\ntraceparent: odd\r\nb3: 1\r\ntracestate: a=b\r\n\r\n",
            )
            .await;
        let [received] = &app.received_requests()[..] else { panic!("one request") };
        for (name, value) in [("traceparent", "odd"), ("b3", "1"), ("tracestate", "a=b")] {
            assert_eq!(received.field_value(name), Some(value), "{name}");
        }
        assert!(mesh.client.spans.try_recv().is_err());
    });
}

#[test]
fn unread_spans_are_dropped_without_affecting_requests() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::new(app.address, tracing_setup("100%")).await;
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..MAX_QUEUED_SPANS + 5 {
            assert_eq!(client.send_request("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.status, 200);
        }
        wait_until(|| mesh.server.ended_count() == MAX_QUEUED_SPANS as u64 + 5).await;
        assert_eq!(mesh.client.telemetry.count(Count::SpansOverflowed), 5);
        assert_eq!(mesh.server.telemetry.count(Count::SpansOverflowed), 5);
    });
}

#[test]
fn the_log_is_sampled_and_has_every_failure_and_the_trace() {
    run(async {
        let app = Application::respond_with(|request| match request.head.contains("/bad") {
            true => "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
            false => OK.to_owned(),
        });
        let template = LogTemplate::parse("{method} {path} {response_code} {trace_id}").unwrap();
        let form = LogFormat::Template(template);
        let no_sampling = Sampling::from_millionths(0).unwrap();
        let log = AccessLog {
            sampling: no_sampling,
            errors: true,
            format: form.clone(),
            collector: None,
        };
        let observability = Observability {
            tracing: Some(tracing_settings("0%")),
            access_log: Some(log),
            metrics: None,
        };
        let setup = Setup { observability, protocol: Protocol::Http, ..Setup::default() };
        let mut mesh = Mesh::new(app.await.address, setup).await;
        let mut client = Client::connect(mesh.listener).await;
        for path in ["/good", "/bad?secret"] {
            let context = format!("00-{TRACE}-{PARENT}-00");
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: x\r\ntraceparent: {context}\r\n\r\n");
            client.send_request(&request).await;
        }
        wait_until(|| mesh.client.ended_count() == 2).await;
        let mut text = String::new();
        while let Ok(entry) = mesh.client.log.try_recv() {
            crate::access_log::append_log_line(&entry, &form, &mut text);
        }
        assert_eq!(text, format!("GET /bad 500 {TRACE}\n"));
    });
}
