//! The suite `gateway-ratings`: measures two call paths of the sample application bookinfo, as in osm-edge's
//! "Data plane benchmarking". Clients call the service ratings, or a gateway that calls ratings for each request.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::bench::case::{ApplicationKind, BenchCase};
use crate::bench::cores::Cores;
use crate::bench::driver::LoadGenerator;
use crate::bench::layout::Layout;
use crate::bench::options::{STARTUP_TIME, SuiteDefaults, SuiteOptions};
use crate::bench::outcome::ContenderOutcome;
use crate::bench::report::{FigureTable, PlotData, PlotKind, PublishedTable, SuiteReport};
use crate::bench::session::{self, Suite};
use crate::bench::spring;
use crate::bench::statistics::{median, round_significant};
use crate::bench::testbed::BenchDefaultPolicy;

/// Arguments of `leno bench gateway-ratings`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GatewayRatingsArgs {
    /// Number of connections, each with one request at a time, like JMeter's threads
    #[arg(long, value_name = "N", default_value_t = 200)]
    connections: u32,
    /// Cores for all sidecars together; one case per value [default: 1, and 2 if there are two]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Applications
    #[arg(long, value_enum, default_value_t)]
    app: ApplicationKind,
    #[command(flatten)]
    pub(crate) options: SuiteOptions,
}

impl GatewayRatingsArgs {
    /// Creates the arguments with which `leno bench all` runs the suite.
    pub(crate) fn with_options(options: SuiteOptions) -> Self {
        Self { connections: 200, cores: Vec::new(), app: ApplicationKind::BuiltIn, options }
    }

    /// Measures the cases and returns the report.
    ///
    /// # Errors
    /// If no case can be measured.
    pub(crate) async fn measure(&self) -> anyhow::Result<SuiteReport> {
        let mut cases = Vec::new();
        for (call_path, entry_role) in CALL_PATHS {
            for core_count in self.core_counts() {
                cases.push(self.build_case(call_path, entry_role, core_count));
            }
        }
        let defaults = match self.app {
            ApplicationKind::BuiltIn => DEFAULTS,
            ApplicationKind::Spring => {
                SuiteDefaults { startup_time: STARTUP_TIME + spring::STARTUP_TIME, ..DEFAULTS }
            }
        };
        let mut report = session::measure_suite(&SUITE, &self.options, defaults, &cases).await?;
        if self.app == ApplicationKind::Spring {
            report.notes.push(spring::ABOUT.to_owned());
        }
        report.not_shown.extend(self.limitations().into_iter().map(str::to_owned));
        report.tables.push(measured_table(&report));
        report.plots = build_plots(&report);
        Ok(report)
    }

    /// Returns the differences from the published benchmark that depend on the arguments. [`SUITE`] lists the others.
    fn limitations(&self) -> Vec<&'static str> {
        let applications = match self.app {
            ApplicationKind::BuiltIn => {
                "Spring applications: these are small Rust programs; --app spring runs Spring applications"
            }
            ApplicationKind::Spring => {
                "warm Java virtual machines: each run starts new ones, which warm up only during --warmup"
            }
        };
        let load_generator = (self.options.driver() != LoadGenerator::Jmeter)
            .then_some("JMeter as the load generator: use --driver jmeter");
        [Some(applications), load_generator].into_iter().flatten().collect()
    }

    /// Returns the numbers of cores that all sidecars share, one per case. The default is that of the published benchmark:
    /// 1 and 2 cores, as far as this machine has them.
    fn core_counts(&self) -> Vec<usize> {
        let available = Cores::available().map_or(1, |cores| cores.count());
        match self.cores.as_slice() {
            [] => [1, 2].into_iter().filter(|count| *count <= available).collect(),
            core_counts => core_counts.to_vec(),
        }
    }

    fn build_case(
        &self,
        call_path: &str,
        entry_role: &'static str,
        core_count: usize,
    ) -> BenchCase {
        let mut case = BenchCase::keep_alive_pair(self.connections, 0);
        // The applications of bookinfo determine the size of their responses.
        case.parameters.remove("body_bytes");
        BenchCase {
            name: format!("{call_path}, sidecars on {}", format_core_count(core_count)),
            layout: Layout::Bookinfo,
            application_kind: self.app,
            targets: vec![(entry_role, "/ratings/1".to_owned())],
            proxy_cores: Some(core_count),
            default_policy: BenchDefaultPolicy::Allow,
            ..case
                .with_parameter("link", call_path)
                .with_parameter("proxy_cores", core_count)
                .with_parameter("app", json!(self.app))
        }
    }
}

fn format_core_count(core_count: usize) -> String {
    match core_count {
        1 => "1 core".to_owned(),
        core_count => format!("{core_count} cores"),
    }
}

/// Returns the measured figures in the columns of the published table, one row per case and contender.
fn measured_table(report: &SuiteReport) -> FigureTable {
    let columns = [
        "link",
        "case",
        "TPS",
        "p90 ms",
        "p95 ms",
        "p99 ms",
        "sidecars CPU %",
        "sidecars MiB",
        "failed",
    ];
    let mut rows = Vec::new();
    for case in &report.cases {
        let parameter_text = |name: &str| match case.parameters.get(name) {
            // `to_string` would add the quotes of JSON.
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        for contender in &report.contenders {
            // A contender without a successful trial in this case has no row.
            let Some(outcome) = case.contenders.get(&contender.name) else {
                continue;
            };
            let label = match contender.name.as_str() {
                // Without sidecars, the cores of the load generator and the applications limit the throughput.
                "none" => match &case.load_cores {
                    Some(cores) => format!("no mesh, load on {}", format_core_count(cores.count())),
                    None => "no mesh".to_owned(),
                },
                name => format!("{name}, {} CPU", parameter_text("proxy_cores")),
            };
            let latency = &outcome.latency_ms;
            rows.push(vec![
                json!(parameter_text("link")),
                json!(label),
                json!(outcome.rps),
                json!(latency.p90),
                json!(latency.p95),
                json!(latency.p99),
                sidecars_cpu_percent(outcome),
                sidecars_memory_mib(outcome),
                json!(outcome.failed),
            ]);
        }
    }
    FigureTable {
        title: "Two call paths of bookinfo, without and with a mesh".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }
}

/// Returns the CPU usage of all sidecars together, in percent of a core; null without sidecars.
fn sidecars_cpu_percent(outcome: &ContenderOutcome) -> Value {
    let busy_cores = outcome.repeats.iter().map(|trial| trial.cores_busy.proxies);
    let median_cores = median(busy_cores).filter(|median_cores| *median_cores > 0.0);
    median_cores.map_or(Value::Null, |median_cores| json!(round_significant(median_cores * 100.0)))
}

/// Returns the private memory of all sidecars together under load, in MiB; null without sidecars.
fn sidecars_memory_mib(outcome: &ContenderOutcome) -> Value {
    match outcome.memory_kib.load_private {
        0 => Value::Null,
        kib => json!(round_significant(kib as f64 / 1024.0)),
    }
}

/// Builds one bar chart per figure, with a group of bars per case. A figure of 0 has no bar: the contender has no
/// sidecars.
fn build_plots(report: &SuiteReport) -> Vec<PlotData> {
    let build_plot = |title: &str, caption: &str, figure_of: fn(&ContenderOutcome) -> f64| {
        let series = report.contenders.iter().map(|contender| {
            let points = report.cases.iter().map(|case| {
                case.contenders.get(&contender.name).map(figure_of).filter(|figure| *figure > 0.0)
            });
            (contender.name.clone(), points.collect())
        });
        let has_points =
            |(_, points): &(String, Vec<Option<f64>>)| points.iter().any(Option::is_some);
        PlotData {
            title: title.to_owned(),
            caption: caption.to_owned(),
            x_labels: report.cases.iter().map(|case| case.name.clone()).collect(),
            series: series.filter(has_points).collect(),
            kind: PlotKind::Bars,
        }
    };
    vec![
        build_plot("Throughput", "requests per second. More is better", |outcome| outcome.rps),
        build_plot("99th percentile", "milliseconds at p99. Less is better", |outcome| {
            outcome.latency_ms.p99
        }),
        build_plot(
            "CPU of the sidecars per request",
            "µs, all sidecars together. Less is better",
            |outcome| outcome.cpu_us_per_request.sum,
        ),
        build_plot(
            "Memory of the sidecars",
            "private MiB under load, all sidecars together. Less is better",
            |outcome| outcome.memory_kib.load_private as f64 / 1024.0,
        ),
    ]
}

/// The name of each measured call path ("link" in reports), and the role of the port to which clients send its requests.
const CALL_PATHS: [(&str, &str); 2] =
    [("ratings", "entry-ratings"), ("gateway-ratings", "entry-gateway")];

const SUITE: Suite = Suite {
    name: "gateway-ratings",
    title: "Two call paths of bookinfo",
    about: "200 clients, each with one request at a time, call ratings, and a gateway that calls ratings \
        for each request. Without a mesh, and with a sidecar for the clients and for each service: \
        default policy allow, mutual TLS. All sidecars of a contender share one core, or two.",
    published: &[PublishedTable {
        title: "osm-edge's \"Data plane benchmarking\"",
        source: "benchmark.md of osm-edge 1.1.0: K3s on two machines with 16 vCPU and 32 GB, load from a \
            third machine with JMeter 5.5, 200 threads, 2 minutes of warm-up and 5 minutes of measurement, \
            Spring bookinfo, permissive with mutual TLS",
        columns: &["case", "TPS", "p90 ms", "p95 ms", "p99 ms", "CPU", "memory"],
        rows: &[
            &["no mesh", "3283", "87", "89", "97", "–", "–"],
            &["osm-edge (Pipy), sidecar with 2 CPU", "3395", "77", "79", "84", "130 %", "52 MB"],
            &["OSM (Envoy), 2 CPU", "2189", "102", "104", "109", "200 %", "108 MB"],
            &["osm-edge (Pipy), 1 CPU", "2839", "76", "77", "79", "100 %", "34 MB"],
            &["OSM (Envoy), 1 CPU", "1097", "201", "203", "285", "100 %", "105 MB"],
        ],
        diagnostic: "A mesh that is faster than no mesh indicates another bottleneck: in this case the Spring \
            applications. The page does not specify the sidecar of the CPU and memory figures.",
    }],
    not_shown: &[
        "a separate limit for each sidecar: here all sidecars of a contender share the cores",
        "the network: all processes run on one machine, over loopback",
    ],
};

/// The defaults with the built-in applications. Spring applications start more slowly.
pub(super) const DEFAULTS: SuiteDefaults = SuiteDefaults {
    contenders: &["none", "leno", "envoy"],
    duration: Duration::from_secs(10),
    repeats: 3,
    startup_time: STARTUP_TIME,
};

const EXAMPLES: &str = "\
Examples:
  leno bench gateway-ratings
  leno bench gateway-ratings --budget 3m --html report.html
  leno bench gateway-ratings --cores 1 --contenders none,leno
  leno bench gateway-ratings --driver jmeter --warmup 20s --duration 60s
  leno bench gateway-ratings --app spring --driver jmeter --warmup 2m --duration 5m --repeats 1
";
