//! Atomic counters with a single writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one thread writes and other threads may read. An addition is a load and a store without a
/// locked instruction: with a single writer no update is lost.
#[derive(Debug, Default)]
pub(crate) struct SingleWriterCell(AtomicU64);

impl SingleWriterCell {
    /// Adds `amount`, wrapping on overflow. Only one thread may write the cell with this and [`Self::subtract`]: the one
    /// that owns its [`MetricsShard`](crate::MetricsShard).
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.read().wrapping_add(amount), Ordering::Relaxed);
    }

    /// Subtracts `amount`, wrapping on underflow. For the thread that may call this see [`Self::add`].
    pub(crate) fn subtract(&self, amount: u64) {
        self.0.store(self.read().wrapping_sub(amount), Ordering::Relaxed);
    }

    /// Sets the value. For cells that are only set, never added to: any thread may call this, and the last write wins.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the value.
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns an array of cells with the value 0.
pub(crate) fn cell_array<const N: usize>() -> [SingleWriterCell; N] {
    std::array::from_fn(|_| SingleWriterCell::default())
}
