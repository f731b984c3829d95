//! Runs the load generators of a benchmark: `leno load`, wrk and Apache JMeter.

mod jmeter;
mod wrk;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::child::{BenchProcess, ProcessSpec};
use super::testbed::Testbed;

/// A load generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LoadGenerator {
    /// `leno load`
    #[default]
    Leno,
    /// wrk; without constant rates
    Wrk,
    /// Apache JMeter, built with Maven once; without constant rates, and with whole milliseconds
    Jmeter,
}

/// The requested load.
#[derive(Debug, Clone)]
pub(super) struct LoadSpec {
    /// The targets of requests; the generator sends to each of them in turn.
    pub(super) urls: Vec<String>,
    pub(super) connections: u32,
    /// Requests per second; `None` for a closed loop.
    pub(super) rate: Option<u32>,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
    pub(super) connection_mode: ConnectionMode,
}

/// The reuse of connections by the load generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ConnectionMode {
    /// Each connection is opened once, and carries many requests.
    KeepAlive,
    /// A connection is opened for each request.
    Fresh,
}

/// The results of a load generator.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct LoadResult {
    /// Requests that started in the measured period.
    pub(super) requests: u64,
    /// Requests without success, for any reason.
    pub(super) errors: u64,
    #[serde(default)]
    pub(super) errors_by_kind: BTreeMap<String, u64>,
    #[serde(default)]
    pub(super) statuses: BTreeMap<String, u64>,
    /// Responses per second in the measured period.
    pub(super) rps: f64,
    pub(super) latency_us: LoadLatency,
}

/// Latencies in microseconds; absent if no request succeeded.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct LoadLatency {
    pub(super) mean: Option<f64>,
    pub(super) p50: Option<f64>,
    pub(super) p90: Option<f64>,
    pub(super) p95: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
    pub(super) max: Option<f64>,
}

/// A load in progress.
#[derive(Debug)]
pub(super) struct RunningLoad {
    child: BenchProcess,
    /// The start of the measurement.
    pub(super) measured_from: Instant,
    result_source: ResultSource,
}

/// The source of the results.
#[derive(Debug)]
enum ResultSource {
    /// Standard output, which ends with a JSON object.
    Printed,
    /// A file with one line per request.
    Samples(jmeter::Samples),
}

impl LoadGenerator {
    /// Builds the prerequisites of the generator, which may take minutes the first time.
    ///
    /// # Errors
    /// If a prerequisite is missing; the error names it and contains a hint.
    pub(super) async fn prepare(self, testbed: &Testbed) -> anyhow::Result<()> {
        match self {
            Self::Leno | Self::Wrk => Ok(()),
            Self::Jmeter => jmeter::build_home(testbed).await.map(drop),
        }
    }

    /// Starts the load generator. Returns once its warm-up has started, or with wrk, once it has ended.
    ///
    /// # Errors
    /// If the generator does not support the load, or cannot be started.
    pub(super) async fn start(
        self,
        testbed: &Testbed,
        load_spec: &LoadSpec,
        dir: &Path,
    ) -> anyhow::Result<RunningLoad> {
        match self {
            Self::Leno => {
                let spec = build_leno_spec(load_spec)?.with_cores(testbed.load_cores.as_ref());
                let child = BenchProcess::start_piped(&spec, &dir.join(LOG_FILE))?;
                let measured_from = Instant::now() + load_spec.warm_up;
                Ok(RunningLoad { child, measured_from, result_source: ResultSource::Printed })
            }
            Self::Wrk => wrk::start(testbed, load_spec, dir).await,
            Self::Jmeter => jmeter::start(testbed, load_spec, dir).await,
        }
    }

    /// Returns the time that the generator itself takes to start, in addition to the measured run.
    pub(super) const fn startup_time(self) -> Duration {
        match self {
            Self::Leno | Self::Wrk => Duration::ZERO,
            Self::Jmeter => jmeter::STARTUP_TIME,
        }
    }

    /// Describes the generator for reports: its name and version, and the number of its threads.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Leno => format!("leno load {}, one thread", env!("CARGO_PKG_VERSION")),
            Self::Wrk => "wrk, one thread".to_owned(),
            Self::Jmeter => jmeter::DESCRIPTION.to_owned(),
        }
    }
}

impl RunningLoad {
    /// Returns the process ID of the generator; `None` once it has exited.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.pid()
    }

    /// Waits until the generator exits, and returns the results.
    ///
    /// # Errors
    /// If the generator failed, or its output cannot be parsed.
    pub(super) async fn finish(mut self) -> anyhow::Result<LoadResult> {
        let (status, output) = self.child.wait_with_output().await?;
        let failure_error = || {
            let log_tail = self.child.log_tail();
            anyhow::anyhow!("the load generator failed, {status}: {output}{log_tail}")
        };
        match &self.result_source {
            // With a result, the exit status does not matter: `leno load` fails after it has printed that all requests
            // failed.
            ResultSource::Printed => {
                let json = output
                    .find('{')
                    .and_then(|start| output.get(start..))
                    .ok_or_else(failure_error)?;
                serde_json::from_str(json).with_context(|| {
                    format!("cannot parse the output of the load generator: {output}")
                })
            }
            ResultSource::Samples(samples) if status.success() => samples.read(),
            ResultSource::Samples(_) => Err(failure_error()),
        }
    }
}

fn build_leno_spec(load_spec: &LoadSpec) -> anyhow::Result<ProcessSpec> {
    let format_milliseconds = |duration: Duration| format!("{}ms", duration.as_millis());
    let mut arguments = vec![
        "load".to_owned(),
        "--connections".to_owned(),
        load_spec.connections.to_string(),
        "--duration".to_owned(),
        format_milliseconds(load_spec.duration),
        "--warmup".to_owned(),
        format_milliseconds(load_spec.warm_up),
        "--threads".to_owned(),
        "1".to_owned(),
        "-o".to_owned(),
        "json".to_owned(),
    ];
    if let Some(rate) = load_spec.rate {
        arguments.extend(["--rate".to_owned(), rate.to_string()]);
    }
    if load_spec.connection_mode == ConnectionMode::Fresh {
        arguments.push("--disable-keepalive".to_owned());
    }
    arguments.extend(load_spec.urls.iter().cloned());
    ProcessSpec::leno_command(arguments)
}

/// Rounds a duration up to whole seconds, at least 1.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs_f64().ceil().max(1.0) as u64
}

/// The log file of a load generator's standard error, in the directory of the run.
const LOG_FILE: &str = "load.log";

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A constant rate to one server.
    pub(super) fn constant_rate_spec() -> LoadSpec {
        LoadSpec {
            urls: vec!["http://127.0.0.1:1/".to_owned()],
            connections: 7,
            rate: Some(100),
            warm_up: Duration::from_millis(500),
            duration: Duration::from_secs(2),
            connection_mode: ConnectionMode::KeepAlive,
        }
    }

    #[test]
    fn leno_load_gets_every_setting() {
        let spec = build_leno_spec(&constant_rate_spec()).unwrap();
        let arguments: Vec<_> =
            spec.command.iter().skip(1).map(|argument| argument.to_str().unwrap()).collect();
        let expected = "load --connections 7 --duration 2000ms --warmup 500ms --threads 1 -o json \
                        --rate 100 http://127.0.0.1:1/";
        assert_eq!(arguments.join(" "), expected);
    }
}
