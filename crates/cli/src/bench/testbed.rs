//! Describes the testbed of a benchmark: the resources of this machine that all runs share.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use tempfile::TempDir;

use super::certificates;
use super::cores::Cores;
use crate::ports::{ChosenPorts, PortSearch};

/// The resources that all runs share: cores, free ports, certificates, the scratch directory, and the mesh
/// configuration of the current case.
#[derive(Debug)]
pub(super) struct Testbed {
    /// The cores of the proxies; all cores if absent.
    pub(super) proxy_cores: Option<Cores>,
    /// The cores of the applications and the load generator; all cores if absent.
    pub(super) load_cores: Option<Cores>,
    /// The default policy of the mesh.
    pub(super) default_policy: BenchDefaultPolicy,
    /// Additional traffic rules, which only leno applies.
    pub(super) rules: MeshRules,
    /// The search path of programs.
    pub(super) search_path: Vec<PathBuf>,
    /// The directory of contenders installed for this user.
    pub(super) installed_contenders: PathBuf,
    /// The cache directory of built tools.
    pub(super) cache_directory: PathBuf,
    port_search: PortSearch,
    scratch: TempDir,
    /// The directory of [`Testbed::certificates_directory`], once its certificates are issued.
    issued_certificates: OnceCell<PathBuf>,
}

/// The traffic rules of a case, in addition to the authorization of [`BenchDefaultPolicy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MeshRules {
    /// No additional rules.
    None,
    /// Outlier detection ejects failing endpoints.
    OutlierDetection,
}

/// The authorization of requests, for contenders that support it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BenchDefaultPolicy {
    /// Every member may call every service.
    Allow,
    /// Only requests that a policy allows are permitted.
    Deny,
}

impl BenchDefaultPolicy {
    /// Returns the value of `defaultPolicy` in manifests.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl Testbed {
    /// Creates a testbed without core assignments. Its scratch directory is deleted on drop.
    ///
    /// # Errors
    /// If the temporary directory cannot be created.
    pub(super) fn new(
        search_path: Vec<PathBuf>,
        installed_contenders: PathBuf,
        cache_directory: PathBuf,
    ) -> anyhow::Result<Self> {
        let scratch = tempfile::Builder::new().prefix("leno-bench-").tempdir();
        Ok(Self {
            proxy_cores: None,
            load_cores: None,
            default_policy: BenchDefaultPolicy::Deny,
            rules: MeshRules::None,
            search_path,
            installed_contenders,
            cache_directory,
            port_search: PortSearch::new(),
            scratch: scratch.context("cannot create a temporary directory")?,
            issued_certificates: OnceCell::new(),
        })
    }

    /// Returns the number of threads of a proxy: one for each of its cores, or one without a core assignment.
    pub(super) fn proxy_threads(&self) -> usize {
        self.proxy_cores.as_ref().map_or(1, Cores::count)
    }

    /// Returns the directory for the files of all processes.
    pub(super) fn scratch_directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Creates the port allocation of one run.
    pub(super) fn ports(&self) -> ChosenPorts<'_> {
        ChosenPorts::new(&self.port_search)
    }

    /// Returns the directory of certificates for contenders that request none from a control plane. The first call
    /// issues the certificates.
    ///
    /// # Errors
    /// If the certificates cannot be created.
    pub(super) fn certificates_directory(&self) -> anyhow::Result<PathBuf> {
        if let Some(existing) = self.issued_certificates.get() {
            return Ok(existing.clone());
        }
        let directory = self.scratch_directory().join("certificates");
        certificates::issue_certificates(&directory, &["client", "server", "gateway", "ratings"])
            .context("cannot create certificates for the contenders")?;
        Ok(self.issued_certificates.get_or_init(|| directory).clone())
    }
}
