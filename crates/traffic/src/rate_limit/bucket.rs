//! Token buckets of rate limits: a single shared bucket, and a bounded set of buckets by key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leno_model::Rate;
use rustc_hash::FxHashMap;

/// The rate of a token bucket; all times are in nanoseconds.
///
/// The state of a bucket is one number: the time at which it is full again (generic cell rate algorithm). Each token
/// that is taken delays this time by the refill time of one token. The bucket is empty when this time is more than the
/// refill time of the whole bucket ahead.
#[derive(Debug, Clone, Copy)]
pub(super) struct BucketRate {
    /// The refill time of one token.
    token_time: u64,
    /// The refill time of an empty bucket.
    bucket_time: u64,
}

impl BucketRate {
    pub(super) fn from_rate(rate: Rate) -> Self {
        let period = u64::try_from(rate.period.as_nanos()).unwrap_or(u64::MAX);
        let token_time = (period / u64::from(rate.count.max(1))).max(1);
        let bucket_time = token_time.saturating_mul(u64::from(rate.burst.max(1)));
        Self { token_time, bucket_time }
    }

    /// Returns the time at which the bucket is full after one more token is taken. If the bucket is empty, the error
    /// contains the time until a token is available.
    fn next_full_at(self, full_at: u64, now: u64) -> Result<u64, Duration> {
        let new_full_at = full_at.max(now).saturating_add(self.token_time);
        match (new_full_at - now).checked_sub(self.bucket_time) {
            None | Some(0) => Ok(new_full_at),
            Some(shortage) => Err(Duration::from_nanos(shortage)),
        }
    }

    /// Returns the time at which the bucket is full after one token is returned.
    fn full_at_after_return(self, full_at: u64) -> u64 {
        full_at.saturating_sub(self.token_time)
    }
}

/// A token bucket that all threads share.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// The time at which the bucket is full again, in nanoseconds.
    full_at: AtomicU64,
}

impl Bucket {
    /// Takes a token, or returns the time until a token is available.
    pub(super) fn take_token(&self, rate: BucketRate, now: u64) -> Result<(), Duration> {
        let mut wait = Duration::ZERO;
        // The order is relaxed, because this number is the whole state of the bucket.
        let result = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
            match rate.next_full_at(full_at, now) {
                Ok(new_full_at) => Some(new_full_at),
                Err(time_to_token) => {
                    wait = time_to_token;
                    None
                }
            }
        });
        result.map(|_| ()).map_err(|_| wait)
    }

    /// Returns an unused token to the bucket.
    pub(super) fn return_token(&self, rate: BucketRate) {
        let returned = |full_at| Some(rate.full_at_after_return(full_at));
        let result = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, returned);
        result.expect("the update always returns a value");
    }
}

/// A token bucket for each key. The most recently used buckets are retained, at most twice the configured number.
#[derive(Debug)]
pub(super) struct KeyedBuckets {
    generations: Mutex<Generations>,
    /// The maximum number of buckets in each generation.
    capacity: usize,
}

/// The buckets in two generations, by the time of their last use. A bucket is stored as the time at which it is full
/// again, in nanoseconds, by its key.
#[derive(Debug, Default)]
struct Generations {
    /// The buckets that were used since the last change of generations.
    young: FxHashMap<u128, u64>,
    /// The buckets that were used in the previous generation, and not since.
    old: FxHashMap<u128, u64>,
}

impl KeyedBuckets {
    pub(super) fn new(capacity: u32) -> Self {
        let capacity = usize::try_from(capacity.max(1)).unwrap_or(usize::MAX);
        Self { generations: Mutex::default(), capacity }
    }

    /// Takes a token from a key's bucket, or returns the time until a token is available.
    pub(super) fn take_token(&self, key: u128, rate: BucketRate, now: u64) -> Result<(), Duration> {
        // The lock is held for a few map operations, without waits or panics, so it is never poisoned.
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let full_at = generations.bucket_for(key, self.capacity);
        *full_at = rate.next_full_at(*full_at, now)?;
        Ok(())
    }

    /// Returns an unused token to a key's bucket. Does nothing if the bucket was dropped, or was not used since the
    /// last change of generations.
    pub(super) fn return_token(&self, key: u128, rate: BucketRate) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(full_at) = generations.young.get_mut(&key) {
            *full_at = rate.full_at_after_return(*full_at);
        }
    }
}

impl Generations {
    /// Returns the bucket of a key, and moves it to the young generation. A full young generation becomes the old
    /// generation, whose buckets are dropped.
    fn bucket_for(&mut self, key: u128, capacity: usize) -> &mut u64 {
        if !self.young.contains_key(&key) {
            let full_at = self.old.remove(&key);
            if self.young.len() >= capacity {
                // Reuses the memory of the dropped generation, to avoid an allocation during a request.
                std::mem::swap(&mut self.old, &mut self.young);
                self.young.clear();
            }
            self.young.insert(key, full_at.unwrap_or(0));
        }
        self.young.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn test_rate(count: u32, seconds: u64, size: u32) -> BucketRate {
        BucketRate::from_rate(Rate { count, period: Duration::from_secs(seconds), burst: size })
    }

    #[test]
    fn a_bucket_yields_its_tokens_and_those_refilled_later() {
        let (bucket, rate) = (Bucket::default(), test_rate(2, 1, 3));
        let now = 5 * SECOND;
        for _ in 0..3 {
            assert_eq!(bucket.take_token(rate, now), Ok(()));
        }
        assert_eq!(bucket.take_token(rate, now), Err(Duration::from_millis(500)));
        assert_eq!(bucket.take_token(rate, now + SECOND / 4), Err(Duration::from_millis(250)));
        assert_eq!(bucket.take_token(rate, now + SECOND / 2), Ok(()));
        assert!(bucket.take_token(rate, now + SECOND / 2).is_err());
        bucket.return_token(rate);
        assert_eq!(bucket.take_token(rate, now + SECOND / 2), Ok(()));
        // The bucket never holds more tokens than its size.
        for _ in 0..3 {
            assert_eq!(bucket.take_token(rate, 100 * SECOND), Ok(()));
        }
        assert!(bucket.take_token(rate, 100 * SECOND).is_err());
    }

    #[test]
    fn tokens_over_any_period_are_bounded_by_the_rate_and_the_bucket_size() {
        for (count, seconds, size) in [(1, 1, 1), (3, 60, 13), (1_000_000, 1, 10), (6, 3600, 1)] {
            let (bucket, rate) = (Bucket::default(), test_rate(count, seconds, size));
            // Four steps are one token: no fraction is lost.
            let step = seconds * SECOND / u64::from(count) / 4;
            let mut taken_tokens = 0_u64;
            for step_number in 0..3_000 {
                taken_tokens += u64::from(bucket.take_token(rate, step_number * step).is_ok());
            }
            let elapsed = 2_999 * step;
            let maximum = u64::from(size) + elapsed / (seconds * SECOND / u64::from(count));
            assert!(taken_tokens <= maximum, "{taken_tokens} of {maximum}");
            assert!(taken_tokens + 1 >= maximum.min(3_000), "{taken_tokens} of {maximum}");
        }
    }

    #[test]
    fn concurrent_threads_take_no_more_tokens_than_the_bucket_holds() {
        let (bucket, rate) = (Bucket::default(), test_rate(1, 3600, 100));
        let taken_tokens = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let count = u64::from(bucket.take_token(rate, SECOND).is_ok());
                        taken_tokens.fetch_add(count, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(taken_tokens.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn recently_used_buckets_are_retained_and_their_number_is_bounded() {
        let (buckets, rate) = (KeyedBuckets::new(10), test_rate(1, 3600, 1));
        assert_eq!(buckets.take_token(0, rate, SECOND), Ok(()));
        for key in 1..10_000 {
            assert_eq!(buckets.take_token(key, rate, SECOND), Ok(()), "{key}");
            // A bucket in constant use is never dropped.
            assert!(buckets.take_token(0, rate, SECOND).is_err(), "{key}");
            let generations = buckets.generations.lock().unwrap();
            assert!(generations.young.len() + generations.old.len() <= 20);
        }
        for key in 9_995..10_000 {
            assert!(buckets.take_token(key, rate, SECOND).is_err(), "{key}");
        }
        assert_eq!(buckets.take_token(1, rate, SECOND), Ok(()), "the bucket was dropped");
    }
}
