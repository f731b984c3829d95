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

    /// Returns a random part of `whole`.
    fn random_part(&mut self, whole: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let percent = u32::try_from(self.0 % 101).unwrap_or_default();
        whole.saturating_mul(percent) / 100
    }
}

/// Returns the wait after a successful fetch: the server's `max-age`, but never longer than the rule's refresh
/// interval, and never shorter than [`AGE_MIN`].
pub(super) fn after_success(
    refresh: Duration,
    max_age: Option<Duration>,
    draw: &mut JitterRandom,
) -> Duration {
    // A `max-age` of 0 and `no-store` do not indicate key changes.
    let said = max_age.filter(|age| !age.is_zero());
    let wait = said.map_or(refresh, |age| age.max(AGE_MIN).min(refresh));
    // Jitter, so that fetches do not coincide.
    wait - draw.random_part(wait / JITTER)
}

/// Returns the wait after so many consecutive failures: short at first, then exponentially longer.
///
/// It is independent of the rule's refresh interval: many unresponsive endpoints would otherwise delay others.
pub(super) fn after_failure(failures: u32, draw: &mut JitterRandom) -> Duration {
    let doublings = failures.saturating_sub(1).min(DOUBLINGS_MAX);
    let wait = BACK_OFF_MIN.saturating_mul(1 << doublings).min(BACK_OFF_MAX);
    wait / 2 + draw.random_part(wait / 2)
}

/// The minimum interval for servers with a short `max-age`.
const AGE_MIN: Duration = Duration::from_secs(10);
/// The jitter shortens a wait by up to a tenth.
const JITTER: u32 = 10;
const BACK_OFF_MIN: Duration = Duration::from_secs(1);
/// The longest wait for a server that has recovered.
const BACK_OFF_MAX: Duration = Duration::from_secs(60);
/// Enough to reach the maximum.
const DOUBLINGS_MAX: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_server_may_ask_to_be_asked_sooner_but_not_later() {
        let seconds = Duration::from_secs;
        for (max_age, expected) in
            [(None, 300), (Some(0), 300), (Some(3), 10), (Some(90), 90), (Some(86_400), 300)]
        {
            for seed in 0..200 {
                let mut draw = JitterRandom::new(seed);
                let wait = after_success(5 * MINUTE, max_age.map(seconds), &mut draw);
                let expected = seconds(expected);
                assert!(wait <= expected && wait >= expected * 9 / 10, "{max_age:?}: {wait:?}");
            }
        }
        let wait = after_success(seconds(1), Some(seconds(60)), &mut JitterRandom::new(7));
        assert!(wait <= seconds(1), "{wait:?}");
    }

    #[test]
    fn failures_are_followed_by_longer_and_longer_waits_to_a_bound() {
        for (failures, most) in [(1, 1), (2, 2), (3, 4), (7, 60), (u32::MAX, 60)] {
            for seed in 0..200 {
                let wait = after_failure(failures, &mut JitterRandom::new(seed));
                let most = Duration::from_secs(most);
                assert!(wait <= most && wait >= most / 2, "{failures}: {wait:?}");
            }
        }
    }
}
