//! Servers outside the mesh, collectors and deciders: the way there, who vouches for them, and sessions of TLS.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use leno_identity::OutsideRoots;
use leno_model::Server;
use rustls_pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::Interception;
use crate::dial::dial;

/// The roots that vouch for such servers, read when they are needed first, and again after a failure: they
/// may have been replaced.
pub(crate) struct Sessions {
    /// A file of PEM; the system's own roots when absent.
    file: Option<PathBuf>,
    roots: RefCell<Option<OutsideRoots>>,
}

impl Sessions {
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self { file, roots: RefCell::default() }
    }

    /// A session with a server that has shown a certificate for its name, in which `protocol` is spoken.
    pub(crate) async fn open(
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
            self.roots.take();
            NoSession::Tls(error.to_string())
        })
    }

    async fn roots(&self) -> Result<OutsideRoots, NoSession> {
        if let Some(roots) = self.roots.borrow().as_ref() {
            return Ok(roots.clone());
        }
        let file = self.file.clone();
        let read = tokio::task::spawn_blocking(move || OutsideRoots::read(file.as_deref())).await;
        let roots = read.map_err(|error| NoSession::Roots(error.to_string()))?;
        let roots = roots.map_err(|error| NoSession::Roots(error.to_string()))?;
        self.roots.replace(Some(roots.clone()));
        Ok(roots)
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSession {
    /// The server cannot be verified, or does not speak TLS.
    #[error("{0}")]
    Tls(String),
    /// Nobody vouches for servers.
    #[error("the roots to verify it by cannot be read: {0}")]
    Roots(String),
}

/// A connection to the first of its addresses that answers.
pub(crate) async fn connect(
    server: &Server,
    interception: &Interception,
) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in lookup_host((server.host.as_str(), server.port)).await? {
        match dial(address, interception).await {
            Ok(tcp) => return Ok(tcp),
            Err(error) => last = error,
        }
    }
    Err(last)
}
