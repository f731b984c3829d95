//! Computes the results of the measured window of a run: the differences of counters between its start and its end.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::environment::ByteCounters;
use crate::statistics::RunStatistics;

/// Counter values at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CounterSnapshot {
    read_at: Duration,
    /// The CPU time of the thread since its start.
    cpu: Duration,
    responses: u64,
    failed: u64,
    bytes_sent: u64,
    bytes_received: u64,
}

impl CounterSnapshot {
    /// Reads the counters of the calling thread. `read_at` is the time since the start of the run.
    pub(crate) fn read_counters(
        read_at: Duration,
        statistics: &RunStatistics,
        byte_counters: &ByteCounters,
    ) -> Self {
        Self {
            read_at,
            cpu: thread_cpu_time(),
            responses: statistics.responses,
            failed: statistics.failed,
            bytes_sent: byte_counters.bytes_sent.get(),
            bytes_received: byte_counters.bytes_received.get(),
        }
    }
}

/// The counter differences between the start and the end of the measurement.
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
    pub(crate) fn from_snapshots(
        start_snapshot: &CounterSnapshot,
        end_snapshot: &CounterSnapshot,
    ) -> Self {
        Self {
            elapsed: end_snapshot.read_at.saturating_sub(start_snapshot.read_at),
            cpu: end_snapshot.cpu.saturating_sub(start_snapshot.cpu),
            responses: end_snapshot.responses - start_snapshot.responses,
            failed: end_snapshot.failed - start_snapshot.failed,
            bytes_sent: end_snapshot.bytes_sent - start_snapshot.bytes_sent,
            bytes_received: end_snapshot.bytes_received - start_snapshot.bytes_received,
        }
    }
}

/// Returns the CPU time of the calling thread.
fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
