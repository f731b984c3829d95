//! Idle connections of external clients: the one that has waited longest is evicted for new ones.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::Notify;

/// The connections of external clients to one thread that have no request in progress.
#[derive(Default)]
pub(crate) struct IdleClients {
    waiting: RefCell<BTreeMap<u64, Rc<Notify>>>,
    next: Cell<u64>,
}

impl IdleClients {
    /// Registers a connection as idle until dropped; resolves when it is to be closed.
    pub(crate) async fn wait_for_eviction(&self) {
        let place = IdleSlot { all: self, number: self.next.get() };
        self.next.set(place.number + 1);
        let shed = Rc::new(Notify::new());
        self.waiting.borrow_mut().insert(place.number, shed.clone());
        shed.notified().await;
    }

    /// Evicts the connection that has waited longest. Returns false if there is none.
    pub(crate) fn evict_oldest(&self) -> bool {
        let first = self.waiting.borrow_mut().pop_first();
        first.is_some_and(|(_, shed)| {
            shed.notify_one();
            true
        })
    }
}

struct IdleSlot<'a> {
    all: &'a IdleClients,
    number: u64,
}

impl Drop for IdleSlot<'_> {
    fn drop(&mut self) {
        self.all.waiting.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_one_that_waited_longest_goes_first() {
        let all = IdleClients::default();
        let mut cx = Context::from_waker(Waker::noop());
        let (mut first, mut second) =
            (pin!(all.wait_for_eviction()), pin!(all.wait_for_eviction()));
        {
            let mut gone = pin!(all.wait_for_eviction());
            assert!(gone.as_mut().poll(&mut cx).is_pending());
        }
        assert!(!all.evict_oldest(), "who has something to ask is not idle");
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(all.evict_oldest());
        assert_eq!(first.as_mut().poll(&mut cx), Poll::Ready(()));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(all.evict_oldest() && !all.evict_oldest());
    }
}
