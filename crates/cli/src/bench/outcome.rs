//! Aggregates the repeats of one contender in one case, and compares contenders.

use std::collections::BTreeMap;

use serde::Serialize;

use super::statistics::{RepeatRange, median, round_significant};
use super::trial::{CpuCost, LatencyMs, MemoryKib, TrialResult};

/// The result of one contender in one case: the medians of its repeats, and their spread.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ContenderOutcome {
    pub(super) rps: f64,
    pub(super) latency_ms: LatencyMs,
    pub(super) cpu_us_per_request: CpuCost,
    /// Present if the processor counts instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) instructions_per_request: Option<f64>,
    pub(super) memory_kib: MemoryKib,
    /// The number of requests in all repeats.
    pub(super) requests: u64,
    /// The number of failed requests in all repeats.
    pub(super) failed: u64,
    /// The minimum and maximum of the repeats, by figure.
    pub(super) range: BTreeMap<&'static str, RepeatRange>,
    /// The figures with a spread above the noise threshold.
    pub(super) noisy: Vec<&'static str>,
    /// The median ratio to leno in the same repeat, by figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_leno: Option<BTreeMap<&'static str, f64>>,
    /// The median ratio to the baseline that the user selected, by figure; absent if the baseline is leno.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_baseline: Option<BTreeMap<&'static str, f64>>,
    /// The number of benchmark cores that processes outside the trial kept busy: the maximum of the repeats.
    pub(super) other_processes_cores: f64,
    /// The cores that limited the throughput.
    pub(super) limited_by: ThroughputLimit,
    /// The result of each successful repeat.
    pub(super) repeats: Vec<TrialResult>,
}

/// The cores that limited the throughput of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ThroughputLimit {
    /// The cores of the proxies were busy.
    Proxies,
    /// The cores of the load generator and the applications were busy.
    Load,
    /// Both groups of cores had idle time: connections waited for responses, or the rate was constant.
    Neither,
}

/// The numbers of cores that a case assigned.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoreCounts {
    /// The number of cores of the proxies.
    pub(super) proxy_cores: usize,
    /// The number of cores of the load generator and the applications.
    pub(super) load_cores: usize,
}

/// A figure that is compared between repeats and contenders.
#[derive(Debug, Clone, Copy)]
pub(super) struct RepeatFigure {
    pub(super) name: &'static str,
    pub(super) read_figure: fn(&TrialResult) -> f64,
    /// The spread above which the figure counts as noisy; `None` for a figure that is never noisy.
    noisy_above: Option<f64>,
}

/// All compared figures, the most important first.
pub(super) const FIGURES: &[RepeatFigure] = &[
    RepeatFigure {
        name: "cpu_us_per_request",
        read_figure: |trial| trial.cpu_us_per_request.sum,
        noisy_above: Some(NOISY_ABOVE),
    },
    RepeatFigure { name: "rps", read_figure: |trial| trial.rps, noisy_above: Some(NOISY_ABOVE) },
    RepeatFigure {
        name: "latency_p50",
        read_figure: |trial| trial.latency_ms.p50,
        noisy_above: Some(NOISY_ABOVE),
    },
    RepeatFigure {
        name: "latency_p90",
        read_figure: |trial| trial.latency_ms.p90,
        noisy_above: None,
    },
    RepeatFigure {
        name: "latency_p95",
        read_figure: |trial| trial.latency_ms.p95,
        noisy_above: None,
    },
    RepeatFigure {
        name: "latency_p99",
        read_figure: |trial| trial.latency_ms.p99,
        noisy_above: Some(TAIL_NOISY_ABOVE),
    },
    RepeatFigure {
        name: "latency_p999",
        read_figure: |trial| trial.latency_ms.p999,
        noisy_above: None,
    },
    RepeatFigure {
        name: "idle_private",
        read_figure: |trial| trial.memory_kib.idle_private as f64,
        noisy_above: Some(NOISY_ABOVE),
    },
    RepeatFigure {
        name: "load_private",
        read_figure: |trial| trial.memory_kib.load_private as f64,
        noisy_above: Some(NOISY_ABOVE),
    },
    RepeatFigure {
        name: "load_pss",
        read_figure: |trial| trial.memory_kib.load_pss as f64,
        noisy_above: None,
    },
];

/// The noise threshold of most figures: the spread of the repeats as a fraction of their median.
pub(super) const NOISY_ABOVE: f64 = 0.15;
/// The noise threshold of the 99th percentile: tail latencies vary more.
pub(super) const TAIL_NOISY_ABOVE: f64 = 0.5;
/// The fraction of busy time from which a group of cores counts as saturated.
const SATURATED_SHARE: f64 = 0.95;
/// The number of cores busy with processes outside the trial, above which a trial counts as disturbed.
pub(super) const DISTURBED_ABOVE: f64 = 0.1;

impl ContenderOutcome {
    /// Aggregates repeats; `None` without repeats.
    pub(super) fn from_repeats(repeats: Vec<TrialResult>, core_counts: CoreCounts) -> Option<Self> {
        let median_of = |read_figure: &dyn Fn(&TrialResult) -> f64| {
            median(repeats.iter().map(read_figure)).map(round_significant)
        };
        let median_count = |read_figure: &dyn Fn(&TrialResult) -> u64| {
            median(repeats.iter().map(|trial| read_figure(trial) as f64))
                .map_or(0, |figure| figure.round() as u64)
        };
        let process_names: Vec<String> =
            repeats.first()?.cpu_us_per_request.processes.keys().cloned().collect();
        let value_of =
            |map: &BTreeMap<String, f64>, name: &str| map.get(name).copied().unwrap_or(0.0);
        let cpu_by_process = process_names.iter().map(|name| {
            let figure = median_of(&|trial| value_of(&trial.cpu_us_per_request.processes, name));
            (name.clone(), figure.unwrap_or(0.0))
        });
        let memory_by_process = process_names.iter().map(|name| {
            let figure =
                median_count(&|trial| trial.memory_kib.processes.get(name).copied().unwrap_or(0));
            (name.clone(), figure)
        });
        let latency_ms = LatencyMs {
            mean: median_of(&|trial| trial.latency_ms.mean)?,
            p50: median_of(&|trial| trial.latency_ms.p50)?,
            p90: median_of(&|trial| trial.latency_ms.p90)?,
            p95: median_of(&|trial| trial.latency_ms.p95)?,
            p99: median_of(&|trial| trial.latency_ms.p99)?,
            p999: median_of(&|trial| trial.latency_ms.p999)?,
            max: median_of(&|trial| trial.latency_ms.max)?,
        };
        let busy_proxy_cores = median(repeats.iter().map(|trial| trial.cores_busy.proxies))?;
        let busy_load_cores =
            median(repeats.iter().map(|trial| trial.cores_busy.load_and_applications))?;
        let other_processes = |trial: &TrialResult| {
            trial.cores_busy.other_processes_on_proxy_cores
                + trial.cores_busy.other_processes_on_load_cores
        };
        let other_on_proxy_cores =
            median(repeats.iter().map(|trial| trial.cores_busy.other_processes_on_proxy_cores))?;
        let range = figure_ranges(&repeats);
        let instruction_counts = repeats.iter().filter_map(|trial| trial.instructions_per_request);
        Some(Self {
            instructions_per_request: median(instruction_counts).map(round_significant),
            rps: median_of(&|trial| trial.rps)?,
            latency_ms,
            cpu_us_per_request: CpuCost {
                sum: median_of(&|trial| trial.cpu_us_per_request.sum)?,
                processes: cpu_by_process.collect(),
            },
            memory_kib: MemoryKib {
                idle_private: median_count(&|trial| trial.memory_kib.idle_private),
                load_private: median_count(&|trial| trial.memory_kib.load_private),
                load_pss: median_count(&|trial| trial.memory_kib.load_pss),
                processes: memory_by_process.collect(),
            },
            requests: repeats.iter().map(|trial| trial.requests).sum(),
            failed: repeats.iter().map(|trial| trial.errors).sum(),
            noisy: noisy_figures(&range),
            range,
            ratio_to_leno: None,
            ratio_to_baseline: None,
            other_processes_cores: round_significant(
                repeats.iter().map(other_processes).fold(0.0, f64::max),
            ),
            limited_by: throughput_limit(
                busy_proxy_cores + other_on_proxy_cores
                    >= SATURATED_SHARE * core_counts.proxy_cores as f64,
                busy_load_cores >= SATURATED_SHARE * core_counts.load_cores as f64,
            ),
            repeats,
        })
    }

    /// True if processes outside the trial used a significant part of the cores.
    pub(super) fn is_disturbed(&self) -> bool {
        self.other_processes_cores > DISTURBED_ABOVE
    }

    /// Returns short notes for tables, such as `noisy`.
    pub(super) fn short_notes(&self) -> Vec<String> {
        let failed = (self.failed > 0).then(|| format!("{} failed", self.failed));
        let load_bound =
            (self.limited_by == ThroughputLimit::Load).then(|| "load-bound".to_owned());
        let noisy = (!self.noisy.is_empty()).then(|| "noisy".to_owned());
        let disturbed = self.is_disturbed().then(|| "disturbed".to_owned());
        [failed, load_bound, noisy, disturbed].into_iter().flatten().collect()
    }

    /// Returns the ratio of a figure to the user's baseline: leno by default.
    pub(super) fn ratio_to_baseline(&self, figure: &str) -> Option<f64> {
        let ratios = self.ratio_to_baseline.as_ref().or(self.ratio_to_leno.as_ref())?;
        ratios.get(figure).copied()
    }

    /// Returns the median ratio to another contender, by figure. Results of the same repeat are compared, because a
    /// disturbance at that time affects both of them. Figures that are zero for either contender are omitted.
    pub(super) fn ratios_to(&self, other: &Self) -> BTreeMap<&'static str, f64> {
        let median_ratio = |figure: &RepeatFigure| {
            let pairs = self.repeats.iter().filter_map(|own_repeat| {
                // The other contender may have failed in this repeat.
                let other_repeat =
                    other.repeats.iter().find(|candidate| candidate.repeat == own_repeat.repeat)?;
                let (own_figure, other_figure) =
                    ((figure.read_figure)(own_repeat), (figure.read_figure)(other_repeat));
                (own_figure > 0.0 && other_figure > 0.0).then_some(own_figure / other_figure)
            });
            Some((figure.name, round_significant(median(pairs)?)))
        };
        FIGURES.iter().filter_map(median_ratio).collect()
    }
}

fn throughput_limit(are_proxies_busy: bool, is_load_busy: bool) -> ThroughputLimit {
    match (are_proxies_busy, is_load_busy) {
        (true, _) => ThroughputLimit::Proxies,
        (false, true) => ThroughputLimit::Load,
        (false, false) => ThroughputLimit::Neither,
    }
}

fn figure_ranges(repeats: &[TrialResult]) -> BTreeMap<&'static str, RepeatRange> {
    let named_range = |figure: &RepeatFigure| {
        let figures: Vec<f64> = repeats.iter().map(figure.read_figure).collect();
        Some((figure.name, RepeatRange::from_figures(&figures)?))
    };
    FIGURES.iter().filter_map(named_range).collect()
}

fn noisy_figures(ranges: &BTreeMap<&'static str, RepeatRange>) -> Vec<&'static str> {
    let is_noisy = |figure: &&RepeatFigure| {
        let threshold = figure.noisy_above.unwrap_or(f64::INFINITY);
        ranges.get(figure.name).is_some_and(|range| range.spread > threshold)
    };
    FIGURES.iter().filter(is_noisy).map(|figure| figure.name).collect()
}
