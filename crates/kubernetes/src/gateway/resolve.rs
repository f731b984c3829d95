//! Resolution of gateways, routes and their references into configuration, statuses and desired objects. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use leno_model::{Gateway, GatewayName, ServiceName, gateway_account};
use serde_json::Value;

use super::attach::{ListenerAttachment, RouteHost, attach_route, gateway_of};
use super::backends::{ResolvedRouteRules, ServiceLookup, resolve_backends};
use super::facts::{
    ClusterFacts, GatewayAddress, GatewayClassFacts, GatewayFacts, Infrastructure, RouteFacts,
    RouteId, first_unknown_field,
};
use super::listener::{ConditionReason, ValidatedListener, secret_of, validate_listeners};
use super::manifests::{DOMAINS, is_below, object_name};
use super::served::{ServedRoute, compile_ports};
use super::status::{
    GatewayListenerStatus, GatewayStatus, RouteParentStatus, gateway_awaited, true_condition,
};
use crate::source::ObjectId;
use crate::status::StatusCondition;
use crate::words::{GATEWAY_CONTROLLER, PREFIXES, SERVICE_TYPE};

/// The result for all gateways.
#[derive(Default)]
pub(crate) struct ResolvedGateways {
    pub(crate) gateways: BTreeMap<GatewayName, Gateway>,
    pub(crate) gateway_statuses: BTreeMap<ObjectId, GatewayStatus>,
    /// The conditions of classes, with their generation.
    pub(crate) classes: BTreeMap<String, (i64, Vec<StatusCondition>)>,
    /// The statuses of routes, for each gateway that they refer to.
    pub(crate) parents: BTreeMap<RouteId, Vec<RouteParentStatus>>,
    /// The services to which gateways route.
    pub(crate) backends: BTreeSet<ServiceName>,
    pub(crate) desired: Vec<DesiredGateway>,
}

/// The desired objects of one gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredGateway {
    pub(crate) name: GatewayName,
    /// The account of its proxies.
    pub(crate) account: String,
    pub(crate) uid: String,
    pub(crate) ports: Vec<u16>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) service_type: &'static str,
    /// The requested address.
    pub(crate) address: Option<String>,
    /// True if one of the objects is missing.
    pub(crate) incomplete: bool,
}

/// The previous result, which is kept for gateways with pending Secrets.
pub(crate) struct PreviousResult<'a> {
    pub(crate) resolved: &'a ResolvedGateways,
    pub(crate) pending: &'a BTreeSet<ObjectId>,
}

/// One gateway during resolution.
struct GatewayResolution<'a> {
    id: &'a ObjectId,
    /// The name in the mesh, and the account of its proxies; `None` if a part of the name is not a DNS label.
    named: Option<(GatewayName, String)>,
    facts: &'a GatewayFacts,
    listeners: Vec<ValidatedListener<'a>>,
    refusal: Option<ConditionReason>,
    service_type: &'static str,
    /// The routes of each listener, oldest first.
    served_routes: Vec<ServedRoute>,
    /// True while Secrets of the gateway have not been read yet.
    is_pending: bool,
}

impl GatewayResolution<'_> {
    /// Returns the name of its Service and its Deployment.
    fn object_id(&self) -> ObjectId {
        let account = self.named.as_ref().map(|(_, account)| account.as_str());
        let name = object_name(account.unwrap_or_default());
        ObjectId { namespace: self.id.namespace.clone(), name }
    }
}

/// Returns the Secrets that gateways refer to and may use.
pub(crate) fn secrets_of(facts: &ClusterFacts) -> BTreeSet<ObjectId> {
    facts
        .our_gateways()
        .flat_map(|(id, gateway, _)| referenced_secrets(facts, id, gateway))
        .collect()
}

/// Returns those of one gateway.
fn referenced_secrets<'a>(
    facts: &'a ClusterFacts,
    id: &'a ObjectId,
    gateway: &'a GatewayFacts,
) -> impl Iterator<Item = ObjectId> + 'a {
    let tls = gateway.spec.listeners.iter().filter_map(|it| it.tls.as_ref());
    let refs = tls.flat_map(|tls| &tls.certificate_refs);
    refs.filter_map(|certificate| secret_of(id, certificate))
        .filter(|secret| facts.permits_reference(("Gateway", &id.namespace), ("Secret", secret)))
}

/// Resolves all gateways and routes.
pub(crate) fn resolve_gateways(
    facts: &ClusterFacts,
    services: ServiceLookup<'_>,
    before: &PreviousResult<'_>,
) -> ResolvedGateways {
    let mut sides: BTreeMap<&ObjectId, GatewayResolution<'_>> =
        validate_gateways(facts, before.pending);
    let mut resolved =
        ResolvedGateways { classes: class_conditions(facts), ..ResolvedGateways::default() };
    let mut routes: Vec<(&RouteId, &RouteFacts)> = facts.routes.iter().collect();
    routes.sort_by_key(|(id, route)| (route.created, &id.id, id.kind));
    for (id, route) in routes {
        let good = route.good.iter().flat_map(|good| &good.parents);
        if !route.parents.iter().chain(good).any(|it| sides.contains_key(&gateway_of(id, it))) {
            continue;
        }
        let resolved_rules =
            route.good.as_deref().map(|good| resolve_backends(facts, services, id, good));
        let statuses = attach_to_parents(
            facts,
            &mut sides,
            id,
            route,
            resolved_rules.as_ref(),
            before.resolved,
        );
        if !statuses.is_empty() {
            resolved.parents.insert(id.clone(), statuses);
        }
    }
    for (id, side) in sides {
        let Some((name, account)) = side.named.clone() else {
            resolved.gateway_statuses.insert(id.clone(), gateway_status(facts, &side, true));
            continue;
        };
        if side.is_pending {
            resolved.retain_previous(before.resolved, id, name);
            continue;
        }
        let ports = match side.refusal {
            None => compile_ports(&name, &side.listeners, side.served_routes.clone()),
            Some(_) => Vec::new(),
        };
        let numbers: Vec<u16> = ports.iter().map(|port| port.port).collect();
        resolved
            .gateway_statuses
            .insert(id.clone(), gateway_status(facts, &side, numbers.is_empty()));
        if !numbers.is_empty() {
            resolved.desired.push(desired_gateway(facts, &side, name.clone(), account, numbers));
        }
        resolved.gateways.insert(name.clone(), Gateway { name, ports });
    }
    resolved.wait_for_gateways();
    let led_to = resolved.gateways.values().flat_map(Gateway::backends);
    resolved.backends = led_to.map(|backend| backend.service.clone()).collect();
    resolved
}

impl ResolvedGateways {
    /// Marks routes as pending while their gateways are not programmed.
    fn wait_for_gateways(&mut self) {
        for (route, parents) in &mut self.parents {
            for status in parents {
                let gateway = self.gateway_statuses.get(&gateway_of(route, &status.parent));
                let is_there = gateway.is_some_and(|it| it.conditions.iter().any(is_programmed));
                let served = status.conditions.iter_mut().find(|it| !is_there && is_programmed(it));
                if let Some(served) = served {
                    *served = gateway_awaited();
                }
            }
        }
    }

    /// Keeps the previous result for a gateway, if there is one.
    fn retain_previous(&mut self, before: &Self, id: &ObjectId, name: GatewayName) {
        if let Some(status) = before.gateway_statuses.get(id) {
            self.gateway_statuses.insert(id.clone(), status.clone());
        }
        self.desired.extend(before.desired.iter().find(|desired| desired.name == name).cloned());
        if let Some(gateway) = before.gateways.get(&name) {
            self.gateways.insert(name, gateway.clone());
        }
    }
}

fn class_conditions(facts: &ClusterFacts) -> BTreeMap<String, (i64, Vec<StatusCondition>)> {
    let statuses = facts.classes.iter().map(|(name, class)| {
        let accepted = match class.has_parameters {
            true => {
                let message =
                    format!("parameters are not supported: use the annotation {}", SERVICE_TYPE);
                ConditionReason::new("InvalidParameters", message).to_condition("Accepted")
            }
            false => true_condition("Accepted", "Accepted", "the GatewayClass is accepted"),
        };
        (name.clone(), (class.generation, vec![accepted]))
    });
    statuses.collect()
}

fn validate_gateways<'a>(
    facts: &'a ClusterFacts,
    pending: &BTreeSet<ObjectId>,
) -> BTreeMap<&'a ObjectId, GatewayResolution<'a>> {
    let mut ours: Vec<_> = facts.our_gateways().collect();
    ours.sort_by_key(|(id, gateway, _)| (gateway.created, *id));
    let mut names = BTreeSet::new();
    let mut sides = BTreeMap::new();
    for (id, gateway, class) in ours {
        let name = GatewayName::new(&id.namespace, &id.name).ok();
        let named = name.and_then(|name| {
            let account = gateway_account(&name)?.name.to_string();
            Some((name, account))
        });
        let service_type = service_type(gateway, class);
        let mut refusal = rejection_reason(id, gateway, class);
        if let Err(reason) = &service_type {
            refusal.get_or_insert(reason.clone());
        }
        if let Some((_, account)) = &named
            && !names.insert((&id.namespace, object_name(account)))
        {
            let message = "the name has the same prefix as that of an older Gateway: use another";
            refusal.get_or_insert(ConditionReason::new("Invalid", message));
        }
        let listeners = validate_listeners(facts, id, &gateway.spec.listeners);
        let service_type = service_type.unwrap_or(LOAD_BALANCER);
        let served_routes = Vec::new();
        let is_pending =
            referenced_secrets(facts, id, gateway).any(|secret| pending.contains(&secret));
        let facts = gateway;
        let side = GatewayResolution {
            id,
            named,
            facts,
            listeners,
            refusal,
            service_type,
            served_routes,
            is_pending,
        };
        sides.insert(id, side);
    }
    sides
}

/// Returns the reason that a gateway is not accepted, regardless of its listeners.
fn rejection_reason(
    id: &ObjectId,
    gateway: &GatewayFacts,
    class: &GatewayClassFacts,
) -> Option<ConditionReason> {
    let spec = &gateway.spec;
    if class.has_parameters || spec.infrastructure.parameters_ref.is_some() {
        let message = format!(
            "parametersRef: parameters are not supported; use the annotation {}",
            SERVICE_TYPE
        );
        return Some(ConditionReason::new("InvalidParameters", message));
    }
    if let Some(part) = spec.tls.as_ref().and_then(Value::as_object).and_then(|it| it.keys().next())
    {
        let message =
            format!("spec.tls.{part} is not supported and would not be enforced: remove it");
        return Some(ConditionReason::new("Invalid", message));
    }
    let rests = [("", &spec.rest), ("infrastructure.", &spec.infrastructure.rest)];
    let mut strange =
        rests.into_iter().filter_map(|(at, rest)| Some((at, first_unknown_field(rest)?)));
    if let Some((at, field)) = strange.next() {
        let message = format!("spec.{at}{field} is unknown and would not be enforced: remove it");
        return Some(ConditionReason::new("Invalid", message));
    }
    let Infrastructure { labels, annotations, .. } = &spec.infrastructure;
    let reserved = labels.keys().find(|key| is_below(key, &PREFIXES) || is_below(key, &DOMAINS));
    if let Some(key) = reserved.or_else(|| annotations.keys().find(|key| is_below(key, &PREFIXES)))
    {
        let message = format!("spec.infrastructure: {key} is reserved: remove it");
        return Some(ConditionReason::new("InvalidParameters", message));
    }
    let unsupported = |it: &&GatewayAddress| {
        it.kind != "IPAddress" && !(it.kind == "Hostname" && it.value.is_empty())
    };
    if let Some(address) = spec.addresses.iter().find(unsupported) {
        let message =
            format!("addresses of type {} are not supported: use IPAddress", address.kind);
        return Some(ConditionReason::new("UnsupportedAddress", message));
    }
    let is_label = id.name.len() <= LABEL_BYTES_MAX;
    let long =
        || ConditionReason::new("Invalid", "its name exceeds 63 bytes, the limit of a label");
    (!is_label).then(long)
}

fn service_type(
    gateway: &GatewayFacts,
    class: &GatewayClassFacts,
) -> Result<&'static str, ConditionReason> {
    let written = gateway.service_type.as_ref().or(class.service_type.as_ref());
    let Some(written) = written else { return Ok(LOAD_BALANCER) };
    let known = SERVICE_TYPES.iter().find(|known| *known == written);
    known.copied().ok_or_else(|| {
        let annotation = SERVICE_TYPE;
        let message = format!(
            "{annotation}: {written:?} is not a supported Service type; use {}",
            SERVICE_TYPES.join(" or ")
        );
        ConditionReason::new("InvalidParameters", message)
    })
}

/// Attaches a route to its gateways, and returns the statuses. If the newest version is invalid it is rejected,
/// and the last valid one stays in use.
fn attach_to_parents(
    facts: &ClusterFacts,
    sides: &mut BTreeMap<&ObjectId, GatewayResolution<'_>>,
    id: &RouteId,
    route: &RouteFacts,
    resolved_rules: Option<&ResolvedRouteRules>,
    before: &ResolvedGateways,
) -> Vec<RouteParentStatus> {
    let resolved = match resolved_rules {
        Some(ResolvedRouteRules { unresolved: Some(reason), .. }) => {
            reason.to_condition("ResolvedRefs")
        }
        Some(_) => true_condition("ResolvedRefs", "ResolvedRefs", "all backends exist"),
        None => {
            let message = "the references of the route have not been checked".to_owned();
            StatusCondition { word: "ResolvedRefs", status: "Unknown", reason: "Pending", message }
        }
    };
    let mut taken: BTreeMap<(ObjectId, usize), Vec<RouteHost>> = BTreeMap::new();
    let mut outcomes = Vec::new();
    let serving = route.good.as_deref();
    for parent in serving.map(|good| good.parents.as_slice()).unwrap_or_default() {
        let hostnames = serving.map(|good| good.route.hostnames.as_slice()).unwrap_or_default();
        let gateway = gateway_of(id, parent);
        let Some(side) = sides.get(&gateway) else { continue };
        let outcome = attach_route(facts, id, parent, hostnames, side.id, &side.listeners);
        if let Ok(attached) = &outcome {
            for (index, names) in attached {
                taken.insert((gateway.clone(), *index), names.clone());
            }
        }
        outcomes.push((parent, outcome));
    }
    if let Some(resolved_rules) = resolved_rules {
        for ((gateway, index), names) in taken {
            let Some(side) = sides.get_mut(&gateway) else { continue };
            if let Some(validated) =
                side.listeners.get_mut(index).filter(|_| route.refusal.is_none())
            {
                validated.attached += 1;
            }
            side.served_routes.push(ServedRoute {
                listener: index,
                names,
                rules: resolved_rules.rules.clone(),
            });
        }
    }
    let ours = route.parents.iter().filter_map(|parent| {
        let side = sides.get(&gateway_of(id, parent))?;
        if side.is_pending {
            let mut statuses = before.parents.get(id).into_iter().flatten();
            return statuses.find(|it| it.parent == *parent).cloned();
        }
        let outcome = outcomes.iter().find(|(it, _)| *it == parent).map(|(_, outcome)| outcome);
        let refusal = route.refusal.as_ref();
        let [accepted, programmed] =
            parent_conditions(sides, &gateway_of(id, parent), refusal, outcome);
        Some(RouteParentStatus {
            parent: parent.clone(),
            controller: GATEWAY_CONTROLLER,
            generation: route.generation,
            conditions: vec![accepted, resolved.clone(), programmed],
        })
    });
    ours.collect()
}

/// Returns the `Accepted` and `Programmed` conditions of a route at a gateway.
fn parent_conditions(
    sides: &BTreeMap<&ObjectId, GatewayResolution<'_>>,
    gateway: &ObjectId,
    refusal: Option<&String>,
    outcome: Option<&Result<Vec<ListenerAttachment>, ConditionReason>>,
) -> [StatusCondition; 2] {
    let accepted = match (refusal, outcome) {
        (Some(refusal), _) => {
            ConditionReason::new("UnsupportedValue", refusal.clone()).to_condition("Accepted")
        }
        (None, Some(Err(reason))) => reason.to_condition("Accepted"),
        (None, Some(Ok(attached)))
            if !is_any(sides, gateway, attached, ValidatedListener::is_accepted) =>
        {
            let message = "neither its gateway nor any matching listener is accepted";
            ConditionReason::new("ListenersNotAccepted", message).to_condition("Accepted")
        }
        (None, _) => true_condition("Accepted", "Accepted", "in force"),
    };
    let programmed = match outcome {
        Some(Ok(attached)) if !is_any(sides, gateway, attached, ValidatedListener::is_served) => {
            ConditionReason::new("Invalid", "no matching listener is programmed")
                .to_condition("Programmed")
        }
        _ => StatusCondition::from_accepted(&accepted, "the route is programmed"),
    };
    [accepted, programmed]
}

fn is_programmed(condition: &StatusCondition) -> bool {
    condition.word == "Programmed" && condition.status == "True"
}

/// Returns true if a gateway is accepted and any of these listeners passes `test`.
fn is_any<'a>(
    sides: &BTreeMap<&ObjectId, GatewayResolution<'a>>,
    gateway: &ObjectId,
    attached: &[ListenerAttachment],
    test: fn(&ValidatedListener<'a>) -> bool,
) -> bool {
    let side = sides.get(gateway).filter(|side| side.refusal.is_none());
    let mut listeners = attached.iter().filter_map(|(index, _)| side?.listeners.get(*index));
    listeners.any(test)
}

fn gateway_status(
    facts: &ClusterFacts,
    side: &GatewayResolution<'_>,
    serves_nothing: bool,
) -> GatewayStatus {
    let accepted = match &side.refusal {
        Some(reason) => reason.to_condition("Accepted"),
        None => {
            let well = side.listeners.iter().filter(|validated| validated.is_accepted()).count();
            let message = format!("{well} of {} listeners are accepted", side.listeners.len());
            match (well, side.listeners.len()) {
                (0, _) => {
                    ConditionReason::new("ListenersNotValid", message).to_condition("Accepted")
                }
                (well, all) if well < all => {
                    true_condition("Accepted", "ListenersNotValid", &message)
                }
                _ => true_condition("Accepted", "Accepted", &message),
            }
        }
    };
    let (addresses, missing) = gateway_addresses(facts, side);
    let object = side.object_id();
    let runs = facts.deployments.get(&object).copied().unwrap_or_default();
    let obstacle = if serves_nothing {
        Some(ConditionReason::new("Invalid", "no listener can be served"))
    } else if !runs {
        Some(ConditionReason::new(
            "Pending",
            format!("no pod of the Deployment {} is ready", object.name),
        ))
    } else {
        missing
    };
    let programmed = match &obstacle {
        Some(reason) => reason.to_condition("Programmed"),
        None => true_condition("Programmed", "Programmed", "the gateway is programmed"),
    };
    let listeners = side.listeners.iter();
    GatewayStatus {
        generation: side.facts.generation,
        listeners: listeners
            .map(|it| GatewayListenerStatus::from_listener(it, obstacle.is_none()))
            .collect(),
        conditions: vec![accepted, programmed],
        addresses: if serves_nothing { Vec::new() } else { addresses },
    }
}

/// Returns the addresses of a gateway, and the reason that a requested or expected one is missing.
fn gateway_addresses(
    facts: &ClusterFacts,
    side: &GatewayResolution<'_>,
) -> (Vec<GatewayAddress>, Option<ConditionReason>) {
    let object = side.object_id();
    let gateway_service = facts.gateway_services.get(&object).cloned().unwrap_or_default();
    let mut there = match gateway_service.is_load_balancer {
        true => gateway_service.ingress,
        false => gateway_service.cluster,
    };
    let wanted: Vec<&GatewayAddress> =
        side.facts.spec.addresses.iter().filter(|address| !address.value.is_empty()).collect();
    if !wanted.is_empty() {
        there.retain(|address| wanted.iter().any(|it| is_same(it, address)));
        if there.len() < wanted.len() {
            let message =
                format!("{} of {} requested addresses can be used", there.len(), wanted.len());
            return (there, Some(ConditionReason::new("AddressNotUsable", message)));
        }
    }
    there.truncate(ADDRESSES_MAX);
    let missing = there.is_empty().then(|| {
        let message = format!(
            "the Service {} has no address yet; without a load balancer, use the annotation {}: \
             ClusterIP",
            object.name, SERVICE_TYPE
        );
        ConditionReason::new("AddressNotAssigned", message)
    });
    (there, missing)
}

/// Compares addresses by value: an IP address has several notations.
fn is_same(one: &GatewayAddress, other: &GatewayAddress) -> bool {
    let ip = |address: &GatewayAddress| address.value.parse::<IpAddr>().ok();
    one.value == other.value || ip(one).is_some_and(|one| ip(other) == Some(one))
}

fn desired_gateway(
    facts: &ClusterFacts,
    side: &GatewayResolution<'_>,
    name: GatewayName,
    account: String,
    ports: Vec<u16>,
) -> DesiredGateway {
    let object = side.object_id();
    let wanted = side.facts.spec.addresses.iter().find(|address| !address.value.is_empty());
    let infrastructure = &side.facts.spec.infrastructure;
    DesiredGateway {
        name,
        account,
        uid: side.facts.uid.clone(),
        ports,
        labels: infrastructure.labels.clone(),
        annotations: infrastructure.annotations.clone(),
        service_type: side.service_type,
        address: wanted.map(|address| address.value.clone()),
        incomplete: !facts.deployments.contains_key(&object)
            || !facts.gateway_services.contains_key(&object),
    }
}

const LOAD_BALANCER: &str = "LoadBalancer";
const SERVICE_TYPES: &[&str] = &[LOAD_BALANCER, "NodePort", "ClusterIP"];
/// The longest label (RFC 1123).
const LABEL_BYTES_MAX: usize = 63;
/// The maximum number of addresses that the schema of Gateways allows.
const ADDRESSES_MAX: usize = 16;
