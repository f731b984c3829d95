//! Places workloads on the machine, in the host's network namespace or in their own: determines the wrapper
//! command of their processes and the options of their sidecars.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use leno_model::WorkloadName;
use tokio::task::{JoinError, spawn_blocking};

use super::netns::WorkloadNamespaces;

/// The placement of a mesh's workloads.
#[derive(Debug)]
pub(super) enum Placements {
    /// All workloads run in the host's network namespace, and call services through outbound listeners on loopback.
    HostNamespace,
    /// Each workload runs in its own network namespace, with its traffic redirected.
    Namespaces(Arc<Mutex<WorkloadNamespaces>>),
}

/// The placement of one workload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Placement {
    /// The command that wraps the command of each process of the workload; empty by default.
    pub(super) wrapper: Vec<OsString>,
    /// Options of the sidecar that select how it receives traffic.
    pub(super) sidecar_options: Vec<OsString>,
}

impl Placements {
    /// Returns the placement of a workload, and creates its network namespace on the first call.
    ///
    /// # Errors
    /// If the namespace cannot be created.
    pub(super) async fn place_workload(
        &self,
        workload: &WorkloadName,
    ) -> anyhow::Result<Placement> {
        let workload = workload.clone();
        let placement = match self {
            Self::HostNamespace => return Ok(Placement::default()),
            Self::Namespaces(namespaces) => {
                run_in_background(namespaces, move |namespaces| {
                    namespaces.place_workload(&workload)
                })
                .await
            }
        };
        placement.context("the task that changes network namespaces failed")?
    }

    /// Returns the name of a workload's own network namespace; `None` if the workload runs in the host's.
    pub(super) async fn namespace_of(&self, workload: &WorkloadName) -> Option<String> {
        let workload = workload.clone();
        match self {
            Self::HostNamespace => None,
            Self::Namespaces(namespaces) => run_in_background(namespaces, move |namespaces| {
                namespaces.namespace_name(&workload)
            })
            .await
            .ok()?,
        }
    }

    /// Removes the workload's own network namespace, if any, after its processes have exited.
    pub(super) async fn release_workload(&self, workload: &WorkloadName) {
        let name = workload.clone();
        let result = match self {
            Self::HostNamespace => Ok(()),
            Self::Namespaces(namespaces) => {
                run_in_background(namespaces, move |namespaces| namespaces.release_workload(&name))
                    .await
            }
        };
        if let Err(error) = result {
            tracing::error!(%workload, %error, "cannot remove the network namespace");
        }
    }
}

/// Runs `action` on a separate thread, because the commands that change namespaces block.
async fn run_in_background<T: Send + 'static>(
    namespaces: &Arc<Mutex<WorkloadNamespaces>>,
    action: impl FnOnce(&mut WorkloadNamespaces) -> T + Send + 'static,
) -> Result<T, JoinError> {
    let namespaces = Arc::clone(namespaces);
    let task = spawn_blocking(move || {
        action(&mut namespaces.lock().unwrap_or_else(PoisonError::into_inner))
    });
    task.await
}
