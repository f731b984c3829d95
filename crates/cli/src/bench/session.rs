//! Runs a suite with its cases, and builds its report.

use std::time::{Instant, SystemTime};

use anyhow::bail;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::case::BenchCase;
use super::machine::MachineInfo;
use super::options::{self, SuiteDefaults, SuiteOptions};
use super::report::{PublishedTable, SuiteReport};

/// The constants of a suite.
#[derive(Debug)]
pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// A description of the suite, in a paragraph.
    pub(super) about: &'static str,
    /// The figures of the reproduced benchmark, for comparison in the report.
    pub(super) published: &'static [PublishedTable],
    /// The properties of real deployments that the suite does not measure.
    pub(super) not_shown: &'static [&'static str],
}

/// Measures the cases of a suite.
///
/// # Errors
/// If no contender produced a result in any case.
pub(super) async fn measure_suite(
    suite: &Suite,
    options: &SuiteOptions,
    defaults: SuiteDefaults,
    cases: &[BenchCase],
) -> anyhow::Result<SuiteReport> {
    let started = Instant::now();
    let contenders = options.load_contenders(defaults)?;
    let mut runner = options.build_runner(defaults, contenders.len() * cases.len())?;
    runner.driver.prepare(&runner.testbed).await?;
    for case in cases {
        case.application_kind.prepare(&runner.testbed).await?;
    }
    let mut report = blank_report(suite);
    let results = runner.run(&contenders, cases).await;
    report.settings = Some(options::runner_settings(&runner));
    if results.cases.iter().all(|case| case.contenders.is_empty()) {
        let reasons: Vec<String> = results
            .skipped
            .iter()
            .map(|skipped| format!("\n{}: {}", skipped.name, skipped.reason))
            .collect();
        bail!("no measurement succeeded{}", reasons.concat());
    }
    report.cases = results.cases;
    report.contenders = results.contenders;
    report.skipped = results.skipped;
    report.notes.extend(results.notes);
    report.elapsed_s = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Returns the report of a suite before any measurement.
pub(super) fn blank_report(suite: &Suite) -> SuiteReport {
    SuiteReport {
        suite: suite.name,
        title: suite.title,
        about: suite.about,
        began: current_time(),
        elapsed_s: 0.0,
        command: std::env::args().collect(),
        machine: MachineInfo::read_info(),
        settings: None,
        contenders: Vec::new(),
        skipped: Vec::new(),
        cases: Vec::new(),
        meshes: Vec::new(),
        services: Vec::new(),
        tables: Vec::new(),
        plots: Vec::new(),
        published: suite.published.to_vec(),
        notes: Vec::new(),
        not_shown: suite.not_shown.iter().map(|text| (*text).to_owned()).collect(),
    }
}

/// Returns the current time in UTC, in whole seconds, such as `2024-05-01T12:00:00Z`.
fn current_time() -> String {
    let now = OffsetDateTime::from(SystemTime::now());
    now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default()
}
