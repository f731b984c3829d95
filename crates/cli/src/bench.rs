//! `leno bench`: the same work for every contender, in one run, as the published tables have it.

mod awaited;
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
mod relay;
mod report;
mod rig;
mod runner;
mod sample;
mod session;
mod spring;
mod statistics;
mod suites;
mod table;
mod trial;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use crate::{limits, stop};
use options::Options;
use report::Report;
use suites::all::AllArgs;
use suites::gateway_ratings::GatewayRatingsArgs;
use suites::latency::LatencyArgs;
use suites::router::{RouterArgs, Rule};
use suites::scale::ScaleArgs;
use suites::sidecar::SidecarArgs;

/// Arguments of `leno bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The proxies alone: CPU, throughput, latency and memory, by connections and body size
    Sidecar(SidecarArgs),
    /// Two links of bookinfo, 200 clients: throughput, latency, CPU and memory of the sidecars
    GatewayRatings(GatewayRatingsArgs),
    /// Constant rates from one client to three services: latency and cost by rate
    Latency(LatencyArgs),
    /// Many sidecars that join at once: cost of the control plane, memory of sidecars
    Scale(ScaleArgs),
    /// A consumer and three providers, chosen among by tag
    Router(RouterArgs),
    /// A consumer and three providers, of which bad ones are left alone
    Removal(RouterArgs),
    /// Every suite, within the time that is given
    All(AllArgs),
    /// Install a contender for this user
    Install(contender::InstallArgs),
    /// Serve answers of any size
    #[command(hide = true)]
    Backend(backend::BackendArgs),
    /// Take what sidecars tell collectors
    #[command(hide = true)]
    Collector(collector::CollectorArgs),
    /// Be many sidecars
    #[command(hide = true)]
    Crowd(crowd::CrowdArgs),
    /// Forward TCP
    #[command(hide = true)]
    Floor(floor::FloorArgs),
    /// Ask somebody else for each request
    #[command(hide = true)]
    Relay(relay::RelayArgs),
    /// Run a command on some cores
    #[command(hide = true)]
    Pinned(pinned::PinnedArgs),
}

impl BenchArgs {
    /// Measures and reports, or does what a part of a benchmark has to.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Install(args) => args.run(),
            Command::Backend(args) => args.run(),
            Command::Collector(args) => args.run(),
            Command::Floor(args) => args.run(),
            Command::Pinned(args) => args.run(),
            Command::Crowd(args) => args.run(),
            Command::Relay(args) => args.run(),
            Command::Sidecar(args) => measure(&args.options, one(args.measure())),
            Command::GatewayRatings(args) => measure(&args.options, one(args.measure())),
            Command::Latency(args) => measure(&args.options, one(args.measure())),
            Command::Scale(args) => measure(&args.options, one(args.measure())),
            Command::Router(args) => measure(&args.options, one(args.measure(Rule::Router))),
            Command::Removal(args) => measure(&args.options, one(args.measure(Rule::Removal))),
            Command::All(args) => measure(&args.options, args.measure()),
        }
    }
}

async fn one(report: impl Future<Output = anyhow::Result<Report>>) -> anyhow::Result<Vec<Report>> {
    Ok(vec![report.await?])
}

/// Runs until the reports are there, or somebody stops us; then everything that was started ends
/// with us.
fn measure(
    options: &Options,
    reports: impl Future<Output = anyhow::Result<Vec<Report>>>,
) -> anyhow::Result<ExitCode> {
    limits::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let reports = runtime.block_on(async {
        let stop = stop::signals()?;
        tokio::select! {
            reports = reports => reports,
            () = stop => bail!("stopped before the end"),
        }
    })?;
    options.publish(&reports)?;
    Ok(ExitCode::SUCCESS)
}

const EXAMPLES: &str = "\
Examples:
  leno bench sidecar --contenders leno,envoy --connections 200
  leno bench install envoy

Everything runs on this machine, over loopback. What is not installed is skipped and named.
";
