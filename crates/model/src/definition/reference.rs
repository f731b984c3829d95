//! The rows of a reference page: each field of a type with its values, its default and its meaning.

use std::fmt::Write as _;
use std::time::Duration;

use super::{FieldDefault, FieldSchema, MapSchema, Schema};

/// One field, as a reference page shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldReference {
    /// The path, such as `spec.failureRate.percent`; `[]` marks the elements of a list.
    pub path: String,
    /// The valid values, such as `number, 1 to 100`.
    pub values: String,
    /// The value of the absent field; empty if there is none.
    pub default: String,
    /// The meaning.
    pub description: &'static str,
}

/// Returns the fields of a map and of the maps below it. `path` is the path of the map, such as `spec`.
#[must_use]
pub fn field_references(path: &str, schema: &MapSchema) -> Vec<FieldReference> {
    schema.all_fields().into_iter().flat_map(|field| references_of(path, field)).collect()
}

fn references_of(parent_path: &str, field: &'static FieldSchema) -> Vec<FieldReference> {
    let mut path = format!("{parent_path}.{}", field.name);
    let mut schema = &field.schema;
    if let Schema::List { element, .. } = schema {
        path.push_str("[]");
        schema = element;
    }
    let own = FieldReference {
        path: path.clone(),
        values: describe_values(&field.schema),
        default: match field.default {
            FieldDefault::Required => "required".to_owned(),
            FieldDefault::Literal("") => "empty".to_owned(),
            FieldDefault::Literal(literal) => format!("`{literal}`"),
            FieldDefault::Absent(meaning) => meaning.to_owned(),
        },
        description: field.description,
    };
    let below = match schema {
        Schema::Map(map) => field_references(&path, map),
        _ => Vec::new(),
    };
    [vec![own], below].concat()
}

/// Describes the values that match a schema.
fn describe_values(schema: &Schema) -> String {
    match schema {
        Schema::Boolean => "`true` or `false`".to_owned(),
        Schema::Integer { min, max } => format!("number, {min} to {max}"),
        Schema::Duration { min, max } => {
            format!("duration, `{}` to `{}`", format_duration(*min), format_duration(*max))
        }
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
        Schema::Map(_) => "map".to_owned(),
    }
}

/// Returns the table of a reference page in Markdown.
#[must_use]
pub fn reference_table(fields: &[FieldReference]) -> String {
    let mut table = "| field | values | default | description |\n|---|---|---|---|\n".to_owned();
    for FieldReference { path, values, default, description } in fields {
        let default = if default.is_empty() { "–" } else { default };
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
    let largest_unit = units
        .into_iter()
        .find(|(length, _)| milliseconds >= *length && milliseconds.is_multiple_of(*length));
    let (length, symbol) = largest_unit.unwrap_or((1, "ms"));
    format!("{}{symbol}", milliseconds / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_largest_unit_that_divides_them() {
        for (milliseconds, expected) in
            [(1, "1ms"), (1_500, "1500ms"), (5_000, "5s"), (60_000, "1m"), (604_800_000, "168h")]
        {
            assert_eq!(format_duration(Duration::from_millis(milliseconds)), expected);
        }
    }
}
