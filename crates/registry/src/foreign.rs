//! Unsupported kinds of Kubernetes and other meshes, with the kind or command to use instead.

/// Returns the hint for a document of a known but unsupported kind.
pub(crate) fn replacement_hint(kind: &str) -> Option<&'static str> {
    let (_, hint) = FOREIGN_KINDS.iter().find(|(kinds, _)| kinds.contains(&kind))?;
    Some(hint)
}

/// Returns our kind for another system's term.
pub(crate) fn our_kind(kind: &str) -> Option<&'static str> {
    let is_meant = |words: &&[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(kind));
    let (_, known) = SYNONYMS.iter().find(|(words, _)| is_meant(words))?;
    Some(known)
}

/// Terms of Envoy, Istio, Linkerd, Kuma, Envoy Gateway and the Gateway API, with our kinds.
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

/// Kinds with their hints.
const FOREIGN_KINDS: &[(&[&str], &str)] = &[
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
    fn every_synonym_leads_to_a_kind_that_is_read() {
        let mut read: Vec<_> = served_kinds().iter().map(|served| served.kind).collect();
        read.push("Workload");
        for (words, known) in SYNONYMS {
            assert!(read.contains(known), "{known}");
            for word in *words {
                assert!(!read.contains(word) && replacement_hint(word).is_none(), "{word}");
                assert_eq!(our_kind(word), Some(*known));
            }
        }
        assert_eq!(our_kind("passivehealthcheck"), Some("OutlierDetection"));
    }

    #[test]
    fn every_kind_that_takes_the_place_of_another_is_read() {
        let mut read: Vec<_> = served_kinds().iter().map(|served| served.kind).collect();
        read.push("Workload");
        for (kinds, hint) in FOREIGN_KINDS {
            for kind in *kinds {
                assert!(!read.contains(kind), "{kind} is read");
                assert_eq!(replacement_hint(kind), Some(*hint));
            }
            let named = hint.split('`').skip(1).step_by(2);
            let named =
                named.filter(|word| word.starts_with(char::is_uppercase) && *word != "Gateway");
            for word in named {
                assert!(read.contains(&word), "{word} in: {hint}");
            }
        }
    }
}
