//! Checks the members of the mesh, which are pods with a sidecar, for `leno check`: outdated sidecars, pods that cannot
//! be created, and namespaces that do not admit redirection.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Pod, PodSpec, Service};
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Client, ResourceExt as _};
use serde_json::Value;

use super::connections::check_connections;
use super::{ExamineResult, summarize_names, unreadable_finding};
use crate::api::{ApiError, NamespaceName, ObjectApi};
use crate::inject::{InjectionTrigger, NamespaceMetadata, decide_injection};
use crate::install::InstalledOptions;
use crate::status::event::shorten_middle;
use crate::webhook::INJECTOR;
use crate::well_known::{
    CONTROL, MESHED, MESHED_BY_SIDECAR, PROXY_CONTAINER, REDIRECT_ANNOTATION, ROOTS_NAME,
    ROOTS_VARIABLE,
};

/// Compares the running sidecars with those that the control plane would inject now. Returns the findings, each with
/// its subject.
pub(super) async fn check_sidecars(
    client: &Client,
    namespace: &NamespaceName,
    control_plane: &Deployment,
) -> Vec<(&'static str, ExamineResult)> {
    let pod_api: ObjectApi<Pod> = ObjectApi::for_all_namespaces(client.clone());
    let with_sidecar = format!("{MESHED}={MESHED_BY_SIDECAR}");
    let meshed_pod_filter =
        ListParams::default().labels(&with_sidecar).fields(RUNNING_POD_FIELDS).limit(MAX_PODS);
    let pods = match pod_api.list(&meshed_pod_filter).await {
        Ok(pods) => pods,
        Err(error) => return vec![("sidecars", unreadable_finding(&error))],
    };
    let config_maps: ObjectApi<ConfigMap> = ObjectApi::for_namespace(client.clone(), namespace);
    // Without permission to read the roots, only the check of roots is omitted.
    let roots_config_map = config_maps.get_opt(&ROOTS_NAME).await.ok().flatten();
    let roots_pem = roots_config_map.and_then(|map| map.data?.remove(ROOTS_KEY));
    let spec = control_plane.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let own_image = spec.and_then(|spec| container_image(spec, CONTROL)).unwrap_or_default();
    let is_truncated = pods.metadata.continue_.is_some_and(|token| !token.is_empty());
    let sidecar_pods = SidecarPods { pods: &pods.items, is_truncated };
    let mut findings = vec![
        ("sidecars", sidecar_pods.check_images(own_image)),
        (
            "redirection of pods",
            sidecar_pods.check_redirection(InstalledOptions::from_deployment(control_plane).cni),
        ),
    ];
    let connections_finding = check_connections(
        client,
        namespace,
        control_plane,
        sidecar_pods.pods,
        sidecar_pods.is_truncated,
    )
    .await;
    findings.push(("connections of sidecars", connections_finding));
    let readiness_findings = sidecar_pods.check_readiness(&name_servers(client).await);
    findings
        .extend(readiness_findings.into_iter().map(|finding| ("readiness of sidecars", finding)));
    findings.extend(
        roots_pem.map(|roots_pem| ("roots of sidecars", sidecar_pods.check_roots(&roots_pem))),
    );
    findings
}

/// Pods with a sidecar.
struct SidecarPods<'a> {
    pods: &'a [Pod],
    /// True if the cluster has more pods than `MAX_PODS`; the others are not examined.
    is_truncated: bool,
}

impl SidecarPods<'_> {
    /// Returns the number of examined pods; with `the first` if the cluster has more.
    fn describe_count(&self) -> String {
        match self.is_truncated {
            true => format!("the first {}", self.pods.len()),
            false => self.pods.len().to_string(),
        }
    }

    /// Returns the names of the pods for which `predicate` returns true.
    fn matching_pods(&self, predicate: impl Fn(&Pod) -> bool) -> Vec<String> {
        self.pods.iter().filter(|pod| predicate(pod)).map(pod_path).collect()
    }

    /// Checks for sidecars with another image than the control plane's, such as that of an earlier version.
    fn check_images(&self, own_image: &str) -> ExamineResult {
        let (count, other_images) = (
            self.describe_count(),
            self.matching_pods(|pod| sidecar_image(pod).is_some_and(|image| image != own_image)),
        );
        match other_images.as_slice() {
            [] => ExamineResult::Passed(format!(
                "{count}, none of another image than the control plane's"
            )),
            other_images => ExamineResult::warning(
                format!(
                    "{} of {count} have another image than {own_image}: {}",
                    other_images.len(),
                    summarize_names(other_images)
                ),
                "restart their workloads, unless this image is intended",
            ),
        }
    }

    /// Checks for sidecars that have not started: they have no certificate because they cannot reach the
    /// control plane.
    fn check_readiness(&self, name_servers: &[String]) -> Vec<ExamineResult> {
        let unresolving_pods =
            self.matching_pods(|pod| !has_started_sidecar(pod) && !can_resolve(pod, name_servers));
        let starting_pods =
            self.matching_pods(|pod| !has_started_sidecar(pod) && can_resolve(pod, name_servers));
        let mut findings = Vec::new();
        if let [_, ..] = unresolving_pods.as_slice() {
            findings.push(ExamineResult::failure(
                format!(
                    "the sidecars of {} are not ready, and the DNS policy of their pods omits the \
                     cluster's DNS server, which resolves the control plane's name, or its search \
                     domain",
                    summarize_names(&unresolving_pods)
                ),
                "use `dnsPolicy: ClusterFirst`, or `None` with the address of the cluster's DNS Service in \
                 spec.dnsConfig.nameservers and the domain of the cluster, such as cluster.local, in \
                 spec.dnsConfig.searches",
            ));
        }
        if let [_, ..] = starting_pods.as_slice() {
            findings.push(ExamineResult::warning(
                format!(
                    "{} of {} are not ready: {}",
                    starting_pods.len(),
                    self.describe_count(),
                    summarize_names(&starting_pods)
                ),
                "see `kubectl logs POD -c leno-proxy`, unless they are starting",
            ));
        }
        if findings.is_empty() {
            findings.push(ExamineResult::Passed(self.describe_count()));
        }
        findings
    }

    /// Checks for pods that are redirected in another way than new pods: by an init container, or by the CNI plugin.
    fn check_redirection(&self, uses_plugin: bool) -> ExamineResult {
        let has_plugin_annotation = |pod: &Pod| pod.annotations().contains_key(REDIRECT_ANNOTATION);
        let differing_pods = self.matching_pods(|pod| has_plugin_annotation(pod) != uses_plugin);
        let (current_mode, other_mode) = match uses_plugin {
            true => ("the network plugin of their node", "an init container"),
            false => ("an init container", "the network plugin of their node"),
        };
        match differing_pods.as_slice() {
            [] => ExamineResult::Passed(format!("by {current_mode}")),
            differing_pods => ExamineResult::warning(
                format!(
                    "by {other_mode} in {}, and by {current_mode} in new pods",
                    summarize_names(differing_pods)
                ),
                "restart their workloads",
            ),
        }
    }

    /// Checks the trust roots. A root rotation reaches running sidecars; the root of another installation does
    /// not.
    fn check_roots(&self, roots: &str) -> ExamineResult {
        let mesh_roots = split_certificates(roots);
        let differing_pods = self.matching_pods(|pod| {
            let pod_roots =
                environment_value(pod, ROOTS_VARIABLE).map(split_certificates).unwrap_or_default();
            !pod_roots.is_empty() && pod_roots.is_disjoint(&mesh_roots)
        });
        match differing_pods.as_slice() {
            [] => ExamineResult::Passed(format!(
                "{} started with a root of the mesh",
                self.describe_count()
            )),
            differing_pods => ExamineResult::warning(
                format!(
                    "{} of {} started with none of the roots of the mesh: {}",
                    differing_pods.len(),
                    self.describe_count(),
                    summarize_names(differing_pods)
                ),
                "restart their workloads, unless the root was replaced by `leno ca`, which reaches running sidecars",
            ),
        }
    }
}

/// Checks for pods that cannot be created because the webhook rejects them or does not respond.
pub(super) async fn check_uncreated_pods(client: &Client) -> ExamineResult {
    match list_pod_controllers(client).await {
        Ok(PodControllers { replica_sets, incomplete_controllers, failure_events }) => {
            check_blocked(&replica_sets, &incomplete_controllers, &failure_events)
        }
        Err(error) => unreadable_finding(&error),
    }
}

/// Lists the controllers that may be unable to create pods. A ReplicaSet reports failures as a condition; other
/// controllers report failures only as events, and are listed while they lack pods.
async fn list_pod_controllers(client: &Client) -> Result<PodControllers, ApiError> {
    let replica_set_api: ObjectApi<ReplicaSet> = ObjectApi::for_all_namespaces(client.clone());
    let stateful_sets: ObjectApi<StatefulSet> = ObjectApi::for_all_namespaces(client.clone());
    let daemon_sets: ObjectApi<DaemonSet> = ObjectApi::for_all_namespaces(client.clone());
    let jobs: ObjectApi<Job> = ObjectApi::for_all_namespaces(client.clone());
    let event_api: ObjectApi<Event> = ObjectApi::for_all_namespaces(client.clone());
    let parameters = ListParams::default();
    let mut incomplete_controllers = Vec::new();
    incomplete_controllers.extend(stateful_sets.list(&parameters).await?.items.iter().filter_map(
        |set| {
            let (spec, status) = (set.spec.as_ref()?, set.status.as_ref());
            let desired = spec.replicas.unwrap_or(1);
            (status.map_or(0, |status| status.replicas) < desired)
                .then(|| IncompleteController::for_object("StatefulSet", set))
        },
    ));
    incomplete_controllers.extend(daemon_sets.list(&parameters).await?.items.iter().filter_map(
        |set| {
            let status = set.status.as_ref()?;
            let is_lacking = status.current_number_scheduled < status.desired_number_scheduled;
            is_lacking.then(|| IncompleteController::for_object("DaemonSet", set))
        },
    ));
    incomplete_controllers.extend(jobs.list(&parameters).await?.items.iter().filter_map(|job| {
        let status = job.status.as_ref();
        let conditions = || status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_finished = |condition: &JobCondition| {
            ["Complete", "Failed"].contains(&&*condition.type_) && condition.status == "True"
        };
        let is_running = status.and_then(|status| status.active).unwrap_or(0) > 0;
        (!is_running && !conditions().any(is_finished))
            .then(|| IncompleteController::for_object("Job", job))
    }));
    let failed_creation_filter =
        ListParams::default().fields("reason=FailedCreate").limit(MAX_EVENTS);
    let failure_events = event_api.list(&failed_creation_filter).await?.items;
    let replica_sets = replica_set_api.list(&parameters).await?.items;
    Ok(PodControllers { replica_sets, incomplete_controllers, failure_events })
}

struct PodControllers {
    replica_sets: Vec<ReplicaSet>,
    incomplete_controllers: Vec<IncompleteController>,
    /// The events about pods that could not be created.
    failure_events: Vec<Event>,
}

/// A controller with fewer pods than desired.
struct IncompleteController {
    /// Kind, namespace and name.
    object: String,
    uid: Option<String>,
}

impl IncompleteController {
    fn for_object(kind: &str, object: &impl kube::ResourceExt) -> Self {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        Self { object: format!("{kind} {namespace}/{name}"), uid: object.uid() }
    }

    /// Returns the controller and the message of its newest event; `None` if the webhook did not cause the event.
    fn webhook_failure(&self, events: &[Event]) -> Option<(String, String)> {
        let is_about_object =
            |event: &&Event| self.uid.is_some() && event.involved_object.uid == self.uid;
        let newest =
            events.iter().filter(is_about_object).max_by_key(|event| last_occurrence(event))?;
        let message = newest.message.clone().filter(|message| message.contains(INJECTOR))?;
        Some((self.object.clone(), shorten_middle(&message, MAX_MESSAGE_BYTES)))
    }
}

/// Returns the time of the last occurrence of an event.
fn last_occurrence(event: &Event) -> Option<Timestamp> {
    let last_in_series =
        event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let last_time = event.last_timestamp.as_ref().map(|time| time.0);
    let first_time = || event.event_time.as_ref().map(|time| time.0);
    last_in_series.map(|time| time.0).or(last_time).or_else(first_time)
}

/// Reports the controllers of pods that the webhook rejects.
fn check_blocked(
    replica_sets: &[ReplicaSet],
    incomplete_controllers: &[IncompleteController],
    events: &[Event],
) -> ExamineResult {
    let failure = |set: &ReplicaSet| {
        let mut conditions = set.status.as_ref()?.conditions.iter().flatten();
        let failed_condition = conditions
            .find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")?;
        let message =
            failed_condition.message.clone().filter(|message| message.contains(INJECTOR))?;
        let (namespace, name) = (set.namespace().unwrap_or_default(), set.name_any());
        Some((format!("{namespace}/{name}"), shorten_middle(&message, MAX_MESSAGE_BYTES)))
    };
    let other_controllers =
        incomplete_controllers.iter().filter_map(|controller| controller.webhook_failure(events));
    let blocked_controllers: Vec<(String, String)> =
        replica_sets.iter().filter_map(failure).chain(other_controllers).collect();
    let names: Vec<String> = blocked_controllers.iter().map(|(name, _)| name.clone()).collect();
    match blocked_controllers.first() {
        None => ExamineResult::Passed("none".to_owned()),
        Some((first_name, message)) => ExamineResult::failure(
            format!(
                "pods of {} are not created; of {first_name}: {message}",
                summarize_names(&names)
            ),
            "correct the problem in the message; `kubectl describe` of each object shows its own",
        ),
    }
}

/// Returns true if the sidecar container has started.
fn has_started_sidecar(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let statuses = status.into_iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    });
    let mut sidecars = statuses.filter(|container| container.name == PROXY_CONTAINER);
    sidecars.any(|container| container.started == Some(true))
}

/// Returns true if a pod uses the cluster's DNS server and searches the domain of the cluster. If the address of the
/// server is unknown, any name server of a pod is accepted.
fn can_resolve(pod: &Pod, name_servers: &[String]) -> bool {
    let spec = pod.spec.as_ref();
    let config = spec.and_then(|spec| spec.dns_config.as_ref());
    let mut name_servers_of_pod =
        config.into_iter().flat_map(|config| config.nameservers.iter().flatten());
    let mut search_domains = config.into_iter().flat_map(|config| config.searches.iter().flatten());
    // Sidecars look up `leno-control.NAMESPACE.svc`, which the domains below `svc` do not complete.
    let is_cluster_domain = |domain: &String| domain.split('.').all(|label| label != "svc");
    match spec.and_then(|spec| spec.dns_policy.as_deref()) {
        Some("None") => {
            name_servers_of_pod
                .any(|address| name_servers.is_empty() || name_servers.contains(address))
                && search_domains.any(is_cluster_domain)
        }
        policy => policy != Some("Default"),
    }
}

/// Returns the addresses of the cluster's DNS Service; empty if it is not found.
async fn name_servers(client: &Client) -> Vec<String> {
    let Ok(namespace) = NamespaceName::new("kube-system") else { return Vec::new() };
    let services: ObjectApi<Service> = ObjectApi::for_namespace(client.clone(), &namespace);
    let dns_selector = ListParams::default().labels("k8s-app=kube-dns");
    let Ok(listed) = services.list(&dns_selector).await else { return Vec::new() };
    let specs = listed.items.into_iter().filter_map(|service| service.spec);
    let addresses = specs
        .flat_map(|spec| spec.cluster_ip.into_iter().chain(spec.cluster_ips.into_iter().flatten()));
    addresses.filter(|address| address != "None").collect()
}

/// Returns an environment variable of the pod's sidecar; `None` if it is not set.
fn environment_value<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let sidecar = containers.find(|container| container.name == PROXY_CONTAINER)?;
    let mut variables = sidecar.env.iter().flatten();
    variables.find(|variable| variable.name == name)?.value.as_deref()
}

/// Splits a PEM text into certificates, without white space.
fn split_certificates(pem: &str) -> BTreeSet<String> {
    let blocks = pem.split("-----BEGIN CERTIFICATE-----").skip(1);
    let bodies = blocks.filter_map(|block| block.split("-----END").next());
    bodies.map(|body| body.split_whitespace().collect()).collect()
}

/// Checks that namespaces of the mesh admit pods with a redirection init container.
pub(super) async fn check_namespaces(
    client: &Client,
    system_namespace: &str,
    control_plane: &Deployment,
) -> ExamineResult {
    let namespaces: ObjectApi<Namespace> = ObjectApi::for_all_namespaces(client.clone());
    let listed = match namespaces.list(&ListParams::default()).await {
        Ok(listed) => listed.items,
        Err(error) => return unreadable_finding(&error),
    };
    let injected_namespaces: Vec<Namespace> =
        listed.into_iter().filter(|namespace| is_injected(namespace, system_namespace)).collect();
    let restricted_namespaces: Vec<String> =
        injected_namespaces.iter().filter_map(restrictive_standard).collect();
    match restricted_namespaces.as_slice() {
        [_, ..] if !InstalledOptions::from_deployment(control_plane).cni => ExamineResult::failure(
            format!(
                "pods need NET_ADMIN, which {} reject",
                summarize_names(&restricted_namespaces)
            ),
            format!("run `leno install -n {system_namespace} --cni --apply`"),
        ),
        _ => ExamineResult::Passed(format!("{} with sidecar injection", injected_namespaces.len())),
    }
}

/// Returns true if a pod without own settings gets a sidecar in the namespace.
fn is_injected(namespace: &Namespace, system_namespace: &str) -> bool {
    let namespace_metadata = NamespaceMetadata {
        name: namespace.name_any(),
        labels: namespace.labels().clone(),
        annotations: namespace.annotations().clone(),
    };
    matches!(
        decide_injection(
            &Value::Null,
            InjectionTrigger::Namespace(&namespace_metadata),
            system_namespace
        ),
        Ok(None)
    )
}

/// Describes a namespace with a Pod Security Standard that forbids NET_ADMIN, which redirection by an init
/// container needs; `None` for other namespaces.
fn restrictive_standard(namespace: &Namespace) -> Option<String> {
    let standard = namespace.labels().get("pod-security.kubernetes.io/enforce")?;
    let forbids_capability = ["baseline", "restricted"].contains(&standard.as_str());
    forbids_capability.then(|| format!("{} ({standard})", namespace.name_any()))
}

fn sidecar_image(pod: &Pod) -> Option<&str> {
    container_image(pod.spec.as_ref()?, PROXY_CONTAINER)
}

/// Returns the image of a container.
fn container_image<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a str> {
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers.find(|container| container.name == name)?.image.as_deref()
}

fn pod_path(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

/// The field selector of the examined pods: completed pods are not examined.
const RUNNING_POD_FIELDS: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// The maximum number of examined pods.
const MAX_PODS: u32 = 5000;
/// The maximum number of examined events.
const MAX_EVENTS: u32 = 2000;
/// The key of the roots in their ConfigMap.
const ROOTS_KEY: &str = "roots.pem";
/// The maximum length of a quoted message of the API server.
const MAX_MESSAGE_BYTES: usize = 400;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pem_certificate(body: &str) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    }

    fn sidecar_pod(name: &str, started: bool, policy: &str, roots: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "dnsPolicy": policy, "containers": [{"name": "app"}],
                "initContainers": [{
                    "name": "leno-proxy", "image": "leno:1",
                    "env": [{"name": "LENO_ROOTS", "value": roots}],
                }],
            },
            "status": {"initContainerStatuses": [{
                "name": "leno-proxy", "image": "", "imageID": "", "ready": started, "restartCount": 0,
                "started": started,
            }]},
        });
        serde_json::from_value(pod).unwrap()
    }

    fn assert_finding(finding: &ExamineResult, is_passed: bool, expected: &str) {
        assert_eq!(matches!(finding, ExamineResult::Passed(_)), is_passed, "{finding}");
        assert!(finding.to_string().contains(expected), "{finding}");
    }

    #[test]
    fn sidecars_are_compared_with_newly_injected_ones() {
        let (old, new) = (pem_certificate("OLD"), pem_certificate("NEW"));
        let bundle = format!("{old}{new}");
        let pods = [
            sidecar_pod("a", true, "ClusterFirst", &old),
            sidecar_pod("b", true, "ClusterFirst", &bundle),
        ];
        let members = SidecarPods { pods: &pods, is_truncated: false };
        assert_finding(&members.check_roots(&bundle), true, "2 started with a root of the mesh");
        assert_finding(
            &members.check_roots(&new),
            false,
            "1 of 2 started with none of the roots of the mesh: shop/a",
        );
        assert_finding(&members.check_readiness(&[])[0], true, "2");
        assert_finding(&members.check_redirection(false), true, "by an init container");
        assert_finding(
            &members.check_redirection(true),
            false,
            "by an init container in shop/a, shop/b",
        );
        assert_finding(&members.check_images("leno:1"), true, "2, none of another image");
        assert_finding(
            &members.check_images("leno:2"),
            false,
            "2 of 2 have another image than leno:2",
        );
        let not_started = [sidecar_pod("c", false, "ClusterFirst", &new)];
        let members = SidecarPods { pods: &not_started, is_truncated: false };
        assert_finding(&members.check_readiness(&[])[0], false, "1 of 1 are not ready: shop/c");
        let pod_with_searches = |name: &str, address: &str, searches: &[&str]| {
            let mut pod = sidecar_pod(name, false, "None", &new);
            let config = json!({"nameservers": [address], "searches": searches});
            pod.spec.as_mut().unwrap().dns_config = Some(serde_json::from_value(config).unwrap());
            pod
        };
        let pod_with_name_server =
            |name: &str, address: &str| pod_with_searches(name, address, &["cluster.local"]);
        let unresolved = [
            sidecar_pod("d", false, "Default", &new),
            sidecar_pod("e", false, "None", &new),
            pod_with_name_server("f", "192.0.2.53"),
            pod_with_name_server("g", "10.96.0.10"),
        ];
        let members = SidecarPods { pods: &unresolved, is_truncated: false };
        let findings = members.check_readiness(&["10.96.0.10".to_owned()]);
        assert_eq!(findings.len(), 2);
        assert_finding(
            &findings[0],
            false,
            "shop/d, shop/e, shop/f are not ready, and the DNS policy",
        );
        assert_finding(&findings[1], false, "1 of 4 are not ready: shop/g");
        assert_finding(
            &members.check_readiness(&[])[1],
            false,
            "2 of 4 are not ready: shop/f, shop/g",
        );
        // Issue 27: the name of the control plane is relative to the domain of the cluster.
        let default_searches = ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"];
        let pods_with_searches = [
            pod_with_searches("h", "10.96.0.10", &[]),
            pod_with_searches("i", "10.96.0.10", &default_searches[..2]),
            pod_with_searches("j", "10.96.0.10", &default_searches),
        ];
        let members = SidecarPods { pods: &pods_with_searches, is_truncated: false };
        let findings = members.check_readiness(&["10.96.0.10".to_owned()]);
        assert_finding(&findings[0], false, "shop/h, shop/i are not ready, and the DNS policy");
        assert_finding(&findings[0], false, "in spec.dnsConfig.searches");
        assert_finding(&findings[1], false, "1 of 3 are not ready: shop/j");
    }

    #[test]
    fn pods_of_replica_sets_that_the_webhook_rejects_are_reported() {
        let set = |message: &str| -> ReplicaSet {
            let condition = json!({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message});
            let set = json!({
                "metadata": {"name": "web-1", "namespace": "shop"},
                "status": {"replicas": 0, "conditions": [condition]},
            });
            serde_json::from_value(set).unwrap()
        };
        let message = "admission webhook \"namespace.sidecar-injector.leno.dev\" denied the request: no sidecar";
        assert_finding(
            &check_blocked(&[set(message)], &[], &[]),
            false,
            "of shop/web-1 are not created; of shop/web-1: admission webhook",
        );
        assert_finding(&check_blocked(&[set("exceeded quota")], &[], &[]), true, "none");
        assert_finding(&check_blocked(&[], &[], &[]), true, "none");
    }

    #[test]
    fn pods_of_other_controllers_that_the_webhook_rejects_are_reported() {
        let event = |uid: &str, time: &str, message: &str| -> Event {
            serde_json::from_value(json!({
                "metadata": {}, "reason": "FailedCreate", "message": message, "lastTimestamp": time,
                "involvedObject": {"uid": uid},
            }))
            .unwrap()
        };
        let denied = "admission webhook \"pod.sidecar-injector.leno.dev\" denied the request: no";
        let (first, later) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
        for kind in ["StatefulSet", "DaemonSet", "Job"] {
            let object = format!("{kind} shop/held");
            let incomplete_controllers =
                || [IncompleteController { object: object.clone(), uid: Some("u".to_owned()) }];
            let expected = format!("of {object} are not created; of {object}: admission webhook");
            assert_finding(
                &check_blocked(&[], &incomplete_controllers(), &[event("u", first, denied)]),
                false,
                &expected,
            );
            assert_finding(
                &check_blocked(&[], &incomplete_controllers(), &[event("v", first, denied)]),
                true,
                "none",
            );
            assert_finding(&check_blocked(&[], &[], &[event("u", first, denied)]), true, "none");
            // The newest event has the current reason.
            let events = [event("u", first, denied), event("u", later, "exceeded quota")];
            assert_finding(&check_blocked(&[], &incomplete_controllers(), &events), true, "none");
        }
    }
}
