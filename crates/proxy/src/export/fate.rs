//! What becomes of what is sent: counted always, and told once for a time of trouble.

use leno_model::Collector;
use leno_telemetry::{Count, Shard};

use super::post::{self, Failed, Refused};

/// What became of what was sent so far.
pub(crate) struct Fate {
    what: &'static str,
    exported: Count,
    refused: Count,
    is_well: bool,
    /// Where it was sent.
    collector: Option<Collector>,
}

impl Fate {
    pub(crate) fn of_spans() -> Self {
        let (exported, refused) = (Count::SpansExported, Count::SpansRefused);
        Self { what: "spans", exported, refused, is_well: true, collector: None }
    }

    pub(crate) fn of_lines() -> Self {
        let (exported, refused) = (Count::RecordsExported, Count::RecordsRefused);
        Self { what: "lines of the access log", exported, refused, is_well: true, collector: None }
    }

    pub(crate) fn of_metrics() -> Self {
        let (exported, refused) = (Count::PointsExported, Count::PointsRefused);
        Self { what: "metrics", exported, refused, is_well: true, collector: None }
    }

    /// Where it is sent from now on: trouble with another one is told anew.
    pub(super) fn toward(&mut self, collector: &Collector) {
        if self.collector.as_ref() != Some(collector) {
            self.collector = Some(collector.clone());
            self.is_well = true;
        }
    }

    /// A parcel was taken, all but so much of it, or it was not.
    pub(super) fn note(&mut self, shard: &Shard, count: u64, told: &Result<Refused, Failed>) {
        let what = self.what;
        match told {
            Ok(Refused { count: refused, why }) => {
                shard.add(self.exported, count.saturating_sub(*refused));
                shard.add(self.refused, (*refused).min(count));
                let is_well = *refused == 0;
                match (std::mem::replace(&mut self.is_well, is_well), is_well) {
                    (false, true) => tracing::info!("the collector takes {what} again"),
                    (true, false) => tracing::warn!(
                        refused,
                        why = post::told(why.as_bytes()),
                        "the collector refuses a part of {what}; that is counted"
                    ),
                    (true, true) | (false, false) => {}
                }
            }
            Err(error) => {
                self.lost(shard, count);
                if std::mem::replace(&mut self.is_well, false) {
                    tracing::warn!(%error, "{what} cannot be exported; that is counted");
                }
            }
        }
    }

    /// It was not sent, for the same reason as what came before it.
    pub(super) fn lost(&self, shard: &Shard, count: u64) {
        shard.add(self.refused, count);
    }

    /// Nobody wants any more: what comes later is another time.
    pub(super) fn forget(&mut self) {
        self.collector = None;
        self.is_well = true;
    }
}
