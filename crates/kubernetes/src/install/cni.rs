//! Builds the objects of the node agent, which installs the CNI plugin that redirects connections to sidecars.

use serde_json::{Value, json};

use super::{InstallOptions, cluster_metadata, common_labels};
use crate::well_known::CNI;

/// The CNI directories of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNetwork {
    /// The directory of plugin binaries.
    pub bin_dir: String,
    /// The directory of plugin configurations.
    pub conf_dir: String,
}

impl Default for NodeNetwork {
    /// The defaults of container runtimes.
    fn default() -> Self {
        Self { bin_dir: "/opt/cni/bin".to_owned(), conf_dir: "/etc/cni/net.d".to_owned() }
    }
}

/// Returns the namespace, the permissions and the DaemonSet of the node agents.
pub(super) fn cni_objects(options: &InstallOptions, network: &NodeNetwork) -> Vec<Value> {
    let subjects = json!([{"kind": "ServiceAccount", "name": CNI, "namespace": CNI}]);
    let role_reference = |kind: &str| json!({"apiGroup": RBAC_GROUP, "kind": kind, "name": CNI});
    let rbac_version = format!("{RBAC_GROUP}/v1");
    vec![
        cni_namespace(),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": cni_metadata()}),
        json!({
            "apiVersion": rbac_version,
            "kind": "ClusterRole",
            "metadata": cluster_metadata(CNI),
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": rbac_version,
            "kind": "ClusterRoleBinding",
            "metadata": cluster_metadata(CNI),
            "roleRef": role_reference("ClusterRole"),
            "subjects": subjects,
        }),
        json!({
            "apiVersion": rbac_version,
            "kind": "Role",
            "metadata": cni_metadata(),
            "rules": [{
                "apiGroups": ["apps"],
                "resources": ["daemonsets"],
                "resourceNames": [CNI],
                "verbs": ["get"],
            }],
        }),
        json!({
            "apiVersion": rbac_version,
            "kind": "RoleBinding",
            "metadata": cni_metadata(),
            "roleRef": role_reference("Role"),
            "subjects": subjects,
        }),
        daemon_set(options, network),
    ]
}

/// Returns the namespace of the node agents, separate from the control plane's: its pods access their nodes,
/// which the control plane's namespace forbids.
fn cni_namespace() -> Value {
    let mut metadata = cluster_metadata(CNI);
    metadata["labels"]["pod-security.kubernetes.io/enforce"] = json!("privileged");
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
}

fn cni_metadata() -> Value {
    let mut metadata = cluster_metadata(CNI);
    metadata["namespace"] = json!(CNI);
    metadata
}

/// Returns the DaemonSet of the node agents.
fn daemon_set(options: &InstallOptions, network: &NodeNetwork) -> Value {
    let mut pod_labels = common_labels();
    pod_labels.insert("app.kubernetes.io/name".to_owned(), CNI.into());
    let host_path_volume = |name: &str, path: &str, kind: &str| json!({"name": name, "hostPath": {"path": path, "type": kind}});
    let exclude_namespaces = format!("kube-system,{},{CNI}", options.namespace);
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": cni_metadata(),
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": CNI}},
            "template": {
                "metadata": {"labels": pod_labels},
                "spec": {
                    "serviceAccountName": CNI,
                    // The agent must not depend on the pod network that it helps to set up.
                    "hostNetwork": true,
                    "dnsPolicy": "Default",
                    "priorityClassName": "system-node-critical",
                    "tolerations": [{"operator": "Exists"}],
                    "terminationGracePeriodSeconds": 10,
                    "containers": [{
                        "name": CNI,
                        "image": options.image,
                        "args": [
                            "cni", "node",
                            "--bin-dir", "/node/bin",
                            "--conf-dir", "/node/net.d",
                            "--exclude-namespaces", exclude_namespaces,
                            "--daemon-set", format!("{CNI}/{CNI}"),
                        ],
                        "resources": {
                            "requests": {"cpu": "10m", "memory": "16Mi"},
                            "limits": {"memory": "128Mi"},
                        },
                        // The files of the node belong to root.
                        "securityContext": {
                            "runAsUser": 0,
                            "runAsGroup": 0,
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"]},
                            "seccompProfile": {"type": "RuntimeDefault"},
                        },
                        "volumeMounts": [
                            {"name": "bin", "mountPath": "/node/bin"},
                            {"name": "conf", "mountPath": "/node/net.d"},
                            {"name": "run", "mountPath": "/run/leno"},
                        ],
                    }],
                    "volumes": [
                        host_path_volume("bin", &network.bin_dir, "Directory"),
                        host_path_volume("conf", &network.conf_dir, "Directory"),
                        host_path_volume("run", "/run/leno", "DirectoryOrCreate"),
                    ],
                },
            },
        },
    })
}

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
