//! Mesh membership options of a proxy: its workload and its credentials for joining.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::Args;
use leno_identity::{
    Credential, CredentialError, FileOrigin, JoinBundle, Roots, read_regular_text,
};
use leno_model::{TrustDomain, WorkloadName};
use leno_proxy::{AccountToken, Config, ControlAddress, TrustedRoots};

use crate::data_directory::{HomeArgs, create_private};

/// The identity of a proxy and its means of joining the mesh.
#[derive(Debug, Args)]
pub(crate) struct MemberArgs {
    /// Workload of this proxy
    #[arg(long, value_name = "NAMESPACE/NAME")]
    workload: WorkloadName,
    /// Control plane addresses, HOST:PORT, repeatable; one reachable address is used, and names are resolved
    /// for each connection [default: from the token file or the last run]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    control: Vec<ControlAddress>,
    /// Join token file from `leno token`; required without a valid certificate, and deleted after use
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Token that the platform rotates, such as a Kubernetes service account token with the audience `leno`;
    /// read whenever there is no valid certificate, and never deleted
    #[arg(long, value_name = "FILE", conflicts_with = "token_file")]
    service_account_token: Option<PathBuf>,
    /// Mesh root certificates (PEM) to trust when sending that token [default: the environment variable
    /// LENO_ROOTS]
    #[arg(long, value_name = "FILE", requires = "service_account_token")]
    roots: Option<PathBuf>,
    #[arg(long, env = "LENO_ROOTS", hide = true)]
    roots_text: Option<String>,
    /// Directory for the key, the certificate and the last good snapshot [default:
    /// ~/.local/state/leno/proxies/NAMESPACE/NAME]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Trust domain of the mesh [default: from the token file or the certificate]
    #[arg(long, value_name = "NAME", value_parser = TrustDomain::new)]
    trust_domain: Option<TrustDomain>,
    #[command(flatten)]
    home: HomeArgs,
}

impl MemberArgs {
    /// Returns the proxy configuration from these options; all other settings have their defaults.
    pub(crate) fn build_config(self) -> anyhow::Result<Config> {
        let workload = self.workload;
        let state = match self.state {
            Some(path) => path,
            None => {
                let proxies = self.home.state_directory()?.join("proxies");
                proxies.join(workload.namespace.as_str()).join(workload.name.as_str())
            }
        };
        create_private(&state)?;
        let account_token = match self.service_account_token {
            Some(file) => {
                let roots = trusted_roots(self.roots, self.roots_text.as_deref())?;
                Some(AccountToken { file, roots })
            }
            None => None,
        };
        let mesh = SavedMesh::load(&state, self.token_file.as_deref(), &workload)?;
        let trust_domain = self.trust_domain.or(mesh.trust_domain).with_context(|| {
            let problem = mesh.problem.as_ref();
            let problem = problem.map(|error| format!(" ({error})")).unwrap_or_default();
            format!(
                "{workload} has no usable certificate in {}{problem} and no token file: create one with \
                 `leno token {workload} --out FILE` and pass --token-file FILE, or pass \
                 --trust-domain with --service-account-token",
                state.display()
            )
        })?;
        let control = match self.control.is_empty() {
            false => self.control,
            true => mesh.control,
        };
        if control.is_empty() {
            bail!(
                "{workload} has no control plane address, and would run only until its certificate \
                 expires: pass --control ADDRESS"
            );
        }
        save_addresses(&state, &control)?;
        let mut config = Config::for_sidecar(workload, trust_domain, state);
        config.control = control;
        config.token_file = self.token_file;
        config.account_token = account_token;
        Ok(config)
    }
}

/// Returns the roots to trust before the proxy has a certificate.
fn trusted_roots(file: Option<PathBuf>, text: Option<&str>) -> anyhow::Result<TrustedRoots> {
    match (file, text) {
        (Some(file), _) => Ok(TrustedRoots::File(file)),
        (None, Some(text)) => {
            let roots = Roots::from_pem(text);
            Ok(TrustedRoots::Known(roots.context("LENO_ROOTS is invalid")?))
        }
        (None, None) => bail!(
            "--service-account-token requires the roots that authenticate the control plane: pass \
             --roots FILE, or the PEM text in LENO_ROOTS"
        ),
    }
}

/// Facts about the mesh from the last run or the token file.
#[derive(Debug, Default)]
struct SavedMesh {
    /// The reason why the certificate of the last run cannot be used.
    problem: Option<CredentialError>,
    trust_domain: Option<TrustDomain>,
    control: Vec<ControlAddress>,
}

impl SavedMesh {
    /// Reads the certificate of the last run while it is valid, otherwise the token file. Either may list
    /// control planes that the other lacks.
    fn load(
        state: &Path,
        token_file: Option<&Path>,
        workload: &WorkloadName,
    ) -> anyhow::Result<Self> {
        let (credential, problem) = match Credential::load(state) {
            Ok(credential) => (credential, None),
            Err(error) => (None, Some(error)),
        };
        let credential = credential.filter(|credential| {
            credential.workload() == Some(workload) && !credential.is_expired(SystemTime::now())
        });
        let text = read_saved_addresses(&state.join(CONTROL_FILE)).unwrap_or_else(|error| {
            tracing::warn!(%error, "the control planes of the last run are unknown");
            String::new()
        });
        let saved_control: Vec<ControlAddress> =
            text.lines().filter_map(|line| line.parse().ok()).collect();
        let mut mesh = match (credential, token_file) {
            (Some(credential), _) => {
                let trust_domain = Some(credential.id().trust_domain.clone());
                Self { trust_domain, ..Self::default() }
            }
            (None, Some(path)) => {
                let bundle = JoinBundle::load(path).context("cannot use the token file")?;
                let control = bundle.control.into_iter().map(ControlAddress::from).collect();
                Self { trust_domain: Some(bundle.trust_domain), control, ..Self::default() }
            }
            (None, None) => Self::default(),
        };
        mesh.problem = problem;
        if mesh.control.is_empty() {
            mesh.control = saved_control;
        }
        if mesh.control.is_empty()
            && let Some(path) = token_file
        {
            let bundle = JoinBundle::load(path).ok();
            let control = bundle.into_iter().flat_map(|bundle| bundle.control);
            mesh.control.extend(control.map(ControlAddress::from));
        }
        Ok(mesh)
    }
}

/// Saves the control planes in use for the next run: the token file is deleted after the first run, so the
/// addresses need not be repeated.
fn save_addresses(state: &Path, control: &[ControlAddress]) -> anyhow::Result<()> {
    let path = state.join(CONTROL_FILE);
    let text: String = control.iter().map(|address| format!("{address}\n")).collect();
    if read_saved_addresses(&path).is_ok_and(|saved| saved == text) {
        return Ok(());
    }
    Ok(leno_identity::replace_private(&path, text.as_bytes())?)
}

/// Reads the saved addresses, one per line; empty if the file does not exist.
fn read_saved_addresses(path: &Path) -> io::Result<String> {
    Ok(read_regular_text(path, FileOrigin::Leno, MAX_CONTROL_BYTES)?.unwrap_or_default())
}

const CONTROL_FILE: &str = "control";
/// The maximum size of the file with the addresses, enough for hundreds of them.
const MAX_CONTROL_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn trusted_roots_come_from_a_file_or_the_environment() {
        let file = PathBuf::from("/roots.pem");
        let roots = trusted_roots(Some(file.clone()), Some("nonsense")).unwrap();
        assert_eq!(roots, TrustedRoots::File(file));
        let error = trusted_roots(None, Some("nonsense")).unwrap_err();
        assert!(format!("{error:#}").contains("LENO_ROOTS"), "{error:#}");
        let error = trusted_roots(None, None).unwrap_err().to_string();
        assert!(error.contains("--roots FILE"), "{error}");
    }

    #[test]
    fn an_unusable_certificate_is_reported_with_its_problem() {
        use std::os::unix::fs::PermissionsExt as _;

        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("credential.pem");
        for (mode, problem) in [(0o644, "(mode 0644)"), (0o600, "`credential.pem` is empty")] {
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let command = MemberArgs::augment_args(clap::Command::new("proxy"));
            let state = scratch.path().to_str().unwrap();
            let command_line = ["proxy", "--workload", "shop/cart-1", "--state", state];
            let matches = command.get_matches_from(command_line);
            let arguments = MemberArgs::from_arg_matches(&matches).unwrap();
            let error = arguments.build_config().unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn the_addresses_of_control_planes_are_saved() {
        let scratch = tempfile::tempdir().unwrap();
        let workload: WorkloadName = "shop/cart-1".parse().unwrap();
        let saved = || SavedMesh::load(scratch.path(), None, &workload).unwrap().control;
        assert_eq!(saved(), []);
        for addresses in
            [vec!["192.0.2.1:15010", "[2001:db8::1]:15010"], vec!["leno-control.leno-system.svc:1"]]
        {
            let control: Vec<ControlAddress> =
                addresses.iter().map(|address| address.parse().unwrap()).collect();
            save_addresses(scratch.path(), &control).unwrap();
            assert_eq!(saved(), control);
        }
    }
}
