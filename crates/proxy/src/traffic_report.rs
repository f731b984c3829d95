//! Traffic counts reported to the control plane: differences only, within bounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_discovery::traffic::{RULES_MAX, SERIES_MAX};
use leno_discovery::{Direction, RuleMatches, TrafficReport, TrafficSeries};
use leno_model::{Name, Reason, RuleKind, ServiceAccount};
use leno_telemetry::{ChangeTracker, RuleChange, SeriesChange, Telemetry, read_spent};

/// The state of the last report to the control plane. Counts in a report that was lost with its stream are not
/// sent again; the sidecar's own metrics are complete.
pub(crate) struct TrafficReporter {
    changes: ChangeTracker,
    reported: Instant,
    /// CPU time at the last report.
    cpu: Duration,
}

impl TrafficReporter {
    pub(crate) fn from_telemetry(telemetry: Arc<Telemetry>) -> Self {
        Self {
            changes: ChangeTracker::from_telemetry(telemetry),
            reported: Instant::now(),
            cpu: Duration::ZERO,
        }
    }

    /// Begins a stream. Counts from the time without a stream are skipped: the control plane could not assign
    /// them to a time.
    pub(crate) fn start_stream(&mut self, now: Instant) {
        self.changes.take_changes(SERIES_MAX, usize::MAX);
        self.reported = now;
        self.cpu = read_spent(std::process::id()).map_or(self.cpu, |spent| spent.cpu);
    }

    /// Returns the differences since the last report, if any request has ended since.
    pub(crate) fn take_changes(&mut self, now: Instant) -> Option<TrafficReport> {
        let taken = self.changes.take_changes(SERIES_MAX, RULES_MAX);
        let spent = read_spent(std::process::id()).ok();
        let cpu = spent.map_or(self.cpu, |spent| spent.cpu);
        if taken.series.is_empty() {
            // Rates cover only intervals with traffic.
            (self.reported, self.cpu) = (now, cpu);
            return None;
        }
        let traffic = TrafficReport {
            span: now.duration_since(self.reported),
            series: taken.series.iter().map(traffic_series).collect(),
            overflowed: u32::try_from(taken.overflowed).unwrap_or(u32::MAX),
            cpu: cpu.saturating_sub(self.cpu),
            memory_kib: spent.map_or(0, |spent| spent.own_kib),
            rules: taken.rules.iter().filter_map(rule_hits).collect(),
        };
        (self.reported, self.cpu) = (now, cpu);
        Some(traffic)
    }
}

/// Labels come from rules, services and identities; other values are left empty.
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
        opened: match (labels.protocol, change.streams_opened | change.streams_ended) {
            ("tcp" | "outside", _) => Some(change.opened),
            (_, 0) => None,
            (_, _) => Some(change.counted_once()),
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

/// Overflow series have no rule name and are not reported.
fn rule_hits(change: &RuleChange) -> Option<RuleMatches> {
    let labels = &change.labels;
    Some(RuleMatches {
        kind: RuleKind::from_word(labels.kind)?,
        namespace: Name::new(&labels.namespace).ok()?,
        name: Name::new(&labels.name).ok()?,
        rule: labels.rule.clone(),
        matches: change.matches,
    })
}

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
        let shard = telemetry.new_shard();
        let mut counted = TrafficReporter::from_telemetry(Arc::clone(&telemetry));
        let began = Instant::now();
        counted.start_stream(began);
        let labels = |protocol| RequestLabels {
            direction: "outbound",
            service: "bookinfo/cache".to_owned(),
            port: 6379,
            route: String::new(),
            peer: String::new(),
            protocol,
        };
        shard.count_opened(shard.series_id(&labels("tcp")));
        shard.count_opened(shard.series_id(&labels("outside")));
        let reported = counted.take_changes(began + Duration::from_secs(5)).unwrap();
        let opened: Vec<_> = reported.series.iter().map(|series| series.opened).collect();
        assert_eq!(opened, [Some(1), Some(1)]);
    }

    #[test]
    fn only_what_is_new_is_reported_and_nothing_when_nothing_is() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let mut counted = TrafficReporter::from_telemetry(Arc::clone(&telemetry));
        let began = Instant::now();
        counted.start_stream(began);
        assert_eq!(counted.take_changes(began), None);
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
        shard.record_request(shard.series_id(&labels), &outcome);
        let reported = counted.take_changes(began + Duration::from_secs(5)).unwrap();
        assert_eq!(reported.span, Duration::from_secs(5));
        assert!(reported.memory_kib > 0);
        let [series] = &reported.series[..] else { panic!("{reported:?}") };
        assert_eq!(series.direction, Direction::Inbound);
        assert_eq!(series.peer, ServiceAccount::new("bookinfo", "reviews").ok());
        assert_eq!((series.request_count(), series.failed, series.durations.len()), (1, 1, 1));
        assert_eq!(series.opened, None, "requests are not opened");
        assert_eq!(series.reasons, [(Some(Reason::Denied), 1)]);
        assert_eq!(counted.take_changes(began + Duration::from_secs(10)), None);
        shard.record_request(shard.series_id(&labels), &outcome);
        let reported = counted.take_changes(began + Duration::from_secs(15)).unwrap();
        assert_eq!(reported.span, Duration::from_secs(5), "idle time is not told");
        shard.record_request(shard.series_id(&labels), &outcome);
        counted.start_stream(began + Duration::from_secs(3600));
        assert_eq!(counted.take_changes(began + Duration::from_secs(3605)), None);
    }
}
