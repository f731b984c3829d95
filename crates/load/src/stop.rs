//! Provides a handle that ends a run early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends a run early, from any thread. The run completes requests in progress and reports the measured results.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// Ends the schedule at the next progress update of its threads.
    pub fn stop(&self) {
        // No other memory depends on the flag.
        self.0.store(true, Ordering::Relaxed);
    }

    /// True if the run was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
