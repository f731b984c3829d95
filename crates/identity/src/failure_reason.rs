//! Maps TLS handshake errors to failure reasons ([`Reason`]), which proxies and control planes log and count.

use std::io;

use leno_model::{FailureSide, Reason};
use rustls::{CertificateError, Error, InvalidMessage};

use crate::verify::VerifyError;

/// Returns the reason of a failed handshake, as reported by an asynchronous TLS stream. `side` is the peer's
/// side: [`FailureSide::Downstream`] for the clients of a server configuration.
#[must_use]
pub fn handshake_failure_reason(error: &io::Error, side: FailureSide) -> Reason {
    let tls_error = error.get_ref().and_then(|inner| inner.downcast_ref());
    match (tls_error, side) {
        (Some(tls_error), side) => tls_failure_reason(tls_error, side),
        (None, FailureSide::Upstream) => Reason::UpstreamHandshakeFailed,
        (None, FailureSide::Downstream | FailureSide::Mesh) => Reason::HandshakeFailed,
    }
}

/// Returns the reason of a failed handshake, as reported by rustls.
#[must_use]
pub fn tls_failure_reason(error: &Error, side: FailureSide) -> Reason {
    match side {
        FailureSide::Upstream => upstream_reason(error),
        FailureSide::Downstream | FailureSide::Mesh => downstream_reason(error),
    }
}

/// Returns the reason for a failed upstream handshake. A wrong server identity is not retried; other failures may
/// be transient.
fn upstream_reason(error: &Error) -> Reason {
    match error {
        Error::InvalidCertificate(_) => Reason::WrongIdentity,
        _ => Reason::UpstreamHandshakeFailed,
    }
}

/// Returns the reason for a failed downstream handshake.
fn downstream_reason(error: &Error) -> Reason {
    match error {
        Error::InvalidCertificate(rejection) => certificate_reason(rejection),
        // The first byte of a TLS record is its type; plaintext begins with a letter.
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => Reason::PlaintextRejected,
        _ => Reason::HandshakeFailed,
    }
}

/// Returns the reason for a rejected client certificate: expired, of another trust domain, or untrusted.
fn certificate_reason(rejection: &CertificateError) -> Reason {
    match rejection {
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => Reason::ExpiredPeer,
        CertificateError::Other(verify_error) => match verify_error.0.downcast_ref() {
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
    fn io_errors_are_failed_handshakes() {
        let eof = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(
            handshake_failure_reason(&eof, FailureSide::Downstream),
            Reason::HandshakeFailed
        );
        assert_eq!(
            handshake_failure_reason(&eof, FailureSide::Upstream),
            Reason::UpstreamHandshakeFailed
        );
    }

    #[test]
    fn a_tls_error_inside_an_io_error_is_found() {
        let inner = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let outer = io::Error::new(io::ErrorKind::InvalidData, inner);
        assert_eq!(
            handshake_failure_reason(&outer, FailureSide::Downstream),
            Reason::UntrustedPeer
        );
        assert_eq!(handshake_failure_reason(&outer, FailureSide::Upstream), Reason::WrongIdentity);
    }
}
