//! Lists the kinds of Kubernetes and other meshes that Leno does not support, each with the kind or command to use instead.

/// Returns the hint for a document of a known but unsupported kind.
pub(crate) fn replacement_hint(kind: &str) -> Option<&'static str> {
    let (_, hint) = UNSUPPORTED_KINDS.iter().find(|(kinds, _)| kinds.contains(&kind))?;
    Some(hint)
}

/// Returns Leno's kind for another system's term, ignoring case; `None` if the term is unknown.
pub(crate) fn kind_for_synonym(term: &str) -> Option<&'static str> {
    let is_synonym =
        |synonyms: &&[&str]| synonyms.iter().any(|synonym| synonym.eq_ignore_ascii_case(term));
    let (_, kind_name) = SYNONYMS.iter().find(|(synonyms, _)| is_synonym(synonyms))?;
    Some(kind_name)
}

/// Terms of Envoy, Istio, Linkerd, Kuma, Envoy Gateway and the Gateway API, with Leno's kinds.
const SYNONYMS: &[(&[&str], &str)] = &[
    (&["PassiveHealthCheck", "MeshOutlierDetection"], "OutlierDetection"),
    (
        &[
            "RateLimitPolicy",
            "LocalRateLimit",
            "RateLimiting",
            "MeshRateLimit",
            "HTTPLocalRateLimitPolicy",
        ],
        "RateLimit",
    ),
    (
        &["CircuitBreaking", "CircuitBreakers", "MeshCircuitBreaker", "ConnectionPool"],
        "CircuitBreaker",
    ),
    (
        &["Fault", "HTTPFaultInjection", "MeshFaultInjection", "FaultInjectionPolicy"],
        "FaultInjection",
    ),
    (
        &["LoadBalancer", "LoadBalancerPolicy", "LoadBalancingPolicy", "MeshLoadBalancingStrategy"],
        "LoadBalancing",
    ),
    (&["RetryPolicy", "MeshRetry", "Retries"], "Retry"),
    (&["HedgePolicy", "Hedge"], "Hedging"),
    (&["ExtAuthz", "ExtAuth", "ExternalAuth", "ExtAuthzPolicy"], "ExternalAuthorization"),
    (&["JWT", "JwtAuthentication", "JWTAuthentication", "JWTRule", "JwtPolicy"], "JwtValidation"),
    (&["TrafficPermission", "MeshTrafficPermission", "NetworkAuthentication"], "AccessPolicy"),
    (&["Mesh", "MeshConfiguration"], "MeshConfig"),
    (&["WorkloadEntry", "WorkloadGroup", "ExternalWorkload", "Dataplane"], "Workload"),
];

/// The unsupported kinds, with hints.
const UNSUPPORTED_KINDS: &[(&[&str], &str)] = &[
    (
        &["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod", "Job", "CronJob"],
        "remove the document: on this machine a `Workload` describes an application; in a cluster \
         `leno inject` adds a sidecar to it",
    ),
    (&["VirtualService"], "write an `HTTPRoute` or a `GRPCRoute` instead"),
    (
        &["DestinationRule"],
        "write `LoadBalancing`, `CircuitBreaker` or `OutlierDetection` instead, and a Service for each subset",
    ),
    (&["ProxyConfig"], "remove the document, or write a `MeshConfig` instead"),
    (&["PeerAuthentication"], "set `mtls` in a `MeshConfig` instead"),
    (
        &["AuthorizationPolicy", "ServerAuthorization", "MeshTLSAuthentication"],
        "write an `AccessPolicy` instead",
    ),
    (&["RequestAuthentication"], "write a `JwtValidation` instead"),
    (&["ServiceEntry", "EgressNetwork"], "write an `Egress` instead"),
    (&["ServiceProfile"], "write an `HTTPRoute` and a `Retry` instead"),
    (&["Ingress"], "write an `IngressBackend`, or a `Gateway` in a cluster, instead"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::served_kinds;

    #[test]
    fn each_synonym_names_a_supported_kind() {
        let mut supported: Vec<_> = served_kinds().iter().map(|served| served.kind).collect();
        supported.push("Workload");
        for (synonyms, kind) in SYNONYMS {
            assert!(supported.contains(kind), "{kind}");
            for word in *synonyms {
                assert!(!supported.contains(word) && replacement_hint(word).is_none(), "{word}");
                assert_eq!(kind_for_synonym(word), Some(*kind));
            }
        }
        assert_eq!(kind_for_synonym("passivehealthcheck"), Some("OutlierDetection"));
    }

    #[test]
    fn each_proposed_kind_is_supported() {
        let mut supported: Vec<_> = served_kinds().iter().map(|served| served.kind).collect();
        supported.push("Workload");
        for (kinds, hint) in UNSUPPORTED_KINDS {
            for kind in *kinds {
                assert!(!supported.contains(kind), "{kind} is read");
                assert_eq!(replacement_hint(kind), Some(*hint));
            }
            let proposed = hint.split('`').skip(1).step_by(2);
            let proposed =
                proposed.filter(|word| word.starts_with(char::is_uppercase) && *word != "Gateway");
            for word in proposed {
                assert!(supported.contains(&word), "{word} in: {hint}");
            }
        }
    }
}
