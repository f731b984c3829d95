//! Parts of OpenAPI schemas. Everything has a bound: the API server reckons with it what a rule costs.

use serde_json::{Map, Value, json};

/// A text.
pub(super) fn text(bytes_max: u32) -> Value {
    json!({"type": "string", "maxLength": bytes_max})
}

/// A DNS-1123 label: the name of a service, of a namespace, of a port.
pub(super) fn label() -> Value {
    json!({"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"})
}

/// A DNS-1123 subdomain: any other name.
pub(super) fn name() -> Value {
    json!({"type": "string", "maxLength": 253, "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"})
}

/// A name with `*` for any characters.
pub(super) fn name_pattern() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 253, "pattern": "^[-a-z0-9.*]+$"})
}

/// A duration as the Gateway API writes it.
pub(super) fn duration() -> Value {
    json!({"type": "string", "maxLength": 32, "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"})
}

/// One of these words.
pub(super) fn word(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

pub(super) fn boolean() -> Value {
    json!({"type": "boolean"})
}

pub(super) fn integer(least: u32, most: u32) -> Value {
    json!({"type": "integer", "format": "int64", "minimum": least, "maximum": most})
}

pub(super) fn port() -> Value {
    integer(1, 65_535)
}

/// A percentage above 0, which may have decimals.
pub(super) fn percentage() -> Value {
    json!({"type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 100})
}

/// Of several types, so that the control plane alone says what is wrong with it.
pub(super) fn anything() -> Value {
    json!({"x-kubernetes-preserve-unknown-fields": true})
}

/// At most so many.
pub(super) fn list(element: Value, most: u32) -> Value {
    json!({"type": "array", "items": element, "maxItems": most})
}

/// At least one, and at most so many.
pub(super) fn some(element: Value, most: u32) -> Value {
    with(list(element, most), "minItems", json!(1))
}

/// A map from names to values.
pub(super) fn map(value: Value, most: u32) -> Value {
    json!({"type": "object", "additionalProperties": value, "maxProperties": most})
}

/// An object with these fields; one that is required has `!` behind its name. The API server keeps other fields, so
/// that the control plane rejects the object: dropped, a misspelled condition would leave a rule without it.
pub(super) fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    with(pruned_object(fields), "x-kubernetes-preserve-unknown-fields", true.into())
}

/// The same for what the control plane writes: the API server drops other fields.
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
    if required.is_empty() { object } else { with(object, "required", json!(required)) }
}

/// The same, with one thing more.
pub(super) fn with(mut schema: Value, key: &str, value: Value) -> Value {
    schema[key] = value;
    schema
}

/// The same, explained to who asks `kubectl explain`.
pub(super) fn about(schema: Value, description: &str) -> Value {
    with(schema, "description", description.into())
}

/// The same, refused unless each of these rules (CEL) holds; each has the words of its refusal.
pub(super) fn unless(schema: Value, rules: &[(&str, &str)]) -> Value {
    let rules: Vec<Value> =
        rules.iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect();
    with(schema, "x-kubernetes-validations", json!(rules))
}
