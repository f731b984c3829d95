//! What rustls asks during a handshake: chain, time and purpose by webpki, then who it is.

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

use crate::guest::Guest;
use crate::provider::provider;
use crate::roots::Roots;
use crate::verify::{Leaf, VerifyError};

/// Whether a client may stay anonymous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anonymous {
    /// Every client shows a certificate.
    Refused,
    /// A client without a certificate is let in, to join.
    Allowed,
}

/// Whether clients may show certificates of guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guests {
    /// To whoever asks, all of them are strangers.
    Refused,
    /// Which of them may come in is for others to say.
    Allowed,
}

/// Accepts any member of one trust domain as a client, and its guests where they are allowed.
#[derive(Debug)]
pub(crate) struct MemberVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    trust_domain: TrustDomain,
    guests: Guests,
}

impl MemberVerifier {
    pub(crate) fn new(
        roots: &Roots,
        trust_domain: TrustDomain,
        (anonymous, guests): (Anonymous, Guests),
    ) -> Result<Self, VerifierBuilderError> {
        // The roots' names are not sent as a hint: members have one certificate to choose from.
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(roots.store()), provider())
                .clear_root_hint_subjects();
        let chain = match anonymous {
            Anonymous::Refused => builder.build()?,
            Anonymous::Allowed => builder.allow_unauthenticated().build()?,
        };
        Ok(Self { chain, trust_domain, guests })
    }

    /// Whose a certificate is that leads to a root.
    fn judge(&self, end_entity: &CertificateDer<'_>) -> Result<(), VerifyError> {
        let guest = || Guest::read(end_entity).ok().filter(|_| self.guests == Guests::Allowed);
        let found = match Leaf::read(end_entity) {
            Ok(leaf) => leaf.peer.id,
            // What is no member's may be a guest's, and is never both.
            Err(refusal) => {
                let guest = guest().ok_or(refusal)?;
                let is_ours = guest.id.trust_domain == self.trust_domain;
                return is_ours.then_some(()).ok_or(VerifyError::ForeignGuest {
                    found: guest.id,
                    expected: self.trust_domain.clone(),
                });
            }
        };
        if found.trust_domain != self.trust_domain {
            let expected = self.trust_domain.clone();
            return Err(VerifyError::ForeignTrustDomain { found, expected });
        }
        Ok(())
    }
}

impl ClientCertVerifier for MemberVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        self.judge(end_entity).map_err(refused)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(older_than_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Accepts one identity as the server, whatever name or address it was reached by.
#[derive(Debug)]
pub(crate) struct IdentityVerifier {
    roots: Arc<RootCertStore>,
    expected: SpiffeId,
    algorithms: WebPkiSupportedAlgorithms,
}

impl IdentityVerifier {
    pub(crate) fn new(roots: &Roots, expected: SpiffeId) -> Self {
        Self {
            roots: Arc::clone(roots.store()),
            expected,
            algorithms: provider().signature_verification_algorithms,
        }
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
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        let found = Leaf::read(end_entity).map_err(refused)?.peer.id;
        if found.trust_domain != self.expected.trust_domain {
            return Err(refused(VerifyError::ForeignTrustDomain {
                found,
                expected: self.expected.trust_domain.clone(),
            }));
        }
        if found != self.expected {
            return Err(refused(VerifyError::WrongIdentity {
                found,
                expected: self.expected.clone(),
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
        Err(older_than_tls13())
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

/// Carries our reason through rustls; [`crate::reason_of_tls`] finds it again.
fn refused(reason: VerifyError) -> Error {
    CertificateError::Other(OtherError(Arc::new(reason))).into()
}

/// Never reached: the configurations offer TLS 1.3 alone.
fn older_than_tls13() -> Error {
    PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into()
}
