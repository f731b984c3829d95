//! The rig: what all runs of a benchmark share: cores, free ports, certificates, a place for files.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use tempfile::TempDir;

use super::certificates;
use super::cores::Cores;
use crate::ports::{PortSearch, Ports};

/// What all runs of a benchmark share.
#[derive(Debug)]
pub(super) struct Rig {
    /// Where proxies run; anywhere when absent.
    pub(super) proxy_cores: Option<Cores>,
    /// Where backends and the load generator run.
    pub(super) load_cores: Option<Cores>,
    /// Whether policies decide.
    pub(super) traffic_mode: TrafficMode,
    /// Which rules are in force, where a contender has such.
    pub(super) rules: MeshRules,
    /// Where programs are looked up.
    pub(super) search_path: Vec<PathBuf>,
    /// Where contenders are installed for this user.
    pub(super) installed: PathBuf,
    /// Where what is built once is kept.
    pub(super) cache: PathBuf,
    search: PortSearch,
    scratch: TempDir,
    certificates: OnceCell<PathBuf>,
}

/// Which rules are in force besides those of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MeshRules {
    /// None.
    Plain,
    /// Endpoints that fail are removed.
    Removal,
}

/// Whether policies decide, where a contender has such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TrafficMode {
    /// Every member may call every service.
    Permissive,
    /// Only what a policy allows.
    Strict,
}

impl TrafficMode {
    /// The word in manifests.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Permissive => "permissive",
            Self::Strict => "strict",
        }
    }
}

impl Rig {
    /// A rig with a scratch directory that goes with it.
    ///
    /// # Errors
    /// When there is no place for temporary files.
    pub(super) fn new(
        search_path: Vec<PathBuf>,
        installed: PathBuf,
        cache: PathBuf,
    ) -> anyhow::Result<Self> {
        let scratch = tempfile::Builder::new().prefix("leno-bench-").tempdir();
        Ok(Self {
            proxy_cores: None,
            load_cores: None,
            traffic_mode: TrafficMode::Strict,
            rules: MeshRules::Plain,
            search_path,
            installed,
            cache,
            search: PortSearch::new(),
            scratch: scratch.context("there is no place for temporary files")?,
            certificates: OnceCell::new(),
        })
    }

    /// How many threads a proxy is to use.
    pub(super) fn proxy_threads(&self) -> usize {
        self.proxy_cores.as_ref().map_or(1, Cores::count)
    }

    /// Where the files of everything that runs are.
    pub(super) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Ports for one run.
    pub(super) fn ports(&self) -> Ports<'_> {
        Ports::new(&self.search)
    }

    /// The directory of certificates for contenders that do not fetch their own.
    ///
    /// # Errors
    /// When they cannot be made.
    pub(super) fn certificates(&self) -> anyhow::Result<PathBuf> {
        if let Some(made) = self.certificates.get() {
            return Ok(made.clone());
        }
        let directory = self.scratch().join("certificates");
        certificates::issue(&directory, &["client", "server", "gateway", "ratings"])
            .context("certificates for the contenders cannot be made")?;
        Ok(self.certificates.get_or_init(|| directory).clone())
    }
}
