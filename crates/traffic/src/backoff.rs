//! Exponential back-off with jitter for failed endpoints and peers.

use std::time::Duration;

/// Returns the delay after this many consecutive failures: doubling from [`DELAY_MIN`] to [`DELAY_MAX`], with
/// jitter in the upper half, so that clients that failed together do not retry together. Zero after no failure.
#[must_use]
pub fn backoff_delay(failures: u32, draw: u64) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else {
        return Duration::ZERO;
    };
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    let whole = DELAY_MIN.saturating_mul(factor).min(DELAY_MAX);
    let half = whole / 2;
    let chance_ns = (u128::from(draw) * (whole - half).as_nanos()) >> 64;
    half + Duration::from_nanos(u64::try_from(chance_ns).unwrap_or(u64::MAX))
}

/// The maximum after the first failure: a restarting process is back within a few of these.
pub const DELAY_MIN: Duration = Duration::from_millis(100);

/// The maximum after any number of failures: it bounds the cost of a wrong suspicion.
pub const DELAY_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn doubles_up_to_the_bound() {
        for (failures, most_ms) in [(0, 0), (1, 100), (2, 200), (7, 6_400), (8, 10_000)] {
            let most = Duration::from_millis(most_ms);
            assert_eq!(backoff_delay(failures, 0), most / 2, "{failures}");
            assert!(
                most - backoff_delay(failures, u64::MAX) <= Duration::from_nanos(1),
                "{failures}"
            );
        }
    }

    proptest! {
        #[test]
        fn stays_within_bounds(failures in 1..=u32::MAX, draw in any::<u64>()) {
            let delay = backoff_delay(failures, draw);
            prop_assert!(delay >= DELAY_MIN / 2);
            prop_assert!(delay <= DELAY_MAX);
        }
    }
}
