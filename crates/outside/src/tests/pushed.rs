//! Exported metrics equal those of the Prometheus exposition, and are sent in requests of limited size.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::Full;
use leno_model::{Collector, CollectorProtocol, MetricsPush, Signal};
use leno_telemetry::trace::{SpanId, TraceId};
use leno_telemetry::{
    Count, ExpositionFormat, Gauge, GrpcStatus, Level, RequestLabels, RequestRecord, RuleLabels,
    Telemetry,
};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::receiver::{self, Receiver, response_with};
use super::run;
use crate::otlp::points::{self, MetricData, OtlpMetric, number_point};
use crate::otlp::{ExportResponse, KeyValue, OtlpResource, PartialSuccess, any_value};
use crate::{
    Connector, ExportCounts, ExportStatus, Exporter, MetricRequests, MetricSource,
    ResourceIdentity, TimeRange, push_metrics,
};

fn test_identity() -> ResourceIdentity {
    ResourceIdentity {
        service: "ratings".to_owned(),
        namespace: "bookinfo".to_owned(),
        instance: "bookinfo/ratings-1".to_owned(),
    }
}

/// Returns telemetry with metrics of every kind.
fn sample_telemetry(series: u16) -> Arc<Telemetry> {
    let telemetry = Telemetry::new();
    let shard = telemetry.new_shard();
    for port in 0..series {
        let series = shard.series_id(&RequestLabels {
            direction: "inbound",
            service: "bookinfo/ratings".to_owned(),
            port: 9080 + port,
            route: "bookinfo/split".to_owned(),
            peer: "bookinfo/productpage".to_owned(),
            protocol: "http",
        });
        for (status, ms, reason) in [(200, 3, None), (503, 90_000, Some("connect-failed"))] {
            let duration = Duration::from_millis(ms);
            let grpc = (status == 200).then_some(GrpcStatus::Ok);
            let outcome =
                RequestRecord { status, reason, grpc, duration, bytes_in: 5, bytes_out: 7 };
            shard.record_request(series, &outcome);
            shard.store_exemplar(
                series,
                TraceId(7.try_into().unwrap()),
                SpanId(9.try_into().unwrap()),
                duration,
                UNIX_EPOCH + Duration::from_secs(5),
            );
        }
        shard.count_dry_run_denial(series, "denied");
    }
    let rule = RuleLabels { kind: "HTTPRoute", name: "r\"1\"".to_owned(), ..RuleLabels::default() };
    shard.count_match(shard.rule_number(&rule));
    shard.count_rejected("too-many");
    shard.add(Count::Retries, 3);
    shard.increment(Gauge::LinksUpstream, 2);
    telemetry.set_level(Level::ControlConnected, 1);
    telemetry
}

/// Encodes all metrics.
fn encode_metrics(telemetry: &Telemetry) -> Vec<(Vec<u8>, u64)> {
    encode_into(telemetry, MetricRequests::new(&test_identity(), test_times()))
}

fn encode_into(telemetry: &Telemetry, mut requests: MetricRequests) -> Vec<(Vec<u8>, u64)> {
    telemetry.visit_metrics(&mut requests);
    requests.into_requests()
}

fn test_times() -> TimeRange {
    let end = UNIX_EPOCH + Duration::from_secs(1000);
    TimeRange { start: UNIX_EPOCH + Duration::from_secs(900), end }
}

fn decode_metrics(requests: &[(Vec<u8>, u64)]) -> Vec<OtlpMetric> {
    let mut metrics = Vec::new();
    for (bytes, _) in requests {
        let request = points::ExportMetricsRequest::decode(&**bytes).unwrap();
        let [resource_metrics] = &request.resource_metrics[..] else { panic!("one resource") };
        assert_eq!(resource_metrics.resource, Some(OtlpResource::from_source(&test_identity())));
        let [scope_metrics] = &resource_metrics.scope_metrics[..] else { panic!("one scope") };
        metrics.extend(scope_metrics.metrics.iter().cloned());
    }
    metrics
}

/// Formats labels as on the page, without empty ones.
fn format_labels(attributes: &[KeyValue], limit: Option<String>) -> String {
    let format_label =
        |label: &KeyValue| match label.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(any_value::AnyValueKind::Text(text)) => {
                format!("{}=\"{}\"", label.key, text.replace('"', "\\\""))
            }
            other => panic!("{other:?}"),
        };
    let limit = limit.map(|limit| format!("le=\"{limit}\""));
    let labels: Vec<_> = attributes.iter().map(format_label).chain(limit).collect();
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

/// Formats exported metrics as lines of the page.
fn format_lines(metrics: &[OtlpMetric]) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for OtlpMetric { name, data, .. } in metrics {
        let (number_points, histogram_points) = match data.clone().unwrap() {
            MetricData::Gauge(gauge) => (gauge.points, Vec::new()),
            MetricData::Sum(sum) => {
                assert!(sum.is_monotonic && sum.temporality == 2, "{name}");
                (sum.points, Vec::new())
            }
            MetricData::Histogram(histogram) => (Vec::new(), histogram.points),
        };
        for point in number_points {
            let value = match point.value.unwrap() {
                number_point::PointValue::Double(value) => value.to_string(),
                number_point::PointValue::Int(value) => value.to_string(),
            };
            lines.insert(format!("{name}{} {value}", format_labels(&point.attributes, None)));
        }
        for point in histogram_points {
            let limits = point.explicit_bounds.iter().map(ToString::to_string);
            let mut cumulative_count = 0;
            for (limit, count) in limits.chain(["+Inf".to_owned()]).zip(&point.bucket_counts) {
                cumulative_count += count;
                let labels = format_labels(&point.attributes, Some(limit));
                lines.insert(format!("{name}_bucket{labels} {cumulative_count}"));
            }
            assert_eq!(cumulative_count, point.count);
            let labels = format_labels(&point.attributes, None);
            lines.insert(format!("{name}_sum{labels} {}", point.sum.unwrap()));
            lines.insert(format!("{name}_count{labels} {}", point.count));
        }
    }
    lines
}

/// Returns the page without empty series and those that change during the test.
fn stable_page(telemetry: &Telemetry) -> BTreeSet<String> {
    let mut page = String::new();
    telemetry.expose(ExpositionFormat::Prometheus, &mut page);
    let lines = page.lines().filter(|line| !line.starts_with(['#']));
    let series = lines.filter(|line| !line.starts_with("process_"));
    series
        .map(|line| {
            let Some((name, rest)) = line.split_once('{') else { return line.to_owned() };
            let (labels, value) = rest.rsplit_once("} ").unwrap();
            let labels: Vec<_> =
                labels.split(',').filter(|label| !label.ends_with("=\"\"")).collect();
            format!("{name}{{{}}} {value}", labels.join(","))
        })
        .collect()
}

#[test]
fn exported_metrics_equal_the_scraped_metrics() {
    let telemetry = sample_telemetry(2);
    let requests = encode_metrics(&telemetry);
    let metrics = decode_metrics(&requests);
    let is_stable = |line: &String| !line.starts_with("process_");
    let exported: BTreeSet<_> = format_lines(&metrics).into_iter().filter(is_stable).collect();
    assert_eq!(exported, stable_page(&telemetry));
    let units = metrics.iter().map(|metric| (metric.name.as_str(), metric.unit.as_str()));
    let units: std::collections::BTreeMap<_, _> = units.collect();
    for (name, unit) in [
        ("leno_request_duration_seconds", "s"),
        ("process_cpu_seconds_total", "s"),
        ("leno_request_bytes_total", "By"),
        ("leno_requests_total", ""),
    ] {
        assert_eq!(units.get(name), Some(&unit), "{name}");
    }
}

#[test]
fn points_have_their_times_and_exemplars() {
    let metrics = decode_metrics(&encode_metrics(&sample_telemetry(1)));
    let data_of =
        |name: &str| metrics.iter().find(|metric| metric.name == name).unwrap().data.clone();
    let Some(MetricData::Sum(sum)) = data_of("leno_retries_total") else { panic!("a sum") };
    let point = &sum.points[0];
    let seconds = |ns: u64| ns / 1_000_000_000;
    assert_eq!(seconds(point.start_time_unix_nano), 900);
    assert_eq!(seconds(point.time_unix_nano), 1000);
    let Some(MetricData::Gauge(gauge)) = data_of("leno_links") else { panic!("a gauge") };
    assert_eq!(gauge.points[0].start_time_unix_nano, 0);
    let Some(MetricData::Histogram(histogram)) = data_of("leno_request_duration_seconds") else {
        panic!("a histogram")
    };
    let point = &histogram.points[0];
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    let [quick, slow] = &point.exemplars[..] else { panic!("{:?}", point.exemplars) };
    assert_eq!((quick.seconds, slow.seconds), (Some(0.003), Some(90.0)));
    assert_eq!(quick.trace_id, 7_u128.to_be_bytes());
    assert_eq!(quick.span_id, 9_u64.to_be_bytes());
    assert_eq!(seconds(quick.time_unix_nano), 5);
}

#[test]
fn large_exports_are_split_without_loss() {
    let telemetry = sample_telemetry(280);
    let single_request = encode_metrics(&telemetry);
    assert_eq!(single_request.len(), 1);
    let split_requests =
        encode_into(&telemetry, MetricRequests::with_limit(&test_identity(), test_times(), 20_000));
    assert!(split_requests.len() > 20, "{}", split_requests.len());
    for (bytes, _) in &split_requests {
        // The last point, the resource, and the names of metrics are in addition to the limit.
        assert!(bytes.len() < 25_000, "{}", bytes.len());
    }
    let point_count =
        |requests: &[(Vec<u8>, u64)]| requests.iter().map(|(_, count)| count).sum::<u64>();
    assert_eq!(point_count(&split_requests), point_count(&single_request));
    let is_stable = |line: &String| !line.starts_with("process_");
    let stable_lines = |requests| {
        format_lines(&decode_metrics(requests)).into_iter().filter(is_stable).collect::<Vec<_>>()
    };
    assert_eq!(stable_lines(&split_requests), stable_lines(&single_request));
}

/// A source of metrics.
struct TestMetrics(Arc<Telemetry>);

impl MetricSource for TestMetrics {
    fn identity(&self) -> ResourceIdentity {
        test_identity()
    }

    async fn write_metrics(&mut self, mut requests: MetricRequests) -> Option<MetricRequests> {
        self.0.visit_metrics(&mut requests);
        Some(requests)
    }

    async fn write_final_metrics(mut self, requests: MetricRequests) -> Option<MetricRequests> {
        self.write_metrics(requests).await
    }
}

/// The numbers of accepted and rejected points.
#[derive(Default)]
pub(super) struct CountedPoints {
    pub(super) exported: Cell<u64>,
    pub(super) rejected: Cell<u64>,
}

impl ExportCounts for &CountedPoints {
    fn add_exported(&self, count: u64) {
        self.exported.set(self.exported.get() + count);
    }

    fn add_rejected(&self, count: u64) {
        self.rejected.set(self.rejected.get() + count);
    }
}

pub(super) struct TcpConnector;

impl Connector for TcpConnector {
    async fn dial(&self, address: SocketAddr) -> std::io::Result<TcpStream> {
        TcpStream::connect(address).await
    }
}

fn push_settings(receiver: &Receiver) -> Option<Box<MetricsPush>> {
    let url = format!("http://{}", receiver.address);
    let collector = Collector::parse(Signal::Metrics, CollectorProtocol::OtlpHttp, &url).unwrap();
    Some(Box::new(MetricsPush { collector, interval: MetricsPush::MAX_INTERVAL }))
}

/// Exports once to a collector with these responses. Returns the numbers of accepted and rejected points, and
/// the received requests.
async fn push_once(
    responses: Vec<hyper::Response<Full<Bytes>>>,
) -> (u64, u64, Vec<receiver::ReceivedRequest>) {
    let receiver = Receiver::start(responses).await;
    let (_sender, settings) = watch::channel(push_settings(&receiver));
    let counts = CountedPoints::default();
    let mut export_status = ExportStatus::new("metrics", &counts);
    let exporter = Exporter::new(TcpConnector, None);
    // The first export is due within an hour; the last one is sent now.
    let stopped = std::future::ready(());
    push_metrics(
        &exporter,
        &mut export_status,
        TestMetrics(sample_telemetry(1)),
        settings,
        UNIX_EPOCH,
        u64::MAX,
        stopped,
    )
    .await;
    (counts.exported.get(), counts.rejected.get(), receiver.arrived_requests())
}

#[test]
fn a_final_push_is_sent_at_the_end() {
    run(async {
        let (exported, rejected, requests) = push_once(Vec::new()).await;
        assert!(exported > 50 && rejected == 0, "{exported} {rejected}");
        let [(path, content_type, body)] = &requests[..] else { panic!("one push") };
        assert_eq!((&**path, &**content_type), ("/v1/metrics", "application/x-protobuf"));
        assert!(points::ExportMetricsRequest::decode(body.clone()).is_ok());
    });
}

#[test]
fn the_export_ends_when_the_source_of_metrics_ends() {
    run(async {
        let receiver = Receiver::start(Vec::new()).await;
        let (sender, settings) = watch::channel(push_settings(&receiver));
        drop(sender);
        let (exporter, counts) = (Exporter::new(TcpConnector, None), CountedPoints::default());
        let mut export_status = ExportStatus::new("metrics", &counts);
        push_metrics(
            &exporter,
            &mut export_status,
            TestMetrics(sample_telemetry(1)),
            settings,
            UNIX_EPOCH,
            u64::MAX,
            std::future::pending(),
        )
        .await;
        assert_eq!(receiver.arrived_requests(), []);
    });
}

#[test]
fn points_rejected_by_the_collector_are_counted() {
    run(async {
        let partial = PartialSuccess { rejected: 2, message: "no".to_owned() };
        let body = ExportResponse { partial_success: Some(partial) }.encode_to_vec();
        let (exported, rejected, requests) = push_once(vec![response_with(200, None, body)]).await;
        assert!(exported > 50 && rejected == 2 && requests.len() == 1, "{exported} {rejected}");
    });
}

#[test]
fn the_retry_delay_of_a_collector_is_respected() {
    run(async {
        // The requested delay is longer than the maximum retry delay: the request is not sent again.
        let (exported, rejected, requests) =
            push_once(vec![response_with(503, Some("3600"), Vec::new())]).await;
        assert!(exported == 0 && rejected > 50 && requests.len() == 1, "{}", requests.len());
        // The requested delay is short: the request is sent again.
        let (exported, rejected, requests) =
            push_once(vec![response_with(429, Some("0"), Vec::new())]).await;
        assert!(exported > 50 && rejected == 0 && requests.len() == 2, "{}", requests.len());
        // A permanent error: the request is not sent again.
        let (exported, rejected, requests) =
            push_once(vec![response_with(400, None, b"no".to_vec())]).await;
        assert!(exported == 0 && rejected > 50 && requests.len() == 1, "{}", requests.len());
    });
}
