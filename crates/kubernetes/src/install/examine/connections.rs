//! Checks the connections of sidecars to control planes, for `leno check`. The leader publishes the connections
//! in the Lease.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use leno_model::SidecarConnections;
use tokio::time::{Instant, sleep};

use super::{ExamineResult, summarize_names, unreadable_finding};
use crate::api::{NamespaceName, ObjectApi};
use crate::status::annotated_connections;
use crate::well_known::CONTROL_NAME;

/// Compares the connected sidecars with the running `pods`. If `is_truncated`, `pods` is only a part of the running
/// pods.
///
/// New control planes discover each other within a second. The leader updates the Lease at the next renewal,
/// for which the check waits.
pub(super) async fn check_connections(
    client: &Client,
    namespace: &NamespaceName,
    control_plane: &Deployment,
    pods: &[Pod],
    is_truncated: bool,
) -> ExamineResult {
    let leases: ObjectApi<Lease> = ObjectApi::for_namespace(client.clone(), namespace);
    let ready_replicas =
        control_plane.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    let ready_replicas = usize::try_from(ready_replicas).unwrap_or(0);
    let deadline = Instant::now() + RENEWAL_TIMEOUT;
    loop {
        let lease = match leases.get_opt(&CONTROL_NAME).await {
            Ok(lease) => lease,
            Err(error) => return unreadable_finding(&error),
        };
        let current_lease = lease.filter(|lease| is_fresh(lease, SystemTime::now()));
        let connections =
            current_lease.as_ref().and_then(|lease| annotated_connections(&lease.metadata));
        let is_complete = connections
            .as_ref()
            .is_some_and(|connections| has_all_reports(connections, ready_replicas));
        if !is_complete && Instant::now() < deadline {
            sleep(Duration::from_millis(500)).await;
            continue;
        }
        return match (current_lease, connections) {
            (_, Some(connections)) => {
                compare_connections(&connections, ready_replicas, pods, is_truncated)
            }
            (Some(_), None) => ExamineResult::Passed(
                "not reported yet by the control plane that holds the Lease".to_owned(),
            ),
            (None, None) => ExamineResult::warning(
                "no control plane holds the Lease leno-control, so connected sidecars are not \
                 reported",
                format!("see `kubectl -n {namespace} logs deployment/leno-control`"),
            ),
        };
    }
}

/// Returns true if the leader has the reports of all ready control planes: its own, and one from each peer.
fn has_all_reports(connections: &SidecarConnections, ready_replicas: usize) -> bool {
    connections.peers + 1 >= ready_replicas
}

/// Returns true if the leader has renewed the Lease recently. The limit is generous because clocks differ.
fn is_fresh(lease: &Lease, now: SystemTime) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let has_holder = spec.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty());
    let renewal_time = spec.renew_time.as_ref().map(|time| SystemTime::from(time.0));
    let is_recent = renewal_time.is_some_and(|renewal_time| {
        now.duration_since(renewal_time).unwrap_or_default() < MAX_LEASE_AGE
    });
    has_holder && is_recent
}

/// Compares the reported connections with the pods. Sidecars without a connection are a failure if their pods
/// are ready; pods that are not ready or have terminated are ignored.
fn compare_connections(
    connections: &SidecarConnections,
    ready_replicas: usize,
    pods: &[Pod],
    is_truncated: bool,
) -> ExamineResult {
    if !has_all_reports(connections, ready_replicas) {
        return ExamineResult::warning(
            format!(
                "the control plane that holds the Lease has reports from {} of {ready_replicas} control \
                 planes",
                connections.peers + 1
            ),
            "allow connections between control planes to port 15010, and run this again",
        );
    }
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let pod_path =
        |pod: &Pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let is_ready_pod = |path: &String| {
        let pod = pods.iter().find(|pod| pod_path(pod) == *path);
        pod.map_or(is_truncated, is_ready)
    };
    let disconnected_pods: Vec<String> =
        connections.disconnected.iter().map(ToString::to_string).filter(is_ready_pod).collect();
    let Some(first_pod) = disconnected_pods.first() else {
        return ExamineResult::Passed(
            "each ready pod's sidecar is connected to a control plane".to_owned(),
        );
    };
    // The control plane lists a limited number of pods, and counts the others without their names.
    let count =
        disconnected_pods.len() + connections.count.saturating_sub(connections.disconnected.len());
    let (namespace, pod) = first_pod.split_once('/').unwrap_or(("default", first_pod));
    ExamineResult::failure(
        format!(
            "the sidecars of {} are connected to no control plane and receive no changes and no \
             new certificates ({count} in ready pods)",
            summarize_names(&disconnected_pods)
        ),
        format!(
            "see `kubectl -n {namespace} logs {pod} -c leno-proxy`, and restart the pod if its control plane can be reached"
        ),
    )
}

/// The maximum wait for the next renewal of the Lease: the leader renews it every five seconds.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(8);

/// The maximum time since the last renewal of a Lease with a leader.
const MAX_LEASE_AGE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use leno_model::WorkloadName;
    use serde_json::json;

    use super::*;

    fn sidecar_pod(name: &str, ready: &str) -> Pod {
        let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
        let pod = json!({"metadata": {"name": name, "namespace": "shop"}, "status": status});
        serde_json::from_value(pod).unwrap()
    }

    fn known_connections(peers: usize, names: &[&str], count: usize) -> SidecarConnections {
        let disconnected =
            names.iter().map(|name| WorkloadName::new("shop", name).unwrap()).collect();
        SidecarConnections { peers, disconnected, count }
    }

    #[test]
    fn ready_pods_without_a_connection_are_reported() {
        let pods = [
            sidecar_pod("web-1", "True"),
            sidecar_pod("web-2", "False"),
            sidecar_pod("web-3", "True"),
        ];
        let check = |connections: &SidecarConnections,
                     replicas,
                     is_truncated,
                     is_failure,
                     expected: &str| {
            let finding = compare_connections(connections, replicas, &pods, is_truncated);
            assert_eq!(matches!(finding, ExamineResult::Failed(_)), is_failure, "{finding}");
            assert!(finding.to_string().contains(expected), "{finding}");
        };
        check(
            &known_connections(1, &[], 0),
            2,
            false,
            false,
            "each ready pod's sidecar is connected",
        );
        check(
            &known_connections(1, &["web-1"], 1),
            2,
            false,
            true,
            "the sidecars of shop/web-1 are connected to no control plane",
        );
        check(
            &known_connections(1, &["web-1"], 1),
            2,
            false,
            true,
            "kubectl -n shop logs web-1 -c leno-proxy",
        );
        // A pod that is not ready or has terminated in between has its own finding or none.
        check(&known_connections(1, &["web-2", "web-9"], 2), 2, false, false, "each ready pod's");
        check(&known_connections(1, &["web-9"], 1), 2, true, true, "shop/web-9");
        check(&known_connections(1, &["web-1", "web-3"], 40), 2, false, true, "(40 in ready pods)");
        // A control plane that is unaware of another one's sidecars does not know all connected ones.
        check(
            &known_connections(0, &["web-1"], 1),
            2,
            false,
            false,
            "has reports from 1 of 2 control planes",
        );
        check(&known_connections(0, &["web-1"], 1), 1, false, true, "shop/web-1");
    }

    #[test]
    fn only_a_recent_lease_with_a_holder_counts() {
        let lease = |holder: &str, renewed: &str| -> Lease {
            let spec = json!({"holderIdentity": holder, "renewTime": renewed});
            serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        for (holder, renewed, expected) in [
            ("a", "1970-01-01T00:01:38.000000Z", true),
            ("a", "1970-01-01T00:02:00.000000Z", true),
            ("a", "1970-01-01T00:00:30.000000Z", false),
            ("", "1970-01-01T00:01:38.000000Z", false),
        ] {
            assert_eq!(is_fresh(&lease(holder, renewed), now), expected, "{holder} {renewed}");
        }
    }
}
