//! Outcomes: aggregated repeats of one contender in one case, and ratios to the others.

use std::collections::BTreeMap;

use serde::Serialize;

use super::statistics::{RepeatRange, median, round_significant};
use super::trial::{CpuCost, LatencyMs, MemoryKib, RunResult};

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
    /// Requests of all repeats, and failures among them.
    pub(super) requests: u64,
    pub(super) failed: u64,
    /// The minimum and maximum of the repeats, by figure.
    pub(super) range: BTreeMap<&'static str, RepeatRange>,
    /// The figures with a spread above the noise threshold.
    pub(super) noisy: Vec<&'static str>,
    /// The median ratio to leno in the same repeat, by figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_leno: Option<BTreeMap<&'static str, f64>>,
    /// The same for another baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_baseline: Option<BTreeMap<&'static str, f64>>,
    /// The maximum number of benchmark cores that unrelated processes kept busy.
    pub(super) other_processes_cores: f64,
    /// The limit of the throughput: `proxies`, or `load` if the proxies had spare capacity.
    pub(super) limited_by: ThroughputLimit,
    pub(super) repeats: Vec<RunResult>,
}

/// The limit of the throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ThroughputLimit {
    /// The cores of the proxies were busy.
    Proxies,
    /// The cores of load and applications were busy.
    Load,
    /// Neither: connections waited for each other, or the rate was fixed.
    Neither,
}

/// A figure of repeats.
#[derive(Debug, Clone, Copy)]
pub(super) struct RepeatFigure {
    pub(super) name: &'static str,
    pub(super) read: fn(&RunResult) -> f64,
    /// The spread above which it counts as noisy; never if absent.
    noisy_above: Option<f64>,
}

/// All compared figures, the most important first.
pub(super) const FIGURES: &[RepeatFigure] = &[
    RepeatFigure {
        name: "cpu_us_per_request",
        read: |t| t.cpu_us_per_request.sum,
        noisy_above: Some(NOISY_ABOVE),
    },
    RepeatFigure { name: "rps", read: |t| t.rps, noisy_above: Some(NOISY_ABOVE) },
    RepeatFigure {
        name: "latency_p50",
        read: |t| t.latency_ms.p50,
        noisy_above: Some(NOISY_ABOVE),
    },
    RepeatFigure { name: "latency_p90", read: |t| t.latency_ms.p90, noisy_above: None },
    RepeatFigure { name: "latency_p95", read: |t| t.latency_ms.p95, noisy_above: None },
    RepeatFigure {
        name: "latency_p99",
        read: |t| t.latency_ms.p99,
        noisy_above: Some(TAIL_NOISY_ABOVE),
    },
    RepeatFigure { name: "latency_p999", read: |t| t.latency_ms.p999, noisy_above: None },
    RepeatFigure {
        name: "idle_private",
        read: |t| t.memory_kib.idle_private as f64,
        noisy_above: Some(NOISY_ABOVE),
    },
    RepeatFigure {
        name: "load_private",
        read: |t| t.memory_kib.load_private as f64,
        noisy_above: Some(NOISY_ABOVE),
    },
    RepeatFigure { name: "load_pss", read: |t| t.memory_kib.load_pss as f64, noisy_above: None },
];

/// The noise threshold: the spread of repeats as a share of their median.
pub(super) const NOISY_ABOVE: f64 = 0.15;
/// The noise threshold of the 99th percentile: tail latencies vary more.
pub(super) const TAIL_NOISY_ABOVE: f64 = 0.5;
/// The share of time from which a busy core counts as saturated.
const BUSY_SHARE: f64 = 0.95;
/// The number of cores busy with unrelated processes above which a run counts as disturbed.
pub(super) const DISTURBED_ABOVE: f64 = 0.1;

impl ContenderOutcome {
    /// Aggregates repeats; `None` without any. `cores` are the numbers of cores of the proxies, and of load and
    /// applications.
    pub(super) fn from_repeats(repeats: Vec<RunResult>, cores: (f64, f64)) -> Option<Self> {
        let median_of =
            |of: &dyn Fn(&RunResult) -> f64| median(repeats.iter().map(of)).map(round_significant);
        let median_count = |of: &dyn Fn(&RunResult) -> u64| {
            median(repeats.iter().map(|t| of(t) as f64)).map_or(0, |figure| figure.round() as u64)
        };
        let process_names = |trial: &RunResult| -> Vec<String> {
            trial.cpu_us_per_request.processes.keys().cloned().collect()
        };
        let process_names = repeats.first().map(process_names)?;
        let value_of =
            |map: &BTreeMap<String, f64>, name: &str| map.get(name).copied().unwrap_or(0.0);
        let processes = process_names.iter().map(|name| {
            let figure = median_of(&|t| value_of(&t.cpu_us_per_request.processes, name));
            (name.clone(), figure.unwrap_or(0.0))
        });
        let memories = process_names.iter().map(|name| {
            let figure = median_count(&|t| t.memory_kib.processes.get(name).copied().unwrap_or(0));
            (name.clone(), figure)
        });
        let latency_ms = LatencyMs {
            mean: median_of(&|t| t.latency_ms.mean)?,
            p50: median_of(&|t| t.latency_ms.p50)?,
            p90: median_of(&|t| t.latency_ms.p90)?,
            p95: median_of(&|t| t.latency_ms.p95)?,
            p99: median_of(&|t| t.latency_ms.p99)?,
            p999: median_of(&|t| t.latency_ms.p999)?,
            max: median_of(&|t| t.latency_ms.max)?,
        };
        let busy_proxies = median(repeats.iter().map(|t| t.cores_busy.proxies))?;
        let busy_load = median(repeats.iter().map(|t| t.cores_busy.load_and_applications))?;
        let other_processes = |t: &RunResult| {
            t.cores_busy.other_processes_on_proxy_cores + t.cores_busy.other_processes_on_load_cores
        };
        let other_on_proxy_cores =
            median(repeats.iter().map(|t| t.cores_busy.other_processes_on_proxy_cores))?;
        let range = figure_ranges(&repeats);
        let instructions = repeats.iter().filter_map(|t| t.instructions_per_request);
        Some(Self {
            instructions_per_request: median(instructions).map(round_significant),
            rps: median_of(&|t| t.rps)?,
            latency_ms,
            cpu_us_per_request: CpuCost {
                sum: median_of(&|t| t.cpu_us_per_request.sum)?,
                processes: processes.collect(),
            },
            memory_kib: MemoryKib {
                idle_private: median_count(&|t| t.memory_kib.idle_private),
                load_private: median_count(&|t| t.memory_kib.load_private),
                load_pss: median_count(&|t| t.memory_kib.load_pss),
                processes: memories.collect(),
            },
            requests: repeats.iter().map(|t| t.requests).sum(),
            failed: repeats.iter().map(|t| t.errors).sum(),
            noisy: noisy_figures(&range),
            range,
            ratio_to_leno: None,
            ratio_to_baseline: None,
            other_processes_cores: round_significant(
                repeats.iter().map(other_processes).fold(0.0, f64::max),
            ),
            limited_by: match (
                busy_proxies + other_on_proxy_cores >= BUSY_SHARE * cores.0,
                busy_load >= BUSY_SHARE * cores.1,
            ) {
                (true, _) => ThroughputLimit::Proxies,
                (false, true) => ThroughputLimit::Load,
                (false, false) => ThroughputLimit::Neither,
            },
            repeats,
        })
    }

    /// True if unrelated processes used some of the cores.
    pub(super) fn is_disturbed(&self) -> bool {
        self.other_processes_cores > DISTURBED_ABOVE
    }

    /// Returns short notes for the reader, such as `noisy`.
    pub(super) fn reader_notes(&self) -> Vec<String> {
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

    /// Returns the median ratio to another contender in the same repeat, by figure: a disturbance of both
    /// affects the ratio less. Figures that are zero on either side are omitted.
    pub(super) fn ratios_to(&self, reference: &Self) -> BTreeMap<&'static str, f64> {
        let ratio = |figure: &RepeatFigure| {
            let pairs = self.repeats.iter().filter_map(|own| {
                let other = reference.repeats.iter().find(|other| other.repeat == own.repeat)?;
                let (own, other) = ((figure.read)(own), (figure.read)(other));
                (own > 0.0 && other > 0.0).then_some(own / other)
            });
            Some((figure.name, round_significant(median(pairs)?)))
        };
        FIGURES.iter().filter_map(ratio).collect()
    }
}

fn figure_ranges(repeats: &[RunResult]) -> BTreeMap<&'static str, RepeatRange> {
    let range = |figure: &RepeatFigure| {
        let figures: Vec<f64> = repeats.iter().map(figure.read).collect();
        Some((figure.name, RepeatRange::from_figures(&figures)?))
    };
    FIGURES.iter().filter_map(range).collect()
}

fn noisy_figures(ranges: &BTreeMap<&'static str, RepeatRange>) -> Vec<&'static str> {
    let is_noisy = |figure: &&RepeatFigure| {
        let threshold = figure.noisy_above.unwrap_or(f64::INFINITY);
        ranges.get(figure.name).is_some_and(|range| range.spread > threshold)
    };
    FIGURES.iter().filter(is_noisy).map(|figure| figure.name).collect()
}
