//! Buffers that bytes in flight borrow. What is idle holds none; a thread keeps a few warm, so
//! that a request in a steady state allocates nothing.

use std::cell::RefCell;
use std::collections::VecDeque;

use bytes::BytesMut;

/// What a buffer is for: how much room it begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// A head and a small body: 4 KiB.
    Message,
    /// What a link gathers in a turn, a record of TLS at least: 16 KiB.
    Batch,
}

impl Size {
    /// The room a buffer of this size begins with.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Message => 4 * 1024,
            Self::Batch => 16 * 1024,
        }
    }

    /// The room beyond which one is not kept, and how many are: what a turn of the event loop
    /// uses at once.
    const fn kept(self) -> (usize, usize) {
        match self {
            Self::Message => (16 * 1024, 32),
            Self::Batch => (128 * 1024, 8),
        }
    }
}

/// Gives `buffer` room, unless it has some.
pub(crate) fn furnish(buffer: &mut BytesMut, size: Size) {
    if buffer.capacity() == 0 {
        *buffer = SPARE.with_borrow_mut(|spare| spare.of(size).take(size));
    }
}

/// Takes an empty `buffer`'s room for whoever needs some next. A buffer with content keeps it, and
/// one that was used to its last byte has none to give.
pub(crate) fn give(buffer: &mut BytesMut, size: Size) {
    if buffer.is_empty() && buffer.capacity() > 0 {
        let buffer = std::mem::take(buffer);
        SPARE.with_borrow_mut(|spare| spare.of(size).keep(buffer, size));
    }
}

thread_local! {
    static SPARE: RefCell<Spare> = const { RefCell::new(Spare::new()) };
}

/// The buffers of one thread that nobody uses.
struct Spare {
    messages: Shelf,
    batches: Shelf,
}

impl Spare {
    const fn new() -> Self {
        Self { messages: Shelf(VecDeque::new()), batches: Shelf(VecDeque::new()) }
    }

    fn of(&mut self, size: Size) -> &mut Shelf {
        match size {
            Size::Message => &mut self.messages,
            Size::Batch => &mut self.batches,
        }
    }
}

/// Buffers of one size, the one that has rested longest in front.
struct Shelf(VecDeque<BytesMut>);

impl Shelf {
    fn take(&mut self, size: Size) -> BytesMut {
        for _ in 0..self.0.len().min(LOOKS) {
            let Some(mut buffer) = self.0.pop_front() else { break };
            // Pieces that were cut off of it may still be in use, and then it has no room yet.
            match buffer.try_reclaim(size.bytes()) {
                true => return buffer,
                false => self.0.push_back(buffer),
            }
        }
        BytesMut::with_capacity(size.bytes())
    }

    fn keep(&mut self, mut buffer: BytesMut, size: Size) {
        let (most, count) = size.kept();
        let is_large = buffer.try_reclaim(size.bytes()) && buffer.capacity() > most;
        if self.0.len() < count && !is_large {
            self.0.push_back(buffer);
        }
    }
}

/// Buffers looked at before a new one is made.
const LOOKS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn furnished(size: Size) -> BytesMut {
        let mut buffer = BytesMut::new();
        furnish(&mut buffer, size);
        buffer
    }

    #[test]
    fn a_buffer_comes_back_whole_once_nobody_holds_a_piece_of_it() {
        let mut buffer = furnished(Size::Message);
        let address = buffer.as_ptr();
        buffer.extend_from_slice(b"head and body");
        let piece = buffer.split_to(4).freeze();
        buffer.clear();
        give(&mut buffer, Size::Message);
        assert_eq!(buffer.capacity(), 0);
        give(&mut buffer, Size::Message);
        assert_ne!(furnished(Size::Message).as_ptr(), address, "a piece is in use");
        drop(piece);
        let again = furnished(Size::Message);
        assert_eq!(again.as_ptr(), address);
        assert!(again.capacity() >= Size::Message.bytes());
    }

    #[test]
    fn content_is_never_taken_away() {
        let mut buffer = BytesMut::from(&b"rest"[..]);
        give(&mut buffer, Size::Batch);
        furnish(&mut buffer, Size::Batch);
        assert_eq!(buffer, b"rest"[..]);
    }

    #[test]
    fn few_are_kept_and_none_that_grew_large() {
        let kept = || SPARE.with_borrow(|spare| spare.messages.0.len());
        let (most, count) = Size::Message.kept();
        give(&mut BytesMut::with_capacity(most + 1), Size::Message);
        assert_eq!(kept(), 0);
        let mut many: Vec<_> = (0..2 * count).map(|_| furnished(Size::Message)).collect();
        many.iter_mut().for_each(|buffer| give(buffer, Size::Message));
        assert_eq!(kept(), count);
    }
}
