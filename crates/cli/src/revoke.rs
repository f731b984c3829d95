//! `leno revoke`: revocation of a workload's membership, including all of its certificates.

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

use crate::cluster::ClusterSearchArgs;
use crate::data_directory::DataArgs;
use crate::get::{MeshSocket, parse_response};
use crate::output::{self, Listing, ListingColumn, OutputFormat};

/// Arguments of `leno revoke`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RevokeArgs {
    /// Workload to revoke; without one, list the revoked workloads
    #[arg(value_name = "NAMESPACE/NAME")]
    workload: Option<WorkloadName>,
    /// UID of the pod to revoke, if several pods had this name in turn
    #[arg(long, value_name = "UID", requires = "workload", value_parser = Uid::new)]
    uid: Option<Uid>,
    /// Restore the workload's membership
    #[arg(long, requires = "workload")]
    undo: bool,
    #[command(flatten)]
    data: DataArgs,
    /// Directory shared by the control planes of the mesh [default: the data directory]
    #[arg(long, value_name = "DIR", conflicts_with = "kubernetes")]
    shared: Option<PathBuf>,
    /// Revoke a Kubernetes pod, in the MeshConfig: the pod that has this name now
    #[arg(long)]
    kubernetes: bool,
    /// Revoke every pod with this name, including future ones
    #[arg(long, requires_all = ["kubernetes", "workload"], conflicts_with = "uid")]
    by_name: bool,
    #[command(flatten)]
    cluster: ClusterSearchArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// The change to a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RevocationChange {
    Revoke,
    Undo,
}

/// The result of a change.
struct RevocationResult {
    /// All revoked workloads after the change.
    all: BTreeSet<RevokedWorkload>,
    /// The selected workload, if any, and whether its state changed.
    changed: Option<(RevokedWorkload, bool)>,
}

impl RevokeArgs {
    /// Revokes the workload, restores its membership, or lists the revoked workloads.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let change = if self.undo { RevocationChange::Undo } else { RevocationChange::Revoke };
        let outcome = match self.kubernetes {
            true => crate::cluster::run(cluster::run(&self, change))?,
            false => self.on_this_machine(change)?,
        };
        self.print_outcome(&outcome, change)?;
        if change == RevocationChange::Revoke && !self.kubernetes {
            self.warn_if_unknown();
        }
        Ok(ExitCode::SUCCESS)
    }

    fn on_this_machine(&self, change: RevocationChange) -> anyhow::Result<RevocationResult> {
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
        let file = RevocationFile::in_directory(&directory);
        let changed = match self.revoked_workload(self.uid.clone()) {
            None => None,
            Some(meant) => {
                let changed = match change {
                    RevocationChange::Revoke => file.add_workload(meant.clone()),
                    RevocationChange::Undo => file.remove(&meant),
                };
                Some((meant, changed.context("cannot write the revoked workloads")?))
            }
        };
        let all = file.read().context("cannot read the revoked workloads")?;
        Ok(RevocationResult { all, changed })
    }

    /// Warns if the control plane on this machine has no such Workload: it may be deleted or misspelled. The
    /// revocation is complete, so a failure here is not an error.
    fn warn_if_unknown(&self) {
        let (Some(workload), Ok(workloads)) = (&self.workload, self.query_workloads()) else {
            return;
        };
        let known: Vec<&str> = workloads.iter().map(|known| known.name.as_str()).collect();
        if let Some(warning) = unknown_warning(&workload.to_string(), &known) {
            eprintln!("warning: {}", self.data.in_commands(&warning));
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

    fn print_outcome(
        &self,
        outcome: &RevocationResult,
        change: RevocationChange,
    ) -> anyhow::Result<()> {
        if let Some(form) = self.output.structured_format() {
            let revoked: Vec<Value> = outcome.all.iter().map(to_json).collect();
            let changed = outcome.changed.as_ref().map(|(meant, changed)| {
                json!({ "workload": meant.workload.to_string(), "uid": uid_of(meant), "changed": changed })
            });
            return output::print_value(&json!({ "change": changed, "revoked": revoked }), form);
        }
        let Some((meant, changed)) = &outcome.changed else {
            let mut listing = Listing::new(COLUMNS);
            for workload in &outcome.all {
                listing
                    .add_row([workload.workload.to_string(), uid_of(workload).unwrap_or_default()]);
            }
            return output::print_raw(&listing.render(self.output));
        };
        output::print_text(&self.data.in_commands(&describe_change(meant, change, *changed)))
    }
}

/// Returns the warning about an unknown workload name.
fn unknown_warning(workload: &str, known: &[&str]) -> Option<String> {
    if known.contains(&workload) {
        return None;
    }
    let undo = format!("undo with `leno revoke {workload} --undo`");
    let advice = match nearest_name(workload, known) {
        Some(meant) => format!("did you mean {meant}? If so, {undo}"),
        None => format!("`leno get workloads` lists all workloads; {undo}"),
    };
    Some(format!("no Workload {workload} exists now: {advice}"))
}

/// Returns the workload with the most similar name, or with the same name in another namespace.
pub(crate) fn nearest_name<'a>(workload: &str, known: &[&'a str]) -> Option<&'a str> {
    let of_name = || {
        let (_, name) = workload.split_once('/')?;
        known.iter().copied().find(|it| it.split_once('/').is_some_and(|(_, it)| it == name))
    };
    closest_word(workload, known).or_else(of_name)
}

fn describe_change(meant: &RevokedWorkload, change: RevocationChange, changed: bool) -> String {
    let of_pod = meant.uid.as_ref().map(|uid| format!(" (the pod with UID {uid})"));
    let who = format!("{}{}", meant.workload, of_pod.unwrap_or_default());
    match (change, changed) {
        (RevocationChange::Revoke, true) => format!(
            "{who} is revoked: its stream and its connections to other members end within seconds, and it \
             gets no new certificate. Undo with `leno revoke {} --undo`.\n",
            meant.workload
        ),
        (RevocationChange::Revoke, false) => format!("{who} is already revoked.\n"),
        (RevocationChange::Undo, true) => format!("{who} is a member again.\n"),
        (RevocationChange::Undo, false) => {
            format!(
                "{who} is not revoked by `leno revoke`; remove an entry of a MeshConfig in the \
                MeshConfig.\n"
            )
        }
    }
}

fn to_json(revoked: &RevokedWorkload) -> Value {
    json!({ "workload": revoked.workload.to_string(), "uid": uid_of(revoked) })
}

fn uid_of(revoked: &RevokedWorkload) -> Option<String> {
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
        let known = ["shop/cart-1", "shop/stock-1"];
        for (name, hint) in [
            ("shop/cart-1", None),
            ("shop/crat-1", Some("did you mean shop/cart-1?")),
            ("other/stock-1", Some("did you mean shop/stock-1?")),
            ("shop/nosuch", Some("`leno get workloads`")),
        ] {
            let warning = unknown_warning(name, &known);
            assert_eq!(warning.is_some(), hint.is_some(), "{name}");
            let found = warning.unwrap_or_default();
            assert!(found.contains(hint.unwrap_or_default()), "{found}");
        }
    }
}
