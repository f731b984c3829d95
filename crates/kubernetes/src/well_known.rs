//! Defines the names that the components in a cluster share: labels, annotations, containers, ports, paths.

use leno_registry::closest_word;

use crate::api::{NamespaceName, ObjectName};

/// The default namespace of the control plane.
pub const SYSTEM_NAMESPACE: &str = "leno-system";
/// The Deployment, Service and account of the control plane.
pub const CONTROL: &str = "leno-control";
/// `CONTROL` as an object name.
pub const CONTROL_NAME: ObjectName = ObjectName::from_literal(CONTROL);
/// The headless Service by which control planes discover each other.
pub const CONTROL_PEERS: &str = "leno-control-peers";
/// The port of control planes for sidecars and other control planes.
pub const CONTROL_PORT: u16 = 15_010;
/// The port of control planes for the API server's webhooks.
pub const WEBHOOK_PORT: u16 = 15_017;
/// The port of control planes and sidecars for the kubelet and Prometheus.
pub const HEALTH_PORT: u16 = 15_020;
/// The port of the control plane's web page, on loopback in its pod: users with permission to forward ports can
/// reach it.
pub const PAGE_PORT: u16 = 15_080;
/// The Secret with the authority of the mesh.
pub const AUTHORITY_SECRET: &str = "leno-authority";
/// `AUTHORITY_SECRET` as an object name.
pub(crate) const AUTHORITY_NAME: ObjectName = ObjectName::from_literal(AUTHORITY_SECRET);
/// The ConfigMap with the roots of the mesh, under the key `roots.pem`, in the system namespace.
pub const ROOTS_CONFIG_MAP: &str = "leno-roots";
/// `ROOTS_CONFIG_MAP` as an object name.
pub const ROOTS_NAME: ObjectName = ObjectName::from_literal(ROOTS_CONFIG_MAP);
/// The ConfigMap with keys of JWT issuers for the control plane, one file for each, and the trust roots of JWKS
/// servers under `roots.pem`.
pub(crate) const KEYS_CONFIG_MAP: &str = "leno-keys";

/// The namespace of the API server's Service.
pub(crate) const API_SERVER_NAMESPACE: NamespaceName = NamespaceName::from_literal("default");
/// The API server's Service, and its EndpointSlice.
pub(crate) const API_SERVER: &str = "kubernetes";

/// The sidecar container.
pub const PROXY_CONTAINER: &str = "leno-proxy";
/// The init container that redirects a pod's connections to its sidecar.
pub const INIT_CONTAINER: &str = "leno-init";
/// The user ID of sidecars.
pub const PROXY_UID: u32 = 1500;
/// The audience of the tokens by which sidecars join.
pub const TOKEN_AUDIENCE: &str = "leno";
/// The path of a sidecar's token.
pub const TOKEN_PATH: &str = "/var/run/secrets/leno.dev/token";
/// The environment variable with the roots of the mesh, as PEM.
pub const ROOTS_VARIABLE: &str = "LENO_ROOTS";
/// The environment variable with the probes that a sidecar performs for the kubelet, as JSON.
pub const PROBES_VARIABLE: &str = "LENO_PROBES";

/// Label or annotation of a namespace or pod for sidecar injection: `enabled` or `disabled`.
pub const INJECTION: &str = "leno.dev/injection";
/// Annotation of a namespace or pod with its default policy: `allow`, `deny` or `dry-run`.
pub const DEFAULT_POLICY: &str = "leno.dev/default-policy";
/// Annotation of a namespace or pod: `strict` or `permissive` mutual TLS.
pub const MTLS: &str = "leno.dev/mtls";
/// Annotation of a pod: its load balancing weight, 1 to 1000.
pub const WEIGHT: &str = "leno.dev/weight";
/// Annotation of a namespace or pod: an image other than the control plane's. The equivalents of other meshes
/// are not supported because they name their own images.
pub(crate) const SIDECAR_IMAGE: &str = "leno.dev/sidecar-image";
/// Annotation of a namespace or pod: the protocols to which connections may be upgraded, in addition to
/// WebSocket.
pub(crate) const UPGRADES: &str = "leno.dev/upgrades";
/// Label of a pod with a proxy of the mesh: `sidecar`, or `gateway` for the proxy of a gateway.
pub const MESHED: &str = "leno.dev/meshed";
/// The value of [`MESHED`] for pods with a sidecar.
pub const MESHED_BY_SIDECAR: &str = "sidecar";
/// Annotation of a pod with traffic that the CNI plugin of its node redirects: the options of `leno redirect`,
/// separated by spaces.
pub const REDIRECT_ANNOTATION: &str = "leno.dev/redirect";
/// The node agent: its DaemonSet, account and container.
pub const CNI: &str = "leno-cni";
/// `CNI` as an object name.
pub(crate) const CNI_NAME: ObjectName = ObjectName::from_literal(CNI);
/// The namespace of the node agent, `CNI`.
pub(crate) const CNI_NAMESPACE: NamespaceName = NamespaceName::from_literal(CNI);
/// Label of all objects that are created for a gateway, with the name of the Gateway.
pub const GATEWAY_PART: &str = "leno.dev/gateway";
/// The value of [`MESHED`] for the proxies of gateways.
pub const MESHED_BY_GATEWAY: &str = "gateway";
/// Annotation of a Gateway or a GatewayClass: the type of the Service of a gateway.
pub const SERVICE_TYPE: &str = "leno.dev/service-type";
/// Label and annotation of a Secret for an external principal: the annotation names the requesting object.
pub const ACCESS_CERT_KEY: &str = "leno.dev/access-cert";
/// The installed GatewayClass.
pub const GATEWAY_CLASS: &str = "leno";
/// The controller name of our GatewayClasses.
pub const GATEWAY_CONTROLLER: &str = "leno.dev/gateway-controller";
/// Supported prefixes of labels and annotations: Leno's, OSM's and FSM's.
pub const PREFIXES: [&str; 3] = ["leno.dev", "openservicemesh.io", "flomesh.io"];

/// Labels by which a namespace is a member of the mesh: Leno's, OSM's and FSM's.
pub(crate) const MEMBERSHIPS: [&str; 3] =
    [INJECTION, "openservicemesh.io/monitored-by", "flomesh.io/monitored-by"];

/// Returns true for the values `enabled`, `yes` and `true` of a setting, case-insensitively as in OSM and FSM.
pub(crate) fn is_enabled(value: &str) -> bool {
    ["enabled", "yes", "true"].iter().any(|enabled| value.eq_ignore_ascii_case(enabled))
}

/// Returns true for the values `disabled`, `no` and `false` of a setting, case-insensitively.
pub(crate) fn is_disabled(value: &str) -> bool {
    ["disabled", "no", "false"].iter().any(|disabled| value.eq_ignore_ascii_case(disabled))
}

/// Returns true for annotations that exclude traffic from redirection, by their name without the prefix.
pub(crate) fn is_exclusion(name: &str) -> bool {
    is_supported_annotation(name)
        && (name.ends_with("-exclusion-list") || name.ends_with("-inclusion-list"))
}

/// Returns true if a label or annotation with one of the [`PREFIXES`] is supported, by its name without the
/// prefix.
#[must_use]
pub fn is_supported_annotation(name: &str) -> bool {
    SHARED_ANNOTATIONS.contains(&name) || name.starts_with(RESOURCE_PREFIX)
}

/// Returns the unknown labels or annotations under `leno.dev/`, each with a hint. Users may write any number of
/// them: at most [`MAX_KEYS`] keys are compared, and at most [`MAX_UNKNOWN_ANNOTATIONS`] hints are computed.
pub(crate) fn unknown_annotations<'a, K: AsRef<str> + ?Sized + 'a>(
    keys: impl Iterator<Item = &'a K>,
) -> impl Iterator<Item = (&'a str, String)> {
    let own_names = OWN_ANNOTATIONS.iter().chain(SHARED_ANNOTATIONS).chain(RESOURCE_ANNOTATIONS);
    let own_names: Vec<&str> = own_names.copied().collect();
    let known_names = own_names.clone();
    let unknown = keys.take(MAX_KEYS).map(AsRef::as_ref).filter_map(move |key: &str| {
        let (prefix, name) = key.split_once('/')?;
        (prefix == PREFIXES[0] && !known_names.contains(&name)).then_some((key, name))
    });
    unknown
        .take(MAX_UNKNOWN_ANNOTATIONS)
        .map(move |(key, name)| (key, unknown_annotation_hint(name, &own_names)))
}

fn unknown_annotation_hint(name: &str, own_names: &[&str]) -> String {
    match closest_word(name, own_names) {
        Some(closest) => format!("did you mean `{}/{closest}`?", PREFIXES[0]),
        None => "remove it, or see the table of annotations in docs/kubernetes.md".to_owned(),
    }
}

/// The maximum number of labels, and of annotations, of one object that are checked.
const MAX_KEYS: usize = 1024;
/// The maximum number of hints for the labels, and for the annotations, of one object.
pub(crate) const MAX_UNKNOWN_ANNOTATIONS: usize = 10;

/// Labels and annotations of pods and namespaces that are supported with the prefix `leno.dev/` only.
const OWN_ANNOTATIONS: &[&str] = &[
    "access-cert",
    "default-policy",
    "dns",
    "gateway",
    "injection",
    "meshed",
    "mtls",
    "network-policies",
    "node-network",
    "redirect",
    "service-type",
    "sidecar-image",
    "upgrades",
    "weight",
];
/// The annotations of a sidecar's resources.
const RESOURCE_ANNOTATIONS: &[&str] = &[
    "sidecar-resource-limits-cpu",
    "sidecar-resource-limits-ephemeral-storage",
    "sidecar-resource-limits-memory",
    "sidecar-resource-limits-storage",
    "sidecar-resource-requests-cpu",
    "sidecar-resource-requests-ephemeral-storage",
    "sidecar-resource-requests-memory",
    "sidecar-resource-requests-storage",
];
/// The prefix of annotations for a sidecar's resource requests and limits.
const RESOURCE_PREFIX: &str = "sidecar-resource-";
/// The labels and annotations that are supported with every prefix, as listed in docs/kubernetes.md.
const SHARED_ANNOTATIONS: &[&str] = &[
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
