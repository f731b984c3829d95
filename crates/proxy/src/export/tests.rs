//! Tests of exported spans: their contents, and their loss if the collector is not available.

mod lines;
mod pushed;
#[path = "../../../outside/src/tests/receiver.rs"]
mod receiver;
mod rejected;

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use leno_model::{
    Collector, CollectorProtocol, Observability, PropagationFormat, Sampling, Signal, Tracing,
};
use leno_outside::AttributeValue;
use leno_telemetry::trace::{PropagationFormats, TraceHeaders, TraceSpan};
use leno_telemetry::{Count, Telemetry};
use leno_telemetry::{RequestLabels, RequestRecord};
use prost::Message;

use super::*;
use crate::tests::fixture::{closed_port, run, workload_name};
use crate::virtual_addresses::VirtualAddresses;

fn trace_entry(
    direction: &'static str,
    status: u16,
    reason: Option<&'static str>,
) -> Arc<TraceEntry> {
    let mut carrier = TraceHeaders::default();
    let parent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    carrier.record_header(b"traceparent", parent);
    Arc::new(TraceEntry {
        ended_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1000),
        labels: RequestLabels {
            direction,
            service: "bookinfo/ratings".to_owned(),
            port: 9080,
            route: "bookinfo/split".to_owned(),
            peer: "bookinfo/productpage".to_owned(),
            protocol: "http",
        },
        outcome: RequestRecord {
            status,
            reason,
            grpc: None,
            duration: Duration::from_millis(5),
            bytes_in: 0,
            bytes_out: 2,
        },
        retries: 1,
        hedge: None,
        method: "GET".to_owned(),
        path: "/ratings/1?token=hunter2".to_owned(),
        authority: "user:hunter2@ratings".to_owned(),
        user_agent: "curl/8".to_owned(),
        request_id: String::new(),
        forwarded_for: String::new(),
        downstream: SocketAddr::from(([127, 0, 0, 1], 4711)),
        upstream: Some(SocketAddr::from(([127, 0, 0, 2], 9080))),
        policy: None,
        dry_run_reason: None,
        span: Some(TraceSpan::from_headers(
            &carrier,
            PropagationFormats::default(),
            &mut || 7,
            |_| false,
        )),
    })
}

fn source() -> ResourceIdentity {
    ResourceIdentity {
        service: "ratings".to_owned(),
        namespace: "bookinfo".to_owned(),
        instance: "bookinfo/ratings-1".to_owned(),
    }
}

#[test]
fn zipkin_receives_the_span_without_secrets() {
    let batch =
        [trace_entry("inbound", 200, None), trace_entry("outbound", 503, Some("connect-failed"))];
    let bytes = zipkin::encode_spans(&source(), &batch);
    let text = String::from_utf8(bytes).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    let spans: serde_json::Value = serde_json::from_str(&text).unwrap();
    expect_test::expect![[r#"
        {
          "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
          "id": "0000000000000007",
          "kind": "SERVER",
          "name": "GET bookinfo/ratings",
          "timestamp": 999995000,
          "duration": 5000,
          "localEndpoint": {
            "serviceName": "ratings.bookinfo"
          },
          "tags": {
            "http.request.method": "GET",
            "url.path": "/ratings/1",
            "server.address": "ratings",
            "http.response.status_code": "200",
            "user_agent.original": "curl/8",
            "client.address": "127.0.0.1",
            "network.peer.address": "127.0.0.1",
            "network.peer.port": "4711",
            "leno.direction": "inbound",
            "leno.service": "bookinfo/ratings",
            "leno.route": "bookinfo/split",
            "leno.peer": "bookinfo/productpage",
            "leno.endpoint": "127.0.0.2:9080",
            "leno.retries": "1",
            "leno.sampled": "true",
            "leno.workload": "bookinfo/ratings-1"
          },
          "parentId": "00f067aa0ba902b7",
          "remoteEndpoint": {
            "ipv4": "127.0.0.1",
            "port": 4711,
            "serviceName": "productpage.bookinfo"
          }
        }"#]]
    .assert_eq(&format!("{:#}", spans[0]));
    assert_eq!(spans[1]["kind"], "CLIENT");
    assert_eq!(spans[1]["tags"]["error"], "connect-failed");
    assert_eq!(spans[1]["remoteEndpoint"]["serviceName"], "ratings.bookinfo");
}

#[test]
fn otlp_receives_the_same_span() {
    let batch = [trace_entry("inbound", 200, None), trace_entry("outbound", 500, None)];
    let bytes = otlp::spans::encode_request(&source(), &batch);
    let request = otlp::spans::ExportRequest::decode(&*bytes).unwrap();
    let [resource] = &request.resource_spans[..] else { panic!("one resource") };
    let spans = &resource.scope_spans[0].spans;
    let kinds: Vec<_> = spans.iter().map(|span| (span.kind, span.status.is_some())).collect();
    assert_eq!(kinds, [(2, false), (3, true)]);
    let span = &spans[0];
    assert_eq!(span.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
    assert_eq!(span.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
    assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 5_000_000);
    assert_eq!(spans[1].status.as_ref().map(|status| &*status.message), Some("500"));
    assert!(!String::from_utf8_lossy(&bytes).contains("hunter2"));
}

#[test]
fn unknown_methods_are_not_part_of_span_names() {
    let mut invented_method_entry = Arc::into_inner(trace_entry("inbound", 200, None)).unwrap();
    invented_method_entry.method = "BREW-1234".to_owned();
    assert_eq!(source::span_name(&invented_method_entry), "HTTP bookinfo/ratings");
    let attributes = source::span_attributes(&invented_method_entry);
    let attribute =
        |name| attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
    assert_eq!(attribute("http.request.method"), Some(&AttributeValue::Text("_OTHER".to_owned())));
    assert!(attribute("http.request.method_original").is_some());
}

#[test]
fn spans_for_an_unreachable_collector_are_dropped_and_counted() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let (config_store, _requested_services) =
            ConfigStore::new(VirtualAddresses::default(), std::time::Instant::now());
        for protocol in
            [CollectorProtocol::OtlpHttp, CollectorProtocol::OtlpGrpc, CollectorProtocol::Zipkin]
        {
            let collector =
                Collector::parse(Signal::Traces, protocol, &format!("http://{}", closed_port()));
            let tracing = Tracing {
                sampling: Sampling::ALL,
                errors: true,
                propagation: PropagationFormat::W3c,
                collector: collector.unwrap(),
            };
            config_store.observability.apply_settings(&Observability {
                tracing: Some(tracing),
                ..Observability::default()
            });
            let telemetry = Telemetry::new();
            let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
            let config =
                Config::for_sidecar(workload_name("a"), domain, directory.path().to_owned());
            let exporter = TelemetryExporter::new(
                Arc::new(config),
                config_store.clone(),
                telemetry.new_shard(),
            );
            let (queue, intake) = mpsc::channel(4);
            queue.try_send(trace_entry("inbound", 200, None)).unwrap();
            queue.try_send(trace_entry("inbound", 200, None)).unwrap();
            drop(queue);
            export_spans(Rc::new(exporter), intake).await;
            assert_eq!(telemetry.count(Count::SpansRejected), 2, "{protocol:?}");
            assert_eq!(telemetry.count(Count::SpansExported), 0, "{protocol:?}");
        }
    });
}

/// Sends one span over TLS to a collector with a certificate for these names; returns the exported and rejected
/// counts.
async fn export_over_tls(names: &[&str], trusts: bool) -> (u64, u64) {
    let directory = tempfile::tempdir().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = rcgen::generate_simple_self_signed(names).unwrap();
    let roots = directory.path().join("roots.pem");
    std::fs::write(&roots, certificate.cert.pem()).unwrap();
    let key =
        rustls_pki_types::PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let (config_store, _requested_services) =
        ConfigStore::new(VirtualAddresses::default(), std::time::Instant::now());
    let url = format!("https://localhost:{port}");
    let tracing = Tracing {
        sampling: Sampling::ALL,
        errors: true,
        propagation: PropagationFormat::W3c,
        collector: Collector::parse(Signal::Traces, CollectorProtocol::OtlpHttp, &url).unwrap(),
    };
    config_store
        .observability
        .apply_settings(&Observability { tracing: Some(tracing), ..Observability::default() });
    let telemetry = Telemetry::new();
    let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
    let mut config = Config::for_sidecar(workload_name("a"), domain, directory.path().to_owned());
    config.collector_ca = trusts.then_some(roots);
    let exporter =
        TelemetryExporter::new(Arc::new(config), config_store.clone(), telemetry.new_shard());
    let (queue, intake) = mpsc::channel(4);
    queue.try_send(trace_entry("inbound", 200, None)).unwrap();
    drop(queue);
    let serving = async {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let Ok(stream) = acceptor.accept(tcp).await else { continue };
            let service = hyper::service::service_fn(async |_| {
                let response = http_body_util::Empty::<bytes::Bytes>::new();
                Ok::<_, std::convert::Infallible>(hyper::Response::new(response))
            });
            let stream = hyper_util::rt::TokioIo::new(stream);
            let serving = hyper::server::conn::http1::Builder::new();
            serving.serve_connection(stream, service).await.ok();
        }
    };
    tokio::select! {
        () = export_spans(Rc::new(exporter), intake) => {}
        () = serving => {}
    }
    (telemetry.count(Count::SpansExported), telemetry.count(Count::SpansRejected))
}

#[test]
fn a_collector_with_tls_needs_a_trusted_certificate() {
    run(async {
        assert_eq!(export_over_tls(&["localhost"], true).await, (1, 0));
        assert_eq!(export_over_tls(&["elsewhere"], true).await, (0, 1));
        // The system trusts no certificate that was created a moment ago.
        assert_eq!(export_over_tls(&["localhost"], false).await, (0, 1));
    });
}
