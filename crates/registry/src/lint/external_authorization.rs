//! Warns about request checks: references to check services, and rules that match token claims on ports without
//! token verification.

use leno_model::{
    CheckServiceAddress, PolicyAction, PolicyRule, PortCheck, RequestCheck, Service, ServicePolicy,
    ServicePort, TargetPort, TokenRequirement, Workload,
};

use super::{ObjectIndex, ServiceReference, WarningCollector, selects_workload};

impl ObjectIndex<'_> {
    /// Warns about a check service that does not exist, or that is a target of the policy itself.
    pub(super) fn lint_check_service(
        &self,
        policy: &ServicePolicy,
        collector: &mut WarningCollector<'_>,
    ) {
        let authorization = match policy.rule.server_check() {
            Some(RequestCheck::Authorization(authorization)) => {
                Some((&authorization.check_service, "spec.service"))
            }
            Some(RequestCheck::Tokens(_)) | None => None,
        };
        let global_limit = policy.rule.rate_limits().and_then(|limits| limits.global.as_deref());
        let rate_limit = global_limit.map(|limit| (&limit.check_service, "spec.global.service"));
        for (check_service, field) in authorization.into_iter().chain(rate_limit) {
            let CheckServiceAddress::Service { service, port } = &check_service.address else {
                continue;
            };
            let (field, port) = (field.to_owned(), *port);
            if policy.specificity_for(service, port).is_some() {
                collector.add_warning(
                    field.clone(),
                    format!(
                        "checks its own check requests: each request to port {port} of {service} \
                         causes another one"
                    ),
                    "attach the policy to other services, or to other ports of this one",
                );
            }
            let name_field = "name";
            self.lint_reference(
                &ServiceReference { service, port: Some(port), field, name_field },
                collector,
            );
        }
    }

    /// Warns about claims on ports that accept requests without a token, or that have no token verification.
    pub(super) fn lint_claims(
        &self,
        rule: &PolicyRule,
        field: &str,
        workloads: &[&Workload],
        collector: &mut WarningCollector<'_>,
    ) {
        if rule.claims.is_empty() {
            return;
        }
        let service_ports = || self.services.values().flat_map(|service| ports_of_service(service));
        let is_targeted = |(service, port): &(&Service, &ServicePort)| {
            let mut selected_workloads =
                workloads.iter().filter(|workload| selects_workload(service, workload));
            selected_workloads.any(|workload| targets_allowed_port(port, workload, rule))
        };
        let token_requirement = |(service, port): (&Service, &ServicePort)| {
            let port_checks = PortCheck::for_port(
                self.service_policies.iter().copied(),
                &service.name,
                port.port,
            );
            port_checks.into_iter().find_map(|port_check| match port_check.check {
                RequestCheck::Tokens(tokens) => Some(tokens.required),
                RequestCheck::Authorization(_) => None,
            })
        };
        let field = format!("{field}.claims");
        match rule.action {
            PolicyAction::Deny => {
                let unprotected_port = service_ports().filter(is_targeted).find(|service_port| {
                    token_requirement(*service_port) != Some(TokenRequirement::Always)
                });
                let Some((service, port)) = unprotected_port else { return };
                collector.add_warning(
                    field,
                    format!(
                        "does not apply to requests without a token, and no token is required at \
                         port {} of {}",
                        port.port, service.name
                    ),
                    "set `required: true` in a JwtValidation of that service",
                );
            }
            PolicyAction::Allow => {
                let mut ports = service_ports().filter(is_targeted).peekable();
                if ports.peek().is_some()
                    && ports.all(|service_port| token_requirement(service_port).is_none())
                {
                    collector.add_warning(
                        field,
                        "can never match: no JwtValidation verifies tokens for these workloads"
                            .to_owned(),
                        "attach a JwtValidation to their services",
                    );
                }
            }
        }
    }
}

/// Returns the ports of a service together with the service.
fn ports_of_service(service: &Service) -> impl Iterator<Item = (&Service, &ServicePort)> {
    service.ports.iter().map(move |port| (service, port))
}

/// True if a service port targets a port of the workload that the rule applies to.
fn targets_allowed_port(port: &ServicePort, workload: &Workload, rule: &PolicyRule) -> bool {
    match &port.target {
        TargetPort::Number(number) => rule.ports.contains(*number),
        TargetPort::Name(name) => {
            let mut ports = workload
                .ports
                .iter()
                .filter(|workload_port| workload_port.name.as_ref() == Some(name));
            ports.any(|workload_port| rule.ports.contains(workload_port.port))
        }
    }
}
