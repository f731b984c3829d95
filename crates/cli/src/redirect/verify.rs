//! Verifies with a probe connection that connections are redirected, before the sidecar starts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};
use leno_proxy::OUTBOUND_PORT;
use rustix::io::Errno;
use socket2::SockRef;

/// Verifies the redirection: listens on the sidecar's port, and connects to addresses that no host has. With
/// redirection these connections arrive at the port.
///
/// # Errors
/// If no connection arrives at the port, for any IP version.
pub(super) fn verify_redirection() -> anyhow::Result<()> {
    for unused_address in UNUSED_ADDRESSES {
        if is_redirected(unused_address)? {
            tracing::info!("connections are redirected to the sidecar");
            return Ok(());
        }
    }
    bail!(
        "connections of this pod are not redirected to its sidecar: the CNI plugin leno-cni was not \
         in the node's CNI configuration when the pod started; check that it is, and delete the pod"
    );
}

/// True if a connection to an unused address arrives at the sidecar's port; false if it does not arrive, or this
/// machine does not support the IP version.
fn is_redirected(unused_address: IpAddr) -> anyhow::Result<bool> {
    let any_address = match unused_address {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let listen_address = SocketAddr::from((any_address, OUTBOUND_PORT));
    let listener = match TcpListener::bind(listen_address) {
        // This IP version is not supported here.
        Err(error) if error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) => {
            return Ok(false);
        }
        result => result.with_context(|| {
            format!("cannot listen at {listen_address}: is the sidecar running already?")
        })?,
    };
    let Ok(probe) =
        TcpStream::connect_timeout(&(unused_address, DISCARD_PORT).into(), PROBE_TIMEOUT)
    else {
        return Ok(false);
    };
    // The kernel completes the handshake before `accept`. If no connection arrives at the listener, another
    // host has responded to the probe.
    SockRef::from(&listener).set_read_timeout(Some(PROBE_TIMEOUT))?;
    let accept_result = listener.accept().map(|(_, peer_address)| peer_address);
    Ok(accept_result.is_ok_and(|peer_address| {
        probe.local_addr().is_ok_and(|local_address| local_address == peer_address)
    }))
}

/// Unused addresses (RFC 5737, RFC 3849).
pub(super) const UNUSED_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
/// The discard port (RFC 863).
pub(super) const DISCARD_PORT: u16 = 9;
/// The timeout of the probe connection; a connection within the pod is immediate.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
