//! Defines the options with which a proxy joins the mesh: its workload, its credentials, and the addresses of
//! control planes. Values of the last run and of the token file replace missing options.

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

use crate::data_directory::{HomeArgs, create_private_directory};

/// The identity of a proxy, and the credentials with which it joins the mesh.
#[derive(Debug, Args)]
pub(crate) struct MemberArgs {
    /// Name of the workload that this proxy serves
    #[arg(long, value_name = "NAMESPACE/NAME")]
    workload: WorkloadName,
    /// Control plane addresses, HOST:PORT; one reachable address is used, and names are resolved for each
    /// connection [default: from the token file or the last run]
    #[arg(long, value_name = "ADDRESS,…", value_delimiter = ',')]
    control: Vec<ControlAddress>,
    /// Join token file from `leno token`; required without a valid certificate, and deleted after use
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Token that the platform rotates, such as a Kubernetes service account token with the audience `leno`;
    /// read whenever there is no valid certificate, and never deleted
    #[arg(long, value_name = "FILE", conflicts_with = "token_file")]
    service_account_token: Option<PathBuf>,
    /// Mesh root certificates (PEM) that verify the control plane before --service-account-token is sent to it
    /// [default: the environment variable LENO_ROOTS]
    #[arg(long, value_name = "FILE", requires = "service_account_token")]
    roots: Option<PathBuf>,
    #[arg(long = "roots-text", env = "LENO_ROOTS", hide = true)]
    roots_pem: Option<String>,
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
        let state_directory = match self.state {
            Some(path) => path,
            None => {
                let proxies_directory = self.home.state_directory()?.join("proxies");
                proxies_directory.join(workload.namespace.as_str()).join(workload.name.as_str())
            }
        };
        create_private_directory(&state_directory)?;
        let service_account_token = match self.service_account_token {
            Some(file) => {
                let roots = trusted_roots(self.roots, self.roots_pem.as_deref())?;
                Some(AccountToken { file, roots })
            }
            None => None,
        };
        let defaults = MeshDefaults::load(&state_directory, self.token_file.as_deref(), &workload)?;
        let trust_domain = self.trust_domain.or(defaults.trust_domain).with_context(|| {
            let credential_error = defaults.credential_error.as_ref();
            let error_note = credential_error.map(|error| format!(" ({error})")).unwrap_or_default();
            format!(
                "{workload} has no usable certificate in {}{error_note} and no token file: create one with \
                 `leno token {workload} --out FILE` and pass --token-file FILE, or pass \
                 --trust-domain with --service-account-token",
                state_directory.display()
            )
        })?;
        let control_addresses = match self.control.is_empty() {
            false => self.control,
            true => defaults.control_addresses,
        };
        if control_addresses.is_empty() {
            bail!(
                "{workload} has no control plane address, and would run only until its certificate \
                 expires: pass --control ADDRESS"
            );
        }
        save_addresses(&state_directory, &control_addresses)?;
        let mut config = Config::for_sidecar(workload, trust_domain, state_directory);
        config.control = control_addresses;
        config.token_file = self.token_file;
        config.account_token = service_account_token;
        Ok(config)
    }
}

/// Returns the roots to trust before the proxy has a certificate.
fn trusted_roots(file: Option<PathBuf>, pem: Option<&str>) -> anyhow::Result<TrustedRoots> {
    match (file, pem) {
        (Some(file), _) => Ok(TrustedRoots::File(file)),
        (None, Some(pem)) => {
            let roots = Roots::from_pem(pem);
            Ok(TrustedRoots::Known(roots.context("LENO_ROOTS is invalid")?))
        }
        (None, None) => bail!(
            "--service-account-token requires the roots that authenticate the control plane: pass \
             --roots FILE, or the PEM text in LENO_ROOTS"
        ),
    }
}

/// The values of the last run or of the token file, for options that are not set.
#[derive(Debug, Default)]
struct MeshDefaults {
    /// The error of reading the certificate of the last run; `None` if it was read, or there is none.
    credential_error: Option<CredentialError>,
    /// The trust domain of the valid certificate or of the token file; `None` without both.
    trust_domain: Option<TrustDomain>,
    /// The control plane addresses; empty if no source has any.
    control_addresses: Vec<ControlAddress>,
}

impl MeshDefaults {
    /// Returns the values of the last run if its certificate is valid, otherwise the values of the token file.
    /// If the preferred source has no control plane addresses, the addresses of the other source are used.
    fn load(
        state_directory: &Path,
        token_file: Option<&Path>,
        workload: &WorkloadName,
    ) -> anyhow::Result<Self> {
        let (stored_credential, credential_error) = match Credential::load(state_directory) {
            Ok(credential) => (credential, None),
            Err(error) => (None, Some(error)),
        };
        let valid_credential = stored_credential.filter(|credential| {
            credential.workload() == Some(workload) && !credential.is_expired(SystemTime::now())
        });
        let saved_text =
            read_saved_addresses(&state_directory.join(CONTROL_FILE)).unwrap_or_else(|error| {
                tracing::warn!(%error, "the control planes of the last run are unknown");
                String::new()
            });
        let saved_addresses: Vec<ControlAddress> =
            saved_text.lines().filter_map(|line| line.parse().ok()).collect();
        // The valid certificate takes precedence over the token file.
        let mut defaults = match (valid_credential, token_file) {
            (Some(credential), _) => {
                let trust_domain = Some(credential.id().trust_domain.clone());
                Self { trust_domain, ..Self::default() }
            }
            (None, Some(path)) => {
                let bundle = JoinBundle::load(path).context("cannot use the token file")?;
                let control_addresses =
                    bundle.control_addresses.into_iter().map(ControlAddress::from).collect();
                Self {
                    trust_domain: Some(bundle.trust_domain),
                    control_addresses,
                    ..Self::default()
                }
            }
            (None, None) => Self::default(),
        };
        defaults.credential_error = credential_error;
        if defaults.control_addresses.is_empty() {
            defaults.control_addresses = saved_addresses;
        }
        if defaults.control_addresses.is_empty()
            && let Some(path) = token_file
        {
            // The valid certificate suffices, so a deleted or unreadable token file is no error here.
            let bundle = JoinBundle::load(path).ok();
            let control_addresses = bundle.into_iter().flat_map(|bundle| bundle.control_addresses);
            defaults.control_addresses.extend(control_addresses.map(ControlAddress::from));
        }
        Ok(defaults)
    }
}

/// Saves the control plane addresses for the next run, which may have no token file: the file is deleted after
/// use.
fn save_addresses(
    state_directory: &Path,
    control_addresses: &[ControlAddress],
) -> anyhow::Result<()> {
    let path = state_directory.join(CONTROL_FILE);
    let text: String = control_addresses.iter().map(|address| format!("{address}\n")).collect();
    if read_saved_addresses(&path).is_ok_and(|saved_text| saved_text == text) {
        return Ok(());
    }
    Ok(leno_identity::replace_private(&path, text.as_bytes())?)
}

/// Reads the saved addresses, one per line; empty if the file does not exist.
fn read_saved_addresses(path: &Path) -> io::Result<String> {
    Ok(read_regular_text(path, FileOrigin::Leno, MAX_CONTROL_BYTES)?.unwrap_or_default())
}

/// The file with the addresses of control planes in the state directory.
const CONTROL_FILE: &str = "control";
/// The maximum size of the file with the addresses, in bytes; enough for hundreds of addresses.
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
        let saved =
            || MeshDefaults::load(scratch.path(), None, &workload).unwrap().control_addresses;
        assert_eq!(saved(), []);
        for addresses in
            [vec!["192.0.2.1:15010", "[2001:db8::1]:15010"], vec!["leno-control.leno-system.svc:1"]]
        {
            let control_addresses: Vec<ControlAddress> =
                addresses.iter().map(|address| address.parse().unwrap()).collect();
            save_addresses(scratch.path(), &control_addresses).unwrap();
            assert_eq!(saved(), control_addresses);
        }
    }
}
