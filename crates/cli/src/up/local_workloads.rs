//! Runs the workloads of this machine: for each of them one sidecar, and one application if it has a command.

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
use super::command_builder::CommandBuilder;
use super::placement::Placement;
use super::restart::RestartBackoff;
use super::sidecar;
use crate::output;
use crate::proxy::SidecarReport;

/// The workloads of this machine, each with its processes. A member is a workload whose processes run, or are being
/// started or stopped.
pub(super) struct LocalWorkloads {
    command_builder: Rc<CommandBuilder>,
    desired_workloads: BTreeMap<WorkloadName, Arc<Workload>>,
    members: BTreeMap<WorkloadName, MemberWorkload>,
    /// The supervising tasks of the members; each returns the name of its workload.
    tasks: JoinSet<WorkloadName>,
    /// Notified when the state of a member's processes has changed.
    change_notification: Rc<Notify>,
}

/// One member: a workload and its processes.
struct MemberWorkload {
    /// The workload, as last configured.
    workload_sender: watch::Sender<Arc<Workload>>,
    stage_sender: watch::Sender<MemberStage>,
    /// The last report of the sidecar; `None` while the sidecar does not run.
    report_receiver: watch::Receiver<Option<SidecarReport>>,
    progress_receiver: watch::Receiver<ApplicationProgress>,
    /// True if the sidecar should report its number of requests in progress, as during the shutdown of the mesh.
    count_requests_sender: watch::Sender<bool>,
    /// True once the sidecar has stopped permanently.
    drained_receiver: watch::Receiver<bool>,
    /// The task that supervises the processes.
    task: task::Id,
}

/// The lifecycle stage of a member; the variants are in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MemberStage {
    /// The processes of the workload should run.
    Running,
    /// The sidecar drains, then the application stops, and the workload is removed.
    Draining,
}

/// The state of a workload and its processes.
#[derive(Debug, Clone)]
pub(crate) struct WorkloadState {
    /// The workload, as last configured.
    pub(crate) workload: Arc<Workload>,
    /// The last report of the workload's sidecar; `None` while the sidecar does not run.
    pub(crate) report: Option<SidecarReport>,
    /// The progress of the workload's application.
    progress: ApplicationProgress,
}

impl WorkloadState {
    /// True if the sidecar has reported its listeners, and the application is ready, has been starting for
    /// `SUMMARY_START_TIMEOUT`, or keeps exiting: a longer wait gives no new information.
    pub(crate) fn is_settled(&self) -> bool {
        let ApplicationProgress { phase, phase_since, failures, .. } = &self.progress;
        let is_application_settled = match phase {
            ApplicationPhase::External | ApplicationPhase::Running(_) => true,
            ApplicationPhase::Starting(_) => phase_since.elapsed() >= SUMMARY_START_TIMEOUT,
            ApplicationPhase::Waiting
            | ApplicationPhase::Restarting
            | ApplicationPhase::Stopped => false,
        };
        self.report.is_some() && (is_application_settled || *failures >= MIN_FAILURES)
    }

    /// True if the sidecar has reported its listeners, and the application is ready or external.
    pub(crate) fn is_up(&self) -> bool {
        let is_application_ready = matches!(
            self.progress.phase,
            ApplicationPhase::External | ApplicationPhase::Running(_)
        );
        self.report.is_some() && is_application_ready
    }

    /// Returns the process ID of the application; `None` while it does not run.
    pub(crate) fn application_pid(&self) -> Option<i32> {
        match self.progress.phase {
            ApplicationPhase::Starting(pid) | ApplicationPhase::Running(pid) => Some(pid),
            ApplicationPhase::External
            | ApplicationPhase::Waiting
            | ApplicationPhase::Restarting
            | ApplicationPhase::Stopped => None,
        }
    }

    /// True if the application keeps exiting soon after its start.
    pub(crate) fn is_crash_looping(&self) -> bool {
        let application = self.progress.to_application();
        application.is_some_and(|application| {
            application.state == ApplicationState::Restarting
                || application.is_crash_looping(Instant::now())
        })
    }

    /// Returns the exit status of the last application process; `None` before the first exit.
    pub(crate) fn last_exit(&self) -> Option<&str> {
        self.progress.last_exit.as_deref()
    }

    /// Returns the ports that the application does not serve, each with the cause.
    pub(crate) fn port_problems(&self) -> BTreeMap<u16, String> {
        self.progress.to_application().map(|application| application.ports).unwrap_or_default()
    }
}

#[cfg(test)]
impl WorkloadState {
    /// A workload without running processes.
    pub(super) fn waiting(workload: Arc<Workload>) -> Self {
        Self { workload, report: None, progress: ApplicationProgress::waiting() }
    }

    /// A workload with these closed listeners, and an application that keeps exiting.
    pub(super) fn failing(
        workload: Arc<Workload>,
        closed_listeners: BTreeMap<String, String>,
    ) -> Self {
        let admin = ([127, 0, 0, 1], 1).into();
        let open_listeners = BTreeMap::new();
        let report =
            SidecarReport { pid: 1, admin, open_listeners, closed_listeners, in_flight: None };
        let progress = ApplicationProgress {
            phase: ApplicationPhase::Restarting,
            restarts: 7,
            failures: 7,
            last_exit: Some("exit status: 1".to_owned()),
            ..ApplicationProgress::waiting()
        };
        Self { workload, report: Some(report), progress }
    }
}

impl LocalWorkloads {
    /// Creates an empty set of workloads.
    pub(super) fn new(command_builder: Rc<CommandBuilder>) -> Self {
        Self {
            command_builder,
            desired_workloads: BTreeMap::new(),
            members: BTreeMap::new(),
            tasks: JoinSet::new(),
            change_notification: Rc::new(Notify::new()),
        }
    }

    /// Sets the desired workloads, and starts, updates and drains members accordingly.
    pub(super) fn set_desired(&mut self, workloads: &[Workload]) {
        let to_entry = |workload: &Workload| (workload.name.clone(), Arc::new(workload.clone()));
        self.desired_workloads = workloads.iter().map(to_entry).collect();
        self.apply_desired();
    }

    /// Resolves when the state of a member may have changed.
    pub(super) async fn wait_for_change(&mut self) {
        tokio::select! {
            () = self.change_notification.notified() => {}
            Some(ended_task) = self.tasks.join_next() => {
                match ended_task {
                    Ok(name) => drop(self.members.remove(&name)),
                    Err(error) => {
                        tracing::error!(%error, "the supervisor of a workload failed");
                        self.members.retain(|_, member| member.task != error.id());
                    }
                }
                // The workload may have been added again with another account.
                self.apply_desired();
            }
        }
    }

    /// Returns the states of the members.
    pub(super) fn workload_states(&self) -> Vec<WorkloadState> {
        let to_state = |member: &MemberWorkload| WorkloadState {
            workload: member.workload_sender.borrow().clone(),
            report: member.report_receiver.borrow().clone(),
            progress: member.progress_receiver.borrow().clone(),
        };
        self.members.values().map(to_state).collect()
    }

    /// Drains all sidecars, then stops the applications, so that no request in progress loses its application.
    /// Workloads without ports, which are only clients, are drained first. The other workloads are drained once
    /// no sidecar has a request in progress, or after half of the drain timeout: a request that causes another
    /// request needs the sidecars of both.
    pub(super) async fn stop(&mut self) {
        self.desired_workloads.clear();
        let is_client = |member: &&MemberWorkload| member.workload_sender.borrow().ports.is_empty();
        for member in self.members.values().filter(is_client) {
            member.move_to_stage(MemberStage::Draining);
        }
        for member in self.members.values().filter(is_client) {
            let mut drained_receiver = member.drained_receiver.clone();
            // An error means that the member has been removed.
            drop(drained_receiver.wait_for(|drained| *drained).await);
        }
        self.wait_until_idle(self.command_builder.drain_timeout() / 2).await;
        for member in self.members.values() {
            member.move_to_stage(MemberStage::Draining);
        }
        while self.tasks.join_next().await.is_some() {}
        self.members.clear();
    }

    /// Waits until no sidecar has a request in progress, for `max_wait` at most.
    async fn wait_until_idle(&self, max_wait: Duration) {
        for member in self.members.values() {
            member.count_requests_sender.send_replace(true);
        }
        let is_busy = |member: &MemberWorkload| {
            let report = member.report_receiver.borrow();
            report.as_ref().is_some_and(|report| report.in_flight != Some(0))
        };
        sidecar::wait_until_idle(|| self.members.values().any(is_busy), max_wait).await;
    }

    /// Starts desired workloads that are not members, updates members with a changed workload, and drains members
    /// that are not desired or have another service account.
    fn apply_desired(&mut self) {
        for (name, member) in &self.members {
            let current_workload = member.workload_sender.borrow().clone();
            match self.desired_workloads.get(name) {
                // A certificate contains the account, so a sidecar cannot take another account. Such a member is
                // drained, and started again after its removal.
                Some(desired_workload) if desired_workload.account == current_workload.account => {
                    if *desired_workload != current_workload {
                        member.workload_sender.send_replace(Arc::clone(desired_workload));
                    }
                }
                _ => member.move_to_stage(MemberStage::Draining),
            }
        }
        for (name, workload) in &self.desired_workloads {
            if self.members.contains_key(name) {
                continue;
            }
            let member = MemberWorkload::start(
                Rc::clone(&self.command_builder),
                Rc::clone(&self.change_notification),
                workload,
                &mut self.tasks,
            );
            self.members.insert(name.clone(), member);
        }
    }
}

impl MemberWorkload {
    fn start(
        command_builder: Rc<CommandBuilder>,
        change_notification: Rc<Notify>,
        workload: &Arc<Workload>,
        tasks: &mut JoinSet<WorkloadName>,
    ) -> Self {
        let name = workload.name.clone();
        let (workload_sender, workload_receiver) = watch::channel(Arc::clone(workload));
        let (stage_sender, stage_receiver) = watch::channel(MemberStage::Running);
        let (report_sender, report_receiver) = watch::channel(None);
        let (progress_sender, progress_receiver) = watch::channel(ApplicationProgress::waiting());
        let (count_requests_sender, count_requests_receiver) = watch::channel(false);
        let (drained_sender, drained_receiver) = watch::channel(false);
        let mut channels = WorkloadChannels {
            workload_receiver,
            stage_receiver,
            report_sender,
            progress_sender,
            count_requests_receiver,
            drained_sender,
            change_notification,
        };
        let abort_handle = tasks.spawn_local(async move {
            if let Some(placement) = channels.wait_for_placement(&command_builder, &name).await {
                channels.supervise(&command_builder, &placement).await;
            }
            channels.drained_sender.send_replace(true);
            command_builder.control().applications().set_state(&name, None);
            command_builder.placements().release_workload(&name).await;
            name
        });
        let task = abort_handle.id();
        Self {
            workload_sender,
            stage_sender,
            report_receiver,
            progress_receiver,
            count_requests_sender,
            drained_receiver,
            task,
        }
    }

    /// Sets the stage if it is later than the current one.
    fn move_to_stage(&self, new_stage: MemberStage) {
        self.stage_sender.send_if_modified(|stage| {
            let has_changed = *stage < new_stage;
            *stage = new_stage.max(*stage);
            has_changed
        });
    }
}

/// The other ends of the channels of a [`MemberWorkload`], for the task that supervises the member.
struct WorkloadChannels {
    workload_receiver: watch::Receiver<Arc<Workload>>,
    stage_receiver: watch::Receiver<MemberStage>,
    report_sender: watch::Sender<Option<SidecarReport>>,
    progress_sender: watch::Sender<ApplicationProgress>,
    count_requests_receiver: watch::Receiver<bool>,
    drained_sender: watch::Sender<bool>,
    change_notification: Rc<Notify>,
}

impl WorkloadChannels {
    /// Returns the placement of the workload's processes once it exists; `None` if the workload is removed first.
    async fn wait_for_placement(
        &mut self,
        command_builder: &CommandBuilder,
        name: &WorkloadName,
    ) -> Option<Placement> {
        let mut restart_backoff = RestartBackoff::default();
        loop {
            let error = match command_builder.placements().place_workload(name).await {
                Ok(placement) => return Some(placement),
                Err(error) => error,
            };
            let delay = restart_backoff.delay_after(Duration::ZERO);
            tracing::error!(%name, ?delay, "cannot place the workload; retrying: {}", output::format_error(&error));
            tokio::select! {
                () = sleep(delay) => {}
                _ = self.stage_receiver.wait_for(|stage| *stage >= MemberStage::Draining) => return None,
            }
        }
    }

    /// Supervises the sidecar and the application until the member is drained and stopped.
    async fn supervise(&self, command_builder: &CommandBuilder, placement: &Placement) {
        let initial_workload = self.workload_receiver.borrow().clone();
        let (application_stop_sender, application_stop_receiver) = watch::channel(false);
        let (sidecar_stop_sender, sidecar_stop_receiver) = watch::channel(false);
        let application_inputs = ApplicationInputs {
            workload_receiver: self.workload_receiver.clone(),
            report_receiver: self.report_sender.subscribe(),
            stop_receiver: application_stop_receiver,
        };
        let sidecar_inputs = sidecar::SupervisorInputs {
            progress_receiver: self.progress_sender.subscribe(),
            count_requests_receiver: self.count_requests_receiver.clone(),
            stop_receiver: sidecar_stop_receiver,
        };
        let mut stage_receiver = self.stage_receiver.clone();
        let wait_for_drain = async {
            // An error means that `LocalWorkloads` has been dropped: then the member stops as well.
            drop(stage_receiver.wait_for(|stage| *stage >= MemberStage::Draining).await);
            sidecar_stop_sender.send_replace(true);
        };
        // The application stops only after its sidecar has drained.
        let supervise_sidecar = async {
            sidecar::supervise(
                command_builder,
                placement,
                &initial_workload,
                &self.report_sender,
                sidecar_inputs,
            )
            .await;
            self.drained_sender.send_replace(true);
            application_stop_sender.send_replace(true);
        };
        let notify_task = notify_changes(
            self.report_sender.subscribe(),
            self.progress_sender.subscribe(),
            &self.change_notification,
        );
        let report_task = report_application(
            command_builder,
            &initial_workload,
            self.progress_sender.subscribe(),
        );
        let supervise_processes = async {
            tokio::join!(
                application::supervise(
                    command_builder,
                    placement,
                    application_inputs,
                    &self.progress_sender
                ),
                supervise_sidecar,
                wait_for_drain,
            )
        };
        tokio::select! {
            _ = supervise_processes => {}
            () = notify_task => {}
            () = report_task => {}
        }
        self.change_notification.notify_one();
    }
}

/// Reports the state of an application to the control plane. Never returns.
async fn report_application(
    command_builder: &CommandBuilder,
    workload: &Workload,
    mut progress_receiver: watch::Receiver<ApplicationProgress>,
) {
    loop {
        let application = progress_receiver.borrow_and_update().to_application();
        command_builder.control().applications().set_state(&workload.name, application);
        if progress_receiver.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Notifies the owner of the local workloads when the state of a member's processes changes. Never returns.
async fn notify_changes(
    mut report_receiver: watch::Receiver<Option<SidecarReport>>,
    mut progress_receiver: watch::Receiver<ApplicationProgress>,
    change_notification: &Notify,
) {
    loop {
        tokio::select! {
            Ok(()) = report_receiver.changed() => {}
            Ok(()) = progress_receiver.changed() => {}
            else => std::future::pending().await,
        }
        change_notification.notify_one();
    }
}

/// The maximum time that the summary waits for an application to listen.
const SUMMARY_START_TIMEOUT: Duration = Duration::from_secs(2);
/// After this many consecutive exits of an application, the summary no longer waits for it.
const MIN_FAILURES: u32 = 2;
