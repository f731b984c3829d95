//! What operators see now: one pointer that changes seldom and is read often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use leno_model::{AccessLog, MetricsPush, Sight, Tap, Tracing};
use tokio::sync::watch;

use crate::tapped::OpenTap;

/// What operators see, shared by all threads of a proxy.
#[derive(Debug, Default)]
pub(crate) struct Sights {
    current: ArcSwap<View>,
    /// Counts changes: threads keep what they saw last until this says otherwise.
    version: AtomicU64,
    /// Where metrics are pushed: no data thread needs to know.
    metrics: watch::Sender<Option<Box<MetricsPush>>>,
}

/// What operators see now.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// What the control plane says.
    sight: Sight,
    /// What the sidecar was started with, which stands above that.
    own_log: Option<Option<AccessLog>>,
    /// Live requests that operators want to see.
    taps: Arc<[Arc<OpenTap>]>,
}

impl View {
    /// Which requests are traced.
    pub(crate) fn tracing(&self) -> Option<&Tracing> {
        self.sight.tracing.as_ref()
    }

    /// Which requests are logged.
    pub(crate) fn log(&self) -> Option<&AccessLog> {
        self.own_log.as_ref().unwrap_or(&self.sight.access_log).as_ref()
    }

    /// Which live requests operators want to see.
    pub(crate) fn taps(&self) -> &[Arc<OpenTap>] {
        &self.taps
    }

    fn is_blind(&self) -> bool {
        self.tracing().is_none() && self.log().is_none() && self.taps.is_empty()
    }
}

impl Sights {
    /// Rises with each change.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// What operators see; `None` when that is nothing.
    pub(crate) fn view(&self) -> Option<View> {
        let view = self.current.load();
        (!view.is_blind()).then(|| View::clone(&view))
    }

    /// Where metrics are pushed, now and later.
    pub(crate) fn metrics(&self) -> watch::Receiver<Option<Box<MetricsPush>>> {
        self.metrics.subscribe()
    }

    /// The control plane says what is seen.
    pub(crate) fn say(&self, sight: &Sight) {
        self.metrics.send_if_modified(|metrics| {
            let changes = *metrics != sight.metrics;
            metrics.clone_from(&sight.metrics);
            changes
        });
        let known = self.current.load();
        if known.sight != *sight {
            self.change(&known, |view| view.sight.clone_from(sight));
        }
    }

    /// The sidecar was started with a say of its own.
    pub(crate) fn log(&self, log: Option<AccessLog>) {
        let known = self.current.load();
        self.change(&known, |view| view.own_log = Some(log));
    }

    /// Operators want to see these live requests, and no others.
    pub(crate) fn tap(&self, taps: &[Tap]) {
        let known = self.current.load();
        if known.taps.is_empty() && taps.is_empty() {
            return;
        }
        // One that stays open goes on as it was: what it has dropped is yet to be told.
        let open = |tap: &Tap| {
            let stays = known.taps.iter().find(|open| open.matcher.tap() == tap);
            stays.cloned().unwrap_or_else(|| Arc::new(OpenTap::new(tap)))
        };
        let taps = taps.iter().map(open).collect();
        self.change(&known, |view| view.taps = taps);
    }

    /// Only the control thread changes anything.
    fn change(&self, known: &View, change: impl FnOnce(&mut View)) {
        let mut view = known.clone();
        change(&mut view);
        self.current.store(view.into());
        self.version.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sidecar_was_started_with_stands_above_what_it_is_told() {
        let sights = Sights::default();
        assert!(sights.view().is_none() && sights.version() == 0);
        sights.say(&Sight { access_log: Some(AccessLog::json()), ..Sight::default() });
        assert_eq!(sights.view().unwrap().log(), Some(&AccessLog::json()));
        sights.log(None);
        assert!(sights.view().is_none());
        let before = sights.version();
        sights.say(&Sight { access_log: Some(AccessLog::json()), ..Sight::default() });
        assert_eq!(sights.version(), before, "nothing changed");
        sights.say(&Sight::default());
        sights.log(Some(AccessLog::json()));
        assert!(sights.view().is_some());
    }
}
