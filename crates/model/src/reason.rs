//! Failure reasons of requests and connections: the closed list used in statuses, metrics and documents.

/// The header with the reason, on responses that a sidecar generates. Gateways send the reason without details,
/// and remove this header from forwarded responses.
pub const REASON_FIELD: &str = "leno-reason";

/// The party at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The client of this sidecar.
    Downstream,
    /// This sidecar, its rules or its limits.
    Ours,
    /// The destination of the request.
    Upstream,
}

/// The conditions under which another endpoint may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same response is expected again, or the request may have taken effect.
    Never,
    /// Only if no part of the request reached the application, or the request is idempotent and complete.
    IfUnsent,
    /// No part of the request was sent.
    Always,
}

macro_rules! reasons {
    ($($(#[doc = $caption:literal])+ $variant:ident $code:literal $label:literal $status:literal $side:ident $retry:ident
        $remedy:literal;)+) => {
        /// The reason that a request or connection failed. One table: code, label, status, side, retry, remedy.
        ///
        /// Status 0 means that no response is sent: the connection is reset or was never opened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[doc = $caption])+ $variant,)+ }

        impl Reason {
            /// Every reason, in the order of the documents.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Its permanent code: a new reason gets the next number of its side, and the code of a removed
            /// reason is never reused. `E1…` is downstream, `E2…` upstream, `E3…` ours.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            /// The word used in metrics, logs and the `leno-reason` response header.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }

            /// The HTTP status of the sidecar's response; 0 if there is none.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            /// The party at fault.
            #[must_use]
            pub const fn side(self) -> Side {
                match self { $(Self::$variant => Side::$side,)+ }
            }

            /// The conditions under which another endpoint may be tried.
            #[must_use]
            pub const fn retry(self) -> Retry {
                match self { $(Self::$variant => Retry::$retry,)+ }
            }

            /// True if a sidecar rejected the request or connection itself: by a policy, a limit, a route, or
            /// because of its syntax. False if a peer, the network or the application failed.
            #[must_use]
            pub const fn is_rejection(self) -> bool {
                match self.side() {
                    Side::Ours => true,
                    Side::Upstream => false,
                    Side::Downstream => !matches!(
                        self,
                        Self::HeadTimeout
                            | Self::BodyStalled
                            | Self::IdleTimeout
                            | Self::DownstreamClosed
                            | Self::AttemptAbandoned
                            | Self::HandshakeFailed
                    ),
                }
            }

            /// A sentence for operators.
            #[must_use]
            pub const fn caption(self) -> &'static str {
                match self { $(Self::$variant => concat!($($caption),+).trim_ascii(),)+ }
            }

            /// A hint for operators, in one sentence.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)+ }
            }

            /// The reason with this label.
            #[must_use]
            pub fn from_label(label: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.label() == label)
            }

            /// The reason with this label or code, case-insensitively.
            #[must_use]
            pub fn named(word: &str) -> Option<Self> {
                let is_it = |name: &str| name.eq_ignore_ascii_case(word);
                let mut all = Self::ALL.iter().copied();
                all.find(|reason| is_it(reason.code()) || is_it(reason.label()))
            }
        }
    };
}

reasons! {
    /// The request is not valid HTTP/1.1, or is ambiguous about where it ends.
    BadRequest "E1001" "bad-request" 400 Downstream Never
        "Correct the client; see the syntax that is refused in `crates/wire`.";
    /// The request's head is larger than 64 KiB or has too many header fields.
    HeadTooLarge "E1002" "head-too-large" 431 Downstream Never
        "Send fewer or smaller header fields, cookies above all.";
    /// The request's head did not arrive in time.
    HeadTimeout "E1003" "head-timeout" 408 Downstream Never
        "Look at the client or the network; the limit is `--head-timeout`.";
    /// The client stopped sending its body, or stopped reading the response, for too long.
    BodyStalled "E1004" "body-stalled" 408 Downstream Never
        "Look at the client or the network; the limit is `--body-stall-timeout`.";
    /// Nothing was said on a TCP connection, either way, for too long.
    IdleTimeout "E1005" "idle-timeout" 0 Downstream Never
        "Let the client keep its connections alive; the limit is `--idle-connection`.";
    /// The client went away, or its body ended before its declared length.
    DownstreamClosed "E1006" "downstream-closed" 0 Downstream Never
        "Look at the client: it gave up or was cut off.";
    /// Plaintext arrived where mutual TLS is required.
    PlaintextRefused "E1007" "plaintext-refused" 0 Downstream Never
        "Give the client a sidecar; it is not a member of the mesh.";
    /// The TLS handshake of the client failed or did not finish in time.
    HandshakeFailed "E1008" "handshake-failed" 0 Downstream Never
        "Look at the client's log; the limit is `--handshake-timeout`.";
    /// The peer's certificate is not signed by a root that this mesh trusts.
    UntrustedPeer "E1009" "untrusted-peer" 0 Downstream Never
        "Let the client join this mesh: another authority signed it.";
    /// The peer's certificate has expired or is not valid yet.
    ExpiredPeer "E1010" "expired-peer" 0 Downstream Never
        "See why the client's sidecar could not renew; compare the clocks.";
    /// The peer's identity belongs to another trust domain.
    ForeignTrustDomain "E1011" "foreign-trust-domain" 0 Downstream Never
        "Use a peer of this mesh, or the same `spec.trustDomain` in both meshes.";
    /// This sidecar holds as many connections as it may, or the system gives it no descriptor for another one.
    TooManyConnections "E3001" "too-many-connections" 503 Ours Never
        "Close idle connections, or raise `--connections-max` and the limit of open files (`ulimit -n`).";
    /// No service of this name, or no such port on it, is known to the mesh; or a host outside has no address.
    UnknownService "E3002" "unknown-service" 404 Ours Never
        "Correct the host name or the port, or add the Service.";
    /// The service has routes and none of them matches the request.
    NoRoute "E3003" "no-route" 404 Ours Never
        "Add a match that fits to an HTTPRoute of the service.";
    /// No policy lets this client use the service at all.
    DeniedOutbound "E3004" "denied-outbound" 403 Ours Never
        "Name the client's account as a source of a TrafficTarget whose destination is the \
         account behind the service.";
    /// The destination's policies do not allow this peer to make this request.
    Denied "E3005" "denied" 403 Ours Never
        "Add the client's account to the sources of the policy that `leno explain request` names.";
    /// The destination's policies allow this peer some requests, but none like this one.
    NoPolicyRoute "E3006" "no-policy-route" 404 Ours Never
        "Add a match that fits to an HTTPRouteGroup that a policy uses.";
    /// The route's backend does not exist, or all its backends have weight 0.
    InvalidBackend "E3007" "invalid-backend" 500 Ours Never
        "Correct `backendRefs` of the HTTPRoute: names, ports, weights.";
    /// The control plane did not answer about this service in time.
    DiscoveryTimeout "E3008" "discovery-timeout" 503 Ours Never
        "Start the control plane, or find out why it does not answer.";
    /// The service has no endpoint that can be used now.
    NoEndpoint "E3009" "no-endpoint" 503 Ours Never
        "Start a workload that the service selects; see `leno get services`.";
    /// This sidecar is draining and takes no new requests.
    Draining "E3010" "draining" 503 Ours Never
        "Send to another endpoint: this one is being stopped.";
    /// Something that this version does not support was asked for.
    Unsupported "E3011" "unsupported" 501 Ours Never
        "Do without it; this version cannot do it.";
    /// The endpoint refused the connection, or could not be reached.
    ConnectFailed "E2001" "connect-failed" 503 Upstream Always
        "Look at the endpoint: `leno get workloads`, its log, its port.";
    /// The endpoint did not accept the connection in time.
    ConnectTimeout "E2002" "connect-timeout" 504 Upstream Always
        "Look at the endpoint and at the network between.";
    /// The TLS handshake with the endpoint failed.
    UpstreamHandshakeFailed "E2003" "upstream-handshake-failed" 502 Upstream Always
        "Look at the log of the endpoint's sidecar.";
    /// The endpoint proved to be somebody else, or its certificate is not acceptable.
    WrongIdentity "E2004" "wrong-identity" 502 Upstream Never
        "Find out who listens at the endpoint's address instead of it.";
    /// The upstream refused the request before looking at it (it drains or is full).
    UpstreamRefused "E2005" "upstream-refused" 503 Upstream Always
        "Look at the endpoint: it drains or is full.";
    /// The upstream connection broke before the response was complete.
    UpstreamReset "E2006" "upstream-reset" 502 Upstream IfUnsent
        "Look at the application's log: it broke the connection.";
    /// The upstream stopped sending its response, or stopped reading the request, for too long.
    UpstreamStalled "E2007" "upstream-stalled" 504 Upstream Never
        "Look at the application: why it is stuck; the limit is `--body-stall-timeout`.";
    /// The upstream's response is not valid HTTP/1.1.
    UpstreamMalformed "E2008" "upstream-malformed" 502 Upstream Never
        "Correct the application: its response is not valid HTTP/1.1.";
    /// The request timeout of the route passed.
    RequestTimeout "E2009" "request-timeout" 504 Upstream Never
        "Make the application faster, or raise `timeouts.request`.";
    /// The time that the route gives one attempt passed.
    AttemptTimeout "E2010" "attempt-timeout" 504 Upstream Never
        "Make the application faster, or raise `timeouts.backendRequest`.";
    /// Another process listens at the application's port: nothing is forwarded to it.
    PortTaken "E2011" "port-taken" 503 Upstream Always
        "Stop the process that `leno status` names, or give the application another port.";
    /// The application answered HTTP/2 in another protocol: it does not speak HTTP/2, or not in clear text.
    ProtocolMismatch "E2012" "protocol-mismatch" 502 Upstream Always
        "Declare what the application speaks, and its sidecar translates: `appProtocol: http` for the port of the Service, or \
         `protocol: HTTP` for that of the Workload.";
    /// The peer's account or workload is revoked, whatever its certificate says.
    RevokedPeer "E1012" "revoked-peer" 403 Downstream Never
        "Take it out of `spec.revoked` of the MeshConfig, or use `leno revoke --undo`, if it is to be a member again.";
    /// No instance carries the tags that a tag rule demands for the request.
    NoTaggedEndpoint "E3012" "no-tagged-endpoint" 503 Ours Never
        "Start a workload with these labels, or say in the TagRoute what takes such requests \
         `otherwise`; `leno explain request` shows rule and instances.";
    /// The circuit of the service is open: too many requests to it failed, and nothing is sent.
    CircuitOpen "E3013" "circuit-open" 503 Ours Never
        "Mend the service; the circuit closes by itself. See its CircuitBreaker for when it opens.";
    /// As much is under way to the service as its circuit breaker lets.
    CircuitFull "E3014" "circuit-full" 503 Ours Never
        "Send less at a time, or raise the limits of the service's CircuitBreaker.";
    /// A rule of an access policy denies it, or a policy decides by request and sees none in these bytes.
    DeniedByPolicy "E3015" "denied-by-policy" 403 Ours Never
        "Change the deny rule of the AccessPolicy that `leno explain request` names. For bytes, declare the protocol of \
         the port, or detach the policy from it.";
    /// More came in than a rate limit lets.
    RateLimited "E3016" "rate-limited" 429 Ours Never
        "Send less, or raise the RateLimit that `leno explain request` names; `retry-after` says \
         when there is room again.";
    /// As many requests are under way as the application is given at once.
    Overloaded "E3017" "overloaded" 503 Ours Never
        "Start more instances, or raise `concurrency` of the RateLimit that `leno explain request` names.";
    /// The destination is not of the mesh, and nothing may leave it.
    EgressDenied "E3018" "egress-denied" 403 Ours Never
        "Correct the host name, give the destination a Service with meshed workloads, or set \
         `spec.egress` of the MeshConfig to allow.";
    /// A policy injects this fault on purpose.
    FaultInjected "E3019" "fault-injected" 503 Ours Never
        "Remove the FaultInjection that `leno explain request` names, when the test is over.";
    /// The request is for a host name that another certificate of the gateway is for.
    Misdirected "E1013" "misdirected" 421 Downstream Never
        "Nothing is wrong: the client asks again on a connection of its own for that host name.";
    /// The request shows no JSON web token where one is required.
    TokenMissing "E1014" "token-missing" 401 Downstream Never
        "Let the client send a token of an issuer that the JwtValidation names, where it looks for it.";
    /// The JSON web token of the request is not accepted.
    TokenInvalid "E1015" "token-invalid" 401 Downstream Never
        "Read `www-authenticate` of the answer, which says why; then see issuer, audience, keys and \
         clocks of the JwtValidation that the access log names.";
    /// The request's body is longer than an authorization service may be shown.
    BodyTooLarge "E1016" "body-too-large" 413 Downstream Never
        "Send a smaller body, or raise `body.maxBytes`, or set `body.allowPartial`, in the \
         ExternalAuthorization that `leno explain request` shows.";
    /// The client's sidecar abandoned this attempt: another attempt answered first, or a time limit of the route passed.
    AttemptAbandoned "E1017" "attempt-abandoned" 0 Downstream Never
        "Nothing failed here. Where there are many, the Hedging or the timeouts of the route are too short for the service.";
    /// An authorization service denied it.
    DeniedByService "E3020" "denied-by-service" 403 Ours Never
        "Ask who runs the service that the ExternalAuthorization names; `leno explain request` \
         shows it.";
    /// An authorization service was to decide, and did not.
    AuthorizationUnavailable "E3021" "authorization-unavailable" 403 Ours Never
        "Look at the service that the ExternalAuthorization names, and at the sidecar's log; \
         `onFailure: allow` lets requests in meanwhile.";
    /// A rate limit service was to decide, and did not.
    RateLimitUnavailable "E3022" "rate-limit-unavailable" 500 Ours Never
        "Look at the service that `global` of the RateLimit names, and at the sidecar's log; \
         `onFailure: allow` lets requests in meanwhile.";
    /// The port carries TCP now, and the connection was read as HTTP before that was known.
    ProtocolChanged "E3023" "protocol-changed" 0 Ours Never
        "Connect again: the next connection is carried as TCP. If this goes on, compare the protocol that the Service declares with \
         what its clients speak.";
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

    /// Operators search for codes for years: a line of this list never changes and is never removed, even if
    /// the reason is. A new reason adds a line.
    const GIVEN: &[(&str, &str)] = &[
        ("E1001", "bad-request"),
        ("E1002", "head-too-large"),
        ("E1003", "head-timeout"),
        ("E1004", "body-stalled"),
        ("E1005", "idle-timeout"),
        ("E1006", "downstream-closed"),
        ("E1007", "plaintext-refused"),
        ("E1008", "handshake-failed"),
        ("E1009", "untrusted-peer"),
        ("E1010", "expired-peer"),
        ("E1011", "foreign-trust-domain"),
        ("E3001", "too-many-connections"),
        ("E3002", "unknown-service"),
        ("E3003", "no-route"),
        ("E3004", "denied-outbound"),
        ("E3005", "denied"),
        ("E3006", "no-policy-route"),
        ("E3007", "invalid-backend"),
        ("E3008", "discovery-timeout"),
        ("E3009", "no-endpoint"),
        ("E3010", "draining"),
        ("E3011", "unsupported"),
        ("E2001", "connect-failed"),
        ("E2002", "connect-timeout"),
        ("E2003", "upstream-handshake-failed"),
        ("E2004", "wrong-identity"),
        ("E2005", "upstream-refused"),
        ("E2006", "upstream-reset"),
        ("E2007", "upstream-stalled"),
        ("E2008", "upstream-malformed"),
        ("E2009", "request-timeout"),
        ("E2010", "attempt-timeout"),
        ("E2011", "port-taken"),
        ("E2012", "protocol-mismatch"),
        ("E1012", "revoked-peer"),
        ("E3012", "no-tagged-endpoint"),
        ("E3013", "circuit-open"),
        ("E3014", "circuit-full"),
        ("E3015", "denied-by-policy"),
        ("E3016", "rate-limited"),
        ("E3017", "overloaded"),
        ("E3018", "egress-denied"),
        ("E3019", "fault-injected"),
        ("E1013", "misdirected"),
        ("E1014", "token-missing"),
        ("E1015", "token-invalid"),
        ("E1016", "body-too-large"),
        ("E3020", "denied-by-service"),
        ("E3021", "authorization-unavailable"),
        ("E3022", "rate-limit-unavailable"),
        ("E1017", "attempt-abandoned"),
        ("E3023", "protocol-changed"),
    ];

    #[test]
    fn a_code_once_given_stays_with_its_reason() {
        let codes: HashSet<_> = GIVEN.iter().map(|(code, _)| code).collect();
        assert_eq!(codes.len(), GIVEN.len(), "no code is given twice");
        for reason in Reason::ALL {
            let found = (reason.code(), reason.label());
            assert!(GIVEN.contains(&found), "add {found:?} to the list; change no line of it");
        }
        for (code, label) in GIVEN {
            let there = Reason::ALL.iter().find(|reason| reason.code() == *code);
            assert!(there.is_none_or(|reason| reason.label() == *label), "{code} is of {label}");
        }
    }

    #[test]
    fn a_code_says_whose_fault_it_is_and_is_read_in_any_case() {
        for reason in Reason::ALL {
            let of_side = match reason.side() {
                Side::Downstream => "E1",
                Side::Upstream => "E2",
                Side::Ours => "E3",
            };
            let code = reason.code();
            assert!(code.len() == 5 && code.starts_with(of_side), "{reason:?}: {code}");
            for word in [code, &code.to_lowercase(), reason.label(), &reason.label().to_uppercase()]
            {
                assert_eq!(Reason::named(word), Some(*reason), "{word}");
            }
        }
        assert_eq!(Reason::named("E9999"), None);
        assert_eq!(Reason::named(""), None);
    }
}
