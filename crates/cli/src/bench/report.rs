//! The report of a suite, as programs read it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::contender::Facts;
use super::cores::Cores;
use super::driver::Driver;
use super::html::Scale;
use super::machine::Machine;
use super::mesh_services::MeshServices;
use super::outcome::Outcome;
use super::rig::TrafficMode;

/// All that a suite found out.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    pub(super) suite: &'static str,
    pub(super) title: &'static str,
    /// What it measures, in a paragraph.
    pub(super) about: &'static str,
    /// When it began, in UTC.
    pub(super) began: String,
    pub(super) elapsed_s: f64,
    pub(super) command: Vec<String>,
    pub(super) machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) settings: Option<Settings>,
    pub(super) contenders: Vec<Facts>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) cases: Vec<CaseReport>,
    /// What meshes of different sizes took.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) meshes: Vec<MeshSize>,
    /// What sidecars took in meshes of few and of many services.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) services: Vec<MeshServices>,
    /// The same figures in the shape of the published table, and what follows from them.
    pub(super) tables: Vec<FigureTable>,
    #[serde(skip)]
    pub(super) plots: Vec<Plot>,
    /// What others have published about the same.
    pub(super) published: Vec<Published>,
    /// What was seen on the way and a reader has to know.
    pub(super) notes: Vec<String>,
    /// What these figures do not show.
    pub(super) not_shown: Vec<String>,
}

impl Report {
    /// How many results are to be taken with care; nothing when none are.
    pub(super) fn caution(&self) -> Option<String> {
        let outcomes = || self.cases.iter().flat_map(|case| case.contenders.values());
        let disturbed = outcomes().filter(|outcome| outcome.is_disturbed()).count();
        let noisy = outcomes().filter(|outcome| !outcome.noisy.is_empty()).count();
        (disturbed + noisy > 0).then(|| {
            format!(
                "Of {} results {disturbed} were disturbed by other programs on this machine, and \
                 in {noisy} the repeats disagree. Ratios and CPU for each request suffer least.",
                outcomes().count()
            )
        })
    }

    /// The name above ratios.
    pub(super) fn baseline(&self) -> &str {
        self.settings.as_ref().map_or("leno", |settings| &settings.baseline)
    }
}

/// How it was measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Settings {
    pub(super) duration_s: f64,
    pub(super) warm_up_s: f64,
    pub(super) repeats: u32,
    /// Decides the order of contenders in each repeat.
    pub(super) seed: u64,
    pub(super) driver: Driver,
    pub(super) driver_version: String,
    pub(super) baseline: String,
    /// Repeats that differ by more than this part of their median are called noisy.
    pub(super) noisy_above: f64,
    /// The same for 99th percentiles.
    pub(super) tail_noisy_above: f64,
    /// Strangers that keep more of a core busy than this have disturbed a run.
    pub(super) disturbed_above: f64,
}

/// A contender that took no part, or only a small one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Skipped {
    pub(super) name: String,
    pub(super) reason: String,
}

/// What came of one case.
#[derive(Debug, Clone, Serialize)]
pub(super) struct CaseReport {
    pub(super) name: String,
    pub(super) parameters: Map<String, Value>,
    /// Where proxies, and load with applications, ran; anywhere when absent.
    pub(super) proxy_cores: Option<Cores>,
    pub(super) load_cores: Option<Cores>,
    /// By name.
    pub(super) contenders: BTreeMap<String, Outcome>,
}

/// What a mesh of some size took of its control plane and of its sidecars.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct MeshSize {
    pub(super) sidecars: usize,
    pub(super) mode: TrafficMode,
    /// Until every sidecar knew every endpoint that it uses.
    pub(super) rollout_s: f64,
    /// What the control plane spent on that, and how many cores that kept busy.
    pub(super) rollout_cpu_s: f64,
    pub(super) rollout_cores: f64,
    /// The most memory it had resident.
    pub(super) rollout_memory_mib: f64,
    /// When nothing changed any more.
    pub(super) steady_cores: f64,
    pub(super) steady_memory_mib: f64,
    /// The same before anybody joined, and what each sidecar added.
    pub(super) empty_memory_mib: f64,
    pub(super) per_sidecar_kib: f64,
    /// Private memory of one real sidecar, the median of them.
    pub(super) sidecar_memory_mib: f64,
    /// What changes took, where some were made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) changes: Option<MeshChanges>,
}

/// What changes in a mesh took, while real sidecars carried traffic.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct MeshChanges {
    /// One endpoint moves: who uses it, until they heard of it, and what that cost.
    pub(super) users: usize,
    pub(super) endpoint_p50_ms: f64,
    pub(super) endpoint_p99_ms: f64,
    pub(super) endpoint_to_others: usize,
    pub(super) endpoint_touched: f64,
    pub(super) endpoint_bytes: f64,
    /// A rule that everybody obeys changes; nothing in permissive mode, where there is none.
    pub(super) rule_p50_ms: f64,
    pub(super) rule_p99_ms: f64,
    pub(super) rule_missed: usize,
    pub(super) rule_touched: f64,
    pub(super) rule_bytes: f64,
    /// Endpoints move all the time.
    pub(super) storm_s: f64,
    pub(super) storm_per_s: f64,
    pub(super) storm_p50_ms: f64,
    pub(super) storm_p99_ms: f64,
    pub(super) storm_missed: usize,
    pub(super) storm_cores: f64,
    pub(super) storm_touched: f64,
    pub(super) storm_bytes: f64,
    /// The control plane is killed and starts again: until all are back, what they were sent, and
    /// the most memory that took.
    pub(super) back_s: f64,
    pub(super) back_bytes: f64,
    pub(super) back_memory_mib: f64,
    /// Requests through real sidecars meanwhile.
    pub(super) requests: u64,
    pub(super) failed: u64,
}

/// Figures in rows and columns.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FigureTable {
    pub(super) title: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Value>>,
}

/// How figures are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A line for each contender: what is below is a quantity.
    Lines(Scale),
    /// Bars in groups: what is below are different things.
    Bars,
}

/// Figures of contenders to be drawn.
#[derive(Debug, Clone)]
pub(super) struct Plot {
    pub(super) title: String,
    /// What the figures are, with their unit.
    pub(super) about: String,
    pub(super) x: Vec<String>,
    /// By contender; nothing where there is no figure.
    pub(super) series: Vec<(String, Vec<Option<f64>>)>,
    pub(super) form: Form,
}

/// A table that others have published.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Published {
    pub(super) title: &'static str,
    pub(super) source: &'static str,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: &'static [&'static [&'static str]],
    /// What to know when reading it.
    pub(super) remark: &'static str,
}
