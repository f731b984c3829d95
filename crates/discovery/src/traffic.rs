//! Defines the traffic reports that proxies send to the control plane, and converts them to and from the wire.

use std::time::Duration;

use leno_model::{Name, Reason, RouteName, RuleKind, ServiceAccount, ServiceName};

use crate::proto;
use crate::resource::{InvalidField, parse_account, parse_name};

/// A proxy's traffic since its last report, or since it connected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrafficReport {
    /// The time that the report covers.
    pub span: Duration,
    /// The series; at most [`MAX_SERIES`] are sent.
    pub series: Vec<TrafficSeries>,
    /// The number of series merged into the overflow series, which has no service, plus the number of series
    /// and rules that were excluded in transit.
    pub overflowed: u32,
    /// The CPU time that the proxy used in that span.
    pub cpu: Duration,
    /// The resident memory of the proxy, without file-backed pages.
    pub memory_kib: u64,
    /// The rules that matched; at most [`MAX_RULES`] are sent.
    pub rules: Vec<RuleMatches>,
}

/// The matches of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMatches {
    /// The kind of the object that contains the rule.
    pub kind: RuleKind,
    /// The namespace of that object.
    pub namespace: Name,
    /// The name of that object.
    pub name: Name,
    /// The rule in the object: its name, or its index from 0; empty if the object is one rule.
    pub rule: String,
    /// The number of matches.
    pub matches: u64,
}

/// Completed requests and byte streams with the same labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficSeries {
    /// The direction, relative to the workload.
    pub direction: Direction,
    /// The destination service; `None` for the overflow series.
    pub service: Option<ServiceName>,
    /// The port of the service.
    pub port: u16,
    /// The matching route.
    pub route: Option<RouteName>,
    /// The account of the verified peer.
    pub peer: Option<ServiceAccount>,
    /// The number of TCP connections that were opened or rejected. For HTTP, the number of requests of a series
    /// with streams, which are counted when they begin. `None` if all requests of the series are counted when
    /// they complete.
    pub opened: Option<u64>,
    /// The number of completed requests and connections by status class: no response, 1xx to 5xx.
    pub classes: [u64; STATUS_CLASSES],
    /// The number of failed requests and connections; at most the sum of `classes`.
    pub failed: u64,
    /// The failures by reason; `None` stands for reasons that this release does not know.
    pub reasons: Vec<(Option<Reason>, u64)>,
    /// Request body bytes received from clients.
    pub bytes_in: u64,
    /// Response body bytes sent to clients.
    pub bytes_out: u64,
    /// The numbers of requests by duration: indexes of histogram buckets in ascending order, each with its count.
    pub durations: Vec<(u8, u64)>,
}

impl TrafficSeries {
    /// Returns the number of requests that completed or began a stream, or of TCP connections that were
    /// opened or rejected. The result is at least the number of failures, because a request or connection
    /// that failed may have begun before the report.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.opened.map_or_else(|| self.ended_count(), |opened| opened.max(self.failed))
    }

    /// Returns the number of completed requests and TCP connections.
    #[must_use]
    pub fn ended_count(&self) -> u64 {
        self.classes.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// The direction of requests, relative to the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the workload.
    Inbound,
    /// From the workload.
    Outbound,
}

pub(crate) fn traffic_to_wire(traffic: &TrafficReport) -> proto::Traffic {
    proto::Traffic {
        span_ms: u32::try_from(traffic.span.as_millis()).unwrap_or(u32::MAX),
        series: traffic.series.iter().take(MAX_SERIES).map(series_to_wire).collect(),
        overflowed: traffic.overflowed,
        cpu_us: u64::try_from(traffic.cpu.as_micros()).unwrap_or(u64::MAX),
        memory_kib: traffic.memory_kib,
        rules: traffic.rules.iter().take(MAX_RULES).map(rule_to_wire).collect(),
    }
}

fn rule_to_wire(rule: &RuleMatches) -> proto::RuleMatches {
    proto::RuleMatches {
        kind: rule.kind.as_str().to_owned(),
        namespace: rule.namespace.to_string(),
        name: rule.name.to_string(),
        rule: rule.rule.clone(),
        matches: rule.matches,
    }
}

fn series_to_wire(series: &TrafficSeries) -> proto::TrafficSeries {
    let or_empty = |name: Option<String>| name.unwrap_or_default();
    let reason_to_wire = |(reason, requests): &(Option<Reason>, u64)| proto::TrafficReason {
        reason: reason.map(Reason::label).unwrap_or_default().to_owned(),
        requests: *requests,
    };
    // Pairs of a distance to the previous bucket and the number of requests.
    let mut durations = Vec::with_capacity(series.durations.len() * 2);
    let mut last_bucket = 0;
    for (bucket, requests) in &series.durations {
        durations.extend([u64::from(bucket.saturating_sub(last_bucket)), *requests]);
        last_bucket = *bucket;
    }
    proto::TrafficSeries {
        inbound: series.direction == Direction::Inbound,
        service: or_empty(series.service.as_ref().map(ToString::to_string)),
        port: series.port.into(),
        route: or_empty(series.route.as_ref().map(ToString::to_string)),
        peer: or_empty(series.peer.as_ref().map(ToString::to_string)),
        opened: series.opened,
        classes: series.classes.to_vec(),
        failed: series.failed,
        reasons: series.reasons.iter().take(MAX_REASONS).map(reason_to_wire).collect(),
        bytes_in: series.bytes_in,
        bytes_out: series.bytes_out,
        durations,
    }
}

/// Parses a report. Invalid series and rules, and those over the maximum, are excluded and counted as overflow:
/// a newer proxy may report labels unknown to this release, and statistics are no reason to end a stream.
pub(crate) fn traffic_from_wire(wire: proto::Traffic) -> TrafficReport {
    let received_count = wire.series.len().saturating_add(wire.rules.len());
    let parse_series = |(index, series)| {
        series_from_wire(series).inspect_err(|invalid| {
            tracing::debug!(index, field = %invalid.field, reason = %invalid.reason, "invalid traffic series ignored");
        })
    };
    let series = wire.series.into_iter().take(MAX_SERIES).enumerate();
    let series: Vec<_> = series.filter_map(|indexed| parse_series(indexed).ok()).collect();
    let rules = wire.rules.into_iter().take(MAX_RULES).filter_map(|rule| rule_from_wire(rule).ok());
    let rules: Vec<_> = rules.collect();
    let excluded_count =
        u32::try_from(received_count - series.len() - rules.len()).unwrap_or(u32::MAX);
    TrafficReport {
        span: Duration::from_millis(wire.span_ms.into()),
        series,
        overflowed: wire.overflowed.saturating_add(excluded_count),
        cpu: Duration::from_micros(wire.cpu_us),
        memory_kib: wire.memory_kib,
        rules,
    }
}

/// Parses a rule. Fails if its kind is unknown to this release.
fn rule_from_wire(wire: proto::RuleMatches) -> Result<RuleMatches, InvalidField> {
    if wire.rule.len() > MAX_RULE_BYTES {
        return Err(InvalidField::new("rule", format!("is longer than {MAX_RULE_BYTES} bytes")));
    }
    let kind = RuleKind::from_word(&wire.kind);
    Ok(RuleMatches {
        kind: kind.ok_or_else(|| InvalidField::new("kind", "is not a kind of rule"))?,
        namespace: parse_name("namespace", &wire.namespace)?,
        name: parse_name("name", &wire.name)?,
        rule: wire.rule,
        matches: wire.matches,
    })
}

fn series_from_wire(wire: proto::TrafficSeries) -> Result<TrafficSeries, InvalidField> {
    let mut classes = [0; STATUS_CLASSES];
    if wire.classes.len() != STATUS_CLASSES {
        return Err(InvalidField::new(
            "classes",
            format!("does not have {STATUS_CLASSES} numbers"),
        ));
    }
    classes.copy_from_slice(&wire.classes);
    if wire.reasons.len() > MAX_REASONS {
        return Err(InvalidField::new("reasons", format!("has more than {MAX_REASONS}")));
    }
    let wire_reasons = wire.reasons.iter();
    let reasons = wire_reasons
        .map(|wire_reason| (Reason::from_label(&wire_reason.reason), wire_reason.requests));
    let port = u16::try_from(wire.port).map_err(|_| InvalidField::new("port", "is not a port"))?;
    let series = TrafficSeries {
        direction: if wire.inbound { Direction::Inbound } else { Direction::Outbound },
        service: parse_optional("service", &wire.service)?,
        port,
        route: parse_optional("route", &wire.route)?,
        peer: match wire.peer.as_str() {
            "" => None,
            peer => Some(parse_account("peer", peer)?),
        },
        opened: wire.opened,
        classes,
        failed: wire.failed,
        reasons: reasons.collect(),
        bytes_in: wire.bytes_in,
        bytes_out: wire.bytes_out,
        durations: durations_from_wire(&wire.durations)?,
    };
    if series.failed > series.ended_count() {
        return Err(InvalidField::new("failed", "exceeds the number of requests"));
    }
    Ok(series)
}

fn parse_optional<T>(field: &str, text: &str) -> Result<Option<T>, InvalidField>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    (!text.is_empty()).then(|| parse_name(field, text)).transpose()
}

/// Parses a histogram: pairs of a distance to the previous bucket and a number of requests.
fn durations_from_wire(wire: &[u64]) -> Result<Vec<(u8, u64)>, InvalidField> {
    let invalid = |reason: &str| InvalidField::new("durations", reason);
    let (bucket_pairs, []) = wire.as_chunks::<2>() else {
        return Err(invalid("has an odd number of elements"));
    };
    let mut bucket = 0_u64;
    let mut durations: Vec<(u8, u64)> =
        Vec::with_capacity(bucket_pairs.len().min(DURATION_BUCKETS));
    for [bucket_distance, requests] in bucket_pairs {
        bucket = bucket.saturating_add(*bucket_distance);
        let bucket_index = u8::try_from(bucket)
            .ok()
            .filter(|bucket_index| usize::from(*bucket_index) < DURATION_BUCKETS);
        let bucket_index =
            bucket_index.ok_or_else(|| invalid("names a bucket that does not exist"))?;
        if *bucket_distance == 0 && !durations.is_empty() {
            return Err(invalid("names a bucket twice"));
        }
        durations.push((bucket_index, *requests));
    }
    Ok(durations)
}

/// The maximum number of series in a message: with the longest names, every bucket and every reason the message
/// stays below the size limit of a proxy's message. Typical series have 150 bytes.
pub const MAX_SERIES: usize = 128;

/// The maximum number of rules in a message.
pub const MAX_RULES: usize = 128;

/// The maximum length of a rule's name.
const MAX_RULE_BYTES: usize = 253;

/// The minimum report interval, regardless of the control plane's request.
pub const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The number of status classes: no response, and 1xx to 5xx.
pub const STATUS_CLASSES: usize = 6;

/// The maximum number of reasons in a series; fewer exist.
const MAX_REASONS: usize = 64;

/// The number of buckets of a duration histogram, in microseconds: one for each duration below 8, then eight per power
/// of two.
const DURATION_BUCKETS: usize = 240;

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn traffic_series() -> TrafficSeries {
        TrafficSeries {
            direction: Direction::Outbound,
            service: Some("bookinfo/ratings".parse().unwrap()),
            port: 9080,
            route: Some("bookinfo/ratings".parse().unwrap()),
            peer: ServiceAccount::new("bookinfo", "reviews").ok(),
            opened: None,
            classes: [0, 0, 7, 0, 1, 2],
            failed: 3,
            reasons: vec![(Some(Reason::NoEndpoint), 2), (None, 1)],
            bytes_in: 10,
            bytes_out: 20_000,
            durations: vec![(0, 1), (1, 2), (100, 6), (239, 1)],
        }
    }

    fn rule_matches(kind: &str, rule: &str) -> RuleMatches {
        RuleMatches {
            kind: RuleKind::from_word(kind).unwrap(),
            namespace: Name::new("bookinfo").unwrap(),
            name: Name::new("ratings").unwrap(),
            rule: rule.to_owned(),
            matches: 7,
        }
    }

    #[test]
    fn an_invalid_rule_is_excluded_and_counted_as_overflow() {
        type Damage = fn(&mut proto::RuleMatches);
        let cases: [Damage; 4] = [
            |rule| rule.kind = "RuleOfNextYear".into(),
            |rule| rule.namespace.clear(),
            |rule| rule.name = "a/b".into(),
            |rule| rule.rule = "r".repeat(MAX_RULE_BYTES + 1),
        ];
        for damage in cases {
            let mut wire = traffic_to_wire(&traffic_report());
            damage(&mut wire.rules[0]);
            let report = traffic_from_wire(wire);
            assert_eq!((report.rules.len(), report.series.len(), report.overflowed), (1, 2, 5));
        }
        let mut wire = traffic_to_wire(&traffic_report());
        wire.rules = vec![wire.rules[0].clone(); MAX_RULES + 2];
        let report = traffic_from_wire(wire);
        assert_eq!((report.rules.len(), report.overflowed), (MAX_RULES, 6));
    }

    fn traffic_report() -> TrafficReport {
        TrafficReport {
            span: Duration::from_millis(5_001),
            series: vec![
                traffic_series(),
                TrafficSeries {
                    direction: Direction::Inbound,
                    service: None,
                    port: 0,
                    route: None,
                    peer: None,
                    opened: Some(12),
                    classes: [0; STATUS_CLASSES],
                    failed: 0,
                    reasons: vec![],
                    bytes_in: 0,
                    bytes_out: 0,
                    durations: vec![],
                },
            ],
            overflowed: 4,
            cpu: Duration::from_micros(123),
            memory_kib: 4_321,
            rules: vec![rule_matches("HTTPRoute", "0"), rule_matches("RateLimit", "each client")],
        }
    }

    #[test]
    fn a_report_survives_a_round_trip() {
        let wire = traffic_to_wire(&traffic_report());
        assert_eq!(traffic_from_wire(wire), traffic_report());
    }

    #[test]
    fn connections_are_counted_when_opened_unless_more_have_failed() {
        let tcp = |opened, ended: u64, failed| TrafficSeries {
            opened: Some(opened),
            classes: [ended, 0, 0, 0, 0, 0],
            failed,
            ..traffic_series()
        };
        for (opened, ended, failed, expected_count) in
            [(4, 0, 0, 4), (0, 4, 0, 0), (0, 4, 3, 3), (5, 5, 5, 5), (7, 5, 5, 7)]
        {
            assert_eq!(
                tcp(opened, ended, failed).request_count(),
                expected_count,
                "{opened} {ended} {failed}"
            );
        }
        assert_eq!(traffic_series().request_count(), 10);
    }

    #[test]
    fn a_typical_series_is_small() {
        let durations = (60..90).map(|bucket| (bucket, 20)).collect();
        let typical_series = TrafficSeries { durations, ..traffic_series() };
        let message =
            proto::Traffic { series: vec![series_to_wire(&typical_series)], ..Default::default() };
        assert!(message.encoded_len() < 200, "{}", message.encoded_len());
    }

    #[test]
    fn an_invalid_series_is_excluded_and_counted_as_overflow() {
        type Damage = fn(&mut proto::Traffic);
        let cases: [(Damage, &str); 9] = [
            (|traffic| traffic.series[0].service = "x".into(), "service"),
            (|traffic| traffic.series[0].route = "a/b/c".into(), "route"),
            (|traffic| traffic.series[1].peer = " ".into(), "peer"),
            (|traffic| traffic.series[0].port = 65_536, "port"),
            (|traffic| traffic.series[0].classes.clear(), "classes"),
            (|traffic| traffic.series[0].failed = 11, "failed"),
            (|traffic| traffic.series[0].durations = vec![1], "durations"),
            (|traffic| traffic.series[0].durations = vec![240, 1], "durations"),
            (|traffic| traffic.series[0].durations = vec![3, 1, 0, 1], "durations"),
        ];
        for (damage, field) in cases {
            let mut wire = traffic_to_wire(&traffic_report());
            damage(&mut wire);
            let errors = wire.series.iter().cloned().map(series_from_wire);
            let errors: Vec<_> = errors.filter_map(Result::err).map(|error| error.field).collect();
            assert_eq!(errors, [field]);
            let report = traffic_from_wire(wire);
            assert_eq!((report.series.len(), report.overflowed), (1, 5), "{field}");
        }
        let mut wire = traffic_to_wire(&traffic_report());
        wire.series[0].reasons = vec![proto::TrafficReason::default(); MAX_REASONS + 1];
        assert_eq!(series_from_wire(wire.series[0].clone()).unwrap_err().field, "reasons");
        wire.series = vec![wire.series[1].clone(); MAX_SERIES + 3];
        let report = traffic_from_wire(wire);
        assert_eq!((report.series.len(), report.overflowed), (MAX_SERIES, 7));
    }

    #[test]
    fn a_reason_of_a_newer_proxy_is_counted() {
        let mut wire = traffic_to_wire(&traffic_report());
        wire.series[0].reasons[0].reason = "a-reason-of-next-year".to_owned();
        let report = traffic_from_wire(wire);
        assert_eq!(report.series[0].reasons, [(None, 2), (None, 1)]);
    }

    #[test]
    fn the_largest_report_fits_into_a_message_of_a_proxy() {
        let name = ["n".repeat(63), "n".repeat(63), "n".repeat(63), "n".repeat(61)].join(".");
        let longest = format!("{name}/{name}");
        let largest_series = TrafficSeries {
            service: longest.parse().ok(),
            route: longest.parse().ok(),
            peer: ServiceAccount::new(&name, &name).ok(),
            reasons: vec![(Some(Reason::NoEndpoint), u64::MAX); MAX_REASONS],
            durations: (0..240).map(|bucket| (bucket, u64::from(u32::MAX))).collect(),
            ..traffic_series()
        };
        let rule = RuleMatches {
            namespace: Name::new(&name).unwrap(),
            name: Name::new(&name).unwrap(),
            matches: u64::MAX,
            ..rule_matches("UpstreamTrafficSetting", &"r".repeat(MAX_RULE_BYTES))
        };
        let (series, rules) = (vec![largest_series; MAX_SERIES + 9], vec![rule; MAX_RULES + 9]);
        let traffic = TrafficReport { series, rules, ..traffic_report() };
        let wire = traffic_to_wire(&traffic);
        assert_eq!(wire.series.len(), MAX_SERIES);
        assert_eq!(wire.series[0].service, longest);
        assert!(wire.encoded_len() < crate::frame::MAX_REQUEST_BYTES, "{}", wire.encoded_len());
    }
}
