//! Builds the objects of the control plane: its namespace, Services, Deployment, PodDisruptionBudget, and the
//! ConfigMap with the client CA certificates of the webhook.

use leno_model::Name;
use serde_json::{Value, json};

use super::{InstallOptions, cluster_metadata, common_labels, namespaced_metadata, pod_selector};
use crate::well_known::{
    CONTROL, CONTROL_PEERS, CONTROL_PORT, HEALTH_PORT, KEYS_CONFIG_MAP, PAGE_PORT, PROXY_UID,
    WEBHOOK_PORT,
};

/// Returns the namespace, which allows only pods without privileges.
pub(super) fn control_namespace(options: &InstallOptions) -> Value {
    let mut metadata = cluster_metadata(&options.namespace);
    for mode in ["enforce", "audit", "warn"] {
        metadata["labels"][format!("pod-security.kubernetes.io/{mode}")] = json!("restricted");
    }
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
}

/// Returns the Services and the Deployment of the control plane, its PodDisruptionBudget, and the client CA
/// certificates of the webhook.
pub(super) fn control_plane_objects(options: &InstallOptions) -> Vec<Value> {
    let disruption_budget = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": namespaced_metadata(CONTROL, options),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": pod_selector()}},
    });
    let mut objects = vec![control_service(options), peer_service(options)];
    if let Some(certificates) = &options.webhook_client_ca {
        objects.push(json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": namespaced_metadata(WEBHOOK_CLIENTS, options),
            "data": {CLIENT_CA_KEY: certificates},
        }));
    }
    // With one replica, the budget would block every drain of its node.
    if options.replicas > 1 {
        objects.push(disruption_budget);
    }
    objects.push(control_deployment(options));
    objects
}

fn control_service(options: &InstallOptions) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": namespaced_metadata(CONTROL, options),
        "spec": {
            "selector": pod_selector(),
            "ports": [
                {"name": "control", "port": CONTROL_PORT, "targetPort": "control", "protocol": "TCP"},
                {"name": "webhook", "port": 443, "targetPort": "webhook", "protocol": "TCP"},
            ],
        },
    })
}

/// Returns the headless Service by which control planes discover each other, including those that are not
/// ready.
fn peer_service(options: &InstallOptions) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": namespaced_metadata(CONTROL_PEERS, options),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": pod_selector(),
            "ports": [
                {"name": "control", "port": CONTROL_PORT, "targetPort": "control", "protocol": "TCP"},
            ],
        },
    })
}

/// Returns the volumes and volume mounts of a control plane.
fn volumes_and_mounts(options: &InstallOptions) -> (Vec<Value>, Vec<Value>) {
    let mut volumes = vec![
        json!({"name": "state", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}),
        json!({"name": "keys", "configMap": {"name": KEYS_CONFIG_MAP, "optional": true}}),
    ];
    // All users may write to a volume, which root owns. The control plane therefore keeps its files in a directory
    // of its own within the volume.
    let mut mounts = vec![
        json!({"name": "state", "mountPath": "/var/lib/leno"}),
        json!({"name": "keys", "mountPath": KEYS_PATH, "readOnly": true}),
    ];
    if options.webhook_client_ca.is_some() {
        volumes.push(json!({"name": "webhook-clients", "configMap": {"name": WEBHOOK_CLIENTS}}));
        mounts.push(
            json!({"name": "webhook-clients", "mountPath": WEBHOOK_CLIENTS_PATH, "readOnly": true}),
        );
    }
    (volumes, mounts)
}

/// Returns the Deployment of the control plane, whose pods are spread over nodes and zones.
fn control_deployment(options: &InstallOptions) -> Value {
    let mut metadata = namespaced_metadata(CONTROL, options);
    if !options.network_policies {
        metadata["annotations"] = json!({NETWORK_POLICIES_ANNOTATION: "false"});
    }
    let (volumes, mounts) = volumes_and_mounts(options);
    // Spread only pods of one release: those of the previous one are about to terminate. Nodes that accept no
    // pods do not count. With one node the skew is never above 1, so all pods are scheduled there.
    let spread_constraint = |key: &str, when_unsatisfiable: &str| {
        json!({
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": when_unsatisfiable,
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {"matchLabels": pod_selector()},
            "matchLabelKeys": ["pod-template-hash"],
        })
    };
    // The nodes may have no room for an additional pod, so one of several old pods may terminate first.
    let max_unavailable = u32::from(options.replicas > 1);
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": options.replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": pod_selector()},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": max_unavailable, "maxSurge": 1}},
            "template": {
                "metadata": {
                    "labels": common_labels(),
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
                        spread_constraint("kubernetes.io/hostname", "DoNotSchedule"),
                        spread_constraint("topology.kubernetes.io/zone", "ScheduleAnyway"),
                    ],
                    "containers": [control_container(options, mounts)],
                    "volumes": volumes,
                },
            },
        },
    })
}

/// Returns the container of a control plane.
fn control_container(options: &InstallOptions, mounts: Vec<Value>) -> Value {
    let field_variable = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
    let build_probe = |path: &str, period_seconds: u32| {
        json!({
            "httpGet": {"path": path, "port": "health"},
            "periodSeconds": period_seconds,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        })
    };
    // Allows 60 seconds for the start.
    let mut startup_probe = build_probe("/livez", 1);
    startup_probe["failureThreshold"] = json!(60);
    json!({
        "name": CONTROL,
        "image": options.image,
        "args": container_arguments(options),
        "env": [
            field_variable("POD_NAME", "metadata.name"),
            field_variable("POD_NAMESPACE", "metadata.namespace"),
            field_variable("POD_IP", "status.podIP"),
            {"name": "LENO_IMAGE", "value": options.image},
            {"name": "LENO_TRUST_DOMAIN", "value": options.trust_domain.to_string()},
        ],
        "ports": [
            {"name": "control", "containerPort": CONTROL_PORT, "protocol": "TCP"},
            {"name": "webhook", "containerPort": WEBHOOK_PORT, "protocol": "TCP"},
            {"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
        ],
        "startupProbe": startup_probe,
        "readinessProbe": build_probe("/readyz", 2),
        "livenessProbe": build_probe("/livez", 10),
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    })
}

/// Returns the arguments of `leno control` for these options.
fn container_arguments(options: &InstallOptions) -> Vec<String> {
    let mut args = [
        "control",
        "--kubernetes",
        "--listen",
        &format!("[::]:{CONTROL_PORT}"),
        "--health",
        &format!("[::]:{HEALTH_PORT}"),
        "--webhook",
        &format!("[::]:{WEBHOOK_PORT}"),
        "--page",
        &format!("127.0.0.1:{PAGE_PORT}"),
        "--data",
        "/var/lib/leno/control",
        // The image has no system trust roots.
        "--jwks-ca",
        &format!("{KEYS_PATH}/roots.pem"),
        "--jwks-files",
        KEYS_PATH,
    ]
    .map(str::to_owned)
    .to_vec();
    if options.cni.is_some() {
        args.push("--cni".to_owned());
    }
    if options.gateways {
        args.push("--gateways".to_owned());
    }
    for (option, namespaces) in [
        (ACCESS_CERTS_OPTION, &options.access_certs),
        (SETTINGS_NAMESPACES_OPTION, &options.settings_namespaces),
    ] {
        let namespaces: Vec<&str> = namespaces.iter().map(Name::as_str).collect();
        if !namespaces.is_empty() {
            args.push(format!("{option}{}", namespaces.join(",")));
        }
    }
    if options.webhook_client_ca.is_some() {
        args.push(format!("{CLIENT_CA_OPTION}{WEBHOOK_CLIENTS_PATH}/{CLIENT_CA_KEY}"));
    }
    let lists =
        [(JWKS_ALLOW_OPTION, &options.jwks_allow), (METRICS_FROM_OPTION, &options.metrics_from)];
    for (option, list) in lists {
        args.extend(list.as_ref().map(|list| format!("{option}{list}")));
    }
    args
}

/// The option with the namespaces in which Secrets may be written.
pub(super) const ACCESS_CERTS_OPTION: &str = "--access-certs=";
/// The option with the file of client CA certificates of the webhook.
pub(super) const CLIENT_CA_OPTION: &str = "--webhook-client-ca=";
/// The ConfigMap with the client CA certificates of the webhook.
pub(super) const WEBHOOK_CLIENTS: &str = "leno-webhook-clients";
/// The key of the client CA certificates in their ConfigMap.
pub(super) const CLIENT_CA_KEY: &str = "ca.pem";
/// The mount path of [`WEBHOOK_CLIENTS`].
const WEBHOOK_CLIENTS_PATH: &str = "/etc/leno/webhook-clients";
/// An annotation of the Deployment: `false` disables NetworkPolicies, also in later installations.
pub(super) const NETWORK_POLICIES_ANNOTATION: &str = "leno.dev/network-policies";
/// The option with the namespaces that may have mesh-wide objects.
pub(super) const SETTINGS_NAMESPACES_OPTION: &str = "--settings-namespaces=";
/// The option with the allowed JWKS servers.
pub(super) const JWKS_ALLOW_OPTION: &str = "--jwks-allow=";
/// The option with the clients that may read metrics of sidecars and gateways.
pub(super) const METRICS_FROM_OPTION: &str = "--metrics-from=";
/// The mount path of [`KEYS_CONFIG_MAP`].
const KEYS_PATH: &str = "/etc/leno/keys";
