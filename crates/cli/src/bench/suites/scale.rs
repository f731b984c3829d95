//! The suite `scale`: many sidecars that join at once and receive changes, as in OSM's "Scalability".

mod goals;

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::bench::contender::{BenchObservability, Contender};
use crate::bench::html::AxisScale;
use crate::bench::layout::Layout;
use crate::bench::mesh_services;
use crate::bench::mesh_size::{self, ChangeMeasurement, CrowdSize};
use crate::bench::options::{self, SuiteDefaults, SuiteOptions};
use crate::bench::progress::BenchProgress;
use crate::bench::report::{
    FigureTable, MeshSize, PlotData, PlotKind, PublishedTable, SuiteReport,
};
use crate::bench::rig::BenchDefaultPolicy;
use crate::bench::session::{self, Suite};
use crate::bench::statistics::{median, round_significant};

/// Arguments of `leno bench scale`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ScaleArgs {
    /// Number of sidecars; one mesh per value, with default policy deny and allow
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "200,400,800,1600")]
    sidecars: Vec<usize>,
    /// Number of sidecars that are real processes
    #[arg(long, value_name = "N", default_value_t = REAL_SIDECARS)]
    real: usize,
    /// Number of services of additional meshes, in which one sidecar uses five
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10,10000")]
    services: Vec<usize>,
    #[command(flatten)]
    pub(crate) options: SuiteOptions,
}

impl ScaleArgs {
    /// Creates the arguments with which `leno bench all` runs the suite.
    pub(crate) fn with_options(options: SuiteOptions) -> Self {
        Self {
            sidecars: vec![200, 400, 800, 1600],
            real: REAL_SIDECARS,
            services: vec![10, 10_000],
            options,
        }
    }

    /// Returns the number of meshes.
    pub(crate) fn mesh_count(&self) -> usize {
        self.sidecars.len() * MODES.len()
    }

    /// Measures the meshes and returns the report.
    ///
    /// # Errors
    /// If a mesh does not start.
    pub(crate) async fn measure(&self) -> anyhow::Result<SuiteReport> {
        let started = Instant::now();
        let mut runner = self.options.build_runner(DEFAULTS, self.mesh_count())?;
        let mut report = session::blank_report(&SUITE);
        let leno = Contender::Leno(BenchObservability::Nothing)
            .check_support(&runner.rig, Layout::Http)?;
        report.contenders.push(leno);
        runner.allocate_cores(1);
        let steps = self.mesh_count() * runner.repeats as usize;
        let mut progress = BenchProgress::new(steps, runner.trial_duration());
        let largest = self.sidecars.iter().max();
        for sidecars in &self.sidecars {
            for mode in MODES {
                runner.rig.default_policy = mode;
                let changes = if Some(sidecars) == largest {
                    ChangeMeasurement::Yes
                } else {
                    ChangeMeasurement::No
                };
                let crowd = CrowdSize { sidecars: *sidecars, real_sidecars: self.real, changes };
                let mut repeats = Vec::new();
                for repeat in 1..=runner.repeats {
                    let mode = mode.as_str();
                    progress.begin_step(&format!("{sidecars} sidecars, {mode}, repeat {repeat}"));
                    repeats.push(mesh_size::measure_mesh(&runner.rig, crowd, runner.timing).await?);
                }
                report.meshes.extend(median_mesh(&repeats));
            }
        }
        runner.rig.default_policy = BenchDefaultPolicy::Allow;
        for services in &self.services {
            let measured = mesh_services::measure_services(&runner.rig, *services).await?;
            report.services.push(measured);
        }
        report.notes.push(format!(
            "{} of the sidecars are real processes; the others are clients that implement the whole \
             protocol, all in one process, without traffic. Each uses {} services of {} workloads; the \
             real ones call each other continuously during the changes, if there are at least twenty",
            self.real,
            mesh_size::USED_SERVICES,
            mesh_size::WORKLOADS_PER_SERVICE
        ));
        if self.options.has_contenders() {
            report.notes.push("this suite measures leno only".to_owned());
        }
        report.settings = Some(options::runner_settings(&runner));
        report.tables.push(published_table(&report.meshes));
        report.tables.extend(goals::goal_table(&report.meshes, &report.services));
        report.tables.extend(goals::change_cost_table(&report.meshes));
        report.plots = build_plots(&report.meshes);
        report.elapsed_s = started.elapsed().as_secs_f64();
        Ok(report)
    }
}

/// Returns the medians of the repeats of one mesh; `None` without repeats.
fn median_mesh(repeats: &[MeshSize]) -> Option<MeshSize> {
    let median_of = |figure: fn(&MeshSize) -> f64| {
        round_significant(median(repeats.iter().map(figure)).unwrap_or(0.0))
    };
    let first = repeats.first()?;
    Some(MeshSize {
        sidecars: first.sidecars,
        mode: first.mode,
        rollout_s: median_of(|m| m.rollout_s),
        rollout_cpu_s: median_of(|m| m.rollout_cpu_s),
        rollout_cores: median_of(|m| m.rollout_cores),
        rollout_memory_mib: median_of(|m| m.rollout_memory_mib),
        steady_cores: median_of(|m| m.steady_cores),
        steady_memory_mib: median_of(|m| m.steady_memory_mib),
        empty_memory_mib: median_of(|m| m.empty_memory_mib),
        per_sidecar_kib: median_of(|m| m.per_sidecar_kib),
        sidecar_memory_mib: median_of(|m| m.sidecar_memory_mib),
        // Each repeat already aggregates many changes.
        changes: first.changes,
    })
}

/// A figure of a mesh, with its name.
type NamedFigure = (&'static str, fn(&MeshSize) -> f64);

const FIGURES: [NamedFigure; 7] = [
    ("rollout, s", |m| m.rollout_s),
    ("control plane CPU at rollout, s", |m| m.rollout_cpu_s),
    ("control plane CPU at rollout, cores", |m| m.rollout_cores),
    ("control plane memory at rollout, MiB", |m| m.rollout_memory_mib),
    ("control plane CPU when steady, cores", |m| m.steady_cores),
    ("control plane memory when steady, MiB", |m| m.steady_memory_mib),
    ("memory of one sidecar, MiB", |m| m.sidecar_memory_mib),
];

fn meshes_of_mode(
    meshes: &[MeshSize],
    mode: BenchDefaultPolicy,
) -> impl Iterator<Item = &MeshSize> {
    meshes.iter().filter(move |mesh| mesh.mode == mode)
}

/// Returns the figures in the form of the published table.
fn published_table(meshes: &[MeshSize]) -> FigureTable {
    let sizes =
        meshes_of_mode(meshes, BenchDefaultPolicy::Deny).map(|mesh| mesh.sidecars.to_string());
    let columns = ["sidecars".to_owned()].into_iter().chain(sizes).collect();
    let mut rows = Vec::new();
    for mode in MODES {
        for (name, figure_of) in FIGURES {
            let first = Value::String(format!("{name}, {}", mode.as_str()));
            let figures = meshes_of_mode(meshes, mode).map(|mesh| json!(figure_of(mesh)));
            rows.push([first].into_iter().chain(figures).collect());
        }
    }
    FigureTable { title: "Meshes by size".to_owned(), columns, rows }
}

fn build_plots(meshes: &[MeshSize]) -> Vec<PlotData> {
    let plot = |title: &str, about: &str, figure_of: fn(&MeshSize) -> f64| PlotData {
        title: title.to_owned(),
        about: about.to_owned(),
        x_labels: meshes_of_mode(meshes, BenchDefaultPolicy::Deny)
            .map(|mesh| mesh.sidecars.to_string())
            .collect(),
        series: MODES
            .iter()
            .map(|mode| {
                let points = meshes_of_mode(meshes, *mode).map(|mesh| Some(figure_of(mesh)));
                (mode.as_str().to_owned(), points.collect())
            })
            .collect(),
        kind: PlotKind::Lines(AxisScale::Linear),
    };
    vec![
        plot("Memory of the control plane", "MiB when steady, by sidecars", |m| {
            m.steady_memory_mib
        }),
        plot("CPU of a rollout", "seconds of the control plane, by sidecars", |m| m.rollout_cpu_s),
        plot(
            "Time of a rollout",
            "seconds until every sidecar has every endpoint that it uses, by sidecars",
            |m| m.rollout_s,
        ),
        plot("Memory of one sidecar", "private MiB, by sidecars of the mesh", |m| {
            m.sidecar_memory_mib
        }),
    ]
}

const MODES: [BenchDefaultPolicy; 2] = [BenchDefaultPolicy::Deny, BenchDefaultPolicy::Allow];
/// The default number of sidecars that are real processes, enough for traffic between them.
const REAL_SIDECARS: usize = 50;
/// The approximate time for starting, joining, changes and reconnects.
const STARTUP_ESTIMATE: Duration = Duration::from_secs(90);

const SUITE: Suite = Suite {
    name: "scale",
    title: "Many sidecars at once",
    about: "A control plane with a core of its own, and sidecars that all join at once: each exchanges a \
        token for a certificate, subscribes to the control plane, and receives every endpoint of the \
        services that it uses. A rollout ends when the last sidecar has received the last endpoint and \
        every real sidecar is ready. In the largest mesh endpoints move, a rule changes and the control \
        plane is killed, while real sidecars forward traffic.",
    published: &[PublishedTable {
        title: "OSM's \"Scalability\", repeated by osm-edge and FSM",
        source: "perf-scale.md of OSM (April 2022), osm-edge and FSM; 100 AKS nodes with 2 vCPU \
                 and 7 GB, pods deployed at once, load generator off",
        columns: &["pods", "200", "400", "800", "1600"],
        rows: &[
            &["control plane memory, MB (chart)", "538", "682–722", "1249–1341", "2140–2201"],
            &[
                "CPU at rollout, cores (osm-edge chart / OSM chart)",
                "0.016 / 0.66",
                "0.90 / 0.87",
                "0.92 / 1.2",
                "2.3 / 2.3",
            ],
            &["CPU when steady, cores", "0.03–0.06", "–", "–", "–"],
            &["sidecar memory, allow, MB (average)", "106", "192", "–", "–"],
        ],
        diagnostic: "2.2 GB and 2.3 cores were measured under the stated default quota of 1 GB and 1.5 cores. \
            The page states `Sidecar memory does not change with the size of the mesh (50 MB)` as well as \
            140 MB and 106 to 192 MB.",
    }],
    not_shown: &[
        "Kubernetes, where the pods themselves take most of the time of a rollout",
        "injection, and traffic while sidecars join",
        "networks: all processes run on one machine",
    ],
};

pub(super) const DEFAULTS: SuiteDefaults = SuiteDefaults {
    contenders: &["leno"],
    duration: Duration::from_secs(5),
    repeats: 1,
    startup_time: STARTUP_ESTIMATE,
};

const EXAMPLES: &str = "\
Examples:
  leno bench scale
  leno bench scale --sidecars 100,200 --budget 1m -o json
";
