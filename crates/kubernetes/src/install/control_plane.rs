//! The control plane: its namespace, its pods, and how they are reached.

use leno_model::Name;
use serde_json::{Value, json};

use super::{Options, cluster_metadata, labels, metadata, selector};
use crate::words::{
    CONTROL, CONTROL_PEERS, CONTROL_PORT, HEALTH_PORT, KEYS_CONFIG_MAP, PAGE_PORT, PROXY_UID,
    WEBHOOK_PORT,
};

/// Only pods that need no privileges may be there.
pub(super) fn namespace(options: &Options) -> Value {
    let mut metadata = cluster_metadata(&options.namespace);
    for mode in ["enforce", "audit", "warn"] {
        metadata["labels"][format!("pod-security.kubernetes.io/{mode}")] = json!("restricted");
    }
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
}

/// Services, the Deployment, and how many of its pods stay when nodes are emptied.
pub(super) fn objects(options: &Options) -> Vec<Value> {
    let disruption = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(CONTROL, options),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": selector()}},
    });
    let mut objects = vec![service(options), peers(options)];
    // With one replica a node could never be emptied.
    if options.replicas > 1 {
        objects.push(disruption);
    }
    objects.push(deployment(options));
    objects
}

fn service(options: &Options) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(CONTROL, options),
        "spec": {
            "selector": selector(),
            "ports": [
                {"name": "control", "port": CONTROL_PORT, "targetPort": "control", "protocol": "TCP"},
                {"name": "webhook", "port": 443, "targetPort": "webhook", "protocol": "TCP"},
            ],
        },
    })
}

/// By which control planes find each other, also before they are ready.
fn peers(options: &Options) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(CONTROL_PEERS, options),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": selector(),
            "ports": [
                {"name": "control", "port": CONTROL_PORT, "targetPort": "control", "protocol": "TCP"},
            ],
        },
    })
}

fn deployment(options: &Options) -> Value {
    let spread = |key: &str| {
        json!({
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector()},
        })
    };
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(CONTROL, options),
        "spec": {
            "replicas": options.replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector()},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {
                    "labels": labels(),
                    "annotations": {
                        "prometheus.io/scrape": "true",
                        "prometheus.io/port": HEALTH_PORT.to_string(),
                        "prometheus.io/path": "/metrics",
                    },
                },
                "spec": {
                    "serviceAccountName": CONTROL,
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": PROXY_UID,
                        "runAsGroup": PROXY_UID,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "topologySpreadConstraints": [
                        spread("kubernetes.io/hostname"),
                        spread("topology.kubernetes.io/zone"),
                    ],
                    "containers": [container(options)],
                    "volumes": [
                        {"name": "state", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
                        {"name": "keys", "configMap": {"name": KEYS_CONFIG_MAP, "optional": true}},
                    ],
                },
            },
        },
    })
}

fn container(options: &Options) -> Value {
    let mut args = json!([
        "control",
        "--kubernetes",
        "--listen",
        format!("[::]:{CONTROL_PORT}"),
        "--health",
        format!("[::]:{HEALTH_PORT}"),
        "--webhook",
        format!("[::]:{WEBHOOK_PORT}"),
        "--page",
        format!("127.0.0.1:{PAGE_PORT}"),
        "--data",
        "/var/lib/leno/control",
        // The image has no roots of a system.
        "--key-roots",
        format!("{KEYS}/roots.pem"),
    ]);
    let wanted = [("--cni", options.cni.is_some()), ("--gateways", options.gateways)];
    for (word, _) in wanted.iter().filter(|(_, is_wanted)| *is_wanted) {
        if let Some(args) = args.as_array_mut() {
            args.push((*word).into());
        }
    }
    for (option, namespaces) in [
        (ACCESS_CERTS_OPTION, &options.access_certs),
        (SETTINGS_NAMESPACES_OPTION, &options.settings_namespaces),
    ] {
        let namespaces: Vec<&str> = namespaces.iter().map(Name::as_str).collect();
        if let Some(args) = args.as_array_mut().filter(|_| !namespaces.is_empty()) {
            args.push(format!("{option}{}", namespaces.join(",")).into());
        }
    }
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
    let probe = |path: &str, period: u32| {
        json!({
            "httpGet": {"path": path, "port": "health"},
            "periodSeconds": period,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        })
    };
    let mut startup = probe("/livez", 1);
    startup["failureThreshold"] = json!(60);
    json!({
        "name": CONTROL,
        "image": options.image,
        "args": args,
        "env": [
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_IP", "status.podIP"),
            {"name": "LENO_IMAGE", "value": options.image},
            {"name": "LENO_TRUST_DOMAIN", "value": options.trust_domain.to_string()},
        ],
        "ports": [
            {"name": "control", "containerPort": CONTROL_PORT, "protocol": "TCP"},
            {"name": "webhook", "containerPort": WEBHOOK_PORT, "protocol": "TCP"},
            {"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
        ],
        "startupProbe": startup,
        "readinessProbe": probe("/readyz", 2),
        "livenessProbe": probe("/livez", 10),
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        // A volume belongs to root, and everybody may write there: what is kept is in a directory of
        // its own within.
        "volumeMounts": [
            {"name": "state", "mountPath": "/var/lib/leno"},
            {"name": "keys", "mountPath": KEYS, "readOnly": true},
        ],
    })
}

/// What says in which namespaces Secrets may be written.
pub(super) const ACCESS_CERTS_OPTION: &str = "--access-certs=";
/// The option with the namespaces that may have objects about the whole mesh.
pub(super) const SETTINGS_NAMESPACES_OPTION: &str = "--settings-namespaces=";
/// Where the control plane finds [`KEYS_CONFIG_MAP`].
const KEYS: &str = "/etc/leno/keys";
