//! Sends live requests to `leno tap`. A tap selects requests of one service: data threads queue the matching requests,
//! and the control thread sends them to the control plane in batches.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leno_discovery::ProxyRequest;
use leno_model::{LogFormat, ServiceName, Tap, TapMatcher, TappedRequest};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::access_log;
use crate::observability::CurrentObservability;
use crate::request_trace::TraceEntry;

/// An active tap, shared by all data threads.
#[derive(Debug)]
pub(crate) struct OpenTap {
    pub(crate) matcher: TapMatcher,
    /// The number of requests that were dropped because of a limit and are not reported yet.
    dropped_count: AtomicU64,
}

/// A request that matches a tap.
#[derive(Debug)]
pub(crate) struct MatchedRequest {
    pub(crate) tap: Arc<OpenTap>,
    pub(crate) trace_entry: Arc<TraceEntry>,
}

/// The observability configuration cached by one data thread, with the thread's share of each tap's rate limit.
pub(crate) struct ThreadObservability {
    pub(crate) settings: CurrentObservability,
    /// The account of the workload: the caller of outbound requests.
    pub(crate) caller: String,
    /// The remaining rate limit of each tap on this thread.
    tap_budgets: Box<[Cell<TapBudget>]>,
}

/// The taps that receive a request, as a bit mask of their positions: there are at most
/// [`leno_discovery::MAX_TAPS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TapSet(u32);

impl ThreadObservability {
    pub(crate) fn new(settings: CurrentObservability, caller: String) -> Self {
        let now = Instant::now();
        let tap_budgets = settings.taps().iter().map(|_| Cell::new(TapBudget::new(now))).collect();
        Self { settings, caller, tap_budgets }
    }

    /// Returns the taps that receive a request. Taps at their rate limit count the request as dropped.
    pub(crate) fn select_taps(&self, request: &TappedRequest<'_>) -> TapSet {
        let mut bits = 0;
        let taps = self.settings.taps().iter().zip(&self.tap_budgets);
        for (index, (tap, budget_cell)) in taps.enumerate() {
            if !tap.matcher.matches_request(request) {
                continue;
            }
            let mut budget = budget_cell.get();
            match budget.try_take(tap.matcher.tap().per_second, Instant::now()) {
                true => bits |= 1 << index,
                false => tap.count_dropped(),
            }
            budget_cell.set(budget);
        }
        TapSet(bits)
    }

    /// Queues a request for the control thread, once for each selected tap. If the queue is full, the request
    /// is counted as dropped.
    pub(crate) fn queue_request(
        &self,
        selected_taps: TapSet,
        trace_entry: &Arc<TraceEntry>,
        queue: &mpsc::Sender<MatchedRequest>,
    ) {
        for (index, tap) in self.settings.taps().iter().enumerate() {
            if selected_taps.0 & 1 << index != 0
                && queue
                    .try_send(MatchedRequest { tap: tap.clone(), trace_entry: trace_entry.clone() })
                    .is_err()
            {
                tap.count_dropped();
            }
        }
    }
}

/// The remaining requests of one data thread for a tap in this second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TapBudget {
    /// The end of this second.
    resets_at: Instant,
    remaining: u32,
}

impl OpenTap {
    pub(crate) fn new(tap: &Tap) -> Self {
        Self { matcher: TapMatcher::new(tap), dropped_count: AtomicU64::new(0) }
    }

    /// True if the tap is for the service `namespace/name`.
    pub(crate) fn is_for(&self, service: &str) -> bool {
        let ServiceName { namespace, name } = &self.matcher.tap().service;
        let suffix = service.strip_prefix(namespace.as_str());
        suffix.and_then(|suffix| suffix.strip_prefix('/')) == Some(name.as_str())
    }

    /// Counts a dropped request, which the next message of the tap reports.
    pub(crate) fn count_dropped(&self) {
        self.dropped_count.fetch_add(1, Ordering::Relaxed);
    }

    fn id(&self) -> u64 {
        self.matcher.tap().id
    }
}

impl TapBudget {
    pub(crate) fn new(now: Instant) -> Self {
        Self { resets_at: now, remaining: 0 }
    }

    /// Takes one request from the budget. Returns false if the rate limit permits no further request in this
    /// second.
    pub(crate) fn try_take(&mut self, per_second: u32, now: Instant) -> bool {
        if self.resets_at <= now {
            *self = Self { resets_at: now + BUDGET_PERIOD, remaining: per_second };
        }
        let is_permitted = self.remaining > 0;
        self.remaining = self.remaining.saturating_sub(1);
        is_permitted
    }
}

/// Sends tapped requests to the control plane until all data threads have ended. If the queue of the control
/// stream is half full, requests are dropped and counted: other messages of this sidecar have priority.
pub(crate) async fn send_tapped_requests(
    mut matched_requests: mpsc::Receiver<MatchedRequest>,
    control_requests: mpsc::Sender<ProxyRequest>,
) {
    while let Some(first_request) = matched_requests.recv().await {
        let deadline = Instant::now() + BATCH_DELAY;
        let mut batches = vec![TapBatch::from_request(first_request)];
        let mut request_count = 1;
        while request_count < MAX_BATCH_RECORDS {
            let Ok(Some(next_request)) = timeout_at(deadline, matched_requests.recv()).await else {
                break;
            };
            request_count += 1;
            match batches.iter_mut().find(|batch| Arc::ptr_eq(&batch.tap, &next_request.tap)) {
                Some(batch) => batch.add_request(&next_request.trace_entry),
                None => batches.push(TapBatch::from_request(next_request)),
            }
        }
        for batch in batches {
            batch.send(&control_requests);
        }
    }
}

/// The requests of one tap in one message.
struct TapBatch {
    tap: Arc<OpenTap>,
    /// The requests, each as a line of the access log in JSON.
    records: Vec<String>,
    /// The total length of `records`.
    record_bytes: usize,
}

impl TapBatch {
    fn from_request(MatchedRequest { tap, trace_entry }: MatchedRequest) -> Self {
        let mut batch = Self { tap, records: Vec::new(), record_bytes: 0 };
        batch.add_request(&trace_entry);
        batch
    }

    /// Adds the log line of a request, or counts the request as dropped if the batch is full.
    fn add_request(&mut self, trace_entry: &TraceEntry) {
        let mut line = String::new();
        access_log::append_log_line(trace_entry, &LogFormat::Json, &mut line);
        line.truncate(line.trim_end().len());
        if self.record_bytes + line.len() > MAX_BATCH_BYTES {
            return self.tap.count_dropped();
        }
        self.record_bytes += line.len();
        self.records.push(line);
    }

    /// Sends the batch to the control plane, or counts its requests as dropped if the queue is too full.
    fn send(self, control_requests: &mpsc::Sender<ProxyRequest>) {
        let record_count = self.records.len() as u64;
        let dropped = self.tap.dropped_count.swap(0, Ordering::Relaxed);
        let request = ProxyRequest::Tapped { tap: self.tap.id(), records: self.records, dropped };
        // Half of the queue is reserved for the sidecar's own requests.
        let has_room = control_requests.capacity() > control_requests.max_capacity() / 2;
        if !has_room || control_requests.try_send(request).is_err() {
            self.tap.dropped_count.fetch_add(record_count + dropped, Ordering::Relaxed);
        }
    }
}

/// The time for which a request waits to be batched.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// The maximum number of requests per message.
const MAX_BATCH_RECORDS: usize = 256;
/// The maximum number of bytes of one tap per message: well below the size limit of messages.
const MAX_BATCH_BYTES: usize = 512 << 10;
/// The period of a tap's rate limit.
const BUDGET_PERIOD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_budget_is_renewed_every_second() {
        let now = Instant::now();
        let mut budget = TapBudget::new(now);
        let permitted = (0..10).filter(|_| budget.try_take(3, now)).count();
        assert_eq!(permitted, 3);
        assert!(!budget.try_take(3, now + BUDGET_PERIOD / 2));
        assert!(budget.try_take(3, now + BUDGET_PERIOD));
    }
}
