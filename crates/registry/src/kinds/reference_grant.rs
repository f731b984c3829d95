//! Reads Gateway API `ReferenceGrant` `v1` and `v1beta1`, from routes to services.

use leno_model::{GrantName, GrantedRoutes, Name, ReferenceGrant, RouteKind};

use super::ObjectMetadata;
use super::other_kinds::{DefaultKind, reject_other_kinds};
use crate::field::Field;

/// Reads the `spec` of a `ReferenceGrant`.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<ReferenceGrant> {
    let fields = spec.read_fields(&["from", "to"])?;
    let from = fields.require("from").map(|field| read_elements(field, read_granted_routes));
    let to = fields.require("to").map(|field| read_elements(field, read_granted_service));
    let name = GrantName { namespace: metadata.namespace, name: metadata.name };
    Some(ReferenceGrant { name, from: from?, to: to? })
}

/// Reads a list of at least one element; elements with a problem are omitted.
fn read_elements<T>(field: &Field<'_>, read: fn(&Field<'_>) -> Option<T>) -> Vec<T> {
    let elements = field.read_each(MAX_ELEMENTS, read);
    if field.read_list(MAX_ELEMENTS).is_some_and(|elements| elements.is_empty()) {
        field.reject("is empty, and grants no access", "list at least one");
    }
    elements
}

/// Reads the kind and namespace of the routes that are granted access.
fn read_granted_routes(element: &Field<'_>) -> Option<GrantedRoutes> {
    let fields = element.read_fields(&["group", "kind", "namespace"])?;
    let groups: [(&str, &[(&str, RouteKind)]); 2] =
        [("gateway.networking.k8s.io", &GATEWAY_KINDS), ("split.smi-spec.io", &SPLIT_KINDS)];
    let kinds = fields.require("group").and_then(|field| field.read_choice(&groups));
    let kind = fields.require("kind").and_then(|field| field.read_choice(kinds?));
    let namespace = fields.require("namespace").and_then(Field::read_label);
    Some(GrantedRoutes { kind: kind?, namespace: namespace? })
}

/// Reads a granted service; `Some(None)` without `name`, which means all services of the namespace.
fn read_granted_service(element: &Field<'_>) -> Option<Option<Name>> {
    let fields = element.read_fields(&["group", "kind", "name"])?;
    reject_other_kinds(&fields, DefaultKind::Service);
    // Unlike in a backend reference, `kind` has no default here; `reject_other_kinds` has checked its value.
    fields.require("kind");
    match fields.find("name") {
        Some(field) => field.read_label().map(Some),
        None => Some(None),
    }
}

/// The Gateway API routes that can be granted access.
const GATEWAY_KINDS: [(&str, RouteKind); 4] = [
    ("HTTPRoute", RouteKind::Http),
    ("GRPCRoute", RouteKind::Grpc),
    ("TCPRoute", RouteKind::Tcp),
    ("TLSRoute", RouteKind::Tls),
];
/// The SMI kind that can be granted access.
const SPLIT_KINDS: [(&str, RouteKind); 1] = [("TrafficSplit", RouteKind::Split)];
/// Maximum number of elements per list, as in the resource's schema.
const MAX_ELEMENTS: usize = 16;
