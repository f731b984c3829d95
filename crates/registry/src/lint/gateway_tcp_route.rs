//! Warnings about TCP routes of the Gateway API: references, and objects that take precedence.

use leno_model::GatewayTcpRoute;

use super::{ObjectIndex, WarningCollector};

impl ObjectIndex<'_> {
    pub(super) fn lint_gateway_tcp_route(
        &self,
        route: &GatewayTcpRoute,
        lint: &mut WarningCollector<'_>,
    ) {
        self.lint_parents(&route.parents, lint);
        self.lint_backends(0, &route.rule.backends, lint);
        let name = &route.rule.route;
        self.lint_grants(
            route.rule.kind,
            &name.namespace,
            &route.parents[..],
            0,
            &route.rule.backends,
            lint,
        );
        for (index, parent) in route.parents.iter().enumerate() {
            let first = self.gateway_tcp_routes.iter().find(|other| {
                (other.created, &other.rule.route) < (route.created, name)
                    && other.rule.route.namespace == name.namespace
                    && other.parents.iter().any(|other| {
                        let ports = other.port.zip(parent.port);
                        other.service == parent.service && ports.is_none_or(|(one, two)| one == two)
                    })
            });
            if let Some(first) = first {
                lint.add_warning(
                    format!("spec.parentRefs[{index}]"),
                    format!(
                        "the TCPRoute {} is attached to the same port and takes precedence",
                        first.rule.route
                    ),
                    "remove one of the two, or name another port",
                );
            }
        }
    }
}
