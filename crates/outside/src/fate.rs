//! What becomes of what is sent: counted always, and told once for a time of trouble.

use leno_model::Collector;

use crate::parcel::{self, Failed, Refused};

/// Who counts what became of spans, points or records.
pub trait Counts {
    /// A collector took so many.
    fn exported(&self, count: u64);
    /// A collector did not take so many.
    fn refused(&self, count: u64);
}

/// What became of what was sent so far.
#[derive(Debug)]
pub struct Fate<C> {
    what: &'static str,
    counts: C,
    is_well: bool,
    /// Where it was sent.
    collector: Option<Collector>,
}

impl<C: Counts> Fate<C> {
    /// Nothing was sent yet; `what` will be, in the words of the log.
    pub fn new(what: &'static str, counts: C) -> Self {
        Self { what, counts, is_well: true, collector: None }
    }

    /// Nobody wants any more: what comes later is another time.
    pub fn forget(&mut self) {
        self.collector = None;
        self.is_well = true;
    }

    /// Where it is sent from now on: trouble with another one is told anew.
    pub(crate) fn toward(&mut self, collector: &Collector) {
        if self.collector.as_ref() != Some(collector) {
            self.collector = Some(collector.clone());
            self.is_well = true;
        }
    }

    /// A parcel was taken, all but so much of it, or it was not.
    pub(crate) fn note(&mut self, count: u64, told: &Result<Refused, Failed>) {
        let what = self.what;
        match told {
            Ok(Refused { count: refused, why }) => {
                self.counts.exported(count.saturating_sub(*refused));
                self.counts.refused((*refused).min(count));
                let is_well = *refused == 0;
                match (std::mem::replace(&mut self.is_well, is_well), is_well) {
                    (false, true) => tracing::info!("the collector takes {what} again"),
                    (true, false) => tracing::warn!(
                        refused,
                        why = parcel::told(why.as_bytes()),
                        "the collector refuses a part of {what}; that is counted"
                    ),
                    (true, true) | (false, false) => {}
                }
            }
            Err(error) => {
                self.lost(count);
                if std::mem::replace(&mut self.is_well, false) {
                    tracing::warn!(%error, "{what} cannot be exported; that is counted");
                }
            }
        }
    }

    /// It was not sent, for the same reason as what came before it.
    pub(crate) fn lost(&self, count: u64) {
        self.counts.refused(count);
    }
}
