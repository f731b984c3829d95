//! Validation of the listeners of a gateway, including conflicts between them.

use std::collections::BTreeMap;

use leno_model::{GatewayCertificate, HostPattern, Name};

use super::facts::{
    CertificateRef, ClusterFacts, GATEWAY_GROUP, ListenerSpec, first_unknown_field,
};
use crate::source::ObjectId;
use crate::status::StatusCondition;
use crate::words::HEALTH_PORT;

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ListenerProtocol {
    Http,
    Https,
    Passthrough,
    /// TLS that the gateway terminates, with any protocol inside. It is not supported.
    Terminate,
    Tcp,
}

/// A validated listener.
#[derive(Debug)]
pub(super) struct ValidatedListener<'a> {
    pub(super) listener: &'a ListenerSpec,
    pub(super) name: Option<Name>,
    pub(super) speaks: Option<ListenerProtocol>,
    pub(super) hostname: Option<HostPattern>,
    /// The kinds of routes that the listener supports.
    pub(super) kinds: Vec<&'static str>,
    /// The valid certificates.
    pub(super) certificates: Vec<GatewayCertificate>,
    /// The reason that the listener is not accepted.
    pub(super) refusal: Option<ConditionReason>,
    /// The reason for a conflict with another listener.
    pub(super) conflict: Option<ConditionReason>,
    /// The reason that a reference is not resolved.
    pub(super) unresolved: Option<ConditionReason>,
    /// The number of attached routes.
    pub(super) attached: u32,
}

/// The reason and message of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConditionReason {
    pub(super) word: &'static str,
    pub(super) message: String,
}

impl ConditionReason {
    pub(super) fn new(word: &'static str, message: impl Into<String>) -> Self {
        Self { word, message: message.into() }
    }

    /// Converts the reason into a condition with status `False`.
    pub(super) fn to_condition(&self, condition: &'static str) -> StatusCondition {
        StatusCondition {
            word: condition,
            status: "False",
            reason: self.word,
            message: self.message.clone(),
        }
    }
}

impl ValidatedListener<'_> {
    /// Returns true if the proxies serve the listener.
    pub(super) fn is_served(&self) -> bool {
        let has_keys =
            self.speaks != Some(ListenerProtocol::Https) || !self.certificates.is_empty();
        self.refusal.is_none() && self.conflict.is_none() && has_keys
    }

    /// Returns true if the listener is accepted.
    pub(super) fn is_accepted(&self) -> bool {
        self.refusal.is_none() && self.conflict.is_none()
    }
}

/// Validates all listeners of a gateway, each by itself and then against each other.
pub(super) fn validate_listeners<'a>(
    facts: &ClusterFacts,
    id: &ObjectId,
    listeners: &'a [ListenerSpec],
) -> Vec<ValidatedListener<'a>> {
    let mut all: Vec<ValidatedListener<'a>> =
        listeners.iter().map(|listener| validate_listener(facts, id, listener)).collect();
    let mut by_port: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (index, validated) in all.iter().enumerate() {
        if validated.speaks.is_some() {
            by_port.entry(validated.listener.port).or_default().push(index);
        }
    }
    for (port, indexes) in by_port {
        let said = |index: &usize| all.get(*index).map(|it| (it.speaks, it.hostname.clone()));
        let said: Vec<_> = indexes.iter().filter_map(said).collect();
        let mixed = said.windows(2).any(|pair| matches!(pair, [a, b] if a.0 != b.0));
        for (index, own) in indexes.iter().zip(&said) {
            let twice = said.iter().filter(|other| *other == own).count() > 1;
            let Some(validated) = all.get_mut(*index) else { continue };
            validated.conflict = if mixed {
                let message = format!("listeners of port {port} have different protocols");
                Some(ConditionReason::new("ProtocolConflict", message))
            } else if twice {
                let message = format!("another listener of port {port} has the same host name");
                Some(ConditionReason::new("HostnameConflict", message))
            } else {
                None
            };
        }
    }
    all
}

fn validate_listener<'a>(
    facts: &ClusterFacts,
    id: &ObjectId,
    listener: &'a ListenerSpec,
) -> ValidatedListener<'a> {
    let (speaks, mut refusal) = supported_protocol(listener);
    if let Some(field) = unknown_field(listener)
        && refusal.is_none()
    {
        let message = format!("{field} is unknown and would not be enforced: remove it");
        refusal = Some(ConditionReason::new("UnsupportedValue", message));
    }
    if listener.port == HEALTH_PORT && speaks.is_some() {
        let message = format!("port {HEALTH_PORT} is reserved for health checks: use another");
        refusal = Some(ConditionReason::new("PortUnavailable", message));
    }
    let name = Name::new(&listener.name).ok();
    if name.is_none() {
        refusal = Some(ConditionReason::new("UnsupportedValue", "its name is invalid"));
    }
    let written = listener.hostname.as_deref().filter(|text| !text.is_empty());
    // TCP listeners have no host name.
    let written = written.filter(|_| speaks != Some(ListenerProtocol::Tcp));
    let hostname = written.map(str::parse::<HostPattern>).transpose();
    let hostname = hostname.unwrap_or_else(|error| {
        refusal = Some(ConditionReason::new("UnsupportedValue", error.to_string()));
        None
    });
    let (kinds, mut unresolved) = supported_kinds(listener, speaks);
    let mut certificates = Vec::new();
    if speaks == Some(ListenerProtocol::Https) {
        let refs = listener.tls.iter().flat_map(|tls| &tls.certificate_refs);
        for certificate in refs {
            match find_certificate(facts, id, certificate) {
                Ok(found) => certificates.push(found),
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
        speaks,
        hostname,
        kinds,
        certificates,
        refusal,
        conflict: None,
        unresolved,
        attached: 0,
    }
}

/// Returns an unknown field of the listener: its author may rely on it, and the gateway would not enforce it.
fn unknown_field(listener: &ListenerSpec) -> Option<String> {
    let tls = listener.tls.as_ref();
    let option = tls.and_then(|tls| tls.options.keys().next());
    let routes = &listener.allowed_routes;
    let parts = [
        ("", Some(&listener.rest)),
        ("tls.", tls.map(|tls| &tls.rest)),
        ("allowedRoutes.", Some(&routes.rest)),
        ("allowedRoutes.namespaces.", Some(&routes.namespaces.rest)),
    ];
    let mut fields =
        parts.into_iter().filter_map(|(at, rest)| Some((at, first_unknown_field(rest?)?)));
    let option = option.map(|option| format!("tls.options.{option}"));
    option.or_else(|| fields.next().map(|(at, field)| format!("{at}{field}")))
}

fn supported_protocol(
    listener: &ListenerSpec,
) -> (Option<ListenerProtocol>, Option<ConditionReason>) {
    let tls = listener.tls.as_ref();
    let mode = tls.and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
    let unsupported = |message: String| Some(ConditionReason::new("UnsupportedValue", message));
    match (listener.protocol.as_str(), mode) {
        ("HTTP", _) => (Some(ListenerProtocol::Http), None),
        ("TCP", _) => (Some(ListenerProtocol::Tcp), None),
        ("HTTPS", "Terminate") => (Some(ListenerProtocol::Https), None),
        ("HTTPS", mode) => (
            Some(ListenerProtocol::Https),
            unsupported(format!("tls.mode {mode} is not supported for HTTPS")),
        ),
        ("TLS", "Passthrough") => (Some(ListenerProtocol::Passthrough), None),
        ("TLS", mode) => {
            let message = format!("tls.mode {mode} is not supported for TLS: use Passthrough");
            (Some(ListenerProtocol::Terminate), unsupported(message))
        }
        (protocol, _) => {
            let message = format!("{protocol} is not supported: use HTTP, HTTPS, TLS or TCP");
            (None, Some(ConditionReason::new("UnsupportedProtocol", message)))
        }
    }
}

/// Returns the route kinds that the listener supports: the allowed kinds that fit its protocol.
fn supported_kinds(
    listener: &ListenerSpec,
    speaks: Option<ListenerProtocol>,
) -> (Vec<&'static str>, Option<ConditionReason>) {
    let fitting: &[&'static str] = match speaks {
        Some(ListenerProtocol::Http | ListenerProtocol::Https) => &["HTTPRoute", "GRPCRoute"],
        Some(ListenerProtocol::Passthrough | ListenerProtocol::Terminate) => &["TLSRoute"],
        Some(ListenerProtocol::Tcp) => &["TCPRoute"],
        None => &[],
    };
    let allowed = &listener.allowed_routes.kinds;
    if allowed.is_empty() {
        return (fitting.to_vec(), None);
    }
    let (mut kinds, mut strange) = (Vec::new(), None);
    for kind in allowed {
        let group = kind.group.as_deref().unwrap_or(GATEWAY_GROUP);
        let known = fitting.iter().find(|fits| group == GATEWAY_GROUP && **fits == kind.kind);
        match known {
            Some(known) if !kinds.contains(known) => kinds.push(*known),
            Some(_) => {}
            None => {
                let message = format!(
                    "routes of the kind {} of {group} are not supported by the listener's protocol",
                    kind.kind
                );
                strange = Some(ConditionReason::new("InvalidRouteKinds", message));
            }
        }
    }
    (kinds, strange)
}

fn find_certificate(
    facts: &ClusterFacts,
    id: &ObjectId,
    wanted: &CertificateRef,
) -> Result<GatewayCertificate, ConditionReason> {
    let invalid = |message: String| ConditionReason::new("InvalidCertificateRef", message);
    let secret =
        secret_of(id, wanted).ok_or_else(|| invalid(format!("{} is not a Secret", wanted.name)))?;
    let ObjectId { namespace, name } = &secret;
    if !facts.permits_reference(("Gateway", &id.namespace), ("Secret", &secret)) {
        let message = format!(
            "no ReferenceGrant in {namespace} permits the Secret {name} to Gateways of {}",
            id.namespace
        );
        return Err(ConditionReason::new("RefNotPermitted", message));
    }
    match facts.certificates.get(&secret) {
        Some(Ok(certificate)) => Ok(certificate.clone()),
        Some(Err(cause)) => Err(invalid(format!("the Secret {namespace}/{name}: {cause}"))),
        None => Err(invalid(format!(
            "there is no readable Secret {namespace}/{name} of type kubernetes.io/tls"
        ))),
    }
}

/// Returns the Secret that a reference names.
pub(super) fn secret_of(gateway: &ObjectId, wanted: &CertificateRef) -> Option<ObjectId> {
    let is_secret = matches!(wanted.group.as_str(), "" | "core")
        && wanted.kind.as_deref().is_none_or(|kind| kind == "Secret");
    is_secret.then(|| ObjectId {
        namespace: wanted.namespace.clone().unwrap_or_else(|| gateway.namespace.clone()),
        name: wanted.name.clone(),
    })
}
