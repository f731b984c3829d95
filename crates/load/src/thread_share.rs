//! Divides the connections, the rate and the request count of a run among its threads.

/// One thread's share of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadShare {
    /// The thread's index, from 0.
    pub(crate) index: usize,
    /// The number of threads; at least 1.
    pub(crate) thread_count: usize,
}

impl ThreadShare {
    /// The share of a single thread.
    pub(crate) const WHOLE: Self = Self { index: 0, thread_count: 1 };

    /// Returns the thread's part of `total`; the first threads get the remainder.
    pub(crate) fn part_of(self, total: u64) -> u64 {
        let (index, thread_count) = (self.index as u64, self.thread_count as u64);
        total / thread_count + u64::from(index < total % thread_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_differ_by_one_at_most() {
        for thread_count in 1..=7 {
            for total in [0, 1, 6, 7, 50, 1000] {
                let parts: Vec<u64> = (0..thread_count)
                    .map(|index| ThreadShare { index, thread_count }.part_of(total))
                    .collect();
                assert_eq!(parts.iter().sum::<u64>(), total);
                assert!(parts.iter().all(|part| part.abs_diff(total / thread_count as u64) <= 1));
            }
        }
    }
}
