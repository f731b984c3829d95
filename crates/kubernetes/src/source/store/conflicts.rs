//! Finds conflicts between objects in force: routes at a port, traffic splits, tag rules, and retries. Statuses
//! report the object that takes precedence.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use leno_model::{
    AttachedRoutes, Name, Object, ObjectKey, RetryPolicy, RouteParent, SermantRouteRule,
    SermantRules, Service, ServiceAccount, ServiceName, TagRoute, TagRules, TagScope, TrafficSplit,
    precedence_reason,
};

use super::ObjectStore;
use crate::read::{preference_name, service_of_preference};

/// The objects in force, indexed by target to find conflicts efficiently.
#[derive(Default)]
pub(super) struct ConflictIndex<'a> {
    /// Gateway API routes, by the services that they are attached to.
    routes: BTreeMap<&'a ServiceName, Vec<&'a Object>>,
    /// Traffic splits, by the service that they split.
    splits: BTreeMap<&'a ServiceName, Vec<&'a TrafficSplit>>,
    /// Retry policies, by the account of their clients.
    retries: BTreeMap<&'a ServiceAccount, Vec<&'a RetryPolicy>>,
    /// Tag rules by target, regardless of the port.
    tag_routes: BTreeMap<TagScope, Vec<&'a TagRoute>>,
    /// The Sermant rule that takes precedence, by target, regardless of the port.
    sermant_rules: BTreeMap<TagScope, &'a SermantRouteRule>,
    /// A cache of the tag rules in force at a port, which are needed for many objects.
    in_force_cache: RefCell<ObjectsByPort>,
}

/// Objects by the port of a service where they are in force.
type ObjectsByPort = BTreeMap<(ServiceName, u16), Rc<[ObjectKey]>>;

impl<'a> ConflictIndex<'a> {
    /// Adds an object. Within each kind, objects are added in order of their names.
    pub(super) fn add_object(&mut self, object: &'a Object) {
        for parent in route_parents(object) {
            let routes = self.routes.entry(&parent.service).or_default();
            // A route may be attached to several ports of a service.
            if routes.last().is_none_or(|last| !std::ptr::eq(*last, object)) {
                routes.push(object);
            }
        }
        match object {
            Object::TrafficSplit(split) => {
                self.splits.entry(&split.root.service).or_default().push(split);
            }
            Object::Retry(policy) => {
                self.retries.entry(&policy.source).or_default().push(policy);
            }
            Object::TagRoute(route) => {
                self.tag_routes.entry(without_port(&route.scope)).or_default().push(route);
            }
            Object::SermantRouteRule(rule) => {
                for (scope, _) in &rule.entries {
                    let first_rule = self.sermant_rules.entry(without_port(scope)).or_insert(rule);
                    if rule.precedence() < first_rule.precedence() {
                        *first_rule = rule;
                    }
                }
            }
            // Routes were added above. Other kinds have no conflicts.
            _ => {}
        }
    }

    /// Returns the routes and splits that are attached to a service.
    pub(super) fn attached_routes(&self, service: &ServiceName) -> AttachedRoutes<'a> {
        let mut attached_routes = AttachedRoutes::default();
        attached_routes.splits.extend(self.splits.get(service).into_iter().flatten());
        for route in self.routes.get(service).into_iter().flatten() {
            match route {
                Object::HttpRoute(route) | Object::GrpcRoute(route) => {
                    attached_routes.request_routes.push(route)
                }
                Object::GatewayTcpRoute(route) => attached_routes.tcp_routes.push(route),
                Object::TlsRoute(route) => attached_routes.tls_routes.push(route),
                // No other kind has parents.
                _ => {}
            }
        }
        attached_routes
    }

    /// Returns true if a route of another service forwards requests to a port. `is_opaque` returns true if the
    /// same port of a service carries opaque TCP.
    pub(super) fn forwards_requests_to(
        &self,
        service: &ServiceName,
        port: u16,
        is_opaque: impl Fn(&ServiceName) -> bool,
    ) -> bool {
        let forwards = |route: &&Object| match route {
            Object::HttpRoute(route) | Object::GrpcRoute(route) => route.forwards_to(service, port),
            _ => false,
        };
        let mut splits = self.splits.values().flatten();
        splits.any(|split| split.forwards_to(service) && !is_opaque(&split.root.service))
            || self.routes.values().flatten().any(forwards)
    }

    /// Returns true if a route of another service forwards traffic to a port.
    pub(super) fn forwards_to(&self, service: &ServiceName, port: u16) -> bool {
        let forwards = |route: &&Object| match route {
            Object::HttpRoute(route) | Object::GrpcRoute(route) => route.forwards_to(service, port),
            Object::GatewayTcpRoute(route) => route.forwards_to(service, port),
            Object::TlsRoute(route) => route.forwards_to(service, port),
            _ => false,
        };
        self.splits.values().flatten().any(|split| split.forwards_to(service))
            || self.routes.values().flatten().any(forwards)
    }

    /// Returns the routes of a namespace that are attached to a port.
    pub(super) fn routes_at_port(
        &self,
        service: &ServiceName,
        port: u16,
        namespace: &Name,
    ) -> Vec<&'a Object> {
        let routes = self.routes.get(service).into_iter().flatten().copied();
        let is_attached = |route: &&Object| {
            let mut parents = route_parents(route).iter();
            route_namespace(route) == Some(namespace)
                && parents.any(|parent| parent.includes_port(service, port))
        };
        routes.filter(is_attached).collect()
    }

    /// Returns the object that takes precedence over a route at a port, if any.
    fn preceding_route(
        &self,
        route: &Object,
        service: &ServiceName,
        port: u16,
    ) -> Option<ObjectKey> {
        let routes = self.routes_at_port(service, port, route_namespace(route)?);
        let mut routes = routes.iter().copied();
        match route {
            Object::HttpRoute(own_route) | Object::GrpcRoute(own_route) => {
                let precedes = |object: &&Object| match object {
                    Object::HttpRoute(other) | Object::GrpcRoute(other) => {
                        other.precedes(own_route)
                    }
                    _ => false,
                };
                routes.find(precedes).map(Object::object_key)
            }
            Object::GatewayTcpRoute(own_route) => {
                let preceding_routes = routes.filter_map(|object| match object {
                    Object::GatewayTcpRoute(other) => {
                        Some(other).filter(|other| other.precedes(own_route))
                    }
                    _ => None,
                });
                let first_route =
                    preceding_routes.min_by_key(|route| (route.created, &route.rule.route))?;
                Some(ObjectKey::GatewayTcpRoute(first_route.rule.route.clone()))
            }
            Object::TlsRoute(own_route) => {
                let tls_routes = routes.filter_map(|object| match object {
                    Object::TlsRoute(other) => Some(other),
                    _ => None,
                });
                own_route
                    .find_conflict(tls_routes)
                    .map(|other| ObjectKey::TlsRoute(other.rule.route.clone()))
            }
            _ => None,
        }
    }

    /// Returns true if the lanes of an object, which mark requests with headers, apply to the service of a scope. The scope
    /// has no port.
    pub(super) fn applies_lanes(&self, object: &Object, scope: &TagScope) -> bool {
        let Object::SermantRouteRule(own_rule) = object else { return false };
        let is_first =
            self.sermant_rules.get(scope).is_some_and(|first| first.name == own_rule.name);
        let has_lanes = |rules: &SermantRules| !rules.lanes.is_empty();
        matches!(scope, TagScope::Service(..))
            && is_first
            && rules_for_scope(own_rule, scope).is_some_and(has_lanes)
    }
}

impl ObjectStore {
    /// Describes the object that takes precedence over a route at all ports of one of its parents; `None` if
    /// the route is in force at a port.
    pub(super) fn find_route_conflict(
        &self,
        route: &Object,
        service: &ServiceName,
        port: Option<u16>,
        conflicts: &ConflictIndex<'_>,
    ) -> Option<String> {
        let ports = self.ports_of_service(service, port);
        let preceding_routes: Option<Vec<ObjectKey>> =
            ports.map(|port| conflicts.preceding_route(route, service, port)).collect();
        let preceding_route = preceding_routes?.into_iter().next()?;
        Some(format!("{preceding_route} is attached to the same port and takes precedence"))
    }

    /// Describes the object that takes precedence over a split at all ports of its root; `None` if there is no
    /// such object.
    pub(super) fn find_split_conflict(
        &self,
        split: &TrafficSplit,
        conflicts: &ConflictIndex<'_>,
    ) -> Option<String> {
        let root = &split.root.service;
        let splits = conflicts.splits.get(root).into_iter().flatten();
        let preceding_splits = splits.filter(|other| other.precedes(split));
        if let Some(preceding_split) = preceding_splits.min_by_key(|other| other.precedence()) {
            let (name, reason) =
                (&preceding_split.name, precedence_reason(preceding_split.created, split.created));
            let preceding_object = Object::TrafficSplit((*preceding_split).clone());
            let preceding_error = self
                .missing_reference(&preceding_object)
                .map(|error| format!("; it has an error of its own: {error}"));
            let preceding_error = preceding_error.unwrap_or_default();
            return Some(format!(
                "TrafficSplit {name} is for the same service, and {reason}{preceding_error}"
            ));
        }
        let ports = self.ports_of_service(root, None);
        let attached_route =
            |port| conflicts.routes_at_port(root, port, &root.namespace).first().copied();
        let routes: Option<Vec<&Object>> = ports.map(attached_route).collect();
        let first_route = routes?.into_iter().next()?;
        let missing_backend = self.missing_backend(first_route);
        let route_error =
            missing_backend.map(|error| format!("; it has an error of its own: {error}"));
        let (route_key, route_error) = (first_route.object_key(), route_error.unwrap_or_default());
        Some(format!("{route_key} is attached to {root} and takes precedence{route_error}"))
    }

    /// Describes the object that takes precedence over a retry policy for all of its existing services; `None`
    /// if there is no such object.
    pub(super) fn find_retry_conflict(
        &self,
        policy: &RetryPolicy,
        conflicts: &ConflictIndex<'_>,
    ) -> Option<String> {
        let policies_of_source = || conflicts.retries.get(&policy.source).into_iter().flatten();
        let existing_services =
            policy.services.iter().filter(|service| self.services.get(service).is_some());
        let policies_by_service = existing_services.map(|service| {
            let preceding = policies_of_source().filter(|other| other.precedes(policy, service));
            preceding.min_by_key(|other| other.precedence())
        });
        let preceding_policies: Option<Vec<_>> = policies_by_service.collect();
        let preceding_policy = *preceding_policies?.first()?;
        let (name, reason) =
            (&preceding_policy.name, precedence_reason(preceding_policy.created, policy.created));
        Some(format!("Retry {name} applies to the same requests, and {reason}"))
    }

    /// Describes the object that takes precedence over tag rules for all of their targets; `None` if the rules
    /// are in force at a target.
    pub(super) fn find_tag_conflict(
        &self,
        object: &Object,
        conflicts: &ConflictIndex<'_>,
    ) -> Option<String> {
        let own_key = object.object_key();
        let mut first_in_force = None;
        for scope in target_scopes(object) {
            let only_port = match scope {
                TagScope::Service(_, only_port) => *only_port,
                TagScope::Namespace(_) | TagScope::Mesh => None,
            };
            for service in self.services_of(scope) {
                for port in self.ports_of_service(&service.name, only_port) {
                    let rules_in_force = self.rules_in_force(&service.name, port, conflicts);
                    if rules_in_force.contains(&own_key)
                        || conflicts.applies_lanes(object, &without_port(scope))
                    {
                        return None;
                    }
                    first_in_force = first_in_force.or_else(|| rules_in_force.first().cloned());
                }
            }
        }
        let first_in_force = first_in_force?;
        Some(match &first_in_force {
            // A generated rule, without an object in the cluster.
            ObjectKey::TagRoute(name) if self.custom_resources.get(&first_in_force).is_none() => {
                let service = service_of_preference(name)?;
                format!("the traffic distribution of the Service {service} takes precedence")
            }
            _ => format!("{first_in_force} takes precedence"),
        })
    }

    /// Returns the objects with tag rules in force at a port.
    pub(super) fn rules_in_force(
        &self,
        service: &ServiceName,
        port: u16,
        conflicts: &ConflictIndex<'_>,
    ) -> Rc<[ObjectKey]> {
        let service_port = (service.clone(), port);
        let mut cache = conflicts.in_force_cache.borrow_mut();
        cache
            .entry(service_port)
            .or_insert_with(|| self.compute_rules_in_force(service, port, conflicts))
            .clone()
    }

    /// Computes the objects with tag rules in force at a port, in order of their rules.
    fn compute_rules_in_force(
        &self,
        service: &ServiceName,
        port: u16,
        conflicts: &ConflictIndex<'_>,
    ) -> Rc<[ObjectKey]> {
        let zone_rule = preference_name(service).and_then(|name| {
            let is_user_defined =
                self.custom_resources.get(&ObjectKey::TagRoute(name.clone())).is_some();
            self.zone_rule(&name).filter(|_| !is_user_defined)
        });
        let service_scope = TagScope::Service(service.clone(), None);
        let scopes =
            [service_scope, TagScope::Namespace(service.namespace.clone()), TagScope::Mesh];
        let specific_rules = TagRules::select_most_specific(scopes.iter().flat_map(|scope| {
            let user_rules = conflicts.tag_routes.get(scope).into_iter().flatten().copied();
            let port_rules = user_rules.filter(|route| match route.scope {
                TagScope::Service(_, only_port) => {
                    only_port.is_none_or(|only_port| only_port == port)
                }
                TagScope::Namespace(_) | TagScope::Mesh => true,
            });
            let generated_rules = zone_rule.iter().filter_map(|object| match object {
                Object::TagRoute(route) => Some(route).filter(|route| route.scope == *scope),
                _ => None,
            });
            let sermant_rule = conflicts.sermant_rules.get(scope);
            let scope_rules = sermant_rule.and_then(|rule| rules_for_scope(rule, scope));
            let sermant_rules = scope_rules.map(|rules| rules.rules.clone());
            [TagRules::merge_routes(port_rules.chain(generated_rules))]
                .into_iter()
                .chain(sermant_rules)
        }));
        let request_rules = specific_rules.rules.iter().map(|rule| rule.origin.object_key());
        request_rules
            .chain(specific_rules.caller_rules.iter().map(|rule| rule.origin.object_key()))
            .collect()
    }

    /// Returns the services that a scope covers.
    pub(super) fn services_of<'a>(
        &'a self,
        scope: &'a TagScope,
    ) -> Box<dyn Iterator<Item = &'a Service> + 'a> {
        match scope {
            TagScope::Service(service, _) => Box::new(self.services.get(service).into_iter()),
            TagScope::Namespace(namespace) => Box::new(self.services.in_namespace(namespace)),
            TagScope::Mesh => Box::new(self.services.all()),
        }
    }

    /// Returns the ports of a service; only `only_port` if it is set.
    pub(super) fn ports_of_service(
        &self,
        service: &ServiceName,
        only_port: Option<u16>,
    ) -> impl Iterator<Item = u16> {
        let ports = self.services.get(service).into_iter().flat_map(|service| &service.ports);
        ports
            .map(|port| port.port)
            .filter(move |port| only_port.is_none_or(|only_port| only_port == *port))
    }
}

/// Returns the targets of tag rules.
fn target_scopes(object: &Object) -> Vec<&TagScope> {
    match object {
        Object::TagRoute(route) => vec![&route.scope],
        Object::SermantRouteRule(rule) => rule.entries.iter().map(|(scope, _)| scope).collect(),
        _ => Vec::new(),
    }
}

/// Returns the same scope for every port.
pub(super) fn without_port(scope: &TagScope) -> TagScope {
    match scope {
        TagScope::Service(service, _) => TagScope::Service(service.clone(), None),
        TagScope::Namespace(_) | TagScope::Mesh => scope.clone(),
    }
}

/// Returns the rules of a Sermant rule for a scope.
fn rules_for_scope<'a>(
    rule: &'a SermantRouteRule,
    scope_without_port: &TagScope,
) -> Option<&'a SermantRules> {
    let mut entries = rule.entries.iter();
    entries.find(|(scope, _)| without_port(scope) == *scope_without_port).map(|(_, rules)| rules)
}

/// Returns the parents of a Gateway API route.
fn route_parents(object: &Object) -> &[RouteParent] {
    match object {
        Object::HttpRoute(route) | Object::GrpcRoute(route) => &route.parents,
        Object::TlsRoute(route) => &route.parents,
        Object::GatewayTcpRoute(route) => &route.parents,
        _ => &[],
    }
}

fn route_namespace(route: &Object) -> Option<&Name> {
    match route {
        Object::HttpRoute(route) | Object::GrpcRoute(route) => Some(&route.name.namespace),
        Object::TlsRoute(route) => Some(&route.rule.route.namespace),
        Object::GatewayTcpRoute(route) => Some(&route.rule.route.namespace),
        _ => None,
    }
}
