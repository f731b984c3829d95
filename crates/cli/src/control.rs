//! `leno control`: runs a control plane, either standalone from manifest files or in a Kubernetes cluster.

mod kubernetes;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use leno_control::{
    Config, Control, HealthListener, KeyAccess, PermittedFiles, PermittedServers, StartError,
};
use leno_discovery::traffic::MIN_REPORT_INTERVAL;
use leno_registry::FileSource;

use crate::data_directory::{ClaimedDataDirectory, DataDirectoryArgs, create_private_directory};
use crate::duration::{parse_duration, parse_positive};
use crate::explain::page_explainer;
use crate::output;
use crate::wildcard_address::parse_listen_address;
use crate::{limits, stop};

/// Arguments of `leno control`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ControlArgs {
    /// File or directory of YAML manifests; repeatable; required without --kubernetes
    #[arg(short, long = "file", value_name = "PATH", required_unless_present = "kubernetes")]
    file: Vec<PathBuf>,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    cluster: kubernetes::InClusterArgs,
    /// Address for health checks and metrics (plain HTTP): /livez, /readyz, /metrics
    #[arg(long, value_name = "ADDRESS", value_parser = parse_listen_address)]
    health: Option<SocketAddr>,
    /// Address for sidecar connections; port 0: chosen by the kernel
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15010", value_parser = parse_listen_address)]
    listen: SocketAddr,
    /// Addresses of other control planes of the same mesh. All control planes may share one list: a control
    /// plane ignores its own address
    #[arg(long = "peer", value_name = "ADDRESS,…", value_delimiter = ',', requires = "shared")]
    peers: Vec<SocketAddr>,
    /// Directory shared by all control planes of the mesh, with the certificate authority and unused tokens
    /// [default: the data directory]
    #[arg(long, value_name = "DIR")]
    shared: Option<PathBuf>,
    /// Directory with an externally managed intermediate CA: `tls.key`, `tls.crt` and `ca.crt` as written by
    /// cert-manager [default: a self-signed root]
    #[arg(long, value_name = "DIR")]
    issuer: Option<PathBuf>,
}

/// The manifests of a mesh.
#[derive(Debug, Clone, Args)]
pub(crate) struct ManifestArgs {
    /// File or directory of YAML manifests; repeatable
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    pub(crate) file: Vec<PathBuf>,
}

/// Options of every control plane.
#[derive(Debug, Clone, Args)]
pub(crate) struct MeshArgs {
    #[command(flatten)]
    pub(crate) data: DataDirectoryArgs,
    /// Address for token files, if sidecars on other machines cannot use the --listen address
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<SocketAddr>,
    /// Certificate lifetime; certificates are renewed after half of it
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_positive)]
    certificate_lifetime: Duration,
    /// CA certificates (PEM) used to verify JWKS servers, and the metrics collector [default: the system's
    /// roots]
    #[arg(long, value_name = "FILE")]
    jwks_ca: Option<PathBuf>,
    /// Hosts and address ranges from which the keys (JWKS) of a `JwtValidation` may be fetched, in addition to
    /// public addresses. A host name permits only the private addresses that it resolves to: list other addresses
    /// as ranges. `none` permits only public addresses [default: loopback and private addresses; none with `leno
    /// control --kubernetes`]
    #[arg(long, value_name = "LIST")]
    jwks_allow: Option<PermittedServers>,
    /// Directory that contains all key files that `JwtValidation`s may reference [default: all files; none
    /// with `leno control --kubernetes`]
    #[arg(long, value_name = "DIR", value_parser = parse_absolute_path)]
    jwks_files: Option<PathBuf>,
    /// Interval of sidecar metrics reports, at least 1s; `off` to disable
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_report_interval)]
    report_interval: ReportInterval,
    /// Address of the web page, or `off`; port 0: chosen by the kernel. Beyond loopback it requires the token
    /// from `leno status`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = parse_page_address)]
    page: PageAddress,
    /// Lifetime of tokens from `leno token`
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_positive)]
    token_lifetime: Duration,
}

/// Parses a path to an absolute one, because rules name files by absolute paths.
fn parse_absolute_path(path: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}

impl MeshArgs {
    /// Returns the permitted key servers and files: the options, or else `default`.
    fn key_access(&self, default: KeyAccess) -> KeyAccess {
        let servers = self.jwks_allow.clone().unwrap_or(default.servers);
        let files = self.jwks_files.clone().map(PermittedFiles::Below).unwrap_or(default.files);
        KeyAccess { servers, files, ..default }
    }

    /// Returns the control plane configuration.
    pub(crate) fn config(
        &self,
        data: PathBuf,
        listen: SocketAddr,
        manifests: Vec<PathBuf>,
    ) -> Config {
        Config {
            listen,
            advertise: self.advertise,
            jwks_ca: self.jwks_ca.clone(),
            key_access: self.key_access(KeyAccess::for_operator()),
            certificate_lifetime: self.certificate_lifetime,
            token_lifetime: self.token_lifetime,
            report_interval: self.report_interval.0,
            page: self.page.0,
            explainer: Some(page_explainer()),
            ..Config::new(data, manifests)
        }
    }
}

impl ManifestArgs {
    /// Checks that there are manifests to run a mesh from. A missing path is an error even if other paths have
    /// documents: after a restart the objects of the missing path would count as deleted.
    ///
    /// # Errors
    /// If a path is missing, or no document is valid. The problems are printed.
    pub(crate) fn check_manifests(&self) -> anyhow::Result<()> {
        let update = FileSource::new(self.file.clone()).reload();
        self.check_paths()?;
        if update.object_count > 0 {
            return Ok(());
        }
        for rejected in &update.rejected {
            crate::log::print_to_stderr(&format!(
                "rejected: {}",
                output::escape_cell(&rejected.to_string())
            ));
        }
        let paths: Vec<String> = self.file.iter().map(|path| path.display().to_string()).collect();
        bail!("no valid document in {}: correct it or set another path with -f", paths.join(", "))
    }

    /// Returns an error if a path is missing or not accessible.
    fn check_paths(&self) -> anyhow::Result<()> {
        // The option requires at least one path.
        let hint = match self.file.len() {
            1 => "set another path with -f",
            _ => "start without this -f",
        };
        for path in &self.file {
            std::fs::metadata(path).with_context(|| {
                format!("cannot read {}: create or mount it, or {hint}", path.display())
            })?;
        }
        Ok(())
    }
}

/// The interval of sidecar metrics reports; `None` disables the reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportInterval(Option<Duration>);

/// The address of the web page; `None` disables the web page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageAddress(Option<SocketAddr>);

/// Parses a duration, or `off`.
fn parse_report_interval(text: &str) -> Result<ReportInterval, String> {
    if text == OFF {
        return Ok(ReportInterval(None));
    }
    let interval = parse_duration(text)?;
    match (MIN_REPORT_INTERVAL..=MAX_REPORT_INTERVAL).contains(&interval) {
        true => Ok(ReportInterval(Some(interval))),
        false => Err(format!("use {MIN_REPORT_INTERVAL:?} to {MAX_REPORT_INTERVAL:?}, or `{OFF}`")),
    }
}

/// Parses an address with a port, or `off`.
fn parse_page_address(text: &str) -> Result<PageAddress, String> {
    if text == OFF {
        return Ok(PageAddress(None));
    }
    let parse_result = text.parse();
    let invalid =
        |_| format!("`{text}` is not an address: use for example 127.0.0.1:15080, or `{OFF}`");
    parse_result.map(|address| PageAddress(Some(address))).map_err(invalid)
}

/// Starts a control plane. Prints the documents that prevent the start.
///
/// # Errors
/// If the control plane cannot start.
pub(crate) async fn start(config: Config) -> anyhow::Result<Control> {
    report_start_error(Control::start(config).await)
}

/// Returns the started control plane, or prints the documents that prevented the start.
fn report_start_error(outcome: Result<Control, StartError>) -> anyhow::Result<Control> {
    if let Err(StartError::MeshConfig(rejected)) = &outcome {
        for document in rejected {
            crate::log::print_to_stderr(&format!(
                "rejected: {}",
                output::escape_cell(&document.to_string())
            ));
        }
    }
    Ok(outcome?)
}

impl ControlArgs {
    /// Runs until SIGTERM or SIGINT.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        limits::raise_open_files();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        runtime.block_on(self.serve())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn serve(self) -> anyhow::Result<()> {
        let stop_signal = stop::stop_signal()?;
        let mut reload_signal = stop::ReloadSignal::new()?;
        // Health checks get responses from the start on, which may take long in a cluster.
        let health = match self.health {
            Some(address) => {
                Some(HealthListener::start_server(address).await.with_context(|| {
                    format!("cannot serve health at {address}; use --health with a free address")
                })?)
            }
            None => None,
        };
        let data = ClaimedDataDirectory::claim(self.mesh.data.path()?)?;
        tokio::pin!(stop_signal);
        let start_task = async {
            match self.cluster.kubernetes {
                true => {
                    let config = self.mesh.config(data.path().to_owned(), self.listen, Vec::new());
                    let key_access = self.mesh.key_access(KeyAccess::for_tenants());
                    let pod = self.cluster.own_pod();
                    let config = Config { pod, key_access, kubernetes: true, ..config };
                    let (control, cluster_tasks) =
                        kubernetes::start(&self.cluster, config, health.as_ref()).await?;
                    Ok((control, Some(cluster_tasks)))
                }
                false => Ok((self.start_standalone(data.path()).await?, None)),
            }
        };
        // A stop signal interrupts the start, which waits for the API server as long as it takes.
        let (control, mut cluster_tasks) = tokio::select! {
            () = &mut stop_signal => return Ok(()),
            start_result = start_task => start_result as anyhow::Result<_>,
        }?;
        if let Some(health) = &health {
            health.set_ready(&control);
        }
        tracing::info!(
            address = %control.listen_address(),
            page = control.page_address().map(|page| format!("http://{page}/")),
            health = health.as_ref().map(|health| health.address().to_string()),
            trust_domain = %control.trust_domain(),
            data = %data.path().display(),
            "control plane ready"
        );
        let reload_loop = async {
            loop {
                reload_signal.wait_for_reload().await;
                tracing::info!("SIGHUP: reloading the files");
                control.reload_files();
            }
        };
        let outcome = tokio::select! {
            () = stop_signal => Ok(()),
            () = reload_loop => Ok(()),
            error = control.wait_until_ended() => Err(anyhow::Error::from(error)),
            error = kubernetes::wait_until_ended(&mut cluster_tasks) => Err(error),
        };
        tracing::info!("shutting down; sidecars keep their configuration");
        if let Some(health) = &health {
            health.set_stopping();
        }
        let stop_cluster_tasks = async {
            if let Some(cluster_tasks) = cluster_tasks {
                cluster_tasks.shutdown().await;
            }
        };
        tokio::join!(control.shutdown(), stop_cluster_tasks);
        if let Some(health) = health {
            health.shutdown().await;
        }
        outcome
    }

    /// Starts a control plane that reads manifests from files and keeps its authority in a directory.
    async fn start_standalone(&self, data: &Path) -> anyhow::Result<Control> {
        let manifests = ManifestArgs { file: self.file.clone() };
        manifests.check_manifests()?;
        let mut config = self.mesh.config(data.to_owned(), self.listen, manifests.file);
        config.peers.clone_from(&self.peers);
        if let Some(shared) = &self.shared {
            create_private_directory(shared)?;
        }
        config.shared.clone_from(&self.shared);
        config.issuer.clone_from(&self.issuer);
        start(config).await
    }
}

/// The value that disables an option.
const OFF: &str = "off";

/// The maximum interval of metrics reports: rates are averaged over 30 s, and sidecars that report less often
/// would appear idle.
const MAX_REPORT_INTERVAL: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  leno control -f mesh/ --data /var/lib/leno --listen 192.0.2.1:15010
  leno token shop/cart-2 --data /var/lib/leno --out cart-2.token
  leno get proxies --data /var/lib/leno
  Three replicas with the same files; each sidecar connects to one that is reachable:
    leno control -f mesh/ --data /var/lib/leno-1 --shared /srv/leno --listen 192.0.2.1:15010 \\
        --peer 192.0.2.1:15010,192.0.2.2:15010,192.0.2.3:15010
  In a Kubernetes cluster, with pods, services and rules from its API server:
    leno control --kubernetes --listen [::]:15010 --health [::]:15020 --data /var/lib/leno

SIGTERM, SIGINT, SIGQUIT, SIGPWR and SIGXCPU stop the control plane; SIGHUP reloads the files. SIGUSR1, SIGUSR2, SIGALRM and
other timer and user signals are ignored.
";

#[cfg(test)]
mod tests {
    use leno_identity::control_id;
    use leno_model::MeshConfig;
    use leno_registry::read_str;

    use super::*;

    #[test]
    fn report_interval_and_page_accept_off_and_reject_invalid_values() {
        assert_eq!(parse_report_interval("off"), Ok(ReportInterval(None)));
        assert_eq!(parse_report_interval("1s"), Ok(ReportInterval(Some(MIN_REPORT_INTERVAL))));
        for invalid in ["999ms", "11s", "0s", "5", "never"] {
            assert!(parse_report_interval(invalid).is_err(), "{invalid}");
        }
        assert_eq!(parse_page_address("off"), Ok(PageAddress(None)));
        assert_eq!(parse_page_address("[::1]:80"), Ok(PageAddress("[::1]:80".parse().ok())));
        for invalid in ["80", "localhost:80", "127.0.0.1", "http://127.0.0.1:80/"] {
            assert!(
                parse_page_address(invalid).unwrap_err().contains("127.0.0.1:15080"),
                "{invalid}"
            );
        }
    }

    #[test]
    fn a_relative_directory_of_keys_is_resolved_in_the_working_directory() {
        let directory = std::env::current_dir().unwrap().join("keys");
        assert_eq!(parse_absolute_path("keys").unwrap(), directory);
        assert_eq!(parse_absolute_path("./keys").unwrap(), directory);
        assert_eq!(parse_absolute_path("/keys").unwrap(), PathBuf::from("/keys"));
    }

    #[test]
    fn a_workload_with_the_account_of_the_control_plane_is_rejected() {
        let control = control_id(&MeshConfig::default().trust_domain).account;
        let text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
             metadata: {{name: x, namespace: {}}}\nspec: {{serviceAccount: {}}}\n",
            control.namespace, control.name
        );
        let (objects, rejected) = read_str("mesh.yaml", &text);
        assert_eq!((objects.len(), rejected.len()), (0, 1), "{rejected:?}");
    }
}
