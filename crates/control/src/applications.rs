//! Stores the states of the applications that a supervisor (`leno up`) on this machine runs and reports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leno_model::WorkloadName;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::status::ApplicationStatus;

/// The applications of this machine's supervisor, by workload. Applications of other machines are not included.
#[derive(Debug, Clone, Default)]
pub struct Applications(watch::Sender<Arc<BTreeMap<WorkloadName, Application>>>);

/// The state of an application, as its supervisor reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Application {
    /// The current state.
    pub state: ApplicationState,
    /// The time at which the application entered this state.
    pub since: Instant,
    /// The number of restarts after the application exited by itself.
    pub restarts: u64,
    /// The number of consecutive exits soon after a start.
    pub failures: u32,
    /// The exit status of the last exit; `None` before the first one.
    pub last_exit: Option<String>,
    /// Ports that the application does not serve, with the cause.
    pub ports: BTreeMap<u16, String>,
}

/// The state of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplicationState {
    /// Waiting for its sidecar.
    Waiting,
    /// Running with this process ID, not ready yet.
    Starting(i32),
    /// Running with this process ID.
    Running(i32),
    /// Exited; a restart follows after a pause.
    Restarting,
    /// Stopped by the supervisor; no restart follows.
    Stopped,
}

impl Applications {
    /// Sets the state of a workload's application; `None` if the supervisor no longer runs one.
    pub fn set_state(&self, workload: &WorkloadName, application: Option<Application>) {
        self.0.send_if_modified(|applications| {
            if applications.get(workload) == application.as_ref() {
                return false;
            }
            let applications = Arc::make_mut(applications);
            match application {
                Some(application) => drop(applications.insert(workload.clone(), application)),
                None => drop(applications.remove(workload)),
            }
            true
        });
    }

    /// Returns the state of a workload's application, for operators; `None` if the supervisor runs none.
    pub(crate) fn application_status(
        &self,
        workload: &WorkloadName,
        now: Instant,
    ) -> Option<ApplicationStatus> {
        self.0.borrow().get(workload).map(|application| application.status(now))
    }
}

/// Returns the hint for an application that keeps exiting with this status.
#[must_use]
pub fn exit_hint(last_exit: Option<&str>) -> &'static str {
    match last_exit {
        Some("exit status: 0") => {
            "`leno up` stops the background processes of an application: make spec.run start the application in the \
             foreground, or correct spec.run if the command exits at once"
        }
        _ => {
            "its output is in the log of `leno up`: correct spec.run, spec.cwd or spec.user, or free its port"
        }
    }
}

impl Application {
    /// True while the application crash-loops: at least two consecutive exits soon after a start, and less than
    /// [`STABLE_UPTIME`] of running since.
    #[must_use]
    pub fn is_crash_looping(&self, now: Instant) -> bool {
        let is_stable = matches!(self.state, ApplicationState::Running(_))
            && now.saturating_duration_since(self.since) >= STABLE_UPTIME;
        self.failures >= MIN_EARLY_EXITS && self.state != ApplicationState::Stopped && !is_stable
    }

    fn status(&self, now: Instant) -> ApplicationStatus {
        let (state_name, pid) = match self.state {
            ApplicationState::Waiting => ("waiting", None),
            ApplicationState::Starting(pid) => ("starting", Some(pid)),
            ApplicationState::Running(pid) => ("running", Some(pid)),
            ApplicationState::Restarting => ("restarting", None),
            ApplicationState::Stopped => ("stopped", None),
        };
        let crash_looping = self.is_crash_looping(now);
        ApplicationStatus {
            // A crash-looping application runs only briefly between two restarts.
            state: if crash_looping { "restarting" } else { state_name }.to_owned(),
            pid,
            restarts: self.restarts,
            crash_looping,
            last_exit: self.last_exit.clone(),
            since_seconds: now.saturating_duration_since(self.since).as_secs_f64(),
            ports: self.ports.clone(),
        }
    }
}

/// Returns the hint for a port that is not served, by its problem text.
#[must_use]
pub fn port_hint(problem: &str) -> &'static str {
    match problem {
        PORT_NOT_LISTENING => {
            "make the application listen on this port, or correct spec.ports; its output is in the log of `leno up`"
        }
        PORT_UNREADY => {
            "the sidecar rejects requests until the check succeeds: repair the application, or correct spec.readiness"
        }
        // Another process holds the port.
        _ => {
            "traffic is not forwarded to another process: stop that process, or correct spec.run and spec.ports"
        }
    }
}

/// The problem of a port without a listener.
pub const PORT_NOT_LISTENING: &str = "no process listens on the port";
/// The problem of a port while the application's readiness check fails.
pub const PORT_UNREADY: &str = "the readiness check fails";

/// The uptime after which an application is stable, so that it no longer counts as crash-looping.
const STABLE_UPTIME: Duration = Duration::from_secs(30);
/// The number of consecutive early exits from which an application crash-loops. A single one may be accidental.
const MIN_EARLY_EXITS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_application_with_two_early_exits_crash_loops_until_it_is_stable() {
        let since = Instant::now();
        let application_in = |state, failures| Application {
            state,
            since,
            restarts: 7,
            failures,
            last_exit: Some("exit status: 1".to_owned()),
            ports: BTreeMap::new(),
        };
        let later = since + STABLE_UPTIME;
        for (state, failures, now, expected) in [
            (ApplicationState::Running(1), 1, since, "running"),
            (ApplicationState::Restarting, 1, since, "restarting"),
            (ApplicationState::Running(1), 2, since, "restarting"),
            (ApplicationState::Running(1), 2, later, "running"),
            (ApplicationState::Starting(1), 0, since, "starting"),
            (ApplicationState::Stopped, 5, since, "stopped"),
        ] {
            let status = application_in(state, failures).status(now);
            assert_eq!(status.state, expected, "{state:?} {failures}");
            assert_eq!(status.restarts, 7);
        }
    }

    #[test]
    fn the_hint_for_a_crash_loop_depends_on_the_exit_status() {
        assert!(exit_hint(Some("exit status: 0")).contains("in the foreground"));
        for exit in [Some("exit status: 1"), None] {
            assert!(exit_hint(exit).contains("spec.cwd"), "{exit:?}");
        }
    }

    #[tokio::test]
    async fn a_report_replaces_the_previous_one_and_none_removes_it() {
        let applications = Applications::default();
        let name: WorkloadName = "shop/cart-1".parse().unwrap();
        let (now, state) = (Instant::now(), ApplicationState::Waiting);
        let (restarts, failures, last_exit, ports) = (0, 0, None, BTreeMap::new());
        let application = Application { state, since: now, restarts, failures, last_exit, ports };
        applications.set_state(&name, Some(application));
        assert_eq!(applications.application_status(&name, now).unwrap().state, "waiting");
        applications.set_state(&name, None);
        assert_eq!(applications.application_status(&name, now), None);
    }
}
