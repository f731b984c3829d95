//! Provides a handle that ends a run early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends a run early, from any thread. The run completes requests in progress and reports the measured results.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// Ends the schedule now.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True if the run was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
