//! `leno explain request`: reads the manifests, decides the request, and prints the decision.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use leno_control::{ExplainRequest, Explanation};
use leno_model::Object;
use leno_registry::FileSource;

use super::decide::{ExplainedRequest, RequestDecision};
use super::target::{ExplainTarget, parse_header, parse_method};
use super::{EXIT_REJECTED, ExplainFormat, RequestArgs, text};
use crate::output;

/// Prints the decision for the request.
pub(super) fn run(
    files: &[PathBuf],
    args: &RequestArgs,
    format: ExplainFormat,
) -> anyhow::Result<ExitCode> {
    let client = args.from.as_ref().context("--from is missing")?;
    let target = args.url.clone().context("--url is missing")?;
    let request =
        ExplainedRequest { method: args.method.clone(), target, headers: args.header.clone() };
    let decision = RequestDecision::for_request(&read_objects(files)?, client, &request)?;
    match format.structured_format() {
        Some(structured_format) => {
            output::print_value(&text::decision_to_json(&decision, &request), structured_format)?
        }
        None => output::print_text(&text::render(&decision, &request))?,
    }
    match decision.distinct_outcomes().as_slice() {
        [None] if !decision.client_sidecar_responds() => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::from(EXIT_REJECTED)),
    }
}

/// Decides a request with the current configuration of the running control plane, which calls this function for
/// `/explain` and for its web page.
pub(super) fn explain_request(
    objects: &[Object],
    query: &ExplainRequest,
) -> anyhow::Result<Explanation> {
    let invalid = |field: &'static str| move |error: String| anyhow::anyhow!("{field}: {error}");
    let client = query.from.parse().map_err(|_| anyhow::anyhow!(INVALID_CLIENT))?;
    let headers = query.headers.iter().map(|header| parse_header(header));
    let request = ExplainedRequest {
        method: parse_method(&query.method).map_err(invalid("method"))?,
        target: ExplainTarget::parse(&query.url).map_err(invalid("URL"))?,
        headers: headers.collect::<Result<_, _>>().map_err(invalid("header"))?,
    };
    let decision = RequestDecision::for_request(objects, &client, &request)?;
    Ok(Explanation {
        text: text::render(&decision, &request),
        decision: text::decision_to_json(&decision, &request),
    })
}

fn read_objects(files: &[PathBuf]) -> anyhow::Result<Vec<Object>> {
    let mut source = FileSource::new(files.to_vec());
    let update = source.reload();
    for rejected in &update.rejected {
        eprintln!("rejected: {}", output::format_line(rejected));
    }
    if update.object_count == 0 {
        bail!("there is no valid document: see `leno check`");
    }
    Ok(source.objects().cloned().collect())
}

const INVALID_CLIENT: &str = "from: use NAMESPACE/NAME of the workload that sends the request";
