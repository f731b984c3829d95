//! Token buckets: a shared one, and a bounded set of buckets by key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leno_model::Rate;
use rustc_hash::FxHashMap;

/// A rate as buckets count it, in nanoseconds.
///
/// A bucket is one number: the time at which it is full again (generic cell rate algorithm). Each token taken
/// delays that time by the refill time of one token; the bucket is empty when the delay exceeds the refill time
/// of the whole bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct BucketRate {
    /// The refill time of one token.
    token: u64,
    /// The refill time of an empty bucket.
    whole: u64,
}

impl BucketRate {
    pub(super) fn from_rate(rate: Rate) -> Self {
        let time = u64::try_from(rate.time.as_nanos()).unwrap_or(u64::MAX);
        let token = (time / u64::from(rate.count.max(1))).max(1);
        Self { token, whole: token.saturating_mul(u64::from(rate.size.max(1))) }
    }

    /// Returns the time at which the bucket is full after one more token; or the time until a token is
    /// available.
    fn full_after(self, full_at: u64, now: u64) -> Result<u64, Duration> {
        let next = full_at.max(now).saturating_add(self.token);
        match (next - now).checked_sub(self.whole) {
            None | Some(0) => Ok(next),
            Some(short) => Err(Duration::from_nanos(short)),
        }
    }

    fn given_back(self, full_at: u64) -> u64 {
        full_at.saturating_sub(self.token)
    }
}

/// A bucket shared by threads.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    full_at: AtomicU64,
}

impl Bucket {
    /// Takes a token, or returns the time until one is available.
    pub(super) fn take_token(&self, pace: BucketRate, now: u64) -> Result<(), Duration> {
        let mut wait = Duration::ZERO;
        let taken = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
            match pace.full_after(full_at, now) {
                Ok(next) => Some(next),
                Err(short) => {
                    wait = short;
                    None
                }
            }
        });
        taken.map(|_| ()).map_err(|_| wait)
    }

    /// Returns an unused token.
    pub(super) fn give_back(&self, pace: BucketRate) {
        let less = |full_at| Some(pace.given_back(full_at));
        let given = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        given.expect("there is always a number");
    }
}

/// A bucket for each key. The most recently used ones are kept, at most twice the configured number.
#[derive(Debug)]
pub(super) struct Buckets {
    generations: Mutex<Generations>,
    remembered: usize,
}

#[derive(Debug, Default)]
struct Generations {
    young: FxHashMap<u128, u64>,
    old: FxHashMap<u128, u64>,
}

impl Buckets {
    pub(super) fn new(remembered: u32) -> Self {
        let remembered = usize::try_from(remembered.max(1)).unwrap_or(usize::MAX);
        Self { generations: Mutex::default(), remembered }
    }

    /// Takes a token from a key's bucket, or returns the time until one is available.
    pub(super) fn take_token(&self, key: u128, pace: BucketRate, now: u64) -> Result<(), Duration> {
        // Held for one map lookup, without waits or panics.
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let full_at = generations.bucket_for(key, self.remembered);
        *full_at = pace.full_after(*full_at, now)?;
        Ok(())
    }

    /// Returns an unused token.
    pub(super) fn give_back(&self, key: u128, pace: BucketRate) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(full_at) = generations.young.get_mut(&key) {
            *full_at = pace.given_back(*full_at);
        }
    }
}

impl Generations {
    /// Returns the bucket of a key and moves it to the young generation. A full young generation becomes the
    /// old one, and the previous old one is dropped.
    fn bucket_for(&mut self, key: u128, remembered: usize) -> &mut u64 {
        if !self.young.contains_key(&key) {
            let known = self.old.remove(&key);
            if self.young.len() >= remembered {
                // Reuses the capacity of the dropped generation: no allocation during a request.
                std::mem::swap(&mut self.old, &mut self.young);
                self.young.clear();
            }
            self.young.insert(key, known.unwrap_or(0));
        }
        self.young.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn test_pace(count: u32, seconds: u64, size: u32) -> BucketRate {
        BucketRate::from_rate(Rate { count, time: Duration::from_secs(seconds), size })
    }

    #[test]
    fn a_bucket_gives_what_it_holds_and_then_what_comes_back() {
        let (bucket, pace) = (Bucket::default(), test_pace(2, 1, 3));
        let now = 5 * SECOND;
        for _ in 0..3 {
            assert_eq!(bucket.take_token(pace, now), Ok(()));
        }
        assert_eq!(bucket.take_token(pace, now), Err(Duration::from_millis(500)));
        assert_eq!(bucket.take_token(pace, now + SECOND / 4), Err(Duration::from_millis(250)));
        assert_eq!(bucket.take_token(pace, now + SECOND / 2), Ok(()));
        assert!(bucket.take_token(pace, now + SECOND / 2).is_err());
        bucket.give_back(pace);
        assert_eq!(bucket.take_token(pace, now + SECOND / 2), Ok(()));
        // It never holds more than its size.
        for _ in 0..3 {
            assert_eq!(bucket.take_token(pace, 100 * SECOND), Ok(()));
        }
        assert!(bucket.take_token(pace, 100 * SECOND).is_err());
    }

    #[test]
    fn over_any_time_no_more_comes_through_than_the_rate_and_a_bucket() {
        for (count, seconds, size) in [(1, 1, 1), (3, 60, 13), (1_000_000, 1, 10), (6, 3600, 1)] {
            let (bucket, pace) = (Bucket::default(), test_pace(count, seconds, size));
            // Four steps are one token: no fraction is lost.
            let step = seconds * SECOND / u64::from(count) / 4;
            let mut taken = 0_u64;
            for turn in 0..3_000 {
                taken += u64::from(bucket.take_token(pace, turn * step).is_ok());
            }
            let over = 2_999 * step;
            let most = u64::from(size) + over / (seconds * SECOND / u64::from(count));
            assert!(taken <= most, "{taken} of {most}");
            assert!(taken + 1 >= most.min(3_000), "{taken} of {most}");
        }
    }

    #[test]
    fn threads_together_take_no_more_than_it_holds() {
        let (bucket, pace) = (Bucket::default(), test_pace(1, 3600, 100));
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let one = u64::from(bucket.take_token(pace, SECOND).is_ok());
                        taken.fetch_add(one, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(taken.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn the_buckets_used_last_are_remembered_and_there_are_never_many() {
        let (buckets, pace) = (Buckets::new(10), test_pace(1, 3600, 1));
        assert_eq!(buckets.take_token(0, pace, SECOND), Ok(()));
        for key in 1..10_000 {
            assert_eq!(buckets.take_token(key, pace, SECOND), Ok(()), "{key}");
            // A bucket in constant use is never dropped.
            assert!(buckets.take_token(0, pace, SECOND).is_err(), "{key}");
            let generations = buckets.generations.lock().unwrap();
            assert!(generations.young.len() + generations.old.len() <= 20);
        }
        for key in 9_995..10_000 {
            assert!(buckets.take_token(key, pace, SECOND).is_err(), "{key}");
        }
        assert_eq!(buckets.take_token(1, pace, SECOND), Ok(()), "long forgotten");
    }
}
