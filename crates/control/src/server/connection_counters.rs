//! Counters of connections: bytes per direction, failures and evictions, and exported metric points.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use leno_model::Reason;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Counters over all connections since the start of the control plane.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounters {
    sent: AtomicU64,
    received: AtomicU64,
    failures: Mutex<BTreeMap<&'static str, u64>>,
    evicted: AtomicU64,
    points_exported: AtomicU64,
    points_lost: AtomicU64,
}

impl ConnectionCounters {
    /// Returns the bytes sent to proxies, before encryption.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the bytes received from proxies, after decryption.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns failed connections, by reason.
    pub(crate) fn failed_connections(&self) -> BTreeMap<&'static str, u64> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of evicted half-open connections.
    pub(crate) fn evicted_count(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    pub(super) fn record_eviction(&self) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the metric points that a collector accepted, and those that were lost.
    pub(crate) fn point_counts(&self) -> (u64, u64) {
        let load_count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load_count(&self.points_exported), load_count(&self.points_lost))
    }

    /// Counts the metric points that a collector accepted, and those that were lost.
    pub(crate) fn record_export(&self, exported: u64, lost: u64) {
        self.points_exported.fetch_add(exported, Ordering::Relaxed);
        self.points_lost.fetch_add(lost, Ordering::Relaxed);
    }

    pub(crate) fn record_failure(&self, reason: Reason) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures.entry(reason.label()).or_default() += 1;
    }
}

/// A stream with byte counters.
#[derive(Debug)]
pub(crate) struct CountedStream<S> {
    stream: S,
    connection_counters: Arc<ConnectionCounters>,
}

impl<S> CountedStream<S> {
    pub(crate) fn new(stream: S, connection_counters: Arc<ConnectionCounters>) -> Self {
        Self { stream, connection_counters }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled_before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read_bytes = buffer.filled().len().saturating_sub(filled_before);
        self.connection_counters.received.fetch_add(read_bytes as u64, Ordering::Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.connection_counters.sent.fetch_add(written as u64, Ordering::Relaxed);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
