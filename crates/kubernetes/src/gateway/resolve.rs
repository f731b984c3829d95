//! Resolves gateways, routes and references into configuration, statuses and desired objects, without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use leno_model::{Gateway, GatewayName, ServiceName, gateway_account};
use serde_json::Value;

use super::attach::{ListenerAttachment, RouteHost, attach_route, parent_gateway};
use super::backends::{ResolvedRouteRules, ServiceLookup, resolve_backends};
use super::inputs::{
    GatewayAddress, GatewayInputs, Infrastructure, ObservedGateway, ObservedGatewayClass,
    ObservedRoute, RouteId, first_unknown_field,
};
use super::listener::{ConditionReason, ValidatedListener, referenced_secret, validate_listeners};
use super::manifests::{CLUSTER_DOMAINS, belongs_to_domains, object_name};
use super::served::{ServedRoute, compile_ports};
use super::status::{
    GatewayListenerStatus, GatewayStatus, RouteParentStatus, gateway_pending_condition,
    true_condition,
};
use crate::source::ObjectId;
use crate::status::StatusCondition;
use crate::well_known::{GATEWAY_CONTROLLER, PREFIXES, SERVICE_TYPE};

/// The configuration, statuses and desired objects of all gateways.
#[derive(Default)]
pub(crate) struct ResolvedGateways {
    pub(crate) gateways: BTreeMap<GatewayName, Gateway>,
    pub(crate) gateway_statuses: BTreeMap<ObjectId, GatewayStatus>,
    /// The conditions of classes, with their generation.
    pub(crate) classes: BTreeMap<String, (i64, Vec<StatusCondition>)>,
    /// The statuses of routes, for each gateway that they refer to.
    pub(crate) parent_statuses: BTreeMap<RouteId, Vec<RouteParentStatus>>,
    /// The services to which gateways route.
    pub(crate) backends: BTreeSet<ServiceName>,
    pub(crate) desired: Vec<DesiredGateway>,
}

/// The desired objects of one gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredGateway {
    pub(crate) name: GatewayName,
    /// The service account of the gateway's proxies.
    pub(crate) account: String,
    pub(crate) uid: String,
    pub(crate) ports: Vec<u16>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) service_type: &'static str,
    /// The requested address, if any.
    pub(crate) address: Option<String>,
    /// True if one of the gateway's objects does not exist.
    pub(crate) is_incomplete: bool,
}

/// The previous result, which is kept for gateways with pending Secrets.
pub(crate) struct PreviousResult<'a> {
    pub(crate) resolved: &'a ResolvedGateways,
    pub(crate) pending_secrets: &'a BTreeSet<ObjectId>,
}

/// The state of one gateway while gateways are resolved.
struct GatewayResolution<'a> {
    id: &'a ObjectId,
    /// The name in the mesh, and the account of its proxies; `None` if the name or namespace is not a DNS label.
    name_and_account: Option<(GatewayName, String)>,
    gateway: &'a ObservedGateway,
    listeners: Vec<ValidatedListener<'a>>,
    rejection: Option<ConditionReason>,
    service_type: &'static str,
    /// The routes of each listener, oldest first.
    served_routes: Vec<ServedRoute>,
    /// True while Secrets of the gateway have not been read yet.
    is_pending: bool,
}

impl GatewayResolution<'_> {
    /// Returns the name of the gateway's Service and Deployment.
    fn object_id(&self) -> ObjectId {
        let account = self.name_and_account.as_ref().map(|(_, account)| account.as_str());
        let name = object_name(account.unwrap_or_default());
        ObjectId { namespace: self.id.namespace.clone(), name }
    }
}

/// Returns the Secrets that gateways refer to and may use.
pub(crate) fn collect_secrets(inputs: &GatewayInputs) -> BTreeSet<ObjectId> {
    inputs
        .our_gateways()
        .flat_map(|(id, gateway, _)| referenced_secrets(inputs, id, gateway))
        .collect()
}

/// Returns the Secrets that one gateway refers to and may use.
fn referenced_secrets<'a>(
    inputs: &'a GatewayInputs,
    id: &'a ObjectId,
    gateway: &'a ObservedGateway,
) -> impl Iterator<Item = ObjectId> + 'a {
    let tls = gateway.spec.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let references = tls.flat_map(|tls| &tls.certificate_refs);
    references
        .filter_map(|certificate| referenced_secret(id, certificate))
        .filter(|secret| inputs.permits_reference(("Gateway", &id.namespace), ("Secret", secret)))
}

/// Resolves all gateways and routes.
pub(crate) fn resolve_gateways(
    inputs: &GatewayInputs,
    find_service: ServiceLookup<'_>,
    previous: &PreviousResult<'_>,
) -> ResolvedGateways {
    let mut resolutions: BTreeMap<&ObjectId, GatewayResolution<'_>> =
        validate_gateways(inputs, previous.pending_secrets);
    let mut resolved =
        ResolvedGateways { classes: class_conditions(inputs), ..ResolvedGateways::default() };
    let mut routes: Vec<(&RouteId, &ObservedRoute)> = inputs.routes.iter().collect();
    routes.sort_by_key(|(id, route)| (route.created, &id.id, id.kind));
    for (id, route) in routes {
        let valid_parents = route.last_valid.iter().flat_map(|valid_route| &valid_route.parents);
        if !route
            .parents
            .iter()
            .chain(valid_parents)
            .any(|parent| resolutions.contains_key(&parent_gateway(id, parent)))
        {
            continue;
        }
        let resolved_rules = route
            .last_valid
            .as_deref()
            .map(|valid_route| resolve_backends(inputs, find_service, id, valid_route));
        let statuses = attach_to_parents(
            inputs,
            &mut resolutions,
            id,
            route,
            resolved_rules.as_ref(),
            previous.resolved,
        );
        if !statuses.is_empty() {
            resolved.parent_statuses.insert(id.clone(), statuses);
        }
    }
    for (id, resolution) in resolutions {
        let Some((name, account)) = resolution.name_and_account.clone() else {
            resolved.gateway_statuses.insert(id.clone(), gateway_status(inputs, &resolution, true));
            continue;
        };
        if resolution.is_pending {
            resolved.retain_previous(previous.resolved, id, name);
            continue;
        }
        let ports = match resolution.rejection {
            None => compile_ports(&name, &resolution.listeners, resolution.served_routes.clone()),
            Some(_) => Vec::new(),
        };
        let port_numbers: Vec<u16> = ports.iter().map(|port| port.port).collect();
        resolved
            .gateway_statuses
            .insert(id.clone(), gateway_status(inputs, &resolution, port_numbers.is_empty()));
        if !port_numbers.is_empty() {
            resolved.desired.push(desired_gateway(
                inputs,
                &resolution,
                name.clone(),
                account,
                port_numbers,
            ));
        }
        resolved.gateways.insert(name.clone(), Gateway { name, ports });
    }
    resolved.mark_pending_routes();
    let backends = resolved.gateways.values().flat_map(Gateway::backends);
    resolved.backends = backends.map(|backend| backend.service.clone()).collect();
    resolved
}

impl ResolvedGateways {
    /// Marks routes as pending while their gateways are not programmed.
    fn mark_pending_routes(&mut self) {
        for (route, parents) in &mut self.parent_statuses {
            for status in parents {
                let gateway = self.gateway_statuses.get(&parent_gateway(route, &status.parent));
                let is_gateway_programmed =
                    gateway.is_some_and(|gateway| gateway.conditions.iter().any(is_programmed));
                let programmed = status
                    .conditions
                    .iter_mut()
                    .find(|condition| !is_gateway_programmed && is_programmed(condition));
                if let Some(programmed) = programmed {
                    *programmed = gateway_pending_condition();
                }
            }
        }
    }

    /// Keeps the previous result for a gateway, if there is one.
    fn retain_previous(&mut self, previous: &Self, id: &ObjectId, name: GatewayName) {
        if let Some(status) = previous.gateway_statuses.get(id) {
            self.gateway_statuses.insert(id.clone(), status.clone());
        }
        self.desired.extend(previous.desired.iter().find(|desired| desired.name == name).cloned());
        if let Some(gateway) = previous.gateways.get(&name) {
            self.gateways.insert(name, gateway.clone());
        }
    }
}

fn class_conditions(inputs: &GatewayInputs) -> BTreeMap<String, (i64, Vec<StatusCondition>)> {
    let statuses = inputs.classes.iter().map(|(name, class)| {
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

/// Validates the gateways and their listeners. Of gateways with conflicting names, the oldest is accepted.
fn validate_gateways<'a>(
    inputs: &'a GatewayInputs,
    pending_secrets: &BTreeSet<ObjectId>,
) -> BTreeMap<&'a ObjectId, GatewayResolution<'a>> {
    let mut gateways: Vec<_> = inputs.our_gateways().collect();
    gateways.sort_by_key(|(id, gateway, _)| (gateway.created, *id));
    let mut object_names = BTreeSet::new();
    let mut resolutions = BTreeMap::new();
    for (id, gateway, class) in gateways {
        let name = GatewayName::new(&id.namespace, &id.name).ok();
        let name_and_account = name.and_then(|name| {
            let account = gateway_account(&name)?.name.to_string();
            Some((name, account))
        });
        let service_type = resolve_service_type(gateway, class);
        let mut rejection = rejection_reason(id, gateway, class);
        if let Err(reason) = &service_type {
            rejection.get_or_insert(reason.clone());
        }
        if let Some((_, account)) = &name_and_account
            && !object_names.insert((&id.namespace, object_name(account)))
        {
            let message = "the name has the same prefix as that of an older Gateway: use another";
            rejection.get_or_insert(ConditionReason::new("Invalid", message));
        }
        let listeners = validate_listeners(inputs, id, &gateway.spec.listeners);
        let is_pending =
            referenced_secrets(inputs, id, gateway).any(|secret| pending_secrets.contains(&secret));
        let resolution = GatewayResolution {
            id,
            name_and_account,
            gateway,
            listeners,
            rejection,
            service_type: service_type.unwrap_or(LOAD_BALANCER),
            served_routes: Vec::new(),
            is_pending,
        };
        resolutions.insert(id, resolution);
    }
    resolutions
}

/// Returns the reason that a gateway is not accepted, regardless of its listeners.
fn rejection_reason(
    id: &ObjectId,
    gateway: &ObservedGateway,
    class: &ObservedGatewayClass,
) -> Option<ConditionReason> {
    let spec = &gateway.spec;
    if class.has_parameters || spec.infrastructure.parameters_ref.is_some() {
        let message = format!(
            "parametersRef: parameters are not supported; use the annotation {}",
            SERVICE_TYPE
        );
        return Some(ConditionReason::new("InvalidParameters", message));
    }
    if let Some(field) =
        spec.tls.as_ref().and_then(Value::as_object).and_then(|fields| fields.keys().next())
    {
        let message =
            format!("spec.tls.{field} is not supported and would not be enforced; remove it");
        return Some(ConditionReason::new("Invalid", message));
    }
    let unknown_fields =
        [("", &spec.unknown_fields), ("infrastructure.", &spec.infrastructure.unknown_fields)];
    let mut unknown_field_paths = unknown_fields
        .into_iter()
        .filter_map(|(path, fields)| Some((path, first_unknown_field(fields)?)));
    if let Some((path, field)) = unknown_field_paths.next() {
        let message = format!("spec.{path}{field} is unknown and would not be enforced; remove it");
        return Some(ConditionReason::new("Invalid", message));
    }
    let Infrastructure { labels, annotations, .. } = &spec.infrastructure;
    let reserved_label = labels.keys().find(|key| {
        belongs_to_domains(key, &PREFIXES) || belongs_to_domains(key, &CLUSTER_DOMAINS)
    });
    if let Some(key) =
        reserved_label.or_else(|| annotations.keys().find(|key| belongs_to_domains(key, &PREFIXES)))
    {
        let message = format!("spec.infrastructure: {key} is reserved; remove it");
        return Some(ConditionReason::new("InvalidParameters", message));
    }
    let is_unsupported = |address: &&GatewayAddress| {
        address.kind != "IPAddress" && !(address.kind == "Hostname" && address.value.is_empty())
    };
    if let Some(address) = spec.addresses.iter().find(is_unsupported) {
        let message =
            format!("addresses of type {} are not supported: use IPAddress", address.kind);
        return Some(ConditionReason::new("UnsupportedAddress", message));
    }
    let is_valid_label = id.name.len() <= MAX_LABEL_BYTES;
    let name_too_long =
        || ConditionReason::new("Invalid", "its name exceeds 63 bytes, the limit of a label");
    (!is_valid_label).then(name_too_long)
}

/// Returns the type of a gateway's Service, from the annotation of the Gateway or else of its class.
fn resolve_service_type(
    gateway: &ObservedGateway,
    class: &ObservedGatewayClass,
) -> Result<&'static str, ConditionReason> {
    let requested_type = gateway.service_type.as_ref().or(class.service_type.as_ref());
    let Some(service_type) = requested_type else { return Ok(LOAD_BALANCER) };
    let supported_type =
        SERVICE_TYPES.iter().find(|supported_type| *supported_type == service_type);
    supported_type.copied().ok_or_else(|| {
        let annotation = SERVICE_TYPE;
        let message = format!(
            "{annotation}: {service_type:?} is not a supported Service type; use {}",
            SERVICE_TYPES.join(" or ")
        );
        ConditionReason::new("InvalidParameters", message)
    })
}

/// Attaches a route to its gateways, and returns the statuses. If the newest version is invalid it is rejected,
/// and the last valid one stays in use.
fn attach_to_parents(
    inputs: &GatewayInputs,
    resolutions: &mut BTreeMap<&ObjectId, GatewayResolution<'_>>,
    id: &RouteId,
    route: &ObservedRoute,
    resolved_rules: Option<&ResolvedRouteRules>,
    previous: &ResolvedGateways,
) -> Vec<RouteParentStatus> {
    let references_condition = match resolved_rules {
        Some(ResolvedRouteRules { unresolved_reason: Some(reason), .. }) => {
            reason.to_condition("ResolvedRefs")
        }
        Some(_) => true_condition("ResolvedRefs", "ResolvedRefs", "all backends exist"),
        None => {
            let message = "the references of the route have not been checked".to_owned();
            StatusCondition { name: "ResolvedRefs", status: "Unknown", reason: "Pending", message }
        }
    };
    let mut hosts_by_listener: BTreeMap<(ObjectId, usize), Vec<RouteHost>> = BTreeMap::new();
    let mut outcomes = Vec::new();
    let valid_route = route.last_valid.as_deref();
    for parent in valid_route.map(|valid_route| valid_route.parents.as_slice()).unwrap_or_default()
    {
        let hostnames = valid_route
            .map(|valid_route| valid_route.route.hostnames.as_slice())
            .unwrap_or_default();
        let gateway = parent_gateway(id, parent);
        let Some(resolution) = resolutions.get(&gateway) else { continue };
        let outcome =
            attach_route(inputs, id, parent, hostnames, resolution.id, &resolution.listeners);
        if let Ok(attachments) = &outcome {
            for (index, hosts) in attachments {
                hosts_by_listener.insert((gateway.clone(), *index), hosts.clone());
            }
        }
        outcomes.push((parent, outcome));
    }
    if let Some(resolved_rules) = resolved_rules {
        for ((gateway, index), hosts) in hosts_by_listener {
            let Some(resolution) = resolutions.get_mut(&gateway) else { continue };
            if let Some(validated) =
                resolution.listeners.get_mut(index).filter(|_| route.rejection.is_none())
            {
                validated.attached_route_count += 1;
            }
            resolution.served_routes.push(ServedRoute {
                listener_index: index,
                hosts,
                rules: resolved_rules.rules.clone(),
            });
        }
    }
    let statuses = route.parents.iter().filter_map(|parent| {
        let resolution = resolutions.get(&parent_gateway(id, parent))?;
        if resolution.is_pending {
            let mut previous_statuses = previous.parent_statuses.get(id).into_iter().flatten();
            return previous_statuses.find(|status| status.parent == *parent).cloned();
        }
        let outcome =
            outcomes.iter().find(|(other, _)| *other == parent).map(|(_, outcome)| outcome);
        let rejection = route.rejection.as_ref();
        let [accepted, programmed] =
            parent_conditions(resolutions, &parent_gateway(id, parent), rejection, outcome);
        Some(RouteParentStatus {
            parent: parent.clone(),
            controller: GATEWAY_CONTROLLER,
            generation: route.generation,
            conditions: vec![accepted, references_condition.clone(), programmed],
        })
    });
    statuses.collect()
}

/// Returns the `Accepted` and `Programmed` conditions of a route at a gateway.
fn parent_conditions(
    resolutions: &BTreeMap<&ObjectId, GatewayResolution<'_>>,
    gateway: &ObjectId,
    rejection: Option<&String>,
    outcome: Option<&Result<Vec<ListenerAttachment>, ConditionReason>>,
) -> [StatusCondition; 2] {
    let accepted = match (rejection, outcome) {
        (Some(rejection), _) => {
            ConditionReason::new("UnsupportedValue", rejection.clone()).to_condition("Accepted")
        }
        (None, Some(Err(reason))) => reason.to_condition("Accepted"),
        (None, Some(Ok(attachments)))
            if !has_listener(resolutions, gateway, attachments, ValidatedListener::is_accepted) =>
        {
            let message = "neither its gateway nor any matching listener is accepted";
            ConditionReason::new("ListenersNotAccepted", message).to_condition("Accepted")
        }
        (None, _) => true_condition("Accepted", "Accepted", "in force"),
    };
    let programmed = match outcome {
        Some(Ok(attachments))
            if !has_listener(resolutions, gateway, attachments, ValidatedListener::is_served) =>
        {
            ConditionReason::new("Invalid", "no matching listener is programmed")
                .to_condition("Programmed")
        }
        _ => StatusCondition::from_accepted(&accepted, "the route is programmed"),
    };
    [accepted, programmed]
}

fn is_programmed(condition: &StatusCondition) -> bool {
    condition.name == "Programmed" && condition.status == "True"
}

/// Returns true if a gateway is accepted and any of these listeners satisfies `is_suitable`.
fn has_listener<'a>(
    resolutions: &BTreeMap<&ObjectId, GatewayResolution<'a>>,
    gateway: &ObjectId,
    attachments: &[ListenerAttachment],
    is_suitable: fn(&ValidatedListener<'a>) -> bool,
) -> bool {
    let resolution = resolutions.get(gateway).filter(|resolution| resolution.rejection.is_none());
    let mut listeners =
        attachments.iter().filter_map(|(index, _)| resolution?.listeners.get(*index));
    listeners.any(is_suitable)
}

/// Returns the status of a gateway and its listeners. If `has_no_ports`, no listener can be served.
fn gateway_status(
    inputs: &GatewayInputs,
    resolution: &GatewayResolution<'_>,
    has_no_ports: bool,
) -> GatewayStatus {
    let accepted = match &resolution.rejection {
        Some(reason) => reason.to_condition("Accepted"),
        None => {
            let accepted_count =
                resolution.listeners.iter().filter(|validated| validated.is_accepted()).count();
            let message = format!(
                "{accepted_count} of {} listeners are accepted",
                resolution.listeners.len()
            );
            match (accepted_count, resolution.listeners.len()) {
                (0, _) => {
                    ConditionReason::new("ListenersNotValid", message).to_condition("Accepted")
                }
                (accepted_count, total) if accepted_count < total => {
                    true_condition("Accepted", "ListenersNotValid", &message)
                }
                _ => true_condition("Accepted", "Accepted", &message),
            }
        }
    };
    let (addresses, missing_address) = gateway_addresses(inputs, resolution);
    let object_id = resolution.object_id();
    let has_available_pod = inputs.deployments.get(&object_id).copied().unwrap_or_default();
    let problem = if has_no_ports {
        Some(ConditionReason::new("Invalid", "no listener can be served"))
    } else if !has_available_pod {
        Some(ConditionReason::new(
            "Pending",
            format!("no pod of the Deployment {} is ready", object_id.name),
        ))
    } else {
        missing_address
    };
    let programmed = match &problem {
        Some(reason) => reason.to_condition("Programmed"),
        None => true_condition("Programmed", "Programmed", "the gateway is programmed"),
    };
    let listeners = resolution.listeners.iter();
    GatewayStatus {
        generation: resolution.gateway.generation,
        listeners: listeners
            .map(|listener| GatewayListenerStatus::from_listener(listener, problem.is_none()))
            .collect(),
        conditions: vec![accepted, programmed],
        addresses: if has_no_ports { Vec::new() } else { addresses },
    }
}

/// Returns the addresses of a gateway, and the reason that a requested or expected address is missing, if one is.
fn gateway_addresses(
    inputs: &GatewayInputs,
    resolution: &GatewayResolution<'_>,
) -> (Vec<GatewayAddress>, Option<ConditionReason>) {
    let object_id = resolution.object_id();
    let gateway_service = inputs.gateway_services.get(&object_id).cloned().unwrap_or_default();
    let mut addresses = match gateway_service.is_load_balancer {
        true => gateway_service.ingress_addresses,
        false => gateway_service.cluster_addresses,
    };
    let requested_addresses: Vec<&GatewayAddress> = resolution
        .gateway
        .spec
        .addresses
        .iter()
        .filter(|address| !address.value.is_empty())
        .collect();
    if !requested_addresses.is_empty() {
        addresses.retain(|address| {
            requested_addresses.iter().any(|requested| is_same_address(requested, address))
        });
        if addresses.len() < requested_addresses.len() {
            let message = format!(
                "{} of {} requested addresses can be used",
                addresses.len(),
                requested_addresses.len()
            );
            return (addresses, Some(ConditionReason::new("AddressNotUsable", message)));
        }
    }
    addresses.truncate(MAX_ADDRESSES);
    let missing_address = addresses.is_empty().then(|| {
        let message = format!(
            "the Service {} has no address yet; without a load balancer, use the annotation {}: \
             ClusterIP",
            object_id.name, SERVICE_TYPE
        );
        ConditionReason::new("AddressNotAssigned", message)
    });
    (addresses, missing_address)
}

/// Compares addresses by value: an IP address has several notations.
fn is_same_address(left: &GatewayAddress, right: &GatewayAddress) -> bool {
    let ip = |address: &GatewayAddress| address.value.parse::<IpAddr>().ok();
    left.value == right.value || ip(left).is_some_and(|left| ip(right) == Some(left))
}

fn desired_gateway(
    inputs: &GatewayInputs,
    resolution: &GatewayResolution<'_>,
    name: GatewayName,
    account: String,
    ports: Vec<u16>,
) -> DesiredGateway {
    let object_id = resolution.object_id();
    let requested_address =
        resolution.gateway.spec.addresses.iter().find(|address| !address.value.is_empty());
    let infrastructure = &resolution.gateway.spec.infrastructure;
    DesiredGateway {
        name,
        account,
        uid: resolution.gateway.uid.clone(),
        ports,
        labels: infrastructure.labels.clone(),
        annotations: infrastructure.annotations.clone(),
        service_type: resolution.service_type,
        address: requested_address.map(|address| address.value.clone()),
        is_incomplete: !inputs.deployments.contains_key(&object_id)
            || !inputs.gateway_services.contains_key(&object_id),
    }
}

const LOAD_BALANCER: &str = "LoadBalancer";
const SERVICE_TYPES: &[&str] = &[LOAD_BALANCER, "NodePort", "ClusterIP"];
/// The maximum length of a DNS label (RFC 1123).
const MAX_LABEL_BYTES: usize = 63;
/// The maximum number of addresses that the schema of Gateways allows.
const MAX_ADDRESSES: usize = 16;
