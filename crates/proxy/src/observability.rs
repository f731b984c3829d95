//! Holds the observability configuration of a proxy: tracing, access log, metrics push and taps. The control thread
//! replaces it; data threads cache it by version.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use leno_model::{AccessLog, MetricsPush, Observability, Tap, Tracing};
use tokio::sync::watch;

use crate::live_requests::OpenTap;

/// The observability configuration, shared by all threads of a proxy.
#[derive(Debug, Default)]
pub(crate) struct SharedObservability {
    current_config: ArcSwap<CurrentObservability>,
    /// Incremented with each change: threads cache the configuration until the version increases.
    version: AtomicU64,
    /// The settings of the metrics push, which data threads do not need.
    metrics_push: watch::Sender<Option<Box<MetricsPush>>>,
}

/// The current observability configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct CurrentObservability {
    /// The settings of the control plane.
    settings: Observability,
    /// The access log of the start options, which has precedence; `Some(None)` disables the access log.
    log_override: Option<Option<AccessLog>>,
    /// The active taps.
    taps: Arc<[Arc<OpenTap>]>,
}

impl CurrentObservability {
    /// Returns the tracing settings; `None` if tracing is off.
    pub(crate) fn tracing_settings(&self) -> Option<&Tracing> {
        self.settings.tracing.as_ref()
    }

    /// Returns the access log settings; `None` if the access log is off.
    pub(crate) fn access_log(&self) -> Option<&AccessLog> {
        self.log_override.as_ref().unwrap_or(&self.settings.access_log).as_ref()
    }

    /// Returns the active taps.
    pub(crate) fn taps(&self) -> &[Arc<OpenTap>] {
        &self.taps
    }

    /// True if there is no tracing, no access log and no tap.
    fn is_inactive(&self) -> bool {
        self.tracing_settings().is_none() && self.access_log().is_none() && self.taps.is_empty()
    }
}

impl SharedObservability {
    /// Returns a version that increases with each change.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the current configuration; `None` if no observability is active.
    pub(crate) fn active_settings(&self) -> Option<CurrentObservability> {
        let current = self.current_config.load();
        (!current.is_inactive()).then(|| CurrentObservability::clone(&current))
    }

    /// Subscribes to the settings of the metrics push.
    pub(crate) fn subscribe_metrics(&self) -> watch::Receiver<Option<Box<MetricsPush>>> {
        self.metrics_push.subscribe()
    }

    /// Applies the settings of the control plane.
    pub(crate) fn apply_settings(&self, settings: &Observability) {
        self.metrics_push.send_if_modified(|metrics_push| {
            let has_changed = *metrics_push != settings.metrics;
            metrics_push.clone_from(&settings.metrics);
            has_changed
        });
        let current = self.current_config.load();
        if current.settings != *settings {
            self.update_config(&current, |updated| updated.settings.clone_from(settings));
        }
    }

    /// Sets the access log of the start options; `None` disables the access log.
    pub(crate) fn set_log_override(&self, log: Option<AccessLog>) {
        let current = self.current_config.load();
        self.update_config(&current, |updated| updated.log_override = Some(log));
    }

    /// Replaces the active taps. A tap that stays active keeps its count of dropped requests, which is reported
    /// later.
    pub(crate) fn replace_taps(&self, taps: &[Tap]) {
        let current = self.current_config.load();
        if current.taps.is_empty() && taps.is_empty() {
            return;
        }
        let open_tap = |tap: &Tap| {
            let existing = current.taps.iter().find(|existing| existing.matcher.tap() == tap);
            existing.cloned().unwrap_or_else(|| Arc::new(OpenTap::new(tap)))
        };
        let taps = taps.iter().map(open_tap).collect();
        self.update_config(&current, |updated| updated.taps = taps);
    }

    /// Stores a changed configuration. Only the control thread calls this, so that no change is lost.
    fn update_config(
        &self,
        current: &CurrentObservability,
        change: impl FnOnce(&mut CurrentObservability),
    ) {
        let mut updated = current.clone();
        change(&mut updated);
        self.current_config.store(updated.into());
        // Incremented after the store: a thread that reads the new version also loads the new configuration.
        self.version.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_access_log_of_the_start_options_has_precedence() {
        let observability = SharedObservability::default();
        assert!(observability.active_settings().is_none() && observability.version() == 0);
        observability.apply_settings(&Observability {
            access_log: Some(AccessLog::json()),
            ..Observability::default()
        });
        assert_eq!(observability.active_settings().unwrap().access_log(), Some(&AccessLog::json()));
        observability.set_log_override(None);
        assert!(observability.active_settings().is_none());
        let version = observability.version();
        observability.apply_settings(&Observability {
            access_log: Some(AccessLog::json()),
            ..Observability::default()
        });
        assert_eq!(observability.version(), version, "nothing changed");
        observability.apply_settings(&Observability::default());
        observability.set_log_override(Some(AccessLog::json()));
        assert!(observability.active_settings().is_some());
    }
}
