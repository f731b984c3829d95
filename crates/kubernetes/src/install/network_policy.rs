//! Builds the NetworkPolicy of the control plane, which limits the clients of each port.

use serde_json::{Value, json};

use super::{InstallOptions, namespaced_metadata, pod_selector};
use crate::inject::AddressRange;
use crate::well_known::{CONTROL, CONTROL_PORT, HEALTH_PORT, MESHED, WEBHOOK_PORT};

/// Returns the policy of the control plane. Node agents use the host network, which no policy selects.
///
/// API servers often are not pods, and only the operator of the cluster knows their addresses: without
/// `api_server` ranges, the webhook's port stays open to all clients. The kubelet's probes come from the node
/// of the pod, which is always permitted.
pub(super) fn policy_object(options: &InstallOptions) -> Value {
    let mut webhook_rule = json!({"ports": [tcp_port(WEBHOOK_PORT)]});
    if !options.api_server.is_empty() {
        webhook_rule["from"] = options.api_server.iter().map(ip_block).collect();
    }
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": namespaced_metadata(CONTROL, options),
        "spec": {
            "podSelector": {"matchLabels": pod_selector()},
            "policyTypes": ["Ingress"],
            "ingress": [
                webhook_rule,
                // Sidecars and gateways of every namespace, and the other control planes.
                {
                    "ports": [tcp_port(CONTROL_PORT)],
                    "from": [
                        {
                            "namespaceSelector": {},
                            "podSelector": {"matchExpressions": [{"key": MESHED, "operator": "Exists"}]},
                        },
                        {"podSelector": {"matchLabels": pod_selector()}},
                    ],
                },
                // Prometheus, in any namespace.
                {"ports": [tcp_port(HEALTH_PORT)], "from": [{"namespaceSelector": {}}]},
            ],
        },
    })
}

fn tcp_port(number: u16) -> Value {
    json!({"port": number, "protocol": "TCP"})
}

/// Returns the peer for a range. A single address becomes a range of one address.
fn ip_block(range: &AddressRange) -> Value {
    let range_text = range.to_string();
    let cidr = match (range_text.contains('/'), range_text.contains(':')) {
        (true, _) => range_text,
        (false, false) => format!("{range_text}/32"),
        (false, true) => format!("{range_text}/128"),
    };
    json!({"ipBlock": {"cidr": cidr}})
}
