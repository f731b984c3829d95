//! Sidecars into pods: whether one belongs there, and the pod with it. Nothing here waits or asks.
//!
//! Pods are worked on as JSON: what is in them and not known here stays as it is.

mod annotation;
mod container;
mod decision;
mod probe;
mod range;
mod template;
#[cfg(test)]
mod tests;
mod wishes;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Namespace;
use leno_model::{ClientRanges, Floor, Name, TrustDomain, repository_of};
use serde_json::{Map, Value, json};

use crate::api::NamespaceName;
use crate::words::{
    CONTROL, CONTROL_PORT, INTERCEPT_ANNOTATION, INTERCEPT_CONTAINER, MESHED, MESHED_BY_SIDECAR,
    PROXY_CONTAINER, UNKNOWN_MARKS_MAX, unknown_marks,
};

pub use annotation::{InjectError, Of};
pub use range::AddressRange;
pub use template::{Injected, Told, inject_manifest, namespaces_of};
pub use wishes::{Exclusions, INTERFACE_BYTES, Resources, is_interface};

use container::Sidecar;
pub(crate) use container::{STATE, probe, scraping, token_directory, unprivileged, volumes};
pub(crate) use decision::{SYSTEM_NAMESPACES, decide};
use probe::Probes;
use wishes::Wishes;

/// What every sidecar of a mesh is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The image of Leno.
    pub image: String,
    /// Where sidecars reach the control plane: a name or address, and a port.
    pub control: String,
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
    /// The roots of the mesh, as PEM.
    pub roots: String,
    /// Whether the cluster starts sidecars before applications, and ends them after those.
    pub native_sidecars: bool,
    /// Whether the network plugin of its node leads a pod's connections to the sidecar.
    pub by_plugin: bool,
    /// The namespace of the control plane, whose pods never get sidecars.
    pub system_namespace: NamespaceName,
    /// What no pod of the mesh sends through its sidecar.
    pub exclusions: Exclusions,
    /// The choices of pods and namespaces that are overruled.
    pub floor: Floor,
    /// What sidecars ask for and may use, where no annotation says otherwise.
    pub resources: Resources,
    /// The clients that get metrics of sidecars, where an annotation opens them, and of gateways. When absent
    /// those of sidecars are open to any, and those of gateways to none.
    pub metrics_from: Option<ClientRanges>,
}

impl Settings {
    /// For a mesh whose control plane is in `system_namespace`, with everything else at its default.
    #[must_use]
    pub fn new(
        image: String,
        system_namespace: NamespaceName,
        trust_domain: TrustDomain,
        roots: String,
    ) -> Self {
        Self {
            image,
            control: format!("{CONTROL}.{system_namespace}.svc:{CONTROL_PORT}"),
            trust_domain,
            roots,
            native_sidecars: true,
            by_plugin: false,
            system_namespace,
            exclusions: Exclusions::default(),
            floor: Floor::default(),
            resources: Resources::default(),
            metrics_from: None,
        }
    }

    /// The floor of a namespace; where none is known, that of every namespace which is not excepted.
    fn floor_in(&self, namespace: Option<&NamespaceFacts>) -> Option<&Floor> {
        let name = namespace.and_then(|facts| Name::new(&facts.name).ok());
        let is_excepted = name.is_some_and(|name| self.floor.except_namespaces.contains(&name));
        (!is_excepted).then_some(&self.floor)
    }

    /// A floor always permits the repository of the mesh's own image.
    fn permits_image(&self, floor: &Floor, image: &str) -> bool {
        floor.permits_image(image) || repository_of(image) == repository_of(&self.image)
    }
}

/// The namespace of a pod, as far as it matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceFacts {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

impl From<Namespace> for NamespaceFacts {
    fn from(namespace: Namespace) -> Self {
        let meta = namespace.metadata;
        Self {
            name: meta.name.unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
        }
    }
}

/// Who wants a sidecar in a pod.
#[derive(Debug, Clone, Copy)]
pub enum Demand<'a> {
    /// Labels and annotations of the pod and of its namespace decide.
    Namespace(&'a NamespaceFacts),
    /// Somebody names the pod: it gets one unless it says that it wants none. Of its namespace, where it is known,
    /// annotations about sidecars count.
    Person(Option<&'a NamespaceFacts>),
}

impl<'a> Demand<'a> {
    fn namespace(self) -> Option<&'a NamespaceFacts> {
        match self {
            Self::Namespace(facts) => Some(facts),
            Self::Person(facts) => facts,
        }
    }
}

/// What became of a pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It has a sidecar now.
    Injected {
        /// The pod.
        pod: Value,
        /// What will not work as its author may think.
        warnings: Vec<String>,
    },
    /// It stays as it is.
    Skipped(Skip),
}

/// Why a pod gets no sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skip {
    /// Nobody asked for one.
    NotAsked,
    /// The pod or its namespace wants none.
    Disabled,
    /// Its namespace is not to be touched.
    Ignored,
    /// Its namespace is one of the cluster's own, or the control plane's.
    SystemNamespace,
    /// It uses the network of its node: there is nothing to lead to a sidecar.
    HostNetwork,
    /// It runs on Windows.
    Windows,
    /// It has one already.
    Present,
    /// It has the sidecar of another mesh.
    OtherMesh(&'static str),
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAsked => "nobody asked for a sidecar",
            Self::Disabled => "it wants no sidecar",
            Self::Ignored => "its namespace is ignored",
            Self::SystemNamespace => "its namespace is one of the cluster or of the control plane",
            Self::HostNetwork => "it uses the network of its node",
            Self::Windows => "it runs on Windows",
            Self::Present => "it has a sidecar already",
            Self::OtherMesh(mesh) => return write!(f, "it has a sidecar of {mesh} already"),
        })
    }
}

/// Puts a sidecar into a pod, or into the template of one, if it is to have one.
///
/// # Errors
/// When an annotation says something that cannot be done, or the pod cannot have a sidecar that
/// was asked for.
pub fn inject(
    pod: &Value,
    demand: Demand<'_>,
    settings: &Settings,
) -> Result<Outcome, InjectError> {
    decision::check_shape(pod)?;
    let floor = settings.floor_in(demand.namespace());
    let mut overruled = Vec::new();
    match decide(pod, demand, &settings.system_namespace)? {
        None => {}
        Some(Skip::Disabled) if floor.is_some_and(|it| decision::is_required(pod, demand, it)) => {
            overruled.push(REQUIRED.to_owned());
        }
        Some(skip) => {
            if skip == Skip::Present {
                decision::reject_imitation(pod, demand, settings)?;
            }
            return Ok(Outcome::Skipped(skip));
        }
    }
    let wishes = Wishes::read(pod, demand.namespace(), settings)?;
    decision::refuse_sidecar_user(pod)?;
    let mut pod = pod.clone();
    let mut probes = Probes::default();
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            probes.take_over(container);
        }
    }
    let sidecar = Sidecar { settings, wishes: &wishes, probes: &probes };
    place(&mut pod, &sidecar);
    let unknown = warnings_of_marks(&pod);
    overruled.extend(unresolved(&pod, &settings.control));
    label(&mut pod, &wishes);
    tell_plugin(&mut pod, settings.by_plugin.then(|| sidecar.options()));
    overruled.extend(wishes.overruled);
    overruled.extend(probes.into_warnings());
    // The last ones, because a review shows the first few warnings alone.
    overruled.extend(unknown);
    Ok(Outcome::Injected { pod, warnings: overruled })
}

/// The difference between a pod and what became of it, as a JSON patch (RFC 6902).
#[must_use]
pub fn patch(before: &Value, after: &Value) -> Value {
    serde_json::to_value(json_patch::diff(before, after)).unwrap_or_default()
}

/// Whether a cluster of this version has native sidecars: since 1.29 they are there unless somebody
/// turned them off.
#[must_use]
pub fn has_native_sidecars(major: &str, minor: &str) -> bool {
    let number = |text: &str| -> u32 {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    };
    (number(major), number(minor)) >= (1, 29)
}

/// Containers and volumes into the pod.
///
/// With native sidecars connections are led to the sidecar first of all, and it is ready before
/// anything else starts: also what the application's init containers send goes through the mesh.
/// Without them it starts beside the application only. There init containers run before connections
/// are led anywhere, and go around the mesh.
fn place(pod: &mut Value, sidecar: &Sidecar<'_>) {
    let before = list(pod, "initContainers");
    if sidecar.settings.native_sidecars {
        before.insert(0, sidecar.intercept());
        before.insert(1, sidecar.native());
    } else {
        before.push(sidecar.intercept());
        list(pod, "containers").insert(0, sidecar.classic());
    }
    let mounted = list(pod, "volumes");
    // A copy of an injected pod may have kept them.
    mounted.retain(|volume| !container::VOLUMES.contains(&volume["name"].as_str().unwrap_or("")));
    mounted.extend(volumes());
}

/// Warnings for labels and annotations of the pod under `leno.dev/` that have no meaning.
fn warnings_of_marks(pod: &Value) -> Vec<String> {
    let of = |list: &'static str| {
        let keys = pod["metadata"][list].as_object().into_iter().flat_map(Map::keys);
        unknown_marks(keys)
            .map(move |(key, hint)| format!("{list}: {key} has no meaning here; {hint}"))
    };
    of("labels").chain(of("annotations")).take(UNKNOWN_MARKS_MAX).collect()
}

/// A warning for a DNS policy that leaves the cluster's name server out: the sidecar has to resolve the control plane.
fn unresolved(pod: &Value, control: &str) -> Option<String> {
    let policy = pod["spec"]["dnsPolicy"].as_str().filter(|it| ["Default", "None"].contains(it))?;
    let (host, _) = control.rsplit_once(':')?;
    if host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok() {
        return None;
    }
    let remedy = match policy {
        "None" => {
            "spec.dnsConfig.nameservers has to have the address of the cluster's DNS Service (kube-dns)"
        }
        _ => {
            "use ClusterFirst, or None with the address of the cluster's DNS Service in spec.dnsConfig.nameservers"
        }
    };
    Some(format!(
        "spec.dnsPolicy is {policy}: the pod does not start while its sidecar cannot resolve {host}; {remedy}"
    ))
}

fn label(pod: &mut Value, wishes: &Wishes) {
    let application = application_container(pod).map(str::to_owned);
    let metadata = map(pod, "metadata");
    let labels = map(metadata.entry("labels").or_insert(Value::Null), "");
    labels.insert(MESHED.to_owned(), json!(MESHED_BY_SIDECAR));
    let mut annotations = Vec::new();
    if wishes.scraped {
        annotations.extend(scraping());
    }
    // `kubectl logs` and `exec` without a container are about the application.
    if let Some(name) = application {
        annotations.push((DEFAULT_CONTAINER, name));
    }
    if annotations.is_empty() {
        return;
    }
    let known = map(metadata.entry("annotations").or_insert(Value::Null), "");
    let scraped_already =
        wishes.application_metrics.is_none() && known.contains_key("prometheus.io/scrape");
    if wishes.application_metrics.is_some() {
        // The sidecar tells those of the application as well.
        scraping().iter().for_each(|(key, _)| drop(known.remove(*key)));
    }
    for (key, value) in annotations {
        if !(scraped_already && key.starts_with("prometheus.io/")) {
            known.entry(key).or_insert(value.into());
        }
    }
}

/// What the network plugin of the node is to do; nothing, whatever the author wrote, when it is not
/// to do it.
fn tell_plugin(pod: &mut Value, options: Option<Vec<String>>) {
    let metadata = map(pod, "metadata");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(INTERCEPT_ANNOTATION);
    }
    if let Some(options) = options {
        let annotations = map(metadata.entry("annotations").or_insert(Value::Null), "");
        annotations.insert(INTERCEPT_ANNOTATION.to_owned(), options.join(" ").into());
    }
}

fn application_container(pod: &Value) -> Option<&str> {
    let names = pod["spec"]["containers"].as_array()?.iter();
    names.filter_map(|it| it["name"].as_str()).find(|name| *name != PROXY_CONTAINER)
}

/// A list of the pod's `spec`, made when there is none.
fn list<'a>(pod: &'a mut Value, key: &str) -> &'a mut Vec<Value> {
    let spec = map(pod, "spec");
    let value = spec.entry(key).or_insert(Value::Null);
    if !value.is_array() {
        *value = json!([]);
    }
    value.as_array_mut().expect("it was made one")
}

/// The map under a key, or the value itself when the key is empty; made when there is none.
fn map<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    let value = match key {
        "" => value,
        key => &mut value[key],
    };
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("it was made one")
}

/// Whether a container is one of those that are put into pods.
fn is_ours(container: &Value) -> bool {
    matches!(container["name"].as_str(), Some(PROXY_CONTAINER | INTERCEPT_CONTAINER))
}

/// The warning for a pod that opts out where it cannot.
const REQUIRED: &str = "the pod opts out of injection, and spec.floor.injection of the MeshConfig requires a \
                        sidecar: it gets one";
/// Which container `kubectl` means when nobody names one.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
