//! Per-thread buffer pool. Idle connections hold no buffer; the pool keeps a few warm, so that a request in
//! steady state allocates nothing.

use std::cell::RefCell;
use std::collections::VecDeque;

use bytes::BytesMut;

/// The purpose of a buffer, which determines its initial capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferSize {
    /// A head and a small body: 4 KiB.
    Message,
    /// A TLS record, or one read of a body: 16 KiB.
    Batch,
    /// The bytes that a link collects in one turn of the event loop: 16 KiB at first.
    Turn,
}

impl BufferSize {
    /// Returns the initial capacity of a buffer of this size.
    pub(crate) const fn initial_capacity(self) -> usize {
        match self {
            Self::Message => 4 * 1024,
            Self::Batch | Self::Turn => 16 * 1024,
        }
    }

    /// Returns the pools that may take back a buffer that had this size at first, in order of preference.
    const fn candidate_shelves(self) -> &'static [Self] {
        match self {
            Self::Message | Self::Batch => &[Self::Batch, Self::Message],
            Self::Turn => &[Self::Turn],
        }
    }

    /// True if no slice of `buffer` is in use and its capacity suffices for this size.
    fn is_reusable(self, buffer: &mut BytesMut) -> bool {
        buffer.try_reclaim(self.initial_capacity())
    }

    /// Returns the capacity above which a buffer is not kept, and the number kept: the use of one turn of the
    /// event loop, at most half a mebibyte of each size. Link buffers are never lent to readers: they are many
    /// times larger than a reader needs, and a reader may hold a buffer as long as a slow peer takes.
    const fn shelf_limits(self) -> (usize, usize) {
        match self {
            Self::Message => (16 * 1024, 32),
            Self::Batch => (32 * 1024, 8),
            Self::Turn => (128 * 1024, 4),
        }
    }
}

/// Allocates capacity for `buffer` from the pool if it has none.
pub(crate) fn ensure_capacity(buffer: &mut BytesMut, size: BufferSize) {
    if buffer.capacity() == 0 {
        *buffer = SPARE.with_borrow_mut(|spare| spare.shelf_for(size).take(size));
    }
}

/// Returns the allocation of an empty `buffer`, which had `size` at first, to the pool. A buffer with content
/// keeps its allocation; one that is used nearly to its last byte is freed.
pub(crate) fn return_buffer(buffer: &mut BytesMut, size: BufferSize) {
    if buffer.is_empty() && buffer.capacity() > 0 {
        let mut buffer = std::mem::take(buffer);
        let fits = |wanted: &BufferSize| wanted.is_reusable(&mut buffer);
        let size = match size.candidate_shelves().iter().copied().find(fits) {
            Some(size) => size,
            // Slices of it are still in use, or it never had that capacity.
            None if buffer.capacity() >= size.initial_capacity() / 4 => size,
            None => return,
        };
        SPARE.with_borrow_mut(|spare| spare.shelf_for(size).put_back(buffer, size));
    }
}

thread_local! {
    static SPARE: RefCell<UnusedBuffers> = const { RefCell::new(UnusedBuffers::new()) };
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

    fn shelf_for(&mut self, size: BufferSize) -> &mut BufferQueue {
        match size {
            BufferSize::Message => &mut self.messages,
            BufferSize::Batch => &mut self.batches,
            BufferSize::Turn => &mut self.turns,
        }
    }
}

/// Buffers of one size, the one unused for longest in front.
struct BufferQueue(VecDeque<BytesMut>);

impl BufferQueue {
    fn take(&mut self, size: BufferSize) -> BytesMut {
        for _ in 0..self.0.len().min(LOOKS) {
            let Some(mut buffer) = self.0.pop_front() else { break };
            match size.is_reusable(&mut buffer) {
                true => return buffer,
                false => self.0.push_back(buffer),
            }
        }
        BytesMut::with_capacity(size.initial_capacity())
    }

    /// Keeps a buffer, in place of the one unused for longest if the pool is full.
    fn put_back(&mut self, buffer: BytesMut, size: BufferSize) {
        let (most, count) = size.shelf_limits();
        if buffer.capacity() > most {
            return;
        }
        if self.0.len() >= count {
            self.0.pop_front();
        }
        self.0.push_back(buffer);
    }
}

/// The maximum number of buffers examined before a new one is allocated.
const LOOKS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer_with_capacity(size: BufferSize) -> BytesMut {
        let mut buffer = BytesMut::new();
        ensure_capacity(&mut buffer, size);
        buffer
    }

    #[test]
    fn a_buffer_comes_back_whole_once_nobody_holds_a_piece_of_it() {
        let mut buffer = buffer_with_capacity(BufferSize::Message);
        let address = buffer.as_ptr();
        buffer.extend_from_slice(b"head and body");
        let piece = buffer.split_to(4).freeze();
        buffer.clear();
        return_buffer(&mut buffer, BufferSize::Message);
        assert_eq!(buffer.capacity(), 0);
        return_buffer(&mut buffer, BufferSize::Message);
        assert_ne!(
            buffer_with_capacity(BufferSize::Message).as_ptr(),
            address,
            "a piece is in use"
        );
        drop(piece);
        let again = buffer_with_capacity(BufferSize::Message);
        assert_eq!(again.as_ptr(), address);
        assert!(again.capacity() >= BufferSize::Message.initial_capacity());
    }

    #[test]
    fn content_is_never_taken_away() {
        let mut buffer = BytesMut::from(&b"rest"[..]);
        return_buffer(&mut buffer, BufferSize::Batch);
        ensure_capacity(&mut buffer, BufferSize::Batch);
        assert_eq!(buffer, b"rest"[..]);
    }

    /// Small buffers would take the room of those with full capacity.
    #[test]
    fn one_that_never_had_the_room_is_not_kept() {
        let (_, count) = BufferSize::Batch.shelf_limits();
        for _ in 0..2 * count {
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
    fn what_a_link_gathered_is_not_lent_to_who_reads() {
        let mut gathered = BytesMut::with_capacity(64 * 1024);
        let address = gathered.as_ptr();
        return_buffer(&mut gathered, BufferSize::Turn);
        for size in [BufferSize::Message, BufferSize::Batch] {
            assert_eq!(buffer_with_capacity(size).capacity(), size.initial_capacity());
        }
        assert_eq!(buffer_with_capacity(BufferSize::Turn).as_ptr(), address);
    }

    #[test]
    fn few_are_kept_and_none_that_grew_large() {
        let kept = || SPARE.with_borrow(|spare| spare.messages.0.len());
        let (most, _) = BufferSize::Batch.shelf_limits();
        return_buffer(&mut BytesMut::with_capacity(most + 1), BufferSize::Message);
        assert_eq!(kept(), 0);
        let (_, count) = BufferSize::Message.shelf_limits();
        let mut many: Vec<_> =
            (0..2 * count).map(|_| buffer_with_capacity(BufferSize::Message)).collect();
        many.iter_mut().for_each(|buffer| return_buffer(buffer, BufferSize::Message));
        assert_eq!(kept(), count);
    }
}
