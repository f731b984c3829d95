//! Reader of the conditions on requests and callers in a `TagRoute` or `Lane`.

use leno_model::{FieldTest, NumberRelation, PathMatch, TagMatch, TextRelation, ValueTest};

use super::http_route::{header_name, normalize_prefix};
use super::literal_path::literal_path;
use crate::document::NodeValue;
use crate::field::{Field, MapFields};

/// Reads `match`. A request must meet all of its conditions.
pub(super) fn read_match(field: &Field<'_>) -> Option<TagMatch> {
    let fields = field.read_fields(&["path", "methods", "headers", "queryParams", "cookies"])?;
    let path = match fields.find("path") {
        Some(path) => read_path(path),
        None => Some(PathMatch::Any),
    };
    let headers = fields.find("headers").map(read_headers);
    let tests = |key: &str| fields.find(key).map(read_tests).unwrap_or_default();
    Some(TagMatch {
        path: path?,
        methods: fields.read_each("methods", MAX_LIST, read_method),
        headers: headers.unwrap_or_default(),
        query: tests("queryParams"),
        cookies: tests("cookies"),
        ..TagMatch::default()
    })
}

fn read_path(field: &Field<'_>) -> Option<PathMatch> {
    let fields = field.read_fields(PATH_KEYS)?;
    let key = exactly_one_key(&fields, PATH_KEYS)?;
    let value = fields.find(key)?;
    match key {
        "exact" => literal_path(value).map(PathMatch::Exact),
        "prefix" => literal_path(value).map(normalize_prefix),
        _ => value.read_regex().map(PathMatch::Regex),
    }
}

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

/// Reads header conditions with lower-case names.
fn read_headers(field: &Field<'_>) -> Vec<FieldTest> {
    let mut tests = read_tests(field);
    let mut seen_names: Vec<String> = Vec::new();
    for test in &mut tests {
        let Some(name) = header_name(field, &test.name) else { continue };
        if seen_names.contains(&name) {
            field.reject(format!("{name} is defined twice"), "remove one of the two");
        }
        seen_names.push(name.clone());
        test.name = name;
    }
    tests
}

/// Reads a map from names to conditions.
pub(super) fn read_tests(field: &Field<'_>) -> Vec<FieldTest> {
    let entries = field.read_entries().unwrap_or_default();
    if entries.len() > MAX_LIST {
        field.reject(format!("has {} entries", entries.len()), format!("use at most {MAX_LIST}"));
        return Vec::new();
    }
    let test = |(name, value): (&str, Field<'_>)| {
        Some(FieldTest { name: name.to_owned(), test: read_test(&value)? })
    };
    entries.into_iter().filter_map(test).collect()
}

/// Reads one operator with its operand; a plain text means `exact`.
fn read_test(field: &Field<'_>) -> Option<ValueTest> {
    if let NodeValue::Text(text) = field.value() {
        let texts = vec![text.clone()];
        return Some(ValueTest::Text { relation: TextRelation::Exact, texts, ignore_case: false });
    }
    let supported: Vec<&str> = OPERATORS.iter().copied().chain(["ignoreCase"]).collect();
    let fields = field.read_fields(&supported)?;
    let key = exactly_one_key(&fields, OPERATORS)?;
    let value = fields.find(key)?;
    let ignore_case = match fields.find("ignoreCase") {
        Some(field) => field.read_boolean()?,
        None => false,
    };
    let text = |relation| {
        let texts = match relation {
            TextRelation::In => {
                value.read_each(MAX_LIST, |text| Some(text.read_text()?.to_owned()))
            }
            TextRelation::Regex if ignore_case => vec![format!("(?i:{})", value.read_regex()?)],
            TextRelation::Regex => vec![value.read_regex()?],
            _ => vec![value.read_text()?.to_owned()],
        };
        if texts.is_empty() {
            value.reject("is empty, and matches no request", "list at least one text");
            return None;
        }
        let ignore_case = ignore_case && relation != TextRelation::Regex;
        Some(ValueTest::Text { relation, texts, ignore_case })
    };
    let number = |relation| {
        if let Some(field) = fields.find("ignoreCase") {
            field.reject("is not supported for numbers", "remove it");
            return None;
        }
        Some(ValueTest::Number { relation, bound: value.read_integer()? })
    };
    match key {
        "exact" => text(TextRelation::Exact),
        "prefix" => text(TextRelation::Prefix),
        "regex" => text(TextRelation::Regex),
        "in" => text(TextRelation::In),
        "not" => text(TextRelation::Not),
        "above" => number(NumberRelation::Above),
        "atLeast" => number(NumberRelation::AtLeast),
        "below" => number(NumberRelation::Below),
        "atMost" => number(NumberRelation::AtMost),
        _ => Some(if value.read_boolean()? { ValueTest::Present } else { ValueTest::Absent }),
    }
}

/// Returns the key of `keys` that is present. Rejects the map if none or several are.
pub(super) fn exactly_one_key<'k>(fields: &MapFields<'_>, keys: &[&'k str]) -> Option<&'k str> {
    let present: Vec<&str> =
        keys.iter().copied().filter(|key| fields.find(key).is_some()).collect();
    match present.as_slice() {
        [key] => Some(key),
        [] => {
            let hint = format!("set one of `{}`", keys.join("`, `"));
            fields.map_field().reject("is incomplete", hint);
            None
        }
        several => {
            let problem = format!("has `{}` together", several.join("` and `"));
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
/// Limit of conditions, methods or texts per match.
const MAX_LIST: usize = 256;
