//! Verification of redirection, with a probe connection before the sidecar starts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};
use leno_proxy::OUTBOUND_PORT;
use rustix::io::Errno;
use socket2::SockRef;

/// Listens on the sidecar's port, and opens a connection to an unused address.
///
/// # Errors
/// If no connection arrives here, for any IP version.
pub(super) fn verify() -> anyhow::Result<()> {
    for nowhere in NOWHERE {
        if is_led_here(nowhere)? {
            tracing::info!("connections are redirected to the sidecar");
            return Ok(());
        }
    }
    bail!(
        "connections of this pod are not redirected to its sidecar: the CNI plugin leno-cni was not \
         in the node's CNI configuration when the pod started; check that it is, and delete the pod"
    );
}

fn is_led_here(nowhere: IpAddr) -> anyhow::Result<bool> {
    let any = match nowhere {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let here = SocketAddr::from((any, OUTBOUND_PORT));
    let listener = match TcpListener::bind(here) {
        // This IP version is not supported here.
        Err(error) if error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) => {
            return Ok(false);
        }
        bound => bound
            .with_context(|| format!("cannot listen at {here}: is the sidecar running already?"))?,
    };
    let Ok(ours) = TcpStream::connect_timeout(&(nowhere, DISCARD).into(), MAX_WAIT) else {
        return Ok(false);
    };
    // The kernel completes the handshake before `accept`; otherwise another host answered.
    SockRef::from(&listener).set_read_timeout(Some(MAX_WAIT))?;
    let accepted = listener.accept().map(|(_, from)| from);
    Ok(accepted.is_ok_and(|from| ours.local_addr().is_ok_and(|local| local == from)))
}

/// Unused addresses (RFC 5737, RFC 3849).
pub(super) const NOWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
/// The discard port (RFC 863).
pub(super) const DISCARD: u16 = 9;
/// A connection within the pod takes no time.
const MAX_WAIT: Duration = Duration::from_secs(2);
