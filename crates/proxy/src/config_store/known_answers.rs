//! The least recently used answers of the control plane.

use super::*;

/// Returns the answers for addresses or names, with the usage of their previous entries.
pub(super) fn known_answers<K: Clone + Eq + std::hash::Hash, A>(
    answers: &BTreeMap<K, Arc<A>>,
    before: Option<&FxHashMap<K, KnownAnswer<A>>>,
    now: u64,
) -> FxHashMap<K, KnownAnswer<A>> {
    let known = |(key, answer): (&K, &Arc<A>)| {
        let before = before.and_then(|before| before.get(key));
        let usage = before.map(|known| known.usage.clone());
        let usage = usage.unwrap_or_else(|| {
            Arc::new(ResourceUsage { seen: AtomicU64::new(now), ..ResourceUsage::default() })
        });
        (key.clone(), KnownAnswer { answer: Arc::clone(answer), usage })
    };
    answers.iter().map(known).collect()
}

pub(super) fn by_use<A>(known: Option<&KnownAnswer<A>>, now: u64) -> EvictionPriority {
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
    let idle = known.iter().filter(|(_, known)| known.usage.last_use(now) < oldest);
    idle.map(|(key, _)| key.clone()).collect()
}
