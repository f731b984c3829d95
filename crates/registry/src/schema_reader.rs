//! Reads a value by the schema of its type, and builds the type from it. Every problem has the position of its field and a
//! hint.
//!
//! A value that does not match its schema is [`ManifestValue::Invalid`], and reading goes on, so that all problems of a
//! manifest are reported at once.

use leno_model::Name;
use leno_model::definition::{
    Definition, FieldDefault, FieldSchema, ManifestBuilder, ManifestValue, MapRule, MapSchema,
    Member, PathStep, Remedy, Schema, TextProblem, TextSchema,
};

use crate::duration::{parse_duration, read_duration_within};
use crate::field::{Field, MapFields};
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
    let mut builder = ManifestBuilder::new(namespace);
    let built = T::build(value, &mut builder);
    for violation in builder.into_violations() {
        descend(field, &violation.path).reject(violation.problem, violation.hint);
    }
    built
}

/// Returns the field at a path below `field`, or the last one on the path that exists.
fn descend<'a>(field: &Field<'a>, path: &[PathStep]) -> Field<'a> {
    let child = |field: &Field<'a>, step: &PathStep| match step {
        PathStep::Key(key) => field.child(key),
        PathStep::Index(index) => field.element(*index),
    };
    let Some((step, below)) = path.split_first() else { return field.clone() };
    child(field, step).map_or_else(|| field.clone(), |field| descend(&field, below))
}

/// Reads a value by its schema.
fn read_value(field: &Field<'_>, schema: &Schema) -> ManifestValue {
    let value = match schema {
        Schema::Boolean => field.read_boolean().map(ManifestValue::Boolean),
        Schema::Integer { min, max } => field.read_number(*min, *max).map(ManifestValue::Integer),
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
        Schema::Map(schema) => {
            let keys: Vec<&'static str> =
                schema.all_fields().iter().map(|field| field.name).collect();
            field.read_fields(&keys).map(|fields| read_members(&fields, schema))
        }
    };
    value.unwrap_or(ManifestValue::Invalid)
}

/// Reads a text that passes the check of its schema.
pub(crate) fn read_text(field: &Field<'_>, schema: &TextSchema) -> Option<String> {
    let text = field.read_text()?;
    let Err(TextProblem { problem, remedy }) = (schema.check)(text) else {
        return Some(text.to_owned());
    };
    let problem = format!("{} {problem}", field.quoted_value());
    match remedy {
        Remedy::Hint(hint) => field.reject(problem, hint),
        Remedy::Replacement(word) => field.propose_word(problem, &word),
    }
    None
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
        (Some(field), _) => read_value(field, &schema.schema),
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

/// Parses a default. `None` if it does not match the schema. Lists and maps have no default.
fn parse_literal(literal: &str, schema: &Schema) -> Option<ManifestValue> {
    match schema {
        Schema::Boolean => literal.parse().ok().map(ManifestValue::Boolean),
        Schema::Integer { min, max } => {
            let number = literal.parse().ok().filter(|number| (min..=max).contains(&number));
            number.map(ManifestValue::Integer)
        }
        Schema::Duration { min, max } => {
            let duration =
                parse_duration(literal).filter(|duration| (min..=max).contains(&duration));
            duration.map(ManifestValue::Duration)
        }
        Schema::Text(text) => {
            (text.check)(literal).ok().map(|()| ManifestValue::Text(literal.to_owned()))
        }
        Schema::Choice(words) => {
            words.iter().position(|word| *word == literal).map(ManifestValue::Choice)
        }
        Schema::List { .. } | Schema::Map(_) => None,
    }
}

/// Checks a rule about several fields.
fn check_rule(fields: &MapFields<'_>, rule: &MapRule) {
    match rule {
        MapRule::ExactlyOne { fields: keys, noun } => {
            let present: Vec<&str> =
                keys.iter().copied().filter(|key| fields.find(key).is_some()).collect();
            match present.as_slice() {
                [_] => {}
                [] => fields
                    .map_field()
                    .reject(format!("has no {noun}"), format!("add {}", join_with_or(keys))),
                several => fields
                    .map_field()
                    .reject(format!("has {} together", join_with_and(several)), "keep one of them"),
            }
        }
        // `Definition::build` checks it.
        MapRule::Cel { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use leno_model::KIND_DEFINITIONS;

    use super::*;

    /// Checks the fields of a map and of the maps below it.
    fn check_fields(path: &str, schema: &MapSchema) {
        for field in schema.all_fields() {
            let path = format!("{path}.{}", field.name);
            assert!(field.description.ends_with('.'), "{path}: the description is no sentence");
            if let FieldDefault::Literal(literal) = field.default {
                let value = parse_literal(literal, &field.schema);
                assert!(value.is_some(), "{path}: {literal:?} is no default");
            }
            let element = match &field.schema {
                Schema::List { element, .. } => element,
                schema => schema,
            };
            if let Schema::Map(map) = element {
                check_fields(&path, map);
            }
        }
    }

    #[test]
    fn every_field_has_a_description_and_a_valid_default() {
        for definition in KIND_DEFINITIONS {
            check_fields(definition.kind, definition.spec);
        }
    }
}
