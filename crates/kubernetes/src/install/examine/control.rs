//! The control plane of a cluster: where it is, and whether all of it is there.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use kube::{Client, ResourceExt as _};

use super::{Finding, unreadable};
use crate::api::{NamespaceName, ObjectApi};
use crate::install::apply::lacking;
use crate::install::{PART_OF, PART_OF_LABEL};
use crate::words::{CONTROL, CONTROL_NAME, SYSTEM_NAMESPACE};

/// The control plane of a namespace, or the one that the cluster has.
pub(super) async fn find(
    client: &Client,
    namespace: Option<&NamespaceName>,
) -> Result<(NamespaceName, Deployment), Finding> {
    let Some(namespace) = namespace else { return anywhere(client).await };
    let deployments: ObjectApi<Deployment> = ObjectApi::namespaced(client.clone(), namespace);
    match deployments.get_opt(&CONTROL_NAME).await {
        Ok(Some(deployment)) => Ok((namespace.clone(), deployment)),
        Ok(None) => Err(Finding::odd(
            format!("there is none in {namespace}"),
            format!("`leno install -n {namespace} --apply` installs it"),
        )),
        Err(error) => Err(unreadable(&error)),
    }
}

async fn anywhere(client: &Client) -> Result<(NamespaceName, Deployment), Finding> {
    let all: ObjectApi<Deployment> = ObjectApi::all(client.clone());
    let ours = format!("app.kubernetes.io/name={CONTROL},{PART_OF_LABEL}={PART_OF}");
    let listed = match all.list(&ListParams::default().labels(&ours)).await {
        Ok(listed) => listed.items,
        // Who may not look everywhere may look where it usually is.
        Err(error) if error.code() == Some(FORBIDDEN) => {
            return Box::pin(find(client, Some(&USUAL_NAMESPACE))).await;
        }
        Err(error) => return Err(unreadable(&error)),
    };
    let mut found = listed.into_iter().filter(|it| it.name_any() == CONTROL);
    let others: Vec<String>;
    match (found.next(), found) {
        (None, _) => Err(Finding::odd("there is none", "`leno install --apply` installs it")),
        (Some(first), rest) => {
            others = rest.filter_map(|it| it.namespace()).collect();
            let namespace = first.namespace().unwrap_or_default();
            match others.as_slice() {
                [] => match NamespaceName::new(&namespace) {
                    Ok(namespace) => Ok((namespace, first)),
                    Err(error) => Err(unreadable(&error.into())),
                },
                others => Err(Finding::wrong(
                    format!(
                        "there is one in each of {namespace}, {}, and they share kinds and webhook",
                        others.join(", ")
                    ),
                    "name one with -n, and uninstall the others",
                )),
            }
        }
    }
}

/// Whether all its pods are there.
pub(super) fn state(namespace: &str, deployment: &Deployment) -> Finding {
    match lacking(deployment) {
        None => Finding::Well(format!("all pods are there, in {namespace}")),
        Some(lacks) => Finding::wrong(
            lacks,
            format!("see `kubectl -n {namespace} describe pods` and their logs"),
        ),
    }
}

const FORBIDDEN: u16 = 403;
const USUAL_NAMESPACE: NamespaceName = NamespaceName::literal(SYSTEM_NAMESPACE);
