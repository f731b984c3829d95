//! `leno load`: a load generator that reports latency and errors.

mod body;
mod csv;
mod live;
mod page;
mod plot;
mod rate;
mod request;
mod results;
mod run;
mod summary;
mod table;
mod target;
mod usage_error;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::body::{BodySize, parse_body_size};
use self::rate::{Rates, parse_rates, parse_share};
use self::request::{HeaderOption, parse_header};
use self::run::run;
use self::target::{WeightedUrl, parse_target};
use self::usage_error::UsageError;
use crate::duration::{parse_duration, parse_positive};
use crate::limits;
use crate::output;

/// Arguments of `leno load`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LoadArgs {
    /// Target URLs, optionally with a weight (1 unless given). A value in a query is not a weight: write
    /// `http://host/?id=7=2` for the weight 2
    #[arg(required = true, value_name = "URL[=WEIGHT]", value_parser = parse_target)]
    targets: Vec<WeightedUrl>,

    /// Number of connections; without --rate each sends its next request after the response to the previous one
    #[arg(short, long, value_name = "N", default_value_t = 50, help_heading = RATE_HEADING)]
    connections: usize,
    /// Requests per second, independent of the server's speed; latencies count from the scheduled time of a
    /// request. FROM:TO:STEP measures several rates in turn
    #[arg(long, value_name = "R|FROM:TO:STEP", value_parser = parse_rates, help_heading = RATE_HEADING)]
    rate: Option<Rates>,
    /// Duration of the measurement, for each rate [default: 10s]
    #[arg(short, long, value_name = "TIME", value_parser = parse_positive, help_heading = RATE_HEADING)]
    duration: Option<Duration>,
    /// The same as --duration, for several rates
    #[arg(long, value_name = "TIME", value_parser = parse_positive, requires = "rate",
          conflicts_with = "duration", help_heading = RATE_HEADING)]
    step_duration: Option<Duration>,
    /// Warm-up before the measurement, for each rate [default: 2s, or none with --requests]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = RATE_HEADING)]
    warmup: Option<Duration>,
    /// Exit after this many measured requests, or after --duration if it is set
    #[arg(short = 'n', long, value_name = "N", help_heading = RATE_HEADING)]
    requests: Option<u64>,
    /// Number of threads that share connections and rate; one is enough for most servers
    #[arg(short, long, value_name = "N", default_value_t = 1, help_heading = RATE_HEADING)]
    threads: usize,
    /// Random seed for the order of the targets
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = RATE_HEADING)]
    seed: u64,

    /// HTTP version; 2 is used with prior knowledge [default: 1.1]
    #[arg(long, value_enum, value_name = "VERSION", help_heading = CONNECTION_HEADING)]
    http: Option<HttpVersion>,
    /// Send unary gRPC calls: the path is /package.Service/Method, the body is the message
    #[arg(long, help_heading = CONNECTION_HEADING)]
    grpc: bool,
    /// Concurrent requests on each HTTP/2 connection [default: 1]
    #[arg(long, value_name = "N", help_heading = CONNECTION_HEADING)]
    streams: Option<usize>,
    /// Open a new connection for each request; latencies include the connection setup
    #[arg(long, help_heading = CONNECTION_HEADING)]
    disable_keepalive: bool,
    /// Send requests through this HTTP proxy
    #[arg(long, value_name = "HOST:PORT", help_heading = CONNECTION_HEADING)]
    proxy: Option<String>,
    /// Timeout for connecting, and for each response
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_positive,
          help_heading = CONNECTION_HEADING)]
    timeout: Duration,

    /// HTTP method [default: GET, or POST with a body]
    #[arg(short = 'X', long, value_name = "METHOD", help_heading = REQUEST_HEADING)]
    method: Option<String>,
    /// Request header; repeatable
    #[arg(short = 'H', long, value_name = "NAME:VALUE", value_parser = parse_header,
          help_heading = REQUEST_HEADING)]
    header: Vec<HeaderOption>,
    /// Request body
    #[arg(short, long, value_name = "TEXT", group = "content", help_heading = REQUEST_HEADING)]
    body: Option<String>,
    /// File with the request body
    #[arg(long, value_name = "PATH", group = "content", help_heading = REQUEST_HEADING)]
    body_file: Option<PathBuf>,
    /// Size of a generated request body in bytes, or with a unit: 10KiB, 1MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_body_size, group = "content",
          help_heading = REQUEST_HEADING)]
    body_size: Option<BodySize>,

    /// Maximum share of failed requests, such as 0.01 or 1%; above it the exit code is 1
    #[arg(long, value_name = "SHARE", value_parser = parse_share, help_heading = REPORT_HEADING)]
    max_errors: Option<f64>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, help_heading = REPORT_HEADING)]
    output: LoadFormat,
    /// Also write the report as an HTML page with plots
    #[arg(long, value_name = "FILE", help_heading = REPORT_HEADING)]
    html: Option<PathBuf>,
}

/// The HTTP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HttpVersion {
    /// HTTP/1.1
    #[value(name = "1.1")]
    Http1,
    /// HTTP/2
    #[value(name = "2")]
    Http2,
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum LoadFormat {
    /// Tables
    #[default]
    Table,
    /// One JSON object
    Json,
    /// A header line, and one line per rate
    Csv,
}

impl LoadArgs {
    /// Generates load, measures and reports.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        // Each connection is a file descriptor; no child process inherits the raised limit.
        limits::raise_open_files();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match runtime.block_on(run(self)) {
            Err(error) if error.is::<UsageError>() => {
                eprintln!("error: {}", output::format_error(&error));
                Ok(ExitCode::from(EXIT_USAGE_ERROR))
            }
            outcome => outcome,
        }
    }
}

const RATE_HEADING: &str = "Rate";
const CONNECTION_HEADING: &str = "Connections";
const REQUEST_HEADING: &str = "Requests";
const REPORT_HEADING: &str = "Report";

/// The exit code of clap for usage errors.
const EXIT_USAGE_ERROR: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  leno load http://127.0.0.1:8080/                       maximum rate of 50 connections
  leno load -c 200 -d 30s -t 2 http://127.0.0.1:8080/    200 connections on two threads
  leno load --rate 1000 http://127.0.0.1:8080/           1000 requests per second; stalls count in full
  leno load --rate 1000:4000:1000 -d 20s --html r.html http://127.0.0.1:8080/
  leno load http://127.0.0.1:8080/a=9 http://127.0.0.1:8080/b=1
  leno load -n 1000 --body-size 10KiB -H 'content-type: text/plain' http://127.0.0.1:8080/
  leno load --grpc --streams 20 -c 2 --body-file m.bin http://127.0.0.1:8080/shop.Cart/Get

Every response without a status from 200 to 299 is an error (with gRPC: any status but OK), counted by
kind. Latencies exclude errors. Ctrl-C ends the run early, with a report.

Exit codes: 0 ok; 1 no request succeeded, or more failed than --max-errors allows; 2 wrong usage.
";
