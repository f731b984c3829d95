//! Resolves conflicts between routes, splits and retry policies of one service. Among objects of one kind, the oldest
//! takes precedence, then the first by name. A `GRPCRoute` takes precedence over an `HTTPRoute`.

use crate::name::{RouteName, ServiceName};
use crate::retry_policy::RetryPolicy;
use crate::route::{HttpRoute, RouteParent};
use crate::tcp_rule::GatewayTcpRoute;
use crate::tls_route::TlsRoute;
use crate::traffic_split::TrafficSplit;

impl RouteParent {
    /// True if this parent includes a service port.
    #[must_use]
    pub fn includes_port(&self, service: &ServiceName, port: u16) -> bool {
        self.service == *service && self.port.is_none_or(|parent_port| parent_port == port)
    }
}

impl HttpRoute {
    /// True if this route replaces another one on a port that both are attached to: a `GRPCRoute` replaces an
    /// `HTTPRoute`. Routes of the same kind are merged. Routes in different namespaces apply to different clients and
    /// do not replace each other.
    #[must_use]
    pub fn precedes(&self, other: &Self) -> bool {
        self.kind > other.kind && self.name.namespace == other.name.namespace
    }
}

impl GatewayTcpRoute {
    /// True if this route replaces another one on a port that both are attached to.
    #[must_use]
    pub fn precedes(&self, other: &Self) -> bool {
        is_before((self.created, &self.rule.route), (other.created, &other.rule.route))
    }
}

impl TlsRoute {
    /// Returns the route that receives the traffic of this route's first host name, if routes with precedence have all
    /// host names of this route. `None` if this route receives the traffic of at least one host name. `other_routes`
    /// are the other routes of a port.
    pub fn find_conflict<'a>(
        &self,
        other_routes: impl Iterator<Item = &'a Self> + Clone,
    ) -> Option<&'a Self> {
        let own_precedence = (self.created, &self.rule.route);
        let preceding_routes = other_routes
            .filter(|route| is_before((route.created, &route.rule.route), own_precedence));
        let mut conflicting_routes = self.rule.hostnames.iter().map(|hostname| {
            let same_hostname =
                preceding_routes.clone().filter(|route| route.rule.hostnames.contains(hostname));
            same_hostname.min_by_key(|route| (route.created, &route.rule.route))
        });
        let first_conflict = conflicting_routes.next().flatten()?;
        conflicting_routes.all(|conflict| conflict.is_some()).then_some(first_conflict)
    }
}

impl TrafficSplit {
    /// True if this split replaces another one: both apply to all traffic of one root service, and this one takes
    /// precedence.
    #[must_use]
    pub fn precedes(&self, other: &Self) -> bool {
        let apply_to_all_clients = self.groups.is_none() && other.groups.is_none();
        apply_to_all_clients
            && self.root.service == other.root.service
            && self.precedence() < other.precedence()
    }
}

impl RetryPolicy {
    /// True if this policy replaces another one for requests from the same account to a service.
    #[must_use]
    pub fn precedes(&self, other: &Self, service: &ServiceName) -> bool {
        let apply_to_service = self.services.contains(service) && other.services.contains(service);
        apply_to_service && self.source == other.source && self.precedence() < other.precedence()
    }
}

/// Returns the reason that the first of two objects takes precedence, as the predicate of a sentence about the first
/// object. Both times are creation times in seconds.
#[must_use]
pub fn precedence_reason(first_created: i64, other_created: i64) -> &'static str {
    if first_created < other_created { "is older" } else { "is first in alphabetical order" }
}

/// True if the first route takes precedence over the other: the older one, then the first by name. Each parameter is
/// the creation time and the name of a route. Routes in different namespaces apply to different clients, so neither
/// takes precedence.
fn is_before(first: (i64, &RouteName), other: (i64, &RouteName)) -> bool {
    let ((_, first_name), (_, other_name)) = (first, other);
    first_name.namespace == other_name.namespace && first < other
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls_route::TlsRule;

    fn tls_route(name: &str, created: i64, hostnames: &[&str]) -> TlsRoute {
        let (namespace, name) = name.split_once('/').unwrap_or(("shop", name));
        let hostnames = hostnames.iter().map(|hostname| hostname.parse().unwrap()).collect();
        let route = RouteName::new(namespace, name).unwrap();
        let rule = TlsRule { route, hostnames, backends: Vec::new(), ungranted_weight: 0 };
        TlsRoute { parents: Vec::new(), rule, created }
    }

    #[test]
    fn a_tls_route_is_effective_while_one_hostname_is_unique() {
        let conflicting_name = |own: &TlsRoute, routes: &[&TlsRoute]| {
            own.find_conflict(routes.iter().copied()).map(|route| route.rule.route.to_string())
        };
        let own = tls_route("own", 5, &["a.b", "*.c"]);
        let (first, second) =
            (tls_route("first", 3, &["a.b"]), tls_route("second", 4, &["a.b", "*.c"]));
        let expected_name = |name: &str| Some(name.to_owned());
        assert_eq!(conflicting_name(&own, &[&own]), None);
        assert_eq!(conflicting_name(&own, &[&own, &first]), None);
        assert_eq!(conflicting_name(&own, &[&second, &first, &own]), expected_name("shop/first"));
        assert_eq!(conflicting_name(&first, &[&second, &first, &own]), None);
        // A name below another one is a different name, and routes of other namespaces apply to other clients.
        assert_eq!(conflicting_name(&tls_route("x", 5, &["a.c"]), &[&second]), None);
        assert_eq!(conflicting_name(&own, &[&tls_route("bank/it", 1, &["a.b", "*.c"])]), None);
        // Of the same age, the first by name takes precedence.
        assert_eq!(
            conflicting_name(&own, &[&tls_route("it", 5, &["a.b", "*.c"])]),
            expected_name("shop/it")
        );
        assert_eq!(conflicting_name(&own, &[&tls_route("zoo", 5, &["a.b", "*.c"])]), None);
    }
}
