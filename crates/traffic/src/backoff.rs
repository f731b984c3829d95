//! Exponential back-off with jitter: the delay before a failed endpoint or peer is tried again.

use std::time::Duration;

/// Returns the delay after this many consecutive failures; zero without failures. `random` is a uniform random number.
///
/// The upper bound of the delay is [`MIN_DELAY`] after the first failure, and doubles with each further failure, up to
/// [`MAX_DELAY`]. The delay is a random value between half of the upper bound and the upper bound, so that clients that
/// failed at the same time do not retry at the same time.
#[must_use]
pub fn backoff_delay(failures: u32, random: u64) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else {
        return Duration::ZERO;
    };
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    let max_delay = MIN_DELAY.saturating_mul(factor).min(MAX_DELAY);
    let half_delay = max_delay / 2;
    // Scales the random number, which is a fraction of 2^64.
    let jitter_ns = (u128::from(random) * (max_delay - half_delay).as_nanos()) >> 64;
    half_delay + Duration::from_nanos(u64::try_from(jitter_ns).unwrap_or(u64::MAX))
}

/// The upper bound of the delay after the first failure; jitter may halve it. A restarted process is usually available
/// after a few delays of this length.
pub const MIN_DELAY: Duration = Duration::from_millis(100);

/// The upper bound of the delay after any number of failures. It limits the time for which a recovered endpoint is not
/// used.
pub const MAX_DELAY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_delay_doubles_up_to_the_maximum() {
        for (failures, max_ms) in [(0, 0), (1, 100), (2, 200), (7, 6_400), (8, 10_000)] {
            let maximum = Duration::from_millis(max_ms);
            assert_eq!(backoff_delay(failures, 0), maximum / 2, "{failures}");
            assert!(
                maximum - backoff_delay(failures, u64::MAX) <= Duration::from_nanos(1),
                "{failures}"
            );
        }
    }

    proptest! {
        #[test]
        fn the_delay_stays_within_its_bounds(failures in 1..=u32::MAX, random in any::<u64>()) {
            let delay = backoff_delay(failures, random);
            prop_assert!(delay >= MIN_DELAY / 2);
            prop_assert!(delay <= MAX_DELAY);
        }
    }
}
