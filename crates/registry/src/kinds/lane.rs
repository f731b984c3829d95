//! Reader of the `leno.dev/v1alpha1` `Lane` kind.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leno_model::{
    Lane, LaneMark, LaneRule, RuleOrigin, ServiceName, TagDialect, TagMatch, TagRouteName,
};

use super::ObjectMetadata;
use super::http_route::header_name;
use super::request_test::read_match;
use crate::field::Field;

pub(super) fn read(head: ObjectMetadata, spec: &Field<'_>) -> Option<Lane> {
    let fields = spec.read_fields(&["service", "rules"])?;
    let name = TagRouteName { namespace: head.namespace, name: head.name };
    let service = fields.require("service").and_then(Field::read_label);
    let elements = fields.require("rules").and_then(|rules| rules.read_list(RULES_MAX));
    let elements = elements.unwrap_or_default();
    let rules = elements.iter().enumerate().filter_map(|(index, element)| {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let origin = RuleOrigin { dialect: TagDialect::Lane, name: name.clone(), index };
        read_rule(element, origin)
    });
    let mut rules: Vec<LaneRule> = rules.collect();
    rules.sort_by_key(|rule| Reverse(rule.precedence));
    let service = ServiceName { namespace: name.namespace.clone(), name: service? };
    Some(Lane { name, service, rules, created: 0 })
}

fn read_rule(element: &Field<'_>, origin: RuleOrigin) -> Option<LaneRule> {
    let fields = element.read_fields(&["precedence", "match", "marks"])?;
    let precedence = match fields.find("precedence") {
        Some(field) => i32::try_from(field.read_number(0, PRECEDENCE_MAX)?).ok()?,
        None => 0,
    };
    let matches = match fields.find("match") {
        Some(field) => read_match(field)?,
        None => TagMatch::default(),
    };
    let field = fields.require("marks")?;
    let elements = field.read_list(MARKS_MAX)?;
    let marks: Vec<LaneMark> = elements.iter().filter_map(read_mark).collect();
    let total: u32 = marks.iter().map(|position| position.percent).sum();
    // Missing ones have been rejected already.
    if marks.len() == elements.len() && (total == 0 || total > 100) {
        field.reject(format!("has {total} percent in all"), "use 1 to 100 in all");
        return None;
    }
    Some(LaneRule { origin, precedence, matches, marks })
}

fn read_mark(element: &Field<'_>) -> Option<LaneMark> {
    let fields = element.read_fields(&["percent", "headers"])?;
    let percent = match fields.find("percent") {
        Some(field) => field.read_number(0, 100)?,
        None => 100,
    };
    let field = fields.require("headers")?;
    let headers = read_headers(field)?;
    Some(LaneMark { percent, headers })
}

/// Reads headers to add, with lower-case names; hop-by-hop headers are rejected.
pub(super) fn read_headers(field: &Field<'_>) -> Option<BTreeMap<String, String>> {
    let mut headers = BTreeMap::new();
    for (name, value) in field.read_entries()? {
        let name = header_name(&value, name)?;
        let text = value.read_literal()?;
        let visible = |byte: u8| byte == b'\t' || (0x20..0x7f).contains(&byte);
        if !text.bytes().all(visible) || text.trim() != text {
            value
                .reject("is not the value of a header", "use printable ASCII without outer blanks");
            return None;
        }
        if RESERVED.contains(&name.as_str()) {
            value.reject(format!("{name} is not for applications"), "use a header of your own");
            return None;
        }
        headers.insert(name, text);
    }
    if headers.is_empty() {
        field.reject("names no header", "name one, such as `x-lane: gray`");
        return None;
    }
    Some(headers)
}

/// Headers that the sidecar itself sets.
const RESERVED: &[&str] = &[
    ":authority",
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const RULES_MAX: usize = 1024;
const MARKS_MAX: usize = 64;
const PRECEDENCE_MAX: u32 = 1_000_000;
