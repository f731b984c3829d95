//! The runner: every contender runs every case, interleaved, in a new order per repeat.

use crate::output;
use std::collections::BTreeMap;
use std::time::Duration;

use super::case::BenchCase;
use super::contender::{Contender, ContenderReport, ProcessConfiguration};
use super::cores::Cores;
use super::driver::LoadGenerator;
use super::instructions;
use super::layout::Layout;
use super::outcome::ContenderOutcome;
use super::progress::BenchProgress;
use super::report::{CaseReport, SkippedContender};
use super::rig::Rig;
use super::statistics::SeededRandom;
use super::trial::{self, RunResult, RunSetup, RunTiming};

/// The environment and the settings of a suite.
#[derive(Debug)]
pub(super) struct SuiteRunner {
    pub(super) rig: Rig,
    pub(super) driver: LoadGenerator,
    pub(super) timing: RunTiming,
    pub(super) repeats: u32,
    pub(super) seed: u64,
    pub(super) baseline: String,
    /// The cores of the proxies, and the cores of the load generator with the applications, unless a case overrides
    /// them. Allocated automatically if absent.
    pub(super) cores: Option<(Cores, Cores)>,
    /// The time of each run in addition to warm-up and measurement.
    pub(super) startup_time: Duration,
    /// True if the processor counts instructions.
    pub(super) counts_instructions: bool,
}

/// The allocation of cores: separate cores for proxies, or cores shared with the rest of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CoreAllocation {
    Separate,
    Shared,
}

/// The results of a runner.
#[derive(Debug, Default)]
pub(super) struct RunnerResults {
    pub(super) cases: Vec<CaseReport>,
    pub(super) contenders: Vec<ContenderReport>,
    pub(super) skipped: Vec<SkippedContender>,
    pub(super) notes: Vec<String>,
}

impl SuiteRunner {
    /// Runs all cases. A contender that does not support a case is omitted from that case and reported as skipped.
    pub(super) async fn run(
        &mut self,
        contenders: &[Contender],
        cases: &[BenchCase],
    ) -> RunnerResults {
        let mut results = RunnerResults::default();
        match instructions::unavailable_reason() {
            None => self.counts_instructions = true,
            Some(reason) => {
                let note = format!("instructions per request omitted: {reason}");
                results.notes.push(note);
            }
        }
        let supporting_contenders = self.supporting_contenders(contenders, cases, &mut results);
        let steps: usize =
            supporting_contenders.iter().map(Vec::len).sum::<usize>() * self.repeats as usize;
        let mut progress = BenchProgress::new(steps, self.trial_duration());
        let mut random = SeededRandom::new(self.seed);
        for (case, indices) in cases.iter().zip(&supporting_contenders) {
            let contenders: Vec<&Contender> =
                indices.iter().filter_map(|index| contenders.get(*index)).collect();
            self.configure_rig(case, &mut results.notes);
            let trials =
                self.measure_case(case, &contenders, &mut random, &mut progress, &mut results);
            let trials = trials.await;
            results.cases.push(self.build_case_report(case, trials));
        }
        results
    }

    /// Returns the duration of one trial, including start and stop.
    pub(super) fn trial_duration(&self) -> Duration {
        self.timing.warm_up + self.timing.duration + self.startup_time
    }

    /// Returns the indices of the contenders that support each case.
    fn supporting_contenders(
        &self,
        contenders: &[Contender],
        cases: &[BenchCase],
        results: &mut RunnerResults,
    ) -> Vec<Vec<usize>> {
        let mut contenders_by_case = Vec::new();
        for case in cases {
            let mut indices = Vec::new();
            for (index, contender) in contenders.iter().enumerate() {
                match contender.check_support(&self.rig, case.layout) {
                    Ok(contender_report) => {
                        indices.push(index);
                        add_contender(&mut results.contenders, contender_report, case.layout);
                    }
                    Err(error) => {
                        record_skip(results, contender.name(), output::format_error(&error))
                    }
                }
            }
            contenders_by_case.push(indices);
        }
        contenders_by_case
    }

    /// Prepares the rig for a case: its cores, default policy and rules.
    fn configure_rig(&mut self, case: &BenchCase, notes: &mut Vec<String>) {
        let proxy_core_count = match (case.proxy_cores, &self.cores) {
            (Some(proxy_core_count), _) => proxy_core_count,
            (None, Some((proxies, _))) => proxies.count(),
            (None, None) => 1,
        };
        if self.allocate_cores(proxy_core_count) == CoreAllocation::Shared {
            notes.push(format!(
                "{}: no core is left for the load generator and the applications, which share the cores of \
                 the proxies",
                case.name
            ));
        }
        self.rig.default_policy = case.default_policy;
        self.rig.rules = case.rules;
    }

    /// Assigns a number of cores to the proxies, and the other cores to the load generator and the applications.
    pub(super) fn allocate_cores(&mut self, proxy_core_count: usize) -> CoreAllocation {
        let available_cores = Cores::available();
        let configured_cores =
            self.cores.clone().filter(|(proxies, _)| proxies.count() == proxy_core_count);
        let separate_cores =
            configured_cores.or_else(|| available_cores.as_ref()?.split(proxy_core_count));
        let (proxies, load) = match (separate_cores, available_cores) {
            (Some((proxies, load)), _) => (Some(proxies), Some(load)),
            (None, Some(available_cores)) => {
                (available_cores.first(proxy_core_count), Some(available_cores))
            }
            (None, None) => (None, None),
        };
        let is_shared = match (&proxies, &load) {
            (Some(proxies), Some(load)) => proxies.overlaps(load),
            _ => true,
        };
        self.rig.proxy_cores = proxies;
        self.rig.load_cores = load;
        if is_shared { CoreAllocation::Shared } else { CoreAllocation::Separate }
    }

    async fn measure_case(
        &self,
        case: &BenchCase,
        contenders: &[&Contender],
        random: &mut SeededRandom,
        progress: &mut BenchProgress,
        results: &mut RunnerResults,
    ) -> BTreeMap<String, Vec<RunResult>> {
        let mut trials: BTreeMap<String, Vec<RunResult>> = BTreeMap::new();
        for repeat in 1..=self.repeats {
            for index in random.shuffled_indices(contenders.len()) {
                let Some(contender) = contenders.get(index) else {
                    continue;
                };
                let name = contender.name();
                progress.begin_step(&format!("{}: {name}, repeat {repeat}", case.name));
                let dir = self
                    .rig
                    .scratch_directory()
                    .join(format!("run-{}-{repeat}", path_component(name)));
                let counts_instructions = self.counts_instructions;
                let setup = RunSetup {
                    rig: &self.rig,
                    contender,
                    case,
                    driver: self.driver,
                    counts_instructions,
                };
                let outcome = match std::fs::create_dir_all(&dir) {
                    Ok(()) => trial::run(setup, self.timing, &dir).await,
                    Err(error) => Err(error.into()),
                };
                // Files of a run are useless for the next one, and logs may be long.
                if let Err(error) = std::fs::remove_dir_all(&dir) {
                    tracing::debug!(%error, "cannot remove the files of a run");
                }
                match outcome {
                    Ok((mut trial, process_configurations)) => {
                        trial.repeat = repeat;
                        trials.entry(name.to_owned()).or_default().push(trial);
                        record_processes(&mut results.contenders, name, process_configurations);
                    }
                    Err(error) => {
                        let reason = format!(
                            "{}, repeat {repeat}: {}",
                            case.name,
                            output::format_error(&error)
                        );
                        progress.print_line(&format!("{name}: {reason}"));
                        record_skip(results, name, reason);
                    }
                }
            }
        }
        trials
    }

    fn build_case_report(
        &self,
        case: &BenchCase,
        trials: BTreeMap<String, Vec<RunResult>>,
    ) -> CaseReport {
        let count_cores = |cores: &Option<Cores>| cores.as_ref().map_or(1, Cores::count) as f64;
        let core_counts = (count_cores(&self.rig.proxy_cores), count_cores(&self.rig.load_cores));
        let outcomes = trials.into_iter().filter_map(|(name, trials)| {
            Some((name, ContenderOutcome::from_repeats(trials, core_counts)?))
        });
        let mut contenders: BTreeMap<String, ContenderOutcome> = outcomes.collect();
        let leno = contenders.get("leno").cloned();
        let baseline = contenders.get(&self.baseline).cloned();
        for outcome in contenders.values_mut() {
            outcome.ratio_to_leno = leno.as_ref().map(|leno| outcome.ratios_to(leno));
            if self.baseline != "leno" {
                // Without results of the baseline there are no ratios: leno is not a silent substitute.
                let ratios = baseline.as_ref().map(|baseline| outcome.ratios_to(baseline));
                outcome.ratio_to_baseline = Some(ratios.unwrap_or_default());
            }
        }
        CaseReport {
            name: case.name.clone(),
            parameters: case.parameters.clone(),
            proxy_cores: self.rig.proxy_cores.clone(),
            load_cores: self.rig.load_cores.clone(),
            contenders,
        }
    }
}

/// Adds a contender. If the contender is present, appends its description in this layout.
fn add_contender(
    contenders: &mut Vec<ContenderReport>,
    contender: ContenderReport,
    layout: Layout,
) {
    match contenders.iter_mut().find(|existing| existing.name == contender.name) {
        None => contenders.push(contender),
        Some(existing) if existing.about.contains(&contender.about) => {}
        Some(existing) => existing.about.push_str(&format!(". As {layout}: {}", contender.about)),
    }
}

/// Records the processes of a contender. They replace the processes of earlier runs in the same layout.
fn record_processes(
    contenders: &mut [ContenderReport],
    name: &str,
    process_configurations: Vec<ProcessConfiguration>,
) {
    let Some(contender) = contenders.iter_mut().find(|contender| contender.name == name) else {
        return;
    };
    let layouts: Vec<_> = process_configurations.iter().map(|process| process.layout).collect();
    contender.configuration.retain(|process| !layouts.contains(&process.layout));
    contender.configuration.extend(process_configurations);
}

fn record_skip(results: &mut RunnerResults, name: &str, reason: String) {
    let skipped = SkippedContender { name: name.to_owned(), reason };
    if !results.skipped.contains(&skipped) {
        results.skipped.push(skipped);
    }
}

/// Converts a name to a path component: other characters than ASCII letters and digits become `-`.
fn path_component(name: &str) -> String {
    name.chars()
        .map(|character| if character.is_ascii_alphanumeric() { character } else { '-' })
        .collect()
}
