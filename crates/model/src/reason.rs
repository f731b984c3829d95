//! The failure reasons of requests and connections. All sidecars and gateways use this closed list in responses,
//! metrics, access logs and documents.

/// The response header with the reason, which a sidecar adds to the responses that it generates. Gateways add it
/// without details, and remove it from forwarded responses.
pub const REASON_FIELD: &str = "leno-reason";

/// The side of a failure: the party that caused it, as seen from this sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureSide {
    /// The client of this sidecar.
    Downstream,
    /// This sidecar, its rules or its limits.
    Mesh,
    /// The destination of the request.
    Upstream,
}

/// The conditions under which another endpoint may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetryCondition {
    /// No other endpoint is tried: the same response is expected again, or the request may have taken effect.
    Never,
    /// Another endpoint is tried only if no part of the request was sent, or the request is idempotent and can
    /// be sent again as a whole.
    IfUnsent,
    /// Another endpoint may be tried: the application has not processed the request.
    Always,
}

macro_rules! reasons {
    ($($(#[doc = $caption:literal])+ $variant:ident $code:literal $label:literal $status:literal $side:ident $retry:ident
        $remedy:literal;)+) => {
        /// The reason that a request or connection failed.
        ///
        /// Each reason has a code, a label, an HTTP status, a side, a retry condition and a remedy. Status 0 means
        /// that no response is sent: the connection is reset, or it was never opened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[doc = $caption])+ $variant,)+ }

        impl Reason {
            /// Every reason, in the order of the documents.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the permanent code. `E1…` is downstream, `E2…` upstream, `E3…` the mesh. A new reason gets
            /// the next number of its side, and the code of a removed reason is never reused.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            /// Returns the word used in metrics, logs and the `leno-reason` response header.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }

            /// Returns the HTTP status of the sidecar's response; 0 if there is none.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            /// Returns the party that caused the failure.
            #[must_use]
            pub const fn side(self) -> FailureSide {
                match self { $(Self::$variant => FailureSide::$side,)+ }
            }

            /// Returns the conditions under which another endpoint may be tried.
            #[must_use]
            pub const fn retry(self) -> RetryCondition {
                match self { $(Self::$variant => RetryCondition::$retry,)+ }
            }

            /// True if the sidecar itself rejected the request or connection: because of a policy, a limit, a route
            /// or invalid syntax. False if a peer, the network or the application failed.
            #[must_use]
            pub const fn is_rejection(self) -> bool {
                match self.side() {
                    FailureSide::Mesh => true,
                    FailureSide::Upstream => false,
                    FailureSide::Downstream => !matches!(
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

            /// Returns the description for operators, in one sentence.
            #[must_use]
            pub const fn caption(self) -> &'static str {
                match self { $(Self::$variant => concat!($($caption),+).trim_ascii(),)+ }
            }

            /// Returns the remedy for operators, which corrects the cause of the failure.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)+ }
            }

            /// Returns the reason with this label; `None` if there is none.
            #[must_use]
            pub fn from_label(label: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.label() == label)
            }

            /// Returns the reason with this label or code, compared case-insensitively; `None` if there is none.
            #[must_use]
            pub fn from_label_or_code(label_or_code: &str) -> Option<Self> {
                let matches_word = |name: &str| name.eq_ignore_ascii_case(label_or_code);
                let mut reasons = Self::ALL.iter().copied();
                reasons.find(|reason| matches_word(reason.code()) || matches_word(reason.label()))
            }
        }
    };
}

reasons! {
    /// The request is not valid HTTP/1.1, or is ambiguous about where it ends.
    BadRequest "E1001" "bad-request" 400 Downstream Never
        "Correct the client; docs/http-strictness.md lists the syntax that is rejected.";
    /// The request's head is larger than 64 KiB or has too many header fields.
    HeadTooLarge "E1002" "head-too-large" 431 Downstream Never
        "Send fewer or smaller header fields, especially cookies.";
    /// The client did not send the request head in time.
    HeadTimeout "E1003" "head-timeout" 408 Downstream Never
        "Check the client and the network; the limit is `--head-timeout`.";
    /// The client stopped sending its body or reading the response for too long.
    BodyStalled "E1004" "body-stalled" 408 Downstream Never
        "Check the client and the network; the limit is `--body-stall-timeout`.";
    /// A TCP connection was idle in both directions for too long.
    IdleTimeout "E1005" "idle-timeout" 0 Downstream Never
        "Enable keepalives in the client; the limit is `--idle-connection`.";
    /// The client disconnected, or its body ended before its declared length.
    DownstreamClosed "E1006" "downstream-closed" 0 Downstream Never
        "Check the client: it disconnected or lost its connection.";
    /// The client sent plaintext where mutual TLS is required.
    PlaintextRejected "E1007" "plaintext-rejected" 0 Downstream Never
        "Add a sidecar to the client: it is not a member of the mesh.";
    /// The TLS handshake of the client failed or did not finish in time.
    HandshakeFailed "E1008" "handshake-failed" 0 Downstream Never
        "Check the client's log; the limit is `--handshake-timeout`.";
    /// The peer's certificate is not signed by a root that this mesh trusts.
    UntrustedPeer "E1009" "untrusted-peer" 0 Downstream Never
        "Join the client to this mesh: another authority signed its certificate.";
    /// The peer's certificate has expired or is not valid yet.
    ExpiredPeer "E1010" "expired-peer" 0 Downstream Never
        "Find out why the client's sidecar could not renew its certificate; compare the clocks.";
    /// The peer's identity belongs to another trust domain.
    ForeignTrustDomain "E1011" "foreign-trust-domain" 0 Downstream Never
        "Use a peer of this mesh, or the same `spec.trustDomain` in both meshes.";
    /// The sidecar's connection limit, or the system's limit of open files, is reached.
    TooManyConnections "E3001" "too-many-connections" 503 Mesh Never
        "Close idle connections, or raise `--connections-max` and the limit of open files (`ulimit -n`).";
    /// The mesh has no service of this name, or the service has no such port; or an external host has no address.
    UnknownService "E3002" "unknown-service" 404 Mesh Never
        "Correct the host name or the port, or add the Service.";
    /// The service has routes, and none of them matches the request.
    NoRoute "E3003" "no-route" 404 Mesh Never
        "Add a match for the request to an HTTPRoute of the service.";
    /// No policy allows this client to use the service.
    DeniedOutbound "E3004" "denied-outbound" 403 Mesh Never
        "Add the client's account to the sources of a TrafficTarget for the account of the service.";
    /// No policy of the destination names this client, or only rules for other clients match the request.
    Denied "E3005" "denied" 403 Mesh Never
        "Add the client's account to the sources of the policy that `leno explain request` names.";
    /// Policies of the destination name this client, but no rule for any client matches the request.
    NoPolicyRoute "E3006" "no-policy-route" 404 Mesh Never
        "Add a match for the request to an HTTPRouteGroup of the policy.";
    /// The route's backend does not exist, or all its backends have weight 0.
    InvalidBackend "E3007" "invalid-backend" 500 Mesh Never
        "Correct `backendRefs` of the HTTPRoute: names, ports, weights.";
    /// The control plane did not send the configuration of this service in time.
    DiscoveryTimeout "E3008" "discovery-timeout" 503 Mesh Never
        "Start the control plane, or find out why it does not respond.";
    /// The service has no available endpoint.
    NoEndpoint "E3009" "no-endpoint" 503 Mesh Never
        "Start a workload that the service selects; see `leno get services`.";
    /// This sidecar is draining and takes no new requests.
    Draining "E3010" "draining" 503 Mesh Never
        "Use another endpoint: this one is stopping.";
    /// The request uses a feature that this version does not support.
    Unsupported "E3011" "unsupported" 501 Mesh Never
        "Do not use the feature; this version does not have it.";
    /// The endpoint refused the connection, or was unreachable.
    ConnectFailed "E2001" "connect-failed" 503 Upstream Always
        "Check the endpoint: `leno get workloads`, its log, its port.";
    /// The endpoint did not accept the connection in time.
    ConnectTimeout "E2002" "connect-timeout" 504 Upstream Always
        "Check the endpoint and the network.";
    /// The TLS handshake with the endpoint failed.
    UpstreamHandshakeFailed "E2003" "upstream-handshake-failed" 502 Upstream Always
        "Check the log of the endpoint's sidecar.";
    /// The endpoint has another identity than expected, or an invalid certificate.
    WrongIdentity "E2004" "wrong-identity" 502 Upstream Never
        "Another process or pod listens on the endpoint's address: find it.";
    /// The upstream rejected the request unprocessed: it is draining or at its limit.
    UpstreamRefused "E2005" "upstream-refused" 503 Upstream Always
        "Check the endpoint: it is draining or at its limit.";
    /// The upstream connection broke before the response was complete.
    UpstreamReset "E2006" "upstream-reset" 502 Upstream IfUnsent
        "Check the application's log: it closed the connection.";
    /// The upstream stopped sending its response or reading the request for too long.
    UpstreamStalled "E2007" "upstream-stalled" 504 Upstream Never
        "Find out why the application does not make progress; the limit is `--body-stall-timeout`.";
    /// The upstream's response is not valid HTTP/1.1.
    UpstreamMalformed "E2008" "upstream-malformed" 502 Upstream Never
        "Correct the application: its response is not valid HTTP/1.1.";
    /// The request timeout of the route expired.
    RequestTimeout "E2009" "request-timeout" 504 Upstream Never
        "Make the application faster, or raise `timeouts.request`.";
    /// The attempt timeout of the route expired.
    AttemptTimeout "E2010" "attempt-timeout" 504 Upstream Never
        "Make the application faster, or raise `timeouts.backendRequest`.";
    /// Another process listens on the application's port; no traffic is forwarded to it.
    PortTaken "E2011" "port-taken" 503 Upstream Always
        "Stop the process that `leno status` names, or give the application another port.";
    /// The application does not speak the HTTP version of the request, or not in plaintext.
    ProtocolMismatch "E2012" "protocol-mismatch" 502 Upstream Always
        "Declare the protocol of the application, and its sidecar translates: `appProtocol: http` or `kubernetes.io/h2c` for the port of \
         the Service, or `protocol: HTTP` or `HTTP2` for that of the Workload.";
    /// The peer's account or workload is revoked, although its certificate is valid.
    RevokedPeer "E1012" "revoked-peer" 403 Downstream Never
        "To restore the membership, remove it from `spec.revoked` of the MeshConfig or run `leno revoke --undo`.";
    /// No instance has the tags that a tag rule requires for the request.
    NoTaggedEndpoint "E3012" "no-tagged-endpoint" 503 Mesh Never
        "Start a workload with these labels, or set a fallback in `fallbackPolicy` of the TagRoute; `leno explain request` shows \
         the rule and the instances.";
    /// The circuit breaker of the service is open after too many failures.
    CircuitOpen "E3013" "circuit-open" 503 Mesh Never
        "Repair the service; the circuit closes automatically. The CircuitBreaker has the conditions under which it opens.";
    /// The circuit breaker's concurrency limit for the service is reached.
    CircuitFull "E3014" "circuit-full" 503 Mesh Never
        "Send fewer requests at once, or raise the limits of the service's CircuitBreaker.";
    /// An AccessPolicy denies the request, or the connection is opaque TCP and a policy of the port has conditions on requests.
    DeniedByPolicy "E3015" "denied-by-policy" 403 Mesh Never
        "Change the deny rule of the AccessPolicy that `leno explain request` names. For opaque bytes, declare the protocol of \
         the port, or detach the policy from it.";
    /// The request exceeded a rate limit.
    RateLimited "E3016" "rate-limited" 429 Mesh Never
        "Send less, or raise the RateLimit that `leno explain request` names; `retry-after` shows when to retry.";
    /// The application's concurrency limit is reached.
    Overloaded "E3017" "overloaded" 503 Mesh Never
        "Start more instances, or raise `concurrency` of the RateLimit that `leno explain request` names.";
    /// The destination is outside the mesh, and egress is denied.
    EgressDenied "E3018" "egress-denied" 403 Mesh Never
        "Correct the host name, give the destination a Service with meshed workloads, or set \
         `spec.egress` of the MeshConfig to allow.";
    /// A policy injects this fault on purpose.
    FaultInjected "E3019" "fault-injected" 503 Mesh Never
        "Remove the FaultInjection that `leno explain request` names, when the test is over.";
    /// The request is for a host name that another certificate of the gateway covers.
    Misdirected "E1013" "misdirected" 421 Downstream Never
        "No action is necessary: the client repeats the request on a separate connection for that host name.";
    /// The request has no JSON web token although one is required.
    TokenMissing "E1014" "token-missing" 401 Downstream Never
        "Configure the client to send a token of an issuer of the JwtValidation, in a location that the JwtValidation lists.";
    /// The request's JSON web token is invalid.
    TokenInvalid "E1015" "token-invalid" 401 Downstream Never
        "The header `www-authenticate` of the response has the cause; check issuer, audience, keys and clocks of the \
         JwtValidation that the access log names.";
    /// The request's body exceeds the limit of the external authorization service.
    BodyTooLarge "E1016" "body-too-large" 413 Downstream Never
        "Send a smaller body, or raise `body.maxRequestBytes`, or set `body.allowPartialMessage`, in the \
         ExternalAuthorization that `leno explain request` shows.";
    /// The client's sidecar abandoned this attempt: another attempt responded first, or a timeout of the route expired.
    AttemptAbandoned "E1017" "attempt-abandoned" 0 Downstream Never
        "A few are normal. Many mean that the Hedging delay or the route's timeouts are too short for the service.";
    /// The external authorization service denied the request.
    DeniedByService "E3020" "denied-by-service" 403 Mesh Never
        "Contact the operator of the service that the ExternalAuthorization names; `leno explain request` \
         shows it.";
    /// The external authorization service did not respond.
    AuthorizationUnavailable "E3021" "authorization-unavailable" 403 Mesh Never
        "Check the service that the ExternalAuthorization names, and the sidecar's log; \
         `failureMode: allow` allows requests meanwhile.";
    /// The rate limit service did not respond.
    RateLimitUnavailable "E3022" "rate-limit-unavailable" 500 Mesh Never
        "Check the service that `global` of the RateLimit names, and the sidecar's log; \
         `failureMode: allow` allows requests meanwhile.";
    /// The port now carries TCP; the connection was parsed as HTTP before the change arrived.
    ProtocolChanged "E3023" "protocol-changed" 0 Mesh Never
        "Connect again: the next connection is carried as TCP. If this continues, compare the protocol that the Service \
         declares with the protocol of its clients.";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn labels_are_unique_and_round_trip() {
        let labels: HashSet<_> = Reason::ALL.iter().map(|reason| reason.label()).collect();
        assert_eq!(labels.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert_eq!(Reason::from_label(reason.label()), Some(*reason));
            assert!(!reason.caption().is_empty());
        }
    }

    #[test]
    fn only_upstream_reasons_are_always_retried() {
        for reason in Reason::ALL {
            if reason.retry() == RetryCondition::Always {
                assert_eq!(reason.side(), FailureSide::Upstream, "{reason:?}");
            }
        }
    }

    /// All codes that were ever assigned, with their labels. Operators rely on codes for years, so a line is never
    /// changed and never removed, even if its reason is removed. A new reason adds a line.
    const ASSIGNED_CODES: &[(&str, &str)] = &[
        ("E1001", "bad-request"),
        ("E1002", "head-too-large"),
        ("E1003", "head-timeout"),
        ("E1004", "body-stalled"),
        ("E1005", "idle-timeout"),
        ("E1006", "downstream-closed"),
        ("E1007", "plaintext-rejected"),
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
    fn a_code_never_changes_its_reason() {
        let codes: HashSet<_> = ASSIGNED_CODES.iter().map(|(code, _)| code).collect();
        assert_eq!(codes.len(), ASSIGNED_CODES.len(), "no code is given twice");
        for reason in Reason::ALL {
            let code_and_label = (reason.code(), reason.label());
            assert!(
                ASSIGNED_CODES.contains(&code_and_label),
                "add {code_and_label:?} to the list; change no line of it"
            );
        }
        for (code, label) in ASSIGNED_CODES {
            let assigned_reason = Reason::ALL.iter().find(|reason| reason.code() == *code);
            assert!(
                assigned_reason.is_none_or(|reason| reason.label() == *label),
                "{code} is of {label}"
            );
        }
    }

    #[test]
    fn a_code_identifies_the_side_and_is_case_insensitive() {
        for reason in Reason::ALL {
            let prefix = match reason.side() {
                FailureSide::Downstream => "E1",
                FailureSide::Upstream => "E2",
                FailureSide::Mesh => "E3",
            };
            let code = reason.code();
            assert!(code.len() == 5 && code.starts_with(prefix), "{reason:?}: {code}");
            for word in [code, &code.to_lowercase(), reason.label(), &reason.label().to_uppercase()]
            {
                assert_eq!(Reason::from_label_or_code(word), Some(*reason), "{word}");
            }
        }
        assert_eq!(Reason::from_label_or_code("E9999"), None);
        assert_eq!(Reason::from_label_or_code(""), None);
    }
}
