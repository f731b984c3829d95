//! `leno bench`: compares Leno with other proxies. Every contender performs the same work in one run, and the reports
//! have the form of published benchmarks.

mod backend;
mod case;
mod certificates;
mod child;
mod collector;
mod contender;
mod cores;
mod crowd;
mod driver;
mod figures;
mod floor;
mod html;
mod instructions;
mod layout;
mod loopback;
mod machine;
mod maven;
mod mesh_services;
mod mesh_size;
mod options;
mod outcome;
mod pinned;
mod progress;
mod readiness;
mod relay;
mod report;
mod runner;
mod sample;
mod session;
mod spring;
mod statistics;
mod suites;
mod table;
mod testbed;
mod trial;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use crate::{limits, stop};
use options::SuiteOptions;
use report::SuiteReport;
use suites::all::AllArgs;
use suites::gateway_ratings::GatewayRatingsArgs;
use suites::latency::LatencyArgs;
use suites::router::{RouterArgs, RouterSuite};
use suites::scale::ScaleArgs;
use suites::sidecar::SidecarArgs;

/// Arguments of `leno bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

/// The suites, the installation of contenders, and the hidden helper processes of benchmarks.
#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Proxies alone: CPU, throughput, latency and memory, by connections and body size
    Sidecar(SidecarArgs),
    /// Two call paths of bookinfo, 200 clients: throughput, latency, CPU and memory of the sidecars
    GatewayRatings(GatewayRatingsArgs),
    /// Constant rates from one client to three services: latency and cost by rate
    Latency(LatencyArgs),
    /// Many sidecars that join at once: control plane cost and sidecar memory
    Scale(ScaleArgs),
    /// One consumer and three providers, routed by tag
    Router(RouterArgs),
    /// One consumer and three providers, with outlier detection of those that fail
    Removal(RouterArgs),
    /// All suites within the time budget
    All(AllArgs),
    /// Install a contender for the current user
    Install(contender::BenchInstallArgs),
    /// Serve responses of any size
    #[command(hide = true)]
    Backend(backend::BackendArgs),
    /// Receive the exports of sidecars, like a collector
    #[command(hide = true)]
    Collector(collector::CollectorArgs),
    /// Simulate many sidecars
    #[command(hide = true)]
    Crowd(crowd::CrowdArgs),
    /// Forward TCP
    #[command(hide = true)]
    Floor(floor::FloorArgs),
    /// Call another service for each request
    #[command(hide = true)]
    Relay(relay::RelayArgs),
    /// Run a command on selected cores
    #[command(hide = true)]
    Pinned(pinned::PinnedArgs),
}

impl BenchArgs {
    /// Runs a suite and reports, or runs a helper process of a benchmark.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            BenchCommand::Install(args) => args.run(),
            BenchCommand::Backend(args) => args.run(),
            BenchCommand::Collector(args) => args.run(),
            BenchCommand::Floor(args) => args.run(),
            BenchCommand::Pinned(args) => args.run(),
            BenchCommand::Crowd(args) => args.run(),
            BenchCommand::Relay(args) => args.run(),
            BenchCommand::Sidecar(args) => {
                run_and_publish(&args.options, single_report(args.measure()))
            }
            BenchCommand::GatewayRatings(args) => {
                run_and_publish(&args.options, single_report(args.measure()))
            }
            BenchCommand::Latency(args) => {
                run_and_publish(&args.options, single_report(args.measure()))
            }
            BenchCommand::Scale(args) => {
                run_and_publish(&args.options, single_report(args.measure()))
            }
            BenchCommand::Router(args) => {
                run_and_publish(&args.options, single_report(args.measure(RouterSuite::Router)))
            }
            BenchCommand::Removal(args) => {
                run_and_publish(&args.options, single_report(args.measure(RouterSuite::Removal)))
            }
            BenchCommand::All(args) => run_and_publish(&args.options, args.measure()),
        }
    }
}

/// Returns the report of one suite in the form in which the suite `all` returns several.
async fn single_report(
    report: impl Future<Output = anyhow::Result<SuiteReport>>,
) -> anyhow::Result<Vec<SuiteReport>> {
    Ok(vec![report.await?])
}

/// Waits for the reports and publishes them. Fails if SIGTERM or SIGINT arrives first; all child processes end with this
/// process.
fn run_and_publish(
    options: &SuiteOptions,
    reports: impl Future<Output = anyhow::Result<Vec<SuiteReport>>>,
) -> anyhow::Result<ExitCode> {
    limits::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let reports = runtime.block_on(async {
        let stop = stop::stop_signal()?;
        tokio::select! {
            reports = reports => reports,
            () = stop => bail!("stopped before the end"),
        }
    })?;
    options.publish_reports(&reports)?;
    Ok(ExitCode::SUCCESS)
}

const EXAMPLES: &str = "\
Examples:
  leno bench sidecar --contenders leno,envoy --connections 200
  leno bench install envoy

All processes run on this machine, over loopback. Contenders that are not installed are skipped and reported.
";
