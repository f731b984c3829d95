//! `leno check --kubernetes`: cluster prerequisites, or the health of the installed mesh.

use std::process::ExitCode;

use anyhow::Context as _;
use leno_kubernetes::install::{ExamineResult, ExaminedSubject, examine_each};
use serde_json::json;

use super::CheckFormat;
use crate::cluster::{self, ClusterSearchArgs};
use crate::output;

/// Runs the checks and prints the findings.
pub(super) fn run(
    here: &ClusterSearchArgs,
    format: CheckFormat,
    strict: bool,
) -> anyhow::Result<ExitCode> {
    let mut examined = Vec::new();
    let mut printed = Ok(());
    cluster::run(async {
        let client = here.client_without_retries().await?;
        let report = |it: ExaminedSubject| {
            // Prints each line immediately: a step may take long.
            if matches!(format, CheckFormat::Text) && printed.is_ok() {
                printed = output::print_text(&to_text(std::slice::from_ref(&it)));
            }
            examined.push(it);
        };
        let looked = Box::pin(examine_each(&client, here.namespace.as_ref(), report)).await;
        looked.map_err(cluster::format_api_error).context("the API server does not respond")
    })?;
    printed?;
    if matches!(format, CheckFormat::Json) {
        output::print_json(&to_json(&examined))?;
    }
    let fails = |finding: &ExamineResult| match finding {
        ExamineResult::Passed(_) => false,
        ExamineResult::Warning(_) => strict,
        ExamineResult::Failed(_) => true,
    };
    let failed = examined.iter().any(|it| fails(&it.finding));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn severity(finding: &ExamineResult) -> &'static str {
    match finding {
        ExamineResult::Passed(_) => "ok",
        ExamineResult::Warning(_) => "warning",
        ExamineResult::Failed(_) => "error",
    }
}

fn to_text(examined: &[ExaminedSubject]) -> String {
    let line = |it: &ExaminedSubject| {
        let text = it.finding.to_string();
        format!("{}: {}: {}\n", severity(&it.finding), it.subject, output::escape_cell(&text))
    };
    examined.iter().map(line).collect()
}

fn to_json(examined: &[ExaminedSubject]) -> serde_json::Value {
    let one = |it: &ExaminedSubject| {
        let mut reported = json!({"subject": it.subject, "verdict": severity(&it.finding)});
        match &it.finding {
            ExamineResult::Passed(text) => reported["message"] = json!(text),
            ExamineResult::Warning(trouble) | ExamineResult::Failed(trouble) => {
                reported["message"] = json!(trouble.problem);
                reported["hint"] = json!(trouble.hint);
            }
        }
        reported
    };
    examined.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use leno_kubernetes::install::ExamineProblem;

    use super::*;

    #[test]
    fn each_finding_is_a_line() {
        let examined = [
            ExaminedSubject { subject: "nodes", finding: ExamineResult::Passed("3".to_owned()) },
            ExaminedSubject {
                subject: "webhook",
                finding: ExamineResult::Failed(ExamineProblem {
                    problem: "there is none".to_owned(),
                    hint: "install it".to_owned(),
                }),
            },
        ];
        assert_eq!(to_text(&examined), "ok: nodes: 3\nerror: webhook: there is none; install it\n");
        let reported = to_json(&examined);
        assert_eq!(reported[0], json!({"subject": "nodes", "verdict": "ok", "message": "3"}));
        assert_eq!(
            reported[1],
            json!({
                "subject": "webhook", "verdict": "error", "message": "there is none",
                "hint": "install it",
            })
        );
    }
}
