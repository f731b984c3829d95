//! Attaches routes to the listeners of a gateway, by section name, port, route kind, namespace and host name.

use kube::core::{Selector, SelectorExt as _};
use leno_model::HostPattern;
use serde_json::Value;

use super::inputs::{AllowedNamespaces, GatewayInputs, RouteId, intersect_patterns};
use super::listener::{ConditionReason, ValidatedListener};
use crate::source::ObjectId;

/// The index of a listener, and the host names for which a route is attached to it.
pub(super) type ListenerAttachment = (usize, Vec<RouteHost>);

/// A host name of a route, intersected with that of a listener.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RouteHost {
    /// The host name as written in the route, which determines precedence; `None` for a route without host
    /// names.
    pub(super) written: Option<HostPattern>,
    /// The host names that route and listener have in common; `None` for all host names of the listener.
    pub(super) common: Option<HostPattern>,
}

/// Returns the gateway that a `parentRef` of a route names.
pub(super) fn parent_gateway(route: &RouteId, parent: &Value) -> ObjectId {
    let string_field = |key: &str| parent.get(key).and_then(Value::as_str);
    ObjectId {
        namespace: string_field("namespace").unwrap_or(&route.id.namespace).to_owned(),
        name: string_field("name").unwrap_or_default().to_owned(),
    }
}

/// Selects the listeners of a gateway that accept a route. Returns at least one, or the reason that none accepts it.
pub(super) fn attach_route(
    inputs: &GatewayInputs,
    route: &RouteId,
    parent: &Value,
    hostnames: &[HostPattern],
    gateway: &ObjectId,
    listeners: &[ValidatedListener<'_>],
) -> Result<Vec<ListenerAttachment>, ConditionReason> {
    let section_name = parent.get("sectionName").and_then(Value::as_str);
    let port = parent.get("port").and_then(Value::as_u64);
    let is_referenced = |validated: &ValidatedListener<'_>| {
        section_name.is_none_or(|section_name| validated.listener.name == section_name)
            && port.is_none_or(|port| u64::from(validated.listener.port) == port)
    };
    let named_listeners =
        listeners.iter().enumerate().filter(|(_, validated)| is_referenced(validated));
    let named_listeners: Vec<_> = named_listeners.collect();
    if named_listeners.is_empty() {
        let message = format!("the Gateway {} has no such listener", gateway.name);
        return Err(ConditionReason::new("NoMatchingParent", message));
    }
    let allowing_listeners: Vec<_> = named_listeners
        .into_iter()
        .filter(|(_, validated)| {
            let namespaces = &validated.listener.allowed_routes.namespaces;
            validated.kinds.contains(&route.kind)
                && allows_namespace(inputs, namespaces, &gateway.namespace, &route.id.namespace)
        })
        .collect();
    if allowing_listeners.is_empty() {
        let message = format!(
            "no listener of the Gateway {} accepts {}s of the namespace {}",
            gateway.name, route.kind, route.id.namespace
        );
        return Err(ConditionReason::new("NotAllowedByListeners", message));
    }
    let attachments: Vec<ListenerAttachment> = allowing_listeners
        .into_iter()
        .map(|(index, validated)| {
            (index, intersect_hostnames(hostnames, validated.hostname.as_ref()))
        })
        .filter(|(_, hosts)| !hosts.is_empty())
        .collect();
    if attachments.is_empty() {
        let message =
            format!("no listener of the Gateway {} matches a host name of the route", gateway.name);
        return Err(ConditionReason::new("NoMatchingListenerHostname", message));
    }
    Ok(attachments)
}

/// Intersects the host names of a route with the host name of a listener. A route without host names matches all
/// host names of the listener.
fn intersect_hostnames(
    hostnames: &[HostPattern],
    listener_hostname: Option<&HostPattern>,
) -> Vec<RouteHost> {
    if hostnames.is_empty() {
        return vec![RouteHost { written: None, common: None }];
    }
    let intersect_host = |name: &HostPattern| {
        let common = intersect_patterns(Some(name), listener_hostname)?;
        Some(RouteHost { written: Some(name.clone()), common })
    };
    let mut hosts: Vec<_> = hostnames.iter().filter_map(intersect_host).collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

/// Returns true if a listener of a gateway accepts routes of a namespace.
fn allows_namespace(
    inputs: &GatewayInputs,
    allowed_namespaces: &AllowedNamespaces,
    gateway_namespace: &str,
    route_namespace: &str,
) -> bool {
    match allowed_namespaces.from.as_deref().unwrap_or("Same") {
        "All" => true,
        "Same" => gateway_namespace == route_namespace,
        "Selector" => {
            let selector = allowed_namespaces.selector.clone().map(Selector::try_from);
            let labels = inputs.namespaces.get(route_namespace);
            // An invalid selector allows no namespace.
            selector.is_some_and(|selector| {
                selector.is_ok_and(|selector| labels.is_some_and(|labels| selector.matches(labels)))
            })
        }
        // `None`, and values of later versions of the API.
        _ => false,
    }
}
