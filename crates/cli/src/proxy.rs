//! `leno proxy`: one sidecar.

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
use crate::everywhere::listening;
use crate::{exec, limits, stop};

pub(crate) use access_log::AccessLogArgs;
pub(crate) use member::MemberArgs;
use report::Reported;
pub(crate) use report::{Order, PortOrder, Report, SUPERVISOR_OPTION};
pub(crate) use settings::ServingArgs;
use settings::SettingArgs;

/// Arguments of `leno proxy`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProxyArgs {
    #[command(flatten)]
    member: MemberArgs,
    /// Where it answers the kubelet and Prometheus over plain HTTP: /livez, /readyz, /metrics, and
    /// /probe/CONTAINER/KIND for the probes of the application that LENO_PROBES tells of
    #[arg(long, value_name = "ADDRESS", value_parser = listening)]
    health: Option<SocketAddr>,
    /// Where the application exposes metrics of its own, such as 9102/metrics: /metrics tells them too
    #[arg(long, value_name = "PORT[/PATH]")]
    application_metrics: Option<ApplicationMetrics>,
    /// How long it serves on after SIGTERM before it drains: beside an application that is told to end
    /// at the same time. Meanwhile it is not ready, and clients of HTTP/1.1 get `Connection: close` with each
    /// response. A second SIGTERM ends that
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    linger: Duration,
    #[arg(long, env = "LENO_PROBES", hide = true)]
    probes: Option<Probes>,
    #[command(flatten)]
    settings: SettingArgs,
    /// The process that started it: it ends when that does, and hears of our doors on our
    /// standard input, which is a socket
    #[arg(long, hide = true)]
    supervisor: Option<i32>,
}

impl ProxyArgs {
    /// Whether `leno up` started it.
    pub(crate) fn is_supervised(&self) -> bool {
        self.supervisor.is_some()
    }

    /// Runs the sidecar until SIGTERM or SIGINT, then drains.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(parent) = self.supervisor {
            exec::die_with(parent, Signal::TERM)?;
        }
        limits::raise_open_files();
        let (supervised, linger) = (self.is_supervised(), self.linger);
        let config = self.into_config()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the control thread")?;
        runtime.block_on(serve(config, supervised, linger))?;
        Ok(ExitCode::SUCCESS)
    }

    fn into_config(self) -> anyhow::Result<Config> {
        let mut config = self.member.config()?;
        config.health = self.health;
        config.probes = self.probes.unwrap_or_default();
        config.application_metrics = self.application_metrics;
        self.settings.apply(&mut config);
        SettingArgs::check(&config)?;
        Ok(config)
    }
}

/// Runs a proxy until it is told to stop, and for as long as it lingers.
pub(crate) async fn serve(
    config: Config,
    supervised: bool,
    linger: Duration,
) -> anyhow::Result<()> {
    let signals = stop::signals()?;
    let quit = stop::quit()?;
    let workload = config.workload.clone();
    let access = describe(&config.interception);
    let application = ApplicationPorts::new(match supervised {
        // Until its supervisor reports the application.
        true => PortState::Starting,
        false => PortState::Open,
    });
    let proxy = Proxy::start(config).await?.with_application(application.clone());
    let admin = proxy.admin_address().context("the admin page")?;
    let health = proxy.health_address().map(|health| health.to_string());
    tracing::info!(%workload, %admin, health, access, "the sidecar starts");
    let (listeners, in_flight) = (proxy.doors(), proxy.requests_in_flight());
    let stop = stop::lingering(signals, linger, proxy.leaving());
    let reported = Reported { listeners, admin, in_flight, application };
    let reports = report::reports(reported, supervised)?;
    // Reports end with the proxy: nobody is told about doors that are closed.
    tokio::select! {
        ended = proxy.run(stop) => ended?,
        never = reports => match never {},
        () = quit => {
            tracing::warn!(%workload, "SIGQUIT: the sidecar stops without draining");
            return Ok(());
        }
    }
    tracing::info!(%workload, "the sidecar has drained");
    Ok(())
}

fn describe(interception: &Interception) -> &'static str {
    match interception {
        Interception::Doors { .. } => "doors",
        Interception::Redirect { .. } => "redirection",
        Interception::Gateway { .. } => "the listeners of a gateway",
    }
}

const EXAMPLES: &str = "\
Examples:
  On the machine of the control plane, make a token and bring it to the other machine:
    leno token shop/cart-2 --control 192.0.2.1:15010 --out cart-2.token
  There, start the application, and its sidecar:
    leno proxy --workload shop/cart-2 --token-file cart-2.token --inbound 192.0.2.7

  In a pod of Kubernetes, as the injector has it:
    leno proxy --workload $(POD_NAMESPACE)/$(POD_NAME) --trust-domain cluster.local \\
        --control leno-control.leno-system.svc:15010 --state /var/lib/leno \\
        --service-account-token /var/run/secrets/leno.dev/token --health [::]:15020

SIGTERM, SIGINT, SIGPWR and SIGXCPU drain, after --linger: requests under way finish, within --drain-timeout.
SIGQUIT stops without draining. SIGHUP, SIGUSR1, SIGUSR2, SIGALRM and other signals of timers and programs are ignored.
";
