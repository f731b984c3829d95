//! A service as one client sees it, as it travels: all of it but its endpoints.

use std::sync::Arc;
use std::time::Duration;

use leno_model::{PortView, Reach, RouteRule, ServiceName, ServiceView, WeightedBackend};

use super::field::{
    Invalid, by_port, each, optional_name, parsed, port, protocol, protocol_to_wire,
};
use super::{request, tag};
use crate::proto;

pub(super) fn to_wire(view: &ServiceView) -> proto::Service {
    proto::Service {
        denied: view.reach == Reach::Denied,
        ports: view.ports.iter().map(|(number, port)| port_to_wire(*number, port)).collect(),
    }
}

pub(super) fn from_wire(name: &ServiceName, wire: proto::Service) -> Result<ServiceView, Invalid> {
    let ports = by_port("ports", each("ports", wire.ports, port_from_wire)?)?;
    let reach = match wire.denied {
        true if ports.is_empty() => Reach::Denied,
        true => {
            return Err(Invalid::new("ports", "must be empty when the service is denied"));
        }
        false => Reach::Allowed,
    };
    Ok(ServiceView { name: name.clone(), reach, ports })
}

fn port_to_wire(number: u16, view: &PortView) -> proto::ServicePort {
    proto::ServicePort {
        port: number.into(),
        name: view.name.as_ref().map(ToString::to_string),
        protocol: protocol_to_wire(view.protocol),
        routed: view.routed,
        rules: view.rules.iter().map(rule_to_wire).collect(),
        tags: view.tags.as_deref().map(tag::to_wire),
    }
}

fn port_from_wire(wire: proto::ServicePort) -> Result<(u16, PortView), Invalid> {
    let view = PortView {
        name: optional_name("name", wire.name.as_deref())?,
        protocol: protocol("protocol", wire.protocol)?,
        routed: wire.routed,
        rules: each("rules", wire.rules, rule_from_wire)?,
        endpoints: Vec::new(),
        tags: wire
            .tags
            .map(|tags| tag::from_wire(tags).map(Arc::new))
            .transpose()
            .map_err(|invalid| invalid.under("tags"))?,
    };
    Ok((port("port", wire.port)?, view))
}

fn rule_to_wire(rule: &RouteRule) -> proto::Rule {
    // 2^64 nanoseconds are 584 years: what is longer has no end that matters.
    let nanoseconds = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    let backend = |backend: &WeightedBackend| proto::Backend {
        service: backend.service.to_string(),
        port: backend.port.into(),
        weight: backend.weight,
    };
    proto::Rule {
        route: rule.route.to_string(),
        matches: rule.matches.iter().map(request::to_wire).collect(),
        backends: rule.backends.iter().map(backend).collect(),
        timeout_nanoseconds: rule.request_timeout.map(nanoseconds),
    }
}

fn rule_from_wire(wire: proto::Rule) -> Result<RouteRule, Invalid> {
    if wire.matches.is_empty() {
        return Err(Invalid::new("matches", "is empty: at least one match is needed"));
    }
    let backend = |wire: proto::Backend| {
        Ok(WeightedBackend {
            service: parsed("service", &wire.service)?,
            port: port("port", wire.port)?,
            weight: wire.weight,
        })
    };
    Ok(RouteRule {
        route: parsed("route", &wire.route)?,
        matches: each("matches", wire.matches, request::from_wire)?,
        backends: each("backends", wire.backends, backend)?,
        request_timeout: wire.timeout_nanoseconds.map(Duration::from_nanos),
    })
}
