//! Defines the options for sidecar limits, and changes the limit of open files.
//!
//! The limit of open files is raised for Leno itself and restored for the applications that it starts.

mod sidecar;

pub(crate) use sidecar::SidecarLimitArgs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit, because every connection is a file descriptor.
/// Returns the previous soft limit, which applications that use `select` rely on; `None` is unlimited.
pub(crate) fn raise_open_files() -> Option<u64> {
    let open_file_limit = getrlimit(Resource::Nofile);
    let raised_limit =
        Rlimit { current: open_file_limit.maximum, maximum: open_file_limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised_limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    open_file_limit.current
}

/// Restores the soft limit of open files.
///
/// # Errors
/// If the soft limit is above the hard limit.
pub(crate) fn restore_open_files(soft_limit: u64) -> std::io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let restored_limit = Rlimit { current: Some(soft_limit), maximum };
    setrlimit(Resource::Nofile, restored_limit)?;
    Ok(())
}
