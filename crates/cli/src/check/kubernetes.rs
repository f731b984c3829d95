//! `leno check --kubernetes`: checks the prerequisites of a cluster, or the health of the installed mesh.

use std::process::ExitCode;

use anyhow::Context as _;
use leno_kubernetes::install::{ExamineResult, ExaminedSubject, examine_each};
use serde_json::json;

use super::CheckFormat;
use crate::cluster::{self, DetectedClusterArgs};
use crate::output;

/// Runs the checks and prints the findings.
pub(super) fn run(
    cluster_args: &DetectedClusterArgs,
    format: CheckFormat,
    strict_warnings: bool,
) -> anyhow::Result<ExitCode> {
    let mut subjects = Vec::new();
    let mut print_result = Ok(());
    cluster::block_on(async {
        let client = cluster_args.create_client_without_retries().await?;
        let add_subject = |examined: ExaminedSubject| {
            // Prints each line immediately: a step may take long.
            if matches!(format, CheckFormat::Text) && print_result.is_ok() {
                print_result = output::print_text(&to_text(std::slice::from_ref(&examined)));
            }
            subjects.push(examined);
        };
        let outcome =
            Box::pin(examine_each(&client, cluster_args.namespace.as_ref(), add_subject)).await;
        outcome.map_err(cluster::from_api_error).context("the API server does not respond")
    })?;
    print_result?;
    if matches!(format, CheckFormat::Json) {
        output::print_json(&to_json(&subjects))?;
    }
    let is_failure = |finding: &ExamineResult| match finding {
        ExamineResult::Passed(_) => false,
        ExamineResult::Warning(_) => strict_warnings,
        ExamineResult::Failed(_) => true,
    };
    let has_failed = subjects.iter().any(|examined| is_failure(&examined.finding));
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn verdict_label(finding: &ExamineResult) -> &'static str {
    match finding {
        ExamineResult::Passed(_) => "ok",
        ExamineResult::Warning(_) => "warning",
        ExamineResult::Failed(_) => "error",
    }
}

fn to_text(subjects: &[ExaminedSubject]) -> String {
    let format_line = |examined: &ExaminedSubject| {
        let text = examined.finding.to_string();
        format!(
            "{}: {}: {}\n",
            verdict_label(&examined.finding),
            examined.subject,
            output::escape_cell(&text)
        )
    };
    subjects.iter().map(format_line).collect()
}

fn to_json(subjects: &[ExaminedSubject]) -> serde_json::Value {
    let to_value = |examined: &ExaminedSubject| {
        let mut value =
            json!({"subject": examined.subject, "verdict": verdict_label(&examined.finding)});
        match &examined.finding {
            ExamineResult::Passed(text) => value["message"] = json!(text),
            ExamineResult::Warning(problem) | ExamineResult::Failed(problem) => {
                value["message"] = json!(problem.problem);
                value["hint"] = json!(problem.hint);
            }
        }
        value
    };
    subjects.iter().map(to_value).collect()
}

#[cfg(test)]
mod tests {
    use leno_kubernetes::install::ExamineProblem;

    use super::*;

    #[test]
    fn each_finding_is_a_line() {
        let subjects = [
            ExaminedSubject { subject: "nodes", finding: ExamineResult::Passed("3".to_owned()) },
            ExaminedSubject {
                subject: "webhook",
                finding: ExamineResult::Failed(ExamineProblem {
                    problem: "there is none".to_owned(),
                    hint: "install it".to_owned(),
                }),
            },
        ];
        assert_eq!(to_text(&subjects), "ok: nodes: 3\nerror: webhook: there is none; install it\n");
        let value = to_json(&subjects);
        assert_eq!(value[0], json!({"subject": "nodes", "verdict": "ok", "message": "3"}));
        assert_eq!(
            value[1],
            json!({
                "subject": "webhook", "verdict": "error", "message": "there is none",
                "hint": "install it",
            })
        );
    }
}
