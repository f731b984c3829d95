//! Executes `leno demo`: starts bookinfo in its own mesh, generates load, measures and evaluates.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use leno_control::Config;
use tokio::task::LocalSet;

use super::bookinfo::manifests::{BookinfoPorts, render_manifests};
use super::bookinfo::pods;
use super::observe::{observe_sidecars, rejects_plaintext};
use super::report::DemoReport;
use super::traffic::{drive_bookinfo, request_as_denied_client, run_background_traffic};
use super::verdict::DemoFindings;
use crate::data_directory::ClaimedDataDirectory;
use crate::duration::parse_positive;
use crate::explain::page_explainer;
use crate::limits::SidecarLimitArgs;
use crate::log::LogLevel;
use crate::proxy::AccessLogArgs;
use crate::up::{LocalMesh, LocalMeshOptions, OutputStream, WorkloadState};
use crate::{install, limits, log, output, stop};

/// Arguments of `leno demo`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// Duration of the measurement
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = parse_positive)]
    duration: Duration,
    /// Keep everything running afterwards, until Ctrl-C
    #[arg(long)]
    serve: bool,
    /// Address of the web page with --serve; port 0: chosen by the kernel
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    page: SocketAddr,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: DemoFormat,
    /// Print bookinfo manifests for a Kubernetes cluster with Leno, without running anything
    #[arg(long, conflicts_with_all = ["duration", "serve", "page", "output"])]
    kubernetes: bool,
    /// Image of the manifests, with --kubernetes: the Leno image, which includes the bookinfo services
    #[arg(long, value_name = "IMAGE", requires = "kubernetes", default_value = install::IMAGE,
          value_parser = parse_image)]
    image: String,
}

/// Parses an image name, without characters that could end a line of the manifests.
fn parse_image(text: &str) -> Result<String, String> {
    let is_image_character = |byte: u8| byte.is_ascii_alphanumeric() || b"./:@_-".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_image_character) {
        return Err("write it as REGISTRY/NAME:TAG".to_owned());
    }
    Ok(text.to_owned())
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum DemoFormat {
    /// Tables
    #[default]
    Table,
    /// One JSON object
    Json,
}

impl DemoArgs {
    /// Runs the demo; succeeds only if all checks pass.
    pub(crate) fn run(self, log_level: Option<LogLevel>) -> anyhow::Result<ExitCode> {
        if self.kubernetes {
            output::print_raw(&pods::render_manifests(&self.image))?;
            return Ok(ExitCode::SUCCESS);
        }
        let options = LocalMeshOptions {
            access_log: AccessLogArgs::default(),
            limits: SidecarLimitArgs::default(),
            drain_timeout: DRAIN_TIMEOUT,
            // The report is the primary output: sidecars log warnings only.
            log_level: Some(log_level.unwrap_or_else(LogLevel::warnings)),
            open_file_limit: limits::raise_open_files(),
            netns: None,
            // Standard output is reserved for the report.
            output: OutputStream::Stderr,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        LocalSet::new().block_on(&runtime, self.serve(options))
    }

    async fn serve(self, options: LocalMeshOptions) -> anyhow::Result<ExitCode> {
        let (stop_signal, quit_signal) = (stop::stop_signal()?, stop::quit_signal()?);
        let scratch_directory = tempfile::Builder::new()
            .prefix("leno-demo-")
            .tempdir()
            .context("cannot create a temporary directory")?;
        let ports = BookinfoPorts::find_free()?;
        let file = scratch_directory.path().join("bookinfo.yaml");
        let binary_path = std::env::current_exe().context("cannot find this program")?;
        let binary = binary_path.to_str().context("the path of this program is not UTF-8")?;
        std::fs::write(&file, render_manifests(&ports, binary))
            .with_context(|| format!("cannot write {}", file.display()))?;
        let data = ClaimedDataDirectory::claim(scratch_directory.path().join("data"))?;
        let serve_hint = format!(
            " --data {}\nRules:    {}: remove the TrafficTarget for details in it and save: \
             requests to details then fail",
            data.path().display(),
            file.display()
        );
        let mut config = Config::new(data.path().to_owned(), vec![file]);
        config.page = self.serve.then_some(self.page);
        config.explainer = Some(page_explainer());
        self.print_progress("starting bookinfo: 7 applications, 9 sidecars, one control plane");
        let mut mesh = LocalMesh::start(config, data, options).await?;
        let control_ended = mesh.control_ended();
        let outcome = tokio::select! {
            outcome = self.run_phases(&mut mesh, ports, &serve_hint, stop_signal) => outcome,
            error = control_ended => Err(error.into()),
        };
        self.print_progress("stopping");
        let second_signal = stop::stop_signal()?;
        tokio::select! {
            () = mesh.stop() => {}
            () = second_signal => tracing::warn!("stopped without waiting"),
            () = quit_signal => tracing::warn!("SIGQUIT: stopped without waiting"),
        }
        Ok(match outcome?.has_passed() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// Runs the demo and, until `stop_signal`, the serving phase.
    async fn run_phases(
        &self,
        mesh: &mut LocalMesh,
        ports: BookinfoPorts,
        serve_hint: &str,
        stop_signal: impl Future<Output = ()>,
    ) -> anyhow::Result<DemoReport> {
        tokio::pin!(stop_signal);
        let report = tokio::select! {
            report = self.run_and_report(mesh, ports, serve_hint) => report?,
            () = &mut stop_signal => bail!("stopped before the end"),
        };
        if self.serve {
            tokio::select! {
                () = mesh.supervise_until(&mut stop_signal) => {}
                never = run_background_traffic(ports) => match never {},
            }
        }
        Ok(report)
    }

    /// Waits for the mesh, generates load, and prints the results.
    async fn run_and_report(
        &self,
        mesh: &mut LocalMesh,
        ports: BookinfoPorts,
        serve_hint: &str,
    ) -> anyhow::Result<DemoReport> {
        if !mesh.wait_until_settled(START_TIMEOUT).await {
            let workload_states = mesh.workload_states();
            let waiting_workloads: Vec<String> = workload_states
                .iter()
                .filter(|state| !state.is_up())
                .map(|state| state.workload.name.to_string())
                .collect();
            bail!("not up within {START_TIMEOUT:?}: {}", waiting_workloads.join(", "));
        }
        let page = mesh.page_url();
        if let Some(page) = &page {
            self.print_progress(&format!("watch it in a browser: {page}"));
        }
        self.print_progress(&format!("driving traffic for {:?}", self.duration));
        let findings = measure_traffic(mesh, ports, self.duration).await?;
        let report = findings.evaluate();
        match self.output {
            DemoFormat::Json => log::print_to_stdout(&report.to_json()?)?,
            DemoFormat::Table => log::print_to_stdout(&report.to_text())?,
        }
        if self.serve {
            self.print_progress(&format!(
                "\nIt keeps running until Ctrl-C, with a little traffic.\n\
                 The mesh: {}\nThe shop: http://127.0.0.1:{}/\n\
                 Here:     leno top{serve_hint}",
                page.unwrap_or_default(),
                ports.traffic_productpage,
            ));
        }
        Ok(report)
    }

    /// Prints progress for people; programs read only standard output.
    fn print_progress(&self, text: &str) {
        log::print_to_stderr(text);
    }
}

/// Generates load for `duration`, and observes the sidecars before and after it. Then sends requests that the
/// mesh must reject: from a client without permission, and in plaintext to every inbound listener.
async fn measure_traffic(
    mesh: &mut LocalMesh,
    ports: BookinfoPorts,
    duration: Duration,
) -> anyhow::Result<DemoFindings> {
    let states_before = mesh.workload_states();
    let before_traffic = mesh.supervise_until(observe_sidecars(&states_before)).await?;
    let load_report = mesh.supervise_until(drive_bookinfo(ports, duration)).await?;
    let states_after: Vec<WorkloadState> = mesh.workload_states();
    let after_traffic = mesh.supervise_until(observe_sidecars(&states_after)).await?;
    let denial_outcome = mesh.supervise_until(request_as_denied_client(ports)).await;
    let mut plaintext_accepted = Vec::new();
    for observation in &after_traffic {
        for listener in &observation.inbound_listeners {
            if !mesh.supervise_until(rejects_plaintext(*listener)).await {
                plaintext_accepted.push(format!("{} at {listener}", observation.workload));
            }
        }
    }
    Ok(DemoFindings {
        before_traffic,
        after_traffic,
        load_report,
        denial_outcome: denial_outcome.map_err(|error| output::format_error(&error)),
        plaintext_accepted,
    })
}

/// The timeout for the start of the mesh; its processes start much sooner.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum time for requests in progress to complete at the end of the demo.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  leno demo
  leno demo --duration 10s -o json
  leno demo --serve
  leno demo --kubernetes --image registry.example.org/leno:0.1.0 | kubectl apply --server-side -f -

Runs bookinfo in a separate mesh on free local ports, without root: a product page, details, three
versions of reviews with a 90/10 split, ratings, and a gateway in front of them, each a process with
a sidecar; with `defaultPolicy: deny`, and a policy for each call.

Exit codes: 0 all checks passed; 1 a check failed; 2 wrong usage.
";
