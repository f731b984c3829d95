//! Reads documents of all supported kinds: kind and metadata here, and the `spec` in the module of the kind.
//!
//! A reader continues after an invalid field if it can, so that all problems of a document are reported together. A reader
//! that returns `None` has recorded a problem.

mod access_cert;
mod cors;
mod egress;
mod filter;
pub(crate) mod gateway_route;
mod gateway_tcp_route;
mod grpc_route;
mod http_route;
pub(crate) mod ingress;
mod mirror;
mod other_kinds;
mod persistence;
mod reference_grant;
mod sermant;
mod sermant_removal;
pub(crate) mod service;
mod service_policy;
mod smi;
mod tag_rules;
mod tls_route;
mod traffic_split;
mod traffic_warmup;
mod upstream_global_limit;
mod upstream_rate_limit;
mod upstream_traffic_setting;
mod workload;

use std::collections::BTreeMap;

use leno_model::{
    AccessPolicySpec, IngressKind, Name, Object, ObjectKey, PolicyName, RetrySpec,
    ServicePolicyKind,
};

use self::gateway_route::GatewayRoute;
use crate::document::{DocumentNode, LIST_FIELDS, NodeValue, TextPosition};
use crate::field::{DiagnosticCollector, Field, FieldDiagnostic, MapFields};
use crate::hint;
use crate::rejections::{DocumentLocation, RejectedDocument, Warning};
use crate::schema_reader::read_definition;
use crate::suggest::{closest_word, join_with_or};
use crate::unsupported_kinds::{kind_for_synonym, replacement_hint};

/// Reads one document, from a file or an API server.
pub(crate) fn read_document(file: Option<&str>, node: &DocumentNode) -> DocumentReading {
    let diagnostics = DiagnosticCollector::for_file(file);
    let object = read_object(&Field::root(node, &diagnostics), &diagnostics);
    let is_rejected = diagnostics.is_rejected();
    let (problems, warnings) = diagnostics.into_parts();
    let problems = hint::verify_hints(node, problems, |node| find_problems(file, node));
    let identity = DeclaredIdentity::from_node(node);
    let to_location = |diagnostic: &FieldDiagnostic| identity.diagnostic_location(file, diagnostic);
    let outcome = match object {
        Some(object) if !is_rejected => Ok(AcceptedDocument {
            object,
            warnings: warnings
                .into_iter()
                .map(|diagnostic| Warning {
                    location: to_location(&diagnostic),
                    problem: diagnostic.problem,
                    hint: diagnostic.hint,
                })
                .collect(),
        }),
        _ => Err(problems
            .into_iter()
            .map(|diagnostic| RejectedDocument {
                location: to_location(&diagnostic),
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

/// Reads a Gateway API route that is attached to a gateway, from a whole document.
pub(crate) fn read_gateway_route(
    node: &DocumentNode,
) -> Result<GatewayRoute, Vec<RejectedDocument>> {
    let (route, problems) = read_gateway_route_and_problems(node);
    let is_rejected = !problems.is_empty();
    let problems =
        hint::verify_hints(node, problems, |node| read_gateway_route_and_problems(node).1);
    let identity = DeclaredIdentity::from_node(node);
    let to_rejection = |diagnostic: FieldDiagnostic| RejectedDocument {
        location: identity.diagnostic_location(None, &diagnostic),
        problem: diagnostic.problem,
        hint: diagnostic.hint,
    };
    match route {
        Some(route) if !is_rejected => Ok(route),
        _ => Err(problems.into_iter().map(to_rejection).collect()),
    }
}

fn read_gateway_route_and_problems(
    node: &DocumentNode,
) -> (Option<GatewayRoute>, Vec<FieldDiagnostic>) {
    let diagnostics = DiagnosticCollector::for_file(None);
    let root = Field::root(node, &diagnostics);
    let route = root.read_any_fields().and_then(|fields| {
        let kind = read_kind(&fields)?;
        let metadata =
            fields.require("metadata").and_then(|metadata| read_metadata(kind, metadata))?;
        gateway_route::read(kind, metadata, fields.require("spec")?)
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

/// The kind, namespace and name that a document declares. Fields that are absent or not texts are `None`.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeclaredIdentity {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

impl DeclaredIdentity {
    fn from_node(node: &DocumentNode) -> Self {
        let read_text = |node: Option<&DocumentNode>| match node.map(|node| &node.value) {
            Some(NodeValue::Text(text)) => {
                Some(text.chars().take(MAX_IDENTITY_CHARACTERS).collect())
            }
            _ => None,
        };
        let kind: Option<String> = read_text(find_entry(node, "kind"));
        let metadata = find_entry(node, "metadata");
        let namespace_entry = metadata.and_then(|metadata| find_entry(metadata, "namespace"));
        let namespace = match namespace_entry {
            None if kind.as_deref() == Some(DocumentKind::MeshConfig.kind_name()) => None,
            None => Some(DEFAULT_NAMESPACE.to_owned()),
            Some(_) => read_text(namespace_entry),
        };
        let name = read_text(metadata.and_then(|metadata| find_entry(metadata, "name")));
        Self { namespace, name, kind }
    }

    /// True if the rejected document may define this object. The last valid version of such an object stays active.
    pub(crate) fn may_define(&self, key: &ObjectKey) -> bool {
        let location = DocumentLocation::for_object(key, "");
        let actual_kind = location.kind.as_deref().unwrap_or_default();
        let kind_matches = match self.kind.as_deref() {
            // The document may be a list that contains the object.
            None => return true,
            Some(declared) if declared.ends_with(LIST_KIND) => return true,
            Some(declared) => DocumentKind::closest_to(declared)
                .is_some_and(|kind| kind.kind_name() == actual_kind),
        };
        let may_equal = |declared: &Option<String>, actual: Option<&str>| match (declared, actual) {
            (Some(declared), Some(actual)) => declared == actual,
            _ => true,
        };
        kind_matches
            && may_equal(&self.namespace, location.namespace.as_deref())
            && may_equal(&self.name, location.name.as_deref())
    }

    /// Returns the location of a diagnostic.
    fn diagnostic_location(
        &self,
        file: Option<&str>,
        diagnostic: &FieldDiagnostic,
    ) -> DocumentLocation {
        DocumentLocation {
            file: file.map(str::to_owned),
            line: file.map(|_| diagnostic.position.line),
            column: file.map(|_| diagnostic.position.column),
            field: (!diagnostic.field.is_empty()).then(|| diagnostic.field.clone()),
            ..self.document_location()
        }
    }

    /// Returns the location of the document without file and line.
    pub(crate) fn document_location(&self) -> DocumentLocation {
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
    /// The name of the kind.
    pub kind: &'static str,
    /// The supported versions with the group, in order of preference.
    pub api_versions: &'static [&'static str],
}

/// Returns the kinds that are read from an API server as written. Excluded are Workload, which is a Pod there,
/// and Service, which the cluster completes.
#[must_use]
pub fn served_kinds() -> Vec<ServedKind> {
    let kinds = DocumentKind::ALL
        .iter()
        .filter(|kind| !matches!(kind, DocumentKind::Workload | DocumentKind::Service));
    let split_by_group = |kind: &DocumentKind| {
        let (name, versions) = (kind.kind_name(), kind.api_versions());
        let group = |version: &'static str| version.split_once('/').map_or("", |(group, _)| group);
        versions
            .chunk_by(move |left, right| group(left) == group(right))
            .filter_map(move |group_versions| {
                Some(ServedKind {
                    group: group(group_versions.first()?),
                    kind: name,
                    api_versions: group_versions,
                })
            })
            .collect::<Vec<_>>()
    };
    kinds.flat_map(split_by_group).collect()
}

/// True if a document of this kind may be a `MeshConfig`: the kind itself, also misspelled, or a list that may
/// contain one. False for a known kind of another mesh.
pub(crate) fn may_be_mesh_config(kind_name: &str) -> bool {
    let is_similar = || DocumentKind::closest_to(kind_name) == Some(DocumentKind::MeshConfig);
    kind_name == LIST_KIND || (replacement_hint(kind_name).is_none() && is_similar())
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
        let mut names: Vec<&str> = Vec::new();
        for name in Self::ALL.iter().map(|kind| kind.kind_name()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the kinds with this name. Kinds of different API groups may share a name.
    fn all_with_name(name: &str) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |kind| kind.kind_name() == name)
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.kind_name() == name)
    }

    /// Returns the kind with this name, or the kind that a misspelling or another mesh's term probably means.
    fn closest_to(name: &str) -> Option<Self> {
        if UNRELATED_KINDS.contains(&name) {
            return None;
        }
        let closest = Self::from_name(name).or_else(|| Self::from_name(kind_for_synonym(name)?));
        let closest = closest.or_else(|| Self::from_name(closest_word(name, &Self::kind_names())?));
        // Without its MeshConfig, the mesh would use the default authorization, so a vague resemblance suffices.
        let is_mesh_prefixed = name.to_lowercase().starts_with("mesh");
        closest.or_else(|| is_mesh_prefixed.then_some(Self::MeshConfig))
    }
}

/// The fields of `metadata` that the readers of the kinds use.
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
    let fields = root.read_any_fields()?;
    if is_list(&fields) {
        reject_list(&fields);
        return None;
    }
    let kind = read_kind(&fields)?;
    fields.reject_unknown(&["apiVersion", "kind", "metadata", "spec", "status"]);
    let metadata = fields.require("metadata").and_then(|metadata| read_metadata(kind, metadata));
    let spec = fields.require("spec")?;
    let metadata = metadata?;
    let object = match kind {
        DocumentKind::Workload => workload::read(metadata, spec).map(Object::Workload),
        DocumentKind::MeshConfig => {
            // It has no namespace, and its definition uses none.
            read_definition(spec, &metadata.namespace).map(Object::MeshConfig)
        }
        DocumentKind::Service => service::read(metadata, spec).map(Object::Service),
        DocumentKind::HttpRoute => http_route::read(metadata, spec).map(Object::HttpRoute),
        DocumentKind::TlsRoute => tls_route::read(metadata, spec).map(Object::TlsRoute),
        DocumentKind::TrafficTarget => {
            smi::read_traffic_target(metadata, spec).map(Object::TrafficTarget)
        }
        DocumentKind::HttpRouteGroup => {
            smi::read_http_route_group(metadata, spec).map(Object::HttpRouteGroup)
        }
        DocumentKind::TcpRoute => smi::read_tcp_route(metadata, spec).map(Object::TcpRoute),
        DocumentKind::GrpcRoute => grpc_route::read(metadata, spec).map(Object::GrpcRoute),
        DocumentKind::ServicePolicy(policy_kind) => {
            let version = fields.find("apiVersion").and_then(Field::read_text).unwrap_or_default();
            service_policy::read(policy_kind, version, metadata, spec).map(Object::ServicePolicy)
        }
        DocumentKind::TagRoute => tag_rules::read_route(metadata, spec).map(Object::TagRoute),
        DocumentKind::SermantRouteRule => {
            sermant::read(metadata, spec).map(Object::SermantRouteRule)
        }
        DocumentKind::Lane => tag_rules::read_lane(metadata, spec).map(Object::Lane),
        DocumentKind::ReferenceGrant => {
            reference_grant::read(metadata, spec).map(Object::ReferenceGrant)
        }
        DocumentKind::AccessPolicy => {
            let name = PolicyName { namespace: metadata.namespace, name: metadata.name };
            let policy: Option<AccessPolicySpec> = read_definition(spec, &name.namespace);
            policy.map(|policy| Object::AccessPolicy(policy.into_policy(name)))
        }
        DocumentKind::GatewayTcpRoute => {
            gateway_tcp_route::read(metadata, spec).map(Object::GatewayTcpRoute)
        }
        DocumentKind::TrafficSplit => {
            let version = fields.find("apiVersion").and_then(Field::read_text).unwrap_or_default();
            traffic_split::read(metadata, spec, version).map(Object::TrafficSplit)
        }
        DocumentKind::Ingress(kind) => ingress::read(kind, metadata, spec).map(Object::Ingress),
        DocumentKind::Egress => egress::read(metadata, spec).map(Object::Egress),
        DocumentKind::Retry => {
            let name = PolicyName { namespace: metadata.namespace, name: metadata.name };
            read_definition(spec, &name.namespace)
                .map(|retry: RetrySpec| Object::Retry(retry.into_policy(name)))
        }
        DocumentKind::AccessCert => access_cert::read(metadata, spec).map(Object::AccessCert),
    };
    debug_assert!(object.is_some() || diagnostics.is_rejected(), "rejections have a diagnostic");
    object
}

fn is_list(fields: &MapFields<'_>) -> bool {
    let kind = fields.find("kind").map(Field::value);
    matches!(kind, Some(NodeValue::Text(kind)) if kind == LIST_KIND)
}

/// Records the problems of a list that `parse_documents` did not expand into its items.
fn reject_list(fields: &MapFields<'_>) {
    fields.reject_unknown(LIST_FIELDS);
    if let Some(version) = fields.require("apiVersion") {
        version.read_choice(&[("v1", ())]);
    }
    let items = fields.require("items").and_then(|items| items.read_list(usize::MAX));
    // Reports the items that are not maps.
    for item in items.into_iter().flatten() {
        item.read_any_fields();
    }
}

/// Reads `kind` and `apiVersion`. If one is unsupported, no other field is read, so this is the only diagnostic.
fn read_kind(fields: &MapFields<'_>) -> Option<DocumentKind> {
    let kind_field = fields.require("kind");
    let version_field = fields.require("apiVersion");
    let (kind_field, version_field) = (kind_field?, version_field?);
    let kind_name = kind_field.read_text()?;
    let version = version_field.read_text()?;
    let Some(kind) = DocumentKind::from_name(kind_name) else {
        let problem = format!("{} is not a supported kind", kind_field.quoted_value());
        match (replacement_hint(kind_name), DocumentKind::closest_to(kind_name)) {
            (Some(hint), _) => kind_field.reject(problem, hint),
            (None, Some(closest)) => kind_field.propose_word(problem, closest.kind_name()),
            (None, None) => {
                let hint = format!(
                    "remove the document, or use {}",
                    join_with_or(&DocumentKind::kind_names())
                );
                kind_field.reject(problem, hint);
            }
        }
        return None;
    };
    let supported_kind = DocumentKind::all_with_name(kind.kind_name())
        .find(|kind| kind.api_versions().contains(&version));
    if supported_kind.is_none() {
        let supported_versions: Vec<&str> = DocumentKind::all_with_name(kind.kind_name())
            .flat_map(DocumentKind::api_versions)
            .copied()
            .collect();
        version_field.reject(
            format!("{} is not a supported version of {kind_name}", version_field.quoted_value()),
            format!("use {}", join_with_or(&supported_versions)),
        );
    }
    supported_kind
}

fn read_metadata(kind: DocumentKind, metadata: &Field<'_>) -> Option<ObjectMetadata> {
    let fields = metadata.read_fields(METADATA_FIELDS)?;
    let name = fields.require("name").and_then(|field| match kind {
        DocumentKind::Service => field.read_label(),
        _ => field.read_name(),
    });
    let labels = fields.find("labels").map(Field::read_text_map).unwrap_or_default();
    let namespace = match fields.find("namespace") {
        Some(field) if kind == DocumentKind::MeshConfig => {
            field.reject("a MeshConfig has no namespace", "remove `namespace`");
            Name::new(DEFAULT_NAMESPACE).ok()
        }
        Some(field) => field.read_label(),
        None => Name::new(DEFAULT_NAMESPACE).ok(),
    };
    // The document is rejected without a valid name, but the problems of its `spec` are reported as well.
    let name = name.or_else(|| Name::new("unnamed").ok());
    Some(ObjectMetadata { namespace: namespace?, name: name?, labels })
}

fn find_entry<'a>(node: &'a DocumentNode, key: &str) -> Option<&'a DocumentNode> {
    let NodeValue::Map(map) = &node.value else { return None };
    let entry =
        map.iter().find(|(name, _)| matches!(&name.value, NodeValue::Text(text) if text == key));
    let (_, value) = entry?;
    (!matches!(value.value, NodeValue::Null)).then_some(value)
}

/// The kind of an untyped list, and the suffix of typed list kinds.
const LIST_KIND: &str = "List";
/// The namespace of objects without one.
const DEFAULT_NAMESPACE: &str = "default";
/// Unsupported kinds that resemble a supported kind, but are not a misspelling of it.
const UNRELATED_KINDS: &[&str] = &["UDPRoute"];
/// Maximum length of the kind, namespace or name that identifies a rejected document; longer texts are truncated.
const MAX_IDENTITY_CHARACTERS: usize = 253;
/// The fields of `metadata` in Kubernetes; all but the first three are ignored.
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
