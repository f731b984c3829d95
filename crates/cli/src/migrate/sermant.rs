//! Conversion of items of Sermant's configuration center to `TagRoute`s and `Lane`s.

mod native;
mod write;

use leno_model::{
    Object, SermantRouteRule, SermantRules, ServiceName, TagRoute, TagRules, TagScope,
};
use serde_json::{Value, json};

use self::native::{DecisionDifferences, convert_lanes, convert_rules};
use self::write::{write_fallbacks, write_lane_rule, write_preference, write_rule};

/// The equivalent native objects, and the differences between their decisions and those of the original.
pub(super) struct NativeEquivalent {
    pub(super) objects: Vec<Value>,
    pub(super) differences: Vec<&'static str>,
}

/// Converts an item to `TagRoute`s and `Lane`s, or returns the reason why their meaning would differ.
pub(super) fn convert_item(
    objects: &[&Object],
    item: &SermantRouteRule,
) -> Result<NativeEquivalent, String> {
    let mut differences = DecisionDifferences::default();
    let mut converted_objects = Vec::new();
    for (scope, SermantRules { rules, lanes }) in &item.entries {
        if let Some(conflict) = find_conflict(objects, item, scope) {
            return Err(conflict);
        }
        let name = match (scope, item.entries.len()) {
            (TagScope::Service(service, _), 2..) => format!("{}-{}", item.name.name, service.name),
            _ => item.name.name.as_str().to_owned(),
        };
        let build_object = |kind: &str, spec: Value| {
            json!({
                "apiVersion": "leno.dev/v1alpha1",
                "kind": kind,
                "metadata": {"name": name, "namespace": item.name.namespace.as_str()},
                "spec": spec,
            })
        };
        let rules = convert_rules(rules, &mut differences)?;
        if !rules.is_empty() {
            converted_objects.push(build_object("TagRoute", write_tag_route(scope, &rules)?));
        }
        let lanes = convert_lanes(lanes, &mut differences)?;
        if let (TagScope::Service(ServiceName { name, .. }, _), false) = (scope, lanes.is_empty()) {
            let rules: Result<Vec<Value>, String> = lanes.iter().map(write_lane_rule).collect();
            converted_objects
                .push(build_object("Lane", json!({"service": name.as_str(), "rules": rules?})));
        }
    }
    if converted_objects.is_empty() {
        return Err("none of its rules can apply".to_owned());
    }
    Ok(NativeEquivalent { objects: converted_objects, differences: differences.into_sentences() })
}

fn write_tag_route(scope: &TagScope, tag_rules: &TagRules) -> Result<Value, String> {
    let mut spec = match scope {
        TagScope::Service(service, None) => json!({"service": service.name.as_str()}),
        TagScope::Service(service, Some(port)) => {
            json!({"service": service.name.as_str(), "port": port})
        }
        TagScope::Namespace(_) => json!({"scope": "namespace"}),
        TagScope::Mesh => json!({"scope": "mesh"}),
    };
    if !tag_rules.rules.is_empty() {
        let rules: Result<Vec<Value>, String> = tag_rules.rules.iter().map(write_rule).collect();
        spec["fallbackPolicy"] = write_fallbacks(&tag_rules.fallback_policy);
        spec["rules"] = rules?.into();
    }
    if !tag_rules.caller_rules.is_empty() {
        let preferences: Result<Vec<Value>, String> =
            tag_rules.caller_rules.iter().map(write_preference).collect();
        spec["preferSameTag"] = preferences?.into();
    }
    Ok(spec)
}

/// Returns the reason if another rule would apply together with the converted rules, but not with the original:
/// only the first of two items with one key counts, and native rules take precedence over those of the
/// configuration center.
fn find_conflict(objects: &[&Object], item: &SermantRouteRule, scope: &TagScope) -> Option<String> {
    let rules = item.entries.iter().filter(|(rule_scope, _)| rule_scope == scope);
    let (mut by_request, mut by_caller) = (false, false);
    for (_, SermantRules { rules, .. }) in rules {
        by_request |= !rules.rules.is_empty();
        by_caller |= !rules.caller_rules.is_empty();
    }
    let matches_scope = |other_scope: &TagScope| match (other_scope, scope) {
        (TagScope::Service(other, _), TagScope::Service(service, _)) => other == service,
        (other_scope, scope) => other_scope == scope,
    };
    objects.iter().find_map(|object| {
        let reason = match object {
            Object::SermantRouteRule(other) if other.name != item.name => {
                let has_same_scope =
                    other.entries.iter().any(|(other_scope, _)| matches_scope(other_scope));
                has_same_scope.then_some("of two items with the same key only the first applies")
            }
            Object::TagRoute(TagRoute { scope: other_scope, rules, .. })
                if matches_scope(other_scope) =>
            {
                let is_conflict = by_request && !rules.rules.is_empty()
                    || by_caller && !rules.caller_rules.is_empty();
                is_conflict
                    .then_some("now it takes precedence, and after conversion both would apply")
            }
            _ => None,
        };
        reason.map(|reason| format!("{} has the same scope: {reason}", object.object_key()))
    })
}
