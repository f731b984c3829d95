//! Opens TCP connections with the proxy's socket options, and with a firewall mark if the kernel would otherwise
//! redirect them to the sidecar.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leno_model::Reason;
use leno_outside::Connector;
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};

use crate::config::Interception;

/// Opens a TCP connection to `address`, without a timeout.
pub(crate) async fn dial_address(
    address: SocketAddr,
    interception: &Interception,
) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Interception::Redirect { mark: Some(mark), .. } = interception {
        SockRef::from(&socket).set_mark(*mark)?;
    }
    set_options(SockRef::from(&socket))?;
    socket.connect(address).await
}

/// Returns the reason for a failed connection attempt. A lack of descriptors or memory is local to this process
/// and does not concern the endpoint (socket(2)). Local addresses and ports may be exhausted for one
/// destination only: another endpoint may be reachable.
pub(crate) fn dial_reason(error: &io::Error) -> Reason {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
            Reason::TooManyConnections
        }
        _ => Reason::ConnectFailed,
    }
}

impl Connector for Interception {
    async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        dial_address(address, self).await
    }
}

/// Sets the options of a socket: no delay, and keepalive. Accepted connections inherit the options of their
/// listener (tcp(7)).
pub(crate) fn set_options(socket: SockRef<'_>) -> io::Result<()> {
    // Complete batches are written at once; delaying them for more data has no benefit.
    socket.set_tcp_nodelay(true)?;
    // Detects a peer that vanished without closing, even if neither side sends data.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_RETRIES))
}

/// The idle time before the kernel sends the first keepalive probe.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
/// The time between two keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// The number of unanswered probes after which the connection is closed, 90 s after the last byte.
const KEEPALIVE_RETRIES: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_not_reported_as_a_failed_connection() {
        for (errno, expected) in [
            (Errno::MFILE, Reason::TooManyConnections),
            (Errno::NFILE, Reason::TooManyConnections),
            (Errno::ADDRNOTAVAIL, Reason::ConnectFailed),
            (Errno::CONNREFUSED, Reason::ConnectFailed),
            (Errno::HOSTUNREACH, Reason::ConnectFailed),
        ] {
            assert_eq!(dial_reason(&errno.into()), expected, "{errno}");
        }
    }
}
