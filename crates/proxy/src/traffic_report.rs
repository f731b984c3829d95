//! Creates traffic reports for the control plane. A report contains the changes of the sidecar's counts since the
//! previous report, for a bounded number of series and rules.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_discovery::traffic::{MAX_RULES, MAX_SERIES};
use leno_discovery::{Direction, RuleMatches, TrafficReport, TrafficSeries};
use leno_model::{Name, Reason, RuleKind, ServiceAccount};
use leno_telemetry::{ChangeTracker, RuleChange, SeriesChange, Telemetry, read_stat_usage};

/// Creates traffic reports, and stores the state of the previous report. If a report is lost with its stream, its
/// counts are not sent again; the sidecar's own metrics remain complete.
pub(crate) struct TrafficReporter {
    change_tracker: ChangeTracker,
    /// The time of the previous report, or of the last interval without traffic.
    reported_at: Instant,
    /// The CPU time of this process at the last report.
    reported_cpu_time: Duration,
}

impl TrafficReporter {
    pub(crate) fn from_telemetry(telemetry: Arc<Telemetry>) -> Self {
        Self {
            change_tracker: ChangeTracker::from_telemetry(telemetry),
            reported_at: Instant::now(),
            reported_cpu_time: Duration::ZERO,
        }
    }

    /// Starts reporting on a new stream. Counts from the time without a stream are skipped, because the control
    /// plane could not assign them to a time.
    pub(crate) fn start_stream(&mut self, now: Instant) {
        self.change_tracker.take_changes(MAX_SERIES, usize::MAX);
        self.reported_at = now;
        self.reported_cpu_time =
            read_stat_usage(std::process::id()).map_or(self.reported_cpu_time, |usage| usage.cpu);
    }

    /// Returns a report of the changes since the last report; `None` if no request has ended and no connection
    /// was opened since.
    pub(crate) fn take_report(&mut self, now: Instant) -> Option<TrafficReport> {
        let changes = self.change_tracker.take_changes(MAX_SERIES, MAX_RULES);
        let usage = read_stat_usage(std::process::id()).ok();
        let cpu_time = usage.map_or(self.reported_cpu_time, |usage| usage.cpu);
        if changes.series.is_empty() {
            // The control plane divides counts by the span of their report, which begins after an interval without
            // traffic.
            (self.reported_at, self.reported_cpu_time) = (now, cpu_time);
            return None;
        }
        let report = TrafficReport {
            span: now.duration_since(self.reported_at),
            series: changes.series.iter().map(traffic_series).collect(),
            overflowed: u32::try_from(changes.overflowed).unwrap_or(u32::MAX),
            cpu: cpu_time.saturating_sub(self.reported_cpu_time),
            memory_kib: usage.map_or(0, |usage| usage.own_kib),
            rules: changes.rules.iter().filter_map(rule_matches).collect(),
        };
        (self.reported_at, self.reported_cpu_time) = (now, cpu_time);
        Some(report)
    }
}

/// Converts the changes of a series. Labels that are not valid names become `None`.
fn traffic_series(change: &SeriesChange) -> TrafficSeries {
    let labels = &change.labels;
    let reasons = change.reasons.iter();
    TrafficSeries {
        direction: match labels.direction {
            "inbound" => Direction::Inbound,
            _ => Direction::Outbound,
        },
        service: labels.service.parse().ok(),
        port: labels.port,
        route: labels.route.parse().ok(),
        peer: labels.peer.split_once('/').and_then(parse_account),
        // Byte streams, and requests of series with long-lived streams, are counted when they begin.
        opened: match (labels.protocol, change.streams_opened | change.streams_ended) {
            ("tcp" | "outside", _) => Some(change.opened),
            (_, 0) => None,
            (_, _) => Some(change.distinct_request_count()),
        },
        classes: change.classes,
        failed: change.failed,
        reasons: reasons.map(|(reason, count)| (Reason::from_label(reason), *count)).collect(),
        bytes_in: change.bytes_in,
        bytes_out: change.bytes_out,
        durations: change
            .durations
            .buckets()
            .map(|(bucket, count)| (bucket, count.into()))
            .collect(),
    }
}

/// Converts the matches of a rule; `None` for overflow series, which have no rule name.
fn rule_matches(change: &RuleChange) -> Option<RuleMatches> {
    let labels = &change.labels;
    Some(RuleMatches {
        kind: RuleKind::from_word(labels.kind)?,
        namespace: Name::new(&labels.namespace).ok()?,
        name: Name::new(&labels.name).ok()?,
        rule: labels.rule.clone(),
        matches: change.matches,
    })
}

/// Parses the namespace and name of a peer's account; `None` if they are not valid.
fn parse_account((namespace, name): (&str, &str)) -> Option<ServiceAccount> {
    ServiceAccount::new(namespace, name).ok()
}

#[cfg(test)]
mod tests {
    use leno_telemetry::{RequestLabels, RequestRecord};

    use super::*;

    #[test]
    fn connections_are_reported_when_they_are_opened() {
        let telemetry = Telemetry::new();
        let metrics = telemetry.new_shard();
        let mut reporter = TrafficReporter::from_telemetry(Arc::clone(&telemetry));
        let started = Instant::now();
        reporter.start_stream(started);
        let labels = |protocol| RequestLabels {
            direction: "outbound",
            service: "bookinfo/cache".to_owned(),
            port: 6379,
            route: String::new(),
            peer: String::new(),
            protocol,
        };
        metrics.count_opened(metrics.series_id(&labels("tcp")));
        metrics.count_opened(metrics.series_id(&labels("outside")));
        let report = reporter.take_report(started + Duration::from_secs(5)).unwrap();
        let opened: Vec<_> = report.series.iter().map(|series| series.opened).collect();
        assert_eq!(opened, [Some(1), Some(1)]);
    }

    #[test]
    fn a_report_contains_only_changes_and_is_omitted_without_any() {
        let telemetry = Telemetry::new();
        let metrics = telemetry.new_shard();
        let mut reporter = TrafficReporter::from_telemetry(Arc::clone(&telemetry));
        let started = Instant::now();
        reporter.start_stream(started);
        assert_eq!(reporter.take_report(started), None);
        let labels = RequestLabels {
            direction: "inbound",
            service: "bookinfo/ratings".to_owned(),
            port: 9080,
            route: String::new(),
            peer: "bookinfo/reviews".to_owned(),
            protocol: "http",
        };
        let outcome = RequestRecord {
            status: 403,
            reason: Some(Reason::Denied.label()),
            grpc: None,
            duration: Duration::from_millis(3),
            bytes_in: 1,
            bytes_out: 2,
        };
        metrics.record_request(metrics.series_id(&labels), &outcome);
        let report = reporter.take_report(started + Duration::from_secs(5)).unwrap();
        assert_eq!(report.span, Duration::from_secs(5));
        assert!(report.memory_kib > 0);
        let [series] = &report.series[..] else { panic!("{report:?}") };
        assert_eq!(series.direction, Direction::Inbound);
        assert_eq!(series.peer, ServiceAccount::new("bookinfo", "reviews").ok());
        assert_eq!((series.request_count(), series.failed, series.durations.len()), (1, 1, 1));
        assert_eq!(series.opened, None, "requests are not opened");
        assert_eq!(series.reasons, [(Some(Reason::Denied), 1)]);
        assert_eq!(reporter.take_report(started + Duration::from_secs(10)), None);
        metrics.record_request(metrics.series_id(&labels), &outcome);
        let report = reporter.take_report(started + Duration::from_secs(15)).unwrap();
        assert_eq!(report.span, Duration::from_secs(5), "idle time is not reported");
        metrics.record_request(metrics.series_id(&labels), &outcome);
        reporter.start_stream(started + Duration::from_secs(3600));
        assert_eq!(reporter.take_report(started + Duration::from_secs(3605)), None);
    }
}
