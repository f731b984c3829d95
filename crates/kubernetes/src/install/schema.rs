//! Builds the OpenAPI schemas of the fields outside the `spec` of a kind, such as its status.

use serde_json::{Map, Value, json};

/// Returns the schema of a string of at most `max_characters`.
pub(super) fn text(max_characters: u32) -> Value {
    json!({"type": "string", "maxLength": max_characters})
}

/// Returns the schema of an enumeration.
pub(super) fn enumeration(values: &[&str]) -> Value {
    json!({"type": "string", "enum": values})
}

/// Returns the schema of a value of any type, which only the control plane validates.
pub(super) fn any_value() -> Value {
    json!({"x-kubernetes-preserve-unknown-fields": true})
}

/// Returns the schema of a list with at most `max_items` elements.
pub(super) fn list(element: Value, max_items: u32) -> Value {
    json!({"type": "array", "items": element, "maxItems": max_items})
}

/// Returns the schema of an object with these fields; `!` after a name marks a required field. The API server
/// keeps unknown fields, so that the control plane rejects the object: if they were dropped, a misspelled
/// condition would widen a rule.
pub(super) fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    with_keyword(pruned_object(fields), "x-kubernetes-preserve-unknown-fields", true.into())
}

/// Returns the schema of an object that the control plane writes: the API server drops unknown fields.
pub(super) fn pruned_object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (key, schema) in fields {
        let key = match key.strip_suffix('!') {
            Some(key) => {
                required.push(key);
                key
            }
            None => key,
        };
        properties.insert(key.to_owned(), schema);
    }
    let object = json!({"type": "object", "properties": properties});
    if required.is_empty() { object } else { with_keyword(object, "required", json!(required)) }
}

/// Adds a keyword to a schema.
pub(super) fn with_keyword(mut schema: Value, key: &str, value: Value) -> Value {
    schema[key] = value;
    schema
}

/// Adds a description to a schema, for `kubectl explain`.
pub(super) fn with_description(schema: Value, description: &str) -> Value {
    with_keyword(schema, "description", description.into())
}
