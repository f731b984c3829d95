//! Properties of the webhook's responses to arbitrary bodies.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leno_kubernetes::api::NamespaceName;
use leno_kubernetes::inject::{InjectionSettings, NamespaceMetadata};
use leno_kubernetes::webhook::admission_response;
use leno_model::TrustDomain;
use serde_json::Value;

/// Checks that a body is not a review, or has a response with its uid. A patch applies to the pod, keeps all of
/// its containers, and produces a pod that needs no second patch.
pub(crate) fn check_review(bytes: &[u8]) {
    let (namespace, settings) = (namespace_metadata(), test_settings());
    let Some(review) = admission_response(bytes, &namespace, &settings) else { return };
    let mut request: Value = serde_json::from_slice(bytes).expect("a review is JSON");
    let response = &review["response"];
    assert_eq!(response["uid"], request["request"]["uid"]);
    assert!(response["uid"].is_string() && response["allowed"].is_boolean());
    if response["allowed"] == false {
        assert!(response["status"]["message"].is_string() && response["patch"].is_null());
        return;
    }
    let Some(patch) = response["patch"].as_str() else { return };
    let patch = STANDARD.decode(patch).expect("a patch is base64");
    let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("a patch is a JSON patch");
    let mut pod = request["request"]["object"].take();
    let before = container_names(&pod);
    json_patch::patch(&mut pod, &patch).expect("the patch applies to its pod");
    let after = container_names(&pod);
    assert!(before.iter().all(|name| after.contains(name)), "{before:?} {after:?}");
    request["request"]["object"] = pod;
    let second = admission_response(request.to_string().as_bytes(), &namespace, &settings);
    let second = second.expect("a review with another pod is one");
    assert_eq!(second["response"]["allowed"], true);
    assert!(second["response"]["patch"].is_null(), "{second}");
}

/// Returns true if the pod of a review gets a sidecar.
pub(crate) fn is_patched(bytes: &[u8]) -> bool {
    let response = admission_response(bytes, &namespace_metadata(), &test_settings());
    response.is_some_and(|review| review["response"]["patch"].is_string())
}

/// Returns the names of all containers.
fn container_names(pod: &Value) -> Vec<Value> {
    let list = |key: &str| pod["spec"][key].as_array().cloned().unwrap_or_default();
    let containers = list("containers").into_iter().chain(list("initContainers"));
    containers.map(|container| container["name"].clone()).collect()
}

fn namespace_metadata() -> NamespaceMetadata {
    let labels = BTreeMap::from([("leno.dev/injection".to_owned(), "enabled".to_owned())]);
    NamespaceMetadata { name: "shop".to_owned(), labels, annotations: BTreeMap::new() }
}

fn test_settings() -> InjectionSettings {
    let trust_domain = TrustDomain::new("cluster.local").expect("a name");
    let system = NamespaceName::from_literal("leno-system");
    InjectionSettings::new("leno:test".into(), system, trust_domain, "roots".into())
}
