//! Executes a load run: measures each rate in turn, shows the live progress, and prints the report.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use leno_load::{
    ConnectionReuse, DriveError, LoadModel, LoadPlan, LoadReport, ProgressCounters, StopHandle,
    drive_on_threads,
};
use tokio::sync::watch;

use super::live::LiveProgress;
use super::results::{LoadResults, RateResult};
use super::summary::LoadSummary;
use super::usage_error::UsageError;
use super::{LoadArgs, LoadFormat, csv, page, table};
use crate::{output, stop};

/// Generates load, measures and reports.
///
/// # Errors
/// [`UsageError`] for invalid arguments, and any error that prevents the measurement.
pub(super) async fn run(args: LoadArgs) -> anyhow::Result<ExitCode> {
    let plan = args.build_plan().await?;
    // The file is created before the run, so that a path that cannot be written does not cost the results.
    let create_page_file = |path: &PathBuf| {
        File::create(path).with_context(|| format!("cannot write {}", path.display()))
    };
    let page_file = args.html.as_ref().map(create_page_file).transpose()?;
    let results = run_rates(&args, plan).await?;
    let summary = LoadSummary::from_results(&results);
    match args.output {
        LoadFormat::Table => output::print_raw(&table::render(&results, &summary))?,
        LoadFormat::Json => output::print_json(&summary)?,
        LoadFormat::Csv => output::print_raw(&csv::render(&summary))?,
    }
    if let Some(mut page_file) = page_file {
        let page_text = page::render(&results, &summary);
        page_file.write_all(page_text.as_bytes()).context("cannot write the page")?;
    }
    Ok(exit_code(&summary, args.max_errors))
}

impl LoadArgs {
    /// Builds the plan of all runs. Its load model is a closed loop, which a run at a fixed rate replaces.
    async fn build_plan(&self) -> anyhow::Result<LoadPlan> {
        let protocol = self.protocol()?;
        let has_request_limit = self.requests.is_some();
        let duration = self.step_duration.or(self.duration);
        Ok(LoadPlan {
            protocol,
            reuse: if self.disable_keepalive {
                ConnectionReuse::Fresh
            } else {
                ConnectionReuse::Keep
            },
            load_model: LoadModel::Closed { connections: self.connections },
            duration: duration.unwrap_or(if has_request_limit {
                MAX_DURATION
            } else {
                DEFAULT_DURATION
            }),
            warm_up: self.warmup.unwrap_or(if has_request_limit {
                Duration::ZERO
            } else {
                DEFAULT_WARM_UP
            }),
            requests: self.requests,
            timeout: self.timeout,
            seed: self.seed,
            ..LoadPlan::new(self.build_requests().await?)
        })
    }
}

/// Measures the rates in turn, until all rates are measured or a signal ends the run.
async fn run_rates(args: &LoadArgs, plan: LoadPlan) -> anyhow::Result<LoadResults> {
    let rates: Vec<Option<u32>> = match &args.rate {
        None => vec![None],
        Some(rates) => rates.0.iter().copied().map(Some).collect(),
    };
    let stop_handle = StopHandle::default();
    let mut results = LoadResults { plan, threads: args.threads, steps: Vec::new() };
    let rate_count = rates.len();
    for (index, rate) in rates.into_iter().enumerate() {
        if stop_handle.is_stopped() {
            break;
        }
        let connections = args.connections;
        let step_plan = LoadPlan {
            load_model: match rate {
                None => LoadModel::Closed { connections },
                Some(rate) => LoadModel::Open { rate, connections },
            },
            ..results.plan.clone()
        };
        let mut live_progress = LiveProgress::new(&step_plan, index, rate_count);
        let outcome = run_step(step_plan, args.threads, &stop_handle, &mut live_progress).await;
        live_progress.clear();
        results.steps.push(RateResult { rate, report: outcome? });
    }
    Ok(results)
}

/// Measures one rate, or a closed loop. A stop signal ends the measurement early with a report, and a second one
/// without a report.
async fn run_step(
    plan: LoadPlan,
    threads: usize,
    stop_handle: &StopHandle,
    live_progress: &mut LiveProgress,
) -> anyhow::Result<LoadReport> {
    let (progress_sender, mut progress_receiver) = watch::channel(ProgressCounters::default());
    let mut drive_task =
        pin!(drive_on_threads(threads, plan, stop_handle.clone(), progress_sender));
    let mut stop_signal = pin!(wait_for_signal_after(Duration::ZERO));
    loop {
        tokio::select! {
            report = &mut drive_task => return report.map_err(|error| match error {
                DriveError::Plan(plan_error) => UsageError::new(&plan_error.to_string()).into(),
                error => error.into(),
            }),
            outcome = &mut stop_signal => {
                outcome?;
                if stop_handle.is_stopped() {
                    bail!("stopped by a second signal, without a report");
                }
                stop_handle.stop();
                stop_signal.set(wait_for_signal_after(SIGNAL_PAUSE));
            }
            Ok(()) = progress_receiver.changed() => live_progress.show_progress(&progress_receiver.borrow_and_update()),
        }
    }
}

/// Waits for a stop signal that arrives after a pause.
async fn wait_for_signal_after(pause: Duration) -> anyhow::Result<()> {
    // Signals during the pause are caught and ignored.
    let ignored_signal = stop::stop_signal()?;
    tokio::time::sleep(pause).await;
    drop(ignored_signal);
    stop::stop_signal()?.await;
    Ok(())
}

/// Returns the exit code: failure if all requests failed, or the share of failed requests exceeds `max_errors`.
fn exit_code(summary: &LoadSummary, max_errors: Option<f64>) -> ExitCode {
    let error_share = summary.errors as f64 / summary.requests.max(1) as f64;
    let exceeds_max_errors = max_errors.is_some_and(|max_share| error_share > max_share);
    match summary.requests == summary.errors || exceeds_max_errors {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// The default duration of the measurement, long enough for stable results.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);
/// The default warm-up, for connections to open and caches to fill.
const DEFAULT_WARM_UP: Duration = Duration::from_secs(2);
/// The time in which further stop signals are ignored: a supervisor may send the same signal twice to a process
/// group, and users do not press Ctrl-C twice this fast.
const SIGNAL_PAUSE: Duration = Duration::from_millis(300);
/// The maximum duration of a run that ends after a number of requests: one day.
const MAX_DURATION: Duration = Duration::from_secs(86_400);
