//! Warnings about service policies: references, and policies that take precedence.

use leno_model::{
    AccessPolicy, AttachedRoutes, ConflictStatus, Destinations, NoEffect, NoEffectCause,
    PolicyContext, PolicyScope, PolicySide, Protocol, ReferenceGrant, RequestNeed, RouteParent,
    Service, ServiceName, ServicePolicy, ServicePolicyKind, ServicePort, ServiceRule, TargetPort,
};

use super::suggestion::{known, suggest_name};
use super::{ObjectIndex, ServiceReference, WarningCollector, is_selected};

impl ObjectIndex<'_> {
    pub(super) fn lint_service_policy(
        &self,
        policy: &ServicePolicy,
        lint: &mut WarningCollector<'_>,
    ) {
        match &policy.scope {
            PolicyScope::Services(targets) => {
                for (index, target) in targets.iter().enumerate() {
                    let name_field = match policy.name.kind {
                        ServicePolicyKind::UpstreamTrafficSetting => "host",
                        _ => "name",
                    };
                    let field = target_at(policy.name.kind, index);
                    let (service, port) = (&target.service, target.port);
                    let reference = ServiceReference { service, port, field, name_field };
                    self.lint_reference(&reference, lint);
                }
            }
            PolicyScope::Namespace => self.lint_rules_by_name(policy, lint),
        }
        self.lint_shadowed(policy, lint);
        self.lint_connections(policy, lint);
        self.lint_check_service(policy, lint);
    }

    /// Warns about a connection limit on ports that carry only requests over links.
    fn lint_connections(&self, policy: &ServicePolicy, lint: &mut WarningCollector<'_>) {
        let breaker =
            policy.rule.circuit_breaker().is_some_and(|it| it.limits.connections.is_some());
        let rate = policy.rule.rate_limits().is_some_and(|it| it.connections.is_some());
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
        let under_way = "limit concurrent requests instead";
        for (bounds, field, setting, hint) in [
            (
                breaker,
                "spec.limits.connections",
                "spec.connectionSettings.tcp.maxConnections",
                under_way,
            ),
            (rate, "spec.connections", "spec.rateLimit.local.tcp", "limit requests instead"),
        ] {
            if bounds {
                lint.add_warning(
                    if is_setting { setting } else { field }.to_owned(),
                    "has no effect: requests of these ports share links".to_owned(),
                    hint,
                );
            }
        }
    }

    /// True if the port may carry bytes without HTTP parsing.
    fn may_be_opaque(&self, service: &Service, port: &ServicePort) -> bool {
        match self.declared_protocol(service, port) {
            Some(protocol) => matches!(protocol, Protocol::Tcp | Protocol::Detect),
            None => true,
        }
    }

    /// Returns the protocol of a port as declared by the service or by all workloads that it selects; `None` if
    /// none is declared, or if the workloads differ.
    fn declared_protocol(&self, service: &Service, port: &ServicePort) -> Option<Protocol> {
        if port.protocol.is_some() {
            return port.protocol;
        }
        let selected = self.workloads.iter().filter(|workload| is_selected(service, workload));
        let mut spoken =
            selected.flat_map(|workload| &workload.ports).filter(|it| match &port.target {
                TargetPort::Number(number) => it.port == *number,
                TargetPort::Name(name) => it.name.as_ref() == Some(name),
            });
        let first = spoken.next().map(|it| it.protocol)?;
        spoken.all(|it| it.protocol == first).then_some(first)
    }

    /// Warns about rules that name services themselves.
    fn lint_rules_by_name(&self, policy: &ServicePolicy, lint: &mut WarningCollector<'_>) {
        let namespace = &policy.name.namespace;
        let ServiceRule::SermantRemoval(config) = &policy.rule else { return };
        for (name, _) in &config.rules {
            let service = ServiceName { namespace: namespace.clone(), name: name.clone() };
            if !self.services.contains_key(&service) {
                lint.add_warning(
                    "spec.config".to_owned(),
                    format!("has a rule for {name}, but there is no Service {service}"),
                    suggest_name(namespace, name, known!(self.services.keys()), "add the Service"),
                );
            }
        }
    }

    /// Warns about a policy that another one overrides on every target.
    fn lint_shadowed(&self, policy: &ServicePolicy, lint: &mut WarningCollector<'_>) {
        let near = self.services.iter();
        let near = near.filter(|(name, _)| name.namespace == policy.name.namespace);
        let ports = near
            .flat_map(|(name, service)| service.ports.iter().map(move |port| (*name, port.port)));
        match ConflictStatus::for_policy(policy, ports, self) {
            ConflictStatus::Overridden(winner) => lint.add_warning(
                "metadata.name".to_owned(),
                format!("has no effect: {winner} takes precedence at all of its targets"),
                "attach it to other services or ports, or remove one of the two",
            ),
            ConflictStatus::NoEffect(idle) => lint.add_warning(
                target_field(policy, &idle.service),
                format!("{}: {idle}", idle_problem(&idle)),
                idle_hint(&idle),
            ),
            ConflictStatus::InForce | ConflictStatus::NoTarget => {}
        }
    }
}

impl<'a> PolicyContext<'a> for ObjectIndex<'a> {
    fn policies_of(&self, service: &ServiceName) -> Vec<&'a ServicePolicy> {
        let near = self.policies.iter().copied();
        near.filter(|policy| policy.name.namespace == service.namespace).collect()
    }

    fn port_destinations(&self, service: &ServiceName, port: u16) -> Destinations {
        let is_near = |parents: &[RouteParent]| parents.iter().any(|it| it.service == *service);
        let requests = self.routes.iter().copied().filter(|it| is_near(&it.parents));
        let tcp = self.gateway_tcp_routes.iter().copied().filter(|it| is_near(&it.parents));
        let tls = self.tls_routes.iter().copied().filter(|it| is_near(&it.parents));
        let splits = self.splits.iter().copied().filter(|it| it.root.service == *service);
        let attached = AttachedRoutes {
            requests: requests.collect(),
            tcp: tcp.collect(),
            tls: tls.collect(),
            splits: splits.collect(),
        };
        let is_opaque = self.is_opaque(service, port);
        attached.compute_destinations(service, port, is_opaque, |(kind, name), to| {
            let permits = |it: &&ReferenceGrant| it.permits_route(kind, &name.namespace, to);
            name.namespace == to.namespace || self.grants.iter().any(permits)
        })
    }

    fn shares_workloads(&self, service: &ServiceName, port: u16) -> bool {
        let Some(own) = self.services.get(service) else { return false };
        let Some(port) = own.ports.iter().find(|it| it.port == port) else { return false };
        let behind = self.workloads.iter().filter(|workload| is_selected(own, workload));
        behind.into_iter().any(|workload| {
            let number = port.target.number_at(workload);
            let others = self.services.values().filter(|other| other.name != *service);
            let others = others.filter(|other| is_selected(other, workload));
            let mut ports = others.flat_map(|other| &other.ports);
            ports.any(|port| port.target.number_at(workload) == number)
        })
    }

    fn is_backend(&self, service: &ServiceName, port: u16) -> bool {
        self.forwards_requests_to(service, port)
            || self.gateway_tcp_routes.iter().any(|it| it.forwards_to(service, port))
            || self.tls_routes.iter().any(|it| it.forwards_to(service, port))
            || self.splits.iter().any(|it| it.forwards_to(service))
    }

    fn sees_requests(&self, service: &ServiceName, port: u16, side: PolicySide) -> bool {
        if !self.is_opaque(service, port) || self.forwards_requests_to(service, port) {
            return true;
        }
        side == PolicySide::Server && self.applications_see_requests(service, port)
    }
}

impl ObjectIndex<'_> {
    /// True if the port carries TCP, without HTTP parsing.
    fn is_opaque(&self, service: &ServiceName, port: u16) -> bool {
        let Some(found) = self.services.get(service) else { return false };
        let port = found.ports.iter().find(|it| it.port == port);
        port.is_some_and(|port| match self.declared_protocol(found, port) {
            Some(Protocol::Detect) | None => self.is_opaque_by_convention(&found.name, port),
            Some(protocol) => protocol == Protocol::Tcp,
        })
    }

    /// True if the server conventionally speaks first on this port and no policy needs HTTP parsing.
    fn is_opaque_by_convention(&self, service: &ServiceName, port: &ServicePort) -> bool {
        let attached = self.policies.iter().filter(|it| it.closeness(service, port.port).is_some());
        let mut needs = attached.map(|policy| policy.rule.request_need());
        let denies = |policy: &&AccessPolicy| {
            let mut rules = policy.rules.iter();
            rules.any(|rule| rule.request_need() != RequestNeed::None)
        };
        port.is_server_first()
            && needs.all(|need| need == RequestNeed::None)
            && !self.access_policies.iter().any(denies)
    }

    /// True if all ports of a service carry TCP.
    pub(super) fn is_opaque_at_each_port(&self, service: &ServiceName) -> bool {
        let found = self.services.get(service).filter(|it| !it.ports.is_empty());
        found.is_some_and(|it| it.ports.iter().all(|port| self.is_opaque(service, port.port)))
    }

    /// True if a route of another service, or a gateway, forwards requests to the port.
    fn forwards_requests_to(&self, service: &ServiceName, port: u16) -> bool {
        let mut splits = self.splits.iter().filter(|it| it.forwards_to(service));
        let mut gateways = self.gateways.iter().flat_map(|gateway| gateway.backends());
        splits.any(|it| !self.is_opaque(&it.root.service, port))
            || self.routes.iter().any(|it| it.forwards_to(service, port))
            || gateways.any(|it| it.service == *service && it.port == port)
    }

    /// True if a workload behind the port declares another protocol than TCP, or another service targets the
    /// same workload port with another protocol.
    fn applications_see_requests(&self, service: &ServiceName, port: u16) -> bool {
        let own = self.services.get(service);
        let Some((own, port)) =
            own.and_then(|own| Some((own, own.ports.iter().find(|it| it.port == port)?)))
        else {
            return false;
        };
        self.workloads.iter().filter(|workload| is_selected(own, workload)).any(|workload| {
            let others = self.services.values().filter(|other| is_selected(other, workload));
            let others = others.flat_map(|it| it.ports.iter().map(|port| (&it.name, port)));
            let clear = others.filter(|(name, it)| !self.is_opaque(name, it.port));
            port.target.sees_requests_at(workload, clear.map(|(_, it)| &it.target))
        })
    }
}

/// Returns the field of a policy that names a service.
fn target_field(policy: &ServicePolicy, service: &ServiceName) -> String {
    let PolicyScope::Services(targets) = &policy.scope else { return "metadata.name".to_owned() };
    let index = targets.iter().position(|it| it.service == *service).unwrap_or_default();
    target_at(policy.name.kind, index)
}

/// Returns the field of the policy's target with this index.
fn target_at(kind: ServicePolicyKind, index: usize) -> String {
    match kind {
        ServicePolicyKind::UpstreamTrafficSetting => "spec".to_owned(),
        ServicePolicyKind::TrafficWarmup => "metadata".to_owned(),
        _ => format!("spec.targetRefs[{index}]"),
    }
}

fn idle_problem(idle: &NoEffect) -> &'static str {
    match idle.cause {
        NoEffectCause::NoRequests(_, PolicySide::Server) => {
            "has no effect except to reject connections with HTTP"
        }
        _ => "has no effect",
    }
}

/// Returns the hint: the change that gives a policy an effect, or its deletion.
pub(super) fn idle_hint(idle: &NoEffect) -> String {
    let others: Vec<String> = idle.others.iter().map(ToString::to_string).collect();
    match idle.cause {
        NoEffectCause::NoTraffic => {
            "attach it to the service that receives the requests".to_owned()
        }
        NoEffectCause::OwnPolicies(_) => {
            "remove it, or the policies of the other services".to_owned()
        }
        NoEffectCause::OtherWorkloads => format!("attach it to {}", others.join(" and ")),
        NoEffectCause::OtherEndpoints => {
            format!("write the rules for {}, or remove them", others.join(" and "))
        }
        NoEffectCause::OwnRetries => "remove it, or the `retry` of a rule".to_owned(),
        NoEffectCause::NoRequests(..) => {
            "attach it to a port that speaks HTTP, or remove it".to_owned()
        }
    }
}
