//! Reads the conditions on requests and callers in a `TagRoute` or `Lane`. A condition is an operator with its operand, such
//! as `{prefix: beta}`; the model calls it a test. Functions return `None` for an invalid field that they have rejected.

use leno_model::{FieldTest, NumberRelation, PathMatch, TagMatch, TextRelation, ValueTest};

use super::http_route::{normalize_prefix, read_header_name};
use super::literal_path::read_literal_path;
use crate::document::NodeValue;
use crate::field::{Field, MapFields};

/// Reads `match`. A request must meet all of its conditions.
pub(super) fn read_match(field: &Field<'_>) -> Option<TagMatch> {
    let fields = field.read_fields(&["path", "methods", "headers", "queryParams", "cookies"])?;
    let path = match fields.find("path") {
        Some(path) => read_path(path),
        None => Some(PathMatch::Any),
    };
    let headers = fields.find("headers").map(read_header_conditions);
    let read_conditions_in = |key: &str| fields.find(key).map(read_conditions).unwrap_or_default();
    Some(TagMatch {
        path: path?,
        methods: fields.read_each("methods", MAX_LIST_LENGTH, read_method),
        headers: headers.unwrap_or_default(),
        query: read_conditions_in("queryParams"),
        cookies: read_conditions_in("cookies"),
        ..TagMatch::default()
    })
}

/// Reads a path condition with exactly one of the keys `exact`, `prefix` and `regex`.
fn read_path(field: &Field<'_>) -> Option<PathMatch> {
    let fields = field.read_fields(PATH_KEYS)?;
    let key = require_exactly_one_key(&fields, PATH_KEYS)?;
    let value = fields.find(key)?;
    match key {
        "exact" => read_literal_path(value).map(PathMatch::Exact),
        "prefix" => read_literal_path(value).map(normalize_prefix),
        _ => value.read_regex().map(PathMatch::Regex),
    }
}

/// Reads a method in capital letters.
fn read_method(field: &Field<'_>) -> Option<String> {
    let text = field.read_text()?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-') {
        field.reject(
            format!("{} is not a method", field.quoted_value()),
            "use one such as GET; methods are written in capital letters",
        );
        return None;
    }
    Some(text.to_owned())
}

/// Reads conditions on headers, and converts the names of the headers to lower case.
fn read_header_conditions(field: &Field<'_>) -> Vec<FieldTest> {
    let mut conditions = read_conditions(field);
    let mut preceding_names: Vec<String> = Vec::new();
    for condition in &mut conditions {
        let Some(name) = read_header_name(field, &condition.name) else { continue };
        if preceding_names.contains(&name) {
            field.reject(format!("{name} is defined twice"), "remove one of the two");
        }
        preceding_names.push(name.clone());
        condition.name = name;
    }
    conditions
}

/// Reads a map from names to conditions.
pub(super) fn read_conditions(field: &Field<'_>) -> Vec<FieldTest> {
    let entries = field.read_entries().unwrap_or_default();
    if entries.len() > MAX_LIST_LENGTH {
        field.reject(
            format!("has {} entries", entries.len()),
            format!("use at most {MAX_LIST_LENGTH}"),
        );
        return Vec::new();
    }
    let read_entry = |(name, value): (&str, Field<'_>)| {
        Some(FieldTest { name: name.to_owned(), test: read_condition(&value)? })
    };
    entries.into_iter().filter_map(read_entry).collect()
}

/// Reads one operator with its operand. A plain string, as in `x-user: alice`, means `exact`.
fn read_condition(field: &Field<'_>) -> Option<ValueTest> {
    if let NodeValue::Text(text) = field.value() {
        let texts = vec![text.clone()];
        return Some(ValueTest::Text { relation: TextRelation::Exact, texts, ignore_case: false });
    }
    let supported_keys: Vec<&str> = OPERATORS.iter().copied().chain(["ignoreCase"]).collect();
    let fields = field.read_fields(&supported_keys)?;
    let key = require_exactly_one_key(&fields, OPERATORS)?;
    let value = fields.find(key)?;
    let ignore_case = match fields.find("ignoreCase") {
        Some(field) => field.read_boolean()?,
        None => false,
    };
    let read_text_condition = |relation| {
        let texts = match relation {
            TextRelation::In => {
                value.read_each(MAX_LIST_LENGTH, |text| Some(text.read_text()?.to_owned()))
            }
            TextRelation::Regex if ignore_case => vec![format!("(?i:{})", value.read_regex()?)],
            TextRelation::Regex => vec![value.read_regex()?],
            _ => vec![value.read_text()?.to_owned()],
        };
        if texts.is_empty() {
            value.reject("is empty, and matches no request", "list at least one text");
            return None;
        }
        // The regular expression has the flag `i` already: `(?i:…)`.
        let ignore_case = ignore_case && relation != TextRelation::Regex;
        Some(ValueTest::Text { relation, texts, ignore_case })
    };
    let read_number_condition = |relation| {
        if let Some(field) = fields.find("ignoreCase") {
            field.reject("is not supported for numbers", "remove it");
            return None;
        }
        Some(ValueTest::Number { relation, bound: value.read_integer()? })
    };
    match key {
        "exact" => read_text_condition(TextRelation::Exact),
        "prefix" => read_text_condition(TextRelation::Prefix),
        "regex" => read_text_condition(TextRelation::Regex),
        "in" => read_text_condition(TextRelation::In),
        "not" => read_text_condition(TextRelation::NotEqual),
        "above" => read_number_condition(NumberRelation::GreaterThan),
        "atLeast" => read_number_condition(NumberRelation::AtLeast),
        "below" => read_number_condition(NumberRelation::LessThan),
        "atMost" => read_number_condition(NumberRelation::AtMost),
        // Only `present` remains of the operators.
        _ => Some(if value.read_boolean()? { ValueTest::Present } else { ValueTest::Absent }),
    }
}

/// Returns the only key of `keys` that is present. Rejects the map if no key or several keys are present.
pub(super) fn require_exactly_one_key<'k>(
    fields: &MapFields<'_>,
    keys: &[&'k str],
) -> Option<&'k str> {
    let present_keys: Vec<&str> =
        keys.iter().copied().filter(|key| fields.find(key).is_some()).collect();
    match present_keys.as_slice() {
        [key] => Some(key),
        [] => {
            let hint = format!("set one of `{}`", keys.join("`, `"));
            fields.map_field().reject("is incomplete", hint);
            None
        }
        several_keys => {
            let problem = format!("has `{}` together", several_keys.join("` and `"));
            fields.map_field().reject(problem, "keep one of them");
            None
        }
    }
}

/// The keys of a path condition.
const PATH_KEYS: &[&str] = &["exact", "prefix", "regex"];
/// The operators on a header, parameter or tag.
const OPERATORS: &[&str] =
    &["exact", "prefix", "regex", "in", "not", "above", "atLeast", "below", "atMost", "present"];
/// Maximum number of conditions, methods or texts in a list or map.
const MAX_LIST_LENGTH: usize = 256;
