//! Grants: which routes of other namespaces may lead to the services of one.

use crate::name::{GrantName, Name, ServiceName};
use crate::route::RouteKind;

/// A Gateway API `ReferenceGrant`, as far as it is about routes and services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceGrant {
    /// Its name; it is about services of the same namespace.
    pub name: GrantName,
    /// The routes that it is for.
    pub from: Vec<GrantedRoutes>,
    /// The services that they may lead to; every service of the namespace when one is absent.
    pub to: Vec<Option<Name>>,
}

/// The routes of one kind in one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedRoutes {
    /// The kind.
    pub kind: RouteKind,
    /// The namespace.
    pub namespace: Name,
}

impl ReferenceGrant {
    /// Whether routes of this kind in this namespace may lead to a service.
    #[must_use]
    pub fn permits(&self, kind: RouteKind, namespace: &Name, service: &ServiceName) -> bool {
        let is_to = |to: &Option<Name>| to.as_ref().is_none_or(|name| *name == service.name);
        self.name.namespace == service.namespace
            && self.from.iter().any(|from| from.kind == kind && from.namespace == *namespace)
            && self.to.iter().any(is_to)
    }
}
