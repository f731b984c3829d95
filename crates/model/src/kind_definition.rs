//! The rule kinds that types define: their schemas, reference pages and readers have the same source.

use crate::access_policy::AccessPolicySpec;
use crate::balancing::LoadBalancing;
use crate::check_service::Authorization;
use crate::circuit_breaker::CircuitBreaker;
use crate::definition::{Definition as _, MapSchema};
use crate::fault::FaultRules;
use crate::hedging::HedgeRule;
use crate::jwt::JwtValidation;
use crate::mesh::MeshConfig;
use crate::outlier_detection::OutlierDetection;
use crate::policy_targets::TargetedRule;
use crate::rate_limit::RateLimits;
use crate::retry_policy::RetrySpec;
use crate::sermant::{SermantRemovalSpec, SermantRouteSpec};
use crate::tag::{LaneSpec, TagRouteSpec};

/// A rule kind.
#[derive(Debug, Clone, Copy)]
pub struct KindDefinition {
    /// The name of the kind.
    pub kind: &'static str,
    /// The supported versions with their API group, in order of preference.
    pub api_versions: &'static [&'static str],
    /// The plural of the kind in API paths.
    pub plural: &'static str,
    /// The short name of the kind for `kubectl`.
    pub short_name: &'static str,
    /// The scope of the kind's objects in a cluster.
    pub scope: KindScope,
    /// The description of the kind, in one sentence.
    pub description: &'static str,
    /// The reference page in `docs/rules`.
    pub page: &'static str,
    /// The schema of the `spec`.
    pub spec: &'static MapSchema,
}

/// The scope of the objects of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KindScope {
    /// An object belongs to a namespace.
    Namespaced,
    /// An object belongs to the whole cluster.
    Cluster,
}

impl KindScope {
    /// Returns the word of Kubernetes for the scope.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Namespaced => "Namespaced",
            Self::Cluster => "Cluster",
        }
    }
}

impl KindDefinition {
    /// True for a kind of the API group `leno.dev`, which a cluster has from Leno.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.api_versions == LENO_VERSIONS
    }

    /// Returns the definition with this kind, plural or short name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<&'static Self> {
        KIND_DEFINITIONS.iter().find(|definition| {
            let names = [definition.kind, definition.plural, definition.short_name];
            !name.is_empty() && names.iter().any(|own_name| own_name.eq_ignore_ascii_case(name))
        })
    }
}

/// The versions of the kinds of Leno.
const LENO_VERSIONS: &[&str] = &["leno.dev/v1alpha1"];
/// The versions of the kinds of OSM and FSM.
const OSM_VERSIONS: &[&str] = &["policy.openservicemesh.io/v1alpha1", "policy.flomesh.io/v1alpha1"];

/// The kinds with a definition.
pub const KIND_DEFINITIONS: &[KindDefinition] = &[
    KindDefinition {
        kind: "MeshConfig",
        plural: "meshconfigs",
        short_name: "lmc",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Cluster,
        description: "Mesh-wide settings; a mesh has one MeshConfig.",
        page: "mesh-config.md",
        spec: MeshConfig::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "OutlierDetection",
        plural: "outlierdetections",
        short_name: "lod",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Outlier detection and health checks for the endpoints of a service.",
        page: "outlier-detection.md",
        spec: TargetedRule::<OutlierDetection>::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "Hedging",
        plural: "hedgings",
        short_name: "lhg",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Hedging: delay before a request is also sent to a second endpoint.",
        page: "hedging.md",
        spec: TargetedRule::<HedgeRule>::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "Retry",
        plural: "retries",
        short_name: "",
        api_versions: OSM_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Retries of requests from the workloads of an account to services.",
        page: "retry.md",
        spec: RetrySpec::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "CircuitBreaker",
        plural: "circuitbreakers",
        short_name: "lcb",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Circuit breaker and concurrency limits for requests to a service.",
        page: "circuit-breaker.md",
        spec: TargetedRule::<CircuitBreaker>::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "FaultInjection",
        plural: "faultinjections",
        short_name: "lfi",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Injection of delays and errors.",
        page: "fault-injection.md",
        spec: TargetedRule::<FaultRules>::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "LoadBalancing",
        plural: "loadbalancings",
        short_name: "llb",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Load-balancing algorithm for the endpoints of a service.",
        page: "load-balancing.md",
        spec: TargetedRule::<LoadBalancing>::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "RateLimit",
        plural: "ratelimits",
        short_name: "lrl",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Rate and concurrency limits of a service.",
        page: "rate-limit.md",
        spec: TargetedRule::<RateLimits>::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "ExternalAuthorization",
        plural: "externalauthorizations",
        short_name: "lea",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Requests that an external authorization service checks.",
        page: "external-authorization.md",
        spec: TargetedRule::<Authorization>::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "AccessPolicy",
        plural: "accesspolicies",
        short_name: "lap",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Allow and deny rules for requests and connections.",
        page: "access-policy.md",
        spec: AccessPolicySpec::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "JwtValidation",
        plural: "jwtvalidations",
        short_name: "ljv",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Optional or required JSON web tokens of requests.",
        page: "jwt-validation.md",
        spec: TargetedRule::<JwtValidation>::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "TagRoute",
        plural: "tagroutes",
        short_name: "ltr",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Routing of requests to instances of a service by tags.",
        page: "tag-route.md",
        spec: TagRouteSpec::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "Lane",
        plural: "lanes",
        short_name: "lln",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Headers that mark requests on arrival at a service.",
        page: "tag-route.md",
        spec: LaneSpec::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "SermantRouteRule",
        plural: "sermantrouterules",
        short_name: "lsrr",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Tag rules in the format of Sermant.",
        page: "sermant.md",
        spec: SermantRouteSpec::SCHEMA.map_schema(),
    },
    KindDefinition {
        kind: "SermantRemoval",
        plural: "sermantremovals",
        short_name: "lsr",
        api_versions: LENO_VERSIONS,
        scope: KindScope::Namespaced,
        description: "Outlier detection in the format of Sermant.",
        page: "sermant-removal.md",
        spec: SermantRemovalSpec::SCHEMA.map_schema(),
    },
];
