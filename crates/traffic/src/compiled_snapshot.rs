//! A compiled snapshot, built once when the snapshot arrives.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::{
    CallerAttributes, Endpoint, EndpointId, PortConfig, PortOutlierDetection, Protocol,
    ServiceConfig, ServiceName, ServiceRetry, Snapshot, TcpRule, Weight,
};

use crate::authorize::InboundAccess;
use crate::balance::hashing::EndpointHashTable;
use crate::egress_rule::EgressRules;
use crate::forwarded::{Forwarded, ForwardedPort};
use crate::gateway::CompiledGateway;
use crate::pattern::InvalidPattern;
use crate::rate_limit::CompiledLimits;
use crate::request_checks::CompiledChecks;
use crate::route::PortRoutes;
use crate::session_persistence::EndpointNames;
use crate::tag::{CompiledTagRules, Lanes};
use crate::tls_route::TlsRoutes;
use crate::traffic_policy::{PortTrafficPolicy, ServicePortId};

/// A compiled snapshot. Unchanged parts are shared with the previous one.
#[derive(Debug)]
pub struct CompiledSnapshot {
    /// The source of the compilation.
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
    /// [`InvalidPattern`] for the first invalid regular expression; nothing is built then.
    pub fn build(snapshot: Arc<Snapshot>, previous: Option<&Self>) -> Result<Self, InvalidPattern> {
        let mut services = BTreeMap::new();
        let caller = &snapshot.config.caller;
        let retries = &snapshot.config.retries;
        for (name, view) in &snapshot.services {
            let old = previous.and_then(|plans| {
                Some(PreviousService {
                    service: plans.services.get(name)?,
                    same_caller: plans.snapshot.config.caller == *caller,
                })
            });
            let client = (caller, retries.get(name));
            services.insert(name.clone(), CompiledService::build(view, client, old)?);
        }
        compile_forwarded(&mut services, &snapshot, previous)?;
        Ok(Self {
            access: build_access(&snapshot, previous)?,
            lanes: build_lanes(&snapshot, previous)?,
            limits: build_limits(&snapshot, previous)?,
            gateway: build_gateway(&snapshot, previous),
            egress_rules: build_egress_rules(&snapshot, previous)?,
            request_checks: build_guards(&snapshot, previous)?,
            snapshot,
            services,
        })
    }

    /// Returns a service, if the snapshot contains it.
    #[must_use]
    pub fn service(&self, name: &ServiceName) -> Option<&Arc<CompiledService>> {
        self.services.get(name)
    }

    /// Returns the policies of every path to a port: those of direct calls, and those that routes of called
    /// services add.
    pub fn traffic_policies(&self) -> impl Iterator<Item = &Arc<PortTrafficPolicy>> {
        let ports = || self.services.values().flat_map(|plan| plan.ports.values());
        let own = ports().filter_map(|port| port.traffic_policy.as_ref());
        let forwarded = ports().filter_map(|port| port.forwarded.as_ref());
        let forwarded = forwarded.flat_map(|it| it.ports()).map(|port| &port.traffic_policy);
        own.chain(forwarded)
    }

    /// Returns the ports that routes of services with policies forward to.
    pub fn forwarded_ports(&self) -> impl Iterator<Item = &ForwardedPort> {
        let ports = self.services.values().flat_map(|plan| plan.ports.values());
        ports.filter_map(|port| port.forwarded.as_ref()).flat_map(|it| it.ports())
    }

    /// Returns the port that an outlier detector belongs to.
    #[must_use]
    pub fn watched_by(
        &self,
        outlier_detection: &Arc<PortOutlierDetection>,
    ) -> Option<&CompiledPort> {
        let is_it = |it: &PortTrafficPolicy| {
            it.outlier_detection.as_ref().is_some_and(|other| Arc::ptr_eq(other, outlier_detection))
        };
        let mut ports = self.services.values().flat_map(|plan| plan.ports.values());
        let own = ports.find(|port| port.traffic_policy.as_deref().is_some_and(is_it));
        own.or_else(|| {
            let found = self.forwarded_ports().find(|port| is_it(&port.traffic_policy))?;
            self.services.get(&found.service)?.ports.get(&found.port)
        })
    }
}

/// Compiles the policies of called services for the ports that their routes forward to. Services of the
/// previous snapshot are recompiled only if these policies changed.
fn compile_forwarded(
    services: &mut BTreeMap<ServiceName, Arc<CompiledService>>,
    snapshot: &Snapshot,
    previous: Option<&CompiledSnapshot>,
) -> Result<(), InvalidPattern> {
    let mut changed = Vec::new();
    for (name, plan) in services.iter() {
        let before = previous.and_then(|plans| plans.services.get(name));
        for (number, port) in &plan.ports {
            if port.traffic_policy.is_none() && port.forwarded.is_none() {
                continue;
            }
            let before = before.and_then(|plan| plan.ports.get(number)?.forwarded.as_deref());
            let forwarded = Forwarded::for_port(name, *number, port, services, before);
            let is_same = match (&forwarded, &port.forwarded) {
                (None, None) => true,
                (Some(new), Some(known)) => new.is_same(known),
                _ => false,
            };
            if !is_same {
                changed.push((name.clone(), *number, forwarded));
            }
        }
    }
    for (name, number, forwarded) in changed {
        let Some(plan) = services.get_mut(&name) else { continue };
        if Arc::get_mut(plan).is_none() {
            let client = (&snapshot.config.caller, snapshot.config.retries.get(&name));
            *plan = CompiledService::recompile(plan, client)?;
        }
        let plan = Arc::get_mut(plan);
        if let Some(port) = plan.and_then(|plan| plan.ports.get_mut(&number)) {
            port.forwarded = forwarded;
        }
    }
    Ok(())
}

/// A compiled service.
#[derive(Debug)]
pub struct CompiledService {
    /// The source of the compilation.
    pub config: Arc<ServiceConfig>,
    /// The ports, by number.
    pub ports: BTreeMap<u16, CompiledPort>,
}

/// The previous compilation of a service.
struct PreviousService<'a> {
    service: &'a Arc<CompiledService>,
    /// True if the caller is unchanged; only tag rules depend on it.
    same_caller: bool,
}

/// The caller, for tag rules, and its default retry policy.
type Client<'a> = (&'a CallerAttributes, Option<&'a ServiceRetry>);

impl CompiledService {
    /// Compiles a service; an unchanged one is reused.
    fn build(
        view: &Arc<ServiceConfig>,
        (caller, retry): Client<'_>,
        old: Option<PreviousService<'_>>,
    ) -> Result<Arc<Self>, InvalidPattern> {
        if let Some(PreviousService { service: plan, same_caller }) = &old
            && (*same_caller || view.ports.values().all(|port| port.tags.is_none()))
            && plan.ports.values().all(|port| port.routes.retry_policy() == retry)
            && (Arc::ptr_eq(view, &plan.config) || *view == plan.config)
        {
            return Ok(Arc::clone(plan));
        }
        Self::compile(view, (caller, retry), old.map(|old| &**old.service))
    }

    /// Recompiles a service from the same configuration.
    fn recompile(old: &Arc<Self>, client: Client<'_>) -> Result<Arc<Self>, InvalidPattern> {
        let mut renewed = Self::compile(&old.config, client, Some(old))?;
        if let Some(plan) = Arc::get_mut(&mut renewed) {
            for (number, port) in &mut plan.ports {
                let before = old.ports.get(number).and_then(|old| old.forwarded.clone());
                port.forwarded = before;
            }
        }
        Ok(renewed)
    }

    fn compile(
        view: &Arc<ServiceConfig>,
        client: Client<'_>,
        old: Option<&Self>,
    ) -> Result<Arc<Self>, InvalidPattern> {
        let mut ports = BTreeMap::new();
        for (number, port) in &view.ports {
            let old_view = old.and_then(|old| old.config.ports.get(number));
            let old_plan = old.and_then(|old| old.ports.get(number));
            let old = old_view.zip(old_plan);
            let subject = ServicePortId { service: view.name.clone(), port: *number };
            ports.insert(*number, CompiledPort::build(&subject, port, client, old)?);
        }
        let view = Arc::clone(view);
        Ok(Arc::new(Self { config: view, ports }))
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
    /// The endpoints, ordered by id.
    pub endpoints: Arc<[Arc<Endpoint>]>,
    /// The traffic policies; absent if there are none. The same object while they are unchanged, so that
    /// per-thread state survives.
    pub traffic_policy: Option<Arc<PortTrafficPolicy>>,
    /// The hash table of the endpoints, if a policy uses consistent hashing.
    pub hash_table: Option<Arc<EndpointHashTable>>,
    /// The endpoints by tag; absent if every endpoint takes all requests.
    pub tags: Option<Box<CompiledTagRules>>,
    /// The backends of opaque connections; absent for the port's own endpoints.
    pub tcp_rule: Option<Box<TcpRule>>,
    /// The endpoints by session persistence value.
    pub names: EndpointNames,
    /// The combined policies of the ports that its routes forward to; absent without policies.
    pub forwarded: Option<Arc<Forwarded>>,
}

impl CompiledPort {
    /// Endpoints change more often than rules, so rules are compiled only if they changed.
    fn build(
        subject: &ServicePortId,
        view: &PortConfig,
        (caller, retry): Client<'_>,
        old: Option<(&PortConfig, &Self)>,
    ) -> Result<Self, InvalidPattern> {
        let same_rules = |before: &PortConfig, plan: &Self| {
            before.routed == view.routed
                && before.rules == view.rules
                && plan.routes.retry_policy() == retry
        };
        let routes = match old {
            Some((before, plan)) if same_rules(before, plan) => Arc::clone(&plan.routes),
            _ => Arc::new(PortRoutes::compile(view)?.with_retry(retry)),
        };
        let endpoints: Arc<[Arc<Endpoint>]> = view.endpoints.as_slice().into();
        let traffic_policy = match old {
            _ if view.traffic_policy.is_empty() => None,
            Some((before, plan)) if before.traffic_policy == view.traffic_policy => {
                plan.traffic_policy.clone()
            }
            _ => Some(Arc::new(PortTrafficPolicy::new(view.traffic_policy.clone(), subject)?)),
        };
        let places = hash_places(view, old, &endpoints);
        let tls_routes = TlsRoutes::compile(view);
        let tags = match &view.tags {
            None => None,
            Some(rules) => {
                let old = old.and_then(|(_, plan)| plan.tags.as_deref());
                Some(Box::new(CompiledTagRules::build(rules, caller, &endpoints, old)?))
            }
        };
        let protocol = view.protocol;
        let tcp_rule = view.tcp_rule.clone().map(Box::new);
        let names = EndpointNames::default();
        Ok(Self {
            routes,
            tls_routes,
            protocol,
            endpoints,
            traffic_policy,
            hash_table: places,
            tags,
            tcp_rule,
            names,
            forwarded: None,
        })
    }
}

/// Returns the hash table of the endpoints, if a policy uses consistent hashing; reused while endpoints and
/// weights are unchanged.
fn hash_places(
    view: &PortConfig,
    old: Option<(&PortConfig, &CompiledPort)>,
    endpoints: &[Arc<Endpoint>],
) -> Option<Arc<EndpointHashTable>> {
    let algorithm = |view: &PortConfig| {
        let balancing = view.traffic_policy.balancing.as_ref();
        balancing.map(|balancing| balancing.rule.algorithm.clone())
    };
    let wanted = algorithm(view)?;
    match old {
        Some((before, plan))
            if algorithm(before).as_ref() == Some(&wanted)
                && hash_inputs(&plan.endpoints).eq(hash_inputs(endpoints)) =>
        {
            plan.hash_table.clone()
        }
        _ => EndpointHashTable::for_endpoints(&wanted, endpoints).map(Arc::new),
    }
}

/// Returns the inputs of the hash table.
pub(crate) fn hash_inputs(
    endpoints: &[Arc<Endpoint>],
) -> impl Iterator<Item = (&EndpointId, Option<Weight>)> {
    endpoints.iter().map(|endpoint| (&endpoint.id, endpoint.weight))
}

/// Permits stay valid while the access rules are unchanged.
fn build_access(
    snapshot: &Snapshot,
    previous: Option<&CompiledSnapshot>,
) -> Result<Arc<InboundAccess>, InvalidPattern> {
    let plan = &snapshot.config;
    match previous {
        Some(CompiledSnapshot { snapshot: old, access, .. })
            if old.config.access == plan.access
                && old.config.trust_domain == plan.trust_domain
                && old.config.revoked == plan.revoked
                && old.config.inbound == plan.inbound
                && old.config.mtls == plan.mtls
                && old.config.ingress_rules == plan.ingress_rules
                && (plan.inbound.rules.is_empty() || old.config.ports == plan.ports) =>
        {
            Ok(Arc::clone(access))
        }
        _ => InboundAccess::from_config(plan).map(Arc::new),
    }
}

fn build_egress_rules(
    snapshot: &Snapshot,
    previous: Option<&CompiledSnapshot>,
) -> Result<Arc<EgressRules>, InvalidPattern> {
    match previous {
        Some(CompiledSnapshot { snapshot: old, egress_rules, .. })
            if old.config.egress_rules == snapshot.config.egress_rules =>
        {
            Ok(Arc::clone(egress_rules))
        }
        _ => EgressRules::compile(&snapshot.config.egress_rules).map(Arc::new),
    }
}

fn build_lanes(
    snapshot: &Snapshot,
    previous: Option<&CompiledSnapshot>,
) -> Result<Arc<Lanes>, InvalidPattern> {
    match previous {
        Some(CompiledSnapshot { snapshot: old, lanes, .. })
            if old.config.lanes == snapshot.config.lanes =>
        {
            Ok(Arc::clone(lanes))
        }
        _ => Lanes::compile(&snapshot.config.lanes).map(Arc::new),
    }
}

fn build_limits(
    snapshot: &Snapshot,
    previous: Option<&CompiledSnapshot>,
) -> Result<Arc<CompiledLimits>, InvalidPattern> {
    match previous {
        Some(CompiledSnapshot { snapshot: old, limits, .. })
            if old.config.limits == snapshot.config.limits =>
        {
            Ok(Arc::clone(limits))
        }
        _ => {
            let before = previous.map(|plans| &*plans.limits);
            CompiledLimits::build(&snapshot.config.limits, before).map(Arc::new)
        }
    }
}

fn build_guards(
    snapshot: &Snapshot,
    previous: Option<&CompiledSnapshot>,
) -> Result<Option<Arc<CompiledChecks>>, InvalidPattern> {
    let plan = &snapshot.config;
    match previous {
        Some(CompiledSnapshot { snapshot: old, request_checks: guards, .. })
            if old.config.request_checks == plan.request_checks
                && old.config.limits == plan.limits =>
        {
            Ok(guards.clone())
        }
        _ => Ok(CompiledChecks::build(plan)?.map(Arc::new)),
    }
}

fn build_gateway(
    snapshot: &Snapshot,
    previous: Option<&CompiledSnapshot>,
) -> Option<Arc<CompiledGateway>> {
    let gateway = snapshot.config.gateway.as_ref()?;
    let before = previous.and_then(|plans| plans.gateway.as_ref());
    match before {
        Some(before) if before.gateway == *gateway => Some(Arc::clone(before)),
        before => Some(Arc::new(CompiledGateway::build(gateway, before.map(|it| &**it)))),
    }
}

#[cfg(test)]
pub(crate) mod tests;
