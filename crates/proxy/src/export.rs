//! Exports spans, metrics and access log entries to collectors, on the control thread.
//!
//! Queues ([`crate::request_trace::MAX_QUEUED_SPANS`], [`crate::request_trace::MAX_QUEUED_LOG_LINES`]), batch
//! sizes, and the duration and number of attempts are bounded. Entries beyond the bounds are dropped and
//! counted; data threads never wait.

mod otlp;
pub(crate) mod source;
mod spans;
mod zipkin;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_model::{Collector, LogFormat};
use leno_outside::{
    ExportCounts, ExportStatus, Exporter, MetricRequests, MetricSource, ResourceIdentity,
};
use leno_telemetry::{Count, MetricsShard};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use self::otlp::records;
#[cfg(test)]
pub(crate) use self::spans::encode_all;
pub(crate) use self::spans::export_spans;
use crate::config::{Config, Interception};
use crate::config_store::ConfigStore;
use crate::request_trace::TraceEntry;

/// Sends the telemetry of this sidecar to collectors.
pub(crate) struct TelemetryExporter {
    config: Arc<Config>,
    config_store: Arc<ConfigStore>,
    metrics: Rc<MetricsShard>,
    client: Exporter<Interception>,
}

impl TelemetryExporter {
    pub(crate) fn new(
        config: Arc<Config>,
        config_store: Arc<ConfigStore>,
        metrics: MetricsShard,
    ) -> Self {
        let client = Exporter::new(config.interception.clone(), config.collector_ca.clone());
        Self { config, config_store, metrics: Rc::new(metrics), client }
    }

    /// Returns the configuration store, which has the observability settings.
    pub(crate) fn config_store(&self) -> &ConfigStore {
        &self.config_store
    }

    /// Sends a batch of access log entries to a collector.
    pub(crate) async fn export_log_entries(
        &self,
        collector: &Collector,
        format: &LogFormat,
        batch: &[Arc<TraceEntry>],
        export_status: &mut ExportStatus<ExportCounter>,
    ) {
        let export_requests = records::encode_requests(&self.resource_identity(), batch, format);
        self.client.send_all(collector, export_requests, export_status).await;
    }

    /// Creates the export status of access log entries.
    pub(crate) fn log_export_status(&self) -> ExportStatus<ExportCounter> {
        self.export_status(
            "lines of the access log",
            Count::RecordsExported,
            Count::RecordsRejected,
        )
    }

    /// Creates the export status of spans.
    fn span_export_status(&self) -> ExportStatus<ExportCounter> {
        self.export_status("spans", Count::SpansExported, Count::SpansRejected)
    }

    /// Creates the export status of metrics.
    fn metric_export_status(&self) -> ExportStatus<ExportCounter> {
        self.export_status("metrics", Count::PointsExported, Count::PointsRejected)
    }

    /// Creates an export status: its counters, and the `kind` that log lines name.
    fn export_status(
        &self,
        kind: &'static str,
        exported_counter: Count,
        rejected_counter: Count,
    ) -> ExportStatus<ExportCounter> {
        ExportStatus::new(
            kind,
            ExportCounter { metrics: self.metrics.clone(), exported_counter, rejected_counter },
        )
    }

    /// Returns the identity of this sidecar as the source (the OpenTelemetry resource) of all exported telemetry.
    fn resource_identity(&self) -> ResourceIdentity {
        source::resource_identity(
            &self.config.workload,
            self.config_store.current_config().as_deref(),
        )
    }
}

/// Counts exported and rejected spans, log entries or data points.
pub(crate) struct ExportCounter {
    metrics: Rc<MetricsShard>,
    exported_counter: Count,
    rejected_counter: Count,
}

impl ExportCounts for ExportCounter {
    fn add_exported(&self, count: u64) {
        self.metrics.add(self.exported_counter, count);
    }

    fn add_rejected(&self, count: u64) {
        self.metrics.add(self.rejected_counter, count);
    }
}

/// Pushes metrics periodically until `end_signal` resolves, which is after the data threads have ended, and then once
/// more. The metrics count from `start_time`. `seed` determines the time of the first push within the interval.
pub(crate) async fn push_metrics(
    exporter: Rc<TelemetryExporter>,
    start_time: SystemTime,
    seed: u64,
    end_signal: oneshot::Receiver<()>,
) {
    let (settings, mut export_status) =
        (exporter.config_store.observability.subscribe_metrics(), exporter.metric_export_status());
    let end_signal = async { drop(end_signal.await) };
    let metric_source = SidecarMetricSource(&exporter);
    leno_outside::push_metrics(
        &exporter.client,
        &mut export_status,
        metric_source,
        settings,
        start_time,
        seed,
        end_signal,
    )
    .await;
}

/// The source of all metrics of this sidecar.
struct SidecarMetricSource<'a>(&'a TelemetryExporter);

impl MetricSource for SidecarMetricSource<'_> {
    fn identity(&self) -> ResourceIdentity {
        self.0.resource_identity()
    }

    async fn write_metrics(&mut self, mut requests: MetricRequests) -> Option<MetricRequests> {
        self.0.metrics.telemetry().visit_metrics(&mut requests);
        Some(requests)
    }

    async fn write_final_metrics(mut self, requests: MetricRequests) -> Option<MetricRequests> {
        self.write_metrics(requests).await
    }
}

/// Collects further entries into `batch` for at most `max_delay`. The queue is polled periodically, because
/// waking this thread for each entry costs all threads more time than the export itself.
pub(crate) async fn collect_batch(
    entries: &mut mpsc::Receiver<Arc<TraceEntry>>,
    batch: &mut Vec<Arc<TraceEntry>>,
    max_delay: Duration,
) {
    let deadline = Instant::now() + max_delay;
    loop {
        while batch.len() < MAX_BATCH_ENTRIES {
            match entries.try_recv() {
                Ok(trace_entry) => batch.push(trace_entry),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let now = Instant::now();
        if batch.len() >= MAX_BATCH_ENTRIES || now >= deadline {
            return;
        }
        sleep_until(deadline.min(now + POLL_INTERVAL)).await;
    }
}

/// The maximum number of spans or log entries per request: a few hundred KiB.
const MAX_BATCH_ENTRIES: usize = 512;
/// The time for which a span or log entry waits to be batched.
pub(crate) const BATCH_DELAY: Duration = Duration::from_secs(1);
/// The polling period of the queue: long enough to cost little, and short enough that the queue does not fill.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests;
