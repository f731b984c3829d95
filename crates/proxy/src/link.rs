//! The link between two sidecars: one connection that carries the streams of many requests. One task drives the
//! connection; streams are handles to its state.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leno_model::Reason;
use leno_wire::link::{
    GoAwayCode, Link, LinkEvent, LinkLimits, OpenError, ResetCode, Role, StreamId, StreamIdHasher,
    StreamKind,
};
use tokio::sync::Notify;
use tokio::time::timeout;

mod drive;
mod rejection;
mod slot;
pub(crate) mod stream;

use crate::buffers::{self, BufferSize};
pub(crate) use rejection::{REJECTED_OPTION, ReceivedHead, rejection_over_http1};
use slot::StreamSlot;
pub(crate) use slot::{ReceivedItem, StreamError};
pub(crate) use stream::LinkStream;

/// A handle to a link. The driver task ends with the connection.
#[derive(Clone)]
pub(crate) struct LinkHandle(Rc<SharedLink>);

/// The state shared by the driver and the streams of one link; borrowed only between awaits.
struct SharedLink {
    state: RefCell<LinkState>,
    /// Called when the peer stops responding, and when it responds again.
    silence_observer: RefCell<Option<Box<SilenceObserver>>>,
    /// Notified when the link is ready, when its output is drained, and when it is broken.
    changed: Notify,
}

/// Observes a link. The flag is true when the peer stops responding, and false when it responds again.
type SilenceObserver = dyn Fn(&LinkHandle, bool);

/// The state of a link and of its streams.
struct LinkState {
    role: Role,
    link: Link,
    /// The state of each open stream.
    slots: HashMap<StreamId, StreamSlot, BuildHasherDefault<StreamIdHasher>>,
    /// Queues of ended streams, for reuse.
    spare_queues: Vec<VecDeque<ReceivedItem>>,
    /// Wakes the driver when output is pending.
    driver_waker: Option<Waker>,
    /// Streams that wait for the output to drain.
    congested_streams: Vec<StreamId>,
    /// True if the connection is gone.
    is_broken: bool,
    /// True if the peer accepts no new streams, or this sidecar will open none.
    is_retired: bool,
    /// True if both ends know the last stream.
    is_last_stream_known: bool,
    /// True if a stream was opened or written to since the driver's last check.
    was_used: bool,
    /// True if the peer has not answered a ping for about 2 s: new requests avoid the link.
    is_silent: bool,
    /// True if the peer's limits are known; before that only few streams are permitted.
    has_peer_limits: bool,
}

/// A stream that the peer has opened, with its first frame.
pub(crate) struct OpenedStream {
    pub(crate) stream: LinkStream,
    pub(crate) kind: StreamKind,
    pub(crate) head: Bytes,
    /// True if the head ends the stream.
    pub(crate) end_stream: bool,
}

impl LinkHandle {
    pub(crate) fn new(role: Role) -> Self {
        let state = LinkState {
            role,
            link: Link::new(role, LinkLimits::default()),
            slots: HashMap::default(),
            spare_queues: Vec::new(),
            driver_waker: None,
            congested_streams: Vec::new(),
            is_broken: false,
            is_retired: false,
            is_last_stream_known: false,
            was_used: false,
            is_silent: false,
            has_peer_limits: false,
        };
        let silence_observer = RefCell::default();
        Self(Rc::new(SharedLink {
            state: RefCell::new(state),
            silence_observer,
            changed: Notify::new(),
        }))
    }

    /// Opens a stream with the head that `write_head` writes. `end`: no body follows the head.
    pub(crate) fn open_stream(
        &self,
        kind: StreamKind,
        end: bool,
        write_head: impl FnOnce(&mut BytesMut),
    ) -> Result<LinkStream, OpenError> {
        let mut state = self.0.state.borrow_mut();
        if state.is_broken || state.is_retired {
            return Err(OpenError::GoingAway);
        }
        let id = state.link_with_buffer().open_stream(kind, end, write_head)?;
        state.add_slot(id).local_ended = end;
        state.was_used = true;
        state.wake_driver();
        Ok(LinkStream::new(self.0.clone(), id))
    }

    /// True if a new stream may be opened now.
    pub(crate) fn is_open(&self) -> bool {
        let state = self.0.state.borrow();
        !state.is_broken && !state.is_retired && state.link.vacant_stream_count() > 0
    }

    /// True if the peer supports the mark on requests of HTTP/2 clients.
    pub(crate) fn reads_http2_mark(&self) -> bool {
        self.0.state.borrow().link.peer_reads_http2_mark()
    }

    /// True if the connection is gone.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.state.borrow().is_broken
    }

    /// Calls `observe` with true when the peer leaves a ping unanswered, long before the streams of the link
    /// are lost, and with false when the peer responds again.
    pub(crate) fn on_silence(&self, observe: impl Fn(&Self, bool) + 'static) {
        *self.0.silence_observer.borrow_mut() = Some(Box::new(observe));
    }

    /// True if `other` is a handle to the same link.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    fn set_silent(&self, is_silent: bool) {
        self.0.state.borrow_mut().is_silent = is_silent;
        if let Some(observe) = &*self.0.silence_observer.borrow() {
            observe(self, is_silent);
        }
    }

    /// Returns the number of open streams.
    pub(crate) fn stream_count(&self) -> usize {
        self.0.state.borrow().slots.len()
    }

    /// Stops opening streams; those in progress complete, then the driver closes the connection.
    pub(crate) fn retire(&self) {
        let mut state = self.0.state.borrow_mut();
        if !state.is_retired {
            state.is_retired = true;
            // The peer first learns that the link drains and, after its response, which stream is the last:
            // streams that it opened meanwhile are still served.
            state.link.drain();
            state.link.ping();
            // Only the opener opens streams, so it knows its last one.
            state.is_last_stream_known = state.role == Role::Opener;
            state.wake_driver();
        }
    }

    /// Abandons the link with all its streams; the driver closes the connection.
    pub(crate) fn abandon(&self) {
        self.fail_all_streams();
        self.0.state.borrow().wake_driver();
    }

    /// Resolves when the peer's limits are known, so that all permitted streams can be opened.
    pub(crate) async fn wait_ready(&self) -> Result<(), StreamError> {
        self.wait_for_state(|state| state.has_peer_limits).await
    }

    /// Resolves when the output of the link is no longer congested. Returns `None` if the output is still
    /// congested after `max_wait`.
    pub(crate) async fn wait_uncongested(
        &self,
        max_wait: Duration,
    ) -> Option<Result<(), StreamError>> {
        let is_met = |state: &LinkState| !state.link.is_congested();
        match self.check_state(is_met) {
            Some(result) => Some(result),
            // Boxed: rarely needed, and it would enlarge the future of every request.
            None => Box::pin(timeout(max_wait, self.wait_for_state(is_met))).await.ok(),
        }
    }

    /// Resolves when the condition holds. Returns an error if the link is or becomes broken.
    async fn wait_for_state(&self, is_met: impl Fn(&LinkState) -> bool) -> Result<(), StreamError> {
        loop {
            let notified = self.0.changed.notified();
            if let Some(result) = self.check_state(&is_met) {
                return result;
            }
            notified.await;
        }
    }

    /// Returns `Ok` if the condition holds, an error if the link is broken, and `None` if the condition does
    /// not hold yet.
    fn check_state(&self, is_met: impl Fn(&LinkState) -> bool) -> Option<Result<(), StreamError>> {
        let state = self.0.state.borrow();
        if state.is_broken {
            return Some(Err(StreamError::Refused));
        }
        is_met(&state).then_some(Ok(()))
    }

    /// Applies an event of the link to its stream or to the link. Passes a stream that the peer has opened to `on_open`.
    fn dispatch_event(&self, event: LinkEvent, on_open: &mut impl FnMut(OpenedStream)) {
        let mut state = self.0.state.borrow_mut();
        match event {
            LinkEvent::Opened { stream, kind, head, end_stream } => {
                state.add_slot(stream).remote_ended = end_stream;
                state.was_used = true;
                drop(state);
                let stream = LinkStream::new(self.0.clone(), stream);
                on_open(OpenedStream { stream, kind, head, end_stream });
            }
            LinkEvent::Head { stream, head, interim, rejected, end_stream } => {
                state.deliver_item(
                    stream,
                    ReceivedItem::Head { head, interim, rejected, end: end_stream },
                );
            }
            LinkEvent::Data { stream, data, end_stream } => {
                state.deliver_item(stream, ReceivedItem::Data { data, end: end_stream });
            }
            LinkEvent::Trailers { stream, trailers } => {
                state.deliver_item(stream, ReceivedItem::Trailers(trailers));
            }
            LinkEvent::Reset { stream, code, reason } => {
                state.record_reason(stream, &reason);
                state.fail_stream(stream, StreamError::from(code));
            }
            LinkEvent::Credit { stream } => state.resume_writer(stream),
            LinkEvent::GoAway { last_stream, .. } => state.handle_go_away(last_stream),
            LinkEvent::Ready => {
                state.has_peer_limits = true;
                self.0.changed.notify_waiters();
            }
            LinkEvent::Pong if state.is_retired => state.send_go_away(),
            // The driver has counted the received bytes as a sign of life.
            LinkEvent::Pong => {}
        }
    }

    /// Marks the connection as gone, and fails all streams.
    fn fail_all_streams(&self) {
        let mut state = self.0.state.borrow_mut();
        state.is_broken = true;
        state.congested_streams.clear();
        for slot in state.slots.values_mut() {
            slot.end_early(StreamError::Broken);
        }
        self.0.changed.notify_waiters();
    }
}

impl LinkState {
    fn wake_driver(&self) {
        if let Some(waker) = &self.driver_waker {
            waker.wake_by_ref();
        }
    }

    /// Returns the protocol state machine, after allocating a buffer for its output.
    fn link_with_buffer(&mut self) -> &mut Link {
        buffers::ensure_capacity(self.link.output(), BufferSize::Turn);
        &mut self.link
    }

    fn add_slot(&mut self, id: StreamId) -> &mut StreamSlot {
        let items = self.spare_queues.pop().unwrap_or_default();
        self.slots.entry(id).or_insert(StreamSlot { items, ..StreamSlot::default() })
    }

    /// Removes a stream, and keeps its receive queue for reuse.
    fn remove_stream(&mut self, id: StreamId) -> RemovedStream {
        let Some(slot) = self.slots.remove(&id) else {
            return RemovedStream { is_congested: false, is_complete: false };
        };
        let is_complete = slot.is_complete();
        let StreamSlot { mut items, is_congested, .. } = slot;
        items.clear();
        if self.spare_queues.len() < MAX_SPARE_QUEUES && items.capacity() <= MAX_QUEUE_CAPACITY {
            self.spare_queues.push(items);
        }
        RemovedStream { is_congested, is_complete }
    }

    /// True if the link closes after its last stream, which the driver may be waiting for.
    fn is_closing(&self) -> bool {
        self.is_retired || self.is_broken || self.link.is_going_away()
    }

    fn deliver_item(&mut self, id: StreamId, incoming: ReceivedItem) {
        // Without a slot, this side has dropped the stream: data that still arrives is discarded.
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.queue_item(incoming);
        }
    }

    fn fail_stream(&mut self, id: StreamId, error: StreamError) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.end_early(error);
        }
    }

    /// Records the reason of a reset. Reasons that this release does not know are ignored.
    fn record_reason(&mut self, id: StreamId, reason: &[u8]) {
        let reason = std::str::from_utf8(reason).ok().and_then(Reason::from_label);
        if let (Some(reason), Some(slot)) = (reason, self.slots.get_mut(&id)) {
            slot.reported_reason = Some(reason);
        }
    }

    fn resume_writer(&mut self, id: StreamId) {
        if let Some(waker) = self.slots.get_mut(&id).and_then(|slot| slot.writer_waker.take()) {
            waker.wake();
        }
    }

    /// Wakes the streams that waited for the output to drain.
    fn resume_congested(&mut self) {
        for id in std::mem::take(&mut self.congested_streams) {
            if let Some(slot) = self.slots.get_mut(&id) {
                slot.is_congested = false;
            }
            self.resume_writer(id);
        }
    }

    /// Handles GOAWAY. No stream is opened afterwards, even if another GOAWAY arrives.
    fn handle_go_away(&mut self, last: StreamId) {
        self.is_retired = true;
        self.is_last_stream_known = true;
        // An opener's GOAWAY does not refer to our streams: those that it opened continue.
        if self.role == Role::Opener {
            for (_, slot) in self.slots.iter_mut().filter(|(id, _)| **id > last) {
                slot.end_early(StreamError::Refused);
            }
        }
    }

    /// Sends GOAWAY with the last stream that is served.
    fn send_go_away(&mut self) {
        self.link.go_away(GoAwayCode::Drain);
        self.is_last_stream_known = true;
        self.wake_driver();
    }

    /// True if no stream is open and none will be opened: both ends know the last stream.
    fn is_finished(&self) -> bool {
        // An opener may have sent GOAWAY by itself, after using all streams or resets that one link permits.
        let is_last_stream_known =
            self.is_last_stream_known || self.role == Role::Opener && self.link.is_going_away();
        is_last_stream_known && self.slots.is_empty()
    }
}

/// The state of a stream when it was removed from its link.
struct RemovedStream {
    /// True if the stream waited for the output to drain.
    is_congested: bool,
    /// True if both directions had ended.
    is_complete: bool,
}

impl From<ResetCode> for StreamError {
    fn from(code: ResetCode) -> Self {
        match code {
            ResetCode::Unreachable => Self::Unreachable,
            ResetCode::Denied => Self::Denied,
            code if code.is_retry_safe() => Self::Refused,
            code if code.to_http2().is_some() => Self::Http2(code),
            _ => Self::Broken,
        }
    }
}

/// The maximum number of spare queues of one link: about the number of streams that begin and end in one turn of the
/// event loop.
const MAX_SPARE_QUEUES: usize = 32;
/// The maximum capacity of a queue that is kept for reuse, in items.
const MAX_QUEUE_CAPACITY: usize = 8;
