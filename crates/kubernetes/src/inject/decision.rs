//! Decides if a pod gets a sidecar, and rejects pods that cannot have one. Supports the annotations of OSM (Open Service
//! Mesh) and FSM (Flomesh Service Mesh) as well as Leno's.
//!
//! Reasons to skip a pod regardless of settings come first, then the settings of the pod, then the settings of
//! its namespace. Within the pod and the namespace, Leno's label or annotation precedes OSM's annotation, which
//! precedes FSM's. Annotations of OSM and FSM apply only in namespaces that they monitor.

use leno_model::{SecurityFloor, repository_of};
use serde_json::Value;

use super::annotation::{AnnotatedObject, InjectError, parse_switch, pod_metadata};
use super::options::requested_image;
use super::{
    InjectionSettings, InjectionTrigger, NamespaceMetadata, SkipReason, is_leno_container,
};
use crate::well_known::{INJECTION, PREFIXES, PROXY_CONTAINER, PROXY_UID};

/// Returns the reason that the pod gets no sidecar; `None` if it gets a sidecar.
pub(crate) fn decide_injection(
    pod: &Value,
    trigger: InjectionTrigger<'_>,
    system_namespace: &str,
) -> Result<Option<SkipReason>, InjectError> {
    if let Some(reason) = skip_reason(pod) {
        return Ok(Some(reason));
    }
    let namespace = match trigger {
        InjectionTrigger::Namespace(namespace) => namespace,
        // The user's request replaces opting in, so only the pod itself can opt out.
        InjectionTrigger::User(_) => {
            let reason = match read_pod_setting(pod, None)? {
                Some(false) => Some(SkipReason::Disabled),
                Some(true) | None => None,
            };
            return Ok(reason);
        }
    };
    if let Some(reason) = namespace_skip_reason(namespace, system_namespace) {
        return Ok(Some(reason));
    }
    // Both settings are parsed, so that an invalid value is reported even if it has no effect.
    let (pod_setting, namespace_setting) =
        (read_pod_setting(pod, Some(namespace))?, read_namespace_setting(namespace)?);
    Ok(match pod_setting.or(namespace_setting) {
        Some(true) => None,
        Some(false) => Some(SkipReason::Disabled),
        None => Some(SkipReason::NotRequested),
    })
}

/// Returns true if the pod opts out, but the mesh floor (`spec.floor` of the MeshConfig) requires a sidecar. The
/// floor applies in namespaces with injection.
pub(super) fn is_sidecar_required(
    pod: &Value,
    trigger: InjectionTrigger<'_>,
    floor: &SecurityFloor,
) -> bool {
    let opts_out = || read_pod_setting(pod, trigger.namespace_metadata()) == Ok(Some(false));
    let has_injection =
        |namespace: &NamespaceMetadata| read_namespace_setting(namespace) == Ok(Some(true));
    floor.injection_required
        && trigger.namespace_metadata().is_some_and(has_injection)
        && opts_out()
}

/// Rejects a pod with containers that have the names of a sidecar but none of its images, if the floor of the
/// mesh requires a sidecar. Such a pod would run without a sidecar.
pub(super) fn reject_imitation(
    pod: &Value,
    trigger: InjectionTrigger<'_>,
    settings: &InjectionSettings,
) -> Result<(), InjectError> {
    let floor =
        settings.floor_in(trigger.namespace_metadata()).filter(|floor| floor.injection_required);
    let has_injection = |namespace: &&NamespaceMetadata| {
        namespace_skip_reason(namespace, &settings.system_namespace).is_none()
            && read_namespace_setting(namespace) == Ok(Some(true))
    };
    let (Some(floor), Some(namespace)) =
        (floor, trigger.namespace_metadata().filter(has_injection))
    else {
        return Ok(());
    };
    let requested_image_name = requested_image(pod, Some(namespace))?;
    let is_permitted = |image: &str| {
        if floor.sidecar_images.is_empty() {
            // Annotations may name any image, and an already injected pod may be reviewed again.
            requested_image_name == Some(image)
                || repository_of(image) == repository_of(&settings.image)
        } else {
            settings.permits_image(floor, image)
        }
    };
    let mut has_sidecar = false;
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        for (index, container) in
            containers.enumerate().filter(|(_, container)| is_leno_container(container))
        {
            let container_field =
                |key: &str| container[key].as_str().unwrap_or_default().to_owned();
            if !is_permitted(container["image"].as_str().unwrap_or_default()) {
                return Err(InjectError::Imitation {
                    field: format!("spec.{list}[{index}].image"),
                    container: container_field("name"),
                    image: container_field("image"),
                });
            }
            has_sidecar |= container["name"] == PROXY_CONTAINER;
        }
    }
    if has_sidecar { Ok(()) } else { Err(InjectError::Incomplete) }
}

/// Checks the types of the fields that injection changes. A review can come from any client that reaches the
/// webhook, not only from the API server.
pub(super) fn check_shape(pod: &Value) -> Result<(), InjectError> {
    const MAPS: [&str; 4] = ["/metadata", "/metadata/labels", "/metadata/annotations", "/spec"];
    const LISTS: [&str; 3] = ["/spec/containers", "/spec/initContainers", "/spec/volumes"];
    let has_shape = |field: &str, is_expected: fn(&Value) -> bool| {
        pod.pointer(field).is_none_or(|value| value.is_null() || is_expected(value))
    };
    if !pod.is_object() {
        return Err(InjectError::Shape { field: "the pod".to_owned(), expected: "a map" });
    }
    let maps = MAPS.into_iter().map(|field| (field, "a map", has_shape(field, Value::is_object)));
    let lists = LISTS.into_iter().map(|field| (field, "a list", has_shape(field, Value::is_array)));
    match maps.chain(lists).find(|(_, _, is_valid)| !is_valid) {
        Some((field, expected, _)) => Err(InjectError::Shape {
            field: field.trim_start_matches('/').replace('/', "."),
            expected,
        }),
        None => Ok(()),
    }
}

/// Rejects containers with the user ID of the sidecar: their traffic would not be redirected.
pub(super) fn reject_sidecar_user(pod: &Value) -> Result<(), InjectError> {
    let spec = &pod["spec"];
    let pod_user = spec["securityContext"]["runAsUser"].as_i64();
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array().into_iter().flatten() {
            let user = container["securityContext"]["runAsUser"].as_i64().or(pod_user);
            if user == Some(i64::from(PROXY_UID)) {
                let container = container["name"].as_str().unwrap_or_default().to_owned();
                return Err(InjectError::SidecarUser { container, uid: PROXY_UID });
            }
        }
    }
    Ok(())
}

/// Returns the reason that no pod of a namespace gets a sidecar, regardless of the injection settings of the
/// namespace; `None` if these settings decide.
fn namespace_skip_reason(
    namespace: &NamespaceMetadata,
    system_namespace: &str,
) -> Option<SkipReason> {
    let name = namespace.name.as_str();
    if SYSTEM_NAMESPACES.contains(&name) || name == system_namespace {
        return Some(SkipReason::SystemNamespace);
    }
    let is_ignored =
        PREFIXES.iter().any(|prefix| namespace.labels.contains_key(&format!("{prefix}/ignore")));
    is_ignored.then_some(SkipReason::Ignored)
}

/// Returns the reason that a pod gets no sidecar, regardless of settings; `None` if settings decide.
fn skip_reason(pod: &Value) -> Option<SkipReason> {
    let spec = &pod["spec"];
    let containers =
        || ["initContainers", "containers"].into_iter().filter_map(|key| spec[key].as_array());
    if containers().flatten().any(is_leno_container) {
        return Some(SkipReason::AlreadyInjected);
    }
    let container_names =
        || containers().flatten().filter_map(|container| container["name"].as_str());
    for (label, container, mesh) in OTHER_MESHES {
        let has_label = pod_metadata(pod, "labels", label).is_some();
        if has_label && container_names().any(|name| name == *container) {
            return Some(SkipReason::OtherMesh(mesh));
        }
    }
    if spec["hostNetwork"].as_bool() == Some(true) {
        return Some(SkipReason::HostNetwork);
    }
    let operating_system = &spec["nodeSelector"]["kubernetes.io/os"];
    let is_windows = spec["os"]["name"] == "windows" || operating_system == "windows";
    is_windows.then_some(SkipReason::Windows)
}

/// Reads the injection setting of a pod: true if it opts in, false if it opts out, `None` if it has no setting.
fn read_pod_setting(
    pod: &Value,
    namespace: Option<&NamespaceMetadata>,
) -> Result<Option<bool>, InjectError> {
    let label = pod_metadata(pod, "labels", INJECTION);
    let own_setting =
        read_own_setting(AnnotatedObject::Pod, label, pod_metadata(pod, "annotations", INJECTION))?;
    let mut setting = own_setting;
    for prefix in OTHER_PREFIXES {
        let key = format!("{prefix}/{SIDECAR_INJECTION}");
        let Some(text) = pod_metadata(pod, "annotations", &key) else { continue };
        let is_enabled = parse_switch(AnnotatedObject::Pod, &key, text)?;
        let is_monitored_namespace =
            namespace.is_some_and(|namespace| is_monitored(namespace, prefix));
        // Opting out of OSM's or FSM's sidecar counts everywhere; opting in only in a namespace that it
        // monitors.
        if is_monitored_namespace || !is_enabled {
            setting = setting.or(Some(is_enabled));
        }
    }
    Ok(setting)
}

/// Reads the injection setting of a namespace: true if its pods get sidecars, `None` if it has no setting.
fn read_namespace_setting(namespace: &NamespaceMetadata) -> Result<Option<bool>, InjectError> {
    let label = namespace.labels.get(INJECTION).map(String::as_str);
    let annotation = namespace.annotations.get(INJECTION).map(String::as_str);
    let mut setting = read_own_setting(AnnotatedObject::Namespace, label, annotation)?;
    for prefix in OTHER_PREFIXES {
        let key = format!("{prefix}/{SIDECAR_INJECTION}");
        if let (true, Some(text)) =
            (is_monitored(namespace, prefix), namespace.annotations.get(&key))
        {
            let is_enabled = parse_switch(AnnotatedObject::Namespace, &key, text)?;
            setting = setting.or(Some(is_enabled));
        }
    }
    Ok(setting)
}

/// Reads the setting from Leno's label and annotation, which must not contradict each other.
fn read_own_setting(
    object: AnnotatedObject,
    label: Option<&str>,
    annotation: Option<&str>,
) -> Result<Option<bool>, InjectError> {
    let read =
        |text: Option<&str>| text.map(|text| parse_switch(object, INJECTION, text)).transpose();
    match (read(label)?, read(annotation)?) {
        (Some(label), Some(annotation)) if label != annotation => {
            Err(InjectError::Contradiction { object, key: INJECTION.to_owned() })
        }
        (label, annotation) => Ok(label.or(annotation)),
    }
}

/// Returns true if the namespace is a member of the OSM or FSM mesh with this prefix.
fn is_monitored(namespace: &NamespaceMetadata, prefix: &str) -> bool {
    namespace.labels.contains_key(&format!("{prefix}/monitored-by"))
}

/// Namespaces of the cluster itself.
pub(crate) const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
/// The annotation prefixes of OSM and FSM, which are supported as well.
const OTHER_PREFIXES: [&str; 2] = ["openservicemesh.io", "flomesh.io"];
/// The annotation of OSM and FSM, without the prefix.
const SIDECAR_INJECTION: &str = "sidecar-injection";
/// The label and the container by which sidecars of other meshes are recognized, and the name of the mesh.
const OTHER_MESHES: &[(&str, &str, &str)] = &[
    ("osm-proxy-uuid", "envoy", "OSM"),
    ("osm-proxy-uuid", "sidecar", "osm-edge"),
    ("fsm-proxy-uuid", "sidecar", "FSM"),
    ("security.istio.io/tlsMode", "istio-proxy", "Istio"),
    ("linkerd.io/control-plane-ns", "linkerd-proxy", "Linkerd"),
];

#[cfg(test)]
mod tests {
    use leno_model::{Name, TrustDomain};
    use serde_json::json;

    use super::super::{InjectionOutcome, inject_sidecar};
    use super::*;
    use crate::api::NamespaceName;

    fn settings_with_floor(floor: SecurityFloor) -> InjectionSettings {
        let trust_domain = TrustDomain::new("cluster.local").unwrap();
        let system = NamespaceName::from_literal("leno-system");
        let image = "registry.example/leno:1".to_owned();
        InjectionSettings {
            floor,
            ..InjectionSettings::new(image, system, trust_domain, String::new())
        }
    }

    fn required_images(images: &[&str]) -> SecurityFloor {
        let sidecar_images = images.iter().map(|image| (*image).to_owned()).collect();
        SecurityFloor { injection_required: true, sidecar_images, ..SecurityFloor::default() }
    }

    fn shop_namespace(labels: &[(&str, &str)]) -> NamespaceMetadata {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        NamespaceMetadata {
            name: "shop".to_owned(),
            labels: labels.iter().map(owned).collect(),
            ..NamespaceMetadata::default()
        }
    }

    /// Returns `None` if the pod is unchanged because it has a sidecar, or the reason for rejection.
    fn floor_verdict(
        pod: &Value,
        namespace: &NamespaceMetadata,
        floor: SecurityFloor,
    ) -> Option<String> {
        match inject_sidecar(
            pod,
            InjectionTrigger::Namespace(namespace),
            &settings_with_floor(floor),
        ) {
            Ok(outcome) => {
                assert_eq!(outcome, InjectionOutcome::Skipped(SkipReason::AlreadyInjected));
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }

    fn pod_with_containers(containers: Value) -> Value {
        json!({"metadata": {"name": "web"}, "spec": {"containers": containers}})
    }

    #[test]
    fn a_pod_with_fields_of_wrong_types_is_rejected() {
        let enabled = shop_namespace(&[("leno.dev/injection", "enabled")]);
        let rejection = |pod: &Value| {
            floor_verdict(pod, &enabled, SecurityFloor::default()).unwrap_or_default()
        };
        for (pod, field) in [
            (json!("a pod"), "the pod is not a map"),
            (json!({"metadata": {}, "spec": "80"}), "spec is not a map"),
            (json!({"metadata": [], "spec": {"containers": []}}), "metadata is not a map"),
            (json!({"metadata": {"labels": "a"}, "spec": {}}), "metadata.labels is not a map"),
            (json!({"spec": {"containers": {"name": "a"}}}), "spec.containers is not a list"),
            (pod_with_containers(json!("a")), "spec.containers is not a list"),
            (
                json!({"spec": {"initContainers": 1, "containers": []}}),
                "spec.initContainers is not",
            ),
            (json!({"spec": {"volumes": "a", "containers": []}}), "spec.volumes is not a list"),
        ] {
            assert!(rejection(&pod).starts_with(field), "{pod}: {}", rejection(&pod));
        }
    }

    #[test]
    fn an_imitation_of_the_sidecar_is_rejected_if_the_floor_requires_a_sidecar() {
        let enabled = || shop_namespace(&[("leno.dev/injection", "enabled")]);
        let pod = |image: &str| {
            pod_with_containers(
                json!([{"name": "app", "image": "app:1"}, {"name": "leno-proxy", "image": image}]),
            )
        };
        let imitation = pod("busybox:1");
        let reason = floor_verdict(&imitation, &enabled(), required_images(&[])).unwrap();
        assert_eq!(
            reason,
            "container leno-proxy (spec.containers[1].image) has the name of the sidecar and runs \
             busybox:1, which is not a sidecar image, and spec.floor.injection of the MeshConfig \
             requires a sidecar; remove the container, and the pod gets a sidecar, or add the \
             repository to spec.floor.sidecarImages"
        );
        assert!(
            floor_verdict(&imitation, &enabled(), required_images(&["mirror.example/"])).is_some()
        );
        for image in ["registry.example/leno:1", "registry.example/leno@sha256:0"] {
            assert_eq!(
                floor_verdict(&pod(image), &enabled(), required_images(&[])),
                None,
                "{image}"
            );
            assert_eq!(
                floor_verdict(&pod(image), &enabled(), required_images(&["other"])),
                None,
                "{image}"
            );
        }
        let mirrored = pod("mirror.example/leno:1");
        assert_eq!(
            floor_verdict(&mirrored, &enabled(), required_images(&["mirror.example/"])),
            None
        );
        assert!(floor_verdict(&mirrored, &enabled(), required_images(&[])).is_some());
        // A pod that got the image of its annotation.
        let mut annotated_pod = mirrored;
        annotated_pod["metadata"]["annotations"] =
            json!({"leno.dev/sidecar-image": "mirror.example/leno:1"});
        assert_eq!(floor_verdict(&annotated_pod, &enabled(), required_images(&[])), None);
        // Without an image.
        let bare = pod_with_containers(json!([{"name": "leno-proxy"}]));
        assert!(floor_verdict(&bare, &enabled(), required_images(&[])).is_some());
    }

    #[test]
    fn a_redirection_container_alone_is_not_a_sidecar() {
        let namespace = shop_namespace(&[("leno.dev/injection", "enabled")]);
        let pod =
            pod_with_containers(json!([{"name": "leno-init", "image": "registry.example/leno:1"}]));
        let reason = floor_verdict(&pod, &namespace, required_images(&[])).unwrap();
        assert!(reason.contains("no container leno-proxy"), "{reason}");
        assert_eq!(floor_verdict(&pod, &namespace, SecurityFloor::default()), None);
    }

    #[test]
    fn any_container_with_the_name_counts_if_no_sidecar_is_required() {
        let pod = pod_with_containers(json!([{"name": "leno-proxy", "image": "busybox"}]));
        let enabled = ("leno.dev/injection", "enabled");
        let shop_name = Name::new("shop").unwrap();
        let excepted =
            SecurityFloor { except_namespaces: [shop_name].into(), ..required_images(&[]) };
        for (namespace, floor) in [
            (shop_namespace(&[enabled]), SecurityFloor::default()),
            (shop_namespace(&[enabled]), excepted),
            (shop_namespace(&[]), required_images(&[])),
            (shop_namespace(&[("leno.dev/injection", "disabled")]), required_images(&[])),
            (shop_namespace(&[enabled, ("leno.dev/ignore", "true")]), required_images(&[])),
            (
                NamespaceMetadata { name: "leno-system".to_owned(), ..shop_namespace(&[enabled]) },
                required_images(&[]),
            ),
        ] {
            assert_eq!(floor_verdict(&pod, &namespace, floor), None, "{namespace:?}");
        }
    }
}
