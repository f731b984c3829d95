//! How long an endpoint takes to answer: a moving average that follows peaks at once.

use std::time::Duration;

/// What one data thread knows of how long one endpoint takes to the first byte of its answers.
///
/// A time above the average becomes the average at once; one below it draws it down, with a time
/// constant of ten seconds, however many there are. So whoever slows down is noticed with the first
/// answer, and whoever was slow is trusted again after a while, and not for one quick answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latency {
    /// In 65536ths of a microsecond; 0 when nothing is known.
    average: u64,
    /// When it became what it is, in microseconds.
    at: u64,
    /// Attempts in a row that have failed,
    failures: u8,
    /// and when the last one did, in microseconds.
    failed_at: u64,
}

impl Latency {
    /// An answer began so long after it was asked for.
    pub fn answered(&mut self, took: Duration, now: Duration) {
        let (took, now) = (scaled(took), micros(now));
        self.average = match self.average.checked_sub(took) {
            Some(above) => took + decayed(above, now.saturating_sub(self.at)),
            None => took,
        };
        self.at = now;
        self.failures = 0;
    }

    /// An attempt failed, or was answered with an error, after so long. Errors are often faster than
    /// answers: they draw no average down.
    pub fn failed(&mut self, took: Duration, now: Duration) {
        self.peaked(took, now);
        self.failures = self.failures(now).saturating_add(1);
        self.failed_at = micros(now);
    }

    /// A request was refused for what it is, after so long. Whoever refuses is soon done with it: that draws
    /// no average down either. But it has not failed.
    pub fn refused(&mut self, took: Duration, now: Duration) {
        self.peaked(took, now);
        self.failures = 0;
    }

    /// An attempt has taken so long, and whether it would have been answered is not known.
    pub fn peaked(&mut self, took: Duration, now: Duration) {
        let peak = scaled(took);
        // Of an endpoint that has never answered nothing is known, and most of all not that it is fast.
        if self.average > 0 && peak > self.left(now) {
            (self.average, self.at) = (peak, micros(now));
        }
    }

    /// The time it takes, in powers of two of a microsecond: what differs by less is luck, and no
    /// reason to send all requests to one endpoint. `None` when nothing is known. Below 25.
    #[must_use]
    pub fn step(&self, now: Duration) -> Option<u8> {
        let step = (self.left(now) >> SCALE_BITS).max(FLOOR_MICROS).ilog2();
        (self.average > 0).then_some(u8::try_from(step).unwrap_or(0))
    }

    /// The attempts that have failed in a row; each second without another one halves them.
    #[must_use]
    pub fn failures(&self, now: Duration) -> u8 {
        let seconds = micros(now).saturating_sub(self.failed_at) / STALE_MICROS;
        self.failures.checked_shr(u32::try_from(seconds).unwrap_or(u32::MAX)).unwrap_or(0)
    }

    /// What a time without answers has left of the average: who was not asked for long is asked again some
    /// day.
    #[inline]
    fn left(&self, now: Duration) -> u64 {
        match micros(now).saturating_sub(self.at) {
            ..STALE_MICROS => self.average,
            silence => decayed(self.average, silence),
        }
    }
}

/// What is left of a value after a time: by e in ten seconds. Halves are shifted; within a half-life the
/// curve is a parabola through its ends, with its slope at the beginning, and half a percent off at most.
fn decayed(value: u64, micros: u64) -> u64 {
    let halves = u32::try_from(micros / HALF_LIFE_MICROS).unwrap_or(u32::MAX);
    let part = ((micros % HALF_LIFE_MICROS) << PART_BITS) / HALF_LIFE_MICROS;
    let bent = SLOPE - ((BEND * part) >> PART_BITS);
    let left = (1 << PART_BITS) - ((bent * part) >> PART_BITS);
    // At most 2^40 times 2^23.
    (value.checked_shr(halves).unwrap_or(0) * left) >> PART_BITS
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn scaled(took: Duration) -> u64 {
    micros(took).clamp(1, LATENCY_MICROS_MAX) << SCALE_BITS
}

/// Ten seconds times the logarithm of two.
const HALF_LIFE_MICROS: u64 = 6_931_472;
const PART_BITS: u32 = 23;
/// The logarithm of two.
const SLOPE: u64 = 5_814_540;
/// What it is above a half.
const BEND: u64 = SLOPE - (1 << (PART_BITS - 1));
/// Averages are kept so much finer than they are told: a step of a microsecond is a millionth.
const SCALE_BITS: u32 = 16;
/// What takes longer counts as this, sixteen seconds.
const LATENCY_MICROS_MAX: u64 = (1 << 24) - 1;
/// What takes less counts as this: below, networks and schedulers tell more than endpoints.
const FLOOR_MICROS: u64 = 1 << 10;
/// As long as this an average is as good as new.
const STALE_MICROS: u64 = 1_000_000;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
