//! `leno load`: sends requests at a pace and tells what came of every one of them.

mod body;
mod csv;
mod live;
mod measured;
mod page;
mod plot;
mod rate;
mod request;
mod run;
mod summary;
mod table;
mod target;
mod wrong_usage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::body::{BodySize, parse_size};
use self::rate::{Rates, parse_rates, parse_share};
use self::request::{Header, parse_header};
use self::run::run;
use self::target::{WeightedUrl, parse_target};
use self::wrong_usage::WrongUsage;
use crate::duration::{parse_duration, parse_positive};
use crate::limits;
use crate::output;

/// Arguments of `leno load`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LoadArgs {
    /// Where to send requests to; several share them by weight (1 unless given). A value in a
    /// query is not taken for a weight: write `http://host/?id=7=2` for the weight 2
    #[arg(required = true, value_name = "URL[=WEIGHT]", value_parser = parse_target)]
    targets: Vec<WeightedUrl>,

    /// Connections; without --rate each sends its next request when the last is answered
    #[arg(short, long, value_name = "N", default_value_t = 50, help_heading = PACE)]
    connections: usize,
    /// Send this many requests per second, whatever the server does; latencies count from when a
    /// request was due. FROM:TO:STEP measures one rate after the other
    #[arg(long, value_name = "R|FROM:TO:STEP", value_parser = parse_rates, help_heading = PACE)]
    rate: Option<Rates>,
    /// How long requests are sent and measured, for each rate [default: 10s]
    #[arg(short, long, value_name = "TIME", value_parser = parse_positive, help_heading = PACE)]
    duration: Option<Duration>,
    /// The same for each of several rates, if it is to differ
    #[arg(long, value_name = "TIME", value_parser = parse_positive, requires = "rate",
          conflicts_with = "duration", help_heading = PACE)]
    step_duration: Option<Duration>,
    /// How long requests are sent before any is measured, for each rate [default: 2s, or none
    /// with --requests]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = PACE)]
    warmup: Option<Duration>,
    /// End after this many measured requests; unless --duration is given, only then
    #[arg(short = 'n', long, value_name = "N", help_heading = PACE)]
    requests: Option<u64>,
    /// Threads to divide connections and rate among; one is enough for most servers
    #[arg(short, long, value_name = "N", default_value_t = 1, help_heading = PACE)]
    threads: usize,
    /// The order in which targets are drawn is the same for the same seed
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = PACE)]
    seed: u64,

    /// The version of HTTP; 2 is spoken without asking first [default: 1.1]
    #[arg(long, value_enum, value_name = "VERSION", help_heading = CONNECTIONS)]
    http: Option<HttpVersion>,
    /// Send unary gRPC calls: the path is /package.Service/Method, the body is the message
    #[arg(long, help_heading = CONNECTIONS)]
    grpc: bool,
    /// Requests under way at once on each connection of HTTP/2 [default: 1]
    #[arg(long, value_name = "N", help_heading = CONNECTIONS)]
    streams: Option<usize>,
    /// Open a connection for each request; opening it is part of the latency
    #[arg(long, help_heading = CONNECTIONS)]
    fresh_connections: bool,
    /// Ask this HTTP proxy instead of the servers
    #[arg(long, value_name = "HOST:PORT", help_heading = CONNECTIONS)]
    proxy: Option<String>,
    /// How long a connection may take to open, and how long a response may take
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_positive,
          help_heading = CONNECTIONS)]
    timeout: Duration,

    /// The method [default: GET, or POST with a body]
    #[arg(short = 'X', long, value_name = "METHOD", help_heading = REQUESTS)]
    method: Option<String>,
    /// A header; may be given again
    #[arg(short = 'H', long, value_name = "NAME:VALUE", value_parser = parse_header,
          help_heading = REQUESTS)]
    header: Vec<Header>,
    /// A body
    #[arg(short, long, value_name = "TEXT", group = "content", help_heading = REQUESTS)]
    body: Option<String>,
    /// The file that holds the body
    #[arg(long, value_name = "PATH", group = "content", help_heading = REQUESTS)]
    body_file: Option<PathBuf>,
    /// A body of so many bytes, or 10KiB, or 1MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, group = "content",
          help_heading = REQUESTS)]
    body_size: Option<BodySize>,

    /// Fail if more than this part of the requests fails: 0.01 or 1%
    #[arg(long, value_name = "SHARE", value_parser = parse_share, help_heading = REPORT)]
    max_errors: Option<f64>,
    /// How to print the report
    #[arg(short, long, value_enum, default_value_t, help_heading = REPORT)]
    output: ReportFormat,
    /// Write the report as one page with plots, too
    #[arg(long, value_name = "FILE", help_heading = REPORT)]
    html: Option<PathBuf>,
}

/// Which version of HTTP is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HttpVersion {
    /// HTTP/1.1
    #[value(name = "1.1")]
    Http1,
    /// HTTP/2
    #[value(name = "2")]
    Http2,
}

/// How the report is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum ReportFormat {
    /// Tables
    #[default]
    Table,
    /// One JSON object
    Json,
    /// A line for each rate, and a line of names before them
    Csv,
}

impl LoadArgs {
    /// Sends, measures and reports.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        // Each connection is a file; nobody is started here who would inherit the limit.
        limits::raise_open_files();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match runtime.block_on(run(self)) {
            Err(error) if error.is::<WrongUsage>() => {
                eprintln!("error: {}", output::failure(&error));
                Ok(ExitCode::from(WRONG_USAGE))
            }
            outcome => outcome,
        }
    }
}

const PACE: &str = "Pace";
const CONNECTIONS: &str = "Connections";
const REQUESTS: &str = "Requests";
const REPORT: &str = "Report";

/// The exit code that clap uses for what it finds wrong, too.
const WRONG_USAGE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  leno load http://127.0.0.1:8080/                       as much as 50 connections can
  leno load -c 200 -d 30s -t 2 http://127.0.0.1:8080/    200 connections on two threads
  leno load --rate 1000 http://127.0.0.1:8080/           1000 per second, stalls included
  leno load --rate 1000:4000:1000 -d 20s --html r.html http://127.0.0.1:8080/
  leno load http://127.0.0.1:8080/a=9 http://127.0.0.1:8080/b=1
  leno load -n 1000 --body-size 10KiB -H 'content-type: text/plain' http://127.0.0.1:8080/
  leno load --grpc --streams 20 -c 2 --body-file m.bin http://127.0.0.1:8080/shop.Cart/Get

Everything but a status from 200 to 299 is an error (with gRPC: everything but OK), counted by
kind. Errors have no part in latencies. Ctrl-C ends the run early, with a report.

Exit codes: 0 ok; 1 no request succeeded, or more failed than --max-errors allows; 2 wrong usage.
";
