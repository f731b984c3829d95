//! The control plane's answers for addresses and names, with their last use for eviction.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::{KnownAnswer, ResourceUsage};
use crate::subscriptions::EvictionPriority;

/// Returns the answers for addresses or names, with the usage of their previous entries.
pub(super) fn answers_with_usage<K: Clone + Eq + std::hash::Hash, A>(
    answers: &BTreeMap<K, Arc<A>>,
    before: Option<&FxHashMap<K, KnownAnswer<A>>>,
    now: u64,
) -> FxHashMap<K, KnownAnswer<A>> {
    let with_usage = |(key, answer): (&K, &Arc<A>)| {
        let before = before.and_then(|before| before.get(key));
        let usage = before.map(|known| known.usage.clone());
        let usage = usage.unwrap_or_else(|| ResourceUsage::new(now));
        (key.clone(), KnownAnswer { answer: Arc::clone(answer), usage })
    };
    answers.iter().map(with_usage).collect()
}

/// Returns the eviction priority of an address or a name.
pub(super) fn eviction_priority<A>(known: Option<&KnownAnswer<A>>, now: u64) -> EvictionPriority {
    known.map_or(EvictionPriority::Pending, |known| {
        EvictionPriority::Used(known.usage.last_use(now))
    })
}

/// Returns the keys that were not used for `idle`.
pub(super) fn idle_keys<K: Clone, A>(
    known: &FxHashMap<K, KnownAnswer<A>>,
    idle: Duration,
    now: u64,
) -> Vec<K> {
    let oldest = now.saturating_sub(idle.as_secs());
    let idle_answers = known.iter().filter(|(_, known)| known.usage.last_use(now) < oldest);
    idle_answers.map(|(key, _)| key.clone()).collect()
}
