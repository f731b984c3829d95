//! Why a request or connection failed: the closed list behind statuses, metrics and documents.

/// The field of an answer of a sidecar's own that says why; gateways keep it to the reason alone, and
/// pass none on.
pub const REASON_FIELD: &str = "leno-reason";

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
    ($($(#[doc = $caption:literal])+ $variant:ident $label:literal $status:literal $side:ident $retry:ident
        $remedy:literal;)+) => {
        /// Why a request or connection failed. One table: label, status, side, retry, remedy.
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

            /// What an operator can do about it, in one sentence.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)+ }
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
    BadRequest "bad-request" 400 Downstream Never
        "Correct the client; see the syntax that is refused in `crates/wire`.";
    /// The request's head is larger than 64 KiB or has too many header fields.
    HeadTooLarge "head-too-large" 431 Downstream Never
        "Send fewer or smaller header fields, cookies above all.";
    /// The request's head did not arrive in time.
    HeadTimeout "head-timeout" 408 Downstream Never
        "Look at the client or the network; the limit is `--head-timeout`.";
    /// The client stopped sending its body, or stopped reading the response, for too long.
    BodyStalled "body-stalled" 408 Downstream Never
        "Look at the client or the network; the limit is `--body-stall-timeout`.";
    /// Nothing was said on a TCP connection, either way, for too long.
    IdleTimeout "idle-timeout" 0 Downstream Never
        "Let the client keep its connections alive; the limit is `--idle-connection`.";
    /// The client went away, or its body ended before its declared length.
    DownstreamClosed "downstream-closed" 0 Downstream Never
        "Look at the client: it gave up or was cut off.";
    /// Plaintext arrived where mutual TLS is required.
    PlaintextRefused "plaintext-refused" 0 Downstream Never
        "Give the client a sidecar; it is not a member of the mesh.";
    /// The TLS handshake of the client failed or did not finish in time.
    HandshakeFailed "handshake-failed" 0 Downstream Never
        "Look at the client's log; the limit is `--handshake-timeout`.";
    /// The peer's certificate is not signed by a root that this mesh trusts.
    UntrustedPeer "untrusted-peer" 0 Downstream Never
        "Let the client join this mesh: another authority signed it.";
    /// The peer's certificate has expired or is not valid yet.
    ExpiredPeer "expired-peer" 0 Downstream Never
        "See why the client's sidecar could not renew; compare the clocks.";
    /// The peer's identity belongs to another trust domain.
    ForeignTrustDomain "foreign-trust-domain" 0 Downstream Never
        "Use a peer of this mesh, or the same `spec.trustDomain` in both meshes.";
    /// This sidecar holds as many connections as it may.
    TooManyConnections "too-many-connections" 503 Ours Never
        "Close idle connections, or raise `--connections-max`.";
    /// No service of this name, or no such port on it, is known to the mesh.
    UnknownService "unknown-service" 404 Ours Never
        "Correct the host name or the port, or add the Service.";
    /// The service has routes and none of them matches the request.
    NoRoute "no-route" 404 Ours Never
        "Add a match that fits to an HTTPRoute of the service.";
    /// No policy lets this client use the service at all.
    DeniedOutbound "denied-outbound" 403 Ours Never
        "Name the client's account as a source of a TrafficTarget whose destination is the \
         account behind the service.";
    /// The destination's policies do not allow this peer to make this request.
    Denied "denied" 403 Ours Never
        "Add the client's account to the sources of the policy that `leno explain request` names.";
    /// The destination's policies allow this peer some requests, but none like this one.
    NoPolicyRoute "no-policy-route" 404 Ours Never
        "Add a match that fits to an HTTPRouteGroup that a policy uses.";
    /// The route's backend does not exist, or all its backends have weight 0.
    InvalidBackend "invalid-backend" 500 Ours Never
        "Correct `backendRefs` of the HTTPRoute: names, ports, weights.";
    /// The control plane did not answer about this service in time.
    DiscoveryTimeout "discovery-timeout" 503 Ours Never
        "Start the control plane, or find out why it does not answer.";
    /// The service has no endpoint that can be used now.
    NoEndpoint "no-endpoint" 503 Ours Never
        "Start a workload that the service selects; see `leno get services`.";
    /// This sidecar is draining and takes no new requests.
    Draining "draining" 503 Ours Never
        "Send to another endpoint: this one is being stopped.";
    /// Something that this version does not support was asked for.
    Unsupported "unsupported" 501 Ours Never
        "Do without it; this version cannot do it.";
    /// The endpoint refused the connection, or could not be reached.
    ConnectFailed "connect-failed" 503 Upstream Always
        "Look at the endpoint: `leno get workloads`, its log, its port.";
    /// The endpoint did not accept the connection in time.
    ConnectTimeout "connect-timeout" 504 Upstream Always
        "Look at the endpoint and at the network between.";
    /// The TLS handshake with the endpoint failed.
    UpstreamHandshakeFailed "upstream-handshake-failed" 502 Upstream Always
        "Look at the log of the endpoint's sidecar.";
    /// The endpoint proved to be somebody else, or its certificate is not acceptable.
    WrongIdentity "wrong-identity" 502 Upstream Never
        "Find out who listens at the endpoint's address instead of it.";
    /// The upstream refused the request before looking at it (it drains or is full).
    UpstreamRefused "upstream-refused" 503 Upstream Always
        "Look at the endpoint: it drains or is full.";
    /// The upstream connection broke before the response was complete.
    UpstreamReset "upstream-reset" 502 Upstream IfUnsent
        "Look at the application's log: it broke the connection.";
    /// The upstream stopped sending its response, or stopped reading the request, for too long.
    UpstreamStalled "upstream-stalled" 504 Upstream Never
        "Look at the application: why it is stuck; the limit is `--body-stall-timeout`.";
    /// The upstream's response is not valid HTTP/1.1.
    UpstreamMalformed "upstream-malformed" 502 Upstream Never
        "Correct the application: its response is not valid HTTP/1.1.";
    /// The request timeout of the route passed.
    RequestTimeout "request-timeout" 504 Upstream Never
        "Make the application faster, or raise `timeouts.request`.";
    /// The time that the route gives one attempt passed.
    AttemptTimeout "attempt-timeout" 504 Upstream Never
        "Make the application faster, or raise `timeouts.backendRequest`.";
    /// The peer's account is revoked, whatever its certificate says.
    RevokedPeer "revoked-peer" 403 Downstream Never
        "Take the account out of `spec.revoked` of the MeshConfig, if it is to be a member again.";
    /// No instance carries the tags that a tag rule demands for the request.
    NoTaggedEndpoint "no-tagged-endpoint" 503 Ours Never
        "Start a workload with these labels, or say in the TagRoute what takes such requests \
         `otherwise`; `leno explain request` shows rule and instances.";
    /// The circuit of the service is open: too many requests to it failed, and nothing is sent.
    CircuitOpen "circuit-open" 503 Ours Never
        "Mend the service; the circuit closes by itself. See its CircuitBreaker for when it opens.";
    /// As much is under way to the service as its circuit breaker lets.
    CircuitFull "circuit-full" 503 Ours Never
        "Send less at a time, or raise the limits of the service's CircuitBreaker.";
    /// A rule of an access policy denies it.
    DeniedByPolicy "denied-by-policy" 403 Ours Never
        "Change the deny rule of the AccessPolicy that `leno explain request` names.";
    /// More came in than a rate limit lets.
    RateLimited "rate-limited" 429 Ours Never
        "Send less, or raise the RateLimit that `leno explain request` names; `retry-after` says \
         when there is room again.";
    /// As many requests are under way as the application is given at once.
    Overloaded "overloaded" 503 Ours Never
        "Start more instances, or raise `concurrency` of the RateLimit that `leno explain request` names.";
    /// The destination is not of the mesh, and nothing may leave it.
    EgressDenied "egress-denied" 403 Ours Never
        "Give the destination a Service with meshed workloads, or set `spec.egress` of the \
         MeshConfig to allow.";
    /// A policy injects this fault on purpose.
    FaultInjected "fault-injected" 503 Ours Never
        "Remove the FaultInjection that `leno explain request` names, when the test is over.";
    /// The request is for a host name that another certificate of the gateway is for.
    Misdirected "misdirected" 421 Downstream Never
        "Nothing is wrong: the client asks again on a connection of its own for that host name.";
    /// The request shows no JSON web token where one is required.
    TokenMissing "token-missing" 401 Downstream Never
        "Let the client send a token of an issuer that the JwtValidation names, where it looks for it.";
    /// The JSON web token of the request is not accepted.
    TokenInvalid "token-invalid" 401 Downstream Never
        "Read `www-authenticate` of the answer, which says why; then see issuer, audience, keys and \
         clocks of the JwtValidation that the access log names.";
    /// An authorization service denied it.
    DeniedByService "denied-by-service" 403 Ours Never
        "Ask who runs the service that the ExternalAuthorization names; `leno explain request` \
         shows it.";
    /// An authorization service was to decide, and did not.
    AuthorizationUnavailable "authorization-unavailable" 403 Ours Never
        "Look at the service that the ExternalAuthorization names, and at the sidecar's log; \
         `onFailure: allow` lets requests in meanwhile.";
    /// A rate limit service was to decide, and did not.
    RateLimitUnavailable "rate-limit-unavailable" 500 Ours Never
        "Look at the service that `global` of the RateLimit names, and at the sidecar's log; \
         `onFailure: allow` lets requests in meanwhile.";
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
