//! Plans: a snapshot with all its rules compiled, built once when the snapshot arrives.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::{
    Caller, Endpoint, EndpointId, PortView, Protocol, Removal, ServiceName, ServiceRetry,
    ServiceView, Snapshot, TcpRule, Weight,
};

use crate::authorize::InboundAccess;
use crate::balance::hashing::Places;
use crate::forwarded::{Forwarded, ForwardedPort};
use crate::gateway::GatewayPlan;
use crate::guard::Guards;
use crate::limit::Limits;
use crate::outlet::Outlets;
use crate::pattern::BadPattern;
use crate::persistence::EndpointNames;
use crate::route::PortRoutes;
use crate::tag::{Lanes, TagPlan};
use crate::tls_route::TlsRoutes;
use crate::treatment::{PortTreatment, ServicePort};

/// A snapshot, compiled. What did not change since the previous one is taken over from it.
#[derive(Debug)]
pub struct Plans {
    /// What it was compiled from.
    pub snapshot: Arc<Snapshot>,
    /// Who may come in.
    pub access: Arc<InboundAccess>,
    /// Where requests go, by the service that they are for.
    pub services: BTreeMap<ServiceName, Arc<ServicePlan>>,
    /// What requests that come in are marked with.
    pub lanes: Arc<Lanes>,
    /// How much may come in.
    pub limits: Arc<Limits>,
    /// What it serves as the proxy of a gateway.
    pub gateway: Option<Arc<GatewayPlan>>,
    /// What it reaches outside although nobody is let out; the same one while that is the same.
    pub outlets: Arc<Outlets>,
    /// Who else decides about requests that come in; absent when nobody does.
    pub guards: Option<Arc<Guards>>,
}

impl Plans {
    /// Compiles a snapshot.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used; nothing is built then.
    pub fn build(snapshot: Arc<Snapshot>, previous: Option<&Self>) -> Result<Self, BadPattern> {
        let mut services = BTreeMap::new();
        let caller = &snapshot.plan.caller;
        let retries = &snapshot.plan.retries;
        for (name, view) in &snapshot.services {
            let old = previous.and_then(|plans| {
                Some(Old {
                    plan: plans.services.get(name)?,
                    same_caller: plans.snapshot.plan.caller == *caller,
                })
            });
            let client = (caller, retries.get(name));
            services.insert(name.clone(), ServicePlan::build(view, client, old)?);
        }
        forward(&mut services, &snapshot, previous)?;
        Ok(Self {
            access: build_access(&snapshot, previous)?,
            lanes: build_lanes(&snapshot, previous)?,
            limits: build_limits(&snapshot, previous)?,
            gateway: build_gateway(&snapshot, previous),
            outlets: build_outlets(&snapshot, previous)?,
            guards: build_guards(&snapshot, previous)?,
            snapshot,
            services,
        })
    }

    /// The plan of a service, if the snapshot knows it.
    #[must_use]
    pub fn service(&self, name: &ServiceName) -> Option<&Arc<ServicePlan>> {
        self.services.get(name)
    }

    /// The policies of every way to a port: those of direct calls, and those that a route of a called
    /// service adds.
    pub fn treatments(&self) -> impl Iterator<Item = &Arc<PortTreatment>> {
        let ports = || self.services.values().flat_map(|plan| plan.ports.values());
        let own = ports().filter_map(|port| port.treatment.as_ref());
        let forwarded = ports().filter_map(|port| port.forwarded.as_ref());
        let forwarded = forwarded.flat_map(|it| it.ports()).map(|port| &port.treatment);
        own.chain(forwarded)
    }

    /// The ports that routes of services with policies forward to.
    pub fn forwarded(&self) -> impl Iterator<Item = &ForwardedPort> {
        let ports = self.services.values().flat_map(|plan| plan.ports.values());
        ports.filter_map(|port| port.forwarded.as_ref()).flat_map(|it| it.ports())
    }

    /// The port with the endpoints that an outlier detection is for.
    #[must_use]
    pub fn watched_by(&self, removal: &Arc<Removal>) -> Option<&PortPlan> {
        let is_it = |it: &PortTreatment| {
            it.removal.as_ref().is_some_and(|other| Arc::ptr_eq(other, removal))
        };
        let mut ports = self.services.values().flat_map(|plan| plan.ports.values());
        let own = ports.find(|port| port.treatment.as_deref().is_some_and(is_it));
        own.or_else(|| {
            let found = self.forwarded().find(|port| is_it(&port.treatment))?;
            self.services.get(&found.service)?.ports.get(&found.port)
        })
    }
}

/// Compiles the policies of called services on the ports that their routes forward to. A plan of the
/// previous snapshot is compiled again only where these changed.
fn forward(
    services: &mut BTreeMap<ServiceName, Arc<ServicePlan>>,
    snapshot: &Snapshot,
    previous: Option<&Plans>,
) -> Result<(), BadPattern> {
    let mut changed = Vec::new();
    for (name, plan) in services.iter() {
        let before = previous.and_then(|plans| plans.services.get(name));
        for (number, port) in &plan.ports {
            if port.treatment.is_none() && port.forwarded.is_none() {
                continue;
            }
            let before = before.and_then(|plan| plan.ports.get(number)?.forwarded.as_deref());
            let forwarded = Forwarded::of((name, *number), port, services, before);
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
            let client = (&snapshot.plan.caller, snapshot.plan.retries.get(&name));
            *plan = ServicePlan::renewed(plan, client)?;
        }
        let plan = Arc::get_mut(plan);
        if let Some(port) = plan.and_then(|plan| plan.ports.get_mut(&number)) {
            port.forwarded = forwarded;
        }
    }
    Ok(())
}

/// A service, compiled.
#[derive(Debug)]
pub struct ServicePlan {
    /// What it was compiled from.
    pub view: Arc<ServiceView>,
    /// Its ports, by number.
    pub ports: BTreeMap<u16, PortPlan>,
}

/// A service as it was compiled before.
struct Old<'a> {
    plan: &'a Arc<ServicePlan>,
    /// Whether the caller is as it was then; only tag rules look at it.
    same_caller: bool,
}

/// For whom a service is compiled: what tag rules may ask about it, and when its requests there are
/// sent once more.
type Client<'a> = (&'a Caller, Option<&'a ServiceRetry>);

impl ServicePlan {
    /// Compiles a service; the plan before it is kept as it is when nothing changed.
    fn build(
        view: &Arc<ServiceView>,
        (caller, retry): Client<'_>,
        old: Option<Old<'_>>,
    ) -> Result<Arc<Self>, BadPattern> {
        if let Some(Old { plan, same_caller }) = &old
            && (*same_caller || view.ports.values().all(|port| port.tags.is_none()))
            && plan.ports.values().all(|port| port.routes.retry_policy() == retry)
            && (Arc::ptr_eq(view, &plan.view) || *view == plan.view)
        {
            return Ok(Arc::clone(plan));
        }
        Self::compile(view, (caller, retry), old.map(|old| &**old.plan))
    }

    /// The same service, compiled again from the same view.
    fn renewed(old: &Arc<Self>, client: Client<'_>) -> Result<Arc<Self>, BadPattern> {
        let mut renewed = Self::compile(&old.view, client, Some(old))?;
        if let Some(plan) = Arc::get_mut(&mut renewed) {
            for (number, port) in &mut plan.ports {
                let before = old.ports.get(number).and_then(|old| old.forwarded.clone());
                port.forwarded = before;
            }
        }
        Ok(renewed)
    }

    fn compile(
        view: &Arc<ServiceView>,
        client: Client<'_>,
        old: Option<&Self>,
    ) -> Result<Arc<Self>, BadPattern> {
        let mut ports = BTreeMap::new();
        for (number, port) in &view.ports {
            let old_view = old.and_then(|old| old.view.ports.get(number));
            let old_plan = old.and_then(|old| old.ports.get(number));
            let old = old_view.zip(old_plan);
            let subject = ServicePort { service: view.name.clone(), port: *number };
            ports.insert(*number, PortPlan::build((&subject, port), client, old)?);
        }
        let view = Arc::clone(view);
        Ok(Arc::new(Self { view, ports }))
    }
}

/// One port of a service, compiled.
#[derive(Debug)]
pub struct PortPlan {
    /// Where its requests go.
    pub routes: Arc<PortRoutes>,
    /// Where sessions go that applications encrypt.
    pub tls_routes: TlsRoutes,
    /// What is spoken there.
    pub protocol: Protocol,
    /// Where it can be reached, ordered by id.
    pub endpoints: Arc<[Arc<Endpoint>]>,
    /// How its requests are treated; absent when no policy says anything. The same while it
    /// says the same, so that what threads keep for it lives as long.
    pub treatment: Option<Arc<PortTreatment>>,
    /// Which of its endpoints a key belongs to, where a policy hashes one.
    pub places: Option<Arc<Places>>,
    /// Which of them take which requests; any take all when absent.
    pub tags: Option<Box<TagPlan>>,
    /// Where connections go in which no request is seen; to its own endpoints when absent.
    pub tcp_rule: Option<Box<TcpRule>>,
    /// Which of its endpoints a value means that a client shows.
    pub names: EndpointNames,
    /// Its policies on the ports that its routes forward to; absent without policies.
    pub forwarded: Option<Arc<Forwarded>>,
}

impl PortPlan {
    /// Endpoints come and go more often than rules: the rules are compiled only when they changed.
    fn build(
        (subject, view): (&ServicePort, &PortView),
        (caller, retry): Client<'_>,
        old: Option<(&PortView, &Self)>,
    ) -> Result<Self, BadPattern> {
        let same_rules = |before: &PortView, plan: &Self| {
            before.routed == view.routed
                && before.rules == view.rules
                && plan.routes.retry_policy() == retry
        };
        let routes = match old {
            Some((before, plan)) if same_rules(before, plan) => Arc::clone(&plan.routes),
            _ => Arc::new(PortRoutes::compile(view)?.under(retry)),
        };
        let endpoints: Arc<[Arc<Endpoint>]> = view.endpoints.as_slice().into();
        let treatment = match old {
            _ if view.treatment.is_empty() => None,
            Some((before, plan)) if before.treatment == view.treatment => plan.treatment.clone(),
            _ => Some(Arc::new(PortTreatment::new(view.treatment.clone(), subject)?)),
        };
        let places = places(view, old, &endpoints);
        let tls_routes = TlsRoutes::compile(view);
        let tags = match &view.tags {
            None => None,
            Some(rules) => {
                let old = old.and_then(|(_, plan)| plan.tags.as_deref());
                Some(Box::new(TagPlan::build(rules, caller, &endpoints, old)?))
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
            treatment,
            places,
            tags,
            tcp_rule,
            names,
            forwarded: None,
        })
    }
}

/// The places of endpoints, where a policy hashes; those from before while neither endpoints nor their
/// weights change.
fn places(
    view: &PortView,
    old: Option<(&PortView, &PortPlan)>,
    endpoints: &[Arc<Endpoint>],
) -> Option<Arc<Places>> {
    let algorithm = |view: &PortView| {
        let balancing = view.treatment.balancing.as_ref();
        balancing.map(|balancing| balancing.rule.algorithm.clone())
    };
    let wanted = algorithm(view)?;
    match old {
        Some((before, plan))
            if algorithm(before).as_ref() == Some(&wanted)
                && placed(&plan.endpoints).eq(placed(endpoints)) =>
        {
            plan.places.clone()
        }
        _ => Places::of(&wanted, endpoints).map(Arc::new),
    }
}

/// What decides about places.
pub(crate) fn placed(
    endpoints: &[Arc<Endpoint>],
) -> impl Iterator<Item = (&EndpointId, Option<Weight>)> {
    endpoints.iter().map(|endpoint| (&endpoint.id, endpoint.weight))
}

/// Permits stay current as long as the access rules stay the same.
fn build_access(
    snapshot: &Snapshot,
    previous: Option<&Plans>,
) -> Result<Arc<InboundAccess>, BadPattern> {
    let plan = &snapshot.plan;
    match previous {
        Some(Plans { snapshot: old, access, .. })
            if old.plan.access == plan.access
                && old.plan.trust_domain == plan.trust_domain
                && old.plan.revoked == plan.revoked
                && old.plan.inbound == plan.inbound
                && old.plan.plaintext == plan.plaintext
                && old.plan.openings == plan.openings
                && (plan.inbound.rules.is_empty() || old.plan.ports == plan.ports) =>
        {
            Ok(Arc::clone(access))
        }
        _ => InboundAccess::of(plan).map(Arc::new),
    }
}

fn build_outlets(
    snapshot: &Snapshot,
    previous: Option<&Plans>,
) -> Result<Arc<Outlets>, BadPattern> {
    match previous {
        Some(Plans { snapshot: old, outlets, .. }) if old.plan.outlets == snapshot.plan.outlets => {
            Ok(Arc::clone(outlets))
        }
        _ => Outlets::compile(&snapshot.plan.outlets).map(Arc::new),
    }
}

fn build_lanes(snapshot: &Snapshot, previous: Option<&Plans>) -> Result<Arc<Lanes>, BadPattern> {
    match previous {
        Some(Plans { snapshot: old, lanes, .. }) if old.plan.lanes == snapshot.plan.lanes => {
            Ok(Arc::clone(lanes))
        }
        _ => Lanes::compile(&snapshot.plan.lanes).map(Arc::new),
    }
}

fn build_limits(snapshot: &Snapshot, previous: Option<&Plans>) -> Result<Arc<Limits>, BadPattern> {
    match previous {
        Some(Plans { snapshot: old, limits, .. }) if old.plan.limits == snapshot.plan.limits => {
            Ok(Arc::clone(limits))
        }
        _ => {
            let before = previous.map(|plans| &*plans.limits);
            Limits::build(&snapshot.plan.limits, before).map(Arc::new)
        }
    }
}

fn build_guards(
    snapshot: &Snapshot,
    previous: Option<&Plans>,
) -> Result<Option<Arc<Guards>>, BadPattern> {
    let plan = &snapshot.plan;
    match previous {
        Some(Plans { snapshot: old, guards, .. })
            if old.plan.guards == plan.guards && old.plan.limits == plan.limits =>
        {
            Ok(guards.clone())
        }
        _ => Ok(Guards::build(plan)?.map(Arc::new)),
    }
}

fn build_gateway(snapshot: &Snapshot, previous: Option<&Plans>) -> Option<Arc<GatewayPlan>> {
    let gateway = snapshot.plan.gateway.as_ref()?;
    let before = previous.and_then(|plans| plans.gateway.as_ref());
    match before {
        Some(before) if before.gateway == *gateway => Some(Arc::clone(before)),
        before => Some(Arc::new(GatewayPlan::build(gateway, before.map(|it| &**it)))),
    }
}

#[cfg(test)]
pub(crate) mod tests;
