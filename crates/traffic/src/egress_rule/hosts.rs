//! Index of egress rules by host name and wildcard.

use leno_model::HostPattern;
use rustc_hash::FxHashMap;

use crate::rule_index::find_before;

/// Positions of egress rules, by their hosts.
#[derive(Debug, Default)]
pub(super) struct EgressHosts {
    /// Rules for exactly this host.
    exact: FxHashMap<Box<str>, Vec<usize>>,
    /// Rules for all hosts below a name.
    below: FxHashMap<Box<str>, Vec<usize>>,
    /// Rules for any host.
    any: Vec<usize>,
}

impl EgressHosts {
    /// Adds a rule after those added before; without hosts it applies to any host.
    pub(super) fn add_rule(&mut self, position: usize, hosts: &[HostPattern]) {
        if hosts.is_empty() {
            self.any.push(position);
        }
        for host in hosts {
            let (names, name) = match host {
                HostPattern::Exact(name) => (&mut self.exact, name),
                HostPattern::Below(name) => (&mut self.below, name),
            };
            let positions = names.entry(name.as_str().into()).or_default();
            // A repeated host is stored once.
            if positions.last() != Some(&position) {
                positions.push(position);
            }
        }
    }

    /// Returns the first rule for a host for which `is_match` is true. The host is in lower case, without a
    /// final dot.
    pub(super) fn find_rule(&self, host: &str, is_match: impl Fn(usize) -> bool) -> Option<usize> {
        let exact = self.exact.get(host).map_or(&[][..], |positions| positions);
        let mut best = find_before(usize::MAX, exact, &is_match);
        best = find_before(best, &self.any, &is_match);
        let mut remaining = host;
        while let Some((_, parent)) = remaining.split_once('.') {
            // A subdomain has at least one more label.
            if parent.len().saturating_add(1) < host.len()
                && let Some(positions) = self.below.get(parent)
            {
                best = find_before(best, positions, &is_match);
            }
            remaining = parent;
        }
        (best != usize::MAX).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_host() -> impl Strategy<Value = String> {
        proptest::collection::vec("[ab]?", 1..5).prop_map(|labels| labels.join("."))
    }

    proptest! {
        #[test]
        fn indexed_lookup_agrees_with_sequential_evaluation(
            egress_rules in proptest::collection::vec(
                proptest::collection::vec("(\\*\\.)?[ab](\\.[ab]){0,2}", 0..4),
                0..6,
            ),
            host in any_host(),
            only_odd in any::<bool>(),
        ) {
            let patterns = |texts: &Vec<String>| -> Vec<HostPattern> {
                texts.iter().map(|text| text.parse().unwrap()).collect()
            };
            let egress_rules: Vec<Vec<HostPattern>> = egress_rules.iter().map(patterns).collect();
            let mut hosts = EgressHosts::default();
            for (position, patterns) in egress_rules.iter().enumerate() {
                hosts.add_rule(position, patterns);
            }
            let is_match = |position: usize| !only_odd || position % 2 == 1;
            let expected = egress_rules.iter().enumerate().position(|(position, patterns)| {
                let applies = patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches_host(&host));
                applies && is_match(position)
            });
            prop_assert_eq!(hosts.find_rule(&host, is_match), expected);
        }
    }
}
