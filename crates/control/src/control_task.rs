//! The parts of a running control plane, and detection of one that ends unexpectedly.

use std::fmt;

use tokio::sync::watch;

/// A part of the control plane ended unexpectedly. Proxies keep their configuration, but changes no longer
/// reach them: restart the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{part} ended unexpectedly; see the log")]
pub struct EndedUnexpectedly {
    part: ControlTask,
}

/// A task that runs as long as the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlTask {
    Admin,
    Authority,
    Certificate,
    Keys,
    Listener,
    Owner,
    Page,
    Peers,
    Push,
    Watcher,
}

impl fmt::Display for ControlTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admin => "the admin socket",
            Self::Authority => "the watcher of the authority",
            Self::Certificate => "the renewal of the control plane's certificate",
            Self::Keys => "the fetcher of issuers' keys",
            Self::Listener => "the listener for proxies",
            Self::Owner => "the owner of the mesh",
            Self::Page => "the page for browsers",
            Self::Peers => "the follower of other control planes",
            Self::Push => "the push of metrics",
            Self::Watcher => "the watcher of the files",
        })
    }
}

/// Collects the unexpected end of parts.
#[derive(Debug, Clone)]
pub(crate) struct ControlTasks {
    stop: watch::Sender<bool>,
    ended: watch::Sender<Option<EndedUnexpectedly>>,
}

impl ControlTasks {
    /// Expects all parts to run until `stop`.
    pub(crate) fn new(stop: watch::Sender<bool>) -> Self {
        Self { stop, ended: watch::Sender::new(None) }
    }

    /// Runs a part; reports its early end, by return or panic.
    pub(crate) async fn run(self, part: ControlTask, work: impl Future<Output = ()>) {
        let _watch = TaskGuard { part, parts: self };
        work.await;
    }

    /// Waits until a part ends unexpectedly.
    pub(crate) async fn wait_until_ended(&self) -> EndedUnexpectedly {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(ended) = *ended.borrow_and_update() {
                return ended;
            }
            // There is always a sender: `self`.
            ended.changed().await.ok();
        }
    }
}

struct TaskGuard {
    part: ControlTask,
    parts: ControlTasks,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if *self.parts.stop.borrow() {
            return;
        }
        let part = self.part;
        // The first one is the cause; others may only follow from it.
        self.parts.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert(EndedUnexpectedly { part });
            first
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn the_first_part_that_ends_by_itself_is_reported() {
        let parts = ControlTasks::new(watch::Sender::new(false));
        let mut tasks = JoinSet::new();
        tasks.spawn(parts.clone().run(ControlTask::Owner, async { panic!("a defect") }));
        assert!(tasks.join_next().await.unwrap().is_err());
        parts.clone().run(ControlTask::Watcher, async {}).await;
        let said = parts.wait_until_ended().await.to_string();
        assert!(said.contains("the owner of the mesh"), "{said}");
    }

    #[tokio::test]
    async fn parts_that_end_when_reported_to_are_no_end() {
        let stop = watch::Sender::new(false);
        let parts = ControlTasks::new(stop.clone());
        stop.send_replace(true);
        parts.clone().run(ControlTask::Watcher, async {}).await;
        assert_eq!(*parts.ended.borrow(), None);
    }
}
