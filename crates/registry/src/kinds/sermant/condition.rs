//! Reads Sermant's match conditions, each with one operator. As in Sermant, `caseInsensitive: true` makes a
//! condition case-sensitive.

use leno_model::{FieldTest, NumberRelation, TextRelation, ValueTest};

use crate::document::NodeValue;
use crate::field::Field;

/// Reads a map from names to one condition or a list of conditions.
pub(super) fn read_conditions(field: &Field<'_>) -> Option<Vec<FieldTest>> {
    let mut tests = Vec::new();
    for (name, value) in field.read_entries()? {
        let conditions = match value.value() {
            NodeValue::List(_) => value.read_list(MAX_CONDITIONS)?,
            _ => vec![value],
        };
        for condition in conditions {
            let test = read_condition(&condition)?;
            tests.push(FieldTest { name: name.to_owned(), test });
        }
    }
    Some(tests)
}

/// Reads a map from header names to conditions. Header names are lower-case at run time, so the conditions of a name
/// with an upper-case letter never match.
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

/// Reads one condition: an operator with its operand, and optionally `caseInsensitive`.
fn read_condition(field: &Field<'_>) -> Option<ValueTest> {
    let mut is_case_sensitive = false;
    let mut operator = None;
    for (key, value) in field.read_entries()? {
        match key.to_ascii_lowercase().as_str() {
            "caseinsensitive" => is_case_sensitive = value.read_boolean()?,
            "type" => {}
            key => {
                if let Some((previous, _)) = operator.replace((key.to_owned(), value)) {
                    field.warn(
                        format!("has two operators; `{previous}` is ignored"),
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
    let read_text_with = |relation| read_text_test(&value, relation, !is_case_sensitive);
    let read_number_with = |relation| {
        // An operand that is not a 64-bit integer never matches.
        let bound = value.read_literal()?.parse().ok();
        Some(bound.map_or(ValueTest::Never, |bound| ValueTest::Number { relation, bound }))
    };
    match operator.as_str() {
        "exact" => read_text_with(TextRelation::Exact),
        "prefix" => read_text_with(TextRelation::Prefix),
        "regex" => read_regex_test(&value, !is_case_sensitive),
        "in" => read_text_with(TextRelation::In),
        "noequ" => read_text_with(TextRelation::NotEqual),
        "noless" => read_number_with(NumberRelation::AtLeast),
        "nogreater" => read_number_with(NumberRelation::AtMost),
        "greater" => read_number_with(NumberRelation::GreaterThan),
        "less" => read_number_with(NumberRelation::LessThan),
        unknown_operator => {
            value.reject(
                format!("`{unknown_operator}` is not an operator"),
                "use exact, regex, prefix, in, noEqu, noLess, noGreater, greater or less",
            );
            None
        }
    }
}

/// Reads the operand of an operator on texts. An empty list never matches.
fn read_text_test(
    value: &Field<'_>,
    relation: TextRelation,
    ignore_case: bool,
) -> Option<ValueTest> {
    let texts = match (relation, value.value()) {
        (TextRelation::In, NodeValue::List(_)) => {
            value.read_each(MAX_CONDITIONS, Field::read_literal)
        }
        _ => vec![value.read_literal()?],
    };
    Some(match texts.is_empty() {
        true => ValueTest::Never,
        false => ValueTest::Text { relation, texts, ignore_case },
    })
}

/// Reads a regular expression. To ignore case, Sermant lower-cases the expression and the value; the lower-case
/// form is checked here. An invalid expression never matches.
pub(super) fn read_regex_test(value: &Field<'_>, ignore_case: bool) -> Option<ValueTest> {
    let text = value.read_literal()?;
    let checked_text = if ignore_case { text.to_lowercase() } else { text.clone() };
    match check_regex(value, &checked_text)? {
        RegexValidity::Valid => {
            Some(ValueTest::Text { relation: TextRelation::Regex, texts: vec![text], ignore_case })
        }
        RegexValidity::NeverMatches => Some(ValueTest::Never),
    }
}

/// The result of checking a regular expression.
pub(super) enum RegexValidity {
    /// The expression is valid.
    Valid,
    /// The expression is invalid, and therefore never matches.
    NeverMatches,
}

/// Checks an expression. An expression that no engine accepts never matches; an expression that only Java's engine
/// accepts is rejected.
pub(super) fn check_regex(field: &Field<'_>, text: &str) -> Option<RegexValidity> {
    let Err(error) = leno_model::check_pattern(text) else {
        return Some(RegexValidity::Valid);
    };
    if MALFORMED_MESSAGES.iter().any(|message| error.contains(message)) {
        field.warn(
            format!("{text:?} is not a regular expression ({error}) and never matches"),
            "correct it",
        );
        return Some(RegexValidity::NeverMatches);
    }
    field.reject(
        format!("{text:?} cannot be used as Java would ({error})"),
        "write it in RE2 syntax, without look-around or back references",
    );
    None
}

/// Parts of the RE2 messages for errors that Java's engine reports as well.
const MALFORMED_MESSAGES: &[&str] = &[
    "unclosed",
    "unopened",
    "repetition operator missing expression",
    "invalid character class range",
    "incomplete escape",
];
/// Maximum number of conditions per name.
const MAX_CONDITIONS: usize = 1024;
