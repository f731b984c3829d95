//! Pools byte buffers, for each thread. Idle connections hold no buffer, and the pool keeps a few buffers
//! allocated, so that a request usually allocates none.

use std::cell::RefCell;
use std::collections::VecDeque;

use bytes::BytesMut;

/// The size class of a buffer, named after its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferSize {
    /// A head and a small body: 4 KiB.
    Message,
    /// A TLS record, or one read of a body: 16 KiB.
    Batch,
    /// The bytes that a link collects in one turn (iteration) of the event loop: 16 KiB at first.
    Turn,
}

/// The limits of the unused buffers of one size.
struct QueueLimits {
    /// The capacity in bytes above which a buffer is freed.
    max_capacity: usize,
    /// The maximum number of unused buffers.
    max_count: usize,
}

impl BufferSize {
    /// Returns the initial capacity of a buffer of this size.
    pub(crate) const fn initial_capacity(self) -> usize {
        match self {
            Self::Message => 4 * 1024,
            Self::Batch | Self::Turn => 16 * 1024,
        }
    }

    /// Returns the sizes whose queues may store a returned buffer of this initial size, in order of preference.
    const fn candidate_sizes(self) -> &'static [Self] {
        match self {
            Self::Message | Self::Batch => &[Self::Batch, Self::Message],
            Self::Turn => &[Self::Turn],
        }
    }

    /// True if no slice of `buffer` is in use, and its capacity is sufficient for this size.
    fn is_reusable(self, buffer: &mut BytesMut) -> bool {
        buffer.try_reclaim(self.initial_capacity())
    }

    /// Returns the limits of the unused buffers of this size: enough for one turn of the event loop, and at
    /// most half a mebibyte. Link buffers are never reused for reads: they are many times larger than a read
    /// needs, and a read may hold its buffer until a slow peer has sent all bytes.
    const fn queue_limits(self) -> QueueLimits {
        match self {
            Self::Message => QueueLimits { max_capacity: 16 * 1024, max_count: 32 },
            Self::Batch => QueueLimits { max_capacity: 32 * 1024, max_count: 8 },
            Self::Turn => QueueLimits { max_capacity: 128 * 1024, max_count: 4 },
        }
    }
}

/// Replaces a `buffer` without capacity with a buffer of the pool, or with a new one.
pub(crate) fn ensure_capacity(buffer: &mut BytesMut, size: BufferSize) {
    if buffer.capacity() == 0 {
        *buffer = UNUSED_BUFFERS
            .with_borrow_mut(|unused_buffers| unused_buffers.queue_for(size).take(size));
    }
}

/// Returns the allocation of an empty `buffer` with the initial size `size` to the pool. A buffer with
/// content keeps its allocation. A buffer that cannot be reclaimed and has less than a quarter of the initial capacity
/// is freed.
pub(crate) fn return_buffer(buffer: &mut BytesMut, size: BufferSize) {
    if buffer.is_empty() && buffer.capacity() > 0 {
        let mut returned_buffer = std::mem::take(buffer);
        let is_reusable = |candidate: &BufferSize| candidate.is_reusable(&mut returned_buffer);
        let queue_size = match size.candidate_sizes().iter().copied().find(is_reusable) {
            Some(candidate) => candidate,
            // Slices of the buffer are still in use, or its capacity is smaller.
            None if returned_buffer.capacity() >= size.initial_capacity() / 4 => size,
            None => return,
        };
        UNUSED_BUFFERS.with_borrow_mut(|unused_buffers| {
            unused_buffers.queue_for(queue_size).put_back(returned_buffer, queue_size)
        });
    }
}

thread_local! {
    static UNUSED_BUFFERS: RefCell<UnusedBuffers> = const { RefCell::new(UnusedBuffers::new()) };
}

/// The unused buffers of one thread.
struct UnusedBuffers {
    messages: BufferQueue,
    batches: BufferQueue,
    turns: BufferQueue,
}

impl UnusedBuffers {
    const fn new() -> Self {
        Self {
            messages: BufferQueue(VecDeque::new()),
            batches: BufferQueue(VecDeque::new()),
            turns: BufferQueue(VecDeque::new()),
        }
    }

    fn queue_for(&mut self, size: BufferSize) -> &mut BufferQueue {
        match size {
            BufferSize::Message => &mut self.messages,
            BufferSize::Batch => &mut self.batches,
            BufferSize::Turn => &mut self.turns,
        }
    }
}

/// The unused buffers of one size; the buffer that has been unused longest is first.
struct BufferQueue(VecDeque<BytesMut>);

impl BufferQueue {
    /// Returns a reusable buffer of the queue, or a new buffer.
    fn take(&mut self, size: BufferSize) -> BytesMut {
        for _ in 0..self.0.len().min(MAX_EXAMINED_BUFFERS) {
            let Some(mut buffer) = self.0.pop_front() else { break };
            match size.is_reusable(&mut buffer) {
                true => return buffer,
                false => self.0.push_back(buffer),
            }
        }
        BytesMut::with_capacity(size.initial_capacity())
    }

    /// Stores a buffer. A full queue drops the buffer that has been unused longest.
    fn put_back(&mut self, buffer: BytesMut, size: BufferSize) {
        let QueueLimits { max_capacity, max_count } = size.queue_limits();
        if buffer.capacity() > max_capacity {
            return;
        }
        if self.0.len() >= max_count {
            self.0.pop_front();
        }
        self.0.push_back(buffer);
    }
}

/// The maximum number of buffers that are examined before a new buffer is allocated.
const MAX_EXAMINED_BUFFERS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer_with_capacity(size: BufferSize) -> BytesMut {
        let mut buffer = BytesMut::new();
        ensure_capacity(&mut buffer, size);
        buffer
    }

    #[test]
    fn a_buffer_is_reused_once_no_slice_of_it_is_in_use() {
        let mut buffer = buffer_with_capacity(BufferSize::Message);
        let address = buffer.as_ptr();
        buffer.extend_from_slice(b"head and body");
        let slice = buffer.split_to(4).freeze();
        buffer.clear();
        return_buffer(&mut buffer, BufferSize::Message);
        assert_eq!(buffer.capacity(), 0);
        return_buffer(&mut buffer, BufferSize::Message);
        assert_ne!(
            buffer_with_capacity(BufferSize::Message).as_ptr(),
            address,
            "a slice is in use"
        );
        drop(slice);
        let reused = buffer_with_capacity(BufferSize::Message);
        assert_eq!(reused.as_ptr(), address);
        assert!(reused.capacity() >= BufferSize::Message.initial_capacity());
    }

    #[test]
    fn a_buffer_with_content_keeps_its_allocation() {
        let mut buffer = BytesMut::from(&b"rest"[..]);
        return_buffer(&mut buffer, BufferSize::Batch);
        ensure_capacity(&mut buffer, BufferSize::Batch);
        assert_eq!(buffer, b"rest"[..]);
    }

    /// Otherwise small buffers would displace those with full capacity.
    #[test]
    fn a_buffer_with_little_capacity_is_not_kept() {
        let QueueLimits { max_count, .. } = BufferSize::Batch.queue_limits();
        for _ in 0..2 * max_count {
            let mut small = BytesMut::from(&b"twelve bytes"[..]);
            small.clear();
            return_buffer(&mut small, BufferSize::Batch);
        }
        let mut buffer = buffer_with_capacity(BufferSize::Batch);
        let address = buffer.as_ptr();
        return_buffer(&mut buffer, BufferSize::Batch);
        assert_eq!(buffer_with_capacity(BufferSize::Batch).as_ptr(), address);
    }

    /// A reader may hold its buffer for minutes if the application or the peer is slow.
    #[test]
    fn a_link_buffer_is_not_reused_for_reads() {
        let mut link_buffer = BytesMut::with_capacity(64 * 1024);
        let address = link_buffer.as_ptr();
        return_buffer(&mut link_buffer, BufferSize::Turn);
        for size in [BufferSize::Message, BufferSize::Batch] {
            assert_eq!(buffer_with_capacity(size).capacity(), size.initial_capacity());
        }
        assert_eq!(buffer_with_capacity(BufferSize::Turn).as_ptr(), address);
    }

    #[test]
    fn the_pool_keeps_few_buffers_and_no_large_one() {
        let unused_count =
            || UNUSED_BUFFERS.with_borrow(|unused_buffers| unused_buffers.messages.0.len());
        let QueueLimits { max_capacity, .. } = BufferSize::Batch.queue_limits();
        return_buffer(&mut BytesMut::with_capacity(max_capacity + 1), BufferSize::Message);
        assert_eq!(unused_count(), 0);
        let QueueLimits { max_count, .. } = BufferSize::Message.queue_limits();
        let mut buffers: Vec<_> =
            (0..2 * max_count).map(|_| buffer_with_capacity(BufferSize::Message)).collect();
        buffers.iter_mut().for_each(|buffer| return_buffer(buffer, BufferSize::Message));
        assert_eq!(unused_count(), max_count);
    }
}
