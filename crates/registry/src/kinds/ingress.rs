//! Reads the `IngressBackend` and `AccessControl` kinds of OSM, osm-edge and FSM: ports that clients outside the mesh may
//! use.

use leno_model::{
    ClientCertificateMode, IngressBackend, IngressKind, IngressName, IngressPolicy,
    IngressProtocol, IngressSource, IpRange, Name, RouteGroupName, ServiceName,
};

use super::ObjectMetadata;
use crate::field::{Field, MapFields};

/// Reads the `spec` of an `IngressBackend` or `AccessControl`.
pub(super) fn read(
    kind: IngressKind,
    metadata: ObjectMetadata,
    spec: &Field<'_>,
) -> Option<IngressPolicy> {
    let fields = spec.read_fields(&["backends", "sources", "matches"])?;
    let name = IngressName { namespace: metadata.namespace, kind, name: metadata.name };
    let backends = read_backends(kind, &fields);
    let sources = read_sources(&fields);
    let groups = read_groups(&fields, &name.namespace);
    let (backends, sources) = (backends?, sources?);
    for (element, backend) in &backends {
        reject_unusable_sources(element, &backend.protocol, &sources);
    }
    let backends = backends.into_iter().map(|(_, backend)| backend).collect();
    Some(IngressPolicy { name, backends, sources, groups: groups?, created: 0 })
}

/// Reads the `backends`, each with its field, at which later problems are reported.
fn read_backends<'a>(
    kind: IngressKind,
    fields: &MapFields<'a>,
) -> Option<Vec<(Field<'a>, IngressBackend)>> {
    if kind == IngressKind::AccessControl && fields.find("backends").is_none() {
        fields.map_field().reject(
            "has no `backends`, which FSM interprets as every port of the namespace",
            "list the services and ports to open",
        );
        return None;
    }
    let field = fields.require("backends")?;
    let mut backends: Vec<(Field<'a>, IngressBackend)> = Vec::new();
    let elements = read_non_empty_list(field, "name a service and a port of its workloads")?;
    for element in elements {
        let Some(backend) = read_backend(kind, &element) else { continue };
        let service_and_port = |backend: &IngressBackend| (backend.service.clone(), backend.port);
        if backends
            .iter()
            .any(|(_, existing)| service_and_port(existing) == service_and_port(&backend))
        {
            element.reject("is listed twice", "remove one of the two");
        }
        backends.push((element, backend));
    }
    Some(backends)
}

/// Reads one of the `backends`: a service, and a port of its workloads with the protocol of external clients.
fn read_backend(kind: IngressKind, element: &Field<'_>) -> Option<IngressBackend> {
    let fields = element.read_fields(&["name", "port", "tls"])?;
    let service = fields.require("name").and_then(Field::read_label);
    let port_fields = fields.require("port")?.read_fields(&["number", "protocol"])?;
    let port = port_fields.require("number").and_then(Field::read_port);
    let protocol = port_fields.require("protocol")?;
    let ingress_protocol = match kind {
        IngressKind::IngressBackend => protocol.read_choice(&PROTOCOLS[..3]),
        IngressKind::AccessControl => protocol.read_choice(PROTOCOLS),
    };
    let ingress_protocol = apply_tls_settings(&fields, ingress_protocol?);
    Some(IngressBackend { service: service?, port: port?, protocol: ingress_protocol? })
}

/// Adds the `tls` settings, which apply only to HTTPS. With other protocols, only default values are accepted.
fn apply_tls_settings(
    fields: &MapFields<'_>,
    protocol: IngressProtocol,
) -> Option<IngressProtocol> {
    let (mut client_certificate, mut server_names) = (ClientCertificateMode::Required, Vec::new());
    if let Some(field) = fields.find("tls") {
        let tls_fields = field.read_fields(&["skipClientCertValidation", "sniHosts"])?;
        if let Some(skip_field) = tls_fields.find("skipClientCertValidation")
            && skip_field.read_flag()?
        {
            client_certificate = ClientCertificateMode::Skipped;
        }
        if let Some(field) = tls_fields.find("sniHosts") {
            server_names = field.read_each(MAX_LIST, |name| Some(name.read_name()?.to_string()));
        }
        if protocol.is_plaintext()
            && (client_certificate == ClientCertificateMode::Skipped || !server_names.is_empty())
        {
            field.reject(
                "has TLS settings, but the port is opened without TLS",
                "remove it, or use `protocol: https`",
            );
            return None;
        }
    }
    match protocol {
        IngressProtocol::Https { .. } => {
            Some(IngressProtocol::Https { client_certificate, server_names })
        }
        IngressProtocol::Http | IngressProtocol::Grpc | IngressProtocol::Tcp => Some(protocol),
    }
}

/// Rejects a backend that no client can use, and sources that the protocol of the backend's port cannot verify.
fn reject_unusable_sources(
    element: &Field<'_>,
    protocol: &IngressProtocol,
    sources: &[IngressSource],
) {
    let is_address_source = |source: &&IngressSource| {
        matches!(source, IngressSource::Service(_) | IngressSource::Range(_))
    };
    let has_principal = sources.iter().any(|source| !is_address_source(&source));
    let has_address_source = sources.iter().any(|source| is_address_source(&source));
    match protocol {
        IngressProtocol::Http | IngressProtocol::Grpc | IngressProtocol::Tcp
            if !has_address_source =>
        {
            element.reject(
                "allows no client: clients without TLS are identified by address only",
                "add a source of the kind Service or IPRange, or use `protocol: https`",
            )
        }
        IngressProtocol::Https { client_certificate: ClientCertificateMode::Required, .. }
            if !has_principal =>
        {
            element.reject(
                "requires client certificates, but no source names a principal",
                "add a source of the kind AuthenticatedPrincipal, or set \
             `tls.skipClientCertValidation` to true",
            )
        }
        IngressProtocol::Https { client_certificate: ClientCertificateMode::Skipped, .. }
            if has_principal =>
        {
            element.reject(
                "skips validation of client certificates, but a source requires it",
                "remove the AuthenticatedPrincipal, or `tls.skipClientCertValidation`",
            )
        }
        IngressProtocol::Http
        | IngressProtocol::Grpc
        | IngressProtocol::Tcp
        | IngressProtocol::Https { .. } => {}
    }
}

/// Reads the `sources`: the clients that may use the backends.
fn read_sources(fields: &MapFields<'_>) -> Option<Vec<IngressSource>> {
    let field = fields.require("sources")?;
    let mut sources = Vec::new();
    let elements = read_non_empty_list(field, "list the allowed clients")?;
    let element_count = elements.len();
    for element in elements {
        let Some(source) = read_source(&element) else { continue };
        if sources.contains(&source) {
            element.reject("is listed twice", "remove one of the two");
        }
        sources.push(source);
    }
    // If a source is invalid, there is no list: a shorter list would cause misleading problems at the backends.
    (sources.len() == element_count).then_some(sources)
}

/// Reads one of the `sources`: a service, a range of addresses, or the identity of a client.
fn read_source(element: &Field<'_>) -> Option<IngressSource> {
    let fields = element.read_fields(&["kind", "name", "namespace"])?;
    let kinds = [
        ("Service", SourceKind::Service),
        ("IPRange", SourceKind::Range),
        ("AuthenticatedPrincipal", SourceKind::Principal),
    ];
    let kind = fields.require("kind").and_then(|field| field.read_choice(&kinds));
    let name = fields.require("name");
    let (kind, name) = (kind?, name?);
    if kind == SourceKind::Service {
        let namespace = fields.require("namespace").and_then(Field::read_label);
        return Some(IngressSource::Service(ServiceName {
            name: name.read_label()?,
            namespace: namespace?,
        }));
    }
    fields.reject_unsupported(
        "namespace",
        "is not supported for sources of this kind",
        "remove it",
    );
    if kind == SourceKind::Range {
        let range = name.read_with(
            |text| text.parse::<IpRange>().ok(),
            "a range of addresses",
            "use a CIDR range, such as 10.1.0.0/16 or 10.1.2.3/32",
        );
        return range.map(IngressSource::Range);
    }
    name.read_with(
        parse_principal,
        "a mesh identity or the name of an external client",
        "use ACCOUNT.NAMESPACE.TRUST-DOMAIN, such as ingress-nginx.ingress-nginx.cluster.local, or \
         a name from the `subjectAltNames` of an AccessCert",
    )
}

/// The kind of an ingress source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SourceKind {
    Service,
    Range,
    Principal,
}

/// Parses a SPIFFE id, or a certificate name in the form of OSM and FSM. The name may be that of an account or that of an
/// external client: the mesh's trust domain, which decides this, is not known to the reader of one document.
fn parse_principal(text: &str) -> Option<IngressSource> {
    match text.parse() {
        Ok(id) => Some(IngressSource::Principal(id)),
        Err(_) if !text.contains('.') => None,
        Err(_) => Name::new(text).ok().map(IngressSource::Named),
    }
}

/// Reads the HTTP route groups in `matches`; empty if the field is absent.
pub(super) fn read_groups(fields: &MapFields<'_>, namespace: &Name) -> Option<Vec<RouteGroupName>> {
    let Some(field) = fields.find("matches") else { return Some(Vec::new()) };
    let mut groups = Vec::new();
    for element in
        read_non_empty_list(field, "name an HTTPRouteGroup, or omit it to allow all requests")?
    {
        let Some(group) = read_group(&element, namespace) else { continue };
        if groups.contains(&group) {
            element.reject("is listed twice", "remove one of the two");
        }
        groups.push(group);
    }
    Some(groups)
}

/// Reads one of the `matches`: a reference to an `HTTPRouteGroup` in the policy's namespace.
fn read_group(element: &Field<'_>, namespace: &Name) -> Option<RouteGroupName> {
    let fields = element.read_fields(&["apiGroup", "kind", "name"])?;
    let kind = fields.require("kind")?;
    if kind.read_text()? == "UpstreamTrafficSetting" {
        kind.reject(
            "\"UpstreamTrafficSetting\" is not supported here",
            "remove it: such a setting applies to services of the mesh",
        );
        return None;
    }
    kind.read_choice(&[("HTTPRouteGroup", ())])?;
    if let Some(group) = fields.find("apiGroup") {
        group.read_choice(&[("specs.smi-spec.io/v1alpha4", ()), ("specs.smi-spec.io", ())])?;
    }
    let name = fields.require("name").and_then(Field::read_name)?;
    Some(RouteGroupName { namespace: namespace.clone(), name })
}

/// Reads the elements of a list; rejects an empty list with `hint`.
pub(super) fn read_non_empty_list<'a>(field: &Field<'a>, hint: &str) -> Option<Vec<Field<'a>>> {
    let elements = field.read_list(MAX_LIST)?;
    if elements.is_empty() {
        field.reject("is empty", hint);
        return None;
    }
    Some(elements)
}

/// The protocols by name; the first three are those of an `IngressBackend`.
const PROTOCOLS: &[(&str, IngressProtocol)] = &[
    ("http", IngressProtocol::Http),
    (
        "https",
        IngressProtocol::Https {
            client_certificate: ClientCertificateMode::Required,
            server_names: Vec::new(),
        },
    ),
    ("grpc", IngressProtocol::Grpc),
    ("tcp", IngressProtocol::Tcp),
];
/// The label of workloads in their node's network, where other processes share their addresses.
pub const NODE_NETWORK_LABEL: &str = "leno.dev/node-network";
/// The label of unmeshed endpoints of a service without selector. Sidecars balance over them until the first meshed
/// endpoint of the service is known.
pub const JOINING_LABEL: &str = "leno.dev/joining";
/// Maximum number of elements in a list: backends, sources, server names or groups.
pub(super) const MAX_LIST: usize = 256;
