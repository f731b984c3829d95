//! Export results: always counted, and logged once per outage.

use leno_model::Collector;

use crate::export_request::{self, Failed, Refused};

/// Counters of exported spans, points or records.
pub trait Counts {
    /// Adds to the number accepted by a collector.
    fn add_exported(&self, count: u64);
    /// Adds to the number not accepted by a collector.
    fn add_rejected(&self, count: u64);
}

/// The export results of one signal.
#[derive(Debug)]
pub struct Fate<C> {
    what: &'static str,
    counts: C,
    is_well: bool,
    /// The current collector.
    collector: Option<Collector>,
}

impl<C: Counts> Fate<C> {
    /// Creates an empty result; `what` names the exported items in log messages.
    pub fn new(what: &'static str, counts: C) -> Self {
        Self { what, counts, is_well: true, collector: None }
    }

    /// Resets the state when exporting is disabled: later errors are logged again.
    pub fn reset_state(&mut self) {
        self.collector = None;
        self.is_well = true;
    }

    /// Sets the collector: errors of another one are logged again.
    pub(crate) fn set_collector(&mut self, collector: &Collector) {
        if self.collector.as_ref() != Some(collector) {
            self.collector = Some(collector.clone());
            self.is_well = true;
        }
    }

    /// Records the result of an export request with `count` items.
    pub(crate) fn record_result(&mut self, count: u64, reported: &Result<Refused, Failed>) {
        let what = self.what;
        match reported {
            Ok(Refused { count: refused, why }) => {
                self.counts.add_exported(count.saturating_sub(*refused));
                self.counts.add_rejected((*refused).min(count));
                let is_well = *refused == 0;
                match (std::mem::replace(&mut self.is_well, is_well), is_well) {
                    (false, true) => tracing::info!("the collector accepts {what} again"),
                    (true, false) => tracing::warn!(
                        rejected = refused,
                        reason = export_request::sanitize_text(why.as_bytes()),
                        "the collector rejects a part of {what}; the loss is counted"
                    ),
                    (true, true) | (false, false) => {}
                }
            }
            Err(error) => {
                self.record_lost(count);
                if std::mem::replace(&mut self.is_well, false) {
                    tracing::warn!(%error, "{what} cannot be exported; the loss is counted");
                }
            }
        }
    }

    /// Records items that were not sent because an earlier request failed.
    pub(crate) fn record_lost(&self, count: u64) {
        self.counts.add_rejected(count);
    }
}
