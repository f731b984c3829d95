//! Waits until newly started processes respond.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use tokio::time::{Instant, sleep};

use crate::admin_client;
use crate::output;

/// Waits until an address returns success for a path. Stops waiting when `max_wait` expires or `check_alive` finds an
/// exited process.
///
/// # Errors
/// If a process has exited, or the timeout expires.
pub(super) async fn wait_until_ready(
    address: SocketAddr,
    path: &str,
    max_wait: Duration,
    mut check_alive: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + max_wait;
    loop {
        let last_error = match admin_client::query_admin(address, path).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        check_alive()?;
        if Instant::now() >= deadline {
            bail!("it does not become ready: {}", output::format_error(&last_error));
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The interval between attempts, short compared with the start of a process.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[tokio::test]
    async fn waiting_ends_at_the_timeout_or_with_an_exited_process() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let wait = |max_wait, check_alive: fn() -> anyhow::Result<()>| {
            wait_until_ready(address, "/", max_wait, check_alive)
        };
        let error = wait(Duration::ZERO, || Ok(())).await.unwrap_err().to_string();
        assert!(error.contains("it does not become ready"), "{error}");
        let hour = Duration::from_secs(3600);
        let error = wait(hour, || bail!("gone")).await.unwrap_err().to_string();
        assert_eq!(error, "gone");
    }
}
