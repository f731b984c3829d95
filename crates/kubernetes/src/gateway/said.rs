//! Statuses of gateways, their listeners and their routes.

use serde_json::{Value, json};

use super::facts::{Address, GATEWAY_GROUP};
use super::listener::{Judged, Reason};
use crate::status::Condition;

/// The status of a gateway.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GatewaySaid {
    /// The observed generation of the spec.
    pub(crate) generation: i64,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) listeners: Vec<ListenerSaid>,
    pub(crate) addresses: Vec<Address>,
}

/// The status of a route for one of its parents.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ParentSaid {
    /// The `parentRef` as written.
    pub(crate) parent: Value,
    /// The name of the controller that reports it.
    pub(crate) controller: &'static str,
    /// The observed generation of the route.
    pub(crate) generation: i64,
    pub(crate) conditions: Vec<Condition>,
}

/// The status of a listener.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListenerSaid {
    pub(crate) name: String,
    pub(crate) kinds: Vec<&'static str>,
    pub(crate) attached: u32,
    pub(crate) conditions: Vec<Condition>,
}

impl ListenerSaid {
    /// Creates the status of a listener; `programmed` is true if the proxies of its gateway are running.
    pub(super) fn from_listener(judged: &Judged<'_>, programmed: bool) -> Self {
        let blocked = judged.conflict.as_ref().or(judged.refusal.as_ref());
        let accepted = match blocked {
            Some(reason) => reason.to_condition("Accepted"),
            None => true_condition("Accepted", "Accepted", "the listener is accepted"),
        };
        let conflicted = match &judged.conflict {
            Some(reason) => Condition { status: "True", ..reason.to_condition("Conflicted") },
            None => {
                Reason::new("NoConflicts", "no conflicting listeners").to_condition("Conflicted")
            }
        };
        let resolved = match &judged.unresolved {
            Some(reason) => reason.to_condition("ResolvedRefs"),
            None => true_condition("ResolvedRefs", "ResolvedRefs", "all references are resolved"),
        };
        let programmed = match (judged.is_served(), programmed) {
            (false, _) => {
                Reason::new("Invalid", "the listener is not programmed").to_condition("Programmed")
            }
            (true, false) => gateway_awaited(),
            (true, true) => {
                true_condition("Programmed", "Programmed", "the listener is programmed")
            }
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

    /// Returns the supported kinds of routes in the form of the API.
    pub(crate) fn supported_kinds(&self) -> Value {
        let kind = |kind: &&'static str| json!({"group": GATEWAY_GROUP, "kind": kind});
        Value::Array(self.kinds.iter().map(kind).collect())
    }
}

/// Creates the condition of a listener or route that waits for its gateway.
pub(super) fn gateway_awaited() -> Condition {
    Reason::new("Pending", "its gateway is not programmed yet").to_condition("Programmed")
}

/// Creates a condition with status `True`.
pub(super) fn true_condition(word: &'static str, reason: &'static str, message: &str) -> Condition {
    Condition { word, status: "True", reason, message: message.to_owned() }
}

/// Returns the supported features of the Gateway API, sorted.
pub(crate) fn supported_features() -> &'static [&'static str] {
    FEATURES
}

/// The features that conformance tests cover, and no others.
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
        assert!(supported_features().is_sorted());
    }
}
