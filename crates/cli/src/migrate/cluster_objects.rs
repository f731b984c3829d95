//! Reads the rules of other meshes from the Kubernetes API server, as documents to convert, and lists
//! annotations and labels of other meshes that Leno ignores.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{DynamicObject, ListParams, PartialObjectMeta};
use kube::core::ApiResource;
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Client, Resource};
use leno_kubernetes::api::{ApiError, ObjectApi};
use leno_kubernetes::well_known::{PREFIXES, is_supported_annotation};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::document::{SourceDocument, is_convertible_group};
use super::report::IgnoredSetting;
use crate::cluster::from_api_error;
use crate::yaml;

/// Reads all objects in the API groups of other meshes, the services that their rules reference, and unused
/// annotations and labels on namespaces and pods.
///
/// # Errors
/// If the API server does not respond or rejects a request, or if an object of a native kind is rejected.
pub(super) async fn read_objects(
    client: &Client,
) -> anyhow::Result<(Vec<SourceDocument>, Vec<IgnoredSetting>)> {
    let discovery = Discovery::new(client.clone())
        .run()
        .await
        .map_err(|error| from_api_error(ApiError::from(error)))?;
    let mut documents = Vec::new();
    for group in discovery.groups().filter(|group| is_convertible_group(group.name())) {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation(verbs::LIST) {
                continue;
            }
            let is_cluster_wide = capabilities.scope == Scope::Cluster;
            for object in list_objects(client, &resource).await? {
                documents.extend(to_document(object, &resource, is_cluster_wide)?);
            }
        }
    }
    // The ports of a service determine the conversion of a split.
    let services = ApiResource::erase::<Service>(&());
    for object in list_objects(client, &services).await? {
        // An unreadable service does not belong to other meshes.
        documents.extend(to_document(object, &services, false).ok().flatten());
    }
    Ok((documents, list_ignored_settings(client).await?))
}

/// Lists all objects of a kind, page by page.
async fn list_objects(
    client: &Client,
    resource: &ApiResource,
) -> anyhow::Result<Vec<DynamicObject>> {
    let api =
        ObjectApi::for_dynamic_kind(client.clone(), None, resource).map_err(from_api_error)?;
    let mut objects = Vec::new();
    let mut list_params = ListParams::default().limit(PAGE_SIZE);
    loop {
        let list = api.list(&list_params).await.map_err(from_api_error)?;
        objects.extend(list.items);
        if objects.len() > MAX_OBJECTS {
            anyhow::bail!(
                "more than {MAX_OBJECTS} {} in the cluster: check manifest files instead",
                resource.plural
            );
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => list_params = list_params.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

/// Converts an object to a document without the fields that the API server adds.
fn to_document(
    object: DynamicObject,
    resource: &ApiResource,
    is_cluster_wide: bool,
) -> anyhow::Result<Option<SourceDocument>> {
    let DynamicObject { metadata, data, .. } = object;
    let mut manifest = serde_json::Map::new();
    manifest.insert("apiVersion".to_owned(), resource.api_version.clone().into());
    manifest.insert("kind".to_owned(), resource.kind.clone().into());
    let mut object_metadata = serde_json::Map::new();
    object_metadata.insert("name".to_owned(), metadata.name.unwrap_or_default().into());
    if let Some(namespace) = metadata.namespace.filter(|_| !is_cluster_wide) {
        object_metadata.insert("namespace".to_owned(), namespace.into());
    }
    manifest.insert("metadata".to_owned(), Value::Object(object_metadata));
    if let Value::Object(fields) = data {
        manifest.extend(fields.into_iter().filter(|(key, _)| key != "status"));
    }
    SourceDocument::from_cluster(&yaml::write_document(&Value::Object(manifest)))
}

/// Lists the annotations and labels of other meshes, with their locations.
async fn list_ignored_settings(client: &Client) -> anyhow::Result<Vec<IgnoredSetting>> {
    let mut locations_by_setting: BTreeMap<String, Vec<String>> = BTreeMap::new();
    collect_ignored_settings::<Namespace>(client, "Namespace", &mut locations_by_setting).await?;
    collect_ignored_settings::<Pod>(client, "Pod", &mut locations_by_setting).await?;
    let ignored_settings = locations_by_setting.into_iter().map(|(setting, locations)| {
        let omitted_count = locations.len().saturating_sub(MAX_LOCATIONS);
        let mut location = locations.into_iter().take(MAX_LOCATIONS).collect::<Vec<_>>().join(", ");
        if omitted_count > 0 {
            location.push_str(&format!(" and {omitted_count} more"));
        }
        let reason = "unsupported; docs/kubernetes.md lists the supported annotations".to_owned();
        IgnoredSetting { object: setting, location, reason }
    });
    Ok(ignored_settings.collect())
}

/// Adds the ignored annotations and labels of all objects of a kind, each with the objects that have it.
async fn collect_ignored_settings<K>(
    client: &Client,
    kind: &str,
    locations_by_setting: &mut BTreeMap<String, Vec<String>>,
) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: ObjectApi<K> = ObjectApi::for_all_namespaces(client.clone());
    let mut list_params = ListParams::default().limit(PAGE_SIZE);
    loop {
        let list = api.list_metadata(&list_params).await.map_err(from_api_error)?;
        for PartialObjectMeta { metadata, .. } in list.items {
            let name = metadata.name.unwrap_or_default();
            let location = match metadata.namespace {
                Some(namespace) => format!("{kind} {namespace}/{name}"),
                None => format!("{kind} {name}"),
            };
            let annotations =
                metadata.annotations.into_iter().flatten().map(|(key, _)| ("annotation", key));
            let labels = metadata.labels.into_iter().flatten().map(|(key, _)| ("label", key));
            for (setting_kind, key) in annotations.chain(labels) {
                if is_ignored(&key) {
                    locations_by_setting
                        .entry(format!("{setting_kind} {key}"))
                        .or_default()
                        .push(location.clone());
                }
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => list_params = list_params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// True for an annotation or label of another mesh that Leno ignores.
fn is_ignored(key: &str) -> bool {
    let Some((domain, name)) = key.split_once('/') else { return false };
    is_convertible_group(domain) && !(PREFIXES.contains(&domain) && is_supported_annotation(name))
}

/// The page size of list requests.
const PAGE_SIZE: u32 = 500;
/// The maximum number of objects of one kind; real clusters have fewer.
const MAX_OBJECTS: usize = 100_000;
/// The maximum number of locations reported per annotation or label.
const MAX_LOCATIONS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_annotations_are_not_reported_as_lost() {
        for supported in [
            "openservicemesh.io/monitored-by",
            "flomesh.io/sidecar-injection",
            "openservicemesh.io/sidecar-resource-limits-cpu",
            "flomesh.io/network-interface-exclusion-list",
            "app",
            "example.com/ignore",
        ] {
            assert!(!is_ignored(supported), "{supported}");
        }
        for ignored in [
            "flomesh.io/upstream-tls",
            "flomesh.io/proxy-mode",
            "flomesh.io/sidecar-image",
            "gateway.flomesh.io/ignore",
        ] {
            assert!(is_ignored(ignored), "{ignored}");
        }
    }

    #[test]
    fn fields_added_by_the_api_server_are_ignored() {
        let object = serde_json::json!({
            "apiVersion": "policy.openservicemesh.io/v1alpha1", "kind": "Egress",
            "metadata": {
                "name": "pay", "namespace": "shop", "uid": "x", "resourceVersion": "7",
                "managedFields": [{"manager": "kubectl"}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
            },
            "spec": {
                "sources": [{"kind": "ServiceAccount", "name": "a", "namespace": "shop"}],
                "hosts": ["api.example"], "ports": [{"number": 80, "protocol": "http"}],
            },
            "status": {"currentStatus": "committed"},
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let version =
            kube::core::GroupVersionKind::gvk("policy.openservicemesh.io", "v1alpha1", "Egress");
        let resource = ApiResource::from_gvk(&version);
        let document = to_document(object, &resource, false).unwrap().unwrap();
        assert!(document.object().is_some());
        assert!(!document.text.contains("status") && !document.text.contains("uid"));
    }
}
