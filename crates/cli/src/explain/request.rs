//! `leno explain request`: reads the manifests, decides the request, and prints the decision.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use leno_control::{ExplainRequest, Explanation};
use leno_model::Object;
use leno_registry::FileSource;

use super::decide::{ExplainedRequest, RequestDecision};
use super::target::{ExplainTarget, parse_header, parse_method};
use super::{ExplainFormat, REFUSED, RequestArgs, text};
use crate::output;

/// Prints the decision for the request.
pub(super) fn run(
    files: &[PathBuf],
    args: &RequestArgs,
    format: ExplainFormat,
) -> anyhow::Result<ExitCode> {
    let client = args.from.as_ref().context("--from is missing")?;
    let target = args.url.clone().context("--url is missing")?;
    let question =
        ExplainedRequest { method: args.method.clone(), target, headers: args.header.clone() };
    let decision = RequestDecision::for_request(&read_objects(files)?, client, &question)?;
    match format.structured_format() {
        Some(form) => output::print_value(&text::decision_to_json(&decision, &question), form)?,
        None => output::print_text(&text::render(&decision, &question))?,
    }
    match decision.distinct_outcomes().as_slice() {
        [None] if !decision.is_forwarded() => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::from(REFUSED)),
    }
}

/// Decides a request for the running control plane.
pub(super) fn explain_request(
    objects: &[Object],
    asked: &ExplainRequest,
) -> anyhow::Result<Explanation> {
    let wrong = |field: &'static str| move |error: String| anyhow::anyhow!("{field}: {error}");
    let client = asked.from.parse().map_err(|_| anyhow::anyhow!(FROM))?;
    let headers = asked.headers.iter().map(|header| parse_header(header));
    let question = ExplainedRequest {
        method: parse_method(&asked.method).map_err(wrong("method"))?,
        target: ExplainTarget::parse(&asked.url).map_err(wrong("URL"))?,
        headers: headers.collect::<Result<_, _>>().map_err(wrong("header"))?,
    };
    let decision = RequestDecision::for_request(objects, &client, &question)?;
    let (text, decision) =
        (text::render(&decision, &question), text::decision_to_json(&decision, &question));
    Ok(Explanation { text, decision })
}

fn read_objects(files: &[PathBuf]) -> anyhow::Result<Vec<Object>> {
    let mut source = FileSource::new(files.to_vec());
    let update = source.reload();
    for rejected in &update.rejected {
        eprintln!("rejected: {}", output::format_line(rejected));
    }
    if update.objects == 0 {
        bail!("there is no valid document: see `leno check`");
    }
    Ok(source.objects().cloned().collect())
}

const FROM: &str = "from: use NAMESPACE/NAME of the workload that sends the request";
