//! Accesses the API server, and addresses objects by parsed names only. No other module calls the Kubernetes
//! client.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "this module owns the calls of the client: their paths have parsed names only"
)]

mod error;
mod name;

use std::fmt::Debug;

use futures_util::{Stream, TryStreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::{Api, DeleteParams, ListParams, ObjectList, Patch, PatchParams, PostParams};
use kube::core::{
    ApiResource, ClusterResourceScope, DynamicObject, NamespaceResourceScope, PartialObjectMeta,
    Request,
};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::error::ApiError;
pub(crate) use self::error::escape_text;
pub use self::name::{InvalidPathName, NamespaceName, ObjectName};

/// A client for the objects of one kind, in one namespace or in all namespaces.
#[derive(Debug, Clone)]
pub struct ObjectApi<K>(Api<K>);

impl<K: Resource> ObjectApi<K>
where
    K::DynamicType: Default,
{
    /// Creates an API for objects of every namespace, or of a cluster-scoped kind.
    #[must_use]
    pub fn for_all_namespaces(client: Client) -> Self {
        Self(Api::all(client))
    }

    /// Creates an API for objects of one namespace.
    #[must_use]
    pub fn for_namespace(client: Client, namespace: &NamespaceName) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        Self(Api::namespaced(client, namespace))
    }
}

impl ObjectApi<DynamicObject> {
    /// Creates an API for objects of a kind that is known at run time, in one namespace or in all.
    ///
    /// # Errors
    /// [`ApiError::Name`] when the group, version or plural of the kind cannot be part of a path.
    pub fn for_dynamic_kind(
        client: Client,
        namespace: Option<&NamespaceName>,
        resource: &ApiResource,
    ) -> Result<Self, ApiError> {
        let group_version = match resource.group.as_str() {
            "" => resource.version.clone(),
            group => format!("{group}/{}", resource.version),
        };
        let is_valid = name::is_group(resource.group.as_bytes())
            && name::is_label(resource.version.as_bytes())
            && name::is_label(resource.plural.as_bytes())
            && resource.api_version == group_version;
        if !is_valid {
            let kind = format!("{} {}", resource.api_version, resource.plural);
            return Err(InvalidPathName::Resource(escape_text(&kind)).into());
        }
        Ok(Self(match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        }))
    }
}

/// # Errors
/// Each call: [`ApiError`].
#[expect(missing_docs, reason = "each method is the call of the client that has its name")]
impl<K: Clone + Debug + DeserializeOwned> ObjectApi<K> {
    pub async fn get(&self, name: &ObjectName) -> Result<K, ApiError> {
        Ok(self.0.get(name).await?)
    }

    pub async fn get_opt(&self, name: &ObjectName) -> Result<Option<K>, ApiError> {
        Ok(self.0.get_opt(name).await?)
    }

    pub async fn get_metadata_opt(
        &self,
        name: &ObjectName,
    ) -> Result<Option<PartialObjectMeta<K>>, ApiError> {
        Ok(self.0.get_metadata_opt(name).await?)
    }

    pub async fn list(&self, parameters: &ListParams) -> Result<ObjectList<K>, ApiError> {
        Ok(self.0.list(parameters).await?)
    }

    pub async fn list_metadata(
        &self,
        parameters: &ListParams,
    ) -> Result<ObjectList<PartialObjectMeta<K>>, ApiError> {
        Ok(self.0.list_metadata(parameters).await?)
    }

    pub async fn create(&self, parameters: &PostParams, object: &K) -> Result<K, ApiError>
    where
        K: Serialize,
    {
        Ok(self.0.create(parameters, object).await?)
    }

    pub async fn replace(
        &self,
        name: &ObjectName,
        parameters: &PostParams,
        object: &K,
    ) -> Result<K, ApiError>
    where
        K: Serialize,
    {
        Ok(self.0.replace(name, parameters, object).await?)
    }

    pub async fn patch<P: Debug + Serialize>(
        &self,
        name: &ObjectName,
        parameters: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<K, ApiError> {
        Ok(self.0.patch(name, parameters, patch).await?)
    }

    pub async fn patch_status<P: Debug + Serialize>(
        &self,
        name: &ObjectName,
        parameters: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<K, ApiError> {
        Ok(self.0.patch_status(name, parameters, patch).await?)
    }

    pub async fn delete(
        &self,
        name: &ObjectName,
        parameters: &DeleteParams,
    ) -> Result<(), ApiError> {
        self.0.delete(name, parameters).await?;
        Ok(())
    }

    /// Lists and then watches the objects, with exponential backoff on errors.
    pub(crate) fn watch(
        self,
        config: Config,
    ) -> impl Stream<Item = Result<Event<K>, ApiError>> + Send
    where
        K: Resource + Send + 'static,
    {
        watcher(self.0, config).default_backoff().map_err(ApiError::from)
    }
}

/// Creates an object. Both the request and the response contain a secret, so the response is decoded here: the
/// client would log a body that it cannot decode.
pub(crate) async fn create_secret_object<K>(client: &Client, object: &K) -> Result<K, ApiError>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Serialize + DeserializeOwned,
{
    let body = serde_json::to_vec(object).map_err(|error| ApiError::from_decode_error(&error))?;
    let built_request = Request::new(K::url_path(&(), None)).create(&PostParams::default(), body);
    let request = built_request.map_err(kube::Error::BuildRequest)?;
    let response = client.request_text(request).await?;
    serde_json::from_str(&response).map_err(|error| ApiError::from_decode_error(&error))
}

/// Returns the kinds that the API server serves for one API version, such as `leno.dev/v1alpha1`.
pub(crate) async fn list_api_resources(
    client: &Client,
    group_version: &'static str,
) -> Result<APIResourceList, ApiError> {
    Ok(client.list_api_group_resources(group_version).await?)
}

/// Returns the version of the API server.
///
/// # Errors
/// When the API server cannot be reached, or rejects the request.
pub async fn server_version(client: &Client) -> Result<Info, ApiError> {
    Ok(client.apiserver_version().await?)
}

/// Returns the `date` header of an API server response; `None` if it has none.
pub(crate) async fn server_date(client: &Client) -> Result<Option<String>, ApiError> {
    let review = serde_json::json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/version", "verb": "get"}},
    });
    let request = http::Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .header("content-type", "application/json")
        .body(kube::client::Body::from(review.to_string().into_bytes()));
    let response = client.send(request.map_err(kube::Error::HttpError)?).await?;
    let date = response.headers().get("date").and_then(|date| date.to_str().ok());
    Ok(date.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    use super::*;
    use crate::testing::Server;

    #[tokio::test]
    async fn a_kind_cannot_change_the_path_of_a_request() {
        let server = Server::start_server().await;
        let resource = |group: &str, version: &str, plural: &str| ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: match group {
                "" => version.to_owned(),
                group => format!("{group}/{version}"),
            },
            kind: "A".to_owned(),
            plural: plural.to_owned(),
        };
        let api = |resource: &ApiResource| {
            ObjectApi::for_dynamic_kind(server.client.clone(), None, resource).map(drop)
        };
        for valid in [resource("", "v1", "pods"), resource("leno.dev", "v1alpha1", "hedgings")] {
            api(&valid).unwrap();
        }
        for invalid in [
            resource("", "v1", "pods/status"),
            resource("", "v1", "pods?watch=true"),
            resource("", "v1", ""),
            resource("", "v1/namespaces/a", "secrets"),
            resource("leno.dev/v1/..", "v1", "a"),
            resource("", "..", "a"),
            ApiResource { api_version: "v1/../v1".to_owned(), ..resource("", "v1", "pods") },
        ] {
            assert!(matches!(api(&invalid), Err(ApiError::Name(_))), "{invalid:?}");
        }
    }

    #[tokio::test]
    async fn no_error_contains_the_token_of_a_review() {
        let server = Server::start_server().await;
        server.store.lock().unwrap().forbidden = Some(("POST", "tokenreviews"));
        let reviewer = crate::review::TokenReviewer::new(server.client.clone());
        // The header and payload of a token with the audience `leno`.
        let payload = json!({
            "aud": "leno", "exp": 4_102_444_800_u64, "sub": "system:serviceaccount:a:b",
            "kubernetes.io": {"namespace": "a", "pod": {"name": "c", "uid": "d"}},
        });
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload.to_string()));
        let error = reviewer.review_token(&token).await.unwrap_err();
        assert!(matches!(error, crate::review::TokenReviewError::Api(_)), "{error}");
        assert!(!format!("{error} {error:?}").contains("eyJ"), "{error}");
    }
}
