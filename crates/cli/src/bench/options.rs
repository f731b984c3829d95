//! Defines the options common to all suites.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};

use super::contender::{self, Contender, ContenderName};
use super::cores::{CoreAssignment, Cores};
use super::driver::LoadGenerator;
use super::report::{MeasurementSettings, SuiteReport};
use super::runner::SuiteRunner;
use super::testbed::Testbed;
use super::trial::TrialTiming;
use super::{html, outcome, table};
use crate::data_directory::HomeArgs;
use crate::duration::{parse_duration, parse_positive};
use crate::output;

/// Options of every suite.
#[derive(Debug, Clone, Args)]
pub(crate) struct SuiteOptions {
    /// Contenders: leno, envoy, haproxy, nginx, none (no proxy), floor (a bare forwarder), or command:FILE for
    /// a contender file
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    contenders: Vec<ContenderName>,
    /// Measured duration of each run
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    duration: Option<Duration>,
    /// Warm-up before each measurement
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    warmup: Duration,
    /// Number of runs per contender and case
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: Option<u32>,
    /// Time budget: shortens runs first, then reduces repeats
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    budget: Option<Duration>,
    /// Random seed of the order of contenders [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Baseline of ratios, in addition to leno
    #[arg(long, value_name = "NAME", default_value = "leno")]
    baseline: String,
    /// Load generator
    #[arg(long, value_enum, default_value_t)]
    driver: LoadGenerator,
    /// Cores for proxies, such as 0 or 0-1 [default: the first core]
    #[arg(long, value_name = "CORES", requires = "load_cores")]
    proxy_cores: Option<Cores>,
    /// Cores for backends and the load generator [default: the other cores]
    #[arg(long, value_name = "CORES", requires = "proxy_cores")]
    load_cores: Option<Cores>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: BenchFormat,
    /// Also write the report as an HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Cache directory of built tools, such as JMeter [default: ~/.cache/leno]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[command(flatten)]
    home: HomeArgs,
    #[arg(long, env = "PATH", hide = true, default_value = "/usr/bin:/bin")]
    search_path: OsString,
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum BenchFormat {
    /// Tables
    #[default]
    Table,
    /// One JSON object
    Json,
}

/// The defaults of a suite.
#[derive(Debug, Clone, Copy)]
pub(super) struct SuiteDefaults {
    pub(super) contenders: &'static [&'static str],
    pub(super) duration: Duration,
    pub(super) repeats: u32,
    /// The time of each trial in addition to warm-up and measurement.
    pub(super) startup_time: Duration,
}

impl SuiteOptions {
    /// Returns the contenders.
    ///
    /// # Errors
    /// If a contender file cannot be used, or a name occurs twice.
    pub(super) fn load_contenders(
        &self,
        defaults: SuiteDefaults,
    ) -> anyhow::Result<Vec<Contender>> {
        let names = match self.contenders.is_empty() {
            false => self.contenders.clone(),
            true => {
                let names = defaults.contenders.iter().map(|name| name.parse());
                names.collect::<Result<_, String>>().map_err(anyhow::Error::msg)?
            }
        };
        let mut contenders: Vec<Contender> = Vec::new();
        for name in &names {
            let contender = Contender::load(name)?;
            if contenders.iter().any(|loaded| loaded.name() == contender.name()) {
                bail!("duplicate contender `{}`", contender.name());
            }
            contenders.push(contender);
        }
        Ok(contenders)
    }

    /// Returns the runner for `trial_count` trials per repeat. If the user set a budget, the trials fit into it.
    ///
    /// # Errors
    /// If there is no directory for files.
    pub(super) fn build_runner(
        &self,
        defaults: SuiteDefaults,
        trial_count: usize,
    ) -> anyhow::Result<SuiteRunner> {
        let search_path = std::env::split_paths(&self.search_path).collect();
        let contenders_directory = contender::contenders_directory(&self.home)?;
        let cache_directory = match &self.cache {
            Some(cache_directory) => std::path::absolute(cache_directory).context("--cache")?,
            None => self.home.cache_directory()?,
        };
        let configured_cores = self
            .proxy_cores
            .clone()
            .zip(self.load_cores.clone())
            .map(|(proxy_cores, load_cores)| CoreAssignment { proxy_cores, load_cores });
        if configured_cores.as_ref().is_some_and(CoreAssignment::shares_cores) {
            tracing::warn!("proxies and the load generator share cores and compete for CPU time");
        }
        let mut runner = SuiteRunner {
            testbed: Testbed::new(search_path, contenders_directory, cache_directory)?,
            driver: self.driver,
            timing: TrialTiming {
                warm_up: self.warmup,
                duration: self.duration.unwrap_or(defaults.duration),
            },
            repeats: self.repeats.unwrap_or(defaults.repeats),
            seed: self.seed.unwrap_or_else(random_seed),
            baseline: self.baseline.clone(),
            configured_cores,
            startup_time: defaults.startup_time + self.driver.startup_time(),
            counts_instructions: false,
        };
        if let Some(budget) = self.budget {
            fit_to_budget(&mut runner, trial_count, budget);
        }
        Ok(runner)
    }

    /// Returns the load generator.
    pub(super) fn driver(&self) -> LoadGenerator {
        self.driver
    }

    /// True if the user selected contenders; otherwise a suite uses its defaults.
    pub(super) fn has_contenders(&self) -> bool {
        !self.contenders.is_empty()
    }

    /// Returns the time budget; `None` if the user set none.
    pub(super) fn budget(&self) -> Option<Duration> {
        self.budget
    }

    /// Returns the options with another budget, for one of several suites.
    pub(super) fn with_budget(&self, budget: Option<Duration>) -> Self {
        Self { budget, ..self.clone() }
    }

    /// Prints the reports, and writes them as an HTML page if the user named a file.
    ///
    /// # Errors
    /// If the output is closed or the file cannot be written.
    pub(super) fn publish_reports(&self, reports: &[SuiteReport]) -> anyhow::Result<()> {
        if let Some(path) = &self.html {
            std::fs::write(path, html::render_page(reports))
                .with_context(|| format!("cannot write {}", path.display()))?;
            eprintln!("wrote {}", path.display());
        }
        match (self.output, reports) {
            (BenchFormat::Json, [report]) => output::print_json(report),
            (BenchFormat::Json, reports) => {
                output::print_json(&serde_json::json!({ "suites": reports }))
            }
            (BenchFormat::Table, reports) => {
                let texts: Vec<String> = reports.iter().map(table::render).collect();
                output::print_raw(&texts.join("\n"))
            }
        }
    }
}

/// Returns the measurement settings for the report.
pub(super) fn runner_settings(runner: &SuiteRunner) -> MeasurementSettings {
    MeasurementSettings {
        duration_s: runner.timing.duration.as_secs_f64(),
        warm_up_s: runner.timing.warm_up.as_secs_f64(),
        repeats: runner.repeats,
        seed: runner.seed,
        driver: runner.driver,
        driver_version: runner.driver.describe(),
        baseline: runner.baseline.clone(),
        noisy_above: outcome::NOISY_ABOVE,
        tail_noisy_above: outcome::TAIL_NOISY_ABOVE,
        disturbed_above: outcome::DISTURBED_ABOVE,
    }
}

/// Shortens the trials so that all of them fit into the budget. If trials of the minimum duration do not fit, reduces
/// the repeats.
fn fit_to_budget(runner: &mut SuiteRunner, trial_count: usize, budget: Duration) {
    // At least one trial, so that the budget can be divided.
    let trial_count = u32::try_from(trial_count.max(1)).unwrap_or(u32::MAX);
    loop {
        let time_per_trial = budget / trial_count.saturating_mul(runner.repeats);
        let overhead = runner.trial_duration().saturating_sub(runner.timing.duration);
        let remaining = time_per_trial.saturating_sub(overhead);
        if remaining >= MIN_DURATION || runner.repeats == 1 {
            runner.timing.duration = runner.timing.duration.min(remaining.max(MIN_DURATION));
            return;
        }
        runner.repeats -= 1;
    }
}

fn random_seed() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.map_or(0, |since_epoch| u64::from(since_epoch.subsec_nanos()))
}

/// The default time of a trial for starting and stopping proxies and applications.
pub(super) const STARTUP_TIME: Duration = Duration::from_millis(1_500);
/// The minimum duration of a trial: shorter trials have too few requests for tail latencies.
const MIN_DURATION: Duration = Duration::from_secs(1);
