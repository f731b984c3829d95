//! An index of rules by their address ranges. Ingress and egress rules use it to find the rules for an address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_model::IpRange;
use rustc_hash::FxHashMap;

use crate::rule_index::RulePositions;

/// The positions of rules, by their address ranges.
#[derive(Debug, Default)]
pub(crate) struct AddressRangeIndex {
    /// The rules of each range.
    by_range: FxHashMap<IpRange, Vec<usize>>,
    /// The distinct prefix lengths of the ranges.
    prefix_lengths: BTreeSet<u8>,
    /// The rules for any address.
    unrestricted: Vec<usize>,
}

impl AddressRangeIndex {
    /// Adds a rule. Its position must be greater than all positions added before. Without ranges, the rule applies
    /// to any address.
    pub(crate) fn add_rule(&mut self, position: usize, ranges: Option<&[IpRange]>) {
        let Some(ranges) = ranges else {
            self.unrestricted.push(position);
            return;
        };
        for range in ranges {
            self.prefix_lengths.insert(range.prefix_length());
            let positions = self.by_range.entry(*range).or_default();
            // A repeated range is stored once.
            if positions.last() != Some(&position) {
                positions.push(position);
            }
        }
    }

    /// Returns the positions of all rules for an address, in order.
    pub(crate) fn rules_for_address(&self, address: IpAddr) -> RulePositions<'_> {
        let range_with_prefix = |prefix: &u8| IpRange::from_address(address, *prefix);
        let ranges = self.prefix_lengths.iter().filter_map(range_with_prefix);
        let mut positions = RulePositions::empty();
        ranges
            .filter_map(|range| self.by_range.get(&range))
            .for_each(|rules| positions.add_list(rules));
        positions.add_list(&self.unrestricted);
        positions
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn any_range() -> impl Strategy<Value = IpRange> {
        let texts = vec![
            "0.0.0.0/0",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.0.1/32",
            "10.1.0.0/31",
            "::/0",
            "fd00::/8",
            "fd00::1/128",
            "fd00::/32",
        ];
        select(texts).prop_map(|text| text.parse().unwrap())
    }

    proptest! {
        #[test]
        fn indexed_lookup_agrees_with_sequential_evaluation(
            rules in proptest::collection::vec(
                prop::option::of(proptest::collection::vec(any_range(), 0..4)),
                0..8,
            ),
            address in select(vec!["10.1.0.1", "10.2.0.1", "::ffff:10.1.0.1", "fd00::1", "::1"]),
        ) {
            let address: IpAddr = address.parse().unwrap();
            let mut index = AddressRangeIndex::default();
            for (position, ranges) in rules.iter().enumerate() {
                index.add_rule(position, ranges.as_deref());
            }
            let applies = |ranges: &Option<Vec<IpRange>>| {
                ranges.as_ref().is_none_or(|ranges| ranges.iter().any(|range| range.contains(address)))
            };
            let expected = rules.iter().enumerate().filter(|(_, ranges)| applies(ranges));
            let expected: Vec<usize> = expected.map(|(position, _)| position).collect();
            prop_assert_eq!(index.rules_for_address(address).collect::<Vec<_>>(), expected);
        }
    }
}
