//! Finds out whether connections are led to the sidecar, by making one before the sidecar is there.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};
use leno_proxy::OUTBOUND_PORT;

/// Listens where the sidecar will, and opens a connection to where nobody is (RFC 5737).
///
/// # Errors
/// When the connection does not come here.
pub(super) fn verify() -> anyhow::Result<()> {
    let here = SocketAddr::from((Ipv4Addr::UNSPECIFIED, OUTBOUND_PORT));
    let listener = TcpListener::bind(here)
        .with_context(|| format!("cannot listen at {here}: is the sidecar running already?"))?;
    let nowhere = SocketAddr::from(([192, 0, 2, 1], 9));
    let Ok(ours) = TcpStream::connect_timeout(&nowhere, PATIENCE) else {
        bail!(
            "connections of this pod are not led to its sidecar: the network plugin leno-cni was not \
             in its node's network when the pod started; see that it is, and delete the pod"
        );
    };
    // The kernel accepted it for us, before we do.
    let (_, from) = listener.accept().context("a connection got lost")?;
    if ours.local_addr().ok() != Some(from) {
        bail!("somebody else answers for {nowhere}: connections are not led to the sidecar");
    }
    tracing::info!("connections lead to the sidecar");
    Ok(())
}

/// A connection within the pod takes no time.
const PATIENCE: Duration = Duration::from_secs(2);
