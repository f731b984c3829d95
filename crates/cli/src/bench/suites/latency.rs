//! The suite `latency`: constant rates from one client to three services, as in OSM's "Performance".

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::bench::case::BenchCase;
use crate::bench::html::AxisScale;
use crate::bench::layout::Layout;
use crate::bench::options::{STARTUP_TIME, SuiteDefaults, SuiteOptions};
use crate::bench::outcome::ContenderOutcome;
use crate::bench::report::{FigureTable, PlotData, PlotKind, PublishedTable, SuiteReport};
use crate::bench::session::{self, Suite};
use crate::bench::statistics::{round_significant, slope};

/// Arguments of `leno bench latency`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LatencyArgs {
    /// Requests per second; one case per value
    #[arg(long, value_name = "R", value_delimiter = ',', default_value = "100,500,1000,2000,4000")]
    rates: Vec<u32>,
    /// Connections of the load generator, divided among the services
    #[arg(long, value_name = "N", default_value_t = 48)]
    connections: u32,
    #[command(flatten)]
    pub(crate) options: SuiteOptions,
}

impl LatencyArgs {
    /// Creates the arguments with which `leno bench all` runs the suite.
    pub(crate) fn with_options(options: SuiteOptions) -> Self {
        Self { rates: vec![100, 500, 1000, 2000, 4000], connections: 48, options }
    }

    /// Measures the cases and returns the report.
    ///
    /// # Errors
    /// If no case can be measured.
    pub(crate) async fn measure(&self) -> anyhow::Result<SuiteReport> {
        let cases: Vec<BenchCase> = self.rates.iter().map(|rate| self.build_case(*rate)).collect();
        let mut report = session::measure_suite(&SUITE, &self.options, DEFAULTS, &cases).await?;
        report.tables.push(latency_table(&report));
        report.tables.push(sidecar_table(&report));
        report.plots = build_plots(&report);
        Ok(report)
    }

    fn build_case(&self, rate: u32) -> BenchCase {
        let targets = ["entry-1", "entry-2", "entry-3"];
        BenchCase {
            name: format!("{rate} requests per second"),
            layout: Layout::Fan,
            targets: targets.map(|role| (role, "/1024".to_owned())).to_vec(),
            rate: Some(rate),
            ..BenchCase::keep_alive_pair(self.connections, 1024)
                .with_parameter("rate", rate)
                .with_parameter("services", 3)
        }
    }
}

/// Returns the column headings: `first_heading`, and the rate of each case.
fn column_headings(report: &SuiteReport, first_heading: &str) -> Vec<String> {
    let rates = report.cases.iter().map(|case| match case.parameters.get("rate") {
        Some(rate) => format!("{rate}/s"),
        None => case.name.clone(),
    });
    [first_heading.to_owned()].into_iter().chain(rates).collect()
}

/// Returns a figure of a contender in each case; `None` for cases without a result.
fn figures_per_case(
    report: &SuiteReport,
    name: &str,
    figure_of: impl Fn(&ContenderOutcome) -> f64,
) -> Vec<Option<f64>> {
    report.cases.iter().map(|case| case.contenders.get(name).map(&figure_of)).collect()
}

fn contender_names(report: &SuiteReport) -> impl Iterator<Item = &str> {
    report.contenders.iter().map(|contender| contender.name.as_str())
}

fn table_row(first_cell: String, figures: Vec<Option<f64>>) -> Vec<Value> {
    let figure_cells =
        figures.into_iter().map(|figure| figure.map_or(Value::Null, |figure| json!(figure)));
    [Value::String(first_cell)].into_iter().chain(figure_cells).collect()
}

/// The name of a percentile, and the function that reads it from an outcome.
type Percentile = (&'static str, fn(&ContenderOutcome) -> f64);

fn latency_table(report: &SuiteReport) -> FigureTable {
    let mut rows = Vec::new();
    let percentiles: [Percentile; 5] = [
        ("p50", |outcome| outcome.latency_ms.p50),
        ("p90", |outcome| outcome.latency_ms.p90),
        ("p95", |outcome| outcome.latency_ms.p95),
        ("p99", |outcome| outcome.latency_ms.p99),
        ("p99.9", |outcome| outcome.latency_ms.p999),
    ];
    for (percentile, figure_of) in percentiles {
        for name in contender_names(report) {
            rows.push(table_row(
                format!("{percentile} ms, {}", describe_contender(name)),
                figures_per_case(report, name, figure_of),
            ));
        }
    }
    let title = "Latency without and with a mesh, in milliseconds".to_owned();
    FigureTable { title, columns: column_headings(report, "percentile"), rows }
}

/// Describes a contender in the terms of the published table.
fn describe_contender(name: &str) -> String {
    match name {
        "none" => "without".to_owned(),
        name => format!("with {name}"),
    }
}

/// Returns the CPU and memory of the client's sidecar, which carries all requests, in three rows per mesh. The last column
/// is the slope of the CPU usage over the rate.
fn sidecar_table(report: &SuiteReport) -> FigureTable {
    let mut rows = Vec::new();
    for name in contender_names(report).filter(|name| *name != "none") {
        let cores = figures_per_case(report, name, client_cores);
        let memory_mib = figures_per_case(report, name, |outcome| {
            outcome.memory_kib.processes.get(CLIENT).map_or(0.0, |kib| *kib as f64 / 1024.0)
        });
        let cpu_per_request = figures_per_case(report, name, |outcome| {
            outcome.cpu_us_per_request.processes.get(CLIENT).copied().unwrap_or(0.0)
        });
        let points = report.cases.iter().zip(&cores).filter_map(|(case, cores)| {
            let rate = case.parameters.get("rate")?.as_f64()?;
            Some((rate / 100.0, (*cores)?))
        });
        let cores_per_100_rps = slope(&points.collect::<Vec<_>>())
            .map_or(Value::Null, |slope| json!(round_significant(slope)));
        for (label, figures, last_cell) in [
            ("CPU cores", cores, cores_per_100_rps),
            ("CPU µs/request", cpu_per_request, Value::Null),
            ("private MiB", memory_mib, Value::Null),
        ] {
            let mut row = table_row(format!("{name}, {label}"), figures);
            row.push(last_cell);
            rows.push(row);
        }
    }
    let mut columns = column_headings(report, "sidecar of the client");
    columns.push("cores per 100/s".to_owned());
    let title = "Sidecar on the path of all requests".to_owned();
    FigureTable { title, columns, rows }
}

/// Returns the number of cores that the client's sidecar keeps busy; 0 without sidecars.
fn client_cores(outcome: &ContenderOutcome) -> f64 {
    let us_per_request = outcome.cpu_us_per_request.processes.get(CLIENT).copied().unwrap_or(0.0);
    round_significant(us_per_request * outcome.rps / 1e6)
}

/// Builds one line chart per figure. A figure of 0 has no point: the contender has no sidecars.
fn build_plots(report: &SuiteReport) -> Vec<PlotData> {
    let build_plot =
        |title: &str,
         caption: &str,
         (figure_of, scale): (fn(&ContenderOutcome) -> f64, AxisScale)| {
            let series = contender_names(report).map(|name| {
                let points = figures_per_case(report, name, figure_of);
                (
                    name.to_owned(),
                    points.into_iter().map(|point| point.filter(|figure| *figure > 0.0)).collect(),
                )
            });
            PlotData {
                title: title.to_owned(),
                caption: caption.to_owned(),
                x_labels: column_headings(report, "").into_iter().skip(1).collect(),
                series: series
                    .filter(|(_, points): &(_, Vec<Option<f64>>)| {
                        points.iter().any(Option::is_some)
                    })
                    .collect(),
                kind: PlotKind::Lines(scale),
            }
        };
    vec![
        build_plot(
            "Median latency",
            "milliseconds at p50, by rate; logarithmic",
            (|outcome| outcome.latency_ms.p50, AxisScale::Logarithmic),
        ),
        build_plot(
            "99th percentile",
            "milliseconds at p99, by rate; logarithmic",
            (|outcome| outcome.latency_ms.p99, AxisScale::Logarithmic),
        ),
        build_plot(
            "CPU of the client's sidecar",
            "busy cores, by rate. Less is better",
            (client_cores, AxisScale::Linear),
        ),
        build_plot(
            "Memory of all sidecars",
            "private MiB under load, client and three servers together. Less is better",
            (|outcome| outcome.memory_kib.load_private as f64 / 1024.0, AxisScale::Linear),
        ),
    ]
}

/// The name of the client's sidecar in the figures by process.
const CLIENT: &str = "client";

const SUITE: Suite = Suite {
    name: "latency",
    title: "Latency at constant rates",
    about: "One client sends requests to three echo services at a constant rate, regardless of the \
        responses; latency counts from the scheduled time of a request. Without a mesh, and with a sidecar \
        in front of the client and of each service.",
    published: &[PublishedTable {
        title: "OSM's \"Performance\", repeated by osm-edge and FSM",
        source: "perf-scale.md of OSM (April 2022), osm-edge and FSM; 100 AKS nodes with 2 vCPU \
                 and 7 GB, load by a modified wrk2",
        columns: &["ms without / with mesh", "100/s", "500/s", "1000/s", "2000/s", "4000/s"],
        rows: &[
            &["p50", "0.7 / 0.9", "0.7 / 0.8", "0.7 / 1.0", "0.8 / 1.2", "0.7 / 1.6"],
            &["p90", "1.7 / 5.3", "1.8 / 5.2", "1.5 / 5.0", "1.7 / 4.3", "1.8 / 5.6"],
            &["p99", "4.4 / 9.6", "4.3 / 9.4", "4.2 / 9.7", "4.3 / 9.4", "4.5 / 9.8"],
            &["p99.9", "5.0 / 16.4", "6.1 / 18.0", "6.3 / 18.0", "6.3 / 18.2", "6.1 / 18.6"],
            &["sidecar CPU, cores (chart)", "0.04", "0.15", "0.26", "0.61", "1.21"],
            &["sidecar memory, MB (text)", "140", "140", "140", "140", "140"],
        ],
        diagnostic: "All three publish the same charts, measured with OSM and Envoy. The text states 0.1 core \
            per 100 requests per second, the chart shows 0.03; the page states both 140 MB and 50 MB of \
            memory for a sidecar. Machines and network were different: compare the differences, not the \
            figures.",
    }],
    not_shown: &[
        "the network: the published figures include one",
        "the distribution of the rate among pods: here one client generates all of it",
        "tail latencies of an otherwise idle machine, unless this one is idle",
    ],
};

pub(super) const DEFAULTS: SuiteDefaults = SuiteDefaults {
    contenders: &["none", "leno", "envoy"],
    duration: Duration::from_secs(10),
    repeats: 3,
    startup_time: STARTUP_TIME,
};

const EXAMPLES: &str = "\
Examples:
  leno bench latency
  leno bench latency --rates 500,1000 --budget 3m --html latency.html
";
