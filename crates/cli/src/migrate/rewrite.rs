//! Conversion of all documents, each to its outcome.

use std::collections::BTreeSet;

use leno_model::{
    EgressPolicy, IngressPolicy, Object, RouteGroupName, ServicePolicyKind, TargetRule,
    TcpRouteName, TrafficSplit, TrafficTarget,
};
use leno_registry::read_str;
use serde_json::Value;

use super::document::{DocumentContent, SourceDocument};
use super::published::PublishedItem;
use super::sermant::NativeEquivalent;
use super::{access, mesh_config, published, sermant, setting, split, yaml};

/// The outcome of a document.
pub(super) enum RewriteResult {
    /// It is already native, or of the Gateway API.
    Native,
    /// It is replaced by these equivalent objects.
    Rewritten(Vec<Value>),
    /// It is replaced by these objects, with the listed differences.
    Nearly(Vec<Value>, Vec<&'static str>),
    /// No remaining object references it.
    Dropped(&'static str),
    /// It stays, as there is no equivalent; Leno reads it.
    Left(String),
    /// Leno does not read it.
    Lost(String),
}

/// Decides the outcome of every document, in order.
pub(super) fn rewrite(documents: &[SourceDocument], namespace: &str) -> Vec<RewriteResult> {
    let objects: Vec<&Object> = documents.iter().filter_map(SourceDocument::object).collect();
    let items = documents.iter().filter_map(|document| match &document.found {
        DocumentContent::Published(item) => Some(item),
        _ => None,
    });
    let items: Vec<&PublishedItem> = items.collect();
    let mut has_config = objects.iter().any(|object| matches!(object, Object::MeshConfig(_)));
    let mut fates: Vec<RewriteResult> = documents
        .iter()
        .map(|document| match &document.found {
            DocumentContent::Object(object) => of_object(&objects, object),
            DocumentContent::Settings { .. } if has_config => {
                RewriteResult::Lost("a MeshConfig exists already".to_owned())
            }
            DocumentContent::Settings { permissive, egress, .. } => {
                has_config = true;
                RewriteResult::Rewritten(vec![mesh_config::native_config(*permissive, *egress)])
            }
            DocumentContent::Published(item) => {
                match published::convert_item(&items, &objects, item, namespace) {
                    RewriteResult::Nearly(objects, differences) => {
                        match validate_converted(&objects) {
                            Ok(()) => RewriteResult::Nearly(objects, differences),
                            Err(why) => RewriteResult::Lost(why),
                        }
                    }
                    fate => fate,
                }
            }
            DocumentContent::Unread { reason, .. } => RewriteResult::Lost(reason.clone()),
            DocumentContent::Comments => RewriteResult::Native,
        })
        .collect();
    leave_what_meets(documents, &mut fates);
    leave_what_is_used(documents, &mut fates);
    lose_what_may_be_used(documents, &mut fates);
    fates
}

fn of_object(objects: &[&Object], object: &Object) -> RewriteResult {
    let outcome = match object {
        Object::TrafficTarget(target) => access::convert_target(objects, target).map(|it| vec![it]),
        Object::TrafficSplit(split) => split::convert_split(objects, split),
        // Their content is part of the objects that reference them.
        Object::HttpRouteGroup(_) | Object::TcpRoute(_) => {
            // Corrected below, for references from unconverted documents.
            return RewriteResult::Dropped(
                "its rules are part of the policies that referenced it, or no policy \
                referenced it",
            );
        }
        Object::ServicePolicy(policy) => match setting::convert_policy(objects, policy) {
            Some(outcome) => outcome,
            None if policy.name.kind == ServicePolicyKind::SermantRemoval => {
                Err("an OutlierDetection has another algorithm: write one manually".to_owned())
            }
            None => return RewriteResult::Native,
        },
        Object::SermantRouteRule(item) => match sermant::convert_item(objects, item) {
            Ok(NativeEquivalent { objects, differences }) if !differences.is_empty() => {
                return match validate_converted(&objects) {
                    Ok(()) => RewriteResult::Nearly(objects, differences),
                    Err(why) => RewriteResult::Left(why),
                };
            }
            outcome => outcome.map(|native| native.objects),
        },
        Object::Ingress(_) | Object::Egress(_) | Object::Retry(_) | Object::AccessCert(_) => {
            Err("it has no native equivalent, and is supported unchanged".to_owned())
        }
        _ => return RewriteResult::Native,
    };
    match outcome.and_then(|written| validate_converted(&written).map(|()| written)) {
        Ok(written) => RewriteResult::Rewritten(written),
        Err(why) => RewriteResult::Left(why),
    }
}

/// Validates converted objects: if native kinds have narrower bounds, the original stays.
fn validate_converted(written: &[Value]) -> Result<(), String> {
    for object in written {
        let (_, rejected) = read_str("new", &yaml::write(object));
        if let Some(refusal) = rejected.first() {
            let field = refusal.at.field.as_deref().unwrap_or_default();
            return Err(format!("{}: {field}: {}", yaml::object_name(object), refusal.problem));
        }
    }
    Ok(())
}

/// Avoids duplicate names of one kind: the document that would be the second stays.
fn leave_what_meets(documents: &[SourceDocument], fates: &mut [RewriteResult]) {
    let kept = documents.iter().zip(fates.iter());
    let kept =
        kept.filter(|(_, fate)| matches!(fate, RewriteResult::Native | RewriteResult::Left(_)));
    let mut taken: BTreeSet<String> =
        kept.filter_map(|(it, _)| Some(it.object()?.object_key().to_string())).collect();
    for (document, fate) in documents.iter().zip(fates) {
        let (RewriteResult::Rewritten(objects) | RewriteResult::Nearly(objects, _)) = &*fate else {
            continue;
        };
        let names: Vec<String> = objects.iter().map(yaml::object_name).collect();
        match names.iter().find(|name| taken.contains(*name)) {
            Some(name) => {
                let why = format!("it would become a second {name}");
                // An item without an object cannot stay.
                let stays = !matches!(document.found, DocumentContent::Published(_));
                *fate = if stays { RewriteResult::Left(why) } else { RewriteResult::Lost(why) };
            }
            None => taken.extend(names),
        }
    }
}

/// Keeps groups and routes while a remaining document references them.
fn leave_what_is_used(documents: &[SourceDocument], fates: &mut [RewriteResult]) {
    let left = || {
        let both = documents.iter().zip(fates.iter());
        both.filter(|(_, fate)| matches!(fate, RewriteResult::Left(_)))
            .filter_map(|(it, _)| it.object())
    };
    let groups: Vec<RouteGroupName> = left().flat_map(referenced_groups).collect();
    let routes: Vec<TcpRouteName> = left().flat_map(referenced_routes).collect();
    for (document, fate) in documents.iter().zip(fates) {
        let is_used = match document.object() {
            Some(Object::HttpRouteGroup(group)) => groups.contains(&group.name),
            Some(Object::TcpRoute(route)) => routes.contains(&route.name),
            _ => false,
        };
        if is_used {
            *fate = RewriteResult::Left("an unchanged document references it".to_owned());
        }
    }
}

/// Drops groups and routes that only dropped documents may reference: the references of such documents are
/// unknown.
fn lose_what_may_be_used(documents: &[SourceDocument], fates: &mut [RewriteResult]) {
    if !documents.iter().any(|document| matches!(document.found, DocumentContent::Unread { .. })) {
        return;
    }
    let read = || documents.iter().filter_map(SourceDocument::object);
    let groups: Vec<RouteGroupName> = read().flat_map(referenced_groups).collect();
    let routes: Vec<TcpRouteName> = read().flat_map(referenced_routes).collect();
    for (document, fate) in documents.iter().zip(fates) {
        let is_used = match document.object() {
            Some(Object::HttpRouteGroup(group)) => groups.contains(&group.name),
            Some(Object::TcpRoute(route)) => routes.contains(&route.name),
            _ => continue,
        };
        if !is_used {
            *fate = RewriteResult::Lost("only dropped documents may have referenced it".to_owned());
        }
    }
}

fn referenced_groups(object: &Object) -> Vec<RouteGroupName> {
    match object {
        Object::TrafficTarget(TrafficTarget { rules, .. }) => rules
            .iter()
            .filter_map(|rule| match rule {
                TargetRule::Http { group, .. } => Some(group.clone()),
                TargetRule::Tcp { .. } => None,
            })
            .collect(),
        Object::TrafficSplit(TrafficSplit { groups, .. }) => groups.clone().unwrap_or_default(),
        Object::Ingress(IngressPolicy { groups, .. }) => groups.clone(),
        Object::Egress(EgressPolicy { groups, .. }) => groups.clone(),
        _ => Vec::new(),
    }
}

fn referenced_routes(object: &Object) -> Vec<TcpRouteName> {
    let Object::TrafficTarget(target) = object else { return Vec::new() };
    let routes = target.rules.iter().filter_map(|rule| match rule {
        TargetRule::Tcp { route } => Some(route.clone()),
        TargetRule::Http { .. } => None,
    });
    routes.collect()
}
