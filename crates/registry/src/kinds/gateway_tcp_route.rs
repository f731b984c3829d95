//! Reads Gateway API `TCPRoute` `v1` and `v1alpha2` attached to services.

use leno_model::{GatewayTcpRoute, RouteKind, RouteName, TcpRule};

use super::ObjectMetadata;
use super::http_route::{MAX_BACKENDS, read_backend, read_parents};
use crate::field::{Field, MapFields};

/// Reads the `spec` of a Gateway API `TCPRoute`.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<GatewayTcpRoute> {
    let fields = spec.read_fields(&["parentRefs", "rules"])?;
    let route = RouteName { namespace: metadata.namespace, name: metadata.name };
    let parents = read_parents(&fields, &route.namespace);
    let rule = read_rule(&fields, route)?;
    Some(GatewayTcpRoute { parents: parents?, rule, created: 0 })
}

/// Reads the route's only rule.
pub(super) fn read_rule(fields: &MapFields<'_>, route: RouteName) -> Option<TcpRule> {
    let rules = fields.require("rules")?;
    let [rule] = &rules.read_list(MAX_RULES)?[..] else {
        rules.reject("is empty", "add a rule with `backendRefs`");
        return None;
    };
    let rule_fields = rule.read_fields(&["name", "backendRefs"])?;
    rule_fields.require("backendRefs")?;
    let backends = rule_fields
        .read_each("backendRefs", MAX_BACKENDS, |backend| read_backend(backend, &route.namespace));
    if backends.iter().all(|backend| backend.weight == 0) {
        rule.warn(
            "has no backend with a weight above 0, so its connections are closed",
            "add one to `backendRefs`",
        );
    }
    // Grants are evaluated later, together with all other objects.
    Some(TcpRule { route, kind: RouteKind::Tcp, backends, ungranted_weight: 0 })
}

/// Maximum number of rules per route. Rules have no matches, so only the first of several would apply.
const MAX_RULES: usize = 1;
