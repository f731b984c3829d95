//! Converts the route rules of Sermant, a Java agent for service governance, to `TagRoute`s and `Lane`s. A `TagRoute`
//! selects instances by their tags, and a `Lane` marks requests with headers.

mod native;
mod write;

use leno_model::{Object, SermantRouteRule, SermantRules, TagRoute, TagRules, TagScope};
use serde_json::{Value, json};

use self::native::{DecisionDifferences, convert_lanes, convert_rules};
use self::write::{write_fallbacks, write_lane_rule, write_preference, write_rule};

/// The equivalent native objects, and sentences about the cases in which they decide differently than the original.
pub(super) struct NativeEquivalent {
    pub(super) objects: Vec<Value>,
    pub(super) differences: Vec<&'static str>,
}

/// Converts the route rules of an item to a `TagRoute` and a `Lane` per scope, or returns the reason why their
/// meaning would differ.
pub(super) fn convert_item(
    objects: &[&Object],
    item: &SermantRouteRule,
) -> Result<NativeEquivalent, String> {
    let mut differences = DecisionDifferences::default();
    let mut converted_objects = Vec::new();
    for (scope, sermant_rules) in &item.entries {
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
        let tag_rules = convert_rules(&sermant_rules.rules, &mut differences)?;
        if !tag_rules.is_empty() {
            converted_objects.push(build_object("TagRoute", write_tag_route(scope, &tag_rules)?));
        }
        let lanes = convert_lanes(&sermant_rules.lanes, &mut differences)?;
        if let (TagScope::Service(service, _), false) = (scope, lanes.is_empty()) {
            let lane_rules_result: Result<Vec<Value>, String> =
                lanes.iter().map(write_lane_rule).collect();
            let spec = json!({"service": service.name.as_str(), "rules": lane_rules_result?});
            converted_objects.push(build_object("Lane", spec));
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
        let rules_result: Result<Vec<Value>, String> =
            tag_rules.rules.iter().map(write_rule).collect();
        spec["fallbackPolicy"] = write_fallbacks(&tag_rules.fallback_policy);
        spec["rules"] = rules_result?.into();
    }
    if !tag_rules.caller_rules.is_empty() {
        let preferences_result: Result<Vec<Value>, String> =
            tag_rules.caller_rules.iter().map(write_preference).collect();
        spec["preferSameTag"] = preferences_result?.into();
    }
    Ok(spec)
}

/// Returns the reason if another rule would apply together with the converted rules, but not together with the
/// original ones. Of two items with the same key only the first applies, and a native rule takes precedence over
/// items of the configuration center; after conversion, both rules would apply.
fn find_conflict(objects: &[&Object], item: &SermantRouteRule, scope: &TagScope) -> Option<String> {
    let scope_entries = item.entries.iter().filter(|(entry_scope, _)| entry_scope == scope);
    let (mut has_request_rules, mut has_caller_rules) = (false, false);
    for (_, SermantRules { rules, .. }) in scope_entries {
        has_request_rules |= !rules.rules.is_empty();
        has_caller_rules |= !rules.caller_rules.is_empty();
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
                let is_conflict = has_request_rules && !rules.rules.is_empty()
                    || has_caller_rules && !rules.caller_rules.is_empty();
                is_conflict
                    .then_some("now it takes precedence, and after conversion both would apply")
            }
            _ => None,
        };
        reason.map(|reason| format!("{} has the same scope: {reason}", object.object_key()))
    })
}
