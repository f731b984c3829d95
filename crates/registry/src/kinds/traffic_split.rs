//! Reads SMI `TrafficSplit` `v1alpha2` and `v1alpha4`.

use leno_model::{
    Name, RouteGroupName, RouteName, RouteParent, ServiceName, SplitBackend, TrafficSplit,
};

use super::ObjectMetadata;
use super::http_route::MAX_WEIGHT;
use crate::field::{Field, MapFields};

/// Reads the `spec` of a `TrafficSplit` of this API version.
pub(super) fn read(
    metadata: ObjectMetadata,
    spec: &Field<'_>,
    version: &str,
) -> Option<TrafficSplit> {
    let fields = spec.read_fields(&["service", "backends", "matches"])?;
    let name = RouteName { namespace: metadata.namespace, name: metadata.name };
    let root = fields.require("service").and_then(|field| read_root(field, &name.namespace));
    let backends = read_backends(&fields, &name.namespace);
    let groups = match fields.find("matches") {
        Some(field) => Some(read_groups(field, &name.namespace, version)?),
        None => None,
    };
    Some(TrafficSplit {
        name,
        root: RouteParent { service: root?, port: None },
        groups,
        backends: backends?,
        created: 0,
    })
}

/// Reads `service`, the root of the split, which must be in the split's namespace.
fn read_root(field: &Field<'_>, namespace: &Name) -> Option<ServiceName> {
    let root = read_service(field, namespace)?;
    if root.namespace != *namespace {
        field.reject(
            format!("{} is not in the split's namespace, {namespace}", field.quoted_value()),
            "put the TrafficSplit into the namespace of its root",
        );
        return None;
    }
    Some(root)
}

/// Reads the `backends`; at least one weight must be above 0.
fn read_backends(fields: &MapFields<'_>, namespace: &Name) -> Option<Vec<SplitBackend>> {
    let field = fields.require("backends")?;
    let mut backends: Vec<SplitBackend> = Vec::new();
    let elements = field.read_list(MAX_BACKENDS)?;
    for element in &elements {
        let Some(backend) = read_backend(element, namespace) else {
            continue;
        };
        if backends.iter().any(|existing| existing.service == backend.service) {
            element.reject("is listed twice", "remove one of the two, and add up their weights");
        }
        backends.push(backend);
    }
    if elements.is_empty() {
        field.reject("is empty", "list the services that take a share");
        return None;
    }
    if backends.iter().all(|backend| backend.weight == 0) && backends.len() == elements.len() {
        field.reject("has no weight above 0", "give at least one backend a weight above 0");
        return None;
    }
    Some(backends)
}

/// Reads one of the `backends`: a service and its weight.
fn read_backend(element: &Field<'_>, namespace: &Name) -> Option<SplitBackend> {
    let fields = element.read_fields(&["service", "weight"])?;
    let service = fields.require("service").and_then(|field| read_service(field, namespace));
    let weight = fields.require("weight").and_then(|field| field.read_number(0, MAX_WEIGHT));
    Some(SplitBackend { service: service?, weight: weight? })
}

/// Reads a service name as clients write it, or as `NAMESPACE/NAME`.
fn read_service(field: &Field<'_>, own_namespace: &Name) -> Option<ServiceName> {
    let hint = "use one such as reviews, reviews.shop.svc.cluster.local or shop/reviews";
    field.read_with(|text| parse_service(text, own_namespace), "the name of a service", hint)
}

/// Parses `NAME`, `NAME.NAMESPACE` with any part of the suffix `.svc.cluster.local`, and `NAMESPACE/NAME`.
fn parse_service(text: &str, own_namespace: &Name) -> Option<ServiceName> {
    if let Some((namespace, name)) = text.split_once('/') {
        return Some(ServiceName { namespace: parse_label(namespace)?, name: parse_label(name)? });
    }
    let mut labels = text.split('.');
    let name = parse_label(labels.next()?)?;
    let namespace = match labels.next() {
        Some(namespace) => parse_label(namespace)?,
        None => own_namespace.clone(),
    };
    let mut suffix = ["svc", "cluster", "local"].iter();
    labels.all(|label| suffix.next() == Some(&label)).then_some(ServiceName { namespace, name })
}

/// Parses a name without dots.
fn parse_label(text: &str) -> Option<Name> {
    Name::new(text).ok().filter(|name| !name.as_str().contains('.'))
}

/// Reads the route groups. An empty list is rejected: it could mean no request or every request.
fn read_groups(field: &Field<'_>, namespace: &Name, version: &str) -> Option<Vec<RouteGroupName>> {
    if version.ends_with("/v1alpha2") {
        field.reject(
            "is not a field of v1alpha2",
            "use `apiVersion: split.smi-spec.io/v1alpha4`, or remove it",
        );
        return None;
    }
    let mut groups: Vec<RouteGroupName> = Vec::new();
    let elements = field.read_list(MAX_GROUPS)?;
    for element in &elements {
        let Some(group) = read_group(element, namespace) else {
            continue;
        };
        if groups.contains(&group) {
            element.reject("is listed twice", "remove one of the two");
        }
        groups.push(group);
    }
    if elements.is_empty() {
        field.reject(
            "is empty, which is ambiguous",
            "list the HTTPRouteGroups whose requests are split, or leave `matches` out",
        );
        return None;
    }
    Some(groups)
}

/// Reads a reference to an `HTTPRouteGroup` in the namespace of the split.
fn read_group(element: &Field<'_>, namespace: &Name) -> Option<RouteGroupName> {
    let fields = element.read_fields(&["apiGroup", "kind", "name"])?;
    if let Some(group) = fields.find("apiGroup") {
        group.read_choice(&[("specs.smi-spec.io", ())])?;
    }
    fields.require("kind").and_then(|kind| kind.read_choice(&[("HTTPRouteGroup", ())]));
    let name = fields.require("name").and_then(Field::read_name)?;
    Some(RouteGroupName { namespace: namespace.clone(), name })
}

/// Maximum number of backends per split.
const MAX_BACKENDS: usize = 64;
/// Maximum number of route groups per split.
const MAX_GROUPS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_names_are_parsed_in_all_forms() {
        let own_namespace = Name::new("shop").unwrap();
        for (text, expected) in [
            ("stock", Some("shop/stock")),
            ("stock.shop", Some("shop/stock")),
            ("stock.other.svc", Some("other/stock")),
            ("stock.shop.svc.cluster", Some("shop/stock")),
            ("stock.shop.svc.cluster.local", Some("shop/stock")),
            ("other/stock", Some("other/stock")),
            ("stock.shop.svc.cluster.local.", None),
            ("stock.shop.pod", None),
            ("stock.shop.svc.example.com", None),
            ("stock:80", None),
            ("a/b/c", None),
            ("a/b.c", None),
            ("Stock", None),
            ("", None),
        ] {
            let parsed = parse_service(text, &own_namespace).map(|service| service.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
    }
}
