//! `leno explain change`: the progress of one change of the running mesh.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use leno_control::status::ChangeReport;

use super::ExplainFormat;
use crate::get::{MeshSocket, changes};
use crate::output;

/// Prints the progress of a change from its source to the last proxy that applied it.
///
/// # Errors
/// If no mesh responds, or the mesh does not know the change.
pub(super) fn run(data: &Path, id: u64, format: ExplainFormat) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let response =
        runtime.block_on(MeshSocket::from_data(data).query_json(&format!("/change?id={id}")))?;
    let Some(change) = serde_json::from_value::<Option<ChangeReport>>(response)
        .context("the response cannot be parsed: the mesh may run another version of leno")?
    else {
        bail!(
            "the control plane has no change {id}: it keeps only recent changes, and each control \
             plane has its own IDs; see `leno get changes`"
        );
    };
    match format.structured_format() {
        Some(structured_format) => output::print_value(&change, structured_format)?,
        None => output::print_text(&changes::describe_change(&change))?,
    }
    Ok(ExitCode::SUCCESS)
}
