//! Computes the destinations of a service's traffic, and the reasons that policies have no effect: routes forward the
//! traffic to other services, or requests are not visible. The reasons are reported in policy statuses and by linting.

use std::collections::BTreeSet;
use std::fmt;

use crate::change::ObjectKey;
use crate::check_service::PortCheck;
use crate::name::{RouteName, ServiceName};
use crate::rate_limit::PortLimits;
use crate::route::{HttpRoute, RouteKind, RouteParent, RouteRule, WeightedBackend, is_only_parent};
use crate::service_policy::{ServicePolicy, ServicePolicyName, TrafficPolicy};
use crate::tag::{LaneRule, TagRules};
use crate::tcp_rule::GatewayTcpRoute;
use crate::tls_route::TlsRoute;
use crate::traffic_split::TrafficSplit;

/// The routes and splits attached to a service, in its own namespace and in other namespaces.
#[derive(Debug, Clone, Default)]
pub struct AttachedRoutes<'a> {
    /// The `HTTPRoute`s and `GRPCRoute`s.
    pub request_routes: Vec<&'a HttpRoute>,
    /// The `TCPRoute`s of the Gateway API.
    pub tcp_routes: Vec<&'a GatewayTcpRoute>,
    /// The `TLSRoute`s.
    pub tls_routes: Vec<&'a TlsRoute>,
    /// The `TrafficSplit`s.
    pub splits: Vec<&'a TrafficSplit>,
}

/// The destinations of the requests to one port of a service, or of the connections if the port is opaque.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Destinations {
    /// True if some traffic reaches the port's own endpoints.
    pub reaches_own_endpoints: bool,
    /// The ports of other services that routes forward to.
    pub other_ports: BTreeSet<(ServiceName, u16)>,
    /// The effective routes, in order.
    pub routes: Vec<ObjectKey>,
    /// True if each rule that forwards requests has its own `retry`.
    pub has_own_retries: bool,
}

impl AttachedRoutes<'_> {
    /// Computes the destinations of the traffic to a port. `is_opaque` is true if the port carries opaque bytes;
    /// `may_forward` returns true if a route may forward to a service. If clients of other namespaces have their
    /// own routes, the port's own endpoints count as a destination.
    pub fn compute_destinations(
        &self,
        service: &ServiceName,
        port: u16,
        is_opaque: bool,
        may_forward: impl Fn((RouteKind, &RouteName), &ServiceName) -> bool,
    ) -> Destinations {
        let mut destinations = Destinations {
            reaches_own_endpoints: self.has_consumer_routes(service),
            ..Destinations::default()
        };
        let mut add_route = |(kind, name): (RouteKind, &RouteName),
                             backends: &[WeightedBackend]| {
            for backend in backends.iter().filter(|backend| backend.weight > 0) {
                let destination = (&backend.service, backend.port);
                if destination == (service, port) {
                    destinations.reaches_own_endpoints = true;
                } else if backend.service == *service || may_forward((kind, name), &backend.service)
                {
                    destinations.other_ports.insert((backend.service.clone(), backend.port));
                }
            }
            let key = kind.object_key(name.clone());
            if !destinations.routes.contains(&key) {
                destinations.routes.push(key);
            }
        };
        // The attached routes of the first of these kinds determine the destinations: request routes, `TLSRoute`s
        // and `TCPRoute`s, splits.
        let request_routes =
            if is_opaque { Vec::new() } else { self.request_routes_for(service, port) };
        for route in &request_routes {
            for rule in &route.rules {
                let backends = if rule.is_forwarding() { &rule.backends[..] } else { &[] };
                add_route((route.kind, &route.name), backends);
            }
        }
        if !request_routes.is_empty() {
            let mut forwarding_rules = request_routes
                .iter()
                .flat_map(|route| &route.rules)
                .filter(|rule| rule.is_forwarding());
            destinations.has_own_retries = !self.has_consumer_routes(service)
                && forwarding_rules.all(|rule| rule.actions.retry.is_some());
            return destinations;
        }
        let mut tls_routes =
            self.tls_routes.iter().filter(|route| route.is_attached_to(service, port)).peekable();
        let has_tls_routes = tls_routes.peek().is_some();
        for route in tls_routes {
            add_route((RouteKind::Tls, &route.rule.route), &route.rule.backends);
        }
        // A `TCPRoute` routes the traffic that is no TLS session.
        if let Some(route) = self.tcp_route_for(service, port) {
            add_route((RouteKind::Tcp, &route.rule.route), &route.rule.backends);
            return destinations;
        }
        if has_tls_routes {
            // `TLSRoute`s apply to TLS sessions only: plaintext requests reach the port's own endpoints.
            destinations.reaches_own_endpoints |= !is_opaque;
            return destinations;
        }
        let splits = self.splits.iter().filter(|split| split.root.service == *service);
        // Splits with route groups match requests, which an opaque port does not have.
        let group_splits = splits.clone().filter(|split| split.groups.is_some() && !is_opaque);
        let whole_split =
            splits.filter(|split| split.groups.is_none()).min_by_key(|split| split.precedence());
        for split in group_splits.chain(whole_split) {
            add_route((RouteKind::Split, &split.name), &split.backends_for(port));
        }
        destinations.reaches_own_endpoints |= whole_split.is_none();
        destinations
    }

    /// Returns the routes for requests of clients whose namespace has no routes: the routes in the service's
    /// namespace, of the kind that takes precedence.
    fn request_routes_for(&self, service: &ServiceName, port: u16) -> Vec<&HttpRoute> {
        let attached = self.request_routes.iter().copied().filter(|route| {
            route.name.namespace == service.namespace
                && route.parents.iter().any(|parent| parent.includes_port(service, port))
        });
        let kind = attached.clone().map(|route| route.kind).max();
        attached.filter(|route| Some(route.kind) == kind).collect()
    }

    /// Returns the oldest `TCPRoute` of the port in the service's namespace, if any.
    fn tcp_route_for(&self, service: &ServiceName, port: u16) -> Option<&GatewayTcpRoute> {
        let attached = self.tcp_routes.iter().copied().filter(|route| {
            route.rule.route.namespace == service.namespace
                && route.parents.iter().any(|parent| parent.includes_port(service, port))
        });
        attached.min_by_key(|route| (route.created, &route.rule.route))
    }

    /// True if a namespace other than the service's has routes for its own clients (consumer routes).
    fn has_consumer_routes(&self, service: &ServiceName) -> bool {
        let request_routes = self.request_routes.iter().map(|route| &route.name.namespace);
        let tcp_routes = self.tcp_routes.iter().map(|route| &route.rule.route.namespace);
        let tls_routes = self.tls_routes.iter().map(|route| &route.rule.route.namespace);
        let mut namespaces = request_routes.chain(tcp_routes).chain(tls_routes);
        namespaces.any(|namespace| *namespace != service.namespace)
    }
}

impl RouteRule {
    /// True if the rule forwards at least some of its requests.
    fn is_forwarding(&self) -> bool {
        self.actions.redirect.is_none() && self.backends.iter().any(|backend| backend.weight > 0)
    }
}

impl HttpRoute {
    /// True if the route forwards or mirrors requests from another service to a port.
    #[must_use]
    pub fn forwards_to(&self, service: &ServiceName, port: u16) -> bool {
        let rules = self.rules.iter();
        let backends = rules.flat_map(|rule| rule.backends.iter().chain(&rule.actions.mirrors));
        forwards_to(&self.parents, backends, service, port)
    }
}

impl GatewayTcpRoute {
    /// True if the route forwards connections from another service to a port.
    #[must_use]
    pub fn forwards_to(&self, service: &ServiceName, port: u16) -> bool {
        forwards_to(&self.parents, &self.rule.backends, service, port)
    }
}

/// True if one of the backends is this service port, and the route has a parent other than the service itself.
fn forwards_to<'a>(
    parents: &[RouteParent],
    backends: impl IntoIterator<Item = &'a WeightedBackend>,
    service: &ServiceName,
    port: u16,
) -> bool {
    let belongs_to_service = !parents.is_empty() && is_only_parent(parents, service);
    let mut backends = backends.into_iter();
    !belongs_to_service
        && backends.any(|backend| backend.service == *service && backend.port == port)
}

impl TrafficSplit {
    /// True if the split forwards traffic of another service to a service.
    #[must_use]
    pub fn forwards_to(&self, service: &ServiceName) -> bool {
        self.root.service != *service
            && self.backends.iter().any(|backend| backend.service == *service)
    }
}

impl TlsRoute {
    /// True if the route forwards sessions from another service to a port.
    #[must_use]
    pub fn forwards_to(&self, service: &ServiceName, port: u16) -> bool {
        forwards_to(&self.parents, &self.rule.backends, service, port)
    }

    fn is_attached_to(&self, service: &ServiceName, port: u16) -> bool {
        self.rule.route.namespace == service.namespace
            && self.parents.iter().any(|parent| parent.includes_port(service, port))
    }
}

/// The reason that a policy has no effect on any traffic although it applies to its service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoEffect {
    /// The service that the policy is attached to.
    pub service: ServiceName,
    /// The effective routes of the port.
    pub routes: Vec<ObjectKey>,
    /// The other services that the routes forward to.
    pub other_services: BTreeSet<ServiceName>,
    /// The cause of the missing effect.
    pub cause: NoEffectCause,
}

/// The cause of a policy without effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoEffectCause {
    /// The routes forward no request: each rule responds with a redirect, or has no backend with a positive weight.
    NoTraffic,
    /// Each service that the routes forward to has its own policy of the same kind. Contains the name of one.
    OwnPolicies(ServicePolicyName),
    /// The sidecars of the service's workloads enforce the policy, and no request reaches these workloads.
    OtherWorkloads,
    /// The policy matches by request, and the port with this number carries TCP, in which the sidecar of this side sees
    /// no requests.
    NoRequests(u16, PolicySide),
    /// The tag rules select from the endpoints of the service, and all requests go to other services.
    OtherEndpoints,
    /// Each rule that forwards requests has its own retry settings.
    OwnRetries,
}

/// Formats a sentence that follows the policy's name.
impl fmt::Display for NoEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let route_names: Vec<String> = self.routes.iter().map(ToString::to_string).collect();
        let verb = |singular: &'static str, plural: &'static str| {
            if route_names.len() == 1 { singular } else { plural }
        };
        let other_names: Vec<String> =
            self.other_services.iter().map(ToString::to_string).collect();
        let (route_names, other_names) = (route_names.join(" and "), other_names.join(", "));
        match &self.cause {
            NoEffectCause::NoTraffic => {
                let answer = verb("answers", "answer");
                write!(f, "{route_names} {answer} all requests to {}", self.service)?;
                f.write_str(" without forwarding any")
            }
            NoEffectCause::OwnPolicies(policy) => {
                let forward = verb("forwards", "forward");
                write!(f, "{route_names} {forward} all requests to {other_names}, and each of ")?;
                write!(f, "these has its own policy, such as {policy}")
            }
            NoEffectCause::OtherWorkloads => {
                let forward = verb("forwards", "forward");
                write!(
                    f,
                    "{route_names} {forward} all requests to {other_names}, and no workload "
                )?;
                write!(f, "of {} receives any", self.service)
            }
            NoEffectCause::OtherEndpoints => {
                let forward = verb("forwards", "forward");
                write!(f, "{route_names} {forward} all requests to {other_names}, and tag ")?;
                write!(f, "rules select from the endpoints of {} only", self.service)
            }
            NoEffectCause::OwnRetries => {
                let have = verb("has", "have");
                write!(f, "{route_names} {have} a `retry` in each rule that forwards requests ")?;
                write!(f, "to {}", self.service)
            }
            NoEffectCause::NoRequests(port, _) => {
                write!(
                    f,
                    "port {port} of {} carries TCP, in which requests are not visible",
                    self.service
                )
            }
        }
    }
}

/// Formats a sentence about services with TCP ports only.
#[must_use]
pub fn describe_tcp_only_services(services: &[ServiceName]) -> String {
    let services: Vec<String> = services.iter().map(ToString::to_string).collect();
    format!("the ports of {} carry TCP, in which requests are not visible", services.join(", "))
}

/// The services, routes and policies that decide whether a policy has an effect.
pub trait PolicyContext<'a> {
    /// Returns the policies that may be attached to a service.
    fn policies_of(&self, service: &ServiceName) -> Vec<&'a ServicePolicy>;

    /// Returns the destinations of the traffic to a port.
    fn port_destinations(&self, service: &ServiceName, port: u16) -> Destinations;

    /// Returns true if another service shares a workload port with this service port.
    fn shares_workloads(&self, service: &ServiceName, port: u16) -> bool;

    /// Returns true if a route of another service, or a gateway, forwards traffic to a service port.
    fn is_backend(&self, service: &ServiceName, port: u16) -> bool;

    /// Returns true if the sidecar of the given side can see the requests to a port.
    fn sees_requests(&self, service: &ServiceName, port: u16, side: PolicySide) -> bool;
}

/// The sidecar that enforces a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicySide {
    /// The sidecar of the client.
    Client,
    /// The sidecar of the server.
    Server,
}

impl NoEffect {
    /// Returns the reason that a policy has no effect at a port that it applies to; `None` if it has an effect.
    ///
    /// A policy has an effect if its sidecar sees the traffic that it acts on, and if some traffic reaches the port's
    /// endpoints. If routes forward all traffic to other services, the effect depends on the kind of the policy:
    ///
    /// * Circuit breakers, faults and hedging still apply, because the client's sidecar combines them with the policies
    ///   of the backends.
    /// * Rate limits and checks apply at the service's own workloads, which then receive no requests.
    /// * Outlier detection and load balancing apply to a backend unless the backend has its own policy of the same kind.
    pub(crate) fn detect_at<'a>(
        policy: &ServicePolicy,
        service: &ServiceName,
        port: u16,
        context: &impl PolicyContext<'a>,
    ) -> Option<Self> {
        let destinations = context.port_destinations(service, port);
        let side = if policy.rule.is_inbound() { PolicySide::Server } else { PolicySide::Client };
        if !policy.rule.acts_on_connections() && !context.sees_requests(service, port, side) {
            return Some(Self::without_requests(service, port, side));
        }
        if destinations.reaches_own_endpoints || context.is_backend(service, port) {
            return None;
        }
        let policies = context.policies_of(service);
        let traffic_policy = TrafficPolicy::for_port(policies.iter().copied(), service, port);
        let is_policy = |name: &ServicePolicyName| *name == policy.name;
        let is_effective = |name: Option<&ServicePolicyName>| name.is_some_and(is_policy);
        let limit_policy = PortLimits::for_port(policies.iter().copied(), service, port)
            .map(|limits| limits.policy);
        let port_checks = PortCheck::for_port(policies.iter().copied(), service, port);
        let is_limit_or_check = is_effective(limit_policy.as_ref())
            || port_checks.iter().any(|check| is_policy(&check.policy));
        let applies_to_forwarded =
            is_effective(traffic_policy.breaker.as_ref().map(|breaker| &breaker.policy))
                || is_effective(traffic_policy.faults.as_ref().map(|faults| &faults.policy))
                || is_effective(traffic_policy.hedging.as_ref().map(|hedging| &hedging.policy));
        let no_effect = |cause| destinations.no_effect(service, cause);
        // The sidecars of shared workloads also enforce the policy on requests to the other service.
        if is_limit_or_check && context.shares_workloads(service, port) {
            return None;
        }
        if destinations.other_ports.is_empty() {
            return Some(no_effect(NoEffectCause::NoTraffic));
        }
        if applies_to_forwarded {
            return None;
        }
        if is_limit_or_check {
            return Some(no_effect(NoEffectCause::OtherWorkloads));
        }
        // Only outlier detection and load balancing remain. They have an effect if a backend has no policy of its own.
        let mut backend_policy_name = None;
        for (backend_service, backend_port) in &destinations.other_ports {
            let backend_policy = TrafficPolicy::for_port(
                context.policies_of(backend_service),
                backend_service,
                *backend_port,
            );
            let outlier_detection =
                backend_policy.outlier_detection.map(|outlier_detection| outlier_detection.policy);
            let balancing = backend_policy.balancing.map(|balancing| balancing.policy);
            let is_balancing =
                is_effective(traffic_policy.balancing.as_ref().map(|balancing| &balancing.policy));
            // A policy of the whole namespace applies to the backend as well, and then it has an effect.
            let same_kind_policy = if is_balancing { balancing } else { outlier_detection };
            backend_policy_name = Some(same_kind_policy.filter(|name| *name != policy.name)?);
        }
        backend_policy_name
            .map(|backend_policy_name| no_effect(NoEffectCause::OwnPolicies(backend_policy_name)))
    }

    /// Returns the reason that tag rules have no effect at a port that they apply to; `None` if they have an
    /// effect.
    pub fn detect_for_tags<'a>(
        effects: TagEffects,
        service: &ServiceName,
        port: u16,
        context: &impl PolicyContext<'a>,
    ) -> Option<Self> {
        let TagEffects { by_request, by_caller, marks } = effects;
        let side = if marks { PolicySide::Server } else { PolicySide::Client };
        if !by_caller && !context.sees_requests(service, port, side) {
            return Some(Self::without_requests(service, port, side));
        }
        let destinations = context.port_destinations(service, port);
        if destinations.reaches_own_endpoints
            || context.is_backend(service, port)
            || marks && context.shares_workloads(service, port)
        {
            return None;
        }
        let cause = match destinations.other_ports.is_empty() {
            true => NoEffectCause::NoTraffic,
            false if by_request || by_caller => NoEffectCause::OtherEndpoints,
            false => NoEffectCause::OtherWorkloads,
        };
        Some(destinations.no_effect(service, cause))
    }

    /// Returns the reason that a retry policy has no effect at the ports of its services; `None` if it has an effect
    /// at one of them. A reason about routes takes precedence over a reason about the protocol of a port.
    pub fn detect_for_retry_policy<'a, 'b>(
        ports: impl IntoIterator<Item = (&'b ServiceName, u16)>,
        context: &impl PolicyContext<'a>,
    ) -> Option<Self> {
        let mut reported: Option<Self> = None;
        for (service, port) in ports {
            let no_effect = Self::detect_for_retries(service, port, context)?;
            let is_about_port =
                |no_effect: &Self| matches!(no_effect.cause, NoEffectCause::NoRequests(..));
            if reported.as_ref().is_none_or(is_about_port) {
                reported = Some(no_effect);
            }
        }
        reported
    }

    /// Returns the reason that a retry policy has no effect on requests to a port; `None` if it has an effect.
    fn detect_for_retries<'a>(
        service: &ServiceName,
        port: u16,
        context: &impl PolicyContext<'a>,
    ) -> Option<Self> {
        if !context.sees_requests(service, port, PolicySide::Client) {
            return Some(Self::without_requests(service, port, PolicySide::Client));
        }
        let destinations = context.port_destinations(service, port);
        let cause = match () {
            () if !destinations.reaches_own_endpoints && destinations.other_ports.is_empty() => {
                NoEffectCause::NoTraffic
            }
            () if destinations.has_own_retries => NoEffectCause::OwnRetries,
            () => return None,
        };
        Some(destinations.no_effect(service, cause))
    }

    /// Creates the reason that requests to a port are not visible.
    fn without_requests(service: &ServiceName, port: u16, side: PolicySide) -> Self {
        let cause = NoEffectCause::NoRequests(port, side);
        Destinations::default().no_effect(service, cause)
    }
}

impl Destinations {
    /// Creates the reason that a policy of a service with these destinations has no effect.
    fn no_effect(&self, service: &ServiceName, cause: NoEffectCause) -> NoEffect {
        NoEffect {
            service: service.clone(),
            routes: self.routes.clone(),
            other_services: self.other_ports.iter().map(|(service, _)| service.clone()).collect(),
            cause,
        }
    }
}

/// The effects of one object with tag rules or lanes at a port that it applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TagEffects {
    /// True if rules that match requests select endpoints.
    pub by_request: bool,
    /// True if rules that match callers select endpoints.
    pub by_caller: bool,
    /// True if the sidecars of the service's workloads add lane headers to requests.
    pub marks: bool,
}

impl TagEffects {
    /// Returns the effects of rules and lanes.
    #[must_use]
    pub fn from_rules(rules: &TagRules, lanes: &[LaneRule]) -> Self {
        Self {
            by_request: !rules.rules.is_empty(),
            by_caller: !rules.caller_rules.is_empty(),
            marks: !lanes.is_empty(),
        }
    }

    /// True if there are no effects.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
