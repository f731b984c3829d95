//! Items of Sermant's configuration center in their stored form: keys with YAML text.

mod group;
mod rule;

use leno_model::Object;
use leno_registry::{outline_document, read_str};
use serde_json::{Value, json};

use super::document::DocumentContent;
use super::rewrite::RewriteResult;
use super::yaml;

/// An item of a configuration center: a key with a text of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublishedItem {
    /// Its key, such as `servicecomb.rateLimiting.checkout`.
    pub(super) key: String,
    /// Its content.
    pub(super) content: String,
}

/// Returns the items of a document; none if it is something else.
///
/// A document is a map from keys to contents, or any structure with the fields `key` and `value` (or
/// `content`), as the API of ServiceComb KIE returns. Disabled items are ignored.
pub(super) fn parse_items(text: &str) -> Vec<PublishedItem> {
    let Some(values) = outline_document(text) else { return Vec::new() };
    if values.iter().any(|(path, _)| path == "apiVersion") {
        return Vec::new();
    }
    let value = |path: String| values.iter().find(|(known, _)| *known == path);
    let keys = values.iter().filter(|(_, key)| is_key(key));
    let listed = keys.filter_map(|(path, key)| {
        let place = path.strip_suffix("key").filter(|it| it.is_empty() || it.ends_with('.'))?;
        let content =
            value(format!("{place}value")).or_else(|| value(format!("{place}content")))?;
        let is_off = value(format!("{place}status")).is_some_and(|(_, it)| it == "disabled");
        (!is_off).then(|| PublishedItem { key: key.clone(), content: content.1.clone() })
    });
    let listed: Vec<PublishedItem> = listed.collect();
    if listed.is_empty() { by_line(text) } else { listed }
}

/// Returns the items of a map with keys at the start of lines.
fn by_line(text: &str) -> Vec<PublishedItem> {
    let mut items: Vec<PublishedItem> = Vec::new();
    for line in text.lines() {
        let is_blank = line.trim().is_empty() || line.trim_start().starts_with('#');
        match items.last_mut() {
            Some(item) if is_blank || line.starts_with([' ', '-']) => {
                item.content.push_str(line);
                item.content.push('\n');
            }
            None if is_blank => {}
            _ => {
                let Some((key, rest)) = line.split_once(':').filter(|(key, _)| is_key(key)) else {
                    return Vec::new();
                };
                // A block scalar is read without its indicator.
                let rest = rest.trim().trim_start_matches(['|', '>', '+', '-']);
                items.push(PublishedItem { key: key.to_owned(), content: format!("{rest}\n") });
            }
        }
    }
    items
}

fn is_key(text: &str) -> bool {
    text.starts_with("servicecomb.") || text == REMOVAL
}

/// Reads an item: its title, its text and its content.
///
/// # Errors
/// The problems, if it is a supported rule that is rejected.
pub(super) fn read(
    item: PublishedItem,
    namespace: &str,
) -> Result<(String, String, DocumentContent), String> {
    let Some(wrapped) = wrap_item(&item, namespace) else {
        let title = format!("item {}", item.key);
        return Ok((
            title,
            format!("{}:\n{}", item.key, item.content),
            DocumentContent::Published(item),
        ));
    };
    let text = yaml::write(&wrapped);
    let (mut objects, rejected) = read_str("item", &text);
    match (objects.pop(), rejected.is_empty()) {
        (Some((object, _)), true) => {
            Ok((object.object_key().to_string(), text, DocumentContent::Object(Box::new(object))))
        }
        _ => {
            let reported = rejected.iter().map(|refusal| {
                let field = refusal.at.field.as_deref().unwrap_or("document");
                format!("item {}: {field}: {}; {}", item.key, refusal.problem, refusal.hint)
            });
            Err(reported.collect::<Vec<_>>().join("\n  "))
        }
    }
}

/// Returns the object that wraps an item, if Leno reads the item unchanged.
fn wrap_item(item: &PublishedItem, namespace: &str) -> Option<Value> {
    let routes = ["servicecomb.routeRule", "servicecomb.globalRouteRule"];
    let is_route = routes.iter().any(|known| {
        let rest = item.key.strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    let (kind, spec) = match is_route {
        true => (
            "SermantRouteRule",
            json!({"compat": "sermant", "key": item.key, "rules": item.content}),
        ),
        false if item.key == REMOVAL => {
            ("SermantRemoval", json!({"compat": "sermant", "config": item.content}))
        }
        false => return None,
    };
    let name = item.key.trim_start_matches("servicecomb.");
    Some(json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name_of(name), "namespace": namespace},
        "spec": spec,
    }))
}

/// Converts a text to a valid object name.
fn name_of(text: &str) -> String {
    let mut name = String::new();
    for character in text.chars() {
        if character.is_ascii_uppercase() && !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
        let is_plain = character.is_ascii_alphanumeric();
        name.push(if is_plain { character.to_ascii_lowercase() } else { '-' });
    }
    name.trim_matches('-').to_owned()
}

/// Converts an item about traffic; items of one scene belong together.
pub(super) fn convert_item(
    items: &[&PublishedItem],
    objects: &[&Object],
    item: &PublishedItem,
    namespace: &str,
) -> RewriteResult {
    if let Some(why) = rule::of_another_switch(&item.key) {
        return RewriteResult::Lost(why);
    }
    let Some((family, scope)) = split_key(item) else {
        return RewriteResult::Lost("unknown key, and without a scene".to_owned());
    };
    let of_scope = || items.iter().filter(|it| split_key(it).is_some_and(|(_, it)| it == scope));
    if family == "matchGroup" {
        let others = of_scope().filter(|it| it.key != item.key);
        let mut fates = others.map(|it| convert_item(items, objects, it, namespace));
        return match fates
            .any(|it| matches!(it, RewriteResult::Nearly(..) | RewriteResult::Rewritten(_)))
        {
            true => RewriteResult::Dropped(
                "its conditions are part of the converted rules of its scene",
            ),
            false => RewriteResult::Lost("no rule of its scene is converted".to_owned()),
        };
    }
    let Some(matches) = of_scope().find(|it| it.key == format!("servicecomb.matchGroup.{scope}"))
    else {
        let why = format!("no servicecomb.matchGroup.{scope}, so that it applies to no requests");
        return RewriteResult::Lost(why);
    };
    let written = group::read(&matches.content)
        .map_err(|why| format!("{}: {why}", matches.key))
        .and_then(|group| {
            rule::convert_rule(family, (&name_of(scope), namespace), &group, &item.content)
        })
        .and_then(|written| reject_conflict(items, objects, item, written));
    match written {
        Ok((object, difference)) => RewriteResult::Nearly(vec![object], vec![difference]),
        Err(why) => RewriteResult::Lost(why),
    }
}

/// Rejects a second policy of one kind for a service, as only one of them applies.
fn reject_conflict(
    items: &[&PublishedItem],
    objects: &[&Object],
    item: &PublishedItem,
    written: (Value, &'static str),
) -> Result<(Value, &'static str), String> {
    let kind = written.0["kind"].as_str().unwrap_or_default();
    let family = split_key(item).map(|(family, _)| family);
    let other =
        items.iter().find(|it| it.key != item.key && split_key(it).map(|it| it.0) == family);
    if let Some(other) = other {
        return Err(format!("{} is a second one: write one {kind} for both manually", other.key));
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
        None => Ok(written),
    }
}

/// Splits a key into family and scene.
fn split_key(item: &PublishedItem) -> Option<(&str, &str)> {
    item.key.strip_prefix("servicecomb.")?.split_once('.')
}

/// True if an item is a rule that limits incoming requests.
pub(super) fn is_limit(item: &PublishedItem) -> bool {
    split_key(item).is_some_and(|(family, _)| LIMITING.contains(&family))
}

/// The families with rules that reject requests.
const LIMITING: &[&str] = &["rateLimiting", "bulkhead", "circuitBreaker", "system"];
const REMOVAL: &str = "sermant.removal.config";

#[cfg(test)]
mod tests {
    use super::{PublishedItem, name_of, parse_items};

    #[test]
    fn items_are_found_in_their_layout() {
        let item =
            |key: &str, content: &str| PublishedItem { key: key.into(), content: content.into() };
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
    fn names_are_those_of_objects() {
        for (text, name) in
            [("routeRule.orders", "route-rule-orders"), ("Check_Out", "check-out"), ("-a-", "a")]
        {
            assert_eq!(name_of(text), name);
        }
    }
}
