//! Indexes the routes of one type (`HTTPRoute` and `GRPCRoute`, `TLSRoute`, `TCPRoute` or `TrafficSplit`) by
//! their parent and backend services.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{
    GatewayTcpRoute, HttpRoute, Name, RouteParent, ServiceName, TlsRoute, TrafficSplit,
};

use super::index::Index;

/// An object that attaches to services and refers to backends.
pub(crate) trait AttachedRoute: PartialEq {
    /// Returns the namespace of the object.
    fn namespace(&self) -> &Name;

    /// Returns the services that the object attaches to.
    fn parents(&self) -> &[RouteParent];

    /// Returns the services that the object refers to as backends.
    fn backend_names(&self) -> impl Iterator<Item = &ServiceName>;

    /// Returns the creation time of the object, in seconds since 1970; 0 for kinds that are not ordered by it.
    fn creation_time(&self) -> i64 {
        0
    }
}

impl AttachedRoute for HttpRoute {
    fn namespace(&self) -> &Name {
        &self.name.namespace
    }

    fn parents(&self) -> &[RouteParent] {
        &self.parents
    }

    fn backend_names(&self) -> impl Iterator<Item = &ServiceName> {
        let rules = self.rules.iter();
        let backends = rules.flat_map(|rule| rule.backends.iter().chain(&rule.actions.mirrors));
        backends.map(|backend| &backend.service)
    }

    fn creation_time(&self) -> i64 {
        self.created
    }
}

impl AttachedRoute for TlsRoute {
    fn namespace(&self) -> &Name {
        &self.rule.route.namespace
    }

    fn parents(&self) -> &[RouteParent] {
        &self.parents
    }

    fn backend_names(&self) -> impl Iterator<Item = &ServiceName> {
        self.rule.backends.iter().map(|backend| &backend.service)
    }

    fn creation_time(&self) -> i64 {
        self.created
    }
}

impl AttachedRoute for GatewayTcpRoute {
    fn namespace(&self) -> &Name {
        &self.rule.route.namespace
    }

    fn parents(&self) -> &[RouteParent] {
        &self.parents
    }

    fn backend_names(&self) -> impl Iterator<Item = &ServiceName> {
        self.rule.backends.iter().map(|backend| &backend.service)
    }

    fn creation_time(&self) -> i64 {
        self.created
    }
}

impl AttachedRoute for TrafficSplit {
    fn namespace(&self) -> &Name {
        &self.name.namespace
    }

    fn parents(&self) -> &[RouteParent] {
        std::slice::from_ref(&self.root)
    }

    fn backend_names(&self) -> impl Iterator<Item = &ServiceName> {
        self.backends.iter().map(|backend| &backend.service)
    }
}

/// Routes of one type, by their key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteAttachments<K, R> {
    routes: BTreeMap<K, R>,
    routes_by_parent: Index<ServiceName, K>,
    routes_by_backend: Index<ServiceName, K>,
}

impl<K, R> Default for RouteAttachments<K, R> {
    fn default() -> Self {
        Self {
            routes: BTreeMap::new(),
            routes_by_parent: Index::default(),
            routes_by_backend: Index::default(),
        }
    }
}

impl<K: Ord + Clone, R: AttachedRoute> RouteAttachments<K, R> {
    /// Returns all routes.
    pub(crate) fn all_routes(&self) -> impl ExactSizeIterator<Item = &R> {
        self.routes.values()
    }

    /// True if a route with this key exists.
    pub(crate) fn has_route(&self, key: &K) -> bool {
        self.routes.contains_key(key)
    }

    /// Returns the routes attached to a service or one of its ports.
    pub(crate) fn attached_to(&self, service: &ServiceName) -> impl Iterator<Item = &R> {
        let keys = self.routes_by_parent.values_for(service);
        keys.filter_map(|key| self.routes.get(key))
    }

    /// Returns the routes attached to a port that apply to clients of the namespace `consumer`. These are the
    /// routes of the namespace `consumer` (consumer routes). If there are no consumer routes, or `consumer` is
    /// `None`, these are the routes of the service's namespace (producer routes). The oldest route comes first;
    /// routes of the same age are in order of their names.
    pub(crate) fn routes_at_port(
        &self,
        service: &ServiceName,
        port: u16,
        consumer: Option<&Name>,
    ) -> impl Iterator<Item = &R> {
        let is_attached = move |route: &&R| {
            let mut parents = route.parents().iter();
            parents.any(|parent| {
                parent.service == *service
                    && parent.port.is_none_or(|parent_port| parent_port == port)
            })
        };
        let consumer = consumer.filter(|name| {
            **name != service.namespace
                && self
                    .attached_to(service)
                    .filter(is_attached)
                    .any(|route| route.namespace() == *name)
        });
        let namespace = consumer.cloned().unwrap_or_else(|| service.namespace.clone());
        let mut routes: Vec<&R> = self
            .attached_to(service)
            .filter(is_attached)
            .filter(|route| *route.namespace() == namespace)
            .collect();
        routes.sort_by_key(|route| route.creation_time());
        routes.into_iter()
    }

    /// True if a route of `namespace` is attached to a service of another namespace (a consumer route).
    pub(crate) fn has_consumers(&self, service: &ServiceName, namespace: &Name) -> bool {
        *namespace != service.namespace
            && self.attached_to(service).any(|route| route.namespace() == namespace)
    }

    /// Returns the services with a route that has this backend.
    pub(crate) fn parents_of_backend(
        &self,
        backend: &ServiceName,
    ) -> impl Iterator<Item = &ServiceName> {
        let parents = self.routes_to(backend).flat_map(|route| route.parents());
        parents.map(|parent| &parent.service)
    }

    /// Returns the routes with this backend.
    pub(crate) fn routes_to(&self, backend: &ServiceName) -> impl Iterator<Item = &R> {
        self.routes_by_backend.values_for(backend).filter_map(|key| self.routes.get(key))
    }

    /// Returns the parent services of the routes in other namespaces that have a backend in `namespace`.
    pub(crate) fn parents_with_backend_in(
        &self,
        namespace: &Name,
    ) -> impl Iterator<Item = ServiceName> {
        let routes = self.routes.values().filter(move |route| {
            let is_inside = |backend: &ServiceName| backend.namespace == *namespace;
            route.namespace() != namespace && route.backend_names().any(is_inside)
        });
        routes.flat_map(|route| route.parents()).map(|parent| parent.service.clone())
    }

    /// Adds, replaces or removes (`None`) the route with this key. Returns the services with changed routing.
    pub(crate) fn set_route(&mut self, key: &K, new: Option<R>) -> BTreeSet<ServiceName> {
        let old = self.routes.remove(key);
        let differs = old != new;
        let mut parents = BTreeSet::new();
        if let Some(old) = &old {
            for parent in old.parents() {
                self.routes_by_parent.remove(&parent.service, key);
                parents.insert(parent.service.clone());
            }
            for backend in old.backend_names() {
                self.routes_by_backend.remove(backend, key);
            }
        }
        if let Some(new) = new {
            for parent in new.parents() {
                self.routes_by_parent.insert(&parent.service, key);
                parents.insert(parent.service.clone());
            }
            for backend in new.backend_names() {
                self.routes_by_backend.insert(backend, key);
            }
            self.routes.insert(key.clone(), new);
        }
        match differs {
            true => parents,
            false => BTreeSet::new(),
        }
    }
}
