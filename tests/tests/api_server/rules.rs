//! The CEL rules in the schemas of our kinds, evaluated by a real API server. Each rule rejects documents that
//! violate only this rule, with its message, and accepts other documents.

use std::collections::{BTreeMap, BTreeSet};

use leno_kubernetes::install::installation_manifests;
use serde_json::{Value, json};

use crate::installed::{install_objects, test_options};
use crate::server::{ApiServerProcess, run};

/// A rule of a schema.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SchemaRule {
    kind: String,
    /// The path in `spec`, with `[]` for list elements.
    path: String,
    message: String,
}

/// Collects all rules of a schema and its nested schemas.
fn collect_rules(kind: &str, path: &str, schema: &Value, rules: &mut BTreeSet<SchemaRule>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let message = rule["message"].as_str().unwrap().to_owned();
        let rule = SchemaRule { kind: kind.to_owned(), path: path.to_owned(), message };
        assert!(rules.insert(rule.clone()), "a repeated rule: {rule:?}");
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        collect_rules(kind, &format!("{path}.{name}"), field, rules);
    }
    for (inner, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if schema[inner].is_object() {
            collect_rules(kind, &format!("{path}{suffix}"), &schema[inner], rules);
        }
    }
}

/// Returns the rules of all our kinds, and for each kind if it is namespaced.
fn all_rules() -> (BTreeSet<SchemaRule>, BTreeMap<String, bool>) {
    let (mut rules, mut scopes) = (BTreeSet::new(), BTreeMap::new());
    for definition in installation_manifests(&test_options()) {
        if definition["kind"] != "CustomResourceDefinition" {
            continue;
        }
        let spec = &definition["spec"];
        let kind = spec["names"]["kind"].as_str().unwrap();
        let schema = &spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        // No example here could cover a rule outside `spec`.
        assert!(spec["versions"][0]["schema"]["openAPIV3Schema"].get(VALIDATIONS).is_none());
        let mut status_rules = BTreeSet::new();
        collect_rules(kind, "", &schema["status"], &mut status_rules);
        assert!(status_rules.is_empty(), "{status_rules:?}");
        collect_rules(kind, "", &schema["spec"], &mut rules);
        scopes.insert(kind.to_owned(), spec["scope"] == "Namespaced");
    }
    (rules, scopes)
}

/// Returns true if the path has a value, with `[]` for any list element.
fn has_path(value: &Value, path: &str) -> bool {
    let Some(remaining) = path.strip_prefix('.') else {
        let Some(remaining) = path.strip_prefix("[]") else { return !value.is_null() };
        return value.as_array().into_iter().flatten().any(|element| has_path(element, remaining));
    };
    let field_end = remaining.find(['.', '[']).unwrap_or(remaining.len());
    has_path(&value[&remaining[..field_end]], &remaining[field_end..])
}

fn read_examples() -> BTreeMap<String, Value> {
    let examples: Value = serde_saphyr::from_str(include_str!("rules.yaml")).unwrap();
    examples.as_object().unwrap().clone().into_iter().collect()
}

fn example_text<'a>(example: &'a Value, key: &str) -> &'a str {
    example[key].as_str().unwrap()
}

/// Returns the rules that reject an example, with an accepted example for the same path.
fn covered_rules(examples: &BTreeMap<String, Value>) -> BTreeSet<SchemaRule> {
    let mut covered = BTreeSet::new();
    for (kind, specs) in examples {
        for rejected in specs["rejected"].as_array().unwrap() {
            let path = example_text(rejected, "path")
                .replace(|character: char| character.is_ascii_digit(), "");
            let is_accepted =
                specs["accepted"].as_array().unwrap().iter().any(|spec| has_path(spec, &path));
            assert!(is_accepted, "{kind}: no accepted spec has {path}");
            covered.insert(SchemaRule {
                kind: kind.clone(),
                path,
                message: example_text(rejected, "message").to_owned(),
            });
        }
    }
    covered
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn each_schema_rule_rejects_its_violation_alone() {
    run(async {
        let (rules, scopes) = all_rules();
        let examples = read_examples();
        assert_eq!(covered_rules(&examples), rules, "each rule needs an example in rules.yaml");
        let server = ApiServerProcess::start().await;
        server.create_namespace("shop").await;
        install_objects(&server, &test_options()).await;
        for (kind, specs) in &examples {
            let namespace = scopes[kind].then_some("shop");
            let api_kind = format!("leno.dev/v1alpha1/{kind}");
            for (index, spec) in specs["accepted"].as_array().unwrap().iter().enumerate() {
                let object = json!({"spec": spec});
                let name = format!("accepted-{index}");
                let result = server.try_apply(&api_kind, namespace, &name, object).await;
                assert_eq!(result, Ok(()), "{kind}: {spec}");
            }
            for rejected in specs["rejected"].as_array().unwrap() {
                let object = json!({"spec": rejected["spec"]});
                let result = server.try_apply(&api_kind, namespace, "rejected", object).await;
                let result = result.expect_err(example_text(rejected, "message"));
                let expected = format!("spec{}: Invalid value", example_text(rejected, "path"));
                assert!(result.contains(&expected), "{kind}: {result}");
                let messages = rules.iter().filter(|rule| rule.kind == *kind);
                let reported: BTreeSet<&str> = messages
                    .map(|rule| rule.message.as_str())
                    .filter(|message| result.contains(message))
                    .collect();
                assert_eq!(
                    reported,
                    [example_text(rejected, "message")].into(),
                    "{kind}: {result}"
                );
                assert_eq!(result.matches("StatusCause {").count(), 1, "{kind}: {result}");
            }
        }
    });
}

const VALIDATIONS: &str = "x-kubernetes-validations";
