//! Retracts statuses after an uninstallation, or after an installation without gateways, so that no status
//! claims an effect that no control plane provides.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use leno_registry::{ServedKind, served_kinds};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{InstallError, InstallStep, pod_selector};
use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};
use crate::gateway::GATEWAY_KINDS;
use crate::source::{DiscoveredKind, find_version};
use crate::status::{StatusForm, is_own_entry};
use crate::well_known::{CONTROL, GATEWAY_CLASS, GATEWAY_CONTROLLER};

/// Retracts the claims in the statuses of all objects that the mesh read: that they are in force, and that
/// gateways have addresses. Call this when no control plane is left that would write them again.
///
/// # Errors
/// When the API server rejects calls. All other statuses have been retracted.
pub async fn retract_statuses(
    client: &Client,
    mut report: impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    // The installed class has been removed before.
    let classes = BTreeSet::from([GATEWAY_CLASS.to_owned()]);
    retract_all(client, StatusClaims::new(UninstalledPart::Mesh, classes), &mut report).await
}

/// Retracts the claims in statuses that gateways serve. Call this when every control plane runs without
/// gateways.
///
/// # Errors
/// When the API server rejects calls. All other statuses have been retracted.
pub async fn retract_gateways(
    client: &Client,
    mut report: impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    retract_all(client, StatusClaims::new(UninstalledPart::Gateways, BTreeSet::new()), &mut report)
        .await
}

async fn retract_all(
    client: &Client,
    claims: StatusClaims,
    report: &mut impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    let mut retraction = Retraction { client, claims, rejected_calls: RejectedCalls::default() };
    // GatewayClasses come first: they identify our gateways.
    for kind in GATEWAY_KINDS.into_iter().chain(served_kinds()) {
        if retraction.claims.uninstalled_part.affects_form(StatusForm::for_kind(kind))
            && let Err(error) = retraction.retract_kind(kind, report).await
        {
            retraction.rejected_calls.add(InstallError::from_api_error("list", kind.kind, error));
        }
    }
    retraction.rejected_calls.into_result()
}

/// Waits until no pod of a control plane is left, at most a minute. A pod on a disconnected node remains
/// longer, but cannot write because its permissions are deleted.
///
/// # Errors
/// When the API server rejects the call.
pub async fn wait_for_control_planes(
    client: &Client,
    namespace: &NamespaceName,
    mut report: impl FnMut(InstallStep),
) -> Result<(), InstallError> {
    let api: ObjectApi<Pod> = ObjectApi::for_namespace(client.clone(), namespace);
    let labels: Vec<String> = pod_selector()
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let parameters = ListParams::default().labels(&labels.join(","));
    for _ in 0..MAX_POD_POLLS {
        let list_result = api.list(&parameters).await;
        if list_result
            .map_err(|error| InstallError::from_api_error("list", "Pod", error))?
            .items
            .is_empty()
        {
            return Ok(());
        }
        sleep(POD_POLL_INTERVAL).await;
    }
    let object = format!("Pods of Deployment {namespace}/{CONTROL}");
    report(InstallStep { object, result: "still exist, without permissions" });
    Ok(())
}

/// The part of the mesh that is no longer installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UninstalledPart {
    Mesh,
    Gateways,
}

impl UninstalledPart {
    /// Returns true if statuses of this form may claim an effect of the part.
    fn affects_form(self, form: StatusForm) -> bool {
        match self {
            Self::Mesh => form != StatusForm::NoStatus,
            Self::Gateways => {
                matches!(form, StatusForm::Class | StatusForm::Gateway | StatusForm::Parents)
            }
        }
    }

    /// Returns true if an entry in `status.parents` claims an effect of the part.
    fn has_claim(self, entry: &Value) -> bool {
        match self {
            Self::Mesh => is_own_entry(entry),
            Self::Gateways => entry.get("controllerName") == our_controller().as_ref(),
        }
    }

    fn condition_message(self) -> &'static str {
        match self {
            Self::Mesh => UNINSTALLED_MESSAGE,
            Self::Gateways => "the mesh is installed without gateways",
        }
    }
}

/// The claims to retract: that objects are in force, and that gateways have addresses.
struct StatusClaims {
    uninstalled_part: UninstalledPart,
    /// The transition time of retracted conditions.
    transition_time: Value,
    /// The names of our GatewayClasses. Each listed class is added or removed before Gateways are listed.
    classes: BTreeSet<String>,
}

impl StatusClaims {
    fn new(uninstalled_part: UninstalledPart, classes: BTreeSet<String>) -> Self {
        let transition_time = serde_json::to_value(Time(Timestamp::now())).unwrap_or_default();
        Self { uninstalled_part, transition_time, classes }
    }
}

struct Retraction<'a> {
    client: &'a Client,
    claims: StatusClaims,
    rejected_calls: RejectedCalls,
}

impl Retraction<'_> {
    /// Retracts the statuses of all objects of a kind, and reports each of them. Rejected calls are collected.
    /// For GatewayClasses, also updates the names of our classes.
    async fn retract_kind(
        &mut self,
        kind: ServedKind,
        report: &mut impl FnMut(InstallStep),
    ) -> Result<(), ApiError> {
        let form = StatusForm::for_kind(kind);
        let DiscoveredKind::Served(api_and_resource) = find_version(self.client, kind).await?
        else {
            return Ok(());
        };
        let (api, resource) = *api_and_resource;
        let objects = match api.list(&ListParams::default()).await {
            Ok(objects) => objects,
            // The kind itself is being removed.
            Err(error) if error.status_code() == Some(404) => return Ok(()),
            Err(error) => return Err(error),
        };
        for object in objects {
            let name = object.name_any();
            if form == StatusForm::Class {
                match object.data.pointer("/spec/controllerName") == our_controller().as_ref() {
                    true => self.claims.classes.insert(name.clone()),
                    false => self.claims.classes.remove(&name),
                };
            }
            let object_description = match object.namespace() {
                Some(namespace) => format!("{} {namespace}/{name}", kind.kind),
                None => format!("{} {name}", kind.kind),
            };
            match self.retract_status(form, object, &resource).await {
                Ok(true) => report(InstallStep {
                    object: object_description,
                    result: "status is retracted",
                }),
                Ok(false) => {}
                Err(error) => self.rejected_calls.add(InstallError::from_api_error(
                    "patch",
                    &object_description,
                    error,
                )),
            }
        }
        Ok(())
    }

    /// Writes the retracted status of an object; returns false if its status claims no effect. After a conflict
    /// with another writer it retries once, with the current object.
    async fn retract_status(
        &self,
        form: StatusForm,
        mut object: DynamicObject,
        resource: &ApiResource,
    ) -> Result<bool, ApiError> {
        let namespace_text = object.namespace();
        let namespace = namespace_text.as_deref().map(NamespaceName::new).transpose()?;
        let name = ObjectName::new(&object.name_any())?;
        let api = ObjectApi::<DynamicObject>::for_dynamic_kind(
            self.client.clone(),
            namespace.as_ref(),
            resource,
        )?;
        let field_manager = Some(CONTROL.to_owned());
        let parameters = PatchParams { field_manager, ..PatchParams::default() };
        let mut is_retry = false;
        loop {
            let Some(status) = retracted_status(form, &object, &self.claims) else {
                return Ok(false);
            };
            let patch = Patch::Merge(json!({
                "metadata": {"resourceVersion": object.resource_version()}, "status": status,
            }));
            match api.patch_status(&name, &parameters, &patch).await {
                Ok(_) => return Ok(true),
                Err(error) if error.status_code() == Some(404) => return Ok(false),
                Err(error) if error.status_code() == Some(409) && !is_retry => {
                    let Some(current) = api.get_opt(&name).await? else { return Ok(false) };
                    (object, is_retry) = (current, true);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The rejected calls: the first `MAX_REPORTED_ERRORS` with their errors, the others counted.
#[derive(Default)]
struct RejectedCalls {
    reported_errors: Vec<InstallError>,
    omitted_count: usize,
}

impl RejectedCalls {
    fn add(&mut self, error: InstallError) {
        match self.reported_errors.len() < MAX_REPORTED_ERRORS {
            true => self.reported_errors.push(error),
            false => self.omitted_count += 1,
        }
    }

    fn into_result(mut self) -> Result<(), InstallError> {
        match (self.reported_errors.len(), self.reported_errors.pop()) {
            (_, None) => Ok(()),
            (1, Some(only_error)) => Err(only_error),
            (_, Some(last_error)) => {
                self.reported_errors.push(last_error);
                let suffix = match self.omitted_count {
                    0 => String::new(),
                    count => format!("; and {count} more"),
                };
                let messages: Vec<String> =
                    self.reported_errors.iter().map(ToString::to_string).collect();
                Err(InstallError::Several(messages.join("; ") + &suffix))
            }
        }
    }
}

/// Returns the retracted status to write; `None` if the object's status claims no effect.
fn retracted_status(
    form: StatusForm,
    object: &DynamicObject,
    claims: &StatusClaims,
) -> Option<Value> {
    let classes = &claims.classes;
    let current_status = object.data.get("status")?;
    let string_at = |path: &str| object.data.pointer(path).and_then(Value::as_str);
    let retract = |status: &Value| retract_conditions(status.get("conditions"), claims);
    let mut retracted = current_status.clone();
    match form {
        StatusForm::Parents => {
            let entries = current_status.get("parents").and_then(Value::as_array)?.iter();
            let other_entries: Vec<&Value> =
                entries.filter(|entry| !claims.uninstalled_part.has_claim(entry)).collect();
            retracted["parents"] = json!(other_entries);
        }
        StatusForm::Class if classes.contains(&object.name_any()) => {
            retracted["conditions"] = retract(current_status);
        }
        StatusForm::Gateway
            if string_at("/spec/gatewayClassName").is_some_and(|class| classes.contains(class)) =>
        {
            retracted["conditions"] = retract(current_status);
            retracted["addresses"] = json!([]);
            let listeners = retracted.get_mut("listeners").and_then(Value::as_array_mut);
            for listener in listeners.into_iter().flatten() {
                let listener_conditions = retract(listener);
                listener["conditions"] = listener_conditions;
            }
        }
        StatusForm::Conditions => retracted["conditions"] = retract(current_status),
        // A running OSM uses other reasons.
        StatusForm::Current if string_at("/status/reason") == Some("in force") => {
            retracted = json!({"currentStatus": "pending", "reason": UNINSTALLED_MESSAGE});
        }
        StatusForm::Class | StatusForm::Gateway | StatusForm::Current | StatusForm::NoStatus => {}
    }
    (retracted != *current_status).then_some(retracted)
}

/// Returns the conditions, with those of Leno set to `Unknown` and those of other controllers unchanged.
fn retract_conditions(conditions: Option<&Value>, claims: &StatusClaims) -> Value {
    let mut conditions = conditions.and_then(Value::as_array).cloned().unwrap_or_default();
    for condition in &mut conditions {
        let is_own = OWN_CONDITIONS.iter().any(|name| condition["type"] == *name);
        if is_own && condition["status"] != "Unknown" {
            condition["status"] = json!("Unknown");
            condition["reason"] = json!("Pending");
            condition["message"] = json!(claims.uninstalled_part.condition_message());
            condition["lastTransitionTime"] = claims.transition_time.clone();
        }
    }
    Value::Array(conditions)
}

/// Returns the name of our Gateway controller, as an `Option` for comparison with an optional field.
fn our_controller() -> Option<Value> {
    Some(json!(GATEWAY_CONTROLLER))
}

/// The types of the conditions that control planes write.
const OWN_CONDITIONS: &[&str] =
    &["Accepted", "ResolvedRefs", "Programmed", "Enforced", "Conflicted"];
/// The message of conditions after an uninstallation.
const UNINSTALLED_MESSAGE: &str = "no control plane of the mesh is installed";
/// The interval between checks for pods of control planes.
const POD_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum number of checks for pods of control planes: one minute in total.
const MAX_POD_POLLS: u32 = 120;
/// The maximum number of rejected calls that are reported in full.
const MAX_REPORTED_ERRORS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Server;

    #[tokio::test]
    async fn statuses_of_gateways_are_retracted_despite_a_conflict_and_a_rejection() {
        let server = Server::start_server().await;
        let api = "/apis/gateway.networking.k8s.io/v1";
        let gateway = |name: &str, class: &str| {
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"name": name, "namespace": "shop", "resourceVersion": "1"},
                "spec": {"gatewayClassName": class},
                "status": {"addresses": [{"value": "10.0.0.1"}], "conditions": []},
            })
        };
        let gateways = [
            gateway("a", "leno"),
            gateway("b", "leno"),
            gateway("c", "leno"),
            gateway("d", "other"),
        ];
        {
            let mut store = server.store.lock().unwrap();
            let resource = json!({
                "name": "gateways", "singularName": "", "namespaced": true, "kind": "Gateway", "verbs": [],
            });
            let resources =
                json!({"groupVersion": "gateway.networking.k8s.io/v1", "resources": [resource]});
            store.objects.insert(api.to_owned(), resources);
            let list =
                json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": gateways});
            store.objects.insert(format!("{api}/gateways"), list);
            let first = format!("{api}/namespaces/shop/gateways/a");
            store.objects.insert(first, gateways[0].clone());
            store.conflicts = 1;
            store.forbidden = Some(("PATCH", "/gateways/b/"));
        }
        let mut steps = Vec::new();
        let report = |step: InstallStep| steps.push(step.object);
        let error = retract_statuses(&server.client, report).await.unwrap_err().to_string();
        assert!(error.contains("patch Gateway shop/b"), "{error}");
        assert_eq!(steps, ["Gateway shop/a", "Gateway shop/c"]);
    }

    /// Issue 27: without gateways no control plane writes these statuses.
    #[tokio::test]
    async fn an_installation_without_gateways_retracts_the_statuses_of_gateways() {
        let server = Server::start_server().await;
        let api = "/apis/gateway.networking.k8s.io/v1";
        let object = |kind: &str, spec: Value, status: Value| {
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
                "metadata": {"name": "edge", "namespace": "shop", "resourceVersion": "1"},
                "spec": spec, "status": status,
            })
        };
        let served = json!([condition_value("Programmed", "True")]);
        let mut class = object(
            "GatewayClass",
            json!({"controllerName": GATEWAY_CONTROLLER}),
            json!({"conditions": [condition_value("Accepted", "True")]}),
        );
        class["metadata"]["namespace"] = Value::Null;
        let gateway = object(
            "Gateway",
            json!({"gatewayClassName": "edge"}),
            json!({"addresses": [{"value": "10.0.0.1"}], "conditions": served}),
        );
        let entry = |name: &str| json!({"controllerName": name, "parentRef": {"name": "edge"}});
        let route = object(
            "HTTPRoute",
            json!({}),
            json!({"parents": [entry(GATEWAY_CONTROLLER), entry("leno.dev/mesh-controller")]}),
        );
        {
            let mut store = server.store.lock().unwrap();
            let resource = |name: &str, kind: &str| {
                json!({
                    "name": name, "singularName": "", "namespaced": kind != "GatewayClass", "kind": kind,
                    "verbs": [],
                })
            };
            let resources = [
                resource("gatewayclasses", "GatewayClass"),
                resource("gateways", "Gateway"),
                resource("httproutes", "HTTPRoute"),
            ];
            let resources =
                json!({"groupVersion": "gateway.networking.k8s.io/v1", "resources": resources});
            store.objects.insert(api.to_owned(), resources);
            for (name, item) in
                [("gatewayclasses", class), ("gateways", gateway), ("httproutes", route)]
            {
                let list =
                    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [item]});
                store.objects.insert(format!("{api}/{name}"), list);
            }
        }
        let mut steps = Vec::new();
        retract_gateways(&server.client, |step| steps.push(step.object)).await.unwrap();
        assert_eq!(steps, ["GatewayClass edge", "Gateway shop/edge", "HTTPRoute shop/edge"]);
        let store = server.store.lock().unwrap();
        let written =
            |path: &str| store.objects[&format!("{api}/{path}/edge/status")]["status"].clone();
        let gateway = written("namespaces/shop/gateways");
        assert_eq!(gateway["addresses"], json!([]));
        assert_eq!(gateway["conditions"][0]["status"], "Unknown");
        assert_eq!(gateway["conditions"][0]["message"], "the mesh is installed without gateways");
        assert_eq!(written("gatewayclasses")["conditions"][0]["status"], "Unknown");
        let parents = json!({"parents": [entry("leno.dev/mesh-controller")]});
        assert_eq!(written("namespaces/shop/httproutes"), parents);
    }

    #[tokio::test]
    async fn the_wait_ends_when_no_pod_of_a_control_plane_is_left() {
        let server = Server::start_server().await;
        let path = "/api/v1/namespaces/mesh/pods";
        let list = |items: Value| json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items});
        let pod = json!({"metadata": {"name": "leno-control-1", "namespace": "mesh"}});
        server.store.lock().unwrap().objects.insert(path.to_owned(), list(json!([pod])));
        let request_count = || server.store.lock().unwrap().requests.len();
        let pod_deletion = async {
            while request_count() == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(request_count(), 1, "the first request finds a pod");
            server.store.lock().unwrap().objects.insert(path.to_owned(), list(json!([])));
        };
        let namespace = NamespaceName::new("mesh").unwrap();
        let mut steps = Vec::new();
        let wait =
            wait_for_control_planes(&server.client, &namespace, |step| steps.push(step.object));
        let (result, ()) = tokio::join!(wait, pod_deletion);
        result.unwrap();
        assert_eq!(request_count(), 2);
        assert_eq!(steps, [""; 0]);
    }

    #[test]
    fn several_rejections_are_reported_together() {
        let mut rejected_calls = RejectedCalls::default();
        for number in 0..12 {
            let rejected = ApiError::Rejected { code: 500, message: format!("no {number}") };
            rejected_calls.add(InstallError::from_api_error("patch", "Gateway shop/a", rejected));
        }
        let text = rejected_calls.into_result().unwrap_err().to_string();
        assert!(text.contains("no 0") && text.contains("no 9"), "{text}");
        assert!(text.ends_with("; and 2 more"), "{text}");
    }

    fn dynamic_object(mut value: Value) -> DynamicObject {
        value["metadata"] = json!({"name": "it", "namespace": "shop"});
        serde_json::from_value(value).unwrap()
    }

    fn condition_value(condition_type: &str, status: &str) -> Value {
        json!({"type": condition_type, "status": status, "reason": condition_type, "message": "in force", "lastTransitionTime": "before"})
    }

    fn now_unknown(condition_type: &str) -> Value {
        json!({"type": condition_type, "status": "Unknown", "reason": "Pending", "message": UNINSTALLED_MESSAGE, "lastTransitionTime": "now"})
    }

    #[test]
    fn a_retracted_status_claims_no_effect() {
        let classes = BTreeSet::from(["leno".to_owned()]);
        let check = |form, spec: Value, status: Value, expected: Option<Value>| {
            let object = dynamic_object(json!({"spec": spec, "status": status}));
            let claims = |now: &str| StatusClaims {
                uninstalled_part: UninstalledPart::Mesh,
                transition_time: json!(now),
                classes: classes.clone(),
            };
            assert_eq!(retracted_status(form, &object, &claims("now")), expected, "{form:?}");
            // Nothing is left to retract.
            let Some(after) = expected else { return };
            let mut object = object;
            object.data["status"] = after;
            assert_eq!(retracted_status(form, &object, &claims("later")), None, "{form:?}");
        };
        let (accepted, foreign) =
            (condition_value("Accepted", "True"), condition_value("Theirs", "True"));
        check(
            StatusForm::Conditions,
            json!({}),
            json!({"conditions": [accepted, foreign]}),
            Some(json!({"conditions": [now_unknown("Accepted"), foreign]})),
        );
        let status = json!({
            "addresses": [{"type": "IPAddress", "value": "10.0.0.1"}],
            "conditions": [condition_value("Programmed", "True")],
            "listeners": [{"name": "a", "conditions": [condition_value("Programmed", "True")]}],
        });
        let after = json!({
            "addresses": [],
            "conditions": [now_unknown("Programmed")],
            "listeners": [{"name": "a", "conditions": [now_unknown("Programmed")]}],
        });
        check(
            StatusForm::Gateway,
            json!({"gatewayClassName": "leno"}),
            status.clone(),
            Some(after),
        );
        check(StatusForm::Gateway, json!({"gatewayClassName": "other"}), status, None);
        let entry = |name: &str| json!({"controllerName": name, "parentRef": {"name": "web"}});
        let both_parents =
            json!({"parents": [entry("leno.dev/mesh-controller"), entry("other.example/c")]});
        let other_parents = json!({"parents": [entry("other.example/c")]});
        check(StatusForm::Parents, json!({}), both_parents, Some(other_parents));
        let current =
            |status: &str, reason: &str| json!({"currentStatus": status, "reason": reason});
        check(
            StatusForm::Current,
            json!({}),
            current("committed", "in force"),
            Some(current("pending", UNINSTALLED_MESSAGE)),
        );
        check(StatusForm::Current, json!({}), current("committed", "by OSM"), None);
        check(StatusForm::Current, json!({}), current("error", "endpoints not found"), None);
    }
}
