//! `leno check --kubernetes`: cluster prerequisites, or the health of the installed mesh.

use std::process::ExitCode;

use anyhow::Context as _;
use leno_kubernetes::install::{Examined, Finding, examine_each};
use serde_json::json;

use super::CheckFormat;
use crate::cluster::{self, FoundArgs};
use crate::output;

/// Runs the checks and prints the findings.
pub(super) fn run(here: &FoundArgs, format: CheckFormat, strict: bool) -> anyhow::Result<ExitCode> {
    let mut examined = Vec::new();
    let mut printed = Ok(());
    cluster::run(async {
        let client = here.client_without_retries().await?;
        let report = |it: Examined| {
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
    let fails = |finding: &Finding| match finding {
        Finding::Passed(_) => false,
        Finding::Warning(_) => strict,
        Finding::Failed(_) => true,
    };
    let failed = examined.iter().any(|it| fails(&it.finding));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn severity(finding: &Finding) -> &'static str {
    match finding {
        Finding::Passed(_) => "ok",
        Finding::Warning(_) => "warning",
        Finding::Failed(_) => "error",
    }
}

fn to_text(examined: &[Examined]) -> String {
    let line = |it: &Examined| {
        let text = it.finding.to_string();
        format!("{}: {}: {}\n", severity(&it.finding), it.subject, output::escape_cell(&text))
    };
    examined.iter().map(line).collect()
}

fn to_json(examined: &[Examined]) -> serde_json::Value {
    let one = |it: &Examined| {
        let mut reported = json!({"subject": it.subject, "verdict": severity(&it.finding)});
        match &it.finding {
            Finding::Passed(text) => reported["message"] = json!(text),
            Finding::Warning(trouble) | Finding::Failed(trouble) => {
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
    use leno_kubernetes::install::Trouble;

    use super::*;

    #[test]
    fn each_finding_is_a_line() {
        let examined = [
            Examined { subject: "nodes", finding: Finding::Passed("3".to_owned()) },
            Examined {
                subject: "webhook",
                finding: Finding::Failed(Trouble {
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
