//! Opens connections and TLS sessions to servers outside the mesh, such as collectors and JWKS endpoints.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leno_identity::ExternalServerRoots;
use leno_model::Server;
use rustls_pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Opens connections. The connector of a sidecar marks its connections, so that they are not redirected to the
/// sidecar.
pub trait Connector {
    /// Connects to an address.
    ///
    /// # Errors
    /// Returns an error if the connection fails or times out.
    fn dial(&self, address: SocketAddr) -> impl Future<Output = io::Result<TcpStream>> + Send;
}

/// Opens TLS sessions to servers outside the mesh. It reads the trust roots at first use, and again after a failed
/// handshake, because their file may have been replaced.
#[derive(Debug)]
pub struct TlsSessions {
    /// A PEM file with the trust roots; the system's roots if absent.
    roots_file: Option<PathBuf>,
    /// The loaded roots; `None` before the first use, and after a failed handshake.
    roots: Mutex<Option<ExternalServerRoots>>,
}

impl TlsSessions {
    /// Creates sessions that trust the roots of a PEM file, or the system's roots if `roots_file` is `None`.
    #[must_use]
    pub fn new(roots_file: Option<PathBuf>) -> Self {
        Self { roots_file, roots: Mutex::default() }
    }

    /// Opens a TLS session, verifies the server's certificate for its name, and offers `protocol` by ALPN.
    ///
    /// # Errors
    /// Returns [`TlsSessionError`] if the trust roots cannot be read or the handshake fails.
    pub async fn open_session(
        &self,
        server: &Server,
        protocol: &[u8],
        tcp: TcpStream,
    ) -> Result<TlsStream<TcpStream>, TlsSessionError> {
        let roots = self.load_roots().await?;
        let client_config = roots
            .client_config(protocol)
            .map_err(|error| TlsSessionError::Tls(error.to_string()))?;
        let server_name = ServerName::try_from(server.host.clone())
            .map_err(|error| TlsSessionError::Tls(error.to_string()))?;
        let handshake_result =
            TlsConnector::from(Arc::new(client_config)).connect(server_name, tcp).await;
        handshake_result.map_err(|error| {
            // The next session reads the roots again.
            self.lock_roots().take();
            TlsSessionError::Tls(error.to_string())
        })
    }

    async fn load_roots(&self) -> Result<ExternalServerRoots, TlsSessionError> {
        if let Some(roots) = self.lock_roots().clone() {
            return Ok(roots);
        }
        let roots_file = self.roots_file.clone();
        let load_result =
            tokio::task::spawn_blocking(move || ExternalServerRoots::read(roots_file.as_deref()))
                .await;
        let roots = load_result
            .map_err(|error| TlsSessionError::Roots(error.to_string()))?
            .map_err(|error| TlsSessionError::Roots(error.to_string()))?;
        *self.lock_roots() = Some(roots.clone());
        Ok(roots)
    }

    /// Locks the roots. A thread that panicked while it held the lock left them consistent.
    fn lock_roots(&self) -> MutexGuard<'_, Option<ExternalServerRoots>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason why a TLS session cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TlsSessionError {
    /// The server cannot be verified, or does not support TLS.
    #[error("{0}")]
    Tls(String),
    /// The trust roots cannot be read.
    #[error("cannot read the CA certificates: {0}")]
    Roots(String),
}

/// Connects to the first address of the server that accepts the connection.
///
/// # Errors
/// Returns the error of the last address if none accepts the connection; an error of the kind
/// [`io::ErrorKind::NotFound`] if the name has no address.
pub async fn connect_server(server: &Server, connector: &impl Connector) -> io::Result<TcpStream> {
    connect_permitted(server, connector, |_| true).await
}

/// Connects to the first permitted address that accepts the connection. `permits` checks each resolved address.
/// The connection uses the checked address without another DNS query, so a changed record cannot bypass the check.
///
/// # Errors
/// Returns the errors of [`connect_server`], and an error of the kind [`io::ErrorKind::PermissionDenied`] if no
/// address is permitted.
pub async fn connect_permitted(
    server: &Server,
    connector: &impl Connector,
    permits: impl Fn(IpAddr) -> bool,
) -> io::Result<TcpStream> {
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((server.host.as_str(), server.port)).await? {
        if !permits(address.ip()) {
            last_error = io::ErrorKind::PermissionDenied.into();
            continue;
        }
        match connector.dial(address).await {
            Ok(tcp) => return Ok(tcp),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}
