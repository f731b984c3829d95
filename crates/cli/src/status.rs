//! `leno status`: mesh health, with suggested fixes.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use leno_control::findings::{Facts, Finding, Weight, judge};
use leno_identity::quoted;
use serde::Serialize;

use crate::data_directory::{DataArgs, has_run};
use crate::explain::ExplainFormat;
use crate::figures::{counted, rate};
use crate::get::{Mesh, scope};
use crate::output;
use crate::output::shown;

/// Arguments of `leno status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: ExplainFormat,
}

/// The health verdict.
#[derive(Debug, Serialize)]
struct Verdict {
    /// True if there are no problems.
    healthy: bool,
    /// Problems and notices.
    findings: Vec<Finding>,
    /// The mesh status; absent if no control plane answers.
    mesh: Option<leno_control::status::Status>,
}

impl StatusArgs {
    /// Prints the verdict; succeeds if there are no problems.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let path = self.data.path()?;
        let (verdict, text) = runtime.block_on(async {
            let mesh = Mesh::at(&path);
            match facts(&mesh).await {
                Ok(facts) => {
                    let mut findings = judge(&facts);
                    for finding in &mut findings {
                        finding.remedy = self.data.in_commands(&finding.remedy);
                    }
                    let text = text(&facts, &findings, &self.data.hint());
                    (Verdict::of(findings, Some(facts.status)), text)
                }
                Err(error) => {
                    let finding = unreachable(&error, &path);
                    let text = format!("cannot check the mesh: 1 problem\n{}", lines(&finding));
                    (Verdict::of(vec![finding], None), text)
                }
            }
        });
        match self.output.structured() {
            Some(form) => output::print_value(&verdict, form)?,
            None => output::print_text(&text)?,
        }
        Ok(if verdict.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Verdict {
    fn of(findings: Vec<Finding>, mesh: Option<leno_control::status::Status>) -> Self {
        let healthy = findings.iter().all(|finding| finding.weight == Weight::Notice);
        Self { healthy, findings, mesh }
    }
}

async fn facts(mesh: &Mesh) -> anyhow::Result<Facts> {
    Facts::collect(|path| async move { mesh.ask(&path).await }).await
}

/// Returns the finding for an unreachable control plane.
fn unreachable(error: &anyhow::Error, data: &Path) -> Finding {
    if !has_run(data) {
        return Finding::problem(
            format!("no control plane has run on {}", data.display()),
            format!(
                "set the data directory of the mesh with --data, or start a mesh there: leno up -f DIR \
                 --data {}",
                quoted(&data.display().to_string())
            ),
        );
    }
    Finding::problem(
        output::failure(error),
        "sidecars keep their configuration: start the control plane again, `leno up` or \
         `leno control`, with the same data directory",
    )
}

/// Formats a finding in two lines. Some of their text comes from sidecars.
fn lines(finding: &Finding) -> String {
    let mark = match finding.weight {
        Weight::Problem => "✗",
        Weight::Notice => "·",
    };
    format!("  {mark} {}\n      {}\n", shown(&finding.what), shown(&finding.remedy))
}

fn text(facts: &Facts, findings: &[Finding], hint: &str) -> String {
    let status = &facts.status;
    let problems = findings.iter().filter(|finding| finding.weight == Weight::Problem).count();
    let verdict = match problems {
        0 => "healthy".to_owned(),
        1 => "1 problem".to_owned(),
        several => format!("{several} problems"),
    };
    let edges = facts.traffic.edges.iter().filter(|edge| edge.kind != "route");
    let requests = rate(edges.map(|edge| edge.rates.per_second).sum());
    let mut text = format!(
        "{} ({}): {verdict}\n  {}, {}, {} connected, {requests}\n",
        status.trust_domain,
        status.traffic_mode,
        counted(status.services, "service"),
        counted(status.workloads, "workload"),
        counted(status.proxies, "sidecar"),
    );
    if let Some(scope) = scope(status) {
        text.push_str(&format!("  {scope}\n"));
    }
    for finding in findings {
        text.push_str(&lines(finding));
    }
    match &status.page {
        Some(page) => text.push_str(&format!("  page: {page}\n")),
        None => text.push_str(&format!("  more: leno get proxies{hint}, leno top{hint}\n")),
    }
    text
}

const EXAMPLES: &str = "\
Examples:
  leno status
  leno status --data /var/lib/leno -o json

Exit codes: 0 healthy; 1 there are problems, or no control plane responds; 2 wrong usage.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_sidecars_steer_no_terminal() {
        let what = "refuses a\u{1b}[2Jb\u{9b}c\u{202e}d\n  healthy".to_owned();
        let finding = Finding { weight: Weight::Problem, what, remedy: "correct it".to_owned() };
        let text = lines(&finding);
        assert!(text.contains("a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}  healthy\n"), "{text:?}");
        assert_eq!(text.lines().count(), 2, "{text:?}");
    }
}
