//! Reader of Sermant's match conditions: one operator each, with an inverted case flag.

use leno_model::{FieldTest, NumberRelation, TextRelation, ValueTest};

use crate::field::Field;
use crate::pattern;

/// Reads a map from names to one condition or a list of conditions.
pub(super) fn read_conditions(field: &Field<'_>) -> Option<Vec<FieldTest>> {
    let mut tests = Vec::new();
    for (name, value) in field.read_entries()? {
        let conditions = match value.value() {
            crate::document::NodeValue::List(_) => value.read_list(CONDITIONS_MAX)?,
            _ => vec![value],
        };
        for condition in conditions {
            let test = read_condition(&condition)?;
            tests.push(FieldTest { name: name.to_owned(), test });
        }
    }
    Some(tests)
}

/// As [`read_conditions`], for headers: their names arrive in lower case and are compared as they are.
pub(super) fn read_headers(field: &Field<'_>) -> Option<Vec<FieldTest>> {
    let mut tests = read_conditions(field)?;
    for test in &mut tests {
        if test.name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            field.warn(
                format!("{:?} matches no header: header names are lower-case", test.name),
                "write the name in lower case",
            );
            test.name.make_ascii_lowercase();
            test.test = ValueTest::Never;
        }
    }
    Some(tests)
}

fn read_condition(field: &Field<'_>) -> Option<ValueTest> {
    let mut as_is = false;
    let mut operator = None;
    for (key, value) in field.read_entries()? {
        match key.to_ascii_lowercase().as_str() {
            "caseinsensitive" => as_is = value.read_boolean()?,
            "type" => {}
            key => {
                if let Some((before, _)) = operator.replace((key.to_owned(), value)) {
                    field.warn(
                        format!("has two operators; `{before}` is ignored"),
                        "keep one; write a list of conditions for several",
                    );
                }
            }
        }
    }
    let Some((operator, value)) = operator else {
        field.reject("has no operator", "use one such as `exact`");
        return None;
    };
    let text = |relation| text_test(&value, relation, !as_is);
    let number = |relation| {
        // A value that is not a 64-bit integer does not match.
        let bound = value.read_literal()?.parse().ok();
        Some(bound.map_or(ValueTest::Never, |bound| ValueTest::Number { relation, bound }))
    };
    match operator.as_str() {
        "exact" => text(TextRelation::Exact),
        "prefix" => text(TextRelation::Prefix),
        "regex" => regex_test(&value, !as_is),
        "in" => text(TextRelation::In),
        "noequ" => text(TextRelation::Not),
        "noless" => number(NumberRelation::AtLeast),
        "nogreater" => number(NumberRelation::AtMost),
        "greater" => number(NumberRelation::Above),
        "less" => number(NumberRelation::Below),
        other => {
            value.reject(
                format!("`{other}` is not an operator"),
                "use exact, regex, prefix, in, noEqu, noLess, noGreater, greater or less",
            );
            None
        }
    }
}

fn text_test(value: &Field<'_>, relation: TextRelation, ignore_case: bool) -> Option<ValueTest> {
    let texts = match (relation, value.value()) {
        (TextRelation::In, crate::document::NodeValue::List(_)) => {
            value.read_each(CONDITIONS_MAX, Field::read_literal)
        }
        _ => vec![value.read_literal()?],
    };
    Some(match texts.is_empty() {
        true => ValueTest::Never,
        false => ValueTest::Text { relation, texts, ignore_case },
    })
}

/// Lower-cases the expression like the value. An invalid expression never matches.
pub(super) fn regex_test(value: &Field<'_>, ignore_case: bool) -> Option<ValueTest> {
    let text = value.read_literal()?;
    let used = if ignore_case { text.to_lowercase() } else { text.clone() };
    match check_expression(value, &used)? {
        Matchability::Yes => {
            Some(ValueTest::Text { relation: TextRelation::Regex, texts: vec![text], ignore_case })
        }
        Matchability::Never => Some(ValueTest::Never),
    }
}

/// Indicates whether an expression can match.
pub(super) enum Matchability {
    Yes,
    Never,
}

/// An expression that no engine accepts never matches; one that only other engines accept is rejected.
pub(super) fn check_expression(field: &Field<'_>, text: &str) -> Option<Matchability> {
    let Err(reason) = pattern::check_pattern(text) else {
        return Some(Matchability::Yes);
    };
    if MALFORMED.iter().any(|words| reason.contains(words)) {
        field.warn(
            format!("{text:?} is not a regular expression ({reason}) and never matches"),
            "correct it",
        );
        return Some(Matchability::Never);
    }
    field.reject(
        format!("{text:?} cannot be used as Java would ({reason})"),
        "write it in RE2 syntax, without look-around or back references",
    );
    None
}

/// Prefixes of errors that Java reports as well.
const MALFORMED: &[&str] = &[
    "unclosed",
    "unopened",
    "repetition operator missing expression",
    "invalid character class range",
    "incomplete escape",
];
const CONDITIONS_MAX: usize = 1024;
