//! Builds the webhook configuration of the sidecar injector.
//!
//! The webhook is called only for pods that may need a sidecar, so other pods do not depend on it. Pods that
//! may need a sidecar are not created while the injector is unavailable, so that no pod runs without its
//! sidecar.

use serde_json::{Value, json};

use super::{InstallOptions, cluster_metadata};
use crate::inject::SYSTEM_NAMESPACES;
use crate::webhook::{INJECTOR, MUTATE_PATH};
use crate::well_known::{CONTROL, INJECTION, MEMBERSHIPS, PREFIXES};

/// Returns the MutatingWebhookConfiguration, with one webhook for each way to request a sidecar.
pub(super) fn webhook_configuration(options: &InstallOptions) -> Value {
    let mut excluded_namespaces = SYSTEM_NAMESPACES.to_vec();
    excluded_namespaces.push(&options.namespace);
    let mut namespace_requirements =
        vec![selector_requirement("kubernetes.io/metadata.name", "NotIn", &excluded_namespaces)];
    for prefix in PREFIXES {
        namespace_requirements.push(selector_requirement(
            &format!("{prefix}/ignore"),
            "DoesNotExist",
            &[],
        ));
    }
    let pod_requirements = [selector_requirement(INJECTION, "NotIn", &DISABLED_VALUES)];
    let combine = |expressions: &[Value], additional: &[Value]| [expressions, additional].concat();
    let exists = |key: &str| selector_requirement(key, "Exists", &[]);
    let absent = |key: &str| selector_requirement(key, "DoesNotExist", &[]);
    let mut webhooks = vec![
        // The namespace has our label.
        webhook_entry(
            "namespace",
            options,
            combine(
                &namespace_requirements,
                &[exists(INJECTION), selector_requirement(INJECTION, "NotIn", &DISABLED_VALUES)],
            ),
            pod_requirements.to_vec(),
        ),
        // The pod has our label, in any namespace.
        webhook_entry(
            "pod",
            options,
            combine(
                &namespace_requirements,
                &[selector_requirement(INJECTION, "NotIn", &ENABLED_VALUES)],
            ),
            combine(&pod_requirements, &[exists(INJECTION)]),
        ),
    ];
    // The namespace is a member of an OSM or FSM mesh. Label selectors cannot match its annotations, so the
    // webhook evaluates them.
    for (name, label) in [("osm", MEMBERSHIPS[1]), ("fsm", MEMBERSHIPS[2])] {
        let requirements = [exists(label), absent(INJECTION)];
        // The webhook `pod` handles pods with our label.
        let without_own_label = vec![absent(INJECTION)];
        webhooks.push(webhook_entry(
            name,
            options,
            combine(&namespace_requirements, &requirements),
            without_own_label,
        ));
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": cluster_metadata(INJECTOR),
        "webhooks": webhooks,
    })
}

/// Returns a webhook without a `caBundle`, which the control plane writes.
fn webhook_entry(
    name: &str,
    options: &InstallOptions,
    namespace_requirements: Vec<Value>,
    pod_requirements: Vec<Value>,
) -> Value {
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
        "namespaceSelector": {"matchExpressions": namespace_requirements},
        "objectSelector": {"matchExpressions": pod_requirements},
        "rules": [{
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
            "scope": "Namespaced",
        }],
    })
}

/// Returns a requirement of a label selector.
pub(super) fn selector_requirement(key: &str, operator: &str, values: &[&str]) -> Value {
    match values {
        [] => json!({"key": key, "operator": operator}),
        values => json!({"key": key, "operator": operator, "values": values}),
    }
}

/// Common label values that enable injection. A value in neither list reaches the webhook, which rejects it.
const ENABLED_VALUES: [&str; 3] = ["enabled", "yes", "true"];
/// Common label values that disable injection.
const DISABLED_VALUES: [&str; 3] = ["disabled", "no", "false"];
