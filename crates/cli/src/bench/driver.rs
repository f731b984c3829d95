//! Drivers: the load generators that a benchmark can use, ours and wrk.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::child::{Child, Launch};
use super::rig::Rig;

/// A load generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Driver {
    /// Ours: `leno load`
    #[default]
    Leno,
    /// wrk; it knows no constant rate
    Wrk,
}

/// What is asked of a load generator.
#[derive(Debug, Clone)]
pub(super) struct Demand {
    /// Where requests go, in turn.
    pub(super) urls: Vec<String>,
    pub(super) connections: u32,
    /// Requests per second; as fast as answers come when absent.
    pub(super) rate: Option<u32>,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
    pub(super) connecting: Connecting,
}

/// How often connections are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Connecting {
    /// Once.
    KeepAlive,
    /// For each request.
    Fresh,
}

/// What a load generator found out.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Found {
    pub(super) requests: u64,
    /// Those without success, whatever the reason.
    pub(super) errors: u64,
    #[serde(default)]
    pub(super) errors_by_kind: BTreeMap<String, u64>,
    #[serde(default)]
    pub(super) statuses: BTreeMap<String, u64>,
    pub(super) rps: f64,
    pub(super) latency_us: LatencyFound,
}

/// Latencies in microseconds; nothing where no request succeeded.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct LatencyFound {
    pub(super) mean: Option<f64>,
    pub(super) p50: Option<f64>,
    pub(super) p90: Option<f64>,
    pub(super) p95: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
    pub(super) max: Option<f64>,
}

/// Load that is under way.
#[derive(Debug)]
pub(super) struct Load {
    child: Child,
    /// From when it measures.
    pub(super) measured_from: Instant,
}

impl Driver {
    /// Starts it; returns when its warm-up has at least begun.
    ///
    /// # Errors
    /// When it cannot do this, or cannot be started.
    pub(super) async fn start(
        self,
        rig: &Rig,
        demand: &Demand,
        dir: &Path,
    ) -> anyhow::Result<Load> {
        let log = dir.join("load.log");
        let (launch, warm_up) = match self {
            Self::Leno => (leno(demand)?, demand.warm_up),
            Self::Wrk => {
                let script = dir.join("report.lua");
                std::fs::write(&script, WRK_REPORT).context("wrk's script cannot be written")?;
                // It measures from its start: the warm-up is a run of its own.
                let seconds = whole_seconds(demand.warm_up);
                let launch = wrk(demand, &script, seconds)?.on(rig.load_cores.as_ref());
                Child::start_piped(&launch, &log)?.output().await?;
                (wrk(demand, &script, whole_seconds(demand.duration))?, Duration::ZERO)
            }
        };
        let child = Child::start_piped(&launch.on(rig.load_cores.as_ref()), &log)?;
        Ok(Load { child, measured_from: Instant::now() + warm_up })
    }

    /// The version it tells; nothing when it is this program.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Leno => format!("leno load {}, one thread", env!("CARGO_PKG_VERSION")),
            Self::Wrk => "wrk, one thread".to_owned(),
        }
    }
}

impl Load {
    /// Its process id; nothing when it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.pid()
    }

    /// Waits for its end and what it found.
    ///
    /// # Errors
    /// When it failed or says what nobody understands.
    pub(super) async fn finish(mut self) -> anyhow::Result<Found> {
        let (status, text) = self.child.output().await?;
        let Some(json) = text.find('{').and_then(|at| text.get(at..)) else {
            bail!("the load generator failed, {status}: {text}{}", self.child.last_words());
        };
        serde_json::from_str(json)
            .with_context(|| format!("what the load generator says is not understood: {text}"))
    }
}

fn leno(demand: &Demand) -> anyhow::Result<Launch> {
    let milliseconds = |duration: Duration| format!("{}ms", duration.as_millis());
    let mut arguments = vec![
        "load".to_owned(),
        "--connections".to_owned(),
        demand.connections.to_string(),
        "--duration".to_owned(),
        milliseconds(demand.duration),
        "--warmup".to_owned(),
        milliseconds(demand.warm_up),
        "--threads".to_owned(),
        "1".to_owned(),
        "-o".to_owned(),
        "json".to_owned(),
    ];
    if let Some(rate) = demand.rate {
        arguments.extend(["--rate".to_owned(), rate.to_string()]);
    }
    if demand.connecting == Connecting::Fresh {
        arguments.push("--fresh-connections".to_owned());
    }
    arguments.extend(demand.urls.iter().cloned());
    Launch::leno(arguments)
}

fn wrk(demand: &Demand, script: &Path, seconds: u64) -> anyhow::Result<Launch> {
    if demand.rate.is_some() {
        bail!("wrk knows no constant rate: use --driver leno");
    }
    let [url] = demand.urls.as_slice() else {
        bail!("wrk knows one target only: use --driver leno");
    };
    let mut command = vec!["wrk".to_owned(), "--threads=1".to_owned()];
    command.push(format!("--connections={}", demand.connections));
    command.push(format!("--duration={seconds}s"));
    command.push("--script".to_owned());
    command.push(script.to_string_lossy().into_owned());
    if demand.connecting == Connecting::Fresh {
        command.extend(["--header".to_owned(), "Connection: close".to_owned()]);
    }
    command.push(url.clone());
    Ok(Launch::new(command))
}

fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs_f64().ceil().max(1.0) as u64
}

/// Makes wrk say what it found as our load generator does.
const WRK_REPORT: &str = r#"
function done(summary, latency, requests)
  local e = summary.errors
  local failed = e.connect + e.read + e.write + e.timeout + e.status
  local seconds = summary.duration / 1e6
  local form = '{"requests": %d, "errors": %d, "errors_by_kind": {"connect": %d, "read": %d, ' ..
    '"write": %d, "timeout": %d, "status": %d}, "rps": %.3f, ' ..
    '"latency_us": {"mean": %.1f, "p50": %d, "p90": %d, "p95": %d, "p99": %d, "p999": %d, "max": %d}}'
  io.write(string.format(form, summary.requests, failed, e.connect, e.read, e.write, e.timeout,
    e.status, summary.requests / seconds, latency.mean,
    latency:percentile(50), latency:percentile(90), latency:percentile(95),
    latency:percentile(99), latency:percentile(99.9), latency.max))
end
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn demand() -> Demand {
        Demand {
            urls: vec!["http://127.0.0.1:1/".to_owned()],
            connections: 7,
            rate: Some(100),
            warm_up: Duration::from_millis(500),
            duration: Duration::from_secs(2),
            connecting: Connecting::KeepAlive,
        }
    }

    #[test]
    fn our_generator_is_told_everything() {
        let launch = leno(&demand()).unwrap();
        let words: Vec<_> =
            launch.command.iter().skip(1).map(|word| word.to_str().unwrap()).collect();
        let expected = "load --connections 7 --duration 2000ms --warmup 500ms --threads 1 -o json \
                        --rate 100 http://127.0.0.1:1/";
        assert_eq!(words.join(" "), expected);
    }

    #[test]
    fn wrk_is_not_asked_for_what_it_cannot() {
        let script = Path::new("report.lua");
        assert!(wrk(&demand(), script, 2).is_err());
        let closed = Demand { rate: None, ..demand() };
        wrk(&closed, script, 2).unwrap();
        let two = Demand { urls: vec![String::new(), String::new()], ..closed };
        assert!(wrk(&two, script, 2).is_err());
    }
}
