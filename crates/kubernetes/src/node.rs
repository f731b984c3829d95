//! Reads the redirection settings of starting pods from the API server, for the node agent, which redirects connections
//! by the CNI plugin of its node.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;

use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};
use crate::well_known::{MESHED, MESHED_BY_SIDECAR, REDIRECT_ANNOTATION};

/// The node agent's API server client.
#[derive(Clone)]
pub struct NodeAgentClient {
    client: Client,
}

/// The handling of the traffic of a starting pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodRedirection {
    /// No redirection: the pod has no sidecar, or an init container sets it up.
    Unchanged,
    /// Redirection to the sidecar, with these options of `leno redirect`.
    Redirect(Vec<String>),
}

impl NodeAgentClient {
    /// Connects with the in-cluster configuration or `KUBECONFIG`.
    ///
    /// # Errors
    /// When neither configuration exists or can be read.
    pub async fn connect() -> Result<Self, ApiError> {
        Ok(Self { client: Client::try_default().await? })
    }

    /// Returns the handling of a pod's traffic. `uid` is the UID in the container runtime, if it is known.
    ///
    /// # Errors
    /// When the pod does not exist, or a newer pod has its name.
    pub async fn pod_redirection(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<PodRedirection, NodeError> {
        let namespace = NamespaceName::new(namespace).map_err(ApiError::from)?;
        let name = ObjectName::new(name).map_err(ApiError::from)?;
        let pods: ObjectApi<Pod> = ObjectApi::for_namespace(self.client.clone(), &namespace);
        let pod = pods.get(&name).await?;
        match uid {
            // Static pods (mirror pods in the API server) have a different UID in the container runtime.
            Some(uid) if pod.metadata.uid.as_deref() != Some(uid) && !is_mirror_pod(&pod) => {
                Err(NodeError::Replaced)
            }
            _ => Ok(redirection_of_pod(&pod)),
        }
    }

    /// Returns true if a DaemonSet does not exist or is being deleted.
    ///
    /// # Errors
    /// When the API server request fails.
    pub async fn is_daemon_set_gone(&self, namespace: &str, name: &str) -> Result<bool, ApiError> {
        let (namespace, name) = (NamespaceName::new(namespace)?, ObjectName::new(name)?);
        let daemon_sets: ObjectApi<DaemonSet> =
            ObjectApi::for_namespace(self.client.clone(), &namespace);
        let daemon_set = daemon_sets.get_opt(&name).await?;
        Ok(daemon_set.is_none_or(|daemon_set| daemon_set.metadata.deletion_timestamp.is_some()))
    }
}

/// The reason that the handling of a pod's traffic is unknown.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The API server request failed.
    #[error("the API server did not respond: {0}")]
    Api(#[from] ApiError),
    /// A newer pod has this name.
    #[error("the pod was replaced by another one of the same name")]
    Replaced,
}

fn is_mirror_pod(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key("kubernetes.io/config.mirror"))
}

fn redirection_of_pod(pod: &Pod) -> PodRedirection {
    let meshed = pod.metadata.labels.as_ref().and_then(|labels| labels.get(MESHED));
    let options = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(REDIRECT_ANNOTATION));
    match (meshed.map(String::as_str), options) {
        (Some(MESHED_BY_SIDECAR), Some(options)) => {
            PodRedirection::Redirect(options.split_whitespace().map(str::to_owned).collect())
        }
        _ => PodRedirection::Unchanged,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_injected_pods_with_the_annotation_are_redirected() {
        let pod = |labels, annotations| -> Pod {
            let metadata = json!({"name": "a", "labels": labels, "annotations": annotations});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let meshed = json!({"leno.dev/meshed": "sidecar"});
        let annotation = json!({"leno.dev/redirect": "--exclude-outbound-ports=25,53 --uid=1500"});
        let options = ["--exclude-outbound-ports=25,53", "--uid=1500"].map(str::to_owned).to_vec();
        assert_eq!(
            redirection_of_pod(&pod(meshed.clone(), annotation.clone())),
            PodRedirection::Redirect(options)
        );
        let no_options = json!({"leno.dev/redirect": ""});
        assert_eq!(
            redirection_of_pod(&pod(meshed.clone(), no_options)),
            PodRedirection::Redirect(Vec::new())
        );
        // A pod with a redirection init container has no such annotation.
        assert_eq!(redirection_of_pod(&pod(meshed, json!({}))), PodRedirection::Unchanged);
        assert_eq!(redirection_of_pod(&pod(json!({}), annotation)), PodRedirection::Unchanged);
    }

    #[tokio::test]
    async fn no_request_is_sent_for_an_invalid_name() {
        let server = crate::testing::Server::start_server().await;
        let node = NodeAgentClient { client: server.client.clone() };
        for (namespace, name) in [
            ("shop/pods", "a"),
            ("shop", "a/status"),
            ("..", "a"),
            ("shop", "a?watch=true"),
            ("shop", "a%2fb"),
            ("", "a"),
            ("shop", ""),
        ] {
            let result = node.pod_redirection(namespace, name, None).await;
            assert!(matches!(result, Err(NodeError::Api(ApiError::Name(_)))), "{namespace} {name}");
            assert!(node.is_daemon_set_gone(namespace, name).await.is_err(), "{namespace} {name}");
        }
        assert_eq!(server.store.lock().unwrap().requests, [""; 0]);
    }
}
