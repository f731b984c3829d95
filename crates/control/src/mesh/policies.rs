//! Indexes service policies by service, namespace and JWKS endpoint. Also stores the keys that were fetched from
//! the JWKS endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leno_model::{
    AttachedRoutes, ConflictStatus, Destinations, IssuerKeys, KeySource, Name, ObjectKey,
    PolicyContext, PolicyScope, PolicySide, PortCheck, PortLimits, RequestCheck, RequestNeed,
    RouteKind, RouteName, RuleKind, ServiceName, ServicePolicy, ServicePolicyName, TrafficPolicy,
    WorkloadName,
};

use super::{AffectedSet, Index, Mesh};
use crate::compile::{is_opaque, target_port};
use crate::keys::issuer_sources;

/// All service policies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Policies {
    by_name: BTreeMap<ServicePolicyName, ServicePolicy>,
    by_service: Index<ServiceName, ServicePolicyName>,
    by_namespace: Index<Name, ServicePolicyName>,
    by_key_source: Index<KeySource, ServicePolicyName>,
    /// The JWKS that was fetched last from each endpoint.
    jwks_by_source: BTreeMap<KeySource, Arc<str>>,
}

impl Policies {
    pub(super) fn all_policies(&self) -> impl Iterator<Item = &ServicePolicy> {
        self.by_name.values()
    }

    pub(super) fn has_policy(&self, name: &ServicePolicyName) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns the policies that may apply to a service.
    fn policies_for_service(&self, service: &ServiceName) -> impl Iterator<Item = &ServicePolicy> {
        let names = self
            .by_service
            .values_for(service)
            .chain(self.by_namespace.values_for(&service.namespace));
        names.filter_map(|name| self.by_name.get(name))
    }

    /// Removes a policy and returns it.
    fn remove_policy(&mut self, name: &ServicePolicyName) -> Option<ServicePolicy> {
        let old = self.by_name.remove(name)?;
        for service in named_services(&old) {
            self.by_service.remove(service, name);
        }
        self.by_namespace.remove(&name.namespace, name);
        for (_, source) in issuer_sources(&old) {
            self.by_key_source.remove(source, name);
        }
        Some(old)
    }

    fn insert_policy(&mut self, policy: ServicePolicy) {
        for service in named_services(&policy) {
            self.by_service.insert(service, &policy.name);
        }
        if policy.scope == PolicyScope::Namespace {
            self.by_namespace.insert(&policy.name.namespace, &policy.name);
        }
        for (_, source) in issuer_sources(&policy) {
            self.by_key_source.insert(source, &policy.name);
        }
        self.by_name.insert(policy.name.clone(), policy);
    }
}

impl Mesh {
    /// Returns the traffic policy of a service port.
    pub(crate) fn traffic_policy(&self, service: &ServiceName, port: u16) -> TrafficPolicy {
        TrafficPolicy::for_port(self.policies.policies_for_service(service), service, port)
    }

    /// Returns the inbound limits of a service port.
    pub(crate) fn port_limits(&self, service: &ServiceName, port: u16) -> Option<PortLimits> {
        PortLimits::for_port(self.policies.policies_for_service(service), service, port)
    }

    /// Returns the parts of requests that the policies on a service port need.
    pub(crate) fn request_needs(
        &self,
        service: &ServiceName,
        port: u16,
    ) -> impl Iterator<Item = RequestNeed> {
        self.policies_at_port(service, port).map(|policy| policy.rule.request_need())
    }

    /// Returns the parts of requests that the policies enforced by the server's sidecar need.
    pub(crate) fn inbound_needs(
        &self,
        service: &ServiceName,
        port: u16,
    ) -> impl Iterator<Item = RequestNeed> {
        let inbound_policies =
            self.policies_at_port(service, port).filter(|policy| policy.rule.is_inbound());
        inbound_policies.map(|policy| policy.rule.request_need())
    }

    /// Returns the kind, namespace and name of each route for requests or TLS sessions that is attached to a service.
    pub(crate) fn attached_route_keys(
        &self,
        service: &ServiceName,
    ) -> impl Iterator<Item = (RuleKind, Name, Name)> {
        let http_routes =
            self.http_routes().attached_to(service).map(|route| (route.kind, &route.name));
        let tls_routes =
            self.tls_routes().attached_to(service).map(|route| (RouteKind::Tls, &route.rule.route));
        http_routes.chain(tls_routes).map(|(kind, route)| {
            (RuleKind::Route(kind), route.namespace.clone(), route.name.clone())
        })
    }

    /// True if a policy, route or tag rule concerns a service; true for all objects of other kinds.
    pub(crate) fn concerns_service(&self, object: &ObjectKey, service: &ServiceName) -> bool {
        match object {
            ObjectKey::ServicePolicy(name) => {
                self.policies.policies_for_service(service).any(|policy| policy.name == *name)
            }
            ObjectKey::HttpRoute(name) => self
                .http_routes()
                .attached_to(service)
                .any(|route| route.kind == RouteKind::Http && route.name == *name),
            ObjectKey::GrpcRoute(name) => self
                .http_routes()
                .attached_to(service)
                .any(|route| route.kind == RouteKind::Grpc && route.name == *name),
            ObjectKey::TlsRoute(name) => {
                self.tls_routes().attached_to(service).any(|route| route.rule.route == *name)
            }
            ObjectKey::GatewayTcpRoute(name) => self
                .gateway_tcp_routes()
                .attached_to(service)
                .any(|route| route.rule.route == *name),
            ObjectKey::TrafficSplit(name) => {
                self.traffic_splits().attached_to(service).any(|route| route.name == *name)
            }
            ObjectKey::TagRoute(_) | ObjectKey::SermantRouteRule(_) | ObjectKey::Lane(_) => {
                self.tags.concerns_service(object, service)
            }
            _ => true,
        }
    }

    /// Returns the service policies that apply to a service port.
    fn policies_at_port(
        &self,
        service: &ServiceName,
        port: u16,
    ) -> impl Iterator<Item = &ServicePolicy> {
        let policies = self.policies.policies_for_service(service);
        policies.filter(move |policy| policy.specificity_for(service, port).is_some())
    }

    /// Returns the external checks that policies require for requests to a service port.
    pub(crate) fn port_checks(&self, service: &ServiceName, port: u16) -> Vec<PortCheck> {
        let mut checks =
            PortCheck::for_port(self.policies.policies_for_service(service), service, port);
        for port_check in &mut checks {
            if let RequestCheck::Tokens(rule) = &mut port_check.check {
                let issuers = rule.issuers.iter_mut();
                issuers.for_each(|issuer| issuer.keys = self.resolve_keys(&issuer.keys));
            }
        }
        checks
    }

    /// Returns the keys as sent to sidecars: a JWKS endpoint is replaced by the key set that was fetched last, or by
    /// [`IssuerKeys::Pending`] before the first successful fetch.
    fn resolve_keys(&self, keys: &IssuerKeys) -> IssuerKeys {
        match keys.source() {
            None => keys.clone(),
            Some(source) => match self.policies.jwks_by_source.get(source) {
                Some(jwks) => IssuerKeys::Inline(Arc::clone(jwks)),
                None => IssuerKeys::Pending,
            },
        }
    }

    /// Returns the JWKS endpoints of policies.
    pub(crate) fn key_sources(&self) -> impl Iterator<Item = &KeySource> {
        self.policies.by_key_source.keys()
    }

    /// True if the keys of an endpoint have been fetched.
    pub(crate) fn has_keys(&self, source: &KeySource) -> bool {
        self.policies.jwks_by_source.contains_key(source)
    }

    /// Returns all service policies, by name.
    pub(crate) fn service_policies(&self) -> impl Iterator<Item = &ServicePolicy> {
        self.policies.all_policies()
    }

    /// Returns the conflict status of a policy.
    pub(crate) fn conflict_status(&self, policy: &ServicePolicy) -> ConflictStatus {
        let service_names = self.policy_services(policy);
        let services = service_names.iter().filter_map(|name| self.services.get(name));
        let ports = services
            .flat_map(|service| service.ports.iter().map(move |port| (&service.name, port.port)));
        ConflictStatus::for_policy(policy, ports, &self)
    }

    /// Sets the keys of an endpoint, or removes them if it is no longer in use.
    pub(crate) fn set_keys(&mut self, source: &KeySource, jwks: Option<Arc<str>>) -> AffectedSet {
        let jwks_by_source = &mut self.policies.jwks_by_source;
        let previous_jwks = match &jwks {
            Some(jwks) => jwks_by_source.insert(source.clone(), Arc::clone(jwks)),
            None => jwks_by_source.remove(source),
        };
        let mut affected_set = AffectedSet::default();
        if previous_jwks == jwks {
            return affected_set;
        }
        let policies = self.policies.by_key_source.values_for(source);
        for policy in policies.filter_map(|name| self.policies.by_name.get(name)) {
            affected_set
                .workloads
                .extend(self.workloads_of_all(&self.policy_services(policy)).cloned());
        }
        affected_set
    }

    /// Returns the services that a policy applies to, existing or not.
    fn policy_services(&self, policy: &ServicePolicy) -> BTreeSet<ServiceName> {
        let mut services: BTreeSet<ServiceName> = named_services(policy).cloned().collect();
        if policy.scope == PolicyScope::Namespace {
            let names = self.services.keys();
            services.extend(names.filter(|name| name.namespace == policy.name.namespace).cloned());
        }
        services
    }

    fn workloads_of_all<'a>(
        &'a self,
        services: &'a BTreeSet<ServiceName>,
    ) -> impl Iterator<Item = &'a WorkloadName> {
        services.iter().flat_map(|service| self.workloads_by_service.values_for(service))
    }

    /// Adds, replaces or removes (`None`) a service policy.
    pub(super) fn set_policy(
        &mut self,
        name: &ServicePolicyName,
        new: Option<ServicePolicy>,
        affected_set: &mut AffectedSet,
    ) {
        let old = self.policies.remove_policy(name);
        let differs = old != new;
        let is_inbound = old.iter().chain(&new).any(|policy| policy.rule.is_inbound());
        let policies = old.iter().chain(&new);
        let services: BTreeSet<ServiceName> =
            policies.flat_map(|policy| self.policy_services(policy)).collect();
        if let Some(new) = new {
            self.policies.insert_policy(new);
        }
        if differs {
            if is_inbound {
                affected_set.workloads.extend(self.workloads_of_all(&services).cloned());
            }
            affected_set.services.extend(services);
        }
    }
}

impl<'a> PolicyContext<'a> for &'a Mesh {
    fn policies_of(&self, service: &ServiceName) -> Vec<&'a ServicePolicy> {
        self.policies.policies_for_service(service).collect()
    }

    fn port_destinations(&self, service: &ServiceName, port: u16) -> Destinations {
        let attached = AttachedRoutes {
            request_routes: self.http_routes().attached_to(service).collect(),
            tcp_routes: self.gateway_tcp_routes().attached_to(service).collect(),
            tls_routes: self.tls_routes().attached_to(service).collect(),
            splits: self.traffic_splits().attached_to(service).collect(),
        };
        let is_opaque = is_opaque(self, service, port);
        let may_forward =
            |object: (RouteKind, &RouteName), to: &ServiceName| self.may_refer_to(object, to);
        attached.compute_destinations(service, port, is_opaque, may_forward)
    }

    fn shares_workloads(&self, service: &ServiceName, port: u16) -> bool {
        let Some(service_object) = self.services.get(service) else { return false };
        let Some(service_port) =
            service_object.ports.iter().find(|candidate| candidate.port == port)
        else {
            return false;
        };
        self.service_workloads(service).any(|workload| {
            let workload_port = target_port(&service_port.target, workload);
            let mut other_services =
                self.services_of(&workload.name).filter(|other| other.name != *service);
            let mut other_ports = other_services.by_ref().flat_map(|other| &other.ports);
            other_ports.any(|other| target_port(&other.target, workload) == workload_port)
        })
    }

    fn is_backend(&self, service: &ServiceName, port: u16) -> bool {
        self.forwards_requests_to(service, port)
            || self
                .gateway_tcp_routes()
                .routes_to(service)
                .any(|route| route.forwards_to(service, port))
            || self.tls_routes().routes_to(service).any(|route| route.forwards_to(service, port))
            || self.traffic_splits().routes_to(service).any(|route| route.forwards_to(service))
    }

    fn sees_requests(&self, service: &ServiceName, port: u16, side: PolicySide) -> bool {
        if !is_opaque(self, service, port) || self.forwards_requests_to(service, port) {
            return true;
        }
        side == PolicySide::Server && self.applications_see_requests(service, port)
    }
}

impl Mesh {
    /// True if a route of another service or of a gateway forwards requests to a port.
    fn forwards_requests_to(&self, service: &ServiceName, port: u16) -> bool {
        let mut splits =
            self.traffic_splits().routes_to(service).filter(|split| split.forwards_to(service));
        let mut gateways = self.gateways.values().flat_map(|gateway| gateway.backends());
        splits.any(|split| !is_opaque(self, &split.root.service, port))
            || self.http_routes().routes_to(service).any(|route| route.forwards_to(service, port))
            || gateways.any(|backend| backend.service == *service && backend.port == port)
    }

    /// True if a workload of a port declares another protocol than TCP, or another service forwards to the same
    /// workload port with another protocol.
    fn applications_see_requests(&self, service: &ServiceName, port: u16) -> bool {
        let service_object = self.services.get(service);
        let Some(service_port) = service_object
            .and_then(|object| object.ports.iter().find(|candidate| candidate.port == port))
        else {
            return false;
        };
        self.service_workloads(service).any(|workload| {
            let all_ports = self
                .services_of(&workload.name)
                .flat_map(|service| service.ports.iter().map(|port| (&service.name, port)));
            let inspected_ports =
                all_ports.filter(|(name, other)| !is_opaque(self, name, other.port));
            service_port
                .target
                .sees_requests_at(workload, inspected_ports.map(|(_, other)| &other.target))
        })
    }
}

/// Returns the services that a policy names.
fn named_services(policy: &ServicePolicy) -> impl Iterator<Item = &ServiceName> {
    let targets = match &policy.scope {
        PolicyScope::Services(targets) => targets.as_slice(),
        PolicyScope::Namespace => &[],
    };
    targets.iter().map(|target| &target.service)
}
