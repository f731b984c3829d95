//! Injects sidecars: decides if a pod gets a sidecar, and changes the pod. No function here waits or performs
//! I/O.
//!
//! Pods are processed as JSON so that unknown fields are preserved.

mod annotation;
mod container;
mod decision;
mod options;
mod probe;
mod range;
mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Namespace;
use leno_model::{ClientRanges, Name, SecurityFloor, TrustDomain, repository_of};
use serde_json::{Map, Value, json};

use crate::api::NamespaceName;
use crate::well_known::{
    CONTROL, CONTROL_PORT, INIT_CONTAINER, MAX_UNKNOWN_ANNOTATIONS, MESHED, MESHED_BY_SIDECAR,
    PROXY_CONTAINER, REDIRECT_ANNOTATION, unknown_annotations,
};

pub use annotation::{AnnotatedObject, InjectError};
pub use options::{Exclusions, INTERFACE_BYTES, Resources, is_interface};
pub use range::AddressRange;
pub use template::{InjectedManifest, TemplateOutcome, inject_manifest, namespaces_of};

use container::SidecarInputs;
pub(crate) use container::{
    STATE_DIRECTORY, http_probe, restricted_context, scrape_annotations, sidecar_volumes,
    token_directory,
};
pub(crate) use decision::{SYSTEM_NAMESPACES, decide_injection};
use options::SidecarOptions;
use probe::SidecarProbes;

/// Settings of all sidecars of a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectionSettings {
    /// The default image of sidecars.
    pub image: String,
    /// The address of the control plane: host or IP address, and port.
    pub control_address: String,
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
    /// The trust roots of the mesh, as PEM.
    pub roots: String,
    /// True if the cluster starts sidecars before applications, and stops them afterwards (native sidecars).
    pub native_sidecars: bool,
    /// True if the CNI plugin of the node redirects the connections of pods.
    pub uses_cni_plugin: bool,
    /// The namespace of the control plane. Its pods never get sidecars.
    pub system_namespace: NamespaceName,
    /// Traffic that bypasses the sidecar in every pod of the mesh.
    pub exclusions: Exclusions,
    /// The floor of the mesh (`spec.floor` of the MeshConfig): settings that pods and namespaces cannot relax.
    pub floor: SecurityFloor,
    /// Resource requests and limits of sidecars without annotations.
    pub resources: Resources,
    /// The clients that may read metrics of sidecars with an annotation that exposes them, and of gateways.
    /// With `None`, any client may read the metrics of such sidecars, and no client the metrics of gateways.
    pub metrics_from: Option<ClientRanges>,
}

impl InjectionSettings {
    /// Creates default settings for a mesh with its control plane in `system_namespace`.
    #[must_use]
    pub fn new(
        image: String,
        system_namespace: NamespaceName,
        trust_domain: TrustDomain,
        roots: String,
    ) -> Self {
        Self {
            image,
            control_address: format!("{CONTROL}.{system_namespace}.svc:{CONTROL_PORT}"),
            trust_domain,
            roots,
            native_sidecars: true,
            uses_cni_plugin: false,
            system_namespace,
            exclusions: Exclusions::default(),
            floor: SecurityFloor::default(),
            resources: Resources::default(),
            metrics_from: None,
        }
    }

    /// Returns the floor of a namespace; `None` if the namespace is exempt. An unknown namespace is not exempt.
    fn floor_in(&self, namespace: Option<&NamespaceMetadata>) -> Option<&SecurityFloor> {
        let name = namespace.and_then(|namespace| Name::new(&namespace.name).ok());
        let is_exempt = name.is_some_and(|name| self.floor.except_namespaces.contains(&name));
        (!is_exempt).then_some(&self.floor)
    }

    /// Returns true if the floor permits an image. The repository of the mesh's own image is always permitted.
    fn permits_image(&self, floor: &SecurityFloor, image: &str) -> bool {
        floor.permits_image(image) || repository_of(image) == repository_of(&self.image)
    }
}

/// The name, labels and annotations of a pod's namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceMetadata {
    /// The name of the namespace.
    pub name: String,
    /// The labels of the namespace.
    pub labels: BTreeMap<String, String>,
    /// The annotations of the namespace.
    pub annotations: BTreeMap<String, String>,
}

impl From<Namespace> for NamespaceMetadata {
    fn from(namespace: Namespace) -> Self {
        let meta = namespace.metadata;
        Self {
            name: meta.name.unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
        }
    }
}

/// The origin of an injection request.
#[derive(Debug, Clone, Copy)]
pub enum InjectionTrigger<'a> {
    /// Labels and annotations of the pod and of its namespace decide.
    Namespace(&'a NamespaceMetadata),
    /// A user names the pod: it gets a sidecar unless it opts out. If the namespace is known, its annotations
    /// about sidecars apply.
    User(Option<&'a NamespaceMetadata>),
}

impl<'a> InjectionTrigger<'a> {
    fn namespace_metadata(self) -> Option<&'a NamespaceMetadata> {
        match self {
            Self::Namespace(namespace) => Some(namespace),
            Self::User(namespace) => namespace,
        }
    }
}

/// The outcome of injection for a pod.
#[derive(Debug, Clone, PartialEq)]
pub enum InjectionOutcome {
    /// The pod gets a sidecar.
    Injected {
        /// The changed pod.
        pod: Value,
        /// Warnings about settings that may not work as the author expects.
        warnings: Vec<String>,
    },
    /// The pod is unchanged.
    Skipped(SkipReason),
}

/// The reason that a pod gets no sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipReason {
    /// Injection is not requested.
    NotRequested,
    /// The pod or its namespace opts out.
    Disabled,
    /// The namespace of the pod has a label `ignore` with a supported prefix.
    Ignored,
    /// The namespace of the pod belongs to the cluster or to the control plane.
    SystemNamespace,
    /// The pod uses the host network, where no traffic can be redirected.
    HostNetwork,
    /// The pod runs on Windows.
    Windows,
    /// The pod already has a sidecar.
    AlreadyInjected,
    /// The pod has the sidecar of another mesh.
    OtherMesh(&'static str),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRequested => "injection is not enabled",
            Self::Disabled => "injection is disabled",
            Self::Ignored => "its namespace is ignored",
            Self::SystemNamespace => "its namespace is one of the cluster or of the control plane",
            Self::HostNetwork => "it uses the network of its node",
            Self::Windows => "it runs on Windows",
            Self::AlreadyInjected => "it has a sidecar already",
            Self::OtherMesh(mesh) => return write!(f, "it has a sidecar of {mesh} already"),
        })
    }
}

/// Injects a sidecar into a pod or a pod template, if it should have one.
///
/// # Errors
/// When an annotation is invalid, or the pod cannot have the requested sidecar.
pub fn inject_sidecar(
    pod: &Value,
    trigger: InjectionTrigger<'_>,
    settings: &InjectionSettings,
) -> Result<InjectionOutcome, InjectError> {
    decision::check_shape(pod)?;
    let floor = settings.floor_in(trigger.namespace_metadata());
    let mut warnings = Vec::new();
    match decide_injection(pod, trigger, &settings.system_namespace)? {
        // Nothing prevents a sidecar.
        None => {}
        // The pod opts out, but the floor overrides that.
        Some(SkipReason::Disabled)
            if floor.is_some_and(|floor| decision::is_sidecar_required(pod, trigger, floor)) =>
        {
            warnings.push(SIDECAR_REQUIRED.to_owned());
        }
        Some(reason) => {
            if reason == SkipReason::AlreadyInjected {
                decision::reject_imitation(pod, trigger, settings)?;
            }
            return Ok(InjectionOutcome::Skipped(reason));
        }
    }
    let options = SidecarOptions::read(pod, trigger.namespace_metadata(), settings)?;
    decision::reject_sidecar_user(pod)?;
    let mut pod = pod.clone();
    let mut probes = SidecarProbes::default();
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            probes.redirect_probes(container);
        }
    }
    let sidecar = SidecarInputs { settings, options: &options, probes: &probes };
    add_sidecar(&mut pod, &sidecar);
    let unknown_warnings = unknown_annotation_warnings(&pod);
    warnings.extend(dns_warning(&pod, &settings.control_address));
    add_pod_metadata(&mut pod, &options);
    set_plugin_annotation(
        &mut pod,
        settings.uses_cni_plugin.then(|| sidecar.redirection_options()),
    );
    warnings.extend(options.warnings);
    warnings.extend(probes.into_warnings());
    // These warnings come last, because clients show only the first few warnings of an admission review.
    warnings.extend(unknown_warnings);
    Ok(InjectionOutcome::Injected { pod, warnings })
}

/// Returns the difference between a pod before and after injection, as a JSON patch (RFC 6902).
#[must_use]
pub fn injection_patch(before: &Value, after: &Value) -> Value {
    serde_json::to_value(json_patch::diff(before, after)).unwrap_or_default()
}

/// Returns true if a cluster of this version has native sidecars, which are enabled by default since 1.29.
#[must_use]
pub fn has_native_sidecars(major: &str, minor: &str) -> bool {
    let leading_number = |text: &str| -> u32 {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    };
    (leading_number(major), leading_number(minor)) >= (1, 29)
}

/// Adds containers and volumes to the pod.
///
/// With native sidecars, redirection is set up first, and the sidecar is ready before any other container
/// starts: traffic of the application's init containers goes through the mesh as well. Without native sidecars,
/// the sidecar starts together with the application. Init containers run before the redirection and bypass the
/// mesh.
fn add_sidecar(pod: &mut Value, sidecar: &SidecarInputs<'_>) {
    let init_containers = spec_list(pod, "initContainers");
    if sidecar.settings.native_sidecars {
        init_containers.insert(0, sidecar.redirection_container());
        init_containers.insert(1, sidecar.native_sidecar());
    } else {
        init_containers.push(sidecar.redirection_container());
        spec_list(pod, "containers").insert(0, sidecar.regular_sidecar());
    }
    let volumes = spec_list(pod, "volumes");
    // A copy of an injected pod may still have these volumes.
    volumes.retain(|volume| {
        !container::SIDECAR_VOLUMES.contains(&volume["name"].as_str().unwrap_or(""))
    });
    volumes.extend(sidecar_volumes());
}

/// Returns warnings for unknown labels and annotations of the pod under `leno.dev/`.
fn unknown_annotation_warnings(pod: &Value) -> Vec<String> {
    let warnings_in = |map_field: &'static str| {
        let keys = pod["metadata"][map_field].as_object().into_iter().flat_map(Map::keys);
        unknown_annotations(keys)
            .map(move |(key, hint)| format!("{map_field}: {key} is not supported; {hint}"))
    };
    warnings_in("labels").chain(warnings_in("annotations")).take(MAX_UNKNOWN_ANNOTATIONS).collect()
}

/// Returns a warning about a DNS policy that bypasses the cluster's name server: the sidecar has to resolve the
/// control plane.
fn dns_warning(pod: &Value, control_address: &str) -> Option<String> {
    let policy =
        pod["spec"]["dnsPolicy"].as_str().filter(|policy| ["Default", "None"].contains(policy))?;
    let (host, _) = control_address.rsplit_once(':')?;
    if host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok() {
        return None;
    }
    let hint = match policy {
        "None" => {
            "spec.dnsConfig.nameservers has to have the address of the cluster's DNS Service (kube-dns), and \
             spec.dnsConfig.searches the domain of the cluster, such as cluster.local"
        }
        _ => {
            "use ClusterFirst, or None with the address of the cluster's DNS Service in spec.dnsConfig.nameservers and \
             the domain of the cluster, such as cluster.local, in spec.dnsConfig.searches"
        }
    };
    Some(format!(
        "spec.dnsPolicy is {policy}: the pod does not start while its sidecar cannot resolve {host}; {hint}"
    ))
}

/// Adds the labels and annotations of an injected pod.
fn add_pod_metadata(pod: &mut Value, options: &SidecarOptions) {
    let application_name = application_container(pod).map(str::to_owned);
    let metadata = map_entry(pod, "metadata");
    let labels = map_entry(metadata.entry("labels").or_insert(Value::Null), "");
    labels.insert(MESHED.to_owned(), json!(MESHED_BY_SIDECAR));
    let mut annotations = Vec::new();
    if options.is_scraped {
        annotations.extend(scrape_annotations());
    }
    // Make the application the default container of `kubectl logs` and `exec`.
    if let Some(name) = application_name {
        annotations.push((DEFAULT_CONTAINER, name));
    }
    if annotations.is_empty() {
        return;
    }
    let existing_annotations = map_entry(metadata.entry("annotations").or_insert(Value::Null), "");
    // If the sidecar does not expose the metrics of the application, Prometheus continues to scrape the application.
    let has_scrape_annotation = options.application_metrics.is_none()
        && existing_annotations.contains_key("prometheus.io/scrape");
    if options.application_metrics.is_some() {
        // The sidecar exposes the metrics of the application as well, so its port and path replace those of the
        // application.
        scrape_annotations().iter().for_each(|(key, _)| drop(existing_annotations.remove(*key)));
    }
    for (key, value) in annotations {
        if !(has_scrape_annotation && key.starts_with("prometheus.io/")) {
            existing_annotations.entry(key).or_insert(value.into());
        }
    }
}

/// Sets the annotation with the redirection options for the CNI plugin of the node. Without the plugin, removes
/// the annotation, even if the author set it.
fn set_plugin_annotation(pod: &mut Value, options: Option<Vec<String>>) {
    let metadata = map_entry(pod, "metadata");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(REDIRECT_ANNOTATION);
    }
    if let Some(options) = options {
        let annotations = map_entry(metadata.entry("annotations").or_insert(Value::Null), "");
        annotations.insert(REDIRECT_ANNOTATION.to_owned(), options.join(" ").into());
    }
}

/// Returns the name of the pod's first container other than the sidecar.
fn application_container(pod: &Value) -> Option<&str> {
    let names = pod["spec"]["containers"].as_array()?.iter();
    names.filter_map(|container| container["name"].as_str()).find(|name| *name != PROXY_CONTAINER)
}

/// Returns the list under a key of the pod's `spec`. A value of another type is replaced by an empty list.
fn spec_list<'a>(pod: &'a mut Value, key: &str) -> &'a mut Vec<Value> {
    let spec = map_entry(pod, "spec");
    let value = spec.entry(key).or_insert(Value::Null);
    if !value.is_array() {
        *value = json!([]);
    }
    value.as_array_mut().expect("the value was replaced if it had another type")
}

/// Returns the map under a key, or `value` itself if the key is empty. A value of another type is replaced by an
/// empty map.
fn map_entry<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    let entry = match key {
        "" => value,
        key => &mut value[key],
    };
    if !entry.is_object() {
        *entry = json!({});
    }
    entry.as_object_mut().expect("the value was replaced if it had another type")
}

/// Returns true if the container has the name of a container that injection adds.
fn is_leno_container(container: &Value) -> bool {
    matches!(container["name"].as_str(), Some(PROXY_CONTAINER | INIT_CONTAINER))
}

/// The warning for a pod that opts out although the floor requires a sidecar.
const SIDECAR_REQUIRED: &str = "the pod opts out of injection, and spec.floor.injection of the MeshConfig requires a \
                        sidecar: it gets one";
/// The annotation with the container that `kubectl` uses by default.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
