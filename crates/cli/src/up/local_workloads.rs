//! The workloads of this machine: one sidecar, and optionally one application, for each of them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_control::ApplicationState;
use leno_model::{Workload, WorkloadName};
use tokio::sync::{Notify, watch};
use tokio::task::{self, JoinSet};
use tokio::time::{Instant, sleep};

use super::application::{self, ApplicationInputs, ApplicationPhase, ApplicationProgress};
use super::launcher::Launcher;
use super::placement::Placement;
use super::restart::Restarts;
use super::sidecar;
use crate::output;
use crate::proxy::SidecarReport;

/// The workloads of this machine, each with its processes.
pub(super) struct LocalWorkloads {
    launcher: Rc<Launcher>,
    desired: BTreeMap<WorkloadName, Arc<Workload>>,
    members: BTreeMap<WorkloadName, LocalWorkload>,
    tasks: JoinSet<WorkloadName>,
    changed: Rc<Notify>,
}

/// One workload and its processes.
struct LocalWorkload {
    workload: watch::Sender<Arc<Workload>>,
    stage: watch::Sender<MemberStage>,
    reports: watch::Receiver<Option<SidecarReport>>,
    application: watch::Receiver<ApplicationProgress>,
    counting: watch::Sender<bool>,
    /// True once the sidecar has ended permanently.
    drained: watch::Receiver<bool>,
    /// The task that supervises its processes.
    task: task::Id,
}

/// The lifecycle stage of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MemberStage {
    /// Its processes should run.
    Running,
    /// Its sidecar drains, then its application stops.
    Leaving,
}

/// The state of a workload and its processes.
#[derive(Debug, Clone)]
pub(crate) struct WorkloadState {
    /// The workload.
    pub(crate) workload: Arc<Workload>,
    /// The last report of its sidecar, while the sidecar runs.
    pub(crate) report: Option<SidecarReport>,
    /// The state of its application.
    application: ApplicationProgress,
}

impl WorkloadState {
    /// True if its sidecar has reported its listeners, and its application is ready, has had `STARTING_MAX` to
    /// become so, or keeps exiting: a longer wait gives no new information.
    pub(crate) fn is_settled(&self) -> bool {
        let ApplicationProgress { state, since, failures, .. } = &self.application;
        let settled = match state {
            ApplicationPhase::Foreign | ApplicationPhase::Running(_) => true,
            ApplicationPhase::Starting(_) => since.elapsed() >= STARTING_MAX,
            ApplicationPhase::Waiting
            | ApplicationPhase::Restarting
            | ApplicationPhase::Stopped => false,
        };
        self.report.is_some() && (settled || *failures >= FAILURES_MIN)
    }

    /// True if its sidecar has reported its listeners and its application, if any, is ready.
    pub(crate) fn is_up(&self) -> bool {
        let runs = matches!(
            self.application.state,
            ApplicationPhase::Foreign | ApplicationPhase::Running(_)
        );
        self.report.is_some() && runs
    }

    /// Returns the process ID of its application, while that runs.
    pub(crate) fn application_pid(&self) -> Option<i32> {
        match self.application.state {
            ApplicationPhase::Starting(pid) | ApplicationPhase::Running(pid) => Some(pid),
            ApplicationPhase::Foreign
            | ApplicationPhase::Waiting
            | ApplicationPhase::Restarting
            | ApplicationPhase::Stopped => None,
        }
    }

    /// True if its application has exited and has not run for long since.
    pub(crate) fn does_not_stay_up(&self) -> bool {
        let reported = self.application.to_application();
        reported.is_some_and(|application| {
            application.state == ApplicationState::Restarting
                || application.keeps_exiting(Instant::now())
        })
    }

    /// Returns the exit status of its last application process.
    pub(crate) fn last_exit(&self) -> Option<&str> {
        self.application.last_exit.as_deref()
    }

    /// Returns the ports that its application does not serve, each with the cause.
    pub(crate) fn port_problems(&self) -> BTreeMap<u16, String> {
        self.application.to_application().map(|application| application.ports).unwrap_or_default()
    }
}

#[cfg(test)]
impl WorkloadState {
    /// A workload without running processes.
    pub(super) fn waiting(workload: Arc<Workload>) -> Self {
        Self { workload, report: None, application: ApplicationProgress::waiting() }
    }

    /// A workload with these closed listeners, and an application that keeps exiting.
    pub(super) fn failing(workload: Arc<Workload>, closed: BTreeMap<String, String>) -> Self {
        let admin = ([127, 0, 0, 1], 1).into();
        let open_listeners = BTreeMap::new();
        let report = SidecarReport {
            pid: 1,
            admin,
            open_listeners,
            closed_listeners: closed,
            in_flight: None,
        };
        let application = ApplicationProgress {
            state: ApplicationPhase::Restarting,
            restarts: 7,
            failures: 7,
            last_exit: Some("exit status: 1".to_owned()),
            ..ApplicationProgress::waiting()
        };
        Self { workload, report: Some(report), application }
    }
}

impl LocalWorkloads {
    /// Creates an empty fleet.
    pub(super) fn new(launcher: Rc<Launcher>) -> Self {
        Self {
            launcher,
            desired: BTreeMap::new(),
            members: BTreeMap::new(),
            tasks: JoinSet::new(),
            changed: Rc::new(Notify::new()),
        }
    }

    /// Starts, updates and stops members until they match the registry.
    pub(super) fn set_wanted(&mut self, workloads: &[Workload]) {
        let desired = |workload: &Workload| (workload.name.clone(), Arc::new(workload.clone()));
        self.desired = workloads.iter().map(desired).collect();
        self.converge_members();
    }

    /// Resolves when the state of a member may have changed.
    pub(super) async fn wait_for_change(&mut self) {
        tokio::select! {
            () = self.changed.notified() => {}
            Some(departed) = self.tasks.join_next() => {
                match departed {
                    Ok(name) => drop(self.members.remove(&name)),
                    Err(error) => {
                        tracing::error!(%error, "the supervisor of a workload failed");
                        self.members.retain(|_, member| member.task != error.id());
                    }
                }
                // The workload may be wanted again with another account.
                self.converge_members();
            }
        }
    }

    /// Returns the states of the members.
    pub(super) fn member_statuses(&self) -> Vec<WorkloadState> {
        let standing = |member: &LocalWorkload| WorkloadState {
            workload: member.workload.borrow().clone(),
            report: member.reports.borrow().clone(),
            application: member.application.borrow().clone(),
        };
        self.members.values().map(standing).collect()
    }

    /// Drains all sidecars, then stops the applications, so that no request in progress loses its application.
    /// Workloads without ports, which are only clients, leave first. The others leave once they have no request
    /// in progress, or after half of the drain timeout: a request that causes another one needs the sidecars of
    /// both.
    pub(super) async fn stop(&mut self) {
        self.desired.clear();
        let is_client = |member: &&LocalWorkload| member.workload.borrow().ports.is_empty();
        for member in self.members.values().filter(is_client) {
            member.advance_to(MemberStage::Leaving);
        }
        for member in self.members.values().filter(is_client) {
            let mut drained = member.drained.clone();
            // An error means that the member is gone.
            drop(drained.wait_for(|drained| *drained).await);
        }
        self.wait_until_quiet(self.launcher.drain_timeout() / 2).await;
        for member in self.members.values() {
            member.advance_to(MemberStage::Leaving);
        }
        while self.tasks.join_next().await.is_some() {}
        self.members.clear();
    }

    /// Waits until no sidecar has a request in progress, for `max_wait` at most.
    async fn wait_until_quiet(&self, max_wait: Duration) {
        for member in self.members.values() {
            member.counting.send_replace(true);
        }
        let is_busy = |member: &LocalWorkload| {
            let report = member.reports.borrow();
            report.as_ref().is_some_and(|report| report.in_flight != Some(0))
        };
        sidecar::wait_until_quiet(|| self.members.values().any(is_busy), max_wait).await;
    }

    fn converge_members(&mut self) {
        for (name, member) in &self.members {
            let current = member.workload.borrow().clone();
            match self.desired.get(name) {
                // A certificate contains the account: another account is another identity.
                Some(desired) if desired.account == current.account => {
                    if *desired != current {
                        member.workload.send_replace(Arc::clone(desired));
                    }
                }
                _ => member.advance_to(MemberStage::Leaving),
            }
        }
        for (name, workload) in &self.desired {
            if self.members.contains_key(name) {
                continue;
            }
            let member = LocalWorkload::start(
                Rc::clone(&self.launcher),
                Rc::clone(&self.changed),
                workload,
                &mut self.tasks,
            );
            self.members.insert(name.clone(), member);
        }
    }
}

impl LocalWorkload {
    fn start(
        launcher: Rc<Launcher>,
        changed: Rc<Notify>,
        workload: &Arc<Workload>,
        tasks: &mut JoinSet<WorkloadName>,
    ) -> Self {
        let name = workload.name.clone();
        let (workload, workloads) = watch::channel(Arc::clone(workload));
        let (stage, stages) = watch::channel(MemberStage::Running);
        let (report, reports) = watch::channel(None);
        let (state, application) = watch::channel(ApplicationProgress::waiting());
        let (counting, counts) = watch::channel(false);
        let (ended, drained) = watch::channel(false);
        let mut posts = MemberChannels { workloads, stages, report, state, counts, ended, changed };
        let task = tasks.spawn_local(async move {
            if let Some(placement) = posts.wait_for_placement(&launcher, &name).await {
                posts.supervise(&launcher, &placement).await;
            }
            posts.ended.send_replace(true);
            launcher.control().applications().set_state(&name, None);
            launcher.placements().release_workload(&name).await;
            name
        });
        let task = task.id();
        Self { workload, stage, reports, application, counting, drained, task }
    }

    fn advance_to(&self, to: MemberStage) {
        self.stage.send_if_modified(|stage| {
            let further = *stage < to;
            *stage = to.max(*stage);
            further
        });
    }
}

/// The channel ends that belong to a member's task.
struct MemberChannels {
    workloads: watch::Receiver<Arc<Workload>>,
    stages: watch::Receiver<MemberStage>,
    report: watch::Sender<Option<SidecarReport>>,
    state: watch::Sender<ApplicationProgress>,
    counts: watch::Receiver<bool>,
    ended: watch::Sender<bool>,
    changed: Rc<Notify>,
}

impl MemberChannels {
    /// Returns the placement of the member's processes once there is one; `None` if it is no longer wanted.
    async fn wait_for_placement(
        &mut self,
        launcher: &Launcher,
        name: &WorkloadName,
    ) -> Option<Placement> {
        let mut restarts = Restarts::default();
        loop {
            let error = match launcher.placements().place_workload(name).await {
                Ok(placement) => return Some(placement),
                Err(error) => error,
            };
            let delay = restarts.delay_after(Duration::ZERO);
            tracing::error!(%name, ?delay, "cannot place the workload; retrying: {}", output::format_error(&error));
            tokio::select! {
                () = sleep(delay) => {}
                _ = self.stages.wait_for(|stage| *stage >= MemberStage::Leaving) => return None,
            }
        }
    }

    /// Supervises both processes until the member has left.
    async fn supervise(&self, launcher: &Launcher, placement: &Placement) {
        let first = self.workloads.borrow().clone();
        let (stop_application, application_stops) = watch::channel(false);
        let (stop_sidecar, sidecar_stops) = watch::channel(false);
        let signals = ApplicationInputs {
            workload: self.workloads.clone(),
            reports: self.report.subscribe(),
            stop: application_stops,
        };
        let to_sidecar = sidecar::SidecarTaskInputs {
            application: self.state.subscribe(),
            counting: self.counts.clone(),
            stop: sidecar_stops,
        };
        let mut stages = self.stages.clone();
        let leaving = async {
            // An error means that the list of workloads is gone: then the member leaves as well.
            drop(stages.wait_for(|stage| *stage >= MemberStage::Leaving).await);
            stop_sidecar.send_replace(true);
        };
        let sidecar = async {
            sidecar::supervise(launcher, placement, &first, &self.report, to_sidecar).await;
            self.ended.send_replace(true);
            stop_application.send_replace(true);
        };
        let tell = notify_changes(self.report.subscribe(), self.state.subscribe(), &self.changed);
        let report = report_application(launcher, &first, self.state.subscribe());
        let both = async {
            tokio::join!(
                application::supervise(launcher, placement, signals, &self.state),
                sidecar,
                leaving,
            )
        };
        tokio::select! {
            _ = both => {}
            () = tell => {}
            () = report => {}
        }
        self.changed.notify_one();
    }
}

/// Reports the state of an application to the control plane. Never returns.
async fn report_application(
    launcher: &Launcher,
    workload: &Workload,
    mut application: watch::Receiver<ApplicationProgress>,
) {
    loop {
        let reported = application.borrow_and_update().to_application();
        launcher.control().applications().set_state(&workload.name, reported);
        if application.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Notifies the owner of the local workloads when the state of a member's processes changes. Never returns.
async fn notify_changes(
    mut reports: watch::Receiver<Option<SidecarReport>>,
    mut application: watch::Receiver<ApplicationProgress>,
    changed: &Notify,
) {
    loop {
        tokio::select! {
            Ok(()) = reports.changed() => {}
            Ok(()) = application.changed() => {}
            else => std::future::pending().await,
        }
        changed.notify_one();
    }
}

/// The longest time that the summary waits for an application to listen.
const STARTING_MAX: Duration = Duration::from_secs(2);
/// The number of consecutive exits after which the summary does not wait for an application.
const FAILURES_MIN: u32 = 2;
