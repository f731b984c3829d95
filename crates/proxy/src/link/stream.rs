//! The handle of a request or TCP connection to its stream of a link.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leno_model::Reason;
use leno_wire::link::{ResetCode, StreamId};

use super::{ReceivedHead, ReceivedItem, SharedLink, StreamError};
use crate::buffers::{self, BufferSize};
use crate::http2::cancel;
use crate::max_wait::poll_within;

/// One stream of a link. Dropping it before both directions have ended resets it.
pub(crate) struct LinkStream {
    shared_link: Rc<SharedLink>,
    id: StreamId,
}

impl LinkStream {
    pub(super) fn new(shared_link: Rc<SharedLink>, id: StreamId) -> Self {
        Self { shared_link, id }
    }

    /// Polls for the next item. Taking data returns its credit to the sender.
    pub(crate) fn poll_next(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ReceivedItem, StreamError>> {
        let mut state = self.shared_link.state.borrow_mut();
        // Unreachable: the slot exists as long as this handle.
        let Some(slot) = state.slots.get_mut(&self.id) else {
            return Poll::Ready(Err(StreamError::Broken));
        };
        match slot.items.pop_front() {
            Some(incoming) => {
                if let ReceivedItem::Data { data, .. } = &incoming {
                    // A stream's data is bounded by its window, far below `u32::MAX`.
                    let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
                    state.link.record_consumed(self.id, bytes);
                    if !state.link.output().is_empty() {
                        state.wake_driver();
                    }
                }
                Poll::Ready(Ok(incoming))
            }
            None => match slot.error {
                Some(error) => Poll::Ready(Err(error)),
                None => {
                    slot.reader_waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            },
        }
    }

    /// Waits for the next item.
    pub(crate) async fn next(&self) -> Result<ReceivedItem, StreamError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Returns the head of the final response without removing it; interim heads before it are dropped.
    pub(crate) async fn final_head(&self) -> Result<ReceivedHead, StreamError> {
        loop {
            self.wait_for_item().await?;
            let mut state = self.shared_link.state.borrow_mut();
            let slot = state.slots.get_mut(&self.id).ok_or(StreamError::Broken)?;
            match slot.items.front() {
                Some(ReceivedItem::Head { head, interim: false, rejected, .. }) => {
                    return Ok(ReceivedHead { bytes: head.clone(), rejected: *rejected });
                }
                Some(ReceivedItem::Head { interim: true, .. }) => drop(slot.items.pop_front()),
                Some(ReceivedItem::Data { .. } | ReceivedItem::Trailers(_)) | None => {
                    return Err(StreamError::Broken);
                }
            }
        }
    }

    /// True if a received item is queued.
    pub(crate) fn has_more(&self) -> bool {
        let state = self.shared_link.state.borrow();
        state.slots.get(&self.id).is_some_and(|slot| !slot.items.is_empty())
    }

    /// Resolves when an item has arrived, without removing it.
    pub(crate) async fn wait_for_item(&self) -> Result<(), StreamError> {
        poll_fn(|cx| {
            let mut state = self.shared_link.state.borrow_mut();
            match state.slots.get_mut(&self.id) {
                None => Poll::Ready(Err(StreamError::Broken)),
                Some(slot) if !slot.items.is_empty() => Poll::Ready(Ok(())),
                Some(slot) => match slot.error {
                    Some(error) => Poll::Ready(Err(error)),
                    None => {
                        slot.reader_waker = Some(cx.waker().clone());
                        Poll::Pending
                    }
                },
            }
        })
        .await
    }

    /// Resolves when the peer has reset the stream or the connection is gone, before the stream was complete.
    pub(crate) async fn wait_until_lost(&self) -> StreamError {
        poll_fn(|cx| {
            let mut state = self.shared_link.state.borrow_mut();
            match state.slots.get_mut(&self.id) {
                None => Poll::Ready(StreamError::Broken),
                Some(slot) => match slot.error {
                    Some(error) => Poll::Ready(error),
                    None => {
                        slot.reader_waker = Some(cx.waker().clone());
                        Poll::Pending
                    }
                },
            }
        })
        .await
    }

    /// Resolves when the output of the link has room for a head or more data. Returns `None` if the output is
    /// still congested after `max_wait`.
    pub(crate) async fn wait_uncongested(
        &self,
        max_wait: Duration,
    ) -> Option<Result<(), StreamError>> {
        poll_within(max_wait, |cx| self.poll_uncongested(cx)).await
    }

    /// Polls until the output of the link has room; registers the stream as congested otherwise.
    fn poll_uncongested(&self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let mut state_guard = self.shared_link.state.borrow_mut();
        let state = &mut *state_guard;
        let Some(slot) = state.slots.get_mut(&self.id) else {
            return Poll::Ready(Err(StreamError::Broken));
        };
        if let Some(error) = slot.error {
            return Poll::Ready(Err(error));
        }
        if !state.link.is_congested() {
            return Poll::Ready(Ok(()));
        }
        slot.writer_waker = Some(cx.waker().clone());
        if !std::mem::replace(&mut slot.is_congested, true) {
            state.congested_streams.push(self.id);
        }
        Poll::Pending
    }

    /// Sends a response head; `interim`: its status is 1xx; `end`: the head ends this direction. The caller first waits
    /// until the link is [uncongested](Self::wait_uncongested).
    pub(crate) fn send_head(
        &self,
        interim: bool,
        end: bool,
        write_head: impl FnOnce(&mut BytesMut),
    ) -> Result<(), StreamError> {
        let mut state = self.shared_link.state.borrow_mut();
        let send_result = state.link_with_buffer().send_head(self.id, interim, end, write_head);
        if let Some(slot) = state.slots.get_mut(&self.id) {
            slot.local_ended |= end && send_result.is_ok();
        }
        state.was_used = true;
        state.wake_driver();
        send_result.map_err(|_| StreamError::Broken)
    }

    /// Sends the final head of a rejection by this sidecar, with the precondition of
    /// [`send_head`](Self::send_head).
    pub(crate) fn send_rejection(
        &self,
        end: bool,
        write_head: impl FnOnce(&mut BytesMut),
    ) -> Result<(), StreamError> {
        let mut state = self.shared_link.state.borrow_mut();
        let send_result = state.link_with_buffer().send_rejection(self.id, end, write_head);
        if let Some(slot) = state.slots.get_mut(&self.id) {
            slot.local_ended |= end && send_result.is_ok();
        }
        state.was_used = true;
        state.wake_driver();
        send_result.map_err(|_| StreamError::Broken)
    }

    /// Sends from the front of `data` as credit permits, and is ready when `data` is empty. With `end`, the
    /// last byte ends this direction.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        data: &mut Bytes,
        end: bool,
    ) -> Poll<Result<(), StreamError>> {
        std::task::ready!(self.poll_uncongested(cx))?;
        let mut state_guard = self.shared_link.state.borrow_mut();
        let state = &mut *state_guard;
        buffers::ensure_capacity(state.link.output(), BufferSize::Turn);
        let (Some(slot), Ok(sent_bytes)) =
            (state.slots.get_mut(&self.id), state.link.send_data(self.id, data, end))
        else {
            return Poll::Ready(Err(StreamError::Broken));
        };
        let is_done = sent_bytes == data.len();
        drop(data.split_to(sent_bytes));
        if is_done {
            slot.local_ended |= end;
        } else {
            slot.writer_waker = Some(cx.waker().clone());
        }
        state.was_used = true;
        state.wake_driver();
        if is_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Sends a trailer section; nothing follows it.
    pub(crate) fn send_trailers(&self, trailers: &[u8]) -> Result<(), StreamError> {
        let mut state = self.shared_link.state.borrow_mut();
        let send_result = state.link_with_buffer().send_trailers(self.id, trailers);
        if let Some(slot) = state.slots.get_mut(&self.id) {
            slot.local_ended |= send_result.is_ok();
        }
        state.was_used = true;
        state.wake_driver();
        send_result.map_err(|_| StreamError::Broken)
    }

    /// Resets the stream with this code.
    pub(crate) fn reset(&self, code: ResetCode) {
        let mut state = self.shared_link.state.borrow_mut();
        state.link.reset_stream(self.id, code);
        state.wake_driver();
    }

    /// Resets the stream with a code, and with a reason for the peer's metrics.
    pub(crate) fn reset_for(&self, code: ResetCode, reason: Reason) {
        let mut state = self.shared_link.state.borrow_mut();
        state.link.reset_with_reason(self.id, code, reason.label());
        state.wake_driver();
    }

    /// Resets the stream of an attempt that was abandoned while its client still waits.
    pub(crate) fn abandon(&self) {
        self.reset_for(ABANDONED_CODE, Reason::AttemptAbandoned);
    }

    /// True if the peer's sidecar abandoned the attempt while its client still waits. Used for metrics only.
    pub(crate) fn is_abandoned(&self) -> bool {
        let state = self.shared_link.state.borrow();
        let reported_reason = state.slots.get(&self.id).and_then(|slot| slot.reported_reason);
        reported_reason == Some(Reason::AttemptAbandoned)
    }

    /// Returns the reason that the peer's sidecar reports for an unreachable application; `None` if it adds
    /// nothing to the reset code.
    pub(crate) fn unreachable_reason(&self) -> Option<Reason> {
        let state = self.shared_link.state.borrow();
        let reported_reason = state.slots.get(&self.id).and_then(|slot| slot.reported_reason);
        reported_reason
            .filter(|reason| matches!(reason, Reason::PortTaken | Reason::ProtocolMismatch))
    }

    /// Returns the reason for which the peer's sidecar rejected the stream. Used for metrics only: retries
    /// depend on the reset code.
    pub(crate) fn rejection_reason(&self) -> Option<Reason> {
        let state = self.shared_link.state.borrow();
        let reported_reason = state.slots.get(&self.id).and_then(|slot| slot.reported_reason);
        reported_reason.filter(|reason| reason.is_rejection())
    }
}

impl Drop for LinkStream {
    fn drop(&mut self) {
        let mut state = self.shared_link.state.borrow_mut();
        let removed = state.remove_stream(self.id);
        if removed.is_congested {
            state.congested_streams.retain(|id| *id != self.id);
        }
        // A complete stream needs no reset, but the driver of a closing link waits for its last stream.
        if removed.is_complete && !state.is_closing() {
            return;
        }
        match cancel::is_abandoned() {
            true => state.link.reset_with_reason(
                self.id,
                ABANDONED_CODE,
                Reason::AttemptAbandoned.label(),
            ),
            false => state.link.reset_stream(self.id, cancel::current_code()),
        }
        state.wake_driver();
    }
}

/// The code for an attempt that this sidecar abandons.
const ABANDONED_CODE: ResetCode = ResetCode::Cancelled;
