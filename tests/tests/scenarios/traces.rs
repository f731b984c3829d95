//! Traces through real sidecars to a real collector, and cases without spans.

mod pushed;
mod zipkin;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, server_manifest};
use leno_tests::{
    ApplicationReply, OtlpCollector, Response, TestApplication, TestMesh, eventually,
    exchange_bytes, free_port, get_page,
};
use serde_json::Value;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e47";
const PARENT: &str = "00f067aa0ba902b7";

/// A shop with a stock that responds with its trace context, and fails at `/broken`.
struct Shop {
    mesh: TestMesh,
    listener: SocketAddr,
    stock: TestApplication,
}

impl Shop {
    fn start_shop(tracing: &str) -> Self {
        let stock = TestApplication::start(|request| match request.method_and_target().1 {
            "/broken" => ApplicationReply::Bytes(
                b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".to_vec(),
            ),
            _ => ApplicationReply::ok(request.first_header("traceparent").unwrap_or("none")),
        });
        let listener = free_port();
        let mesh = TestMesh::up(&shop_manifests(&stock, listener, tracing));
        Self { mesh, listener: SocketAddr::from((Ipv4Addr::LOCALHOST, listener)), stock }
    }

    fn trace_to(&self, tracing: &str) {
        self.mesh.write("mesh.yaml", &shop_manifests(&self.stock, self.listener.port(), tracing));
    }

    /// Sends a request with a trace id that ends in `number`, sampled or not.
    fn send_traced(&self, path: &str, number: u8, flags: &str) -> Response {
        let context = format!("00-{TRACE}{number:02}-{PARENT}-{flags}");
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: stock\r\nauthorization: Bearer hunter2\r\n\
             traceparent: {context}\r\nconnection: close\r\n\r\n"
        );
        exchange_bytes(self.listener, &head).expect("a response")
    }

    /// Waits until both sidecars apply the latest tracing settings: the application receives a span id.
    fn wait_for_tracing(&self) {
        eventually("both sidecars continue the trace context", MAX_WAIT, || {
            let response_text =
                String::from_utf8_lossy(&self.send_traced("/", 99, "00").body).into_owned();
            (response_text.contains(TRACE) && !response_text.contains(PARENT)).then_some(())
        });
    }

    /// Waits until both sidecars have the address of the collector.
    fn wait_for_collector(&self, port: u16) {
        for workload in ["shop/web-1", "shop/stock-1"] {
            let admin = self.mesh.sidecar(workload).admin;
            eventually("a sidecar has the address of its collector", MAX_WAIT, || {
                let config = get_page(admin, "/config").ok()?;
                let config: Value = serde_json::from_slice(&config.body).ok()?;
                let collector = config["tracing"]["collector"].as_str()?;
                collector.contains(&format!(":{port}/")).then_some(())
            });
        }
    }
}

fn shop_manifests(stock: &TestApplication, listener: u16, tracing: &str) -> String {
    let config = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: mesh}}\n\
         spec:\n  defaultPolicy: allow\n{tracing}"
    );
    [
        config,
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
        shop.trace_to(&otlp_settings("0%", port, protocol));
        shop.wait_for_collector(port);
        let response = shop.send_traced("/orders?token=hunter2", number, "01");
        let trace = format!("{TRACE}{number:02}");
        let spans = collector.wait_for_spans(&trace, 2);
        let span_of =
            |kind| spans.iter().find(|span| span.kind == kind).expect("a span of each side");
        let (outer, inner) = (span_of("Client"), span_of("Server"));
        assert_eq!((outer.parent.as_str(), &inner.parent), (PARENT, &outer.id));
        let response_text = String::from_utf8_lossy(&response.body).into_owned();
        assert_eq!(response_text, format!("00-{trace}-{}-01", inner.id));
        for span in [outer, inner] {
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
        assert_eq!(inner.attribute("leno.peer"), Some("Str(shop/web)"));
    }
    for workload in ["shop/web-1", "shop/stock-1"] {
        let exported = "leno_trace_spans_total{result=\"exported\"}";
        let sidecar = shop.mesh.sidecar(workload);
        eventually("both spans of the request are counted", MAX_WAIT, || {
            (sidecar.sum_metrics(exported) >= 2.0).then_some(())
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
    let failed = collector.wait_for_spans(&format!("{TRACE}04"), 2);
    for span in &failed {
        assert_eq!(span.attribute("error.type"), Some("Str(500)"), "{}", span.text);
        assert_eq!(span.attribute("leno.sampled"), Some("Str(false)"));
    }
    assert_eq!(collector.spans_now(&format!("{TRACE}03")), []);
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
    let web = shop.mesh.sidecar("shop/web-1");
    eventually("spans are dropped and counted", MAX_WAIT, || {
        let rejected = web.sum_metrics("leno_trace_spans_total{result=\"rejected\"}");
        (rejected >= 20.0).then_some(())
    });
}

/// The timeout of conditions: a collector starts in a second; sidecars receive a change faster.
const MAX_WAIT: Duration = Duration::from_secs(30);
