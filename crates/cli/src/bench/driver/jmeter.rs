//! Runs Apache JMeter as a load generator: a closed loop to one target, with one thread per connection.

mod samples;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use tokio::time::{Instant, timeout};

use super::{ConnectionMode, LOG_FILE, LoadSpec, ResultSource, RunningLoad, whole_seconds};
use crate::bench::child::{BenchProcess, ProcessSpec};
use crate::bench::maven::{self, MavenProject};
use crate::bench::testbed::Testbed;

pub(super) use samples::Samples;

/// Returns the JMeter directory with programs and libraries, building it if missing.
///
/// # Errors
/// If Java is missing, or the build fails.
pub(super) async fn build_home(testbed: &Testbed) -> anyhow::Result<PathBuf> {
    maven::require_tool(testbed, "java", "running Apache JMeter")?;
    let jmeter_home = maven::build_product(&PROJECT, testbed).await?;
    // JMeter complains about a missing library directory.
    let junit_directory = jmeter_home.join("lib/junit");
    std::fs::create_dir_all(&junit_directory)
        .with_context(|| format!("no {}", junit_directory.display()))?;
    Ok(jmeter_home)
}

/// Starts JMeter, and waits until its threads run.
///
/// # Errors
/// If JMeter does not support the load, or does not start.
pub(super) async fn start(
    testbed: &Testbed,
    load_spec: &LoadSpec,
    dir: &Path,
) -> anyhow::Result<RunningLoad> {
    let jmeter_home = build_home(testbed).await?;
    let test_plan = dir.join("plan.jmx");
    std::fs::write(&test_plan, TEST_PLAN).context("cannot write JMeter's plan")?;
    let spec =
        build_jmeter_spec(&jmeter_home, load_spec, dir)?.with_cores(testbed.load_cores.as_ref());
    let mut child = BenchProcess::start_piped(&spec, &dir.join(LOG_FILE))?;
    match timeout(MAX_START_WAIT, wait_until_started(&mut child)).await {
        Ok(true) => {}
        Ok(false) => bail!("JMeter did not start: {}", child.log_tail()),
        Err(_) => bail!("JMeter did not start within {MAX_START_WAIT:?}"),
    }
    // JMeter writes the wall-clock time of each sample.
    let (now, wall_clock) = (Instant::now(), SystemTime::now());
    let samples = Samples {
        file: dir.join(SAMPLES_FILE),
        measured_from: wall_clock + load_spec.warm_up,
        measured_duration: load_spec.duration,
    };
    Ok(RunningLoad {
        child,
        measured_from: now + load_spec.warm_up,
        result_source: ResultSource::Samples(samples),
    })
}

/// Reads JMeter's output until its threads start; false if the output ends before.
async fn wait_until_started(child: &mut BenchProcess) -> bool {
    while let Some(line) = child.next_line().await {
        if line.starts_with("Starting standalone test") {
            return true;
        }
    }
    false
}

fn build_jmeter_spec(
    jmeter_home: &Path,
    load_spec: &LoadSpec,
    dir: &Path,
) -> anyhow::Result<ProcessSpec> {
    if load_spec.rate.is_some() {
        bail!("JMeter waits for responses and supports no constant rate: use --driver leno");
    }
    let [url] = load_spec.urls.as_slice() else {
        bail!("JMeter supports only one target: use --driver leno");
    };
    let url_parts = url.strip_prefix("http://").and_then(|after_scheme| {
        let (authority, path) = after_scheme.split_once('/')?;
        let (host, port) = authority.rsplit_once(':')?;
        Some((host, port, path))
    });
    let (host, port, path) = url_parts.with_context(|| format!("JMeter cannot request {url}"))?;
    let mut command: Vec<OsString> = vec!["java".into()];
    command.extend(JVM_OPTIONS.iter().map(Into::into));
    // Isolates JMeter from the user's preferences.
    command.push(build_path_option("-Djava.util.prefs.userRoot=", dir));
    command.extend(["-jar".into(), jmeter_home.join("bin/ApacheJMeter.jar").into()]);
    command.extend(["-n".into(), "-t".into(), dir.join("plan.jmx").into()]);
    command.extend(["-l".into(), dir.join(SAMPLES_FILE).into()]);
    command.extend(["-j".into(), dir.join("jmeter.log").into()]);
    // The measured period begins slightly later than JMeter's threads: with one second more, the load covers it fully.
    let run_seconds = whole_seconds(load_spec.warm_up + load_spec.duration) + 1;
    let keep_alive = load_spec.connection_mode == ConnectionMode::KeepAlive;
    let properties = [
        format!("host={host}"),
        format!("port={port}"),
        format!("path=/{path}"),
        format!("connections={}", load_spec.connections),
        format!("seconds={run_seconds}"),
        format!("keep_alive={keep_alive}"),
    ];
    command.extend(properties.iter().map(|property| format!("-J{property}").into()));
    command.extend(JMETER_PROPERTIES.iter().map(|setting| format!("-J{setting}").into()));
    let omitted_columns = OMITTED_COLUMNS.iter();
    command.extend(
        omitted_columns.map(|name| format!("-Jjmeter.save.saveservice.{name}=false").into()),
    );
    Ok(ProcessSpec::new(command))
}

fn build_path_option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

/// The description of JMeter in reports.
pub(super) const DESCRIPTION: &str =
    "Apache JMeter 5.6.3, a thread for each connection, latencies in whole milliseconds";
/// The time until the threads of a cold JVM run.
pub(super) const STARTUP_TIME: Duration = Duration::from_secs(5);
/// The startup timeout, for a busy machine.
const MAX_START_WAIT: Duration = Duration::from_secs(60);
const SAMPLES_FILE: &str = "samples.csv";
const TEST_PLAN: &str = include_str!("../../../../../deploy/bench/jmeter/plan.jmx");
const PROJECT: MavenProject = MavenProject {
    name: "jmeter",
    about: "Apache JMeter 5.6.3",
    sources: &[("pom.xml", include_str!("../../../../../deploy/bench/jmeter/pom.xml"))],
    build_output: "target/home",
};
/// Memory and garbage collector as in JMeter's own script.
const JVM_OPTIONS: &[&str] = &[
    "-Xms1g",
    "-Xmx1g",
    "-XX:MaxMetaspaceSize=256m",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=100",
    "-XX:G1ReservePercent=20",
    "-Djava.awt.headless=true",
];
const JMETER_PROPERTIES: &[&str] = &[
    // Disables the port for shutdown commands.
    "jmeterengine.nongui.port=0",
    "sampleresult.timestamp.start=true",
    "jmeter.save.saveservice.output_format=csv",
    "jmeter.save.saveservice.default_delimiter=,",
    "jmeter.save.saveservice.timestamp_format=ms",
    "jmeter.save.saveservice.print_field_names=true",
];
/// Unused output columns.
const OMITTED_COLUMNS: &[&str] = &[
    "assertion_results_failure_message",
    "bytes",
    "connect_time",
    "data_type",
    "idle_time",
    "label",
    "latency",
    "response_message",
    "sent_bytes",
    "successful",
    "thread_counts",
    "thread_name",
    "url",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::driver::tests::constant_rate_spec;

    #[test]
    fn reports_name_the_version_that_is_built() {
        let (_, pom) = PROJECT.sources[0];
        let version = pom.split_once("<jmeter.version>").unwrap().1.split_once('<').unwrap().0;
        for text in [DESCRIPTION, PROJECT.about] {
            assert!(text.contains(&format!("Apache JMeter {version}")), "{text}");
        }
    }

    #[test]
    fn jmeter_gets_every_setting_and_no_unsupported_one() {
        let (jmeter_home, dir) = (Path::new("/home"), Path::new("/run"));
        assert!(build_jmeter_spec(jmeter_home, &constant_rate_spec(), dir).is_err());
        let closed_loop_spec = LoadSpec { rate: None, ..constant_rate_spec() };
        let arguments = build_jmeter_spec(jmeter_home, &closed_loop_spec, dir).unwrap().command;
        for expected in [
            "/home/bin/ApacheJMeter.jar",
            "-Jhost=127.0.0.1",
            "-Jport=1",
            "-Jpath=/",
            "-Jconnections=7",
            "-Jseconds=4",
            "-Jkeep_alive=true",
            "/run/plan.jmx",
            "/run/samples.csv",
        ] {
            assert!(
                arguments.iter().any(|argument| argument == expected),
                "{expected}: {arguments:?}"
            );
        }
        let two_targets = LoadSpec { urls: vec![String::new(), String::new()], ..closed_loop_spec };
        assert!(build_jmeter_spec(jmeter_home, &two_targets, dir).is_err());
    }
}
