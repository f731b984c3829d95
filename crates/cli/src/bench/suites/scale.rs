//! The suite `scale`: many sidecars that join at once and receive changes, as in OSM's "Scalability".

mod goals;

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::bench::contender::{BenchObservability, Contender};
use crate::bench::html::AxisScale;
use crate::bench::layout::Layout;
use crate::bench::mesh_services;
use crate::bench::mesh_size::{self, ChangeMeasurement, MeshSetup};
use crate::bench::options::{self, SuiteDefaults, SuiteOptions};
use crate::bench::progress::BenchProgress;
use crate::bench::report::{
    FigureTable, MeshMeasurement, PlotData, PlotKind, PublishedTable, SuiteReport,
};
use crate::bench::session::{self, Suite};
use crate::bench::statistics::{median, round_significant};
use crate::bench::testbed::BenchDefaultPolicy;

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
        self.sidecars.len() * DEFAULT_POLICIES.len()
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
            .build_report(&runner.testbed, Layout::Http)?;
        report.contenders.push(leno);
        // The control plane has one core; sidecars and applications share the others.
        runner.allocate_cores(1);
        let steps = self.mesh_count() * runner.repeats as usize;
        let mut progress = BenchProgress::new(steps, runner.trial_duration());
        let max_sidecars = self.sidecars.iter().max();
        for sidecar_count in &self.sidecars {
            for default_policy in DEFAULT_POLICIES {
                runner.testbed.default_policy = default_policy;
                // Changes take long to measure, and the goals for them apply to the largest mesh.
                let changes = if Some(sidecar_count) == max_sidecars {
                    ChangeMeasurement::Yes
                } else {
                    ChangeMeasurement::No
                };
                let setup =
                    MeshSetup { sidecars: *sidecar_count, real_sidecars: self.real, changes };
                let mut repeats = Vec::new();
                for repeat in 1..=runner.repeats {
                    let default_policy = default_policy.as_str();
                    progress.begin_step(&format!(
                        "{sidecar_count} sidecars, {default_policy}, repeat {repeat}"
                    ));
                    repeats.push(
                        mesh_size::measure_mesh(&runner.testbed, setup, runner.timing).await?,
                    );
                }
                report.meshes.extend(median_mesh(&repeats));
            }
        }
        runner.testbed.default_policy = BenchDefaultPolicy::Allow;
        for service_count in &self.services {
            let service_figures =
                mesh_services::measure_services(&runner.testbed, *service_count).await?;
            report.services.push(service_figures);
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
        report.tables.push(measured_table(&report.meshes));
        report.tables.extend(goals::goal_table(&report.meshes, &report.services));
        report.tables.extend(goals::change_cost_table(&report.meshes));
        report.plots = build_plots(&report.meshes);
        report.elapsed_s = started.elapsed().as_secs_f64();
        Ok(report)
    }
}

/// Returns the medians of the repeats of one mesh; `None` without repeats.
fn median_mesh(repeats: &[MeshMeasurement]) -> Option<MeshMeasurement> {
    let median_of = |figure_of: fn(&MeshMeasurement) -> f64| {
        round_significant(median(repeats.iter().map(figure_of)).unwrap_or(0.0))
    };
    let first_repeat = repeats.first()?;
    Some(MeshMeasurement {
        sidecars: first_repeat.sidecars,
        mode: first_repeat.mode,
        rollout_s: median_of(|mesh| mesh.rollout_s),
        rollout_cpu_s: median_of(|mesh| mesh.rollout_cpu_s),
        rollout_cores: median_of(|mesh| mesh.rollout_cores),
        rollout_memory_mib: median_of(|mesh| mesh.rollout_memory_mib),
        steady_cores: median_of(|mesh| mesh.steady_cores),
        steady_memory_mib: median_of(|mesh| mesh.steady_memory_mib),
        empty_memory_mib: median_of(|mesh| mesh.empty_memory_mib),
        per_sidecar_kib: median_of(|mesh| mesh.per_sidecar_kib),
        sidecar_memory_mib: median_of(|mesh| mesh.sidecar_memory_mib),
        // Each repeat already aggregates many changes.
        changes: first_repeat.changes,
    })
}

/// A figure of a mesh, with its name.
type NamedFigure = (&'static str, fn(&MeshMeasurement) -> f64);

const FIGURES: [NamedFigure; 7] = [
    ("rollout, s", |mesh| mesh.rollout_s),
    ("control plane CPU at rollout, s", |mesh| mesh.rollout_cpu_s),
    ("control plane CPU at rollout, cores", |mesh| mesh.rollout_cores),
    ("control plane memory at rollout, MiB", |mesh| mesh.rollout_memory_mib),
    ("control plane CPU when steady, cores", |mesh| mesh.steady_cores),
    ("control plane memory when steady, MiB", |mesh| mesh.steady_memory_mib),
    ("memory of one sidecar, MiB", |mesh| mesh.sidecar_memory_mib),
];

fn meshes_with_policy(
    meshes: &[MeshMeasurement],
    default_policy: BenchDefaultPolicy,
) -> impl Iterator<Item = &MeshMeasurement> {
    meshes.iter().filter(move |mesh| mesh.mode == default_policy)
}

/// Returns the measured figures in the form of the published table, with a column per size of mesh.
fn measured_table(meshes: &[MeshMeasurement]) -> FigureTable {
    // Meshes with the default policy allow have the same sizes.
    let sizes =
        meshes_with_policy(meshes, BenchDefaultPolicy::Deny).map(|mesh| mesh.sidecars.to_string());
    let columns = ["sidecars".to_owned()].into_iter().chain(sizes).collect();
    let mut rows = Vec::new();
    for default_policy in DEFAULT_POLICIES {
        for (name, figure_of) in FIGURES {
            let first_cell = Value::String(format!("{name}, {}", default_policy.as_str()));
            let figures =
                meshes_with_policy(meshes, default_policy).map(|mesh| json!(figure_of(mesh)));
            rows.push([first_cell].into_iter().chain(figures).collect());
        }
    }
    FigureTable { title: "Meshes by size".to_owned(), columns, rows }
}

fn build_plots(meshes: &[MeshMeasurement]) -> Vec<PlotData> {
    let build_plot =
        |title: &str, caption: &str, figure_of: fn(&MeshMeasurement) -> f64| PlotData {
            title: title.to_owned(),
            caption: caption.to_owned(),
            x_labels: meshes_with_policy(meshes, BenchDefaultPolicy::Deny)
                .map(|mesh| mesh.sidecars.to_string())
                .collect(),
            series: DEFAULT_POLICIES
                .iter()
                .map(|default_policy| {
                    let points = meshes_with_policy(meshes, *default_policy)
                        .map(|mesh| Some(figure_of(mesh)));
                    (default_policy.as_str().to_owned(), points.collect())
                })
                .collect(),
            kind: PlotKind::Lines(AxisScale::Linear),
        };
    vec![
        build_plot("Memory of the control plane", "MiB when steady, by sidecars", |mesh| {
            mesh.steady_memory_mib
        }),
        build_plot("CPU of a rollout", "seconds of the control plane, by sidecars", |mesh| {
            mesh.rollout_cpu_s
        }),
        build_plot(
            "Time of a rollout",
            "seconds until every sidecar has every endpoint that it uses, by sidecars",
            |mesh| mesh.rollout_s,
        ),
        build_plot("Memory of one sidecar", "private MiB, by sidecars of the mesh", |mesh| {
            mesh.sidecar_memory_mib
        }),
    ]
}

const DEFAULT_POLICIES: [BenchDefaultPolicy; 2] =
    [BenchDefaultPolicy::Deny, BenchDefaultPolicy::Allow];
/// The default number of sidecars that are real processes, enough for traffic between them.
const REAL_SIDECARS: usize = 50;
/// The approximate time per mesh for starting, joining, changes and reconnects.
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
