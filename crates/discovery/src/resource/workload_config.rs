//! Converts a workload's configuration to and from the wire.

use std::collections::BTreeSet;
use std::sync::Arc;

use leno_model::{
    Access, AccessRule, Egress, MtlsMode, OutboundListener, PortSet, RevokedWorkload, ServiceName,
    TrustDomain, Uid, WorkloadConfig, WorkloadPort,
};

use super::field::{
    InvalidField, collect_by_port, convert_each, ip_address_to_wire, parse_account,
    parse_ip_address, parse_name, parse_optional_name, parse_port, parse_protocol,
    parse_socket_address, protocol_to_wire, socket_address_to_wire,
};
use super::{
    gateway, inbound, ingress_and_egress, observability, rate_limit, request, request_check, retry,
    tag,
};
use crate::proto;

/// Encodes a configuration. The message calls the services of ports `served`, observability `sight`, ingress rules
/// `openings` and request checks `guards`.
pub(super) fn to_wire(config: &WorkloadConfig) -> proto::WorkloadConfig {
    let port_service_to_wire = |(port, service): (&u16, &ServiceName)| proto::PortService {
        port: u32::from(*port),
        service: service.to_string(),
    };
    proto::WorkloadConfig {
        workload: config.workload.to_string(),
        account: config.account.to_string(),
        trust_domain: config.trust_domain.to_string(),
        address: ip_address_to_wire(config.address),
        ports: config.ports.iter().map(port_to_wire).collect(),
        served: config.port_services.iter().map(port_service_to_wire).collect(),
        outbound_listeners: config.outbound_listeners.iter().map(listener_to_wire).collect(),
        access: Some(access_to_wire(&config.access)),
        revoked: config.revoked.iter().map(ToString::to_string).collect(),
        ca_generation: config.ca_generation,
        revoked_workloads: config.revoked_workloads.iter().map(revoked_to_wire).collect(),
        caller: tag::caller_to_wire(&config.caller),
        lanes: config.lanes.iter().map(tag::lanes_to_wire).collect(),
        sight: observability::to_wire(&config.observability),
        inbound: inbound::to_wire(&config.inbound),
        limits: config.limits.iter().map(rate_limit::to_wire).collect(),
        egress_denied: config.egress == Egress::Deny,
        plaintext_accepted: config.mtls == MtlsMode::Permissive,
        gateway: config.gateway.as_deref().map(gateway::to_wire),
        openings: config
            .ingress_rules
            .iter()
            .map(ingress_and_egress::ingress_rule_to_wire)
            .collect(),
        egress_rules: config
            .egress_rules
            .iter()
            .map(ingress_and_egress::egress_rule_to_wire)
            .collect(),
        guards: config.request_checks.iter().map(request_check::to_wire).collect(),
        retries: config.retries.iter().map(retry::to_wire).collect(),
    }
}

pub(super) fn from_wire(wire: proto::WorkloadConfig) -> Result<WorkloadConfig, InvalidField> {
    let port_services = convert_each("served", wire.served, |wire| {
        Ok((parse_port("port", wire.port)?, parse_name("service", &wire.service)?))
    })?;
    let ports = convert_each("ports", wire.ports, port_from_wire)?;
    check_ports(&ports)?;
    let mode = wire.access.and_then(|access| access.mode);
    let caller = wire.caller.map(tag::caller_from_wire).transpose();
    Ok(WorkloadConfig {
        workload: parse_name("workload", &wire.workload)?,
        account: parse_account("account", &wire.account)?,
        trust_domain: TrustDomain(parse_name("trust_domain", &wire.trust_domain)?),
        address: parse_ip_address("address", &wire.address)?,
        ports,
        port_services: collect_by_port("served", port_services)?,
        outbound_listeners: convert_each(
            "outbound_listeners",
            wire.outbound_listeners,
            listener_from_wire,
        )?,
        access: access_from_wire(mode).map_err(|invalid| invalid.with_parent("access"))?,
        revoked: convert_each("revoked", wire.revoked, |name| parse_account("account", &name))?
            .into_iter()
            .collect(),
        revoked_workloads: convert_each(
            "revoked_workloads",
            wire.revoked_workloads,
            revoked_from_wire,
        )?
        .into_iter()
        .collect(),
        ca_generation: wire.ca_generation,
        caller: caller.map_err(|invalid| invalid.with_parent("caller"))?.unwrap_or_default(),
        lanes: collect_by_port("lanes", convert_each("lanes", wire.lanes, tag::lanes_from_wire)?)?,
        inbound: inbound::from_wire(wire.inbound)
            .map_err(|invalid| invalid.with_parent("inbound"))?,
        limits: collect_by_port(
            "limits",
            convert_each("limits", wire.limits, rate_limit::from_wire)?,
        )?,
        observability: observability::from_wire(wire.sight)
            .map_err(|invalid| invalid.with_parent("sight"))?,
        egress: if wire.egress_denied { Egress::Deny } else { Egress::Allow },
        mtls: match wire.plaintext_accepted {
            true => MtlsMode::Permissive,
            false => MtlsMode::Strict,
        },
        gateway: wire
            .gateway
            .map(|wire| gateway::from_wire(wire).map(Arc::new))
            .transpose()
            .map_err(|invalid| invalid.with_parent("gateway"))?,
        ingress_rules: convert_each(
            "openings",
            wire.openings,
            ingress_and_egress::ingress_rule_from_wire,
        )?,
        egress_rules: convert_each(
            "egress_rules",
            wire.egress_rules,
            ingress_and_egress::egress_rule_from_wire,
        )?,
        request_checks: collect_by_port(
            "guards",
            convert_each("guards", wire.guards, request_check::from_wire)?,
        )?,
        retries: retry::from_wire(wire.retries)?,
    })
}

fn revoked_to_wire(revoked: &RevokedWorkload) -> proto::RevokedWorkload {
    proto::RevokedWorkload {
        workload: revoked.workload.to_string(),
        uid: revoked.uid.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

fn revoked_from_wire(wire: proto::RevokedWorkload) -> Result<RevokedWorkload, InvalidField> {
    let uid = match wire.uid.as_str() {
        "" => None,
        text => Some(Uid::new(text).map_err(|error| InvalidField::new("uid", error.to_string()))?),
    };
    Ok(RevokedWorkload { workload: parse_name("workload", &wire.workload)?, uid })
}

fn port_to_wire(port: &WorkloadPort) -> proto::ApplicationPort {
    proto::ApplicationPort {
        name: port.name.as_ref().map(ToString::to_string),
        port: port.port.into(),
        protocol: protocol_to_wire(port.protocol),
    }
}

fn port_from_wire(wire: proto::ApplicationPort) -> Result<WorkloadPort, InvalidField> {
    Ok(WorkloadPort {
        name: parse_optional_name("name", wire.name.as_deref())?,
        port: parse_port("port", wire.port)?,
        protocol: parse_protocol("protocol", wire.protocol)?,
    })
}

/// Checks that the numbers and the names of a workload's ports are unique.
fn check_ports(ports: &[WorkloadPort]) -> Result<(), InvalidField> {
    let mut numbers = BTreeSet::new();
    let mut names = BTreeSet::new();
    for port in ports {
        if !numbers.insert(port.port) {
            return Err(InvalidField::new("ports", format!("port {} appears twice", port.port)));
        }
        if let Some(name) = port.name.as_ref().filter(|name| !names.insert(*name)) {
            return Err(InvalidField::new("ports", format!("two ports are named `{name}`")));
        }
    }
    Ok(())
}

fn listener_to_wire(listener: &OutboundListener) -> proto::OutboundListener {
    proto::OutboundListener {
        service: listener.service.to_string(),
        port: listener.port.into(),
        listen: Some(socket_address_to_wire(listener.listen)),
    }
}

fn listener_from_wire(wire: proto::OutboundListener) -> Result<OutboundListener, InvalidField> {
    Ok(OutboundListener {
        service: parse_name("service", &wire.service)?,
        port: parse_port("port", wire.port)?,
        listen: parse_socket_address("listen", wire.listen.as_ref())?,
    })
}

fn access_to_wire(access: &Access) -> proto::Access {
    let mode = match access {
        Access::AllowAll => proto::access::Mode::AllowAll(proto::Nothing {}),
        Access::AllowListed(rules) => proto::access::Mode::AllowListed(proto::AccessRules {
            rules: rules.iter().map(rule_to_wire).collect(),
        }),
    };
    proto::Access { mode: Some(mode) }
}

/// Parses an access mode. An unknown mode is rejected, because it must not allow any traffic.
fn access_from_wire(mode: Option<proto::access::Mode>) -> Result<Access, InvalidField> {
    match mode {
        None => Err(InvalidField::new("mode", "is missing, or unknown to this version")),
        Some(proto::access::Mode::AllowAll(proto::Nothing {})) => Ok(Access::AllowAll),
        Some(proto::access::Mode::AllowListed(wire)) => {
            convert_each("rules", wire.rules, rule_from_wire).map(Access::AllowListed)
        }
    }
}

fn rule_to_wire(rule: &AccessRule) -> proto::AccessRule {
    let (tcp_all, tcp_ports) = match &rule.tcp {
        PortSet::All => (true, Vec::new()),
        PortSet::Only(ports) => (false, ports.iter().map(|port| u32::from(*port)).collect()),
    };
    proto::AccessRule {
        policy: rule.policy.to_string(),
        sources: rule.sources.iter().map(ToString::to_string).collect(),
        http: rule.http.iter().map(request::to_wire).collect(),
        tcp_all,
        tcp_ports,
    }
}

fn rule_from_wire(wire: proto::AccessRule) -> Result<AccessRule, InvalidField> {
    let tcp = match wire.tcp_all {
        true if wire.tcp_ports.is_empty() => PortSet::All,
        true => {
            return Err(InvalidField::new("tcp_ports", "must be empty when tcp_all is set"));
        }
        false => PortSet::Only(convert_each("tcp_ports", wire.tcp_ports, |number| {
            parse_port("", number)
        })?),
    };
    Ok(AccessRule {
        policy: parse_name("policy", &wire.policy)?,
        sources: convert_each("sources", wire.sources, |text| parse_account("", &text))?,
        http: convert_each("http", wire.http, request::from_wire)?,
        tcp,
    })
}
