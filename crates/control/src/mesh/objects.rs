//! Converts a mesh from and to its objects, and checks if an object exists.

use leno_model::{Object, ObjectKey, RouteKind};

use super::{AffectedSet, Mesh};

impl Mesh {
    /// Returns the objects for explanations of requests, ordered by key within each kind. Unmeshed workloads
    /// are left out, and so are gateways, which contain private keys.
    pub(crate) fn explained_objects(&self) -> Vec<Object> {
        let workloads = self.workloads.values().cloned().map(Object::Workload);
        let services = self.services.values().cloned().map(Object::Service);
        let routes = self.http_routes.all_routes().cloned().map(|route| match route.kind {
            RouteKind::Grpc => Object::GrpcRoute(route),
            RouteKind::Http | RouteKind::Split | RouteKind::Tcp | RouteKind::Tls => {
                Object::HttpRoute(route)
            }
        });
        let tls_routes = self.tls_routes.all_routes().cloned().map(Object::TlsRoute);
        let targets = self.traffic_targets.values().cloned().map(Object::TrafficTarget);
        let groups = self.route_groups.values().cloned().map(Object::HttpRouteGroup);
        let tcp_routes = self.tcp_routes.values().cloned().map(Object::TcpRoute);
        let policies = self.policies.all_policies().cloned().map(Object::ServicePolicy);
        let config = Object::MeshConfig(self.config.clone());
        std::iter::once(config)
            .chain(workloads)
            .chain(services)
            .chain(routes)
            .chain(tls_routes)
            .chain(targets)
            .chain(groups)
            .chain(tcp_routes)
            .chain(policies)
            .chain(self.tags.all_objects())
            .chain(self.reference_grants.values().cloned().map(Object::ReferenceGrant))
            .chain(self.access_policies().cloned().map(Object::AccessPolicy))
            .chain(self.ingress_policies().cloned().map(Object::Ingress))
            .chain(self.egress_policies().cloned().map(Object::Egress))
            .chain(self.retry_policies().cloned().map(Object::Retry))
            .chain(self.access_certs().cloned().map(Object::AccessCert))
            .chain(self.traffic_splits.all_routes().cloned().map(Object::TrafficSplit))
            .chain(self.gateway_tcp_routes.all_routes().cloned().map(Object::GatewayTcpRoute))
            .collect()
    }

    /// True if an object of a kind with rules for requests exists; false for other kinds.
    pub(crate) fn has_object(&self, key: &ObjectKey) -> bool {
        match key {
            ObjectKey::HttpRoute(name) => {
                self.http_routes.has_route(&(RouteKind::Http, name.clone()))
            }
            ObjectKey::GrpcRoute(name) => {
                self.http_routes.has_route(&(RouteKind::Grpc, name.clone()))
            }
            ObjectKey::TlsRoute(name) => self.tls_routes.has_route(name),
            ObjectKey::GatewayTcpRoute(name) => self.gateway_tcp_routes.has_route(name),
            ObjectKey::TrafficSplit(name) => self.traffic_splits.has_route(name),
            ObjectKey::TrafficTarget(name) => self.traffic_targets.contains_key(name),
            ObjectKey::AccessPolicy(name) => self.access_policies.has_policy(name),
            ObjectKey::ServicePolicy(name) => self.policies.has_policy(name),
            ObjectKey::Retry(name) => self.retries.has_policy(name),
            ObjectKey::Ingress(name) => self.boundary.has_ingress(name),
            ObjectKey::TagRoute(_) | ObjectKey::SermantRouteRule(_) | ObjectKey::Lane(_) => {
                self.tags.has_object(key)
            }
            ObjectKey::Workload(_)
            | ObjectKey::Service(_)
            | ObjectKey::MeshConfig
            | ObjectKey::HttpRouteGroup(_)
            | ObjectKey::TcpRoute(_)
            | ObjectKey::ReferenceGrant(_)
            | ObjectKey::Egress(_)
            | ObjectKey::AccessCert(_)
            | ObjectKey::Gateway(_) => false,
        }
    }

    /// Returns all objects.
    #[cfg(test)]
    pub(crate) fn all_objects(&self) -> Vec<Object> {
        let gateways = self.gateways.values().map(|gateway| Object::Gateway((**gateway).clone()));
        let unmeshed_workloads = self.unmeshed_workloads().cloned().map(Object::Workload);
        self.explained_objects().into_iter().chain(unmeshed_workloads).chain(gateways).collect()
    }
}

impl FromIterator<Object> for Mesh {
    fn from_iter<I: IntoIterator<Item = Object>>(objects: I) -> Self {
        let mut mesh = Self::default();
        // No configuration was compiled from the new mesh, so the affected sets are ignored.
        for object in objects {
            mesh.upsert(object, &mut AffectedSet::default());
        }
        mesh
    }
}
