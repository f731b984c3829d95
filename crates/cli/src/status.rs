//! `leno status`: checks the health of the mesh, and suggests fixes.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use leno_control::findings::{Finding, FindingInputs, Severity, collect_findings};
use leno_identity::quote_path;
use serde::Serialize;

use crate::data_directory::{DataDirectoryArgs, has_mesh_run};
use crate::explain::ExplainFormat;
use crate::figures::{format_count, format_rate};
use crate::get::{IN_KUBERNETES, MeshSocket, describe_scope};
use crate::output;
use crate::output::escape_cell;

/// Arguments of `leno status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    data: DataDirectoryArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: ExplainFormat,
}

/// The health verdict on a mesh, as printed in structured formats.
#[derive(Debug, Serialize)]
struct HealthVerdict {
    /// True if there are no problems.
    healthy: bool,
    /// Problems and notices.
    findings: Vec<Finding>,
    /// The mesh status; `None` if no control plane responds.
    mesh: Option<leno_control::status::Status>,
}

impl StatusArgs {
    /// Prints the verdict; succeeds if there are no problems.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let data_directory = self.data.path()?;
        let (verdict, text) = runtime.block_on(async {
            let mesh = MeshSocket::from_data(&data_directory);
            match collect_inputs(&mesh).await {
                Ok(inputs) => {
                    let mut findings = collect_findings(&inputs);
                    for finding in &mut findings {
                        finding.hint = self.data.add_data_option(&finding.hint);
                    }
                    let text = render_status(&inputs, &findings, &self.data.data_option());
                    (HealthVerdict::from_findings(findings, Some(inputs.status)), text)
                }
                Err(error) => {
                    let finding = unreachable_finding(&error, &data_directory);
                    let text =
                        format!("cannot check the mesh: 1 problem\n{}", format_finding(&finding));
                    (HealthVerdict::from_findings(vec![finding], None), text)
                }
            }
        });
        match self.output.structured_format() {
            Some(format) => output::print_value(&verdict, format)?,
            None => output::print_text(&text)?,
        }
        Ok(if verdict.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl HealthVerdict {
    fn from_findings(findings: Vec<Finding>, mesh: Option<leno_control::status::Status>) -> Self {
        let healthy = findings.iter().all(|finding| finding.severity == Severity::Notice);
        Self { healthy, findings, mesh }
    }
}

async fn collect_inputs(mesh: &MeshSocket) -> anyhow::Result<FindingInputs> {
    FindingInputs::collect(|path| async move { mesh.query_json(&path).await }).await
}

/// Returns the finding for an unreachable control plane.
fn unreachable_finding(error: &anyhow::Error, data: &Path) -> Finding {
    if !has_mesh_run(data) {
        return Finding::problem(
            format!("no control plane has run on {}", data.display()),
            format!(
                "set the data directory of the mesh with --data; {IN_KUBERNETES}; or start a mesh there: leno up \
                 -f DIR --data {}",
                quote_path(&data.display().to_string())
            ),
        );
    }
    Finding::problem(
        output::format_error(error),
        "sidecars keep their configuration: start the control plane again, `leno up` or \
         `leno control`, with the same data directory",
    )
}

/// Formats a finding in two lines, escaped because parts of the text come from sidecars.
fn format_finding(finding: &Finding) -> String {
    let symbol = match finding.severity {
        Severity::Problem => "✗",
        Severity::Notice => "·",
    };
    format!("  {symbol} {}\n      {}\n", escape_cell(&finding.message), escape_cell(&finding.hint))
}

fn render_status(inputs: &FindingInputs, findings: &[Finding], data_option: &str) -> String {
    let status = &inputs.status;
    let problem_count =
        findings.iter().filter(|finding| finding.severity == Severity::Problem).count();
    let verdict = match problem_count {
        0 => "healthy".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    // Requests that a route forwarded are counted at their clients already.
    let edges = inputs.traffic.edges.iter().filter(|edge| edge.kind != "route");
    let request_rate = format_rate(edges.map(|edge| edge.rates.per_second).sum());
    let mut text = format!(
        "{} (default policy {}): {verdict}\n  {}, {}, {} connected, {request_rate}\n",
        status.trust_domain,
        status.default_policy,
        format_count(status.services, "service"),
        format_count(status.workloads, "workload"),
        format_count(status.proxies, "sidecar"),
    );
    if let Some(scope) = describe_scope(status) {
        text.push_str(&format!("  {scope}\n"));
    }
    for finding in findings {
        text.push_str(&format_finding(finding));
    }
    match &status.page {
        Some(page) => text.push_str(&format!("  page: {page}\n")),
        None => text
            .push_str(&format!("  more: leno get proxies{data_option}, leno top{data_option}\n")),
    }
    text
}

const EXAMPLES: &str = "\
Examples:
  leno status
  leno status --data /var/lib/leno -o json
  In Kubernetes, in a pod of the control plane:
    kubectl -n leno-system exec deploy/leno-control -- \\
        /leno status --data /var/lib/leno/control

Exit codes: 0 healthy; 1 there are problems, or no control plane responds; 2 wrong usage.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_sidecars_is_escaped() {
        let message = "refuses a\u{1b}[2Jb\u{9b}c\u{202e}d\n  healthy".to_owned();
        let finding =
            Finding { severity: Severity::Problem, message, hint: "correct it".to_owned() };
        let text = format_finding(&finding);
        assert!(text.contains("a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}  healthy\n"), "{text:?}");
        assert_eq!(text.lines().count(), 2, "{text:?}");
    }
}
