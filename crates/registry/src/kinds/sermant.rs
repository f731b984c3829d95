//! Reads the `leno.dev/v1alpha1` `SermantRouteRule` kind: an entry that Sermant's operators publish in a
//! configuration center.
//!
//! The semantics are those of the service-router in Sermant 2.2.0, including surprising ones. A rule that probably
//! does not have the intended meaning causes a warning.

mod condition;
mod rule;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use leno_model::{
    FallbackPolicy, LaneRule, MAX_STEMS, Name, SermantKey, SermantRouteRule, SermantRouteSpec,
    SermantRules, ServiceName, TagRouteName, TagRules, TagScope,
};

use self::rule::{RulesLocation, read_caller_rule, read_flow_rule, read_lane_rule};
use super::ObjectMetadata;
use crate::document::{DocumentNode, NodeValue, TextPosition, parse_documents};
use crate::field::Field;
use crate::schema_reader::read_definition;

/// Reads the `spec` of a `SermantRouteRule`. The field `rules` contains the entry's content, as text or as YAML.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<SermantRouteRule> {
    let name = TagRouteName { namespace: metadata.namespace, name: metadata.name };
    let SermantRouteSpec { key, .. } = read_definition(spec, &name.namespace)?;
    let content = &spec.child("rules")?;
    let entries = match content.value() {
        NodeValue::Text(text) => {
            let node = parse_embedded(content, text)?;
            read_content(&content.embedded_field(&node), &key, &name)
        }
        _ => read_content(content, &key, &name),
    };
    Some(SermantRouteRule { name, entries: entries?, created: 0 })
}

/// Returns the service of this namespace that a key names; rejects `field` if the text is not a service name.
fn read_service_name(field: &Field<'_>, service: &str, namespace: &Name) -> Option<ServiceName> {
    let name = Name::new(service).ok().filter(|name| !name.as_str().contains('.'));
    if name.is_none() {
        field.reject(
            format!("{service:?} is not the name of a Service"),
            "use the name of a Service of this namespace: lower-case letters, digits, `-`",
        );
    }
    Some(ServiceName { namespace: namespace.clone(), name: name? })
}

/// Parses a text that contains one YAML document, with lines counted from the start of the enclosing document.
fn parse_embedded(field: &Field<'_>, text: &str) -> Option<DocumentNode> {
    let mut documents = match parse_documents(text) {
        Ok(documents) => documents,
        Err(error) => {
            let line = error.position.line;
            field.reject(format!("{} in line {line} of it", error.problem), "correct it");
            return None;
        }
    };
    match (documents.pop(), documents.is_empty()) {
        (Some(mut node), true) => {
            shift_positions(&mut node, field.position());
            Some(node)
        }
        (None, _) => {
            field.reject("is empty", "write the rules as they are published");
            None
        }
        (Some(_), false) => {
            field.reject("contains several YAML documents", "keep only the list of rules");
            None
        }
    }
}

/// Shifts the positions of a node that was parsed from a text within a document by the position of that text.
fn shift_positions(node: &mut DocumentNode, text_position: TextPosition) {
    node.position.line = node.position.line.saturating_add(text_position.line).saturating_sub(1);
    node.position.column =
        node.position.column.saturating_add(text_position.column).saturating_sub(1);
    match &mut node.value {
        NodeValue::List(list) => {
            list.iter_mut().for_each(|node| shift_positions(node, text_position))
        }
        NodeValue::Map(map) => map.iter_mut().for_each(|(key, node)| {
            shift_positions(key, text_position);
            shift_positions(node, text_position);
        }),
        NodeValue::Null
        | NodeValue::Boolean(_)
        | NodeValue::Number(_)
        | NodeValue::Text(_)
        | NodeValue::MergeKey
        | NodeValue::Tagged(_) => {}
    }
}

/// Reads the rules of each scope: of one service, of each service in a map, or of the whole namespace.
fn read_content(
    content: &Field<'_>,
    key: &SermantKey,
    name: &TagRouteName,
) -> Option<Vec<(TagScope, SermantRules)>> {
    match key {
        SermantKey::Service(service) => {
            let service = ServiceName { namespace: name.namespace.clone(), name: service.clone() };
            let scope = TagScope::Service(service, None);
            Some(vec![(scope, read_documents(content, DuplicatePolicy::First, name)?)])
        }
        SermantKey::Global => {
            let rules = read_documents(content, DuplicatePolicy::Last, name)?;
            if !rules.lanes.is_empty() {
                content.warn(
                    "has lanes, which have no effect under the global key",
                    "publish them under the key of the service that marks the requests",
                );
            }
            let rules_without_lanes = SermantRules { lanes: Vec::new(), ..rules };
            Some(vec![(TagScope::Namespace(name.namespace.clone()), rules_without_lanes)])
        }
        SermantKey::ServiceMap => {
            let mut entries = Vec::new();
            for (service_text, field) in content.read_entries()? {
                let service = read_service_name(&field, service_text, &name.namespace)?;
                let rules = read_documents(&field, DuplicatePolicy::First, name)?;
                entries.push((TagScope::Service(service, None), rules));
            }
            Some(entries)
        }
    }
}

/// Selects the document that applies if several documents contain rules of the same kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DuplicatePolicy {
    First,
    Last,
}

/// The kind of the rules in a document.
#[derive(Clone, Copy)]
enum SermantRuleKind {
    Flow,
    Tag,
    Lane,
}

/// Reads the documents of one scope. Each contains the rules of one kind.
fn read_documents(
    content: &Field<'_>,
    duplicate_policy: DuplicatePolicy,
    name: &TagRouteName,
) -> Option<SermantRules> {
    let mut rules = SermantRules::default();
    // One flag per `SermantRuleKind`: true once a document of that kind was read.
    let mut seen_kinds = [false; 3];
    for document in content.read_list(MAX_DOCUMENTS)? {
        let fields = document.read_any_fields()?;
        warn_about_unknown_fields(&document, &["kind", "description", "rules"]);
        let kind_field = fields.require("kind")?;
        let kind = match kind_field.read_text()? {
            "routematcher.sermant.io/flow" => SermantRuleKind::Flow,
            "routematcher.sermant.io/tag" => SermantRuleKind::Tag,
            "route.sermant.io/lane" => SermantRuleKind::Lane,
            _ => {
                kind_field.warn(
                    format!(
                        "{} is not a supported kind of rule: the document is ignored",
                        kind_field.quoted_value()
                    ),
                    "use `routematcher.sermant.io/flow`, `routematcher.sermant.io/tag` or \
                     `route.sermant.io/lane`",
                );
                continue;
            }
        };
        let is_repeated = seen_kinds
            .get_mut(kind as usize)
            .is_some_and(|is_seen| std::mem::replace(is_seen, true));
        if is_repeated {
            let applied_document =
                if duplicate_policy == DuplicatePolicy::First { "first" } else { "last" };
            kind_field.warn(
                format!(
                    "is also the kind of another document: only the {applied_document} applies"
                ),
                "put the rules of a kind into one document",
            );
            if duplicate_policy == DuplicatePolicy::First {
                continue;
            }
        }
        let elements = fields.find("rules").and_then(|rules| rules.read_list(MAX_RULES));
        read_rules(&mut rules, kind, &elements.unwrap_or_default(), &RulesLocation { name })?;
    }
    // A stem is the expression for the part of a path before its last dot; see `read_flow_rule`.
    let path_stems = rules.rules.rules.iter().filter_map(|rule| rule.request_match.stem.as_deref());
    if path_stems.collect::<BTreeSet<_>>().len() > MAX_STEMS {
        content.reject(
            format!("has more than {MAX_STEMS} different paths in its flow rules"),
            "use fewer, or a TagRoute",
        );
        return None;
    }
    // As in Sermant, a request without a selected instance goes to the instances without any of the rules' tags, or to all.
    if !rules.rules.rules.is_empty() {
        rules.rules.fallback_policy = vec![FallbackPolicy::Default, FallbackPolicy::Any];
    }
    Some(rules)
}

/// Reads `precedence`, which Sermant stores in a Java `int`.
fn read_precedence(field: &Field<'_>) -> Option<i32> {
    let precedence = i32::try_from(field.read_integer()?);
    if precedence.is_err() {
        let range = format!("use a number from {} to {}", i32::MIN, i32::MAX);
        field.reject(format!("{} is out of range", field.quoted_value()), range);
    }
    precedence.ok()
}

/// Reads the rules of one document into `rules`, in descending precedence. They replace the rules of the same kind from
/// previous documents.
fn read_rules(
    rules: &mut SermantRules,
    kind: SermantRuleKind,
    elements: &[Field<'_>],
    location: &RulesLocation<'_>,
) -> Option<()> {
    let TagRules { rules: flow_rules, caller_rules, .. } = &mut rules.rules;
    let mut precedences = Vec::new();
    for element in elements {
        let fields = element.read_any_fields()?;
        precedences.push(match fields.find("precedence") {
            Some(field) => read_precedence(field)?,
            None => 0,
        });
    }
    let mut ordered_elements: Vec<(usize, &Field<'_>)> = elements.iter().enumerate().collect();
    ordered_elements
        .sort_by_key(|(index, _)| Reverse(precedences.get(*index).copied().unwrap_or(0)));
    match kind {
        SermantRuleKind::Flow => flow_rules.clear(),
        SermantRuleKind::Tag => caller_rules.clear(),
        SermantRuleKind::Lane => rules.lanes.clear(),
    }
    for (index, element) in ordered_elements {
        let (origin, precedence) =
            (location.rule_origin(index), precedences.get(index).copied().unwrap_or(0));
        match kind {
            SermantRuleKind::Flow => {
                flow_rules.extend(read_flow_rule(element, origin, precedence)?);
            }
            SermantRuleKind::Tag => caller_rules.extend(read_caller_rule(element, origin)?),
            SermantRuleKind::Lane => {
                let lane_rules: Vec<LaneRule> = read_lane_rule(element, origin, precedence)?;
                rules.lanes.extend(lane_rules);
            }
        }
    }
    Some(())
}

/// Warns about fields that Sermant ignores. These fields are not rejected, because Sermant accepts the document.
fn warn_about_unknown_fields(field: &Field<'_>, known_fields: &[&str]) {
    for (key, field) in field.read_entries().unwrap_or_default() {
        if !known_fields.contains(&key) {
            field.warn("is an unknown field, and ignored", "remove it");
        }
    }
}

/// Maximum number of documents per service.
const MAX_DOCUMENTS: usize = 64;
/// Maximum number of rules per document.
const MAX_RULES: usize = 16_384;
