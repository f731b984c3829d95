//! The rows of a reference page: each field of a type with its values, its default and its meaning.

use std::fmt::Write as _;
use std::time::Duration;

use super::{FieldDefault, FieldSchema, MapRule, MapSchema, Schema, TextForm, TextSchema};

/// One field, as a reference page shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldReference {
    /// The path, such as `spec.failureRate.percent`; `[]` marks the elements of a list, and `NAME` any key of a map.
    pub path: String,
    /// The valid values, such as `number, 1 to 100`.
    pub values: String,
    /// The value or the meaning of an absent field; `None` if there is none, or if the field is required.
    pub default: Option<String>,
    /// True if an absent field is rejected.
    pub is_required: bool,
    /// The meaning.
    pub description: &'static str,
}

impl FieldReference {
    /// Describes a field of the map at a path such as `spec`.
    #[must_use]
    pub fn new(parent_path: &str, field: &FieldSchema) -> Self {
        let default = match field.default {
            FieldDefault::Required | FieldDefault::Absent("") => None,
            FieldDefault::Literal("") => Some("empty".to_owned()),
            FieldDefault::Literal(literal) => Some(format!("`{literal}`")),
            FieldDefault::Absent(meaning) => Some(meaning.to_owned()),
        };
        Self {
            path: format!("{parent_path}.{}{}", field.name, innermost(&field.schema).1),
            values: describe_values(&field.schema),
            default,
            is_required: field.default == FieldDefault::Required,
            description: field.description,
        }
    }
}

impl FieldSchema {
    /// Returns the schema of the map in the field: its value, or the elements of its lists and of its maps with any keys.
    #[must_use]
    pub fn map_below(&self) -> Option<&'static MapSchema> {
        match innermost(&self.schema).0 {
            Schema::Map(map) => Some(*map),
            _ => None,
        }
    }
}

/// Returns the fields of a map and of the maps below it. `path` is the path of the map, such as `spec`. A map with the same
/// fields as a previous one refers to it.
#[must_use]
pub fn field_references(path: &str, schema: &MapSchema) -> Vec<FieldReference> {
    references_below(path, schema, &mut Vec::new())
}

/// A map that a page describes.
struct DescribedMap {
    path: String,
    /// The fields, with paths that start from the map.
    fields: Vec<FieldReference>,
}

/// Returns the fields of a map and of the maps below it. `described_maps` are the previous maps.
fn references_below(
    path: &str,
    schema: &MapSchema,
    described_maps: &mut Vec<DescribedMap>,
) -> Vec<FieldReference> {
    let fields = schema.all_fields().into_iter();
    fields.flat_map(|field| references_of(path, field, described_maps)).collect()
}

fn references_of(
    parent_path: &str,
    field: &'static FieldSchema,
    described_maps: &mut Vec<DescribedMap>,
) -> Vec<FieldReference> {
    let mut own = FieldReference::new(parent_path, field);
    let Some(map) = field.map_below() else { return vec![own] };
    let fields = field_references("", map);
    let previous = described_maps.iter().find(|previous| previous.fields == fields);
    if let Some(previous) = previous.filter(|_| fields.len() >= MIN_REFERRED_FIELDS) {
        own.values = format!("{} as in `{}`", describe_values(&field.schema), previous.path);
        return vec![own];
    }
    let path = own.path.clone();
    described_maps.push(DescribedMap { path: path.clone(), fields });
    let below = references_below(&path, map, described_maps);
    [vec![own], below].concat()
}

/// Returns the schema of the innermost elements of lists and maps with any keys, and the suffix of their path.
fn innermost(mut schema: &Schema) -> (&Schema, String) {
    let mut suffix = String::new();
    loop {
        match schema {
            Schema::List { element, .. } => {
                suffix.push_str("[]");
                schema = element;
            }
            Schema::Entries { value, .. } => {
                suffix.push_str(".NAME");
                schema = value;
            }
            // A scalar may take the place of the list.
            Schema::Either { collection: Schema::List { element, .. }, .. } => schema = element,
            Schema::Either { collection, .. } => schema = collection,
            _ => return (schema, suffix),
        }
    }
}

/// Minimum number of fields of a map that refers to a previous one with the same fields.
const MIN_REFERRED_FIELDS: usize = 3;

/// Describes the values that match a schema.
fn describe_values(schema: &Schema) -> String {
    match schema {
        Schema::Boolean => "`true` or `false`".to_owned(),
        Schema::Integer { min: i64::MIN, max: i64::MAX } => "64-bit integer".to_owned(),
        Schema::Integer { min, max } => format!("number, {min} to {max}"),
        Schema::Duration { min, max } => {
            format!("duration, `{}` to `{}`", format_duration(*min), format_duration(*max))
        }
        Schema::Percentage => "percentage above 0, up to 100".to_owned(),
        Schema::Text(TextSchema { form: TextForm::Url, .. }) => "URL".to_owned(),
        Schema::Text(TextSchema { form: TextForm::Regex, .. }) => "regular expression".to_owned(),
        Schema::Text(_) => "text".to_owned(),
        Schema::Choice(choices) => {
            let words: Vec<String> = choices.iter().map(|word| format!("`{word}`")).collect();
            words.join(", ")
        }
        Schema::List { element, min: 0, max, .. } => {
            format!("list of at most {max}: {}", describe_values(element))
        }
        Schema::List { element, min, max, .. } => {
            format!("list of {min} to {max}: {}", describe_values(element))
        }
        Schema::Map(map) => match map.all_rules().into_iter().find_map(MapRule::alternatives) {
            Some(keys) => format!("map with exactly one of `{}`", keys.join("`, `")),
            None => "map".to_owned(),
        },
        Schema::Entries { value, min: 0, max, .. } => {
            format!("map of at most {max} names: {}", describe_values(value))
        }
        Schema::Entries { value, min, max, .. } => {
            format!("map of {min} to {max} names: {}", describe_values(value))
        }
        Schema::Any => "any".to_owned(),
        Schema::Either { scalar, collection } => {
            format!("{}; or {}", describe_values(scalar), describe_values(collection))
        }
    }
}

/// Returns the table of a reference page in Markdown.
#[must_use]
pub fn reference_table(fields: &[FieldReference]) -> String {
    let mut table = "| field | values | default | description |\n|---|---|---|---|\n".to_owned();
    for FieldReference { path, values, default, is_required, description } in fields {
        let default = match (default, is_required) {
            (_, true) => "required",
            (Some(default), false) => default,
            (None, false) => "–",
        };
        // A vertical bar would begin another cell.
        let description = description.replace('|', "\\|");
        writeln!(table, "| `{path}` | {values} | {default} | {description} |")
            .expect("writing to a String never fails");
    }
    table
}

/// Formats a duration as in manifests, in the largest unit that divides it.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    if duration.is_zero() {
        return "0s".to_owned();
    }
    let largest_unit = units
        .into_iter()
        .find(|(length, _)| milliseconds >= *length && milliseconds.is_multiple_of(*length));
    let (length, symbol) = largest_unit.unwrap_or((1, "ms"));
    format!("{}{symbol}", milliseconds / length)
}

#[cfg(test)]
mod tests {
    use super::super::Member;
    use super::*;

    #[test]
    fn a_map_with_the_fields_of_a_previous_one_refers_to_it() {
        const fn field(name: &'static str, schema: Schema) -> Member {
            let default = FieldDefault::Required;
            Member::Field(FieldSchema { name, description: "Description.", schema, default })
        }
        const SPLIT: MapSchema = MapSchema {
            members: &[
                field("a", Schema::Boolean),
                field("b", Schema::Boolean),
                field("c", Schema::Boolean),
            ],
            rules: &[],
            example: None,
            text_problem: None,
        };
        const SPEC: MapSchema = MapSchema {
            members: &[
                field("split", Schema::Map(&SPLIT)),
                field(
                    "fallback",
                    Schema::List { element: &Schema::Map(&SPLIT), min: 0, max: 4, unique: false },
                ),
            ],
            rules: &[],
            example: None,
            text_problem: None,
        };
        let fields = field_references("spec", &SPEC);
        let rows: Vec<(&str, &str)> =
            fields.iter().map(|field| (field.path.as_str(), field.values.as_str())).collect();
        let boolean = "`true` or `false`";
        assert_eq!(
            rows,
            [
                ("spec.split", "map"),
                ("spec.split.a", boolean),
                ("spec.split.b", boolean),
                ("spec.split.c", boolean),
                ("spec.fallback[]", "list of at most 4: map as in `spec.split`"),
            ]
        );
    }

    #[test]
    fn durations_have_the_largest_unit_that_divides_them() {
        for (milliseconds, expected) in [
            (0, "0s"),
            (1, "1ms"),
            (1_500, "1500ms"),
            (5_000, "5s"),
            (60_000, "1m"),
            (604_800_000, "168h"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(milliseconds)), expected);
        }
    }
}
