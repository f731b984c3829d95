//! `leno check --kubernetes`: whether a cluster can have a mesh, or has one that is well.

use std::process::ExitCode;

use anyhow::Context as _;
use leno_kubernetes::install::{Examined, Finding, examine};
use leno_kubernetes::words::SYSTEM_NAMESPACE;
use serde_json::json;

use super::CheckFormat;
use crate::cluster::{self, ClusterArgs};
use crate::output;

/// Looks, and tells.
pub(super) fn run(format: CheckFormat, strict: bool) -> anyhow::Result<ExitCode> {
    let here = ClusterArgs { namespace: SYSTEM_NAMESPACE.to_owned(), context: None };
    let examined = cluster::run(async {
        let client = here.client().await?;
        let examined = examine(&client, &here.namespace).await.map_err(cluster::plain);
        examined.context("the API server does not answer")
    })?;
    match format {
        CheckFormat::Text => output::print(&to_text(&examined))?,
        CheckFormat::Json => output::print_json(&to_json(&examined))?,
    }
    let fails = |finding: &Finding| match finding {
        Finding::Well(_) => false,
        Finding::Odd(_) => strict,
        Finding::Wrong(_) => true,
    };
    let failed = examined.iter().any(|it| fails(&it.finding));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn parts(finding: &Finding) -> (&'static str, &str) {
    match finding {
        Finding::Well(text) => ("ok", text),
        Finding::Odd(text) => ("warning", text),
        Finding::Wrong(text) => ("wrong", text),
    }
}

fn to_text(examined: &[Examined]) -> String {
    let line = |it: &Examined| {
        let (word, text) = parts(&it.finding);
        format!("{word}: {}: {}\n", it.subject, output::shown(text))
    };
    examined.iter().map(line).collect()
}

fn to_json(examined: &[Examined]) -> serde_json::Value {
    let one = |it: &Examined| {
        let (word, text) = parts(&it.finding);
        json!({"subject": it.subject, "verdict": word, "text": text})
    };
    examined.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_a_line() {
        let examined = [
            Examined { subject: "nodes", finding: Finding::Well("3".to_owned()) },
            Examined { subject: "webhook", finding: Finding::Wrong("none".to_owned()) },
        ];
        assert_eq!(to_text(&examined), "ok: nodes: 3\nwrong: webhook: none\n");
    }
}
