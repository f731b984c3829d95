//! Reader of Gateway API `ReferenceGrant` `v1` and `v1beta1`, from routes to services.

use leno_model::{GrantName, GrantedRoutes, Name, ReferenceGrant, RouteKind};

use super::Head;
use crate::field::Field;

pub(super) fn read(head: Head, spec: &Field<'_>) -> Option<ReferenceGrant> {
    let fields = spec.fields(&["from", "to"])?;
    let from = fields.require("from").map(|field| listed(field, read_from));
    let to = fields.require("to").map(|field| listed(field, read_to));
    let name = GrantName { namespace: head.namespace, name: head.name };
    Some(ReferenceGrant { name, from: from?, to: to? })
}

fn listed<T>(field: &Field<'_>, read: fn(&Field<'_>) -> Option<T>) -> Vec<T> {
    let list = field.each(ELEMENTS_MAX, read);
    if field.list(ELEMENTS_MAX).is_some_and(|elements| elements.is_empty()) {
        field.refuse("is empty, and grants no access", "list at least one");
    }
    list
}

fn read_from(element: &Field<'_>) -> Option<GrantedRoutes> {
    let fields = element.fields(&["group", "kind", "namespace"])?;
    let groups: [(&str, &[(&str, RouteKind)]); 2] =
        [("gateway.networking.k8s.io", &GATEWAY_KINDS), ("split.smi-spec.io", &SPLIT_KINDS)];
    let kinds = fields.require("group").and_then(|field| field.word(&groups));
    let kind = fields.require("kind").and_then(|field| field.word(kinds?));
    let namespace = fields.require("namespace").and_then(Field::label);
    Some(GrantedRoutes { kind: kind?, namespace: namespace? })
}

fn read_to(element: &Field<'_>) -> Option<Option<Name>> {
    let fields = element.fields(&["group", "kind", "name"])?;
    super::refuse_other_kinds(&fields, false);
    fields.require("kind");
    match fields.find("name") {
        Some(field) => field.label().map(Some),
        None => Some(None),
    }
}

const GATEWAY_KINDS: [(&str, RouteKind); 4] = [
    ("HTTPRoute", RouteKind::Http),
    ("GRPCRoute", RouteKind::Grpc),
    ("TCPRoute", RouteKind::Tcp),
    ("TLSRoute", RouteKind::Tls),
];
const SPLIT_KINDS: [(&str, RouteKind); 1] = [("TrafficSplit", RouteKind::Split)];
const ELEMENTS_MAX: usize = 16;
