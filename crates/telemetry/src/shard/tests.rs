//! Tests of shards: a single one, its limits, and two threads with a concurrent reader.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::grpc::GrpcStatus;
use crate::series::MAX_SERIES;

fn request_labels(service: &str) -> RequestLabels {
    RequestLabels {
        direction: "inbound",
        service: service.to_owned(),
        port: 80,
        route: String::new(),
        peer: String::new(),
        protocol: "HTTP",
    }
}

fn test_outcome(status: u16, reason: Option<&'static str>) -> RequestRecord {
    let duration = Duration::from_millis(10);
    RequestRecord { status, reason, grpc: None, duration, bytes_in: 2, bytes_out: 3 }
}

#[test]
fn a_series_is_reused_and_belongs_to_its_shard() {
    let telemetry = Telemetry::new();
    let (one, two) = (telemetry.new_shard(), telemetry.new_shard());
    let id = one.series_id(&request_labels("a"));
    assert_eq!(one.series_id(&request_labels("a")), id);
    assert_ne!(one.series_id(&request_labels("b")), id);
    assert_ne!(two.series_id(&request_labels("a")), id);
}

#[test]
fn shards_are_summed_and_their_counts_survive_their_thread() {
    let telemetry = Telemetry::new();
    let (one, two) = (telemetry.new_shard(), telemetry.new_shard());
    for shard in [&one, &two] {
        let series = shard.series_id(&request_labels("a"));
        shard.record_request(series, &test_outcome(200, None));
        shard.record_request(series, &test_outcome(404, None));
        shard.record_request(series, &test_outcome(403, Some("denied")));
        shard.record_request(series, &test_outcome(500, None));
        shard.record_request(series, &test_outcome(0, None));
        shard.count_rejected("plaintext-rejected");
        shard.count_connection_opened(ConnectionSide::Downstream);
        shard.add(Count::Retries, 2);
    }
    // A connection that one shard opened may be closed by another.
    one.count_connection_closed(ConnectionSide::Downstream);
    one.count_connection_closed(ConnectionSide::Downstream);
    drop((one, two));

    let summary = telemetry.series_summaries();
    let [series] = summary.as_slice() else { panic!("{summary:?}") };
    assert_eq!((series.requests, series.success), (10, 6));
    assert_eq!((series.bytes_in, series.bytes_out), (20, 30));
    let failures: Vec<_> = series.failures.iter().map(|f| (f.code, f.reason, f.requests)).collect();
    assert_eq!(failures, [("4xx", "denied", 2)]);
    assert!(series.p99.abs_diff(Duration::from_millis(10)) < Duration::from_micros(600));
    assert_eq!(
        telemetry.rejected_connections().into_iter().collect::<Vec<_>>(),
        [("plaintext-rejected", 2)]
    );
    assert_eq!(telemetry.count(Count::Retries), 4);
    assert_eq!(telemetry.count(Count::DownstreamOpened), 2);
    assert_eq!(telemetry.gauge(Gauge::ConnectionsDownstream), 0);
}

#[test]
fn a_grpc_failure_with_http_status_200_is_no_success() {
    let telemetry = Telemetry::new();
    let shard = telemetry.new_shard();
    let series = shard.series_id(&request_labels("a"));
    for grpc in GrpcStatus::ALL {
        shard
            .record_request(series, &RequestRecord { grpc: Some(grpc), ..test_outcome(200, None) });
    }
    shard.record_request(series, &test_outcome(403, Some("denied")));
    let denied_status = Some(GrpcStatus::PermissionDenied);
    shard.record_request(
        series,
        &RequestRecord { grpc: denied_status, ..test_outcome(403, Some("denied")) },
    );
    let summary = telemetry.series_summaries();
    let [series] = summary.as_slice() else { panic!("{summary:?}") };
    assert_eq!((series.requests, series.success), (19, 11));
    let failures: Vec<_> = series.failures.iter().map(|f| (f.code, f.reason, f.requests)).collect();
    assert_eq!(failures, [("4xx", "denied", 2)]);
}

#[test]
fn a_gauge_never_reads_below_zero() {
    let telemetry = Telemetry::new();
    telemetry.new_shard().decrement(Gauge::LinksUpstream, 1);
    assert_eq!(telemetry.gauge(Gauge::LinksUpstream), 0);
}

#[test]
fn series_over_the_limit_are_counted_together() {
    let telemetry = Telemetry::new();
    let (one, two) = (telemetry.new_shard(), telemetry.new_shard());
    for n in 0..MAX_SERIES + 7 {
        let series = one.series_id(&request_labels(&format!("s{n}")));
        one.record_request(series, &test_outcome(200, None));
    }
    assert_eq!(telemetry.count(Count::SeriesOverflowed), 7);
    // Known labels keep their series, on another shard too; new ones join the overflow series.
    let series = two.series_id(&request_labels("s0"));
    two.record_request(series, &test_outcome(200, None));
    let series = two.series_id(&request_labels("unheard-of"));
    two.record_request(series, &test_outcome(200, None));

    let summary = telemetry.series_summaries();
    let requests = |name: &str| {
        let series_summary = summary.iter().find(|series| series.labels.service == name);
        series_summary.map(|series| series.requests)
    };
    assert_eq!(summary.len(), MAX_SERIES + 1);
    assert_eq!(requests("s0"), Some(2));
    assert_eq!(requests("other"), Some(8));
    assert_eq!(requests("unheard-of"), None);
}

#[test]
fn two_writers_and_a_reader_lose_nothing() {
    let telemetry = Telemetry::new();
    let (start, running) = (Barrier::new(3), AtomicUsize::new(2));
    let write_metrics = |shard: MetricsShard| {
        let series = shard.series_id(&request_labels("a"));
        start.wait();
        for n in 0..REQUESTS {
            let reason = (n % 2 == 1).then_some("denied");
            shard.record_request(series, &test_outcome(200, reason));
            shard.add(Count::Retries, 1);
        }
        running.fetch_sub(1, Ordering::Release);
    };
    thread::scope(|scope| {
        for shard in [telemetry.new_shard(), telemetry.new_shard()] {
            scope.spawn(|| write_metrics(shard));
        }
        start.wait();
        let mut last_count = 0;
        while running.load(Ordering::Acquire) > 0 {
            let now = telemetry.count(Count::Retries);
            assert!(now >= last_count, "a count fell from {last_count} to {now}");
            last_count = now;
            let _page_is_never_torn = telemetry.series_summaries();
        }
    });
    let summary = telemetry.series_summaries();
    assert_eq!(summary[0].requests, 2 * REQUESTS);
    assert_eq!(summary[0].success, REQUESTS);
    assert_eq!(summary[0].durations.count(), 2 * REQUESTS);
    assert_eq!(summary[0].bytes_out, 6 * REQUESTS);
    assert_eq!(telemetry.count(Count::Retries), 2 * REQUESTS);
}

const REQUESTS: u64 = 100_000;
