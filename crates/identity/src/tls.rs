//! TLS configurations: TLS 1.3 only, both ends verified, resumption without early data.
//!
//! The caller builds and keeps one per credential and expected peer: a handshake costs one signature and two
//! verifications, a resumed one neither. A configuration owns its tickets and sessions, so a new credential or
//! new roots prevent resumption of old sessions.

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

/// Builds the configuration of a sidecar's inbound listener: clients must have a certificate of a member of the
/// credential's trust domain. [`crate::session_peer`] returns the client.
///
/// # Errors
/// [`TlsError`] if the system has no randomness.
pub fn server_config(
    credential: &Credential,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    build_server_config(credential, alpn, AnonymousClients::Refused, ExternalPrincipalMode::Refused)
}

/// Builds the configuration of a sidecar's inbound listener that also accepts external principals:
/// [`crate::external_principal`] returns the client if [`crate::session_peer`] does not.
///
/// # Errors
/// As [`server_config`].
pub fn external_principal_server_config(
    credential: &Credential,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    build_server_config(credential, alpn, AnonymousClients::Refused, ExternalPrincipalMode::Allowed)
}

/// Builds the configuration of a sidecar's inbound listener for which client certificates are optional: a
/// presented certificate of a member or external principal is verified, and [`crate::session_peer`] returns `None` for
/// other clients.
///
/// # Errors
/// As [`server_config`].
pub fn open_server_config(
    credential: &Credential,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    build_server_config(credential, alpn, AnonymousClients::Allowed, ExternalPrincipalMode::Allowed)
}

/// Builds the configuration of connections to an endpoint: only `expected` is accepted, whatever its address.
///
/// # Errors
/// [`TlsError`] if rustls rejects the configuration.
pub fn client_config(
    credential: &Credential,
    expected: &SpiffeId,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier = IdentityVerifier::new(credential.roots(), expected.clone());
    let mut config = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(credential.cert_resolver());
    config.resumption = Resumption::in_memory_sessions(RESUMABLE_SERVICES_MAX);
    config.alpn_protocols = owned_protocols(alpn);
    Ok(Arc::new(config))
}

/// Builds the configuration of a proxy without a certificate: it verifies the control plane first, and is
/// anonymous itself.
///
/// # Errors
/// [`TlsError`] if rustls rejects the configuration.
pub fn join_client_config(
    roots: &Roots,
    control: &SpiffeId,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier = IdentityVerifier::new(roots, control.clone());
    let mut config = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = owned_protocols(alpn);
    Ok(Arc::new(config))
}

/// Builds the configuration of the control plane's port: clients may be anonymous in order to join.
/// [`crate::session_peer`] then returns `None`, and every service except joining must reject the client.
///
/// # Errors
/// As [`server_config`].
pub fn join_server_config(
    credential: &Credential,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    build_server_config(credential, alpn, AnonymousClients::Allowed, ExternalPrincipalMode::Refused)
}

/// Returns the SNI in the clear: `<service>.<namespace>.svc.cluster.local`. It informs foreign servers; trust
/// does not depend on it.
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
    let literal = |text| Name::new(text).expect("a literal DNS name is valid");
    SpiffeId {
        trust_domain: trust_domain.clone(),
        account: ServiceAccount {
            namespace: literal("leno-system"),
            name: literal("leno-control"),
        },
    }
}

/// The reason that a configuration cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// rustls rejects it.
    #[error("TLS cannot be configured")]
    Rustls(#[from] rustls::Error),
    /// The certificate verifier rejects the roots.
    #[error("the verifier of clients cannot be configured")]
    Verifier(#[from] VerifierBuilderError),
    /// A name longer than a DNS name.
    #[error("service `{service}` has no DNS name: shorten its name or namespace")]
    LongName {
        /// The service.
        service: ServiceName,
        /// The validation error.
        #[source]
        cause: InvalidDnsNameError,
    },
}

fn build_server_config(
    credential: &Credential,
    alpn: &[&[u8]],
    anonymous: AnonymousClients,
    external_principals: ExternalPrincipalMode,
) -> Result<Arc<ServerConfig>, TlsError> {
    let trust_domain = credential.id().trust_domain.clone();
    let verifier =
        MemberVerifier::new(credential.roots(), trust_domain, anonymous, external_principals)?;
    let mut config = ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(credential.cert_resolver());
    // Tickets contain the verified client certificate, encrypted; the server is stateless.
    config.ticketer = Ticketer::new()?;
    config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
    config.max_early_data_size = 0;
    config.ignore_client_order = true;
    config.alpn_protocols = owned_protocols(alpn);
    Ok(Arc::new(config))
}

pub(crate) fn owned_protocols(alpn: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn.iter().map(|protocol| protocol.to_vec()).collect()
}

/// A configuration is for one identity, which few services share.
const RESUMABLE_SERVICES_MAX: usize = 8;

/// Each connection uses one ticket and receives one: connections are few and long-lived.
const TICKETS_PER_HANDSHAKE: usize = 1;

#[cfg(test)]
mod tests;
