//! TLS configurations: version 1.3 alone, both ends verified, resumption without early data.
//!
//! Each is built once per credential, and per expected peer, and kept by its caller: a handshake
//! then costs one signature and two verifications, a resumed one none of them. A configuration
//! owns its tickets and sessions, so that a new credential or new roots leave nothing to resume.

use std::sync::Arc;

use leno_model::{Name, ServiceAccount, ServiceName, SpiffeId, TrustDomain};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::server::VerifierBuilderError;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use crate::credential::Credential;
use crate::provider::provider;
use crate::roots::Roots;
use crate::verifier::{Anonymous, Guests, IdentityVerifier, MemberVerifier};

/// For the inbound door of a sidecar: every member of the credential's trust domain may connect,
/// and nobody without a certificate. Who it was says [`crate::peer`].
///
/// # Errors
/// [`TlsError`] when the system gives no randomness.
pub fn server_config(
    credential: &Credential,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    server(credential, alpn, (Anonymous::Refused, Guests::Refused))
}

/// For the inbound door of a sidecar where guests are let in too: [`crate::guest`] says who it was, where
/// [`crate::peer`] does not.
///
/// # Errors
/// As [`server_config`].
pub fn guest_server_config(
    credential: &Credential,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    server(credential, alpn, (Anonymous::Refused, Guests::Allowed))
}

/// For the inbound door of a sidecar where clients that are no members need no certificate: who shows
/// one, as a member or a guest, is verified all the same, and [`crate::peer`] says `None` of the others.
///
/// # Errors
/// As [`server_config`].
pub fn open_server_config(
    credential: &Credential,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    server(credential, alpn, (Anonymous::Allowed, Guests::Allowed))
}

/// For connections to an endpoint: only `expected` is accepted there, whatever its address.
///
/// # Errors
/// [`TlsError`] when rustls refuses the configuration.
pub fn client_config(
    credential: &Credential,
    expected: &SpiffeId,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier = IdentityVerifier::new(credential.roots(), expected.clone());
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(credential.resolver());
    config.resumption = Resumption::in_memory_sessions(RESUMABLE_SERVICES_MAX);
    config.alpn_protocols = owned(alpn);
    Ok(Arc::new(config))
}

/// For a proxy that has no certificate yet: it verifies the control plane before it says
/// anything, and stays anonymous itself.
///
/// # Errors
/// [`TlsError`] when rustls refuses the configuration.
pub fn join_client_config(
    roots: &Roots,
    control: &SpiffeId,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier = IdentityVerifier::new(roots, control.clone());
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = owned(alpn);
    Ok(Arc::new(config))
}

/// For the control plane's one port: a client may stay anonymous, to join. [`crate::peer`] then
/// says `None`, and whoever serves anything but joining must refuse that.
///
/// # Errors
/// As [`server_config`].
pub fn join_server_config(
    credential: &Credential,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    server(credential, alpn, (Anonymous::Allowed, Guests::Refused))
}

/// The name to send in the clear (SNI): `<service>.<namespace>.svc.cluster.local`. It tells
/// foreign servers what is wanted; no trust rests on it.
///
/// # Errors
/// [`TlsError::LongName`] when that is longer than a DNS name can be.
pub fn server_name(service: &ServiceName) -> Result<ServerName<'static>, TlsError> {
    let ServiceName { namespace, name } = service;
    ServerName::try_from(format!("{name}.{namespace}.svc.cluster.local"))
        .map_err(|cause| TlsError::LongName { service: service.clone(), cause })
}

/// Who the control plane of a trust domain is.
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

/// Why a configuration cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// rustls refuses it.
    #[error("TLS cannot be configured")]
    Rustls(#[from] rustls::Error),
    /// Its verifier refuses the roots.
    #[error("the verifier of clients cannot be configured")]
    Verifier(#[from] VerifierBuilderError),
    /// A name that does not fit into DNS.
    #[error("service `{service}` has no DNS name: shorten its name or namespace")]
    LongName {
        /// The service.
        service: ServiceName,
        /// What DNS says.
        #[source]
        cause: InvalidDnsNameError,
    },
}

fn server(
    credential: &Credential,
    alpn: &[&[u8]],
    clients: (Anonymous, Guests),
) -> Result<Arc<ServerConfig>, TlsError> {
    let trust_domain = credential.id().trust_domain.clone();
    let verifier = MemberVerifier::new(credential.roots(), trust_domain, clients)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(credential.resolver());
    // Tickets carry the verified client certificate, encrypted; the server keeps nothing.
    config.ticketer = Ticketer::new()?;
    config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
    config.max_early_data_size = 0;
    config.ignore_client_order = true;
    config.alpn_protocols = owned(alpn);
    Ok(Arc::new(config))
}

pub(crate) fn owned(alpn: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn.iter().map(|protocol| protocol.to_vec()).collect()
}

/// A configuration is for one identity; few services share one.
const RESUMABLE_SERVICES_MAX: usize = 8;

/// Each connection spends one ticket and gets one: connections are few and long-lived.
const TICKETS_PER_HANDSHAKE: usize = 1;

#[cfg(test)]
mod tests;
