//! Periodic export of all metrics to the configured collector.
//!
//! Values are cumulative since the start of the process, so a lost export only delays them.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use leno_model::MetricsPush;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::export_status::{ExportCounts, ExportStatus};
use crate::exporter::Exporter;
use crate::otlp::points::{MetricRequests, TimeRange};
use crate::resource_identity::ResourceIdentity;
use crate::servers::Connector;

/// The source of a process's metrics.
pub trait MetricSource {
    /// Returns the telemetry source. Called once: under another name the values would count as new series.
    fn source(&self) -> ResourceIdentity;

    /// Writes all metrics. Returns `None` if their owner has terminated.
    fn write_metrics(
        &mut self,
        pages: MetricRequests,
    ) -> impl Future<Output = Option<MetricRequests>>;

    /// The same on shutdown, including the last changes.
    fn write_last_metrics(
        self,
        pages: MetricRequests,
    ) -> impl Future<Output = Option<MetricRequests>>;
}

/// Exports metrics until `over` completes, and then a last time.
pub async fn push_metrics(
    exporter: &Exporter<impl Connector>,
    export_status: &mut ExportStatus<impl ExportCounts>,
    mut metrics: impl MetricSource,
    mut wanted: watch::Receiver<Option<Box<MetricsPush>>>,
    started: SystemTime,
    seed: u64,
    over: impl Future<Output = ()>,
) {
    let mut over = pin!(over);
    let mut source = None;
    'settings: loop {
        let push = wanted.borrow_and_update().clone();
        let Some(push) = push else {
            export_status.reset_state();
            tokio::select! {
                biased;
                () = &mut over => return,
                changed = wanted.changed() => match changed {
                    Ok(()) => continue,
                    // The sender of settings is gone.
                    Err(_) => return,
                },
            }
        };
        let mut due = Instant::now() + interval_fraction(push.interval, seed);
        loop {
            let next = async {
                sleep_until(due).await;
                let source = &*source.get_or_insert_with(|| metrics.source());
                let pages = metrics
                    .write_metrics(MetricRequests::new(source, TimeRange::from_start(started)))
                    .await?;
                exporter.deliver_all(&push.collector, pages.into_requests(), export_status).await
            };
            tokio::select! {
                biased;
                // Abort an export in progress: the last one has newer values.
                () = &mut over => break,
                changed = wanted.changed() => match changed {
                    Ok(()) => continue 'settings,
                    Err(_) => return,
                },
                asked = next => {
                    // Wait longer if the export is slow or the collector requests it.
                    let pause = push.interval.max(asked.unwrap_or_default().min(PAUSE_MAX));
                    let now = Instant::now();
                    due += push.interval;
                    if due <= now || asked.is_some() {
                        due = now + pause;
                    }
                }
            }
        }
        // The settings may have changed at the same time.
        let last = wanted.borrow().clone();
        if let Some(push) = last {
            let source = source.unwrap_or_else(|| metrics.source());
            let last = async {
                let pages = metrics
                    .write_last_metrics(MetricRequests::new(
                        &source,
                        TimeRange::from_start(started),
                    ))
                    .await?;
                exporter.deliver_all(&push.collector, pages.into_requests(), export_status).await
            };
            // There is no retry after the last export.
            timeout(LAST_MAX, last).await.ok();
        }
        return;
    }
}

/// Returns a fraction of the interval: all proxies receive settings at the same time, and should not export at
/// the same time.
fn interval_fraction(interval: Duration, seed: u64) -> Duration {
    interval.mul_f64((seed >> 32) as f64 / f64::from(u32::MAX))
}

/// The maximum retry delay, whatever the collector requests.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// The timeout of the last export, which delays the end of the process. Sidecars send their last report to the
/// control plane concurrently.
const LAST_MAX: Duration = Duration::from_secs(2);
