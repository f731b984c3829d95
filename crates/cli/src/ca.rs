//! `leno ca`: rotates the mesh root certificate in stages, without downtime.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use leno_control::status::Status;
use leno_identity::{AuthoritySource, Rotation, RotationStage};
use leno_model::TrustDomain;
use serde_json::json;

use crate::data_directory::DataDirectoryArgs;
use crate::figures::format_count;
use crate::get::MeshSocket;
use crate::output;

/// Arguments of `leno ca`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CaArgs {
    /// Rotation step
    #[arg(value_enum)]
    step: RotationStep,
    #[command(flatten)]
    data: DataDirectoryArgs,
    /// Directory shared by the control planes of the mesh [default: the data directory]
    #[arg(long, value_name = "DIR")]
    shared: Option<PathBuf>,
    /// Continue even if sidecars are disconnected or have not applied the previous step
    #[arg(long)]
    force: bool,
}

/// A step of a root rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RotationStep {
    /// Show the progress of the rotation
    Status,
    /// Create a new root, trusted in addition to the signing root
    Add,
    /// Sign with the new root
    Activate,
    /// Stop trusting the old root
    Retire,
    /// Return to the previous stage; possible until the old root is retired
    Rollback,
}

impl CaArgs {
    /// Performs the step, unless the control plane or sidecars have not applied the previous step.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let data_directory = self.data.path()?;
        let status = runtime
            .block_on(MeshSocket::from_data(&data_directory).query_json("/status"))
            .and_then(|response| {
                serde_json::from_value::<Status>(response).context("cannot parse the response")
            })
            .context(
                "rotation requires a running mesh: set the data directory of a control plane",
            )?;
        let trust_domain = TrustDomain::new(&status.trust_domain)?;
        let authority_directory = self.shared.unwrap_or(data_directory).join("authority");
        if !authority_directory.join("ca.pem").is_file() {
            bail!(
                "no authority in {}: set the shared directory of the control planes with --shared; the CA \
                 of --issuer is rotated by its owner",
                authority_directory.display()
            );
        }
        let now = SystemTime::now();
        // The CA generation identifies the signing key and the trusted roots. The files change first: until the control
        // plane has read them, it reports the previous generation.
        let current_authority =
            AuthoritySource::BuiltIn(authority_directory.clone()).open(&trust_domain, now)?;
        let ca_generation = format!("{:016x}", current_authority.ca_generation());
        if self.step != RotationStep::Status && status.ca_generation != ca_generation && !self.force
        {
            bail!("the control plane has not applied the previous step yet: try again in a second");
        }
        // A sidecar that has not applied the previous step would lose access to the mesh.
        let rotation = Rotation::for_authority(&authority_directory, trust_domain);
        let outdated_count = status.outdated;
        if matches!(self.step, RotationStep::Activate | RotationStep::Retire)
            && outdated_count > 0
            && !self.force
        {
            let problem = format!(
                "{outdated_count} of {} have not applied the previous step: wait, or see `leno ca status`",
                format_count(status.proxies, "sidecar")
            );
            bail!(self.data.add_data_option(&problem));
        }
        if matches!(self.step, RotationStep::Activate | RotationStep::Retire) && !self.force {
            check_all_registered(&status, &self.data)?;
        }
        match self.step {
            RotationStep::Status => {}
            RotationStep::Add => rotation.add_root(now)?,
            RotationStep::Activate => rotation.activate_root(now)?,
            RotationStep::Retire => rotation.retire_root(now)?,
            RotationStep::Rollback => rotation.roll_back(now)?,
        }
        print_step(self.step, rotation.stage(), &status, &self.data)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Rejects a step while sidecars are disconnected: these sidecars would miss the step, and the next step would
/// end their access to the mesh.
fn check_all_registered(status: &Status, data_args: &DataDirectoryArgs) -> anyhow::Result<()> {
    if status.starting {
        bail!("the control plane has just started, and not all sidecars have reconnected: wait");
    }
    let unregistered_count = status.workloads.saturating_sub(status.registered);
    if unregistered_count > 0 {
        let problem = format!(
            "{} of {} without a ready sidecar, which would lose access to the mesh: see `leno get \
             workloads`, or continue with --force",
            unregistered_count,
            format_count(status.workloads, "workload")
        );
        bail!(data_args.add_data_option(&problem));
    }
    Ok(())
}

fn print_step(
    step: RotationStep,
    stage: RotationStage,
    status: &Status,
    data_args: &DataDirectoryArgs,
) -> anyhow::Result<()> {
    let (stage_name, hint) = match stage {
        RotationStage::Stable => {
            ("stable", "one root signs and is trusted; to rotate it: `leno ca add`")
        }
        RotationStage::Added => (
            "added",
            "a new root is trusted; once every sidecar is up to date: `leno ca activate`, or `leno ca rollback`",
        ),
        RotationStage::Activated => (
            "activated",
            "the new root signs; once every sidecar is up to date: `leno ca retire`, or `leno ca rollback`",
        ),
    };
    let next_step = data_args.add_data_option(hint);
    if step != RotationStep::Status {
        return output::print_raw(&format!("{stage_name}: {next_step}"));
    }
    let (sidecar_count, outdated_count) = (status.proxies, status.outdated);
    let progress = json!({ "stage": stage_name, "sidecars": sidecar_count, "outdated": outdated_count, "next": next_step });
    output::print_json(&progress)
}

const EXAMPLES: &str = "\
Examples:
  leno ca add --data /var/lib/leno        add a new root, trusted in addition to the signing root
  leno ca status --data /var/lib/leno     repeat until no sidecar is outdated
  leno ca activate --data /var/lib/leno   sign with the new root; wait again
  leno ca retire --data /var/lib/leno     stop trusting the old root
  In Kubernetes, in a pod of the control plane:
    kubectl -n leno-system exec deploy/leno-control -- \\
        /leno ca status --data /var/lib/leno/control

With several control planes, query each one: the counts cover only its own sidecars. The files are in
the shared directory (--shared).
";
