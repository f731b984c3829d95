//! Runs a trial: starts one contender and the applications of one case, applies load, and measures latency and cost.

mod usage;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use tokio::time::{sleep, sleep_until};

use super::case::{ApplicationProcesses, BenchCase};
use super::contender::{
    Contender, ProcessConfiguration, ProcessRole, RunningContender, TrialEnvironment,
};
use super::driver::{LoadGenerator, LoadLatency, LoadSpec};
use super::readiness::wait_until_ready;
use super::sample;
use super::statistics::round_significant;
use super::testbed::Testbed;
use crate::ports::ChosenPorts;
use usage::{MeasuredProcesses, UsageDelta};

/// The results of one trial.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TrialResult {
    /// The number of the repeat, from 1.
    pub(super) repeat: u32,
    pub(super) requests: u64,
    /// The number of unsuccessful requests.
    pub(super) errors: u64,
    /// Unsuccessful requests by the reason.
    pub(super) errors_by_kind: BTreeMap<String, u64>,
    /// Responses by status, if the load generator reports it.
    pub(super) statuses: BTreeMap<String, u64>,
    pub(super) rps: f64,
    pub(super) latency_ms: LatencyMs,
    /// Instructions of all proxies per request, if the processor counts them.
    pub(super) instructions_per_request: Option<f64>,
    /// CPU time per request of each proxy, and the sum.
    pub(super) cpu_us_per_request: CpuCost,
    pub(super) memory_kib: MemoryKib,
    /// The costs of all processes except the proxies.
    pub(super) others: OtherCosts,
    /// The number of cores that proxies, load generator, applications and other processes kept busy.
    pub(super) cores_busy: CoresBusy,
}

/// Latencies that the load generator measured, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct LatencyMs {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

/// CPU time per request, in microseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct CpuCost {
    pub(super) sum: f64,
    pub(super) processes: BTreeMap<String, f64>,
}

/// Memory of all proxies together, in KiB.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct MemoryKib {
    /// Private memory before the first load.
    pub(super) idle_private: u64,
    /// Private memory under load.
    pub(super) load_private: u64,
    /// Proportional set size under load.
    pub(super) load_pss: u64,
    /// `load_private` of each proxy.
    pub(super) processes: BTreeMap<String, u64>,
}

/// The costs of the applications, the load generator and the auxiliary processes.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct OtherCosts {
    /// CPU time of all applications per request, in microseconds.
    pub(super) applications_us_per_request: f64,
    /// CPU time of the load generator per request, in microseconds.
    pub(super) load_us_per_request: f64,
    /// The costs of auxiliary processes, by name: processes of the contender that carry no requests.
    pub(super) auxiliary: BTreeMap<String, AuxiliaryCost>,
}

/// The cost of a process that carries no requests, such as a control plane.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct AuxiliaryCost {
    /// The number of cores that the process kept busy.
    pub(super) cores_busy: f64,
    /// Private memory under load, in KiB.
    pub(super) private_kib: u64,
}

/// The number of cores that each group of processes kept busy.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct CoresBusy {
    pub(super) proxies: f64,
    pub(super) load_and_applications: f64,
    /// Cores of the proxies that were busy with processes outside the trial. If proxies and load share cores, this
    /// covers all cores.
    pub(super) other_processes_on_proxy_cores: f64,
    /// Cores of the load generator and the applications that were busy with processes outside the trial.
    pub(super) other_processes_on_load_cores: f64,
}

/// The durations of the load in a trial.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrialTiming {
    /// The duration of the load before the measurement.
    pub(super) warm_up: Duration,
    /// The duration of the measured load.
    pub(super) duration: Duration,
}

/// The participants of a trial, and the way to measure them.
#[derive(Clone, Copy)]
pub(super) struct TrialSetup<'a> {
    pub(super) testbed: &'a Testbed,
    pub(super) contender: &'a Contender,
    pub(super) case: &'a BenchCase,
    pub(super) driver: LoadGenerator,
    /// True if the instructions of the proxies are counted, which requires support of the processor.
    pub(super) counts_instructions: bool,
}

/// Runs one contender in one case, in a directory of its own. Returns the result, and the start parameters of the
/// contender's processes.
///
/// # Errors
/// If a process did not start or failed during the run.
pub(super) async fn run_trial(
    setup: TrialSetup<'_>,
    timing: TrialTiming,
    dir: &Path,
) -> anyhow::Result<(TrialResult, Vec<ProcessConfiguration>)> {
    let TrialSetup { testbed, contender, case, .. } = setup;
    let mut ports = testbed.ports();
    let mut environment = TrialEnvironment {
        testbed,
        layout: case.layout,
        dir: dir.join("contender"),
        ports: &mut ports,
    };
    let mut running_contender = contender.start(&mut environment).await?;
    let mut applications = ApplicationProcesses::start(testbed, case, &mut ports, dir).await?;
    let run_result =
        measure_trial(setup, timing, dir, &mut ports, &mut running_contender, &mut applications)
            .await;
    let process_configurations = running_contender.process_configurations().to_vec();
    let log_tails = match &run_result {
        Ok(_) => String::new(),
        Err(_) => running_contender.log_tail() + &applications.log_tail(),
    };
    running_contender.stop().await;
    applications.stop().await;
    Ok((run_result.with_context(|| format!("the run failed{log_tails}"))?, process_configurations))
}

/// Applies the load to the started processes, and measures them between two margins at the ends of the load.
async fn measure_trial(
    setup: TrialSetup<'_>,
    timing: TrialTiming,
    dir: &Path,
    ports: &mut ChosenPorts<'_>,
    running_contender: &mut RunningContender,
    applications: &mut ApplicationProcesses,
) -> anyhow::Result<TrialResult> {
    let TrialSetup { testbed, case, driver, .. } = setup;
    let mut urls = Vec::new();
    for (role, path) in &case.targets {
        let address = ports.address_for(role)?;
        let check_alive =
            || running_contender.check_alive().and_then(|()| applications.check_alive());
        wait_until_ready(address, path, case.application_kind.max_start_wait(), check_alive)
            .await?;
        urls.push(format!("http://{address}{path}"));
    }
    // Start the load, once the proxies are idle and their memory is read.
    sleep(SETTLE_TIME).await;
    let proxies = running_contender.named_pids(ProcessRole::Proxy).into_iter();
    let idle_private =
        proxies.map(|(_, pid)| sample::memory_usage(&sample::process_tree(pid)).private_kib).sum();
    let load_spec = LoadSpec {
        urls,
        connections: case.connections,
        rate: case.rate,
        warm_up: timing.warm_up,
        duration: timing.duration,
        connection_mode: case.connection_mode,
    };
    let running_load = driver.start(testbed, &load_spec, dir).await?;
    let load_generator_pid = running_load.pid().context("the load generator exited early")?;
    let measured_processes =
        MeasuredProcesses::new(testbed, running_contender, applications, load_generator_pid);
    // Measure the processes under load.
    let margin = (timing.duration / 20).min(MAX_MARGIN);
    sleep_until(running_load.measured_from + margin).await;
    let usage_before = measured_processes.read_usage().await?;
    let running_count = match setup.counts_instructions {
        true => measured_processes.count_instructions(timing.duration - 2 * margin, dir)?,
        false => None,
    };
    sleep_until(running_load.measured_from + timing.duration - margin).await;
    let usage_after = measured_processes.read_usage().await?;
    let memory = MemoryKib { idle_private, ..measured_processes.proxy_memory() };
    let auxiliary_memory_kib = measured_processes.auxiliary_memory_kib();
    running_contender.check_alive()?;
    // Wait for the results of the load generator, and compute the cost per request.
    let instructions = match running_count {
        Some(running_count) => running_count.finish().await?,
        None => None,
    };
    let load_result = running_load.finish().await?;
    if load_result.requests == 0 {
        bail!("no request received a response; errors: {:?}", load_result.errors_by_kind);
    }
    let usage = UsageDelta::between(&usage_before, &usage_after, load_result.rps);
    Ok(TrialResult {
        // The runner sets the number of the repeat.
        repeat: 0,
        requests: load_result.requests,
        errors: load_result.errors,
        errors_by_kind: load_result.errors_by_kind,
        statuses: load_result.statuses,
        rps: round_significant(load_result.rps),
        latency_ms: LatencyMs::from_load_latency(load_result.latency_us),
        instructions_per_request: instructions
            .map(|instructions| round_significant(instructions as f64 / usage.requests)),
        cpu_us_per_request: usage.cpu_cost(),
        memory_kib: memory,
        others: usage.other_costs(&auxiliary_memory_kib),
        cores_busy: usage.cores_busy(),
    })
}

impl LatencyMs {
    fn from_load_latency(latency: LoadLatency) -> Self {
        let to_milliseconds = |us: Option<f64>| round_significant(us.unwrap_or(0.0) / 1e3);
        Self {
            mean: to_milliseconds(latency.mean),
            p50: to_milliseconds(latency.p50),
            p90: to_milliseconds(latency.p90),
            p95: to_milliseconds(latency.p95),
            p99: to_milliseconds(latency.p99),
            p999: to_milliseconds(latency.p999),
            max: to_milliseconds(latency.max),
        }
    }
}

/// The time for proxies to complete their start before their idle memory is read.
const SETTLE_TIME: Duration = Duration::from_millis(300);
/// The maximum margin at both ends of the load in which no resources are measured: load generators start and end their
/// requests gradually.
const MAX_MARGIN: Duration = Duration::from_millis(250);
