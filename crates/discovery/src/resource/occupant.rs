//! Wire conversion of address entries.

use std::sync::Arc;

use leno_model::{EndpointId, Occupant, OccupantPort, WorkloadName};

use super::endpoint;
use super::field::{Invalid, by_port, each, parsed, port, protocol, protocol_to_wire};
use crate::proto::{self, occupant};

pub(super) fn to_wire(occupant: &Occupant) -> proto::Occupant {
    let what = match occupant {
        Occupant::Outside => occupant::What::Outside(proto::Nothing {}),
        Occupant::Service(name) => occupant::What::Service(name.to_string()),
        Occupant::Workload { workload, ports } => {
            occupant::What::Workload(proto::OccupantWorkload {
                workload: workload.to_string(),
                ports: ports.iter().map(|(number, port)| port_to_wire(*number, port)).collect(),
            })
        }
    };
    proto::Occupant { what: Some(what) }
}

/// An unknown kind of entry must not be taken for an external address.
pub(super) fn from_wire(wire: proto::Occupant) -> Result<Occupant, Invalid> {
    match wire.what {
        None => Err(Invalid::new("what", "is missing, or unknown to this version")),
        Some(occupant::What::Outside(proto::Nothing {})) => Ok(Occupant::Outside),
        Some(occupant::What::Service(name)) => parsed("service", &name).map(Occupant::Service),
        Some(occupant::What::Workload(wire)) => {
            let workload: WorkloadName = parsed("workload", &wire.workload)?;
            let ports = each("ports", wire.ports, |wire| port_from_wire(&workload, wire))?;
            Ok(Occupant::Workload { ports: by_port("ports", ports)?, workload })
        }
    }
}

fn port_to_wire(number: u16, port: &OccupantPort) -> proto::OccupantPort {
    proto::OccupantPort {
        number: number.into(),
        service: port.service.to_string(),
        port: port.port.into(),
        protocol: protocol_to_wire(port.protocol),
        endpoint: port.endpoint.as_deref().map(endpoint::to_wire),
    }
}

fn port_from_wire(
    workload: &WorkloadName,
    wire: proto::OccupantPort,
) -> Result<(u16, OccupantPort), Invalid> {
    let id = EndpointId {
        service: parsed("service", &wire.service)?,
        port: port("port", wire.port)?,
        workload: workload.clone(),
    };
    let endpoint = wire.endpoint.map(|wire| endpoint::from_wire(&id, &wire)).transpose();
    let endpoint = endpoint.map_err(|invalid| invalid.under("endpoint"))?;
    let protocol = protocol("protocol", wire.protocol)?;
    let EndpointId { service, port: of_service, .. } = id;
    let read =
        OccupantPort { service, port: of_service, protocol, endpoint: endpoint.map(Arc::new) };
    Ok((port("number", wire.number)?, read))
}
