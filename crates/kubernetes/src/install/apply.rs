//! Applies manifests to a cluster, and waits until the objects are ready.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{PART_OF, PART_OF_LABEL, is_foreign_crd, skip_result};
use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};
use crate::webhook::{INJECTOR, INJECTOR_NAME, TrustState, trust_state};
use crate::well_known::{CONTROL, CONTROL_NAME, INJECTION, PROXY_CONTAINER};

/// The result for one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallStep {
    /// Kind and name of the object.
    pub object: String,
    /// The result, such as `applied`, `removed`, `exists already` or `does not exist`.
    pub result: &'static str,
}

/// The reason that an installation failed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The user lacks permissions.
    #[error(
        "not permitted to {verb} {object}: {message}; run it with the permissions of \
         cluster-admin, or have an administrator apply the output of `leno install` without --apply"
    )]
    Forbidden {
        /// The attempted action.
        verb: &'static str,
        /// Kind and name of the object.
        object: String,
        /// The message of the API server.
        message: String,
    },
    /// The API server rejected the request for another reason, or is unreachable.
    #[error("cannot {verb} {object}: {problem}")]
    Api {
        /// The attempted action.
        verb: &'static str,
        /// Kind and name of the object.
        object: String,
        /// The error.
        problem: String,
    },
    /// A condition was not met in time.
    #[error("{operation} did not complete within {timeout:?}: {state}")]
    TimedOut {
        /// The operation that did not complete, such as a rollout.
        operation: &'static str,
        /// The timeout.
        timeout: Duration,
        /// The last observed state.
        state: String,
    },
    /// Several requests were rejected; the other requests succeeded.
    #[error("{0}")]
    Several(String),
}

impl InstallError {
    pub(super) fn from_api_error(verb: &'static str, object: &str, error: ApiError) -> Self {
        let object = object.to_owned();
        match error {
            ApiError::Rejected { code: FORBIDDEN, message } => {
                Self::Forbidden { verb, object, message }
            }
            error => Self::Api { verb, object, problem: error.to_string() },
        }
    }
}

/// Creates or updates the objects in order. Fields that no manifest sets keep the values of other writers.
///
/// # Errors
/// When the API server rejects an object. The objects before it have been applied.
pub async fn apply_manifests(
    client: &Client,
    manifests: &[Value],
    mut report: impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    for manifest in manifests {
        let ApiTarget { object, name, api } = ApiTarget::from_manifest(client, manifest)?;
        if belongs_to_another_mesh(client, manifest, &name).await? {
            report(InstallStep { object, result: "exists already" });
            continue;
        }
        let apply_result = api.patch(&name, &parameters, &Patch::Apply(manifest)).await;
        if apply_result.as_ref().is_err_and(|error| error.status_code() == Some(NOT_FOUND))
            && let Some(result) = skip_result(manifest)
        {
            report(InstallStep { object, result });
            continue;
        }
        apply_result.map_err(|error| InstallError::from_api_error("apply", &object, error))?;
        if manifest["kind"] == "CustomResourceDefinition" {
            wait_for_kind(client, &name).await?;
        }
        report(InstallStep { object, result: "applied" });
    }
    Ok(())
}

/// Returns true for a CustomResourceDefinition that another mesh has installed; its version takes precedence.
async fn belongs_to_another_mesh(
    client: &Client,
    manifest: &Value,
    name: &ObjectName,
) -> Result<bool, InstallError> {
    if !is_foreign_crd(manifest) {
        return Ok(false);
    }
    let definitions: ObjectApi<CustomResourceDefinition> =
        ObjectApi::for_all_namespaces(client.clone());
    let definition_result = definitions.get_metadata_opt(name).await;
    let definition =
        definition_result.map_err(|error| InstallError::from_api_error("get", name, error))?;
    let belongs_to_leno = |labels: &BTreeMap<String, String>| {
        labels.get(PART_OF_LABEL).is_some_and(|part| part == PART_OF)
    };
    Ok(definition.is_some_and(|definition| !belongs_to_leno(definition.labels())))
}

/// Waits until objects of a kind can be created.
async fn wait_for_kind(client: &Client, name: &ObjectName) -> Result<(), InstallError> {
    let api: ObjectApi<CustomResourceDefinition> = ObjectApi::for_all_namespaces(client.clone());
    poll_until("the registration of a kind", KIND_TIMEOUT, async || {
        let definition_result = api.get(name).await;
        let definition =
            definition_result.map_err(|error| InstallError::from_api_error("get", name, error))?;
        let conditions = definition.status.unwrap_or_default().conditions.unwrap_or_default();
        let has_established = |status: &str| {
            conditions
                .iter()
                .any(|condition| condition.type_ == "Established" && condition.status == status)
        };
        Ok(if has_established("True") { Ok(()) } else { Err(format!("{name} is not established")) })
    })
    .await
}

/// Waits until all control planes run with the current specification.
///
/// # Errors
/// When the timeout expires, with the state of their pods.
pub async fn wait_for_rollout(
    client: &Client,
    namespace: &NamespaceName,
    timeout: Duration,
) -> Result<(), InstallError> {
    let deployments: ObjectApi<Deployment> = ObjectApi::for_namespace(client.clone(), namespace);
    let pods: ObjectApi<Pod> = ObjectApi::for_namespace(client.clone(), namespace);
    poll_until("the rollout of the control plane", timeout, async || {
        let deployment_result = deployments.get(&CONTROL_NAME).await;
        let deployment = deployment_result
            .map_err(|error| InstallError::from_api_error("get", "the Deployment", error))?;
        let Some(rollout_state) = describe_incomplete_rollout(&deployment) else {
            return Ok(Ok(()));
        };
        let selector = format!("app.kubernetes.io/name={CONTROL}");
        let list_result = pods.list(&ListParams::default().labels(&selector)).await;
        let reasons_result = list_result
            .map(|pods| pods.items.iter().filter_map(unready_reason).collect::<Vec<_>>());
        // The reasons of pods are only details: without permission to list pods, they are omitted.
        let pod_reasons = reasons_result.unwrap_or_default();
        Ok(Err(if pod_reasons.is_empty() {
            rollout_state
        } else {
            format!("{rollout_state}; {}", pod_reasons.join("; "))
        }))
    })
    .await
}

/// Describes the incomplete rollout of a Deployment; `None` if it is complete.
pub(super) fn describe_incomplete_rollout(deployment: &Deployment) -> Option<String> {
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    if status.observed_generation < deployment.metadata.generation {
        return Some("the Deployment has not been observed yet".to_owned());
    }
    let available = status.available_replicas.unwrap_or(0);
    let updated = status.updated_replicas.unwrap_or(0);
    let total = status.replicas.unwrap_or(0);
    let is_complete = updated == desired && available >= desired && total == desired;
    (!is_complete)
        .then(|| format!("{updated} of {desired} pods are updated, {available} available"))
}

/// Returns the reason that a pod is not ready; `None` if it is unknown.
fn unready_reason(pod: &Pod) -> Option<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    let describe = |reason: Option<&str>, message: Option<&str>| {
        let reason = reason.unwrap_or("not ready");
        Some(match message.filter(|message| !message.is_empty()) {
            Some(message) => format!("pod {name}: {reason}: {message}"),
            None => format!("pod {name}: {reason}"),
        })
    };
    for container in status.container_statuses.iter().flatten() {
        let state = container.state.as_ref();
        if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
            return describe(waiting.reason.as_deref(), waiting.message.as_deref());
        }
        if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
            return describe(terminated.reason.as_deref(), terminated.message.as_deref());
        }
    }
    let unmet_condition =
        status.conditions.iter().flatten().find(|condition| condition.status == "False");
    unmet_condition
        .and_then(|condition| describe(condition.reason.as_deref(), condition.message.as_deref()))
}

/// Waits until pods get sidecars, which means that the API server trusts and reaches the webhook. Uses a dry
/// run: no pod is created.
///
/// # Errors
/// When the timeout expires, with the error of the API server.
pub async fn wait_for_webhook(client: &Client, timeout: Duration) -> Result<(), InstallError> {
    let configurations: ObjectApi<MutatingWebhookConfiguration> =
        ObjectApi::for_all_namespaces(client.clone());
    poll_until("the setup of sidecar injection", timeout, async || {
        let configuration_result = configurations.get_opt(&INJECTOR_NAME).await;
        let configuration = configuration_result
            .map_err(|error| InstallError::from_api_error("get", INJECTOR, error))?;
        Ok(match trust_state(configuration.as_ref()) {
            TrustState::Absent => Err(format!("there is no {INJECTOR}")),
            TrustState::Untrusted => Err("no control plane has set its CA bundle".to_owned()),
            TrustState::Trusted => try_injection(client).await,
        })
    })
    .await
}

/// Creates a pod that requests a sidecar, as a dry run; returns an error if the webhook adds none.
pub(super) async fn try_injection(client: &Client) -> Result<(), String> {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "leno-injection-probe", "labels": {INJECTION: "enabled"}},
        "spec": {"containers": [{"name": "none", "image": "none"}]},
    });
    let parameters = PostParams { dry_run: true, field_manager: None };
    let api: ObjectApi<Pod> = ObjectApi::for_namespace(client.clone(), &DEFAULT_NAMESPACE);
    let pod: Pod = serde_json::from_value(pod).map_err(|error| error.to_string())?;
    let created_pod = match api.create(&parameters, &pod).await {
        Ok(created_pod) => created_pod,
        Err(ApiError::Rejected { message, .. }) if message.contains(INJECTOR) => {
            return Err(message);
        }
        // A new cluster has no default account there yet. The API server has not called the webhook in this
        // case.
        Err(ApiError::Rejected { message, .. }) if message.contains("service account") => {
            return Err(message);
        }
        // Quotas and policies of that namespace apply after the webhook, so the webhook has responded.
        Err(error) if error.status_code() == Some(FORBIDDEN) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let spec = created_pod.spec.unwrap_or_default();
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    match containers.any(|container| container.name == PROXY_CONTAINER) {
        true => Ok(()),
        false => Err("a pod that requests a sidecar got none".to_owned()),
    }
}

/// Polls until `check` returns `Ok(Ok(()))` or the timeout expires. The inner error of `check` describes the
/// current state; the outer error ends the wait.
async fn poll_until(
    operation: &'static str,
    timeout: Duration,
    mut check: impl AsyncFnMut() -> Result<Result<(), String>, InstallError>,
) -> Result<(), InstallError> {
    let start_time = Instant::now();
    loop {
        let state = match check().await? {
            Ok(()) => return Ok(()),
            Err(state) => state,
        };
        if start_time.elapsed() >= timeout {
            return Err(InstallError::TimedOut { operation, timeout, state });
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The object of a manifest, as addressed in the API server.
pub(crate) struct ApiTarget {
    /// Kind and name, for messages.
    pub(crate) object: String,
    pub(crate) name: ObjectName,
    pub(crate) api: ObjectApi<DynamicObject>,
}

impl ApiTarget {
    /// Determines the API path of a manifest's object.
    ///
    /// # Errors
    /// When the manifest has a name that is invalid in an API path.
    pub(crate) fn from_manifest(client: &Client, manifest: &Value) -> Result<Self, InstallError> {
        let metadata = &manifest["metadata"];
        let resource = manifest_resource(manifest);
        let name_text = metadata["name"].as_str().unwrap_or_default();
        let namespace_text = metadata["namespace"].as_str();
        let prefix = namespace_text.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let object = format!("{} {prefix}{name_text}", resource.kind);
        let invalid_path = |error| InstallError::from_api_error("address", &object, error);
        let parsed_namespace = namespace_text.map(NamespaceName::new).transpose();
        let namespace = parsed_namespace.map_err(|error| invalid_path(error.into()))?;
        let name = ObjectName::new(name_text).map_err(|error| invalid_path(error.into()))?;
        let api = ObjectApi::for_dynamic_kind(client.clone(), namespace.as_ref(), &resource);
        Ok(Self { api: api.map_err(invalid_path)?, object, name })
    }
}

/// Returns the API resource of a manifest. Its plural is derived from the kind by the rules of English.
pub(super) fn manifest_resource(manifest: &Value) -> ApiResource {
    let owned_string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, api_version) =
        (owned_string(&manifest["kind"]), owned_string(&manifest["apiVersion"]));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind))
}

/// The owner of applied fields.
const FIELD_MANAGER: &str = "leno-install";
const FORBIDDEN: u16 = 403;
const DEFAULT_NAMESPACE: NamespaceName = NamespaceName::from_literal("default");
const NOT_FOUND: u16 = 404;
/// The timeout for the registration of a kind after its definition was applied.
const KIND_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval between checks while waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment_with_status(status: &Value) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"generation": 2},
            "spec": {"replicas": 2, "selector": {}, "template": {}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_rollout_is_complete_when_all_pods_are_updated_and_available() {
        let rollout_state =
            |status: Value| describe_incomplete_rollout(&deployment_with_status(&status));
        let complete = json!({
            "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
        });
        assert_eq!(rollout_state(complete), None);
        let outdated = json!({
            "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
        });
        assert_eq!(rollout_state(outdated).unwrap(), "the Deployment has not been observed yet");
        let surplus = json!({
            "observedGeneration": 2, "replicas": 3, "updatedReplicas": 2, "availableReplicas": 3,
        });
        assert!(rollout_state(surplus).is_some());
        let none = json!({"observedGeneration": 2});
        assert_eq!(rollout_state(none).unwrap(), "0 of 2 pods are updated, 0 available");
    }

    #[test]
    fn the_reason_that_a_pod_is_not_ready_is_reported() {
        let pod = |status: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "a"}, "status": status})).unwrap()
        };
        let waiting = json!({"containerStatuses": [{
            "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "no such image"}},
        }]});
        assert_eq!(
            unready_reason(&pod(waiting)).unwrap(),
            "pod a: ErrImageNeverPull: no such image"
        );
        let unscheduled = json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"},
        ]});
        assert_eq!(unready_reason(&pod(unscheduled)).unwrap(), "pod a: Unschedulable: no node");
    }

    #[test]
    fn a_rejection_names_the_required_permissions() {
        let error = ApiError::Rejected { code: 403, message: "forbidden: user bob".to_owned() };
        expect_test::expect![[r#"
            "not permitted to apply ClusterRole leno-control: forbidden: user bob; run it with the permissions of cluster-admin, or have an administrator apply the output of `leno install` without --apply""#]]
        .assert_eq(&format!(
            "{:?}",
            InstallError::from_api_error("apply", "ClusterRole leno-control", error).to_string()
        ));
    }
}
