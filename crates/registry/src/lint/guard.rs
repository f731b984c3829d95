//! Warnings about external authorization: check services, and claims of tokens.

use leno_model::{
    CheckServiceAddress, PolicyAction, PolicyRule, PortCheck, RequestCheck, Service, ServicePolicy,
    ServicePort, TargetPort, TokenRequirement, Workload,
};

use super::{ObjectIndex, ServiceReference, WarningCollector, is_selected};

impl ObjectIndex<'_> {
    /// Checks that the check service of a policy exists and is not the policy's own target.
    pub(super) fn lint_check_service(
        &self,
        policy: &ServicePolicy,
        lint: &mut WarningCollector<'_>,
    ) {
        let authorization = match policy.rule.server_check() {
            Some(RequestCheck::Authorization(asked)) => {
                Some((&asked.check_service, "spec.service"))
            }
            Some(RequestCheck::Tokens(_)) | None => None,
        };
        let global = policy.rule.rate_limits().and_then(|limits| limits.global.as_deref());
        let global = global.map(|limit| (&limit.check_service, "spec.global.service"));
        for (check_service, field) in authorization.into_iter().chain(global) {
            let CheckServiceAddress::Service { service, port } = &check_service.at else {
                continue;
            };
            let (field, port) = (field.to_owned(), *port);
            if policy.closeness(service, port).is_some() {
                lint.add_warning(
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
                lint,
            );
        }
    }

    /// Warns about claims on ports that accept requests without a token, or that have no token verification.
    pub(super) fn lint_claims(
        &self,
        rule: &PolicyRule,
        field: &str,
        workloads: &[&Workload],
        lint: &mut WarningCollector<'_>,
    ) {
        if rule.claims.is_empty() {
            return;
        }
        let all = || self.services.values().flat_map(|service| of_service(service));
        let about = |(service, port): &(&Service, &ServicePort)| {
            let mut behind = workloads.iter().filter(|workload| is_selected(service, workload));
            behind.any(|workload| leads_to(port, workload, rule))
        };
        let required = |(service, port): (&Service, &ServicePort)| {
            let guards =
                PortCheck::for_port(self.policies.iter().copied(), &service.name, port.port);
            guards.into_iter().find_map(|it| match it.check {
                RequestCheck::Tokens(tokens) => Some(tokens.required),
                RequestCheck::Authorization(_) => None,
            })
        };
        let field = format!("{field}.claims");
        match rule.action {
            PolicyAction::Deny => {
                let open =
                    all().filter(about).find(|at| required(*at) != Some(TokenRequirement::Always));
                let Some((service, port)) = open else { return };
                lint.add_warning(
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
                let mut ports = all().filter(about).peekable();
                if ports.peek().is_some() && ports.all(|at| required(at).is_none()) {
                    lint.add_warning(
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

fn of_service(service: &Service) -> impl Iterator<Item = (&Service, &ServicePort)> {
    service.ports.iter().map(move |port| (service, port))
}

/// True if a service port targets a port of the workload that the rule applies to.
fn leads_to(port: &ServicePort, workload: &Workload, rule: &PolicyRule) -> bool {
    match &port.target {
        TargetPort::Number(number) => rule.ports.contains(*number),
        TargetPort::Name(name) => {
            let mut ports = workload.ports.iter().filter(|it| it.name.as_ref() == Some(name));
            ports.any(|it| rule.ports.contains(it.port))
        }
    }
}
