//! Conversion of items of Sermant's configuration center to `TagRoute`s and `Lane`s.

mod native;
mod write;

use leno_model::{
    Object, SermantRouteRule, SermantRules, ServiceName, TagRoute, TagRules, TagScope,
};
use serde_json::{Value, json};

use self::native::{DecisionDifferences, convert_lanes, convert_rules};
use self::write::{lane_rule, write_fallbacks, write_preference, write_rule};

/// The equivalent objects, and their remaining differences.
pub(super) struct NativeEquivalent {
    pub(super) objects: Vec<Value>,
    pub(super) differences: Vec<&'static str>,
}

/// Converts to `TagRoute`s and `Lane`s, or returns the reason why their meaning would differ.
pub(super) fn convert_item(
    objects: &[&Object],
    item: &SermantRouteRule,
) -> Result<NativeEquivalent, String> {
    let mut differences = DecisionDifferences::default();
    let mut written = Vec::new();
    for (scope, SermantRules { rules: found, lanes: marks }) in &item.entries {
        if let Some(conflict) = find_conflict(objects, item, scope) {
            return Err(conflict);
        }
        let name = match (scope, item.entries.len()) {
            (TagScope::Service(service, _), 2..) => format!("{}-{}", item.name.name, service.name),
            _ => item.name.name.as_str().to_owned(),
        };
        let object = |kind: &str, spec: Value| {
            json!({
                "apiVersion": "leno.dev/v1alpha1",
                "kind": kind,
                "metadata": {"name": name, "namespace": item.name.namespace.as_str()},
                "spec": spec,
            })
        };
        let found = convert_rules(found, &mut differences)?;
        if !found.is_empty() {
            written.push(object("TagRoute", tag_route(scope, &found)?));
        }
        let marks = convert_lanes(marks, &mut differences)?;
        if let (TagScope::Service(ServiceName { name, .. }, _), false) = (scope, marks.is_empty()) {
            let rules: Result<Vec<Value>, String> = marks.iter().map(lane_rule).collect();
            written.push(object("Lane", json!({"service": name.as_str(), "rules": rules?})));
        }
    }
    if written.is_empty() {
        return Err("none of its rules can apply".to_owned());
    }
    Ok(NativeEquivalent { objects: written, differences: differences.into_sentences() })
}

fn tag_route(scope: &TagScope, found: &TagRules) -> Result<Value, String> {
    let mut spec = match scope {
        TagScope::Service(service, None) => json!({"service": service.name.as_str()}),
        TagScope::Service(service, Some(port)) => {
            json!({"service": service.name.as_str(), "port": port})
        }
        TagScope::Namespace(_) => json!({"scope": "namespace"}),
        TagScope::Mesh => json!({"scope": "mesh"}),
    };
    if !found.rules.is_empty() {
        let rules: Result<Vec<Value>, String> = found.rules.iter().map(write_rule).collect();
        spec["fallbackPolicy"] = write_fallbacks(&found.fallback_policy);
        spec["rules"] = rules?.into();
    }
    if !found.by_caller.is_empty() {
        let preferences: Result<Vec<Value>, String> =
            found.by_caller.iter().map(write_preference).collect();
        spec["preferSameTag"] = preferences?.into();
    }
    Ok(spec)
}

/// Returns a rule that would apply together with the converted rules, but not with the original: only the first
/// of two items with one key counts, and native rules take precedence over published ones.
fn find_conflict(objects: &[&Object], item: &SermantRouteRule, scope: &TagScope) -> Option<String> {
    let rules = item.entries.iter().filter(|(known, _)| known == scope);
    let (mut by_request, mut by_caller) = (false, false);
    for (_, SermantRules { rules, .. }) in rules {
        by_request |= !rules.rules.is_empty();
        by_caller |= !rules.by_caller.is_empty();
    }
    let is_about = |other: &TagScope| match (other, scope) {
        (TagScope::Service(other, _), TagScope::Service(service, _)) => other == service,
        (other, scope) => other == scope,
    };
    objects.iter().find_map(|object| {
        let why = match object {
            Object::SermantRouteRule(other) if other.name != item.name => {
                let same = other.entries.iter().any(|(known, _)| is_about(known));
                same.then_some("of two items with the same key only the first applies")
            }
            Object::TagRoute(TagRoute { scope: other, rules, .. }) if is_about(other) => {
                let meets = by_request && !rules.rules.is_empty()
                    || by_caller && !rules.by_caller.is_empty();
                meets.then_some("now it takes precedence, and after conversion both would apply")
            }
            _ => None,
        };
        why.map(|why| format!("{} has the same scope: {why}", object.object_key()))
    })
}
