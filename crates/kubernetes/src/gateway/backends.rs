//! Resolves the backends of gateway routes: keeps references to Services that exist and that the route may use.

use leno_model::{Service, ServiceName, WeightedBackend};
use leno_registry::GatewayRules;

use super::inputs::{GatewayInputs, RouteId, ValidRoute};
use super::listener::ConditionReason;
use crate::source::ObjectId;

/// The rules of a route, reduced to the backends that exist and may be used. Each rule retains the total weight of
/// its removed backends: requests with this share fail, and do not move to the other backends (Gateway API).
pub(super) struct ResolvedRouteRules {
    pub(super) rules: GatewayRules,
    /// The reason that the first unusable backend is not resolved; `None` if all backends are resolved.
    pub(super) unresolved_reason: Option<ConditionReason>,
}

/// Finds services of the cluster by name.
pub(crate) type ServiceLookup<'a> = &'a dyn Fn(&ServiceName) -> Option<&'a Service>;

/// Removes the backends of a route that cannot be used.
pub(super) fn resolve_backends(
    inputs: &GatewayInputs,
    find_service: ServiceLookup<'_>,
    route: &RouteId,
    valid_route: &ValidRoute,
) -> ResolvedRouteRules {
    let mut unresolved_reason = valid_route.unsupported_backends.first().map(|unsupported| {
        let message = format!(
            "rule {}: {} is not supported as a backend; use a Service",
            unsupported.rule_index, unsupported.kind
        );
        ConditionReason::new("InvalidKind", message)
    });
    let unsupported_weight = |rule_index: usize| -> u32 {
        let rule_backends = valid_route
            .unsupported_backends
            .iter()
            .filter(|backend| backend.rule_index == rule_index);
        rule_backends.fold(0, |sum, backend| sum.saturating_add(backend.weight))
    };
    // Removes backends that cannot be used, and returns their total weight.
    let mut retain_usable = |backends: &mut Vec<WeightedBackend>| {
        let mut removed_weight = 0_u32;
        backends.retain(|backend| {
            match unusable_backend_reason(inputs, find_service, route, backend) {
                None => true,
                Some(reason) => {
                    removed_weight = removed_weight.saturating_add(backend.weight);
                    unresolved_reason.get_or_insert(reason);
                    false
                }
            }
        });
        removed_weight
    };
    let mut rules = valid_route.route.rules.clone();
    match &mut rules {
        GatewayRules::Requests(request_rules) => {
            for (index, rule) in request_rules.iter_mut().enumerate() {
                let removed_weight =
                    retain_usable(&mut rule.backends).saturating_add(unsupported_weight(index));
                rule.actions.ungranted_weight = removed_weight;
                // Requests are served even if they are not mirrored, so removed mirrors have no weight.
                retain_usable(&mut rule.actions.mirrors);
            }
        }
        // Routes of connections and TLS sessions have one rule, with index 0.
        GatewayRules::Connections(rule) => {
            rule.ungranted_weight =
                retain_usable(&mut rule.backends).saturating_add(unsupported_weight(0));
        }
        GatewayRules::Sessions(rule) => {
            rule.ungranted_weight =
                retain_usable(&mut rule.backends).saturating_add(unsupported_weight(0));
        }
    }
    ResolvedRouteRules { rules, unresolved_reason }
}

/// Returns the reason that a backend cannot be used; `None` if it can.
fn unusable_backend_reason(
    inputs: &GatewayInputs,
    find_service: ServiceLookup<'_>,
    route: &RouteId,
    backend: &WeightedBackend,
) -> Option<ConditionReason> {
    let service = &backend.service;
    let id = ObjectId { namespace: service.namespace.to_string(), name: service.name.to_string() };
    if !inputs.permits_reference((route.kind, &route.id.namespace), ("Service", &id)) {
        let message = format!(
            "no ReferenceGrant in {} permits {service} to {}s of {}",
            id.namespace, route.kind, route.id.namespace
        );
        return Some(ConditionReason::new("RefNotPermitted", message));
    }
    let Some(target) = find_service(service) else {
        let message =
            format!("the Service {service} does not exist or has no endpoints in the cluster");
        return Some(ConditionReason::new("BackendNotFound", message));
    };
    if let Some(policy) = inputs.tls_policy(&id) {
        // The gateway would connect in plaintext although the owner of the service requires TLS.
        let message = format!(
            "the BackendTLSPolicy {} requires TLS to {service}, which gateways do not support for \
             backends",
            policy.name
        );
        return Some(ConditionReason::new("UnsupportedProtocol", message));
    }
    if target.ports.iter().any(|port| port.port == backend.port) {
        return None;
    }
    let message = format!("the Service {service} has no TCP port {}", backend.port);
    Some(ConditionReason::new("BackendNotFound", message))
}
