//! Opening TCP connections: unbuffered, and marked where the kernel must not redirect them again.

use std::io;
use std::net::SocketAddr;

use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};

use crate::config::Interception;

/// Connects from this proxy to `address`.
pub(crate) async fn dial(
    address: SocketAddr,
    interception: &Interception,
) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Interception::Redirect { mark, .. } = interception {
        SockRef::from(&socket).set_mark(*mark)?;
    }
    let tcp = socket.connect(address).await?;
    // Whole batches are written at once; waiting for more would only delay them.
    tcp.set_nodelay(true)?;
    Ok(tcp)
}
