//! Reads the `leno.dev/v1alpha1` `TagRoute` kind.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leno_model::{
    CallerMatch, CallerRule, FallbackPolicy, FieldTest, Name, RuleOrigin, ServiceName, StickyKey,
    TagDialect, TagMatch, TagRoute, TagRouteName, TagRule, TagRules, TagScope, TagSet, TagSplit,
    TagTarget, TagValue, ValueTest, WeightUnit,
};

use super::ObjectMetadata;
use super::http_route::read_header_name;
use super::request_condition::{read_conditions, read_match, require_exactly_one_key};
use crate::document::NodeValue;
use crate::field::{Field, MapFields};

/// Reads the `spec` of a `TagRoute`.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<TagRoute> {
    let fields = spec.read_fields(&[
        "service",
        "port",
        "scope",
        "fallbackPolicy",
        "rules",
        "preferSameTag",
    ])?;
    let name = TagRouteName { namespace: metadata.namespace, name: metadata.name };
    let scope = read_scope(&fields, &name.namespace);
    let policies_result = fields.find("fallbackPolicy").map(read_fallback_policies);
    let elements =
        fields.find("rules").and_then(|rules| rules.read_list(MAX_RULES)).unwrap_or_default();
    if !elements.is_empty() && policies_result.is_none() {
        fields.require("fallbackPolicy")?;
    }
    let inherited_policies = policies_result.flatten().unwrap_or_default();
    let mut rules = Vec::new();
    for (index, element) in elements.iter().enumerate() {
        let origin = rule_origin(&name, index);
        rules.extend(read_rule(element, origin, &inherited_policies));
    }
    rules.sort_by_key(|rule: &TagRule| Reverse(rule.priority));
    let caller_rules = read_prefer_same_tag(&fields, &name);
    if elements.is_empty() && fields.find("preferSameTag").is_none_or(is_empty_list) {
        spec.reject("has no rules", "add `rules` or `preferSameTag`");
    }
    let rules = TagRules { rules, fallback_policy: inherited_policies, caller_rules };
    Some(TagRoute { name, scope: scope?, rules, created: 0 })
}

fn is_empty_list(field: &Field<'_>) -> bool {
    matches!(field.value(), NodeValue::List(list) if list.is_empty())
}

/// Returns the origin of the rule with this index, counted from 0 in the order as written.
fn rule_origin(name: &TagRouteName, index: usize) -> RuleOrigin {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    RuleOrigin { dialect: TagDialect::TagRoute, name: name.clone(), index }
}

/// Reads the scope: a service (and optionally one of its ports), the namespace, or the mesh.
fn read_scope(fields: &MapFields<'_>, namespace: &Name) -> Option<TagScope> {
    let key = require_exactly_one_key(fields, &["service", "scope"])?;
    let port = fields.find("port");
    if key == "scope" {
        if let Some(port) = port {
            port.reject("requires `service`", "remove it, or name a `service`");
        }
        let scopes =
            [("namespace", TagScope::Namespace(namespace.clone())), ("mesh", TagScope::Mesh)];
        return fields.find(key)?.read_choice(&scopes);
    }
    let name = fields.find(key)?.read_label()?;
    let port = match port {
        Some(port) => Some(port.read_port()?),
        None => None,
    };
    Some(TagScope::Service(ServiceName { namespace: namespace.clone(), name }, port))
}

/// Reads one fallback policy, or several in order of preference. The word `fail` adds no policy to the list: requests
/// fail if no listed policy selects an endpoint.
fn read_fallback_policies(field: &Field<'_>) -> Option<Vec<FallbackPolicy>> {
    const POLICY_WORDS: &[(&str, Option<FallbackPolicy>)] = &[
        ("any", Some(FallbackPolicy::Any)),
        ("default", Some(FallbackPolicy::Default)),
        ("fail", None),
    ];
    let policies = match field.value() {
        NodeValue::List(_) => {
            let policies =
                field.read_each(POLICY_WORDS.len(), |policy| policy.read_choice(POLICY_WORDS));
            if policies.is_empty() {
                field.reject("is empty", "use `any`, `default` or `fail`");
            }
            policies
        }
        _ => vec![field.read_choice(POLICY_WORDS)?],
    };
    let (last_policy, preceding_policies) = policies.split_last()?;
    if preceding_policies.iter().any(|policy| *policy != Some(FallbackPolicy::Default))
        || preceding_policies.contains(last_policy)
    {
        field.reject(
            "has an unreachable value",
            "use `any`, `default`, `fail`, `[default, any]` or `[default, fail]`",
        );
        return None;
    }
    Some(policies.into_iter().flatten().collect())
}

/// Reads one of the `rules`. The model calls `precedence` priority. `inherited_policies` apply if the rule has no
/// `fallbackPolicy`.
fn read_rule(
    element: &Field<'_>,
    origin: RuleOrigin,
    inherited_policies: &[FallbackPolicy],
) -> Option<TagRule> {
    let fields = element.read_fields(&[
        "precedence",
        "from",
        "match",
        "split",
        "fallback",
        "fallbackPolicy",
        "sticky",
    ])?;
    let priority = match fields.find("precedence") {
        Some(field) => i32::try_from(field.read_number(0, MAX_PRECEDENCE)?).ok()?,
        None => 0,
    };
    let from = match fields.find("from") {
        Some(field) => read_caller_match(field, &origin.name.namespace)?,
        None => CallerMatch::default(),
    };
    let request_match = match fields.find("match") {
        Some(field) => read_match(field)?,
        None => TagMatch::default(),
    };
    let split = read_split(fields.require("split")?)?;
    let fallback = match fields.find("fallback") {
        Some(field) => read_split(field)?,
        None => TagSplit::default(),
    };
    let fallback_policy = match fields.find("fallbackPolicy") {
        Some(field) => read_fallback_policies(field)?,
        None => inherited_policies.to_vec(),
    };
    let sticky = match fields.find("sticky") {
        Some(field) => Some(read_sticky(field)?),
        None => None,
    };
    Some(TagRule {
        origin,
        priority,
        from,
        request_match,
        split,
        fallback,
        fallback_policy,
        sticky,
    })
}

/// Reads the conditions on the caller. The namespace of its service defaults to `namespace`.
fn read_caller_match(field: &Field<'_>, namespace: &Name) -> Option<CallerMatch> {
    let fields = field.read_fields(&["service", "namespace", "tags"])?;
    let namespace = match fields.find("namespace") {
        Some(field) => field.read_label()?,
        None => namespace.clone(),
    };
    let service = match fields.find("service") {
        Some(field) => Some(ServiceName { namespace, name: field.read_label()? }),
        None => None,
    };
    let tags = fields.find("tags").map(read_conditions).unwrap_or_default();
    if service.is_none() && tags.is_empty() {
        field.reject("is empty", "name a `service` or `tags`, or remove it");
        return None;
    }
    Some(CallerMatch { service, tags, ..CallerMatch::default() })
}

/// Reads the targets among which requests are split by weight; at least one weight must be above 0.
fn read_split(field: &Field<'_>) -> Option<TagSplit> {
    let elements = field.read_list(MAX_TARGETS)?;
    let targets: Vec<TagTarget> = elements.iter().filter_map(read_target).collect();
    // If the lengths differ, `read_target` has rejected an element, and this problem would only be its consequence.
    if targets.len() == elements.len() && targets.iter().all(|target| target.weight == 0) {
        field.reject("has no target with a weight above 0", "add one");
        return None;
    }
    Some(TagSplit { targets, weights: WeightUnit::Relative })
}

/// Reads one target of a split: a weight (1 by default), and the endpoints by tags or as a named set.
fn read_target(element: &Field<'_>) -> Option<TagTarget> {
    let fields = element.read_fields(&["weight", "tags", "instances"])?;
    let weight = match fields.find("weight") {
        Some(field) => field.read_number(0, MAX_WEIGHT)?,
        None => 1,
    };
    let set = match require_exactly_one_key(&fields, &["tags", "instances"])? {
        "tags" => TagSet::All(read_tags(fields.find("tags")?)?),
        _ => fields
            .find("instances")?
            .read_choice(&[("default", TagSet::Default), ("any", TagSet::AllInstances)])?,
    };
    Some(TagTarget { weight, set })
}

/// Reads the tags that the endpoints of a target must have; at least one.
fn read_tags(field: &Field<'_>) -> Option<BTreeMap<String, TagValue>> {
    let tags = field.read_text_map();
    if tags.is_empty() {
        field.reject("names no tag", "name one, or use `instances: any`");
        return None;
    }
    Some(tags.into_iter().map(|(name, value)| (name, TagValue::Exact(value))).collect())
}

/// Reads the header or cookie that selects the target of a split by its value.
fn read_sticky(field: &Field<'_>) -> Option<StickyKey> {
    let fields = field.read_fields(&["header", "cookie"])?;
    let key = require_exactly_one_key(&fields, &["header", "cookie"])?;
    let value = fields.find(key)?;
    match key {
        "header" => read_header_name(value, value.read_text()?).map(StickyKey::Header),
        _ => Some(StickyKey::Cookie(value.read_text()?.to_owned())),
    }
}

/// Reads the field `preferSameTag` as rules; empty if the field is absent.
fn read_prefer_same_tag(fields: &MapFields<'_>, name: &TagRouteName) -> Vec<CallerRule> {
    let elements = fields.find("preferSameTag").and_then(|list| list.read_list(MAX_TARGETS));
    let elements = elements.unwrap_or_default();
    let rules = elements.iter().enumerate();
    rules
        .filter_map(|(index, element)| read_preference(element, rule_origin(name, index)))
        .collect()
}

/// Reads an element of `preferSameTag` as a rule that selects endpoints with the caller's values of the tags.
fn read_preference(element: &Field<'_>, origin: RuleOrigin) -> Option<CallerRule> {
    let fields = element.read_fields(&["tags", "minPercent", "minTotal"])?;
    let field = fields.require("tags")?;
    let tags = field.read_each(MAX_TARGETS, |tag| Some(tag.read_text()?.to_owned()));
    if tags.is_empty() {
        field.reject("names no tag", "name one, such as `zone`");
        return None;
    }
    let read_number = |key: &str, max| match fields.find(key) {
        Some(field) => field.read_number(0, max),
        None => Some(0),
    };
    let present_test = |name: &String| FieldTest { name: name.clone(), test: ValueTest::Present };
    let from =
        CallerMatch { tags: tags.iter().map(present_test).collect(), ..CallerMatch::default() };
    let same_tags = tags.into_iter().map(|tag| (tag, TagValue::SameAsCaller)).collect();
    let target = TagTarget { weight: 1, set: TagSet::All(same_tags) };
    Some(CallerRule {
        origin,
        from,
        split: TagSplit { targets: vec![target], weights: WeightUnit::Relative },
        min_percent: read_number("minPercent", 100)?,
        min_total: read_number("minTotal", MAX_WEIGHT)?,
        continues: true,
    })
}

/// Maximum number of rules per object; all rules of a service are sent together.
const MAX_RULES: usize = 16_384;
/// Maximum number of targets per split, of elements of `preferSameTag`, and of tags per element.
const MAX_TARGETS: usize = 64;
/// Maximum weight of a target, and maximum `minTotal`.
const MAX_WEIGHT: u32 = 1_000_000;
/// Maximum value of the field `precedence`.
const MAX_PRECEDENCE: u32 = 1_000_000;
