//! The launcher: how the processes of a workload are started.

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

use super::application::Launch;
use super::console::Console;
use super::descendants::Runs;
use super::groups;
use super::placement::{Placement, Placements};
use crate::data_directory::create_private;
use crate::proxy::SUPERVISOR_OPTION;

/// How the processes of a workload are started.
pub(super) struct Launcher {
    control: Control,
    settings: Settings,
    console: Console,
    runs: Runs,
}

/// What is the same for all workloads.
#[derive(Debug)]
pub(super) struct Settings {
    /// The data directory.
    pub(super) data: PathBuf,
    /// This program.
    pub(super) binary: PathBuf,
    /// Where workloads are placed.
    pub(super) placements: Placements,
    /// Further options of every sidecar.
    pub(super) sidecar_options: Vec<OsString>,
    /// What sidecars log.
    pub(super) log_level: Option<String>,
    /// How long requests under way may take when a sidecar is stopped.
    pub(super) drain: Duration,
    /// The soft limit of open files that applications get.
    pub(super) open_files: Option<u64>,
}

impl Launcher {
    pub(super) fn new(control: Control, settings: Settings, console: Console) -> Self {
        Self { control, settings, console, runs: Runs::default() }
    }

    /// The control plane.
    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// Workloads without a connected sidecar, of which a replaced sidecar is rejected.
    pub(super) fn replaced(&self) -> watch::Receiver<Arc<ReplacedSidecars>> {
        self.control.replaced()
    }

    /// The control plane, when nothing more is to be started.
    pub(super) fn into_control(self) -> Control {
        self.control
    }

    pub(super) fn console(&self) -> &Console {
        &self.console
    }

    /// The applications that run.
    pub(super) fn runs(&self) -> &Runs {
        &self.runs
    }

    pub(super) fn placements(&self) -> &Placements {
        &self.settings.placements
    }

    pub(super) fn drain_timeout(&self) -> Duration {
        self.settings.drain
    }

    /// The command of a workload's sidecar, with all that it needs on disk.
    ///
    /// # Errors
    /// When its state directory or token file cannot be written.
    pub(super) fn sidecar(
        &self,
        workload: &Workload,
        placement: &Placement,
    ) -> anyhow::Result<Command> {
        let name = &workload.name;
        let state = self.settings.data.join("proxies");
        let state = state.join(name.namespace.as_str()).join(name.name.as_str());
        let token = self.prepare(workload, &state)?;
        let mut command = self.command(placement);
        if let Some(level) = &self.settings.log_level {
            command.arg("--log-level").arg(level);
        }
        let trust_domain = self.control.trust_domain().to_string();
        command
            .arg("proxy")
            .args(["--workload", &name.to_string()])
            .args(["--control", &self.control.address().to_string()])
            .args(["--trust-domain", &trust_domain])
            .args([OsStr::new("--state"), state.as_os_str()])
            .args([SUPERVISOR_OPTION, &std::process::id().to_string()])
            .args(["--drain-timeout", &milliseconds(self.settings.drain)])
            .args(&self.settings.sidecar_options)
            .args(&placement.sidecar_options);
        if let Some(token) = &token {
            command.arg("--token-file").arg(token);
        }
        Ok(command)
    }

    /// The command of an application, tied to our life.
    pub(super) fn application(
        &self,
        workload: &WorkloadName,
        launch: &Launch,
        placement: &Placement,
    ) -> Command {
        let mut command = self.command(placement);
        command.arg("exec").args(["--parent", &std::process::id().to_string()]);
        command.arg("--record").arg(self.record_of(workload));
        if let Some(soft) = self.settings.open_files {
            command.args(["--open-files", &soft.to_string()]);
        }
        if let Some(cwd) = &launch.options.cwd {
            command.args(["--cwd", cwd]);
        }
        if let Some(user) = &launch.options.user {
            command.args(["--user", &written(user)]);
            let names = launch.environment.keys().map(String::as_str);
            for name in names.filter(|name| USER_VARIABLES.contains(name)) {
                command.args(["--set", name]);
            }
        }
        command.arg("--").args(&launch.command).envs(&launch.environment).stdin(Stdio::null());
        command
    }

    /// The file with the process group of an application.
    pub(super) fn record_of(&self, workload: &WorkloadName) -> PathBuf {
        groups::file_of(&self.settings.data, workload)
    }

    /// This program, behind whatever the placement puts before it.
    fn command(&self, placement: &Placement) -> Command {
        let binary = &self.settings.binary;
        match placement.wrapper.split_first() {
            Some((wrapper, arguments)) => {
                let mut command = Command::new(wrapper);
                command.args(arguments).arg(binary);
                command
            }
            // It was replaced while it runs: what runs can still be started.
            None if !binary.exists() => {
                let mut command = Command::new("/proc/self/exe");
                command.arg0("leno");
                command
            }
            None => Command::new(binary),
        }
    }

    /// Makes a sidecar's state directory ready. Returns a new token file unless the certificate
    /// there is good.
    fn prepare(&self, workload: &Workload, state: &Path) -> anyhow::Result<Option<PathBuf>> {
        create_private(state)?;
        let token = state.join(TOKEN_FILE);
        let held = Credential::load(state);
        let is_replaced = self.replaced().borrow().contains_key(&workload.name);
        let belongs = match &held {
            _ if is_replaced => false,
            Ok(Some(held)) => self.belongs(held, workload),
            Ok(None) => true,
            Err(error) if is_damage(error) => false,
            // Nothing is known of it: it may be as good as ever.
            Err(_) => {
                let shown = state.display();
                return held.map(|_| None).with_context(|| format!("cannot read {shown}"));
            }
        };
        if !belongs {
            let name = &workload.name;
            match &held {
                _ if is_replaced => tracing::info!(%name, "it joins again with a new token"),
                Err(error) => tracing::warn!(%name, %error, "its stored state is damaged: removed"),
                Ok(_) => tracing::info!(%name, "its stored state is of somebody else: removed"),
            }
            std::fs::remove_dir_all(state)
                .with_context(|| format!("cannot remove {}", state.display()))?;
            create_private(state)?;
        }
        let good = |held: &Credential| !held.is_expired(SystemTime::now());
        if belongs && matches!(&held, Ok(Some(held)) if good(held)) {
            return Ok(None);
        }
        let bundle = self.control.mint_bundle(&workload.name)?;
        bundle.save(&token)?;
        Ok(Some(token))
    }

    /// Whether a certificate is that of this workload in this mesh.
    fn belongs(&self, held: &Credential, workload: &Workload) -> bool {
        held.workload() == Some(&workload.name)
            && held.id().account == workload.account
            && held.id().trust_domain == *self.control.trust_domain()
            && *held.roots() == self.control.roots()
    }
}

/// Whether what is on disk is no credential, rather than not readable at the moment.
fn is_damage(error: &CredentialError) -> bool {
    match error {
        CredentialError::Io(error) => error.kind() == ErrorKind::InvalidData,
        _ => true,
    }
}

fn written(user: &RunUser) -> String {
    match user {
        RunUser::Named(name) => name.clone(),
        RunUser::Numbered(user, None) => user.to_string(),
        RunUser::Numbered(user, Some(group)) => format!("{user}:{group}"),
    }
}

fn milliseconds(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// Variables that follow the user of an application unless the Workload sets them.
const USER_VARIABLES: [&str; 3] = ["USER", "LOGNAME", "HOME"];
/// The token file in a sidecar's state directory; the sidecar removes it once it is used.
const TOKEN_FILE: &str = "token";

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_what_is_surely_no_credential_is_damage() {
        let io = |kind: ErrorKind| CredentialError::Io(io::Error::from(kind));
        for (error, damage) in [
            (CredentialError::KeyMissing, true),
            (CredentialError::RootsMissing, true),
            (io(ErrorKind::InvalidData), true),
            (io(ErrorKind::PermissionDenied), false),
            (io(ErrorKind::Other), false),
        ] {
            assert_eq!(is_damage(&error), damage, "{error}");
        }
    }
}
