//! The kinds of objects with rules that match requests. Sidecars report match counts of rules by these kinds.

use std::fmt;

use crate::change::ObjectKey;
use crate::ingress::{IngressKind, IngressName};
use crate::name::{Name, PolicyName, RouteName, TagRouteName};
use crate::route::RouteKind;
use crate::service_policy::{ServicePolicyKind, ServicePolicyName};
use crate::tag::TagDialect;

/// The kind of an object with rules that match requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleKind {
    /// A route or split.
    Route(RouteKind),
    /// An access policy.
    AccessPolicy,
    /// An SMI access policy.
    TrafficTarget,
    /// A service policy.
    ServicePolicy(ServicePolicyKind),
    /// Tag rules, or a lane.
    Tags(TagDialect),
    /// A retry policy.
    Retry,
    /// An ingress policy.
    Ingress(IngressKind),
}

impl RuleKind {
    /// Returns the word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Route(kind) => kind.as_str(),
            Self::AccessPolicy => "AccessPolicy",
            Self::TrafficTarget => "TrafficTarget",
            Self::ServicePolicy(kind) => kind.as_str(),
            Self::Tags(dialect) => dialect.as_str(),
            Self::Retry => "Retry",
            Self::Ingress(kind) => kind.as_str(),
        }
    }

    /// Returns the kind with this word in manifests; `None` if there is none.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        let route_kinds =
            [RouteKind::Split, RouteKind::Tcp, RouteKind::Tls, RouteKind::Http, RouteKind::Grpc];
        let tag_dialects = [TagDialect::TagRoute, TagDialect::Sermant, TagDialect::Lane];
        let policy_kinds = ServicePolicyKind::ALL.iter().copied().map(Self::ServicePolicy);
        let ingress_kinds = IngressKind::ALL.iter().copied().map(Self::Ingress);
        route_kinds
            .into_iter()
            .map(Self::Route)
            .chain([Self::AccessPolicy, Self::TrafficTarget, Self::Retry])
            .chain(policy_kinds)
            .chain(ingress_kinds)
            .chain(tag_dialects.into_iter().map(Self::Tags))
            .find(|kind| kind.as_str() == word)
    }

    /// Returns the identity of the object of this kind and name.
    #[must_use]
    pub fn object_key(self, namespace: &Name, name: &Name) -> ObjectKey {
        let (namespace, name) = (namespace.clone(), name.clone());
        match self {
            Self::Route(kind) => kind.object_key(RouteName { namespace, name }),
            Self::AccessPolicy => ObjectKey::AccessPolicy(PolicyName { namespace, name }),
            Self::TrafficTarget => ObjectKey::TrafficTarget(PolicyName { namespace, name }),
            Self::ServicePolicy(kind) => {
                ObjectKey::ServicePolicy(ServicePolicyName { kind, namespace, name })
            }
            Self::Tags(dialect) => dialect.object_key(TagRouteName { namespace, name }),
            Self::Retry => ObjectKey::Retry(PolicyName { namespace, name }),
            Self::Ingress(kind) => ObjectKey::Ingress(IngressName { kind, namespace, name }),
        }
    }
}

impl fmt::Display for RuleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_map_to_kinds_and_objects() {
        let (namespace, name) = (Name::new("shop").unwrap(), Name::new("one").unwrap());
        for word in [
            "HTTPRoute",
            "GRPCRoute",
            "TLSRoute",
            "TCPRoute",
            "TrafficSplit",
            "AccessPolicy",
            "TrafficTarget",
            "RateLimit",
            "FaultInjection",
            "CircuitBreaker",
            "UpstreamTrafficSetting",
            "TagRoute",
            "SermantRouteRule",
            "Lane",
            "Retry",
            "IngressBackend",
            "AccessControl",
        ] {
            let kind = RuleKind::from_word(word).unwrap();
            assert_eq!(kind.as_str(), word);
            assert_eq!(kind.object_key(&namespace, &name).to_string(), format!("{word} shop/one"));
        }
        assert_eq!(RuleKind::from_word("Service"), None);
    }
}
