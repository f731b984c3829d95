//! Tests of the whole page, as a scraper receives it.

use std::time::Duration;

use expect_test::expect_file;

use super::*;
use crate::grpc::GrpcStatus;
use crate::names::{ConnectionSide, Count, Level, sidecar_metrics};
use crate::rule::RuleLabels;
use crate::series::{RequestLabels, RequestRecord};
use crate::trace::{SpanId, TraceId};

#[test]
fn the_page_has_the_prometheus_format() {
    let telemetry = Telemetry::new();
    let shard = telemetry.new_shard();
    let ratings = shard.series_id(&RequestLabels {
        direction: "inbound",
        service: "bookinfo/ratings".to_owned(),
        port: 9080,
        route: "bookinfo/ratings".to_owned(),
        peer: "spiffe://cluster.local/ns/bookinfo/sa/reviews".to_owned(),
        protocol: "HTTP",
    });
    let unavailable = Some(GrpcStatus::Unavailable);
    for (status, reason, grpc, ms) in [
        (200, None, None, 1),
        (200, None, None, 40),
        (200, None, Some(GrpcStatus::Ok), 2),
        (200, None, unavailable, 2),
        (0, Some("upstream-reset"), None, 120),
        (503, Some("no-endpoint"), None, 0),
        (503, Some("no-endpoint"), unavailable, 0),
    ] {
        let duration = Duration::from_millis(ms);
        let outcome =
            RequestRecord { status, reason, grpc, duration, bytes_in: 10, bytes_out: 100 };
        shard.record_request(ratings, &outcome);
    }
    shard.count_dry_run_denial(ratings, "denied");
    shard.count_dry_run_denial(ratings, "denied");
    shard.count_rejected("plaintext-rejected");
    let rule = RuleLabels {
        kind: "RateLimit",
        namespace: "bookinfo".to_owned(),
        name: "ratings".to_owned(),
        rule: "each \"client\"".to_owned(),
    };
    shard.count_match(shard.rule_number(&rule));
    shard.count_connection_opened(ConnectionSide::Downstream);
    shard.add(Count::UpstreamConnected, 3);
    telemetry.set_level(Level::CertificateExpiry, 1_700_000_000);
    telemetry.set_level(Level::CertificateIssued, 1_699_913_600);
    telemetry.set_level(Level::ControlConnected, 0);
    let usage = ProcessUsage {
        cpu: Duration::from_millis(1_250),
        rss_kib: 4,
        pss_kib: 3,
        private_kib: 2,
        threads: 1,
    };

    let mut page = String::new();
    write_exposition(&telemetry, Some(&usage), ExpositionFormat::Prometheus, &mut page);
    let page = page.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    expect_file!["page.txt"].assert_eq(&page);
}

#[test]
fn every_metric_is_described_once_and_usage_is_optional() {
    let telemetry = Telemetry::new();
    let mut page = String::new();
    write_exposition(&telemetry, None, ExpositionFormat::Prometheus, &mut page);
    for metric in sidecar_metrics() {
        let announced =
            page.lines().filter(|line| line.split(' ').take(3).eq(["#", "TYPE", metric.name]));
        let expected = usize::from(!metric.name.starts_with("process_"));
        assert_eq!(announced.count(), expected, "{}", metric.name);
    }
    page.clear();
    telemetry.expose(ExpositionFormat::Prometheus, &mut page);
    assert!(page.contains("\nprocess_resident_memory_bytes "), "{page}");
}

#[test]
fn label_values_are_escaped() {
    for (value, expected) in [
        ("plain", r#"l="plain""#),
        (r#"a"b"#, r#"l="a\"b""#),
        (r"a\b", r#"l="a\\b""#),
        ("a\nb", r#"l="a\nb""#),
        ("ä", r#"l="ä""#),
    ] {
        let mut output = String::new();
        write_label(&mut output, "l", value);
        assert_eq!(output, expected);
    }
}

#[test]
fn openmetrics_names_counters_without_their_suffix_and_shows_exemplars() {
    let telemetry = Telemetry::new();
    let shard = telemetry.new_shard();
    let series = shard.series_id(&RequestLabels {
        direction: "inbound",
        service: "shop/stock".to_owned(),
        port: 80,
        route: String::new(),
        peer: String::new(),
        protocol: "http",
    });
    let trace = |number| TraceId(std::num::NonZeroU128::new(number).unwrap());
    for (number, ms) in [(1_u128, 4), (2, 4), (3, 90_000)] {
        let duration = Duration::from_millis(ms);
        let outcome = RequestRecord {
            status: 200,
            reason: None,
            grpc: None,
            duration,
            bytes_in: 0,
            bytes_out: 0,
        };
        shard.record_request(series, &outcome);
        let ended = UNIX_EPOCH + Duration::from_millis(1_500 + number as u64);
        let span = SpanId(std::num::NonZeroU64::MIN);
        shard.store_exemplar(series, trace(number), span, duration, ended);
    }
    let mut page = String::new();
    write_exposition(&telemetry, None, ExpositionFormat::OpenMetrics, &mut page);
    for line in [
        "# TYPE leno_requests counter\n",
        "\nleno_requests_total{",
        "le=\"0.005\"} 2 # {trace_id=\"00000000000000000000000000000002\"} 0.004 1.502\n",
        "le=\"0.0075\"} 2\n",
        "le=\"+Inf\"} 3 # {trace_id=\"00000000000000000000000000000003\"} 90 1.503\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    assert!(page.ends_with("\n# EOF\n"));
    let mut page = String::new();
    write_exposition(&telemetry, None, ExpositionFormat::Prometheus, &mut page);
    assert!(!page.contains("trace_id") && !page.contains("# EOF"));
}
