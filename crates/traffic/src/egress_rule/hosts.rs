//! Index of egress rules by host name and wildcard.

use leno_model::HostPattern;
use rustc_hash::FxHashMap;

use crate::rule_index::first_before;

/// Positions of egress rules, by their hosts.
#[derive(Debug, Default)]
pub(super) struct EgressHosts {
    exact: FxHashMap<Box<str>, Vec<usize>>,
    /// Rules for all hosts below a name.
    below: FxHashMap<Box<str>, Vec<usize>>,
    /// Rules for any host.
    any: Vec<usize>,
}

impl EgressHosts {
    /// Adds a rule after those added before; without hosts it applies to any host.
    pub(super) fn add_rule(&mut self, place: usize, hosts: &[HostPattern]) {
        if hosts.is_empty() {
            self.any.push(place);
        }
        for host in hosts {
            let (names, name) = match host {
                HostPattern::Exact(name) => (&mut self.exact, name),
                HostPattern::Below(name) => (&mut self.below, name),
            };
            let places = names.entry(name.as_str().into()).or_default();
            // A repeated host is stored once.
            if places.last() != Some(&place) {
                places.push(place);
            }
        }
    }

    /// Returns the first rule for a host that `fits`. The host is in lower case, without a final dot.
    pub(super) fn first_rule(&self, host: &str, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let exact = self.exact.get(host).map_or(&[][..], |places| places);
        let mut best = first_before(usize::MAX, exact, &fits);
        best = first_before(best, &self.any, &fits);
        let mut rest = host;
        while let Some((_, parent)) = rest.split_once('.') {
            // A subdomain has at least one more label.
            if parent.len().saturating_add(1) < host.len()
                && let Some(places) = self.below.get(parent)
            {
                best = first_before(best, places, &fits);
            }
            rest = parent;
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
        fn what_is_looked_up_is_what_asking_in_order_finds(
            egress_rules in proptest::collection::vec(
                proptest::collection::vec("(\\*\\.)?[ab](\\.[ab]){0,2}", 0..4),
                0..6,
            ),
            host in any_host(),
            odd in any::<bool>(),
        ) {
            let patterns = |texts: &Vec<String>| -> Vec<HostPattern> {
                texts.iter().map(|text| text.parse().unwrap()).collect()
            };
            let egress_rules: Vec<Vec<HostPattern>> = egress_rules.iter().map(patterns).collect();
            let mut hosts = EgressHosts::default();
            for (place, patterns) in egress_rules.iter().enumerate() {
                hosts.add_rule(place, patterns);
            }
            let fits = |place: usize| !odd || place % 2 == 1;
            let in_order = egress_rules.iter().enumerate().position(|(place, patterns)| {
                let is_for = patterns.is_empty() || patterns.iter().any(|it| it.matches_host(&host));
                is_for && fits(place)
            });
            prop_assert_eq!(hosts.first_rule(&host, fits), in_order);
        }
    }
}
