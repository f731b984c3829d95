//! Defines the report of a suite: the structure of its JSON form, from which the text and HTML forms are rendered.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::contender::ContenderReport;
use super::cores::Cores;
use super::driver::LoadGenerator;
use super::html::AxisScale;
use super::machine::MachineInfo;
use super::mesh_services::MeshServices;
use super::outcome::ContenderOutcome;
use super::testbed::BenchDefaultPolicy;

/// The results of a suite.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SuiteReport {
    pub(super) suite: &'static str,
    pub(super) title: &'static str,
    /// A description of the suite, in a paragraph.
    pub(super) about: &'static str,
    /// The start time in UTC.
    pub(super) began: String,
    pub(super) elapsed_s: f64,
    pub(super) command: Vec<String>,
    pub(super) machine: MachineInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) settings: Option<MeasurementSettings>,
    pub(super) contenders: Vec<ContenderReport>,
    pub(super) skipped: Vec<SkippedContender>,
    pub(super) cases: Vec<CaseReport>,
    /// The cost of meshes of different sizes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) meshes: Vec<MeshMeasurement>,
    /// The cost of sidecars in meshes with few and with many services.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) services: Vec<MeshServices>,
    /// The figures of the cases in the form of the published table, and derived figures.
    pub(super) tables: Vec<FigureTable>,
    #[serde(skip)]
    pub(super) plots: Vec<PlotData>,
    /// Published figures of other projects.
    pub(super) published: Vec<PublishedTable>,
    /// Observations during the measurement that a reader needs to interpret the figures.
    pub(super) notes: Vec<String>,
    /// The properties of real deployments that the figures do not show.
    pub(super) not_shown: Vec<String>,
}

impl SuiteReport {
    /// Returns a warning with the number of unreliable results; `None` if all results are reliable.
    pub(super) fn reliability_warning(&self) -> Option<String> {
        let outcomes = || self.cases.iter().flat_map(|case| case.contenders.values());
        let disturbed = outcomes().filter(|outcome| outcome.is_disturbed()).count();
        let noisy = outcomes().filter(|outcome| !outcome.noisy.is_empty()).count();
        (disturbed + noisy > 0).then(|| {
            format!(
                "Of {} results {disturbed} were disturbed by other programs on this machine, and in \
                 {noisy} the repeats disagree. Ratios and CPU per request are affected least.",
                outcomes().count()
            )
        })
    }

    /// Returns the name of the baseline of ratios: leno unless the user selected another contender.
    pub(super) fn baseline_name(&self) -> &str {
        self.settings.as_ref().map_or("leno", |settings| &settings.baseline)
    }
}

/// The settings of the measurement.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MeasurementSettings {
    pub(super) duration_s: f64,
    pub(super) warm_up_s: f64,
    pub(super) repeats: u32,
    /// The random seed of the order of contenders in each repeat.
    pub(super) seed: u64,
    pub(super) driver: LoadGenerator,
    pub(super) driver_version: String,
    pub(super) baseline: String,
    /// The noise threshold: the spread of repeats as a share of their median.
    pub(super) noisy_above: f64,
    /// The noise threshold of 99th percentiles.
    pub(super) tail_noisy_above: f64,
    /// The number of cores busy with unrelated processes above which a trial counts as disturbed.
    pub(super) disturbed_above: f64,
}

/// A contender that was skipped, fully or in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct SkippedContender {
    pub(super) name: String,
    pub(super) reason: String,
}

/// The results of one case.
#[derive(Debug, Clone, Serialize)]
pub(super) struct CaseReport {
    pub(super) name: String,
    pub(super) parameters: Map<String, Value>,
    /// The cores of the proxies; all cores if absent.
    pub(super) proxy_cores: Option<Cores>,
    /// The cores of the load generator and the applications; all cores if absent.
    pub(super) load_cores: Option<Cores>,
    /// Results by contender.
    pub(super) contenders: BTreeMap<String, ContenderOutcome>,
}

/// The measured cost of one mesh, for its control plane and its sidecars.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct MeshMeasurement {
    /// The number of sidecars, real and simulated ones.
    pub(super) sidecars: usize,
    /// The default policy of the mesh, which reports call `mode`.
    pub(super) mode: BenchDefaultPolicy,
    /// The time until every sidecar has all endpoints of its services, in seconds.
    pub(super) rollout_s: f64,
    /// CPU time of the control plane for the rollout, in seconds.
    pub(super) rollout_cpu_s: f64,
    /// The number of cores that the control plane kept busy during the rollout.
    pub(super) rollout_cores: f64,
    /// The peak resident memory of the control plane.
    pub(super) rollout_memory_mib: f64,
    /// The number of cores that the control plane keeps busy after the rollout, without changes.
    pub(super) steady_cores: f64,
    /// Private memory of the control plane after the rollout.
    pub(super) steady_memory_mib: f64,
    /// Private memory of the control plane before the first sidecar joins.
    pub(super) empty_memory_mib: f64,
    /// The increase of the control plane's private memory per sidecar.
    pub(super) per_sidecar_kib: f64,
    /// The median private memory of real sidecars.
    pub(super) sidecar_memory_mib: f64,
    /// The cost of changes; `None` if they were not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) changes: Option<MeshChanges>,
}

/// The cost of changes in a mesh while real sidecars carry traffic. The figures `endpoint_*` are those of one endpoint that
/// changes its address several times, and `rule_*` those of a rule for all sidecars that changes several times; all of the
/// latter are 0 with `defaultPolicy: allow`, which has no rules. In the storm (`storm_*`) all endpoints change their
/// addresses one after the other, at a constant rate. For `reconnect_*` the control plane is killed and started again.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct MeshChanges {
    /// The number of sidecars that use the moved endpoint.
    pub(super) users: usize,
    /// The time until these sidecars receive a change: the median, and the 99th percentile.
    pub(super) endpoint_p50_ms: f64,
    pub(super) endpoint_p99_ms: f64,
    /// The number of messages to sidecars that do not use the endpoint.
    pub(super) endpoint_to_non_users: usize,
    /// Updated sidecars per change.
    pub(super) endpoint_recipients: f64,
    /// Bytes sent per change.
    pub(super) endpoint_bytes: f64,
    /// The time until sidecars apply a change: the median, and the 99th percentile.
    pub(super) rule_p50_ms: f64,
    pub(super) rule_p99_ms: f64,
    /// The number of sidecars that did not apply a change in time.
    pub(super) rule_missed: usize,
    /// Updated sidecars per change.
    pub(super) rule_recipients: f64,
    /// Bytes sent per change.
    pub(super) rule_bytes: f64,
    /// The duration of the storm.
    pub(super) storm_s: f64,
    /// Changes per second.
    pub(super) storm_per_s: f64,
    /// The time until sidecars receive a change: the median, and the 99th percentile.
    pub(super) storm_p50_ms: f64,
    pub(super) storm_p99_ms: f64,
    /// The number of changes that a sidecar did not receive in time, summed over all sidecars.
    pub(super) storm_missed: usize,
    /// The number of cores that the control plane kept busy.
    pub(super) storm_cores: f64,
    /// Updated sidecars per change.
    pub(super) storm_recipients: f64,
    /// Bytes sent per change.
    pub(super) storm_bytes: f64,
    /// The time until all sidecars are connected and in sync.
    pub(super) reconnect_s: f64,
    /// Bytes sent to all sidecars.
    pub(super) reconnect_bytes: f64,
    /// The peak memory of the new process.
    pub(super) reconnect_memory_mib: f64,
    /// The number of requests through real sidecars during all changes, including failed ones.
    pub(super) requests: u64,
    /// The number of these requests that failed.
    pub(super) failed: u64,
}

/// Figures in rows and columns.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FigureTable {
    pub(super) title: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Value>>,
}

/// The form of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlotKind {
    /// A line per contender, for a quantity on the x axis.
    Lines(AxisScale),
    /// Grouped bars, for unrelated cases on the x axis.
    Bars,
}

/// Figures of contenders for a plot.
#[derive(Debug, Clone)]
pub(super) struct PlotData {
    pub(super) title: String,
    /// The text below the title: the meaning of the figures, and their unit.
    pub(super) caption: String,
    pub(super) x_labels: Vec<String>,
    /// The name of each contender or default policy, and its figure for each label of the x axis; `None` if missing.
    pub(super) series: Vec<(String, Vec<Option<f64>>)>,
    pub(super) kind: PlotKind,
}

/// A published table of another project.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PublishedTable {
    pub(super) title: &'static str,
    pub(super) source: &'static str,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: &'static [&'static [&'static str]],
    /// Remarks on the published figures, such as contradictions in them.
    pub(super) diagnostic: &'static str,
}
