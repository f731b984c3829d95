//! Converts the configuration of a service for one client, without its endpoints, to and from the wire.

use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    BackendEdits, ClientAuthorization, HostPattern, PortConfig, RequestMatch, RouteKind, RouteRule,
    ServiceConfig, ServiceName, TcpRule, TlsRule, TrafficPolicy, WeightedBackend,
};

use super::action::{header_edits_to_wire, parse_header_edits, rewrite_from_wire, rewrite_to_wire};
use super::field::{
    InvalidField, collect_by_port, convert_each, parse_name, parse_optional_name, parse_port,
    parse_protocol, protocol_to_wire, to_nanoseconds,
};
use super::{action, hedging, request, tag, traffic_policy};
use crate::proto;

pub(super) fn to_wire(service: &ServiceConfig) -> proto::Service {
    proto::Service {
        denied: service.client_authorization == ClientAuthorization::Denied,
        ports: service.ports.iter().map(|(number, port)| port_to_wire(*number, port)).collect(),
        awaited: service.waits_for_endpoint,
    }
}

/// Parses a service. A service that the client may not call has no ports.
pub(super) fn from_wire(
    name: &ServiceName,
    wire: proto::Service,
) -> Result<ServiceConfig, InvalidField> {
    let ports = collect_by_port("ports", convert_each("ports", wire.ports, port_from_wire)?)?;
    let client_authorization = match wire.denied {
        true if ports.is_empty() => ClientAuthorization::Denied,
        true => {
            return Err(InvalidField::new("ports", "must be empty when the service is denied"));
        }
        false => ClientAuthorization::Allowed,
    };
    Ok(ServiceConfig {
        name: name.clone(),
        client_authorization,
        ports,
        waits_for_endpoint: wire.awaited,
    })
}

fn port_to_wire(number: u16, port: &PortConfig) -> proto::ServicePort {
    proto::ServicePort {
        port: number.into(),
        name: port.name.as_ref().map(ToString::to_string),
        protocol: protocol_to_wire(port.protocol),
        routed: port.has_attached_routes,
        rules: port.rules.iter().map(rule_to_wire).collect(),
        tls_rules: port.tls_rules.iter().map(tls_rule_to_wire).collect(),
        traffic_policy: traffic_policy::to_wire(&port.traffic_policy),
        hedging: port.traffic_policy.hedging.as_ref().map(hedging::to_wire),
        tags: port.tags.as_deref().map(tag::to_wire),
        tcp_rule: port.tcp_rule.as_ref().map(tcp_rule_to_wire),
    }
}

fn port_from_wire(wire: proto::ServicePort) -> Result<(u16, PortConfig), InvalidField> {
    let traffic_policy = traffic_policy::from_wire(wire.traffic_policy);
    let hedging = wire.hedging.map(hedging::from_wire).transpose();
    let traffic_policy = TrafficPolicy {
        hedging: hedging.map_err(|invalid| invalid.with_parent("hedging"))?,
        ..traffic_policy.map_err(|invalid| invalid.with_parent("traffic_policy"))?
    };
    let port = PortConfig {
        name: parse_optional_name("name", wire.name.as_deref())?,
        protocol: parse_protocol("protocol", wire.protocol)?,
        has_attached_routes: wire.routed,
        rules: convert_each("rules", wire.rules, rule_from_wire)?,
        endpoints: Vec::new(),
        tls_rules: convert_each("tls_rules", wire.tls_rules, tls_rule_from_wire)?,
        traffic_policy,
        tags: wire
            .tags
            .map(|tags| tag::from_wire(tags).map(Arc::new))
            .transpose()
            .map_err(|invalid| invalid.with_parent("tags"))?,
        tcp_rule: wire
            .tcp_rule
            .map(tcp_rule_from_wire)
            .transpose()
            .map_err(|invalid| invalid.with_parent("tcp_rule"))?,
    };
    Ok((parse_port("port", wire.port)?, port))
}

pub(super) fn rule_to_wire(rule: &RouteRule) -> proto::Rule {
    proto::Rule {
        route: rule.route.to_string(),
        matches: rule.matches.iter().map(request::to_wire).collect(),
        backends: rule.backends.iter().map(backend_to_wire).collect(),
        timeout_nanoseconds: rule.request_timeout.map(to_nanoseconds),
        actions: action::to_wire(&rule.actions),
        grpc: rule.kind == RouteKind::Grpc,
        object: object_to_wire(rule.kind).into(),
    }
}

/// Parses a rule with at least one match.
pub(super) fn rule_from_wire(wire: proto::Rule) -> Result<RouteRule, InvalidField> {
    if wire.matches.is_empty() {
        return Err(InvalidField::new("matches", "is empty: at least one match is needed"));
    }
    let matches = convert_each("matches", wire.matches, request::from_wire)?;
    let actions = wire.actions.map(|wire| action::from_wire(wire, &matches)).transpose();
    let backends =
        convert_each("backends", wire.backends, |wire| backend_from_wire(wire, &matches))?;
    Ok(RouteRule {
        route: parse_name("route", &wire.route)?,
        matches,
        backends,
        request_timeout: wire.timeout_nanoseconds.map(Duration::from_nanos),
        actions: actions.map_err(|invalid| invalid.with_parent("actions"))?.unwrap_or_default(),
        kind: kind_from_wire(wire.grpc, wire.object)?,
    })
}

fn object_to_wire(kind: RouteKind) -> proto::RuleObject {
    match kind {
        // The field `grpc` distinguishes an HTTPRoute from a GRPCRoute. Rules of a TLSRoute have their own message.
        RouteKind::Http | RouteKind::Grpc | RouteKind::Tls => proto::RuleObject::Unspecified,
        RouteKind::Split => proto::RuleObject::TrafficSplit,
        RouteKind::Tcp => proto::RuleObject::TcpRoute,
    }
}

/// Parses the kind of a route. A TLSRoute has a message of its own.
fn kind_from_wire(grpc: bool, object: i32) -> Result<RouteKind, InvalidField> {
    match (grpc, proto::RuleObject::try_from(object)) {
        (false, Ok(proto::RuleObject::Unspecified)) => Ok(RouteKind::Http),
        (true, Ok(proto::RuleObject::Unspecified)) => Ok(RouteKind::Grpc),
        (false, Ok(proto::RuleObject::TrafficSplit)) => Ok(RouteKind::Split),
        (false, Ok(proto::RuleObject::TcpRoute)) => Ok(RouteKind::Tcp),
        (true, Ok(_)) => Err(InvalidField::new("object", "must be absent for a GRPCRoute")),
        (_, Err(_)) => Err(InvalidField::new("object", "is unknown to this version")),
    }
}

pub(super) fn tcp_rule_to_wire(rule: &TcpRule) -> proto::TcpRule {
    proto::TcpRule {
        route: rule.route.to_string(),
        object: object_to_wire(rule.kind).into(),
        backends: rule.backends.iter().map(backend_to_wire).collect(),
        ungranted_weight: rule.ungranted_weight,
    }
}

pub(super) fn tcp_rule_from_wire(wire: proto::TcpRule) -> Result<TcpRule, InvalidField> {
    let kind = kind_from_wire(false, wire.object)?;
    if kind == RouteKind::Http {
        return Err(InvalidField::new("object", "is missing"));
    }
    Ok(TcpRule {
        route: parse_name("route", &wire.route)?,
        kind,
        backends: convert_each("backends", wire.backends, plain_backend_from_wire)?,
        ungranted_weight: wire.ungranted_weight,
    })
}

pub(super) fn tls_rule_to_wire(rule: &TlsRule) -> proto::TlsRule {
    proto::TlsRule {
        route: rule.route.to_string(),
        hostnames: rule.hostnames.iter().map(HostPattern::to_string).collect(),
        backends: rule.backends.iter().map(backend_to_wire).collect(),
        ungranted_weight: rule.ungranted_weight,
    }
}

pub(super) fn tls_rule_from_wire(wire: proto::TlsRule) -> Result<TlsRule, InvalidField> {
    if wire.hostnames.is_empty() {
        return Err(InvalidField::new("hostnames", "is empty: at least one name is needed"));
    }
    Ok(TlsRule {
        route: parse_name("route", &wire.route)?,
        hostnames: convert_each("hostnames", wire.hostnames, |text| parse_name("", &text))?,
        backends: convert_each("backends", wire.backends, plain_backend_from_wire)?,
        ungranted_weight: wire.ungranted_weight,
    })
}

pub(super) fn backend_to_wire(backend: &WeightedBackend) -> proto::Backend {
    proto::Backend {
        service: backend.service.to_string(),
        port: backend.port.into(),
        weight: backend.weight,
        request_headers: backend
            .edits
            .as_ref()
            .and_then(|edits| header_edits_to_wire(&edits.request_headers)),
        response_headers: backend
            .edits
            .as_ref()
            .and_then(|edits| header_edits_to_wire(&edits.response_headers)),
        rewrite: backend
            .edits
            .as_ref()
            .and_then(|edits| edits.rewrite.as_ref().map(rewrite_to_wire)),
    }
}

/// Parses a backend of connections or mirrors, which has no edits.
pub(super) fn plain_backend_from_wire(
    wire: proto::Backend,
) -> Result<WeightedBackend, InvalidField> {
    let backend = backend_from_wire(wire, &[])?;
    match backend.edits {
        None => Ok(backend),
        Some(_) => Err(InvalidField::new("request_headers", "must be absent here")),
    }
}

/// Parses a backend of a rule with these matches, which determine if a path prefix can be replaced.
fn backend_from_wire(
    wire: proto::Backend,
    matches: &[RequestMatch],
) -> Result<WeightedBackend, InvalidField> {
    let rewrite = wire.rewrite.map(|wire| rewrite_from_wire(wire, matches)).transpose();
    let edits = BackendEdits {
        request_headers: parse_header_edits("request_headers", wire.request_headers)?,
        response_headers: parse_header_edits("response_headers", wire.response_headers)?,
        rewrite: rewrite.map_err(|invalid| invalid.with_parent("rewrite"))?,
    };
    Ok(WeightedBackend {
        service: parse_name("service", &wire.service)?,
        port: parse_port("port", wire.port)?,
        weight: wire.weight,
        edits: (edits != BackendEdits::default()).then(|| Box::new(edits)),
    })
}
