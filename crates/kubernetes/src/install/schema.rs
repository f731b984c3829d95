//! Builds the OpenAPI schemas of single values, from which the schemas of kinds are composed. Strings, lists and maps
//! have a maximum size, from which the API server estimates the cost of CEL rules.

use serde_json::{Map, Value, json};

/// Returns the schema of a string of at most `max_characters`.
pub(super) fn text(max_characters: u32) -> Value {
    json!({"type": "string", "maxLength": max_characters})
}

/// Returns the schema of a DNS-1123 label: the name of a service, a namespace or a port.
pub(super) fn dns_label() -> Value {
    json!({"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"})
}

/// Returns the schema of a DNS-1123 subdomain: a name of another kind of object.
pub(super) fn dns_subdomain() -> Value {
    json!({"type": "string", "maxLength": 253, "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"})
}

/// Returns the schema of a name in which `*` matches any characters.
pub(super) fn name_pattern() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 253, "pattern": "^[-a-z0-9.*]+$"})
}

/// Returns the schema of a duration in the form of the Gateway API.
pub(super) fn duration() -> Value {
    json!({"type": "string", "maxLength": 32, "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"})
}

/// Returns the schema of an enumeration.
pub(super) fn enumeration(values: &[&str]) -> Value {
    json!({"type": "string", "enum": values})
}

/// Returns the schema of a boolean.
pub(super) fn boolean() -> Value {
    json!({"type": "boolean"})
}

/// Returns the schema of an integer from `minimum` to `maximum`.
pub(super) fn integer(minimum: u32, maximum: u32) -> Value {
    json!({"type": "integer", "format": "int64", "minimum": minimum, "maximum": maximum})
}

/// Returns the schema of a port number.
pub(super) fn port() -> Value {
    integer(1, 65_535)
}

/// Returns the schema of a percentage above 0, optionally with decimals.
pub(super) fn percentage() -> Value {
    json!({"type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 100})
}

/// Returns the schema of a value of any type, which only the control plane validates.
pub(super) fn any_value() -> Value {
    json!({"x-kubernetes-preserve-unknown-fields": true})
}

/// Returns the schema of a list with at most `max_items` elements.
pub(super) fn list(element: Value, max_items: u32) -> Value {
    json!({"type": "array", "items": element, "maxItems": max_items})
}

/// Returns the schema of a list with 1 to `max_items` elements.
pub(super) fn non_empty_list(element: Value, max_items: u32) -> Value {
    with_keyword(list(element, max_items), "minItems", json!(1))
}

/// Returns the schema of a map from names to values.
pub(super) fn map(value: Value, max_entries: u32) -> Value {
    json!({"type": "object", "additionalProperties": value, "maxProperties": max_entries})
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

/// Adds validation rules (CEL) to a schema, each with the message of its rejection.
pub(super) fn with_rules(schema: Value, rules: &[(&str, &str)]) -> Value {
    let rules: Vec<Value> =
        rules.iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect();
    with_keyword(schema, "x-kubernetes-validations", json!(rules))
}
