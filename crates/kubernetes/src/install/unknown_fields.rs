//! Unknown fields reach the control plane regardless of the client's field validation, and are rejected.

use leno_registry::{RejectedDocument, UNKNOWN_FIELD, read_json};
use serde_json::{Map, Value, json};

use super::kinds;

/// Prunes an object as the API server does for a structural schema.
fn prune_unknown(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            let keeps = schema[PRESERVE] == true;
            let (known, others) = (&schema["properties"], &schema["additionalProperties"]);
            fields.retain(|key, value| {
                // The API server has a separate schema for it.
                if key == "metadata" {
                    return true;
                }
                let inner = if known[key].is_object() { &known[key] } else { others };
                if inner.is_object() {
                    prune_unknown(value, inner);
                }
                inner.is_object() || keeps
            });
        }
        Value::Array(elements) => {
            elements.iter_mut().for_each(|it| prune_unknown(it, &schema["items"]))
        }
        _ => {}
    }
}

/// The path of an object in a schema: field names, and indices of list elements.
type SchemaPath = Vec<String>;

/// Collects the paths of all objects with fields of their own.
fn collect_object_paths(schema: &Value, at: &SchemaPath, found: &mut Vec<SchemaPath>) {
    if schema["properties"].is_object() {
        found.push(at.clone());
    }
    let below = |step: &str| [at.as_slice(), &[step.to_owned()]].concat();
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        collect_object_paths(inner, &below(name), found);
    }
    if schema["items"].is_object() {
        collect_object_paths(&schema["items"], &below("0"), found);
    }
    if schema["additionalProperties"].is_object() {
        collect_object_paths(&schema["additionalProperties"], &below("any"), found);
    }
}

/// Builds a value of a schema with the fields on a path, other required fields, and an unknown field at the end
/// of the path.
fn build_sample(name: &str, schema: &Value, steps: Option<&[String]>) -> Value {
    let next = steps.and_then(<[String]>::first);
    let rest =
        |of: &str| steps.filter(|_| next.is_some_and(|next| next == of)).map(|all| &all[1..]);
    match schema["type"].as_str() {
        Some("object") => {
            let mut fields = Map::new();
            for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
                let required =
                    schema["required"].as_array().into_iter().flatten().any(|it| it == key);
                if required || next == Some(key) {
                    fields.insert(key.clone(), build_sample(key, inner, rest(key)));
                }
            }
            if schema["additionalProperties"].is_object() {
                let inner = build_sample(name, &schema["additionalProperties"], rest("any"));
                fields.insert("any".to_owned(), inner);
            }
            if steps.is_some_and(<[String]>::is_empty) {
                fields.insert(UNKNOWN.to_owned(), json!(["GET"]));
            }
            Value::Object(fields)
        }
        Some("array") => json!([build_sample(name, &schema["items"], rest("0"))]),
        Some("integer" | "number") => {
            schema["minimum"].as_i64().map_or(json!(1), |it| json!(it.max(1)))
        }
        Some("boolean") => json!(true),
        Some("string") => match (schema["enum"].as_array(), name) {
            (Some(words), _) => words.iter().find(|it| *it != "").unwrap().clone(),
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
    let (mut places, mut silent) = (0, Vec::new());
    for definition in kinds::kind_definitions() {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut found = Vec::new();
        collect_object_paths(schema, &Vec::new(), &mut found);
        for steps in found.iter().filter(|steps| steps.first().is_none_or(|it| it != "status")) {
            places += 1;
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
            let here = [steps.as_slice(), &[UNKNOWN.to_owned()]].concat();
            assert!(value_at(&object, &here).is_some(), "{kind}: {} is dropped", field_path(&here));
            let rejected = read_json(&object).err().unwrap_or_default();
            let is_it = |it: &RejectedDocument| {
                it.problem == UNKNOWN_FIELD && it.at.field.as_deref() == Some(&field_path(&here))
            };
            if !rejected.iter().any(is_it) {
                let all: Vec<String> = rejected.iter().map(ToString::to_string).collect();
                silent.push(format!("{kind} {}: {all:?}", field_path(&here)));
            }
        }
    }
    assert!(places > 100, "{places}");
    assert_eq!(silent, [""; 0]);
}

#[test]
fn a_rule_with_a_misspelled_field_is_not_read_without_it() {
    let definition = kinds::kind_definitions()
        .into_iter()
        .find(|it| it["spec"]["names"]["kind"] == "AccessPolicy")
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
        assert!(schema["properties"]["status"][PRESERVE].is_null());
    }
}

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const UNKNOWN: &str = "unknownField";
