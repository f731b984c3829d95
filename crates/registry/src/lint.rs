//! Warnings about all objects as a whole: a reference to a missing object is probably a mistake.

mod access;
mod anchoring;
mod boundary;
mod exact;
mod guard;
mod repeated;
mod retry;
mod suggestion;
mod tags;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use leno_model::{
    AccessPolicy, Gateway, GatewayTcpRoute, HttpRoute, HttpRouteGroup, IngressPolicy, MeshConfig,
    Name, Object, ObjectKey, ReferenceGrant, RetryPolicy, RouteGroupName, RouteKind, RouteParent,
    RouteRule, Service, ServiceAccount, ServiceName, ServicePolicy, TagRouteName, TagScope,
    TargetPort, TargetRule, TcpRouteName, TcpRule, TlsRoute, TlsRule, TrafficSplit, TrafficTarget,
    WeightedBackend, Workload, leads_back,
};

use self::suggestion::{known, suggest_name};
use crate::rejected::{DocumentLocation, Warning};
use crate::suggest::{closest_word, one_of};

mod gateway_tcp_route;
mod service_policy;
mod traffic_split;

/// Returns warnings about these objects as a whole. They are not rejections: the missing object may come from
/// another source, or later.
#[must_use]
pub fn lint_objects(objects: &[Object]) -> Vec<Warning> {
    let world = ObjectIndex::from_objects(objects);
    let mut warnings = Vec::new();
    for object in objects {
        let mut diagnostics =
            WarningCollector { key: object.object_key(), warnings: &mut warnings };
        match object {
            Object::Workload(workload) => world.lint_workload(workload, &mut diagnostics),
            Object::Service(service) => world.lint_service(service, &mut diagnostics),
            Object::HttpRoute(route) => {
                world.lint_route(route, &mut diagnostics);
                world.lint_conflicts(route, &mut diagnostics);
                world.lint_repeated(route, &mut diagnostics);
                anchoring::lint_route(route, &mut diagnostics);
            }
            Object::GrpcRoute(route) => {
                world.lint_route(route, &mut diagnostics);
                world.lint_repeated(route, &mut diagnostics);
            }
            Object::TlsRoute(route) => world.lint_tls_route(route, &mut diagnostics),
            Object::TrafficTarget(target) => world.lint_target(target, &mut diagnostics),
            Object::ServicePolicy(policy) => {
                world.lint_service_policy(policy, &mut diagnostics);
                repeated::lint_policy(policy, &mut diagnostics);
                anchoring::lint_policy(policy, &mut diagnostics);
                exact::lint_policy(policy, &mut diagnostics);
            }
            Object::TagRoute(route) => world.lint_tag_route(route, &mut diagnostics),
            Object::SermantRouteRule(rule) => world.lint_sermant(rule, &mut diagnostics),
            Object::Lane(lane) => {
                world.lint_lane(lane, &mut diagnostics);
                repeated::lint_lane(lane, &mut diagnostics);
            }
            Object::MeshConfig(config) => world.lint_mesh_config(config, &mut diagnostics),
            Object::AccessPolicy(policy) => {
                world.lint_access_policy(policy, &mut diagnostics);
                anchoring::lint_access(policy, &mut diagnostics);
                exact::lint_access(policy, &mut diagnostics);
            }
            Object::TrafficSplit(split) => world.lint_split(split, &mut diagnostics),
            Object::GatewayTcpRoute(route) => world.lint_gateway_tcp_route(route, &mut diagnostics),
            Object::HttpRouteGroup(group) => anchoring::lint_group(group, &mut diagnostics),
            Object::AccessCert(cert) => world.lint_access_cert(cert, &mut diagnostics),
            Object::TcpRoute(_) | Object::ReferenceGrant(_) | Object::Gateway(_) => {}
            Object::Ingress(policy) => world.lint_ingress(policy, &mut diagnostics),
            Object::Egress(policy) => world.lint_egress(policy, &mut diagnostics),
            Object::Retry(policy) => world.lint_retry(policy, &mut diagnostics),
        }
    }
    world.lint_listeners(&mut warnings);
    warnings
}

/// The objects, indexed by the names used in references.
#[derive(Default)]
struct ObjectIndex<'a> {
    workloads: Vec<&'a Workload>,
    services: BTreeMap<&'a ServiceName, &'a Service>,
    groups: BTreeMap<&'a RouteGroupName, &'a HttpRouteGroup>,
    tcp_routes: BTreeSet<&'a TcpRouteName>,
    grpc_routes: Vec<&'a HttpRoute>,
    /// All `HTTPRoute`s and `GRPCRoute`s.
    routes: Vec<&'a HttpRoute>,
    tls_routes: Vec<&'a TlsRoute>,
    /// The matches of both kinds of request routes.
    matches: repeated::RepeatedMatches<'a>,
    /// Gateway API routes with their parents.
    attached: Vec<(ObjectKey, &'a Name, &'a [RouteParent])>,
    splits: Vec<&'a TrafficSplit>,
    gateway_tcp_routes: Vec<&'a GatewayTcpRoute>,
    policies: Vec<&'a ServicePolicy>,
    gateways: Vec<&'a Gateway>,
    grants: Vec<&'a ReferenceGrant>,
    accounts: BTreeSet<&'a ServiceAccount>,
    /// The names of the external principals.
    external_principals: BTreeSet<&'a Name>,
    /// The accounts used as source or destination of a `TrafficTarget`.
    mentioned: BTreeSet<&'a ServiceAccount>,
    /// The scopes of the `TagRoute`s, with one `TagRoute` for each.
    tag_scopes: BTreeMap<&'a TagScope, &'a TagRouteName>,
    /// The scopes of the `SermantRouteRule`s, with the first one by name.
    published: BTreeMap<&'a TagScope, &'a TagRouteName>,
    config: MeshConfig,
    access_policies: Vec<&'a AccessPolicy>,
    openings: Vec<&'a IngressPolicy>,
    retries: Vec<&'a RetryPolicy>,
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
    fn add_warning(&mut self, field: String, problem: String, hint: impl Into<String>) {
        self.warnings.push(Warning {
            at: DocumentLocation::for_object(&self.key, field),
            problem,
            hint: hint.into(),
        });
    }
}

impl<'a> ObjectIndex<'a> {
    fn from_objects(objects: &'a [Object]) -> Self {
        let mut world = Self::default();
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
                world.attached.push((object.object_key(), &name.namespace, parents));
            }
            match object {
                Object::Workload(workload) => {
                    world.workloads.push(workload);
                    world.accounts.insert(&workload.account);
                }
                Object::Service(service) => {
                    world.services.insert(&service.name, service);
                }
                Object::MeshConfig(config) => world.config = config.clone(),
                Object::HttpRouteGroup(group) => {
                    world.groups.insert(&group.name, group);
                }
                Object::TcpRoute(route) => {
                    world.tcp_routes.insert(&route.name);
                }
                Object::TrafficTarget(target) => {
                    world.mentioned.insert(&target.destination);
                    world.mentioned.extend(&target.sources);
                }
                Object::TagRoute(route) => {
                    world.tag_scopes.insert(&route.scope, &route.name);
                }
                Object::SermantRouteRule(rule) => {
                    for (scope, _) in &rule.entries {
                        world.published.entry(scope).or_insert(&rule.name);
                    }
                }
                Object::HttpRoute(route) => {
                    world.matches.add_route(route);
                    world.routes.push(route);
                }
                Object::TlsRoute(route) => world.tls_routes.push(route),
                Object::Gateway(gateway) => world.gateways.push(gateway),
                Object::Lane(_) | Object::Egress(_) => {}
                Object::Ingress(policy) => world.openings.push(policy),
                Object::AccessCert(cert) => world.external_principals.extend(&cert.subjects),
                Object::Retry(policy) => world.retries.push(policy),
                Object::ServicePolicy(policy) => world.policies.push(policy),
                Object::GrpcRoute(route) => {
                    world.grpc_routes.push(route);
                    world.routes.push(route);
                    world.matches.add_route(route);
                }
                Object::ReferenceGrant(grant) => world.grants.push(grant),
                Object::AccessPolicy(policy) => world.access_policies.push(policy),
                Object::TrafficSplit(split) => world.splits.push(split),
                Object::GatewayTcpRoute(route) => world.gateway_tcp_routes.push(route),
            }
        }
        world
    }

    fn lint_workload(&self, workload: &Workload, lint: &mut WarningCollector<'_>) {
        for (index, listener) in workload.outbound_listeners.iter().enumerate() {
            let reference = ServiceReference {
                service: &listener.service,
                port: Some(listener.port),
                field: format!("spec.outbound[{index}]"),
                name_field: "service",
            };
            self.lint_reference(&reference, lint);
        }
        self.lint_floor(workload, lint);
        self.lint_unmentioned(workload, lint);
    }

    fn lint_service(&self, service: &Service, lint: &mut WarningCollector<'_>) {
        let selected: Vec<&Workload> = self
            .workloads
            .iter()
            .copied()
            .filter(|workload| is_selected(service, workload))
            .collect();
        if selected.is_empty() {
            let problem = match service.selector.is_empty() {
                true => "is empty, so the service has no endpoints",
                false => "selects no workload of the namespace",
            };
            let hint = "use labels that a Workload of the same namespace has";
            lint.add_warning("spec.selector".to_owned(), problem.to_owned(), hint);
            return;
        }
        for (index, port) in service.ports.iter().enumerate() {
            let serves = |workload: &&Workload| match &port.target {
                // A workload without declared ports may listen on any port.
                TargetPort::Number(number) => {
                    workload.ports.is_empty() || workload.ports.iter().any(|p| p.port == *number)
                }
                TargetPort::Name(name) => {
                    workload.ports.iter().any(|p| p.name.as_ref() == Some(name))
                }
            };
            if !selected.iter().any(serves) {
                let target = match &port.target {
                    TargetPort::Number(number) => number.to_string(),
                    TargetPort::Name(name) => format!("{:?}", name.as_str()),
                };
                lint.add_warning(
                    format!("spec.ports[{index}].targetPort"),
                    format!("no selected workload has a port {target}"),
                    "use a port that the workloads list",
                );
            }
        }
    }

    fn lint_route(&self, route: &HttpRoute, lint: &mut WarningCollector<'_>) {
        self.lint_parents(&route.parents, lint);
        for (index, rule) in route.rules.iter().enumerate() {
            self.lint_backends(index, &rule.backends, lint);
            let (kind, own, parents) = (route.kind, &route.name.namespace, &route.parents[..]);
            self.lint_grants(kind, own, parents, index, &rule.backends, lint);
            self.lint_mirrors(kind, own, parents, rule, lint);
        }
    }

    fn lint_tls_route(&self, route: &TlsRoute, lint: &mut WarningCollector<'_>) {
        self.lint_parents(&route.parents, lint);
        self.lint_backends(0, &route.rule.backends, lint);
    }

    /// Warns about backends in other namespaces without a grant.
    fn lint_grants(
        &self,
        kind: RouteKind,
        own: &Name,
        parents: &[RouteParent],
        rule: usize,
        backends: &[WeightedBackend],
        lint: &mut WarningCollector<'_>,
    ) {
        for (index, backend) in backends.iter().enumerate() {
            let theirs = &backend.service.namespace;
            let permits = |it: &&ReferenceGrant| it.permits_route(kind, own, &backend.service);
            if own != theirs
                && !leads_back(parents, &backend.service)
                && !self.grants.iter().any(permits)
            {
                let kind = kind.as_str();
                lint.add_warning(
                    format!("spec.rules[{rule}].backendRefs[{index}].namespace"),
                    format!(
                        "no ReferenceGrant in {theirs} permits it, so its share of requests gets \
                         the status 500"
                    ),
                    format!("add one there, from {kind}s in {own} to the Service"),
                );
            }
        }
    }

    fn lint_parents(&self, parents: &[RouteParent], lint: &mut WarningCollector<'_>) {
        for (index, parent) in parents.iter().enumerate() {
            let reference = ServiceReference {
                service: &parent.service,
                port: parent.port,
                field: format!("spec.parentRefs[{index}]"),
                name_field: "name",
            };
            self.lint_reference(&reference, lint);
        }
    }

    /// Warns about mirror services that do not exist or are not permitted.
    fn lint_mirrors(
        &self,
        kind: RouteKind,
        own: &Name,
        parents: &[RouteParent],
        rule: &RouteRule,
        lint: &mut WarningCollector<'_>,
    ) {
        for mirror in &rule.actions.mirrors {
            let field = || "spec.rules[].filters[].requestMirror.backendRef".to_owned();
            let (service, port) = (&mirror.service, Some(mirror.port));
            self.lint_reference(
                &ServiceReference { service, port, field: field(), name_field: "name" },
                lint,
            );
            let permits = |it: &&ReferenceGrant| it.permits_route(kind, own, service);
            if *own != service.namespace
                && !leads_back(parents, service)
                && !self.grants.iter().any(permits)
            {
                lint.add_warning(
                    field(),
                    format!(
                        "no ReferenceGrant in {} permits it, so no request is copied",
                        service.namespace
                    ),
                    format!("add one there, from {}s in {own} to the Service", kind.as_str()),
                );
            }
        }
    }

    fn lint_backends(
        &self,
        rule: usize,
        backends: &[WeightedBackend],
        lint: &mut WarningCollector<'_>,
    ) {
        for (index, backend) in backends.iter().enumerate() {
            let reference = ServiceReference {
                service: &backend.service,
                port: Some(backend.port),
                field: format!("spec.rules[{rule}].backendRefs[{index}]"),
                name_field: "name",
            };
            self.lint_reference(&reference, lint);
        }
    }

    /// An `HTTPRoute` has no effect on a port with a `GRPCRoute`.
    fn lint_conflicts(&self, route: &HttpRoute, lint: &mut WarningCollector<'_>) {
        for (index, parent) in route.parents.iter().enumerate() {
            let meets = |other: &&&HttpRoute| {
                // Routes of another namespace apply to other clients.
                other.name.namespace == route.name.namespace
                    && other.parents.iter().any(|other| {
                        let ports = other.port.zip(parent.port);
                        other.service == parent.service && ports.is_none_or(|(one, two)| one == two)
                    })
            };
            if let Some(other) = self.grpc_routes.iter().find(meets) {
                lint.add_warning(
                    format!("spec.parentRefs[{index}]"),
                    format!(
                        "the GRPCRoute {} is attached to the same port and takes precedence over \
                         an HTTPRoute",
                        other.name
                    ),
                    "use one kind of route per port",
                );
            }
        }
    }

    fn lint_reference(&self, reference: &ServiceReference<'_>, lint: &mut WarningCollector<'_>) {
        let ServiceReference { service: name, field, .. } = reference;
        let Some(service) = self.services.get(name) else {
            lint.add_warning(
                format!("{field}.{}", reference.name_field),
                format!("there is no Service {name}"),
                suggest_name(
                    &name.namespace,
                    &name.name,
                    known!(self.services.keys()),
                    "add the Service",
                ),
            );
            return;
        };
        let Some(port) = reference.port else { return };
        if !service.ports.iter().any(|known| known.port == port) {
            let known = service.ports.iter().map(|known| known.port.to_string());
            let known: Vec<String> = known.collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            lint.add_warning(
                format!("{field}.port"),
                format!("the Service {name} has no port {port}"),
                format!("use {}", one_of(&known)),
            );
        }
    }

    fn lint_target(&self, target: &TrafficTarget, lint: &mut WarningCollector<'_>) {
        for (index, rule) in target.rules.iter().enumerate() {
            let field = format!("spec.rules[{index}]");
            match rule {
                TargetRule::Http { group, matches } => {
                    self.lint_group(group, matches, &field, lint);
                }
                TargetRule::Tcp { route } if !self.tcp_routes.contains(route) => {
                    lint.add_warning(
                        format!("{field}.name"),
                        format!("there is no TCPRoute {route}, so the rule allows no request"),
                        suggest_name(
                            &route.namespace,
                            &route.name,
                            known!(self.tcp_routes.iter()),
                            "add the TCPRoute",
                        ),
                    );
                }
                TargetRule::Tcp { .. } => {}
            }
        }
        let accounts = target.sources.iter().enumerate();
        let accounts = accounts.map(|(index, account)| (format!("spec.sources[{index}]"), account));
        let destination = ("spec.destination".to_owned(), &target.destination);
        for (field, account) in accounts.chain([destination]) {
            if !self.accounts.contains(account) {
                lint.add_warning(
                    field,
                    format!("no workload runs under the account {account}"),
                    suggest_name(
                        &account.namespace,
                        &account.name,
                        known!(self.accounts.iter()),
                        "add a Workload with it",
                    ),
                );
            }
        }
    }

    fn lint_group(
        &self,
        name: &RouteGroupName,
        matches: &[String],
        field: &str,
        lint: &mut WarningCollector<'_>,
    ) {
        let Some(group) = self.groups.get(name) else {
            lint.add_warning(
                format!("{field}.name"),
                format!("there is no HTTPRouteGroup {name}, so the rule allows no request"),
                suggest_name(
                    &name.namespace,
                    &name.name,
                    known!(self.groups.keys()),
                    "add the HTTPRouteGroup",
                ),
            );
            return;
        };
        let known: Vec<&str> = group.matches.iter().map(|m| m.name.as_str()).collect();
        for (index, wanted) in matches.iter().enumerate() {
            if !known.contains(&wanted.as_str()) {
                lint.add_warning(
                    format!("{field}.matches[{index}]"),
                    format!("the HTTPRouteGroup {name} has no match {wanted:?}"),
                    match closest_word(wanted, &known) {
                        Some(meant) => format!("did you mean `{meant}`?"),
                        None => "add it there".to_owned(),
                    },
                );
            }
        }
    }

    /// Two workloads cannot listen on one address unless each has its own network.
    fn lint_listeners(&self, warnings: &mut Vec<Warning>) {
        let mut taken: BTreeMap<SocketAddr, &Workload> = BTreeMap::new();
        for workload in &self.workloads {
            let ports = workload.ports.iter().enumerate().map(|(index, port)| {
                let listen = SocketAddr::new(workload.address, port.port);
                (format!("spec.ports[{index}]"), listen)
            });
            let outbound_listeners = workload.outbound_listeners.iter().enumerate();
            let outbound_listeners = outbound_listeners.map(|(index, listener)| {
                (format!("spec.outbound[{index}].listen"), listener.listen)
            });
            for (field, listen) in ports.chain(outbound_listeners) {
                match taken.get(&listen) {
                    Some(other) if other.name != workload.name => {
                        let mut lint = WarningCollector {
                            key: ObjectKey::Workload(workload.name.clone()),
                            warnings,
                        };
                        lint.add_warning(
                            field,
                            format!("{listen} is also taken by the Workload {}", other.name),
                            "use another port, unless each has a network namespace of its own",
                        );
                    }
                    _ => {
                        taken.insert(listen, workload);
                    }
                }
            }
        }
    }
}

fn is_selected(service: &Service, workload: &Workload) -> bool {
    let has = |(key, value): (&String, &String)| workload.labels.get(key) == Some(value);
    let namespace: &Name = &workload.name.namespace;
    *namespace == service.name.namespace
        && !service.selector.is_empty()
        && service.selector.iter().all(has)
}
