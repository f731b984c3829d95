//! `leno revoke`: revokes a workload's membership, including all of its certificates, or restores it.

mod cluster;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use leno_control::status::WorkloadStatus;
use leno_identity::RevocationFile;
use leno_model::{RevokedWorkload, Uid, WorkloadName};
use leno_registry::closest_word;
use serde_json::{Value, json};

use crate::cluster::DetectedClusterArgs;
use crate::data_directory::DataDirectoryArgs;
use crate::get::{MeshSocket, parse_response};
use crate::output::{self, Listing, ListingColumn, OutputFormat};

/// Arguments of `leno revoke`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RevokeArgs {
    /// Workload to revoke; without one, list the revoked workloads
    #[arg(value_name = "NAMESPACE/NAME")]
    workload: Option<WorkloadName>,
    /// UID of the pod to revoke, if several pods have had this name
    #[arg(long, value_name = "UID", requires = "workload", value_parser = Uid::new)]
    uid: Option<Uid>,
    /// Restore the workload's membership
    #[arg(long, requires = "workload")]
    undo: bool,
    #[command(flatten)]
    data: DataDirectoryArgs,
    /// Directory shared by the control planes of the mesh [default: the data directory]
    #[arg(long, value_name = "DIR", conflicts_with = "kubernetes")]
    shared: Option<PathBuf>,
    /// Revoke the Kubernetes pod that has this name now, with an entry in the MeshConfig
    #[arg(long)]
    kubernetes: bool,
    /// Revoke every pod with this name, including future ones
    #[arg(long, requires_all = ["kubernetes", "workload"], conflicts_with = "uid")]
    by_name: bool,
    #[command(flatten)]
    cluster: DetectedClusterArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// The requested change to a workload's membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RevocationChange {
    Revoke,
    Undo,
}

/// The result of a change, or of a listing.
struct RevocationResult {
    /// All workloads that are revoked after the change.
    revoked_workloads: BTreeSet<RevokedWorkload>,
    /// The workload that the command selects, and true if its state changed; `None` for a listing.
    selected_workload: Option<(RevokedWorkload, bool)>,
}

impl RevokeArgs {
    /// Revokes the workload, restores its membership, or lists the revoked workloads.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let change = if self.undo { RevocationChange::Undo } else { RevocationChange::Revoke };
        let result = match self.kubernetes {
            true => crate::cluster::block_on(cluster::run(&self, change))?,
            false => self.change_local_revocations(change)?,
        };
        self.print_result(&result, change)?;
        if change == RevocationChange::Revoke && !self.kubernetes {
            self.warn_if_unknown();
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Changes or lists the revoked workloads in the directory of the control planes on this machine.
    fn change_local_revocations(
        &self,
        change: RevocationChange,
    ) -> anyhow::Result<RevocationResult> {
        let directory = match &self.shared {
            Some(shared) => shared.clone(),
            None => self.data.path()?,
        };
        if !directory.join("tokens").is_dir() {
            bail!(
                "no control plane has run on {}: set its data directory with --data, or the shared \
                 directory of the control planes with --shared; in a cluster use --kubernetes",
                directory.display()
            );
        }
        let revocation_file = RevocationFile::in_directory(&directory);
        let selected_workload = match self.revoked_workload(self.uid.clone()) {
            None => None,
            Some(selected) => {
                let outcome = match change {
                    RevocationChange::Revoke => revocation_file.add_workload(selected.clone()),
                    RevocationChange::Undo => revocation_file.remove(&selected),
                };
                let has_changed = outcome.context("cannot write the revoked workloads")?;
                Some((selected, has_changed))
            }
        };
        let revoked_workloads =
            revocation_file.read().context("cannot read the revoked workloads")?;
        Ok(RevocationResult { revoked_workloads, selected_workload })
    }

    /// Warns if the control plane on this machine has no Workload with this name: the name may be misspelled,
    /// or the Workload deleted. The revocation is complete, so a failed query is not an error.
    fn warn_if_unknown(&self) {
        let (Some(workload), Ok(workloads)) = (&self.workload, self.query_workloads()) else {
            return;
        };
        let names: Vec<&str> = workloads.iter().map(|workload| workload.name.as_str()).collect();
        if let Some(warning) = describe_unknown_workload(&workload.to_string(), &names) {
            eprintln!("warning: {}", self.data.add_data_option(&warning));
        }
    }

    /// Returns the workloads of the control plane on this machine.
    ///
    /// # Errors
    /// If no control plane runs here, or it is of another release.
    fn query_workloads(&self) -> anyhow::Result<Vec<WorkloadStatus>> {
        let data = self.data.path()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        parse_response(runtime.block_on(MeshSocket::from_data(&data).query_json("/workloads"))?)
    }

    fn revoked_workload(&self, uid: Option<Uid>) -> Option<RevokedWorkload> {
        let workload = self.workload.clone()?;
        Some(RevokedWorkload { workload, uid })
    }

    fn print_result(
        &self,
        result: &RevocationResult,
        change: RevocationChange,
    ) -> anyhow::Result<()> {
        if let Some(format) = self.output.structured_format() {
            let revoked: Vec<Value> = result.revoked_workloads.iter().map(to_json).collect();
            let change_json = result.selected_workload.as_ref().map(|(selected, has_changed)| {
                json!({ "workload": selected.workload.to_string(), "uid": format_uid(selected), "changed": has_changed })
            });
            let result_json = json!({ "change": change_json, "revoked": revoked });
            return output::print_value(&result_json, format);
        }
        let Some((selected, has_changed)) = &result.selected_workload else {
            let mut listing = Listing::new(COLUMNS);
            for workload in &result.revoked_workloads {
                listing.add_row([
                    workload.workload.to_string(),
                    format_uid(workload).unwrap_or_default(),
                ]);
            }
            return output::print_raw(&listing.render(self.output));
        };
        let description = describe_change(selected, change, *has_changed);
        output::print_text(&self.data.add_data_option(&description))
    }
}

/// Returns the warning about an unknown workload name; `None` if `names` contains the name.
fn describe_unknown_workload(workload: &str, names: &[&str]) -> Option<String> {
    if names.contains(&workload) {
        return None;
    }
    let undo_hint = format!("undo with `leno revoke {workload} --undo`");
    let hint = match nearest_name(workload, names) {
        Some(nearest) => format!("did you mean {nearest}? If so, {undo_hint}"),
        None => format!("`leno get workloads` lists all workloads; {undo_hint}"),
    };
    Some(format!("no Workload {workload} exists now: {hint}"))
}

/// Returns the workload with the most similar name, or else with the same name in another namespace; `None` if
/// there is neither.
pub(crate) fn nearest_name<'a>(workload: &str, names: &[&'a str]) -> Option<&'a str> {
    let find_same_name = || {
        let (_, name) = workload.split_once('/')?;
        let has_name = |candidate: &&str| {
            candidate.split_once('/').is_some_and(|(_, candidate)| candidate == name)
        };
        names.iter().copied().find(has_name)
    };
    closest_word(workload, names).or_else(find_same_name)
}

fn describe_change(
    selected: &RevokedWorkload,
    change: RevocationChange,
    has_changed: bool,
) -> String {
    let pod_text = selected.uid.as_ref().map(|uid| format!(" (the pod with UID {uid})"));
    let subject = format!("{}{}", selected.workload, pod_text.unwrap_or_default());
    match (change, has_changed) {
        (RevocationChange::Revoke, true) => format!(
            "{subject} is revoked: its stream and its connections to other members end within seconds, and it \
             gets no new certificate. Undo with `leno revoke {} --undo`.\n",
            selected.workload
        ),
        (RevocationChange::Revoke, false) => format!("{subject} is already revoked.\n"),
        (RevocationChange::Undo, true) => format!("{subject} is a member again.\n"),
        (RevocationChange::Undo, false) => {
            format!(
                "{subject} is not revoked by `leno revoke`; remove an entry of a MeshConfig in the \
                MeshConfig.\n"
            )
        }
    }
}

fn to_json(revoked: &RevokedWorkload) -> Value {
    json!({ "workload": revoked.workload.to_string(), "uid": format_uid(revoked) })
}

fn format_uid(revoked: &RevokedWorkload) -> Option<String> {
    revoked.uid.as_ref().map(ToString::to_string)
}

const COLUMNS: &[ListingColumn] =
    &[ListingColumn::always("WORKLOAD"), ListingColumn::always("UID")];

const EXAMPLES: &str = "\
Examples:
  leno revoke shop/cart-2 --data /var/lib/leno      revoke the membership of one workload
  leno revoke shop/cart-2 --undo                    restore the membership; joining requires a new token
  leno revoke -o json                               list revoked workloads
  leno revoke --kubernetes shop/web-0               the current pod of that name, not its successors
  leno revoke --kubernetes shop/web-0 --by-name     every pod of that name, including future ones

To revoke all workloads of a service account, set `spec.revoked` of the MeshConfig with `kind: ServiceAccount`.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_workload_gets_a_warning_with_the_nearest_name() {
        let names = ["shop/cart-1", "shop/stock-1"];
        for (name, hint) in [
            ("shop/cart-1", None),
            ("shop/crat-1", Some("did you mean shop/cart-1?")),
            ("other/stock-1", Some("did you mean shop/stock-1?")),
            ("shop/nosuch", Some("`leno get workloads`")),
        ] {
            let warning = describe_unknown_workload(name, &names);
            assert_eq!(warning.is_some(), hint.is_some(), "{name}");
            let text = warning.unwrap_or_default();
            assert!(text.contains(hint.unwrap_or_default()), "{text}");
        }
    }
}
