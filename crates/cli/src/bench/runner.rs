//! Runs every contender in every case. The trials of different contenders are interleaved, in a new order per repeat.

use crate::output;
use std::collections::BTreeMap;
use std::time::Duration;

use super::case::BenchCase;
use super::contender::{Contender, ContenderReport, ProcessConfiguration};
use super::cores::{CoreAssignment, Cores};
use super::driver::LoadGenerator;
use super::instructions;
use super::layout::Layout;
use super::outcome::{ContenderOutcome, CoreCounts};
use super::progress::BenchProgress;
use super::report::{CaseReport, SkippedContender};
use super::statistics::SeededRandom;
use super::testbed::Testbed;
use super::trial::{self, TrialResult, TrialSetup, TrialTiming};

/// The testbed and the settings of a suite.
#[derive(Debug)]
pub(super) struct SuiteRunner {
    pub(super) testbed: Testbed,
    pub(super) driver: LoadGenerator,
    pub(super) timing: TrialTiming,
    pub(super) repeats: u32,
    /// The random seed of the order of contenders.
    pub(super) seed: u64,
    /// The name of the contender that the ratios in reports refer to, in addition to leno.
    pub(super) baseline: String,
    /// The core assignment that the user configured. Cases with another number of proxy cores do not use it. `None`:
    /// cores are assigned automatically.
    pub(super) configured_cores: Option<CoreAssignment>,
    /// The time of each trial in addition to warm-up and measurement.
    pub(super) startup_time: Duration,
    /// True if the processor counts instructions.
    pub(super) counts_instructions: bool,
}

/// The separation of the proxies' cores from those of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CoreAllocation {
    /// The proxies have cores of their own.
    Separate,
    /// The proxies share cores with the load generator and the applications.
    Shared,
}

/// The results of all cases of a suite.
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
        let supporting_indices = self.find_supporting_contenders(contenders, cases, &mut results);
        let steps: usize =
            supporting_indices.iter().map(Vec::len).sum::<usize>() * self.repeats as usize;
        let mut progress = BenchProgress::new(steps, self.trial_duration());
        let mut random = SeededRandom::new(self.seed);
        for (case, indices) in cases.iter().zip(&supporting_indices) {
            let case_contenders: Vec<&Contender> =
                indices.iter().filter_map(|index| contenders.get(*index)).collect();
            self.configure_testbed(case, &mut results.notes);
            let trials = self
                .measure_case(case, &case_contenders, &mut random, &mut progress, &mut results)
                .await;
            results.cases.push(self.build_case_report(case, trials));
        }
        results
    }

    /// Returns the duration of one trial, including start and stop.
    pub(super) fn trial_duration(&self) -> Duration {
        self.timing.warm_up + self.timing.duration + self.startup_time
    }

    /// Returns, for each case, the indices of the contenders that support it. Adds these contenders to the results, and
    /// records the others as skipped.
    fn find_supporting_contenders(
        &self,
        contenders: &[Contender],
        cases: &[BenchCase],
        results: &mut RunnerResults,
    ) -> Vec<Vec<usize>> {
        let mut contenders_by_case = Vec::new();
        for case in cases {
            let mut indices = Vec::new();
            for (index, contender) in contenders.iter().enumerate() {
                match contender.build_report(&self.testbed, case.layout) {
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

    /// Prepares the testbed for a case: its cores, default policy and rules.
    fn configure_testbed(&mut self, case: &BenchCase, notes: &mut Vec<String>) {
        let proxy_core_count = match (case.proxy_cores, &self.configured_cores) {
            (Some(proxy_core_count), _) => proxy_core_count,
            (None, Some(configured_cores)) => configured_cores.proxy_cores.count(),
            (None, None) => 1,
        };
        if self.allocate_cores(proxy_core_count) == CoreAllocation::Shared {
            notes.push(format!(
                "{}: no core is left for the load generator and the applications, which share the cores of \
                 the proxies",
                case.name
            ));
        }
        self.testbed.default_policy = case.default_policy;
        self.testbed.rules = case.rules;
    }

    /// Assigns a number of cores to the proxies, and the other cores to the load generator and the applications.
    pub(super) fn allocate_cores(&mut self, proxy_core_count: usize) -> CoreAllocation {
        let available_cores = Cores::available();
        let configured_cores = self
            .configured_cores
            .clone()
            .filter(|configured_cores| configured_cores.proxy_cores.count() == proxy_core_count);
        let assignment =
            configured_cores.or_else(|| available_cores.as_ref()?.split(proxy_core_count));
        let (proxy_cores, load_cores) = match (assignment, available_cores) {
            (Some(CoreAssignment { proxy_cores, load_cores }), _) => {
                (Some(proxy_cores), Some(load_cores))
            }
            // There are too few cores for a split: the proxies run on the first ones, and the load on all.
            (None, Some(available_cores)) => {
                (available_cores.first(proxy_core_count), Some(available_cores))
            }
            (None, None) => (None, None),
        };
        let is_shared = match (&proxy_cores, &load_cores) {
            (Some(proxy_cores), Some(load_cores)) => proxy_cores.overlaps(load_cores),
            // Processes without assigned cores run on all of them.
            _ => true,
        };
        self.testbed.proxy_cores = proxy_cores;
        self.testbed.load_cores = load_cores;
        if is_shared { CoreAllocation::Shared } else { CoreAllocation::Separate }
    }

    /// Runs all trials of a case. Returns the results of each contender by its name; a failed trial is recorded as
    /// skipped.
    async fn measure_case(
        &self,
        case: &BenchCase,
        contenders: &[&Contender],
        random: &mut SeededRandom,
        progress: &mut BenchProgress,
        results: &mut RunnerResults,
    ) -> BTreeMap<String, Vec<TrialResult>> {
        let mut trials: BTreeMap<String, Vec<TrialResult>> = BTreeMap::new();
        for repeat in 1..=self.repeats {
            for index in random.shuffled_indices(contenders.len()) {
                let Some(contender) = contenders.get(index) else {
                    continue;
                };
                let name = contender.name();
                progress.begin_step(&format!("{}: {name}, repeat {repeat}", case.name));
                let dir = self
                    .testbed
                    .scratch_directory()
                    .join(format!("run-{}-{repeat}", path_component(name)));
                let counts_instructions = self.counts_instructions;
                let setup = TrialSetup {
                    testbed: &self.testbed,
                    contender,
                    case,
                    driver: self.driver,
                    counts_instructions,
                };
                let trial_result = match std::fs::create_dir_all(&dir) {
                    Ok(()) => trial::run_trial(setup, self.timing, &dir).await,
                    Err(error) => Err(error.into()),
                };
                // No later trial needs the files of this one, and logs may be long.
                if let Err(error) = std::fs::remove_dir_all(&dir) {
                    tracing::debug!(%error, "cannot remove the files of a trial");
                }
                match trial_result {
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
        trials: BTreeMap<String, Vec<TrialResult>>,
    ) -> CaseReport {
        let count_cores = |cores: &Option<Cores>| cores.as_ref().map_or(1, Cores::count);
        let core_counts = CoreCounts {
            proxy_cores: count_cores(&self.testbed.proxy_cores),
            load_cores: count_cores(&self.testbed.load_cores),
        };
        let outcomes = trials.into_iter().filter_map(|(name, trials)| {
            Some((name, ContenderOutcome::from_repeats(trials, core_counts)?))
        });
        let mut contenders: BTreeMap<String, ContenderOutcome> = outcomes.collect();
        let leno = contenders.get("leno").cloned();
        let baseline = contenders.get(&self.baseline).cloned();
        for outcome in contenders.values_mut() {
            outcome.ratio_to_leno = leno.as_ref().map(|leno| outcome.ratios_to(leno));
            if self.baseline != "leno" {
                // Without results of the baseline, the ratios are empty but present: reports would show the ratios to
                // leno in their place if they were absent.
                let ratios = baseline.as_ref().map(|baseline| outcome.ratios_to(baseline));
                outcome.ratio_to_baseline = Some(ratios.unwrap_or_default());
            }
        }
        CaseReport {
            name: case.name.clone(),
            parameters: case.parameters.clone(),
            proxy_cores: self.testbed.proxy_cores.clone(),
            load_cores: self.testbed.load_cores.clone(),
            contenders,
        }
    }
}

/// Adds a contender to the report. If it is present from another layout, appends its description in this layout.
fn add_contender(
    contenders: &mut Vec<ContenderReport>,
    contender: ContenderReport,
    layout: Layout,
) {
    match contenders.iter_mut().find(|existing| existing.name == contender.name) {
        None => contenders.push(contender),
        // The contender has the same description in both layouts.
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

/// Records the reason for which a contender has no result.
fn record_skip(results: &mut RunnerResults, name: &str, reason: String) {
    let skipped = SkippedContender { name: name.to_owned(), reason };
    if !results.skipped.contains(&skipped) {
        results.skipped.push(skipped);
    }
}

/// Converts a name to a path component: characters other than ASCII letters and digits become `-`.
fn path_component(name: &str) -> String {
    name.chars()
        .map(|character| if character.is_ascii_alphanumeric() { character } else { '-' })
        .collect()
}
