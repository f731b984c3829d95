//! Metrics and access log records at a real collector, in addition to spans.

use std::collections::BTreeMap;

use leno_tests::{CollectedPoint, ControlProgram};

use super::*;

/// Returns settings that export spans, metrics and log records to these ports.
fn export_settings(port: u16, protocol: &str) -> String {
    let otlp = format!("endpoint: 'http://127.0.0.1:{port}', protocol: {protocol}");
    format!(
        "{}  metrics: {{export: {{otlp: {{{otlp}, interval: 1s}}}}}}\n\
         \x20 accessLog: {{export: {{otlp: {{{otlp}}}}}}}\n",
        otlp_settings("0%", port, protocol)
    )
}

impl Shop {
    /// Waits until both sidecars have all export addresses.
    fn wait_for_export_addresses(&self, port: u16) {
        self.wait_for_collector(port);
        for workload in WORKLOADS {
            let admin_address = self.mesh.sidecar(workload).admin;
            eventually("a sidecar has its export addresses", MAX_WAIT, || {
                let configuration = get_page(admin_address, "/config").ok()?;
                let configuration: Value = serde_json::from_slice(&configuration.body).ok()?;
                let is_configured = |key: &str| {
                    let collector = configuration[key]["collector"].as_str();
                    collector.is_some_and(|collector_address| {
                        collector_address.contains(&format!(":{port}/"))
                    })
                };
                (is_configured("metrics") && is_configured("access_log")).then_some(())
            });
        }
    }

    /// Returns the metrics page of a sidecar, except metrics that change by being read.
    fn sidecar_metrics(&self, workload: &str) -> BTreeMap<String, f64> {
        read_metrics(self.mesh.sidecar(workload).admin)
    }
}

/// Returns a metrics page, except metrics that change by being read. Histograms are represented by their
/// counts.
fn read_metrics(admin_address: SocketAddr) -> BTreeMap<String, f64> {
    let metrics_page = get_page(admin_address, "/metrics").expect("metrics");
    let metrics_page = String::from_utf8_lossy(&metrics_page.body).into_owned();
    let lines = metrics_page.lines().filter(|line| line.starts_with("leno_"));
    let series = lines.filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_at(series.find('{').unwrap_or(series.len()));
        let is_excluded = EXCLUDED_METRICS.contains(&name);
        // A collector receives a histogram as one point, with the count as its value.
        let is_bucket_or_sum =
            ["_seconds_bucket", "_seconds_sum"].iter().any(|suffix| name.ends_with(suffix));
        let name = match name.strip_suffix("_seconds_count") {
            Some(histogram) => format!("{histogram}_seconds"),
            None => name.to_owned(),
        };
        let sample = (strip_empty_labels(&format!("{name}{labels}")), value.parse().ok()?);
        (!is_bucket_or_sum && !is_excluded).then_some(sample)
    });
    series.collect()
}

/// True if a collector has all values of a metrics page.
fn is_reported(
    metrics_page: &BTreeMap<String, f64>,
    points: &BTreeMap<String, CollectedPoint>,
) -> bool {
    let has_value = |(series, value): (&String, &f64)| {
        points.get(series).is_some_and(|point| point.value == *value)
    };
    metrics_page.iter().all(has_value)
}

/// Returns a series without empty labels.
fn strip_empty_labels(series: &str) -> String {
    let Some((name, labels)) = series.split_once('{') else { return series.to_owned() };
    let labels = labels.trim_end_matches('}').split(',');
    let labels: Vec<_> = labels.filter(|label| !label.ends_with("=\"\"")).collect();
    format!("{name}{{{}}}", labels.join(","))
}

#[test]
#[ignore = "builds an OpenTelemetry Collector with Go 1.23: `./test collectors` runs it"]
fn a_collector_receives_the_metrics_of_sidecars_over_http_and_grpc() {
    let collector = OtlpCollector::start();
    let shop = Shop::start_shop(&export_settings(collector.http, "http"));
    shop.wait_for_tracing();
    for (number, port, protocol) in [(1, collector.http, "http"), (2, collector.grpc, "grpc")] {
        shop.apply_tracing(&export_settings(port, protocol));
        shop.wait_for_export_addresses(port);
        shop.send_traced("/orders?token=hunter2", number, "01");
        shop.send_traced("/broken", number, "01");
        for workload in WORKLOADS {
            let condition =
                format!("{workload} has exported the metrics of its page over {protocol}");
            eventually(&condition, MAX_WAIT, || {
                let metrics_page = shop.sidecar_metrics(workload);
                let all_reported = is_reported(&metrics_page, &collector.points_now(workload));
                (metrics_page.len() > 40 && all_reported).then_some(())
            });
        }
    }
    let points = collector.points_now("shop/web-1");
    let find_point = |start: &str| {
        let mut matching = points.iter().filter(|(series, _)| series.starts_with(start));
        matching.next().map(|(_, point)| point).expect("a point")
    };
    let request_point =
        find_point("leno_requests_total{direction=\"outbound\",destination_service=\"shop/stock\"");
    assert_eq!((request_point.kind.as_str(), request_point.unit.as_str()), ("Sum", ""));
    assert_eq!(find_point("leno_links{").kind, "Gauge");
    let duration_point = find_point("leno_request_duration_seconds{");
    assert_eq!((duration_point.kind.as_str(), duration_point.unit.as_str()), ("Histogram", "s"));
    assert!(
        duration_point.text.contains(&format!("Trace ID: {TRACE_ID_PREFIX}")),
        "{}",
        duration_point.text
    );
    assert!(find_point("process_cpu_seconds_total").value > 0.0);
    for workload in WORKLOADS {
        let sidecar = shop.mesh.sidecar(workload);
        assert!(sidecar.sum_metrics("leno_metric_points_total{result=\"exported\"}") > 50.0);
        assert_eq!(sidecar.sum_metrics("leno_metric_points_total{result=\"rejected\"}"), 0.0);
    }
}

#[test]
#[ignore = "builds an OpenTelemetry Collector with Go 1.23: `./test collectors` runs it"]
fn a_collector_receives_access_log_records_over_http_and_grpc() {
    let collector = OtlpCollector::start();
    let shop = Shop::start_shop(&export_settings(collector.http, "http"));
    shop.wait_for_tracing();
    for (number, port, protocol) in [(1, collector.http, "http"), (2, collector.grpc, "grpc")] {
        shop.apply_tracing(&export_settings(port, protocol));
        shop.wait_for_export_addresses(port);
        shop.send_traced("/orders?token=hunter2", number, "01");
        shop.send_traced("/broken", number, "01");
        let trace_id = format!("{TRACE_ID_PREFIX}{number:02}");
        let condition = format!("both sidecars report both requests over {protocol}");
        let (records, _) = eventually(&condition, MAX_WAIT, || {
            Some(collector.records_now(&trace_id)).filter(|records| records.len() >= 4)
        });
        for workload in WORKLOADS {
            let record_of = |path: &str| {
                let path = format!("Str({path})");
                let mut records_of_workload =
                    records.iter().filter(|record| record.workload == workload);
                records_of_workload
                    .find(|record| record.attribute("path") == Some(&path))
                    .expect("a record")
            };
            let (succeeded_record, failed_record) = (record_of("/orders"), record_of("/broken"));
            assert_eq!(
                (succeeded_record.severity.as_str(), failed_record.severity.as_str()),
                ("INFO", "ERROR")
            );
            let log_line: Value =
                serde_json::from_str(&succeeded_record.body).expect("a line of JSON");
            assert_eq!(log_line["trace_id"], trace_id.as_str());
            assert_eq!(log_line["span_id"], succeeded_record.span.as_str());
            assert_eq!(succeeded_record.attribute("response_code"), Some("Int(200)"));
            assert_eq!(failed_record.attribute("response_code"), Some("Int(500)"));
            assert_eq!(succeeded_record.attribute("upstream_cluster"), Some("Str(shop/stock)"));
            for record in [succeeded_record, failed_record] {
                assert!(!record.text.contains("hunter2"), "{}", record.text);
            }
        }
        // Spans of the same trace have arrived as well.
        assert!(!collector.wait_for_spans(&trace_id, 2).is_empty());
    }
    for workload in WORKLOADS {
        let exported_series = "leno_log_records_total{result=\"exported\"}";
        let sidecar = shop.mesh.sidecar(workload);
        eventually("the log records are counted", MAX_WAIT, || {
            (sidecar.sum_metrics(exported_series) >= 4.0).then_some(())
        });
    }
}

/// Returns the instance id of a control plane at a collector.
fn control_instance_id(control: &ControlProgram) -> String {
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    format!("{}:{}", hostname.trim(), control.listen_address().port())
}

#[test]
#[ignore = "builds an OpenTelemetry Collector with Go 1.23: `./test collectors` runs it"]
fn a_collector_receives_the_metrics_of_every_control_plane_over_http_and_grpc() {
    let collector = OtlpCollector::start();
    for (port, protocol) in [(collector.http, "http"), (collector.grpc, "grpc")] {
        let manifests =
            [metrics_settings(port, protocol, "1s"), server_manifest("stock", 9080, &[])].concat();
        let health = ["--health", "127.0.0.1:0"];
        let replicas = ControlProgram::start_replicas(2, &manifests, &health);
        for control in &replicas {
            let ready_line = control.program.wait_for_line("control plane ready", MAX_WAIT);
            let health =
                ready_line.split("health=\"").nth(1).and_then(|rest| rest.split('"').next());
            let health = health.and_then(|address| address.parse().ok()).expect("an address");
            let instance_id = control_instance_id(control);
            let condition =
                format!("{instance_id} has exported the metrics of its page over {protocol}");
            eventually(&condition, MAX_WAIT, || {
                let (metrics_page, points) =
                    (read_metrics(health), collector.points_now(&instance_id));
                (metrics_page.len() > 25 && is_reported(&metrics_page, &points)).then_some(())
            });
            let points = collector.points_now(&instance_id);
            let kind_of = |series: &str| points.get(series).map(|point| point.kind.as_str());
            assert_eq!(kind_of("leno_control_workloads"), Some("Gauge"));
            assert_eq!(kind_of("leno_control_changes_total"), Some("Sum"));
            let convergence_point =
                points.get("leno_control_convergence_seconds").expect("durations");
            assert_eq!((&*convergence_point.kind, &*convergence_point.unit), ("Histogram", "s"));
        }
    }
}

#[test]
#[ignore = "builds an OpenTelemetry Collector with Go 1.23: `./test collectors` runs it"]
fn a_control_plane_exports_metrics_once_more_when_it_stops() {
    let collector = OtlpCollector::start();
    let manifests =
        [metrics_settings(collector.http, "http", "1h"), server_manifest("stock", 9080, &[])]
            .concat();
    let mut control = ControlProgram::start(&manifests, &[]);
    let instance_id = control_instance_id(&control);
    control.program.stop(MAX_WAIT);
    eventually("the last export has arrived", MAX_WAIT, || {
        let points = collector.points_now(&instance_id);
        let workload_point = points.get("leno_control_workloads")?;
        (workload_point.value == 1.0).then_some(())
    });
}

/// Returns settings that export metrics to this port at this interval.
fn metrics_settings(port: u16, protocol: &str, interval: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: mesh}}\n\
         spec: {{metrics: {{export: {{otlp: {{endpoint: 'http://127.0.0.1:{port}', protocol: {protocol}, \
         interval: {interval}}}}}}}}}\n"
    )
}

const WORKLOADS: [&str; 2] = ["shop/web-1", "shop/stock-1"];

/// Metrics that change by being read or exported.
const EXCLUDED_METRICS: [&str; 4] = [
    "leno_metric_points_total",
    "leno_log_records_total",
    "leno_trace_spans_total",
    "leno_control_metric_points_total",
];
