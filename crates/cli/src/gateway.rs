//! `leno gateway`: one proxy of a gateway, where strangers come in.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use leno_proxy::{Config, Interception};

use crate::duration::parse_duration;
use crate::everywhere::{any, listening};
use crate::limits;
use crate::proxy::{MemberArgs, ServingArgs, serve};

/// Arguments of `leno gateway`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GatewayArgs {
    #[command(flatten)]
    member: MemberArgs,
    /// Where the listeners of the gateway are, at the ports that it has
    /// [default: every address of the machine, `::` or, without IPv6, 0.0.0.0]
    #[arg(long, value_name = "IP")]
    bind: Option<IpAddr>,
    /// Where it answers the kubelet and Prometheus over plain HTTP: /livez, /readyz, /metrics. It is
    /// ready once it has a certificate, knows its gateway and listens at all ports of that
    #[arg(long, value_name = "ADDRESS", value_parser = listening)]
    health: Option<SocketAddr>,
    /// The time between SIGTERM and the drain, in which it goes on to serve: load balancers notice later that it stops. It
    /// is not ready then, and clients of HTTP/1.1 get `Connection: close` with each response. A second SIGTERM ends that
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    linger: Duration,
    #[command(flatten)]
    serving: ServingArgs,
}

impl GatewayArgs {
    /// Runs the proxy until SIGTERM or SIGINT, then drains.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        limits::raise_open_files();
        let linger = self.linger;
        let config = self.into_config()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the control thread")?;
        runtime.block_on(serve(config, false, linger))?;
        Ok(ExitCode::SUCCESS)
    }

    fn into_config(self) -> anyhow::Result<Config> {
        let mut config = self.member.config()?;
        config.interception = Interception::Gateway { bind: self.bind.unwrap_or_else(any) };
        config.health = self.health;
        self.serving.apply(&mut config);
        Ok(config)
    }
}

const EXAMPLES: &str = "\
Examples:
  In a pod of Kubernetes, as the control plane has it for each Gateway of the class `leno`:
    leno gateway --workload $(POD_NAMESPACE)/$(POD_NAME) --trust-domain cluster.local \\
        --control leno-control.leno-system.svc:15010 --state /var/lib/leno \\
        --service-account-token /var/run/secrets/leno.dev/token --health [::]:15020

  At one address of the machine only:
    leno gateway --workload shop/edge-1 --token-file edge-1.token --bind 192.0.2.7

The control plane gives a gateway to the workloads of its namespace that have the label
gateway.networking.k8s.io/gateway-name: NAME and run under the account leno-gateway-NAME.
Ports that come and go with the Gateway are opened and closed while it runs; new certificates
are shown to new connections.

SIGTERM and SIGINT drain, after --linger: requests under way finish, within --drain-timeout.
";
