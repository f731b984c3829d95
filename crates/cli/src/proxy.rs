//! `leno proxy`: one sidecar.

mod access_log;
mod report;
mod settings;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::Args;
use leno_identity::{Credential, JoinBundle, Roots};
use leno_model::{TrustDomain, WorkloadName};
use leno_proxy::{AccountToken, Config, ControlAddress, Interception, Probes, Proxy, TrustedRoots};
use rustix::process::Signal;

use crate::data_directory::{HomeArgs, create_private};
use crate::{exec, limits, stop};

pub(crate) use access_log::AccessLogArgs;
pub(crate) use report::{Report, SUPERVISOR_OPTION};
use settings::SettingArgs;

/// Arguments of `leno proxy`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProxyArgs {
    /// The workload that it is a sidecar of
    #[arg(long, value_name = "NAMESPACE/NAME")]
    workload: WorkloadName,
    /// The control planes, of which it uses one that is there: addresses, or names with a port,
    /// which are looked up anew at each connection; may be given again
    /// [default: what the token file or the last run says]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    control: Vec<ControlAddress>,
    /// What `leno token` made; needed when there is no valid certificate, and removed once used
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A token that the platform keeps fresh, such as that of a Kubernetes service account with the
    /// audience `leno`: read whenever there is no valid certificate, and left there
    #[arg(long, value_name = "FILE", conflicts_with = "token_file")]
    service_account_token: Option<PathBuf>,
    /// The roots of the mesh, as PEM, that it trusts when it shows that token
    /// [default: the text in the environment variable LENO_ROOTS]
    #[arg(long, value_name = "FILE", requires = "service_account_token")]
    roots: Option<PathBuf>,
    #[arg(long, env = "LENO_ROOTS", hide = true)]
    roots_text: Option<String>,
    /// Where it answers the kubelet and Prometheus over plain HTTP: /livez, /readyz, /metrics, and
    /// /probe/CONTAINER/KIND for the probes of the application that LENO_PROBES tells of
    #[arg(long, value_name = "ADDRESS")]
    health: Option<SocketAddr>,
    #[arg(long, env = "LENO_PROBES", hide = true)]
    probes: Option<Probes>,
    /// Where key, certificate and last good snapshot are kept
    /// [default: ~/.local/state/leno/proxies/NAMESPACE/NAME]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The trust domain of the mesh [default: that of the token file or of the certificate]
    #[arg(long, value_name = "NAME", value_parser = TrustDomain::new)]
    trust_domain: Option<TrustDomain>,
    #[command(flatten)]
    settings: SettingArgs,
    #[command(flatten)]
    home: HomeArgs,
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
        let supervised = self.is_supervised();
        let config = self.into_config()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the control thread")?;
        runtime.block_on(serve(config, supervised))?;
        Ok(ExitCode::SUCCESS)
    }

    fn into_config(self) -> anyhow::Result<Config> {
        let workload = self.workload;
        let state = match self.state {
            Some(path) => path,
            None => {
                let proxies = self.home.state()?.join("proxies");
                proxies.join(workload.namespace.as_str()).join(workload.name.as_str())
            }
        };
        create_private(&state)?;
        let account_token = match self.service_account_token {
            Some(file) => {
                let roots = trusted(self.roots, self.roots_text.as_deref())?;
                Some(AccountToken { file, roots })
            }
            None => None,
        };
        let known = Known::find(&state, self.token_file.as_deref(), &workload)?;
        let trust_domain = self.trust_domain.or(known.trust_domain).with_context(|| {
            format!(
                "{workload} has no certificate in {} and no token file: make one with \
                 `leno token {workload} --out FILE` and pass --token-file FILE, or pass \
                 --trust-domain with --service-account-token",
                state.display()
            )
        })?;
        let control = match self.control.is_empty() {
            false => self.control,
            true => known.control,
        };
        if control.is_empty() {
            bail!(
                "{workload} does not know where its control plane is, and would run only until \
                 its certificate expires: pass --control ADDRESS"
            );
        }
        remember(&state, &control)?;
        let mut config = Config::sidecar(workload, trust_domain, state);
        config.control = control;
        config.token_file = self.token_file;
        config.account_token = account_token;
        config.health = self.health;
        config.probes = self.probes.unwrap_or_default();
        self.settings.apply(&mut config);
        Ok(config)
    }
}

/// Whom it trusts before it has a certificate.
fn trusted(file: Option<PathBuf>, text: Option<&str>) -> anyhow::Result<TrustedRoots> {
    match (file, text) {
        (Some(file), _) => Ok(TrustedRoots::File(file)),
        (None, Some(text)) => {
            let roots = Roots::from_pem(text);
            Ok(TrustedRoots::Known(roots.context("LENO_ROOTS cannot be used")?))
        }
        (None, None) => bail!(
            "--service-account-token is shown to a control plane only, and whom to take for one is \
             not known: pass --roots FILE, or the PEM text in LENO_ROOTS"
        ),
    }
}

/// What a proxy knows of its mesh without being told.
#[derive(Debug, Default)]
struct Known {
    trust_domain: Option<TrustDomain>,
    control: Vec<ControlAddress>,
}

impl Known {
    /// From the certificate of the last run while it is valid, else from the token file; either
    /// may know control planes that the other does not.
    fn find(
        state: &Path,
        token_file: Option<&Path>,
        workload: &WorkloadName,
    ) -> anyhow::Result<Self> {
        let held = Credential::load(state).ok().flatten().filter(|held| {
            held.workload() == Some(workload) && !held.is_expired(SystemTime::now())
        });
        let text = std::fs::read_to_string(state.join(CONTROL_FILE)).unwrap_or_default();
        let remembered: Vec<ControlAddress> =
            text.lines().filter_map(|line| line.parse().ok()).collect();
        let mut known = match (held, token_file) {
            (Some(held), _) => {
                let trust_domain = Some(held.id().trust_domain.clone());
                Self { trust_domain, control: Vec::new() }
            }
            (None, Some(path)) => {
                let bundle = JoinBundle::load(path).context("the token file cannot be used")?;
                let control = bundle.control.into_iter().map(ControlAddress::from).collect();
                Self { trust_domain: Some(bundle.trust_domain), control }
            }
            (None, None) => Self::default(),
        };
        if known.control.is_empty() {
            known.control = remembered;
        }
        if known.control.is_empty()
            && let Some(path) = token_file
        {
            let bundle = JoinBundle::load(path).ok();
            let control = bundle.into_iter().flat_map(|bundle| bundle.control);
            known.control.extend(control.map(ControlAddress::from));
        }
        Ok(known)
    }
}

/// Keeps the control planes that are used for the next run: the token file is gone after the
/// first, and nobody needs to say again what was said once.
fn remember(state: &Path, control: &[ControlAddress]) -> anyhow::Result<()> {
    let path = state.join(CONTROL_FILE);
    let text: String = control.iter().map(|address| format!("{address}\n")).collect();
    if std::fs::read_to_string(&path).is_ok_and(|known| known == text) {
        return Ok(());
    }
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

async fn serve(config: Config, supervised: bool) -> anyhow::Result<()> {
    let workload = config.workload.clone();
    let access = describe(&config.interception);
    let proxy = Proxy::start(config).await?;
    let admin = proxy.admin_address().context("the admin page")?;
    let health = proxy.health_address().map(|health| health.to_string());
    tracing::info!(%workload, %admin, health, access, "the sidecar starts");
    let reports = report::reports(proxy.doors(), admin, supervised)?;
    let stop = stop::signals()?;
    // Reports end with the proxy: nobody is told about doors that are closed.
    tokio::select! {
        ended = proxy.run(stop) => ended?,
        never = reports => match never {},
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

const CONTROL_FILE: &str = "control";

const EXAMPLES: &str = "\
Examples:
  On the machine of the control plane, make a token and bring it to the other machine:
    leno token shop/cart-2 --control 192.0.2.1:15010 --out cart-2.token
  There, start the application, and its sidecar:
    leno proxy --workload shop/cart-2 --token-file cart-2.token --inbound 192.0.2.7

  In a pod of Kubernetes, as the injector has it:
    leno proxy --workload $(POD_NAMESPACE)/$(POD_NAME) --trust-domain cluster.local \\
        --control leno-control.leno-system.svc:15010 --state /var/lib/leno \\
        --service-account-token /var/run/secrets/leno.dev/token --health 0.0.0.0:15020

SIGTERM and SIGINT drain: requests under way finish, within --drain-timeout.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_to_trust_is_said_by_a_file_or_by_the_environment() {
        let file = PathBuf::from("/roots.pem");
        let given = trusted(Some(file.clone()), Some("nonsense")).unwrap();
        assert_eq!(given, TrustedRoots::File(file));
        let refused = trusted(None, Some("nonsense")).unwrap_err();
        assert!(format!("{refused:#}").contains("LENO_ROOTS"), "{refused:#}");
        let nothing = trusted(None, None).unwrap_err().to_string();
        assert!(nothing.contains("--roots FILE"), "{nothing}");
    }

    #[test]
    fn control_planes_that_were_used_are_known_the_next_time() {
        let scratch = tempfile::tempdir().unwrap();
        let workload: WorkloadName = "shop/cart-1".parse().unwrap();
        let known = || Known::find(scratch.path(), None, &workload).unwrap().control;
        assert_eq!(known(), []);
        for addresses in
            [vec!["192.0.2.1:15010", "[2001:db8::1]:15010"], vec!["leno-control.leno-system.svc:1"]]
        {
            let control: Vec<ControlAddress> =
                addresses.iter().map(|address| address.parse().unwrap()).collect();
            remember(scratch.path(), &control).unwrap();
            assert_eq!(known(), control);
        }
    }
}
