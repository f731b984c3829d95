//! The peak-sensitive moving average (peak EWMA) of an endpoint's time to first byte, and its recent failures.

use std::time::Duration;

/// The time to first byte of one endpoint, as measured by one data thread.
///
/// A sample above the average replaces the average immediately. A sample below the average lets the average decay
/// towards it with a time constant of ten seconds, independent of the number of samples. The first slow response thus
/// raises the average, and one fast response does not reset it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndpointLatency {
    /// The average in 65536ths of a microsecond; 0 if unknown.
    average: u64,
    /// The time of the last update, in microseconds.
    updated_at: u64,
    /// The number of consecutive failed attempts.
    failures: u8,
    /// The time of the last failure, in microseconds.
    failed_at: u64,
}

impl EndpointLatency {
    /// Records a response that started `latency` after its request.
    pub fn record_response(&mut self, latency: Duration, now: Duration) {
        let (latency, now) = (scaled_micros(latency), to_micros(now));
        self.average = match self.average.checked_sub(latency) {
            Some(excess) => latency + decay(excess, now.saturating_sub(self.updated_at)),
            None => latency,
        };
        self.updated_at = now;
        self.failures = 0;
    }

    /// Records an attempt that failed or received an error response, `latency` after its start. Errors are often
    /// faster than successful responses, so they never reduce the average.
    pub fn record_failure(&mut self, latency: Duration, now: Duration) {
        self.record_pending(latency, now);
        self.failures = self.failure_count(now).saturating_add(1);
        self.failed_at = to_micros(now);
    }

    /// Records a request that the endpoint rejected because of its content, `latency` after its start. Rejections are
    /// fast, so they do not reduce the average; they do not count as failures.
    pub fn record_rejection(&mut self, latency: Duration, now: Duration) {
        self.record_pending(latency, now);
        self.failures = 0;
    }

    /// Records that an attempt took at least `latency`, such as an attempt that has no result yet. It can only increase
    /// the average.
    pub fn record_pending(&mut self, latency: Duration, now: Duration) {
        let peak = scaled_micros(latency);
        // Without a response, the latency stays unknown: a short pending time must not make the endpoint appear fast.
        if self.average > 0 && peak > self.decayed_average(now) {
            (self.average, self.updated_at) = (peak, to_micros(now));
        }
    }

    /// Returns the binary logarithm of the expected latency in microseconds, below 25; `None` if the latency is
    /// unknown. Differences of less than a factor of two are noise, and must not direct all requests to one endpoint.
    #[must_use]
    pub fn latency_log2(&self, now: Duration) -> Option<u8> {
        let step = (self.decayed_average(now) >> SCALE_BITS).max(MIN_LATENCY_MICROS).ilog2();
        (self.average > 0).then_some(u8::try_from(step).unwrap_or(0))
    }

    /// Returns the number of consecutive failed attempts, halved for each second since the last failure.
    #[must_use]
    pub fn failure_count(&self, now: Duration) -> u8 {
        let seconds = to_micros(now).saturating_sub(self.failed_at) / STALE_MICROS;
        self.failures.checked_shr(u32::try_from(seconds).unwrap_or(u32::MAX)).unwrap_or(0)
    }

    /// Returns the average after its decay since the last update. The decay ensures that an endpoint without recent
    /// requests is eventually tried again.
    #[inline]
    fn decayed_average(&self, now: Duration) -> u64 {
        match to_micros(now).saturating_sub(self.updated_at) {
            ..STALE_MICROS => self.average,
            idle_micros => decay(self.average, idle_micros),
        }
    }
}

/// Returns a value after exponential decay with a time constant of ten seconds. A bit shift halves the value for each
/// whole half-life. Within a half-life, the exponential is approximated by a parabola with the same ends and the same
/// initial slope; the error is at most 0.5 %.
fn decay(value: u64, micros: u64) -> u64 {
    let half_lives = u32::try_from(micros / HALF_LIFE_MICROS).unwrap_or(u32::MAX);
    let fraction = ((micros % HALF_LIFE_MICROS) << FRACTION_BITS) / HALF_LIFE_MICROS;
    let slope = SLOPE - ((CURVATURE * fraction) >> FRACTION_BITS);
    let factor = (1 << FRACTION_BITS) - ((slope * fraction) >> FRACTION_BITS);
    // The product is at most 2^40 times 2^23, and does not overflow.
    (value.checked_shr(half_lives).unwrap_or(0) * factor) >> FRACTION_BITS
}

/// Returns a time in microseconds.
fn to_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a latency in the unit of the average: 65536ths of a microsecond.
fn scaled_micros(latency: Duration) -> u64 {
    to_micros(latency).clamp(1, MAX_LATENCY_MICROS) << SCALE_BITS
}

/// The half-life of the average: ten seconds times ln 2.
const HALF_LIFE_MICROS: u64 = 6_931_472;
/// The fraction bits within a half-life.
const FRACTION_BITS: u32 = 23;
/// The initial slope of the decay: ln 2.
const SLOPE: u64 = 5_814_540;
/// The quadratic coefficient of the parabola: the part of the initial slope above one half.
const CURVATURE: u64 = SLOPE - (1 << (FRACTION_BITS - 1));
/// The fraction bits of averages.
const SCALE_BITS: u32 = 16;
/// The maximum latency, about 16.8 seconds; longer latencies are recorded as this.
const MAX_LATENCY_MICROS: u64 = (1 << 24) - 1;
/// The minimum latency of a step, about one millisecond. Below it, network and scheduler noise dominates.
const MIN_LATENCY_MICROS: u64 = 1 << 10;
/// The time after an update during which the average does not decay, and the half-life of the failure count.
const STALE_MICROS: u64 = 1_000_000;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
