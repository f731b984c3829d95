//! Computes the intervals between JWKS fetches, with jitter and exponential back-off.

use std::time::Duration;

/// A generator of random numbers for jitter (xorshift64).
#[derive(Debug)]
pub(super) struct JitterRandom(u64);

impl JitterRandom {
    pub(super) fn new(seed: u64) -> Self {
        // A state of zero would stay zero, so one bit is always set.
        Self(seed | 1)
    }

    /// Returns a random duration up to `max`.
    fn random_up_to(&mut self, max: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let percent = u32::try_from(self.0 % 101).unwrap_or_default();
        max.saturating_mul(percent) / 100
    }
}

/// Returns the delay after a successful fetch: the server's `max-age`, but never longer than the rule's refresh
/// interval, and never shorter than [`MIN_FETCH_INTERVAL`].
pub(super) fn delay_after_success(
    refresh_interval: Duration,
    max_age: Option<Duration>,
    random: &mut JitterRandom,
) -> Duration {
    // A `max-age` of 0 and `no-store` do not indicate key changes.
    let max_age = max_age.filter(|age| !age.is_zero());
    let delay =
        max_age.map_or(refresh_interval, |age| age.max(MIN_FETCH_INTERVAL).min(refresh_interval));
    // Jitter, so that fetches do not coincide.
    delay - random.random_up_to(delay / JITTER_DIVISOR)
}

/// Returns the delay after this number of consecutive failures: short at first, then exponentially longer.
///
/// The delay is independent of the rule's refresh interval. Otherwise many unresponsive endpoints with short intervals
/// would delay the fetches of other endpoints.
pub(super) fn delay_after_failure(failures: u32, random: &mut JitterRandom) -> Duration {
    let doublings = failures.saturating_sub(1).min(MAX_DOUBLINGS);
    let delay = FIRST_BACK_OFF.saturating_mul(1 << doublings).min(MAX_BACK_OFF);
    // Jitter: at least half of the delay.
    delay / 2 + random.random_up_to(delay / 2)
}

/// The minimum interval for servers with a short `max-age`.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(10);
/// The jitter shortens a wait by up to a tenth.
const JITTER_DIVISOR: u32 = 10;
/// The delay after the first failure, before jitter.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
/// The maximum delay after failures.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// The number of doublings after which [`MAX_BACK_OFF`] is reached.
const MAX_DOUBLINGS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_short_max_age_shortens_the_wait_and_a_long_one_does_not_extend_it() {
        let seconds = Duration::from_secs;
        for (max_age, expected) in
            [(None, 300), (Some(0), 300), (Some(3), 10), (Some(90), 90), (Some(86_400), 300)]
        {
            for seed in 0..200 {
                let mut random = JitterRandom::new(seed);
                let delay = delay_after_success(5 * MINUTE, max_age.map(seconds), &mut random);
                let expected = seconds(expected);
                assert!(delay <= expected && delay >= expected * 9 / 10, "{max_age:?}: {delay:?}");
            }
        }
        let delay = delay_after_success(seconds(1), Some(seconds(60)), &mut JitterRandom::new(7));
        assert!(delay <= seconds(1), "{delay:?}");
    }

    #[test]
    fn waits_after_failures_grow_to_a_limit() {
        for (failures, longest) in [(1, 1), (2, 2), (3, 4), (7, 60), (u32::MAX, 60)] {
            for seed in 0..200 {
                let delay = delay_after_failure(failures, &mut JitterRandom::new(seed));
                let longest = Duration::from_secs(longest);
                assert!(delay <= longest && delay >= longest / 2, "{failures}: {delay:?}");
            }
        }
    }
}
