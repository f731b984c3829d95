//! Computes the changes of all request series and rule matches since the previous reading, for traffic reports to
//! the control plane. A reading is one call of [`ChangeTracker::take_changes`].

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::histogram::SparseHistogram;
use crate::outcome_table::OutcomeKey;
use crate::rule::RuleLabels;
use crate::series::{RequestLabels, SeriesTotals};
use crate::status::CLASS_COUNT;
use crate::telemetry::Telemetry;

/// Computes the changes of all series and rules since the previous reading, whose values it stores: about 512 bytes
/// for each series.
#[derive(Debug)]
pub struct ChangeTracker {
    telemetry: Arc<Telemetry>,
    /// The values of each series when it was last reported.
    previous_values: BTreeMap<RequestLabels, SeriesValues>,
    /// The total matches of each rule when it was last reported.
    previous_rule_matches: BTreeMap<RuleLabels, u64>,
}

/// The changes of one reading.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TelemetryChanges {
    /// The changed series, ordered by labels.
    pub series: Vec<SeriesChange>,
    /// The number of further changed series, which are merged under labels without a service.
    pub overflowed: usize,
    /// The rules that matched, ordered by labels.
    pub rules: Vec<RuleChange>,
}

/// The matches of a rule between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleChange {
    /// The labels of the rule.
    pub labels: RuleLabels,
    /// The number of matches.
    pub matches: u64,
}

/// The changes of one series between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesChange {
    /// The labels of the series.
    pub labels: RequestLabels,
    /// The number of TCP connections opened or rejected.
    pub opened: u64,
    /// The number of streams that were opened. The request of a stream is recorded when the stream ends.
    pub streams_opened: u64,
    /// The number of completed requests that had a stream, a subset of all completed requests.
    pub streams_ended: u64,
    /// The number of completed requests, by class of status: no response, 1xx to 5xx.
    pub classes: [u64; CLASS_COUNT],
    /// The number of failed requests.
    pub failed: u64,
    /// The number of failed requests by reason; failures without a reason are not included.
    pub reasons: BTreeMap<&'static str, u64>,
    /// Request body bytes received from clients.
    pub bytes_in: u64,
    /// Response body bytes sent to clients.
    pub bytes_out: u64,
    /// The durations of the completed requests.
    pub durations: SparseHistogram,
}

impl ChangeTracker {
    /// Creates a tracker whose first reading covers all counts since the start of the process.
    #[must_use]
    pub fn from_telemetry(telemetry: Arc<Telemetry>) -> Self {
        Self { telemetry, previous_values: BTreeMap::new(), previous_rule_matches: BTreeMap::new() }
    }

    /// Takes the changes since the previous reading. Returns at most `max_series` series: the busiest series, and
    /// one for each direction that merges the others. Returns at most `max_rules` rules, the busiest first;
    /// further rules are part of the next reading. Rules are returned only together with series.
    pub fn take_changes(&mut self, max_series: usize, max_rules: usize) -> TelemetryChanges {
        let mut series = Vec::new();
        for (labels, cells) in self.telemetry.series_cells() {
            let current =
                SeriesValues::from_totals(&SeriesTotals::sum_shards(labels.clone(), &cells));
            let previous = self.previous_values.get(&labels);
            if let Some(change) = current.changes_since(previous, &labels) {
                self.previous_values.insert(labels, current);
                series.push(change);
            }
        }
        let overflowed = merge_smallest(&mut series, max_series);
        let rules = if series.is_empty() { Vec::new() } else { self.take_rules(max_rules) };
        TelemetryChanges { series, overflowed, rules }
    }

    /// Takes the matches of at most `max_rules` rules, the busiest, each since the reading that last contained it.
    /// Returns them ordered by labels.
    fn take_rules(&mut self, max_rules: usize) -> Vec<RuleChange> {
        let rule_change = |(labels, current): (RuleLabels, u64)| {
            let previous = self.previous_rule_matches.get(&labels).copied().unwrap_or_default();
            let matches = current.saturating_sub(previous);
            (matches > 0).then_some(RuleChange { labels, matches })
        };
        let mut rules: Vec<_> =
            self.telemetry.matched_rules().into_iter().filter_map(rule_change).collect();
        rules.sort_by_key(|change| std::cmp::Reverse(change.matches));
        rules.truncate(max_rules);
        for RuleChange { labels, matches } in &rules {
            *self.previous_rule_matches.entry(labels.clone()).or_default() += matches;
        }
        rules.sort_by(|first, second| first.labels.cmp(&second.labels));
        rules
    }
}

/// Retains the busiest series and merges the others by direction. Returns the number of merged series.
fn merge_smallest(series: &mut Vec<SeriesChange>, max_series: usize) -> usize {
    if series.len() <= max_series {
        return 0;
    }
    series.sort_by_key(|change| {
        std::cmp::Reverse(change.request_count().max(change.opened).max(change.streams_opened))
    });
    // Leaves room for one merged series of each direction.
    let mut smallest = series.split_off(max_series.saturating_sub(DIRECTION_COUNT));
    let overflowed = smallest.len();
    let mut merged_series: BTreeMap<RequestLabels, SeriesChange> = BTreeMap::new();
    for mut change in smallest.drain(..) {
        let labels = RequestLabels { service: String::new(), ..change.labels.overflow_labels() };
        change.labels = labels.clone();
        match merged_series.get_mut(&labels) {
            Some(sum) => sum.merge(&change),
            None => drop(merged_series.insert(labels, change)),
        }
    }
    series.extend(merged_series.into_values());
    series.sort_by(|first, second| first.labels.cmp(&second.labels));
    overflowed
}

impl SeriesChange {
    /// Returns the number of requests, each counted once: a request with a stream when the stream opens, another
    /// request when it completes.
    #[must_use]
    pub fn distinct_request_count(&self) -> u64 {
        self.request_count().saturating_add(self.streams_opened).saturating_sub(self.streams_ended)
    }

    /// Returns the number of completed requests.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.classes.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds the counts of another series.
    fn merge(&mut self, other: &Self) {
        for (sum, added) in self.classes.iter_mut().zip(other.classes) {
            *sum = sum.saturating_add(added);
        }
        for (reason, added) in &other.reasons {
            let sum = self.reasons.entry(reason).or_default();
            *sum = sum.saturating_add(*added);
        }
        self.opened = self.opened.saturating_add(other.opened);
        self.streams_opened = self.streams_opened.saturating_add(other.streams_opened);
        self.streams_ended = self.streams_ended.saturating_add(other.streams_ended);
        self.failed = self.failed.saturating_add(other.failed);
        self.bytes_in = self.bytes_in.saturating_add(other.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(other.bytes_out);
        self.durations.merge(&other.durations);
    }
}

/// The values of a series at one reading.
#[derive(Debug, Default)]
struct SeriesValues {
    opened: u64,
    streams_opened: u64,
    streams_ended: u64,
    /// The number of requests of each outcome, ordered by outcome.
    outcomes: Vec<(OutcomeKey, u64)>,
    bytes_in: u64,
    bytes_out: u64,
    /// The number and count of each non-empty bucket of the durations, in order of the numbers.
    buckets: Vec<(u8, u64)>,
}

impl SeriesValues {
    fn from_totals(totals: &SeriesTotals) -> Self {
        Self {
            opened: totals.opened,
            streams_opened: totals.streams_opened,
            streams_ended: totals.streams_ended,
            outcomes: totals.requests.iter().map(|(outcome, count)| (*outcome, *count)).collect(),
            bytes_in: totals.bytes_in,
            bytes_out: totals.bytes_out,
            buckets: totals.durations.buckets().collect(),
        }
    }

    /// Returns the changes since `previous`; `None` if no request completed, and no TCP connection or stream
    /// was opened. If a thread counts concurrently, some of its counts may be part of this reading and others
    /// part of the next reading.
    fn changes_since(
        &self,
        previous: Option<&Self>,
        labels: &RequestLabels,
    ) -> Option<SeriesChange> {
        let zero_values = Self::default();
        let previous = previous.unwrap_or(&zero_values);
        let mut change = SeriesChange {
            labels: labels.clone(),
            opened: self.opened.saturating_sub(previous.opened),
            streams_opened: self.streams_opened.saturating_sub(previous.streams_opened),
            streams_ended: self.streams_ended.saturating_sub(previous.streams_ended),
            classes: [0; CLASS_COUNT],
            failed: 0,
            reasons: BTreeMap::new(),
            bytes_in: self.bytes_in.saturating_sub(previous.bytes_in),
            bytes_out: self.bytes_out.saturating_sub(previous.bytes_out),
            durations: count_increases(&self.buckets, &previous.buckets).collect(),
        };
        for (outcome, count) in count_increases(&self.outcomes, &previous.outcomes) {
            if let Some(sum) = change.classes.get_mut(outcome.class as usize) {
                *sum = sum.saturating_add(count);
            }
            if !outcome.is_success() {
                change.failed = change.failed.saturating_add(count);
            }
            if !outcome.reason.is_empty() {
                *change.reasons.entry(outcome.reason).or_default() += count;
            }
        }
        let has_changed =
            change.request_count() > 0 || change.opened > 0 || change.streams_opened > 0;
        has_changed.then_some(change)
    }
}

/// Returns the increase of each key that has increased. Both lists are ordered by key.
fn count_increases<'a, K: Ord + Copy>(
    current: &'a [(K, u64)],
    previous_counts: &'a [(K, u64)],
) -> impl Iterator<Item = (K, u64)> + 'a {
    let previous_count = |key: &K| {
        let index = previous_counts.binary_search_by(|(candidate, _)| candidate.cmp(key)).ok();
        index.and_then(|index| previous_counts.get(index)).map_or(0, |(_, count)| *count)
    };
    current.iter().filter_map(move |(key, count)| {
        let increase = count.saturating_sub(previous_count(key));
        (increase > 0).then_some((*key, increase))
    })
}

/// The number of directions: inbound and outbound.
const DIRECTION_COUNT: usize = 2;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::grpc::GrpcStatus;
    use crate::series::RequestRecord;
    use crate::shard::MetricsShard;

    fn request_labels(direction: &'static str, service: &str) -> RequestLabels {
        RequestLabels {
            direction,
            service: service.to_owned(),
            port: 80,
            route: String::new(),
            peer: String::new(),
            protocol: "http",
        }
    }

    fn count_request(
        shard: &MetricsShard,
        labels: &RequestLabels,
        status: u16,
        reason: Option<&'static str>,
    ) {
        let outcome = RequestRecord {
            status,
            reason,
            grpc: None,
            duration: Duration::from_millis(2),
            bytes_in: 3,
            bytes_out: 5,
        };
        shard.record_request(shard.series_id(labels), &outcome);
    }

    #[test]
    fn each_reading_returns_changes_only() {
        let telemetry = Telemetry::new();
        let (first_shard, second_shard) = (telemetry.new_shard(), telemetry.new_shard());
        let mut tracker = ChangeTracker::from_telemetry(Arc::clone(&telemetry));
        assert_eq!(tracker.take_changes(9, 9), TelemetryChanges::default());
        let ratings = request_labels("outbound", "a/ratings");
        count_request(&first_shard, &ratings, 200, None);
        count_request(&second_shard, &ratings, 503, Some("no-endpoint"));
        let first = tracker.take_changes(9, 9).series;
        assert_eq!((first.len(), first[0].request_count(), first[0].failed), (1, 2, 1));
        assert_eq!(first[0].classes, [0, 0, 1, 0, 0, 1]);
        assert_eq!(first[0].reasons, BTreeMap::from([("no-endpoint", 1)]));
        assert_eq!((first[0].bytes_in, first[0].bytes_out), (6, 10));
        assert_eq!(first[0].durations.count(), 2);
        assert_eq!(tracker.take_changes(9, 9), TelemetryChanges::default());
        count_request(&first_shard, &ratings, 200, None);
        let second = tracker.take_changes(9, 9).series;
        assert_eq!((second[0].request_count(), second[0].failed, second[0].bytes_in), (1, 0, 3));
        assert_eq!((second[0].durations.count(), second[0].reasons.len()), (1, 0));
    }

    #[test]
    fn an_open_connection_is_reported_before_its_end() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let mut tracker = ChangeTracker::from_telemetry(Arc::clone(&telemetry));
        let cache = RequestLabels { protocol: "tcp", ..request_labels("outbound", "a/cache") };
        (0..3).for_each(|_| shard.count_opened(shard.series_id(&cache)));
        let first = tracker.take_changes(9, 9).series;
        assert_eq!((first.len(), first[0].opened, first[0].request_count()), (1, 3, 0));
        assert_eq!(tracker.take_changes(9, 9), TelemetryChanges::default());
        count_request(&shard, &cache, 0, None);
        let second = tracker.take_changes(9, 9).series;
        assert_eq!((second[0].opened, second[0].request_count(), second[0].failed), (0, 1, 0));
    }

    #[test]
    fn a_request_with_a_stream_counts_once() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let mut tracker = ChangeTracker::from_telemetry(telemetry);
        let events = request_labels("outbound", "a/events");
        let series = shard.series_id(&events);
        (0..3).for_each(|_| shard.count_stream_opened(series));
        count_request(&shard, &events, 200, None);
        let first = tracker.take_changes(9, 9).series;
        assert_eq!((first[0].distinct_request_count(), first[0].request_count()), (4, 1));
        shard.count_stream_ended(series);
        count_request(&shard, &events, 200, None);
        let second = tracker.take_changes(9, 9).series;
        assert_eq!((second[0].distinct_request_count(), second[0].request_count()), (0, 1));
    }

    #[test]
    fn opened_connections_count_for_the_busiest_series() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let cache = RequestLabels { protocol: "tcp", ..request_labels("outbound", "a/cache") };
        (0..9).for_each(|_| shard.count_opened(shard.series_id(&cache)));
        for service in ["a/one", "a/three", "a/two"] {
            count_request(&shard, &request_labels("outbound", service), 200, None);
        }
        let TelemetryChanges { series, overflowed, .. } =
            ChangeTracker::from_telemetry(telemetry).take_changes(3, 3);
        let services: Vec<&str> = series.iter().map(|change| &*change.labels.service).collect();
        assert_eq!((services, overflowed), (vec!["", "a/cache"], 3));
    }

    #[test]
    fn a_grpc_status_alone_makes_a_call_a_failure() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let grpc = Some(GrpcStatus::Unavailable);
        let outcome = RequestRecord {
            status: 200,
            reason: None,
            grpc,
            duration: Duration::ZERO,
            bytes_in: 0,
            bytes_out: 0,
        };
        shard.record_request(shard.series_id(&request_labels("inbound", "a/x")), &outcome);
        let changes = ChangeTracker::from_telemetry(telemetry).take_changes(9, 9);
        assert_eq!((changes.series[0].request_count(), changes.series[0].failed), (1, 1));
    }

    #[test]
    fn series_beyond_the_limit_are_merged_without_loss() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        for service in 0..10_u32 {
            for _ in 0..=service {
                count_request(
                    &shard,
                    &request_labels("outbound", &format!("a/s{service}")),
                    200,
                    None,
                );
            }
            count_request(&shard, &request_labels("inbound", &format!("a/s{service}")), 500, None);
        }
        let TelemetryChanges { series, overflowed, .. } =
            ChangeTracker::from_telemetry(telemetry).take_changes(5, 5);
        assert_eq!((series.len(), overflowed), (5, 17));
        let services: Vec<&str> = series.iter().map(|change| &*change.labels.service).collect();
        assert_eq!(services, ["", "", "a/s7", "a/s8", "a/s9"]);
        let sum =
            |series: &[SeriesChange]| series.iter().map(SeriesChange::request_count).sum::<u64>();
        assert_eq!(sum(&series), 55 + 10);
        assert_eq!(series[0].failed, 10);
    }

    #[test]
    fn rule_matches_are_reported_with_requests_and_the_busiest_rules_first() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let mut tracker = ChangeTracker::from_telemetry(Arc::clone(&telemetry));
        let rule = |name: &str| RuleLabels { name: name.to_owned(), ..RuleLabels::default() };
        for (name, matches) in [("a", 1), ("b", 3), ("c", 2)] {
            (0..matches).for_each(|_| shard.count_match(shard.rule_number(&rule(name))));
        }
        assert_eq!(tracker.take_changes(9, 2), TelemetryChanges::default(), "no request has ended");
        let reported = |changes: TelemetryChanges| -> Vec<(String, u64)> {
            changes.rules.into_iter().map(|change| (change.labels.name, change.matches)).collect()
        };
        let rule_matches = |name: &str, matches| (name.to_owned(), matches);
        count_request(&shard, &request_labels("inbound", "a/x"), 200, None);
        assert_eq!(
            reported(tracker.take_changes(9, 2)),
            [rule_matches("b", 3), rule_matches("c", 2)]
        );
        shard.count_match(shard.rule_number(&rule("b")));
        count_request(&shard, &request_labels("inbound", "a/x"), 200, None);
        assert_eq!(
            reported(tracker.take_changes(9, 2)),
            [rule_matches("a", 1), rule_matches("b", 1)]
        );
        count_request(&shard, &request_labels("inbound", "a/x"), 200, None);
        assert_eq!(reported(tracker.take_changes(9, 2)), []);
    }
}
