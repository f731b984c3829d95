//! Converts all documents of the input, and decides the outcome of each: replaced, unchanged, not needed or
//! dropped.

use std::collections::BTreeSet;

use leno_model::{
    EgressPolicy, IngressPolicy, Object, RouteGroupName, ServicePolicyKind, TargetRule,
    TcpRouteName, TrafficSplit, TrafficTarget,
};
use leno_registry::read_str;
use serde_json::Value;

use super::config_center::ConfigCenterItem;
use super::document::{DocumentContent, SourceDocument};
use super::sermant::NativeEquivalent;
use super::{access, config_center, mesh_config, sermant, setting, split, yaml};

/// The outcome of a document.
pub(super) enum RewriteResult {
    /// The document is already native, or of the Gateway API.
    Native,
    /// These equivalent objects replace the document.
    Rewritten(Vec<Value>),
    /// These objects replace the document, with the listed differences.
    Changed(Vec<Value>, Vec<&'static str>),
    /// No remaining object references the document, for this reason.
    NotNeeded(&'static str),
    /// The document stays, because it has no equivalent for this reason; Leno reads it.
    Unchanged(String),
    /// The document is dropped for this reason: Leno does not read it.
    Dropped(String),
}

/// Converts every document, and returns the results in the same order. Objects without a namespace get `namespace`.
pub(super) fn rewrite(documents: &[SourceDocument], namespace: &str) -> Vec<RewriteResult> {
    let objects: Vec<&Object> = documents.iter().filter_map(SourceDocument::object).collect();
    let config_center_items: Vec<&ConfigCenterItem> = documents
        .iter()
        .filter_map(|document| match &document.content {
            DocumentContent::ConfigCenter(item) => Some(item),
            _ => None,
        })
        .collect();
    let mut has_config = objects.iter().any(|object| matches!(object, Object::MeshConfig(_)));
    let mut results: Vec<RewriteResult> = documents
        .iter()
        .map(|document| match &document.content {
            DocumentContent::Object(object) => convert_object(&objects, object),
            DocumentContent::Settings { .. } if has_config => {
                RewriteResult::Dropped("a MeshConfig exists already".to_owned())
            }
            DocumentContent::Settings { is_permissive, egress, .. } => {
                has_config = true;
                RewriteResult::Rewritten(vec![mesh_config::native_config(*is_permissive, *egress)])
            }
            DocumentContent::ConfigCenter(item) => {
                match config_center::convert_item(&config_center_items, &objects, item, namespace) {
                    RewriteResult::Changed(converted, differences) => {
                        match validate_converted(&converted) {
                            Ok(()) => RewriteResult::Changed(converted, differences),
                            Err(reason) => RewriteResult::Dropped(reason),
                        }
                    }
                    result => result,
                }
            }
            DocumentContent::Unread { reason, .. } => RewriteResult::Dropped(reason.clone()),
            DocumentContent::Comments => RewriteResult::Native,
        })
        .collect();
    resolve_duplicate_names(documents, &mut results);
    retain_referenced(documents, &mut results);
    drop_unreferenced(documents, &mut results);
    results
}

/// Converts an object that Leno reads. `objects` are all objects of the input, which `object` may reference.
fn convert_object(objects: &[&Object], object: &Object) -> RewriteResult {
    let conversion = match object {
        Object::TrafficTarget(target) => {
            access::convert_target(objects, target).map(|object| vec![object])
        }
        Object::TrafficSplit(split) => split::convert_split(objects, split),
        // The content of groups and routes is part of the objects that reference them.
        Object::HttpRouteGroup(_) | Object::TcpRoute(_) => {
            // `retain_referenced` and `drop_unreferenced` correct this result if unchanged or dropped documents
            // may reference the object.
            return RewriteResult::NotNeeded(
                "its rules are part of the policies that referenced it, or no policy \
                referenced it",
            );
        }
        Object::ServicePolicy(policy) => match setting::convert_policy(objects, policy) {
            Some(conversion) => conversion,
            None if policy.name.kind == ServicePolicyKind::SermantRemoval => {
                Err("an OutlierDetection has another algorithm: write one manually".to_owned())
            }
            None => return RewriteResult::Native,
        },
        Object::SermantRouteRule(item) => match sermant::convert_item(objects, item) {
            Ok(NativeEquivalent { objects: converted, differences }) if !differences.is_empty() => {
                return match validate_converted(&converted) {
                    Ok(()) => RewriteResult::Changed(converted, differences),
                    Err(reason) => RewriteResult::Unchanged(reason),
                };
            }
            conversion => conversion.map(|equivalent| equivalent.objects),
        },
        Object::Ingress(_) | Object::Egress(_) | Object::Retry(_) | Object::AccessCert(_) => {
            Err("it has no native equivalent, and is supported unchanged".to_owned())
        }
        // All other kinds are native, or of the Gateway API.
        _ => return RewriteResult::Native,
    };
    match conversion.and_then(|converted| validate_converted(&converted).map(|()| converted)) {
        Ok(converted) => RewriteResult::Rewritten(converted),
        Err(reason) => RewriteResult::Unchanged(reason),
    }
}

/// Returns the reason if Leno rejects a converted object, because native kinds have narrower bounds. The original
/// document then stays.
fn validate_converted(converted: &[Value]) -> Result<(), String> {
    for object in converted {
        let (_, rejected) = read_str("new", &yaml::write_document(object));
        if let Some(rejection) = rejected.first() {
            let field = rejection.location.field.as_deref().unwrap_or_default();
            return Err(format!("{}: {field}: {}", yaml::object_name(object), rejection.problem));
        }
    }
    Ok(())
}

/// Avoids duplicate names of one kind: a document that would become the second stays unchanged, or is dropped if it
/// cannot stay.
fn resolve_duplicate_names(documents: &[SourceDocument], results: &mut [RewriteResult]) {
    let remaining_documents = documents.iter().zip(results.iter()).filter(|(_, result)| {
        matches!(result, RewriteResult::Native | RewriteResult::Unchanged(_))
    });
    let mut names_in_use: BTreeSet<String> = remaining_documents
        .filter_map(|(document, _)| Some(document.object()?.object_key().to_string()))
        .collect();
    for (document, result) in documents.iter().zip(results) {
        let (RewriteResult::Rewritten(objects) | RewriteResult::Changed(objects, _)) = &*result
        else {
            continue;
        };
        let names: Vec<String> = objects.iter().map(yaml::object_name).collect();
        match names.iter().find(|name| names_in_use.contains(*name)) {
            Some(name) => {
                let reason = format!("it would become a second {name}");
                // Leno does not read these items of a configuration center, so they cannot stay.
                let can_stay = !matches!(document.content, DocumentContent::ConfigCenter(_));
                *result = if can_stay {
                    RewriteResult::Unchanged(reason)
                } else {
                    RewriteResult::Dropped(reason)
                };
            }
            None => names_in_use.extend(names),
        }
    }
}

/// Keeps groups and routes while a remaining document references them.
fn retain_referenced(documents: &[SourceDocument], results: &mut [RewriteResult]) {
    let unchanged_objects = || {
        let pairs = documents.iter().zip(results.iter());
        pairs
            .filter(|(_, result)| matches!(result, RewriteResult::Unchanged(_)))
            .filter_map(|(document, _)| document.object())
    };
    let groups: Vec<RouteGroupName> = unchanged_objects().flat_map(referenced_groups).collect();
    let routes: Vec<TcpRouteName> = unchanged_objects().flat_map(referenced_routes).collect();
    for (document, result) in documents.iter().zip(results) {
        let is_used = match document.object() {
            Some(Object::HttpRouteGroup(group)) => groups.contains(&group.name),
            Some(Object::TcpRoute(route)) => routes.contains(&route.name),
            _ => false,
        };
        if is_used {
            *result = RewriteResult::Unchanged("an unchanged document references it".to_owned());
        }
    }
}

/// Drops groups and routes that only dropped documents may reference: the references of such documents are
/// unknown.
fn drop_unreferenced(documents: &[SourceDocument], results: &mut [RewriteResult]) {
    if !documents.iter().any(|document| matches!(document.content, DocumentContent::Unread { .. }))
    {
        return;
    }
    let all_objects = || documents.iter().filter_map(SourceDocument::object);
    let groups: Vec<RouteGroupName> = all_objects().flat_map(referenced_groups).collect();
    let routes: Vec<TcpRouteName> = all_objects().flat_map(referenced_routes).collect();
    for (document, result) in documents.iter().zip(results) {
        let is_used = match document.object() {
            Some(Object::HttpRouteGroup(group)) => groups.contains(&group.name),
            Some(Object::TcpRoute(route)) => routes.contains(&route.name),
            _ => continue,
        };
        if !is_used {
            *result =
                RewriteResult::Dropped("only dropped documents may have referenced it".to_owned());
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
