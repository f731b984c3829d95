//! Reasons of failed handshakes, from the closed list.

use std::io;

use leno_model::{FailureSide, Reason};
use rustls::{CertificateError, Error, InvalidMessage};

use crate::verify::VerifyError;

/// Returns the reason of a failed handshake, as reported by an asynchronous TLS stream. `side` is the peer's
/// side: [`FailureSide::Downstream`] for the clients of a server configuration.
#[must_use]
pub fn reason_of(error: &io::Error, side: FailureSide) -> Reason {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    match (tls, side) {
        (Some(tls), side) => reason_of_tls(tls, side),
        (None, FailureSide::Upstream) => Reason::UpstreamHandshakeFailed,
        (None, FailureSide::Downstream | FailureSide::Mesh) => Reason::HandshakeFailed,
    }
}

/// Returns the reason of a failed handshake, as reported by rustls.
#[must_use]
pub fn reason_of_tls(error: &Error, side: FailureSide) -> Reason {
    match side {
        FailureSide::Upstream => upstream_reason(error),
        FailureSide::Downstream | FailureSide::Mesh => downstream_reason(error),
    }
}

/// A wrong server identity is not retried; any other failure may be transient.
fn upstream_reason(error: &Error) -> Reason {
    match error {
        Error::InvalidCertificate(_) => Reason::WrongIdentity,
        _ => Reason::UpstreamHandshakeFailed,
    }
}

fn downstream_reason(error: &Error) -> Reason {
    match error {
        Error::InvalidCertificate(rejection) => of_certificate(rejection),
        // The first byte of a TLS record is its type; plaintext begins with a letter.
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => Reason::PlaintextRejected,
        _ => Reason::HandshakeFailed,
    }
}

fn of_certificate(rejection: &CertificateError) -> Reason {
    match rejection {
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => Reason::ExpiredPeer,
        CertificateError::Other(ours) => match ours.0.downcast_ref() {
            Some(
                VerifyError::ForeignTrustDomain { .. }
                | VerifyError::ForeignExternalPrincipal { .. },
            ) => Reason::ForeignTrustDomain,
            Some(VerifyError::Expired) => Reason::ExpiredPeer,
            _ => Reason::UntrustedPeer,
        },
        _ => Reason::UntrustedPeer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_below_tls_are_failed_handshakes() {
        let eof = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(reason_of(&eof, FailureSide::Downstream), Reason::HandshakeFailed);
        assert_eq!(reason_of(&eof, FailureSide::Upstream), Reason::UpstreamHandshakeFailed);
    }

    #[test]
    fn finds_the_tls_error_inside_an_io_error() {
        let inner = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let outer = io::Error::new(io::ErrorKind::InvalidData, inner);
        assert_eq!(reason_of(&outer, FailureSide::Downstream), Reason::UntrustedPeer);
        assert_eq!(reason_of(&outer, FailureSide::Upstream), Reason::WrongIdentity);
    }
}
