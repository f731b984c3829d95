//! The supported kinds of documents, and the fields that all kinds share.

mod access_cert;
mod access_policy;
mod check_service;
mod circuit_breaker;
mod cors;
mod egress;
mod external_authorization;
mod fault_injection;
mod filter;
pub(crate) mod gateway_route;
mod gateway_tcp_route;
mod global_limit;
mod grpc_route;
mod hedging;
mod http_route;
pub(crate) mod ingress;
mod issuer_keys;
mod jwt_validation;
mod lane;
mod literal_path;
mod load_balancing;
mod mesh_config;
mod mirror;
mod other_kinds;
mod outlier_detection;
mod persistence;
mod rate_limit;
mod reference_grant;
mod request_test;
mod response;
mod retry;
mod sermant;
mod sermant_removal;
pub(crate) mod service;
mod service_policy;
mod sight;
mod smi;
mod tag_route;
mod tls_route;
mod traffic_split;
mod traffic_warmup;
mod upstream_global_limit;
mod upstream_rate_limit;
mod upstream_traffic_setting;
mod workload;

use self::other_kinds::refuse_other_kinds;
use std::collections::BTreeMap;

use leno_model::{IngressKind, Name, Object, ObjectKey, ServicePolicyKind};

use self::gateway_route::GatewayRoute;
use crate::document::{DocumentNode, LIST_FIELDS, NodeValue, TextPosition};
use crate::field::{DiagnosticCollector, Field, FieldDiagnostic, MapFields};
use crate::foreign::{our_kind, replacement_hint};
use crate::hint;
use crate::rejected::{DocumentLocation, RejectedDocument, Warning};
use crate::suggest::{closest_word, one_of};

/// Reads one document, from a file or an API server.
pub(crate) fn read(file: Option<&str>, node: &DocumentNode) -> DocumentReading {
    let diagnostics = DiagnosticCollector::for_file(file);
    let object = read_object(&Field::root(node, &diagnostics), &diagnostics);
    let refused = diagnostics.is_rejected();
    let (problems, warnings) = diagnostics.into_parts();
    let problems = hint::apply_hints(node, problems, |node| find_problems(file, node));
    let identity = DeclaredIdentity::from_node(node);
    let place = |diagnostic: &FieldDiagnostic| identity.diagnostic_place(file, diagnostic);
    let outcome = match object {
        Some(object) if !refused => Ok(AcceptedDocument {
            object,
            warnings: warnings
                .into_iter()
                .map(|diagnostic| Warning {
                    at: place(&diagnostic),
                    problem: diagnostic.problem,
                    hint: diagnostic.hint,
                })
                .collect(),
        }),
        _ => Err(problems
            .into_iter()
            .map(|diagnostic| RejectedDocument {
                at: place(&diagnostic),
                problem: diagnostic.problem,
                hint: diagnostic.hint,
            })
            .collect()),
    };
    DocumentReading { position: node.position, identity, outcome }
}

/// Returns the problems of one document.
pub(crate) fn find_problems(file: Option<&str>, node: &DocumentNode) -> Vec<FieldDiagnostic> {
    let diagnostics = DiagnosticCollector::for_file(file);
    drop(read_object(&Field::root(node, &diagnostics), &diagnostics));
    diagnostics.into_parts().0
}

/// Reads a complete Gateway API route for a gateway.
pub(crate) fn read_gateway_route(
    node: &DocumentNode,
) -> Result<GatewayRoute, Vec<RejectedDocument>> {
    let (route, problems) = gateway_route_and_problems(node);
    let refused = !problems.is_empty();
    let problems = hint::apply_hints(node, problems, |node| gateway_route_and_problems(node).1);
    let identity = DeclaredIdentity::from_node(node);
    let rejected = |diagnostic: FieldDiagnostic| RejectedDocument {
        at: identity.diagnostic_place(None, &diagnostic),
        problem: diagnostic.problem,
        hint: diagnostic.hint,
    };
    match route {
        Some(route) if !refused => Ok(route),
        _ => Err(problems.into_iter().map(rejected).collect()),
    }
}

fn gateway_route_and_problems(node: &DocumentNode) -> (Option<GatewayRoute>, Vec<FieldDiagnostic>) {
    let diagnostics = DiagnosticCollector::for_file(None);
    let root = Field::root(node, &diagnostics);
    let route = root.any_fields().and_then(|fields| {
        let kind = read_kind(&fields)?;
        let head = fields.require("metadata").and_then(|metadata| read_head(kind, metadata))?;
        gateway_route::read(kind, head, fields.require("spec")?)
    });
    (route, diagnostics.into_parts().0)
}

/// The result of reading a document.
pub(crate) struct DocumentReading {
    pub(crate) position: TextPosition,
    pub(crate) identity: DeclaredIdentity,
    pub(crate) outcome: Result<AcceptedDocument, Vec<RejectedDocument>>,
}

/// A valid document.
pub(crate) struct AcceptedDocument {
    pub(crate) object: Object,
    pub(crate) warnings: Vec<Warning>,
}

/// The declared kind, namespace and name, as far as they are readable in an invalid document.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeclaredIdentity {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

impl DeclaredIdentity {
    fn from_node(node: &DocumentNode) -> Self {
        let text = |node: Option<&DocumentNode>| match node.map(|n| &n.value) {
            Some(NodeValue::Text(text)) => {
                Some(text.chars().take(IDENTITY_CHARACTERS_MAX).collect())
            }
            _ => None,
        };
        let kind: Option<String> = text(find_entry(node, "kind"));
        let metadata = find_entry(node, "metadata");
        let written = metadata.and_then(|m| find_entry(m, "namespace"));
        let namespace = match written {
            None if kind.as_deref() == Some(DocumentKind::MeshConfig.kind_name()) => None,
            None => Some(NAMESPACE_DEFAULT.to_owned()),
            Some(_) => text(written),
        };
        Self { namespace, name: text(metadata.and_then(|m| find_entry(m, "name"))), kind }
    }

    /// True if a rejected document may define this object, so that the object's last good version stays.
    pub(crate) fn may_be(&self, key: &ObjectKey) -> bool {
        let place = DocumentLocation::for_object(key, "");
        let actual = place.kind.as_deref().unwrap_or_default();
        let kind_fits = match self.kind.as_deref() {
            // The list may contain the object.
            None => return true,
            Some(written) if written.ends_with(LIST) => return true,
            Some(written) => {
                DocumentKind::closest_to(written).is_some_and(|kind| kind.kind_name() == actual)
            }
        };
        let fits = |written: &Option<String>, actual: Option<&str>| match (written, actual) {
            (Some(written), Some(actual)) => written == actual,
            _ => true,
        };
        kind_fits
            && fits(&self.namespace, place.namespace.as_deref())
            && fits(&self.name, place.name.as_deref())
    }

    /// Returns the location of a diagnostic.
    fn diagnostic_place(
        &self,
        file: Option<&str>,
        diagnostic: &FieldDiagnostic,
    ) -> DocumentLocation {
        DocumentLocation {
            file: file.map(str::to_owned),
            line: file.map(|_| diagnostic.position.line),
            column: file.map(|_| diagnostic.position.column),
            field: (!diagnostic.field.is_empty()).then(|| diagnostic.field.clone()),
            ..self.document_place()
        }
    }

    /// Returns the location of the document without file and line.
    pub(crate) fn document_place(&self) -> DocumentLocation {
        DocumentLocation {
            kind: self.kind.clone(),
            namespace: self.kind.as_ref().and(self.namespace.clone()),
            name: self.name.clone(),
            ..DocumentLocation::default()
        }
    }
}

/// A supported kind, as named by API servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedKind {
    /// The API group.
    pub group: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// The supported versions with the group, in order of preference.
    pub api_versions: &'static [&'static str],
}

/// Returns the kinds that are read from an API server as written. Excluded are Workload, which is a Pod there,
/// and Service, which the cluster completes.
#[must_use]
pub fn served_kinds() -> Vec<ServedKind> {
    let read = DocumentKind::ALL
        .iter()
        .filter(|kind| !matches!(kind, DocumentKind::Workload | DocumentKind::Service));
    let groups = |kind: &DocumentKind| {
        let (word, versions) = (kind.kind_name(), kind.api_versions());
        let group = |version: &'static str| version.split_once('/').map_or("", |(group, _)| group);
        versions
            .chunk_by(move |one, two| group(one) == group(two))
            .filter_map(move |same| {
                Some(ServedKind { group: group(same.first()?), kind: word, api_versions: same })
            })
            .collect::<Vec<_>>()
    };
    read.flat_map(groups).collect()
}

/// True for the kind `MeshConfig`, including misspelled, and for a list that may contain one; false for a known
/// kind of another mesh.
pub(crate) fn means_mesh_config(word: &str) -> bool {
    let means = || DocumentKind::closest_to(word) == Some(DocumentKind::MeshConfig);
    word == LIST || (replacement_hint(word).is_none() && means())
}

/// A supported kind of document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DocumentKind {
    Workload,
    MeshConfig,
    Service,
    HttpRoute,
    TlsRoute,
    TrafficTarget,
    HttpRouteGroup,
    TcpRoute,
    GrpcRoute,
    ServicePolicy(ServicePolicyKind),
    TagRoute,
    SermantRouteRule,
    Lane,
    ReferenceGrant,
    AccessPolicy,
    TrafficSplit,
    /// The Gateway API kind; SMI has one of the same name.
    GatewayTcpRoute,
    Ingress(IngressKind),
    Egress,
    Retry,
    AccessCert,
}

impl DocumentKind {
    const ALL: &'static [Self] = &[
        Self::Workload,
        Self::MeshConfig,
        Self::Service,
        Self::HttpRoute,
        Self::TlsRoute,
        Self::TrafficTarget,
        Self::HttpRouteGroup,
        Self::TcpRoute,
        Self::GrpcRoute,
        Self::ServicePolicy(ServicePolicyKind::OutlierDetection),
        Self::ServicePolicy(ServicePolicyKind::SermantRemoval),
        Self::ServicePolicy(ServicePolicyKind::CircuitBreaker),
        Self::ServicePolicy(ServicePolicyKind::UpstreamTrafficSetting),
        Self::ServicePolicy(ServicePolicyKind::RateLimit),
        Self::ServicePolicy(ServicePolicyKind::FaultInjection),
        Self::ServicePolicy(ServicePolicyKind::LoadBalancing),
        Self::ServicePolicy(ServicePolicyKind::TrafficWarmup),
        Self::ServicePolicy(ServicePolicyKind::Hedging),
        Self::ServicePolicy(ServicePolicyKind::ExternalAuthorization),
        Self::ServicePolicy(ServicePolicyKind::JwtValidation),
        Self::TagRoute,
        Self::SermantRouteRule,
        Self::Lane,
        Self::ReferenceGrant,
        Self::AccessPolicy,
        Self::TrafficSplit,
        Self::GatewayTcpRoute,
        Self::Ingress(IngressKind::IngressBackend),
        Self::Ingress(IngressKind::AccessControl),
        Self::Egress,
        Self::Retry,
        Self::AccessCert,
    ];

    const fn kind_name(self) -> &'static str {
        match self {
            Self::Workload => "Workload",
            Self::MeshConfig => "MeshConfig",
            Self::Service => "Service",
            Self::HttpRoute => "HTTPRoute",
            Self::TlsRoute => "TLSRoute",
            Self::TrafficTarget => "TrafficTarget",
            Self::HttpRouteGroup => "HTTPRouteGroup",
            Self::TcpRoute | Self::GatewayTcpRoute => "TCPRoute",
            Self::GrpcRoute => "GRPCRoute",
            Self::ServicePolicy(kind) => kind.as_str(),
            Self::TagRoute => "TagRoute",
            Self::SermantRouteRule => "SermantRouteRule",
            Self::Lane => "Lane",
            Self::ReferenceGrant => "ReferenceGrant",
            Self::AccessPolicy => "AccessPolicy",
            Self::TrafficSplit => "TrafficSplit",
            Self::Ingress(kind) => kind.as_str(),
            Self::Egress => "Egress",
            Self::Retry => "Retry",
            Self::AccessCert => "AccessCert",
        }
    }

    /// Returns the supported versions in order of preference.
    const fn api_versions(self) -> &'static [&'static str] {
        match self {
            Self::ServicePolicy(ServicePolicyKind::UpstreamTrafficSetting)
            | Self::Ingress(_)
            | Self::Egress
            | Self::Retry
            | Self::AccessCert => {
                &["policy.openservicemesh.io/v1alpha1", "policy.flomesh.io/v1alpha1"]
            }
            Self::ServicePolicy(ServicePolicyKind::TrafficWarmup) => {
                &["policy.flomesh.io/v1alpha1"]
            }
            Self::Workload
            | Self::MeshConfig
            | Self::TagRoute
            | Self::SermantRouteRule
            | Self::Lane
            | Self::AccessPolicy
            | Self::ServicePolicy(_) => &["leno.dev/v1alpha1"],
            Self::Service => &["v1"],
            Self::HttpRoute | Self::ReferenceGrant => {
                &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"]
            }
            Self::GrpcRoute => &["gateway.networking.k8s.io/v1"],
            Self::TlsRoute => &[
                "gateway.networking.k8s.io/v1",
                "gateway.networking.k8s.io/v1alpha3",
                "gateway.networking.k8s.io/v1alpha2",
            ],
            Self::TrafficTarget => &["access.smi-spec.io/v1alpha3"],
            Self::HttpRouteGroup | Self::TcpRoute => &["specs.smi-spec.io/v1alpha4"],
            Self::GatewayTcpRoute => {
                &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha2"]
            }
            Self::TrafficSplit => &["split.smi-spec.io/v1alpha4", "split.smi-spec.io/v1alpha2"],
        }
    }

    fn kind_names() -> Vec<&'static str> {
        let mut words: Vec<&str> = Vec::new();
        for word in Self::ALL.iter().map(|kind| kind.kind_name()) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words
    }

    /// Returns the kinds with this name; each has its own versions.
    fn kinds_named(word: &str) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |kind| kind.kind_name() == word)
    }

    fn from_name(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.kind_name() == word)
    }

    /// Returns the kind, or the closest one if misspelled.
    fn closest_to(word: &str) -> Option<Self> {
        if OTHER_ROUTES.contains(&word) {
            return None;
        }
        let found = Self::from_name(word).or_else(|| Self::from_name(our_kind(word)?));
        let found = found.or_else(|| Self::from_name(closest_word(word, &Self::kind_names())?));
        // A lenient guess, because the mesh's authorization depends on it.
        let mesh = word.to_lowercase().starts_with("mesh");
        found.or_else(|| mesh.then_some(Self::MeshConfig))
    }
}

/// The metadata that the readers use.
struct ObjectMetadata {
    namespace: Name,
    name: Name,
    labels: BTreeMap<String, String>,
}

fn read_object(root: &Field<'_>, diagnostics: &DiagnosticCollector) -> Option<Object> {
    let NodeValue::Map(_) = root.value() else {
        root.reject(
            format!("is {}, not a document", root.quoted_value()),
            "write `apiVersion`, `kind`, `metadata` and `spec`",
        );
        return None;
    };
    let fields = root.any_fields()?;
    if is_list(&fields) {
        refuse_list(&fields);
        return None;
    }
    let kind = read_kind(&fields)?;
    fields.refuse_unknown(&["apiVersion", "kind", "metadata", "spec", "status"]);
    let head = fields.require("metadata").and_then(|metadata| read_head(kind, metadata));
    let spec = fields.require("spec")?;
    let head = head?;
    let object = match kind {
        DocumentKind::Workload => workload::read(head, spec).map(Object::Workload),
        DocumentKind::MeshConfig => mesh_config::read(spec).map(Object::MeshConfig),
        DocumentKind::Service => service::read(head, spec).map(Object::Service),
        DocumentKind::HttpRoute => http_route::read(head, spec).map(Object::HttpRoute),
        DocumentKind::TlsRoute => tls_route::read(head, spec).map(Object::TlsRoute),
        DocumentKind::TrafficTarget => smi::traffic_target(head, spec).map(Object::TrafficTarget),
        DocumentKind::HttpRouteGroup => {
            smi::http_route_group(head, spec).map(Object::HttpRouteGroup)
        }
        DocumentKind::TcpRoute => smi::tcp_route(head, spec).map(Object::TcpRoute),
        DocumentKind::GrpcRoute => grpc_route::read(head, spec).map(Object::GrpcRoute),
        DocumentKind::ServicePolicy(kind) => {
            let version = fields.find("apiVersion").and_then(Field::read_text).unwrap_or_default();
            service_policy::read(kind, version, head, spec).map(Object::ServicePolicy)
        }
        DocumentKind::TagRoute => tag_route::read(head, spec).map(Object::TagRoute),
        DocumentKind::SermantRouteRule => sermant::read(head, spec).map(Object::SermantRouteRule),
        DocumentKind::Lane => lane::read(head, spec).map(Object::Lane),
        DocumentKind::ReferenceGrant => {
            reference_grant::read(head, spec).map(Object::ReferenceGrant)
        }
        DocumentKind::AccessPolicy => access_policy::read(head, spec).map(Object::AccessPolicy),
        DocumentKind::GatewayTcpRoute => {
            gateway_tcp_route::read(head, spec).map(Object::GatewayTcpRoute)
        }
        DocumentKind::TrafficSplit => {
            let version = fields.find("apiVersion").and_then(Field::read_text).unwrap_or_default();
            traffic_split::read(head, spec, version).map(Object::TrafficSplit)
        }
        DocumentKind::Ingress(kind) => ingress::read(kind, head, spec).map(Object::Ingress),
        DocumentKind::Egress => egress::read(head, spec).map(Object::Egress),
        DocumentKind::Retry => retry::read(head, spec).map(Object::Retry),
        DocumentKind::AccessCert => access_cert::read(head, spec).map(Object::AccessCert),
    };
    debug_assert!(object.is_some() || diagnostics.is_rejected(), "rejections have a diagnostic");
    object
}

fn is_list(fields: &MapFields<'_>) -> bool {
    let kind = fields.find("kind").map(Field::value);
    matches!(kind, Some(NodeValue::Text(kind)) if kind == LIST)
}

/// Records the problems of a list without documents as items; the items of other lists are read in their place.
fn refuse_list(fields: &MapFields<'_>) {
    fields.refuse_unknown(LIST_FIELDS);
    if let Some(version) = fields.require("apiVersion") {
        version.read_choice(&[("v1", ())]);
    }
    let items = fields.require("items").and_then(|items| items.read_list(usize::MAX));
    for item in items.into_iter().flatten() {
        item.any_fields();
    }
}

/// Reads kind and version; a document of another system gets one diagnostic about them and no others.
fn read_kind(fields: &MapFields<'_>) -> Option<DocumentKind> {
    let kind_field = fields.require("kind");
    let version_field = fields.require("apiVersion");
    let (kind_field, version_field) = (kind_field?, version_field?);
    let word = kind_field.read_text()?;
    let version = version_field.read_text()?;
    let Some(kind) = DocumentKind::from_name(word) else {
        let problem = format!("{} is not a supported kind", kind_field.quoted_value());
        match (replacement_hint(word), DocumentKind::closest_to(word)) {
            (Some(hint), _) => kind_field.reject(problem, hint),
            (None, Some(meant)) => kind_field.propose_word(problem, meant.kind_name()),
            (None, None) => {
                let hint =
                    format!("remove the document, or use {}", one_of(&DocumentKind::kind_names()));
                kind_field.reject(problem, hint);
            }
        }
        return None;
    };
    let found = DocumentKind::kinds_named(kind.kind_name())
        .find(|kind| kind.api_versions().contains(&version));
    if found.is_none() {
        let read: Vec<&str> = DocumentKind::kinds_named(kind.kind_name())
            .flat_map(DocumentKind::api_versions)
            .copied()
            .collect();
        version_field.reject(
            format!("{} is not a supported version of {word}", version_field.quoted_value()),
            format!("use {}", one_of(&read)),
        );
    }
    found
}

fn read_head(kind: DocumentKind, metadata: &Field<'_>) -> Option<ObjectMetadata> {
    let fields = metadata.read_fields(METADATA_FIELDS)?;
    let name = fields.require("name").and_then(|field| match kind {
        DocumentKind::Service => field.read_label(),
        _ => field.read_name(),
    });
    let labels = fields.find("labels").map(Field::read_text_map).unwrap_or_default();
    let namespace = match fields.find("namespace") {
        Some(field) if kind == DocumentKind::MeshConfig => {
            field.reject("a MeshConfig has no namespace", "remove `namespace`");
            None
        }
        Some(field) => field.read_label(),
        None => Name::new(NAMESPACE_DEFAULT).ok(),
    };
    Some(ObjectMetadata { namespace: namespace?, name: name?, labels })
}

fn find_entry<'a>(node: &'a DocumentNode, key: &str) -> Option<&'a DocumentNode> {
    let NodeValue::Map(map) = &node.value else {
        return None;
    };
    let found =
        map.iter().find(|(name, _)| matches!(&name.value, NodeValue::Text(text) if text == key));
    let (_, value) = found?;
    (!matches!(value.value, NodeValue::Null)).then_some(value)
}

/// The kind of an untyped list, and the suffix of typed list kinds.
const LIST: &str = "List";
/// The namespace of objects without one.
const NAMESPACE_DEFAULT: &str = "default";
/// Kinds of the same families that resemble a misspelled kind of ours.
const OTHER_ROUTES: &[&str] = &["UDPRoute"];
/// Limit of the characters of a name or kind kept to identify a rejected document.
const IDENTITY_CHARACTERS_MAX: usize = 253;
/// The Kubernetes fields of `metadata`; all but the first three are ignored.
const METADATA_FIELDS: &[&str] = &[
    "name",
    "namespace",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];
