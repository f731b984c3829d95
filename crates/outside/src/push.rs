//! Exports all metrics periodically to the configured collector.
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
    /// Returns the identity of the telemetry source. Called once: with another identity the values would be
    /// new series.
    fn identity(&self) -> ResourceIdentity;

    /// Adds all metrics to `requests`. Returns `None` if the task that owns the metrics has ended.
    fn write_metrics(
        &mut self,
        requests: MetricRequests,
    ) -> impl Future<Output = Option<MetricRequests>>;

    /// Adds all metrics to `requests` on shutdown, including the last changes.
    fn write_final_metrics(
        self,
        requests: MetricRequests,
    ) -> impl Future<Output = Option<MetricRequests>>;
}

/// Exports metrics periodically until `stopped` completes, and then a last time. Without `settings`, nothing is
/// exported. The values count from `start_time`, and `seed` determines the time of the first export within the interval.
/// Returns after the final export, or when the sender of `settings` is dropped.
pub async fn push_metrics(
    exporter: &Exporter<impl Connector>,
    export_status: &mut ExportStatus<impl ExportCounts>,
    mut metrics: impl MetricSource,
    mut settings: watch::Receiver<Option<Box<MetricsPush>>>,
    start_time: SystemTime,
    seed: u64,
    stopped: impl Future<Output = ()>,
) {
    let mut stopped = pin!(stopped);
    let mut identity = None;
    'settings: loop {
        let push_settings = settings.borrow_and_update().clone();
        let Some(push_settings) = push_settings else {
            export_status.reset_state();
            tokio::select! {
                biased;
                () = &mut stopped => return,
                changed = settings.changed() => match changed {
                    Ok(()) => continue,
                    // The sender of settings was dropped.
                    Err(_) => return,
                },
            }
        };
        let mut next_export = Instant::now() + interval_fraction(push_settings.interval, seed);
        loop {
            let next_export_attempt = async {
                sleep_until(next_export).await;
                let identity = &*identity.get_or_insert_with(|| metrics.identity());
                let requests = metrics
                    .write_metrics(MetricRequests::new(identity, TimeRange::from_start(start_time)))
                    .await?;
                exporter
                    .send_all(&push_settings.collector, requests.into_requests(), export_status)
                    .await
            };
            tokio::select! {
                biased;
                // Abort an export in progress: the final export below has newer values.
                () = &mut stopped => break,
                changed = settings.changed() => match changed {
                    Ok(()) => continue 'settings,
                    Err(_) => return,
                },
                requested_delay = next_export_attempt => {
                    // Wait longer if the export is slow or the collector requests it.
                    let pause = push_settings.interval.max(requested_delay.unwrap_or_default().min(MAX_REQUESTED_PAUSE));
                    let now = Instant::now();
                    next_export += push_settings.interval;
                    if next_export <= now || requested_delay.is_some() {
                        next_export = now + pause;
                    }
                }
            }
        }
        // The settings may have changed at the same time.
        let final_settings = settings.borrow().clone();
        if let Some(push_settings) = final_settings {
            let identity = identity.unwrap_or_else(|| metrics.identity());
            let final_export = async {
                let requests = metrics
                    .write_final_metrics(MetricRequests::new(
                        &identity,
                        TimeRange::from_start(start_time),
                    ))
                    .await?;
                exporter
                    .send_all(&push_settings.collector, requests.into_requests(), export_status)
                    .await
            };
            // The result is ignored: there is no later export that could depend on it.
            timeout(FINAL_EXPORT_TIMEOUT, final_export).await.ok();
        }
        return;
    }
}

/// Returns the part of the interval, from none to all of it, that the upper 32 bits of the seed select. All proxies
/// receive settings at the same time, and should not export at the same time.
fn interval_fraction(interval: Duration, seed: u64) -> Duration {
    interval.mul_f64((seed >> 32) as f64 / f64::from(u32::MAX))
}

/// The maximum pause between two exports that a collector can request.
const MAX_REQUESTED_PAUSE: Duration = Duration::from_secs(3600);
/// The timeout of the final export, which delays the end of the process. Sidecars send their final report to the
/// control plane concurrently.
const FINAL_EXPORT_TIMEOUT: Duration = Duration::from_secs(2);
