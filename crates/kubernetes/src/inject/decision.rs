//! Whether a pod gets a sidecar.
//!
//! First what never gets one; then the pod's own word, then its namespace's, each in our form before
//! OSM's before FSM's. The forms of those two count in namespaces that they monitor.

use leno_model::Floor;
use serde_json::Value;

use super::annotation::{InjectError, Of, of_pod, switch};
use super::{Demand, NamespaceFacts, Skip, is_ours};
use crate::words::{INJECTION, PREFIXES, PROXY_UID};

/// Why the pod gets none; nothing when it does.
pub(crate) fn decide(
    pod: &Value,
    demand: Demand<'_>,
    system_namespace: &str,
) -> Result<Option<Skip>, InjectError> {
    if let Some(skip) = never(pod) {
        return Ok(Some(skip));
    }
    let namespace = match demand {
        Demand::Namespace(facts) => facts,
        Demand::Person(_) => {
            let word = match spoken_by_pod(pod, None)? {
                Some(false) => Some(Skip::Disabled),
                Some(true) | None => None,
            };
            return Ok(word);
        }
    };
    let name = namespace.name.as_str();
    if SYSTEM_NAMESPACES.contains(&name) || name == system_namespace {
        return Ok(Some(Skip::SystemNamespace));
    }
    if PREFIXES.iter().any(|prefix| namespace.labels.contains_key(&format!("{prefix}/ignore"))) {
        return Ok(Some(Skip::Ignored));
    }
    // Both are read: a slip of the pen is told even where it decides nothing.
    let (of_pod, of_namespace) =
        (spoken_by_pod(pod, Some(namespace))?, spoken_by_namespace(namespace)?);
    Ok(match of_pod.or(of_namespace) {
        Some(true) => None,
        Some(false) => Some(Skip::Disabled),
        None => Some(Skip::NotAsked),
    })
}

/// The floor of the mesh requires a sidecar in a pod that opts out if its namespace has injection.
pub(super) fn is_required(pod: &Value, demand: Demand<'_>, floor: &Floor) -> bool {
    let opts_out = || spoken_by_pod(pod, demand.namespace()) == Ok(Some(false));
    let wants = |facts: &NamespaceFacts| spoken_by_namespace(facts) == Ok(Some(true));
    floor.injection_required && demand.namespace().is_some_and(wants) && opts_out()
}

/// Somebody who runs as the sidecar does would not be led to it.
pub(super) fn refuse_sidecar_user(pod: &Value) -> Result<(), InjectError> {
    let spec = &pod["spec"];
    let of_pod = spec["securityContext"]["runAsUser"].as_i64();
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array().into_iter().flatten() {
            let user = container["securityContext"]["runAsUser"].as_i64().or(of_pod);
            if user == Some(i64::from(PROXY_UID)) {
                let container = container["name"].as_str().unwrap_or_default().to_owned();
                return Err(InjectError::SidecarUser { container, uid: PROXY_UID });
            }
        }
    }
    Ok(())
}

fn never(pod: &Value) -> Option<Skip> {
    let spec = &pod["spec"];
    let containers =
        || ["initContainers", "containers"].into_iter().filter_map(|key| spec[key].as_array());
    if containers().flatten().any(is_ours) {
        return Some(Skip::Present);
    }
    let names = || containers().flatten().filter_map(|container| container["name"].as_str());
    for (label, container, mesh) in OTHER_MESHES {
        let labelled = of_pod(pod, "labels", label).is_some();
        if labelled && names().any(|name| name == *container) {
            return Some(Skip::OtherMesh(mesh));
        }
    }
    if spec["hostNetwork"].as_bool() == Some(true) {
        return Some(Skip::HostNetwork);
    }
    let system = &spec["nodeSelector"]["kubernetes.io/os"];
    let is_windows = spec["os"]["name"] == "windows" || system == "windows";
    is_windows.then_some(Skip::Windows)
}

/// What the pod says of itself.
fn spoken_by_pod(
    pod: &Value,
    namespace: Option<&NamespaceFacts>,
) -> Result<Option<bool>, InjectError> {
    let label = of_pod(pod, "labels", INJECTION);
    let own = own_form(Of::Pod, label, of_pod(pod, "annotations", INJECTION))?;
    let mut found = own;
    for prefix in OTHER_PREFIXES {
        let key = format!("{prefix}/{SIDECAR_INJECTION}");
        let Some(text) = of_pod(pod, "annotations", &key) else { continue };
        let word = switch(Of::Pod, &key, text)?;
        let monitored = namespace.is_some_and(|namespace| is_monitored(namespace, prefix));
        // Who wants no sidecar of theirs wants none; who wants theirs has to be in their mesh.
        if monitored || !word {
            found = found.or(Some(word));
        }
    }
    Ok(found)
}

fn spoken_by_namespace(namespace: &NamespaceFacts) -> Result<Option<bool>, InjectError> {
    let label = namespace.labels.get(INJECTION).map(String::as_str);
    let annotation = namespace.annotations.get(INJECTION).map(String::as_str);
    let mut found = own_form(Of::Namespace, label, annotation)?;
    for prefix in OTHER_PREFIXES {
        let key = format!("{prefix}/{SIDECAR_INJECTION}");
        if let (true, Some(text)) =
            (is_monitored(namespace, prefix), namespace.annotations.get(&key))
        {
            let word = switch(Of::Namespace, &key, text)?;
            found = found.or(Some(word));
        }
    }
    Ok(found)
}

fn own_form(
    of: Of,
    label: Option<&str>,
    annotation: Option<&str>,
) -> Result<Option<bool>, InjectError> {
    let read = |text: Option<&str>| text.map(|text| switch(of, INJECTION, text)).transpose();
    match (read(label)?, read(annotation)?) {
        (Some(one), Some(other)) if one != other => {
            Err(InjectError::Contradiction { of, key: INJECTION.to_owned() })
        }
        (one, other) => Ok(one.or(other)),
    }
}

fn is_monitored(namespace: &NamespaceFacts, prefix: &str) -> bool {
    namespace.labels.contains_key(&format!("{prefix}/monitored-by"))
}

/// Namespaces of the cluster itself.
pub(crate) const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
/// The prefixes of those whose users are at home here too.
const OTHER_PREFIXES: [&str; 2] = ["openservicemesh.io", "flomesh.io"];
/// The annotation of OSM and FSM, under their prefix.
const SIDECAR_INJECTION: &str = "sidecar-injection";
/// What other meshes leave in pods: a label, and a container beside it.
const OTHER_MESHES: &[(&str, &str, &str)] = &[
    ("osm-proxy-uuid", "envoy", "OSM"),
    ("osm-proxy-uuid", "sidecar", "osm-edge"),
    ("fsm-proxy-uuid", "sidecar", "FSM"),
    ("security.istio.io/tlsMode", "istio-proxy", "Istio"),
    ("linkerd.io/control-plane-ns", "linkerd-proxy", "Linkerd"),
];
