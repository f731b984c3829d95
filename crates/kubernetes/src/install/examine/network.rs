//! Redirection by the CNI plugin, compared with the options of the control plane.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Client, ResourceExt};

use super::{ExamineResult, NODES_MAX, summarize_names, unreadable_finding};
use crate::api::{ApiError, NamespaceName, ObjectApi};
use crate::install::Installed;
use crate::words::{CNI, CNI_NAME, CNI_NAMESPACE};

/// Checks the node agents, if the control plane relies on them.
pub(super) async fn check_agents(
    client: &Client,
    namespace: &NamespaceName,
    control: &Deployment,
) -> ExamineResult {
    let wanted = Installed::from_deployment(control).cni;
    let sets: ObjectApi<DaemonSet> = ObjectApi::for_namespace(client.clone(), &CNI_NAMESPACE);
    let set = match sets.get_opt(&CNI_NAME).await {
        Ok(set) => set,
        Err(error) => return unreadable_finding(&error),
    };
    match (wanted, set) {
        (false, None) => ExamineResult::Passed(
            "init containers of pods redirect connections to sidecars".to_owned(),
        ),
        (false, Some(_)) => ExamineResult::odd(
            format!(
                "agents run on nodes (DaemonSet {CNI}/{CNI}), and the control plane does not use them"
            ),
            format!(
                "`leno install -n {namespace} --cni --apply` uses them; `kubectl -n {CNI} delete \
                 daemonset {CNI}` removes them"
            ),
        ),
        (true, None) => ExamineResult::wrong(
            format!(
                "the control plane has --cni, and there is no DaemonSet {CNI}/{CNI}: pods stay in Init"
            ),
            format!("run `leno install -n {namespace} --cni --apply`"),
        ),
        (true, Some(set)) => check_running(client, &set).await,
    }
}

async fn check_running(client: &Client, set: &DaemonSet) -> ExamineResult {
    let status = set.status.clone().unwrap_or_default();
    let (wanted, ready) = (status.desired_number_scheduled, status.number_ready);
    if ready >= wanted {
        return ExamineResult::Passed(format!("{ready} agents of {wanted} are ready"));
    }
    let without = match without_agent(client).await {
        Ok(without) => without,
        Err(error) => return unreadable_finding(&error),
    };
    let places = match without.as_slice() {
        [] => String::new(),
        places => format!("; there is none on {}", summarize_names(places)),
    };
    ExamineResult::wrong(
        format!("{ready} agents of {wanted} are ready{places}: pods do not start on those nodes"),
        format!("see `kubectl -n {CNI} get pods -o wide` and their logs"),
    )
}

/// Returns the nodes without a ready agent.
async fn without_agent(client: &Client) -> Result<Vec<String>, ApiError> {
    let nodes: ObjectApi<Node> = ObjectApi::for_all_namespaces(client.clone());
    let nodes = nodes.list_metadata(&ListParams::default().limit(NODES_MAX)).await?;
    let pods: ObjectApi<Pod> = ObjectApi::for_namespace(client.clone(), &CNI_NAMESPACE);
    let of_agents = ListParams::default().labels(&format!("app.kubernetes.io/name={CNI}"));
    let pods = pods.list(&of_agents).await?;
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True")
    };
    let with: BTreeSet<String> = pods
        .items
        .into_iter()
        .filter(is_ready)
        .filter_map(|pod| pod.spec.and_then(|spec| spec.node_name))
        .collect();
    let names = nodes.items.iter().map(ResourceExt::name_any);
    let mut without: Vec<String> = names.filter(|name| !with.contains(name)).collect();
    without.sort_unstable();
    Ok(without)
}
