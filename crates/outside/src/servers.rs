//! Servers outside the mesh, collectors among them: the way there, who vouches for them, and sessions of TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leno_identity::OutsideRoots;
use leno_model::Server;
use rustls_pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How a process opens connections: a sidecar has to mark those that must not be led back to it.
pub trait Dial {
    /// A connection to this address.
    ///
    /// # Errors
    /// When there is none, or not in time.
    fn dial(&self, address: SocketAddr) -> impl Future<Output = io::Result<TcpStream>> + Send;
}

/// The roots that vouch for such servers, read when they are needed first, and again after a failure: they
/// may have been replaced.
#[derive(Debug)]
pub struct Sessions {
    /// A file of PEM; the system's own roots when absent.
    file: Option<PathBuf>,
    roots: Mutex<Option<OutsideRoots>>,
}

impl Sessions {
    /// With the roots of a file of PEM, or with those of the system.
    #[must_use]
    pub fn new(file: Option<PathBuf>) -> Self {
        Self { file, roots: Mutex::default() }
    }

    /// A session with a server that has shown a certificate for its name, in which `protocol` is spoken.
    ///
    /// # Errors
    /// [`NoSession`].
    pub async fn open(
        &self,
        (server, protocol): (&Server, &[u8]),
        tcp: TcpStream,
    ) -> Result<TlsStream<TcpStream>, NoSession> {
        let roots = self.roots().await?;
        let config = roots.client_config(protocol);
        let config = config.map_err(|error| NoSession::Tls(error.to_string()))?;
        let name = ServerName::try_from(server.host.clone());
        let name = name.map_err(|error| NoSession::Tls(error.to_string()))?;
        let connected = TlsConnector::from(Arc::new(config)).connect(name, tcp).await;
        connected.map_err(|error| {
            self.known().take();
            NoSession::Tls(error.to_string())
        })
    }

    async fn roots(&self) -> Result<OutsideRoots, NoSession> {
        if let Some(roots) = self.known().clone() {
            return Ok(roots);
        }
        let file = self.file.clone();
        let read = tokio::task::spawn_blocking(move || OutsideRoots::read(file.as_deref())).await;
        let roots = read.map_err(|error| NoSession::Roots(error.to_string()))?;
        let roots = roots.map_err(|error| NoSession::Roots(error.to_string()))?;
        *self.known() = Some(roots.clone());
        Ok(roots)
    }

    /// A thread that died while it held the lock left nothing half done.
    fn known(&self) -> MutexGuard<'_, Option<OutsideRoots>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum NoSession {
    /// The server cannot be verified, or does not speak TLS.
    #[error("{0}")]
    Tls(String),
    /// Nobody vouches for servers.
    #[error("the roots for that cannot be read: {0}")]
    Roots(String),
}

/// A connection to the first of its addresses that answers.
///
/// # Errors
/// When none does, or its name has no address: what was wrong with the last.
pub async fn connect(server: &Server, dial: &impl Dial) -> io::Result<TcpStream> {
    connect_permitted(server, dial, |_| true).await
}

/// The same, with `permits` as the judge of each address: a connection goes to the address that was judged,
/// so that a name cannot mean another one in between.
///
/// # Errors
/// As [`connect`], and of the kind [`io::ErrorKind::PermissionDenied`] when no address is permitted.
pub async fn connect_permitted(
    server: &Server,
    dial: &impl Dial,
    permits: impl Fn(IpAddr) -> bool,
) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((server.host.as_str(), server.port)).await? {
        if !permits(address.ip()) {
            last = io::ErrorKind::PermissionDenied.into();
            continue;
        }
        match dial.dial(address).await {
            Ok(tcp) => return Ok(tcp),
            Err(error) => last = error,
        }
    }
    Err(last)
}
