//! Reference grants: permissions for routes of other namespaces to forward to the services of a namespace.

use crate::name::{GrantName, Name, ServiceName};
use crate::route::RouteKind;

/// A Gateway API `ReferenceGrant`, limited to routes and services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceGrant {
    /// The name of the grant, which applies to services of the same namespace.
    pub name: GrantName,
    /// The routes that the grant permits.
    pub from: Vec<GrantedRoutes>,
    /// The services that the routes may forward to. A `None` entry permits every service of the namespace.
    pub to: Vec<Option<Name>>,
}

/// The routes of one kind in one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedRoutes {
    /// The kind of the routes.
    pub kind: RouteKind,
    /// The namespace of the routes.
    pub namespace: Name,
}

impl ReferenceGrant {
    /// True if routes of this kind in this namespace may forward to a service.
    #[must_use]
    pub fn permits_route(&self, kind: RouteKind, namespace: &Name, service: &ServiceName) -> bool {
        let matches_service =
            |to: &Option<Name>| to.as_ref().is_none_or(|name| *name == service.name);
        self.name.namespace == service.namespace
            && self
                .from
                .iter()
                .any(|granted| granted.kind == kind && granted.namespace == *namespace)
            && self.to.iter().any(matches_service)
    }
}
