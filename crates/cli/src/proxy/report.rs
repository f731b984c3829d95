//! What a sidecar tells: its doors, to the log, and to the supervisor that started it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Where a sidecar can be reached, as one line of JSON on the supervisor's socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Its process.
    pub(crate) pid: u32,
    /// Its admin page.
    pub(crate) admin: SocketAddr,
    /// Its open doors, by name.
    pub(crate) doors: BTreeMap<String, SocketAddr>,
}

impl Report {
    /// The HTTP proxy door, if there is one.
    pub(crate) fn http_proxy(&self) -> Option<SocketAddr> {
        self.doors.get("http-proxy").copied()
    }
}

/// The option, followed by the supervisor's process id, that makes `leno proxy` report on
/// its standard input and end with its supervisor.
pub(crate) const SUPERVISOR_OPTION: &str = "--supervisor";

/// Reports the doors whenever they change; never ends by itself.
///
/// # Errors
/// When a supervisor is expected and standard input is not its socket.
pub(super) fn reports(
    doors: watch::Receiver<Option<BTreeMap<String, SocketAddr>>>,
    admin: SocketAddr,
    supervised: bool,
) -> anyhow::Result<impl Future<Output = Infallible>> {
    let supervisor = match supervised {
        true => Some(supervisor().context("standard input is not the supervisor's socket")?),
        false => None,
    };
    Ok(report(doors, admin, supervisor))
}

async fn report(
    mut doors: watch::Receiver<Option<BTreeMap<String, SocketAddr>>>,
    admin: SocketAddr,
    mut supervisor: Option<UnixStream>,
) -> Infallible {
    loop {
        let open = doors.borrow_and_update().clone();
        if let Some(doors) = open {
            for (name, address) in &doors {
                tracing::info!(name, %address, "a door is open");
            }
            let report = Report { pid: std::process::id(), admin, doors };
            if let Some(socket) = &mut supervisor
                && let Err(error) = tell(socket, &report)
            {
                tracing::warn!(%error, "the supervisor does not listen");
                supervisor = None;
            }
        }
        if doors.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

fn supervisor() -> io::Result<UnixStream> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // A peer address is what tells a socket from a file or a terminal.
    socket.peer_addr()?;
    socket.set_write_timeout(Some(TELL_TIMEOUT))?;
    Ok(socket)
}

fn tell(socket: &mut UnixStream, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    socket.write_all(line.as_bytes())
}

/// The supervisor reads all the time; the kernel's buffer holds hundreds of reports.
const TELL_TIMEOUT: Duration = Duration::from_secs(1);
