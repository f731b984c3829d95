//! Index of rules by address range.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_model::IpRange;
use rustc_hash::FxHashMap;

use crate::rule_index::RulePositions;

/// Positions of rules, by their address ranges.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    held: FxHashMap<IpRange, Vec<usize>>,
    /// The distinct prefix lengths of the ranges.
    prefixes: BTreeSet<u8>,
    /// Rules for any address.
    anywhere: Vec<usize>,
}

impl Ranges {
    /// Adds a rule after those added before; without ranges it applies to any address.
    pub(crate) fn add_rule(&mut self, place: usize, ranges: Option<&[IpRange]>) {
        let Some(ranges) = ranges else {
            self.anywhere.push(place);
            return;
        };
        for range in ranges {
            self.prefixes.insert(range.prefix_length());
            let places = self.held.entry(*range).or_default();
            // A repeated range is stored once.
            if places.last() != Some(&place) {
                places.push(place);
            }
        }
    }

    /// Returns the positions of all rules for an address, in order.
    pub(crate) fn containing(&self, address: IpAddr) -> RulePositions<'_> {
        let around = |prefix: &u8| IpRange::from_address(address, *prefix);
        let ranges = self.prefixes.iter().filter_map(around);
        let mut places = RulePositions::empty();
        ranges.filter_map(|range| self.held.get(&range)).for_each(|held| places.add_list(held));
        places.add_list(&self.anywhere);
        places
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
        fn what_is_looked_up_is_what_asking_in_order_finds(
            rules in proptest::collection::vec(
                prop::option::of(proptest::collection::vec(any_range(), 0..4)),
                0..8,
            ),
            address in select(vec!["10.1.0.1", "10.2.0.1", "::ffff:10.1.0.1", "fd00::1", "::1"]),
        ) {
            let address: IpAddr = address.parse().unwrap();
            let mut looked_up = Ranges::default();
            for (place, ranges) in rules.iter().enumerate() {
                looked_up.add_rule(place, ranges.as_deref());
            }
            let is_about = |ranges: &Option<Vec<IpRange>>| {
                ranges.as_ref().is_none_or(|ranges| ranges.iter().any(|it| it.contains(address)))
            };
            let in_order = rules.iter().enumerate().filter(|(_, ranges)| is_about(ranges));
            let in_order: Vec<usize> = in_order.map(|(place, _)| place).collect();
            prop_assert_eq!(looked_up.containing(address).collect::<Vec<_>>(), in_order);
        }
    }
}
