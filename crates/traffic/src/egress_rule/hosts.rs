//! An index of egress rules by host name and wildcard.

use leno_model::HostPattern;
use rustc_hash::FxHashMap;

use crate::rule_index::find_before;

/// The positions of egress rules, by their hosts.
#[derive(Debug, Default)]
pub(super) struct EgressHosts {
    /// The rules for one exact host, by host.
    exact: FxHashMap<Box<str>, Vec<usize>>,
    /// The rules for all subdomains of a name, by name.
    wildcards: FxHashMap<Box<str>, Vec<usize>>,
    /// The rules for any host.
    unrestricted: Vec<usize>,
}

impl EgressHosts {
    /// Adds a rule. Its position must be greater than all positions added before. Without hosts, the rule applies to
    /// any host.
    pub(super) fn add_rule(&mut self, position: usize, hosts: &[HostPattern]) {
        if hosts.is_empty() {
            self.unrestricted.push(position);
        }
        for host in hosts {
            let (positions_by_name, name) = match host {
                HostPattern::Exact(name) => (&mut self.exact, name),
                HostPattern::Below(name) => (&mut self.wildcards, name),
            };
            let positions = positions_by_name.entry(name.as_str().into()).or_default();
            // A repeated host is stored once.
            if positions.last() != Some(&position) {
                positions.push(position);
            }
        }
    }

    /// Returns the position of the first rule for a host for which `is_match` is true; `None` if there is none. The
    /// host must be in lower case and without a final dot.
    pub(super) fn find_rule(&self, host: &str, is_match: impl Fn(usize) -> bool) -> Option<usize> {
        let exact_positions = self.exact.get(host).map_or(&[][..], |positions| positions);
        // `usize::MAX` means that no rule was found yet.
        let mut first = find_before(usize::MAX, exact_positions, &is_match);
        first = find_before(first, &self.unrestricted, &is_match);
        let mut remaining = host;
        while let Some((_, parent)) = remaining.split_once('.') {
            // A subdomain has at least one more label, which is not empty: `.example.com` is no subdomain.
            if parent.len().saturating_add(1) < host.len()
                && let Some(positions) = self.wildcards.get(parent)
            {
                first = find_before(first, positions, &is_match);
            }
            remaining = parent;
        }
        (first != usize::MAX).then_some(first)
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
