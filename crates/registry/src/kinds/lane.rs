//! Reads the `leno.dev/v1alpha1` `Lane` kind: headers with which a service marks the requests that it sends, so that tag
//! rules route them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leno_model::{
    Lane, LaneMark, LaneRule, RuleOrigin, ServiceName, TagDialect, TagMatch, TagRouteName,
};

use super::ObjectMetadata;
use super::http_route::read_header_name;
use super::request_condition::read_match;
use crate::field::Field;

/// Reads the `spec` of a `Lane`. The rules are in descending precedence.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<Lane> {
    let fields = spec.read_fields(&["service", "rules"])?;
    let name = TagRouteName { namespace: metadata.namespace, name: metadata.name };
    let service = fields.require("service").and_then(Field::read_label);
    let elements =
        fields.require("rules").and_then(|rules| rules.read_list(MAX_RULES)).unwrap_or_default();
    let written_rules = elements.iter().enumerate().filter_map(|(index, element)| {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let origin = RuleOrigin { dialect: TagDialect::Lane, name: name.clone(), index };
        read_rule(element, origin)
    });
    let mut rules: Vec<LaneRule> = written_rules.collect();
    rules.sort_by_key(|rule| Reverse(rule.priority));
    let service = ServiceName { namespace: name.namespace.clone(), name: service? };
    Some(Lane { name, service, rules, created: 0 })
}

/// Reads one of the `rules`. The model calls `precedence` priority. The percentages of its marks must be 1 to 100 in total.
fn read_rule(element: &Field<'_>, origin: RuleOrigin) -> Option<LaneRule> {
    let fields = element.read_fields(&["precedence", "match", "marks"])?;
    let priority = match fields.find("precedence") {
        Some(field) => i32::try_from(field.read_number(0, MAX_PRECEDENCE)?).ok()?,
        None => 0,
    };
    let request_match = match fields.find("match") {
        Some(field) => read_match(field)?,
        None => TagMatch::default(),
    };
    let field = fields.require("marks")?;
    let elements = field.read_list(MAX_MARKS)?;
    let marks: Vec<LaneMark> = elements.iter().filter_map(read_mark).collect();
    let total_percent: u32 = marks.iter().map(|mark| mark.percent).sum();
    // If the lengths differ, `read_mark` has rejected an element, and this problem would only be its consequence.
    if marks.len() == elements.len() && (total_percent == 0 || total_percent > 100) {
        field.reject(format!("has {total_percent} percent in total"), "use 1 to 100 in total");
        return None;
    }
    Some(LaneRule { origin, priority, request_match, marks })
}

/// Reads a mark: headers that are added to a percentage of the matching requests.
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

/// Reads headers to add, with lower-case names. Headers that sidecars set themselves are rejected.
pub(super) fn read_headers(field: &Field<'_>) -> Option<BTreeMap<String, String>> {
    let mut headers = BTreeMap::new();
    for (name, value) in field.read_entries()? {
        let name = read_header_name(&value, name)?;
        let text = value.read_literal()?;
        let is_visible = |byte: u8| byte == b'\t' || (0x20..0x7f).contains(&byte);
        if !text.bytes().all(is_visible) || text.trim() != text {
            value
                .reject("is not the value of a header", "use printable ASCII without outer blanks");
            return None;
        }
        if RESERVED_HEADERS.contains(&name.as_str()) {
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

/// Headers that sidecars set themselves.
const RESERVED_HEADERS: &[&str] = &[
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
/// Maximum number of rules per object.
const MAX_RULES: usize = 1024;
/// Maximum number of marks per rule.
const MAX_MARKS: usize = 64;
/// Maximum value of the field `precedence`.
const MAX_PRECEDENCE: u32 = 1_000_000;
