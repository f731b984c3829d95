//! `leno gateway`: runs one proxy of a Gateway API gateway, which accepts connections of external clients.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use leno_proxy::{Config, Interception};

use crate::duration::parse_duration;
use crate::limits;
use crate::proxy::{MemberArgs, ServingArgs, run_proxy};
use crate::wildcard_address::{parse_listen_address, wildcard_address};

/// Arguments of `leno gateway`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GatewayArgs {
    #[command(flatten)]
    member: MemberArgs,
    /// Address of the gateway's listeners, on the ports of the gateway [default: every address of the machine,
    /// `::` or, without IPv6, 0.0.0.0]
    #[arg(long, value_name = "IP")]
    bind: Option<IpAddr>,
    /// Address for health checks and metrics (plain HTTP): /livez, /readyz, /metrics. Ready once the proxy has
    /// a certificate and its gateway configuration, and listens on all of the gateway's ports
    #[arg(long, value_name = "ADDRESS", value_parser = parse_listen_address)]
    health: Option<SocketAddr>,
    /// Delay between SIGTERM and draining, for load balancers to notice the shutdown. During the delay the
    /// proxy serves but is not ready, and HTTP/1.1 responses carry `Connection: close`. A second SIGTERM skips
    /// it
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    drain_delay: Duration,
    #[command(flatten)]
    serving: ServingArgs,
}

impl GatewayArgs {
    /// Runs the proxy until SIGTERM or SIGINT, then drains.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        limits::raise_open_files();
        let drain_delay = self.drain_delay;
        let config = self.into_config()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the control thread")?;
        runtime.block_on(run_proxy(config, false, drain_delay))?;
        Ok(ExitCode::SUCCESS)
    }

    fn into_config(self) -> anyhow::Result<Config> {
        let mut config = self.member.build_config()?;
        config.interception =
            Interception::Gateway { bind: self.bind.unwrap_or_else(wildcard_address) };
        config.health = self.health;
        self.serving.apply(&mut config);
        Ok(config)
    }
}

const EXAMPLES: &str = "\
Examples:
  In a Kubernetes pod, as the control plane creates it for each Gateway of the class `leno`:
    leno gateway --workload $(POD_NAMESPACE)/$(POD_NAME) --trust-domain cluster.local \\
        --control leno-control.leno-system.svc:15010 --state /var/lib/leno \\
        --service-account-token /var/run/secrets/leno.dev/token --health [::]:15020

  On one address of the machine only:
    leno gateway --workload shop/edge-1 --token-file edge-1.token --bind 192.0.2.7

A Gateway applies to workloads in its namespace with the label
gateway.networking.k8s.io/gateway-name: NAME and the service account leno-gateway-NAME.
Changes to the Gateway's ports take effect without a restart; new connections use new certificates.

SIGTERM and SIGINT drain, after --drain-delay: requests in progress finish, within --drain-timeout.
";
