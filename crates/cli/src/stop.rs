//! The signals that ask us to stop.

use std::time::Duration;

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

/// Resolves so long after the first of them, or at the second.
///
/// # Errors
/// As [`signals`].
pub(crate) fn signals_and_then(linger: Duration) -> anyhow::Result<impl Future<Output = ()>> {
    let first = signals()?;
    Ok(async move {
        first.await;
        let Ok(second) = signals() else { return };
        tokio::select! {
            () = tokio::time::sleep(linger) => {}
            () = second => {}
        }
    })
}
