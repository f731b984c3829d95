//! Connection metrics: bytes each way, rejected connections and exported points.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use leno_model::Reason;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Totals over all connections since the start.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    sent: AtomicU64,
    received: AtomicU64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    evicted: AtomicU64,
    points_exported: AtomicU64,
    points_refused: AtomicU64,
}

impl Gauges {
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
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.points_exported), read(&self.points_refused))
    }

    pub(crate) fn push(&self, exported: u64, refused: u64) {
        self.points_exported.fetch_add(exported, Ordering::Relaxed);
        self.points_refused.fetch_add(refused, Ordering::Relaxed);
    }

    pub(crate) fn record_failure(&self, reason: Reason) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(reason.label()).or_default() += 1;
    }
}

/// A stream with byte counters.
#[derive(Debug)]
pub(crate) struct CountedStream<S> {
    stream: S,
    gauges: Arc<Gauges>,
}

impl<S> CountedStream<S> {
    pub(crate) fn new(stream: S, gauges: Arc<Gauges>) -> Self {
        Self { stream, gauges }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = buffer.filled().len().saturating_sub(before);
        self.gauges.received.fetch_add(read as u64, Ordering::Relaxed);
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
            self.gauges.sent.fetch_add(written as u64, Ordering::Relaxed);
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
