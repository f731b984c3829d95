//! Stores exemplars: one traced request for each histogram bucket.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::trace::{SpanId, TraceId};

/// A traced request that represents the requests of a histogram bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exemplar {
    /// The trace ID of the request.
    pub trace: TraceId,
    /// The span ID of the request.
    pub span: SpanId,
    /// The duration of the request.
    pub duration: Duration,
    /// The time at which the request completed.
    pub ended: SystemTime,
}

/// The last exemplar of a bucket. One thread writes it; other threads may read it concurrently. A read that
/// overlaps a write returns `None`.
#[derive(Debug, Default)]
pub(crate) struct ExemplarCell {
    /// The number of writes, doubled; odd during a write.
    version: AtomicU64,
    /// The high and the low half of the trace ID.
    trace: [AtomicU64; 2],
    span: AtomicU64,
    duration_us: AtomicU64,
    /// The end of the request, in microseconds since the Unix epoch.
    ended_us: AtomicU64,
}

impl ExemplarCell {
    /// Replaces the exemplar. Only one thread may call this.
    pub(crate) fn write(&self, exemplar: &Exemplar) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees one of the following values also sees the odd version.
        fence(Ordering::Release);
        let trace = exemplar.trace.0.get();
        self.trace[0].store((trace >> 64) as u64, Ordering::Relaxed);
        self.trace[1].store(trace as u64, Ordering::Relaxed);
        self.span.store(exemplar.span.0.get(), Ordering::Relaxed);
        self.duration_us.store(to_micros(exemplar.duration), Ordering::Relaxed);
        let ended = exemplar.ended.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.ended_us.store(to_micros(ended), Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns the last exemplar; `None` if there is none or a write is in progress.
    pub(crate) fn read(&self) -> Option<Exemplar> {
        let version_before = self.version.load(Ordering::Acquire);
        let [high, low] = [0, 1].map(|half: usize| self.trace[half].load(Ordering::Relaxed));
        let span_bits = self.span.load(Ordering::Relaxed);
        let duration = Duration::from_micros(self.duration_us.load(Ordering::Relaxed));
        let ended_since_epoch = Duration::from_micros(self.ended_us.load(Ordering::Relaxed));
        // The second reading of the version must not precede the readings of the values.
        fence(Ordering::Acquire);
        let version_after = self.version.load(Ordering::Relaxed);
        let trace = std::num::NonZeroU128::new(u128::from(high) << 64 | u128::from(low))?;
        let span = SpanId(std::num::NonZeroU64::new(span_bits)?);
        let is_consistent = version_before == version_after && version_before.is_multiple_of(2);
        let ended = UNIX_EPOCH + ended_since_epoch;
        is_consistent.then_some(Exemplar { trace: TraceId(trace), span, duration, ended })
    }
}

/// Returns the microseconds of a duration; saturates.
fn to_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU64, NonZeroU128};
    use std::sync::Arc;

    use super::*;

    fn test_exemplar(number: u64) -> Exemplar {
        let trace = u128::from(number) << 64 | u128::from(number);
        Exemplar {
            trace: TraceId(NonZeroU128::new(trace).unwrap()),
            span: SpanId(NonZeroU64::new(number).unwrap()),
            duration: Duration::from_micros(number),
            ended: UNIX_EPOCH + Duration::from_micros(number),
        }
    }

    #[test]
    fn the_last_written_exemplar_is_read() {
        let cell = ExemplarCell::default();
        assert_eq!(cell.read(), None);
        for number in [1, 7] {
            cell.write(&test_exemplar(number));
            assert_eq!(cell.read(), Some(test_exemplar(number)));
        }
    }

    #[test]
    fn a_reader_never_sees_parts_of_two_exemplars() {
        let cell = Arc::<ExemplarCell>::default();
        let writer_cell = cell.clone();
        let writer = std::thread::spawn(move || {
            (1..200_000).for_each(|number| writer_cell.write(&test_exemplar(number)));
        });
        let mut last_number = 0;
        while !writer.is_finished() {
            if let Some(exemplar) = cell.read() {
                let number = u64::try_from(exemplar.duration.as_micros()).unwrap();
                assert_eq!(exemplar, test_exemplar(number));
                last_number = number;
            }
        }
        writer.join().unwrap();
        assert!(last_number <= 199_999 && cell.read() == Some(test_exemplar(199_999)));
    }
}
