//! Opening connections to servers outside the mesh, as a control plane does.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leno_outside::Dial;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// By the kernel's own way: nothing is led elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plainly;

impl Dial for Plainly {
    async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let connected = timeout(CONNECT_WAIT, TcpStream::connect(address)).await;
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// One address of several may not answer.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
