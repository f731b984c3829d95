//! Whether the pods of the mesh can be what the control plane would make of them.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodSpec};
use kube::api::ListParams;
use kube::{Client, ResourceExt as _};
use serde_json::Value;

use super::{Finding, few, unreadable};
use crate::api::ObjectApi;
use crate::inject::{Demand, NamespaceFacts, decide};
use crate::install::Installed;
use crate::words::{CONTROL, MESHED, MESHED_BY_SIDECAR, PROXY_CONTAINER};

/// Whether sidecars are of the control plane's image.
pub(super) async fn sidecars(client: &Client, control: &Deployment) -> Finding {
    let pods: ObjectApi<Pod> = ObjectApi::all(client.clone());
    let with_sidecar = format!("{MESHED}={MESHED_BY_SIDECAR}");
    let running = ListParams::default().labels(&with_sidecar).fields(RUNNING).limit(PODS_MAX);
    let pods = match pods.list(&running).await {
        Ok(pods) => pods,
        Err(error) => return unreadable(&error),
    };
    let spec = control.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let ours = spec.and_then(|spec| image(spec, CONTROL)).unwrap_or_default();
    let others: Vec<String> = pods
        .items
        .iter()
        .filter(|pod| sidecar(pod).is_some_and(|it| it != ours))
        .map(shown)
        .collect();
    let more = pods.metadata.continue_.is_some_and(|token| !token.is_empty());
    let looked = match more {
        true => format!("the first {}", pods.items.len()),
        false => pods.items.len().to_string(),
    };
    match others.as_slice() {
        [] => Finding::Well(format!("{looked}, none of another image than the control plane's")),
        others => Finding::odd(
            format!("{} of {looked} have another image than {ours}: {}", others.len(), few(others)),
            "restart their workloads, unless their image is wanted",
        ),
    }
}

/// Whether namespaces of the mesh let pods in that lead their own connections to the sidecar.
pub(super) async fn namespaces(client: &Client, system: &str, control: &Deployment) -> Finding {
    let namespaces: ObjectApi<Namespace> = ObjectApi::all(client.clone());
    let listed = match namespaces.list(&ListParams::default()).await {
        Ok(listed) => listed.items,
        Err(error) => return unreadable(&error),
    };
    let injected: Vec<Namespace> =
        listed.into_iter().filter(|namespace| is_injected(namespace, system)).collect();
    let closed: Vec<String> = injected.iter().filter_map(enforced).collect();
    match closed.as_slice() {
        [_, ..] if !Installed::of(control).cni => Finding::wrong(
            format!("pods need NET_ADMIN, which {} refuse", few(&closed)),
            format!("run `leno install -n {system} --cni --apply`"),
        ),
        _ => Finding::Well(format!("{} whose pods get sidecars", injected.len())),
    }
}

/// Whether a pod that says nothing itself gets a sidecar there.
fn is_injected(namespace: &Namespace, system: &str) -> bool {
    let facts = NamespaceFacts {
        name: namespace.name_any(),
        labels: namespace.labels().clone(),
        annotations: namespace.annotations().clone(),
    };
    matches!(decide(&Value::Null, Demand::Namespace(&facts), system), Ok(None))
}

/// The namespace and its pod security standard, if that refuses the capability.
fn enforced(namespace: &Namespace) -> Option<String> {
    let standard = namespace.labels().get("pod-security.kubernetes.io/enforce")?;
    let refuses = ["baseline", "restricted"].contains(&standard.as_str());
    refuses.then(|| format!("{} ({standard})", namespace.name_any()))
}

fn sidecar(pod: &Pod) -> Option<&str> {
    image(pod.spec.as_ref()?, PROXY_CONTAINER)
}

/// The image of a container.
fn image<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a str> {
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find(|container| container.name == name)?.image.as_deref()
}

fn shown(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

/// Those that are over stay as they are.
const RUNNING: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Of how many pods the image is looked at.
const PODS_MAX: u32 = 5000;
