//! Converts the schema of a type's definition to an OpenAPI schema with descriptions, defaults and CEL rules.

use leno_model::definition::{
    FieldDefault, FieldSchema, MapRule, MapSchema, Schema, TextForm, format_duration,
};
use serde_json::{Map, Value, json};

/// Returns the OpenAPI schema of the values that match a schema.
pub(super) fn openapi_schema(schema: &Schema) -> Value {
    match schema {
        Schema::Boolean => json!({"type": "boolean"}),
        // The API server stores bounds as floating-point numbers, which cannot represent these.
        Schema::Integer { min: i64::MIN, max: i64::MAX } => {
            json!({"type": "integer", "format": "int64"})
        }
        Schema::Integer { min, max } => {
            json!({"type": "integer", "format": "int64", "minimum": min, "maximum": max})
        }
        Schema::Percentage => {
            json!({"type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 100})
        }
        Schema::Duration { min, max } => {
            let (min, max) = (format_duration(*min), format_duration(*max));
            json!({
                "type": "string",
                "maxLength": 32,
                "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$",
                "x-kubernetes-validations": [{
                    "rule": format!("duration(self) >= duration('{min}') && duration(self) <= duration('{max}')"),
                    "message": format!("must be from {min} to {max}"),
                }],
            })
        }
        Schema::Text(text) => {
            // A number is accepted as a text of this form, and a schema of Kubernetes has one type.
            if text.form == TextForm::Literal {
                return json!({"x-kubernetes-preserve-unknown-fields": true});
            }
            let schema = json!({"type": "string", "maxLength": text.max_bytes});
            with_optional(schema, "pattern", text.pattern.map(Value::from))
        }
        Schema::Choice(words) => json!({"type": "string", "enum": words}),
        Schema::List { element, min, max, unique } => {
            let list = json!({"type": "array", "items": openapi_schema(element), "maxItems": max});
            let list = with_optional(list, "minItems", (*min > 0).then(|| json!(min)));
            with_optional(list, "x-kubernetes-list-type", unique.then(|| json!("set")))
        }
        Schema::Map(map) => map_schema(map),
        Schema::Entries { value, min, max, .. } => {
            let values = openapi_schema(value);
            let entries =
                json!({"type": "object", "additionalProperties": values, "maxProperties": max});
            with_optional(entries, "minProperties", (*min > 0).then(|| json!(min)))
        }
        // A schema of Kubernetes has one type, so only the control plane validates such a value.
        Schema::Any | Schema::Either { .. } => {
            json!({"x-kubernetes-preserve-unknown-fields": true})
        }
    }
}

/// Returns the schema of a map. The API server keeps unknown fields, so that the control plane rejects the object: if they
/// were dropped, a misspelled condition would widen a rule.
pub(super) fn map_schema(map: &MapSchema) -> Value {
    let fields = map.all_fields();
    let required: Vec<&str> = fields
        .iter()
        .filter(|field| field.default == FieldDefault::Required)
        .map(|field| field.name)
        .collect();
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), field_schema(field))).collect();
    let rules: Vec<Value> = map.all_rules().into_iter().map(cel_rule).collect();
    let schema = json!({
        "type": "object",
        "properties": properties,
        "x-kubernetes-preserve-unknown-fields": true,
    });
    let schema = with_optional(schema, "required", (!required.is_empty()).then(|| json!(required)));
    with_optional(schema, "x-kubernetes-validations", (!rules.is_empty()).then(|| json!(rules)))
}

fn field_schema(field: &FieldSchema) -> Value {
    let mut schema = openapi_schema(&field.schema);
    schema["description"] = describe_field(field).into();
    let default = match field.default {
        FieldDefault::Literal(literal) => Some(literal_json(literal, &field.schema)),
        FieldDefault::Required | FieldDefault::Absent(_) => None,
    };
    with_optional(schema, "default", default)
}

/// Returns the description of a field, with the meaning of its absence.
pub(super) fn describe_field(field: &FieldSchema) -> String {
    match field.default {
        FieldDefault::Absent(meaning) if !meaning.is_empty() => {
            format!("{} Default: {meaning}.", field.description)
        }
        _ => field.description.to_owned(),
    }
}

/// Returns a default as JSON.
pub(super) fn literal_json(literal: &str, schema: &Schema) -> Value {
    match schema {
        Schema::Boolean | Schema::Integer { .. } | Schema::Percentage => {
            serde_json::from_str(literal).unwrap_or_else(|_| literal.into())
        }
        Schema::Either { scalar, .. } => literal_json(literal, scalar),
        _ => literal.into(),
    }
}

/// Returns the CEL rule that rejects what the reader rejects.
fn cel_rule(rule: &MapRule) -> Value {
    let (expression, message) = match rule {
        // The cost of a list would exceed the budget of the API server for rules of nested lists.
        MapRule::ExactlyOne { fields: [first, second], .. } => (
            format!("has(self.{first}) != has(self.{second})"),
            format!("set exactly one of {first} and {second}"),
        ),
        MapRule::ExactlyOne { fields, .. } => {
            let presence: Vec<String> =
                fields.iter().map(|field| format!("has(self.{field})")).collect();
            let expression = format!("[{}].filter(it, it).size() == 1", presence.join(", "));
            (expression, format!("set exactly one of {}", fields.join(", ")))
        }
        MapRule::Cel { expression, message } => ((*expression).to_owned(), (*message).to_owned()),
    };
    json!({"rule": expression, "message": message})
}

fn with_optional(mut schema: Value, keyword: &str, value: Option<Value>) -> Value {
    if let Some(value) = value {
        schema[keyword] = value;
    }
    schema
}
