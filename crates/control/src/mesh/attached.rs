//! Routes that are decided alike, and which services they are attached to and lead to.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{HttpRoute, RouteParent, ServiceName, TlsRoute, WeightedBackend};

use super::index::Index;

/// What is attached to services and leads to backends.
pub(crate) trait Route: PartialEq {
    /// The services whose traffic it decides.
    fn parents(&self) -> &[RouteParent];

    /// Where it leads.
    fn backends(&self) -> impl Iterator<Item = &WeightedBackend>;
}

impl Route for HttpRoute {
    fn parents(&self) -> &[RouteParent] {
        &self.parents
    }

    fn backends(&self) -> impl Iterator<Item = &WeightedBackend> {
        self.rules.iter().flat_map(|rule| &rule.backends)
    }
}

impl Route for TlsRoute {
    fn parents(&self) -> &[RouteParent] {
        &self.parents
    }

    fn backends(&self) -> impl Iterator<Item = &WeightedBackend> {
        self.rule.backends.iter()
    }
}

/// Routes that are decided alike, by what identifies them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attached<K, R> {
    routes: BTreeMap<K, R>,
    by_parent: Index<ServiceName, K>,
    by_backend: Index<ServiceName, K>,
}

impl<K, R> Default for Attached<K, R> {
    fn default() -> Self {
        Self { routes: BTreeMap::new(), by_parent: Index::default(), by_backend: Index::default() }
    }
}

impl<K: Ord + Clone, R: Route> Attached<K, R> {
    /// All of them.
    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = &R> {
        self.routes.values()
    }

    /// Those attached to a service or one of its ports.
    pub(crate) fn of(&self, service: &ServiceName) -> impl Iterator<Item = &R> {
        let names = self.by_parent.of(service);
        names.filter_map(|name| self.routes.get(name))
    }

    /// Those attached to a port.
    pub(crate) fn of_port(&self, service: &ServiceName, port: u16) -> impl Iterator<Item = &R> {
        self.of(service).filter(move |route| {
            let mut parents = route.parents().iter();
            parents.any(|p| p.service == *service && p.port.is_none_or(|number| number == port))
        })
    }

    /// The services that some route leads from to this one.
    pub(crate) fn leading_to(&self, backend: &ServiceName) -> impl Iterator<Item = &ServiceName> {
        let routes = self.by_backend.of(backend);
        let routes = routes.filter_map(|name| self.routes.get(name));
        routes.flat_map(|route| route.parents().iter().map(|parent| &parent.service))
    }

    /// Puts a route in place of the one with this name, or takes that away. Returns the services
    /// whose traffic is decided differently now.
    pub(crate) fn set(&mut self, name: &K, new: Option<R>) -> BTreeSet<ServiceName> {
        let old = self.routes.remove(name);
        let differs = old != new;
        let mut parents = BTreeSet::new();
        if let Some(old) = &old {
            for parent in old.parents() {
                self.by_parent.remove(&parent.service, name);
                parents.insert(parent.service.clone());
            }
            for backend in old.backends() {
                self.by_backend.remove(&backend.service, name);
            }
        }
        if let Some(new) = new {
            for parent in new.parents() {
                self.by_parent.insert(&parent.service, name);
                parents.insert(parent.service.clone());
            }
            for backend in new.backends() {
                self.by_backend.insert(&backend.service, name);
            }
            self.routes.insert(name.clone(), new);
        }
        match differs {
            true => parents,
            false => BTreeSet::new(),
        }
    }
}
