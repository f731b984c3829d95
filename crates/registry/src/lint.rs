//! Warns about problems between objects that are valid by themselves: references to missing objects, and rules without
//! effect. `leno check` prints the warnings, and the control plane reports them.

mod access;
mod anchoring;
mod exact_path;
mod external_authorization;
mod gateway_tcp_route;
mod ingress_egress;
mod repeated_matches;
mod retry;
mod service_policy;
mod suggestion;
mod tags;
mod traffic_split;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use leno_model::{
    AccessPolicy, Gateway, GatewayTcpRoute, HttpRoute, HttpRouteGroup, IngressPolicy, MeshConfig,
    Name, Object, ObjectKey, ReferenceGrant, RetryPolicy, RouteGroupName, RouteKind, RouteParent,
    RouteRule, Service, ServiceAccount, ServiceName, ServicePolicy, TagRouteName, TagScope,
    TargetPort, TargetRule, TcpRouteName, TcpRule, TlsRoute, TlsRule, TrafficSplit, TrafficTarget,
    WeightedBackend, Workload, is_only_parent,
};

use self::suggestion::{existing_objects, suggest_name};
use crate::rejections::{DocumentLocation, Warning};
use crate::suggest::{closest_word, join_with_or};

/// Returns warnings about these objects as a whole. They do not reject an object, because a missing object may be in
/// another source or be added later.
#[must_use]
pub fn lint_objects(objects: &[Object]) -> Vec<Warning> {
    let index = ObjectIndex::from_objects(objects);
    let mut warnings = Vec::new();
    for object in objects {
        let mut collector = WarningCollector { key: object.object_key(), warnings: &mut warnings };
        match object {
            Object::Workload(workload) => index.lint_workload(workload, &mut collector),
            Object::Service(service) => index.lint_service(service, &mut collector),
            Object::HttpRoute(route) => {
                index.lint_route(route, &mut collector);
                index.lint_conflicts(route, &mut collector);
                index.lint_repeated_matches(route, &mut collector);
                anchoring::lint_route(route, &mut collector);
            }
            Object::GrpcRoute(route) => {
                index.lint_route(route, &mut collector);
                index.lint_repeated_matches(route, &mut collector);
            }
            Object::TlsRoute(route) => index.lint_tls_route(route, &mut collector),
            Object::TrafficTarget(target) => index.lint_target(target, &mut collector),
            Object::ServicePolicy(policy) => {
                index.lint_service_policy(policy, &mut collector);
                repeated_matches::lint_policy(policy, &mut collector);
                anchoring::lint_policy(policy, &mut collector);
                exact_path::lint_policy(policy, &mut collector);
            }
            Object::TagRoute(route) => index.lint_tag_route(route, &mut collector),
            Object::SermantRouteRule(rule) => index.lint_sermant(rule, &mut collector),
            Object::Lane(lane) => {
                index.lint_lane(lane, &mut collector);
                repeated_matches::lint_lane(lane, &mut collector);
            }
            Object::MeshConfig(config) => index.lint_mesh_config(config, &mut collector),
            Object::AccessPolicy(policy) => {
                index.lint_access_policy(policy, &mut collector);
                anchoring::lint_access(policy, &mut collector);
                exact_path::lint_access(policy, &mut collector);
            }
            Object::TrafficSplit(split) => index.lint_split(split, &mut collector),
            Object::GatewayTcpRoute(route) => index.lint_gateway_tcp_route(route, &mut collector),
            Object::HttpRouteGroup(group) => anchoring::lint_group(group, &mut collector),
            Object::AccessCert(cert) => index.lint_access_cert(cert, &mut collector),
            // These objects are only looked up in the checks of other objects.
            Object::TcpRoute(_) | Object::ReferenceGrant(_) | Object::Gateway(_) => {}
            Object::Ingress(policy) => index.lint_ingress(policy, &mut collector),
            Object::Egress(policy) => index.lint_egress(policy, &mut collector),
            Object::Retry(policy) => index.lint_retry(policy, &mut collector),
        }
    }
    index.lint_listeners(&mut warnings);
    warnings
}

/// The objects, indexed by the names used in references.
#[derive(Default)]
struct ObjectIndex<'a> {
    workloads: Vec<&'a Workload>,
    services: BTreeMap<&'a ServiceName, &'a Service>,
    route_groups: BTreeMap<&'a RouteGroupName, &'a HttpRouteGroup>,
    tcp_routes: BTreeSet<&'a TcpRouteName>,
    grpc_routes: Vec<&'a HttpRoute>,
    /// All `HTTPRoute`s and `GRPCRoute`s.
    routes: Vec<&'a HttpRoute>,
    tls_routes: Vec<&'a TlsRoute>,
    /// The matches of all routes in `routes`.
    route_matches: repeated_matches::RepeatedMatches<'a>,
    /// The Gateway API routes: key, namespace and parents.
    attached_routes: Vec<(ObjectKey, &'a Name, &'a [RouteParent])>,
    traffic_splits: Vec<&'a TrafficSplit>,
    gateway_tcp_routes: Vec<&'a GatewayTcpRoute>,
    service_policies: Vec<&'a ServicePolicy>,
    gateways: Vec<&'a Gateway>,
    reference_grants: Vec<&'a ReferenceGrant>,
    accounts: BTreeSet<&'a ServiceAccount>,
    /// The names of the external principals.
    external_principals: BTreeSet<&'a Name>,
    /// The accounts that a `TrafficTarget` names as source or destination.
    target_accounts: BTreeSet<&'a ServiceAccount>,
    /// The scopes of the `TagRoute`s, each with the last `TagRoute` of the scope.
    tag_scopes: BTreeMap<&'a TagScope, &'a TagRouteName>,
    /// The scopes of the `SermantRouteRule`s, with the first one by name.
    sermant_scopes: BTreeMap<&'a TagScope, &'a TagRouteName>,
    /// The mesh configuration; the default one if there is none.
    mesh_config: MeshConfig,
    access_policies: Vec<&'a AccessPolicy>,
    ingress_policies: Vec<&'a IngressPolicy>,
    retry_policies: Vec<&'a RetryPolicy>,
}

/// The collector of warnings about one object.
struct WarningCollector<'a> {
    key: ObjectKey,
    warnings: &'a mut Vec<Warning>,
}

/// A reference to a service, optionally to one of its ports.
struct ServiceReference<'a> {
    service: &'a ServiceName,
    port: Option<u16>,
    field: String,
    /// The field below `field` that contains the service's name.
    name_field: &'static str,
}

impl WarningCollector<'_> {
    /// Adds a warning about a field of the object.
    fn add_warning(&mut self, field: String, problem: String, hint: impl Into<String>) {
        self.warnings.push(Warning {
            location: DocumentLocation::for_object(&self.key, field),
            problem,
            hint: hint.into(),
        });
    }
}

impl<'a> ObjectIndex<'a> {
    /// Indexes the objects. Of several `MeshConfig`s, the last one is used.
    fn from_objects(objects: &'a [Object]) -> Self {
        let mut index = Self::default();
        for object in objects {
            if let Object::HttpRoute(HttpRoute { name, parents, .. })
            | Object::GrpcRoute(HttpRoute { name, parents, .. })
            | Object::TlsRoute(TlsRoute {
                rule: TlsRule { route: name, .. }, parents, ..
            })
            | Object::GatewayTcpRoute(GatewayTcpRoute {
                rule: TcpRule { route: name, .. },
                parents,
                ..
            }) = object
            {
                index.attached_routes.push((object.object_key(), &name.namespace, parents));
            }
            match object {
                Object::Workload(workload) => {
                    index.workloads.push(workload);
                    index.accounts.insert(&workload.account);
                }
                Object::Service(service) => {
                    index.services.insert(&service.name, service);
                }
                Object::MeshConfig(config) => index.mesh_config = config.clone(),
                Object::HttpRouteGroup(group) => {
                    index.route_groups.insert(&group.name, group);
                }
                Object::TcpRoute(route) => {
                    index.tcp_routes.insert(&route.name);
                }
                Object::TrafficTarget(target) => {
                    index.target_accounts.insert(&target.destination);
                    index.target_accounts.extend(&target.sources);
                }
                Object::TagRoute(route) => {
                    index.tag_scopes.insert(&route.scope, &route.name);
                }
                Object::SermantRouteRule(rule) => {
                    for (scope, _) in &rule.entries {
                        index.sermant_scopes.entry(scope).or_insert(&rule.name);
                    }
                }
                Object::HttpRoute(route) => {
                    index.route_matches.add_route(route);
                    index.routes.push(route);
                }
                Object::TlsRoute(route) => index.tls_routes.push(route),
                Object::Gateway(gateway) => index.gateways.push(gateway),
                Object::Lane(_) | Object::Egress(_) => {}
                Object::Ingress(policy) => index.ingress_policies.push(policy),
                Object::AccessCert(cert) => index.external_principals.extend(&cert.subjects),
                Object::Retry(policy) => index.retry_policies.push(policy),
                Object::ServicePolicy(policy) => index.service_policies.push(policy),
                Object::GrpcRoute(route) => {
                    index.grpc_routes.push(route);
                    index.routes.push(route);
                    index.route_matches.add_route(route);
                }
                Object::ReferenceGrant(grant) => index.reference_grants.push(grant),
                Object::AccessPolicy(policy) => index.access_policies.push(policy),
                Object::TrafficSplit(split) => index.traffic_splits.push(split),
                Object::GatewayTcpRoute(route) => index.gateway_tcp_routes.push(route),
            }
        }
        index
    }

    /// Warns about outbound listeners for missing services, settings below the floor, and missing authorization.
    fn lint_workload(&self, workload: &Workload, collector: &mut WarningCollector<'_>) {
        for (index, listener) in workload.outbound_listeners.iter().enumerate() {
            let reference = ServiceReference {
                service: &listener.service,
                port: Some(listener.port),
                field: format!("spec.outbound[{index}]"),
                name_field: "service",
            };
            self.lint_reference(&reference, collector);
        }
        self.lint_floor(workload, collector);
        self.lint_missing_policy(workload, collector);
    }

    /// Warns about a service that selects no workload, and about target ports that no selected workload has.
    fn lint_service(&self, service: &Service, collector: &mut WarningCollector<'_>) {
        let selected_workloads: Vec<&Workload> = self
            .workloads
            .iter()
            .copied()
            .filter(|workload| selects_workload(service, workload))
            .collect();
        if selected_workloads.is_empty() {
            let problem = match service.selector.is_empty() {
                true => "is empty, so the service has no endpoints",
                false => "selects no workload of the namespace",
            };
            let hint = "use labels that a Workload of the same namespace has";
            collector.add_warning("spec.selector".to_owned(), problem.to_owned(), hint);
            return;
        }
        for (index, port) in service.ports.iter().enumerate() {
            let has_target_port = |workload: &&Workload| match &port.target {
                // A workload without declared ports may listen on any port.
                TargetPort::Number(number) => {
                    workload.ports.is_empty()
                        || workload.ports.iter().any(|declared| declared.port == *number)
                }
                TargetPort::Name(name) => {
                    workload.ports.iter().any(|declared| declared.name.as_ref() == Some(name))
                }
            };
            if !selected_workloads.iter().any(has_target_port) {
                let target = match &port.target {
                    TargetPort::Number(number) => number.to_string(),
                    TargetPort::Name(name) => format!("{:?}", name.as_str()),
                };
                collector.add_warning(
                    format!("spec.ports[{index}].targetPort"),
                    format!("no selected workload has a port {target}"),
                    "use a port that the workloads list",
                );
            }
        }
    }

    /// Warns about missing parents, backends, mirror services and grants of an `HTTPRoute` or `GRPCRoute`.
    fn lint_route(&self, route: &HttpRoute, collector: &mut WarningCollector<'_>) {
        self.lint_parents(&route.parents, collector);
        for (index, rule) in route.rules.iter().enumerate() {
            self.lint_backends(index, &rule.backends, collector);
            let (kind, route_namespace, parents) =
                (route.kind, &route.name.namespace, &route.parents[..]);
            self.lint_grants(kind, route_namespace, parents, index, &rule.backends, collector);
            self.lint_mirrors(kind, route_namespace, parents, rule, collector);
        }
    }

    /// Warns about missing parents and backends of a `TLSRoute`, which has one rule, with the index 0.
    fn lint_tls_route(&self, route: &TlsRoute, collector: &mut WarningCollector<'_>) {
        self.lint_parents(&route.parents, collector);
        self.lint_backends(0, &route.rule.backends, collector);
    }

    /// Warns about backends in other namespaces without a grant.
    fn lint_grants(
        &self,
        kind: RouteKind,
        route_namespace: &Name,
        parents: &[RouteParent],
        rule_index: usize,
        backends: &[WeightedBackend],
        collector: &mut WarningCollector<'_>,
    ) {
        for (index, backend) in backends.iter().enumerate() {
            let service_namespace = &backend.service.namespace;
            let permits_backend = |grant: &&ReferenceGrant| {
                grant.permits_route(kind, route_namespace, &backend.service)
            };
            if route_namespace != service_namespace
                && !is_only_parent(parents, &backend.service)
                && !self.reference_grants.iter().any(permits_backend)
            {
                let kind = kind.as_str();
                collector.add_warning(
                    format!("spec.rules[{rule_index}].backendRefs[{index}].namespace"),
                    format!(
                        "no ReferenceGrant in {service_namespace} permits it, so its share of requests gets \
                         the status 500"
                    ),
                    format!("add one there, from {kind}s in {route_namespace} to the Service"),
                );
            }
        }
    }

    /// Warns about parent services and parent ports that do not exist.
    fn lint_parents(&self, parents: &[RouteParent], collector: &mut WarningCollector<'_>) {
        for (index, parent) in parents.iter().enumerate() {
            let reference = ServiceReference {
                service: &parent.service,
                port: parent.port,
                field: format!("spec.parentRefs[{index}]"),
                name_field: "name",
            };
            self.lint_reference(&reference, collector);
        }
    }

    /// Warns about mirror services that do not exist or are not permitted.
    fn lint_mirrors(
        &self,
        kind: RouteKind,
        route_namespace: &Name,
        parents: &[RouteParent],
        rule: &RouteRule,
        collector: &mut WarningCollector<'_>,
    ) {
        for mirror in &rule.actions.mirrors {
            let field = || "spec.rules[].filters[].requestMirror.backendRef".to_owned();
            let (service, port) = (&mirror.service, Some(mirror.port));
            self.lint_reference(
                &ServiceReference { service, port, field: field(), name_field: "name" },
                collector,
            );
            let permits_mirror =
                |grant: &&ReferenceGrant| grant.permits_route(kind, route_namespace, service);
            if *route_namespace != service.namespace
                && !is_only_parent(parents, service)
                && !self.reference_grants.iter().any(permits_mirror)
            {
                collector.add_warning(
                    field(),
                    format!(
                        "no ReferenceGrant in {} permits it, so no request is copied",
                        service.namespace
                    ),
                    format!(
                        "add one there, from {}s in {route_namespace} to the Service",
                        kind.as_str()
                    ),
                );
            }
        }
    }

    /// Warns about backend services and backend ports that do not exist.
    fn lint_backends(
        &self,
        rule_index: usize,
        backends: &[WeightedBackend],
        collector: &mut WarningCollector<'_>,
    ) {
        for (index, backend) in backends.iter().enumerate() {
            let reference = ServiceReference {
                service: &backend.service,
                port: Some(backend.port),
                field: format!("spec.rules[{rule_index}].backendRefs[{index}]"),
                name_field: "name",
            };
            self.lint_reference(&reference, collector);
        }
    }

    /// Warns about an `HTTPRoute` on a port with a `GRPCRoute`, where it has no effect.
    fn lint_conflicts(&self, route: &HttpRoute, collector: &mut WarningCollector<'_>) {
        for (index, parent) in route.parents.iter().enumerate() {
            let shares_port = |grpc_route: &&&HttpRoute| {
                // Routes of another namespace apply to other clients.
                grpc_route.name.namespace == route.name.namespace
                    && grpc_route.parents.iter().any(|other_parent| {
                        let ports = other_parent.port.zip(parent.port);
                        other_parent.service == parent.service
                            && ports.is_none_or(|(left, right)| left == right)
                    })
            };
            if let Some(grpc_route) = self.grpc_routes.iter().find(shares_port) {
                collector.add_warning(
                    format!("spec.parentRefs[{index}]"),
                    format!(
                        "the GRPCRoute {} is attached to the same port and takes precedence over \
                         an HTTPRoute",
                        grpc_route.name
                    ),
                    "use one kind of route per port",
                );
            }
        }
    }

    /// Warns about a reference to a service that does not exist, or to a port that the service does not have.
    fn lint_reference(
        &self,
        reference: &ServiceReference<'_>,
        collector: &mut WarningCollector<'_>,
    ) {
        let ServiceReference { service: name, field, .. } = reference;
        let Some(service) = self.services.get(name) else {
            collector.add_warning(
                format!("{field}.{}", reference.name_field),
                format!("there is no Service {name}"),
                suggest_name(
                    &name.namespace,
                    &name.name,
                    existing_objects!(self.services.keys()),
                    "add the Service",
                ),
            );
            return;
        };
        let Some(port) = reference.port else { return };
        if !service.ports.iter().any(|service_port| service_port.port == port) {
            let port_numbers: Vec<String> =
                service.ports.iter().map(|service_port| service_port.port.to_string()).collect();
            let port_texts: Vec<&str> = port_numbers.iter().map(String::as_str).collect();
            collector.add_warning(
                format!("{field}.port"),
                format!("the Service {name} has no port {port}"),
                format!("use {}", join_with_or(&port_texts)),
            );
        }
    }

    /// Warns about a `TrafficTarget` that refers to missing groups, routes or accounts.
    fn lint_target(&self, target: &TrafficTarget, collector: &mut WarningCollector<'_>) {
        for (index, rule) in target.rules.iter().enumerate() {
            let field = format!("spec.rules[{index}]");
            match rule {
                TargetRule::Http { group, matches } => {
                    self.lint_group(group, matches, &field, collector);
                }
                TargetRule::Tcp { route } if !self.tcp_routes.contains(route) => {
                    collector.add_warning(
                        format!("{field}.name"),
                        format!("there is no TCPRoute {route}, so the rule allows no request"),
                        suggest_name(
                            &route.namespace,
                            &route.name,
                            existing_objects!(self.tcp_routes.iter()),
                            "add the TCPRoute",
                        ),
                    );
                }
                TargetRule::Tcp { .. } => {}
            }
        }
        let sources = target.sources.iter().enumerate();
        let sources = sources.map(|(index, account)| (format!("spec.sources[{index}]"), account));
        let destination = ("spec.destination".to_owned(), &target.destination);
        for (field, account) in sources.chain([destination]) {
            if !self.accounts.contains(account) {
                collector.add_warning(
                    field,
                    format!("no workload runs under the account {account}"),
                    suggest_name(
                        &account.namespace,
                        &account.name,
                        existing_objects!(self.accounts.iter()),
                        "add a Workload with this account",
                    ),
                );
            }
        }
    }

    /// Warns about a missing `HTTPRouteGroup`, and about names of matches that the group does not have.
    fn lint_group(
        &self,
        name: &RouteGroupName,
        matches: &[String],
        field: &str,
        collector: &mut WarningCollector<'_>,
    ) {
        let Some(group) = self.route_groups.get(name) else {
            collector.add_warning(
                format!("{field}.name"),
                format!("there is no HTTPRouteGroup {name}, so the rule allows no request"),
                suggest_name(
                    &name.namespace,
                    &name.name,
                    existing_objects!(self.route_groups.keys()),
                    "add the HTTPRouteGroup",
                ),
            );
            return;
        };
        let match_names: Vec<&str> =
            group.matches.iter().map(|named_match| named_match.name.as_str()).collect();
        for (index, match_name) in matches.iter().enumerate() {
            if !match_names.contains(&match_name.as_str()) {
                collector.add_warning(
                    format!("{field}.matches[{index}]"),
                    format!("the HTTPRouteGroup {name} has no match {match_name:?}"),
                    match closest_word(match_name, &match_names) {
                        Some(closest) => format!("did you mean `{closest}`?"),
                        None => "add it there".to_owned(),
                    },
                );
            }
        }
    }

    /// Warns about workloads that listen on the same address and port, which is possible only if each has a network
    /// namespace of its own.
    fn lint_listeners(&self, warnings: &mut Vec<Warning>) {
        let mut listen_addresses: BTreeMap<SocketAddr, &Workload> = BTreeMap::new();
        for workload in &self.workloads {
            let port_addresses = workload.ports.iter().enumerate().map(|(index, port)| {
                let listen_address = SocketAddr::new(workload.address, port.port);
                (format!("spec.ports[{index}]"), listen_address)
            });
            let outbound_listeners = workload.outbound_listeners.iter().enumerate();
            let outbound_addresses = outbound_listeners.map(|(index, listener)| {
                (format!("spec.outbound[{index}].listen"), listener.listen)
            });
            for (field, listen_address) in port_addresses.chain(outbound_addresses) {
                match listen_addresses.get(&listen_address) {
                    Some(other_workload) if other_workload.name != workload.name => {
                        let mut collector = WarningCollector {
                            key: ObjectKey::Workload(workload.name.clone()),
                            warnings,
                        };
                        collector.add_warning(
                            field,
                            format!(
                                "{listen_address} is also taken by the Workload {}",
                                other_workload.name
                            ),
                            "use another port, unless each has a network namespace of its own",
                        );
                    }
                    _ => {
                        listen_addresses.insert(listen_address, workload);
                    }
                }
            }
        }
    }
}

/// True if the service selects the workload. An empty selector selects no workload.
fn selects_workload(service: &Service, workload: &Workload) -> bool {
    let has_label = |(key, value): (&String, &String)| workload.labels.get(key) == Some(value);
    let namespace: &Name = &workload.name.namespace;
    *namespace == service.name.namespace
        && !service.selector.is_empty()
        && service.selector.iter().all(has_label)
}
