//! Compiled snapshots: the sidecar compiles each snapshot once, when it arrives, and reuses the unchanged parts of the
//! previous compilation. Requests are routed and authorized by the compiled snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::{
    CallerAttributes, Endpoint, EndpointId, PortConfig, PortOutlierDetection, Protocol,
    ServiceConfig, ServiceName, ServiceRetry, Snapshot, TcpRule, Weight,
};

use crate::authorize::InboundAccess;
use crate::balance::hashing::EndpointHashTable;
use crate::egress_rule::EgressRules;
use crate::forwarded::{ForwardedPort, ForwardedPorts};
use crate::gateway::CompiledGateway;
use crate::pattern::InvalidPattern;
use crate::rate_limit::CompiledLimits;
use crate::request_checks::CompiledChecks;
use crate::route::PortRoutes;
use crate::session_persistence::EndpointNumbers;
use crate::tag::{CompiledTagRules, Lanes};
use crate::tls_route::TlsRoutes;
use crate::traffic_policy::{PortTrafficPolicy, ServicePortId};

/// A compiled snapshot. Unchanged parts are shared with the previous compiled snapshot.
#[derive(Debug)]
pub struct CompiledSnapshot {
    /// The snapshot that was compiled.
    pub snapshot: Arc<Snapshot>,
    /// The inbound authorization.
    pub access: Arc<InboundAccess>,
    /// The routes and endpoints, by service.
    pub services: BTreeMap<ServiceName, Arc<CompiledService>>,
    /// The headers that lanes add to inbound requests.
    pub lanes: Arc<Lanes>,
    /// The local rate limits of inbound traffic.
    pub limits: Arc<CompiledLimits>,
    /// The gateway configuration, if the workload is a gateway proxy.
    pub gateway: Option<Arc<CompiledGateway>>,
    /// The egress rules; the same object while they are unchanged.
    pub egress_rules: Arc<EgressRules>,
    /// The external checks of inbound requests, if any.
    pub request_checks: Option<Arc<CompiledChecks>>,
}

impl CompiledSnapshot {
    /// Compiles a snapshot.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression. The previous compiled snapshot then stays valid.
    pub fn build(snapshot: Arc<Snapshot>, previous: Option<&Self>) -> Result<Self, InvalidPattern> {
        let mut services = BTreeMap::new();
        let caller = &snapshot.config.caller;
        let retry_policies = &snapshot.config.retries;
        for (name, config) in &snapshot.services {
            let previous_service = previous.and_then(|previous| {
                Some(PreviousService {
                    service: previous.services.get(name)?,
                    is_same_caller: previous.snapshot.config.caller == *caller,
                })
            });
            let caller_inputs =
                CallerInputs { attributes: caller, retry_policy: retry_policies.get(name) };
            services.insert(
                name.clone(),
                CompiledService::build(config, caller_inputs, previous_service)?,
            );
        }
        compile_forwarded_ports(&mut services, &snapshot, previous)?;
        Ok(Self {
            access: build_access(&snapshot, previous)?,
            lanes: build_lanes(&snapshot, previous)?,
            limits: build_limits(&snapshot, previous)?,
            gateway: build_gateway(&snapshot, previous),
            egress_rules: build_egress_rules(&snapshot, previous)?,
            request_checks: build_request_checks(&snapshot, previous)?,
            snapshot,
            services,
        })
    }

    /// Returns a service, if the snapshot contains it.
    #[must_use]
    pub fn service(&self, name: &ServiceName) -> Option<&Arc<CompiledService>> {
        self.services.get(name)
    }

    /// Returns all traffic policies: the own policies of ports, and the combined policies of ports that routes forward
    /// to.
    pub fn traffic_policies(&self) -> impl Iterator<Item = &Arc<PortTrafficPolicy>> {
        let ports = || self.services.values().flat_map(|service| service.ports.values());
        let own_policies = ports().filter_map(|port| port.traffic_policy.as_ref());
        let forwarded_ports = ports().filter_map(|port| port.forwarded.as_ref());
        let forwarded_ports = forwarded_ports.flat_map(|forwarded| forwarded.ports());
        own_policies.chain(forwarded_ports.map(|port| &port.traffic_policy))
    }

    /// Returns the ports that routes of services with policies forward to.
    pub fn forwarded_ports(&self) -> impl Iterator<Item = &ForwardedPort> {
        let ports = self.services.values().flat_map(|service| service.ports.values());
        ports.filter_map(|port| port.forwarded.as_ref()).flat_map(|forwarded| forwarded.ports())
    }

    /// Returns the port with this outlier detection: the port that the policy is attached to, or a port that the
    /// routes of that port forward to. `None` if the snapshot has no such port.
    #[must_use]
    pub fn port_with_detection(
        &self,
        outlier_detection: &Arc<PortOutlierDetection>,
    ) -> Option<&CompiledPort> {
        let has_detection = |policy: &PortTrafficPolicy| {
            let candidate = policy.outlier_detection.as_ref();
            candidate.is_some_and(|candidate| Arc::ptr_eq(candidate, outlier_detection))
        };
        let mut ports = self.services.values().flat_map(|service| service.ports.values());
        let own_port = ports.find(|port| port.traffic_policy.as_deref().is_some_and(has_detection));
        own_port.or_else(|| {
            let forwarded_port =
                self.forwarded_ports().find(|port| has_detection(&port.traffic_policy))?;
            self.services.get(&forwarded_port.service)?.ports.get(&forwarded_port.port)
        })
    }
}

/// Compiles the policies of called services for the ports that their routes forward to. This is a second pass, because
/// it needs all compiled services. A service that is shared with the previous snapshot is compiled again only if these
/// policies changed.
fn compile_forwarded_ports(
    services: &mut BTreeMap<ServiceName, Arc<CompiledService>>,
    snapshot: &Snapshot,
    previous: Option<&CompiledSnapshot>,
) -> Result<(), InvalidPattern> {
    let mut changed_ports = Vec::new();
    for (name, service) in services.iter() {
        let previous_service = previous.and_then(|previous| previous.services.get(name));
        for (number, port) in &service.ports {
            if port.traffic_policy.is_none() && port.forwarded.is_none() {
                continue;
            }
            let previous_forwarded = previous_service
                .and_then(|service| service.ports.get(number)?.forwarded.as_deref());
            let forwarded =
                ForwardedPorts::for_port(name, *number, port, services, previous_forwarded);
            let is_same = match (&forwarded, &port.forwarded) {
                (None, None) => true,
                (Some(new), Some(current)) => new.has_same_policies(current),
                _ => false,
            };
            if !is_same {
                changed_ports.push((name.clone(), *number, forwarded));
            }
        }
    }
    for (name, number, forwarded) in changed_ports {
        let Some(service) = services.get_mut(&name) else { continue };
        // `get_mut` fails while the previous snapshot shares the service.
        if Arc::get_mut(service).is_none() {
            let caller_inputs = CallerInputs {
                attributes: &snapshot.config.caller,
                retry_policy: snapshot.config.retries.get(&name),
            };
            *service = CompiledService::recompile(service, caller_inputs)?;
        }
        let service = Arc::get_mut(service);
        if let Some(port) = service.and_then(|service| service.ports.get_mut(&number)) {
            port.forwarded = forwarded;
        }
    }
    Ok(())
}

/// A compiled service.
#[derive(Debug)]
pub struct CompiledService {
    /// The configuration that was compiled.
    pub config: Arc<ServiceConfig>,
    /// The ports, by number.
    pub ports: BTreeMap<u16, CompiledPort>,
}

/// The previous compilation of a service.
struct PreviousService<'a> {
    /// The compiled service.
    service: &'a Arc<CompiledService>,
    /// True if the attributes of the caller are unchanged; only tag rules depend on them.
    is_same_caller: bool,
}

/// The inputs of a service's compilation that depend on the calling workload.
#[derive(Clone, Copy)]
struct CallerInputs<'a> {
    /// The attributes of the workload, for tag rules.
    attributes: &'a CallerAttributes,
    /// The retry policy of the workload for the service, if any.
    retry_policy: Option<&'a ServiceRetry>,
}

impl CompiledService {
    /// Compiles a service; returns the previous compilation if none of the inputs changed.
    fn build(
        config: &Arc<ServiceConfig>,
        caller_inputs: CallerInputs<'_>,
        previous: Option<PreviousService<'_>>,
    ) -> Result<Arc<Self>, InvalidPattern> {
        if let Some(PreviousService { service, is_same_caller }) = &previous
            && (*is_same_caller || config.ports.values().all(|port| port.tags.is_none()))
            && service
                .ports
                .values()
                .all(|port| port.routes.retry_policy() == caller_inputs.retry_policy)
            && (Arc::ptr_eq(config, &service.config) || *config == service.config)
        {
            return Ok(Arc::clone(service));
        }
        Self::compile(config, caller_inputs, previous.map(|previous| &**previous.service))
    }

    /// Compiles a service again from the same configuration, because the shared object of the previous compilation
    /// cannot be changed. The policies of forwarded ports are retained.
    fn recompile(
        previous_service: &Arc<Self>,
        caller_inputs: CallerInputs<'_>,
    ) -> Result<Arc<Self>, InvalidPattern> {
        let mut recompiled =
            Self::compile(&previous_service.config, caller_inputs, Some(previous_service))?;
        if let Some(service) = Arc::get_mut(&mut recompiled) {
            for (number, port) in &mut service.ports {
                let previous_port = previous_service.ports.get(number);
                port.forwarded = previous_port.and_then(|port| port.forwarded.clone());
            }
        }
        Ok(recompiled)
    }

    /// Compiles the ports of a service, and reuses the unchanged parts of previous ports.
    fn compile(
        config: &Arc<ServiceConfig>,
        caller_inputs: CallerInputs<'_>,
        previous: Option<&Self>,
    ) -> Result<Arc<Self>, InvalidPattern> {
        let mut ports = BTreeMap::new();
        for (number, port) in &config.ports {
            let previous_config = previous.and_then(|previous| previous.config.ports.get(number));
            let compiled_port = previous.and_then(|previous| previous.ports.get(number));
            let previous_port = previous_config.zip(compiled_port);
            let port_id = ServicePortId { service: config.name.clone(), port: *number };
            let compiled = CompiledPort::build(&port_id, port, caller_inputs, previous_port)?;
            ports.insert(*number, compiled);
        }
        Ok(Arc::new(Self { config: Arc::clone(config), ports }))
    }
}

/// A compiled port of a service.
#[derive(Debug)]
pub struct CompiledPort {
    /// The routes of requests.
    pub routes: Arc<PortRoutes>,
    /// The routes of TLS sessions that applications encrypt.
    pub tls_routes: TlsRoutes,
    /// The protocol of the port.
    pub protocol: Protocol,
    /// The endpoints, ordered by ID.
    pub endpoints: Arc<[Arc<Endpoint>]>,
    /// The traffic policies; absent if there are none. While they are unchanged, this is the same object, because the
    /// per-thread state of policies is keyed by it.
    pub traffic_policy: Option<Arc<PortTrafficPolicy>>,
    /// The hash table of the endpoints, if a policy uses consistent hashing.
    pub hash_table: Option<Arc<EndpointHashTable>>,
    /// The tag rules; absent if every endpoint may receive all requests.
    pub tags: Option<Box<CompiledTagRules>>,
    /// The rule for opaque connections. When absent, they are forwarded to the port's own endpoints.
    pub tcp_rule: Option<Box<TcpRule>>,
    /// The endpoints by their number in session persistence values.
    pub endpoint_numbers: EndpointNumbers,
    /// The combined policies of the ports that the port's routes forward to; absent if there are none.
    pub forwarded: Option<Arc<ForwardedPorts>>,
}

impl CompiledPort {
    /// Compiles a port. Endpoints change more often than rules, so rules are compiled only if they changed.
    fn build(
        port_id: &ServicePortId,
        config: &PortConfig,
        caller_inputs: CallerInputs<'_>,
        previous: Option<(&PortConfig, &Self)>,
    ) -> Result<Self, InvalidPattern> {
        let CallerInputs { attributes, retry_policy } = caller_inputs;
        let has_same_rules = |previous_config: &PortConfig, previous_port: &Self| {
            previous_config.has_attached_routes == config.has_attached_routes
                && previous_config.rules == config.rules
                && previous_port.routes.retry_policy() == retry_policy
        };
        let routes = match previous {
            Some((previous_config, previous_port))
                if has_same_rules(previous_config, previous_port) =>
            {
                Arc::clone(&previous_port.routes)
            }
            _ => Arc::new(PortRoutes::compile(config)?.with_retry(retry_policy)),
        };
        let endpoints: Arc<[Arc<Endpoint>]> = config.endpoints.as_slice().into();
        let traffic_policy = match previous {
            _ if config.traffic_policy.is_empty() => None,
            Some((previous_config, previous_port))
                if previous_config.traffic_policy == config.traffic_policy =>
            {
                previous_port.traffic_policy.clone()
            }
            _ => Some(Arc::new(PortTrafficPolicy::new(config.traffic_policy.clone(), port_id)?)),
        };
        let hash_table = build_hash_table(config, previous, &endpoints);
        let tls_routes = TlsRoutes::compile(config);
        let tags = match &config.tags {
            None => None,
            Some(rules) => {
                let previous_tags =
                    previous.and_then(|(_, previous_port)| previous_port.tags.as_deref());
                Some(Box::new(CompiledTagRules::build(
                    rules,
                    attributes,
                    &endpoints,
                    previous_tags,
                )?))
            }
        };
        let protocol = config.protocol;
        let tcp_rule = config.tcp_rule.clone().map(Box::new);
        let endpoint_numbers = EndpointNumbers::default();
        Ok(Self {
            routes,
            tls_routes,
            protocol,
            endpoints,
            traffic_policy,
            hash_table,
            tags,
            tcp_rule,
            endpoint_numbers,
            forwarded: None,
        })
    }
}

/// Returns the hash table of the endpoints, if a policy uses consistent hashing; reused while endpoints and
/// weights are unchanged.
fn build_hash_table(
    config: &PortConfig,
    previous: Option<(&PortConfig, &CompiledPort)>,
    endpoints: &[Arc<Endpoint>],
) -> Option<Arc<EndpointHashTable>> {
    let algorithm_of = |config: &PortConfig| {
        let balancing = config.traffic_policy.balancing.as_ref();
        balancing.map(|balancing| balancing.rule.algorithm.clone())
    };
    let algorithm = algorithm_of(config)?;
    match previous {
        Some((previous_config, previous_port))
            if algorithm_of(previous_config).as_ref() == Some(&algorithm)
                && hash_inputs(&previous_port.endpoints).eq(hash_inputs(endpoints)) =>
        {
            previous_port.hash_table.clone()
        }
        _ => EndpointHashTable::for_endpoints(&algorithm, endpoints).map(Arc::new),
    }
}

/// Returns the IDs and weights of endpoints, which are the inputs of their hash table.
pub(crate) fn hash_inputs(
    endpoints: &[Arc<Endpoint>],
) -> impl Iterator<Item = (&EndpointId, Option<Weight>)> {
    endpoints.iter().map(|endpoint| (&endpoint.id, endpoint.weight))
}

/// Compiles the inbound authorization; reuses the previous one if unchanged, so that its permits stay current.
fn build_access(
    snapshot: &Snapshot,
    previous_compiled: Option<&CompiledSnapshot>,
) -> Result<Arc<InboundAccess>, InvalidPattern> {
    let config = &snapshot.config;
    match previous_compiled {
        Some(CompiledSnapshot { snapshot: previous_snapshot, access, .. })
            if previous_snapshot.config.access == config.access
                && previous_snapshot.config.trust_domain == config.trust_domain
                && previous_snapshot.config.revoked == config.revoked
                && previous_snapshot.config.inbound == config.inbound
                && previous_snapshot.config.mtls == config.mtls
                && previous_snapshot.config.ingress_rules == config.ingress_rules
                && (config.inbound.rules.is_empty()
                    || previous_snapshot.config.ports == config.ports) =>
        {
            Ok(Arc::clone(access))
        }
        _ => InboundAccess::from_config(config).map(Arc::new),
    }
}

/// Compiles the egress rules; reuses the previous ones if unchanged.
fn build_egress_rules(
    snapshot: &Snapshot,
    previous_compiled: Option<&CompiledSnapshot>,
) -> Result<Arc<EgressRules>, InvalidPattern> {
    match previous_compiled {
        Some(CompiledSnapshot { snapshot: previous_snapshot, egress_rules, .. })
            if previous_snapshot.config.egress_rules == snapshot.config.egress_rules =>
        {
            Ok(Arc::clone(egress_rules))
        }
        _ => EgressRules::compile(&snapshot.config.egress_rules).map(Arc::new),
    }
}

/// Compiles the lanes; reuses the previous ones if unchanged.
fn build_lanes(
    snapshot: &Snapshot,
    previous_compiled: Option<&CompiledSnapshot>,
) -> Result<Arc<Lanes>, InvalidPattern> {
    match previous_compiled {
        Some(CompiledSnapshot { snapshot: previous_snapshot, lanes, .. })
            if previous_snapshot.config.lanes == snapshot.config.lanes =>
        {
            Ok(Arc::clone(lanes))
        }
        _ => Lanes::compile(&snapshot.config.lanes).map(Arc::new),
    }
}

/// Compiles the rate limits; reuses the previous ones if unchanged, and otherwise the state of unchanged rules.
fn build_limits(
    snapshot: &Snapshot,
    previous_compiled: Option<&CompiledSnapshot>,
) -> Result<Arc<CompiledLimits>, InvalidPattern> {
    match previous_compiled {
        Some(CompiledSnapshot { snapshot: previous_snapshot, limits, .. })
            if previous_snapshot.config.limits == snapshot.config.limits =>
        {
            Ok(Arc::clone(limits))
        }
        _ => {
            let previous_limits = previous_compiled.map(|previous| &*previous.limits);
            CompiledLimits::build(&snapshot.config.limits, previous_limits).map(Arc::new)
        }
    }
}

/// Compiles the external checks; reuses the previous ones if unchanged. `None` if there are no checks.
fn build_request_checks(
    snapshot: &Snapshot,
    previous_compiled: Option<&CompiledSnapshot>,
) -> Result<Option<Arc<CompiledChecks>>, InvalidPattern> {
    let config = &snapshot.config;
    match previous_compiled {
        Some(CompiledSnapshot { snapshot: previous_snapshot, request_checks, .. })
            if previous_snapshot.config.request_checks == config.request_checks
                && previous_snapshot.config.limits == config.limits =>
        {
            Ok(request_checks.clone())
        }
        _ => Ok(CompiledChecks::build(config)?.map(Arc::new)),
    }
}

/// Compiles the gateway configuration; reuses the previous one if unchanged, and otherwise unchanged ports. `None` for
/// a workload that is no gateway proxy.
fn build_gateway(
    snapshot: &Snapshot,
    previous: Option<&CompiledSnapshot>,
) -> Option<Arc<CompiledGateway>> {
    let gateway = snapshot.config.gateway.as_ref()?;
    let previous_gateway = previous.and_then(|previous| previous.gateway.as_ref());
    match previous_gateway {
        Some(previous_gateway) if previous_gateway.gateway == *gateway => {
            Some(Arc::clone(previous_gateway))
        }
        previous_gateway => {
            let previous_gateway = previous_gateway.map(Arc::as_ref);
            Some(Arc::new(CompiledGateway::build(gateway, previous_gateway)))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
