//! When keys are read next; pure.

use std::time::Duration;

/// Numbers by chance (xorshift64).
#[derive(Debug)]
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        // Of nothing comes nothing.
        Self(seed | 1)
    }

    /// A part of `whole`, by chance.
    fn part(&mut self, whole: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let percent = u32::try_from(self.0 % 101).unwrap_or_default();
        whole.saturating_mul(percent) / 100
    }
}

/// After a good answer: when the server's word is that it may have changed, but never later than the
/// rule says, and not more often than is decent.
pub(super) fn after_success(
    refresh: Duration,
    max_age: Option<Duration>,
    draw: &mut Draw,
) -> Duration {
    // One that says 0, or that answers must not be kept, says nothing about keys.
    let said = max_age.filter(|age| !age.is_zero());
    let wait = said.map_or(refresh, |age| age.max(AGE_MIN).min(refresh));
    // Not all at once.
    wait - draw.part(wait / JITTER)
}

/// After none, for the so many-th time in a row: soon, then less and less often.
///
/// However often the rule has it read: many that never answer would otherwise be in the way of others.
pub(super) fn after_failure(failures: u32, draw: &mut Draw) -> Duration {
    let doublings = failures.saturating_sub(1).min(DOUBLINGS_MAX);
    let wait = BACK_OFF_MIN.saturating_mul(1 << doublings).min(BACK_OFF_MAX);
    wait / 2 + draw.part(wait / 2)
}

/// What servers that change often are asked for nevertheless.
const AGE_MIN: Duration = Duration::from_secs(10);
/// Up to a tenth is taken away.
const JITTER: u32 = 10;
const BACK_OFF_MIN: Duration = Duration::from_secs(1);
/// Nobody is to wait longer for a server that is back.
const BACK_OFF_MAX: Duration = Duration::from_secs(60);
/// Enough for the longest.
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
                let mut draw = Draw::new(seed);
                let wait = after_success(5 * MINUTE, max_age.map(seconds), &mut draw);
                let expected = seconds(expected);
                assert!(wait <= expected && wait >= expected * 9 / 10, "{max_age:?}: {wait:?}");
            }
        }
        let wait = after_success(seconds(1), Some(seconds(60)), &mut Draw::new(7));
        assert!(wait <= seconds(1), "{wait:?}");
    }

    #[test]
    fn failures_are_followed_by_longer_and_longer_waits_to_a_bound() {
        for (failures, most) in [(1, 1), (2, 2), (3, 4), (7, 60), (u32::MAX, 60)] {
            for seed in 0..200 {
                let wait = after_failure(failures, &mut Draw::new(seed));
                let most = Duration::from_secs(most);
                assert!(wait <= most && wait >= most / 2, "{failures}: {wait:?}");
            }
        }
    }
}
