//! `leno root`: replaces the root of a mesh in stages, with everything running.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use leno_control::status::Status;
use leno_identity::{AuthoritySource, Rotation, RotationStage};
use leno_model::TrustDomain;
use serde_json::json;

use crate::data_directory::DataArgs;
use crate::figures::counted;
use crate::get::Mesh;
use crate::output;

/// Arguments of `leno root`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RootArgs {
    /// What to do
    #[arg(value_enum)]
    step: Step,
    #[command(flatten)]
    data: DataArgs,
    /// The directory that the control planes of the mesh share [default: the data directory]
    #[arg(long, value_name = "DIR")]
    shared: Option<PathBuf>,
    /// Take the step even if sidecars are away or have not caught up with the one before
    #[arg(long)]
    force: bool,
}

/// A step of a replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Tell how far a replacement is
    Status,
    /// Make a new root, trusted beside the one that signs
    Add,
    /// Let the new root sign
    Switch,
    /// Trust the former root no more
    Retire,
    /// Take the last step back, before the former root is retired
    Back,
}

impl RootArgs {
    /// Takes the step, unless sidecars have not caught up with the one before.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let data = self.data.path()?;
        let status = runtime.block_on(Mesh::at(&data).ask("/status")).and_then(|answer| {
            serde_json::from_value::<Status>(answer).context("the answer is not understood")
        });
        let status = status.context(
            "a root is replaced while its mesh runs: name the data directory of a control plane",
        )?;
        let trust_domain = TrustDomain::new(&status.trust_domain)?;
        let authority = self.shared.unwrap_or(data).join("authority");
        if !authority.join("ca.pem").is_file() {
            bail!(
                "there is no authority in {}: name the directory that the control planes share \
                 with --shared; an authority of --issuer is replaced by whoever makes it",
                authority.display()
            );
        }
        let now = SystemTime::now();
        let current = AuthoritySource::Own(authority.clone()).open(&trust_domain, now)?;
        let edition = format!("{:016x}", current.edition());
        if self.step != Step::Status && status.authority != edition && !self.force {
            bail!("the control plane has not taken in the step before yet: try again in a second");
        }
        let rotation = Rotation::of(&authority, trust_domain);
        let behind = status.outdated;
        if matches!(self.step, Step::Switch | Step::Retire) && behind > 0 && !self.force {
            let problem = format!(
                "{behind} of {} did not catch up with the step before: wait, or see `leno root status`",
                counted(status.proxies, "sidecar")
            );
            bail!(self.data.in_commands(&problem));
        }
        if matches!(self.step, Step::Switch | Step::Retire) && !self.force {
            expect_everybody(&status, &self.data)?;
        }
        match self.step {
            Step::Status => {}
            Step::Add => rotation.add(now)?,
            Step::Switch => rotation.switch(now)?,
            Step::Retire => rotation.retire(now)?,
            Step::Back => rotation.back(now)?,
        }
        tell(self.step, rotation.stage(), &status, &self.data)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Who is away does not hear of a step, and is cut off by the next one.
fn expect_everybody(status: &Status, data: &DataArgs) -> anyhow::Result<()> {
    if status.settling {
        bail!("the control plane has just started, and not every sidecar is back: wait");
    }
    let away = status.workloads.saturating_sub(status.registered);
    if away > 0 {
        let problem = format!(
            "{} of {} without a ready sidecar, which would be cut off: see `leno get workloads`, or take the step with \
             --force",
            away,
            counted(status.workloads, "workload")
        );
        bail!(data.in_commands(&problem));
    }
    Ok(())
}

fn tell(step: Step, stage: RotationStage, status: &Status, data: &DataArgs) -> anyhow::Result<()> {
    let (word, next) = match stage {
        RotationStage::Settled => ("settled", "one root signs and is trusted; `leno root add`"),
        RotationStage::Added => (
            "added",
            "a new root is trusted; once every sidecar has caught up: `leno root switch`, or \
             `leno root back`",
        ),
        RotationStage::Switched => (
            "switched",
            "the new root signs; once every sidecar has caught up: `leno root retire`, or \
             `leno root back`",
        ),
    };
    let next = data.in_commands(next);
    if step != Step::Status {
        return output::print(&format!("{word}: {next}"));
    }
    let (all, outdated) = (status.proxies, status.outdated);
    let figures = json!({ "stage": word, "sidecars": all, "outdated": outdated, "next": next });
    output::print_json(&figures)
}

const EXAMPLES: &str = "\
Examples:
  leno root add --data /var/lib/leno      a new root, trusted beside the one that signs
  leno root status --data /var/lib/leno   until no sidecar is outdated
  leno root switch --data /var/lib/leno   the new one signs; wait again
  leno root retire --data /var/lib/leno   the former one is trusted no more

With several control planes: the counts are those of the one that is asked, so ask each; the files
are in the directory that they share (--shared).
";
