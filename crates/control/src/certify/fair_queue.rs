//! Defines a queue that serves its sources in turn, so that many joins from one source delay only that source.

use std::collections::{BTreeMap, VecDeque};

use leno_listen::ConnectionSource;

/// Queued items by source, bounded per source and in total.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    queues: BTreeMap<ConnectionSource, VecDeque<T>>,
    /// The sources with queued items, the next one first.
    turn_order: VecDeque<ConnectionSource>,
    /// The number of queued items of all sources.
    len: usize,
}

impl<T> FairQueue<T> {
    /// Creates an empty queue.
    pub(crate) fn new() -> Self {
        Self { queues: BTreeMap::new(), turn_order: VecDeque::new(), len: 0 }
    }

    /// Adds an item of a source. If there is no room, returns the rejected item: this one, or the newest of the
    /// source with the longest queue.
    pub(crate) fn push(&mut self, source: ConnectionSource, item: T) -> Option<T> {
        let source_len = self.queues.get(&source).map_or(0, VecDeque::len);
        if source_len >= MAX_QUEUED_PER_SOURCE {
            return Some(item);
        }
        let evicted = match self.len >= MAX_QUEUED_ITEMS {
            false => None,
            true => match self.longest_queue() {
                Some((longest_source, len)) if len > source_len => self.drop_newest(longest_source),
                // No other source has more items than this one.
                _ => return Some(item),
            },
        };
        if source_len == 0 {
            self.turn_order.push_back(source);
        }
        self.queues.entry(source).or_default().push_back(item);
        self.len += 1;
        evicted
    }

    /// Removes and returns the oldest item of the next source for which `may_serve` is true.
    pub(crate) fn pop(
        &mut self,
        may_serve: impl Fn(ConnectionSource) -> bool,
    ) -> Option<(ConnectionSource, T)> {
        for _ in 0..self.turn_order.len() {
            let source = self.turn_order.pop_front()?;
            if !may_serve(source) {
                self.turn_order.push_back(source);
                continue;
            }
            let Some(queue) = self.queues.get_mut(&source) else { continue };
            let item = queue.pop_front();
            match queue.is_empty() {
                true => drop(self.queues.remove(&source)),
                false => self.turn_order.push_back(source),
            }
            if let Some(item) = item {
                self.len -= 1;
                return Some((source, item));
            }
        }
        None
    }

    fn longest_queue(&self) -> Option<(ConnectionSource, usize)> {
        let lengths = self.queues.iter().map(|(source, queue)| (*source, queue.len()));
        lengths.max_by_key(|(_, len)| *len)
    }

    fn drop_newest(&mut self, source: ConnectionSource) -> Option<T> {
        let queue = self.queues.get_mut(&source)?;
        let item = queue.pop_back()?;
        self.len -= 1;
        if queue.is_empty() {
            self.queues.remove(&source);
            self.turn_order.retain(|queued_source| *queued_source != source);
        }
        Some(item)
    }
}

/// Maximum queued items per source; further joins must retry.
const MAX_QUEUED_PER_SOURCE: usize = 128;

/// Maximum queued items in total.
const MAX_QUEUED_ITEMS: usize = 4096;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(last_byte: u8) -> ConnectionSource {
        ConnectionSource::from(IpAddr::from([10, 0, 0, last_byte]))
    }

    #[test]
    fn sources_are_served_in_turn() {
        let mut queue = FairQueue::new();
        for item in 0..100 {
            assert_eq!(queue.push(source(1), item), None);
        }
        assert_eq!(queue.push(source(2), 1000), None);
        assert_eq!(queue.push(source(2), 1001), None);
        let served: Vec<i32> = (0..5).filter_map(|_| Some(queue.pop(|_| true)?.1)).collect();
        assert_eq!(served, [0, 1000, 1, 1001, 2]);
        assert_eq!(
            queue.pop(|candidate| candidate == source(2)),
            None,
            "the only permitted source has no items"
        );
        assert_eq!(queue.pop(|_| true), Some((source(1), 3)));
    }

    #[test]
    fn a_full_queue_evicts_items_of_the_source_with_the_longest_queue() {
        let mut queue = FairQueue::new();
        for last_byte in 0..u8::try_from(MAX_QUEUED_ITEMS / MAX_QUEUED_PER_SOURCE).unwrap() {
            for item in 0..MAX_QUEUED_PER_SOURCE {
                assert_eq!(queue.push(source(last_byte), item), None);
            }
            assert_eq!(queue.push(source(last_byte), 0), Some(0), "a source has its share");
        }
        assert_eq!(queue.push(source(250), 7), Some(MAX_QUEUED_PER_SOURCE - 1));
        assert_eq!(queue.len, MAX_QUEUED_ITEMS);
        let served: Vec<_> = std::iter::from_fn(|| queue.pop(|_| true)).collect();
        assert!(served.contains(&(source(250), 7)));
        assert_eq!((queue.len, queue.turn_order.len(), queue.queues.len()), (0, 0, 0));
    }
}
