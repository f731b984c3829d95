//! Compares the figures of measured meshes with the goals for a mesh of 1,600 sidecars.

use serde_json::{Value, json};

use crate::bench::mesh_services::MeshServices;
use crate::bench::report::{FigureTable, MeshChanges, MeshMeasurement};
use crate::bench::statistics::round_significant;
use crate::bench::testbed::BenchDefaultPolicy;

/// A goal for one figure of a mesh, such as the memory of the control plane. Less is better for all figures.
struct Goal {
    /// The name of the figure, with its unit.
    name: &'static str,
    /// The value that the figure must not exceed.
    limit: f64,
    /// The value to aim at, below the limit; `None` if there is no aim beyond the limit.
    aim: Option<f64>,
    /// Returns the figure; `None` if it was not measured in the mesh.
    read_figure: fn(&MeshMeasurement) -> Option<f64>,
}

const fn define_goal(
    name: &'static str,
    limit: f64,
    aim: Option<f64>,
    read_figure: fn(&MeshMeasurement) -> Option<f64>,
) -> Goal {
    Goal { name, limit, aim, read_figure }
}

/// Returns a figure of the changes; `None` if no changes were measured in the mesh.
fn change_figure(mesh: &MeshMeasurement, read_figure: fn(&MeshChanges) -> f64) -> Option<f64> {
    mesh.changes.as_ref().map(read_figure)
}

/// Returns a figure of rule changes; `None` with `defaultPolicy: allow`, which has no rules, and if no changes were
/// measured.
fn rule_figure(mesh: &MeshMeasurement, read_figure: fn(&MeshChanges) -> f64) -> Option<f64> {
    let has_rules = mesh.mode == BenchDefaultPolicy::Deny;
    mesh.changes.as_ref().filter(|_| has_rules).map(read_figure)
}

/// The goals, in the order of the report. An endpoint moves when its sidecar changes the listener address; the clients of
/// the endpoint are the sidecars that use it. The figures of the storm (`storm_*`) are those of 200 moves per second.
const GOALS: [Goal; 13] = [
    define_goal("control plane private memory, all connected, MiB", 96.0, Some(64.0), |mesh| {
        Some(mesh.steady_memory_mib)
    }),
    define_goal("memory per further sidecar, KiB", 48.0, Some(32.0), |mesh| {
        Some(mesh.per_sidecar_kib)
    }),
    define_goal("all join at once: until the last is ready, s", 20.0, Some(10.0), |mesh| {
        Some(mesh.rollout_s)
    }),
    define_goal(
        "an endpoint moves: received by all its clients, p99 ms",
        500.0,
        Some(150.0),
        |mesh| change_figure(mesh, |changes| changes.endpoint_p99_ms),
    ),
    define_goal("an endpoint moves: messages to sidecars that do not use it", 0.0, None, |mesh| {
        change_figure(mesh, |changes| changes.endpoint_to_non_users as f64)
    }),
    define_goal("a mesh-wide rule changes: applied by all, p99 ms", 2000.0, Some(1000.0), |mesh| {
        rule_figure(mesh, |changes| changes.rule_p99_ms)
    }),
    define_goal("a mesh-wide rule changes: not applied in time", 0.0, None, |mesh| {
        rule_figure(mesh, |changes| changes.rule_missed as f64)
    }),
    define_goal("200 endpoints move each second: p99 ms", 1000.0, None, |mesh| {
        change_figure(mesh, |changes| changes.storm_p99_ms)
    }),
    define_goal("200 endpoints move each second: not received in time", 0.0, None, |mesh| {
        change_figure(mesh, |changes| changes.storm_missed as f64)
    }),
    define_goal("200 endpoints move each second: control plane, cores", 1.0, None, |mesh| {
        change_figure(mesh, |changes| changes.storm_cores)
    }),
    define_goal("idle control plane, cores", 0.01, None, |mesh| Some(mesh.steady_cores)),
    define_goal("all reconnect at once after a crash, s", 20.0, Some(10.0), |mesh| {
        change_figure(mesh, |changes| changes.reconnect_s)
    }),
    define_goal("requests through real sidecars that failed meanwhile", 0.0, None, |mesh| {
        change_figure(mesh, |changes| changes.failed as f64)
    }),
];

/// Compares the figures of the largest meshes with the goals. Goals that do not apply to a mesh because it is too small
/// have the result `–`. The last row compares the memory of a sidecar in the first and the last mesh of `service_measurements`.
/// Returns `None` unless changes were measured with both default policies.
pub(super) fn goal_table(
    meshes: &[MeshMeasurement],
    service_measurements: &[MeshServices],
) -> Option<FigureTable> {
    let deny_mesh = last_with_changes(meshes, BenchDefaultPolicy::Deny)?;
    let allow_mesh = last_with_changes(meshes, BenchDefaultPolicy::Allow)?;
    let goal_applies = deny_mesh.sidecars >= MIN_SIDECARS_FOR_GOALS;
    let mut rows: Vec<Vec<Value>> = GOALS
        .iter()
        .map(|Goal { name, limit, aim, read_figure }| {
            let figures = [read_figure(allow_mesh), read_figure(deny_mesh)];
            let worst_figure = figures.into_iter().flatten().fold(0.0, f64::max);
            let aim_cell = aim.map_or(json!("–"), |aim| json!(aim));
            vec![
                json!(name),
                json!(limit),
                aim_cell,
                format_figure(figures[0]),
                format_figure(figures[1]),
                format_result(goal_applies, worst_figure <= *limit),
            ]
        })
        .collect();
    if let (Some(first), Some(last)) = (service_measurements.first(), service_measurements.last()) {
        let growth = last.sidecar_kib as f64 / first.sidecar_kib.max(1) as f64;
        let name = format!(
            "sidecar private memory, {} → {} services in the mesh, times",
            first.services, last.services
        );
        let goal_applies = last.services >= MIN_SERVICES_FOR_GOAL;
        rows.push(vec![
            json!(name),
            json!(MAX_SIDECAR_GROWTH),
            json!(AIMED_SIDECAR_GROWTH),
            format_figure(Some(growth)),
            json!("–"),
            format_result(goal_applies, growth <= MAX_SIDECAR_GROWTH),
        ]);
    }
    Some(FigureTable {
        title: format!("Goals for {} sidecars", deny_mesh.sidecars),
        columns: ["figure", "at most", "aim", "allow", "deny", "holds"].map(str::to_owned).to_vec(),
        rows,
    })
}

/// Returns the cost of changes in counts that do not depend on the speed of the machine; `None` if no changes were
/// measured.
pub(super) fn change_cost_table(meshes: &[MeshMeasurement]) -> Option<FigureTable> {
    let changed_meshes: Vec<(&MeshMeasurement, &MeshChanges)> =
        meshes.iter().filter_map(|mesh| Some((mesh, mesh.changes.as_ref()?))).collect();
    changed_meshes.first()?;
    let build_row = |mesh: &MeshMeasurement, name: &str, recipients: f64, bytes: f64| {
        vec![
            json!(name),
            json!(mesh.mode),
            format_figure(Some(recipients)),
            format_figure(Some(bytes)),
        ]
    };
    let mut rows = Vec::new();
    for (mesh, changes) in changed_meshes {
        let moved_endpoint = format!("a moved endpoint with {} clients", changes.users);
        rows.push(build_row(
            mesh,
            &moved_endpoint,
            changes.endpoint_recipients,
            changes.endpoint_bytes,
        ));
        if mesh.mode == BenchDefaultPolicy::Deny {
            rows.push(build_row(
                mesh,
                "a mesh-wide rule changes",
                changes.rule_recipients,
                changes.rule_bytes,
            ));
        }
        rows.push(build_row(
            mesh,
            "one of many moved endpoints in a burst",
            changes.storm_recipients,
            changes.storm_bytes,
        ));
        rows.push(build_row(mesh, "all reconnect after a crash", 0.0, changes.reconnect_bytes));
    }
    Some(FigureTable {
        title: "The cost of a change".to_owned(),
        columns: ["change", "default policy", "proxies updated", "bytes of deltas"]
            .map(str::to_owned)
            .to_vec(),
        rows,
    })
}

/// Returns the last measured mesh with this default policy and with changes: changes are measured in the largest mesh only.
fn last_with_changes(
    meshes: &[MeshMeasurement],
    default_policy: BenchDefaultPolicy,
) -> Option<&MeshMeasurement> {
    meshes.iter().rfind(|mesh| mesh.mode == default_policy && mesh.changes.is_some())
}

/// Formats a figure, or `–` if it was not measured.
fn format_figure(figure: Option<f64>) -> Value {
    figure.map_or(json!("–"), |figure| json!(round_significant(figure)))
}

/// Returns the text of the column `holds`: `–` if the goal does not apply to the mesh.
fn format_result(goal_applies: bool, holds: bool) -> Value {
    match (goal_applies, holds) {
        (false, _) => json!("–"),
        (true, true) => json!("yes"),
        (true, false) => json!("no"),
    }
}

/// The minimum number of sidecars of a mesh that the goals apply to: that of the largest mesh in the published benchmark.
const MIN_SIDECARS_FOR_GOALS: usize = 1600;
/// The minimum number of services of a mesh that the goal for the memory of a sidecar applies to.
const MIN_SERVICES_FOR_GOAL: usize = 10_000;
/// The maximum growth of a sidecar's memory from the mesh with few services to the mesh with many, as a factor.
const MAX_SIDECAR_GROWTH: f64 = 1.1;
/// The growth to aim at: none, because a sidecar receives only the services that it uses.
const AIMED_SIDECAR_GROWTH: f64 = 1.0;
