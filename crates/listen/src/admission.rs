//! Admission of connections: each connection's task reports the phases of the connection, and is woken when
//! the connection is evicted or gets a turn.

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

/// The half-open connections of one listener, or of all listeners of one thread.
#[derive(Debug)]
pub struct ConnectionAdmission(Mutex<AdmissionState>);

#[derive(Debug)]
struct AdmissionState {
    table: HalfOpenTable,
    /// The wakers of tasks that wait for their peer or for a turn.
    wakers: BTreeMap<HalfOpenId, Waker>,
    /// The number of connections evicted since the start.
    evicted_count: u64,
}

impl ConnectionAdmission {
    /// Creates an admission without connections, with these limits.
    #[must_use]
    pub fn new(limits: HalfOpenLimits) -> Arc<Self> {
        let state = AdmissionState {
            table: HalfOpenTable::new(limits),
            wakers: BTreeMap::new(),
            evicted_count: 0,
        };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Admits a connection of this source. It is always admitted; another connection may be evicted for it.
    pub fn admit(self: &Arc<Self>, source: impl Into<ConnectionSource>) -> HalfOpen {
        let mut state = self.lock();
        let (id, evicted_id) = state.table.admit(source.into());
        state.evict_connection(evicted_id);
        drop(state);
        HalfOpen { admission: Arc::clone(self), id }
    }

    /// Returns the number of connections evicted since the start.
    #[must_use]
    pub fn evicted_count(&self) -> u64 {
        self.lock().evicted_count
    }

    /// Returns the number of half-open connections.
    #[must_use]
    pub fn half_open_count(&self) -> usize {
        self.lock().table.len()
    }

    /// Locks the state. A thread that panicked with the lock left no inconsistent state.
    fn lock(&self) -> MutexGuard<'_, AdmissionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmissionState {
    fn evict_connection(&mut self, evicted_id: Option<HalfOpenId>) {
        if let Some(id) = evicted_id {
            self.evicted_count += 1;
            self.wake_connection(id);
        }
    }

    fn wake_connection(&mut self, id: HalfOpenId) {
        if let Some(waker) = self.wakers.remove(&id) {
            waker.wake();
        }
    }

    fn store_waker(&mut self, id: HalfOpenId, cx: &Context<'_>) {
        match self.wakers.get_mut(&id) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => drop(self.wakers.insert(id, cx.waker().clone())),
        }
    }

    fn is_evicted(&self, id: HalfOpenId) -> bool {
        self.table.connection_state(id) == Some(HalfOpenState::Evicted)
    }
}

/// A half-open connection, until this value is dropped or [`HalfOpen::mark_complete`] is called.
#[derive(Debug)]
pub struct HalfOpen {
    admission: Arc<ConnectionAdmission>,
    id: HalfOpenId,
}

impl HalfOpen {
    /// Waits for the peer: polls `peer` until it completes. The connection may be evicted from the first time
    /// that `peer` is not ready; the one that has waited longest since then is evicted first, regardless of the
    /// bytes that it sends in between.
    ///
    /// # Errors
    /// Returns [`Evicted`] if the connection has to make room for others.
    pub async fn await_peer<F: Future>(&self, peer: F) -> Result<F::Output, Evicted> {
        let mut peer = pin!(peer);
        let output = poll_fn(|cx| match peer.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_waiting(cx),
        });
        let output = output.await?;
        self.change_phase(PeerPhase::Ended)?;
        Ok(output)
    }

    /// Performs the work of a handshake in turns. A turn lasts while `work` computes, and ends when it waits
    /// for the peer. Until the peer sends more, the connection may be evicted, like in
    /// [`HalfOpen::await_peer`].
    ///
    /// # Errors
    /// Returns [`Evicted`] if the connection has to make room for others.
    pub async fn run_in_turns<F: Future>(&self, work: F) -> Result<F::Output, Evicted> {
        let mut work = pin!(work);
        loop {
            self.change_phase(PeerPhase::Continues)?;
            poll_fn(|cx| self.poll_turn(cx)).await?;
            // Between batches of turns, other work of this thread runs first.
            yield_now().await;
            let poll_result = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
            self.change_phase(PeerPhase::Continues)?;
            if let Poll::Ready(output) = poll_result {
                self.change_phase(PeerPhase::Ended)?;
                return Ok(output);
            }
            // No await may stand between the poll above and this one: a wake-up would be lost.
            let mut is_woken = false;
            let wake_up = poll_fn(|cx| match std::mem::replace(&mut is_woken, true) {
                true => Poll::Ready(Ok(())),
                false => self.poll_waiting(cx),
            });
            wake_up.await?;
        }
    }

    /// Serves a connection of requests, on which the peer is awaited except while there is a
    /// [`RequestInProgress`].
    ///
    /// # Errors
    /// Returns [`Evicted`] if the connection has to make room for others.
    pub async fn serve_connection<F: Future>(&self, connection: F) -> Result<F::Output, Evicted> {
        self.mark_waiting();
        let mut connection = pin!(connection);
        let output = poll_fn(|cx| match connection.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_evicted(cx).map(|()| Err(Evicted)),
        });
        output.await
    }

    /// Marks the arrival of a request. When the result is dropped, the connection waits for its peer again.
    pub fn start_response(&self) -> RequestInProgress<'_> {
        self.mark_busy();
        RequestInProgress(self)
    }

    /// Resolves when the connection has to make room for others.
    pub async fn wait_for_eviction(&self) {
        poll_fn(|cx| self.poll_evicted(cx)).await;
    }

    fn poll_evicted(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.admission.lock();
        match state.table.connection_state(self.id) {
            Some(HalfOpenState::Evicted) => return Poll::Ready(()),
            Some(_) => state.store_waker(self.id, cx),
            None => {}
        }
        Poll::Pending
    }

    /// Marks the connection as waiting for its peer: it may be evicted.
    pub fn mark_waiting(&self) {
        let mut state = self.admission.lock();
        let evicted_id = state.table.start_waiting(self.id);
        state.evict_connection(evicted_id);
    }

    /// Marks the connection as busy after its peer has sent its part: it is not evicted until the next
    /// [`HalfOpen::mark_waiting`].
    pub fn mark_busy(&self) {
        self.change_phase(PeerPhase::Ended).ok();
    }

    /// Marks the connection as no longer half-open.
    pub fn mark_complete(&self) {
        let mut state = self.admission.lock();
        state.wakers.remove(&self.id);
        if let Some(next_turn) = state.table.remove(self.id) {
            state.wake_connection(next_turn);
        }
    }

    /// Marks the connection as waiting for its peer and registers the waker. For adaptors that poll the peer
    /// themselves.
    ///
    /// # Errors
    /// Returns [`Evicted`] if the connection has to make room for others.
    pub fn poll_waiting<T>(&self, cx: &Context<'_>) -> Poll<Result<T, Evicted>> {
        let mut state = self.admission.lock();
        let evicted_id = state.table.start_waiting(self.id);
        state.evict_connection(evicted_id);
        match state.table.connection_state(self.id) {
            Some(HalfOpenState::Evicted) => return Poll::Ready(Err(Evicted)),
            Some(_) => state.store_waker(self.id, cx),
            None => {}
        }
        Poll::Pending
    }

    /// Records that the peer has sent a part of the awaited bytes.
    ///
    /// # Errors
    /// Returns [`Evicted`] if the connection has to make room for others.
    pub fn record_progress(&self) -> Result<(), Evicted> {
        self.change_phase(PeerPhase::Continues)
    }

    fn poll_turn(&self, cx: &Context<'_>) -> Poll<Result<(), Evicted>> {
        let mut state = self.admission.lock();
        state.table.join_queue(self.id);
        match state.table.connection_state(self.id) {
            Some(HalfOpenState::Evicted) => Poll::Ready(Err(Evicted)),
            Some(HalfOpenState::Queued) => {
                state.store_waker(self.id, cx);
                Poll::Pending
            }
            Some(HalfOpenState::Served | HalfOpenState::Waiting | HalfOpenState::Running)
            | None => Poll::Ready(Ok(())),
        }
    }

    fn change_phase(&self, phase: PeerPhase) -> Result<(), Evicted> {
        let mut state = self.admission.lock();
        if state.is_evicted(self.id) {
            return Err(Evicted);
        }
        if let Some(next_turn) = state.table.record_phase(self.id, phase) {
            state.wake_connection(next_turn);
        }
        Ok(())
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.mark_complete();
    }
}

/// A request in progress: its connection is not evicted.
#[derive(Debug)]
pub struct RequestInProgress<'a>(&'a HalfOpen);

impl RequestInProgress<'_> {
    /// Protects the connection from eviction until it is closed: its response is endless.
    pub fn keep_until_closed(self) {
        std::mem::forget(self);
    }
}

impl Drop for RequestInProgress<'_> {
    fn drop(&mut self) {
        self.0.mark_waiting();
    }
}

/// The error of a connection that had to make room for others: it had waited longest for its peer.
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
