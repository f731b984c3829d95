//! Builds the manifests of one gateway: a ServiceAccount, a Service, a Deployment of proxies, and a
//! PodDisruptionBudget.

use leno_model::{GATEWAY_LABEL, GatewayName};
use serde_json::{Map, Value, json};

use super::resolve::DesiredGateway;
use crate::inject::{
    InjectionSettings, STATE_DIRECTORY, http_probe, restricted_context, scrape_annotations,
    sidecar_volumes, token_directory,
};
use crate::well_known::{
    GATEWAY_PART, HEALTH_PORT, INJECTION, MESHED, MESHED_BY_GATEWAY, PROXY_CONTAINER, PROXY_UID,
    ROOTS_VARIABLE, TOKEN_PATH,
};

/// Returns the name of the Service, the Deployment and the PodDisruptionBudget of a gateway: the account of the
/// proxies without dots, which Service names cannot contain.
pub(super) fn object_name(account: &str) -> String {
    account.replace('.', "-")
}

/// Returns all objects of one gateway, in the order in which they are applied.
pub(super) fn gateway_manifests(
    gateway: &DesiredGateway,
    settings: &InjectionSettings,
) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": account_metadata(gateway, &gateway.account),
            "automountServiceAccountToken": false,
        }),
        gateway_service(gateway),
        gateway_deployment(gateway, settings),
        disruption_budget(gateway),
    ]
}

/// Returns a PodDisruptionBudget that allows the eviction of one pod at a time. Even with a single replica it never
/// blocks an eviction.
fn disruption_budget(gateway: &DesiredGateway) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned_metadata(gateway, &object_name(&gateway.account)),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": pod_selector(gateway)}},
    })
}

/// Returns the Service of a gateway, with its listener ports.
fn gateway_service(gateway: &DesiredGateway) -> Value {
    let port = |port: &u16| {
        json!({
            "name": format!("port-{port}"), "port": port, "targetPort": port, "protocol": "TCP",
        })
    };
    let ports: Vec<Value> = gateway.ports.iter().map(port).collect();
    let mut spec = json!({
        "type": gateway.service_type,
        "selector": pod_selector(gateway),
        "ipFamilyPolicy": "PreferDualStack",
        "ports": ports,
    });
    if let Some(address) = &gateway.address
        && gateway.service_type == "LoadBalancer"
    {
        spec["loadBalancerIP"] = json!(address);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(gateway, &object_name(&gateway.account)),
        "spec": spec,
    })
}

/// Returns the Deployment of a gateway's proxies.
fn gateway_deployment(gateway: &DesiredGateway, settings: &InjectionSettings) -> Value {
    let name = object_name(&gateway.account);
    let mut labels = merged_labels(gateway);
    labels.insert(MESHED.to_owned(), MESHED_BY_GATEWAY.into());
    labels.insert(INJECTION.to_owned(), "disabled".into());
    // Annotations of the cluster's own domains affect pods, which permission to write Gateways must not allow.
    let mut annotations = author_annotations(gateway);
    annotations.retain(|key, _| !belongs_to_domains(key, &CLUSTER_DOMAINS));
    if settings.metrics_from.is_some() {
        for (key, value) in scrape_annotations() {
            annotations.entry(key).or_insert(value.into());
        }
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owned_metadata(gateway, &name),
        // The number of replicas is left to the user or an autoscaler; the default is one.
        "spec": {
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": pod_selector(gateway)},
            "strategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": {
                    "serviceAccountName": gateway.account,
                    "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": 40,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": pod_selector(gateway)},
                    }],
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": PROXY_UID,
                        "runAsGroup": PROXY_UID,
                        "seccompProfile": {"type": "RuntimeDefault"},
                        // Allows the proxy to listen on 80 and 443 without privileges.
                        "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}],
                    },
                    "containers": [proxy_container(settings)],
                    "volumes": sidecar_volumes(),
                },
            },
        },
    })
}

/// Returns the container of a gateway's proxy.
fn proxy_container(settings: &InjectionSettings) -> Value {
    let field_variable = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
    let mut args = json!([
        "gateway",
        "--workload",
        "$(POD_NAMESPACE)/$(POD_NAME)",
        "--control",
        settings.control_address,
        "--trust-domain",
        settings.trust_domain.to_string(),
        "--service-account-token",
        TOKEN_PATH,
        "--state",
        STATE_DIRECTORY,
        "--health",
        format!("[::]:{HEALTH_PORT}"),
        // Nodes learn about the termination of the pod with a delay.
        "--drain-delay",
        "5s",
    ]);
    if let (Some(args), Some(clients)) = (args.as_array_mut(), &settings.metrics_from) {
        args.push(format!("--metrics-from={clients}").into());
    }
    json!({
        "name": PROXY_CONTAINER,
        "image": settings.image,
        "args": args,
        "env": [
            field_variable("POD_NAME", "metadata.name"),
            field_variable("POD_NAMESPACE", "metadata.namespace"),
            {"name": ROOTS_VARIABLE, "value": settings.roots},
        ],
        "ports": [{"name": "leno-health", "containerPort": HEALTH_PORT, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": restricted_context(PROXY_UID),
        // Allows 60 seconds for the start.
        "startupProbe": http_probe("/livez", 1, 60),
        "readinessProbe": http_probe("/readyz", 1, 3),
        "livenessProbe": http_probe("/livez", 10, 3),
        "volumeMounts": [
            {"name": "leno-state", "mountPath": "/var/lib/leno"},
            {"name": "leno-token", "mountPath": token_directory(), "readOnly": true},
        ],
    })
}

/// Returns metadata with the gateway as the owner, so that the object is deleted with it.
fn owned_metadata(gateway: &DesiredGateway, name: &str) -> Value {
    let GatewayName { namespace, name: gateway_name } = &gateway.name;
    json!({
        "name": name,
        "namespace": namespace.as_str(),
        "labels": merged_labels(gateway),
        "annotations": author_annotations(gateway),
        "ownerReferences": [{
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "name": gateway_name.as_str(),
            "uid": gateway.uid,
            "controller": true,
        }],
    })
}

/// Returns the metadata of the account, without labels and annotations of the Gateway's author, because annotations
/// of an account can grant permissions in clouds. Of the gateway's own labels, the account has only
/// [`GATEWAY_PART`], by which the objects of gateways are listed for removal.
fn account_metadata(gateway: &DesiredGateway, name: &str) -> Value {
    let mut metadata = owned_metadata(gateway, name);
    metadata["labels"] = json!({
        "app.kubernetes.io/part-of": "leno",
        GATEWAY_PART: gateway.name.name.as_str(),
    });
    metadata["annotations"] = json!({});
    metadata
}

/// Returns true if the key of a label or annotation belongs to one of these domains.
pub(super) fn belongs_to_domains(key: &str, domains: &[&str]) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return false };
    let is_in_domain = |domain: &&str| {
        prefix
            .strip_suffix(*domain)
            .is_some_and(|subdomain| subdomain.is_empty() || subdomain.ends_with('.'))
    };
    domains.iter().any(is_in_domain)
}

/// Returns the labels of the Gateway's author, overridden by Leno's labels.
fn merged_labels(gateway: &DesiredGateway) -> Map<String, Value> {
    let author_labels =
        gateway.labels.iter().map(|(key, value)| (key.clone(), value.as_str().into()));
    let mut labels: Map<String, Value> = author_labels.collect();
    labels.insert("app.kubernetes.io/part-of".to_owned(), "leno".into());
    labels.extend(pod_selector(gateway));
    labels
}

/// Returns the annotations of the Gateway's author.
fn author_annotations(gateway: &DesiredGateway) -> Map<String, Value> {
    gateway.annotations.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect()
}

fn pod_selector(gateway: &DesiredGateway) -> Map<String, Value> {
    let name = gateway.name.name.as_str();
    let pair = |key: &str| (key.to_owned(), Value::from(name));
    Map::from_iter([pair(GATEWAY_LABEL), pair(GATEWAY_PART)])
}

/// The domains of labels and annotations that the cluster itself interprets.
pub(super) const CLUSTER_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leno_model::TrustDomain;

    use super::*;

    #[test]
    fn manifests_of_a_gateway_match_the_golden_file() {
        let gateway = DesiredGateway {
            name: "shop/edge".parse().unwrap(),
            account: "leno-gateway-edge".to_owned(),
            uid: "u-1".to_owned(),
            ports: vec![80, 443],
            labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
            annotations: ["note", "service.beta.kubernetes.io/internal"]
                .map(|key| (key.to_owned(), "b".to_owned()))
                .into(),
            service_type: "LoadBalancer",
            address: None,
            is_incomplete: true,
        };
        let domain = TrustDomain::new("cluster.local").unwrap();
        let (image, system) =
            ("leno:test".to_owned(), crate::api::NamespaceName::from_literal("leno-system"));
        let metrics_from = "10.0.0.0/8".parse().ok();
        let settings = InjectionSettings::new(image, system, domain, "ROOTS".to_owned());
        let settings = InjectionSettings { metrics_from, ..settings };
        let text = format!("{:#}\n", json!(gateway_manifests(&gateway, &settings)));
        expect_test::expect_file!["golden/gateway.json"].assert_eq(&text);
    }
}
