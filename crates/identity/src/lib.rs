//! Workload identity: certificates, the CA and its rotation, verification of peers, and TLS configurations.
//!
//! A proxy generates a [`PrivateKey`], reads its [`JoinBundle`], authenticates to the control plane with the
//! one-time token in it ([`Tokens`]), has its public key signed ([`CertificateRequest`], [`Authority::sign`])
//! and stores the result as its [`Credential`], from which [`server_config`] and [`client_config`] are built.
//! [`session_peer`] returns the peer of a session, from the verified certificate alone.
//!
//! The current time is an argument everywhere except in handshakes, where rustls reads the system clock.

mod authority;
mod client_hello;
mod credential;
mod cross_site;
mod csr;
mod directory;
mod disk;
mod external_principal;
mod external_servers;
mod failure_reason;
mod gateway_tls;
mod join;
mod jwt;
mod key;
mod pem;
mod provider;
mod registration;
mod regular_file;
mod revocations;
mod roots;
#[cfg(test)]
mod testing;
mod tls;
mod token;
mod verifier;
mod verify;

pub use authority::{
    Authority, AuthorityError, AuthorityFiles, AuthoritySource, CertificateSubject, LEAF_LIFETIME,
    MAX_LEAF_LIFETIME, Rotation, RotationStage,
};
pub use client_hello::{ClientHello, ClientHelloReader, offers_protocol};
pub use credential::{CertificateBundle, Credential, CredentialError};
pub use cross_site::{AcceptedHosts, CrossSiteRequest, check_origin, request_host, single_value};
pub use csr::{CertificateRequest, CertificateRequestError};
pub use directory::{check_private_directory, create_private_directory, quote_path};
pub use disk::{open_lock, read_or_create_secret, remove_temporary_files, replace_private};
pub use external_principal::{
    ExternalCertificate, ExternalPrincipal, ExternalSubject, StoredCertificate, external_principal,
};
pub use external_servers::{ExternalServerRoots, ExternalServerRootsError};
pub use failure_reason::{handshake_failure_reason, tls_failure_reason};
pub use gateway_tls::{UnusableCertificate, gateway_server_config};
pub use join::{JoinBundle, JoinBundleError};
pub use jwt::{JwkSetError, JwtError, JwtKeys, JwtRequirements, UnverifiedJwt, claim_values};
pub use key::PrivateKey;
pub use registration::{MAX_REGISTRATIONS, Registrations};
pub use regular_file::{FileOrigin, open_regular, read_regular, read_regular_text};
pub use revocations::{MAX_REVOKED_WORKLOADS, RevocationFile};
pub use roots::{Roots, RootsError};
pub use tls::{
    TlsError, client_config, control_id, external_principal_server_config, join_client_config,
    join_server_config, permissive_server_config, server_config, server_name,
};
pub use token::{
    MAX_TOKEN_LIFETIME, TOKEN_LIFETIME, TokenError, Tokens, generate_secret, token_digest,
};
pub use verify::{VerifiedPeer, VerifyError, is_member_chain, session_peer};
