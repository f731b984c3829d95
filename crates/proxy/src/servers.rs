//! Servers outside the mesh, collectors and deciders: the way there, who vouches for them, and sessions of TLS.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leno_model::Server;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
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
    roots: RefCell<Option<Arc<RootCertStore>>>,
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
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| NoSession::Tls(error.to_string()))?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from(server.host.clone());
        let name = name.map_err(|error| NoSession::Tls(error.to_string()))?;
        let connected = TlsConnector::from(Arc::new(config)).connect(name, tcp).await;
        connected.map_err(|error| {
            self.roots.take();
            NoSession::Tls(error.to_string())
        })
    }

    async fn roots(&self) -> Result<Arc<RootCertStore>, NoSession> {
        if let Some(roots) = self.roots.borrow().as_ref() {
            return Ok(Arc::clone(roots));
        }
        let file = self.file.clone();
        let read = tokio::task::spawn_blocking(move || read(file.as_deref())).await;
        let roots = read.map_err(|error| NoSession::Roots(error.to_string()))?;
        let roots = Arc::new(roots.map_err(NoSession::Roots)?);
        self.roots.replace(Some(Arc::clone(&roots)));
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

/// At least one root, or why there is none.
fn read(file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match file {
        None => {
            // Some of a system's roots may be unreadable; the others count.
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
        Some(file) => {
            let named = |error: String| format!("{}: {error}", file.display());
            let text = std::fs::read(file).map_err(|error| named(error.to_string()))?;
            for certificate in CertificateDer::pem_slice_iter(&text) {
                let certificate = certificate.map_err(|error| named(error.to_string()))?;
                roots.add(certificate).map_err(|error| named(error.to_string()))?;
            }
        }
    }
    match (roots.is_empty(), file) {
        (false, _) => Ok(roots),
        (true, Some(file)) => Err(format!("{} has no certificate", file.display())),
        (true, None) => Err("the system has none: name a file with --collector-roots".to_owned()),
    }
}
