//! Tests that unknown fields reach the control plane regardless of the client's field validation, and are
//! rejected.

use leno_registry::{RejectedDocument, UNKNOWN_FIELD, read_json};
use serde_json::{Map, Value, json};

use super::kinds;

/// Prunes an object as the API server does for a structural schema.
fn prune_unknown(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            let keeps_unknown = schema[PRESERVE_KEYWORD] == true;
            let (properties, additional) = (&schema["properties"], &schema["additionalProperties"]);
            fields.retain(|key, value| {
                // The API server has a separate schema for it.
                if key == "metadata" {
                    return true;
                }
                let inner = if properties[key].is_object() { &properties[key] } else { additional };
                if inner.is_object() {
                    prune_unknown(value, inner);
                }
                inner.is_object() || keeps_unknown
            });
        }
        Value::Array(elements) => {
            elements.iter_mut().for_each(|element| prune_unknown(element, &schema["items"]))
        }
        _ => {}
    }
}

/// The path of an object in a schema: field names, and indices of list elements.
type SchemaPath = Vec<String>;

/// Collects the paths of all objects with fields of their own.
fn collect_object_paths(schema: &Value, path: &SchemaPath, paths: &mut Vec<SchemaPath>) {
    if schema["properties"].is_object() {
        paths.push(path.clone());
    }
    let child_path = |step: &str| [path.as_slice(), &[step.to_owned()]].concat();
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        collect_object_paths(inner, &child_path(name), paths);
    }
    if schema["items"].is_object() {
        collect_object_paths(&schema["items"], &child_path("0"), paths);
    }
    if schema["additionalProperties"].is_object() {
        collect_object_paths(&schema["additionalProperties"], &child_path("any"), paths);
    }
}

/// Builds a value of a schema with the fields on a path, other required fields, and an unknown field at the end
/// of the path.
fn build_sample(name: &str, schema: &Value, steps: Option<&[String]>) -> Value {
    let next = steps.and_then(<[String]>::first);
    let remaining_steps =
        |key: &str| steps.filter(|_| next.is_some_and(|next| next == key)).map(|steps| &steps[1..]);
    match schema["type"].as_str() {
        Some("object") => {
            let mut fields = Map::new();
            for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
                let is_required =
                    schema["required"].as_array().into_iter().flatten().any(|name| name == key);
                if is_required || next == Some(key) {
                    fields.insert(key.clone(), build_sample(key, inner, remaining_steps(key)));
                }
            }
            if schema["additionalProperties"].is_object() {
                let inner =
                    build_sample(name, &schema["additionalProperties"], remaining_steps("any"));
                fields.insert("any".to_owned(), inner);
            }
            if steps.is_some_and(<[String]>::is_empty) {
                fields.insert(UNKNOWN.to_owned(), json!(["GET"]));
            }
            Value::Object(fields)
        }
        Some("array") => json!([build_sample(name, &schema["items"], remaining_steps("0"))]),
        Some("integer" | "number") => {
            schema["minimum"].as_i64().map_or(json!(1), |minimum| json!(minimum.max(1)))
        }
        Some("boolean") => json!(true),
        Some("string") => match (schema["enum"].as_array(), name) {
            (Some(choices), _) => choices.iter().find(|choice| *choice != "").unwrap().clone(),
            (None, "endpoint") => json!("http://collector.example:4317"),
            (None, _) => json!("1s"),
        },
        _ => json!("1"),
    }
}

/// Returns fields that the reader of a kind needs before it checks others.
fn needed_fields(kind: &str) -> Value {
    match kind {
        "CircuitBreaker" => json!({"trip": {"percent": 50}}),
        "LoadBalancing" => json!({"algorithm": "RingHash"}),
        "TagRoute" => json!({"service": "a", "fallbackPolicy": "any"}),
        _ => Value::Null,
    }
}

fn value_at<'a>(value: &'a Value, steps: &[String]) -> Option<&'a Value> {
    steps.iter().try_fold(value, |value, step| match value {
        Value::Array(elements) => elements.get(step.parse::<usize>().ok()?),
        other => other.get(step),
    })
}

fn field_path(steps: &[String]) -> String {
    steps.iter().fold(String::new(), |path, step| match step.parse::<usize>() {
        Ok(index) => format!("{path}[{index}]"),
        Err(_) if path.is_empty() => step.clone(),
        Err(_) => format!("{path}.{step}"),
    })
}

#[test]
fn every_unknown_field_survives_pruning_and_is_rejected() {
    let (mut count, mut not_rejected) = (0, Vec::new());
    for definition in kinds::kind_definitions() {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut paths = Vec::new();
        collect_object_paths(schema, &Vec::new(), &mut paths);
        for steps in paths.iter().filter(|steps| steps.first().is_none_or(|step| step != "status"))
        {
            count += 1;
            let mut object = build_sample("", schema, Some(steps));
            object["apiVersion"] = json!("leno.dev/v1alpha1");
            object["kind"] = json!(kind);
            object["metadata"] = json!({"name": "a"});
            for (field, value) in needed_fields(kind).as_object().into_iter().flatten() {
                if object["spec"][field].is_null() {
                    object["spec"][field] = value.clone();
                }
            }
            prune_unknown(&mut object, schema);
            let field_steps = [steps.as_slice(), &[UNKNOWN.to_owned()]].concat();
            assert!(
                value_at(&object, &field_steps).is_some(),
                "{kind}: {} is dropped",
                field_path(&field_steps)
            );
            let rejected = read_json(&object).err().unwrap_or_default();
            let is_unknown_field = |rejected: &RejectedDocument| {
                rejected.problem == UNKNOWN_FIELD
                    && rejected.location.field.as_deref() == Some(&field_path(&field_steps))
            };
            if !rejected.iter().any(is_unknown_field) {
                let problems: Vec<String> = rejected.iter().map(ToString::to_string).collect();
                not_rejected.push(format!("{kind} {}: {problems:?}", field_path(&field_steps)));
            }
        }
    }
    assert!(count > 100, "{count}");
    assert_eq!(not_rejected, [""; 0]);
}

#[test]
fn a_rule_with_a_misspelled_field_is_rejected() {
    let definition = kinds::kind_definitions()
        .into_iter()
        .find(|definition| definition["spec"]["names"]["kind"] == "AccessPolicy")
        .unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut object = json!({
        "apiVersion": "leno.dev/v1alpha1", "kind": "AccessPolicy",
        "metadata": {"name": "reads", "namespace": "shop"},
        "spec": {"allow": [{
            "from": [{"serviceAccount": "web"}],
            "requests": [{"path": {"value": "/"}, "metods": ["GET"]}],
        }]},
    });
    prune_unknown(&mut object, schema);
    let rejected = read_json(&object).unwrap_err();
    assert_eq!(
        rejected[0].to_string(),
        "AccessPolicy shop/reads: spec.allow[0].requests[0].metods: is an unknown field; did \
         you mean `methods`?"
    );
}

#[test]
fn the_status_has_no_unknown_fields() {
    for definition in kinds::kind_definitions() {
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert!(schema["properties"]["status"][PRESERVE_KEYWORD].is_null());
    }
}

const PRESERVE_KEYWORD: &str = "x-kubernetes-preserve-unknown-fields";
const UNKNOWN: &str = "unknownField";
