//! Builds the Helm hook of the chart: a Job that retracts statuses after `helm uninstall`.

use serde_json::{Value, json};

use super::access::{self, RETRACTION};
use super::{InstallOptions, PART_OF, PART_OF_LABEL};
use crate::well_known::PROXY_UID;

/// Returns the objects of a chart in addition to [`installation_manifests`](super::installation_manifests): a
/// Job that runs `leno uninstall --statuses-only` after Helm has deleted the release, its account, and its
/// permissions. The objects exist only during the hook. A failed Job stays, with its log, until the next `helm
/// uninstall`.
#[must_use]
pub fn uninstall_hook(options: &InstallOptions) -> Vec<Value> {
    let mut objects = access::retraction_objects(options);
    objects.push(retraction_job(options));
    for object in &mut objects {
        // The permissions are created before the Job.
        let weight = if object["kind"] == "Job" { "1" } else { "0" };
        object["metadata"]["annotations"] = json!({
            "helm.sh/hook": "post-delete",
            "helm.sh/hook-weight": weight,
            "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
        });
    }
    objects
}

/// Returns the Job that retracts the statuses.
fn retraction_job(options: &InstallOptions) -> Value {
    // Labels other than those of the control plane: its Services select by them, and the Job waits until those
    // pods are gone.
    let labels = json!({"app.kubernetes.io/name": RETRACTION, PART_OF_LABEL: PART_OF});
    let namespace = &options.namespace;
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": RETRACTION, "namespace": namespace, "labels": labels},
        "spec": {
            "backoffLimit": MAX_RETRIES,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": RETRACTION,
                    "restartPolicy": "Never",
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": PROXY_UID,
                        "runAsGroup": PROXY_UID,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [{
                        "name": RETRACTION,
                        "image": options.image,
                        "args": ["uninstall", "--statuses-only", "--apply", "--namespace", namespace],
                        "resources": {
                            "requests": {"cpu": "10m", "memory": "32Mi"},
                            "limits": {"memory": "512Mi"},
                        },
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    }],
                },
            },
        },
    })
}

/// The maximum number of retries of the Job.
const MAX_RETRIES: u32 = 2;
/// The deadline of the Job: less than Helm's timeout of five minutes, so that Helm reports the failure of the
/// Job.
const DEADLINE_SECONDS: u32 = 240;
