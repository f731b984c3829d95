//! How workloads are placed on the machine: what their processes are started through and told.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use leno_model::WorkloadName;
use tokio::task::{JoinError, spawn_blocking};

use super::netns::Namespaces;

/// Where the workloads of a mesh are placed.
#[derive(Debug)]
pub(super) enum Placements {
    /// Beside everything else on this machine: traffic goes through doors on loopback.
    Doors,
    /// Each in a network namespace of its own, where its traffic is redirected.
    Namespaces(Arc<Mutex<Namespaces>>),
}

/// How one workload is placed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Placement {
    /// What the command of each of its processes is put behind; nothing by default.
    pub(super) wrapper: Vec<OsString>,
    /// Options of its sidecar that say how traffic reaches it.
    pub(super) sidecar_options: Vec<OsString>,
}

impl Placements {
    /// Makes room for a workload; the same place when asked again.
    ///
    /// # Errors
    /// When there is no room.
    pub(super) async fn place(&self, workload: &WorkloadName) -> anyhow::Result<Placement> {
        let workload = workload.clone();
        let placed = match self {
            Self::Doors => return Ok(Placement::default()),
            Self::Namespaces(all) => aside(all, move |all| all.place(&workload)).await,
        };
        placed.context("the maker of network namespaces failed")?
    }

    /// The network namespace that a workload has of its own, if it has one.
    pub(super) async fn namespace(&self, workload: &WorkloadName) -> Option<String> {
        let workload = workload.clone();
        match self {
            Self::Doors => None,
            Self::Namespaces(all) => aside(all, move |all| all.name_of(&workload)).await.ok()?,
        }
    }

    /// Gives a workload's room back, when its processes have ended.
    pub(super) async fn release(&self, workload: &WorkloadName) {
        let name = workload.clone();
        let released = match self {
            Self::Doors => Ok(()),
            Self::Namespaces(all) => aside(all, move |all| all.remove(&name)).await,
        };
        if let Err(error) = released {
            tracing::error!(%workload, %error, "its network namespace was not removed");
        }
    }
}

/// Runs the commands that change namespaces where nobody else waits for them.
async fn aside<T: Send + 'static>(
    namespaces: &Arc<Mutex<Namespaces>>,
    change: impl FnOnce(&mut Namespaces) -> T + Send + 'static,
) -> Result<T, JoinError> {
    let namespaces = Arc::clone(namespaces);
    let changed = spawn_blocking(move || {
        change(&mut namespaces.lock().unwrap_or_else(PoisonError::into_inner))
    });
    changed.await
}
