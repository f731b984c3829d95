//! A slot of a link: the state of one of its streams, with the queue of received items and the tasks that wait for them or
//! for permission to send. An item is a head, data or trailers.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::{Bytes, BytesMut};
use leno_model::Reason;
use leno_wire::link::ResetCode;

/// The state of one stream in its link.
#[derive(Default)]
pub(super) struct StreamSlot {
    /// The received items that the reader has not taken.
    pub(super) items: VecDeque<ReceivedItem>,
    /// The task that waits for the next received item.
    pub(super) reader_waker: Option<Waker>,
    /// The task that waits for credit of the stream, or for room in the output buffer of the link.
    pub(super) writer_waker: Option<Waker>,
    /// True if the writer waits until the output buffer of the whole link is below its limit.
    pub(super) is_congested: bool,
    /// True if this sidecar has ended its direction of the stream.
    pub(super) local_ended: bool,
    /// True if the peer has ended its direction of the stream.
    pub(super) remote_ended: bool,
    /// The first error: the peer reset the stream, or the connection was lost. `None` without an error.
    pub(super) error: Option<StreamError>,
    /// The reason that the peer reports with its reset; used for metrics only.
    pub(super) reported_reason: Option<Reason>,
}

/// A received item of a stream: a head, data or trailers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReceivedItem {
    /// A response head.
    Head {
        /// The encoded head.
        head: Bytes,
        /// True if the status is 1xx: the final head follows.
        interim: bool,
        /// True if the peer's sidecar, not its application, wrote the head.
        rejected: bool,
        /// True if the head ends the stream's direction.
        end: bool,
    },
    /// A piece of the body.
    Data {
        /// The bytes; may be empty if `end` is true.
        data: Bytes,
        /// True if the data ends the stream's direction.
        end: bool,
    },
    /// A trailer section; nothing follows it.
    Trailers(Bytes),
}

/// The reason why a stream ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamError {
    /// The peer did not process the stream: safe to retry elsewhere.
    Refused,
    /// The peer's application accepts no connection: safe to retry elsewhere.
    Unreachable,
    /// A policy does not allow the TCP connection.
    Denied,
    /// The peer abandoned the stream, or the connection broke.
    Broken,
    /// The peer's HTTP/2 stream to its application was reset with this code.
    Http2(ResetCode),
}

impl StreamSlot {
    /// Queues an item until the reader takes it.
    pub(super) fn queue_item(&mut self, item: ReceivedItem) {
        self.remote_ended |= item.is_last();
        match (self.items.back_mut(), item) {
            // Empty data only ends the stream: the queued data ends it instead.
            (
                Some(ReceivedItem::Data { end: queued_end, .. }),
                ReceivedItem::Data { data, end },
            ) if data.is_empty() => {
                *queued_end = end;
            }
            (
                Some(ReceivedItem::Data { data: queued, end: queued_end }),
                ReceivedItem::Data { data, end },
            ) if queued.len() + data.len() <= MAX_JOINED_BYTES => {
                *queued = join_pieces(std::mem::take(queued), &data);
                *queued_end = end;
            }
            (_, item) => self.items.push_back(item),
        }
        if let Some(waker) = self.reader_waker.take() {
            waker.wake();
        }
    }

    /// True if both directions have ended.
    pub(super) fn is_complete(&self) -> bool {
        self.local_ended && self.remote_ended
    }

    /// Ends the stream early. If both directions have ended it is complete, and queued items can still be read.
    pub(super) fn end_early(&mut self, error: StreamError) {
        if self.is_complete() {
            return;
        }
        self.error.get_or_insert(error);
        for waker in [self.reader_waker.take(), self.writer_waker.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

impl ReceivedItem {
    /// True if the peer sends nothing after this item.
    fn is_last(&self) -> bool {
        match self {
            Self::Head { end, .. } | Self::Data { end, .. } => *end,
            Self::Trailers(_) => true,
        }
    }
}

/// Joins two pieces of data into one allocation. Each received piece keeps its whole receive buffer alive. Without joining,
/// a peer that sends a window byte by byte to a slow reader would multiply memory use by a thousand.
fn join_pieces(first: Bytes, second: &[u8]) -> Bytes {
    let mut joined = BytesMut::from(first);
    joined.extend_from_slice(second);
    joined.freeze()
}

/// The maximum size to which queued pieces are joined: one full DATA frame.
const MAX_JOINED_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn data_item(bytes: &[u8], end: bool) -> ReceivedItem {
        ReceivedItem::Data { data: Bytes::copy_from_slice(bytes), end }
    }

    #[test]
    fn a_window_received_byte_by_byte_is_joined_into_few_pieces() {
        const WINDOW: usize = 64 * 1024;
        let mut slot = StreamSlot::default();
        for index in 0..WINDOW {
            slot.queue_item(data_item(&[index as u8], index + 1 == WINDOW));
        }
        assert_eq!(slot.items.len(), WINDOW / MAX_JOINED_BYTES);
        assert!(slot.remote_ended);
        let mut received = Vec::new();
        while let Some(ReceivedItem::Data { data, end }) = slot.items.pop_front() {
            received.extend_from_slice(&data);
            assert_eq!(end, slot.items.is_empty());
        }
        assert!(received.iter().enumerate().all(|(index, byte)| *byte == index as u8));
        assert_eq!(received.len(), WINDOW);
    }

    #[test]
    fn full_frames_are_queued_without_copies() {
        let mut slot = StreamSlot::default();
        let frame = Bytes::from(vec![7; MAX_JOINED_BYTES]);
        for _ in 0..2 {
            slot.queue_item(ReceivedItem::Data { data: frame.clone(), end: false });
        }
        let are_shared = slot.items.iter().all(|item| {
            matches!(item, ReceivedItem::Data { data, .. } if data.as_ptr() == frame.as_ptr())
        });
        assert!(are_shared && slot.items.len() == 2);
    }

    #[test]
    fn a_complete_stream_gets_no_error() {
        for (local_ended, expected) in [(true, None), (false, Some(StreamError::Broken))] {
            let mut slot = StreamSlot { local_ended, ..StreamSlot::default() };
            slot.queue_item(data_item(b"last", true));
            slot.end_early(StreamError::Broken);
            assert_eq!(slot.error, expected);
            assert_eq!(slot.items.len(), 1);
        }
    }
}
