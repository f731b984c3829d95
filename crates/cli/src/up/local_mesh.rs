//! Runs a mesh on one machine: an embedded control plane, and the processes of every workload.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use leno_control::status::Status;
use leno_control::{Config, EndedUnexpectedly};
use leno_model::Workload;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::command_builder::{CommandBuilder, LaunchSettings};
use super::console::{Console, OutputStream};
use super::descendants::ApplicationRuns;
use super::local_workloads::{LocalWorkloads, WorkloadState};
use super::netns::{NetnsOptions, WorkloadNamespaces};
use super::placement::Placements;
use super::process_groups;
use super::summary::{self, SummaryWorkload};
use crate::control::start;
use crate::data_directory::ClaimedDataDirectory;
use crate::limits::SidecarLimitArgs;
use crate::log::LogLevel;
use crate::proxy::AccessLogArgs;

/// Options of a mesh on one machine.
#[derive(Debug, Clone)]
pub(crate) struct LocalMeshOptions {
    /// The access log of sidecars.
    pub(crate) access_log: AccessLogArgs,
    /// Limits and timeouts of sidecars.
    pub(crate) limits: SidecarLimitArgs,
    /// The maximum time for requests in progress to complete when a sidecar stops.
    pub(crate) drain_timeout: Duration,
    /// The log level of sidecars; `None` is their default.
    pub(crate) log_level: Option<LogLevel>,
    /// The soft limit of open files for applications; `None` keeps the limit of this process.
    pub(crate) open_file_limit: Option<u64>,
    /// The options of network namespaces; `None` if all workloads run in the host's.
    pub(crate) netns: Option<NetnsOptions>,
    /// The destination of the standard output of processes.
    pub(crate) output: OutputStream,
}

/// A mesh on one machine. [`LocalMesh::supervise_until`] must be polled to supervise it.
pub(crate) struct LocalMesh {
    command_builder: Rc<CommandBuilder>,
    local_workloads: LocalWorkloads,
    /// The workloads of the registry.
    workloads: watch::Receiver<Arc<Vec<Workload>>>,
    /// The status of the control plane.
    status: watch::Receiver<Arc<Status>>,
    /// Held until all processes have exited.
    _data: ClaimedDataDirectory,
}

impl LocalMesh {
    /// Starts the control plane, and begins to start the workloads. Must be called inside a
    /// [`tokio::task::LocalSet`], on a thread that lives as long as this process: children die with the thread
    /// that started them.
    ///
    /// # Errors
    /// If the control plane cannot start.
    pub(crate) async fn start(
        config: Config,
        data: ClaimedDataDirectory,
        options: LocalMeshOptions,
    ) -> anyhow::Result<Self> {
        for process in process_groups::stop_leftovers(data.path()).await {
            tracing::info!(process = %process, "ended an application's process that a killed `leno up` left");
        }
        let config = Config { supervised: true, ..config };
        let (config, placements) = create_placements(config, options.netns.clone())?;
        let settings = build_launch_settings(&config, &options, placements)?;
        let control = start(config).await?;
        let console = Console::start(options.output).context("the console cannot be started")?;
        let (mut workloads, status) = (control.watch_workloads(), control.watch_status());
        let command_builder = Rc::new(CommandBuilder::new(control, settings, console));
        let mut local_workloads = LocalWorkloads::new(Rc::clone(&command_builder));
        local_workloads.set_desired(&workloads.borrow_and_update());
        Ok(Self { command_builder, local_workloads, workloads, status, _data: data })
    }

    /// Reconciles the processes with the registry until `future` completes, and returns its result.
    pub(crate) async fn supervise_until<T>(&mut self, future: impl Future<Output = T>) -> T {
        tokio::pin!(future);
        loop {
            tokio::select! {
                result = &mut future => return result,
                () = self.process_change() => {}
            }
        }
    }

    /// Supervises the mesh until every workload is settled, for `max_wait` at most. Returns true if all
    /// workloads are settled.
    pub(crate) async fn wait_until_settled(&mut self, max_wait: Duration) -> bool {
        let deadline = Instant::now() + max_wait;
        while !self.is_settled() {
            let next_check = deadline.min(Instant::now() + SETTLE_CHECK_INTERVAL);
            if timeout_at(next_check, self.process_change()).await.is_err()
                && Instant::now() >= deadline
            {
                return false;
            }
        }
        true
    }

    /// Prints the workloads and example commands, to which `data_option` (` --data DIRECTORY`, or empty) is
    /// appended.
    pub(crate) async fn print_summary(&self, data_option: &str) {
        let workload_states = self.workload_states();
        let status = Arc::clone(&self.status.borrow());
        let mut summary_workloads = Vec::new();
        for workload_state in &workload_states {
            let name = &workload_state.workload.name;
            let network_namespace = self.command_builder.placements().namespace_of(name).await;
            summary_workloads.push(SummaryWorkload { workload_state, network_namespace });
        }
        let text = summary::render(&status, &summary_workloads, data_option);
        self.command_builder.console().print_text(OutputStream::Stdout, text).await;
        let waiting_workloads: Vec<String> = workload_states
            .iter()
            .filter(|workload_state| !workload_state.is_up())
            .map(|workload_state| workload_state.workload.name.to_string())
            .collect();
        if !waiting_workloads.is_empty() {
            tracing::warn!(workloads = waiting_workloads.join(", "), "not up yet");
        }
    }

    /// Reloads the files.
    pub(crate) fn reload(&self) {
        tracing::info!("SIGHUP: reloading the files");
        self.command_builder.control().reload_files();
    }

    /// Returns the URL of the control plane's web page; `None` if the page is disabled.
    pub(crate) fn page_url(&self) -> Option<String> {
        self.status.borrow().page.clone()
    }

    /// Returns the states of the workloads.
    pub(crate) fn workload_states(&self) -> Vec<WorkloadState> {
        self.local_workloads.workload_states()
    }

    /// Resolves when a task of the control plane has ended unexpectedly. `stop` shuts the control plane down only
    /// after this future is dropped.
    pub(crate) fn control_ended(&self) -> impl Future<Output = EndedUnexpectedly> + use<> {
        let command_builder = Rc::clone(&self.command_builder);
        async move { command_builder.control().wait_until_ended().await }
    }

    /// Returns the running applications.
    pub(super) fn running_applications(&self) -> ApplicationRuns {
        self.command_builder.running_applications().clone()
    }

    /// Drains sidecars, then stops applications, then the control plane.
    pub(crate) async fn stop(mut self) {
        self.local_workloads.stop().await;
        // The workloads share the command builder, which owns the control plane.
        drop(self.local_workloads);
        if let Some(command_builder) = Rc::into_inner(self.command_builder) {
            command_builder.into_control().shutdown().await;
        }
    }

    /// Processes one change of the registry, the status or the local workloads.
    async fn process_change(&mut self) {
        tokio::select! {
            Ok(()) = self.workloads.changed() => {
                self.local_workloads.set_desired(&self.workloads.borrow_and_update());
            }
            Ok(()) = self.status.changed() => {}
            () = self.local_workloads.wait_for_change() => {}
        }
    }

    /// True if every workload is settled and has a sidecar that has opened every port.
    fn is_settled(&self) -> bool {
        let status = self.status.borrow();
        let workload_states = self.local_workloads.workload_states();
        status.registered == status.workloads
            && workload_states.len() == status.workloads
            && workload_states.iter().all(WorkloadState::is_settled)
    }
}

/// The interval between two checks of starting applications, which settle without an event when their start
/// takes too long.
const SETTLE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Creates the placement of workloads. With network namespaces, the control plane listens on the gateway
/// address, which all namespaces reach.
fn create_placements(
    mut config: Config,
    netns: Option<NetnsOptions>,
) -> anyhow::Result<(Config, Placements)> {
    let Some(netns) = netns else { return Ok((config, Placements::HostNamespace)) };
    let namespaces = WorkloadNamespaces::create(netns)?;
    config.listen.set_ip(namespaces.gateway().into());
    Ok((config, Placements::Namespaces(Arc::new(Mutex::new(namespaces)))))
}

fn build_launch_settings(
    config: &Config,
    options: &LocalMeshOptions,
    placements: Placements,
) -> anyhow::Result<LaunchSettings> {
    let mut sidecar_options = options.limits.to_arguments();
    sidecar_options.extend(options.access_log.to_arguments());
    Ok(LaunchSettings {
        data: config.data.clone(),
        binary: std::env::current_exe().context("cannot find this program")?,
        placements,
        sidecar_options,
        log_level: options.log_level.as_ref().map(|level| level.as_str().to_owned()),
        drain_timeout: options.drain_timeout,
        open_file_limit: options.open_file_limit,
    })
}
