//! Counts the matches of rules, as sidecars report them: over the last hour, and since a rule was first reported.

use std::collections::VecDeque;
use std::time::Duration;

use leno_discovery::RuleMatches;
use leno_model::{Name, RuleKind};
use leno_telemetry::RecentTable;

use super::request_history::HISTORY_LENGTH;
use crate::mesh::Mesh;
use crate::status::RuleStatus;

/// The match counts of all rules.
#[derive(Debug, Default)]
pub(super) struct MatchCounts {
    rules: RecentTable<RuleKey, MinuteCounts, MAX_RULES>,
}

/// The kind, namespace and name of an object, and the name of a rule in it.
type RuleKey = (RuleKind, Name, Name, String);

/// The match counts of one rule: a count for each minute of the last hour with a match (16 bytes each), and the
/// total.
#[derive(Debug)]
struct MinuteCounts {
    /// The number of each minute with a match, and the count of matches in that minute. The oldest is first.
    counts_by_minute: VecDeque<(u64, u64)>,
    /// The total since the rule was first reported.
    total: u64,
    /// The time of the last report with a match.
    last_match: Duration,
}

impl MatchCounts {
    /// Processes one sidecar's report. Returns the number of dropped rules: rules of missing objects, and rules that
    /// newer ones replaced.
    pub(super) fn record_report(
        &mut self,
        mesh: &Mesh,
        reported_rules: &[RuleMatches],
        now: Duration,
    ) -> u64 {
        reported_rules.iter().map(|matches| u64::from(!self.record_rule(mesh, matches, now))).sum()
    }

    /// Counts the matches of one rule; returns false if the rule was not stored, or another one was evicted for it.
    fn record_rule(&mut self, mesh: &Mesh, reported: &RuleMatches, now: Duration) -> bool {
        let RuleMatches { kind, namespace, name, rule, matches } = reported;
        if !mesh.has_object(&kind.object_key(namespace, name)) || rule.chars().any(char::is_control)
        {
            return false;
        }
        let key = (*kind, namespace.clone(), name.clone(), rule.clone());
        let has_evicted = !self.rules.contains_key(&key) && self.evict_rule_of_object(&key);
        let new_counts =
            || MinuteCounts { counts_by_minute: VecDeque::new(), total: 0, last_match: now };
        let (minute_counts, evicted_entry) = self.rules.entry(key, new_counts);
        minute_counts.add(*matches, now);
        !has_evicted && evicted_entry.is_none()
    }

    /// Evicts an object's least recently used rule if the object has [`MAX_RULES_PER_OBJECT`] rules. Otherwise a
    /// sidecar could report rules of one object that displace the rules of all others. Returns true if a rule was
    /// evicted.
    fn evict_rule_of_object(&mut self, (kind, namespace, name, _): &RuleKey) -> bool {
        let range_start = (*kind, namespace.clone(), name.clone(), String::new());
        let is_same_object =
            |rule: &&RuleKey| (rule.0, &rule.1, &rule.2) == (*kind, namespace, name);
        if self.rules.keys_in(range_start..).take_while(is_same_object).count()
            < MAX_RULES_PER_OBJECT
        {
            return false;
        }
        let least_recent = self.rules.least_recent().find(is_same_object).cloned();
        least_recent.is_some_and(|least_recent| self.rules.remove(&least_recent).is_some())
    }

    /// Evicts rules without a match for an hour, and those of objects that left the mesh.
    pub(super) fn evict_expired(&mut self, mesh: &Mesh, now: Duration) {
        self.rules.retain(|(kind, namespace, name, _), minute_counts| {
            minute_counts.last_match + HISTORY_LENGTH > now
                && mesh.has_object(&kind.object_key(namespace, name))
        });
    }

    /// Returns the status of every stored rule, ordered by kind, namespace, name and rule.
    pub(super) fn rule_statuses(&self, now: Duration) -> Vec<RuleStatus> {
        let status = |((kind, namespace, name, rule), minute_counts): (&RuleKey, &MinuteCounts)| {
            RuleStatus {
                kind: kind.as_str().to_owned(),
                name: format!("{namespace}/{name}"),
                rule: rule.clone(),
                matches_1h: minute_counts.last_hour_count(now),
                matches: minute_counts.total,
            }
        };
        self.rules.iter().map(status).collect()
    }
}

impl MinuteCounts {
    fn add(&mut self, matches: u64, now: Duration) {
        self.total = self.total.saturating_add(matches);
        self.last_match = self.last_match.max(now);
        let minute = minute_number(now);
        match self.counts_by_minute.back_mut() {
            // Time is monotonic, so the last entry is the newest.
            Some((newest, count)) if *newest >= minute => *count = count.saturating_add(matches),
            _ => self.counts_by_minute.push_back((minute, matches)),
        }
        if self.counts_by_minute.len() > COUNTED_MINUTES {
            self.counts_by_minute.pop_front();
        }
    }

    /// Returns the number of matches in the last hour.
    fn last_hour_count(&self, now: Duration) -> u64 {
        let oldest_minute = (minute_number(now) + 1).saturating_sub(COUNTED_MINUTES as u64);
        let in_last_hour =
            self.counts_by_minute.iter().filter(|(number, _)| *number >= oldest_minute);
        in_last_hour.fold(0, |total, (_, count)| total.saturating_add(*count))
    }
}

/// Returns the number of whole minutes before a time.
fn minute_number(time: Duration) -> u64 {
    time.as_secs() / 60
}

/// The number of minutes in the count of the last hour.
const COUNTED_MINUTES: usize = 60;

/// Maximum rules with counts, of about 1.3 KiB each while busy.
const MAX_RULES: usize = 2048;
/// Maximum rules of one object: as many as an AccessPolicy can have (256 each of `allow` and `deny`).
const MAX_RULES_PER_OBJECT: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{BOOKINFO, mesh_with_sidecars};

    const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: ratings, namespace: bookinfo}
spec:
  parentRefs: [{group: '', kind: Service, name: ratings}]
  rules: [{backendRefs: [{name: ratings, port: 9080}]}]
";

    fn rule_matches(kind: &str, name: &str, rule: &str, matches: u64) -> RuleMatches {
        RuleMatches {
            kind: RuleKind::from_word(kind).unwrap(),
            namespace: Name::new("bookinfo").unwrap(),
            name: Name::new(name).unwrap(),
            rule: rule.to_owned(),
            matches,
        }
    }

    fn at_minute(minutes: u64) -> Duration {
        Duration::from_secs(minutes * 60 + 7)
    }

    #[test]
    fn unknown_rules_evict_only_rules_of_the_same_object() {
        let mesh = mesh_with_sidecars(&format!("{BOOKINFO}---{ROUTE}"));
        let mut match_counts = MatchCounts::default();
        assert_eq!(
            match_counts.record_report(
                &mesh,
                &[rule_matches("HTTPRoute", "ratings", "used", 5)],
                at_minute(0)
            ),
            0
        );
        for rule in 0..MAX_RULES_PER_OBJECT + 36 {
            let invented = rule_matches("HTTPRoute", "ratings", &rule.to_string(), 1);
            let used = rule_matches("HTTPRoute", "ratings", "used", 1);
            let dropped = match_counts.record_report(&mesh, &[invented, used], at_minute(0));
            assert_eq!(dropped, u64::from(rule + 1 >= MAX_RULES_PER_OBJECT), "{rule}");
        }
        assert_eq!(match_counts.rules.len(), MAX_RULES_PER_OBJECT);
        let statuses = match_counts.rule_statuses(at_minute(0));
        let total_matches = |rule: &str| {
            statuses.iter().find(|status| status.rule == rule).map(|status| status.matches)
        };
        // The count of a used rule continues, and the least recently used rules are evicted.
        assert_eq!(total_matches("used"), Some(5 + MAX_RULES_PER_OBJECT as u64 + 36));
        assert_eq!((total_matches("36"), total_matches("37")), (None, Some(1)));
        assert_eq!(
            match_counts.record_report(
                &mesh,
                &[rule_matches("HTTPRoute", "ratings", "\n", 1)],
                at_minute(0)
            ),
            1
        );
    }

    #[test]
    fn the_least_recently_used_rules_are_evicted() {
        let objects = MAX_RULES / MAX_RULES_PER_OBJECT + 1;
        let routes = (0..objects)
            .map(|number| ROUTE.replacen("name: ratings", &format!("name: r{number}"), 1));
        let mesh =
            mesh_with_sidecars(&format!("{BOOKINFO}---{}", routes.collect::<Vec<_>>().join("---")));
        let mut match_counts = MatchCounts::default();
        let route = |number: usize| {
            rule_matches("HTTPRoute", &format!("r{}", number % objects), &number.to_string(), 1)
        };
        let extra_rules = 7;
        let dropped = (0..MAX_RULES + extra_rules)
            .map(|number| match_counts.record_report(&mesh, &[route(number)], at_minute(0)));
        assert_eq!(dropped.sum::<u64>(), extra_rules as u64);
        let rules: Vec<usize> = match_counts
            .rule_statuses(at_minute(0))
            .iter()
            .map(|status| status.rule.parse().unwrap())
            .collect();
        assert_eq!((rules.len(), rules.iter().min()), (MAX_RULES, Some(&extra_rules)));
    }

    #[test]
    fn the_count_of_the_last_hour_decreases_and_the_total_stays() {
        let mesh = mesh_with_sidecars(&format!("{BOOKINFO}---{ROUTE}"));
        let mut match_counts = MatchCounts::default();
        for minute in 0..90 {
            assert_eq!(
                match_counts.record_report(
                    &mesh,
                    &[rule_matches("HTTPRoute", "ratings", "0", 2)],
                    at_minute(minute)
                ),
                0
            );
        }
        let [rule] = &match_counts.rule_statuses(at_minute(89))[..] else { panic!() };
        assert_eq!((&*rule.kind, &*rule.name, &*rule.rule), ("HTTPRoute", "bookinfo/ratings", "0"));
        assert_eq!((rule.matches_1h, rule.matches), (120, 180));
        assert_eq!(match_counts.rule_statuses(at_minute(119))[0].matches_1h, 60);
        assert_eq!(match_counts.rule_statuses(at_minute(200))[0].matches_1h, 0);
        match_counts.evict_expired(&mesh, at_minute(148));
        assert_eq!(match_counts.rule_statuses(at_minute(148)).len(), 1);
        match_counts.evict_expired(&mesh, at_minute(150));
        assert_eq!(match_counts.rule_statuses(at_minute(150)), []);
    }

    #[test]
    fn ingress_rules_are_counted_by_their_own_kind() {
        let backend = "
apiVersion: policy.openservicemesh.io/v1alpha1
kind: IngressBackend
metadata: {name: ratings, namespace: bookinfo}
spec:
  backends: [{name: ratings, port: {number: 9080, protocol: http}}]
  sources: [{kind: IPRange, name: 10.0.0.0/8}]
";
        let mesh = mesh_with_sidecars(&format!("{BOOKINFO}---{backend}"));
        let mut match_counts = MatchCounts::default();
        let reported = [
            rule_matches("IngressBackend", "ratings", "", 3),
            rule_matches("AccessControl", "ratings", "", 1),
        ];
        assert_eq!(
            match_counts.record_report(&mesh, &reported, at_minute(1)),
            1,
            "the AccessControl does not exist"
        );
        let [rule] = &match_counts.rule_statuses(at_minute(1))[..] else { panic!() };
        assert_eq!(
            (&*rule.kind, &*rule.name, rule.matches),
            ("IngressBackend", "bookinfo/ratings", 3)
        );
    }

    #[test]
    fn rules_of_missing_objects_are_dropped() {
        let mesh = mesh_with_sidecars(&format!("{BOOKINFO}---{ROUTE}"));
        let mut match_counts = MatchCounts::default();
        let reported = [
            rule_matches("HTTPRoute", "invented", "0", 1),
            rule_matches("GRPCRoute", "ratings", "0", 1),
            rule_matches("RateLimit", "ratings", "", 1),
            rule_matches("HTTPRoute", "ratings", "1", 1),
        ];
        assert_eq!(match_counts.record_report(&mesh, &reported, at_minute(1)), 3);
        assert_eq!(match_counts.rules.len(), 1);
        match_counts.evict_expired(&Mesh::default(), at_minute(1));
        assert!(match_counts.rules.is_empty());
    }
}
