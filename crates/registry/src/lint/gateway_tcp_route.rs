//! Warnings about TCP routes of the Gateway API: references, and objects that take precedence.

use leno_model::GatewayTcpRoute;

use super::{ObjectIndex, WarningCollector};

impl ObjectIndex<'_> {
    pub(super) fn lint_gateway_tcp_route(
        &self,
        route: &GatewayTcpRoute,
        collector: &mut WarningCollector<'_>,
    ) {
        self.lint_parents(&route.parents, collector);
        self.lint_backends(0, &route.rule.backends, collector);
        let name = &route.rule.route;
        self.lint_grants(
            route.rule.kind,
            &name.namespace,
            &route.parents[..],
            0,
            &route.rule.backends,
            collector,
        );
        for (index, parent) in route.parents.iter().enumerate() {
            let preceding = self.gateway_tcp_routes.iter().find(|other| {
                (other.created, &other.rule.route) < (route.created, name)
                    && other.rule.route.namespace == name.namespace
                    && other.parents.iter().any(|other| {
                        let ports = other.port.zip(parent.port);
                        other.service == parent.service
                            && ports.is_none_or(|(left, right)| left == right)
                    })
            });
            if let Some(preceding) = preceding {
                collector.add_warning(
                    format!("spec.parentRefs[{index}]"),
                    format!(
                        "the TCPRoute {} is attached to the same port and takes precedence",
                        preceding.rule.route
                    ),
                    "remove one of the two, or name another port",
                );
            }
        }
    }
}
