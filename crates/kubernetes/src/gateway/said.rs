//! What is said of gateways and their listeners.

use serde_json::{Value, json};

use super::facts::{Address, GATEWAY_GROUP};
use super::listener::{Judged, Reason};
use crate::status::Condition;

/// What is said of a gateway.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GatewaySaid {
    /// Of which version of the spec.
    pub(crate) generation: i64,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) listeners: Vec<ListenerSaid>,
    pub(crate) addresses: Vec<Address>,
}

/// What is said of a route at one of its parents.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ParentSaid {
    /// As it is written.
    pub(crate) parent: Value,
    /// In whose name.
    pub(crate) controller: &'static str,
    /// Of which version of the route.
    pub(crate) generation: i64,
    pub(crate) conditions: Vec<Condition>,
}

/// What is said of one of its listeners.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListenerSaid {
    pub(crate) name: String,
    pub(crate) kinds: Vec<&'static str>,
    pub(crate) attached: u32,
    pub(crate) conditions: Vec<Condition>,
}

impl ListenerSaid {
    /// What is said of a listener of a gateway whose proxies are there, or are not.
    pub(super) fn of(judged: &Judged<'_>, programmed: bool) -> Self {
        let blocked = judged.conflict.as_ref().or(judged.refusal.as_ref());
        let accepted = match blocked {
            Some(reason) => reason.unmet("Accepted"),
            None => met("Accepted", "Accepted", "it is taken"),
        };
        let conflicted = match &judged.conflict {
            Some(reason) => Condition { status: "True", ..reason.unmet("Conflicted") },
            None => Reason::new("NoConflicts", "no other is in its way").unmet("Conflicted"),
        };
        let resolved = match &judged.unresolved {
            Some(reason) => reason.unmet("ResolvedRefs"),
            None => met("ResolvedRefs", "ResolvedRefs", "what it refers to is there"),
        };
        let programmed = match (judged.is_served(), programmed) {
            (false, _) => Reason::new("Invalid", "it is not served").unmet("Programmed"),
            (true, false) => gateway_awaited(),
            (true, true) => met("Programmed", "Programmed", "it is served"),
        };
        Self {
            name: judged.listener.name.clone(),
            kinds: match judged.refusal {
                Some(_) => Vec::new(),
                None => judged.kinds.clone(),
            },
            attached: judged.attached,
            conditions: vec![accepted, conflicted, resolved, programmed],
        }
    }

    /// The kinds of routes that it takes, as the API has them.
    pub(crate) fn supported_kinds(&self) -> Value {
        let kind = |kind: &&'static str| json!({"group": GATEWAY_GROUP, "kind": kind});
        Value::Array(self.kinds.iter().map(kind).collect())
    }
}

/// Of what is served once its gateway is there.
pub(super) fn gateway_awaited() -> Condition {
    Reason::new("Pending", "its gateway is not there yet").unmet("Programmed")
}

/// A condition that is met.
pub(super) fn met(word: &'static str, reason: &'static str, message: &str) -> Condition {
    Condition { word, status: "True", reason, message: message.to_owned() }
}

/// The features of the Gateway API that gateways have, in their order.
pub(crate) fn features() -> &'static [&'static str] {
    FEATURES
}

/// Those that tests of the API have shown, and no other.
const FEATURES: &[&str] = &[
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "GRPCRouteRequestHeaderModifier",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayInfrastructure",
    "GatewayPort8080",
    "GatewayRouteHostnameIntersectionPrecedence",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteBackendURLRewrite",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ReferenceGrant",
    "TLSRoute",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_in_order() {
        assert!(features().is_sorted());
    }
}
