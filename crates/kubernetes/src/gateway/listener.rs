//! Validates the listeners of a gateway, each by itself and against the other listeners of its port.

use std::collections::BTreeMap;

use leno_model::{GatewayCertificate, HostPattern, Name};

use super::inputs::{
    CertificateRef, GATEWAY_GROUP, GatewayInputs, ListenerSpec, first_unknown_field,
};
use crate::source::ObjectId;
use crate::status::StatusCondition;
use crate::well_known::HEALTH_PORT;

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ListenerProtocol {
    Http,
    Https,
    /// TLS that the gateway routes by SNI and does not terminate.
    Passthrough,
    /// TLS that the gateway terminates, with any protocol inside. It is not supported.
    Terminate,
    Tcp,
}

/// A validated listener.
#[derive(Debug)]
pub(super) struct ValidatedListener<'a> {
    pub(super) listener: &'a ListenerSpec,
    /// The name; `None` if it is invalid.
    pub(super) name: Option<Name>,
    /// The protocol; `None` if it is unknown. A rejected listener may have a protocol.
    pub(super) protocol: Option<ListenerProtocol>,
    /// The host names that the listener serves; `None` for all of them, and for TCP.
    pub(super) hostname: Option<HostPattern>,
    /// The route kinds that the listener supports.
    pub(super) kinds: Vec<&'static str>,
    /// The valid certificates.
    pub(super) certificates: Vec<GatewayCertificate>,
    /// The reason that the listener by itself is not valid, if it is not.
    pub(super) rejection: Option<ConditionReason>,
    /// The reason for a conflict with another listener, if there is one.
    pub(super) conflict: Option<ConditionReason>,
    /// The reason that a reference is not resolved, if one is not.
    pub(super) unresolved: Option<ConditionReason>,
    /// The number of attached routes.
    pub(super) attached_route_count: u32,
}

/// The reason and message of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConditionReason {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl ConditionReason {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// Converts the reason into a condition with status `False`.
    pub(super) fn to_condition(&self, condition: &'static str) -> StatusCondition {
        StatusCondition {
            name: condition,
            status: "False",
            reason: self.reason,
            message: self.message.clone(),
        }
    }
}

impl ValidatedListener<'_> {
    /// Returns true if the proxies serve the listener: it is accepted, and has a certificate if it is HTTPS.
    pub(super) fn is_served(&self) -> bool {
        let has_required_certificate =
            self.protocol != Some(ListenerProtocol::Https) || !self.certificates.is_empty();
        self.rejection.is_none() && self.conflict.is_none() && has_required_certificate
    }

    /// Returns true if the listener is valid and does not conflict with another listener.
    pub(super) fn is_accepted(&self) -> bool {
        self.rejection.is_none() && self.conflict.is_none()
    }
}

/// Validates all listeners of a gateway, each by itself and then against each other.
pub(super) fn validate_listeners<'a>(
    inputs: &GatewayInputs,
    id: &ObjectId,
    listeners: &'a [ListenerSpec],
) -> Vec<ValidatedListener<'a>> {
    let mut validated_listeners: Vec<ValidatedListener<'a>> =
        listeners.iter().map(|listener| validate_listener(inputs, id, listener)).collect();
    let mut listeners_by_port: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (index, validated) in validated_listeners.iter().enumerate() {
        if validated.protocol.is_some() {
            listeners_by_port.entry(validated.listener.port).or_default().push(index);
        }
    }
    for (port, indexes) in listeners_by_port {
        let protocol_and_host = |index: &usize| {
            validated_listeners
                .get(*index)
                .map(|validated| (validated.protocol, validated.hostname.clone()))
        };
        let protocols_and_hosts: Vec<_> = indexes.iter().filter_map(protocol_and_host).collect();
        // Adjacent pairs suffice: if all of them are equal, all protocols are equal.
        let has_mixed_protocols = protocols_and_hosts
            .windows(2)
            .any(|pair| matches!(pair, [(left, _), (right, _)] if left != right));
        for (index, own_protocol_and_host) in indexes.iter().zip(&protocols_and_hosts) {
            let is_duplicate =
                protocols_and_hosts.iter().filter(|other| *other == own_protocol_and_host).count()
                    > 1;
            let Some(validated) = validated_listeners.get_mut(*index) else { continue };
            validated.conflict = if has_mixed_protocols {
                let message = format!("listeners of port {port} have different protocols");
                Some(ConditionReason::new("ProtocolConflict", message))
            } else if is_duplicate {
                let message = format!("another listener of port {port} has the same host name");
                Some(ConditionReason::new("HostnameConflict", message))
            } else {
                None
            };
        }
    }
    validated_listeners
}

/// Validates one listener by itself: protocol, unknown fields, port, name, host name, route kinds and
/// certificates. Reports one reason for rejection, even if several checks fail.
fn validate_listener<'a>(
    inputs: &GatewayInputs,
    id: &ObjectId,
    listener: &'a ListenerSpec,
) -> ValidatedListener<'a> {
    let (protocol, mut rejection) = supported_protocol(listener);
    if let Some(field) = unknown_field(listener)
        && rejection.is_none()
    {
        let message = format!("{field} is unknown and would not be enforced; remove it");
        rejection = Some(ConditionReason::new("UnsupportedValue", message));
    }
    if listener.port == HEALTH_PORT && protocol.is_some() {
        let message = format!("port {HEALTH_PORT} is reserved for health checks: use another");
        rejection = Some(ConditionReason::new("PortUnavailable", message));
    }
    let name = Name::new(&listener.name).ok();
    if name.is_none() {
        rejection = Some(ConditionReason::new("UnsupportedValue", "its name is invalid"));
    }
    let hostname_text = listener.hostname.as_deref().filter(|text| !text.is_empty());
    // TCP listeners have no host name.
    let hostname_text = hostname_text.filter(|_| protocol != Some(ListenerProtocol::Tcp));
    let parsed_hostname = hostname_text.map(str::parse::<HostPattern>).transpose();
    let hostname = parsed_hostname.unwrap_or_else(|error| {
        rejection = Some(ConditionReason::new("UnsupportedValue", error.to_string()));
        None
    });
    let (kinds, mut unresolved) = supported_kinds(listener, protocol);
    let mut certificates = Vec::new();
    if protocol == Some(ListenerProtocol::Https) {
        let references = listener.tls.iter().flat_map(|tls| &tls.certificate_refs);
        for reference in references {
            match find_certificate(inputs, id, reference) {
                Ok(certificate) => certificates.push(certificate),
                // The first reason is reported.
                Err(reason) => unresolved = Some(unresolved.unwrap_or(reason)),
            }
        }
        if certificates.is_empty() && unresolved.is_none() {
            let message = "it references no certificate: add tls.certificateRefs";
            unresolved = Some(ConditionReason::new("InvalidCertificateRef", message));
        }
    }
    ValidatedListener {
        listener,
        name,
        protocol,
        hostname,
        kinds,
        certificates,
        rejection,
        conflict: None,
        unresolved,
        attached_route_count: 0,
    }
}

/// Returns the path of an unknown field or TLS option of the listener, if it has any. Its author may rely on the
/// field, but the gateway would not enforce it.
fn unknown_field(listener: &ListenerSpec) -> Option<String> {
    let tls = listener.tls.as_ref();
    let option_key = tls.and_then(|tls| tls.options.keys().next());
    let routes = &listener.allowed_routes;
    let unknown_field_maps = [
        ("", Some(&listener.unknown_fields)),
        ("tls.", tls.map(|tls| &tls.unknown_fields)),
        ("allowedRoutes.", Some(&routes.unknown_fields)),
        ("allowedRoutes.namespaces.", Some(&routes.namespaces.unknown_fields)),
    ];
    let mut fields = unknown_field_maps
        .into_iter()
        .filter_map(|(path, fields)| Some((path, first_unknown_field(fields?)?)));
    let option_path = option_key.map(|key| format!("tls.options.{key}"));
    option_path.or_else(|| fields.next().map(|(path, field)| format!("{path}{field}")))
}

/// Returns the protocol of the listener, or `None` if it is unknown, and the reason that the listener is not supported,
/// if it is not.
fn supported_protocol(
    listener: &ListenerSpec,
) -> (Option<ListenerProtocol>, Option<ConditionReason>) {
    let tls = listener.tls.as_ref();
    let mode = tls.and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
    let unsupported_value =
        |message: String| Some(ConditionReason::new("UnsupportedValue", message));
    match (listener.protocol.as_str(), mode) {
        ("HTTP", _) => (Some(ListenerProtocol::Http), None),
        ("TCP", _) => (Some(ListenerProtocol::Tcp), None),
        ("HTTPS", "Terminate") => (Some(ListenerProtocol::Https), None),
        ("HTTPS", mode) => (
            Some(ListenerProtocol::Https),
            unsupported_value(format!("tls.mode {mode} is not supported for HTTPS")),
        ),
        ("TLS", "Passthrough") => (Some(ListenerProtocol::Passthrough), None),
        ("TLS", mode) => {
            let message = format!("tls.mode {mode} is not supported for TLS: use Passthrough");
            (Some(ListenerProtocol::Terminate), unsupported_value(message))
        }
        (protocol, _) => {
            let message = format!("{protocol} is not supported: use HTTP, HTTPS, TLS or TCP");
            (None, Some(ConditionReason::new("UnsupportedProtocol", message)))
        }
    }
}

/// Returns the route kinds that the listener supports (the allowed kinds that match its protocol), and the
/// reason if another kind is allowed.
fn supported_kinds(
    listener: &ListenerSpec,
    protocol: Option<ListenerProtocol>,
) -> (Vec<&'static str>, Option<ConditionReason>) {
    let protocol_kinds: &[&'static str] = match protocol {
        Some(ListenerProtocol::Http | ListenerProtocol::Https) => &["HTTPRoute", "GRPCRoute"],
        Some(ListenerProtocol::Passthrough | ListenerProtocol::Terminate) => &["TLSRoute"],
        Some(ListenerProtocol::Tcp) => &["TCPRoute"],
        None => &[],
    };
    let allowed_kinds = &listener.allowed_routes.kinds;
    if allowed_kinds.is_empty() {
        return (protocol_kinds.to_vec(), None);
    }
    let (mut kinds, mut unresolved) = (Vec::new(), None);
    for kind in allowed_kinds {
        let group = kind.group.as_deref().unwrap_or(GATEWAY_GROUP);
        let supported_kind = protocol_kinds
            .iter()
            .find(|protocol_kind| group == GATEWAY_GROUP && **protocol_kind == kind.kind);
        match supported_kind {
            Some(supported_kind) if !kinds.contains(supported_kind) => kinds.push(*supported_kind),
            Some(_) => {}
            None => {
                let message = format!(
                    "routes of the kind {} of {group} are not supported by the listener's protocol",
                    kind.kind
                );
                unresolved = Some(ConditionReason::new("InvalidRouteKinds", message));
            }
        }
    }
    (kinds, unresolved)
}

/// Returns the certificate in the Secret that a reference of the gateway `id` names, or the reason that it cannot
/// be used.
fn find_certificate(
    inputs: &GatewayInputs,
    id: &ObjectId,
    reference: &CertificateRef,
) -> Result<GatewayCertificate, ConditionReason> {
    let invalid_reference =
        |message: String| ConditionReason::new("InvalidCertificateRef", message);
    let secret = referenced_secret(id, reference)
        .ok_or_else(|| invalid_reference(format!("{} is not a Secret", reference.name)))?;
    let ObjectId { namespace, name } = &secret;
    if !inputs.permits_reference(("Gateway", &id.namespace), ("Secret", &secret)) {
        let message = format!(
            "no ReferenceGrant in {namespace} permits the Secret {name} to Gateways of {}",
            id.namespace
        );
        return Err(ConditionReason::new("RefNotPermitted", message));
    }
    match inputs.certificates.get(&secret) {
        Some(Ok(certificate)) => Ok(certificate.clone()),
        Some(Err(reason)) => {
            Err(invalid_reference(format!("the Secret {namespace}/{name}: {reason}")))
        }
        None => Err(invalid_reference(format!(
            "there is no readable Secret {namespace}/{name} of type kubernetes.io/tls"
        ))),
    }
}

/// Returns the Secret that a reference names; `None` if it names an object of another kind.
pub(super) fn referenced_secret(
    gateway: &ObjectId,
    reference: &CertificateRef,
) -> Option<ObjectId> {
    let is_secret = matches!(reference.group.as_str(), "" | "core")
        && reference.kind.as_deref().is_none_or(|kind| kind == "Secret");
    is_secret.then(|| ObjectId {
        namespace: reference.namespace.clone().unwrap_or_else(|| gateway.namespace.clone()),
        name: reference.name.clone(),
    })
}
