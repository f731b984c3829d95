//! Warns about Gateway API `TCPRoute`s: references to missing objects, and routes that take precedence.

use leno_model::GatewayTcpRoute;

use super::{ObjectIndex, WarningCollector};

impl ObjectIndex<'_> {
    /// Warns about missing parents, backends and grants, and about an older route on the same port. A `TCPRoute` has one rule,
    /// with the index 0.
    pub(super) fn lint_gateway_tcp_route(
        &self,
        route: &GatewayTcpRoute,
        collector: &mut WarningCollector<'_>,
    ) {
        self.lint_parents(&route.parents, collector);
        self.lint_backends(0, &route.rule.backends, collector);
        let route_name = &route.rule.route;
        self.lint_grants(
            route.rule.kind,
            &route_name.namespace,
            &route.parents[..],
            0,
            &route.rule.backends,
            collector,
        );
        for (index, parent) in route.parents.iter().enumerate() {
            let preceding_route = self.gateway_tcp_routes.iter().find(|other| {
                (other.created, &other.rule.route) < (route.created, route_name)
                    && other.rule.route.namespace == route_name.namespace
                    && other.parents.iter().any(|other_parent| {
                        let ports = other_parent.port.zip(parent.port);
                        other_parent.service == parent.service
                            && ports.is_none_or(|(left, right)| left == right)
                    })
            });
            if let Some(preceding_route) = preceding_route {
                collector.add_warning(
                    format!("spec.parentRefs[{index}]"),
                    format!(
                        "the TCPRoute {} is attached to the same port and takes precedence",
                        preceding_route.rule.route
                    ),
                    "remove one of the two, or name another port",
                );
            }
        }
    }
}
