//! Reads the items of Sermant's configuration center, such as ServiceComb KIE, and converts them.
//!
//! An item is a key with YAML text. Leno reads items with route rules and outlier detection unchanged. The key of
//! a governance rule is `servicecomb.RULE_TYPE.SCENARIO`: the item `servicecomb.matchGroup.SCENARIO` selects the
//! requests to which all rules of a scenario (Sermant's "scene") apply.

mod group;
mod rule;

use leno_model::Object;
use leno_registry::{outline_document, read_str};
use serde_json::{Value, json};

use super::document::DocumentContent;
use super::rewrite::RewriteResult;
use super::yaml;

/// An item of a configuration center.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigCenterItem {
    /// The key, such as `servicecomb.rateLimiting.checkout`.
    pub(super) key: String,
    /// The rules, as YAML text.
    pub(super) content: String,
}

/// Parses the items of a document; empty if the document contains no items.
///
/// A document is a map from keys to contents, or any structure with the fields `key` and `value` (or
/// `content`), as the API of ServiceComb KIE returns. Disabled items are ignored.
pub(super) fn parse_items(text: &str) -> Vec<ConfigCenterItem> {
    let Some(values) = outline_document(text) else { return Vec::new() };
    if values.iter().any(|(path, _)| path == "apiVersion") {
        return Vec::new();
    }
    let value_at = |requested_path: String| {
        let entry = values.iter().find(|(path, _)| *path == requested_path);
        entry.map(|(_, value)| value)
    };
    let item_keys = values.iter().filter(|(_, value)| is_item_key(value));
    let items: Vec<ConfigCenterItem> = item_keys
        .filter_map(|(path, key)| {
            let prefix = path
                .strip_suffix("key")
                .filter(|prefix| prefix.is_empty() || prefix.ends_with('.'))?;
            let content = value_at(format!("{prefix}value"))
                .or_else(|| value_at(format!("{prefix}content")))?;
            let is_disabled =
                value_at(format!("{prefix}status")).is_some_and(|status| status == "disabled");
            (!is_disabled).then(|| ConfigCenterItem { key: key.clone(), content: content.clone() })
        })
        .collect();
    if items.is_empty() { parse_lines(text) } else { items }
}

/// Parses the items of a map whose keys are at the start of lines, each followed by indented content. Returns no
/// items if a line starts with anything but an item key, a space, `-` or `#`.
fn parse_lines(text: &str) -> Vec<ConfigCenterItem> {
    let mut items: Vec<ConfigCenterItem> = Vec::new();
    for line in text.lines() {
        let is_blank = line.trim().is_empty() || line.trim_start().starts_with('#');
        match items.last_mut() {
            Some(item) if is_blank || line.starts_with([' ', '-']) => {
                item.content.push_str(line);
                item.content.push('\n');
            }
            None if is_blank => {}
            _ => {
                let Some((key, suffix)) = line.split_once(':').filter(|(key, _)| is_item_key(key))
                else {
                    return Vec::new();
                };
                // A block scalar is read without its indicator.
                let suffix = suffix.trim().trim_start_matches(['|', '>', '+', '-']);
                items
                    .push(ConfigCenterItem { key: key.to_owned(), content: format!("{suffix}\n") });
            }
        }
    }
    items
}

fn is_item_key(text: &str) -> bool {
    text.starts_with("servicecomb.") || text == REMOVAL_KEY
}

/// Reads an item. Returns the title, the text and the content of the document for it.
///
/// # Errors
/// The problems of the rule, if Leno reads items with this key and rejects the content.
pub(super) fn read_item(
    item: ConfigCenterItem,
    namespace: &str,
) -> Result<(String, String, DocumentContent), String> {
    let Some(manifest) = wrap_item(&item, namespace) else {
        let title = format!("item {}", item.key);
        return Ok((
            title,
            format!("{}:\n{}", item.key, item.content),
            DocumentContent::ConfigCenter(item),
        ));
    };
    let text = yaml::write_document(&manifest);
    let (mut objects, rejected) = read_str("item", &text);
    match (objects.pop(), rejected.is_empty()) {
        (Some((object, _)), true) => {
            Ok((object.object_key().to_string(), text, DocumentContent::Object(Box::new(object))))
        }
        _ => {
            let problems = rejected.iter().map(|rejection| {
                let field = rejection.location.field.as_deref().unwrap_or("document");
                format!("item {}: {field}: {}; {}", item.key, rejection.problem, rejection.hint)
            });
            Err(problems.collect::<Vec<_>>().join("\n  "))
        }
    }
}

/// Returns the object that wraps an item, if Leno reads the item unchanged.
fn wrap_item(item: &ConfigCenterItem, namespace: &str) -> Option<Value> {
    let route_keys = ["servicecomb.routeRule", "servicecomb.globalRouteRule"];
    let is_route = route_keys.iter().any(|key| {
        let suffix = item.key.strip_prefix(key);
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
    });
    let (kind, spec) = match is_route {
        true => (
            "SermantRouteRule",
            json!({"compat": "sermant", "key": item.key, "rules": item.content}),
        ),
        false if item.key == REMOVAL_KEY => {
            ("SermantRemoval", json!({"compat": "sermant", "config": item.content}))
        }
        false => return None,
    };
    let name = item.key.trim_start_matches("servicecomb.");
    Some(json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": to_object_name(name), "namespace": namespace},
        "spec": spec,
    }))
}

/// Converts a text to a valid object name.
fn to_object_name(text: &str) -> String {
    let mut name = String::new();
    for character in text.chars() {
        if character.is_ascii_uppercase() && !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
        let is_name_character = character.is_ascii_alphanumeric();
        name.push(if is_name_character { character.to_ascii_lowercase() } else { '-' });
    }
    name.trim_matches('-').to_owned()
}

/// Converts an item with a governance rule, for the requests of its scenario's match group. The match group itself
/// is not needed once a rule of its scenario is converted. `items` are all items, `objects` all objects of the
/// input.
pub(super) fn convert_item(
    items: &[&ConfigCenterItem],
    objects: &[&Object],
    item: &ConfigCenterItem,
    namespace: &str,
) -> RewriteResult {
    if let Some(reason) = rule::legacy_rule_reason(&item.key) {
        return RewriteResult::Dropped(reason);
    }
    let Some((rule_type, scenario)) = split_key(item) else {
        return RewriteResult::Dropped("the key is unknown, and has no scenario".to_owned());
    };
    let is_in_scenario = |item: &ConfigCenterItem| {
        split_key(item).is_some_and(|(_, item_scenario)| item_scenario == scenario)
    };
    let scenario_items = || items.iter().filter(|item| is_in_scenario(item));
    // The result of a match group depends on the rules that use it.
    if rule_type == "matchGroup" {
        let other_items = scenario_items().filter(|other_item| other_item.key != item.key);
        let mut results =
            other_items.map(|other_item| convert_item(items, objects, other_item, namespace));
        return match results.any(|result| {
            matches!(result, RewriteResult::Changed(..) | RewriteResult::Rewritten(_))
        }) {
            true => RewriteResult::NotNeeded(
                "its conditions are part of the converted rules of its scenario",
            ),
            false => RewriteResult::Dropped("no rule of its scenario is converted".to_owned()),
        };
    }
    let group_key = format!("servicecomb.matchGroup.{scenario}");
    let Some(group_item) = scenario_items().find(|item| item.key == group_key) else {
        let reason = format!("no {group_key}, so that it applies to no requests");
        return RewriteResult::Dropped(reason);
    };
    // The converted rule contains the conditions of the match group.
    let conversion = group::parse_group(&group_item.content)
        .map_err(|reason| format!("{}: {reason}", group_item.key))
        .and_then(|group| {
            let object_name = to_object_name(scenario);
            rule::convert_rule(rule_type, &object_name, namespace, &group, &item.content)
        })
        .and_then(|(object, difference)| {
            reject_conflict(items, objects, item, &object)?;
            Ok((object, difference))
        });
    match conversion {
        Ok((object, difference)) => RewriteResult::Changed(vec![object], vec![difference]),
        Err(reason) => RewriteResult::Dropped(reason),
    }
}

/// Rejects the native policy of an item if another item of the same rule type, or a native policy of the same
/// kind, may apply to the same requests. Leno would apply only one of the two policies.
fn reject_conflict(
    items: &[&ConfigCenterItem],
    objects: &[&Object],
    item: &ConfigCenterItem,
    native_policy: &Value,
) -> Result<(), String> {
    let kind = native_policy["kind"].as_str().unwrap_or_default();
    let rule_type = split_key(item).map(|(rule_type, _)| rule_type);
    let same_type_item = items.iter().find(|other_item| {
        let other_type = split_key(other_item).map(|(other_type, _)| other_type);
        other_item.key != item.key && other_type == rule_type
    });
    if let Some(same_type_item) = same_type_item {
        return Err(format!(
            "{} is another rule of this type; write one {kind} for both manually",
            same_type_item.key
        ));
    }
    let conflict = objects.iter().find_map(|object| match object {
        Object::ServicePolicy(policy) if policy.name.kind.as_str() == kind => {
            Some(object.object_key())
        }
        _ => None,
    });
    match conflict {
        Some(conflict) => Err(format!(
            "{conflict} may apply to the same requests: merge this rule into it manually"
        )),
        None => Ok(()),
    }
}

/// Splits an item's key into rule type and scenario; `None` if the key has no scenario.
fn split_key(item: &ConfigCenterItem) -> Option<(&str, &str)> {
    item.key.strip_prefix("servicecomb.")?.split_once('.')
}

/// True if an item is a rule that may reject requests.
pub(super) fn limits_requests(item: &ConfigCenterItem) -> bool {
    split_key(item).is_some_and(|(rule_type, _)| LIMITING_RULE_TYPES.contains(&rule_type))
}

/// The types of rules that reject requests.
const LIMITING_RULE_TYPES: &[&str] = &["rateLimiting", "bulkhead", "circuitBreaker", "system"];
/// The key of the item that configures Sermant's outlier detection.
const REMOVAL_KEY: &str = "sermant.removal.config";

#[cfg(test)]
mod tests {
    use super::{ConfigCenterItem, parse_items, to_object_name};

    #[test]
    fn items_are_parsed_from_maps_and_lists() {
        let item = |key: &str, content: &str| ConfigCenterItem {
            key: key.into(),
            content: content.into(),
        };
        let rate = "servicecomb.rateLimiting.a";
        for (text, expected) in [
            (
                "servicecomb.rateLimiting.a: {rate: 1}\nsermant.removal.config: |\n  a: 1\n",
                vec![item(rate, "{rate: 1}\n"), item("sermant.removal.config", "\n  a: 1\n")],
            ),
            (
                "total: 2\ndata:\n- {key: servicecomb.rateLimiting.a, value: \"rate: 1\"}\n\
                 - {key: servicecomb.retry.a, value: \"\", status: disabled}\n",
                vec![item(rate, "rate: 1")],
            ),
            ("key: servicecomb.rateLimiting.a\ncontent: 'rate: 2'\n", vec![item(rate, "rate: 2")]),
            ("servicecomb.rateLimiting.a: {rate: 1}\nother: 1\n", Vec::new()),
            ("key: other\nvalue: 'a: 1'\n", Vec::new()),
            ("apiVersion: v1\nkey: servicecomb.rateLimiting.a\nvalue: 'a: 1'\n", Vec::new()),
        ] {
            assert_eq!(parse_items(text), expected, "{text}");
        }
    }

    #[test]
    fn keys_are_converted_to_valid_object_names() {
        for (text, name) in
            [("routeRule.orders", "route-rule-orders"), ("Check_Out", "check-out"), ("-a-", "a")]
        {
            assert_eq!(to_object_name(text), name);
        }
    }
}
