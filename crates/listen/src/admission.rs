//! Admits connections, and wakes their tasks. The task of a connection reports when it waits for its peer and when the
//! peer has sent bytes. It is woken when its connection is evicted or gets a turn: the permission to compute a part of a
//! TLS handshake (see the crate documentation).

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::task::yield_now;

use crate::source::ConnectionSource;
use crate::table::{PeerProgress, PendingId, PendingLimits, PendingState, PendingTable};

/// The pending connections of one listener, or of all listeners of one thread.
#[derive(Debug)]
pub struct ConnectionAdmission(Mutex<AdmissionState>);

/// The table of pending connections, and the wakers of their tasks.
#[derive(Debug)]
struct AdmissionState {
    table: PendingTable,
    /// The wakers of tasks that wait for their peer or for a turn.
    wakers: BTreeMap<PendingId, Waker>,
    /// The number of connections evicted since the start.
    evicted_count: u64,
}

impl ConnectionAdmission {
    /// Creates the admission of a listener or thread without connections yet, with these limits.
    #[must_use]
    pub fn new(limits: PendingLimits) -> Arc<Self> {
        let state = AdmissionState {
            table: PendingTable::new(limits),
            wakers: BTreeMap::new(),
            evicted_count: 0,
        };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Admits a connection of this source. A new connection is always admitted; an older one may be evicted for it.
    pub fn admit(self: &Arc<Self>, source: impl Into<ConnectionSource>) -> PendingConnection {
        let mut state = self.lock();
        let (id, evicted_id) = state.table.admit(source.into());
        state.record_eviction(evicted_id);
        drop(state);
        PendingConnection { admission: Arc::clone(self), id }
    }

    /// Returns the number of connections evicted since the start.
    #[must_use]
    pub fn evicted_count(&self) -> u64 {
        self.lock().evicted_count
    }

    /// Returns the number of pending connections.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.lock().table.len()
    }

    /// Locks the state. A thread that panicked with the lock left no inconsistent state.
    fn lock(&self) -> MutexGuard<'_, AdmissionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmissionState {
    /// Counts the eviction of a connection, and wakes its task to close it.
    fn record_eviction(&mut self, evicted_id: Option<PendingId>) {
        if let Some(id) = evicted_id {
            self.evicted_count += 1;
            self.wake_connection(id);
        }
    }

    fn wake_connection(&mut self, id: PendingId) {
        if let Some(waker) = self.wakers.remove(&id) {
            waker.wake();
        }
    }

    fn store_waker(&mut self, id: PendingId, cx: &Context<'_>) {
        match self.wakers.get_mut(&id) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => drop(self.wakers.insert(id, cx.waker().clone())),
        }
    }

    fn is_evicted(&self, id: PendingId) -> bool {
        self.table.connection_state(id) == Some(PendingState::Evicted)
    }
}

/// A pending connection, until this value is dropped or [`PendingConnection::mark_established`] is called.
#[derive(Debug)]
pub struct PendingConnection {
    admission: Arc<ConnectionAdmission>,
    id: PendingId,
}

impl PendingConnection {
    /// Waits for the peer: polls `peer` until it completes. The connection may be evicted as soon as `peer` is
    /// pending for the first time. The waiting time counts from that moment, regardless of the bytes that
    /// arrive in between, and the connection with the longest waiting time is evicted first.
    ///
    /// # Errors
    /// Returns [`Evicted`] if the connection has to make room for others.
    pub async fn await_peer<F: Future>(&self, peer: F) -> Result<F::Output, Evicted> {
        let mut peer = pin!(peer);
        let output = poll_fn(|cx| match peer.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_start_waiting(cx),
        })
        .await?;
        self.record_peer_progress(PeerProgress::Complete)?;
        Ok(output)
    }

    /// Performs the work of a handshake in turns. A turn lasts while `work` computes, and ends when `work` waits
    /// for the peer. Until the peer sends more, the connection may be evicted as in [`PendingConnection::await_peer`].
    ///
    /// # Errors
    /// Returns [`Evicted`] if the connection has to make room for others.
    pub async fn run_in_turns<F: Future>(&self, work: F) -> Result<F::Output, Evicted> {
        let mut work = pin!(work);
        loop {
            self.record_peer_progress(PeerProgress::Partial)?;
            poll_fn(|cx| self.poll_turn(cx)).await?;
            // Between batches of turns, other work of this thread runs first.
            yield_now().await;
            let poll_result = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
            self.record_peer_progress(PeerProgress::Partial)?;
            if let Poll::Ready(output) = poll_result {
                self.record_peer_progress(PeerProgress::Complete)?;
                return Ok(output);
            }
            // No await may stand between the poll above and this one: a wake-up would be lost. The second poll of
            // `wake_up` means that the task was woken, usually by the peer or by an eviction.
            let mut is_woken = false;
            let wake_up = poll_fn(|cx| match std::mem::replace(&mut is_woken, true) {
                true => Poll::Ready(Ok(())),
                false => self.poll_start_waiting(cx),
            });
            wake_up.await?;
        }
    }

    /// Serves a connection that carries requests. The connection counts as waiting for its peer, and may be
    /// evicted, except while there is a [`RequestInProgress`].
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

    /// Marks the arrival of a request: the connection is not evicted while the returned value exists. When that
    /// value is dropped, the connection waits for its peer again.
    pub fn start_request(&self) -> RequestInProgress<'_> {
        self.mark_served();
        RequestInProgress(self)
    }

    /// Resolves when the connection has to make room for others.
    pub async fn wait_for_eviction(&self) {
        poll_fn(|cx| self.poll_evicted(cx)).await;
    }

    /// Is ready when the connection has been evicted; otherwise registers the waker for the eviction.
    fn poll_evicted(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.admission.lock();
        match state.table.connection_state(self.id) {
            Some(PendingState::Evicted) => return Poll::Ready(()),
            Some(_) => state.store_waker(self.id, cx),
            // An established connection is never evicted.
            None => {}
        }
        Poll::Pending
    }

    /// Marks the connection as waiting for its peer: it may be evicted.
    pub fn mark_waiting(&self) {
        let mut state = self.admission.lock();
        let evicted_id = state.table.start_waiting(self.id);
        state.record_eviction(evicted_id);
    }

    /// Marks the connection as served, because its peer has sent all awaited bytes: the connection is not evicted
    /// until the next [`PendingConnection::mark_waiting`].
    pub fn mark_served(&self) {
        // An evicted connection stays evicted, and its task closes it.
        self.record_peer_progress(PeerProgress::Complete).ok();
    }

    /// Marks the connection as established, so that it is no longer pending.
    pub fn mark_established(&self) {
        let mut state = self.admission.lock();
        state.wakers.remove(&self.id);
        if let Some(next_id) = state.table.remove(self.id) {
            state.wake_connection(next_id);
        }
    }

    /// Marks the connection as waiting for its peer and registers the waker, for adaptors that poll the peer themselves.
    /// Never returns a `T`; the type is that of the adaptor's own result.
    ///
    /// # Errors
    /// Returns [`Evicted`] if the connection has to make room for others.
    pub fn poll_start_waiting<T>(&self, cx: &Context<'_>) -> Poll<Result<T, Evicted>> {
        let mut state = self.admission.lock();
        let evicted_id = state.table.start_waiting(self.id);
        state.record_eviction(evicted_id);
        match state.table.connection_state(self.id) {
            Some(PendingState::Evicted) => return Poll::Ready(Err(Evicted)),
            Some(_) => state.store_waker(self.id, cx),
            // An established connection is never evicted.
            None => {}
        }
        Poll::Pending
    }

    /// Records that the peer has sent a part of the awaited bytes.
    ///
    /// # Errors
    /// Returns [`Evicted`] if the connection has to make room for others.
    pub fn record_progress(&self) -> Result<(), Evicted> {
        self.record_peer_progress(PeerProgress::Partial)
    }

    /// Requests a turn, and is ready when the connection has it. A connection that is no longer pending needs no turn.
    fn poll_turn(&self, cx: &Context<'_>) -> Poll<Result<(), Evicted>> {
        let mut state = self.admission.lock();
        state.table.join_queue(self.id);
        match state.table.connection_state(self.id) {
            Some(PendingState::Evicted) => Poll::Ready(Err(Evicted)),
            Some(PendingState::Queued) => {
                state.store_waker(self.id, cx);
                Poll::Pending
            }
            Some(PendingState::Served | PendingState::Waiting | PendingState::Running) | None => {
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Marks the connection as served, and its awaited bytes as received in part or completely. If the connection had a
    /// turn, the turn ends, and the connection that gets the next turn is woken. Returns [`Evicted`] if the connection
    /// was evicted before.
    fn record_peer_progress(&self, progress: PeerProgress) -> Result<(), Evicted> {
        let mut state = self.admission.lock();
        if state.is_evicted(self.id) {
            return Err(Evicted);
        }
        if let Some(next_id) = state.table.record_peer_progress(self.id, progress) {
            state.wake_connection(next_id);
        }
        Ok(())
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        // A closed connection is no longer pending either.
        self.mark_established();
    }
}

/// A request in progress: its connection is not evicted.
#[derive(Debug)]
pub struct RequestInProgress<'a>(&'a PendingConnection);

impl RequestInProgress<'_> {
    /// Protects the connection from eviction until it is closed. For responses without an end, such as streams
    /// of events.
    pub fn keep_until_closed(self) {
        // `drop` would mark the connection as waiting.
        std::mem::forget(self);
    }
}

impl Drop for RequestInProgress<'_> {
    fn drop(&mut self) {
        self.0.mark_waiting();
    }
}

/// The error of an evicted connection. Other connections needed its place, and it had waited longest for its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted;

impl fmt::Display for Evicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "too many connections are pending, and this one has waited longest for its peer",
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
