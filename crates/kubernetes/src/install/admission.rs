//! When the API server asks the injector about a pod.
//!
//! Only about pods that may want a sidecar: where nobody asked for the mesh, nothing waits for it.
//! What may want one is not created while the injector is away, so that nothing runs without.

use serde_json::{Value, json};

use super::{Options, cluster_metadata};
use crate::inject::SYSTEM_NAMESPACES;
use crate::webhook::{INJECTOR, MUTATE_PATH};
use crate::words::{CONTROL, INJECTION, MEMBERSHIPS, PREFIXES};

/// One webhook for each way of asking for sidecars.
pub(super) fn configuration(options: &Options) -> Value {
    let mut never = SYSTEM_NAMESPACES.to_vec();
    never.push(&options.namespace);
    let mut namespaces = vec![expression("kubernetes.io/metadata.name", "NotIn", &never)];
    for prefix in PREFIXES {
        namespaces.push(expression(&format!("{prefix}/ignore"), "DoesNotExist", &[]));
    }
    let pods = [expression(INJECTION, "NotIn", &OFF)];
    let with = |expressions: &[Value], more: &[Value]| [expressions, more].concat();
    let exists = |key: &str| expression(key, "Exists", &[]);
    let absent = |key: &str| expression(key, "DoesNotExist", &[]);
    let mut webhooks = vec![
        // The namespace has our label.
        webhook(
            "namespace",
            options,
            with(&namespaces, &[exists(INJECTION), expression(INJECTION, "NotIn", &OFF)]),
            pods.to_vec(),
        ),
        // The pod has it, wherever it is.
        webhook(
            "pod",
            options,
            with(&namespaces, &[expression(INJECTION, "NotIn", &ON)]),
            with(&pods, &[exists(INJECTION)]),
        ),
    ];
    // The namespace is in a mesh as OSM or FSM has it; annotations decide.
    for (name, label) in [("osm", MEMBERSHIPS[1]), ("fsm", MEMBERSHIPS[2])] {
        let asked = [exists(label), absent(INJECTION)];
        // About a pod that has our label the one above asks.
        let pods = vec![absent(INJECTION)];
        webhooks.push(webhook(name, options, with(&namespaces, &asked), pods));
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": cluster_metadata(INJECTOR),
        "webhooks": webhooks,
    })
}

/// Whom to trust the control plane writes: it is nobody's here.
fn webhook(name: &str, options: &Options, namespaces: Vec<Value>, pods: Vec<Value>) -> Value {
    json!({
        "name": format!("{name}.{INJECTOR}"),
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {
                "name": CONTROL,
                "namespace": options.namespace,
                "path": MUTATE_PATH,
                "port": 443,
            },
        },
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "Never",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "namespaceSelector": {"matchExpressions": namespaces},
        "objectSelector": {"matchExpressions": pods},
        "rules": [{
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
            "scope": "Namespaced",
        }],
    })
}

/// A condition of a selector.
pub(super) fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    match values {
        [] => json!({"key": key, "operator": operator}),
        values => json!({"key": key, "operator": operator, "values": values}),
    }
}

/// Words for on and off as labels are usually written. Every other word is asked about, and refused.
const ON: [&str; 3] = ["enabled", "yes", "true"];
const OFF: [&str; 3] = ["disabled", "no", "false"];
