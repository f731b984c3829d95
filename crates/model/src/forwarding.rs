//! Destinations of a service's traffic, and policies without effect because routes forward that traffic
//! elsewhere.

use std::collections::BTreeSet;
use std::fmt;

use crate::change::ObjectKey;
use crate::check_service::PortCheck;
use crate::name::{RouteName, ServiceName};
use crate::rate_limit::PortLimits;
use crate::route::{HttpRoute, RouteKind, RouteParent, RouteRule, WeightedBackend, leads_back};
use crate::service_policy::{ServicePolicy, ServicePolicyName, TrafficPolicy};
use crate::tag::{LaneRule, TagRules};
use crate::tcp_rule::GatewayTcpRoute;
use crate::tls_route::TlsRoute;
use crate::traffic_split::TrafficSplit;

/// The routes and splits attached to a service, of its own namespace and of others.
#[derive(Debug, Clone, Default)]
pub struct AttachedRoutes<'a> {
    /// Each `HTTPRoute` and `GRPCRoute`.
    pub requests: Vec<&'a HttpRoute>,
    /// Each `TCPRoute` of the Gateway API.
    pub tcp: Vec<&'a GatewayTcpRoute>,
    /// Each `TLSRoute`.
    pub tls: Vec<&'a TlsRoute>,
    /// Each `TrafficSplit`.
    pub splits: Vec<&'a TrafficSplit>,
}

/// Destinations of the requests to one port of a service, or of its connections if the port is opaque.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Destinations {
    /// True if some traffic reaches the port's own endpoints.
    pub own: bool,
    /// The ports of other services that routes forward to.
    pub others: BTreeSet<(ServiceName, u16)>,
    /// The effective routes, in order.
    pub routes: Vec<ObjectKey>,
    /// True if each rule that forwards requests has its own `retry`.
    pub own_retries: bool,
}

impl AttachedRoutes<'_> {
    /// Computes the destinations of the traffic to a port. `is_opaque`: the port carries bytes; `may_forward`
    /// permits an object to forward to a service. Clients of other namespaces with their own routes may use any
    /// destination: then the port's own endpoints count as one.
    pub fn compute_destinations(
        &self,
        service: &ServiceName,
        port: u16,
        is_opaque: bool,
        may_forward: impl Fn((RouteKind, &RouteName), &ServiceName) -> bool,
    ) -> Destinations {
        let mut found =
            Destinations { own: self.has_consumers(service), ..Destinations::default() };
        let mut add = |object: (RouteKind, &RouteName), backends: &[WeightedBackend]| {
            for backend in backends.iter().filter(|backend| backend.weight > 0) {
                let to = (&backend.service, backend.port);
                if to == (service, port) {
                    found.own = true;
                } else if backend.service == *service || may_forward(object, &backend.service) {
                    found.others.insert((backend.service.clone(), backend.port));
                }
            }
            let key = object.0.object_key(object.1.clone());
            if !found.routes.contains(&key) {
                found.routes.push(key);
            }
        };
        let requests = if is_opaque { Vec::new() } else { self.for_requests(service, port) };
        for route in &requests {
            for rule in &route.rules {
                let backends = if rule.is_forwarding() { &rule.backends[..] } else { &[] };
                add((route.kind, &route.name), backends);
            }
        }
        if !requests.is_empty() {
            let mut forwarding =
                requests.iter().flat_map(|it| &it.rules).filter(|it| it.is_forwarding());
            found.own_retries =
                !self.has_consumers(service) && forwarding.all(|rule| rule.actions.retry.is_some());
            return found;
        }
        if let Some(route) = self.for_connections(service, port) {
            add((RouteKind::Tcp, &route.rule.route), &route.rule.backends);
            return found;
        }
        let sessions: Vec<&&TlsRoute> =
            self.tls.iter().filter(|it| it.is_at(service, port)).collect();
        if !sessions.is_empty() {
            sessions.iter().for_each(|it| add((RouteKind::Tls, &it.rule.route), &it.rule.backends));
            found.own |= !is_opaque;
            return found;
        }
        let splits = self.splits.iter().filter(|split| split.root.service == *service);
        let for_some = splits.clone().filter(|it| it.groups.is_some() && !is_opaque);
        let whole = splits.filter(|it| it.groups.is_none()).min_by_key(|it| it.precedence());
        for split in for_some.chain(whole) {
            add((RouteKind::Split, &split.name), &split.backends_for(port));
        }
        found.own |= whole.is_none();
        found
    }

    /// The routes for requests of clients without their own routes: those of the service's namespace, of the
    /// kind that takes precedence.
    fn for_requests(&self, service: &ServiceName, port: u16) -> Vec<&HttpRoute> {
        let at = self.requests.iter().copied().filter(|route| {
            route.name.namespace == service.namespace
                && route.parents.iter().any(|parent| parent.includes_port(service, port))
        });
        let kind = at.clone().map(|route| route.kind).max();
        at.filter(|route| Some(route.kind) == kind).collect()
    }

    fn for_connections(&self, service: &ServiceName, port: u16) -> Option<&GatewayTcpRoute> {
        let at = self.tcp.iter().copied().filter(|route| {
            route.rule.route.namespace == service.namespace
                && route.parents.iter().any(|parent| parent.includes_port(service, port))
        });
        at.min_by_key(|route| (route.created, &route.rule.route))
    }

    fn has_consumers(&self, service: &ServiceName) -> bool {
        let requests = self.requests.iter().map(|route| &route.name.namespace);
        let tcp = self.tcp.iter().map(|route| &route.rule.route.namespace);
        let tls = self.tls.iter().map(|route| &route.rule.route.namespace);
        requests.chain(tcp).chain(tls).any(|namespace| *namespace != service.namespace)
    }
}

impl RouteRule {
    /// True for a rule that forwards at least some of its requests.
    fn is_forwarding(&self) -> bool {
        self.actions.redirect.is_none() && self.backends.iter().any(|it| it.weight > 0)
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

fn forwards_to<'a>(
    parents: &[RouteParent],
    backends: impl IntoIterator<Item = &'a WeightedBackend>,
    service: &ServiceName,
    port: u16,
) -> bool {
    let is_only_its_own = !parents.is_empty() && leads_back(parents, service);
    let mut backends = backends.into_iter();
    !is_only_its_own && backends.any(|it| it.service == *service && it.port == port)
}

impl TrafficSplit {
    /// True if the split forwards traffic of another service to a service.
    #[must_use]
    pub fn forwards_to(&self, service: &ServiceName) -> bool {
        self.root.service != *service && self.backends.iter().any(|it| it.service == *service)
    }
}

impl TlsRoute {
    /// True if the route forwards sessions from another service to a port.
    #[must_use]
    pub fn forwards_to(&self, service: &ServiceName, port: u16) -> bool {
        forwards_to(&self.parents, &self.rule.backends, service, port)
    }

    fn is_at(&self, service: &ServiceName, port: u16) -> bool {
        self.rule.route.namespace == service.namespace
            && self.parents.iter().any(|parent| parent.includes_port(service, port))
    }
}

/// The reason that a policy has no effect on any traffic although it is in force at its service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoEffect {
    /// The service or port of the policy.
    pub service: ServiceName,
    /// The routes that take the traffic.
    pub routes: Vec<ObjectKey>,
    /// The services that receive the traffic.
    pub others: BTreeSet<ServiceName>,
    /// The cause.
    pub cause: NoEffectCause,
}

/// The cause of a policy without effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoEffectCause {
    /// The routes forward nothing: they answer requests themselves, or have no backend with a weight.
    NoTraffic,
    /// Each service that the routes forward to has its own policy, such as this one.
    OwnPolicies(ServicePolicyName),
    /// Sidecars of the service's workloads enforce the policy, and no request reaches one of them.
    OtherWorkloads,
    /// The policy matches by request, and this port carries TCP, which has none.
    NoRequests(u16, PolicySide),
    /// The rules choose among the endpoints of the service, and all requests go to other services.
    OtherEndpoints,
    /// Each rule that forwards requests has its own retry settings.
    OwnRetries,
}

/// Formats a sentence that follows the policy's name.
impl fmt::Display for NoEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes: Vec<String> = self.routes.iter().map(ToString::to_string).collect();
        let verb =
            |one: &'static str, many: &'static str| if routes.len() == 1 { one } else { many };
        let others: Vec<String> = self.others.iter().map(ToString::to_string).collect();
        let (routes_shown, others) = (routes.join(" and "), others.join(", "));
        match &self.cause {
            NoEffectCause::NoTraffic => {
                let forward = verb("answers", "answer");
                write!(f, "{routes_shown} {forward} all requests to {}", self.service)?;
                f.write_str(" without forwarding any")
            }
            NoEffectCause::OwnPolicies(policy) => {
                let forward = verb("forwards", "forward");
                write!(f, "{routes_shown} {forward} all requests to {others}, and each of ")?;
                write!(f, "these has its own policy, such as {policy}")
            }
            NoEffectCause::OtherWorkloads => {
                let forward = verb("forwards", "forward");
                write!(f, "{routes_shown} {forward} all requests to {others}, and no workload ")?;
                write!(f, "of {} receives any", self.service)
            }
            NoEffectCause::OtherEndpoints => {
                let forward = verb("forwards", "forward");
                write!(f, "{routes_shown} {forward} all requests to {others}, and tag ")?;
                write!(f, "rules select from the endpoints of {} only", self.service)
            }
            NoEffectCause::OwnRetries => {
                let have = verb("has", "have");
                write!(f, "{routes_shown} {have} a `retry` in each rule that forwards requests ")?;
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
pub fn no_requests(services: &[ServiceName]) -> String {
    let services: Vec<String> = services.iter().map(ToString::to_string).collect();
    format!("the ports of {} carry TCP, in which requests are not visible", services.join(", "))
}

/// The objects around a policy.
pub trait PolicyContext<'a> {
    /// The policies that may be attached to a service.
    fn policies_of(&self, service: &ServiceName) -> Vec<&'a ServicePolicy>;

    /// Destinations of the traffic to a port.
    fn port_destinations(&self, service: &ServiceName, port: u16) -> Destinations;

    /// Returns true if another service shares a workload port with this one.
    fn shares_workloads(&self, service: &ServiceName, port: u16) -> bool;

    /// Returns true if a route of another service, or a gateway, forwards traffic to a port.
    fn is_backend(&self, service: &ServiceName, port: u16) -> bool;

    /// Returns true if a sidecar can see requests to a port: that of the client, or that of the server.
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
    /// The reason that a policy has no effect at a port where it is in force; `None` if it has one.
    pub(crate) fn detect_at<'a>(
        policy: &ServicePolicy,
        service: &ServiceName,
        port: u16,
        around: &impl PolicyContext<'a>,
    ) -> Option<Self> {
        let destinations = around.port_destinations(service, port);
        let side = if policy.rule.is_inbound() { PolicySide::Server } else { PolicySide::Client };
        if !policy.rule.acts_on_connections() && !around.sees_requests(service, port, side) {
            return Some(Self::without_requests(service, port, side));
        }
        if destinations.own || around.is_backend(service, port) {
            return None;
        }
        let all = around.policies_of(service);
        let traffic_policy = TrafficPolicy::for_port(all.iter().copied(), service, port);
        let is_it = |name: &ServicePolicyName| *name == policy.name;
        let decides = |name: Option<&ServicePolicyName>| name.is_some_and(is_it);
        let limits = PortLimits::for_port(all.iter().copied(), service, port).map(|it| it.policy);
        let guards = PortCheck::for_port(all.iter().copied(), service, port);
        let is_inbound =
            decides(limits.as_ref()) || guards.iter().any(|guard| is_it(&guard.policy));
        let is_of_requests = decides(traffic_policy.breaker.as_ref().map(|it| &it.policy))
            || decides(traffic_policy.faults.as_ref().map(|it| &it.policy))
            || decides(traffic_policy.hedging.as_ref().map(|it| &it.policy));
        let because = |cause| destinations.idle_reason(service, cause);
        if is_inbound && around.shares_workloads(service, port) {
            return None;
        }
        if destinations.others.is_empty() {
            return Some(because(NoEffectCause::NoTraffic));
        }
        if is_of_requests {
            return None;
        }
        if is_inbound {
            return Some(because(NoEffectCause::OtherWorkloads));
        }
        let mut own = None;
        for (other, port) in &destinations.others {
            let theirs = TrafficPolicy::for_port(around.policies_of(other), other, *port);
            let outlier_detection = theirs.outlier_detection.map(|it| it.policy);
            let balancing = theirs.balancing.map(|it| it.policy);
            let is_balancing = decides(traffic_policy.balancing.as_ref().map(|it| &it.policy));
            // A policy of the whole namespace applies to the backend as well.
            let theirs = if is_balancing { balancing } else { outlier_detection };
            own = Some(theirs.filter(|name| *name != policy.name)?);
        }
        own.map(|own| because(NoEffectCause::OwnPolicies(own)))
    }

    /// The reason that tag rules have no effect at a port where they are in force; `None` if they have one.
    pub fn of_tags<'a>(
        effects: TagEffects,
        service: &ServiceName,
        port: u16,
        around: &impl PolicyContext<'a>,
    ) -> Option<Self> {
        let TagEffects { by_request, by_caller, marks } = effects;
        let side = if marks { PolicySide::Server } else { PolicySide::Client };
        if !by_caller && !around.sees_requests(service, port, side) {
            return Some(Self::without_requests(service, port, side));
        }
        let destinations = around.port_destinations(service, port);
        if destinations.own
            || around.is_backend(service, port)
            || marks && around.shares_workloads(service, port)
        {
            return None;
        }
        let cause = match destinations.others.is_empty() {
            true => NoEffectCause::NoTraffic,
            false if by_request || by_caller => NoEffectCause::OtherEndpoints,
            false => NoEffectCause::OtherWorkloads,
        };
        Some(destinations.idle_reason(service, cause))
    }

    /// The reason that a retry policy has no effect at the ports of its services; a reason about routes
    /// precedes one about ports.
    pub fn of_all_retries<'a, 'b>(
        ports: impl IntoIterator<Item = (&'b ServiceName, u16)>,
        around: &impl PolicyContext<'a>,
    ) -> Option<Self> {
        let mut found: Option<Self> = None;
        for (service, port) in ports {
            let idle = Self::of_retries(service, port, around)?;
            let is_about_port = |it: &Self| matches!(it.cause, NoEffectCause::NoRequests(..));
            if found.as_ref().is_none_or(is_about_port) {
                found = Some(idle);
            }
        }
        found
    }

    /// The reason that a retry policy has no effect at a port of a service that clients call; `None` if it has
    /// one.
    fn of_retries<'a>(
        service: &ServiceName,
        port: u16,
        around: &impl PolicyContext<'a>,
    ) -> Option<Self> {
        if !around.sees_requests(service, port, PolicySide::Client) {
            return Some(Self::without_requests(service, port, PolicySide::Client));
        }
        let destinations = around.port_destinations(service, port);
        let cause = match () {
            () if !destinations.own && destinations.others.is_empty() => NoEffectCause::NoTraffic,
            () if destinations.own_retries => NoEffectCause::OwnRetries,
            () => return None,
        };
        Some(destinations.idle_reason(service, cause))
    }

    fn without_requests(service: &ServiceName, port: u16, side: PolicySide) -> Self {
        let cause = NoEffectCause::NoRequests(port, side);
        Destinations::default().idle_reason(service, cause)
    }
}

impl Destinations {
    fn idle_reason(&self, service: &ServiceName, cause: NoEffectCause) -> NoEffect {
        NoEffect {
            service: service.clone(),
            routes: self.routes.clone(),
            others: self.others.iter().map(|(other, _)| other.clone()).collect(),
            cause,
        }
    }
}

/// The effects of one tag rule object, or its lanes, at a port where they are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TagEffects {
    /// Rules that match requests choose among the endpoints.
    pub by_request: bool,
    /// Rules that match callers choose among the endpoints.
    pub by_caller: bool,
    /// Sidecars of the service's workloads mark requests.
    pub marks: bool,
}

impl TagEffects {
    /// The effects of rules and lanes.
    #[must_use]
    pub fn from_rules(rules: &TagRules, lanes: &[LaneRule]) -> Self {
        Self {
            by_request: !rules.rules.is_empty(),
            by_caller: !rules.by_caller.is_empty(),
            marks: !lanes.is_empty(),
        }
    }

    /// True if there are none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
