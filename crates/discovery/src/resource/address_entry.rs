//! Converts address entries to and from the wire. An entry is the service or workload at an IP address.

use std::sync::Arc;

use leno_model::{AddressEntry, AddressPort, EndpointId, WorkloadName};

use super::endpoint;
use super::field::{
    InvalidField, collect_by_port, convert_each, parse_name, parse_port, parse_protocol,
    protocol_to_wire,
};
use crate::proto::{self, address_entry};

pub(super) fn to_wire(address_entry: &AddressEntry) -> proto::AddressEntry {
    let entry = match address_entry {
        AddressEntry::External => address_entry::What::Outside(proto::Nothing {}),
        AddressEntry::Service(name) => address_entry::What::Service(name.to_string()),
        AddressEntry::Workload { workload, ports } => {
            address_entry::What::Workload(proto::AddressWorkload {
                workload: workload.to_string(),
                ports: ports.iter().map(|(number, port)| port_to_wire(*number, port)).collect(),
            })
        }
    };
    proto::AddressEntry { what: Some(entry) }
}

/// Parses an address entry. An unknown kind is rejected, because it must not be interpreted as an external
/// address.
pub(super) fn from_wire(wire: proto::AddressEntry) -> Result<AddressEntry, InvalidField> {
    match wire.what {
        None => Err(InvalidField::new("what", "is missing, or unknown to this version")),
        Some(address_entry::What::Outside(proto::Nothing {})) => Ok(AddressEntry::External),
        Some(address_entry::What::Service(name)) => {
            parse_name("service", &name).map(AddressEntry::Service)
        }
        Some(address_entry::What::Workload(wire)) => {
            let workload: WorkloadName = parse_name("workload", &wire.workload)?;
            let ports = convert_each("ports", wire.ports, |wire| port_from_wire(&workload, wire))?;
            Ok(AddressEntry::Workload { ports: collect_by_port("ports", ports)?, workload })
        }
    }
}

fn port_to_wire(number: u16, port: &AddressPort) -> proto::AddressPort {
    proto::AddressPort {
        number: number.into(),
        service: port.service.to_string(),
        port: port.port.into(),
        protocol: protocol_to_wire(port.protocol),
        endpoint: port.endpoint.as_deref().map(endpoint::to_wire),
    }
}

fn port_from_wire(
    workload: &WorkloadName,
    wire: proto::AddressPort,
) -> Result<(u16, AddressPort), InvalidField> {
    let id = EndpointId {
        service: parse_name("service", &wire.service)?,
        port: parse_port("port", wire.port)?,
        workload: workload.clone(),
    };
    let endpoint = wire.endpoint.map(|wire| endpoint::from_wire(&id, &wire)).transpose();
    let endpoint = endpoint.map_err(|invalid| invalid.with_parent("endpoint"))?;
    let protocol = parse_protocol("protocol", wire.protocol)?;
    let EndpointId { service, port, .. } = id;
    let address_port = AddressPort { service, port, protocol, endpoint: endpoint.map(Arc::new) };
    Ok((parse_port("number", wire.number)?, address_port))
}
