//! Remembers recently rejected tokens and the sources that sent many of them (suspects). Both are excluded from
//! reviews for some seconds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use leno_listen::ConnectionSource;
use tokio::time::Instant;

/// The sources of rejected tokens, each with a count of rejections that decreases by one each second.
#[derive(Debug, Default)]
pub(super) struct Suspects(BTreeMap<ConnectionSource, FailedReviews>);

/// The failed reviews of one source: its rejected tokens, and its tokens for which the reviewer was unavailable.
#[derive(Debug, Clone, Copy)]
struct FailedReviews {
    /// The count at the time of the last failure.
    count: u32,
    /// The time of the last failure.
    last_rejection: Instant,
}

impl FailedReviews {
    fn current_count(self, now: Instant) -> u32 {
        let decrease =
            now.duration_since(self.last_rejection).as_secs() / DECREASE_INTERVAL.as_secs();
        self.count.saturating_sub(u32::try_from(decrease).unwrap_or(u32::MAX))
    }
}

impl Suspects {
    /// Counts a failed review of a source.
    pub(super) fn record_rejection(&mut self, source: ConnectionSource, now: Instant) {
        // Makes room for a new source: removes all sources without a current rejection, or else one with the fewest.
        if !self.0.contains_key(&source) && self.0.len() >= MAX_SUSPECTS {
            self.0.retain(|_, failures| failures.current_count(now) > 0);
            let least_suspect =
                self.0.iter().min_by_key(|(_, failures)| failures.current_count(now));
            if let Some(least_suspect) = least_suspect.map(|(source, _)| *source)
                && self.0.len() >= MAX_SUSPECTS
            {
                self.0.remove(&least_suspect);
            }
        }
        let count = self.rejection_count(source, now).saturating_add(1);
        self.0.insert(source, FailedReviews { count, last_rejection: now });
    }

    /// Returns the current count of a source: the count at its last failure, less one for each second since.
    pub(super) fn rejection_count(&self, source: ConnectionSource, now: Instant) -> u32 {
        self.0.get(&source).map_or(0, |failures| failures.current_count(now))
    }

    /// True while tokens of a source are not reviewed.
    pub(super) fn is_suspended(&self, source: ConnectionSource, now: Instant) -> bool {
        self.rejection_count(source, now) >= MAX_REJECTED_PER_SOURCE
    }
}

/// The recently rejected tokens, by their digests.
#[derive(Debug, Default)]
pub(super) struct RejectedTokens {
    rejections: BTreeMap<[u8; 32], TokenRejection>,
    /// The digests in `rejections`, the oldest first.
    eviction_order: VecDeque<[u8; 32]>,
}

#[derive(Debug)]
struct TokenRejection {
    reason: String,
    rejected_at: Instant,
}

impl RejectedTokens {
    /// Returns the reason if the token was rejected recently.
    pub(super) fn rejection_reason(&self, digest: &[u8; 32], now: Instant) -> Option<&str> {
        let rejection = self.rejections.get(digest)?;
        let is_recent = now.duration_since(rejection.rejected_at) < REJECTION_VALIDITY;
        is_recent.then_some(rejection.reason.as_str())
    }

    pub(super) fn insert(&mut self, digest: [u8; 32], reason: String, now: Instant) {
        let rejection = TokenRejection { reason, rejected_at: now };
        if self.rejections.insert(digest, rejection).is_none() {
            self.eviction_order.push_back(digest);
        }
        while self.eviction_order.len() > MAX_REJECTED_TOKENS {
            if let Some(oldest) = self.eviction_order.pop_front() {
                self.rejections.remove(&oldest);
            }
        }
    }
}

/// The interval at which the count of a source decreases by one.
const DECREASE_INTERVAL: Duration = Duration::from_secs(1);
/// The count at which tokens of a source are no longer reviewed. The count decreases by one each second, so at the
/// limit a source gets about one review per second.
pub(super) const MAX_REJECTED_PER_SOURCE: u32 = 16;
/// Maximum sources kept; beyond it, those with the fewest rejections are evicted.
const MAX_SUSPECTS: usize = 4096;
/// The time for which a rejected token is not reviewed again. A rejection is not final: the API server may load the
/// key of the token's issuer later.
const REJECTION_VALIDITY: Duration = Duration::from_secs(10);
/// Maximum rejected tokens kept; beyond it, the oldest are evicted.
const MAX_REJECTED_TOKENS: usize = 1024;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(address: u32) -> ConnectionSource {
        ConnectionSource::from(IpAddr::from(address.to_be_bytes()))
    }

    #[test]
    fn the_rejection_count_decreases_by_one_per_interval() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let (source, other) = (source(0x0a00_0001), source(0x0a00_0002));
        for _ in 0..MAX_REJECTED_PER_SOURCE {
            assert!(!suspects.is_suspended(source, start));
            suspects.record_rejection(source, start);
        }
        assert!(suspects.is_suspended(source, start));
        assert!(!suspects.is_suspended(other, start));
        let later = start + DECREASE_INTERVAL;
        assert!(!suspects.is_suspended(source, later));
        suspects.record_rejection(source, later);
        assert!(suspects.is_suspended(source, later));
        assert_eq!(suspects.rejection_count(source, later + Duration::from_secs(3600)), 0);
    }

    #[test]
    fn full_tables_keep_the_sources_with_the_most_rejections_and_the_newest_tokens() {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        let worst = source(0x0a00_0001);
        suspects.record_rejection(worst, now);
        suspects.record_rejection(worst, now);
        for number in 0..2 * u32::try_from(MAX_SUSPECTS).unwrap() {
            suspects.record_rejection(source(0x0b00_0000 + number), now);
        }
        assert_eq!((suspects.0.len(), suspects.rejection_count(worst, now)), (MAX_SUSPECTS, 2));

        let mut tokens = RejectedTokens::default();
        let digest = |number: usize| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_be_bytes());
            digest
        };
        for number in 0..2 * MAX_REJECTED_TOKENS {
            tokens.insert(digest(number), number.to_string(), now);
        }
        assert_eq!(
            (tokens.rejections.len(), tokens.eviction_order.len()),
            (MAX_REJECTED_TOKENS, MAX_REJECTED_TOKENS)
        );
        assert_eq!(tokens.rejection_reason(&digest(0), now), None);
        let last = digest(2 * MAX_REJECTED_TOKENS - 1);
        assert!(tokens.rejection_reason(&last, now).is_some());
        assert_eq!(tokens.rejection_reason(&last, now + REJECTION_VALIDITY), None);
    }
}
