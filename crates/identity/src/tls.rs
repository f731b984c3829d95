//! Builds the TLS configurations of mesh members: TLS 1.3 only, both ends verified, resumption without early data.
//!
//! Callers build one configuration per credential and expected peer, and reuse it: a full handshake costs one
//! signature and two verifications, a resumed one neither. A configuration owns its session tickets, so a new
//! credential or new roots prevent the resumption of old sessions. `alpn_protocols` are the protocols of the application,
//! in order of preference.

use std::sync::Arc;

use leno_model::{Name, ServiceAccount, ServiceName, SpiffeId, TrustDomain};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::server::VerifierBuilderError;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use crate::credential::Credential;
use crate::provider::crypto_provider;
use crate::roots::Roots;
use crate::verifier::{AnonymousClients, ExternalPrincipalMode, IdentityVerifier, MemberVerifier};

/// Builds the configuration of an inbound listener in mTLS mode STRICT: clients must present the certificate of a
/// member of the credential's trust domain. [`crate::session_peer`] returns the client.
///
/// # Errors
/// [`TlsError`] if the system has no randomness.
pub fn server_config(
    credential: &Credential,
    alpn_protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    build_server_config(
        credential,
        alpn_protocols,
        AnonymousClients::Rejected,
        ExternalPrincipalMode::Rejected,
    )
}

/// Builds the configuration of an inbound listener that accepts members and external principals.
/// [`crate::external_principal`] returns the client if [`crate::session_peer`] does not.
///
/// # Errors
/// [`TlsError`] if the system has no randomness.
pub fn external_principal_server_config(
    credential: &Credential,
    alpn_protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    build_server_config(
        credential,
        alpn_protocols,
        AnonymousClients::Rejected,
        ExternalPrincipalMode::Allowed,
    )
}

/// Builds the configuration of an inbound listener for which client certificates are optional. A presented
/// certificate must be valid, of a member or of an external principal. [`crate::session_peer`] returns `None` for a
/// client without a certificate.
///
/// # Errors
/// [`TlsError`] if the system has no randomness.
pub fn permissive_server_config(
    credential: &Credential,
    alpn_protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    build_server_config(
        credential,
        alpn_protocols,
        AnonymousClients::Allowed,
        ExternalPrincipalMode::Allowed,
    )
}

/// Builds the client configuration for connections to an endpoint. The server must have the identity `expected_id`;
/// its address and host name are not compared.
///
/// # Errors
/// [`TlsError`] if rustls rejects the configuration.
pub fn client_config(
    credential: &Credential,
    expected_id: &SpiffeId,
    alpn_protocols: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier = IdentityVerifier::new(credential.roots(), expected_id.clone());
    let mut config = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(credential.cert_resolver());
    config.resumption = Resumption::in_memory_sessions(MAX_RESUMABLE_SERVERS);
    config.alpn_protocols = owned_protocols(alpn_protocols);
    Ok(Arc::new(config))
}

/// Builds the client configuration of a proxy that joins and has no certificate yet: it verifies the control plane,
/// and presents no certificate.
///
/// # Errors
/// [`TlsError`] if rustls rejects the configuration.
pub fn join_client_config(
    roots: &Roots,
    control_plane_id: &SpiffeId,
    alpn_protocols: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier = IdentityVerifier::new(roots, control_plane_id.clone());
    let mut config = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    // A proxy joins once: no later connection resumes the session.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = owned_protocols(alpn_protocols);
    Ok(Arc::new(config))
}

/// Builds the configuration of the control plane's listener. Clients without a certificate are accepted, because
/// proxies join without one. [`crate::session_peer`] returns `None` for them, and all methods but joining must
/// reject them.
///
/// # Errors
/// [`TlsError`] if the system has no randomness.
pub fn join_server_config(
    credential: &Credential,
    alpn_protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    build_server_config(
        credential,
        alpn_protocols,
        AnonymousClients::Allowed,
        ExternalPrincipalMode::Rejected,
    )
}

/// Returns the server name that a client sends as SNI: `<service>.<namespace>.svc.cluster.local`. It is unencrypted
/// and informational: peers verify SPIFFE ids only.
///
/// # Errors
/// [`TlsError::LongName`] if it is longer than a DNS name can be.
pub fn server_name(service: &ServiceName) -> Result<ServerName<'static>, TlsError> {
    let ServiceName { namespace, name } = service;
    ServerName::try_from(format!("{name}.{namespace}.svc.cluster.local"))
        .map_err(|cause| TlsError::LongName { service: service.clone(), cause })
}

/// Returns the identity of a trust domain's control plane.
///
/// # Panics
/// Never: the account's names are literals.
#[must_use]
pub fn control_id(trust_domain: &TrustDomain) -> SpiffeId {
    let literal_name = |text| Name::new(text).expect("a literal DNS name is valid");
    SpiffeId {
        trust_domain: trust_domain.clone(),
        account: ServiceAccount {
            namespace: literal_name("leno-system"),
            name: literal_name("leno-control"),
        },
    }
}

/// A failure to build a TLS configuration or a server name.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// rustls rejects the configuration.
    #[error("TLS cannot be configured")]
    Rustls(#[from] rustls::Error),
    /// The certificate verifier rejects the roots.
    #[error("the verifier of clients cannot be configured")]
    Verifier(#[from] VerifierBuilderError),
    /// The host name of a service is longer than a DNS name can be.
    #[error("service `{service}` has no DNS name: shorten its name or namespace")]
    LongName {
        /// The service with the long name.
        service: ServiceName,
        /// The validation error.
        #[source]
        cause: InvalidDnsNameError,
    },
}

/// Builds a server configuration with these requirements for client certificates.
fn build_server_config(
    credential: &Credential,
    alpn_protocols: &[&[u8]],
    anonymous_clients: AnonymousClients,
    external_principal_mode: ExternalPrincipalMode,
) -> Result<Arc<ServerConfig>, TlsError> {
    let trust_domain = credential.id().trust_domain.clone();
    let verifier = MemberVerifier::new(
        credential.roots(),
        trust_domain,
        anonymous_clients,
        external_principal_mode,
    )?;
    let mut config = ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(credential.cert_resolver());
    // Tickets contain the verified client certificate, encrypted; the server is stateless.
    config.ticketer = Ticketer::new()?;
    config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
    // Early data can be replayed (RFC 8446 §8).
    config.max_early_data_size = 0;
    // The order of `crypto_provider` applies, which prefers the fastest suite.
    config.ignore_client_order = true;
    config.alpn_protocols = owned_protocols(alpn_protocols);
    Ok(Arc::new(config))
}

/// Copies ALPN protocol names into the form that rustls requires.
pub(crate) fn owned_protocols(alpn_protocols: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn_protocols.iter().map(|protocol| protocol.to_vec()).collect()
}

/// Maximum number of server names with sessions stored for resumption by a client configuration. A configuration expects one
/// identity, which few services share.
const MAX_RESUMABLE_SERVERS: usize = 8;

/// The number of session tickets that a server sends per handshake. One suffices: a resumption uses one ticket, and its
/// handshake yields a new one.
const TICKETS_PER_HANDSHAKE: usize = 1;

#[cfg(test)]
mod tests;
