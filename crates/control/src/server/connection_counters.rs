//! Counts the bytes, failures and evictions of all connections, and the metric points exported to a collector.

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
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// The number of failed connections by the label of their reason.
    failed_connections: Mutex<BTreeMap<&'static str, u64>>,
    evicted_connections: AtomicU64,
    exported_points: AtomicU64,
    lost_points: AtomicU64,
}

impl ConnectionCounters {
    /// Returns the bytes sent to proxies, before encryption.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes received from proxies, after decryption.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Returns failed connections, by reason.
    pub(crate) fn failed_connections(&self) -> BTreeMap<&'static str, u64> {
        self.failed_connections.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of evicted pending connections.
    pub(crate) fn evicted_count(&self) -> u64 {
        self.evicted_connections.load(Ordering::Relaxed)
    }

    /// Counts an evicted pending connection.
    pub(super) fn record_eviction(&self) {
        self.evicted_connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the metric points that a collector accepted, and those that were lost.
    pub(crate) fn point_counts(&self) -> (u64, u64) {
        let load_count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load_count(&self.exported_points), load_count(&self.lost_points))
    }

    /// Counts the metric points that a collector accepted, and those that were lost.
    pub(crate) fn record_export(&self, exported_points: u64, lost_points: u64) {
        self.exported_points.fetch_add(exported_points, Ordering::Relaxed);
        self.lost_points.fetch_add(lost_points, Ordering::Relaxed);
    }

    /// Counts a failed connection.
    pub(crate) fn record_failure(&self, reason: Reason) {
        let mut failed_connections =
            self.failed_connections.lock().unwrap_or_else(PoisonError::into_inner);
        *failed_connections.entry(reason.label()).or_default() += 1;
    }
}

/// A stream to a proxy that adds its bytes to the counters of all connections.
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
        let poll_result = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read_bytes = buffer.filled().len().saturating_sub(filled_before);
        self.connection_counters.received_bytes.fetch_add(read_bytes as u64, Ordering::Relaxed);
        poll_result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll_result = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written_bytes)) = poll_result {
            self.connection_counters.sent_bytes.fetch_add(written_bytes as u64, Ordering::Relaxed);
        }
        poll_result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
