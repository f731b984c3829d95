//! Looks at policies of services: whom they mean, and whether another one decides instead.

use leno_model::{PolicyScope, ServiceName, ServicePolicy, ServiceRule, Treatment};

use super::{Lint, Reference, World, suggestion};

impl World<'_> {
    pub(super) fn lint_service_policy(&self, policy: &ServicePolicy, lint: &mut Lint<'_>) {
        match &policy.scope {
            PolicyScope::Services(targets) => {
                for (index, target) in targets.iter().enumerate() {
                    let reference = Reference {
                        service: &target.service,
                        port: target.port,
                        field: format!("spec.targetRefs[{index}]"),
                        name_field: "name",
                    };
                    self.lint_reference(&reference, lint);
                }
            }
            PolicyScope::Namespace => self.lint_rules_by_name(policy, lint),
        }
        self.lint_shadowed(policy, lint);
    }

    /// Rules that name services themselves.
    fn lint_rules_by_name(&self, policy: &ServicePolicy, lint: &mut Lint<'_>) {
        let namespace = &policy.name.namespace;
        let known = self.services.keys().filter(|service| service.namespace == *namespace);
        let known: Vec<&str> = known.map(|service| service.name.as_str()).collect();
        let ServiceRule::SermantRemoval(config) = &policy.rule else { return };
        for (name, _) in &config.rules {
            let service = ServiceName { namespace: namespace.clone(), name: name.clone() };
            if !self.services.contains_key(&service) {
                lint.warn(
                    "spec.config".to_owned(),
                    format!("has a rule for {name}, and there is no Service {service}"),
                    suggestion(name.as_str(), &known, "add the Service"),
                );
            }
        }
    }

    /// A policy that decides nowhere, because another one does wherever it is attached.
    fn lint_shadowed(&self, policy: &ServicePolicy, lint: &mut Lint<'_>) {
        let all = || self.policies.iter().copied();
        let mut winner = None;
        for (name, service) in &self.services {
            for port in &service.ports {
                if Treatment::of([policy], name, port.port).is_empty() {
                    continue;
                }
                let treatment = Treatment::of(all(), name, port.port);
                if treatment.policies().any(|decides| *decides == policy.name) {
                    return;
                }
                winner = treatment.policies().next().cloned();
            }
        }
        if let Some(winner) = winner {
            lint.warn(
                "metadata.name".to_owned(),
                format!("decides nothing: {winner} decides wherever this policy is attached"),
                "attach it to other services or ports, or remove one of the two",
            );
        }
    }
}
