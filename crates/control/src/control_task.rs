//! Names the long-running tasks of a control plane, and reports the first task that ends unexpectedly.

use std::fmt;

use tokio::sync::watch;

/// A task of the control plane ended unexpectedly. Proxies keep their configuration, but changes may no longer reach
/// them, so the control plane must be restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{task} ended unexpectedly; see the log")]
pub struct EndedUnexpectedly {
    task: ControlTask,
}

/// A task that runs as long as the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlTask {
    Admin,
    Authority,
    Certificate,
    Keys,
    Listener,
    State,
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
            Self::State => "the state task",
            Self::Page => "the page for browsers",
            Self::Peers => "the follower of other control planes",
            Self::Push => "the push of metrics",
            Self::Watcher => "the watcher of the files",
        })
    }
}

/// A monitor that detects tasks that end before shutdown.
#[derive(Debug, Clone)]
pub(crate) struct TaskMonitor {
    stop: watch::Sender<bool>,
    ended_task: watch::Sender<Option<EndedUnexpectedly>>,
}

impl TaskMonitor {
    /// Creates a monitor that expects all tasks to run until `stop`.
    pub(crate) fn new(stop: watch::Sender<bool>) -> Self {
        Self { stop, ended_task: watch::Sender::new(None) }
    }

    /// Runs a task; reports its early end, by return or panic.
    pub(crate) async fn run(self, task: ControlTask, work: impl Future<Output = ()>) {
        let _guard = TaskGuard { task, monitor: self };
        work.await;
    }

    /// Waits until a task ends unexpectedly.
    pub(crate) async fn wait_until_ended(&self) -> EndedUnexpectedly {
        let mut ended_task = self.ended_task.subscribe();
        loop {
            if let Some(ended_task) = *ended_task.borrow_and_update() {
                return ended_task;
            }
            // `changed` cannot fail, because `self` is a sender.
            ended_task.changed().await.ok();
        }
    }
}

/// Reports its task as ended when it is dropped before shutdown, which also happens in a panic.
struct TaskGuard {
    task: ControlTask,
    monitor: TaskMonitor,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if *self.monitor.stop.borrow() {
            return;
        }
        let task = self.task;
        // The first task that ends is the cause; other tasks may end because of it.
        self.monitor.ended_task.send_if_modified(|ended_task| {
            let is_first = ended_task.is_none();
            ended_task.get_or_insert(EndedUnexpectedly { task });
            is_first
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn the_first_task_that_ends_unexpectedly_is_reported() {
        let monitor = TaskMonitor::new(watch::Sender::new(false));
        let mut tasks = JoinSet::new();
        tasks.spawn(monitor.clone().run(ControlTask::State, async { panic!("a defect") }));
        assert!(tasks.join_next().await.unwrap().is_err());
        monitor.clone().run(ControlTask::Watcher, async {}).await;
        let message = monitor.wait_until_ended().await.to_string();
        assert!(message.contains("the state task"), "{message}");
    }

    #[tokio::test]
    async fn a_task_that_ends_after_the_stop_signal_is_not_reported() {
        let stop = watch::Sender::new(false);
        let monitor = TaskMonitor::new(stop.clone());
        stop.send_replace(true);
        monitor.clone().run(ControlTask::Watcher, async {}).await;
        assert_eq!(*monitor.ended_task.borrow(), None);
    }
}
