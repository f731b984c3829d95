//! The vectors of `tests/vectors/removal/classifier.json`: the results that count against an instance.

use leno_model::{FailureClasses, Object, Reason, ServiceRule};
use leno_registry::read_str;
use leno_traffic::outlier::{EndpointResult, FailureEvidence, classify_result};
use serde_json::{Value, json};

use crate::case::read_vectors;

#[test]
fn results_that_sermant_counts_are_counted() {
    let vectors = read_vectors("removal/classifier.json");
    let cases = vectors["cases"].as_array().unwrap();
    // Only an agent within the client's process sees its exceptions.
    let (agent_only, visible): (Vec<&Value>, Vec<&Value>) =
        cases.iter().partition(|case| case["agent"].as_bool() == Some(true));
    assert!(
        agent_only.len() >= 10 && visible.len() >= 10,
        "{} and {}",
        agent_only.len(),
        visible.len()
    );
    for case in visible {
        let exceptions = case.get("exceptions").unwrap_or(&vectors["exceptions"]);
        let result = &case["ending"];
        let result = match result["reason"].as_str() {
            Some(label) => EndpointResult::Failed(Reason::from_label(label).unwrap()),
            None => {
                let status = u16::try_from(result["status"].as_u64().unwrap()).unwrap();
                EndpointResult::Response { status, grpc: None }
            }
        };
        let counts =
            classify_result(&failure_classes(exceptions), result) == FailureEvidence::Failure;
        assert_eq!(json!(counts), case["counts"], "{}", case["name"]);
    }
}

/// Returns the classes that a `SermantRemoval` with these exceptions counts.
fn failure_classes(exceptions: &Value) -> FailureClasses {
    let config = json!({"enableRemoval": true, "exceptions": exceptions});
    let document = json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "SermantRemoval",
        "metadata": {"name": "removal", "namespace": "shop"},
        "spec": {"compat": "sermant", "config": config.to_string()},
    });
    let (objects, rejected) = read_str("vectors", &document.to_string());
    assert_eq!(rejected, []);
    let Object::ServicePolicy(policy) = &objects[0].0 else { panic!("no policy") };
    let ServiceRule::SermantRemoval(config) = &policy.rule else { panic!("no removal") };
    config.common.failures.clone()
}
