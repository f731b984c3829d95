//! Converts the definition of a kind to a JSON schema of whole manifests, for editors and kubeconform.
//!
//! Unlike the schema of Kubernetes, it rejects unknown fields, and a value may have several types.

use leno_model::definition::{
    FieldDefault, FieldSchema, MapRule, MapSchema, Schema, TextForm, TextSchema,
};
use leno_model::{KindDefinition, KindScope};
use serde_json::{Map, Value, json};

use super::definition_schema::{describe_field, literal_json, openapi_schema};

/// Returns the path in `deploy/schemas` and the schema of each version of a kind.
#[must_use]
pub fn manifest_schemas(definition: &KindDefinition) -> Vec<(String, Value)> {
    let versions = definition.api_versions.iter().filter_map(|version| {
        let (group, version_name) = version.split_once('/')?;
        let path = format!("{group}/{}_{version_name}.json", definition.kind.to_lowercase());
        Some((path, manifest_schema(definition, version)))
    });
    versions.collect()
}

fn manifest_schema(definition: &KindDefinition, api_version: &str) -> Value {
    let namespace = match definition.scope {
        KindScope::Namespaced => json!({"type": "string"}),
        KindScope::Cluster => json!(false),
    };
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": definition.kind,
        "description": definition.description,
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": api_version},
            "kind": {"const": definition.kind},
            "metadata": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "namespace": namespace},
            },
            "spec": map_schema(definition.spec),
            "status": {"type": "object"},
        },
        "additionalProperties": false,
    })
}

fn value_schema(schema: &Schema) -> Value {
    match schema {
        Schema::Map(map) => map_schema(map),
        Schema::List { element, min, max, unique } => json!({
            "type": "array",
            "items": value_schema(element),
            "minItems": min,
            "maxItems": max,
            "uniqueItems": unique,
        }),
        Schema::Entries { value, min, max, .. } => json!({
            "type": "object",
            "additionalProperties": value_schema(value),
            "minProperties": min,
            "maxProperties": max,
        }),
        Schema::Either { scalar, collection } => {
            json!({"anyOf": [value_schema(scalar), value_schema(collection)]})
        }
        // As in all drafts after the fourth, which OpenAPI follows, the exclusive minimum is a number.
        Schema::Percentage => json!({"type": "number", "exclusiveMinimum": 0, "maximum": 100}),
        Schema::Text(TextSchema { form: TextForm::Literal, .. }) => {
            json!({"type": ["string", "number", "boolean"]})
        }
        Schema::Any => json!({}),
        other => without_extensions(openapi_schema(other)),
    }
}

fn map_schema(map: &MapSchema) -> Value {
    let fields = map.all_fields();
    let required: Vec<&str> = fields
        .iter()
        .filter(|field| field.default == FieldDefault::Required)
        .map(|field| field.name)
        .collect();
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), field_schema(field))).collect();
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    let alternatives: Vec<Value> = map
        .all_rules()
        .into_iter()
        .filter_map(MapRule::alternatives)
        .map(|fields| {
            let required = fields.iter().map(|field| json!({"required": [field]}));
            json!({"oneOf": required.collect::<Vec<_>>()})
        })
        .collect();
    if !alternatives.is_empty() {
        schema["allOf"] = json!(alternatives);
    }
    schema
}

fn field_schema(field: &FieldSchema) -> Value {
    let mut schema = value_schema(&field.schema);
    schema["description"] = describe_field(field).into();
    if let FieldDefault::Literal(literal) = field.default {
        schema["default"] = literal_json(literal, &field.schema);
    }
    schema
}

/// Removes the keywords that only Kubernetes knows.
fn without_extensions(schema: Value) -> Value {
    match schema {
        Value::Object(keywords) => {
            let is_standard = |keyword: &String| !keyword.starts_with("x-kubernetes-");
            let kept = keywords.into_iter().filter(|(keyword, _)| is_standard(keyword));
            Value::Object(kept.collect())
        }
        other => other,
    }
}
