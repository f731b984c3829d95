//! Defines the errors that prevent the start of a control plane.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use leno_identity::AuthorityError;
use leno_registry::RejectedDocument;

use crate::server_credential::ServerCredentialError;

/// The reason why a control plane does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The source ended before its first update.
    #[error("the configuration cannot be read")]
    Registry,
    /// The required enforcement is unknown: the `MeshConfig` may be among the rejected documents, and a mesh
    /// without one allows all members.
    #[error(
        "a rejected document may be the MeshConfig, and without it the mesh would allow all members: correct the document and \
         start again"
    )]
    MeshConfig(Vec<RejectedDocument>),
    /// The authority cannot be opened.
    #[error("the certificate authority cannot be opened: {0}")]
    Authority(#[from] AuthorityError),
    /// The tokens cannot be read.
    #[error("the directory of join tokens cannot be opened: {0}")]
    Tokens(#[source] io::Error),
    /// Revocations by `leno revoke` cannot be read; without them the revoked workloads would be members again.
    #[error("the revoked workloads cannot be read: {0}")]
    Revoked(#[source] io::Error),
    /// The proxy listener cannot be opened.
    #[error("cannot listen on {0}: {1}; use another address")]
    Listen(SocketAddr, #[source] io::Error),
    /// The admin socket cannot be opened.
    #[error("the admin socket {} cannot be opened: {cause}", path.display())]
    Admin {
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The listener of the browser page cannot be opened.
    #[error(
        "the page for browsers cannot listen on {0}: {1}; use --page with another address, or --page off"
    )]
    Page(SocketAddr, #[source] io::Error),
    /// The control plane's own certificate cannot be issued.
    #[error("cannot issue the control plane's own certificate: {0}")]
    Serving(#[from] ServerCredentialError),
}
