//! Consistent hashing: ring hash and Maglev tables for all endpoints of a port, rendezvous hashing for subsets.

use std::sync::Arc;

use leno_model::{BalanceAlgorithm, Endpoint, Weight};

use crate::hash::hash;

/// The hash ring or table that maps keys to endpoints.
#[derive(Debug)]
pub enum EndpointHashTable {
    /// A hash ring: points in ascending order, each with its endpoint.
    Ring {
        /// The position of each point, and the index of its endpoint.
        points: Box<[(u64, u16)]>,
        /// The number of endpoints with points.
        endpoint_count: usize,
    },
    /// A Maglev table: a prime number of slots, each with its endpoint.
    Table {
        /// The index of each slot's endpoint.
        slots: Box<[u16]>,
        /// The number of endpoints with slots.
        endpoint_count: usize,
    },
}

impl EndpointHashTable {
    /// Builds the table or ring of these endpoints; `None` for an algorithm without hashing.
    #[must_use]
    pub fn for_endpoints(
        algorithm: &BalanceAlgorithm,
        endpoints: &[Arc<Endpoint>],
    ) -> Option<Self> {
        // Endpoints are hashed by name, not by address, so that they retain their slots across a restart.
        let weighted_names = endpoints.iter().map(|endpoint| WeightedName {
            name: endpoint.id.workload.to_string(),
            weight: endpoint.weight.unwrap_or_default().as_u16(),
        });
        let weighted_names: Vec<WeightedName> = weighted_names.take(MAX_ENDPOINTS).collect();
        match algorithm {
            BalanceAlgorithm::RingHash(_) => Some(Self::with_ring(&weighted_names)),
            BalanceAlgorithm::Maglev(_) => Some(Self::with_maglev_table(&weighted_names)),
            BalanceAlgorithm::PeakEwma { .. }
            | BalanceAlgorithm::LeastRequest { .. }
            | BalanceAlgorithm::RoundRobin
            | BalanceAlgorithm::Random => None,
        }
    }

    /// Returns the index of the endpoint for a key: the first available endpoint in the key's sequence, which is the
    /// same in every sidecar. `None` if no endpoint within the search limit is available.
    pub fn find_endpoint(
        &self,
        key: u64,
        mut is_available: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        match self {
            Self::Ring { points, endpoint_count } => {
                let start = points.partition_point(|(point, _)| *point < key);
                let sequence = points.iter().skip(start).chain(points.iter().take(start));
                find_available(
                    sequence.map(|(_, endpoint_index)| *endpoint_index),
                    *endpoint_count,
                    &mut is_available,
                )
            }
            Self::Table { slots, endpoint_count } => {
                let slot_count = u64::try_from(slots.len()).ok()?;
                let start = usize::try_from(key.checked_rem(slot_count)?).ok()?;
                let sequence = slots.iter().skip(start).chain(slots.iter().take(start));
                find_available(sequence.copied(), *endpoint_count, &mut is_available)
            }
        }
    }

    /// Builds a hash ring.
    fn with_ring(weighted_names: &[WeightedName]) -> Self {
        Self::Ring { points: build_ring(weighted_names), endpoint_count: weighted_names.len() }
    }

    /// Builds a Maglev table.
    fn with_maglev_table(weighted_names: &[WeightedName]) -> Self {
        Self::Table {
            slots: build_table(weighted_names, TABLE_SLOTS),
            endpoint_count: weighted_names.len(),
        }
    }
}

/// The name of an endpoint, and its weight.
struct WeightedName {
    /// The name of the endpoint's workload, `namespace/name`.
    name: String,
    /// The weight; [`Weight::DEFAULT`] for an endpoint without a weight.
    weight: u16,
}

/// Returns the index of the first available endpoint in the sequence of endpoints that slots or points belong to. Each
/// endpoint is tried once; `None` if all are rejected.
fn find_available(
    endpoint_indices: impl Iterator<Item = u16>,
    endpoint_count: usize,
    is_available: &mut impl FnMut(usize) -> bool,
) -> Option<usize> {
    let mut endpoint_indices = endpoint_indices.take(MAX_SEARCH_STEPS).map(usize::from);
    let endpoint_index = endpoint_indices.next()?;
    if is_available(endpoint_index) {
        return Some(endpoint_index);
    }
    let mut rejected_endpoints = RejectedEndpoints::default();
    rejected_endpoints.insert(endpoint_index);
    for endpoint_index in endpoint_indices {
        if rejected_endpoints.count == endpoint_count {
            break;
        }
        if rejected_endpoints.insert(endpoint_index) && is_available(endpoint_index) {
            return Some(endpoint_index);
        }
    }
    None
}

/// The rejected endpoints: one bit for each endpoint that may have slots.
struct RejectedEndpoints {
    bits: [u64; MAX_ENDPOINTS / 64],
    /// The number of rejected endpoints.
    count: usize,
}

impl Default for RejectedEndpoints {
    fn default() -> Self {
        Self { bits: [0; MAX_ENDPOINTS / 64], count: 0 }
    }
}

impl RejectedEndpoints {
    /// Adds an endpoint. Returns false if the endpoint is already present or out of range.
    fn insert(&mut self, endpoint_index: usize) -> bool {
        let Some(bits) = self.bits.get_mut(endpoint_index / 64) else { return false };
        let old_bits = *bits;
        *bits |= 1 << (endpoint_index % 64);
        let is_new = *bits != old_bits;
        self.count += usize::from(is_new);
        is_new
    }
}

/// Hashes a key; all bits of the result are uniform.
#[must_use]
pub fn hash_key(value: &str) -> u64 {
    hash(KEY_SALT, value)
}

/// Returns the index of the available endpoint of a subset with the highest hash of key and name (rendezvous hashing);
/// `None` if none is available. The time grows with the number of endpoints, so it is used for subsets without a hash
/// table.
pub fn find_by_rendezvous_hash(
    key: u64,
    endpoints: &[Arc<Endpoint>],
    mut is_available: impl FnMut(usize) -> bool,
) -> Option<usize> {
    let hash_for = |endpoint: &Endpoint| hash(key, endpoint.id.workload.name.as_str());
    let mut ranked_endpoints: Vec<(u64, usize)> =
        endpoints.iter().enumerate().map(|(index, endpoint)| (hash_for(endpoint), index)).collect();
    ranked_endpoints.sort_unstable_by(|first, second| second.cmp(first));
    ranked_endpoints.into_iter().map(|(_, index)| index).find(|index| is_available(*index))
}

/// Builds the points of a ring. The number of an endpoint's points is proportional to its weight relative to a unit,
/// and at least one. The unit is [`Weight::DEFAULT`], doubled or halved until the average weight is between half a
/// unit and one unit. With this unit, the total number of points never exceeds that of equal weights, and an added or
/// removed endpoint rarely changes the points of other endpoints.
fn build_ring(weighted_names: &[WeightedName]) -> Box<[(u64, u16)]> {
    let total_parts = weighted_names
        .iter()
        .map(|endpoint| usize::from(endpoint.weight) * UNIT_PARTS)
        .sum::<usize>();
    let average_parts = (total_parts / weighted_names.len().max(1)).max(1);
    let mut unit_parts = usize::from(Weight::DEFAULT) * UNIT_PARTS;
    while unit_parts < average_parts {
        unit_parts *= 2;
    }
    while unit_parts / 2 >= average_parts {
        unit_parts /= 2;
    }
    let mut points: Vec<(u64, u16)> = Vec::with_capacity(RING_POINTS * weighted_names.len());
    for (WeightedName { name, weight }, index) in weighted_names.iter().zip(0_u16..) {
        let point_count = RING_POINTS * usize::from(*weight) * UNIT_PARTS / unit_parts;
        let salts = (0_u64..).take(point_count.max(1));
        points.extend(salts.map(|salt| (hash(salt, name), index)));
    }
    points.sort_unstable();
    points.into()
}

/// Builds the slots of a Maglev table (Eisenbud et al., NSDI 2016, §3.4). The endpoints take turns; in its turn, an
/// endpoint gets the next free slot of its own permutation. The frequency of an endpoint's turns is proportional to
/// its weight.
fn build_table(weighted_names: &[WeightedName], slot_count: usize) -> Box<[u16]> {
    if weighted_names.is_empty() {
        return Box::default();
    }
    let modulus = slot_count as u64;
    let mut permutations: Vec<SlotPermutation> = weighted_names
        .iter()
        .map(|WeightedName { name, weight }| SlotPermutation {
            next_slot: hash(OFFSET_SALT, name) % modulus,
            skip: hash(SKIP_SALT, name) % (modulus - 1) + 1,
            weight: *weight,
            credit: 0,
        })
        .collect();
    let greatest_weight = weighted_names.iter().map(|endpoint| endpoint.weight).max().unwrap_or(1);
    let mut table = vec![FREE_SLOT; slot_count];
    let mut filled_slots = 0;
    loop {
        for (permutation, endpoint_index) in permutations.iter_mut().zip(0_u16..) {
            permutation.credit += permutation.weight;
            if permutation.credit < greatest_weight {
                continue;
            }
            permutation.credit -= greatest_weight;
            loop {
                let position = usize::try_from(permutation.next_slot).ok();
                permutation.next_slot = (permutation.next_slot + permutation.skip) % modulus;
                let slot = position.and_then(|position| table.get_mut(position));
                let Some(free_slot) = slot.filter(|slot| **slot == FREE_SLOT) else { continue };
                *free_slot = endpoint_index;
                break;
            }
            filled_slots += 1;
            if filled_slots == slot_count {
                return table.into();
            }
        }
    }
}

/// The order in which an endpoint takes the slots of a Maglev table.
struct SlotPermutation {
    /// The next slot of the permutation.
    next_slot: u64,
    /// The distance between two slots of the permutation.
    skip: u64,
    weight: u16,
    /// The weight that the endpoint has collected since its last turn. It gets a turn when the credit reaches the
    /// greatest weight of all endpoints, so the credit is at most twice the greatest weight.
    credit: u16,
}

/// The number of ring points of an endpoint with the unit weight. The shares of equal endpoints differ by about 10 %.
const RING_POINTS: usize = 128;
/// The number of parts that a weight of one is divided into, since the unit may be less than one.
const UNIT_PARTS: usize = 128;
/// The number of slots of a Maglev table, a prime. The shares of a hundred endpoints differ by about 1 %.
const TABLE_SLOTS: usize = 16_381;
/// The maximum number of endpoints in a table or ring; further endpoints receive no keys. It bounds the
/// memory of a ring and the bits of [`RejectedEndpoints`].
const MAX_ENDPOINTS: usize = 4096;
/// The maximum number of slots or points that are searched for an available endpoint. After that, the default
/// algorithm chooses one.
const MAX_SEARCH_STEPS: usize = 4096;
/// Marks a slot without an endpoint.
const FREE_SLOT: u16 = u16::MAX;
/// The salt of the first slot in an endpoint's permutation. The salts are ASCII words: `offset`, `skip`, `key`.
const OFFSET_SALT: u64 = 0x6f66_6673_6574;
/// The salt of the distance between two slots in an endpoint's permutation.
const SKIP_SALT: u64 = 0x736b_6970;
/// The salt of request keys.
const KEY_SALT: u64 = 0x006b_6579;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint_names(count: usize) -> Vec<WeightedName> {
        let named = |n| WeightedName { name: format!("shop/stock-{n}"), weight: Weight::DEFAULT };
        (0..count).map(named).collect()
    }

    fn test_keys() -> impl Iterator<Item = u64> {
        (0..20_000).map(|n| hash_key(&format!("user-{n}")))
    }

    fn ring_and_table(names: &[WeightedName]) -> [EndpointHashTable; 2] {
        [EndpointHashTable::with_ring(names), EndpointHashTable::with_maglev_table(names)]
    }

    /// Returns the number of keys of each endpoint.
    fn key_counts(table: &EndpointHashTable, endpoints: usize) -> Vec<usize> {
        let mut counts = vec![0; endpoints];
        for key in test_keys() {
            counts[table.find_endpoint(key, |_| true).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn endpoints_receive_nearly_equal_shares() {
        for count in [1, 2, 3, 10, 50] {
            for (table, percent_max) in ring_and_table(&endpoint_names(count)).iter().zip([40, 12])
            {
                let fair_share = 20_000 / count;
                let difference_max = fair_share * percent_max / 100 + 60;
                for key_count in key_counts(table, count) {
                    assert!(
                        key_count.abs_diff(fair_share) <= difference_max,
                        "{key_count} of {fair_share} among {count}"
                    );
                }
            }
        }
    }

    fn weighted_names(weights: &[u16]) -> Vec<WeightedName> {
        let names = endpoint_names(weights.len()).into_iter().zip(weights);
        names.map(|(endpoint, weight)| WeightedName { weight: *weight, ..endpoint }).collect()
    }

    #[test]
    fn endpoints_receive_shares_by_weight() {
        for weights in [&[50, 100, 350, 500][..], &[1, 2, 7], &[100, 200, 700]] {
            let total_weight: usize = weights.iter().copied().map(usize::from).sum();
            for (table, percent_max) in ring_and_table(&weighted_names(weights)).iter().zip([40, 6])
            {
                let counts = key_counts(table, weights.len());
                for (key_count, weight) in counts.iter().zip(weights) {
                    let fair_share = 20_000 * usize::from(*weight) / total_weight;
                    let difference_max = fair_share * percent_max / 100 + 60;
                    assert!(
                        key_count.abs_diff(fair_share) <= difference_max,
                        "{weights:?}: {counts:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn weights_do_not_increase_the_number_of_ring_points() {
        let points = |weights: &[u16]| build_ring(&weighted_names(weights)).len();
        assert_eq!(points(&[100; 50]), 50 * RING_POINTS);
        for weight in [1, 7, 99, 101, 1000] {
            let range = 50 * RING_POINTS / 2 - 50..=50 * RING_POINTS;
            assert!(range.contains(&points(&[weight; 50])), "{weight}");
        }
        // Each endpoint has at least one point.
        assert_eq!(
            build_ring(&weighted_names(&[1, 1000]))
                .iter()
                .filter(|(_, endpoint)| *endpoint == 0)
                .count(),
            1
        );
    }

    #[test]
    fn an_added_endpoint_with_another_weight_moves_keys_only_to_itself() {
        let before = EndpointHashTable::with_ring(&weighted_names(&[1000, 900, 800]));
        let after = EndpointHashTable::with_ring(&weighted_names(&[1000, 900, 800, 700]));
        let endpoint_for = |table: &EndpointHashTable, key| table.find_endpoint(key, |_| true);
        for key in
            test_keys().filter(|key| endpoint_for(&before, *key) != endpoint_for(&after, *key))
        {
            assert_eq!(endpoint_for(&after, key), Some(3));
        }
    }

    #[test]
    fn adding_or_removing_an_endpoint_moves_few_keys_of_others() {
        for count in [2, 5, 20] {
            let (all_names, fewer_names) = (endpoint_names(count), endpoint_names(count - 1));
            for ((before, after), max_moved_percent) in
                ring_and_table(&all_names).iter().zip(&ring_and_table(&fewer_names)).zip([0, 4])
            {
                let mut moved = 0;
                for key in test_keys() {
                    let endpoint_before = before.find_endpoint(key, |_| true).unwrap();
                    let endpoint_after = after.find_endpoint(key, |_| true).unwrap();
                    moved += usize::from(
                        endpoint_before != endpoint_after && endpoint_before != count - 1,
                    );
                }
                assert!(moved * 100 <= 20_000 * max_moved_percent, "{moved} among {count}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_key_always_maps_to_the_same_available_endpoint(
            count in 1..40_usize,
            user in ".{0,12}",
            rejected_bits in any::<u64>(),
        ) {
            let is_available = |index: usize| rejected_bits >> (index % 64) & 1 == 0;
            for table in ring_and_table(&endpoint_names(count)) {
                let found = table.find_endpoint(hash_key(&user), is_available);
                prop_assert_eq!(found, table.find_endpoint(hash_key(&user), is_available));
                match found {
                    Some(index) => prop_assert!(is_available(index) && index < count),
                    None => prop_assert!((0..count).all(|index| !is_available(index))),
                }
                // A rejected endpoint does not move the keys of others.
                let unrestricted = table.find_endpoint(hash_key(&user), |_| true);
                if unrestricted.is_some_and(is_available) {
                    prop_assert_eq!(found, unrestricted);
                }
            }
        }
    }

    #[test]
    fn each_endpoint_is_tried_at_most_once() {
        for count in [1, 3, 100] {
            for table in ring_and_table(&endpoint_names(count)) {
                let mut tries = vec![0; count];
                let reject = |index: usize| {
                    tries[index] += 1;
                    false
                };
                assert_eq!(table.find_endpoint(hash_key("user"), reject), None);
                assert_eq!(tries, vec![1; count]);
            }
        }
    }

    #[test]
    fn a_table_without_endpoints_finds_none() {
        for table in ring_and_table(&[]) {
            assert_eq!(table.find_endpoint(7, |_| true), None);
        }
    }
}
