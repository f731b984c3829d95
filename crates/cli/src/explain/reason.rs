//! `leno explain REASON`: the meaning of each reason.

use std::process::ExitCode;

use leno_model::{FailureSide, Reason, RetryCondition};
use serde_json::{Value, json};

use super::ExplainFormat;
use crate::output::{self, Listing, ListingColumn, OutputFormat};

/// Prints every reason, in a table or in the structured format.
pub(super) fn print_reasons(format: ExplainFormat) -> anyhow::Result<ExitCode> {
    match format.structured_format() {
        Some(structured_format) => {
            let reasons: Vec<Value> =
                Reason::ALL.iter().map(|reason| reason_to_json(*reason)).collect();
            output::print_value(&reasons, structured_format)?;
        }
        None => {
            let mut listing = Listing::new(COLUMNS);
            for reason in Reason::ALL {
                listing.add_row([
                    reason.code().to_owned(),
                    reason.label().to_owned(),
                    describe_status(*reason),
                    side_name(reason.side()).to_owned(),
                    reason.caption().to_owned(),
                ]);
            }
            output::print_raw(&listing.render(OutputFormat::Table))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one reason, with its hint and its retry condition.
pub(super) fn print_reason(reason: Reason, format: ExplainFormat) -> anyhow::Result<ExitCode> {
    match format.structured_format() {
        Some(structured_format) => output::print_value(&reason_to_json(reason), structured_format)?,
        None => output::print_raw(&render_reason(reason))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn render_reason(reason: Reason) -> String {
    let status = match reason.status() {
        0 => "none: the connection is reset or not opened".to_owned(),
        status => status.to_string(),
    };
    let at_fault = match reason.side() {
        FailureSide::Downstream => "downstream: the client",
        FailureSide::Mesh => "mesh: the sidecar, its rules or its limits",
        FailureSide::Upstream => "upstream: the destination of the request",
    };
    let retry = match reason.retry() {
        RetryCondition::Never => {
            "never: a retry would fail again, or the request may have taken effect"
        }
        RetryCondition::IfUnsent => "if no part of the request reached the application",
        RetryCondition::Always => "always: the request was not sent",
    };
    format!(
        "{}: {}\n  code      {}\n  status    {status}\n  at fault  {at_fault}\n  \
         retried   {retry}\n  hint      {}\n",
        reason.label(),
        reason.caption(),
        reason.code(),
        reason.remedy(),
    )
}

fn reason_to_json(reason: Reason) -> Value {
    json!({
        "reason": reason.label(),
        "code": reason.code(),
        "status": match reason.status() {
            0 => None,
            status => Some(status),
        },
        "side": side_name(reason.side()),
        "retry": match reason.retry() {
            RetryCondition::Never => "never",
            RetryCondition::IfUnsent => "if-unsent",
            RetryCondition::Always => "always",
        },
        "caption": reason.caption(),
        "hint": reason.remedy(),
    })
}

fn describe_status(reason: Reason) -> String {
    match reason.status() {
        0 => String::new(),
        status => status.to_string(),
    }
}

fn side_name(side: FailureSide) -> &'static str {
    match side {
        FailureSide::Downstream => "downstream",
        FailureSide::Mesh => "mesh",
        FailureSide::Upstream => "upstream",
    }
}

const COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("code"),
    ListingColumn::always("reason"),
    ListingColumn::always("status"),
    ListingColumn::always("at fault"),
    ListingColumn::always("meaning"),
];
