//! Records the results of JWKS fetches for metrics and diagnostics: counters, and the cause of each current failure.

use std::collections::BTreeMap;

use leno_model::KeySource;

use super::{FetchOutcome, KeyUpdate};

/// The results of all JWKS fetches so far.
#[derive(Debug, Default)]
pub(crate) struct JwksFetches {
    /// True if diagnostics of rules include the cause of a failure: see
    /// [`KeyAccess::shows_failure_causes`](super::KeyAccess::shows_failure_causes).
    shows_failure_causes: bool,
    /// The endpoints with a failed last fetch, each with the cause.
    failures: BTreeMap<KeySource, String>,
    /// The number of fetches that returned a new set.
    pub(crate) changed_count: u64,
    /// The number of fetches that returned the same set.
    pub(crate) unchanged_count: u64,
    /// The number of failed fetches.
    pub(crate) failed_count: u64,
}

impl JwksFetches {
    /// Creates a record without fetches. If `shows_failure_causes`, diagnostics include the causes of failures.
    pub(crate) fn new(shows_failure_causes: bool) -> Self {
        Self { shows_failure_causes, ..Self::default() }
    }

    /// Records a result; a failure is logged once, until a fetch succeeds.
    pub(crate) fn record_result(&mut self, update: &KeyUpdate) {
        let source = &update.source;
        match &update.outcome {
            FetchOutcome::Changed(_) => {
                self.changed_count = self.changed_count.saturating_add(1);
                self.failures.remove(source);
                tracing::info!(%source, "fetched the keys of an issuer");
            }
            FetchOutcome::Unchanged => {
                self.unchanged_count = self.unchanged_count.saturating_add(1);
                if self.failures.remove(source).is_some() {
                    tracing::info!(%source, "fetching the keys of an issuer succeeds again");
                }
            }
            FetchOutcome::Failed(reason) => {
                self.failed_count = self.failed_count.saturating_add(1);
                let previous_reason = self.failures.insert(source.clone(), reason.clone());
                // Some causes contain the time, and differ for each fetch.
                match previous_reason {
                    None => {
                        tracing::warn!(%source, reason = %reason, "cannot fetch the keys of an issuer; the previous keys, if any, remain in force");
                    }
                    Some(previous_reason) if previous_reason != *reason => {
                        tracing::debug!(%source, reason = %reason, "still cannot fetch the keys of an issuer");
                    }
                    Some(_) => {}
                }
            }
            FetchOutcome::EndpointUnused => {
                self.failures.remove(source);
            }
        }
    }

    /// Returns the cause if the last fetch of an endpoint failed, as text for the author of its rule.
    pub(crate) fn failure_cause(&self, source: &KeySource) -> Option<&str> {
        let reason = self.failures.get(source)?;
        Some(if self.shows_failure_causes { reason.as_str() } else { GENERIC_CAUSE })
    }

    /// Returns the number of endpoints with a failed last fetch.
    pub(crate) fn failing_count(&self) -> usize {
        self.failures.len()
    }
}

/// The text for every failure if tenants write rules. The cause of a failure would let them probe the network.
const GENERIC_CAUSE: &str = "cannot be read: a server needs a public address or an entry in `--jwks-allow`, a file must be below `--jwks-files`; see \
     the log of the control plane";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_have_reasons_only_for_the_operator() {
        let sources = ["/a", "/b"].map(|path| KeySource::File(path.into()));
        for shows_failure_causes in [true, false] {
            let mut fetches = JwksFetches::new(shows_failure_causes);
            for (source, reason) in sources.iter().zip(["is not a file", "is absent"]) {
                let outcome = FetchOutcome::Failed(reason.to_owned());
                fetches.record_result(&KeyUpdate { source: source.clone(), outcome });
            }
            let [first, second] =
                sources.each_ref().map(|source| fetches.failure_cause(source).unwrap());
            assert_eq!(first != second, shows_failure_causes, "{first} | {second}");
        }
    }
}
