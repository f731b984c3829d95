//! Results of JWKS fetches, for operators.

use std::collections::BTreeMap;

use leno_model::KeySource;

use super::{FetchOutcome, KeyUpdate};

/// Results of JWKS fetches so far.
#[derive(Debug, Default)]
pub(crate) struct JwksFetches {
    /// True if diagnostics of rules include the cause of a failure: see
    /// [`KeyAccess::detailed`](super::KeyAccess::detailed).
    detailed: bool,
    /// The cause of the last fetch's failure, by endpoint.
    failing: BTreeMap<KeySource, String>,
    /// Fetches that returned a new set; the same set; an error.
    pub(crate) changed: u64,
    pub(crate) unchanged: u64,
    pub(crate) failed: u64,
}

impl JwksFetches {
    /// Creates an empty record, with or without causes in diagnostics.
    pub(crate) fn new(detailed: bool) -> Self {
        Self { detailed, ..Self::default() }
    }

    /// Records a result; a failure is logged once, until a fetch succeeds.
    pub(crate) fn record_result(&mut self, update: &KeyUpdate) {
        let source = &update.source;
        match &update.fetched {
            FetchOutcome::Changed(_) => {
                self.changed = self.changed.saturating_add(1);
                self.failing.remove(source);
                tracing::info!(%source, "fetched the keys of an issuer");
            }
            FetchOutcome::Same => {
                self.unchanged = self.unchanged.saturating_add(1);
                if self.failing.remove(source).is_some() {
                    tracing::info!(%source, "fetching the keys of an issuer succeeds again");
                }
            }
            FetchOutcome::Failed(why) => {
                self.failed = self.failed.saturating_add(1);
                let before = self.failing.insert(source.clone(), why.clone());
                // Some causes contain the time, and differ for each fetch.
                match before {
                    None => {
                        tracing::warn!(%source, reason = %why, "cannot fetch the keys of an issuer; the previous keys, if any, remain in force");
                    }
                    Some(before) if before != *why => {
                        tracing::debug!(%source, reason = %why, "still cannot fetch the keys of an issuer");
                    }
                    Some(_) => {}
                }
            }
            FetchOutcome::Dropped => {
                self.failing.remove(source);
            }
        }
    }

    /// Returns the cause if the last fetch of an endpoint failed, in words for the author of its rule.
    pub(crate) fn failure_cause(&self, source: &KeySource) -> Option<&str> {
        let why = self.failing.get(source)?;
        Some(if self.detailed { why.as_str() } else { NO_DETAIL })
    }

    /// Returns the number of endpoints with a failed last fetch.
    pub(crate) fn failing_count(&self) -> usize {
        self.failing.len()
    }
}

/// The same text for each failure, so that rules cannot be used to probe the network.
const NO_DETAIL: &str = "cannot be read: a server needs a public address or an entry in `--jwks-allow`, a file must be below `--jwks-files`; see \
     the log of the control plane";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_have_reasons_only_for_the_operator() {
        let sources = ["/a", "/b"].map(|path| KeySource::File(path.into()));
        for detailed in [true, false] {
            let mut fetches = JwksFetches::new(detailed);
            for (source, why) in sources.iter().zip(["is not a file", "is absent"]) {
                let fetched = FetchOutcome::Failed(why.to_owned());
                fetches.record_result(&KeyUpdate { source: source.clone(), fetched });
            }
            let [one, other] = sources.each_ref().map(|it| fetches.failure_cause(it).unwrap());
            assert_eq!(one != other, detailed, "{one} | {other}");
        }
    }
}
