//! Objects of an installation, compared with those of `leno install`. Fields that no manifest sets are defaults
//! of the API server or set by other clients, and are not compared.

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use serde_json::Value;

use super::{ExamineResult, summarize_names, unreadable_finding};
use crate::api::{ApiError, NamespaceName};
use crate::install::apply::ApiTarget;
use crate::install::{InstallError, Installed, installation_manifests, left_out};
use crate::status::event::shorten_middle;

/// Returns the manifests for the installation of a control plane.
///
/// # Errors
/// When its options cannot be read.
pub(super) async fn desired_manifests(
    client: &Client,
    namespace: &NamespaceName,
    control: &Deployment,
) -> Result<Vec<Value>, InstallError> {
    let installed = Installed::read_installation(client, namespace).await?;
    let installed = installed.unwrap_or_else(|| Installed::from_deployment(control));
    Ok(installation_manifests(&installed.into_options(namespace)))
}

/// Compares all objects of the kinds in [`COMPARED`].
pub(super) async fn compare_objects(client: &Client, desired: &[Value]) -> ExamineResult {
    let is_compared = |it: &&Value| COMPARED.iter().any(|kind| it["kind"] == *kind);
    let looks = desired.iter().filter(is_compared).map(|manifest| compare_object(client, manifest));
    let looks: Vec<Result<ObjectComparison, ApiError>> =
        stream::iter(looks).buffered(CONCURRENT_MAX).collect().await;
    summarize_comparisons(looks)
}

/// The result for one object.
struct ObjectComparison {
    /// Kind and name.
    object: String,
    /// True for a CustomResourceDefinition of `leno.dev`.
    is_definition: bool,
    /// `None` for an object that does not exist.
    differences: Option<ManifestDifferences>,
}

async fn compare_object(client: &Client, manifest: &Value) -> Result<ObjectComparison, ApiError> {
    let is_definition = manifest["kind"] == "CustomResourceDefinition";
    let addressed = ApiTarget::from_manifest(client, manifest).map_err(|error| match error {
        InstallError::Api { said, .. } => ApiError::Client(said),
        error => ApiError::Client(error.to_string()),
    })?;
    let ApiTarget { object, name, api } = addressed;
    let differences = match api.get_opt(&name).await? {
        Some(found) => {
            let found = serde_json::to_value(found).unwrap_or_default();
            Some(ManifestDifferences::between(manifest, &found))
        }
        // The cluster may lack its kind or its namespace, and `kinds` reports missing definitions.
        None if is_definition || left_out(manifest).is_some() => {
            Some(ManifestDifferences::default())
        }
        None => None,
    };
    Ok(ObjectComparison { object, is_definition, differences })
}

fn summarize_comparisons(looks: Vec<Result<ObjectComparison, ApiError>>) -> ExamineResult {
    let count = looks.len();
    let (mut wrong, mut odd, mut unread) = (Vec::new(), Vec::new(), None);
    for look in looks {
        let ObjectComparison { object, is_definition, differences } = match look {
            Ok(look) => look,
            Err(error) => {
                unread = Some(error);
                continue;
            }
        };
        let Some(ManifestDifferences { lacks, more }) = differences else {
            wrong.push(format!("{object} is absent"));
            continue;
        };
        let said = |fields: &[String]| format!("{object}: {}", summarize_names(fields));
        match (lacks.as_slice(), more.as_slice()) {
            ([], []) => {}
            // The schema of another version.
            (lacks @ [_, ..], _) if !is_definition => wrong.push(said(lacks)),
            (lacks, more) => odd.push(said(&[lacks, more].concat())),
        }
    }
    match (wrong.as_slice(), odd.as_slice(), unread) {
        ([], [], None) => {
            ExamineResult::Passed(format!("{count} match the output of `leno install`"))
        }
        (wrong @ [_, ..], ..) => ExamineResult::wrong(summarize_names(wrong), AGAIN),
        (_, odd @ [_, ..], _) => ExamineResult::odd(summarize_names(odd), AGAIN),
        (_, _, Some(error)) => unreadable_finding(&error),
    }
}

/// The fields in which an object differs from its manifest.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ManifestDifferences {
    /// Fields that are absent or have another value.
    pub(super) lacks: Vec<String>,
    /// Lists with additional entries.
    pub(super) more: Vec<String>,
}

impl ManifestDifferences {
    /// Compares all fields except `metadata`, which has other writers as well.
    pub(super) fn between(manifest: &Value, found: &Value) -> Self {
        let mut all = Self::default();
        for (key, desired) in manifest.as_object().into_iter().flatten() {
            if !["apiVersion", "kind", "metadata"].contains(&key.as_str()) {
                all.compare_values(key, desired, &found[key.as_str()]);
            }
        }
        all
    }

    fn compare_values(&mut self, path: &str, desired: &Value, found: &Value) {
        match desired {
            // The API server omits empty values.
            _ if is_empty(desired) => {}
            Value::Object(fields) => {
                for (key, desired) in fields {
                    self.compare_values(&format!("{path}.{key}"), desired, &found[key.as_str()]);
                }
            }
            Value::Array(entries) => self.compare_lists(path, entries, found),
            desired if is_same(desired, found) => {}
            desired if found.is_null() => {
                self.lacks.push(format!("{path} is absent, expected {}", shorten_value(desired)));
            }
            desired => {
                self.lacks.push(format!(
                    "{path} is {}, expected {}",
                    shorten_value(found),
                    shorten_value(desired)
                ));
            }
        }
    }

    /// Matches entries by name, or by content if they have no name.
    fn compare_lists(&mut self, path: &str, desired: &[Value], found: &Value) {
        let found = found.as_array().map(Vec::as_slice).unwrap_or_default();
        for (index, entry) in desired.iter().enumerate() {
            let name = entry["name"].as_str();
            let path = match name {
                Some(name) => format!("{path}[{name}]"),
                None => format!("{path}[{index}]"),
            };
            let by_index = || found.get(index).filter(|_| found.len() == desired.len());
            let partner = match name {
                Some(name) => found.iter().find(|it| it["name"] == name),
                None => found.iter().find(|it| covers_list(entry, it)).or_else(by_index),
            };
            match partner {
                Some(partner) => self.compare_values(&path, entry, partner),
                None => self.lacks.push(format!("{path} is absent")),
            }
        }
        let more = found.len().saturating_sub(desired.len());
        if more > 0 {
            self.more.push(format!("{path} has {more} more than the installation"));
        }
    }
}

fn covers_list(desired: &Value, found: &Value) -> bool {
    let mut all = ManifestDifferences::default();
    match desired {
        Value::Object(_) | Value::Array(_) => all.compare_values("", desired, found),
        desired => return is_same(desired, found),
    }
    all == ManifestDifferences::default()
}

/// Compares two values. The API server may write a number in another form.
fn is_same(desired: &Value, found: &Value) -> bool {
    desired == found || desired.is_number() && desired.as_f64() == found.as_f64()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(entries) => entries.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

fn shorten_value(value: &Value) -> String {
    shorten_middle(&value.to_string(), VALUE_BYTES_MAX)
}

/// The compared kinds. The control plane, its pods and the settings that users change have findings of their
/// own.
const COMPARED: [&str; 12] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ServiceAccount",
    "Service",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "GatewayClass",
    "CustomResourceDefinition",
];
/// The maximum number of concurrent requests.
const CONCURRENT_MAX: usize = 16;
const VALUE_BYTES_MAX: usize = 80;
const AGAIN: &str = "run `leno install --apply` again, or this check with the version of `leno` that installed them";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::install::InstallOptions;
    use crate::testing::Server;

    fn test_options() -> InstallOptions {
        let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
        InstallOptions { gateways: true, ..InstallOptions::new("leno:test".to_owned(), domain) }
    }

    /// Returns the first object of a kind, as installed.
    fn installed_object(kind: &str) -> Value {
        installation_manifests(&test_options()).into_iter().find(|it| it["kind"] == kind).unwrap()
    }

    fn assert_differences(manifest: &Value, found: &Value, lacks: &[&str], more: &[&str]) {
        let all = ManifestDifferences::between(manifest, found);
        assert_eq!((all.lacks, all.more), (to_strings(lacks), to_strings(more)));
    }

    fn to_strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn an_object_as_installed_has_no_differences() {
        for manifest in installation_manifests(&test_options()) {
            let mut found = manifest.clone();
            found["metadata"]["labels"] = json!({"of": "others"});
            found["spec"]["defaulted"] = json!("by the API server");
            assert_differences(&manifest, &found, &[], &[]);
        }
    }

    #[test]
    fn half_of_the_webhook_is_reported() {
        let manifest = installed_object("MutatingWebhookConfiguration");
        let mut half = manifest.clone();
        half["webhooks"].as_array_mut().unwrap().remove(0);
        let absent = "webhooks[namespace.sidecar-injector.leno.dev] is absent";
        assert_differences(&manifest, &half, &[absent], &[]);
        for (pointer, value, words) in [
            (
                "/webhooks/0/failurePolicy",
                json!("Ignore"),
                "failurePolicy is \"Ignore\", expected \"Fail\"",
            ),
            (
                "/webhooks/0/clientConfig/service/port",
                json!(8443),
                "clientConfig.service.port is 8443, expected 443",
            ),
            (
                "/webhooks/0/rules/0/operations/0",
                json!("UPDATE"),
                "rules[0].operations[0] is \"UPDATE\", expected \"CREATE\"",
            ),
        ] {
            let mut other = manifest.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            let field = format!("webhooks[namespace.sidecar-injector.leno.dev].{words}");
            assert_differences(&manifest, &other, &[&field], &[]);
        }
        let mut other = manifest.clone();
        let selector = "/webhooks/0/namespaceSelector/matchExpressions";
        let expressions = other.pointer_mut(selector).unwrap().as_array_mut().unwrap();
        expressions.insert(0, json!({"key": "control-plane", "operator": "DoesNotExist"}));
        let more = "webhooks[namespace.sidecar-injector.leno.dev].namespaceSelector.matchExpressions \
                    has 1 more than the installation";
        assert_differences(&manifest, &other, &[], &[more]);
    }

    #[test]
    fn rights_that_were_taken_away_are_reported() {
        let manifest = installed_object("ClusterRole");
        let mut other = manifest.clone();
        other["rules"].as_array_mut().unwrap().remove(0);
        assert_differences(&manifest, &other, &["rules[0] is absent"], &[]);
        let mut other = manifest.clone();
        other["rules"][0]["verbs"] = json!(["get"]);
        assert!(!ManifestDifferences::between(&manifest, &other).lacks.is_empty());
    }

    #[tokio::test]
    async fn an_absent_object_of_the_installation_is_named() {
        let server = Server::start_server().await;
        let desired = installation_manifests(&test_options());
        for manifest in &desired {
            let ApiTarget { name, api, .. } =
                ApiTarget::from_manifest(&server.client, manifest).unwrap();
            let object = serde_json::from_value(manifest.clone()).unwrap();
            assert_eq!(object_name(&object), &*name);
            api.create(&kube::api::PostParams::default(), &object).await.unwrap();
        }
        let found = compare_objects(&server.client, &desired).await;
        assert!(matches!(found, ExamineResult::Passed(_)), "{found}");
        let is_binding =
            |path: &String| path.contains("clusterrolebindings") && path.ends_with("/leno-control");
        let path = server.store.lock().unwrap().objects.keys().find(|it| is_binding(it)).cloned();
        server.store.lock().unwrap().objects.remove(&path.unwrap()).unwrap();
        let found = compare_objects(&server.client, &desired).await;
        assert!(matches!(found, ExamineResult::Failed(_)), "{found}");
        assert!(found.to_string().contains("ClusterRoleBinding leno-control is absent"), "{found}");
    }

    fn object_name(object: &kube::core::DynamicObject) -> &str {
        object.metadata.name.as_deref().unwrap_or_default()
    }
}
