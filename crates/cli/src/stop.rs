//! The signals that ask us to stop.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Resolves at SIGTERM or SIGINT; both are caught from now on.
///
/// # Errors
/// When the signals cannot be caught.
pub(crate) fn signals() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
