//! Why a request or connection failed: the closed list behind statuses, metrics and documents.

/// Who is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The client of this sidecar.
    Downstream,
    /// This sidecar, its rules or its limits.
    Ours,
    /// Where this sidecar sent the request.
    Upstream,
}

/// Whether another endpoint may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same answer would come again, or the request may have taken effect.
    Never,
    /// Only if nothing of the request reached the application, or it is idempotent and whole.
    IfUnsent,
    /// Nothing was sent.
    Always,
}

macro_rules! reasons {
    ($($(#[doc = $caption:literal])+ $variant:ident $label:literal $status:literal $side:ident $retry:ident;)+) => {
        /// Why a request or connection failed. One table: label, status, side, retry.
        ///
        /// Status 0 means that no response is made: the connection is reset or was never opened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[doc = $caption])+ $variant,)+ }

        impl Reason {
            /// Every reason, in the order of the documents.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word used in metrics, logs and the `leno-reason` response header.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }

            /// The HTTP status that the sidecar answers with; 0 when it answers nothing.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            /// Who is at fault.
            #[must_use]
            pub const fn side(self) -> Side {
                match self { $(Self::$variant => Side::$side,)+ }
            }

            /// Whether another endpoint may be tried.
            #[must_use]
            pub const fn retry(self) -> Retry {
                match self { $(Self::$variant => Retry::$retry,)+ }
            }

            /// One sentence for operators.
            #[must_use]
            pub const fn caption(self) -> &'static str {
                match self { $(Self::$variant => concat!($($caption),+).trim_ascii(),)+ }
            }

            /// The reason with this label.
            #[must_use]
            pub fn from_label(label: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.label() == label)
            }
        }
    };
}

reasons! {
    /// The request is not valid HTTP/1.1, or is ambiguous about where it ends.
    BadRequest "bad-request" 400 Downstream Never;
    /// The request's head is larger than 64 KiB or has too many header fields.
    HeadTooLarge "head-too-large" 431 Downstream Never;
    /// The request's head did not arrive in time.
    HeadTimeout "head-timeout" 408 Downstream Never;
    /// The client went away, or its body ended before its declared length.
    DownstreamClosed "downstream-closed" 0 Downstream Never;
    /// Plaintext arrived where mutual TLS is required.
    PlaintextRefused "plaintext-refused" 0 Downstream Never;
    /// The TLS handshake of the client failed or did not finish in time.
    HandshakeFailed "handshake-failed" 0 Downstream Never;
    /// The peer's certificate is not signed by a root that this mesh trusts.
    UntrustedPeer "untrusted-peer" 0 Downstream Never;
    /// The peer's certificate has expired or is not valid yet.
    ExpiredPeer "expired-peer" 0 Downstream Never;
    /// The peer's identity belongs to another trust domain.
    ForeignTrustDomain "foreign-trust-domain" 0 Downstream Never;
    /// This sidecar holds as many connections as it may.
    TooManyConnections "too-many-connections" 503 Ours Never;
    /// No service of this name, or no such port on it, is known to the mesh.
    UnknownService "unknown-service" 404 Ours Never;
    /// The service has routes and none of them matches the request.
    NoRoute "no-route" 404 Ours Never;
    /// No policy lets this client use the service at all.
    DeniedOutbound "denied-outbound" 403 Ours Never;
    /// The destination's policies do not allow this peer to make this request.
    Denied "denied" 403 Ours Never;
    /// The destination's policies allow this peer some requests, but none like this one.
    NoPolicyRoute "no-policy-route" 404 Ours Never;
    /// The route's backend does not exist, or all its backends have weight 0.
    InvalidBackend "invalid-backend" 500 Ours Never;
    /// The control plane did not answer about this service in time.
    DiscoveryTimeout "discovery-timeout" 503 Ours Never;
    /// The service has no endpoint that can be used now.
    NoEndpoint "no-endpoint" 503 Ours Never;
    /// This sidecar is draining and takes no new requests.
    Draining "draining" 503 Ours Never;
    /// Something that this version does not support was asked for.
    Unsupported "unsupported" 501 Ours Never;
    /// The endpoint refused the connection, or could not be reached.
    ConnectFailed "connect-failed" 503 Upstream Always;
    /// The endpoint did not accept the connection in time.
    ConnectTimeout "connect-timeout" 504 Upstream Always;
    /// The TLS handshake with the endpoint failed.
    UpstreamHandshakeFailed "upstream-handshake-failed" 502 Upstream Always;
    /// The endpoint proved to be somebody else, or its certificate is not acceptable.
    WrongIdentity "wrong-identity" 502 Upstream Never;
    /// The upstream refused the request before looking at it (it drains or is full).
    UpstreamRefused "upstream-refused" 503 Upstream Always;
    /// The upstream connection broke before the response was complete.
    UpstreamReset "upstream-reset" 502 Upstream IfUnsent;
    /// The upstream's response is not valid HTTP/1.1.
    UpstreamMalformed "upstream-malformed" 502 Upstream Never;
    /// The request timeout of the route passed.
    RequestTimeout "request-timeout" 504 Upstream Never;
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn labels_are_unique_and_read_back() {
        let labels: HashSet<_> = Reason::ALL.iter().map(|r| r.label()).collect();
        assert_eq!(labels.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert_eq!(Reason::from_label(reason.label()), Some(*reason));
            assert!(!reason.caption().is_empty());
        }
    }

    #[test]
    fn only_what_never_left_may_be_sent_again_unconditionally() {
        for reason in Reason::ALL {
            if reason.retry() == Retry::Always {
                assert_eq!(reason.side(), Side::Upstream, "{reason:?}");
            }
        }
    }
}
