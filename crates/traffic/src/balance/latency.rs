//! Peak-sensitive moving average of an endpoint's response time.

use std::time::Duration;

/// The time to first byte of one endpoint, as measured by one data thread.
///
/// A sample above the average replaces it at once; a sample below decays it with a time constant of ten
/// seconds, independent of the number of samples. A slowdown is thus noticed with the first response, and
/// recovery takes a while, not one fast response.
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
    /// faster than successful responses, so they never lower the average.
    pub fn record_failure(&mut self, latency: Duration, now: Duration) {
        self.record_pending(latency, now);
        self.failures = self.failure_count(now).saturating_add(1);
        self.failed_at = to_micros(now);
    }

    /// Records a request that was rejected for its content, `latency` after its start. Rejections are fast and
    /// do not lower the average either, but do not count as failures.
    pub fn record_rejection(&mut self, latency: Duration, now: Duration) {
        self.record_pending(latency, now);
        self.failures = 0;
    }

    /// Records an attempt without a result after `latency`.
    pub fn record_pending(&mut self, latency: Duration, now: Duration) {
        let peak = scaled_micros(latency);
        // An endpoint that has never responded has no known latency; it must not appear fast.
        if self.average > 0 && peak > self.decayed_average(now) {
            (self.average, self.updated_at) = (peak, to_micros(now));
        }
    }

    /// Returns the binary logarithm of the expected latency in microseconds, below 25; `None` if unknown.
    /// Differences of less than a factor of two are noise, and no reason to send all requests to one endpoint.
    #[must_use]
    pub fn latency_step(&self, now: Duration) -> Option<u8> {
        let step = (self.decayed_average(now) >> SCALE_BITS).max(MIN_LATENCY_MICROS).ilog2();
        (self.average > 0).then_some(u8::try_from(step).unwrap_or(0))
    }

    /// Returns the number of consecutive failed attempts; each second without another one halves it.
    #[must_use]
    pub fn failure_count(&self, now: Duration) -> u8 {
        let seconds = to_micros(now).saturating_sub(self.failed_at) / STALE_MICROS;
        self.failures.checked_shr(u32::try_from(seconds).unwrap_or(u32::MAX)).unwrap_or(0)
    }

    /// Returns the average after decay since the last update: an endpoint without recent requests is eventually
    /// tried again.
    #[inline]
    fn decayed_average(&self, now: Duration) -> u64 {
        match to_micros(now).saturating_sub(self.updated_at) {
            ..STALE_MICROS => self.average,
            idle_micros => decay(self.average, idle_micros),
        }
    }
}

/// Returns a value after exponential decay by e per ten seconds. Whole half-lives are shifts; within a
/// half-life the curve is a parabola through its ends with the exponential's initial slope, at most 0.5 % off.
fn decay(value: u64, micros: u64) -> u64 {
    let half_lives = u32::try_from(micros / HALF_LIFE_MICROS).unwrap_or(u32::MAX);
    let fraction = ((micros % HALF_LIFE_MICROS) << FRACTION_BITS) / HALF_LIFE_MICROS;
    let slope = SLOPE - ((CURVATURE * fraction) >> FRACTION_BITS);
    let factor = (1 << FRACTION_BITS) - ((slope * fraction) >> FRACTION_BITS);
    // At most 2^40 times 2^23.
    (value.checked_shr(half_lives).unwrap_or(0) * factor) >> FRACTION_BITS
}

fn to_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn scaled_micros(latency: Duration) -> u64 {
    to_micros(latency).clamp(1, MAX_LATENCY_MICROS) << SCALE_BITS
}

/// The half-life of the average: ten seconds times ln 2.
const HALF_LIFE_MICROS: u64 = 6_931_472;
/// The fraction bits within a half-life.
const FRACTION_BITS: u32 = 23;
/// The initial slope of the decay: ln 2.
const SLOPE: u64 = 5_814_540;
/// The part of the slope above one half.
const CURVATURE: u64 = SLOPE - (1 << (FRACTION_BITS - 1));
/// The fraction bits of averages: a step of one microsecond is a millionth.
const SCALE_BITS: u32 = 16;
/// The maximum latency: longer ones count as this (sixteen seconds).
const MAX_LATENCY_MICROS: u64 = (1 << 24) - 1;
/// The minimum latency that is distinguished: below it, network and scheduler noise dominates.
const MIN_LATENCY_MICROS: u64 = 1 << 10;
/// The time after an update for which an average does not decay.
const STALE_MICROS: u64 = 1_000_000;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
