//! Verifies certificates in handshakes of rustls: webpki verifies chain, time and purpose, then this module compares the
//! identity.

use std::sync::Arc;

use leno_model::{SpiffeId, TrustDomain};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, RootCertStore, SignatureScheme,
};

use crate::external_principal::ExternalPrincipal;
use crate::provider::crypto_provider;
use crate::roots::Roots;
use crate::verify::{LeafCertificate, VerifyError};

/// The treatment of clients without a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnonymousClients {
    /// Every client must present a certificate.
    Rejected,
    /// Clients without a certificate are accepted, for example to join.
    Allowed,
}

/// The treatment of certificates of external principals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExternalPrincipalMode {
    /// Certificates of external principals are rejected.
    Rejected,
    /// Certificates of external principals are accepted; policies authorize the clients later.
    Allowed,
}

/// Accepts members of one trust domain as clients, and external principals if allowed.
#[derive(Debug)]
pub(crate) struct MemberVerifier {
    /// Verifies chains to the roots that sign for members.
    chain_verifier: Arc<dyn ClientCertVerifier>,
    /// Verifies chains to any root, which does not suffice for members; `None` if all roots sign for members.
    full_chain_verifier: Option<Arc<dyn ClientCertVerifier>>,
    trust_domain: TrustDomain,
    external_principal_mode: ExternalPrincipalMode,
}

impl MemberVerifier {
    /// Builds the verifier of a server.
    ///
    /// # Errors
    /// [`VerifierBuilderError`] if rustls rejects the roots.
    pub(crate) fn new(
        roots: &Roots,
        trust_domain: TrustDomain,
        anonymous_clients: AnonymousClients,
        external_principal_mode: ExternalPrincipalMode,
    ) -> Result<Self, VerifierBuilderError> {
        // The root names are not sent as a hint: members have only one certificate.
        let build_verifier = |store: &Arc<RootCertStore>| {
            let builder =
                WebPkiClientVerifier::builder_with_provider(Arc::clone(store), crypto_provider())
                    .clear_root_hint_subjects();
            match anonymous_clients {
                AnonymousClients::Rejected => builder.build(),
                AnonymousClients::Allowed => builder.allow_unauthenticated().build(),
            }
        };
        let chain_verifier = build_verifier(roots.member_store())?;
        let full_chain_verifier = roots.full_store().map(build_verifier).transpose()?;
        Ok(Self { chain_verifier, full_chain_verifier, trust_domain, external_principal_mode })
    }

    /// Verifies a client whose chain does not end at the mesh's own authority and was rejected with `chain_error`. A
    /// certificate of another intermediate of the same root is accepted only if external principals are allowed, and
    /// never as a member's certificate.
    fn verify_other_issuer(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        chain_error: Error,
    ) -> Result<ClientCertVerified, Error> {
        let Some(verifier) = &self.full_chain_verifier else { return Err(chain_error) };
        let verification = verifier.verify_client_cert(end_entity, intermediates, now);
        let (Ok(verification), Ok(leaf)) = (verification, LeafCertificate::read(end_entity)) else {
            return Err(chain_error);
        };
        let id = leaf.peer.id;
        match self.external_principal_mode == ExternalPrincipalMode::Allowed
            && id.trust_domain == self.trust_domain
        {
            true => Ok(verification),
            false => Err(rejection_error(VerifyError::OtherIssuer { found: id })),
        }
    }

    /// Checks that the holder of a verified certificate is a member of the trust domain or, if allowed, an external
    /// principal of it.
    fn check_holder(&self, end_entity: &CertificateDer<'_>) -> Result<(), VerifyError> {
        let read_external_principal = || {
            ExternalPrincipal::read(end_entity)
                .ok()
                .filter(|_| self.external_principal_mode == ExternalPrincipalMode::Allowed)
        };
        let id = match LeafCertificate::read(end_entity) {
            Ok(leaf) => leaf.peer.id,
            // A certificate that is not a member's may be an external principal's; no certificate is both.
            Err(rejection) => {
                let external_principal = read_external_principal().ok_or(rejection)?;
                let is_same_domain = external_principal.id.trust_domain == self.trust_domain;
                return is_same_domain.then_some(()).ok_or(VerifyError::ForeignExternalPrincipal {
                    found: external_principal.id,
                    expected: self.trust_domain.clone(),
                });
            }
        };
        if id.trust_domain != self.trust_domain {
            let expected = self.trust_domain.clone();
            return Err(VerifyError::ForeignTrustDomain { found: id, expected });
        }
        Ok(())
    }
}

impl ClientCertVerifier for MemberVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.chain_verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain_verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.chain_verifier.verify_client_cert(end_entity, intermediates, now) {
            Ok(verified) => {
                self.check_holder(end_entity).map_err(rejection_error)?;
                Ok(verified)
            }
            Err(chain_error) => {
                self.verify_other_issuer(end_entity, intermediates, now, chain_error)
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(unsupported_version_error())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain_verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain_verifier.supported_verify_schemes()
    }
}

/// Accepts one server identity; the name and address of the connection are not compared.
#[derive(Debug)]
pub(crate) struct IdentityVerifier {
    roots: Roots,
    expected_id: SpiffeId,
    algorithms: WebPkiSupportedAlgorithms,
}

impl IdentityVerifier {
    pub(crate) fn new(roots: &Roots, expected_id: SpiffeId) -> Self {
        Self {
            roots: roots.clone(),
            expected_id,
            algorithms: crypto_provider().signature_verification_algorithms,
        }
    }

    /// Verifies that the chain ends at a root in the store and is valid at `now`.
    fn verify_chain(
        &self,
        store: &RootCertStore,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            store,
            intermediates,
            now,
            self.algorithms.all,
        )
    }
}

impl ServerCertVerifier for IdentityVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Err(chain_error) =
            self.verify_chain(self.roots.member_store(), end_entity, intermediates, now)
        {
            // Finds out whether another intermediate of the external root signed the certificate, for a precise error.
            let full_result = self
                .roots
                .full_store()
                .map(|store| self.verify_chain(store, end_entity, intermediates, now));
            return match (full_result, LeafCertificate::read(end_entity)) {
                (Some(Ok(())), Ok(leaf)) => {
                    Err(rejection_error(VerifyError::OtherIssuer { found: leaf.peer.id }))
                }
                _ => Err(chain_error),
            };
        }
        let found = LeafCertificate::read(end_entity).map_err(rejection_error)?.peer.id;
        if found.trust_domain != self.expected_id.trust_domain {
            return Err(rejection_error(VerifyError::ForeignTrustDomain {
                found,
                expected: self.expected_id.trust_domain.clone(),
            }));
        }
        if found != self.expected_id {
            return Err(rejection_error(VerifyError::WrongIdentity {
                found,
                expected: self.expected_id.clone(),
            }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(unsupported_version_error())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// True if the chain ends at the mesh's own authority, not only at the root of an external CA.
pub(crate) fn chains_to_mesh_authority(
    roots: &Roots,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> bool {
    if roots.full_store().is_none() {
        return true;
    }
    let Some((end_entity, intermediates)) = chain.split_first() else { return false };
    let store = Arc::clone(roots.member_store());
    let verifier = WebPkiClientVerifier::builder_with_provider(store, crypto_provider()).build();
    verifier
        .is_ok_and(|verifier| verifier.verify_client_cert(end_entity, intermediates, now).is_ok())
}

/// Wraps a verification error in the error type of rustls; [`crate::tls_failure_reason`] unwraps it.
fn rejection_error(reason: VerifyError) -> Error {
    CertificateError::Other(OtherError(Arc::new(reason))).into()
}

/// Returns the error for TLS 1.2; unreachable, because the configurations offer only TLS 1.3.
fn unsupported_version_error() -> Error {
    PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into()
}
