//! Memory accounting of buffered bodies: bounded per data thread, and shared fairly by its clients.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::BufferingError;

/// The memory used by buffered bodies of one data thread.
#[derive(Default)]
pub(crate) struct BufferMemory {
    pub(crate) all: Cell<usize>,
    /// The share of each client that uses any.
    each: RefCell<FxHashMap<IpAddr, usize>>,
}

/// The memory used by one body.
pub(super) struct BufferReservation {
    own: usize,
    client: IpAddr,
    taken: Rc<BufferMemory>,
}

impl BufferReservation {
    pub(super) fn new(taken: Rc<BufferMemory>, client: IpAddr) -> Self {
        Self { own: 0, client, taken }
    }

    /// A client may use at most as much as it leaves free, so that a slow client with large bodies does not
    /// exclude others.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), BufferingError> {
        if bytes == 0 {
            return Ok(());
        }
        let mut each = self.taken.each.borrow_mut();
        let share = each.get(&self.client).map_or(0, |share| *share).saturating_add(bytes);
        let all = self.taken.all.get().saturating_add(bytes);
        if share > AHEAD_BYTES_MAX.saturating_sub(all) {
            return Err(BufferingError::OutOfMemory);
        }
        each.insert(self.client, share);
        self.taken.all.set(all);
        self.own += bytes;
        Ok(())
    }

    pub(super) fn release(&mut self, bytes: usize) {
        self.own -= bytes;
        self.taken.all.set(self.taken.all.get() - bytes);
        let mut each = self.taken.each.borrow_mut();
        if let Some(share) = each.get_mut(&self.client) {
            *share -= bytes;
            if *share == 0 {
                each.remove(&self.client);
            }
        }
    }
}

impl Drop for BufferReservation {
    fn drop(&mut self) {
        self.release(self.own);
    }
}

/// The maximum number of bytes buffered by one data thread: 256 bodies of the default limit, as many as check
/// requests may be in flight. A single client may use half of it.
const AHEAD_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_takes_no_more_than_it_leaves_for_others() {
        let taken: Rc<BufferMemory> = Rc::default();
        let of = |last: u8| BufferReservation::new(taken.clone(), IpAddr::from([10, 0, 0, last]));
        let (mut one, mut again, mut other) = (of(1), of(1), of(2));
        assert!(one.reserve(AHEAD_BYTES_MAX / 4).is_ok());
        assert!(again.reserve(AHEAD_BYTES_MAX / 4).is_ok());
        assert!(matches!(again.reserve(1), Err(BufferingError::OutOfMemory)));
        assert!(other.reserve(AHEAD_BYTES_MAX / 4).is_ok());
        assert!(matches!(other.reserve(1), Err(BufferingError::OutOfMemory)));
        // A forwarded body frees memory, for its own client first.
        one.release(AHEAD_BYTES_MAX / 4);
        assert!(again.reserve(1).is_ok() && other.reserve(1).is_ok());
        drop((one, again, other));
        assert_eq!(taken.all.get(), 0);
        assert!(taken.each.borrow().is_empty());
    }
}
