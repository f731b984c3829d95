//! Names that the parts in a cluster agree on: labels, annotations, containers, ports, paths.

use leno_registry::closest;

use crate::api::{NamespaceName, ObjectName};

/// The namespace of the control plane, unless installed elsewhere.
pub const SYSTEM_NAMESPACE: &str = "leno-system";
/// The Deployment, Service and account of the control plane.
pub const CONTROL: &str = "leno-control";
/// The same as the name of an object.
pub const CONTROL_NAME: ObjectName = ObjectName::literal(CONTROL);
/// The headless Service by which control planes find each other.
pub const CONTROL_PEERS: &str = "leno-control-peers";
/// Where control planes serve sidecars and each other.
pub const CONTROL_PORT: u16 = 15_010;
/// Where control planes answer the API server's webhooks.
pub const WEBHOOK_PORT: u16 = 15_017;
/// Where control planes and sidecars answer the kubelet and Prometheus.
pub const HEALTH_PORT: u16 = 15_020;
/// Where its page for browsers is, on loopback in its pod: whoever may forward a port gets there.
pub const PAGE_PORT: u16 = 15_080;
/// The Secret with the authority of the mesh.
pub const AUTHORITY_SECRET: &str = "leno-authority";
/// The same as the name of an object.
pub(crate) const AUTHORITY_NAME: ObjectName = ObjectName::literal(AUTHORITY_SECRET);
/// The ConfigMap with the roots of the mesh, under the key `roots.pem`, in the system namespace.
pub const ROOTS_CONFIG_MAP: &str = "leno-roots";
/// The same as the name of an object.
pub const ROOTS_NAME: ObjectName = ObjectName::literal(ROOTS_CONFIG_MAP);
/// The ConfigMap with what operators give the control plane of issuers of JSON web tokens: their keys, each in
/// a file, and under `roots.pem` who vouches for their servers.
pub(crate) const KEYS_CONFIG_MAP: &str = "leno-keys";

/// The namespace of the Service of the API server.
pub(crate) const API_SERVER_NAMESPACE: NamespaceName = NamespaceName::literal("default");
/// The Service of the API server, and its EndpointSlice.
pub(crate) const API_SERVER: &str = "kubernetes";

/// The sidecar's container.
pub const PROXY_CONTAINER: &str = "leno-proxy";
/// The container that leads a pod's connections to its sidecar, before that starts.
pub const INTERCEPT_CONTAINER: &str = "leno-intercept";
/// The user that sidecars run as.
pub const PROXY_UID: u32 = 1500;
/// The audience of the tokens by which sidecars join.
pub const TOKEN_AUDIENCE: &str = "leno";
/// Where a sidecar finds its token.
pub const TOKEN_PATH: &str = "/var/run/secrets/leno.dev/token";
/// The roots of the mesh, as PEM, in the environment of a sidecar.
pub const ROOTS_VARIABLE: &str = "LENO_ROOTS";
/// The probes of a pod that its sidecar makes for the kubelet, as JSON, in its environment.
pub const PROBES_VARIABLE: &str = "LENO_PROBES";

/// Label of a namespace or pod, or annotation: `enabled` or `disabled`.
pub const INJECTION: &str = "leno.dev/injection";
/// Annotation of a namespace or pod: `permissive`, `strict` or `audit`.
pub const TRAFFIC_MODE: &str = "leno.dev/traffic-mode";
/// Annotation of a namespace or pod: `accept` or `refuse`, what becomes of connections without mutual TLS.
pub const PLAINTEXT: &str = "leno.dev/plaintext";
/// Annotation of a pod: how much it gets beside the others of its services, 1 to 1000.
pub const WEIGHT: &str = "leno.dev/weight";
/// Annotation of a namespace or pod: another image than the control plane's. It has no form of other meshes: theirs
/// names an image of theirs.
pub(crate) const SIDECAR_IMAGE: &str = "leno.dev/sidecar-image";
/// Annotation of a namespace or pod: the protocols that connections may change to by `Upgrade`, in addition to WebSocket.
pub(crate) const UPGRADES: &str = "leno.dev/upgrades";
/// Label of a pod that has a sidecar: its value is `sidecar`.
pub const MESHED: &str = "leno.dev/meshed";
/// The value of [`MESHED`].
pub const MESHED_BY_SIDECAR: &str = "sidecar";
/// Annotation of a pod whose connections the network plugin of its node leads to the sidecar: the
/// options of `leno intercept`, between spaces.
pub const INTERCEPT_ANNOTATION: &str = "leno.dev/intercept";
/// The agent of a node: its DaemonSet, account and container.
pub const CNI: &str = "leno-cni";
/// The same as the name of an object,
pub(crate) const CNI_NAME: ObjectName = ObjectName::literal(CNI);
/// and of its namespace.
pub(crate) const CNI_NAMESPACE: NamespaceName = NamespaceName::literal(CNI);
/// Label of everything that is made for a gateway, with its name.
pub const GATEWAY_PART: &str = "leno.dev/gateway";
/// The value of [`MESHED`] for the proxies of gateways.
pub const MESHED_BY_GATEWAY: &str = "gateway";
/// Annotation of a Gateway or a GatewayClass: the type of the Service that is made for a gateway.
pub const SERVICE_TYPE: &str = "leno.dev/service-type";
/// Label and annotation of a Secret that was made for a client outside the mesh: the annotation says for which
/// object.
pub const ACCESS_CERT_MARK: &str = "leno.dev/access-cert";
/// The GatewayClass that is installed.
pub const GATEWAY_CLASS: &str = "leno";
/// By which GatewayClasses are ours.
pub const GATEWAY_CONTROLLER: &str = "leno.dev/gateway-controller";
/// Prefixes of labels and annotations, as ours and as OSM's and FSM's users have them.
pub const PREFIXES: [&str; 3] = ["leno.dev", "openservicemesh.io", "flomesh.io"];

/// Labels by which a namespace is in the mesh, as ours and as OSM's and FSM's users have them.
pub(crate) const MEMBERSHIPS: [&str; 3] =
    [INJECTION, "openservicemesh.io/monitored-by", "flomesh.io/monitored-by"];

/// The words of a switch that is on, as OSM and FSM read them: in any case.
pub(crate) fn is_enabled(word: &str) -> bool {
    ["enabled", "yes", "true"].iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// The words of a switch that is off.
pub(crate) fn is_disabled(word: &str) -> bool {
    ["disabled", "no", "false"].iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// The annotations that exclude something from interception, by their names behind the prefix.
pub(crate) fn is_exclusion(name: &str) -> bool {
    is_read(name) && (name.ends_with("-exclusion-list") || name.ends_with("-inclusion-list"))
}

/// Whether a label or annotation with one of the [`PREFIXES`] says something here, by what stands behind the
/// prefix.
#[must_use]
pub fn is_read(mark: &str) -> bool {
    MARKS.contains(&mark) || mark.starts_with(RESOURCES)
}

/// The labels or annotations under `leno.dev/` that have no meaning, each with a hint. Any user may write them: no
/// more than [`KEYS_MAX`] keys are compared, and no more than [`UNKNOWN_MARKS_MAX`] hints are computed.
pub(crate) fn unknown_marks<'a, K: AsRef<str> + ?Sized + 'a>(
    keys: impl Iterator<Item = &'a K>,
) -> impl Iterator<Item = (&'a str, String)> {
    let own = OWN_MARKS.iter().chain(MARKS).chain(RESOURCE_MARKS);
    let own: Vec<&str> = own.copied().collect();
    let known = own.clone();
    let unknown = keys.take(KEYS_MAX).map(AsRef::as_ref).filter_map(move |key: &str| {
        let (prefix, name) = key.split_once('/')?;
        (prefix == PREFIXES[0] && !known.contains(&name)).then_some((key, name))
    });
    unknown.take(UNKNOWN_MARKS_MAX).map(move |(key, name)| (key, hint(name, &own)))
}

fn hint(name: &str, own: &[&str]) -> String {
    match closest(name, own) {
        Some(meant) => format!("did you mean `{}/{meant}`?", PREFIXES[0]),
        None => "remove it, or look at the table of annotations in docs/kubernetes.md".to_owned(),
    }
}

/// The most labels, and the most annotations, of one object that are compared with the known ones.
const KEYS_MAX: usize = 1024;
/// The most hints for the labels, and for the annotations, of one object.
pub(crate) const UNKNOWN_MARKS_MAX: usize = 10;

/// Labels and annotations of pods and namespaces that have a meaning under `leno.dev/` only.
const OWN_MARKS: &[&str] = &[
    "access-cert",
    "dns",
    "gateway",
    "injection",
    "intercept",
    "meshed",
    "network-policies",
    "node-network",
    "plaintext",
    "service-type",
    "sidecar-image",
    "traffic-mode",
    "upgrades",
    "weight",
];
/// The annotations of the resources of a sidecar.
const RESOURCE_MARKS: &[&str] = &[
    "sidecar-resource-limits-cpu",
    "sidecar-resource-limits-ephemeral-storage",
    "sidecar-resource-limits-memory",
    "sidecar-resource-limits-storage",
    "sidecar-resource-requests-cpu",
    "sidecar-resource-requests-ephemeral-storage",
    "sidecar-resource-requests-memory",
    "sidecar-resource-requests-storage",
];
/// The annotations of what a sidecar asks for and may use begin so.
const RESOURCES: &str = "sidecar-resource-";
/// What is read under every prefix, as docs/kubernetes.md has it.
const MARKS: &[&str] = &[
    "ignore",
    "inbound-port-exclusion-list",
    "metrics",
    "monitored-by",
    "network-interface-exclusion-list",
    "outbound-ip-range-exclusion-list",
    "outbound-ip-range-inclusion-list",
    "outbound-port-exclusion-list",
    "sidecar-injection",
];
