//! Opening TCP connections: unbuffered, and marked where the kernel must not redirect them again.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leno_model::Reason;
use leno_outside::Dial;
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};

use crate::config::Interception;

/// Connects from this proxy to `address`.
pub(crate) async fn dial(
    address: SocketAddr,
    interception: &Interception,
) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Interception::Redirect { mark: Some(mark), .. } = interception {
        SockRef::from(&socket).set_mark(*mark)?;
    }
    prepare(SockRef::from(&socket))?;
    socket.connect(address).await
}

/// The reason of a connection that could not be opened. A lack of descriptors or memory is one of this process, and says
/// nothing about the endpoint (socket(2)). Local addresses and ports are of one destination: another endpoint may be reached.
pub(crate) fn dial_reason(error: &io::Error) -> Reason {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
            Reason::TooManyConnections
        }
        _ => Reason::ConnectFailed,
    }
}

impl Dial for Interception {
    async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        dial(address, self).await
    }
}

/// What every connection of the proxy has; accepted ones have it from their listener (tcp(7)).
pub(crate) fn prepare(socket: SockRef<'_>) -> io::Result<()> {
    // Whole batches are written at once; waiting for more would only delay them.
    socket.set_tcp_nodelay(true)?;
    // A peer that went without a word is noticed, however long nobody has anything to say to it.
    let keepalive = TcpKeepalive::new().with_time(ALIVE_AFTER).with_interval(ALIVE_AGAIN);
    socket.set_tcp_keepalive(&keepalive.with_retries(ALIVE_RETRIES))
}

/// After this time of silence the kernel asks whether the peer is still there.
const ALIVE_AFTER: Duration = Duration::from_secs(60);
/// How long an answer is waited for before it is asked again.
const ALIVE_AGAIN: Duration = Duration::from_secs(10);
/// Unanswered questions after which the connection is given up.
const ALIVE_RETRIES: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_not_the_fault_of_the_endpoint() {
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
