//! Defines the statuses of gateways, their listeners and their routes, and the features that the GatewayClass
//! reports as supported.

use serde_json::{Value, json};

use super::inputs::{GATEWAY_GROUP, GatewayAddress};
use super::listener::{ConditionReason, ValidatedListener};
use crate::status::StatusCondition;

/// The status of a gateway.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GatewayStatus {
    /// The observed generation of the spec.
    pub(crate) generation: i64,
    pub(crate) conditions: Vec<StatusCondition>,
    pub(crate) listeners: Vec<GatewayListenerStatus>,
    pub(crate) addresses: Vec<GatewayAddress>,
}

/// The status of a route for one of its parents.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RouteParentStatus {
    /// The `parentRef` as written.
    pub(crate) parent: Value,
    /// The name of the controller that reports the status.
    pub(crate) controller: &'static str,
    /// The observed generation of the route.
    pub(crate) generation: i64,
    pub(crate) conditions: Vec<StatusCondition>,
}

/// The status of a listener.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GatewayListenerStatus {
    pub(crate) name: String,
    /// The kinds of routes that the listener supports.
    pub(crate) kinds: Vec<&'static str>,
    pub(crate) attached_route_count: u32,
    pub(crate) conditions: Vec<StatusCondition>,
}

impl GatewayListenerStatus {
    /// Creates the status of a listener; `is_gateway_programmed` is true if the proxies of its gateway are running
    /// and reachable.
    pub(super) fn from_listener(
        validated: &ValidatedListener<'_>,
        is_gateway_programmed: bool,
    ) -> Self {
        let rejection = validated.conflict.as_ref().or(validated.rejection.as_ref());
        let accepted = match rejection {
            Some(reason) => reason.to_condition("Accepted"),
            None => true_condition("Accepted", "Accepted", "the listener is accepted"),
        };
        let conflicted = match &validated.conflict {
            Some(reason) => StatusCondition { status: "True", ..reason.to_condition("Conflicted") },
            None => ConditionReason::new("NoConflicts", "no conflicting listeners")
                .to_condition("Conflicted"),
        };
        let resolved = match &validated.unresolved {
            Some(reason) => reason.to_condition("ResolvedRefs"),
            None => true_condition("ResolvedRefs", "ResolvedRefs", "all references are resolved"),
        };
        let programmed = match (validated.is_served(), is_gateway_programmed) {
            (false, _) => ConditionReason::new("Invalid", "the listener is not programmed")
                .to_condition("Programmed"),
            (true, false) => gateway_pending_condition(),
            (true, true) => {
                true_condition("Programmed", "Programmed", "the listener is programmed")
            }
        };
        Self {
            name: validated.listener.name.clone(),
            // A rejected listener supports no routes.
            kinds: match validated.rejection {
                Some(_) => Vec::new(),
                None => validated.kinds.clone(),
            },
            attached_route_count: validated.attached_route_count,
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
pub(super) fn gateway_pending_condition() -> StatusCondition {
    ConditionReason::new("Pending", "its gateway is not programmed yet").to_condition("Programmed")
}

/// Creates a condition with status `True`.
pub(super) fn true_condition(
    name: &'static str,
    reason: &'static str,
    message: &str,
) -> StatusCondition {
    StatusCondition { name, status: "True", reason, message: message.to_owned() }
}

/// Returns the supported features of the Gateway API, sorted.
pub(crate) fn supported_features() -> &'static [&'static str] {
    FEATURES
}

/// The features of the Gateway API that are checked by its conformance tests. Features without a test are not listed.
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
