//! Defines a compact range of received bytes.

/// A range of the received bytes. Positions have 32 bits, because the length of heads is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteSpan {
    /// The first byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl ByteSpan {
    /// Returns the bytes of this span; empty if it is not within `bytes`.
    #[must_use]
    pub fn slice_in(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// True if the span is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Creates a span. Positions beyond 4 GiB become 4 GiB; heads are far shorter.
    pub(super) fn new(start: usize, end: usize) -> Self {
        let clamp = |offset| u32::try_from(offset).unwrap_or(u32::MAX);
        Self { start: clamp(start), end: clamp(end) }
    }
}
