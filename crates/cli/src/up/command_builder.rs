//! Builds the commands that start the processes of a workload, its sidecar and its application, and prepares the
//! sidecar's state directory and token.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use leno_control::{Control, ReplacedSidecars};
use leno_identity::{Credential, CredentialError};
use leno_model::{RunUser, Workload, WorkloadName};
use tokio::process::Command;
use tokio::sync::watch;

use super::application::ApplicationLaunch;
use super::console::Console;
use super::descendants::ApplicationRuns;
use super::placement::{Placement, Placements};
use super::process_groups;
use crate::data_directory::create_private_directory;
use crate::proxy::SUPERVISOR_OPTION;

/// Builds the commands of workloads' processes, and prepares the files that they need. Holds the control plane,
/// the console and the placements, which the supervisors of all workloads share.
pub(super) struct CommandBuilder {
    control: Control,
    settings: LaunchSettings,
    console: Console,
    running_applications: ApplicationRuns,
}

/// Settings that all workloads share.
#[derive(Debug)]
pub(super) struct LaunchSettings {
    /// The data directory of the mesh.
    pub(super) data: PathBuf,
    /// The path of this program.
    pub(super) binary: PathBuf,
    /// The placement of workloads on this machine.
    pub(super) placements: Placements,
    /// Additional options of every sidecar.
    pub(super) sidecar_options: Vec<OsString>,
    /// The log level of sidecars; `None` is their default.
    pub(super) log_level: Option<String>,
    /// The maximum time for requests in progress to complete when a sidecar stops.
    pub(super) drain_timeout: Duration,
    /// The soft limit of open files for applications; `None` keeps the limit of this process.
    pub(super) open_file_limit: Option<u64>,
}

impl CommandBuilder {
    pub(super) fn new(control: Control, settings: LaunchSettings, console: Console) -> Self {
        Self { control, settings, console, running_applications: ApplicationRuns::default() }
    }

    /// Returns the control plane.
    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// Returns the workloads with a sidecar that the control plane rejects as replaced, although no other sidecar of
    /// the workload is connected.
    pub(super) fn replaced_sidecars(&self) -> watch::Receiver<Arc<ReplacedSidecars>> {
        self.control.watch_replaced()
    }

    /// Returns the control plane, after the last command was built.
    pub(super) fn into_control(self) -> Control {
        self.control
    }

    pub(super) fn console(&self) -> &Console {
        &self.console
    }

    /// Returns the running applications.
    pub(super) fn running_applications(&self) -> &ApplicationRuns {
        &self.running_applications
    }

    pub(super) fn placements(&self) -> &Placements {
        &self.settings.placements
    }

    pub(super) fn drain_timeout(&self) -> Duration {
        self.settings.drain_timeout
    }

    /// Builds the command of a workload's sidecar, and writes the files that it needs.
    ///
    /// # Errors
    /// If the state directory or the token file cannot be written.
    pub(super) fn sidecar_command(
        &self,
        workload: &Workload,
        placement: &Placement,
    ) -> anyhow::Result<Command> {
        let name = &workload.name;
        let state_directory = self
            .settings
            .data
            .join("proxies")
            .join(name.namespace.as_str())
            .join(name.name.as_str());
        let token_path = self.prepare_state_directory(workload, &state_directory)?;
        let mut command = self.leno_command(placement);
        if let Some(level) = &self.settings.log_level {
            command.arg("--log-level").arg(level);
        }
        let trust_domain = self.control.trust_domain().to_string();
        command
            .arg("proxy")
            .args(["--workload", &name.to_string()])
            .args(["--control", &self.control.listen_address().to_string()])
            .args(["--trust-domain", &trust_domain])
            .args([OsStr::new("--state"), state_directory.as_os_str()])
            .args([SUPERVISOR_OPTION, &std::process::id().to_string()])
            .args(["--drain-timeout", &format_milliseconds(self.settings.drain_timeout)])
            .args(&self.settings.sidecar_options)
            .args(&placement.sidecar_options);
        if let Some(token_path) = &token_path {
            command.arg("--token-file").arg(token_path);
        }
        Ok(command)
    }

    /// Builds the command of an application. The application is stopped when this process exits.
    pub(super) fn application_command(
        &self,
        workload: &WorkloadName,
        launch: &ApplicationLaunch,
        placement: &Placement,
    ) -> Command {
        let mut command = self.leno_command(placement);
        command.arg("exec").args(["--parent", &std::process::id().to_string()]);
        command.arg("--record").arg(self.record_path(workload));
        if let Some(soft_limit) = self.settings.open_file_limit {
            command.args(["--open-files", &soft_limit.to_string()]);
        }
        if let Some(cwd) = &launch.options.cwd {
            command.args(["--cwd", cwd]);
        }
        if let Some(user) = &launch.options.user {
            command.args(["--user", &format_user(user)]);
            let names = launch.environment.keys().map(String::as_str);
            for name in names.filter(|name| USER_VARIABLES.contains(name)) {
                command.args(["--set", name]);
            }
        }
        command.arg("--").args(&launch.command).envs(&launch.environment).stdin(Stdio::null());
        command
    }

    /// Returns the path of the record of an application's process group.
    pub(super) fn record_path(&self, workload: &WorkloadName) -> PathBuf {
        process_groups::record_path(&self.settings.data, workload)
    }

    /// Returns a command that runs this program, with the placement's wrapper before it.
    fn leno_command(&self, placement: &Placement) -> Command {
        let binary = &self.settings.binary;
        match placement.wrapper.split_first() {
            Some((wrapper, arguments)) => {
                let mut command = Command::new(wrapper);
                command.args(arguments).arg(binary);
                command
            }
            // The binary was removed or replaced: `/proc/self/exe` still starts the running version.
            None if !binary.exists() => {
                let mut command = Command::new("/proc/self/exe");
                command.arg0("leno");
                command
            }
            None => Command::new(binary),
        }
    }

    /// Prepares a sidecar's state directory. Returns the path of a new token file, or `None` if the directory has a
    /// valid certificate of the workload. Removes a credential that is damaged or belongs to another identity.
    fn prepare_state_directory(
        &self,
        workload: &Workload,
        state_directory: &Path,
    ) -> anyhow::Result<Option<PathBuf>> {
        create_private_directory(state_directory)?;
        let token_path = state_directory.join(TOKEN_FILE);
        let credential = Credential::load(state_directory);
        let is_replaced = self.replaced_sidecars().borrow().contains_key(&workload.name);
        let is_usable = match &credential {
            _ if is_replaced => false,
            Ok(Some(credential)) => self.belongs_to(credential, workload),
            Ok(None) => true,
            Err(error) if is_damaged(error) => false,
            // An unreadable credential may still be valid, and stays.
            Err(_) => {
                let display = state_directory.display();
                return credential.map(|_| None).with_context(|| format!("cannot read {display}"));
            }
        };
        if !is_usable {
            let name = &workload.name;
            match &credential {
                _ if is_replaced => {
                    tracing::info!(%name, "the sidecar joins again with a new token")
                }
                Err(error) => {
                    tracing::warn!(%name, %error, "stored credential is damaged: removed")
                }
                Ok(_) => {
                    tracing::info!(%name, "stored credential belongs to another identity: removed")
                }
            }
            std::fs::remove_dir_all(state_directory)
                .with_context(|| format!("cannot remove {}", state_directory.display()))?;
            create_private_directory(state_directory)?;
        }
        let is_unexpired = |credential: &Credential| !credential.is_expired(SystemTime::now());
        if is_usable && matches!(&credential, Ok(Some(credential)) if is_unexpired(credential)) {
            return Ok(None);
        }
        let bundle = self.control.mint_bundle(&workload.name)?;
        bundle.save(&token_path)?;
        Ok(Some(token_path))
    }

    /// True if a credential belongs to this workload in this mesh.
    fn belongs_to(&self, credential: &Credential, workload: &Workload) -> bool {
        credential.workload() == Some(&workload.name)
            && credential.id().account == workload.account
            && credential.id().trust_domain == *self.control.trust_domain()
            && *credential.roots() == self.control.roots()
    }
}

/// True if the stored credential is malformed; false if it only cannot be read at present.
fn is_damaged(error: &CredentialError) -> bool {
    match error {
        CredentialError::Io(error) => error.kind() == ErrorKind::InvalidData,
        _ => true,
    }
}

fn format_user(user: &RunUser) -> String {
    match user {
        RunUser::Named(name) => name.clone(),
        RunUser::Numbered(user, None) => user.to_string(),
        RunUser::Numbered(user, Some(group)) => format!("{user}:{group}"),
    }
}

fn format_milliseconds(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// Variables derived from the user of an application unless the Workload sets them.
const USER_VARIABLES: [&str; 3] = ["USER", "LOGNAME", "HOME"];
/// The token file in a sidecar's state directory; the sidecar removes it after use.
const TOKEN_FILE: &str = "token";

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_data_that_is_no_credential_counts_as_damaged() {
        let io = |kind: ErrorKind| CredentialError::Io(io::Error::from(kind));
        for (error, expected) in [
            (CredentialError::KeyMissing, true),
            (CredentialError::RootsMissing, true),
            (io(ErrorKind::InvalidData), true),
            (io(ErrorKind::PermissionDenied), false),
            (io(ErrorKind::Other), false),
        ] {
            assert_eq!(is_damaged(&error), expected, "{error}");
        }
    }
}
