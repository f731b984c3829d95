//! Atomic numbers with a single writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread writes and others may read. Addition is a load and a store: with a single writer no
/// update is lost, so the processor need not lock the cache line.
#[derive(Debug, Default)]
pub(crate) struct Cell(AtomicU64);

impl Cell {
    /// Adds; only the thread that owns the shard may call this.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.read().wrapping_add(amount), Ordering::Relaxed);
    }

    /// Subtracts; only the thread that owns the shard may call this.
    pub(crate) fn subtract(&self, amount: u64) {
        self.0.store(self.read().wrapping_sub(amount), Ordering::Relaxed);
    }

    /// Replaces the number; the last of several writers wins.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the number.
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An array of cells.
pub(crate) fn cell_array<const N: usize>() -> [Cell; N] {
    std::array::from_fn(|_| Cell::default())
}
