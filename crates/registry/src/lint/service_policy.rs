//! Looks at policies of services: whom they mean, and whether another one decides instead.

use leno_model::{
    PolicyScope, Protocol, Service, ServiceName, ServicePolicy, ServicePolicyKind, ServicePort,
    ServiceRule, Standing, TargetPort,
};

use super::suggestion::{known, suggestion};
use super::{Lint, Reference, World, selects};

impl World<'_> {
    pub(super) fn lint_service_policy(&self, policy: &ServicePolicy, lint: &mut Lint<'_>) {
        match &policy.scope {
            PolicyScope::Services(targets) => {
                for (index, target) in targets.iter().enumerate() {
                    let (field, name_field) = match policy.name.kind {
                        ServicePolicyKind::UpstreamTrafficSetting => ("spec".to_owned(), "host"),
                        ServicePolicyKind::TrafficWarmup => ("metadata".to_owned(), "name"),
                        _ => (format!("spec.targetRefs[{index}]"), "name"),
                    };
                    let (service, port) = (&target.service, target.port);
                    let reference = Reference { service, port, field, name_field };
                    self.lint_reference(&reference, lint);
                }
            }
            PolicyScope::Namespace => self.lint_rules_by_name(policy, lint),
        }
        self.lint_shadowed(policy, lint);
        self.lint_connections(policy, lint);
        self.lint_decider(policy, lint);
    }

    /// A bound for connections of ports that carry requests over links only.
    fn lint_connections(&self, policy: &ServicePolicy, lint: &mut Lint<'_>) {
        let breaker = policy.rule.breaker().is_some_and(|it| it.limits.connections.is_some());
        let rate = policy.rule.limits().is_some_and(|it| it.connections.is_some());
        if !breaker && !rate {
            return;
        }
        let about = self.services.iter().flat_map(|(name, service)| {
            let ports = service.ports.iter();
            let about = ports.filter(|port| policy.closeness(name, port.port).is_some());
            about.map(|port| (*service, port))
        });
        let about: Vec<(&Service, &ServicePort)> = about.collect();
        if about.is_empty() || about.iter().any(|(service, port)| self.may_be_opaque(service, port))
        {
            return;
        }
        let is_setting = policy.name.kind == ServicePolicyKind::UpstreamTrafficSetting;
        let under_way = "bound the requests under way instead";
        for (bounds, field, setting, remedy) in [
            (
                breaker,
                "spec.limits.connections",
                "spec.connectionSettings.tcp.maxConnections",
                under_way,
            ),
            (rate, "spec.connections", "spec.rateLimit.local.tcp", "limit requests instead"),
        ] {
            if bounds {
                lint.warn(
                    if is_setting { setting } else { field }.to_owned(),
                    "bounds nothing: the requests of these ports share links".to_owned(),
                    remedy,
                );
            }
        }
    }

    /// Whether bytes may be carried there without a look at requests.
    fn may_be_opaque(&self, service: &Service, port: &ServicePort) -> bool {
        let opaque = |protocol: Protocol| matches!(protocol, Protocol::Tcp | Protocol::Detect);
        if let Some(protocol) = port.protocol {
            return opaque(protocol);
        }
        let selected = self.workloads.iter().filter(|workload| selects(service, workload));
        let mut spoken =
            selected.flat_map(|workload| &workload.ports).filter(|it| match &port.target {
                TargetPort::Number(number) => it.port == *number,
                TargetPort::Name(name) => it.name.as_ref() == Some(name),
            });
        let first = spoken.next().map(|it| it.protocol);
        first.is_none_or(opaque) || spoken.any(|it| Some(it.protocol) != first)
    }

    /// Rules that name services themselves.
    fn lint_rules_by_name(&self, policy: &ServicePolicy, lint: &mut Lint<'_>) {
        let namespace = &policy.name.namespace;
        let ServiceRule::SermantRemoval(config) = &policy.rule else { return };
        for (name, _) in &config.rules {
            let service = ServiceName { namespace: namespace.clone(), name: name.clone() };
            if !self.services.contains_key(&service) {
                lint.warn(
                    "spec.config".to_owned(),
                    format!("has a rule for {name}, and there is no Service {service}"),
                    suggestion((namespace, name), known!(self.services.keys()), "add the Service"),
                );
            }
        }
    }

    /// A policy that decides nowhere, because another one does wherever it is attached.
    fn lint_shadowed(&self, policy: &ServicePolicy, lint: &mut Lint<'_>) {
        let near = self.services.iter();
        let near = near.filter(|(name, _)| name.namespace == policy.name.namespace);
        let ports = near
            .flat_map(|(name, service)| service.ports.iter().map(move |port| (*name, port.port)));
        let standing = Standing::of(policy, ports, |_| self.policies.clone());
        if let Standing::Overruled(winner) = standing {
            lint.warn(
                "metadata.name".to_owned(),
                format!("decides nothing: {winner} decides wherever this policy is attached"),
                "attach it to other services or ports, or remove one of the two",
            );
        }
    }
}
