//! Intervals of JWKS fetches; pure.

use std::time::Duration;

/// Random numbers (xorshift64).
#[derive(Debug)]
pub(super) struct JitterRandom(u64);

impl JitterRandom {
    pub(super) fn new(seed: u64) -> Self {
        // Xorshift never leaves a state of zero.
        Self(seed | 1)
    }

    /// Returns a random duration up to `max`.
    fn random_part(&mut self, max: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let percent = u32::try_from(self.0 % 101).unwrap_or_default();
        max.saturating_mul(percent) / 100
    }
}

/// Returns the wait after a successful fetch: the server's `max-age`, but never longer than the rule's refresh
/// interval, and never shorter than [`MIN_FETCH_INTERVAL`].
pub(super) fn after_success(
    refresh: Duration,
    max_age: Option<Duration>,
    random: &mut JitterRandom,
) -> Duration {
    // A `max-age` of 0 and `no-store` do not indicate key changes.
    let max_age = max_age.filter(|age| !age.is_zero());
    let wait = max_age.map_or(refresh, |age| age.max(MIN_FETCH_INTERVAL).min(refresh));
    // Jitter, so that fetches do not coincide.
    wait - random.random_part(wait / JITTER_DIVISOR)
}

/// Returns the wait after so many consecutive failures: short at first, then exponentially longer.
///
/// It is independent of the rule's refresh interval: many unresponsive endpoints would otherwise delay others.
pub(super) fn after_failure(failures: u32, random: &mut JitterRandom) -> Duration {
    let doublings = failures.saturating_sub(1).min(MAX_DOUBLINGS);
    let wait = MIN_BACK_OFF.saturating_mul(1 << doublings).min(MAX_BACK_OFF);
    wait / 2 + random.random_part(wait / 2)
}

/// The minimum interval for servers with a short `max-age`.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(10);
/// The jitter shortens a wait by up to a tenth.
const JITTER_DIVISOR: u32 = 10;
/// The wait after the first failure.
const MIN_BACK_OFF: Duration = Duration::from_secs(1);
/// The longest wait for a server that has recovered.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// The number of doublings that reaches the maximum.
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
                let wait = after_success(5 * MINUTE, max_age.map(seconds), &mut random);
                let expected = seconds(expected);
                assert!(wait <= expected && wait >= expected * 9 / 10, "{max_age:?}: {wait:?}");
            }
        }
        let wait = after_success(seconds(1), Some(seconds(60)), &mut JitterRandom::new(7));
        assert!(wait <= seconds(1), "{wait:?}");
    }

    #[test]
    fn waits_after_failures_grow_to_a_limit() {
        for (failures, longest) in [(1, 1), (2, 2), (3, 4), (7, 60), (u32::MAX, 60)] {
            for seed in 0..200 {
                let wait = after_failure(failures, &mut JitterRandom::new(seed));
                let longest = Duration::from_secs(longest);
                assert!(wait <= longest && wait >= longest / 2, "{failures}: {wait:?}");
            }
        }
    }
}
