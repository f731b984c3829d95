//! `leno explain REASON`: the meaning of each reason.

use std::process::ExitCode;

use leno_model::{Reason, Retry, Side};
use serde_json::{Value, json};

use super::ExplainFormat;
use crate::output::{self, Column, Format, Listing};

/// Prints every reason.
pub(super) fn print_all(format: ExplainFormat) -> anyhow::Result<ExitCode> {
    match format.structured_format() {
        Some(form) => {
            let all: Vec<Value> =
                Reason::ALL.iter().map(|reason| reason_to_json(*reason)).collect();
            output::print_value(&all, form)?;
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
            output::print_raw(&listing.render(Format::Table))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one reason.
pub(super) fn print_one(reason: Reason, format: ExplainFormat) -> anyhow::Result<ExitCode> {
    match format.structured_format() {
        Some(form) => output::print_value(&reason_to_json(reason), form)?,
        None => output::print_raw(&render_reason(reason))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn render_reason(reason: Reason) -> String {
    let answered = match reason.status() {
        0 => "none: the connection is reset or not opened".to_owned(),
        status => status.to_string(),
    };
    let at_fault = match reason.side() {
        Side::Downstream => "downstream: the client",
        Side::Mesh => "mesh: the sidecar, its rules or its limits",
        Side::Upstream => "upstream: the destination of the request",
    };
    let retried = match reason.retry() {
        Retry::Never => "never: a retry would fail again, or the request may have taken effect",
        Retry::IfUnsent => "if no part of the request reached the application",
        Retry::Always => "always: the request was not sent",
    };
    format!(
        "{}: {}\n  code      {}\n  status    {answered}\n  at fault  {at_fault}\n  \
         retried   {retried}\n  hint      {}\n",
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
            Retry::Never => "never",
            Retry::IfUnsent => "if-unsent",
            Retry::Always => "always",
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

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Downstream => "downstream",
        Side::Mesh => "mesh",
        Side::Upstream => "upstream",
    }
}

const COLUMNS: &[Column] = &[
    Column::always("code"),
    Column::always("reason"),
    Column::always("status"),
    Column::always("at fault"),
    Column::always("meaning"),
];
