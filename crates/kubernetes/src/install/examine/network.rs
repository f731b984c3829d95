//! Checks the node agents of the CNI plugin against the options of the control plane, for `leno check`.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Client, ResourceExt};

use super::{ExamineResult, MAX_EXAMINED_NODES, summarize_names, unreadable_finding};
use crate::api::{ApiError, NamespaceName, ObjectApi};
use crate::install::InstalledOptions;
use crate::well_known::{CNI, CNI_NAME, CNI_NAMESPACE};

/// Checks the node agents, if the control plane relies on them.
pub(super) async fn check_agents(
    client: &Client,
    namespace: &NamespaceName,
    control_plane: &Deployment,
) -> ExamineResult {
    let uses_plugin = InstalledOptions::from_deployment(control_plane).cni;
    let daemon_sets: ObjectApi<DaemonSet> =
        ObjectApi::for_namespace(client.clone(), &CNI_NAMESPACE);
    let daemon_set = match daemon_sets.get_opt(&CNI_NAME).await {
        Ok(daemon_set) => daemon_set,
        Err(error) => return unreadable_finding(&error),
    };
    match (uses_plugin, daemon_set) {
        (false, None) => ExamineResult::Passed(
            "init containers of pods redirect connections to sidecars".to_owned(),
        ),
        (false, Some(_)) => ExamineResult::warning(
            format!(
                "agents run on nodes (DaemonSet {CNI}/{CNI}), and the control plane does not use them"
            ),
            format!(
                "`leno install -n {namespace} --cni --apply` uses them; `kubectl -n {CNI} delete \
                 daemonset {CNI}` removes them"
            ),
        ),
        (true, None) => ExamineResult::failure(
            format!(
                "the control plane has --cni, and there is no DaemonSet {CNI}/{CNI}: pods stay in Init"
            ),
            format!("run `leno install -n {namespace} --cni --apply`"),
        ),
        (true, Some(daemon_set)) => check_agent_readiness(client, &daemon_set).await,
    }
}

/// Checks that every agent is ready. The finding names the nodes without a ready agent.
async fn check_agent_readiness(client: &Client, daemon_set: &DaemonSet) -> ExamineResult {
    let status = daemon_set.status.clone().unwrap_or_default();
    let (desired_count, ready_count) = (status.desired_number_scheduled, status.number_ready);
    if ready_count >= desired_count {
        return ExamineResult::Passed(format!("{ready_count} agents of {desired_count} are ready"));
    }
    let nodes_without_agent = match nodes_without_ready_agent(client).await {
        Ok(nodes_without_agent) => nodes_without_agent,
        Err(error) => return unreadable_finding(&error),
    };
    let nodes = match nodes_without_agent.as_slice() {
        [] => String::new(),
        nodes => format!("; there is none on {}", summarize_names(nodes)),
    };
    ExamineResult::failure(
        format!(
            "{ready_count} agents of {desired_count} are ready{nodes}: pods do not start on those nodes"
        ),
        format!("see `kubectl -n {CNI} get pods -o wide` and their logs"),
    )
}

/// Returns the nodes without a ready agent.
async fn nodes_without_ready_agent(client: &Client) -> Result<Vec<String>, ApiError> {
    let node_api: ObjectApi<Node> = ObjectApi::for_all_namespaces(client.clone());
    let nodes = node_api.list_metadata(&ListParams::default().limit(MAX_EXAMINED_NODES)).await?;
    let pod_api: ObjectApi<Pod> = ObjectApi::for_namespace(client.clone(), &CNI_NAMESPACE);
    let agent_selector = ListParams::default().labels(&format!("app.kubernetes.io/name={CNI}"));
    let pods = pod_api.list(&agent_selector).await?;
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let nodes_with_agent: BTreeSet<String> = pods
        .items
        .into_iter()
        .filter(is_ready)
        .filter_map(|pod| pod.spec.and_then(|spec| spec.node_name))
        .collect();
    let names = nodes.items.iter().map(ResourceExt::name_any);
    let mut nodes_without_agent: Vec<String> =
        names.filter(|name| !nodes_with_agent.contains(name)).collect();
    nodes_without_agent.sort_unstable();
    Ok(nodes_without_agent)
}
