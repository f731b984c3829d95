//! Limits: those of sidecars, as options, and that of open files.
//!
//! The limit of open files is raised for ourselves and given back to the applications we start.

mod sidecar;

pub(crate) use sidecar::SidecarLimitArgs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one: every connection is a file. Returns the
/// soft limit that was in force; applications that use `select` rely on it.
pub(crate) fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files is unchanged");
    }
    limit.current
}

/// Puts the soft limit of open files back.
///
/// # Errors
/// When it is above the hard limit.
pub(crate) fn restore_open_files(soft: u64) -> std::io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let restored = Rlimit { current: Some(soft), maximum };
    setrlimit(Resource::Nofile, restored)?;
    Ok(())
}
