//! Opens the control plane's outgoing connections to servers outside the mesh.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leno_outside::Connector;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connector that opens connections directly, because the control plane's traffic is not redirected to a sidecar.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectDialer;

impl Connector for DirectDialer {
    async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let result = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// The timeout of a connection attempt. It leaves time for a further address of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
