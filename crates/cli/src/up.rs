//! `leno up`: runs a mesh on one machine from manifest files: control plane, sidecars and applications.

mod application;
mod child;
mod command_builder;
mod console;
pub(crate) mod descendants;
mod local_mesh;
mod local_workloads;
mod netns;
mod placement;
pub(crate) mod ports;
pub(crate) mod process_groups;
mod procfs;
mod restart;
mod sidecar;
mod summary;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tokio::task::LocalSet;

use crate::control::{ManifestArgs, MeshArgs};
use crate::data_directory::ClaimedDataDirectory;
use crate::duration::parse_duration;
use crate::limits::SidecarLimitArgs;
use crate::log::LogLevel;
use crate::proxy::AccessLogArgs;
use crate::{limits, output, stop};

pub(crate) use console::OutputStream;
pub(crate) use local_mesh::{LocalMesh, LocalMeshOptions};
pub(crate) use local_workloads::WorkloadState;

/// Arguments of `leno up`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("file", |file| {
    let help = "File or directory of YAML manifests; repeatable; required without --clean";
    file.required(false).required_unless_present("clean").help(help)
}))]
pub(crate) struct UpArgs {
    #[command(flatten)]
    manifests: ManifestArgs,
    #[command(flatten)]
    mesh: MeshArgs,
    /// Address for sidecar connections; port 0: chosen by the kernel
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    #[command(flatten)]
    access_log: AccessLogArgs,
    /// Time for requests in progress to complete when a sidecar stops
    #[arg(
        long,
        value_name = "TIME",
        default_value = "10s",
        value_parser = parse_duration,
        help_heading = "Limits and timeouts"
    )]
    drain_timeout: Duration,
    #[command(flatten)]
    limits: SidecarLimitArgs,
    /// Run each workload in its own network namespace and redirect its traffic to the sidecar, without outbound
    /// listeners; requires root, iproute2 and nftables
    #[arg(long, help_heading = "Network namespaces")]
    netns: bool,
    /// Remove the network namespaces, links and files left by killed meshes, stop the applications that a
    /// killed mesh left in the data directory (all processes with their LENO_APPLICATION_RUN variable), and
    /// exit
    #[arg(long, help_heading = "Network namespaces", conflicts_with_all = ["file", "netns"])]
    clean: bool,
    #[command(flatten)]
    netns_options: netns::NetnsOptions,
}

impl UpArgs {
    /// Runs until SIGTERM or SIGINT. A second signal skips the graceful shutdown.
    pub(crate) fn run(self, log_level: Option<LogLevel>) -> anyhow::Result<ExitCode> {
        if self.clean {
            return self.remove_leftovers();
        }
        let open_file_limit = limits::raise_open_files();
        let options = LocalMeshOptions {
            access_log: self.access_log.clone(),
            limits: self.limits.clone(),
            drain_timeout: self.drain_timeout,
            log_level,
            open_file_limit,
            netns: self.netns.then(|| self.netns_options.clone()),
            output: OutputStream::Stdout,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        LocalSet::new().block_on(&runtime, self.serve(options))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Stops the applications and removes the network namespaces that killed meshes left. Prints a line for each.
    fn remove_leftovers(&self) -> anyhow::Result<ExitCode> {
        let data = self.mesh.data.path()?;
        let mut lines = Vec::new();
        if data.is_dir() {
            // While a mesh uses the directory, its applications are not leftovers.
            if let Some(claimed_directory) = ClaimedDataDirectory::claim_unless_used(data)? {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let stopped_processes =
                    runtime.block_on(process_groups::stop_leftovers(claimed_directory.path()));
                lines.extend(
                    stopped_processes
                        .iter()
                        .map(|process| format!("ended {}\n", output::escape_cell(process))),
                );
            }
        }
        let removed_namespaces = netns::remove_leftovers();
        lines.extend(removed_namespaces.iter().flatten().map(|name| format!("removed {name}\n")));
        if lines.is_empty() && removed_namespaces.is_ok() {
            lines.push("no leftovers\n".to_owned());
        }
        output::print_text(&lines.concat())?;
        removed_namespaces.map(|_| ExitCode::SUCCESS)
    }

    async fn serve(self, options: LocalMeshOptions) -> anyhow::Result<()> {
        let (stop_signal, quit_signal) = (stop::stop_signal()?, stop::quit_signal()?);
        let mut reload_signal = stop::ReloadSignal::new()?;
        descendants::become_subreaper()?;
        tokio::pin!(stop_signal);
        let data = ClaimedDataDirectory::claim(self.mesh.data.path()?)?;
        self.manifests.check_manifests()?;
        let files = self.manifests.file.clone();
        let config = self.mesh.config(data.path().to_owned(), self.listen, files);
        let mut mesh = LocalMesh::start(config, data, options).await?;
        let data_option = self.mesh.data.data_option();
        let control_ended = mesh.control_ended();
        let serve_loop = async {
            mesh.wait_until_settled(SUMMARY_TIMEOUT).await;
            mesh.print_summary(&data_option).await;
            loop {
                mesh.supervise_until(reload_signal.wait_for_reload()).await;
                mesh.reload();
            }
        };
        let outcome = tokio::select! {
            never = serve_loop => match never {},
            () = &mut stop_signal => Ok(()),
            error = control_ended => Err(error),
        };
        tracing::info!(
            "stopping: draining the sidecars, then stopping the applications; a second signal stops immediately"
        );
        let second_signal = stop::stop_signal()?;
        let running_applications = mesh.running_applications();
        let mut shutdown = Box::pin(mesh.stop());
        tokio::select! {
            () = &mut shutdown => return Ok(outcome?),
            () = second_signal => tracing::warn!("stopped without waiting"),
            () = quit_signal => tracing::warn!("SIGQUIT: stopped without waiting"),
        }
        running_applications.kill_all(|| drop(shutdown)).await;
        Ok(outcome?)
    }
}

/// The maximum time that `leno up` waits for all processes before it prints the summary.
const SUMMARY_TIMEOUT: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  leno up -f mesh/
  leno up -f mesh.yaml --access-log json --head-timeout 5s
  leno up -f mesh/ --data /var/lib/leno --listen 192.0.2.1:15010
  sudo leno up -f mesh/ --netns
  sudo leno up --clean --data /var/lib/leno

Each Workload in the files gets a sidecar, with the limits given here. Once the sidecar is ready, the
application in spec.run starts, with HTTP_PROXY set; requests wait until it listens, for 10 s at most. After 12 s
leno status reports an application that does not listen. SIGTERM and SIGINT drain the sidecars first, then
stop the applications; a second signal kills all processes, including those in sessions of their own. The
admin endpoints and the web page keep their addresses over restarts. Changes in the files take effect
immediately; a rejected object changes nothing. For sidecars on several machines run `leno control` instead.

A closed terminal, SIGPWR and SIGXCPU have the same effect as SIGTERM; SIGQUIT kills all processes immediately.
SIGHUP reloads the files. SIGUSR1, SIGUSR2, SIGALRM and other timer and user signals are ignored.

Exit codes: 0 stopped by a signal; 1 could not start; 2 wrong usage.
";
