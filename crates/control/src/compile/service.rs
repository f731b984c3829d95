//! Compiles the configuration of a service for one class of clients: authorization, and the ports with their rules
//! and endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::{
    ClientAuthorization, DefaultPolicy, Endpoint, EndpointId, HttpRoute, Name, PortConfig,
    Protocol, RouteKind, RouteName, RouteRule, Service, ServiceAccount, ServiceConfig, ServiceName,
    ServicePort, TagRules, TargetPort, TlsRule, WeightedBackend, Workload,
};

use super::enforcement::{EnforcementCache, LifecycleStage, plaintext_restriction};
use super::split;
use super::workload_config::protocol_by_convention;
use crate::mesh::{AffectedSet, Mesh};

/// The class of clients that a service is compiled for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClientClass {
    /// All clients but those of [`Self::Consumers`], if no namespace and no workload denies by default.
    AllClients,
    /// The clients of a namespace that has its own routes for services of other namespaces.
    Consumers(Name),
    /// The clients under this account.
    Account(ServiceAccount),
    /// Gateway proxies, which reach unmeshed endpoints with `defaultPolicy: deny` too. The account is present if a
    /// namespace or workload denies by default.
    Gateway(Option<ServiceAccount>),
}

impl ClientClass {
    /// Returns the class of a client.
    pub(crate) fn for_client(mesh: &Mesh, client: &Workload) -> Self {
        let account = mesh.has_default_deny().then(|| client.account.clone());
        match (mesh.gateway_of(client), account) {
            (Some(_), account) => Self::Gateway(account),
            (None, Some(account)) => Self::Account(account),
            (None, None) => Self::Consumers(client.name.namespace.clone()),
        }
    }

    /// Returns the class for one service: all clients share the configuration of a service, unless their namespace has
    /// routes for it.
    fn for_service(&self, mesh: &Mesh, service: &ServiceName) -> Self {
        match self {
            Self::Consumers(namespace) if !mesh.has_consumers(service, namespace) => {
                Self::AllClients
            }
            _ => self.clone(),
        }
    }

    /// Returns the namespace of the consumer routes that apply. Consumer routes in a gateway's namespace do not apply
    /// to the gateway.
    fn consumer_namespace(&self) -> Option<&Name> {
        match self {
            Self::Consumers(namespace) => Some(namespace),
            Self::Account(account) => Some(&account.namespace),
            Self::AllClients | Self::Gateway(_) => None,
        }
    }

    /// Returns the account, if service configurations depend on it.
    fn account(&self) -> Option<&ServiceAccount> {
        match self {
            Self::AllClients | Self::Consumers(_) => None,
            Self::Account(account) => Some(account),
            Self::Gateway(account) => account.as_ref(),
        }
    }

    fn is_gateway(&self) -> bool {
        matches!(self, Self::Gateway(_))
    }
}

/// Compiles the configuration of a service for a class of clients.
///
/// A client may call a service if it may call at least one workload of the service, or of a backend of its routes. It
/// may call a workload that does not deny by default, and a workload for which a policy allows the client. Endpoints
/// that it may not call are left out. In a namespace that denies by default, a service without workloads is denied,
/// because it has no account that a policy could name.
pub(crate) fn compile_service(
    mesh: &Mesh,
    client_class: &ClientClass,
    service: &Service,
) -> ServiceConfig {
    let callable_workloads = CallableWorkloads::for_client_class(mesh, client_class);
    let ports = service.ports.iter().map(|port| {
        let (name, number) = (&service.name, port.port);
        let (has_attached_routes, rules) =
            port_rules(mesh, name, number, client_class.consumer_namespace());
        let tags = mesh.tags().rules_for(&service.name, port.port);
        let port_config = PortConfig {
            name: port.name.clone(),
            protocol: port_protocol(mesh, service, port),
            has_attached_routes,
            rules,
            endpoints: port_endpoints(
                mesh,
                service,
                port,
                tags.as_deref(),
                client_class,
                &callable_workloads,
            ),
            tls_rules: tls_rules(mesh, name, number, client_class.consumer_namespace()),
            traffic_policy: mesh.traffic_policy(&service.name, port.port),
            tags,
            tcp_rule: split::tcp_rule(mesh, name, number, client_class.consumer_namespace()),
        };
        (port.port, port_config)
    });
    let mut service_config = ServiceConfig {
        name: service.name.clone(),
        client_authorization: ClientAuthorization::Allowed,
        ports: ports.collect(),
        waits_for_endpoint: is_awaited(mesh, service, &callable_workloads),
    };
    if !is_authorized(mesh, &service_config, client_class, &callable_workloads) {
        service_config.client_authorization = ClientAuthorization::Denied;
        service_config.ports.clear();
        service_config.waits_for_endpoint = false;
    }
    service_config
}

/// True while the sidecar of a workload of a service is expected with another port or account.
fn is_awaited(mesh: &Mesh, service: &Service, callable_workloads: &CallableWorkloads<'_>) -> bool {
    let mut workloads =
        mesh.service_workloads(&service.name).filter(|workload| mesh.is_awaited(workload));
    workloads.any(|workload| {
        LifecycleStage::Ready.includes(service, workload)
            && !mesh.is_revoked(workload)
            && callable_workloads.allows(workload)
    })
}

/// Returns the endpoints that a configuration would contain if every sidecar had reported its listeners.
pub(crate) fn unreported_endpoints(
    mesh: &Mesh,
    client_class: &ClientClass,
    service_config: &ServiceConfig,
) -> Vec<EndpointId> {
    let callable_workloads = CallableWorkloads::for_client_class(mesh, client_class);
    let Some(service) = mesh.service(&service_config.name) else { return Vec::new() };
    let ports = service.ports.iter().filter(|port| service_config.ports.contains_key(&port.port));
    let unreported = ports.flat_map(|port| {
        let callable_at = |stage| {
            select_callable_workloads(mesh, service, port, &callable_workloads, stage)
                .collect::<Vec<(&Workload, u16)>>()
        };
        let mut callable = callable_at(LifecycleStage::Ready);
        if callable.is_empty() {
            callable = callable_at(LifecycleStage::Terminating);
        }
        callable.retain(|(workload, _)| mesh.sidecar_listeners(&workload.name).is_none());
        callable.into_iter().map(|(workload, _)| endpoint_id(&service_config.name, port, workload))
    });
    unreported.collect()
}

/// Returns the services that the rules of a service configuration name.
pub(crate) fn backend_services(
    service_config: &ServiceConfig,
) -> impl Iterator<Item = &ServiceName> {
    service_config.ports.values().flat_map(PortConfig::backends).map(|backend| &backend.service)
}

/// Returns the application port that a service port forwards to; `None` if the workload has no port of that name.
pub(crate) fn target_port(target: &TargetPort, workload: &Workload) -> Option<u16> {
    target.number_at(workload)
}

/// Compiled service configurations, shared by all clients of the same class.
#[derive(Debug, Default)]
pub(crate) struct ServiceConfigCache {
    entries: BTreeMap<(ServiceName, ClientClass), CachedServiceConfig>,
    /// The number of configurations compiled so far.
    compiled_count: u64,
}

#[derive(Debug)]
struct CachedServiceConfig {
    service_config: Arc<ServiceConfig>,
    /// True if an input may have changed since the compilation.
    is_stale: bool,
    /// The number of consecutive eviction passes in which no snapshot contained the configuration, since its last use.
    unused_passes: u8,
}

impl ServiceConfigCache {
    /// Returns the configuration of a service; `None` if it does not exist. If unchanged, it is the same
    /// [`Arc`] as before.
    pub(crate) fn service_config(
        &mut self,
        mesh: &Mesh,
        client_class: &ClientClass,
        name: &ServiceName,
    ) -> Option<Arc<ServiceConfig>> {
        let service_class = client_class.for_service(mesh, name);
        let key = (name.clone(), service_class.clone());
        let Some(service) = mesh.service(name) else {
            self.entries.remove(&key);
            return None;
        };
        let old = match self.entries.get_mut(&key) {
            Some(cached) if !cached.is_stale => {
                cached.unused_passes = 0;
                return Some(Arc::clone(&cached.service_config));
            }
            Some(cached) => Some(Arc::clone(&cached.service_config)),
            None => None,
        };
        self.compiled_count += 1;
        let service_config = reuse_unchanged(compile_service(mesh, &service_class, service), old);
        let cached = CachedServiceConfig {
            service_config: Arc::clone(&service_config),
            is_stale: false,
            unused_passes: 0,
        };
        self.entries.insert(key, cached);
        Some(service_config)
    }

    pub(crate) fn compiled_count(&self) -> u64 {
        self.compiled_count
    }

    /// Marks the configurations that may have changed.
    pub(crate) fn mark_stale(&mut self, affected_set: &AffectedSet) {
        if affected_set.all_proxies || !affected_set.accounts.is_empty() {
            for ((_, client_class), cached) in &mut self.entries {
                let account = client_class.account();
                let is_affected =
                    account.is_some_and(|account| affected_set.accounts.contains(account));
                cached.is_stale |= affected_set.all_proxies || is_affected;
            }
        }
        for service in &affected_set.services {
            // `AllClients` is the first variant of `ClientClass`, so the range starts at the service's first entry.
            let range = self.entries.range_mut((service.clone(), ClientClass::AllClients)..);
            let configs = range.take_while(|((name, _), _)| name == service);
            configs.for_each(|(_, cached)| cached.is_stale = true);
        }
    }

    /// Evicts configurations that are in no snapshot and were unused for [`MAX_UNUSED_PASSES`] passes. A single pass
    /// without a snapshot does not suffice: configurations that only address entries depend on are never in a snapshot.
    pub(crate) fn evict_unused(&mut self) {
        self.entries.retain(|_, cached| {
            // The cache itself holds one reference.
            let is_in_snapshot = Arc::strong_count(&cached.service_config) > 1;
            cached.unused_passes =
                if is_in_snapshot { 0 } else { cached.unused_passes.saturating_add(1) };
            cached.unused_passes < MAX_UNUSED_PASSES
        });
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// The number of eviction passes after which an unused entry is evicted: half a second during a burst of changes.
const MAX_UNUSED_PASSES: u8 = 16;

/// The workloads that a client may call.
enum CallableWorkloads<'a> {
    All,
    /// Workloads that do not deny by default, those under the accounts of `targets`, and those that an access
    /// policy lets the client call.
    Only {
        mesh: &'a Mesh,
        client: ServiceAccount,
        targets: BTreeSet<&'a ServiceAccount>,
    },
}

impl<'a> CallableWorkloads<'a> {
    fn for_client_class(mesh: &'a Mesh, client_class: &ClientClass) -> Self {
        match client_class.account() {
            None => Self::All,
            Some(account) => Self::Only {
                mesh,
                client: account.clone(),
                targets: mesh.permitted_accounts(account),
            },
        }
    }

    fn allows(&self, workload: &Workload) -> bool {
        match self {
            Self::All => true,
            Self::Only { mesh, client, targets } => {
                mesh.default_policy_of(workload) != DefaultPolicy::Deny
                    || targets.contains(&workload.account)
                    || mesh.allows_client(client, workload)
            }
        }
    }

    /// Returns true if the client may call some workload of a service; `None` if the service has no workload
    /// with a sidecar.
    fn allows_any_workload(&self, mesh: &Mesh, service: &ServiceName) -> Option<bool> {
        let mut workloads = mesh.service_workloads(service).peekable();
        workloads.peek()?;
        Some(workloads.any(|workload| self.allows(workload)))
    }
}

fn is_authorized(
    mesh: &Mesh,
    service_config: &ServiceConfig,
    client_class: &ClientClass,
    callable_workloads: &CallableWorkloads<'_>,
) -> bool {
    if matches!(callable_workloads, CallableWorkloads::All) {
        return true;
    }
    let mut services =
        std::iter::once(&service_config.name).chain(backend_services(service_config));
    services.any(|name| {
        match callable_workloads.allows_any_workload(mesh, name) {
            Some(is_allowed) => is_allowed,
            // Unmeshed workloads enforce nothing.
            None if client_class.is_gateway()
                && mesh.unmeshed_workloads_of(name).next().is_some() =>
            {
                true
            }
            None => mesh.config().default_policy_in(&name.namespace) != DefaultPolicy::Deny,
        }
    })
}

/// Returns true if `HTTPRoute`s or `GRPCRoute`s are attached to a port, and the port's rules in order of routes and of
/// rules within a route. A missing backend keeps its share: those requests get a 500 response. If both kinds of routes
/// are attached, only the `GRPCRoute`s apply. Without routes, the rules are those of splits.
fn port_rules(
    mesh: &Mesh,
    service: &ServiceName,
    port: u16,
    consumer_namespace: Option<&Name>,
) -> (bool, Vec<RouteRule>) {
    let attached_routes: Vec<&HttpRoute> =
        mesh.http_routes().routes_at_port(service, port, consumer_namespace).collect();
    // `GRPCRoute` is the last kind in the order of `RouteKind`.
    let kind = attached_routes.iter().map(|route| route.kind).max();
    if kind.is_none() {
        return (false, split::split_rules(mesh, service, port, consumer_namespace));
    }
    let applied_routes = attached_routes.iter().filter(|route| Some(route.kind) == kind);
    let rules = applied_routes.flat_map(|route| route.rules.iter());
    (true, rules.map(|rule| permitted_rule(mesh, service, rule)).collect())
}

/// Returns the rule for requests to a service, without the backends that it may not refer to; their share is
/// rejected.
fn permitted_rule(mesh: &Mesh, service: &ServiceName, rule: &RouteRule) -> RouteRule {
    let mut rule = rule.clone();
    let RouteRule { route, kind, backends, actions, .. } = &mut rule;
    actions.ungranted_weight = remove_ungranted(mesh, service, (*kind, route), backends);
    // A mirror without permission is dropped without an effect on the request.
    remove_ungranted(mesh, service, (*kind, route), &mut actions.mirrors);
    rule
}

/// Removes the backends that an object may not refer to (without a `ReferenceGrant`); returns their total weight.
pub(super) fn remove_ungranted(
    mesh: &Mesh,
    requested_service: &ServiceName,
    object: (RouteKind, &RouteName),
    backends: &mut Vec<WeightedBackend>,
) -> u32 {
    let mut weight: u32 = 0;
    backends.retain(|backend| {
        let is_granted =
            backend.service == *requested_service || mesh.may_refer_to(object, &backend.service);
        if !is_granted {
            weight = weight.saturating_add(backend.weight);
        }
        is_granted
    });
    weight
}

/// Returns the rules for TLS passthrough sessions, in order of route.
fn tls_rules(
    mesh: &Mesh,
    service: &ServiceName,
    port: u16,
    consumer_namespace: Option<&Name>,
) -> Vec<TlsRule> {
    let routes = mesh.tls_routes().routes_at_port(service, port, consumer_namespace);
    let granted = routes.map(|route| {
        let mut rule = route.rule.clone();
        let TlsRule { route, backends, .. } = &mut rule;
        rule.ungranted_weight = remove_ungranted(mesh, service, (RouteKind::Tls, route), backends);
        rule
    });
    granted.collect()
}

/// Returns the protocol that a service port declares; otherwise the one on which its workloads agree; otherwise
/// that of a well-known port, or detection.
pub(super) fn port_protocol(mesh: &Mesh, service: &Service, port: &ServicePort) -> Protocol {
    if let Some(protocol) = port.protocol {
        return protocol;
    }
    let protocol_of = |workload: &Workload| {
        let port_number = target_port(&port.target, workload)?;
        let workload_port = workload.ports.iter().find(|port| port.port == port_number)?;
        Some(workload_port.protocol)
    };
    let mut protocols: BTreeSet<Protocol> =
        mesh.service_workloads(&service.name).filter_map(protocol_of).collect();
    if protocols.is_empty() {
        // Unmeshed workloads count if no workload has a sidecar.
        protocols.extend(mesh.unmeshed_workloads_of(&service.name).filter_map(protocol_of));
    }
    match (protocols.first(), protocols.len()) {
        (Some(protocol), 1) if *protocol != Protocol::Detect => *protocol,
        _ => protocol_by_convention(mesh, service, port),
    }
}

/// True if a port is declared as TCP, so that requests are not inspected there.
pub(crate) fn is_opaque(mesh: &Mesh, service: &ServiceName, port: u16) -> bool {
    mesh.service(service).is_some_and(|service_object| {
        let service_port = service_object.ports.iter().find(|candidate| candidate.port == port);
        service_port.is_some_and(|service_port| {
            port_protocol(mesh, service_object, service_port) == Protocol::Tcp
        })
    })
}

/// Returns the endpoints of a port, ordered by workload name. Each endpoint has the labels that
/// the port's tag rules name. Without a ready endpoint, terminating ones that still serve are used, as by
/// kube-proxy.
fn port_endpoints(
    mesh: &Mesh,
    service: &Service,
    port: &ServicePort,
    tags: Option<&TagRules>,
    client_class: &ClientClass,
    callable_workloads: &CallableWorkloads<'_>,
) -> Vec<Arc<Endpoint>> {
    let named_labels: BTreeSet<&str> = tags.into_iter().flat_map(TagRules::instance_tags).collect();
    let endpoints_at = |stage| {
        endpoints_at_stage(
            mesh,
            service,
            port,
            &named_labels,
            client_class,
            callable_workloads,
            stage,
        )
    };
    let mut endpoints = endpoints_at(LifecycleStage::Ready);
    if endpoints.is_empty() {
        endpoints = endpoints_at(LifecycleStage::Terminating);
    }
    clear_equal_weights(&mut endpoints);
    endpoints
}

/// Returns the endpoints of a port for workloads at this stage.
fn endpoints_at_stage(
    mesh: &Mesh,
    service: &Service,
    port: &ServicePort,
    named_labels: &BTreeSet<&str>,
    client_class: &ClientClass,
    callable_workloads: &CallableWorkloads<'_>,
    stage: LifecycleStage,
) -> Vec<Arc<Endpoint>> {
    let callable = select_callable_workloads(mesh, service, port, callable_workloads, stage);
    let mut endpoints: Vec<Arc<Endpoint>> = callable
        .filter_map(|(workload, port_number)| {
            let address = *mesh.sidecar_listeners(&workload.name)?.get(&port_number)?;
            let id = endpoint_id(&service.name, port, workload);
            let tags = select_labels(workload, |label| named_labels.contains(label));
            let account = Some(workload.account.clone());
            Some(Arc::new(Endpoint { id, address, account, tags, weight: Some(workload.weight) }))
        })
        .collect();
    // If the client may call none of the service's workloads with a sidecar, it gets no unmeshed endpoint either.
    if callable_workloads.allows_any_workload(mesh, &service.name) != Some(false) {
        endpoints.extend(unmeshed_endpoints(
            mesh,
            service,
            port,
            named_labels,
            client_class,
            stage,
        ));
        endpoints.sort_by(|a, b| a.id.cmp(&b.id));
    }
    endpoints
}

/// Removes the weights of endpoints if all are equal: such weights have no effect.
fn clear_equal_weights(endpoints: &mut [Arc<Endpoint>]) {
    let first_weight = endpoints.first().and_then(|endpoint| endpoint.weight);
    if endpoints.iter().all(|endpoint| endpoint.weight == first_weight) {
        for endpoint in endpoints {
            Arc::make_mut(endpoint).weight = None;
        }
    }
}

/// Returns the unmeshed endpoints of a port at a stage, at the applications' own addresses. Endpoints with a
/// policy that only a sidecar enforces are left out; for sidecars also those to which the default policy or
/// `egress` forbids plaintext.
fn unmeshed_endpoints(
    mesh: &Mesh,
    service: &Service,
    port: &ServicePort,
    named_labels: &BTreeSet<&str>,
    client_class: &ClientClass,
    stage: LifecycleStage,
) -> Vec<Arc<Endpoint>> {
    let all_workloads = mesh.unmeshed_workloads_of(&service.name);
    let workloads = all_workloads.filter(|workload| stage.includes(service, workload));
    let accepts_plaintext = |workload: &&Workload| {
        client_class.is_gateway() || plaintext_restriction(mesh, workload).is_none()
    };
    let mut cache = EnforcementCache::new(mesh);
    let endpoints = workloads.filter(accepts_plaintext).filter_map(|workload| {
        let port_number = target_port(&port.target, workload)?;
        cache.is_unrestricted(workload, port_number).then(|| {
            Arc::new(Endpoint {
                id: endpoint_id(&service.name, port, workload),
                address: SocketAddr::new(workload.address, port_number),
                account: None,
                tags: select_labels(workload, |label| named_labels.contains(label)),
                weight: Some(workload.weight),
            })
        })
    });
    endpoints.collect()
}

pub(crate) fn select_labels(
    workload: &Workload,
    is_selected: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let labels = workload.labels.iter().filter(|(name, _)| is_selected(name));
    labels.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the workloads with a sidecar behind a service port, each with the port of its application: those at `stage`
/// that the client may call.
fn select_callable_workloads<'a>(
    mesh: &'a Mesh,
    service: &Service,
    port: &ServicePort,
    callable_workloads: &CallableWorkloads<'_>,
    stage: LifecycleStage,
) -> impl Iterator<Item = (&'a Workload, u16)> {
    let workloads = mesh
        .service_workloads(&service.name)
        .filter(move |workload| stage.includes(service, workload))
        .filter(|workload| !mesh.is_revoked(workload))
        .filter(|workload| callable_workloads.allows(workload));
    workloads.filter_map(|workload| Some((workload, target_port(&port.target, workload)?)))
}

fn endpoint_id(service: &ServiceName, port: &ServicePort, workload: &Workload) -> EndpointId {
    EndpointId { service: service.clone(), port: port.port, workload: workload.name.clone() }
}

/// Returns the old configuration if it is equal; otherwise the new one, reusing equal endpoints.
fn reuse_unchanged(mut new: ServiceConfig, old: Option<Arc<ServiceConfig>>) -> Arc<ServiceConfig> {
    let Some(old) = old else {
        return Arc::new(new);
    };
    if *old == new {
        return old;
    }
    for (number, port) in &mut new.ports {
        // Both lists are in order of the endpoints' IDs.
        let old_endpoints = old.ports.get(number).map_or(&[][..], |port| &port.endpoints);
        for endpoint in &mut port.endpoints {
            let search_result = old_endpoints.binary_search_by(|old| old.id.cmp(&endpoint.id));
            if let Some(old_endpoint) =
                search_result.ok().and_then(|index| old_endpoints.get(index))
                && old_endpoint == endpoint
            {
                *endpoint = Arc::clone(old_endpoint);
            }
        }
    }
    Arc::new(new)
}
