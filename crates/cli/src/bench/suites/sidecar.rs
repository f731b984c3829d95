//! The suite `sidecar`: the proxies alone, between a load generator and a small server.

use std::time::Duration;

use clap::Args;

use crate::bench::case::BenchCase;
use crate::bench::driver::ConnectionMode;
use crate::bench::layout::Layout;
use crate::bench::options::{STARTUP_TIME, SuiteDefaults, SuiteOptions};
use crate::bench::report::SuiteReport;
use crate::bench::session::{self, Suite};

/// Arguments of `leno bench sidecar`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SidecarArgs {
    /// Connections of the load generator; one case per value
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "200")]
    connections: Vec<u32>,
    /// Bytes of each response; one case per value
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "1024")]
    body: Vec<usize>,
    /// Traffic; one case per value
    #[arg(long, value_enum, value_delimiter = ',', default_value = "http")]
    work: Vec<TrafficKind>,
    #[command(flatten)]
    pub(crate) options: SuiteOptions,
}

/// The traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum TrafficKind {
    /// HTTP/1.1 on keep-alive connections
    Http,
    /// HTTP/1.1 with a new connection for each request
    Fresh,
    /// Opaque TCP
    Tcp,
}

impl SidecarArgs {
    /// Creates the arguments with which `leno bench all` runs the suite.
    pub(crate) fn with_options(options: SuiteOptions) -> Self {
        Self {
            connections: vec![1, 200, 1000],
            body: vec![1024],
            work: vec![TrafficKind::Http, TrafficKind::Tcp],
            options,
        }
    }

    /// Measures the cases and returns the report.
    ///
    /// # Errors
    /// If no case can be measured.
    pub(crate) async fn measure(&self) -> anyhow::Result<SuiteReport> {
        session::measure_suite(&SUITE, &self.options, DEFAULTS, &self.build_cases()).await
    }

    fn build_cases(&self) -> Vec<BenchCase> {
        let mut cases = Vec::new();
        for work in &self.work {
            for connections in &self.connections {
                for body_bytes in &self.body {
                    cases.push(build_case(*work, *connections, *body_bytes));
                }
            }
        }
        cases
    }
}

fn build_case(work: TrafficKind, connections: u32, body_bytes: usize) -> BenchCase {
    let case = BenchCase::keep_alive_pair(connections, body_bytes);
    let name = case.name.clone();
    match work {
        TrafficKind::Http => case.with_parameter("work", "http"),
        TrafficKind::Fresh => BenchCase {
            name: format!("{name}, fresh connections"),
            connection_mode: ConnectionMode::Fresh,
            ..case.with_parameter("work", "fresh")
        },
        TrafficKind::Tcp => BenchCase {
            name: format!("{name}, opaque TCP"),
            layout: Layout::Tcp,
            ..case.with_parameter("work", "tcp")
        },
    }
}

const SUITE: Suite = Suite {
    name: "sidecar",
    title: "The proxies alone",
    about: "A load generator, a pair of proxies with mutual TLS between them, and a small HTTP server. The \
        proxies share one core, and load generator and server have the others, so that the figures are \
        those of the proxies alone.",
    published: &[],
    not_shown: &[
        "the network: all processes run on one machine, over loopback",
        "features that are enabled only for `leno-seen`, such as access logs and traces",
        "the scaling of a contender to more cores than it has here",
    ],
};

const DEFAULTS: SuiteDefaults = SuiteDefaults {
    contenders: &["leno", "leno-seen", "envoy", "haproxy", "nginx", "none", "floor"],
    duration: Duration::from_secs(5),
    repeats: 3,
    startup_time: STARTUP_TIME,
};

const EXAMPLES: &str = "\
Examples:
  leno bench sidecar
  leno bench sidecar --contenders leno,envoy --connections 200 --duration 5s --repeats 3 -o json
  leno bench sidecar --connections 1,50,200,1000 --body 100,1024,10240,102400 --budget 20m
  leno bench sidecar --contenders leno,leno-seen --repeats 9     # the cost of traces, logs and metrics over OTLP
  leno bench sidecar --work http,fresh,tcp --html report.html
  leno bench sidecar --contenders leno,command:mine.yaml
";
