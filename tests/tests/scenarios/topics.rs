//! `leno get`: every topic, in machine-readable form.

use std::time::Duration;

use leno_tests::{TestMesh, eventually, leno_command};
use serde_json::Value;

#[test]
fn every_topic_has_the_same_yaml_and_json() {
    let mesh = TestMesh::up(MANIFESTS);
    let help_output = leno_command().args(["get", "--help"]).output().unwrap();
    let help_output = String::from_utf8(help_output.stdout).unwrap();
    for topic in [
        "status",
        "workloads",
        "services",
        "certificates",
        "connections",
        "ejected",
        "circuits",
        "proxies",
        "changes",
        "routes",
        "policies",
        "rules",
        "rejected",
    ] {
        assert!(help_output.contains(topic), "{topic}: {help_output}");
        let topic_output = |format: &str| {
            let mut command = leno_command();
            command.args(["get", topic, "-o", format, "--data"]).arg(mesh.data_directory());
            let output = command.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        // The state may change between two queries.
        let (json, _) = eventually(topic, Duration::from_secs(60), || {
            let json: Value = serde_json::from_str(&topic_output("json")).unwrap();
            let yaml: Value = serde_saphyr::from_str(&topic_output("yaml")).unwrap();
            (without_numbers(yaml) == without_numbers(json.clone())).then_some(json)
        });
        let empty_topics = ["connections", "ejected", "rules"];
        assert!(empty_topics.contains(&topic) || json != serde_json::json!([]), "{topic} is empty");
    }
}

/// Replaces all numbers: ages differ between queries.
fn without_numbers(value: Value) -> Value {
    match value {
        Value::Number(_) => 0.into(),
        Value::Array(elements) => elements.into_iter().map(without_numbers).collect(),
        Value::Object(entries) => {
            entries.into_iter().map(|(key, entry)| (key, without_numbers(entry))).collect()
        }
        unchanged => unchanged,
    }
}

/// An object for every topic, including a policy, a route, and a rejected document.
const MANIFESTS: &str = "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: one, namespace: shop, labels: {app: one, odd: '0x1: no'}}
spec: {ports: [{port: 9080}], run: [sleep, '60']}
---
apiVersion: v1
kind: Service
metadata: {name: one, namespace: shop}
spec: {selector: {app: one}, ports: [{port: 80, targetPort: 9080}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: one, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: one}]
  rules: [{backendRefs: [{name: one, port: 80}]}]
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: all, namespace: shop}
spec: {matches: [{name: all, pathRegex: '.*', methods: ['*']}]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: one, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: default, namespace: shop}
  sources: [{kind: ServiceAccount, name: default, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: all, matches: [all]}]
---
apiVersion: v1
kind: Service
metadata: {name: two, namespace: shop}
spec: {selector: {app: one}, ports: [{port: 99999}]}
";
