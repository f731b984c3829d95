//! Changes of every series since the last reading.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::histogram::SparseHistogram;
use crate::outcome_table::OutcomeKey;
use crate::rule::RuleLabels;
use crate::series::{RequestLabels, SeriesTotals};
use crate::status::CLASSES;
use crate::telemetry::Telemetry;

/// Computes the changes of all series since the last reading. It stores the last values: about half a KiB for
/// each series.
#[derive(Debug)]
pub struct ChangeTracker {
    telemetry: Arc<Telemetry>,
    seen: BTreeMap<RequestLabels, LastValues>,
    rules_seen: BTreeMap<RuleLabels, u64>,
}

/// The changes of one reading.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TelemetryChanges {
    /// The changed series, ordered by labels.
    pub series: Vec<SeriesChange>,
    /// The number of further changed series; they are merged under labels without a service.
    pub overflowed: usize,
    /// The rules that matched, ordered by labels.
    pub rules: Vec<RuleChange>,
}

/// The matches of a rule between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleChange {
    /// Its labels.
    pub labels: RuleLabels,
    /// The number of matches.
    pub matches: u64,
}

/// The changes of one series between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesChange {
    /// Its labels.
    pub labels: RequestLabels,
    /// The number of TCP connections opened or rejected.
    pub opened: u64,
    /// The number of streams that began. Their requests are recorded at their end.
    pub streams_opened: u64,
    /// The number of completed requests with streams, a subset of all completed ones.
    pub streams_ended: u64,
    /// The number of completed requests, by class of status: no response, 1xx to 5xx.
    pub classes: [u64; CLASSES],
    /// The number of failures.
    pub failed: u64,
    /// The failures by reason.
    pub reasons: BTreeMap<&'static str, u64>,
    /// Request body bytes received from clients.
    pub bytes_in: u64,
    /// Response body bytes sent to clients.
    pub bytes_out: u64,
    /// The durations.
    pub durations: SparseHistogram,
}

impl ChangeTracker {
    /// Starts without stored values: the first reading covers everything since the start.
    #[must_use]
    pub fn from_telemetry(telemetry: Arc<Telemetry>) -> Self {
        Self { telemetry, seen: BTreeMap::new(), rules_seen: BTreeMap::new() }
    }

    /// Takes the changes since the last reading: at most `series_max` series (the busiest ones, and one for
    /// each direction that sums up the others) and at most `rules_max` rules. Further rules are part of
    /// the next reading, the busiest first. Rules wait until a request has completed.
    pub fn take_changes(&mut self, series_max: usize, rules_max: usize) -> TelemetryChanges {
        let mut series = Vec::new();
        for (labels, cells) in self.telemetry.series_cells() {
            let now = LastValues::from_totals(&SeriesTotals::sum_shards(labels.clone(), &cells));
            let before = self.seen.get(&labels);
            if let Some(change) = now.changes_since(before, &labels) {
                self.seen.insert(labels, now);
                series.push(change);
            }
        }
        let overflowed = merge_rest(&mut series, series_max);
        let rules = if series.is_empty() { Vec::new() } else { self.take_rules(rules_max) };
        TelemetryChanges { series, overflowed, rules }
    }

    fn take_rules(&mut self, rules_max: usize) -> Vec<RuleChange> {
        let new = |(labels, now): (RuleLabels, u64)| {
            let before = self.rules_seen.get(&labels).copied().unwrap_or_default();
            let matches = now.saturating_sub(before);
            (matches > 0).then_some(RuleChange { labels, matches })
        };
        let mut rules: Vec<_> =
            self.telemetry.matched_rules().into_iter().filter_map(new).collect();
        rules.sort_by_key(|change| std::cmp::Reverse(change.matches));
        rules.truncate(rules_max);
        for RuleChange { labels, matches } in &rules {
            *self.rules_seen.entry(labels.clone()).or_default() += matches;
        }
        rules.sort_by(|one, other| one.labels.cmp(&other.labels));
        rules
    }
}

/// Keeps the busiest series and sums up the others; returns the number of those.
fn merge_rest(series: &mut Vec<SeriesChange>, series_max: usize) -> usize {
    if series.len() <= series_max {
        return 0;
    }
    series.sort_by_key(|change| {
        std::cmp::Reverse(change.request_count().max(change.opened).max(change.streams_opened))
    });
    let mut rest = series.split_off(series_max.saturating_sub(DIRECTIONS));
    let overflowed = rest.len();
    let mut sums: BTreeMap<RequestLabels, SeriesChange> = BTreeMap::new();
    for mut change in rest.drain(..) {
        let labels = RequestLabels { service: String::new(), ..change.labels.overflow_labels() };
        change.labels = labels.clone();
        match sums.get_mut(&labels) {
            Some(sum) => sum.merge(&change),
            None => drop(sums.insert(labels, change)),
        }
    }
    series.extend(sums.into_values());
    series.sort_by(|one, other| one.labels.cmp(&other.labels));
    overflowed
}

impl SeriesChange {
    /// The number of requests, counting each once: with its stream, or at its end.
    #[must_use]
    pub fn counted_once(&self) -> u64 {
        self.request_count().saturating_add(self.streams_opened).saturating_sub(self.streams_ended)
    }

    /// The number of completed requests.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.classes.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    fn merge(&mut self, other: &Self) {
        for (sum, more) in self.classes.iter_mut().zip(other.classes) {
            *sum = sum.saturating_add(more);
        }
        for (reason, more) in &other.reasons {
            let sum = self.reasons.entry(reason).or_default();
            *sum = sum.saturating_add(*more);
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

/// The values of a series at the last reading.
#[derive(Debug, Default)]
struct LastValues {
    opened: u64,
    streams_opened: u64,
    streams_ended: u64,
    requests: Vec<(OutcomeKey, u64)>,
    bytes_in: u64,
    bytes_out: u64,
    buckets: Vec<(u8, u64)>,
}

impl LastValues {
    fn from_totals(totals: &SeriesTotals) -> Self {
        Self {
            opened: totals.opened,
            streams_opened: totals.streams_opened,
            streams_ended: totals.streams_ended,
            requests: totals.requests.iter().map(|(ending, count)| (*ending, *count)).collect(),
            bytes_in: totals.bytes_in,
            bytes_out: totals.bytes_out,
            buckets: totals.durations.buckets().collect(),
        }
    }

    /// The changes since `before`; `None` if no request completed, and no TCP connection or stream was opened.
    /// Of a thread that counts concurrently, some numbers may be part of this reading and others of the next.
    fn changes_since(&self, before: Option<&Self>, labels: &RequestLabels) -> Option<SeriesChange> {
        let nothing = Self::default();
        let before = before.unwrap_or(&nothing);
        let mut change = SeriesChange {
            labels: labels.clone(),
            opened: self.opened.saturating_sub(before.opened),
            streams_opened: self.streams_opened.saturating_sub(before.streams_opened),
            streams_ended: self.streams_ended.saturating_sub(before.streams_ended),
            classes: [0; CLASSES],
            failed: 0,
            reasons: BTreeMap::new(),
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
            durations: new(&self.buckets, &before.buckets).collect(),
        };
        for (ending, count) in new(&self.requests, &before.requests) {
            if let Some(sum) = change.classes.get_mut(ending.class as usize) {
                *sum = sum.saturating_add(count);
            }
            if !ending.is_success() {
                change.failed = change.failed.saturating_add(count);
            }
            if !ending.reason.is_empty() {
                *change.reasons.entry(ending.reason).or_default() += count;
            }
        }
        let is_new = change.request_count() > 0 || change.opened > 0 || change.streams_opened > 0;
        is_new.then_some(change)
    }
}

/// The increase of each key; both lists are ordered by key.
fn new<'a, K: Ord + Copy>(
    now: &'a [(K, u64)],
    before: &'a [(K, u64)],
) -> impl Iterator<Item = (K, u64)> + 'a {
    let before = |key: &K| {
        let found = before.binary_search_by(|(other, _)| other.cmp(key)).ok();
        found.and_then(|index| before.get(index)).map_or(0, |(_, count)| *count)
    };
    now.iter().filter_map(move |(key, count)| {
        let more = count.saturating_sub(before(key));
        (more > 0).then_some((*key, more))
    })
}

/// Inbound and outbound.
const DIRECTIONS: usize = 2;

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
        let (one, two) = (telemetry.new_shard(), telemetry.new_shard());
        let mut changes = ChangeTracker::from_telemetry(Arc::clone(&telemetry));
        assert_eq!(changes.take_changes(9, 9), TelemetryChanges::default());
        let ratings = request_labels("outbound", "a/ratings");
        count_request(&one, &ratings, 200, None);
        count_request(&two, &ratings, 503, Some("no-endpoint"));
        let first = changes.take_changes(9, 9).series;
        assert_eq!((first.len(), first[0].request_count(), first[0].failed), (1, 2, 1));
        assert_eq!(first[0].classes, [0, 0, 1, 0, 0, 1]);
        assert_eq!(first[0].reasons, BTreeMap::from([("no-endpoint", 1)]));
        assert_eq!((first[0].bytes_in, first[0].bytes_out), (6, 10));
        assert_eq!(first[0].durations.count(), 2);
        assert_eq!(changes.take_changes(9, 9), TelemetryChanges::default());
        count_request(&one, &ratings, 200, None);
        let second = changes.take_changes(9, 9).series;
        assert_eq!((second[0].request_count(), second[0].failed, second[0].bytes_in), (1, 0, 3));
        assert_eq!((second[0].durations.count(), second[0].reasons.len()), (1, 0));
    }

    #[test]
    fn an_open_connection_is_reported_before_it_ends_and_its_end_afterwards() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let mut changes = ChangeTracker::from_telemetry(Arc::clone(&telemetry));
        let cache = RequestLabels { protocol: "tcp", ..request_labels("outbound", "a/cache") };
        (0..3).for_each(|_| shard.count_opened(shard.series_id(&cache)));
        let first = changes.take_changes(9, 9).series;
        assert_eq!((first.len(), first[0].opened, first[0].request_count()), (1, 3, 0));
        assert_eq!(changes.take_changes(9, 9), TelemetryChanges::default());
        count_request(&shard, &cache, 0, None);
        let second = changes.take_changes(9, 9).series;
        assert_eq!((second[0].opened, second[0].request_count(), second[0].failed), (0, 1, 0));
    }

    #[test]
    fn a_request_with_a_stream_counts_once() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let mut changes = ChangeTracker::from_telemetry(telemetry);
        let events = request_labels("outbound", "a/events");
        let series = shard.series_id(&events);
        (0..3).for_each(|_| shard.count_stream_opened(series));
        count_request(&shard, &events, 200, None);
        let first = changes.take_changes(9, 9).series;
        assert_eq!((first[0].counted_once(), first[0].request_count()), (4, 1));
        shard.count_stream_ended(series);
        count_request(&shard, &events, 200, None);
        let second = changes.take_changes(9, 9).series;
        assert_eq!((second[0].counted_once(), second[0].request_count()), (0, 1));
    }

    #[test]
    fn the_busiest_are_those_with_the_most_open_connections_as_well() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let cache = RequestLabels { protocol: "tcp", ..request_labels("outbound", "a/cache") };
        (0..9).for_each(|_| shard.count_opened(shard.series_id(&cache)));
        for service in ["a/one", "a/three", "a/two"] {
            count_request(&shard, &request_labels("outbound", service), 200, None);
        }
        let TelemetryChanges { series, overflowed, .. } =
            ChangeTracker::from_telemetry(telemetry).take_changes(3, 3);
        let named: Vec<&str> = series.iter().map(|change| &*change.labels.service).collect();
        assert_eq!((named, overflowed), (vec!["", "a/cache"], 3));
    }

    #[test]
    fn a_call_that_failed_by_its_status_alone_is_a_failure() {
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
        let taken = ChangeTracker::from_telemetry(telemetry).take_changes(9, 9);
        assert_eq!((taken.series[0].request_count(), taken.series[0].failed), (1, 1));
    }

    #[test]
    fn the_busiest_keep_their_names_and_nothing_is_lost() {
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
        let named: Vec<&str> = series.iter().map(|change| &*change.labels.service).collect();
        assert_eq!(named, ["", "", "a/s7", "a/s8", "a/s9"]);
        let sum = |all: &[SeriesChange]| all.iter().map(SeriesChange::request_count).sum::<u64>();
        assert_eq!(sum(&series), 55 + 10);
        assert_eq!(series[0].failed, 10);
    }

    #[test]
    fn rule_matches_are_reported_with_the_requests_busiest_first() {
        let telemetry = Telemetry::new();
        let shard = telemetry.new_shard();
        let mut changes = ChangeTracker::from_telemetry(Arc::clone(&telemetry));
        let rule = |name: &str| RuleLabels { name: name.to_owned(), ..RuleLabels::default() };
        for (name, matches) in [("a", 1), ("b", 3), ("c", 2)] {
            (0..matches).for_each(|_| shard.count_match(shard.rule_number(&rule(name))));
        }
        assert_eq!(changes.take_changes(9, 2), TelemetryChanges::default(), "no request has ended");
        let reported = |taken: TelemetryChanges| -> Vec<(String, u64)> {
            taken.rules.into_iter().map(|change| (change.labels.name, change.matches)).collect()
        };
        let named = |name: &str, matches| (name.to_owned(), matches);
        count_request(&shard, &request_labels("inbound", "a/x"), 200, None);
        assert_eq!(reported(changes.take_changes(9, 2)), [named("b", 3), named("c", 2)]);
        shard.count_match(shard.rule_number(&rule("b")));
        count_request(&shard, &request_labels("inbound", "a/x"), 200, None);
        assert_eq!(reported(changes.take_changes(9, 2)), [named("a", 1), named("b", 1)]);
        count_request(&shard, &request_labels("inbound", "a/x"), 200, None);
        assert_eq!(reported(changes.take_changes(9, 2)), []);
    }
}
