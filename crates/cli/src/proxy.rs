//! `leno proxy`: runs the sidecar of one workload.

mod access_log;
mod member;
mod report;
mod settings;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use leno_proxy::{
    ApplicationMetrics, ApplicationPorts, Config, Interception, PortState, Probes, Proxy,
};
use rustix::process::Signal;

use crate::duration::parse_duration;
use crate::wildcard_address::parse_listen_address;
use crate::{exec, limits, stop};

pub(crate) use access_log::AccessLogArgs;
pub(crate) use member::MemberArgs;
use report::ReportSources;
pub(crate) use report::{PortStateOrder, SUPERVISOR_OPTION, SidecarReport, SupervisorOrder};
pub(crate) use settings::ServingArgs;
use settings::SettingArgs;

/// Arguments of `leno proxy`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProxyArgs {
    #[command(flatten)]
    member: MemberArgs,
    /// Address for health checks and metrics (plain HTTP): /livez, /readyz, /metrics, and /probe/CONTAINER/KIND
    /// for the application probes in LENO_PROBES
    #[arg(long, value_name = "ADDRESS", value_parser = parse_listen_address)]
    health: Option<SocketAddr>,
    /// Port and path of the application's own metrics, such as 9102/metrics; merged into /metrics
    #[arg(long, value_name = "PORT[/PATH]")]
    application_metrics: Option<ApplicationMetrics>,
    /// Delay between SIGTERM and draining, for applications that receive SIGTERM at the same time. During the
    /// delay the proxy is not ready, and HTTP/1.1 responses carry `Connection: close`. A second SIGTERM skips
    /// it
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    drain_delay: Duration,
    #[arg(long, env = "LENO_PROBES", hide = true)]
    probes: Option<Probes>,
    #[command(flatten)]
    settings: SettingArgs,
    /// Process ID of the supervisor. The proxy ends with it, and reports its listeners on standard input, which
    /// is a socket
    #[arg(long, hide = true)]
    supervisor: Option<i32>,
}

impl ProxyArgs {
    /// True if `leno up` started this proxy.
    pub(crate) fn is_supervised(&self) -> bool {
        self.supervisor.is_some()
    }

    /// Runs the sidecar until SIGTERM or SIGINT, then drains.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(parent) = self.supervisor {
            exec::end_with_parent(parent, Signal::TERM)?;
        }
        limits::raise_open_files();
        let (is_supervised, drain_delay) = (self.is_supervised(), self.drain_delay);
        let config = self.into_config()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the control thread")?;
        runtime.block_on(run_proxy(config, is_supervised, drain_delay))?;
        Ok(ExitCode::SUCCESS)
    }

    fn into_config(self) -> anyhow::Result<Config> {
        let mut config = self.member.build_config()?;
        config.health = self.health;
        config.probes = self.probes.unwrap_or_default();
        config.application_metrics = self.application_metrics;
        self.settings.apply(&mut config);
        SettingArgs::check_resolver(&config)?;
        Ok(config)
    }
}

/// Runs a proxy until a signal stops it and the drain delay has passed. `is_supervised` is true if `leno up` started
/// the proxy, which then reports to `leno up` and executes its orders.
pub(crate) async fn run_proxy(
    config: Config,
    is_supervised: bool,
    drain_delay: Duration,
) -> anyhow::Result<()> {
    let stop_signal = stop::stop_signal()?;
    let quit_signal = stop::quit_signal()?;
    let workload = config.workload.clone();
    let interception = interception_kind(&config.interception);
    let application = ApplicationPorts::new(match is_supervised {
        // Until the supervisor reports the state of the application.
        true => PortState::Starting,
        false => PortState::Open,
    });
    let proxy = Proxy::start(config).await?.with_application(application.clone());
    let admin = proxy.admin_address().context("the admin endpoint")?;
    let health = proxy.health_address().map(|health| health.to_string());
    tracing::info!(%workload, %admin, health, access = interception, "the sidecar starts");
    let (listeners, in_flight) = (proxy.open_listeners(), proxy.requests_in_flight());
    let drain_start = stop::wait_for_drain_delay(stop_signal, drain_delay, proxy.drain_starter());
    let sources = ReportSources { listeners, admin, in_flight, application_ports: application };
    let report_task = report::run_supervision(sources, is_supervised)?;
    // The report task is dropped when the proxy ends, so listeners that close at the end are not reported.
    tokio::select! {
        result = proxy.run(drain_start) => result?,
        never = report_task => match never {},
        () = quit_signal => {
            tracing::warn!(%workload, "SIGQUIT: the sidecar stops without draining");
            return Ok(());
        }
    }
    tracing::info!(%workload, "the sidecar has drained");
    Ok(())
}

fn interception_kind(interception: &Interception) -> &'static str {
    match interception {
        Interception::Listeners { .. } => "listeners",
        Interception::Redirect { .. } => "redirection",
        Interception::Gateway { .. } => "gateway listeners",
    }
}

const EXAMPLES: &str = "\
Examples:
  On the control plane's machine, create a token and copy it to the other machine:
    leno token shop/cart-2 --control 192.0.2.1:15010 --out cart-2.token
  On the other machine, start the application and its sidecar:
    leno proxy --workload shop/cart-2 --token-file cart-2.token --inbound 192.0.2.7

  In a Kubernetes pod, as injected:
    leno proxy --workload $(POD_NAMESPACE)/$(POD_NAME) --trust-domain cluster.local \\
        --control leno-control.leno-system.svc:15010 --state /var/lib/leno \\
        --service-account-token /var/run/secrets/leno.dev/token --health [::]:15020

SIGTERM, SIGINT, SIGPWR and SIGXCPU drain, after --drain-delay: requests in progress finish, within --drain-timeout.
SIGQUIT stops without draining. SIGHUP, SIGUSR1, SIGUSR2, SIGALRM and other timer and user signals are ignored.
";
