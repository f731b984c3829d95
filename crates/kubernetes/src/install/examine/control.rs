//! Checks the control plane, for `leno check`: its namespace, its pods and their nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use kube::api::ListParams;
use kube::{Client, ResourceExt as _};

use super::{ExamineResult, summarize_names, unreadable_finding};
use crate::api::{NamespaceName, ObjectApi};
use crate::install::apply::describe_incomplete_rollout;
use crate::install::{PART_OF, PART_OF_LABEL};
use crate::well_known::{CONTROL, CONTROL_NAME, SYSTEM_NAMESPACE};

/// Finds the control plane of a namespace, or the only control plane of the cluster.
pub(super) async fn find_control_plane(
    client: &Client,
    namespace: Option<&NamespaceName>,
) -> Result<(NamespaceName, Deployment), ExamineResult> {
    let Some(namespace) = namespace else { return find_in_cluster(client).await };
    let deployments: ObjectApi<Deployment> = ObjectApi::for_namespace(client.clone(), namespace);
    match deployments.get_opt(&CONTROL_NAME).await {
        Ok(Some(deployment)) => Ok((namespace.clone(), deployment)),
        Ok(None) => Err(ExamineResult::warning(
            format!("there is none in {namespace}"),
            format!("`leno install -n {namespace} --apply` installs it"),
        )),
        Err(error) => Err(unreadable_finding(&error)),
    }
}

/// Finds the only control plane of the cluster. Several control planes are a failure, because they share the
/// CustomResourceDefinitions and the webhook configuration.
async fn find_in_cluster(client: &Client) -> Result<(NamespaceName, Deployment), ExamineResult> {
    let api: ObjectApi<Deployment> = ObjectApi::for_all_namespaces(client.clone());
    let selector = format!("app.kubernetes.io/name={CONTROL},{PART_OF_LABEL}={PART_OF}");
    let deployments = match api.list(&ListParams::default().labels(&selector)).await {
        Ok(deployments) => deployments.items,
        // Without permission to list all namespaces, check the default one.
        Err(error) if error.status_code() == Some(FORBIDDEN) => {
            return Box::pin(find_control_plane(client, Some(&DEFAULT_NAMESPACE))).await;
        }
        Err(error) => return Err(unreadable_finding(&error)),
    };
    let mut control_planes =
        deployments.into_iter().filter(|deployment| deployment.name_any() == CONTROL);
    let other_namespaces: Vec<String>;
    match (control_planes.next(), control_planes) {
        (None, _) => {
            Err(ExamineResult::warning("there is none", "`leno install --apply` installs it"))
        }
        (Some(control_plane), other_control_planes) => {
            other_namespaces =
                other_control_planes.filter_map(|deployment| deployment.namespace()).collect();
            let namespace = control_plane.namespace().unwrap_or_default();
            match other_namespaces.as_slice() {
                [] => match NamespaceName::new(&namespace) {
                    Ok(namespace) => Ok((namespace, control_plane)),
                    Err(error) => Err(unreadable_finding(&error.into())),
                },
                other_namespaces => Err(ExamineResult::failure(
                    format!(
                        "there is one in each of the namespaces {namespace}, {}, and they share \
                         CRDs and webhook",
                        other_namespaces.join(", ")
                    ),
                    "name one with -n, and uninstall the others",
                )),
            }
        }
    }
}

/// Checks that all pods of the control plane are available.
pub(super) fn check_availability(namespace: &str, deployment: &Deployment) -> ExamineResult {
    match describe_incomplete_rollout(deployment) {
        None => ExamineResult::Passed(format!("all pods are ready, in {namespace}")),
        Some(rollout_state) => ExamineResult::failure(
            rollout_state,
            format!("see `kubectl -n {namespace} describe pods` and their logs"),
        ),
    }
}

/// Checks that the control planes run on different nodes if enough nodes accept them.
pub(super) async fn check_spread(client: &Client, namespace: &NamespaceName) -> ExamineResult {
    let pod_api: ObjectApi<Pod> = ObjectApi::for_namespace(client.clone(), namespace);
    let running_pod_filter = ListParams::default()
        .labels(&format!("app.kubernetes.io/name={CONTROL},{PART_OF_LABEL}={PART_OF}"))
        .fields("status.phase=Running");
    let node_api: ObjectApi<Node> = ObjectApi::for_all_namespaces(client.clone());
    let pods = match pod_api.list(&running_pod_filter).await {
        Ok(pods) => pods.items,
        Err(error) => return unreadable_finding(&error),
    };
    match node_api.list(&ListParams::default()).await {
        Ok(nodes) => compare_nodes(namespace, &pods, &nodes.items),
        Err(error) => unreadable_finding(&error),
    }
}

/// Compares the nodes of the control plane's pods with all nodes. A shared node causes a warning if another
/// node accepts the pods.
fn compare_nodes(namespace: &str, pods: &[Pod], nodes: &[Node]) -> ExamineResult {
    let running_pods = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let mut pods_by_node: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in running_pods {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        pods_by_node.entry(node.unwrap_or_default()).or_default().push(pod.name_any());
    }
    let node_selector = pods.iter().find_map(|pod| pod.spec.as_ref()?.node_selector.clone());
    let node_selector = node_selector.unwrap_or_default();
    let tolerations = pods.iter().find_map(|pod| pod.spec.as_ref()?.tolerations.clone());
    let tolerations = tolerations.unwrap_or_default();
    let accepts_pods = |node: &&Node| {
        let spec = node.spec.as_ref();
        let mut taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
        let status = node.status.as_ref();
        let mut conditions =
            status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
            && !is_cordoned
            && node_selector.iter().all(|(key, value)| node.labels().get(key) == Some(value))
            && taints.all(|taint| {
                taint.effect == "PreferNoSchedule"
                    || tolerations.iter().any(|toleration| tolerates(toleration, taint))
            })
    };
    let unused_nodes = nodes.iter().filter(accepts_pods).map(|node| node.name_any());
    let unused_nodes: Vec<String> =
        unused_nodes.filter(|name| !pods_by_node.contains_key(name.as_str())).collect();
    let shared_node = pods_by_node.iter().find(|(_, pods)| pods.len() > 1);
    match (shared_node, unused_nodes.first()) {
        (Some((node, pods)), Some(_)) => ExamineResult::warning(
            format!(
                "{} of them share the node {node}, and {} could run one: a failure of {node} stops \
                 all of them",
                pods.len(),
                summarize_names(&unused_nodes)
            ),
            format!("delete one: `kubectl -n {namespace} delete pod {}`", pods[0]),
        ),
        (Some((node, pods)), None) => ExamineResult::Passed(format!(
            "{} share the node {node}, and no other node can run them",
            pods.len()
        )),
        (None, _) => ExamineResult::Passed(format!("on {} nodes", pods_by_node.len())),
    }
}

/// Returns true if a toleration matches a taint. Without an effect or key, it matches all effects or keys.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let matches_effect =
        toleration.effect.as_ref().is_none_or(|text| text.is_empty() || *text == taint.effect);
    let matches_key =
        toleration.key.as_ref().is_none_or(|text| text.is_empty() || *text == taint.key);
    let matches_value = toleration.operator.as_deref() == Some("Exists")
        || toleration.value.as_deref().unwrap_or_default()
            == taint.value.as_deref().unwrap_or_default();
    matches_effect && matches_key && matches_value
}

const FORBIDDEN: u16 = 403;
const DEFAULT_NAMESPACE: NamespaceName = NamespaceName::from_literal(SYSTEM_NAMESPACE);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node_with_spec(name: &str, spec: Value, ready: &str) -> Node {
        let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
        let node = json!({"metadata": {"name": name}, "spec": spec, "status": status});
        serde_json::from_value(node).unwrap()
    }

    fn pod_on_node(name: &str, node: &str) -> Pod {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": []}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn replicas_that_share_a_node_are_reported_if_another_node_is_free() {
        let (first, second) =
            (node_with_spec("n1", json!({}), "True"), node_with_spec("n2", json!({}), "True"));
        let pods_on_one_node = [pod_on_node("a", "n1"), pod_on_node("b", "n1")];
        let check = |pods: &[Pod], nodes: &[Node], is_passed: bool, expected: &str| {
            let finding = compare_nodes("leno-system", pods, nodes);
            assert_eq!(matches!(finding, ExamineResult::Passed(_)), is_passed, "{finding}");
            assert!(finding.to_string().contains(expected), "{finding}");
        };
        let nodes = [first.clone(), second.clone()];
        check(
            &pods_on_one_node,
            &nodes,
            false,
            "2 of them share the node n1, and n2 could run one",
        );
        check(&[pod_on_node("a", "n1"), pod_on_node("b", "n2")], &nodes, true, "on 2 nodes");
        check(&pods_on_one_node, std::slice::from_ref(&first), true, "no other node can run them");
        for other in [
            node_with_spec("n2", json!({}), "False"),
            node_with_spec("n2", json!({"unschedulable": true}), "True"),
            node_with_spec(
                "n2",
                json!({"taints": [{"key": "gpu", "effect": "NoSchedule"}]}),
                "True",
            ),
        ] {
            check(&pods_on_one_node, &[first.clone(), other], true, "no other node can run them");
        }
    }
}
