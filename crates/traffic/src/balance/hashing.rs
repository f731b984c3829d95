//! Consistent hashing: ring hash, Maglev and rendezvous hashing.

use std::sync::Arc;

use leno_model::{BalanceAlgorithm, Endpoint, Weight};

use crate::hash::hash;

/// The hash ring or table that maps keys to endpoints.
#[derive(Debug)]
pub enum EndpointHashTable {
    /// Points of a ring, in order, each with its endpoint.
    Ring {
        /// The points.
        points: Box<[(u64, u16)]>,
        /// The number of endpoints with points.
        endpoints: usize,
    },
    /// A Maglev table: a prime number of slots, each with its endpoint.
    Table {
        /// The slots.
        places: Box<[u16]>,
        /// The number of endpoints with slots.
        endpoints: usize,
    },
}

impl EndpointHashTable {
    /// Builds the table or ring of these endpoints; `None` for an algorithm without hashing.
    #[must_use]
    pub fn for_endpoints(
        algorithm: &BalanceAlgorithm,
        endpoints: &[Arc<Endpoint>],
    ) -> Option<Self> {
        // Endpoints are identified by name, not by address, so that they keep their slots across a restart.
        let names = endpoints.iter().map(|it| WeightedName(it.id.workload.to_string(), it.weight));
        let names: Vec<WeightedName> = names.take(ENDPOINTS_MAX).collect();
        match algorithm {
            BalanceAlgorithm::RingHash(_) => Some(Self::from_ring(&names)),
            BalanceAlgorithm::Maglev(_) => Some(Self::from_table(&names)),
            BalanceAlgorithm::PeakEwma { .. }
            | BalanceAlgorithm::LeastRequest { .. }
            | BalanceAlgorithm::RoundRobin
            | BalanceAlgorithm::Random => None,
        }
    }

    /// Returns the endpoint for a key: the first in the key's sequence that `may` accepts. The sequence is the
    /// same in every sidecar. `None` if none is accepted within the search limit.
    pub fn find_endpoint(&self, key: u64, mut may: impl FnMut(usize) -> bool) -> Option<usize> {
        match self {
            Self::Ring { points, endpoints } => {
                let from = points.partition_point(|(point, _)| *point < key);
                let after = points.iter().skip(from).chain(points.iter().take(from));
                first_accepted(after.map(|(_, owner)| *owner), *endpoints, &mut may)
            }
            Self::Table { places, endpoints } => {
                let count = u64::try_from(places.len()).ok()?;
                let from = usize::try_from(key.checked_rem(count)?).ok()?;
                let after = places.iter().skip(from).chain(places.iter().take(from));
                first_accepted(after.copied(), *endpoints, &mut may)
            }
        }
    }

    fn from_ring(names: &[WeightedName]) -> Self {
        Self::Ring { points: build_ring(names), endpoints: names.len() }
    }

    fn from_table(names: &[WeightedName]) -> Self {
        Self::Table { places: build_table(names, TABLE_PLACES), endpoints: names.len() }
    }
}

/// The name of an endpoint, and its weight.
struct WeightedName(String, Option<Weight>);

/// Returns the first owner that is accepted. Each is tried once; `None` after all were rejected.
fn first_accepted(
    owners: impl Iterator<Item = u16>,
    endpoints: usize,
    may: &mut impl FnMut(usize) -> bool,
) -> Option<usize> {
    let mut owners = owners.take(STEPS_MAX).map(usize::from);
    let owner = owners.next()?;
    if may(owner) {
        return Some(owner);
    }
    let mut refused = RejectedEndpoints::default();
    refused.insert(owner);
    for owner in owners {
        if refused.count == endpoints {
            break;
        }
        if refused.insert(owner) && may(owner) {
            return Some(owner);
        }
    }
    None
}

/// The rejected endpoints: one bit for each endpoint that may have slots.
struct RejectedEndpoints {
    bits: [u64; ENDPOINTS_MAX / 64],
    count: usize,
}

impl Default for RejectedEndpoints {
    fn default() -> Self {
        Self { bits: [0; ENDPOINTS_MAX / 64], count: 0 }
    }
}

impl RejectedEndpoints {
    /// Returns false if it is already present, or out of range.
    fn insert(&mut self, owner: usize) -> bool {
        let Some(bits) = self.bits.get_mut(owner / 64) else { return false };
        let before = *bits;
        *bits |= 1 << (owner % 64);
        let is_new = *bits != before;
        self.count += usize::from(is_new);
        is_new
    }
}

/// Hashes a key; all bits of the result are uniform.
#[must_use]
pub fn hash_key(value: &str) -> u64 {
    hash(KEY_SALT, value)
}

/// Returns the endpoint of a subset for a key: the one with the highest combined hash (rendezvous hashing).
/// Linear; for sets without a hash table.
pub fn rendezvous_hash(
    key: u64,
    endpoints: &[Arc<Endpoint>],
    mut may: impl FnMut(usize) -> bool,
) -> Option<usize> {
    let number = |endpoint: &Endpoint| hash(key, endpoint.id.workload.name.as_str());
    let mut numbered: Vec<(u64, usize)> =
        endpoints.iter().enumerate().map(|(index, endpoint)| (number(endpoint), index)).collect();
    numbered.sort_unstable_by(|a, b| b.cmp(a));
    numbered.into_iter().map(|(_, index)| index).find(|index| may(*index))
}

/// Builds a ring. Each endpoint has points in proportion to its weight relative to a unit, and at least one.
/// The unit is [`Weight::DEFAULT`], doubled or halved until the average weight is between half a unit and one
/// unit: the total number of points never exceeds that of equal weights, and adding or removing an endpoint
/// rarely changes the points of others.
fn build_ring(names: &[WeightedName]) -> Box<[(u64, u16)]> {
    let of = |weight: Option<Weight>| usize::from(weight.unwrap_or_default().as_u16());
    let all = names.iter().map(|WeightedName(_, weight)| of(*weight) * UNIT_PARTS).sum::<usize>();
    let average = (all / names.len().max(1)).max(1);
    let mut unit = usize::from(Weight::DEFAULT) * UNIT_PARTS;
    while unit < average {
        unit *= 2;
    }
    while unit / 2 >= average {
        unit /= 2;
    }
    let mut points: Vec<(u64, u16)> = Vec::with_capacity(RING_POINTS * names.len());
    for (WeightedName(name, weight), index) in names.iter().zip(0_u16..) {
        let salts = (0_u64..).take((RING_POINTS * of(*weight) * UNIT_PARTS / unit).max(1));
        points.extend(salts.map(|salt| (hash(salt, name), index)));
    }
    points.sort_unstable();
    points.into()
}

/// Maglev's population (Eisenbud et al., NSDI 2016, §3.4): the endpoints take turns, each claiming the next
/// free slot of its own permutation; the frequency of its turns is its weight relative to the greatest.
fn build_table(names: &[WeightedName], places: usize) -> Box<[u16]> {
    if names.is_empty() {
        return Box::default();
    }
    let count = places as u64;
    let permutation =
        |name: &str| (hash(OFFSET_SALT, name) % count, hash(SKIP_SALT, name) % (count - 1) + 1);
    let weight = |weight: Option<Weight>| weight.unwrap_or_default().as_u16();
    let mut turns: Vec<((u64, u64), u16, u16)> =
        names.iter().map(|WeightedName(name, its)| (permutation(name), weight(*its), 0)).collect();
    let greatest = turns.iter().map(|(_, weight, _)| *weight).max().unwrap_or(1);
    let mut table = vec![FREE; places];
    let mut taken = 0;
    loop {
        for (((next, skip), weight, saved), index) in turns.iter_mut().zip(0_u16..) {
            // At most twice the greatest weight.
            *saved += *weight;
            if *saved < greatest {
                continue;
            }
            *saved -= greatest;
            loop {
                let place = usize::try_from(*next).ok().and_then(|place| table.get_mut(place));
                *next = (*next + *skip) % count;
                let Some(place) = place.filter(|place| **place == FREE) else { continue };
                *place = index;
                break;
            }
            taken += 1;
            if taken == places {
                return table.into();
            }
        }
    }
}

/// Points of an endpoint with the unit weight: shares of equal endpoints differ by about a tenth.
const RING_POINTS: usize = 128;
/// The unit is a multiple of this fraction of a weight, since it may be less than one.
const UNIT_PARTS: usize = 128;
/// A prime: the shares of a hundred endpoints differ by about 1 %.
const TABLE_PLACES: usize = 16_381;
/// The maximum number of endpoints with slots; endpoints beyond it receive no keys.
const ENDPOINTS_MAX: usize = 4096;
/// The maximum search length for a key with an unavailable endpoint; another algorithm decides beyond it.
const STEPS_MAX: usize = 4096;
const FREE: u16 = u16::MAX;
const OFFSET_SALT: u64 = 0x6f66_6673_6574;
const SKIP_SALT: u64 = 0x736b_6970;
const KEY_SALT: u64 = 0x006b_6579;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint_names(count: usize) -> Vec<WeightedName> {
        (0..count).map(|n| WeightedName(format!("shop/stock-{n}"), None)).collect()
    }

    fn test_keys() -> impl Iterator<Item = u64> {
        (0..20_000).map(|n| hash_key(&format!("user-{n}")))
    }

    fn ring_and_table(names: &[WeightedName]) -> [EndpointHashTable; 2] {
        [EndpointHashTable::from_ring(names), EndpointHashTable::from_table(names)]
    }

    /// The number of keys of each endpoint.
    fn key_counts(places: &EndpointHashTable, endpoints: usize) -> Vec<usize> {
        let mut counts = vec![0; endpoints];
        for key in test_keys() {
            counts[places.find_endpoint(key, |_| true).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn shares_are_nearly_equal() {
        for count in [1, 2, 3, 10, 50] {
            for (places, most_percent) in
                ring_and_table(&endpoint_names(count)).iter().zip([40, 12])
            {
                let fair = 20_000 / count;
                let allowed = fair * most_percent / 100 + 60;
                for got in key_counts(places, count) {
                    assert!(got.abs_diff(fair) <= allowed, "{got} of {fair} among {count}");
                }
            }
        }
    }

    fn weighted_names(weights: &[u16]) -> Vec<WeightedName> {
        let mut weighted = endpoint_names(weights.len());
        for (WeightedName(_, weight), number) in weighted.iter_mut().zip(weights) {
            *weight = Weight::new(*number);
        }
        weighted
    }

    #[test]
    fn shares_are_as_weights_are() {
        for weights in [&[50, 100, 350, 500][..], &[1, 2, 7], &[100, 200, 700]] {
            let all: usize = weights.iter().copied().map(usize::from).sum();
            for (places, most_percent) in
                ring_and_table(&weighted_names(weights)).iter().zip([40, 6])
            {
                let counts = key_counts(places, weights.len());
                for (got, weight) in counts.iter().zip(weights) {
                    let fair = 20_000 * usize::from(*weight) / all;
                    let allowed = fair * most_percent / 100 + 60;
                    assert!(got.abs_diff(fair) <= allowed, "{weights:?}: {counts:?}");
                }
            }
        }
    }

    #[test]
    fn a_ring_has_no_more_points_whatever_the_weights_are() {
        let points = |weights: &[u16]| build_ring(&weighted_names(weights)).len();
        assert_eq!(points(&[100; 50]), 50 * RING_POINTS);
        for weight in [1, 7, 99, 101, 1000] {
            let range = 50 * RING_POINTS / 2 - 50..=50 * RING_POINTS;
            assert!(range.contains(&points(&[weight; 50])), "{weight}");
        }
        // Each has at least one.
        assert_eq!(
            build_ring(&weighted_names(&[1, 1000])).iter().filter(|(_, owner)| *owner == 0).count(),
            1
        );
    }

    #[test]
    fn who_comes_with_another_weight_moves_keys_to_itself_alone() {
        let before = EndpointHashTable::from_ring(&weighted_names(&[1000, 900, 800]));
        let after = EndpointHashTable::from_ring(&weighted_names(&[1000, 900, 800, 700]));
        let found = |places: &EndpointHashTable, key| places.find_endpoint(key, |_| true);
        for key in test_keys().filter(|key| found(&before, *key) != found(&after, *key)) {
            assert_eq!(found(&after, key), Some(3));
        }
    }

    #[test]
    fn who_leaves_or_comes_moves_its_own_keys_and_few_others() {
        for count in [2, 5, 20] {
            let (all, fewer) = (endpoint_names(count), endpoint_names(count - 1));
            for ((before, after), others_percent) in
                ring_and_table(&all).iter().zip(&ring_and_table(&fewer)).zip([0, 4])
            {
                let mut moved = 0;
                for key in test_keys() {
                    let was = before.find_endpoint(key, |_| true).unwrap();
                    let is = after.find_endpoint(key, |_| true).unwrap();
                    moved += usize::from(was != is && was != count - 1);
                }
                assert!(moved * 100 <= 20_000 * others_percent, "{moved} among {count}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_key_finds_the_same_endpoint_and_never_one_that_may_not(
            count in 1..40_usize,
            user in ".{0,12}",
            refused in any::<u64>(),
        ) {
            let may = |index: usize| refused >> (index % 64) & 1 == 0;
            for places in ring_and_table(&endpoint_names(count)) {
                let first = places.find_endpoint(hash_key(&user), may);
                prop_assert_eq!(first, places.find_endpoint(hash_key(&user), may));
                match first {
                    Some(index) => prop_assert!(may(index) && index < count),
                    None => prop_assert!((0..count).all(|index| !may(index))),
                }
                // A rejected endpoint does not move the keys of others.
                let usual = places.find_endpoint(hash_key(&user), |_| true);
                if usual.is_some_and(may) {
                    prop_assert_eq!(first, usual);
                }
            }
        }
    }

    #[test]
    fn each_endpoint_is_asked_once_at_most() {
        for count in [1, 3, 100] {
            for places in ring_and_table(&endpoint_names(count)) {
                let mut asked = vec![0; count];
                let refuse = |index: usize| {
                    asked[index] += 1;
                    false
                };
                assert_eq!(places.find_endpoint(hash_key("somebody"), refuse), None);
                assert_eq!(asked, vec![1; count]);
            }
        }
    }

    #[test]
    fn nobody_is_found_where_nobody_is() {
        for places in ring_and_table(&[]) {
            assert_eq!(places.find_endpoint(7, |_| true), None);
        }
    }
}
