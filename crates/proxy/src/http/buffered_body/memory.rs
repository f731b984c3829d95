//! Limits the memory of buffered bodies on each data thread, and shares it fairly among the thread's clients.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::BufferingError;

/// The memory used by buffered bodies of one data thread.
#[derive(Default)]
pub(crate) struct BufferMemory {
    /// The bytes of all clients.
    pub(crate) total_bytes: Cell<usize>,
    /// The bytes of each client with a buffered body.
    bytes_by_client: RefCell<FxHashMap<IpAddr, usize>>,
}

/// The memory used by one body.
pub(super) struct BufferReservation {
    /// The number of reserved bytes.
    bytes: usize,
    client: IpAddr,
    memory: Rc<BufferMemory>,
}

impl BufferReservation {
    pub(super) fn new(memory: Rc<BufferMemory>, client: IpAddr) -> Self {
        Self { bytes: 0, client, memory }
    }

    /// Reserves memory for more bytes of the body. A client may use at most as much as it leaves free, so
    /// that a slow client with large bodies does not exclude others.
    ///
    /// # Errors
    /// `OutOfMemory` if the client would use more.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), BufferingError> {
        if bytes == 0 {
            return Ok(());
        }
        let mut bytes_by_client = self.memory.bytes_by_client.borrow_mut();
        let client_bytes = bytes_by_client
            .get(&self.client)
            .map_or(0, |client_bytes| *client_bytes)
            .saturating_add(bytes);
        let total = self.memory.total_bytes.get().saturating_add(bytes);
        if client_bytes > MAX_BUFFERED_BYTES.saturating_sub(total) {
            return Err(BufferingError::OutOfMemory);
        }
        bytes_by_client.insert(self.client, client_bytes);
        self.memory.total_bytes.set(total);
        self.bytes += bytes;
        Ok(())
    }

    /// Releases the memory of bytes that were forwarded.
    pub(super) fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.memory.total_bytes.set(self.memory.total_bytes.get() - bytes);
        let mut bytes_by_client = self.memory.bytes_by_client.borrow_mut();
        if let Some(client_bytes) = bytes_by_client.get_mut(&self.client) {
            *client_bytes -= bytes;
            if *client_bytes == 0 {
                bytes_by_client.remove(&self.client);
            }
        }
    }
}

impl Drop for BufferReservation {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

/// The maximum number of bytes buffered by one data thread: 256 bodies of the default limit, as many as check
/// requests may be in flight. A single client may use half of it.
const MAX_BUFFERED_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_use_at_most_as_much_memory_as_it_leaves_free() {
        let memory: Rc<BufferMemory> = Rc::default();
        let reservation =
            |last: u8| BufferReservation::new(memory.clone(), IpAddr::from([10, 0, 0, last]));
        let (mut first, mut second, mut other_client) =
            (reservation(1), reservation(1), reservation(2));
        assert!(first.reserve(MAX_BUFFERED_BYTES / 4).is_ok());
        assert!(second.reserve(MAX_BUFFERED_BYTES / 4).is_ok());
        assert!(matches!(second.reserve(1), Err(BufferingError::OutOfMemory)));
        assert!(other_client.reserve(MAX_BUFFERED_BYTES / 4).is_ok());
        assert!(matches!(other_client.reserve(1), Err(BufferingError::OutOfMemory)));
        // A forwarded body frees memory, for its own client first.
        first.release(MAX_BUFFERED_BYTES / 4);
        assert!(second.reserve(1).is_ok() && other_client.reserve(1).is_ok());
        drop((first, second, other_client));
        assert_eq!(memory.total_bytes.get(), 0);
        assert!(memory.bytes_by_client.borrow().is_empty());
    }
}
