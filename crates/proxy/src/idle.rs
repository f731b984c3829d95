//! Registers the idle connections of external clients. When a thread is at its connection limit, the connection that
//! has been idle longest is closed for a new one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::Notify;

/// The connections of external clients to one thread that have no request in progress.
#[derive(Default)]
pub(crate) struct IdleClients {
    /// The notification that closes each idle connection, by registration number: the lowest number has been
    /// idle longest.
    evictions: RefCell<BTreeMap<u64, Rc<Notify>>>,
    /// The number of the next registration; numbers only increase.
    next_registration: Cell<u64>,
}

impl IdleClients {
    /// Registers a connection as idle until the future is dropped. Resolves when the connection must be closed.
    pub(crate) async fn wait_for_eviction(&self) {
        let guard = IdleGuard { idle_clients: self, registration: self.next_registration.get() };
        self.next_registration.set(guard.registration + 1);
        let eviction = Rc::new(Notify::new());
        self.evictions.borrow_mut().insert(guard.registration, eviction.clone());
        eviction.notified().await;
    }

    /// Evicts the connection that has been idle longest. Returns false if no connection is idle.
    pub(crate) fn evict_oldest(&self) -> bool {
        let oldest = self.evictions.borrow_mut().pop_first();
        oldest.is_some_and(|(_, eviction)| {
            eviction.notify_one();
            true
        })
    }
}

/// Ends the registration of an idle connection when dropped.
struct IdleGuard<'a> {
    idle_clients: &'a IdleClients,
    registration: u64,
}

impl Drop for IdleGuard<'_> {
    fn drop(&mut self) {
        self.idle_clients.evictions.borrow_mut().remove(&self.registration);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_connection_that_has_been_idle_longest_is_evicted_first() {
        let clients = IdleClients::default();
        let mut cx = Context::from_waker(Waker::noop());
        let (mut first, mut second) =
            (pin!(clients.wait_for_eviction()), pin!(clients.wait_for_eviction()));
        {
            let mut dropped = pin!(clients.wait_for_eviction());
            assert!(dropped.as_mut().poll(&mut cx).is_pending());
        }
        assert!(!clients.evict_oldest(), "a connection with a request is not idle");
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(clients.evict_oldest());
        assert_eq!(first.as_mut().poll(&mut cx), Poll::Ready(()));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(clients.evict_oldest() && !clients.evict_oldest());
    }
}
