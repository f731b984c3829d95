//! Reads a value by the schema of its type, and builds the type from it. Every problem has the position of its field and a
//! hint.
//!
//! A value that does not match its schema is [`ManifestValue::Invalid`], and reading goes on, so that all problems of a
//! manifest are reported at once.

use std::ops::RangeInclusive;

use leno_model::Name;
use leno_model::definition::{
    Definition, FieldDefault, FieldSchema, ManifestBuilder, ManifestValue, MapRule, MapSchema,
    Member, PathStep, Remedy, Schema, TextForm, TextProblem, TextSchema, Violation,
};

use crate::document::NodeValue;
use crate::duration::{parse_duration, read_duration_within};
use crate::field::{Field, MapFields};
use crate::hint::{MapEntries, Replacement};
use crate::percentage::{parse_percentage, read_percentage};
use crate::suggest::{join_with_and, join_with_or};

/// Reads a type in a manifest of this namespace.
pub(crate) fn read_definition<T: Definition>(field: &Field<'_>, namespace: &Name) -> Option<T> {
    build(read_value(field, &T::SCHEMA), field, namespace)
}

/// Reads a type from some of the fields of a map.
pub(crate) fn read_included<T: Definition>(fields: &MapFields<'_>, namespace: &Name) -> Option<T> {
    let value = read_members(fields, T::SCHEMA.map_schema());
    build(value, fields.map_field(), namespace)
}

/// Builds a type from a value of the field, and records all violations at their fields.
fn build<T: Definition>(value: ManifestValue, field: &Field<'_>, namespace: &Name) -> Option<T> {
    let mut builder = ManifestBuilder::new(namespace).in_directory(field.directory());
    let built = T::build(value, &mut builder);
    let (violations, warnings) = builder.into_violations_and_warnings();
    for Violation { path, problem, quoted, hint, replacement } in violations {
        let field = descend(field, &path);
        let problem = match quoted {
            Some(form) => format!("{} {problem}", quote(&field, form)),
            None => problem,
        };
        match replacement {
            Some(word) => {
                field.reject_with_replacement(problem, hint, Replacement::Text(word));
            }
            None => field.reject(problem, hint),
        }
    }
    for warning in warnings {
        descend(field, &warning.path).warn(warning.problem, warning.hint);
    }
    built
}

/// Returns the field at a path below `field`. An absent field has the position of the map.
fn descend<'a>(field: &Field<'a>, path: &[PathStep]) -> Field<'a> {
    path.iter().fold(field.clone(), |field, step| match step {
        PathStep::Key(key) => field.child(key).unwrap_or_else(|| field.absent_child(key)),
        PathStep::Index(index) => field.element(*index).unwrap_or(field),
    })
}

/// Reads a value by its schema.
fn read_value(field: &Field<'_>, schema: &Schema) -> ManifestValue {
    let value = match schema {
        Schema::Boolean => field.read_boolean().map(ManifestValue::Boolean),
        Schema::Integer { min: i64::MIN, max: i64::MAX } => {
            field.read_integer().map(ManifestValue::Integer)
        }
        Schema::Integer { min, max } => {
            field.read_integer_within(*min, *max).map(ManifestValue::Integer)
        }
        Schema::Percentage => {
            read_percentage(field).map(|share_ppm| ManifestValue::Integer(share_ppm.into()))
        }
        Schema::Duration { min, max } => {
            read_duration_within(field, *min, *max).map(ManifestValue::Duration)
        }
        Schema::Text(text) => read_text(field, text).map(ManifestValue::Text),
        Schema::Choice(words) => {
            let choices: Vec<(&'static str, usize)> = words.iter().copied().zip(0..).collect();
            field.read_choice(&choices).map(ManifestValue::Choice)
        }
        Schema::List { element, min, max, unique } => field.read_list(*max).map(|elements| {
            if elements.len() < *min {
                field.reject("is empty", "add an element");
            }
            let values: Vec<ManifestValue> =
                elements.iter().map(|field| read_value(field, element)).collect();
            if *unique {
                reject_duplicates(&elements, &values);
            }
            ManifestValue::List(values)
        }),
        Schema::Map(schema) => read_map(field, schema),
        Schema::Entries { key, value, min, max } => {
            read_entries(field, key, value, *min..=*max).map(ManifestValue::Entries)
        }
        Schema::Any => Some(ManifestValue::Any),
        Schema::Either { scalar, collection } => {
            let schema = match field.value() {
                NodeValue::Map(_) | NodeValue::List(_) => collection,
                _ => scalar,
            };
            Some(read_value(field, schema))
        }
    };
    value.unwrap_or(ManifestValue::Invalid)
}

/// Reads a map with fixed keys.
fn read_map(field: &Field<'_>, schema: &'static MapSchema) -> Option<ManifestValue> {
    let text_problem = schema.text_problem.zip(field.plain_text());
    if let Some(problem) = text_problem.and_then(|(text_problem, text)| text_problem(text)) {
        reject_with_remedy(field, problem.problem, problem.remedy);
        return None;
    }
    let keys: Vec<&'static str> = schema.all_fields().iter().map(|field| field.name).collect();
    let fields = field.read_fields_with_examples(&keys, &example_maps(schema))?;
    Some(read_members(&fields, schema))
}

/// Returns the maps that are proposed in place of a scalar, by the example of the schema. Another text field gets the scalar.
/// If there is none, the field of the example gets it, or the example is the whole map.
fn example_maps(schema: &'static MapSchema) -> Vec<MapEntries> {
    let Some((name, value)) = schema.example else { return Vec::new() };
    let with_scalar = |field: &'static FieldSchema| {
        let is_other_text = field.name != name && matches!(field.schema, Schema::Text(_));
        is_other_text.then(|| vec![(name, Some(value)), (field.name, None)])
    };
    let maps: Vec<MapEntries> = schema.all_fields().into_iter().filter_map(with_scalar).collect();
    match maps.is_empty() {
        true => vec![vec![(name, None)], vec![(name, Some(value))]],
        false => maps,
    }
}

/// Reads a text that passes the check of its schema.
pub(crate) fn read_text(field: &Field<'_>, schema: &TextSchema) -> Option<String> {
    let text = match schema.form {
        TextForm::Literal => field.read_literal()?,
        TextForm::Plain | TextForm::Url | TextForm::Regex => field.read_text()?.to_owned(),
    };
    check_text(&text, schema, field, &quote(field, schema.form)).then_some(text)
}

/// Returns the text of a field as quoted in messages.
fn quote(field: &Field<'_>, form: TextForm) -> String {
    match form {
        TextForm::Url => field.quoted_url(),
        TextForm::Plain | TextForm::Literal | TextForm::Regex => field.quoted_value(),
    }
}

/// True if a text of a field matches its schema. Otherwise the field is rejected; `quoted` is the text in the message.
pub(crate) fn check_text(text: &str, schema: &TextSchema, field: &Field<'_>, quoted: &str) -> bool {
    let Err(TextProblem { problem, remedy }) = schema.validate(text) else { return true };
    reject_with_remedy(field, format!("{quoted} {problem}"), remedy);
    false
}

/// Rejects a field with a remedy.
fn reject_with_remedy(field: &Field<'_>, problem: impl Into<String>, remedy: Remedy) {
    match remedy {
        Remedy::Hint(hint) => field.reject(problem, hint),
        Remedy::Replacement(word) => field.propose_word(problem, &word),
    }
}

/// Reads the entries of a map with any keys. Their number is within `bounds`.
fn read_entries(
    field: &Field<'_>,
    key_schema: &TextSchema,
    value_schema: &Schema,
    bounds: RangeInclusive<usize>,
) -> Option<Vec<(String, ManifestValue)>> {
    let entries = field.read_entries()?;
    if entries.len() < *bounds.start() {
        field.reject("is empty", "add an entry");
        return None;
    }
    if entries.len() > *bounds.end() {
        let hint = format!("use at most {}", bounds.end());
        field.reject(format!("has {} entries", entries.len()), hint);
        return None;
    }
    let read_entry = |(key, value): (&str, Field<'_>)| {
        let is_valid_key = check_text(key, key_schema, &value, &format!("{key:?}"));
        let value = read_value(&value, value_schema);
        (key.to_owned(), if is_valid_key { value } else { ManifestValue::Invalid })
    };
    Some(entries.into_iter().map(read_entry).collect())
}

/// Rejects elements that equal an earlier element.
fn reject_duplicates(elements: &[Field<'_>], values: &[ManifestValue]) {
    for (index, (field, value)) in elements.iter().zip(values).enumerate() {
        if *value != ManifestValue::Invalid && values.iter().take(index).any(|other| other == value)
        {
            field.reject("is listed twice", "remove one of the two");
        }
    }
}

/// Reads the values of the members of a map, in the order of the schema, and checks the rules about several fields.
fn read_members(fields: &MapFields<'_>, schema: &MapSchema) -> ManifestValue {
    schema.rules.iter().for_each(|rule| check_rule(fields, rule));
    let values = schema.members.iter().map(|member| match member {
        Member::Field(field) => read_field(fields, field),
        Member::Included(included) => read_members(fields, included),
    });
    ManifestValue::Map(values.collect())
}

fn read_field(fields: &MapFields<'_>, schema: &FieldSchema) -> ManifestValue {
    match (fields.find(schema.name), schema.default) {
        (Some(field), default) => match (&schema.schema, default) {
            // An empty list could mean both no element and, like an absent one, every element.
            (
                Schema::List { min: 1, .. } | Schema::Entries { min: 1, .. },
                FieldDefault::Absent(meaning),
            ) if !meaning.is_empty() && is_empty(field) => {
                let hint = format!("add an element, or omit it for {meaning}");
                field.reject("is empty, which is ambiguous", hint);
                ManifestValue::Invalid
            }
            (schema, _) => read_value(field, schema),
        },
        (None, FieldDefault::Required) => {
            fields.require(schema.name);
            ManifestValue::Invalid
        }
        // A test excludes defaults that do not match their schema.
        (None, FieldDefault::Literal(literal)) => {
            parse_literal(literal, &schema.schema).unwrap_or(ManifestValue::Invalid)
        }
        (None, FieldDefault::Absent(_)) => ManifestValue::Absent,
    }
}

/// True for a list or map without elements.
fn is_empty(field: &Field<'_>) -> bool {
    match field.value() {
        NodeValue::List(list) => list.is_empty(),
        NodeValue::Map(map) => map.is_empty(),
        _ => false,
    }
}

/// Parses a default. `None` if it does not match the schema. Lists and maps have no default.
fn parse_literal(literal: &str, schema: &Schema) -> Option<ManifestValue> {
    match schema {
        Schema::Boolean => literal.parse().ok().map(ManifestValue::Boolean),
        Schema::Integer { min, max } => {
            let number = literal.parse().ok().filter(|number| (min..=max).contains(&number));
            number.map(ManifestValue::Integer)
        }
        Schema::Percentage => {
            parse_percentage(literal).map(|share_ppm| ManifestValue::Integer(share_ppm.into()))
        }
        Schema::Duration { min, max } => {
            let duration =
                parse_duration(literal).filter(|duration| (min..=max).contains(&duration));
            duration.map(ManifestValue::Duration)
        }
        Schema::Text(text) => {
            text.validate(literal).ok().map(|()| ManifestValue::Text(literal.to_owned()))
        }
        Schema::Choice(words) => {
            words.iter().position(|word| *word == literal).map(ManifestValue::Choice)
        }
        Schema::Either { scalar, .. } => parse_literal(literal, scalar),
        Schema::Any | Schema::List { .. } | Schema::Map(_) | Schema::Entries { .. } => None,
    }
}

/// Checks a rule about several fields.
fn check_rule(fields: &MapFields<'_>, rule: &MapRule) {
    match rule {
        MapRule::ExactlyOne { fields: keys, noun } => {
            require_exactly_one(fields, keys, noun);
        }
        // `Definition::build` checks it.
        MapRule::Cel { .. } => {}
    }
}

/// Returns the only key of `keys` that is present. Rejects the map if none or several are present.
pub(crate) fn require_exactly_one<'k>(
    fields: &MapFields<'_>,
    keys: &[&'k str],
    noun: &str,
) -> Option<&'k str> {
    let present: Vec<&str> =
        keys.iter().copied().filter(|key| fields.find(key).is_some()).collect();
    let (problem, hint) = match present.as_slice() {
        [key] => return Some(key),
        [] => (format!("has no {noun}"), format!("add {}", join_with_or(keys))),
        several => {
            (format!("has {} together", join_with_and(several)), "keep one of them".to_owned())
        }
    };
    fields.map_field().reject(problem, hint);
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use leno_model::KIND_DEFINITIONS;

    use super::*;
    use crate::served_kinds;

    /// Checks the fields of a map and of the maps below it.
    fn check_fields(path: &str, schema: &MapSchema) {
        for field in schema.all_fields() {
            let path = format!("{path}.{}", field.name);
            assert!(field.description.ends_with('.'), "{path}: the description is no sentence");
            assert!(!field.description.contains("[`"), "{path}: the description has a link");
            if let FieldDefault::Literal(literal) = field.default {
                let value = parse_literal(literal, &field.schema);
                assert!(value.is_some(), "{path}: {literal:?} is no default");
            }
            check_below(&path, &field.schema);
        }
    }

    fn check_below(path: &str, schema: &Schema) {
        match schema {
            Schema::List { element: below, .. }
            | Schema::Entries { value: below, .. }
            | Schema::Either { collection: below, .. } => check_below(path, below),
            Schema::Map(map) => check_fields(path, map),
            _ => {}
        }
    }

    #[test]
    fn every_kind_of_leno_has_a_definition() {
        let own_kinds = KIND_DEFINITIONS.iter().filter(|definition| definition.is_own());
        let defined: BTreeSet<&str> = own_kinds.map(|definition| definition.kind).collect();
        let served_kinds = served_kinds().into_iter().filter(|served| served.group == "leno.dev");
        let served: BTreeSet<&str> = served_kinds.map(|served| served.kind).collect();
        assert_eq!(defined, served);
    }

    #[test]
    fn every_field_has_a_description_and_a_valid_default() {
        for definition in KIND_DEFINITIONS {
            check_fields(definition.kind, definition.spec);
        }
    }
}
