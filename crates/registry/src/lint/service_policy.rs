//! Warns about service policies: missing targets, policies that other policies override, and policies without effect on
//! any port. Implements [`PolicyContext`], from which the model computes these conflicts, for a set of objects.

use leno_model::{
    AccessPolicy, AttachedRoutes, ConflictStatus, Destinations, NoEffect, NoEffectCause,
    PolicyContext, PolicyScope, PolicySide, Protocol, ReferenceGrant, RequestNeed, RouteParent,
    Service, ServiceName, ServicePolicy, ServicePolicyKind, ServicePort, ServiceRule, TargetPort,
};

use super::suggestion::{existing_objects, suggest_name};
use super::{ObjectIndex, ServiceReference, WarningCollector, selects_workload};

impl ObjectIndex<'_> {
    /// Warns about missing target services and ports, about a policy that has no effect or that another policy
    /// overrides, about connection limits of HTTP ports, and about the check service.
    pub(super) fn lint_service_policy(
        &self,
        policy: &ServicePolicy,
        collector: &mut WarningCollector<'_>,
    ) {
        match &policy.scope {
            PolicyScope::Services(targets) => {
                for (index, target) in targets.iter().enumerate() {
                    let name_field = match policy.name.kind {
                        ServicePolicyKind::UpstreamTrafficSetting => "host",
                        _ => "name",
                    };
                    let field = target_path(policy.name.kind, index);
                    let (service, port) = (&target.service, target.port);
                    let reference = ServiceReference { service, port, field, name_field };
                    self.lint_reference(&reference, collector);
                }
            }
            PolicyScope::Namespace => self.lint_rules_by_name(policy, collector),
        }
        self.lint_conflict_status(policy, collector);
        self.lint_connections(policy, collector);
        self.lint_check_service(policy, collector);
    }

    /// Warns about a connection limit without effect: all ports of the policy carry HTTP requests, which share links
    /// between sidecars.
    fn lint_connections(&self, policy: &ServicePolicy, collector: &mut WarningCollector<'_>) {
        let has_breaker_limit =
            policy.rule.circuit_breaker().is_some_and(|rule| rule.limits.connections.is_some());
        let has_rate_limit =
            policy.rule.rate_limits().is_some_and(|limits| limits.connections.is_some());
        if !has_breaker_limit && !has_rate_limit {
            return;
        }
        let targeted_ports = self.services.iter().flat_map(|(name, service)| {
            let ports = service.ports.iter();
            let targets = ports.filter(|port| policy.specificity_for(name, port.port).is_some());
            targets.map(|port| (*service, port))
        });
        let affected_ports: Vec<(&Service, &ServicePort)> = targeted_ports.collect();
        if affected_ports.is_empty()
            || affected_ports.iter().any(|(service, port)| self.may_be_opaque(service, port))
        {
            return;
        }
        let is_setting = policy.name.kind == ServicePolicyKind::UpstreamTrafficSetting;
        let request_limit_hint = "limit concurrent requests instead";
        for (is_set, field, setting_field, hint) in [
            (
                has_breaker_limit,
                "spec.limits.connections",
                "spec.connectionSettings.tcp.maxConnections",
                request_limit_hint,
            ),
            (
                has_rate_limit,
                "spec.connections",
                "spec.rateLimit.local.tcp",
                "limit requests instead",
            ),
        ] {
            if is_set {
                collector.add_warning(
                    if is_setting { setting_field } else { field }.to_owned(),
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
        let selected_workloads =
            self.workloads.iter().filter(|workload| selects_workload(service, workload));
        let mut declared_ports =
            selected_workloads.flat_map(|workload| &workload.ports).filter(|workload_port| {
                match &port.target {
                    TargetPort::Number(number) => workload_port.port == *number,
                    TargetPort::Name(name) => workload_port.name.as_ref() == Some(name),
                }
            });
        let first_protocol = declared_ports.next().map(|port| port.protocol)?;
        declared_ports.all(|port| port.protocol == first_protocol).then_some(first_protocol)
    }

    /// Warns about the rules of a policy that apply to services by name, for services that do not exist.
    fn lint_rules_by_name(&self, policy: &ServicePolicy, collector: &mut WarningCollector<'_>) {
        let namespace = &policy.name.namespace;
        let ServiceRule::SermantRemoval(config) = &policy.rule else { return };
        for (name, _) in &config.rules {
            let service = ServiceName { namespace: namespace.clone(), name: name.clone() };
            if !self.services.contains_key(&service) {
                collector.add_warning(
                    "spec.config".to_owned(),
                    format!("has a rule for {name}, but there is no Service {service}"),
                    suggest_name(
                        namespace,
                        name,
                        existing_objects!(self.services.keys()),
                        "add the Service",
                    ),
                );
            }
        }
    }

    /// Warns about a policy that another policy overrides on every target, or that has no effect.
    fn lint_conflict_status(&self, policy: &ServicePolicy, collector: &mut WarningCollector<'_>) {
        let all_services = self.services.iter();
        let own_services = all_services.filter(|(name, _)| name.namespace == policy.name.namespace);
        let ports = own_services
            .flat_map(|(name, service)| service.ports.iter().map(move |port| (*name, port.port)));
        match ConflictStatus::for_policy(policy, ports, self) {
            ConflictStatus::Overridden(preceding_policy) => collector.add_warning(
                "metadata.name".to_owned(),
                format!("has no effect: {preceding_policy} takes precedence at all of its targets"),
                "attach it to other services or ports, or remove one of the two",
            ),
            ConflictStatus::NoEffect(no_effect) => collector.add_warning(
                target_field(policy, &no_effect.service),
                format!("{}: {no_effect}", no_effect_problem(&no_effect)),
                no_effect_hint(&no_effect),
            ),
            ConflictStatus::Effective | ConflictStatus::NoTarget => {}
        }
    }
}

impl<'a> PolicyContext<'a> for ObjectIndex<'a> {
    fn policies_of(&self, service: &ServiceName) -> Vec<&'a ServicePolicy> {
        let policies = self.service_policies.iter().copied();
        policies.filter(|policy| policy.name.namespace == service.namespace).collect()
    }

    fn port_destinations(&self, service: &ServiceName, port: u16) -> Destinations {
        let has_parent =
            |parents: &[RouteParent]| parents.iter().any(|parent| parent.service == *service);
        let request_routes = self.routes.iter().copied().filter(|route| has_parent(&route.parents));
        let tcp_routes =
            self.gateway_tcp_routes.iter().copied().filter(|route| has_parent(&route.parents));
        let tls_routes = self.tls_routes.iter().copied().filter(|route| has_parent(&route.parents));
        let splits =
            self.traffic_splits.iter().copied().filter(|split| split.root.service == *service);
        let attached_routes = AttachedRoutes {
            request_routes: request_routes.collect(),
            tcp_routes: tcp_routes.collect(),
            tls_routes: tls_routes.collect(),
            splits: splits.collect(),
        };
        let is_opaque = self.is_opaque(service, port);
        attached_routes.compute_destinations(service, port, is_opaque, |(kind, name), to| {
            let permits_destination =
                |grant: &&ReferenceGrant| grant.permits_route(kind, &name.namespace, to);
            name.namespace == to.namespace || self.reference_grants.iter().any(permits_destination)
        })
    }

    fn shares_workloads(&self, service: &ServiceName, port: u16) -> bool {
        let Some(service_object) = self.services.get(service) else { return false };
        let Some(own_port) =
            service_object.ports.iter().find(|service_port| service_port.port == port)
        else {
            return false;
        };
        let workloads =
            self.workloads.iter().filter(|workload| selects_workload(service_object, workload));
        workloads.into_iter().any(|workload| {
            let target_number = own_port.target.number_at(workload);
            let sharing_services = self
                .services
                .values()
                .filter(|other| other.name != *service && selects_workload(other, workload));
            let mut other_ports = sharing_services.flat_map(|other| &other.ports);
            other_ports.any(|other| other.target.number_at(workload) == target_number)
        })
    }

    fn is_backend(&self, service: &ServiceName, port: u16) -> bool {
        self.forwards_requests_to(service, port)
            || self.gateway_tcp_routes.iter().any(|route| route.forwards_to(service, port))
            || self.tls_routes.iter().any(|route| route.forwards_to(service, port))
            || self.traffic_splits.iter().any(|split| split.forwards_to(service))
    }

    fn sees_requests(&self, service: &ServiceName, port: u16, side: PolicySide) -> bool {
        if !self.is_opaque(service, port) || self.forwards_requests_to(service, port) {
            return true;
        }
        side == PolicySide::Server && self.applications_see_requests(service, port)
    }
}

impl ObjectIndex<'_> {
    /// True if the port carries TCP that sidecars do not parse as HTTP.
    fn is_opaque(&self, service: &ServiceName, port: u16) -> bool {
        let Some(service_object) = self.services.get(service) else { return false };
        let own_port = service_object.ports.iter().find(|service_port| service_port.port == port);
        own_port.is_some_and(|own_port| match self.declared_protocol(service_object, own_port) {
            Some(Protocol::Detect) | None => {
                self.is_opaque_by_convention(&service_object.name, own_port)
            }
            Some(protocol) => protocol == Protocol::Tcp,
        })
    }

    /// True if the server conventionally speaks first on this port and no policy needs HTTP parsing.
    fn is_opaque_by_convention(&self, service: &ServiceName, port: &ServicePort) -> bool {
        let attached_policies = self
            .service_policies
            .iter()
            .filter(|policy| policy.specificity_for(service, port.port).is_some());
        let mut request_needs = attached_policies.map(|policy| policy.rule.request_need());
        let needs_requests = |policy: &&AccessPolicy| {
            let mut rules = policy.rules.iter();
            rules.any(|rule| rule.request_need() != RequestNeed::None)
        };
        port.is_server_first()
            && request_needs.all(|need| need == RequestNeed::None)
            && !self.access_policies.iter().any(needs_requests)
    }

    /// True if the service has ports and all of them are opaque; see [`Self::is_opaque`].
    pub(super) fn is_opaque_at_each_port(&self, service: &ServiceName) -> bool {
        let service_object = self.services.get(service).filter(|service| !service.ports.is_empty());
        service_object.is_some_and(|object| {
            object.ports.iter().all(|port| self.is_opaque(service, port.port))
        })
    }

    /// True if a route of another service, or a gateway, forwards requests to the port.
    fn forwards_requests_to(&self, service: &ServiceName, port: u16) -> bool {
        let mut splits = self.traffic_splits.iter().filter(|split| split.forwards_to(service));
        let mut backends = self.gateways.iter().flat_map(|gateway| gateway.backends());
        splits.any(|split| !self.is_opaque(&split.root.service, port))
            || self.routes.iter().any(|route| route.forwards_to(service, port))
            || backends.any(|backend| backend.service == *service && backend.port == port)
    }

    /// True if a workload behind the port may parse its requests: it declares another protocol than TCP, or a service
    /// targets the same workload port with another protocol.
    fn applications_see_requests(&self, service: &ServiceName, port: u16) -> bool {
        let Some(service_object) = self.services.get(service) else { return false };
        let Some(own_port) =
            service_object.ports.iter().find(|service_port| service_port.port == port)
        else {
            return false;
        };
        self.workloads.iter().filter(|workload| selects_workload(service_object, workload)).any(
            |workload| {
                let selecting_services =
                    self.services.values().filter(|other| selects_workload(other, workload));
                let other_ports = selecting_services
                    .flat_map(|other| other.ports.iter().map(|port| (&other.name, port)));
                let parsed_ports =
                    other_ports.filter(|(name, port)| !self.is_opaque(name, port.port));
                own_port
                    .target
                    .sees_requests_at(workload, parsed_ports.map(|(_, port)| &port.target))
            },
        )
    }
}

/// Returns the path of the field that names the service in a policy; that of the policy's name if the policy applies to its
/// whole namespace.
fn target_field(policy: &ServicePolicy, service: &ServiceName) -> String {
    let PolicyScope::Services(targets) = &policy.scope else { return "metadata.name".to_owned() };
    let index = targets.iter().position(|target| target.service == *service).unwrap_or_default();
    target_path(policy.name.kind, index)
}

/// Returns the path of the field with the policy's target at this index.
fn target_path(kind: ServicePolicyKind, index: usize) -> String {
    match kind {
        ServicePolicyKind::UpstreamTrafficSetting => "spec".to_owned(),
        ServicePolicyKind::TrafficWarmup => "metadata".to_owned(),
        _ => format!("spec.targetRefs[{index}]"),
    }
}

/// Returns the problem of a policy without effect.
fn no_effect_problem(no_effect: &NoEffect) -> &'static str {
    match no_effect.cause {
        NoEffectCause::NoRequests(_, PolicySide::Server) => {
            "has no effect except to reject connections with HTTP"
        }
        _ => "has no effect",
    }
}

/// Returns the hint: the change that gives a policy an effect, or its deletion.
pub(super) fn no_effect_hint(no_effect: &NoEffect) -> String {
    let other_services: Vec<String> =
        no_effect.other_services.iter().map(ToString::to_string).collect();
    match no_effect.cause {
        NoEffectCause::NoTraffic => {
            "attach it to the service that receives the requests".to_owned()
        }
        NoEffectCause::OwnPolicies(_) => {
            "remove it, or the policies of the other services".to_owned()
        }
        NoEffectCause::OtherWorkloads => format!("attach it to {}", other_services.join(" and ")),
        NoEffectCause::OtherEndpoints => {
            format!("write the rules for {}, or remove them", other_services.join(" and "))
        }
        NoEffectCause::OwnRetries => "remove it, or the `retry` of a rule".to_owned(),
        NoEffectCause::NoRequests(..) => {
            "attach it to a port that speaks HTTP, or remove it".to_owned()
        }
    }
}
