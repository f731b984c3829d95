//! Compares the objects of an installation with the output of `leno install`, for `leno check`. Fields that no
//! manifest sets are not compared: they are defaults of the API server, or set by other clients.

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use serde_json::Value;

use super::{ExamineResult, summarize_names, unreadable_finding};
use crate::api::{ApiError, NamespaceName};
use crate::install::apply::ApiTarget;
use crate::install::{InstallError, InstalledOptions, installation_manifests, skip_result};
use crate::status::event::shorten_middle;

/// Returns the manifests that an installation with the options of this control plane would apply.
///
/// # Errors
/// When the options of the control plane cannot be read.
pub(super) async fn desired_manifests(
    client: &Client,
    namespace: &NamespaceName,
    control_plane: &Deployment,
) -> Result<Vec<Value>, InstallError> {
    let existing_options = InstalledOptions::read_installation(client, namespace).await?;
    let installed_options =
        existing_options.unwrap_or_else(|| InstalledOptions::from_deployment(control_plane));
    Ok(installation_manifests(&installed_options.into_options(namespace)))
}

/// Compares all objects of the kinds in [`COMPARED_KINDS`].
pub(super) async fn compare_objects(client: &Client, desired: &[Value]) -> ExamineResult {
    let is_compared =
        |manifest: &&Value| COMPARED_KINDS.iter().any(|kind| manifest["kind"] == *kind);
    let comparisons =
        desired.iter().filter(is_compared).map(|manifest| compare_object(client, manifest));
    let comparisons: Vec<Result<ObjectComparison, ApiError>> =
        stream::iter(comparisons).buffered(MAX_CONCURRENT_REQUESTS).collect().await;
    summarize_comparisons(comparisons)
}

/// The comparison of one object with its manifest.
struct ObjectComparison {
    /// Kind and name.
    object: String,
    /// True for a CustomResourceDefinition of `leno.dev`.
    is_definition: bool,
    /// The differences; `None` for an object that does not exist.
    differences: Option<ManifestDifferences>,
}

async fn compare_object(client: &Client, manifest: &Value) -> Result<ObjectComparison, ApiError> {
    let is_definition = manifest["kind"] == "CustomResourceDefinition";
    let target = ApiTarget::from_manifest(client, manifest).map_err(|error| match error {
        InstallError::Api { problem, .. } => ApiError::Client(problem),
        error => ApiError::Client(error.to_string()),
    })?;
    let ApiTarget { object, name, api } = target;
    let differences = match api.get_opt(&name).await? {
        Some(actual) => {
            let actual = serde_json::to_value(actual).unwrap_or_default();
            Some(ManifestDifferences::compare_manifest(manifest, &actual))
        }
        // The cluster may lack the kind or the namespace of the object. The check `kinds` reports missing
        // definitions.
        None if is_definition || skip_result(manifest).is_some() => {
            Some(ManifestDifferences::default())
        }
        None => None,
    };
    Ok(ObjectComparison { object, is_definition, differences })
}

/// Summarizes the comparisons in one finding: absent objects and different fields are failures; surplus
/// entries, and differences of CustomResourceDefinitions, are warnings.
fn summarize_comparisons(comparisons: Vec<Result<ObjectComparison, ApiError>>) -> ExamineResult {
    let count = comparisons.len();
    let (mut failures, mut warnings, mut read_error) = (Vec::new(), Vec::new(), None);
    for comparison in comparisons {
        let ObjectComparison { object, is_definition, differences } = match comparison {
            Ok(comparison) => comparison,
            Err(error) => {
                read_error = Some(error);
                continue;
            }
        };
        let Some(ManifestDifferences { differing_fields, surplus_entries }) = differences else {
            failures.push(format!("{object} is absent"));
            continue;
        };
        let describe = |fields: &[String]| format!("{object}: {}", summarize_names(fields));
        match (differing_fields.as_slice(), surplus_entries.as_slice()) {
            ([], []) => {}
            // Differences of a definition are those of another version, and cause a warning only.
            (differing_fields @ [_, ..], _) if !is_definition => {
                failures.push(describe(differing_fields))
            }
            (differing_fields, surplus_entries) => {
                warnings.push(describe(&[differing_fields, surplus_entries].concat()))
            }
        }
    }
    match (failures.as_slice(), warnings.as_slice(), read_error) {
        ([], [], None) => {
            ExamineResult::Passed(format!("{count} match the output of `leno install`"))
        }
        (failures @ [_, ..], ..) => {
            ExamineResult::failure(summarize_names(failures), REINSTALL_HINT)
        }
        (_, warnings @ [_, ..], _) => {
            ExamineResult::warning(summarize_names(warnings), REINSTALL_HINT)
        }
        (_, _, Some(error)) => unreadable_finding(&error),
    }
}

/// The fields in which an object differs from its manifest.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ManifestDifferences {
    /// Descriptions of fields that are absent or have another value, such as `spec.type is absent, expected "ClusterIP"`.
    pub(super) differing_fields: Vec<String>,
    /// Descriptions of lists with additional entries.
    pub(super) surplus_entries: Vec<String>,
}

impl ManifestDifferences {
    /// Compares all fields except `metadata`, which has other writers as well.
    pub(super) fn compare_manifest(manifest: &Value, actual: &Value) -> Self {
        let mut differences = Self::default();
        for (key, desired) in manifest.as_object().into_iter().flatten() {
            if !["apiVersion", "kind", "metadata"].contains(&key.as_str()) {
                differences.compare_values(key, desired, &actual[key.as_str()]);
            }
        }
        differences
    }

    /// Compares the value at `path` with the desired one. Additional fields of `actual` are not differences.
    fn compare_values(&mut self, path: &str, desired: &Value, actual: &Value) {
        match desired {
            // The API server omits empty values.
            _ if is_empty(desired) => {}
            Value::Object(fields) => {
                for (key, desired) in fields {
                    self.compare_values(&format!("{path}.{key}"), desired, &actual[key.as_str()]);
                }
            }
            Value::Array(entries) => self.compare_lists(path, entries, actual),
            desired if is_same_value(desired, actual) => {}
            desired if actual.is_null() => {
                self.differing_fields
                    .push(format!("{path} is absent, expected {}", shorten_value(desired)));
            }
            desired => {
                self.differing_fields.push(format!(
                    "{path} is {}, expected {}",
                    shorten_value(actual),
                    shorten_value(desired)
                ));
            }
        }
    }

    /// Compares the entries of a list, which are matched by name, or by content if they have no name.
    fn compare_lists(&mut self, path: &str, desired: &[Value], actual: &Value) {
        let actual = actual.as_array().map(Vec::as_slice).unwrap_or_default();
        for (index, entry) in desired.iter().enumerate() {
            let name = entry["name"].as_str();
            let path = match name {
                Some(name) => format!("{path}[{name}]"),
                None => format!("{path}[{index}]"),
            };
            // The differences to the entry at the same index say more than that the entry is absent.
            let same_index = || actual.get(index).filter(|_| actual.len() == desired.len());
            let counterpart = match name {
                Some(name) => actual.iter().find(|element| element["name"] == name),
                None => {
                    actual.iter().find(|element| is_contained(entry, element)).or_else(same_index)
                }
            };
            match counterpart {
                Some(counterpart) => self.compare_values(&path, entry, counterpart),
                None => self.differing_fields.push(format!("{path} is absent")),
            }
        }
        let surplus = actual.len().saturating_sub(desired.len());
        if surplus > 0 {
            self.surplus_entries.push(format!("{path} has {surplus} more than the installation"));
        }
    }
}

/// Returns true if a value contains all fields of the desired one.
fn is_contained(desired: &Value, actual: &Value) -> bool {
    let mut differences = ManifestDifferences::default();
    match desired {
        Value::Object(_) | Value::Array(_) => differences.compare_values("", desired, actual),
        desired => return is_same_value(desired, actual),
    }
    differences == ManifestDifferences::default()
}

/// Compares two values. The API server may write a number in another form.
fn is_same_value(desired: &Value, actual: &Value) -> bool {
    desired == actual || desired.is_number() && desired.as_f64() == actual.as_f64()
}

/// Returns true for a value that the API server may omit.
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
    shorten_middle(&value.to_string(), MAX_LISTED_VALUE_BYTES)
}

/// The compared kinds. The control plane, its pods and the settings that users change have findings of their
/// own.
const COMPARED_KINDS: [&str; 12] = [
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
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// The maximum length of a value in a finding.
const MAX_LISTED_VALUE_BYTES: usize = 80;
const REINSTALL_HINT: &str = "run `leno install --apply` again, or this check with the version of `leno` that installed them";

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
        installation_manifests(&test_options())
            .into_iter()
            .find(|manifest| manifest["kind"] == kind)
            .unwrap()
    }

    fn assert_differences(
        manifest: &Value,
        actual: &Value,
        differing_fields: &[&str],
        surplus_entries: &[&str],
    ) {
        let differences = ManifestDifferences::compare_manifest(manifest, actual);
        assert_eq!(
            (differences.differing_fields, differences.surplus_entries),
            (to_strings(differing_fields), to_strings(surplus_entries))
        );
    }

    fn to_strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn an_object_as_installed_has_no_differences() {
        for manifest in installation_manifests(&test_options()) {
            let mut actual = manifest.clone();
            actual["metadata"]["labels"] = json!({"of": "others"});
            actual["spec"]["defaulted"] = json!("by the API server");
            assert_differences(&manifest, &actual, &[], &[]);
        }
    }

    #[test]
    fn differences_of_the_webhook_are_reported() {
        let manifest = installed_object("MutatingWebhookConfiguration");
        let mut without_first_entry = manifest.clone();
        without_first_entry["webhooks"].as_array_mut().unwrap().remove(0);
        let absent = "webhooks[namespace.sidecar-injector.leno.dev] is absent";
        assert_differences(&manifest, &without_first_entry, &[absent], &[]);
        for (pointer, value, expected) in [
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
            let mut changed = manifest.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            let field = format!("webhooks[namespace.sidecar-injector.leno.dev].{expected}");
            assert_differences(&manifest, &changed, &[&field], &[]);
        }
        let mut changed = manifest.clone();
        let selector = "/webhooks/0/namespaceSelector/matchExpressions";
        let expressions = changed.pointer_mut(selector).unwrap().as_array_mut().unwrap();
        expressions.insert(0, json!({"key": "control-plane", "operator": "DoesNotExist"}));
        let surplus_entries = "webhooks[namespace.sidecar-injector.leno.dev].namespaceSelector.matchExpressions \
                    has 1 more than the installation";
        assert_differences(&manifest, &changed, &[], &[surplus_entries]);
    }

    #[test]
    fn removed_permissions_are_reported() {
        let manifest = installed_object("ClusterRole");
        let mut changed = manifest.clone();
        changed["rules"].as_array_mut().unwrap().remove(0);
        assert_differences(&manifest, &changed, &["rules[0] is absent"], &[]);
        let mut changed = manifest.clone();
        changed["rules"][0]["verbs"] = json!(["get"]);
        assert!(
            !ManifestDifferences::compare_manifest(&manifest, &changed).differing_fields.is_empty()
        );
    }

    #[tokio::test]
    async fn an_absent_object_of_the_installation_is_reported() {
        let server = Server::start_server().await;
        let desired = installation_manifests(&test_options());
        for manifest in &desired {
            let ApiTarget { name, api, .. } =
                ApiTarget::from_manifest(&server.client, manifest).unwrap();
            let object = serde_json::from_value(manifest.clone()).unwrap();
            assert_eq!(object_name(&object), &*name);
            api.create(&kube::api::PostParams::default(), &object).await.unwrap();
        }
        let actual = compare_objects(&server.client, &desired).await;
        assert!(matches!(actual, ExamineResult::Passed(_)), "{actual}");
        let is_binding =
            |path: &String| path.contains("clusterrolebindings") && path.ends_with("/leno-control");
        let path =
            server.store.lock().unwrap().objects.keys().find(|path| is_binding(path)).cloned();
        server.store.lock().unwrap().objects.remove(&path.unwrap()).unwrap();
        let actual = compare_objects(&server.client, &desired).await;
        assert!(matches!(actual, ExamineResult::Failed(_)), "{actual}");
        assert!(
            actual.to_string().contains("ClusterRoleBinding leno-control is absent"),
            "{actual}"
        );
    }

    fn object_name(object: &kube::core::DynamicObject) -> &str {
        object.metadata.name.as_deref().unwrap_or_default()
    }
}
