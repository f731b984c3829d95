//! Readiness of newly started processes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use tokio::time::{Instant, sleep};

use crate::ask;
use crate::output;

/// Waits until an address returns success for a path, with a timeout, and while `alive` finds all required
/// processes running.
///
/// # Errors
/// If a process has ended, or the timeout expires.
pub(super) async fn until_answered(
    address: SocketAddr,
    path: &str,
    max_wait: Duration,
    mut alive: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let until = Instant::now() + max_wait;
    loop {
        let problem = match ask::query_admin(address, path).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        alive()?;
        if Instant::now() >= until {
            bail!("it does not become ready: {}", output::format_error(&problem));
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Short compared with the start of a process.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[tokio::test]
    async fn waiting_ends_at_the_limit_or_when_no_process_is_left() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = taken.local_addr().unwrap();
        drop(taken);
        let wait = |max_wait, alive: fn() -> anyhow::Result<()>| {
            until_answered(address, "/", max_wait, alive)
        };
        let error = wait(Duration::ZERO, || Ok(())).await.unwrap_err().to_string();
        assert!(error.contains("it does not become ready"), "{error}");
        let hour = Duration::from_secs(3600);
        let error = wait(hour, || bail!("gone")).await.unwrap_err().to_string();
        assert_eq!(error, "gone");
    }
}
