//! `leno token`: creates a join token file for a workload on another machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use leno_identity::JoinBundle;
use leno_model::WorkloadName;

use crate::data_directory::DataDirectoryArgs;
use crate::duration::parse_positive;
use crate::get::MeshSocket;
use crate::output;

/// Arguments of `leno token`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenArgs {
    /// Workload that may join once with the token
    #[arg(value_name = "NAMESPACE/NAME")]
    workload: WorkloadName,
    #[command(flatten)]
    data: DataDirectoryArgs,
    /// Token lifetime [default: as configured at mesh start, 10m]
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    ttl: Option<Duration>,
    /// Control plane addresses for the sidecar [default: the addresses that the mesh advertises]
    #[arg(long, value_name = "ADDRESS,…", value_delimiter = ',')]
    control: Vec<SocketAddr>,
    /// Output file, readable by its owner only [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl TokenArgs {
    /// Requests a token from the running mesh and writes it.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut bundle = runtime.block_on(self.request_token())?;
        if !self.control.is_empty() {
            bundle.control_addresses = self.control;
        }
        match &self.out {
            None => output::print_raw(&bundle.render())?,
            Some(path) => {
                bundle.save(path).context("cannot write the token file")?;
                eprintln!(
                    "On the other machine: leno proxy --workload {} --token-file {} --inbound IP",
                    self.workload,
                    path.display()
                );
            }
        }
        if bundle.control_addresses.is_empty() {
            eprintln!(
                "warning: the token has no control plane address; pass --control here or to `leno proxy`"
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Requests a token for the workload from the control plane.
    async fn request_token(&self) -> anyhow::Result<JoinBundle> {
        let data = self.data.path()?;
        let mut path = format!("/token?workload={}", self.workload);
        if let Some(ttl) = self.ttl {
            path.push_str(&format!("&lifetime_ms={}", ttl.as_millis()));
        }
        let response = MeshSocket::from_data(&data).send_request("POST", &path).await?;
        JoinBundle::parse(&response).context("the response of the control plane is not a token")
    }
}

const EXAMPLES: &str = "\
Examples:
  leno token shop/cart-2 --control 192.0.2.1:15010 --out cart-2.token
  leno token shop/cart-2 --ttl 1h --data /var/lib/leno --out cart-2.token

The file permits joining as that workload, once: transfer it over a secure channel.
";
