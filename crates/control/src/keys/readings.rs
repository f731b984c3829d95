//! What came of reading keys, for operators.

use std::collections::BTreeMap;

use leno_model::KeySource;

use super::{KeyNews, Reading};

/// What came of reading keys so far.
#[derive(Debug, Default)]
pub(crate) struct KeyReadings {
    /// Why the last reading failed, where it did.
    failing: BTreeMap<KeySource, String>,
    /// How many brought a set, or another one; the same again; none.
    pub(crate) changed: u64,
    pub(crate) same: u64,
    pub(crate) failed: u64,
}

impl KeyReadings {
    /// Takes note of news; the log warns of a failure once, until a reading succeeds.
    pub(crate) fn note(&mut self, news: &KeyNews) {
        let source = &news.source;
        match &news.reading {
            Reading::Changed(_) => {
                self.changed = self.changed.saturating_add(1);
                self.failing.remove(source);
                tracing::info!(%source, "read the keys of an issuer");
            }
            Reading::Same => {
                self.same = self.same.saturating_add(1);
                if self.failing.remove(source).is_some() {
                    tracing::info!(%source, "the keys of an issuer can be read again");
                }
            }
            Reading::Failed(why) => {
                self.failed = self.failed.saturating_add(1);
                let before = self.failing.insert(source.clone(), why.clone());
                // Some reasons contain the time, and differ at each reading.
                match before {
                    None => {
                        tracing::warn!(%source, %why, "the keys of an issuer cannot be read; those from before, if any, stay in force");
                    }
                    Some(before) if before != *why => {
                        tracing::debug!(%source, %why, "the keys of an issuer still cannot be read");
                    }
                    Some(_) => {}
                }
            }
            Reading::Dropped => {
                self.failing.remove(source);
            }
        }
    }

    /// Why the last reading of a place failed, if it did.
    pub(crate) fn failure(&self, source: &KeySource) -> Option<&str> {
        self.failing.get(source).map(String::as_str)
    }

    /// How many places could not be read the last time.
    pub(crate) fn failing(&self) -> usize {
        self.failing.len()
    }
}
