//! Records the export results of one signal (traces, metrics or logs): counts items as exported or rejected, and
//! logs a failure once per outage.

use leno_model::Collector;

use crate::export_request::{self, ExportError, RejectedItems};

/// Counters of exported spans, points or records.
pub trait ExportCounts {
    /// Adds items that a collector accepted.
    fn add_exported(&self, count: u64);
    /// Adds items that were lost, or that a collector rejected.
    fn add_rejected(&self, count: u64);
}

/// The export results of one signal.
#[derive(Debug)]
pub struct ExportStatus<C> {
    /// The name of the exported items in log messages, such as `spans`.
    item_name: &'static str,
    counts: C,
    /// False after an export that failed or was rejected in part, until an export is accepted completely.
    is_healthy: bool,
    /// The current collector; `None` before the first export, and while exporting is disabled.
    collector: Option<Collector>,
}

impl<C: ExportCounts> ExportStatus<C> {
    /// Creates the status before the first export; `item_name` names the exported items in log messages.
    pub fn new(item_name: &'static str, counts: C) -> Self {
        Self { item_name, counts, is_healthy: true, collector: None }
    }

    /// Resets the state when exporting is disabled: later errors are logged again.
    pub fn reset_state(&mut self) {
        self.collector = None;
        self.is_healthy = true;
    }

    /// Sets the collector. Errors of a new collector are logged even if the previous one failed.
    pub(crate) fn set_collector(&mut self, collector: &Collector) {
        if self.collector.as_ref() != Some(collector) {
            self.collector = Some(collector.clone());
            self.is_healthy = true;
        }
    }

    /// Records the result of an export request with `count` items.
    pub(crate) fn record_result(
        &mut self,
        count: u64,
        result: &Result<RejectedItems, ExportError>,
    ) {
        let item_name = self.item_name;
        match result {
            Ok(RejectedItems { count: rejected, reason }) => {
                self.counts.add_exported(count.saturating_sub(*rejected));
                self.counts.add_rejected((*rejected).min(count));
                let is_healthy = *rejected == 0;
                match (std::mem::replace(&mut self.is_healthy, is_healthy), is_healthy) {
                    (false, true) => tracing::info!("the collector accepts {item_name} again"),
                    (true, false) => tracing::warn!(
                        rejected = rejected,
                        reason = export_request::sanitize_text(reason.as_bytes()),
                        "the collector rejects a part of {item_name}; the loss is counted"
                    ),
                    (true, true) | (false, false) => {}
                }
            }
            Err(error) => {
                self.record_lost(count);
                if std::mem::replace(&mut self.is_healthy, false) {
                    tracing::warn!(%error, "{item_name} cannot be exported; the loss is counted");
                }
            }
        }
    }

    /// Records items that were not sent because an earlier request failed.
    pub(crate) fn record_lost(&self, count: u64) {
        self.counts.add_rejected(count);
    }
}
