//! `leno revoke`: ends the membership of one workload, whatever certificates it holds.

mod cluster;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use leno_control::status::WorkloadStatus;
use leno_identity::RevocationFile;
use leno_model::{RevokedWorkload, Uid, WorkloadName};
use leno_registry::closest;
use serde_json::{Value, json};

use crate::cluster::FoundArgs;
use crate::data_directory::DataArgs;
use crate::get::{Mesh, parsed};
use crate::output::{self, Column, Format, Listing};

/// Arguments of `leno revoke`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RevokeArgs {
    /// The workload that is no member any more; without one, list those that are revoked
    #[arg(value_name = "NAMESPACE/NAME")]
    workload: Option<WorkloadName>,
    /// Of several pods of that name, one after the other, only the one with this UID
    #[arg(long, value_name = "UID", requires = "workload", value_parser = Uid::new)]
    uid: Option<Uid>,
    /// Make the workload a member again
    #[arg(long, requires = "workload")]
    undo: bool,
    #[command(flatten)]
    data: DataArgs,
    /// The directory that the control planes of the mesh share [default: the data directory]
    #[arg(long, value_name = "DIR", conflicts_with = "kubernetes")]
    shared: Option<PathBuf>,
    /// Revoke a pod of a cluster, in its MeshConfig: the pod that has the name now
    #[arg(long)]
    kubernetes: bool,
    /// Every pod of that name, also those to come
    #[arg(long, requires_all = ["kubernetes", "workload"], conflicts_with = "uid")]
    by_name: bool,
    #[command(flatten)]
    cluster: FoundArgs,
    /// The form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// The change to a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Revoke,
    Undo,
}

/// The result of a change.
struct Outcome {
    /// All that are revoked now.
    all: BTreeSet<RevokedWorkload>,
    /// The one that was meant, if one was, and whether that changed anything.
    changed: Option<(RevokedWorkload, bool)>,
}

impl RevokeArgs {
    /// Revokes the workload, makes it a member again, or lists the revoked ones.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let change = if self.undo { Change::Undo } else { Change::Revoke };
        let outcome = match self.kubernetes {
            true => crate::cluster::run(cluster::run(&self, change))?,
            false => self.on_this_machine(change)?,
        };
        self.print(&outcome, change)?;
        if change == Change::Revoke && !self.kubernetes {
            self.warn_if_unknown();
        }
        Ok(ExitCode::SUCCESS)
    }

    fn on_this_machine(&self, change: Change) -> anyhow::Result<Outcome> {
        let directory = match &self.shared {
            Some(shared) => shared.clone(),
            None => self.data.path()?,
        };
        if !directory.join("tokens").is_dir() {
            bail!(
                "no control plane has run on {}: name its data directory with --data, or the directory that \
                 control planes share with --shared; in a cluster use --kubernetes",
                directory.display()
            );
        }
        let file = RevocationFile::in_directory(&directory);
        let changed = match self.meant(self.uid.clone()) {
            None => None,
            Some(meant) => {
                let changed = match change {
                    Change::Revoke => file.add(meant.clone()),
                    Change::Undo => file.remove(&meant),
                };
                Some((meant, changed.context("the revoked workloads were not written")?))
            }
        };
        let all = file.read().context("the revoked workloads cannot be read")?;
        Ok(Outcome { all, changed })
    }

    /// Warns when the control plane on this machine knows no such Workload: it may be deleted, or misspelt. The
    /// revocation is done, so a failure here is no error.
    fn warn_if_unknown(&self) {
        let (Some(workload), Ok(workloads)) = (&self.workload, self.workloads()) else { return };
        let known: Vec<&str> = workloads.iter().map(|known| known.name.as_str()).collect();
        if let Some(warning) = unknown(&workload.to_string(), &known) {
            eprintln!("warning: {}", self.data.in_commands(&warning));
        }
    }

    /// The workloads that the control plane on this machine knows.
    ///
    /// # Errors
    /// When no control plane runs here, or one of another release.
    fn workloads(&self) -> anyhow::Result<Vec<WorkloadStatus>> {
        let data = self.data.path()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        parsed(runtime.block_on(Mesh::at(&data).ask("/workloads"))?)
    }

    fn meant(&self, uid: Option<Uid>) -> Option<RevokedWorkload> {
        let workload = self.workload.clone()?;
        Some(RevokedWorkload { workload, uid })
    }

    fn print(&self, outcome: &Outcome, change: Change) -> anyhow::Result<()> {
        if let Some(form) = self.output.structured() {
            let revoked: Vec<Value> = outcome.all.iter().map(shown).collect();
            let changed = outcome.changed.as_ref().map(|(meant, changed)| {
                json!({ "workload": meant.workload.to_string(), "uid": uid_of(meant), "changed": changed })
            });
            return output::print_value(&json!({ "change": changed, "revoked": revoked }), form);
        }
        let Some((meant, changed)) = &outcome.changed else {
            let mut listing = Listing::new(COLUMNS);
            for workload in &outcome.all {
                listing.row([workload.workload.to_string(), uid_of(workload).unwrap_or_default()]);
            }
            return output::print(&listing.render(self.output));
        };
        output::print_text(&self.data.in_commands(&sentence(meant, change, *changed)))
    }
}

/// The warning about the name of a workload that is not among the known ones.
fn unknown(workload: &str, known: &[&str]) -> Option<String> {
    if known.contains(&workload) {
        return None;
    }
    let undo = format!("take it back with `leno revoke {workload} --undo`");
    let advice = match nearest(workload, known) {
        Some(meant) => format!("did you mean {meant}? Then {undo}"),
        None => format!("`leno get workloads` lists those there are; {undo}"),
    };
    Some(format!("there is no Workload {workload} now: {advice}"))
}

/// The known workload with the most similar name, or with the same name in another namespace.
pub(crate) fn nearest<'a>(workload: &str, known: &[&'a str]) -> Option<&'a str> {
    let of_name = || {
        let (_, name) = workload.split_once('/')?;
        known.iter().copied().find(|it| it.split_once('/').is_some_and(|(_, it)| it == name))
    };
    closest(workload, known).or_else(of_name)
}

fn sentence(meant: &RevokedWorkload, change: Change, changed: bool) -> String {
    let of_pod = meant.uid.as_ref().map(|uid| format!(" (the pod with UID {uid})"));
    let who = format!("{}{}", meant.workload, of_pod.unwrap_or_default());
    match (change, changed) {
        (Change::Revoke, true) => format!(
            "{who} is revoked: its stream and its connections to other members end within seconds, and it gets \
             no certificate. Take it back with `leno revoke {} --undo`.\n",
            meant.workload
        ),
        (Change::Revoke, false) => format!("{who} was revoked already.\n"),
        (Change::Undo, true) => format!("{who} is a member again.\n"),
        (Change::Undo, false) => {
            format!("{who} was not revoked here; an entry of a MeshConfig is removed there.\n")
        }
    }
}

fn shown(revoked: &RevokedWorkload) -> Value {
    json!({ "workload": revoked.workload.to_string(), "uid": uid_of(revoked) })
}

fn uid_of(revoked: &RevokedWorkload) -> Option<String> {
    revoked.uid.as_ref().map(ToString::to_string)
}

const COLUMNS: &[Column] = &[Column::always("WORKLOAD"), Column::always("UID")];

const EXAMPLES: &str = "\
Examples:
  leno revoke shop/cart-2 --data /var/lib/leno      end the membership of one workload
  leno revoke shop/cart-2 --undo                    make it a member again; it joins with a new token
  leno revoke -o json                               list the workloads that are revoked
  leno revoke --kubernetes shop/web-0               the pod that has the name now, not the one after it
  leno revoke --kubernetes shop/web-0 --by-name     every pod of that name

All workloads of an account: `spec.revoked` of the MeshConfig, with `kind: ServiceAccount`.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_that_is_not_known_gets_a_warning_with_the_nearest_name() {
        let known = ["shop/cart-1", "shop/stock-1"];
        for (name, hint) in [
            ("shop/cart-1", None),
            ("shop/crat-1", Some("did you mean shop/cart-1?")),
            ("other/stock-1", Some("did you mean shop/stock-1?")),
            ("shop/nosuch", Some("`leno get workloads`")),
        ] {
            let warning = unknown(name, &known);
            assert_eq!(warning.is_some(), hint.is_some(), "{name}");
            let found = warning.unwrap_or_default();
            assert!(found.contains(hint.unwrap_or_default()), "{found}");
        }
    }
}
