//! Runs wrk as a load generator: a closed loop to one target.

use std::path::Path;

use anyhow::{Context as _, bail};
use tokio::time::Instant;

use super::{ConnectionMode, LOG_FILE, LoadSpec, ResultSource, RunningLoad, whole_seconds};
use crate::bench::child::{BenchProcess, ProcessSpec};
use crate::bench::testbed::Testbed;

/// Runs the warm-up, then starts the measurement.
///
/// # Errors
/// If wrk does not support the load, or cannot be started.
pub(super) async fn start(
    testbed: &Testbed,
    load_spec: &LoadSpec,
    dir: &Path,
) -> anyhow::Result<RunningLoad> {
    let script_file = dir.join("report.lua");
    std::fs::write(&script_file, REPORT_SCRIPT).context("cannot write wrk's script")?;
    let log_file = dir.join(LOG_FILE);
    let build_run_spec = |run_duration| {
        anyhow::Ok(
            build_wrk_spec(load_spec, &script_file, whole_seconds(run_duration))?
                .with_cores(testbed.load_cores.as_ref()),
        )
    };
    // wrk measures from its start, so the warm-up is a separate process.
    BenchProcess::start_piped(&build_run_spec(load_spec.warm_up)?, &log_file)?
        .wait_with_output()
        .await?;
    let child = BenchProcess::start_piped(&build_run_spec(load_spec.duration)?, &log_file)?;
    Ok(RunningLoad { child, measured_from: Instant::now(), result_source: ResultSource::Printed })
}

fn build_wrk_spec(
    load_spec: &LoadSpec,
    script_file: &Path,
    seconds: u64,
) -> anyhow::Result<ProcessSpec> {
    if load_spec.rate.is_some() {
        bail!("wrk supports no constant rate: use --driver leno");
    }
    let [url] = load_spec.urls.as_slice() else {
        bail!("wrk supports only one target: use --driver leno");
    };
    let mut command = vec!["wrk".to_owned(), "--threads=1".to_owned()];
    command.push(format!("--connections={}", load_spec.connections));
    command.push(format!("--duration={seconds}s"));
    command.push("--script".to_owned());
    command.push(script_file.to_string_lossy().into_owned());
    if load_spec.connection_mode == ConnectionMode::Fresh {
        command.extend(["--header".to_owned(), "Connection: close".to_owned()]);
    }
    command.push(url.clone());
    Ok(ProcessSpec::new(command))
}

/// Makes wrk report its results in the format of `leno load`.
const REPORT_SCRIPT: &str = r#"
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
    use crate::bench::driver::tests::constant_rate_spec;

    #[test]
    fn unsupported_settings_are_rejected_for_wrk() {
        let script = Path::new("report.lua");
        assert!(build_wrk_spec(&constant_rate_spec(), script, 2).is_err());
        let closed_loop_spec = LoadSpec { rate: None, ..constant_rate_spec() };
        build_wrk_spec(&closed_loop_spec, script, 2).unwrap();
        let two_targets = LoadSpec { urls: vec![String::new(), String::new()], ..closed_loop_spec };
        assert!(build_wrk_spec(&two_targets, script, 2).is_err());
    }
}
