//! Traces through real sidecars to a real collector, and cases without spans.

mod pushed;
mod zipkin;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, server_manifest};
use leno_tests::{
    ApplicationResponse, OtlpCollector, Response, TestApplication, TestMesh, eventually,
    exchange_bytes, free_port, get_page,
};
use serde_json::Value;

const TRACE_ID_PREFIX: &str = "4bf92f3577b34da6a3ce929d0e0e47";
const PARENT_SPAN_ID: &str = "00f067aa0ba902b7";

/// A shop with a stock that responds with its trace context, and fails at `/broken`.
struct Shop {
    mesh: TestMesh,
    listener: SocketAddr,
    stock: TestApplication,
}

impl Shop {
    fn start_shop(tracing: &str) -> Self {
        let stock = TestApplication::start(|request| match request.method_and_target().1 {
            "/broken" => ApplicationResponse::Bytes(
                b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".to_vec(),
            ),
            _ => ApplicationResponse::ok(request.first_header("traceparent").unwrap_or("none")),
        });
        let listener = free_port();
        let mesh = TestMesh::up(&shop_manifests(&stock, listener, tracing));
        Self { mesh, listener: SocketAddr::from((Ipv4Addr::LOCALHOST, listener)), stock }
    }

    fn apply_tracing(&self, tracing: &str) {
        self.mesh.write("mesh.yaml", &shop_manifests(&self.stock, self.listener.port(), tracing));
    }

    /// Sends a request with a trace id that ends in `number`, sampled or not.
    fn send_traced(&self, path: &str, number: u8, flags: &str) -> Response {
        let trace_context = format!("00-{TRACE_ID_PREFIX}{number:02}-{PARENT_SPAN_ID}-{flags}");
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: stock\r\nauthorization: Bearer hunter2\r\n\
             traceparent: {trace_context}\r\nconnection: close\r\n\r\n"
        );
        exchange_bytes(self.listener, &head).expect("a response")
    }

    /// Waits until both sidecars apply the latest tracing settings: the application receives a span id.
    fn wait_for_tracing(&self) {
        eventually("both sidecars continue the trace context", MAX_WAIT, || {
            let response_text =
                String::from_utf8_lossy(&self.send_traced("/", 99, "00").body).into_owned();
            (response_text.contains(TRACE_ID_PREFIX) && !response_text.contains(PARENT_SPAN_ID))
                .then_some(())
        });
    }

    /// Waits until both sidecars have the address of the collector.
    fn wait_for_collector(&self, port: u16) {
        for workload in ["shop/web-1", "shop/stock-1"] {
            let admin_address = self.mesh.sidecar(workload).admin;
            eventually("a sidecar has the address of its collector", MAX_WAIT, || {
                let configuration = get_page(admin_address, "/config").ok()?;
                let configuration: Value = serde_json::from_slice(&configuration.body).ok()?;
                let collector = configuration["tracing"]["collector"].as_str()?;
                collector.contains(&format!(":{port}/")).then_some(())
            });
        }
    }
}

fn shop_manifests(stock: &TestApplication, listener: u16, tracing: &str) -> String {
    let mesh_config = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: mesh}}\n\
         spec:\n  defaultPolicy: allow\n{tracing}"
    );
    [
        mesh_config,
        server_manifest("stock", stock.port(), &[]),
        client_manifest("web", &[], &[("stock", listener)]),
    ]
    .concat()
}

fn otlp_settings(sampling: &str, port: u16, protocol: &str) -> String {
    format!(
        "  tracing:\n    sampling: {sampling}\n    export: {{otlp: {{endpoint: \
         'http://127.0.0.1:{port}', protocol: {protocol}}}}}\n"
    )
}

#[test]
#[ignore = "builds an OpenTelemetry Collector with Go 1.23: `./test collectors` runs it"]
fn a_collector_receives_spans_of_both_sidecars_over_http_and_grpc() {
    let collector = OtlpCollector::start();
    let shop = Shop::start_shop(&otlp_settings("0%", collector.http, "http"));
    shop.wait_for_tracing();
    for (number, port, protocol) in [(1, collector.http, "http"), (2, collector.grpc, "grpc")] {
        shop.apply_tracing(&otlp_settings("0%", port, protocol));
        shop.wait_for_collector(port);
        let response = shop.send_traced("/orders?token=hunter2", number, "01");
        let trace_id = format!("{TRACE_ID_PREFIX}{number:02}");
        let spans = collector.wait_for_spans(&trace_id, 2);
        let span_of =
            |kind| spans.iter().find(|span| span.kind == kind).expect("a span of each side");
        let (client_span, server_span) = (span_of("Client"), span_of("Server"));
        assert_eq!(
            (client_span.parent.as_str(), &server_span.parent),
            (PARENT_SPAN_ID, &client_span.id)
        );
        let response_text = String::from_utf8_lossy(&response.body).into_owned();
        assert_eq!(response_text, format!("00-{trace_id}-{}-01", server_span.id));
        for span in [client_span, server_span] {
            assert_eq!(span.name, "GET shop/stock");
            for (name, value) in [
                ("http.response.status_code", "Int(200)"),
                ("url.path", "Str(/orders)"),
                ("leno.service", "Str(shop/stock)"),
                ("leno.retries", "Int(0)"),
            ] {
                assert_eq!(span.attribute(name), Some(value), "{name}: {}", span.text);
            }
            assert!(!span.text.contains("hunter2"), "{}", span.text);
        }
        assert_eq!(server_span.attribute("leno.peer"), Some("Str(shop/web)"));
    }
    for workload in ["shop/web-1", "shop/stock-1"] {
        let exported_series = "leno_trace_spans_total{result=\"exported\"}";
        let sidecar = shop.mesh.sidecar(workload);
        eventually("both spans of the request are counted", MAX_WAIT, || {
            (sidecar.sum_metrics(exported_series) >= 2.0).then_some(())
        });
    }
}

#[test]
#[ignore = "builds an OpenTelemetry Collector with Go 1.23: `./test collectors` runs it"]
fn the_parents_sampling_decision_is_kept_and_failures_are_reported_anyway() {
    let collector = OtlpCollector::start();
    let shop = Shop::start_shop(&otlp_settings("100%", collector.http, "http"));
    shop.wait_for_tracing();
    assert_eq!(shop.send_traced("/", 3, "00").status, 200);
    assert_eq!(shop.send_traced("/broken", 4, "00").status, 500);
    // Later spans have arrived, so earlier ones would have arrived as well.
    let failed_spans = collector.wait_for_spans(&format!("{TRACE_ID_PREFIX}04"), 2);
    for span in &failed_spans {
        assert_eq!(span.attribute("error.type"), Some("Str(500)"), "{}", span.text);
        assert_eq!(span.attribute("leno.sampled"), Some("Str(false)"));
    }
    assert_eq!(collector.spans_now(&format!("{TRACE_ID_PREFIX}03")), []);
}

#[test]
#[ignore = "builds an OpenTelemetry Collector with Go 1.23: `./test collectors` runs it"]
fn a_stopped_collector_loses_spans_and_fails_no_request() {
    let collector = OtlpCollector::start();
    let shop = Shop::start_shop(&otlp_settings("100%", collector.http, "http"));
    shop.wait_for_tracing();
    drop(collector);
    for _ in 0..20 {
        assert_eq!(shop.send_traced("/", 5, "01").status, 200);
    }
    let web_sidecar = shop.mesh.sidecar("shop/web-1");
    eventually("spans are dropped and counted", MAX_WAIT, || {
        let rejected_count = web_sidecar.sum_metrics("leno_trace_spans_total{result=\"rejected\"}");
        (rejected_count >= 20.0).then_some(())
    });
}

/// The timeout of conditions: a collector starts in a second; sidecars receive a change faster.
const MAX_WAIT: Duration = Duration::from_secs(30);
