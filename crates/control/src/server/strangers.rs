//! Connections whose peer is not known yet: few at once, and no address takes all the places.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Limits;

/// The strangers of a listener.
#[derive(Debug)]
pub(crate) struct Strangers {
    places: Arc<Semaphore>,
    per_source: usize,
    /// The addresses of which there are connections here now.
    sources: Mutex<BTreeMap<IpAddr, Source>>,
}

#[derive(Debug)]
struct Source {
    places: Arc<Semaphore>,
    strangers: usize,
}

impl Strangers {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            places: Arc::new(Semaphore::new(limits.strangers)),
            per_source: limits.strangers_per_source,
            sources: Mutex::default(),
        }
    }

    /// One more of this address, who has to wait for its turn; `None` when too many of there wait.
    pub(crate) fn admit(self: &Arc<Self>, source: IpAddr) -> Option<Stranger> {
        let mut sources = self.lock();
        let entry = sources.entry(source).or_insert_with(|| Source {
            places: Arc::new(Semaphore::new(self.per_source)),
            strangers: 0,
        });
        if entry.strangers >= self.per_source.saturating_mul(QUEUE_FACTOR) {
            return None;
        }
        entry.strangers += 1;
        Some(Stranger { strangers: Arc::clone(self), source, turn: None })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection until it is known who is at its other end.
#[derive(Debug)]
pub(crate) struct Stranger {
    strangers: Arc<Strangers>,
    source: IpAddr,
    turn: Option<[OwnedSemaphorePermit; 2]>,
}

impl Stranger {
    /// Waits for a place among those of its address, and then among all.
    pub(crate) async fn take_place(&mut self) {
        let of_source = self.strangers.lock().get(&self.source).map(|s| Arc::clone(&s.places));
        let Some(of_source) = of_source else { return };
        // Nobody closes these.
        let Ok(one) = of_source.acquire_owned().await else { return };
        let Ok(other) = Arc::clone(&self.strangers.places).acquire_owned().await else { return };
        self.turn = Some([one, other]);
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut sources = self.strangers.lock();
        if let Some(source) = sources.get_mut(&self.source) {
            source.strangers -= 1;
            if source.strangers == 0 {
                sources.remove(&self.source);
            }
        }
    }
}

/// How many of one address may be here or wait, for each that may be here: sidecars of one
/// machine come back all at once.
const QUEUE_FACTOR: usize = 4;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn strangers() -> Arc<Strangers> {
        let limits = Limits { strangers: 3, strangers_per_source: 2, ..Limits::default() };
        Arc::new(Strangers::new(&limits))
    }

    async fn has_place(stranger: &mut Stranger) -> bool {
        timeout(Duration::from_secs(60), stranger.take_place()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_does_not_shut_out_another() {
        let strangers = strangers();
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let mut crowd: Vec<_> = std::iter::from_fn(|| strangers.admit(one)).collect();
        assert_eq!(crowd.len(), 2 * QUEUE_FACTOR, "the others are turned away");
        assert!(has_place(&mut crowd[0]).await && has_place(&mut crowd[1]).await);
        assert!(!has_place(&mut crowd[2]).await);
        let mut guest = strangers.admit(other).unwrap();
        assert!(has_place(&mut guest).await);
        // The next in the queue follows as soon as one is known, or gone.
        crowd.remove(0);
        assert!(has_place(&mut crowd[1]).await);
    }

    #[tokio::test]
    async fn addresses_are_forgotten_with_their_last_stranger() {
        let strangers = strangers();
        let mut stranger = strangers.admit([10, 0, 0, 1].into()).unwrap();
        stranger.take_place().await;
        drop(stranger);
        assert!(strangers.lock().is_empty());
        assert_eq!(strangers.places.available_permits(), 3);
    }
}
