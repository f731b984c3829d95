//! Half-open connections as their tasks see them: admitted, waiting, in a turn, or evicted.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::task::yield_now;

use crate::source::ConnectionSource;
use crate::table::{HalfOpenId, HalfOpenLimits, HalfOpenState, HalfOpenTable, PeerPhase};

/// The half-open connections of one listener, or of the listeners of one thread.
#[derive(Debug)]
pub struct ConnectionAdmission(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    table: HalfOpenTable,
    wakers: BTreeMap<HalfOpenId, Waker>,
    evicted: u64,
}

impl ConnectionAdmission {
    /// None is half-open yet.
    #[must_use]
    pub fn new(bounds: HalfOpenLimits) -> Arc<Self> {
        let inner =
            Inner { table: HalfOpenTable::new(bounds), wakers: BTreeMap::new(), evicted: 0 };
        Arc::new(Self(Mutex::new(inner)))
    }

    /// One more connection of this source. It is always admitted; another one may be evicted for it.
    pub fn admit(self: &Arc<Self>, source: impl Into<ConnectionSource>) -> HalfOpen {
        let mut inner = self.lock();
        let (id, evicted) = inner.table.admit(source.into());
        inner.evict_connection(evicted);
        drop(inner);
        HalfOpen { admission: Arc::clone(self), id }
    }

    /// Connections that were evicted since the start.
    #[must_use]
    pub fn evicted_count(&self) -> u64 {
        self.lock().evicted
    }

    /// Connections that are half-open now.
    #[must_use]
    pub fn half_open(&self) -> usize {
        self.lock().table.len()
    }

    /// A thread that died while it held the lock left nothing half done that others rely on.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn evict_connection(&mut self, evicted: Option<HalfOpenId>) {
        if let Some(id) = evicted {
            self.evicted += 1;
            self.wake_connection(id);
        }
    }

    fn wake_connection(&mut self, id: HalfOpenId) {
        if let Some(waker) = self.wakers.remove(&id) {
            waker.wake();
        }
    }

    fn keep_waker(&mut self, id: HalfOpenId, cx: &Context<'_>) {
        match self.wakers.get_mut(&id) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => drop(self.wakers.insert(id, cx.waker().clone())),
        }
    }

    fn is_evicted(&self, id: HalfOpenId) -> bool {
        self.table.state_of(id) == Some(HalfOpenState::Evicted)
    }
}

/// One connection while it is half-open: until this is dropped, or [`HalfOpen::mark_complete`] is called.
#[derive(Debug)]
pub struct HalfOpen {
    admission: Arc<ConnectionAdmission>,
    id: HalfOpenId,
}

impl HalfOpen {
    /// Awaits the peer. From the first time that `peer` is not ready the connection may be evicted, and
    /// the longer it has waited since then the sooner, whatever the peer sends in between.
    ///
    /// # Errors
    /// [`Evicted`] when the connection has to make room for others.
    pub async fn await_peer<F: Future>(&self, peer: F) -> Result<F::Output, Evicted> {
        let mut peer = pin!(peer);
        let sent = poll_fn(|cx| match peer.as_mut().poll(cx) {
            Poll::Ready(sent) => Poll::Ready(Ok(sent)),
            Poll::Pending => self.poll_waiting(cx),
        });
        let sent = sent.await?;
        self.change_phase(PeerPhase::Ended)?;
        Ok(sent)
    }

    /// Does the work of a handshake in turns. A turn lasts as long as `work` computes, and ends when it
    /// waits for the peer, which is awaited as by [`HalfOpen::await_peer`].
    ///
    /// # Errors
    /// [`Evicted`] when the connection has to make room for others.
    pub async fn in_turns<F: Future>(&self, work: F) -> Result<F::Output, Evicted> {
        let mut work = pin!(work);
        loop {
            self.change_phase(PeerPhase::Continues)?;
            poll_fn(|cx| self.poll_turn(cx)).await?;
            // Other work of this thread comes first, between one batch of turns and the next.
            yield_now().await;
            let polled = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
            self.change_phase(PeerPhase::Continues)?;
            if let Poll::Ready(done) = polled {
                self.change_phase(PeerPhase::Ended)?;
                return Ok(done);
            }
            // Nothing may be awaited between the poll above and this: a wake-up would be lost.
            let mut is_woken = false;
            let woken = poll_fn(|cx| match std::mem::replace(&mut is_woken, true) {
                true => Poll::Ready(Ok(())),
                false => self.poll_waiting(cx),
            });
            woken.await?;
        }
    }

    /// Serves a connection of requests, on which the peer is awaited except while there is an
    /// [`RequestInProgress`].
    ///
    /// # Errors
    /// [`Evicted`] when the connection has to make room for others.
    pub async fn serve_connection<F: Future>(&self, connection: F) -> Result<F::Output, Evicted> {
        self.mark_waiting();
        let mut connection = pin!(connection);
        let served = poll_fn(|cx| match connection.as_mut().poll(cx) {
            Poll::Ready(served) => Poll::Ready(Ok(served)),
            Poll::Pending => self.poll_evicted(cx).map(|()| Err(Evicted)),
        });
        served.await
    }

    /// A request is there; the peer is awaited again when this is dropped.
    pub fn start_response(&self) -> RequestInProgress<'_> {
        self.mark_busy();
        RequestInProgress(self)
    }

    /// Resolves when the connection has to make room for others.
    pub async fn wait_for_eviction(&self) {
        poll_fn(|cx| self.poll_evicted(cx)).await;
    }

    fn poll_evicted(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.admission.lock();
        match inner.table.state_of(self.id) {
            Some(HalfOpenState::Evicted) => return Poll::Ready(()),
            Some(_) => inner.keep_waker(self.id, cx),
            None => {}
        }
        Poll::Pending
    }

    /// The peer is awaited from now on: the connection may be evicted.
    pub fn mark_waiting(&self) {
        let mut inner = self.admission.lock();
        let evicted = inner.table.start_waiting(self.id);
        inner.evict_connection(evicted);
    }

    /// The peer has sent its part: the connection is not evicted until the next
    /// [`HalfOpen::mark_waiting`].
    pub fn mark_busy(&self) {
        self.change_phase(PeerPhase::Ended).ok();
    }

    /// The connection is not half-open any more.
    pub fn mark_complete(&self) {
        let mut inner = self.admission.lock();
        inner.wakers.remove(&self.id);
        if let Some(granted) = inner.table.remove(self.id) {
            inner.wake_connection(granted);
        }
    }

    /// Counts as waiting for the peer, unless it has left. For adaptors that poll the peer themselves.
    ///
    /// # Errors
    /// [`Evicted`] when the connection has to make room for others.
    pub fn poll_waiting<T>(&self, cx: &Context<'_>) -> Poll<Result<T, Evicted>> {
        let mut inner = self.admission.lock();
        let evicted = inner.table.start_waiting(self.id);
        inner.evict_connection(evicted);
        match inner.table.state_of(self.id) {
            Some(HalfOpenState::Evicted) => return Poll::Ready(Err(Evicted)),
            Some(_) => inner.keep_waker(self.id, cx),
            None => {}
        }
        Poll::Pending
    }

    /// The peer has sent something, but not yet all that is awaited.
    ///
    /// # Errors
    /// [`Evicted`] when the connection has to make room for others.
    pub fn record_progress(&self) -> Result<(), Evicted> {
        self.change_phase(PeerPhase::Continues)
    }

    fn poll_turn(&self, cx: &Context<'_>) -> Poll<Result<(), Evicted>> {
        let mut inner = self.admission.lock();
        inner.table.join_queue(self.id);
        match inner.table.state_of(self.id) {
            Some(HalfOpenState::Evicted) => Poll::Ready(Err(Evicted)),
            Some(HalfOpenState::Queued) => {
                inner.keep_waker(self.id, cx);
                Poll::Pending
            }
            Some(HalfOpenState::Served | HalfOpenState::Waiting | HalfOpenState::Running)
            | None => Poll::Ready(Ok(())),
        }
    }

    fn change_phase(&self, phase: PeerPhase) -> Result<(), Evicted> {
        let mut inner = self.admission.lock();
        if inner.is_evicted(self.id) {
            return Err(Evicted);
        }
        if let Some(granted) = inner.table.record_phase(self.id, phase) {
            inner.wake_connection(granted);
        }
        Ok(())
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.mark_complete();
    }
}

/// A request that is being answered on a connection that is evicted when it waits for one too long.
#[derive(Debug)]
pub struct RequestInProgress<'a>(&'a HalfOpen);

impl RequestInProgress<'_> {
    /// The answer has no end in sight: its connection is not evicted while it lasts.
    pub fn go_on(self) {
        std::mem::forget(self);
    }
}

impl Drop for RequestInProgress<'_> {
    fn drop(&mut self) {
        self.0.mark_waiting();
    }
}

/// The connection had to make room: its peer was silent for longer than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted;

impl fmt::Display for Evicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "too many connections are half-open, and this one has waited longest for its peer",
        )
    }
}

impl std::error::Error for Evicted {}

impl From<Evicted> for io::Error {
    fn from(evicted: Evicted) -> Self {
        Self::new(io::ErrorKind::ConnectionAborted, evicted)
    }
}

#[cfg(test)]
mod tests;
