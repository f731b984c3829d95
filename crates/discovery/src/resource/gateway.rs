//! Converts gateway configurations to and from the wire: ports, listeners, certificates and rules.

use std::collections::BTreeSet;
use std::fmt;

use leno_model::{
    Gateway, GatewayCertificate, GatewayListener, GatewayPort, GatewayPortRules, HostPattern,
    HostRules,
};

use super::field::{InvalidField, convert_each, parse_name, parse_port};
use super::service::{
    rule_from_wire, rule_to_wire, tcp_rule_from_wire, tcp_rule_to_wire, tls_rule_from_wire,
    tls_rule_to_wire,
};
use crate::proto;
use crate::proto::gateway_port::Serves as Wire;

pub(super) fn to_wire(gateway: &Gateway) -> proto::Gateway {
    proto::Gateway {
        name: gateway.name.to_string(),
        ports: gateway.ports.iter().map(port_to_wire).collect(),
    }
}

/// Parses a gateway. Its port numbers must be unique.
pub(super) fn from_wire(wire: proto::Gateway) -> Result<Gateway, InvalidField> {
    let ports = convert_each("ports", wire.ports, port_from_wire)?;
    let mut numbers = BTreeSet::new();
    if let Some(duplicate) = ports.iter().find(|port| !numbers.insert(port.port)) {
        return Err(InvalidField::new("ports", format!("port {} appears twice", duplicate.port)));
    }
    Ok(Gateway { name: parse_name("name", &wire.name)?, ports })
}

fn port_to_wire(port: &GatewayPort) -> proto::GatewayPort {
    let listeners_to_wire = |listeners: &[GatewayListener]| proto::GatewayListeners {
        listeners: listeners.iter().map(listener_to_wire).collect(),
    };
    let serves = match &port.serves {
        GatewayPortRules::Http(http) => Wire::Http(listeners_to_wire(http)),
        GatewayPortRules::Https(https) => Wire::Https(listeners_to_wire(https)),
        GatewayPortRules::Passthrough(rules) => Wire::Passthrough(proto::TlsRules {
            rules: rules.iter().map(tls_rule_to_wire).collect(),
        }),
        GatewayPortRules::Tcp(rule) => Wire::Tcp(tcp_rule_to_wire(rule)),
    };
    proto::GatewayPort { port: port.port.into(), serves: Some(serves) }
}

fn port_from_wire(wire: proto::GatewayPort) -> Result<GatewayPort, InvalidField> {
    let listeners_from_wire = |wire: proto::GatewayListeners| {
        convert_each("listeners", wire.listeners, listener_from_wire)
    };
    let serves = match wire.serves {
        None => return Err(InvalidField::new("serves", "is missing, or unknown to this version")),
        Some(Wire::Http(wire)) => GatewayPortRules::Http(listeners_from_wire(wire)?),
        Some(Wire::Https(wire)) => GatewayPortRules::Https(listeners_from_wire(wire)?),
        Some(Wire::Passthrough(wire)) => {
            GatewayPortRules::Passthrough(convert_each("rules", wire.rules, tls_rule_from_wire)?)
        }
        Some(Wire::Tcp(wire)) => GatewayPortRules::Tcp(
            tcp_rule_from_wire(wire).map_err(|invalid| invalid.with_parent("tcp"))?,
        ),
    };
    Ok(GatewayPort { port: parse_port("port", wire.port)?, serves })
}

fn listener_to_wire(listener: &GatewayListener) -> proto::GatewayListener {
    let certificate_to_wire = |certificate: &GatewayCertificate| proto::GatewayCertificate {
        chain: certificate.chain.clone(),
        key: certificate.key.clone(),
    };
    let host_to_wire = |host: &HostRules| proto::HostRules {
        hostname: host.hostname.as_ref().map(ToString::to_string),
        rules: host.rules.iter().map(rule_to_wire).collect(),
    };
    proto::GatewayListener {
        name: listener.name.to_string(),
        hostname: listener.hostname.as_ref().map(ToString::to_string),
        certificates: listener.certificates.iter().map(certificate_to_wire).collect(),
        hosts: listener.hosts.iter().map(host_to_wire).collect(),
    }
}

/// Parses a listener. Certificates are validated where they are used: an invalid one disables its listener,
/// and not the whole configuration.
fn listener_from_wire(wire: proto::GatewayListener) -> Result<GatewayListener, InvalidField> {
    let certificate_from_wire =
        |wire: proto::GatewayCertificate| GatewayCertificate { chain: wire.chain, key: wire.key };
    let host_from_wire = |host: proto::HostRules| {
        let hostname = parse_hostname(host.hostname.as_deref())?;
        Ok(HostRules { hostname, rules: convert_each("rules", host.rules, rule_from_wire)? })
    };
    Ok(GatewayListener {
        name: parse_name("name", &wire.name)?,
        hostname: parse_hostname(wire.hostname.as_deref())?,
        certificates: wire.certificates.into_iter().map(certificate_from_wire).collect(),
        hosts: convert_each("hosts", wire.hosts, host_from_wire)?,
    })
}

/// Formats without the key.
impl fmt::Debug for proto::GatewayCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayCertificate").finish_non_exhaustive()
    }
}

fn parse_hostname(text: Option<&str>) -> Result<Option<HostPattern>, InvalidField> {
    text.map(|text| parse_name("hostname", text)).transpose()
}
