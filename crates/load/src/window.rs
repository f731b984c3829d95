//! The measured time: differences of counters between its start and its end.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::environment::ByteCounters;
use crate::statistics::RunStatistics;

/// Counter values at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CounterSnapshot {
    time: Duration,
    cpu: Duration,
    responses: u64,
    failed: u64,
    bytes_sent: u64,
    bytes_received: u64,
}

impl CounterSnapshot {
    /// Reads the counters of the calling thread.
    pub(crate) fn read_counters(
        time: Duration,
        statistics: &RunStatistics,
        byte_counters: &ByteCounters,
    ) -> Self {
        Self {
            time,
            cpu: thread_cpu(),
            responses: statistics.responses,
            failed: statistics.failed,
            bytes_sent: byte_counters.sent.get(),
            bytes_received: byte_counters.received.get(),
        }
    }
}

/// The differences between two moments.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MeasuredWindow {
    pub(crate) elapsed: Duration,
    pub(crate) cpu: Duration,
    pub(crate) responses: u64,
    pub(crate) failed: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
}

impl MeasuredWindow {
    pub(crate) fn from_snapshots(first: &CounterSnapshot, last: &CounterSnapshot) -> Self {
        Self {
            elapsed: last.time.saturating_sub(first.time),
            cpu: last.cpu.saturating_sub(first.cpu),
            responses: last.responses - first.responses,
            failed: last.failed - first.failed,
            bytes_sent: last.bytes_sent - first.bytes_sent,
            bytes_received: last.bytes_received - first.bytes_received,
        }
    }
}

/// Returns the CPU time of the calling thread.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
