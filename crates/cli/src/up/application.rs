//! Supervises a workload's application: starts it once its sidecar is ready, restarts it after an exit, and reports
//! its phase and ports to the control plane and the sidecar.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use leno_control::{Application, ApplicationState};
use leno_model::{RunOptions, Workload};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::child::{ChildProcess, StopOutcome, StopScope};
use super::command_builder::CommandBuilder;
use super::console::LineSource;
use super::descendants::ApplicationRun;
use super::placement::Placement;
use super::ports::{self, ObservedApplication, ObservedPort, Ports};
use super::process_groups;
use super::restart::RestartBackoff;
use super::sidecar;
use crate::proxy::{PortStateOrder, SidecarReport, SupervisorOrder};

/// The phase of an application's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApplicationPhase {
    /// The user runs the application, not `leno up`.
    External,
    /// The application waits for its sidecar.
    Waiting,
    /// The application runs as this process, and is not ready yet.
    Starting(i32),
    /// The application runs as this process, and is ready.
    Running(i32),
    /// The application has exited, and restarts after a delay.
    Restarting,
    /// The application is stopped and does not restart.
    Stopped,
}

/// The phase of an application, its ports and its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApplicationProgress {
    pub(super) phase: ApplicationPhase,
    /// The time of the last phase change.
    pub(super) phase_since: Instant,
    /// The number of restarts after an exit.
    pub(super) restarts: u64,
    /// The number of consecutive exits soon after a start.
    pub(super) failures: u32,
    /// The exit status or error of the last process; `None` before the first exit.
    pub(super) last_exit: Option<String>,
    /// The states of the application's ports while it runs.
    pub(super) ports: Ports,
    /// True if the application stops once its requests in progress are complete.
    pub(super) is_draining: bool,
}

impl ApplicationProgress {
    /// Creates the progress of an application that waits for its sidecar.
    pub(super) fn waiting() -> Self {
        Self {
            phase: ApplicationPhase::Waiting,
            phase_since: Instant::now(),
            restarts: 0,
            failures: 0,
            last_exit: None,
            ports: Ports::new(),
            is_draining: false,
        }
    }

    /// Returns the state for the control plane. `None` for an application that the user runs.
    pub(super) fn to_application(&self) -> Option<Application> {
        let state = match self.phase {
            ApplicationPhase::External => return None,
            ApplicationPhase::Waiting => ApplicationState::Waiting,
            ApplicationPhase::Starting(pid) => ApplicationState::Starting(pid),
            ApplicationPhase::Running(pid) => ApplicationState::Running(pid),
            ApplicationPhase::Restarting => ApplicationState::Restarting,
            ApplicationPhase::Stopped => ApplicationState::Stopped,
        };
        let port_problems =
            self.ports.iter().filter_map(|(port, state)| Some((*port, state.describe_problem()?)));
        Some(Application {
            state,
            since: self.phase_since,
            restarts: self.restarts,
            failures: self.failures,
            last_exit: self.last_exit.clone(),
            ports: port_problems.collect(),
        })
    }

    /// Returns the order to the sidecar: for each port, whether it forwards requests, holds them until the
    /// application is ready, or rejects them.
    pub(super) fn to_order(&self) -> SupervisorOrder {
        let (ports, otherwise) = match self.phase {
            ApplicationPhase::External => (BTreeMap::new(), PortStateOrder::Open),
            ApplicationPhase::Waiting => (BTreeMap::new(), PortStateOrder::Starting),
            ApplicationPhase::Stopped => (BTreeMap::new(), PortStateOrder::Down),
            ApplicationPhase::Restarting
            | ApplicationPhase::Starting(_)
            | ApplicationPhase::Running(_) => {
                let port_order = |observed: &ObservedPort| match observed {
                    ObservedPort::Starting | ObservedPort::Overdue(_) => PortStateOrder::Starting,
                    // A connection to a port that is not listening fails by itself.
                    ObservedPort::Ready | ObservedPort::NotListening => PortStateOrder::Open,
                    ObservedPort::Unready => PortStateOrder::Down,
                    ObservedPort::Taken(process) => PortStateOrder::Taken(process.clone()),
                };
                let ports = self.ports.iter().map(|(port, state)| (*port, port_order(state)));
                // A port that was just added is not observed yet.
                let otherwise = match self.phase {
                    ApplicationPhase::Restarting => PortStateOrder::Down,
                    _ if self.ports.is_empty() => PortStateOrder::Starting,
                    _ => PortStateOrder::Open,
                };
                (ports.collect(), otherwise)
            }
        };
        SupervisorOrder { ports, otherwise, count_requests: self.is_draining }
    }
}

/// Changes the phase and its start time. Does nothing if the application is in this phase already.
fn change_phase(progress_sender: &watch::Sender<ApplicationProgress>, phase: ApplicationPhase) {
    progress_sender.send_if_modified(|progress| {
        let has_changed = progress.phase != phase;
        if has_changed {
            progress.phase = phase;
            progress.phase_since = Instant::now();
            match phase {
                ApplicationPhase::Starting(_) | ApplicationPhase::Running(_) => {}
                // The process that holds the port is the likely cause of the exit.
                ApplicationPhase::Restarting => {
                    progress.ports.retain(|_, port| matches!(port, ObservedPort::Taken(_)));
                }
                ApplicationPhase::External
                | ApplicationPhase::Waiting
                | ApplicationPhase::Stopped => progress.ports.clear(),
            }
        }
        has_changed
    });
}

/// Inputs of an application's supervisor.
pub(super) struct ApplicationInputs {
    /// The current configuration of the workload.
    pub(super) workload_receiver: watch::Receiver<Arc<Workload>>,
    /// The last report of the workload's sidecar; `None` while the sidecar does not run.
    pub(super) report_receiver: watch::Receiver<Option<SidecarReport>>,
    /// True if the application should stop permanently.
    pub(super) stop_receiver: watch::Receiver<bool>,
}

/// Keeps the application of a workload running until `inputs.stop_receiver` is true. A change of the command or of the
/// environment restarts the application; other changes do not.
pub(super) async fn supervise(
    command_builder: &CommandBuilder,
    placement: &Placement,
    mut inputs: ApplicationInputs,
    progress_sender: &watch::Sender<ApplicationProgress>,
) {
    let name = inputs.workload_receiver.borrow().name.clone();
    let mut restart_backoff = RestartBackoff::default();
    let mut output_tasks = JoinSet::new();
    while let Some(launch) = inputs.next_launch(progress_sender).await {
        let start = Instant::now();
        let exit =
            run_application(command_builder, &launch, placement, &mut inputs, progress_sender)
                .await;
        // All processes of the application's process group have exited.
        process_groups::remove_record(&command_builder.record_path(&name));
        command_builder.running_applications().remove_run(&name);
        let (reason, child) = match exit {
            ApplicationExit::Stopped => break,
            ApplicationExit::Outdated => {
                tracing::info!(%name, "the command of the application changed: it is restarted");
                restart_backoff.reset_failures();
                continue;
            }
            ApplicationExit::Exited(reason, child) => (reason, child),
        };
        let delay = restart_backoff.delay_after(start.elapsed());
        progress_sender.send_modify(|progress| {
            progress.restarts += 1;
            progress.failures = restart_backoff.failure_count();
            progress.last_exit = Some(reason.clone());
        });
        change_phase(progress_sender, ApplicationPhase::Restarting);
        if let Some(child) = child {
            child.finish_output_in_background(&mut output_tasks).await;
        }
        tracing::warn!(%name, %reason, ?delay, "the application exited; restarting it");
        let ApplicationInputs { workload_receiver, report_receiver, stop_receiver } = &mut inputs;
        tokio::select! {
            () = sleep(delay) => {}
            () = wait_until_outdated(workload_receiver, report_receiver, &launch) => restart_backoff.reset_failures(),
            _ = stop_receiver.wait_for(|stop| *stop) => break,
        }
    }
    change_phase(progress_sender, ApplicationPhase::Stopped);
}

/// The reason why a run of an application ended.
enum ApplicationExit {
    /// The supervisor stopped the application permanently.
    Stopped,
    /// The supervisor stopped the application, because its command or environment changed.
    Outdated,
    /// The application exited with this status or error. The output of its process may be incomplete; `None` if no
    /// process could be started.
    Exited(String, Option<Box<ChildProcess>>),
}

/// Runs the application once: until it exits, until its command or environment changes, or until it should stop.
/// All of its processes have exited on return.
async fn run_application(
    command_builder: &CommandBuilder,
    launch: &ApplicationLaunch,
    placement: &Placement,
    inputs: &mut ApplicationInputs,
    progress_sender: &watch::Sender<ApplicationProgress>,
) -> ApplicationExit {
    let workload_name = inputs.workload_receiver.borrow().name.clone();
    let name = workload_name.to_string();
    let command = command_builder.application_command(&workload_name, launch, placement);
    let listening_before = ports::listening_inodes();
    let line_source = LineSource::new(name.clone(), &name);
    let mut child = match ChildProcess::spawn(
        command,
        StopScope::Group,
        command_builder.console(),
        &line_source,
    ) {
        Ok(child) => child,
        Err(error) => return ApplicationExit::Exited(error.to_string(), None),
    };
    let pid = child.pid();
    let mut application_run = ApplicationRun::from_first_process(pid);
    if let Some(run) = application_run.clone() {
        command_builder.running_applications().add_run(&workload_name, run);
    }
    change_phase(progress_sender, ApplicationPhase::Starting(pid));
    let has_own_namespace = !placement.wrapper.is_empty();
    let workload_receiver = inputs.workload_receiver.clone();
    let port_observation = track_ports(
        ObservedApplication { pid, workload_receiver, listening_before, has_own_namespace },
        progress_sender,
    );
    let record_path = command_builder.record_path(&workload_name);
    let ApplicationInputs { workload_receiver, report_receiver, stop_receiver } = inputs;
    let outdated_wait = wait_until_outdated(workload_receiver, report_receiver, launch);
    let exit = tokio::select! {
        status = child.wait_until_exited() => {
            let reason = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            kill_leftovers(&name, application_run.as_ref(), Duration::ZERO).await;
            return ApplicationExit::Exited(reason, Some(Box::new(child)));
        }
        () = outdated_wait => ApplicationExit::Outdated,
        _ = stop_receiver.wait_for(|stop| *stop) => ApplicationExit::Stopped,
        never = port_observation => match never {},
        never = process_groups::maintain_record(&record_path, pid) => match never {},
    };
    if matches!(exit, ApplicationExit::Outdated) {
        // New requests wait for the next process while this one completes its requests.
        change_phase(progress_sender, ApplicationPhase::Waiting);
        if !workload_receiver.borrow().ports.is_empty() {
            tracing::info!(
                name,
                "the command of the application changed: its requests in progress are completed first"
            );
            progress_sender.send_modify(|progress| progress.is_draining = true);
            let drain_timeout = command_builder.drain_timeout() / 2;
            tokio::select! {
                () = sidecar::wait_until_idle(|| is_busy(report_receiver), drain_timeout) => {}
                _ = child.wait_until_exited() => {}
                _ = stop_receiver.wait_for(|stop| *stop) => {}
            }
            progress_sender.send_modify(|progress| progress.is_draining = false);
        }
    }
    let deadline = Instant::now() + STOP_TIMEOUT;
    // The application's first process may be a supervisor, which stops its children in its own order.
    application_run.iter_mut().for_each(ApplicationRun::record_descendants);
    if child.stop(STOP_TIMEOUT).await == StopOutcome::Forced {
        tracing::warn!(name, "the application did not exit on SIGTERM and was killed");
    }
    application_run.iter().for_each(|run| run.signal_all(Signal::TERM));
    let remaining_wait = deadline.saturating_duration_since(Instant::now()).max(MIN_LEFTOVERS_WAIT);
    kill_leftovers(&name, application_run.as_ref(), remaining_wait).await;
    exit
}

/// Kills the processes of an application that left its process group: they would hold the ports that the next
/// process needs.
async fn kill_leftovers(name: &str, application_run: Option<&ApplicationRun>, max_wait: Duration) {
    let Some(run) = application_run else { return };
    for description in run.wait_or_kill(max_wait).await {
        tracing::info!(
            name,
            process = description,
            "killed a process that the application started"
        );
    }
}

/// True until the sidecar reports that no request is in progress; false while no sidecar runs.
fn is_busy(report_receiver: &watch::Receiver<Option<SidecarReport>>) -> bool {
    report_receiver.borrow().as_ref().is_some_and(|report| report.in_flight != Some(0))
}

/// Updates the states of the ports and the phase of the application. Never returns.
async fn track_ports(
    observed: ObservedApplication,
    progress_sender: &watch::Sender<ApplicationProgress>,
) -> Infallible {
    let pid = observed.pid;
    if observed.workload_receiver.borrow().ports.is_empty() {
        change_phase(progress_sender, ApplicationPhase::Running(pid));
    }
    let (port_sender, mut port_receiver) = watch::channel(Ports::new());
    let observe_task = ports::observe_ports(observed, &port_sender);
    let publish_task = async {
        loop {
            if port_receiver.changed().await.is_err() {
                return std::future::pending::<()>().await;
            }
            let ports = port_receiver.borrow_and_update().clone();
            let is_up = ports
                .values()
                .all(|port| matches!(port, ObservedPort::Ready | ObservedPort::NotListening));
            progress_sender.send_modify(|progress| progress.ports = ports);
            if is_up {
                change_phase(progress_sender, ApplicationPhase::Running(pid));
            }
        }
    };
    tokio::join!(observe_task, publish_task);
    std::future::pending().await
}

impl ApplicationInputs {
    /// Returns the next launch once the workload has a command and its sidecar is ready; `None` if the
    /// application should stop.
    async fn next_launch(
        &mut self,
        progress_sender: &watch::Sender<ApplicationProgress>,
    ) -> Option<ApplicationLaunch> {
        loop {
            if *self.stop_receiver.borrow() {
                return None;
            }
            let workload = self.workload_receiver.borrow_and_update().clone();
            let report = self.report_receiver.borrow_and_update().clone();
            if workload.run.is_empty() {
                change_phase(progress_sender, ApplicationPhase::External);
            } else {
                change_phase(progress_sender, ApplicationPhase::Waiting);
                if let Some(report) = &report {
                    return Some(ApplicationLaunch::from_report(&workload, report));
                }
            }
            tokio::select! {
                Ok(()) = self.workload_receiver.changed() => {}
                Ok(()) = self.report_receiver.changed() => {}
                _ = self.stop_receiver.wait_for(|stop| *stop) => return None,
            }
        }
    }
}

/// Resolves when the launch parameters of the application have changed. While the sidecar is down, only changes
/// of the command and the options count.
async fn wait_until_outdated(
    workload_receiver: &mut watch::Receiver<Arc<Workload>>,
    report_receiver: &mut watch::Receiver<Option<SidecarReport>>,
    launch: &ApplicationLaunch,
) {
    loop {
        let current_workload = workload_receiver.borrow_and_update().clone();
        let report = report_receiver.borrow_and_update().clone();
        let has_changed = match &report {
            Some(report) => ApplicationLaunch::from_report(&current_workload, report) != *launch,
            None => {
                current_workload.run != launch.command
                    || *current_workload.run_options != launch.options
            }
        };
        if has_changed {
            return;
        }
        tokio::select! {
            Ok(()) = workload_receiver.changed() => {}
            Ok(()) = report_receiver.changed() => {}
            else => std::future::pending().await,
        }
    }
}

/// The parameters with which an application is launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApplicationLaunch {
    /// The program and its arguments; empty if there is no command.
    pub(super) command: Vec<String>,
    /// Variables added to the inherited environment.
    pub(super) environment: BTreeMap<String, String>,
    /// The working directory, the user and the readiness check.
    pub(super) options: RunOptions,
}

impl ApplicationLaunch {
    fn from_report(workload: &Workload, report: &SidecarReport) -> Self {
        let mut environment = BTreeMap::new();
        // With redirection there is no HTTP proxy listener, and these variables are not set.
        if let Some(listener) = report.http_proxy() {
            let mut no_proxy = NO_PROXY.to_owned();
            if !workload.address.is_loopback() {
                no_proxy.push_str(&format!(",{}", workload.address));
            }
            for (name, value) in
                [("HTTP_PROXY", format!("http://{listener}")), ("NO_PROXY", no_proxy)]
            {
                environment.insert(name.to_ascii_lowercase(), value.clone());
                environment.insert(name.to_owned(), value);
            }
        }
        // The Workload's own variables take precedence.
        environment.extend(workload.run_options.env.clone());
        Self {
            command: workload.run.clone(),
            environment,
            options: (*workload.run_options).clone(),
        }
    }
}

/// Destinations that an application reaches without the mesh: itself.
const NO_PROXY: &str = "localhost,127.0.0.1,::1";
/// The maximum time between SIGTERM and SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The minimum time for the processes outside the application's process group to exit.
const MIN_LEFTOVERS_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_get_the_http_proxy_unless_the_workload_sets_one() {
        let mut workload = sample_workload();
        let launch = ApplicationLaunch::from_report(&workload, &sample_report(15080));
        let environment =
            |launch: &ApplicationLaunch, name: &str| launch.environment.get(name).cloned();
        let listener = Some("http://127.0.0.1:15080".to_owned());
        assert_eq!(environment(&launch, "HTTP_PROXY"), listener);
        assert_eq!(environment(&launch, "http_proxy"), listener);
        let no_proxy = Some("localhost,127.0.0.1,::1".to_owned());
        assert_eq!(environment(&launch, "NO_PROXY"), no_proxy);
        assert_eq!(environment(&launch, "no_proxy"), no_proxy);

        workload.address = "192.0.2.7".parse().unwrap();
        workload.run_options.env.insert("http_proxy".to_owned(), "mine".to_owned());
        let launch = ApplicationLaunch::from_report(&workload, &sample_report(15080));
        assert_eq!(environment(&launch, "http_proxy"), Some("mine".to_owned()));
        let no_proxy = environment(&launch, "NO_PROXY").unwrap();
        assert!(no_proxy.ends_with(",192.0.2.7"), "{no_proxy}");
    }

    #[test]
    fn without_an_http_proxy_listener_no_variable_is_set() {
        let report = SidecarReport { open_listeners: BTreeMap::new(), ..sample_report(0) };
        let launch = ApplicationLaunch::from_report(&sample_workload(), &report);
        assert!(launch.environment.is_empty());
    }

    #[tokio::test]
    async fn only_changes_of_its_own_settings_restart_an_application() {
        let workload = Arc::new(sample_workload());
        let launch = ApplicationLaunch::from_report(&workload, &sample_report(15080));
        let mut labeled = sample_workload();
        labeled.labels.insert("version".to_owned(), "v2".to_owned());
        labeled.ports.clear();
        let mut other_run = sample_workload();
        other_run.run.push("more".to_owned());
        let mut other_env = sample_workload();
        other_env.run_options.env.insert("a".to_owned(), "b".to_owned());
        for (change, report, restarts) in [
            (sample_workload(), Some(sample_report(15080)), false),
            (labeled, Some(sample_report(15080)), false),
            (sample_workload(), None, false),
            (sample_workload(), Some(sample_report(15081)), true),
            (other_run.clone(), Some(sample_report(15080)), true),
            (other_run, None, true),
            (other_env, Some(sample_report(15080)), true),
        ] {
            let description = format!("{change:?} {report:?}");
            let (_workload, mut workloads) = watch::channel(Arc::new(change));
            let (_report, mut reports) = watch::channel(report);
            let outdated = wait_until_outdated(&mut workloads, &mut reports, &launch);
            let immediate = std::future::ready(());
            let is_outdated = tokio::select! {
                biased;
                () = outdated => true,
                () = immediate => false,
            };
            assert_eq!(is_outdated, restarts, "{description}");
        }
    }

    fn sample_report(port: u16) -> SidecarReport {
        let listener = ([127, 0, 0, 1], port).into();
        let open_listeners = BTreeMap::from([("http-proxy".to_owned(), listener)]);
        SidecarReport {
            pid: 1,
            admin: listener,
            open_listeners,
            closed_listeners: BTreeMap::new(),
            in_flight: None,
        }
    }

    fn sample_workload() -> Workload {
        let text = "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
                    metadata: {name: a-1, namespace: b, labels: {app: a}}\n\
                    spec: {serviceAccount: a, ports: [{port: 9080}], run: [\"true\"]}\n";
        let (objects, rejected) = leno_registry::read_str("test", text);
        assert_eq!(rejected, []);
        match objects.into_iter().next() {
            Some((leno_model::Object::Workload(workload), _)) => workload,
            other => panic!("{other:?}"),
        }
    }
}
